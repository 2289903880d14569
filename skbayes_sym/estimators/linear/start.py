"""Where the updates of a linear model begin, and between what ends its scales are learned."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.inference.linear.hyperparameters import Learning, Range
from skbayes_sym.inference.linear.sites import LinearData
from skbayes_sym.models.likelihoods.base import Likelihood

# Learned noise, relative to the standard deviation of the targets.
_NOISE_RANGE = (1e-6, 1e2)
# Learned prior standard deviation of the outputs, relative to their scale (1 on a log or logit
# scale). Beyond the upper end the quadrature and the data say nothing any more.
_OUTPUT_RANGE = (1e-5, 1e5)
_LOGIT_RANGE = (1e-5, 30.0)

_AT_THE_END = 1e-3  # a log scale this close to an end has reached it


class Start(NamedTuple):
    """Where the updates begin."""

    log_prior_variance: float
    learning: Learning

    @classmethod
    def of(
        cls, data: Training, likelihood: Likelihood, typical: float, prior_scale: Array | None
    ) -> Self:
        """Prior variance at which the outputs have the scale expected of them.

        ``typical`` is the mean squared length of the inputs.
        """
        is_scaled = likelihood.scales_targets
        output_scale = float(data.target_spread[0]) if is_scaled else 1.0
        start = 2.0 * log(output_scale) - (log(typical) if typical > 0.0 else 0.0)
        ends = _OUTPUT_RANGE if is_scaled else _LOGIT_RANGE
        prior_range = Range(*(start + 2.0 * log(end) for end in ends))
        noise_range = Range(*(log(output_scale) + log(end) for end in _NOISE_RANGE))
        # Without a feature that varies there is nothing to learn.
        learns_prior = prior_scale is None and typical > 0.0
        return cls(
            start if prior_scale is None else 0.0,
            Learning(prior_range if learns_prior else None, noise_range),
        )


def mean_square(problem: LinearData) -> float:
    """Mean squared length of the inputs."""
    share = problem.weight / problem.weight.sum()
    return float(share @ (problem.features**2).sum(1))


def warn_of_ends(log_variance: float, log_noise: Sequence[float], learning: Learning) -> None:
    """Say which learned scale has no optimum inside its range."""
    if learning.prior is not None and log_variance > learning.prior.high - _AT_THE_END:
        warn_user(
            "prior_scale_ reached the upper end of its range: the evidence rises with it "
            "without end, as with classes that the features separate perfectly. Give "
            "prior a value.",
            ConvergenceWarning,
        )
    if any(value < learning.noise.low + _AT_THE_END for value in log_noise):
        warn_user(
            "noise_std_ reached the lower end of its range: the features fit the targets "
            "without error, or the targets are all the same. Give noise_std a value.",
            ConvergenceWarning,
        )


def best_constant(data: Training, likelihood: Likelihood) -> Array:
    """The best function without features, about, (C,) or (1,).

    The likelihood's own, or the targets' mean; nothing known of classes.
    """
    y, weight = data.rows.y, data.rows.weight
    constant = likelihood.constant_outputs(y, weight)
    if constant is not None:
        return constant
    if data.y_scaling is None or not likelihood.scales_targets:
        return np.zeros(1)
    return np.atleast_1d(weight @ data.y_scaling.apply(y)[:, 0] / weight.sum())
