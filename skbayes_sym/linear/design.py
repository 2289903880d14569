"""Inputs of a linear model in the units of its prior, and the space they span."""

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skbayes_sym.base.rows import Array, Scaling
from skbayes_sym.base.training import Training
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.linear.hyperparameters import Learning, Range
from skbayes_sym.linear.low_rank import LowRankGaussian
from skbayes_sym.linear.sites import LinearData
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.random import spawn_seeds


class Design(NamedTuple):
    """Inputs in the units in which the prior is N(0, v I)."""

    prior_unit: Array  # (K,), the given scales; 1 where one scale is learned
    inputs: Tensor  # (n, K), float64
    basis: Tensor | None  # (K, r), orthonormal, if K > n
    features: Tensor  # (n, r)

    @classmethod
    def of(cls, data: Training, prior_unit: Array) -> Self:
        """O(K r^2) where there are more features K than rows, else nothing to compute."""
        inputs = data.double_data.x
        if (prior_unit != 1.0).any():
            inputs = inputs * torch.as_tensor(prior_unit, device=data.device)
        if inputs.shape[1] <= inputs.shape[0]:
            return cls(prior_unit, inputs, None, inputs)
        # QR never divides by a singular value: repeated rows and constant columns are welcome.
        basis, triangle = torch.linalg.qr(inputs.T)
        return cls(prior_unit, inputs, basis, triangle.T.contiguous())

    def problem(self, data: Training, n_outputs: int, fit_intercept: bool) -> LinearData:
        """The rows in the space that the inputs span."""
        _, y, weight = data.double_data
        return LinearData(self.features, y, weight, n_outputs, self.inputs.shape[1], fit_intercept)

    def posterior(
        self, loc: Array, covariance: Array, prior_variance: float | Array
    ) -> LowRankGaussian:
        """Posterior of the coefficients of scaled data, from that in the row space."""
        basis = None
        if self.basis is not None:
            basis = self.basis.cpu().numpy()
            loc = (torch.as_tensor(loc).to(self.basis) @ self.basis.T).cpu().numpy()
        return LowRankGaussian(
            loc * self.prior_unit, self.prior_unit, basis, covariance, prior_variance
        )


def require_covariance(data: Training, n_outputs: int) -> None:
    """Refuse what doesn't fit: the covariance and its root in the space of r dimensions."""
    r = min(data.n_rows, data.n_features)
    covariance = MemoryAllocation(
        f"the covariance of {n_outputs} outputs in {r} dimensions",
        2 * (n_outputs * r) ** 2 * 8,
        "Use fewer rows or fewer features (as many dimensions as the smaller of the two), or one "
        "likelihood='bernoulli' per class.",
    )
    require_memory([covariance], data.device)


def initial_scales(
    data: Training, likelihood: Likelihood, typical: float, prior_scale: Array | None,
    target: int = 0,
) -> tuple[float, Learning]:  # fmt: skip
    """Log prior variance at which the outputs have the scale expected of them, and what is learned.

    ``typical`` is the mean squared length of the inputs.
    """
    is_scaled = likelihood.scales_targets
    output_scale = float(data.target_std[target]) if is_scaled else 1.0
    start = 2.0 * log(output_scale) - (log(typical) if typical > 0.0 else 0.0)
    # Learned prior standard deviation of the outputs, relative to their scale (1 on a log or logit
    # scale). Beyond the upper end the quadrature and the data say nothing any more.
    ends = (1e-5, 1e5) if is_scaled else (1e-5, 30.0)
    prior_range = Range(*(start + 2.0 * log(end) for end in ends))
    # Learned noise, relative to the standard deviation of the targets.
    noise_range = Range(*(log(output_scale) + log(end) for end in (1e-6, 1e2)))
    # Without a feature that varies there is nothing to learn.
    learns_prior = prior_scale is None and typical > 0.0
    learning = Learning(prior_range if learns_prior else None, noise_range)
    return start if prior_scale is None else 0.0, learning


def warn_range_limits(log_variance: float, log_noise: Sequence[float], learning: Learning) -> None:
    """Say which learned scale has no optimum inside its range: it is as good as at an end."""
    close = 1e-3
    if learning.prior is not None and log_variance > learning.prior.high - close:
        warn_user(
            "prior_scale_ reached the upper end of its range: the evidence rises with it "
            "without end, as with classes that the features separate perfectly. Give "
            "prior a value.",
            ConvergenceWarning,
        )
    if any(value < learning.noise.low + close for value in log_noise):
        warn_user(
            "noise_std_ reached the lower end of its range: the features fit the targets "
            "without error, or the targets are all the same. Give noise_std a value.",
            ConvergenceWarning,
        )


def best_constant(data: Training, likelihood: Likelihood) -> Array:
    """The best function without features, about, (C,) or (1,).

    The likelihood's own, or the targets' mean; nothing known of classes.
    """
    y = data.rows.y
    weight = data.rows.weight
    constant = likelihood.fit_constant_outputs(y, weight)
    if constant is not None:
        return constant
    if data.y_scaling is None or not likelihood.scales_targets:
        return np.zeros(1)
    return np.atleast_1d(weight @ data.y_scaling.apply(y)[:, 0] / weight.sum())


def coefficients(
    data: Training, posterior: LowRankGaussian, offset: Array, noise: Array,
    prior_scale: Array | None,
) -> dict[str, Any]:  # fmt: skip
    """All that predicting needs, and the scales that were learned.

    ``offset`` (C,) and ``noise`` (T,) or (0,) are of scaled targets; None is a learned scale.
    """
    targets = data.y_scaling or Scaling(np.zeros(1), np.ones(1))
    x_mean, x_scale = data.x_scaling
    with np.errstate(over="ignore", divide="ignore"):
        to_given = targets.scale[:, None] / x_scale
    if not np.isfinite(to_given).all():
        raise ValueError("y is so large beside X that coefficients exceed all numbers: rescale X.")
    coef = posterior.loc * to_given
    std = np.sqrt(posterior.variance()) * to_given
    intercept = offset * targets.scale + targets.mean - coef @ x_mean
    # Labels have as many rows of coefficients as outputs, one target one without an axis.
    is_single = data.y_scaling is not None and data.y_ndim == 1
    noise = noise * targets.scale
    learned = np.sqrt(posterior.prior_variance)[()]
    return {
        "posterior_": posterior,
        "coef_": coef[0] if is_single else coef,
        "coef_std_": std[0] if is_single else std,
        "intercept_": float(intercept[0]) if is_single else intercept,
        "prior_scale_": learned if prior_scale is None else prior_scale[()],
        "_offset_": offset,
        **({} if data.y_scaling is not None else {"_predict_seed_": spawn_seeds(data.seed, 1)[0]}),
        **({"noise_std_": float(noise[0]) if is_single else noise} if len(noise) else {}),
    }
