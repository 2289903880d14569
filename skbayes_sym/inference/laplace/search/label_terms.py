r"""What class labels say about logits: at a point, or on average under normal logits.

With K = C logits a softmax, symmetric in the classes; with K = 1 a logistic of two classes, which
is the softmax whose first logit is zero. Per row, with :math:`p` the classes' probabilities and
:math:`e_y` the label,

.. math:: -\log p_y, \qquad p - e_y, \qquad \Lambda = \mathrm{diag}\,p - p p'.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.numerics.gaussian import gauss_hermite, sobol_normal

_N_NODES = 32  # of quadrature, one logit
_N_FIT, _N_PREDICT = 64, 256  # quasi-Monte Carlo points, several logits
_SEED = 0  # of their scrambling: a constant, so that equal modes predict equally


class NormalPoints(NamedTuple):
    """Points of N(0, I), the same for every row."""

    points: Tensor  # (S, K)
    weights: Tensor  # (S,), of sum one


def points_for_prediction(n_outputs: int) -> NormalPoints:
    """The `normal_points` of predictions: more of several logits than a fit takes."""
    return normal_points(n_outputs, _N_PREDICT)


@cache
def normal_points(n_outputs: int, n_points: int = _N_FIT) -> NormalPoints:
    """Gauss-Hermite nodes of one logit, Sobol points and their mirror image of several."""
    if n_outputs == 1:
        nodes, weights = gauss_hermite(_N_NODES)
        return NormalPoints(nodes.unsqueeze(1), weights)
    points = sobol_normal(n_points, n_outputs, seed=_SEED)
    return NormalPoints(points, points.new_full((len(points),), 1.0 / len(points)))


def symmetric_root(matrix: Tensor) -> Tensor:
    """The symmetric root of positive semidefinite matrices, (*B, K, K).

    It is unique, and exchanging classes exchanges its rows and columns.
    """
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT


class Terms(NamedTuple):
    """The negative log likelihood of every row with its derivatives by the logits."""

    value: Tensor  # (N,), nats
    slope: Tensor  # (N, K)
    curvature: Tensor  # (N, K, K)


@dataclass(frozen=True, eq=False)
class LabelTerms:
    """Averages over logits ``outputs + root z`` at the points z."""

    outputs: Tensor  # (N, K)
    root: Tensor | None = None  # (N, K, K), of the logits' covariance; None is zero
    rule: NormalPoints | None = None  # by default `normal_points`

    @property
    def weights(self) -> Tensor:
        """Of the points, (S,)."""
        return self.outputs.new_ones(1) if self.root is None else self._rule.weights

    @property
    def _rule(self) -> NormalPoints:
        rule = self.rule or normal_points(self.outputs.shape[1])
        return NormalPoints(*(t.to(self.outputs) for t in rule))

    def log_probabilities(self) -> Tensor:
        """Of the C classes at every point, (N, C, S)."""
        logits = self.outputs.unsqueeze(-1)
        if self.root is not None:
            logits = logits + self.root @ self._rule.points.T
        if self.outputs.shape[1] == 1:
            logits = F.pad(logits, (0, 0, 1, 0))
        return logits.log_softmax(1)

    def value(self, y: Tensor) -> Tensor:
        """``E[-log p_y]``, (N,) nats."""
        return -(_chosen(self.log_probabilities(), y) @ self.weights)

    def log_likelihood(self, y: Tensor) -> Tensor:
        """``log E[p_y]``, (N,) nats."""
        return (_chosen(self.log_probabilities(), y) + self.weights.log()).logsumexp(-1)

    def terms(self, y: Tensor) -> Terms:
        """Expectations of value, slope and curvature."""
        log_p, weights, n_outputs = self.log_probabilities(), self.weights, self.outputs.shape[1]
        value = -(_chosen(log_p, y) @ weights)
        p = log_p.exp_()[:, -n_outputs:]
        mean = p @ weights
        curvature = mean.diag_embed() - (p * weights) @ p.mT
        label = F.one_hot(y, log_p.shape[1])[:, -n_outputs:]
        return Terms(value, mean - label, curvature)


def _chosen(log_p: Tensor, y: Tensor) -> Tensor:
    """Log probabilities of the labels at every point, (N, S)."""
    return log_p[torch.arange(len(y), device=y.device), y]
