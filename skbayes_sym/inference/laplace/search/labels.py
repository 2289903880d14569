r"""Sums over the rows of a classification network: misfit, Gauss-Newton expansion, evidence.

Laplace's estimate of the evidence at a mode, precisions :math:`\alpha_g` of the prior's groups and
:math:`A = \sum_n w_n J_n' \Lambda_n J_n + \mathrm{diag}\,\alpha`, is

.. math:: \log p(y \mid \theta) - \tfrac12 \sum_k \alpha_{g(k)} \theta_k^2
          + \tfrac12 \sum_g n_g \log \alpha_g - \tfrac12 \log |A| + \log p(\log \alpha).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.gauss_newton import Expansion
from skbayes_sym.inference.laplace.search.label_terms import LabelTerms, symmetric_root
from skbayes_sym.inference.laplace.search.systems import (
    Curvature,
    RowCurvature,
    System,
    WeightCurvature,
    are_few,
    require_factor,
)
from skbayes_sym.models.data import Data
from skbayes_sym.models.learned_scales import ScalesByGroup
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_factors import outputs_and_factors
from skbayes_sym.numerics.memory import rows_within

_NUMBERS = 1 << 22  # of a block's largest array: 32 MB
_N_POINTS = 64

REMEDY = "Standardise X, or use fewer hidden units."


class LinearisedLogits(NamedTuple):
    """Law of the logits of every row under the linearised network and a normal posterior."""

    mean: Tensor  # (N, K)
    covariance: Tensor  # (N, K, K)


def linearised_logits(
    network: MLP, theta: Tensor, covariance: Tensor, x: Tensor
) -> LinearisedLogits:
    """Logits at the mode ``theta`` (P,) and ``J C J'``, C (P, P) the weights' covariance.

    O(N P^2) however many classes there are.
    """
    parts = []
    for rows in x.split(rows_per_block(network)):
        outputs, jacobian = outputs_and_factors(network, theta, rows)
        parts.append((outputs, jacobian.covariance(covariance)))
    return LinearisedLogits(*(torch.cat(part) for part in zip(*parts, strict=True)))


def rows_per_block(network: MLP) -> int:
    """Rows whose derivatives and logits at all points stay within 32 MB."""
    widths = network.sizes
    largest = max((n_in + 1) * n_out for n_in, n_out in pairwise(widths))
    squares = max(n * n for n in widths[1:])
    return rows_within(_NUMBERS, max(largest, squares, _N_POINTS * (network.n_outputs + 1)))


@dataclass(frozen=True, eq=False)
class LabelsEvidence:
    """Sums over rows that steps and updates need, of one weight vector.

    Parameters
    ----------
    network : MLP
        With one output for two classes, or with one a class.
    data : Data
        Float64; targets class indices (N,), int64. A weight of 2 is the row twice.
    prior : ScalesByGroup

    Notes
    -----
    Where a ``root`` (N, K, K) of the logits' covariances is given, the negative log likelihood and
    its derivatives are expectations under normal logits.
    """

    network: MLP
    data: Data
    prior: ScalesByGroup

    def misfit(self, theta: Tensor, root: Tensor | None = None) -> Tensor:
        """The negative log likelihood at ``theta`` (P,), 0-d, nats."""
        total = theta.new_zeros(())
        for (x, y, weight), spread in self._blocks(root):
            outputs = self.network.forward(theta, x)
            total += weight @ LabelTerms(outputs, spread).value(y)
        return total

    def expansion(self, theta: Tensor, root: Tensor | None = None) -> Expansion:
        """The same to second order, with the leading axis of one restart.

        O(N P^2), or O(N K P) of few rows.
        """
        n, few = len(theta), self.has_few_rows
        value, gradient = theta.new_zeros(()), theta.new_zeros(n)
        product, roots = theta.new_zeros(0 if few else n, n), []
        for (x, y, weight), spread in self._blocks(root):
            outputs, jacobian = outputs_and_factors(self.network, theta, x)
            terms = LabelTerms(outputs, spread).terms(y)
            value += weight @ terms.value
            gradient += jacobian.transposed(terms.slope * weight[:, None])
            weighted = terms.curvature * weight[:, None, None]
            if few:
                roots.append((symmetric_root(weighted) @ jacobian.dense()).flatten(0, 1))
            else:
                product += jacobian.gauss_newton(weighted)
        curvature: Curvature = WeightCurvature(product.unsqueeze(0))
        if few:
            curvature = RowCurvature(torch.cat(roots).unsqueeze(0))
        return Expansion(value.unsqueeze(0), gradient.unsqueeze(0), curvature)

    def logits(self, theta: Tensor, covariance: Tensor) -> LinearisedLogits:
        """Of the training rows, at ``theta`` (P,) with the weights' covariance (P, P)."""
        return linearised_logits(self.network, theta, covariance, self.data.x)

    @property
    def has_few_rows(self) -> bool:
        """Whether systems are solved in the space of the rows' logits."""
        n_derivatives = len(self.data.x) * self.network.n_outputs
        return are_few(n_derivatives, self.network.layout.n_params)

    def system(self, curvature: Curvature, log_precision: Tensor) -> System:
        """The posterior's precision A at log precisions (G,), as a batch of one."""
        system = curvature.system(log_precision.exp()[self.prior.group].unsqueeze(0))
        require_factor(system, REMEDY)
        return system

    def log_evidence(
        self, theta: Tensor, misfit: Tensor, log_precision: Tensor, system: System
    ) -> Tensor:
        """Laplace's estimate at a mode (P,) and log precisions (G,), 0-d, nats.

        It includes the hyperprior of the log precisions, and none of the mode's copies under the
        network's symmetries: many units are pruned, and their copies overlap.
        """
        prior, alpha = self.prior, log_precision.exp()
        sizes, squares = prior.sizes.to(theta), prior.squares(theta)
        log_prior = 0.5 * (sizes * log_precision - alpha * squares).sum()
        return log_prior - misfit - 0.5 * system.log_det[0] + prior.log_hyperprior(log_precision)

    def _blocks(self, root: Tensor | None) -> Iterator[tuple[Data, Tensor | None]]:
        n, size = len(self.data.x), rows_per_block(self.network)
        for start in range(0, n, size):
            rows = slice(start, start + size)
            spread = None if root is None else root[rows]
            yield Data(*(t[rows] for t in self.data)), spread
