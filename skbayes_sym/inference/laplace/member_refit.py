r"""Gaussian variational inference of a classification network linearised where training left it.

A trained member of an ensemble says nothing of its own uncertainty: where classes overlap its
probabilities are far too sure. Here the weights' prior :math:`N(0, S^2)` is taken through the
linearised network, logits :math:`f(x) = f_{\theta^*}(x) + J(x) (\theta - \theta^*)`, and refitted:
with expectations under the logits' own law :math:`N(f_n, \Sigma_n)`, :math:`\Sigma_n = J_n C J_n'`,

.. math:: J' E[p - e_y] + S^{-2} \mu = 0, \qquad C^{-1} = S^{-2} + J' E[\Lambda] J

(Opper & Archambeau 2009; Khan et al. 2019 for the linearised network as a Gaussian process), which
is convex but for the width of the logits. Two classes count as one logit, the difference of their
outputs; of more only differences to their mean matter.

Weights move only along the principal directions V of :math:`J S` at the data: :math:`\mu = S V m`,
and :math:`C = S^2 - U U'` with few columns U.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.inference.laplace.search.labels import (
    LabelTerms,
    LinearisedOutputs,
    Terms,
    symmetric_root,
)
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian
from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.numerics.memory import rows_within


class RefittedMember(NamedTuple):
    """A normal law of the weights of a network linearised at ``theta``."""

    theta: Tensor  # (P,), where it is linearised
    loc: Tensor  # (P,), the law's mean
    root: Tensor  # (P, r), the covariance is S^2 - root root'
    scale: Tensor  # (P,), S, prior standard deviations

    def logits(self, network: MLP, x: Tensor) -> LinearisedOutputs:
        """Logits of any rows (N, n_inputs); O(N K P r)."""
        means, covariances = [], []
        # Blocks whose Jacobians take 32 MB.
        size = rows_within(1 << 22, network.n_outputs * network.layout.n_params)
        for block in x.split(size):
            logits, rows = _logits_and_rows(network, self.theta, self.scale, block)
            less = rows @ (self.root / self.scale.unsqueeze(1))
            means.append(logits + rows @ ((self.loc - self.theta) / self.scale))
            covariances.append(rows @ rows.mT - less @ less.mT)
        return LinearisedOutputs(torch.cat(means), torch.cat(covariances))

    def drawn_logits(self, network: MLP, x: Tensor, noise: Tensor) -> Tensor:
        """Logits (m, N, K) of functions drawn from the law, from normals (m, P).

        A root of the whitened covariance ``I - U U'``, with ``U = Q s V'``, is
        ``I - Q (1 - sqrt(1 - s^2)) Q'``: O(P r^2 + m N K P).
        """
        logits, rows = _logits_and_rows(network, self.theta, self.scale, x)
        whitened = self.root / self.scale.unsqueeze(1)
        left, sizes, _ = torch.linalg.svd(whitened, full_matrices=False)
        shrunk = 1.0 - (1.0 - sizes.square()).clamp_min(0.0).sqrt()
        away = (self.loc - self.theta) / self.scale
        moved = noise - (noise @ left * shrunk) @ left.mT + away
        return logits + torch.einsum("nkp,mp->mnk", rows, moved)


@dataclass(frozen=True, eq=False)
class LinearisedMember:
    """The logits of all training rows as a linear model of few whitened weights."""

    theta: Tensor  # (P,)
    scale: Tensor  # (P,), prior standard deviations
    offset: Tensor  # (N, K), logits at weights of zero
    design: Tensor  # (N, K, r), by the whitened weights, standard normal before the data
    directions: Tensor  # (P, r), theirs among ``theta / scale``, orthonormal

    @classmethod
    def at(
        cls, network: MLP, theta: Tensor, scale: Tensor, x: Tensor, least: float = 0.01
    ) -> "LinearisedMember":
        """O(N K P m + m^3), m the smaller of N K and P.

        ``least``: a direction's prior variance at all rows together; less is never determined.
        """
        logits, rows = _logits_and_rows(network, theta, scale, x)
        flat = rows.flatten(0, 1)
        if len(flat) <= flat.shape[1]:
            squares, basis = torch.linalg.eigh(flat @ flat.mT)
            basis, squares = basis[:, squares > least], squares[squares > least]
            directions = flat.mT @ (basis / squares.sqrt())
            design = basis * squares.sqrt()
        else:
            squares, directions = torch.linalg.eigh(flat.mT @ flat)
            directions = directions[:, squares > least]
            design = flat @ directions
        offset = logits - rows @ (theta / scale)
        return cls(theta, scale, offset, design.view(*logits.shape, -1), directions)

    def logits(self, mean: Tensor, factor: Tensor) -> LinearisedOutputs:
        """Under whitened weights of mean (r,) and precision's Cholesky factor (r, r)."""
        n, n_outputs, _ = self.design.shape
        half = torch.linalg.solve_triangular(factor, self.design.flatten(0, 1).mT, upper=False)
        half = half.view(-1, n, n_outputs).transpose(0, 1)  # (N, r, K)
        return LinearisedOutputs(self.offset + self.design @ mean, half.mT @ half)

    def factor(self, curvature: Tensor) -> Tensor:
        """Cholesky factor (r, r) of the precision, from the rows' weighted curvatures (N, K, K)."""
        weighed = (curvature @ self.design).flatten(0, 1)
        system = self.design.flatten(0, 1).mT @ weighed
        system.diagonal().add_(1.0)
        remedy = "Standardise X, or use a smaller prior."
        return cholesky(system, what="The posterior's precision", remedy=remedy)

    def refitted(self, mean: Tensor, factor: Tensor) -> RefittedMember:
        """The law of all weights."""
        variance = torch.cholesky_inverse(factor)
        known = torch.eye(len(mean)).to(variance) - variance
        values, vectors = torch.linalg.eigh(known)
        root = self.directions @ (vectors * values.clamp_min(0.0).sqrt())
        loc, root = self.scale * (self.directions @ mean), self.scale.unsqueeze(1) * root
        return RefittedMember(self.theta, loc, root, self.scale)


