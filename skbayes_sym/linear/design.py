"""Inputs of a linear model in the units of its prior, and the space that they span."""

from collections.abc import Sequence
from math import exp, log
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.noise_levels import MAX_FREEDOMS, PRIOR_SCALE, HalfTPrior
from skbayes_sym.base.rows import Array, Scaling
from skbayes_sym.base.training import Training
from skbayes_sym.linear.hyperparameters import LearnedRanges, Range
from skbayes_sym.linear.low_rank import LowRankGaussian
from skbayes_sym.linear.sites import LinearData
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.random import spawn_seeds


class Design(NamedTuple):
    """Inputs in the units in which the prior is N(0, v I).

    Parameters
    ----------
    prior_unit : ndarray of shape (K,)
        Given prior standard deviations; 1 if one for all is learned.
    inputs : Tensor of shape (n, K)
        Scaled inputs times these units, float64.
    basis : Tensor of shape (K, r), or None
        Orthonormal basis of the row space if K > n.
    features : Tensor of shape (n, r)
        Coordinates of the inputs in this basis, or the inputs themselves.
    """

    prior_unit: Array
    inputs: Tensor
    basis: Tensor | None
    features: Tensor

    @classmethod
    def from_data(cls, data: Training, prior_unit: Array) -> Self:
        """Compute the row space in O(K r^2) if there are more features K than rows.

        Parameters
        ----------
        data : Training
            Scaled training data.
        prior_unit : ndarray of shape (K,)
            Units of the coefficients.

        Returns
        -------
        Design
        """
        inputs = data.double_data.x
        if (prior_unit != 1.0).any():
            inputs = inputs * torch.as_tensor(prior_unit, device=data.device)
        if inputs.shape[1] <= inputs.shape[0]:
            return cls(prior_unit, inputs, None, inputs)
        # QR never divides by a singular value, so repeated rows and constant columns do no harm.
        basis, triangle = torch.linalg.qr(inputs.T)
        return cls(prior_unit, inputs, basis, triangle.T.contiguous())

    def linear_data(self, data: Training, n_outputs: int, fit_intercept: bool) -> LinearData:
        """Return the training rows in the space that the inputs span.

        Parameters
        ----------
        data : Training
            Scaled training data.
        n_outputs : int
            Number of outputs.
        fit_intercept : bool
            Whether there are intercepts.

        Returns
        -------
        LinearData
        """
        _, y, weight = data.double_data
        return LinearData(self.features, y, weight, n_outputs, self.inputs.shape[1], fit_intercept)

    def posterior(
        self, loc: Array, covariance: Array, prior_variance: float | Array
    ) -> LowRankGaussian:
        """Return the posterior of the coefficients of scaled data.

        Parameters
        ----------
        loc : ndarray of shape (C, r)
            Mean in the row space.
        covariance : ndarray of shape (C r, C r)
            Covariance in the row space.
        prior_variance : float or ndarray of shape (C,)
            Variance of the prior.

        Returns
        -------
        LowRankGaussian
        """
        basis = None
        if self.basis is not None:
            basis = self.basis.cpu().numpy()
            loc = (torch.as_tensor(loc).to(self.basis) @ self.basis.T).cpu().numpy()
        return LowRankGaussian(
            loc * self.prior_unit, self.prior_unit, basis, covariance, prior_variance
        )


def require_covariance(data: Training, n_outputs: int) -> None:
    """Raise a MemoryError if the covariance in the row space and its root don't fit into memory."""
    r = min(data.n_rows, data.n_features)
    covariance = MemoryAllocation(
        f"the covariance of {n_outputs} outputs in {r} dimensions",
        2 * (n_outputs * r) ** 2 * 8,
        "Use fewer rows or fewer features (as many dimensions as the smaller of the two), or one "
        "likelihood='bernoulli' per class.",
    )
    require_memory([covariance], data.device)


