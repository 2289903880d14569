r"""Normal distributions of logits: expectations of the softmax, and leave-one-out losses.

The likelihood of a class is taken at one value of the logits, or averaged over normal logits. With
K = C logits it is a softmax, which is symmetric in the classes. With K = 1 it is a logistic
function of two classes, which is the softmax whose first logit is zero. Let :math:`p` be the
probabilities of the classes and :math:`e_y` the one-hot encoding of the label. The negative log
likelihood of a row has value, gradient and curvature

.. math:: -\log p_y, \qquad p - e_y, \qquad \Lambda = \mathrm{diag}\,p - p p'.

A factor on the variance S of the logits is chosen by approximate leave-one-out:

.. math:: \tilde S = (I - S \Lambda)^{-1} S, \quad \tilde f = f + \tilde S g

are covariance and mean of a row's logits without its own term, whose negative log likelihood has
gradient g and curvature Lambda. They are as exact as the quadratic approximation is (Opper &
Winther 2000; Rad & Maleki 2020). A row that nearly determines its own logits is moved far away by
this. So that a few such rows don't decide the choice, every class has a small minimum probability.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.numerics.arguments import select_optional
from skbayes_sym.numerics.gaussian import gauss_hermite, sobol_normal
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.runtime import cache_tensors


class NormalPoints(NamedTuple):
    """Quadrature points of N(0, I), the same for every row.

    Attributes
    ----------
    points : Tensor of shape (S, K)
    weights : Tensor of shape (S,)
        Weights with a sum of one.
    """

    points: Tensor
    weights: Tensor


def points_for_prediction(n_outputs: int) -> NormalPoints:
    """Return the `normal_points` of predictions: 256 for several logits, more than a fit takes."""
    return normal_points(n_outputs, 256)


@cache_tensors
def normal_points(n_outputs: int, n_points: int = 64) -> NormalPoints:
    """Return 32 Gauss-Hermite nodes for one logit, Sobol points and their mirror image for several.

    The seed of the Sobol points is fixed, so that equal modes make equal predictions.
    """
    if n_outputs == 1:
        nodes, weights = gauss_hermite(32)
        return NormalPoints(nodes.unsqueeze(1), weights)
    points = sobol_normal(n_points, n_outputs, seed=0)
    return NormalPoints(points, points.new_full((len(points),), 1.0 / len(points)))


def symmetric_root(matrix: Tensor) -> Tensor:
    """Return the symmetric root of positive semidefinite matrices, (*B, K, K).

    It is unique, and exchanging classes exchanges its rows and columns.
    """
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT


class LogitDerivatives(NamedTuple):
    """Negative log likelihood of every row, with its derivatives in the logits.

    Attributes
    ----------
    value : Tensor of shape (N,)
        Negative log likelihood, nats.
    slope : Tensor of shape (N, K)
        Gradient.
    curvature : Tensor of shape (N, K, K)
        Second derivatives.
    """

    value: Tensor
    slope: Tensor
    curvature: Tensor


@dataclass(frozen=True, eq=False)
class SoftmaxExpectations:
    """Expectations of the softmax likelihood under normal logits ``outputs + root z``.

    Attributes
    ----------
    outputs : Tensor of shape (N, K)
        Means of the logits.
    root : Tensor of shape (N, K, K), optional
        Root of the logits' covariance. By default it is zero, and nothing is averaged.
    rule : NormalPoints, optional
        Points z of the average. By default `normal_points`.
    """

    outputs: Tensor
    root: Tensor | None = None
    rule: NormalPoints | None = None

    @property
    def weights(self) -> Tensor:
        """Weights of the points, (S,)."""
        if self.root is None:
            return self.outputs.new_ones(1)
        return self._rule.weights

    @property
    def _rule(self) -> NormalPoints:
        rule = self.rule or normal_points(self.outputs.shape[1])
        return NormalPoints(*(t.to(self.outputs) for t in rule))

    def log_probabilities(self) -> Tensor:
        """Log probabilities of the C classes at every point, (N, C, S)."""
        logits = self.outputs.unsqueeze(-1)
        if self.root is not None:
            logits = logits + self.root @ self._rule.points.T
        if self.outputs.shape[1] == 1:
            logits = F.pad(logits, (0, 0, 1, 0))
        return logits.log_softmax(1)

    def value(self, y: Tensor) -> Tensor:
        """``E[-log p_y]``, (N,) nats."""
        return -(_select_class(self.log_probabilities(), y) @ self.weights)

    def log_likelihood(self, y: Tensor) -> Tensor:
        """``log E[p_y]``, (N,) nats."""
        return (_select_class(self.log_probabilities(), y) + self.weights.log()).logsumexp(-1)

    def derivatives(self, y: Tensor) -> LogitDerivatives:
        """Expectations of value, gradient and curvature of ``-log p_y``."""
        log_p = self.log_probabilities()
        weights = self.weights
        n_outputs = self.outputs.shape[1]
        value = -(_select_class(log_p, y) @ weights)
        p = log_p.exp_()[:, -n_outputs:]
        mean = p @ weights
        curvature = mean.diag_embed() - (p * weights) @ p.mT
        one_hot = F.one_hot(y, log_p.shape[1])[:, -n_outputs:]
        return LogitDerivatives(value, mean - one_hot, curvature)


def _select_class(log_p: Tensor, y: Tensor) -> Tensor:
    """Select the log probabilities of the classes ``y`` (N,) at every point, (N, S)."""
    return log_p[torch.arange(len(y), device=y.device), y]


class LinearisedOutputs(NamedTuple):
    """Normal distribution of a linearised network's outputs at every row.

    Attributes
    ----------
    mean : Tensor of shape (N, K)
    covariance : Tensor of shape (N, K, K)
        Covariance of the function, without observation noise.
    """

    mean: Tensor
    covariance: Tensor


# Factors on the logits' variance to choose from. They don't include 0, at which functions would
# have no epistemic uncertainty: the leave-one-out losses of few rows can't tell 0 from a small
# factor.
VARIANCE_SCALES = (0.1, 0.3, 1.0, 3.0)


def scale_logits(logits: LinearisedOutputs, variance_scale: float) -> SoftmaxExpectations:
    """Return expectations under logits whose variance is multiplied by a factor."""
    if not variance_scale:
        return SoftmaxExpectations(logits.mean)
    root = variance_scale**0.5 * symmetric_root(logits.covariance)
    return SoftmaxExpectations(logits.mean, root, points_for_prediction(logits.mean.shape[1]))


class LeaveOneOutLogits(NamedTuple):
    """Normal distribution of every training row's logits without the row itself.

    Attributes
    ----------
    mean : Tensor of shape (N, K)
    root : Tensor of shape (N, K, K)
        Root of the covariance, which is root root'.
    """

    mean: Tensor
    root: Tensor


def leave_one_out_logits(
    logits: LinearisedOutputs, terms: LogitDerivatives, weight: Tensor
) -> LeaveOneOutLogits:
    """Approximate the distribution of every row's logits without the row's own term.

    Parameters
    ----------
    logits : LinearisedOutputs
        Mean (N, K) and covariance (N, K, K) of the logits.
    terms : LogitDerivatives
        Derivatives of the negative log likelihood of one repetition of every row.
    weight : Tensor of shape (N,)
        Sample weights. A row of weight w counts as w repetitions, all of which are left out.

    Returns
    -------
    LeaveOneOutLogits
        Mean and root of the covariance.
    """
    slope = terms.slope * weight.unsqueeze(1)
    curvature = terms.curvature * weight.reshape(-1, 1, 1)
    root = symmetric_root(logits.covariance)
    leverage, vectors = torch.linalg.eigh(root @ curvature @ root)
    # The bound below one keeps the variance finite for a row that determines its own logits.
    inflation = (1.0 - leverage.clamp(0.0, 1.0 - 1e-6)).rsqrt()
    root = root @ (vectors * inflation.unsqueeze(-2)) @ vectors.mT
    shift = root @ (root.mT @ slope.unsqueeze(-1))
    return LeaveOneOutLogits(logits.mean + shift.squeeze(-1), root)


class VarianceScale(NamedTuple):
    """A factor on the logits' variance, and the losses by which it was chosen.

    Attributes
    ----------
    factor : float
        The chosen factor.
    log_losses : Tensor of shape (S,)
        Mean approximate leave-one-out losses of all factors, nats per row.
    row_losses : Tensor of shape (N,)
        Leave-one-out losses ``-log p`` of every row at the chosen factor, nats.
    """

    factor: float
    log_losses: Tensor
    row_losses: Tensor


def choose_largest_within_error(
    losses: Tensor, weight: Tensor, scales: Sequence[float]
) -> VarianceScale:
    """Choose the largest factor whose loss exceeds the smallest by at most one standard error.

    If a few rows dominate the losses, they contain little information, and too wide a distribution
    errs on the safe side.

    Parameters
    ----------
    losses : Tensor of shape (S, N)
        Leave-one-out losses of all factors and rows, nats.
    weight : Tensor of shape (N,)
        Sample weights.
    scales : sequence of float
        The S factors.

    Returns
    -------
    VarianceScale
    """
    fraction = weight / weight.sum()
    log_losses = losses @ fraction
    excess = losses - losses[int(log_losses.argmin())]
    mean = excess @ fraction
    error = ((excess - mean.unsqueeze(1)).square() @ fraction / weight.sum()).sqrt()
    within = [i for i, is_within in enumerate((mean <= error).tolist()) if is_within]
    largest = max(within, key=lambda i: scales[i])
    return VarianceScale(scales[largest], log_losses, losses[largest])


def leave_one_out_losses(
    held_out: Sequence[LeaveOneOutLogits],
    y: Tensor,
    scales: Sequence[float],
    weights: Tensor | None = None,
) -> Tensor:
    """Return leave-one-out losses ``-log p`` of every row for each factor on the variance.

    Parameters
    ----------
    held_out : sequence of LeaveOneOutLogits
        Leave-one-out logits under each of R posteriors, which form a mixture.
    y : Tensor of shape (N,), int64
        Classes.
    scales : sequence of float
        S factors on the variance of the logits.
    weights : Tensor of shape (R,), optional
        Weights of the mixture with a sum of one, equal by default.

    Returns
    -------
    Tensor of shape (S, N)
        Losses in nats. Every class has a probability of at least 0.001 divided by the number of
        classes, so that single rows don't dominate.
    """
    n_outputs = held_out[0].mean.shape[1]
    if weights is None:
        weights = torch.full((len(held_out),), 1.0 / len(held_out), dtype=torch.float64)
    rule = points_for_prediction(n_outputs)
    losses = []
    outlier_fraction = 1e-3  # of rows whose class is drawn uniformly
    for scale in scales:
        log_p = torch.stack(
            [_log_likelihood(distribution, y, scale, rule) for distribution in held_out]
        )
        log_p = (log_p + weights.log().to(log_p).unsqueeze(1)).logsumexp(0)
        log_p = log_p + log1p(-outlier_fraction)
        uniform = torch.full_like(log_p, log(outlier_fraction / max(2, n_outputs)))
        losses.append(-log_p.logaddexp(uniform))
    return torch.stack(losses)


def _log_likelihood(
    distribution: LeaveOneOutLogits, y: Tensor, variance_scale: float, rule: NormalPoints
) -> Tensor:
    """Log probabilities of the classes.

    Parameters
    ----------
    distribution : LeaveOneOutLogits
    y : Tensor of shape (N,), int64
        Classes.
    variance_scale : float
        Factor on the variance of the logits.
    rule : NormalPoints
        Points of the average over the logits.

    Returns
    -------
    Tensor of shape (N,)
        Nats.
    """
    n_outputs = distribution.mean.shape[1]
    root = None
    if variance_scale:
        root = variance_scale**0.5 * distribution.root
    parts = []
    size = n_rows_per_block(1 << 22, (n_outputs + 1) * len(rule.weights))  # 32 MB at once
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        root_rows = select_optional(root, rows)
        expectations = SoftmaxExpectations(distribution.mean[rows], root_rows, rule)
        parts.append(expectations.log_likelihood(y[rows]))
    return torch.cat(parts)
