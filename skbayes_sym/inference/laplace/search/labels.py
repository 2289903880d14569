r"""Classification as an evidence problem: labels given logits, and sums over the rows.

Labels count at a point, or on average under normal logits. With K = C logits a softmax, symmetric
in the classes; with K = 1 a logistic of two classes, which is the softmax whose first logit is
zero. Per row, with :math:`p` the classes' probabilities and :math:`e_y` the label,

.. math:: -\log p_y, \qquad p - e_y, \qquad \Lambda = \mathrm{diag}\,p - p p'.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.inference.laplace.search.evidence_problem import (
    EvidenceProblem,
    SearchHyper,
    SearchSchedule,
)
from skbayes_sym.inference.laplace.search.gauss_newton import (
    Curvature,
    Expansion,
    RowCurvature,
    WeightCurvature,
)
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import (
    outputs_and_factors,
    pack,
    packing,
    rows_per_block,
)
from skbayes_sym.numerics.gaussian import gauss_hermite, sobol_normal


class NormalPoints(NamedTuple):
    """Points of N(0, I), the same for every row."""

    points: Tensor  # (S, K)
    weights: Tensor  # (S,), of sum one


def points_for_prediction(n_outputs: int) -> NormalPoints:
    """The `normal_points` of predictions: more of several logits than a fit takes."""
    return normal_points(n_outputs, 256)


@cache
def normal_points(n_outputs: int, n_points: int = 64) -> NormalPoints:
    """Gauss-Hermite nodes of one logit, Sobol points and their mirror image of several."""
    if n_outputs == 1:
        nodes, weights = gauss_hermite(32)
        return NormalPoints(nodes.unsqueeze(1), weights)
    points = sobol_normal(n_points, n_outputs, seed=0)  # always: equal modes predict equally
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
        """Weights of the points, (S,)."""
        return self.outputs.new_ones(1) if self.root is None else self._rule.weights

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


class LinearisedOutputs(NamedTuple):
    """Law of a network's outputs at every row, linearised in weights with a normal posterior."""

    mean: Tensor  # (N, K)
    covariance: Tensor  # (N, K, K), of the function, without observation noise


def linearised_logits(
    network: MLP, theta: Tensor, covariance: Tensor, x: Tensor
) -> LinearisedOutputs:
    """Logits at the mode ``theta`` (P,) and ``J C J'``, C (P, P) the weights' covariance.

    O(N P^2 / 4) however many classes there are.
    """
    parts, packed = [], pack(covariance.unsqueeze(0), packing(network.sizes, x.device))
    for rows in x.split(rows_per_block(network)):
        outputs, jacobian = outputs_and_factors(network, theta.unsqueeze(0), rows)
        parts.append((outputs[0], jacobian.covariance(packed)[0]))
    return LinearisedOutputs(*(torch.cat(part) for part in zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class LabelsEvidence(EvidenceProblem):
    """Class indices (N,) int64, of a network with one output for two classes or one a class.

    Under a ``root`` of the logits' covariances the negative log likelihood and its derivatives are
    expectations under normal logits. On separable classes the scales run away under a weak
    hyperprior, the evidence falling while they do: take `LayerScales(8.0, 64.0)`.
    """

    schedule: ClassVar[SearchSchedule] = SearchSchedule(
        tol=0.1, tol_is_per_row=False, lag=2, times=2, fewest=5, best_start=16, most_without=8,
        is_wary=True, many_params=1000,
    )  # fmt: skip
    remedy: ClassVar[str] = "Standardise X, or use fewer hidden units."

    root: Tensor | None = None  # (N, K, K)

    def begin(self, doubted: Tensor) -> tuple[Self, SearchHyper]:
        problem, theta = self, self.data.x
        if bool(doubted.any()):
            # Labels that are doubted have this share of their weight in the first steps.
            share = torch.where(doubted, 0.03, 1.0).to(theta).unsqueeze(1)
            problem = replace(self, share=share if self.share is None else share * self.share)
        log_precision = self.prior.hyper.to(theta).expand(len(doubted), -1)
        return problem, SearchHyper(log_precision, log_precision[:, :0])

    def misfit(self, theta: Tensor, hyper: SearchHyper | None = None) -> Tensor:
        value = theta.new_zeros(len(theta))
        for r, one in enumerate(theta):
            for (x, y, weight), root in self._blocks(r):
                terms = LabelTerms(self.network.forward(one, x), root)
                value[r] += weight @ terms.value(y)
        return value

    def function_distances(self, theta: Tensor, hyper: SearchHyper) -> Tensor:
        logs = [LabelTerms(self.network.forward(one, self.data.x)) for one in theta]
        log_p = torch.stack([terms.log_probabilities()[..., 0] for terms in logs])
        roots = 2.0 * ((log_p + self.data.weight.log().unsqueeze(1)) / 2.0).exp().flatten(1)
        return torch.cdist(roots, roots, compute_mode="donot_use_mm_for_euclid_dist").square()

    def expansion(self, theta: Tensor) -> Expansion:
        """The negative log likelihood to second order; O(R N P^2), or O(R N K P) of few rows."""
        values, gradients, products = zip(
            *(self._expansion(r, one) for r, one in enumerate(theta)), strict=True
        )
        product = torch.stack(products)
        curvature: Curvature = WeightCurvature(product)
        if self.has_few_rows:
            curvature = RowCurvature(product)
        return Expansion(torch.stack(values), torch.stack(gradients), curvature)

    def _expansion(self, r: int, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, gradient and curvature of one restart; of few rows the curvature's root."""
        n, few = len(theta), self.has_few_rows
        value, gradient = theta.new_zeros(()), theta.new_zeros(n)
        packed, roots = theta.new_zeros(1, 1), []
        for (x, y, weight), root in self._blocks(r):
            outputs, jacobian = outputs_and_factors(self.network, theta.unsqueeze(0), x)
            terms = LabelTerms(outputs[0], root).terms(y)
            value += weight @ terms.value
            gradient += jacobian.transposed((terms.slope * weight[:, None]).unsqueeze(0))[0]
            weighted = terms.curvature * weight[:, None, None]
            if few:
                roots.append((symmetric_root(weighted) @ jacobian.dense()[0]).flatten(0, 1))
            else:
                packed = packed + jacobian.packed(weighted.unsqueeze(0))
        return value, gradient, torch.cat(roots) if few else jacobian.gauss_newton(packed)[0]

    def logits(self, theta: Tensor, covariance: Tensor) -> LinearisedOutputs:
        """Logits of the training rows at ``theta`` (P,), the weights' covariance (P, P)."""
        return linearised_logits(self.network, theta, covariance, self.data.x)

    def _blocks(self, r: int) -> Iterator[tuple[Data, Tensor | None]]:
        """Rows as one restart weighs them, and the roots of their logits' covariances."""
        data = self.data._replace(weight=self.weight[r if len(self.weight) > 1 else 0])
        size = rows_per_block(self.network)
        for start in range(0, len(data.x), size):
            rows = slice(start, start + size)
            yield Data(*(t[rows] for t in data)), None if self.root is None else self.root[rows]
