"""Base classes of estimators whose posterior is weighted draws of a network's weights."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.network_estimator import NetworkEstimator
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.predictor import DrawsPredictor, Predictor
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.priors import HalfNormal


class WeightedDraws(NetworkEstimator):
    """Estimator with draws ``samples_`` (n_chains, ..., P) and weights ``chain_weights_``.

    The members of an ensemble are chains of one draw, without an axis for it.
    """

    # Whether the draws are samples of the posterior. The modes of an ensemble aren't.
    draws_the_posterior: ClassVar[bool] = True

    samples_: Array
    chain_weights_: Array
    log_posterior_samples_: Array
    noise_std_samples_: Array
    _likelihood_params_: Array
    y_scale_: Array

    @property
    def _noise_prior_scale(self) -> float:
        """Scale of the half-normal prior of the noise level, in scaled units."""
        return self.noise_std.scale if isinstance(self.noise_std, HalfNormal) else 1.0

    def to_arviz(self) -> Any:
        """Export the draws for ArviZ.

        Returns
        -------
        xarray.DataTree
            Group ``posterior`` with the weights ``W1, b1, ...`` (chain, draw, out, in) and, where
            there is noise, ``noise_std``; group ``sample_stats`` with ``lp``, the log posterior
            density. Members of an ensemble are draws of one chain. ArviZ gives all chains the same
            weight, so apply `chain_weights_` yourself if they differ.

        Raises
        ------
        ImportError
            Without the package arviz-base (extra ``arviz``).
        """
        try:
            from arviz_base import from_dict
        except ImportError as error:
            raise ImportError("to_arviz needs arviz-base: pip install arviz-base.") from error
        # Members of an ensemble become the draws of one chain.
        chains = (slice(None),) if self.samples_.ndim == 3 else (None,)
        theta = torch.as_tensor(self.samples_[chains])
        draws = {k: v.numpy() for k, v in self.network_.layout.unflatten(theta).items()}
        noise_std = fitted_attribute(self, "noise_std_samples_")
        if noise_std is not None:
            draws["noise_std"] = noise_std[chains]
        stats = {"lp": self.log_posterior_samples_[chains]}
        # Without this check: ArviZ suspects swapped dimensions if there are more chains than draws,
        # which is common here.
        groups = {"posterior": draws, "sample_stats": stats}
        return from_dict(groups, check_conventions=False)

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Compute the log likelihood of observed targets given every draw, as for PSIS-LOO.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Observed targets or classes.

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples) or (n_members, n_samples)
            Log density or probability in nats of ``y`` as given, joint over the targets of a row;
            -inf for a class that wasn't in the training data. Chains have the weights
            `chain_weights_`.
        """
        raise NotImplementedError

    def _draw_weights(self) -> Array | None:
        """Return the weight of every draw, (S,); None if all weights are equal by definition."""
        n_draws = int(np.prod(self.samples_.shape[1:-1]))
        return np.repeat(self.chain_weights_ / n_draws, n_draws)

    def _draws_predictor(self, like: Tensor) -> DrawsPredictor:
        """Return the predictor of all draws, on the device and in the precision of ``like``."""
        weights = self._draw_weights()
        log_weights = None if weights is None else torch.as_tensor(np.log(weights)).to(like)
        theta = torch.as_tensor(self.samples_).flatten(0, -2).to(like)
        return DrawsPredictor(self.network_, theta, self.fitted_likelihood.to(like), log_weights)

    def predictor(self, like: Tensor) -> Predictor:
        """Return the predictor of all draws, see `RowEstimator.predictor`."""
        return self._cached(f"draws on {like.device}", lambda: self._draws_predictor(like))


class DrawsRegressor(BayesianRegressorMixin, WeightedDraws):
    """Regressor whose posterior is weighted draws of the weights and of the noise level."""

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood with its initial parameters, in scaled units."""
        likelihood = super()._make_likelihood(data)
        if isinstance(self.noise_std, HalfNormal) and not likelihood.n_params:
            raise ValueError(
                f"noise_std={self.noise_std!r} does not apply: the likelihood has no noise to "
                "learn. Leave noise_std at its default, or use another likelihood."
            )
        return likelihood

    def _fitted_likelihood_params(self) -> Array:
        """Parameters of the likelihood for every draw, (S, 1, n_params)."""
        params = self._likelihood_params_
        return params.reshape(int(np.prod(params.shape[:-1])), 1, params.shape[-1])

    def _fitted_noise_std(self) -> Array:
        """Noise level of every draw in the units of ``y``, (S, 1, n_targets)."""
        return self.noise_std_samples_.reshape(-1, 1, self.noise_std_samples_.shape[-1])

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Compute the log likelihood of observed targets given every draw, as for PSIS-LOO.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Observed targets.

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples) or (n_members, n_samples)
            Log density in nats of ``y`` as given, joint over the targets of a row. Chains have the
            weights `chain_weights_`.
        """
        targets = self._check_observed_targets(y)
        (values,) = self.evaluate_functional(X, lambda p, y: [p.log_prob_per_draw(y).T], targets)
        return values.T.reshape(*self.samples_.shape[:-1], -1)


class DrawsClassifier(BayesianClassifierMixin, WeightedDraws):
    """Classifier whose posterior is weighted draws of the weights."""

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood with its initial parameters, in scaled units."""
        likelihood = super()._make_likelihood(data)
        if likelihood.n_params:
            raise ValueError(
                f"likelihood={likelihood!r} has free parameters, which classifiers don't sample: "
                "fix them."
            )
        return likelihood

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Compute the log probability of observed classes given every draw, as for PSIS-LOO.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Observed classes.

        Returns
        -------
        ndarray of shape (n_chains, n_draws, n_samples) or (n_members, n_samples)
            Log probability in nats; -inf for a class that wasn't in the training data. Chains have
            the weights `chain_weights_`.
        """
        codes, is_known = self._encode_observed_classes(y, len(self.check_inputs(X)))
        (values,) = self.evaluate_functional(
            X,
            lambda p, y: [p.log_prob_per_draw(y).T],
            codes,
            distribution=lambda x: self._draws_predictor(x).distribution(x),
        )
        values = np.where(is_known, values.T, -np.inf)
        return values.reshape(*self.samples_.shape[:-1], -1)