def refit(
    member: LinearisedMember, data: Data, most_steps: int = 30, settled: float = 1e-2
) -> tuple[RefittedMember, LinearisedOutputs, Terms]:
    """The optimum of the Gaussian bound, by damped Newton steps of mean and curvature.

    The law of the member, that of its training rows' logits, and the expectations under them;
    O(N K r^2 + r^3) a step, until no logit moves by more than ``settled``.
    """
    _, y, weight = data
    by_row = weight.unsqueeze(1)
    mean = member.directions.mT @ (member.theta / member.scale)
    logits = LinearisedOutputs(member.offset + member.design @ mean, torch.zeros(()).to(mean))
    terms = LabelTerms(logits.mean).terms(y)
    curvature = terms.curvature * by_row.unsqueeze(2)
    for _ in range(most_steps):
        factor = member.factor(curvature)
        slope = torch.einsum("nkr,nk->r", member.design, terms.slope * by_row)
        step = torch.cholesky_solve((slope + mean).unsqueeze(1), factor).squeeze(1)
        mean = mean - 0.7 * step
        before, logits = logits, member.logits(mean, factor)
        terms = LabelTerms(logits.mean, symmetric_root(logits.covariance)).terms(y)
        curvature = torch.lerp(curvature, terms.curvature * by_row.unsqueeze(2), 0.5)
        moved = (logits.mean - before.mean).abs().max()
        widened = (logits.covariance - before.covariance).abs().max()
        if float(torch.maximum(moved, widened)) < settled:
            break
    return member.refitted(mean, factor), logits, terms


@dataclass(frozen=True, eq=False)
class RefittedMembers:
    """The laws of M members, each of a network linearised at its own weights."""

    theta: np.ndarray  # (M, P), where the networks are linearised
    loc: np.ndarray  # (M, P), means of the laws
    root: np.ndarray  # (M, P, r), their covariances are ``scale^2 - root root'``
    scale: np.ndarray  # (M, P), prior standard deviations

    @classmethod
    def of(cls, members: Sequence[RefittedMember]) -> "RefittedMembers":
        rank = max(member.root.shape[1] for member in members)
        padded = (m._replace(root=F.pad(m.root, (0, rank - m.root.shape[1]))) for m in members)
        return cls(*(torch.stack(t).cpu().numpy() for t in zip(*padded, strict=True)))

    def tensors(self, device: torch.device) -> list[RefittedMember]:
        """The laws one by one, float64."""
        arrays = (self.theta, self.loc, self.root, self.scale)
        parts = (torch.as_tensor(a).to(device) for a in arrays)
        return [RefittedMember(*one) for one in zip(*parts, strict=True)]


def _logits_and_rows(
    network: MLP, theta: Tensor, scale: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Contrasts (N, K) and their whitened derivatives (N, K, P); K = 1 for two classes."""
    outputs, jacobian = outputs_and_jacobian(network, theta.unsqueeze(0), x)
    return _contrasts(outputs[0]), _contrasts(jacobian[0].mul_(scale))


def _contrasts(values: Tensor) -> Tensor:
    """Contrasts that the softmax of outputs (N, C, ...) depends on."""
    if values.shape[1] == 2:
        return values[:, 1:] - values[:, :1]
    return values - values.mean(1, keepdim=True)
