"""Posteriors made of weighted draws of a network's weights: what chains and ensembles share."""

import warnings
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import refuse
from skbayes_sym.estimators._fit.memory import units_bytes
from skbayes_sym.estimators._fit.model import gaussian_noise
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import PREDICT_ROWS
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.networks import NetworkEstimator
from skbayes_sym.estimators.predictors import (
    BayesianClassifierMixin,
    BayesianRegressorMixin,
    SampledOutputs,
    noise_stream,
)
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.predictive import NormalMixture, Predictive, TargetPredictive
from skbayes_sym.numerics.memory import Part
from skbayes_sym.numerics.random import generator_from


class WeightedDraws(NetworkEstimator):
    """Draws ``samples_`` (n_chains, ..., P), of which a chain's count as ``chain_weights_`` says.

    The members of an ensemble are chains of one draw, without an axis for it.
    """

    draws_the_posterior: ClassVar[bool] = True  # modes, as an ensemble has, are no draws of it

    samples_: Array
    chain_weights_: Array
    log_posterior_samples_: Array
    noise_std_samples_: Array
    _likelihood_params_: Array
    y_scale_: Array

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "samples_")

    def to_arviz(self) -> Any:
        """Export the draws for ArviZ.

        Returns
        -------
        xarray.DataTree
            Group ``posterior`` with the weights ``W1, b1, ...`` (chain, draw, out, in) and, where
            there is noise, ``noise_std``; group ``sample_stats`` with ``lp``, the log posterior
            density. Members of an ensemble are draws of one chain. In ArviZ all chains count
            alike: where `chain_weights_` differ, weigh them yourself.

        Raises
        ------
        ImportError
            Without the package arviz-base (extra ``arviz``).
        """
        try:
            from arviz_base import from_dict
        except ImportError as error:
            raise ImportError("to_arviz needs arviz-base: pip install arviz-base.") from error
        chains = (slice(None),) if self.samples_.ndim == 3 else (None,)  # members are draws of one
        theta = torch.as_tensor(self.samples_[chains])
        draws = {k: v.numpy() for k, v in self.network_.layout.unflatten(theta).items()}
        if hasattr(self, "noise_std_samples_"):
            draws["noise_std"] = self.noise_std_samples_[chains]
        stats = {"lp": self.log_posterior_samples_[chains]}
        with warnings.catch_warnings():  # more chains than draws are no mistake
            warnings.filterwarnings("ignore", "Found chain dimension to be longer", UserWarning)
            return from_dict({"posterior": draws, "sample_stats": stats})

    def _draw_weights(self) -> Array | None:
        """What each of all draws counts for, (S,); None where all count alike by definition."""
        n_draws = int(np.prod(self.samples_.shape[1:-1]))
        return np.repeat(self.chain_weights_ / n_draws, n_draws)

    def _likelihood_params(self) -> Array:
        """Parameters of every draw's likelihood, (S, 1, n_params), in scaled units."""
        own = self._likelihood_params_
        return np.asarray(own).reshape(int(np.prod(own.shape[:-1])), 1, own.shape[-1])

    def _prediction_parts(self, n_rows: int) -> list[Part]:
        """Every draw's units at a block of rows."""
        n_draws, n_rows = int(np.prod(self.samples_.shape[:-1])), min(n_rows, PREDICT_ROWS)
        size = np.dtype(self.dtype_).itemsize
        return [
            Part(
                f"the units of {n_draws:,} draws at {n_rows} rows",
                n_draws * units_bytes(self.network_, n_rows, size),
                "Keep fewer draws (n_draws, n_chains or n_members), or ask for fewer rows at once.",
            )
        ]

    def _draws_on(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """All draws (S, P) and their log weights (S,), on the device of ``like``."""

        def make() -> tuple[Tensor, Tensor | None]:
            theta, weights = torch.as_tensor(self.samples_).flatten(0, -2), self._draw_weights()
            logs = None if weights is None else torch.as_tensor(np.log(weights)).to(like)
            return theta.to(like), logs

        found: tuple[Tensor, Tensor | None] = self._cached(f"draws on {like.device}", make)
        return found

    def _choose_draws(self, n: int, generator: torch.Generator) -> Tensor:
        """Indices of draws, taken by weight, int64 (n,)."""
        weights = self._draw_weights()
        if weights is None:
            return torch.randint(len(self.samples_), (n,), generator=generator)
        chances = torch.as_tensor(weights, dtype=torch.float64)
        return torch.multinomial(chances, n, replacement=True, generator=generator)


class DrawsRegressor(BayesianRegressorMixin, WeightedDraws):
    """Draws of functions and of their noise."""

    noise_std: Any = "learn"
    noise_prior_scale: float

    def _default_likelihood(self, data: Training) -> Likelihood:
        return gaussian_noise(self.noise_std, data)

    def _likelihood(self, data: Training) -> Likelihood:
        likelihood = super()._likelihood(data)
        if not likelihood.n_params:
            why = "the likelihood has no noise to learn"
            refuse(self, ("noise_prior_scale",), why, "noise_std='learn'")
        return likelihood

    def _fitted_likelihood(self) -> Likelihood:
        """In scaled units, at any value of its free parameters."""
        given = self._given_likelihood
        if given is not None:
            return given
        zero = torch.zeros(len(self.y_scale_), dtype=torch.float64)
        if isinstance(self.noise_std, str):
            return Gaussian(zero)
        return Gaussian((zero + torch.as_tensor(self.noise_std / self.y_scale_)).log(), learn=False)

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Log density of observed targets given every draw: what PSIS-LOO starts from.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples) or (n_members, n_samples)
            Nats, of ``y`` as given; joint over the targets of a row. The chains count as
            `chain_weights_` says.
        """
        found = self._reduce(X, lambda p, y: [p.log_prob_of_draws(y).T], self._observed_targets(y))
        return found[0].T.reshape(*self.samples_.shape[:-1], -1)

    def _predictive(self, x: Tensor) -> TargetPredictive:
        theta, log_weights = self._draws_on(x)
        outputs = self.network_.forward(theta, x)
        if self._given_likelihood is None:
            variance = torch.as_tensor(self._noise_std() / self.y_scale_).to(x) ** 2
            return NormalMixture(outputs, torch.zeros_like(variance), variance, log_weights)
        law = self._given_draws(x, slice(None)).predictive(outputs, log_weights)
        return cast(TargetPredictive, law)

    def _learned_likelihood(self, like: Tensor) -> Likelihood:
        return self._given_draws(like, slice(None))

    def _given_draws(self, like: Tensor, draws: slice) -> Likelihood:
        """The likelihood with the parameters (S, 1, n_params) that go with draws, scaled units."""
        likelihood = self._fitted_likelihood().to(like)
        if not likelihood.n_params:
            return likelihood
        return likelihood.at(torch.as_tensor(self._likelihood_params()[draws]).to(like))

    def _sample_targets(self, blocks: list[Tensor], n: int, seed: int) -> Array:
        if self._given_likelihood is None:
            return super()._sample_targets(blocks, n, seed)
        chosen = self._choose_draws(n, generator_from(seed))
        theta = self._draws_on(blocks[0])[0][chosen.to(blocks[0].device)]
        outputs = torch.cat([self.network_.forward(theta, x) for x in blocks], dim=1)
        unit = [torch.as_tensor(a).to(outputs) for a in (self.y_mean_, self.y_scale_)]
        rng, values = noise_stream(seed), []
        for i, draw in enumerate(chosen.tolist()):
            likelihood = self._given_draws(outputs, slice(draw, draw + 1))
            law = cast(TargetPredictive, likelihood.predictive(outputs[i : i + 1]))
            values.append(law.in_units(*unit).sample(1, rng).cpu().double().numpy())
        return np.concatenate(values)

    def _sample_outputs(self, x: Tensor, n: int, generator: torch.Generator) -> SampledOutputs:
        chosen = self._choose_draws(n, generator)
        theta, _ = self._draws_on(x)
        outputs = self.network_.forward(theta[chosen.to(x.device)], x)
        return SampledOutputs(outputs, self._noise_std()[chosen.numpy()])

    def _noise_std(self) -> Array:
        """(S, 1, n_targets), in the units of ``y``."""
        return self.noise_std_samples_.reshape(-1, 1, self.noise_std_samples_.shape[-1])


class DrawsClassifier(BayesianClassifierMixin, WeightedDraws):
    """Draws of functions whose outputs are logits."""

    def _likelihood(self, data: Training) -> Likelihood:
        likelihood = super()._likelihood(data)
        if likelihood.n_params:
            raise ValueError(
                f"likelihood={likelihood!r} has free parameters, which classifiers don't sample: "
                "fix them."
            )
        return likelihood

    def _fitted_likelihood(self) -> Likelihood:
        return self._given_likelihood or Categorical()

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Log probability of observed classes given every draw: what PSIS-LOO starts from.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples) or (n_members, n_samples)
            Nats; -inf for a class never seen. The chains count as `chain_weights_` says.
        """
        codes, known = self._observed_codes(y, len(self._check_inputs(X)))
        found = self._reduce(X, _by_draw, codes, self._given_draws)
        values = np.where(known, found[0].T, -np.inf)
        return values.reshape(*self.samples_.shape[:-1], -1)

    def _predictive(self, x: Tensor) -> Predictive:
        return self._given_draws(x)

    def _given_draws(self, x: Tensor) -> Predictive:
        """The mixture of what all draws say of rows."""
        theta, log_weights = self._draws_on(x)
        likelihood = self._fitted_likelihood().to(x)
        return likelihood.predictive(self.network_.forward(theta, x), log_weights)


def _by_draw(predictive: Predictive, codes: Tensor) -> list[Tensor]:
    return [predictive.log_prob_of_draws(codes).T]
