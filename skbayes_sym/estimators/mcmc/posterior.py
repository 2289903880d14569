"""What estimators made of weighted draws share."""

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.model import gaussian_prior
from skbayes_sym.estimators.base import RowEstimator
from skbayes_sym.estimators.mcmc.approximation import mixture_of_laplace, reference_posterior


class SampledPosterior(RowEstimator):
    """Draws ``samples_`` (chains, draws, P) that count as ``chain_weights_`` says.

    A concrete estimator brings ``_likelihood()``, what its fit supposed of the targets.
    """

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "samples_")

    def to_arviz(self) -> Any:
        """Export the draws for ArviZ.

        Returns
        -------
        xarray.DataTree
            Group ``posterior`` with the weights ``W1, b1, ...`` (chain, draw, out, in) and, in
            regression, ``noise_std``; group ``sample_stats`` with ``lp``, the log posterior
            density. In ArviZ all chains count alike: where `chain_weights_` differ, weigh them
            yourself.

        Raises
        ------
        ImportError
            Without the package arviz-base (extra ``arviz``).
        """
        try:
            from arviz_base import from_dict
        except ImportError as error:
            raise ImportError(
                "to_arviz needs arviz-base: pip install 'skbayes_sym[arviz]'."
            ) from error
        theta = torch.as_tensor(self.samples_)
        draws = {k: v.numpy() for k, v in self.network_.layout.unflatten(theta).items()}
        if hasattr(self, "noise_std_samples_"):
            draws["noise_std"] = self.noise_std_samples_
        return from_dict({"posterior": draws, "sample_stats": {"lp": self.log_posterior_samples_}})

    def approximate(
        self, kind: str = "mixture_of_laplace", n_samples: int = 1000, random_state: Any = 0
    ) -> Any:
        """Condense the draws to an approximation that predicts.

        Parameters
        ----------
        kind : {"mixture_of_laplace"}, default="mixture_of_laplace"
            A Gaussian for every mode of the draws, at its maximum and with the curvature there
            (Eschenhagen et al. 2021), weighted as the draws are.
        n_samples : int, default=1000
            Draws of the approximation that predictions average.
        random_state : int, RandomState instance or None, default=0

        Returns
        -------
        estimator of the same class
            Fitted, with ``posterior_`` (`MixtureOfLaplace`: ``sample``, ``log_prob`` over weights
            and log noise in scaled units) and ``samples_`` (1, n_samples, P) drawn from it.

        Raises
        ------
        ValueError
            If symmetries were not removed: every copy would be a mode.

        Notes
        -----
        2 D gradients a mode for the curvatures of D parameters, O(D^3).
        """
        check_is_fitted(self)
        if kind != "mixture_of_laplace":
            raise ValueError(f"kind must be 'mixture_of_laplace', got {kind!r}.")
        if not self.remove_symmetries:
            raise ValueError(
                "approximate needs draws on one representative of their orbits: fit with "
                "remove_symmetries=True."
            )
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        with one_thread(), torch.no_grad():
            posterior = reference_posterior(
                self, self._likelihood(), gaussian_prior(self, self.network_)
            )
            return mixture_of_laplace(self, posterior, n_samples, seed)

    def _draws_on(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """All draws (S, P) and their log weights (S,), on the device of ``like``."""

        def make() -> tuple[Tensor, Tensor]:
            theta = torch.as_tensor(self.samples_).flatten(0, 1).to(like)
            return theta, torch.as_tensor(np.log(self._draw_weights())).to(like)

        return self._cached(f"draws on {like.device}", make)

    def _draw_weights(self) -> Any:
        """What each draw counts for, (S,)."""
        n_draws = self.samples_.shape[1]
        return np.repeat(self.chain_weights_ / n_draws, n_draws)

    def _choose_draws(self, n: int, generator: torch.Generator) -> Tensor:
        """Indices of draws, taken by weight, int64 (n,)."""
        weights = torch.as_tensor(self._draw_weights(), dtype=torch.float64)
        return torch.multinomial(weights, n, replacement=True, generator=generator)