def initial_scales(
    data: Training,
    likelihood: Likelihood,
    mean_square: float,
    prior_scale: Array | None,
    target: int = 0,
) -> tuple[float, LearnedRanges]:
    """Return the initial prior variance and the ranges of learned scales.

    Parameters
    ----------
    data : Training
        Scaled training data.
    likelihood : Likelihood
        Likelihood with its initial parameters.
    mean_square : float
        Mean squared length of the inputs in the units of the prior.
    prior_scale : ndarray or None
        Given prior standard deviation; None if it is learned.
    target : int
        Position of the target.

    Returns
    -------
    log_variance : float
        Log prior variance at which the outputs have the expected scale; 0 if it isn't learned.
    ranges : LearnedRanges
        Ranges of the learned scales.
    """
    # Range of the prior standard deviation of the outputs, relative to their scale, which is 1 on a
    # log or logit scale. Above the upper limit the quadrature is inaccurate and the data have no
    # information.
    output_scale = 1.0
    limits = (1e-5, 30.0)
    if likelihood.scales_targets:
        output_scale = float(data.target_std[target])
        limits = (1e-5, 1e5)
    log_variance = 2.0 * log(output_scale)
    if mean_square > 0.0:
        log_variance = log_variance - log(mean_square)
    prior_range = Range(*(log_variance + 2.0 * log(limit) for limit in limits))
    # Range of the noise level, relative to the standard deviation of the targets.
    noise_range = Range(*(log(output_scale) + log(limit) for limit in (1e-6, 1e2)))
    # Without a feature that varies there is nothing to learn.
    learns_prior = prior_scale is None and mean_square > 0.0
    # Logits and log rates of few rows have a half-Cauchy prior (Gelman et al. 2008), because the
    # evidence of classes that few rows separate rises with their scale.
    scale_prior = None
    if learns_prior and not likelihood.scales_targets and data.total_weight <= MAX_FREEDOMS:
        scale = torch.tensor(PRIOR_SCALE * exp(0.5 * log_variance), dtype=torch.float64)
        scale_prior = HalfTPrior(scale, 1.0)
    ranges = LearnedRanges(prior_range if learns_prior else None, noise_range, scale_prior)
    if prior_scale is not None:
        return 0.0, ranges
    return log_variance, ranges


def warn_range_limits(
    log_variance: float, log_noise: Sequence[float], ranges: LearnedRanges
) -> None:
    """Warn of learned scales that have no optimum inside their range.

    Parameters
    ----------
    log_variance : float
        Log prior variance.
    log_noise : sequence of float
        Learned log noise levels.
    ranges : LearnedRanges
        Ranges of the learned scales.
    """
    margin = 1e-3
    if ranges.prior is not None and log_variance > ranges.prior.high - margin:
        warn_user(
            "prior_scale_ reached the upper end of its range: the evidence rises with it "
            "without end, as with classes that the features separate perfectly. Give "
            "prior a value.",
            ConvergenceWarning,
        )
    if any(value < ranges.noise.low + margin for value in log_noise):
        warn_user(
            "noise_std_ reached the lower end of its range: the features fit the targets "
            "without error, or the targets are all the same. Give noise_std a value.",
            ConvergenceWarning,
        )


def best_constant(data: Training, likelihood: Likelihood) -> Array:
    """Return approximately the best function without features, (C,) or (1,).

    It is the likelihood's own estimate, the mean of the targets, or 0 for classes.
    """
    y = data.scaled_targets
    weight = data.rows.weight
    constant = likelihood.fit_constant_outputs(y, weight)
    if constant is not None:
        return constant
    if data.y_scaling is None or not likelihood.scales_targets:
        return np.zeros(1)
    return np.atleast_1d(weight @ y[:, 0] / weight.sum())


def coefficient_attributes(
    data: Training,
    posterior: LowRankGaussian,
    offset: Array,
    noise: Array,
    prior_scale: Array | None,
) -> dict[str, Any]:
    """Return fitted attributes for predictions, and the learned scales.

    Parameters
    ----------
    data : Training
        Training data with the scaling of inputs and targets.
    posterior : LowRankGaussian
        Posterior of the coefficients of scaled data.
    offset : ndarray of shape (C,)
        Intercepts of scaled targets.
    noise : ndarray of shape (T,) or (0,)
        Noise levels of scaled targets; empty without noise.
    prior_scale : ndarray or None
        Given prior standard deviation; None if it is learned.

    Returns
    -------
    dict
        Attributes in the units of the data as given.

    Raises
    ------
    ValueError
        If coefficients overflow.
    """
    scaling = data.y_scaling or Scaling(np.zeros(1), np.ones(1))
    x_mean, x_scale = data.x_scaling
    with np.errstate(over="ignore", divide="ignore"):
        unit = scaling.scale[:, None] / x_scale
    if not np.isfinite(unit).all():
        raise ValueError("y is so large beside X that coefficients exceed all numbers: rescale X.")
    coef = posterior.loc * unit
    std = np.sqrt(posterior.variance()) * unit
    intercept = offset * scaling.scale + scaling.mean - coef @ x_mean
    noise = noise * scaling.scale
    learned_prior_scale = np.sqrt(posterior.prior_variance)[()]
    attributes: dict[str, Any] = {
        "posterior_": posterior,
        "coef_": coef,
        "coef_std_": std,
        "intercept_": intercept,
        "prior_scale_": learned_prior_scale if prior_scale is None else prior_scale[()],
        "_offset_": offset,
    }
    if data.y_scaling is None:
        attributes["_predict_seed_"] = spawn_seeds(data.seed, 1)[0]
    if len(noise):
        attributes["noise_std_"] = noise
    if data.y_scaling is not None and data.y_ndim == 1:
        # A single target has coefficients without an axis of targets.
        attributes["coef_"] = coef[0]
        attributes["coef_std_"] = std[0]
        attributes["intercept_"] = float(intercept[0])
        if len(noise):
            attributes["noise_std_"] = float(noise[0])
    return attributes
