"""Posteriors made of weighted draws of a network's weights: what chains and ensembles share."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.network_estimator import NetworkEstimator
from skbayes_sym.base.predictor import DrawsPredictor, Predictor
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.priors import HalfNormal


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

    @property
    def _noise_prior_scale(self) -> float:
        return self.noise_std.scale if isinstance(self.noise_std, HalfNormal) else 1.0

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
        if "noise_std_samples_" in vars(self):
            draws["noise_std"] = self.noise_std_samples_[chains]
        stats = {"lp": self.log_posterior_samples_[chains]}
        # ArviZ takes more chains than draws for swapped dimensions; here they are common.
        groups = {"posterior": draws, "sample_stats": stats}
        return from_dict(groups, check_conventions=False)

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Log density or probability of observed targets given every draw: for PSIS-LOO.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples) or (n_members, n_samples)
            Nats, of ``y`` as given, joint over the targets of a row; -inf for a class never seen.
            The chains count as `chain_weights_` says.
        """
        raise NotImplementedError

    def _draw_weights(self) -> Array | None:
        """Weight of each of all draws, (S,); None where all count alike by definition."""
        n_draws = int(np.prod(self.samples_.shape[1:-1]))
        return np.repeat(self.chain_weights_ / n_draws, n_draws)

    def _draws_predictor(self, like: Tensor) -> DrawsPredictor:
        """All draws, on the device and in the precision of ``like``."""
        weights = self._draw_weights()
        log_weights = None if weights is None else torch.as_tensor(np.log(weights)).to(like)
        theta = torch.as_tensor(self.samples_).flatten(0, -2).to(like)
        return DrawsPredictor(self.network_, theta, self.fitted_likelihood.to(like), log_weights)

    def predictor(self, like: Tensor) -> Predictor:
        return self._cached(f"draws on {like.device}", lambda: self._draws_predictor(like))


class DrawsRegressor(BayesianRegressorMixin, WeightedDraws):
    """Draws of functions and of their noise."""

    def _make_likelihood(self, data: Training) -> Likelihood:
        likelihood = super()._make_likelihood(data)
        if isinstance(self.noise_std, HalfNormal) and not likelihood.n_params:
            raise ValueError(
                f"noise_std={self.noise_std!r} does not apply: the likelihood has no noise to "
                "learn. Leave noise_std at its default, or use another likelihood."
            )
        return likelihood

    def _fitted_likelihood_params(self) -> Array:
        params = self._likelihood_params_
        return params.reshape(int(np.prod(params.shape[:-1])), 1, params.shape[-1])

    def _fitted_noise_std(self) -> Array:
        return self.noise_std_samples_.reshape(-1, 1, self.noise_std_samples_.shape[-1])

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        log_p = self.evaluate_functional(
            X, lambda p, y: [p.log_prob_per_draw(y).T], self._check_observed_targets(y)
        )
        return log_p[0].T.reshape(*self.samples_.shape[:-1], -1)


class DrawsClassifier(BayesianClassifierMixin, WeightedDraws):
    """Draws of functions whose outputs are logits."""

    def _make_likelihood(self, data: Training) -> Likelihood:
        likelihood = super()._make_likelihood(data)
        if likelihood.n_params:
            raise ValueError(
                f"likelihood={likelihood!r} has free parameters, which classifiers don't sample: "
                "fix them."
            )
        return likelihood

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        codes, known = self._encode_observed_classes(y, len(self.check_inputs(X)))
        (values,) = self.evaluate_functional(
            X, lambda distribution, y: [distribution.log_prob_per_draw(y).T], codes,
            distribution=lambda x: self._draws_predictor(x).distribution(x),
        )  # fmt: skip
        values = np.where(known, values.T, -np.inf)
        return values.reshape(*self.samples_.shape[:-1], -1)
