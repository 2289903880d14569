r"""Normal laws of weights for labels, and how much of their variance predictions keep.

At a mode of separated classes the softmax is flat, so that Laplace's approximation gives logits
the prior's variance. `refine` takes value, slope and curvature as expectations under the logits'
own law :math:`N(f_n, S_n)`, :math:`S_n = J_n C J_n'` (Opper & Archambeau 2009; Khan & Rue 2023):
the damped Gauss-Newton step at fixed S, then :math:`C = (\sum_n w_n J_n' E[\Lambda_n] J_n +
\mathrm{diag}\,\alpha)^{-1}`, and S moves towards :math:`J C J'`. The prior's scales stay.

A factor on this variance is chosen by leaving rows out, approximately:

.. math:: \tilde S = (I - S \Lambda)^{-1} S, \quad \tilde f = f + \tilde S g

are mean and covariance of a row's logits without its own term (slope g and curvature Lambda of the
negative log likelihood), as exact as the quadratic approximation is (Opper & Winther 2000; Rad &
Maleki 2020). A row that nearly determines its own logits is then thrown far away; so that a few
such rows don't decide alone, every class has a small probability.

A member of an ensemble says nothing of its own uncertainty: where classes overlap its probabilities
are far too sure. There `refit` takes the weights' prior :math:`N(0, S^2)` through the network
linearised where training left it, logits :math:`f(x) = f_{\theta^*}(x) + J(x) (\theta - \theta^*)`,
and solves

.. math:: J' E[p - e_y] + S^{-2} \mu = 0, \qquad C^{-1} = S^{-2} + J' E[\Lambda] J

(Khan et al. 2019 for the linearised network as a Gaussian process), which is convex but for the
width of the logits. Two classes count as one logit, the difference of their outputs; of more only
differences to their mean matter. Weights move only along the principal directions V of :math:`J S`
at the data: :math:`\mu = S V m`, and :math:`C = S^2 - U U'` with few columns U.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log, log1p
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.laplace.evidence_problem import (
    CategoricalEvidence,
    ClassTerms,
    LinearisedOutputs,
    LogitDerivatives,
    NormalPoints,
    SearchHyper,
    points_for_prediction,
    symmetric_root,
)
from skbayes_sym.laplace.gauss_newton import (
    INITIAL_DAMPING,
    System,
    WeightSystem,
    step,
)
from skbayes_sym.laplace.mode_finding import Modes, mapped
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian
from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.runtime import run_parallel


class RefinedModes(NamedTuple):
    """R normal laws of the weights."""

    theta: Tensor  # (R, P)
    hyper: Tensor  # (R, G), log precisions of the prior's groups
    factor: Tensor  # (R, P, P), Cholesky factor of the precision
    root: Tensor  # (R, N, K, K), of the logits' covariances that the curvature is averaged over

    @property
    def covariance(self) -> Tensor:
        """Covariance of the weights, (R, P, P); O(R P^3)."""
        return torch.cholesky_inverse(self.factor)


def refine(
    problem: CategoricalEvidence, modes: Modes, n_steps: int = 6, n_jobs: int | None = None
) -> RefinedModes:
    """Variational steps from every mode, in ``n_jobs`` processes.

    Each costs what two steps of the search cost and one pass for ``J C J'``.
    """
    each = [mapped(lambda t, r=r: t[r : r + 1], modes) for r in range(len(modes.theta))]
    jobs = [partial(_refined, problem, mode, n_steps) for mode in each]
    theta, factor, root = map(torch.stack, zip(*run_parallel(jobs, n_jobs), strict=True))
    return RefinedModes(theta, modes.hyper, factor, root)


def _refined(
    problem: CategoricalEvidence, mode: Modes, n_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, factor and root of one law."""
    theta = mode.theta
    hyper = SearchHyper(mode.hyper, mode.noise_precision)
    precision = mode.hyper.exp()[:, problem.prior.group]
    damping = theta.new_full((1,), INITIAL_DAMPING)
    system: System = WeightSystem(mode.factor, torch.zeros_like(mode.n_iter))
    # Laplace's covariance of the logits is too wide.
    spread = 0.5 * problem.logits(theta[0], system.covariance[0]).covariance
    for i in range(n_steps):
        if i:
            present = problem.logits(theta[0], system.covariance[0]).covariance
            spread = torch.lerp(spread, present, 0.6)
        averaged = replace(problem, root=symmetric_root(spread))
        theta, damping, _ = step(
            lambda theta, _, averaged=averaged: averaged.misfit(theta),  # type: ignore[misc]
            theta, averaged.expansion(theta), precision, damping,
        )  # fmt: skip
        system = averaged.system(averaged.expansion(theta).curvature, hyper)
    return theta[0], system.cholesky()[0], symmetric_root(spread)


# Without 0, at which functions would have no epistemic uncertainty: leave-one-out losses of few
# rows can't tell it from a small factor.
VARIANCE_SCALES = (0.1, 0.3, 1.0, 3.0)


def scaled_terms(logits: LinearisedOutputs, variance_scale: float) -> ClassTerms:
    """Points of logits whose variance is multiplied by a factor; one if that is 0."""
    if not variance_scale:
        return ClassTerms(logits.mean)
    root = variance_scale**0.5 * symmetric_root(logits.covariance)
    return ClassTerms(logits.mean, root, points_for_prediction(logits.mean.shape[1]))


class LeaveOneOutLogits(NamedTuple):
    """Law of every training row's logits without the row itself."""

    mean: Tensor  # (N, K)
    root: Tensor  # (N, K, K), of the covariance: root root'


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
        Sample weights: a row of weight w stands for w repetitions, all of which are left out.

    Returns
    -------
    LeaveOneOutLogits
        Mean and root of the covariance.
    """
    slope = terms.slope * weight.unsqueeze(1)
    curvature = terms.curvature * weight.reshape(-1, 1, 1)
    root = symmetric_root(logits.covariance)
    leverage, vectors = torch.linalg.eigh(root @ curvature @ root)
    # A row that determines its own logits leaves none behind.
    wider = (1.0 - leverage.clamp(0.0, 1.0 - 1e-6)).rsqrt()
    root = root @ (vectors * wider.unsqueeze(-2)) @ vectors.mT
    shift = root @ (root.mT @ slope.unsqueeze(-1))
    return LeaveOneOutLogits(logits.mean + shift.squeeze(-1), root)


def leave_one_out(
    problem: CategoricalEvidence, distributions: Modes | RefinedModes
) -> list[LeaveOneOutLogits]:
    """Approximate leave-one-out logits of every row by each of the posteriors."""
    held_out = []
    for i, covariance in enumerate(distributions.covariance):
        logits = problem.logits(distributions.theta[i], covariance)
        root = None if distributions.root is None else distributions.root[i]
        terms = ClassTerms(logits.mean, root).terms(problem.data.y)
        held_out.append(leave_one_out_logits(logits, terms, problem.data.weight))
    return held_out


class VarianceScale(NamedTuple):
    """A factor on the logits' variance and what it was chosen by."""

    factor: float
    log_losses: Tensor  # approximate leave-one-out, nats per row, of all scales
    row_losses: Tensor  # (N,), -log p of every row left out at the chosen one, nats


def choose_variance_scale(
    problem: CategoricalEvidence, distributions: Modes | RefinedModes, shares: Tensor | None = None
) -> VarianceScale:
    """The scale of `VARIANCE_SCALES` whose mixture of the laws says most of rows left out.

    A pass over the rows for ``J C J'``, O(N R P^2).
    """
    _, y, weight = problem.data
    losses = leave_one_out_losses(leave_one_out(problem, distributions), y, VARIANCE_SCALES, shares)
    log_losses = losses @ weight / weight.sum()
    best = int(log_losses.argmin())
    return VarianceScale(VARIANCE_SCALES[best], log_losses, losses[best])


def choose_largest_within_error(
    losses: Tensor, weight: Tensor, scales: Sequence[float]
) -> VarianceScale:
    """The largest scale that isn't worse than the best by more than one standard error.

    Where a few rows decide the losses (S, N) say little, and too wide errs on the safe side.
    """
    share = weight / weight.sum()
    log_losses = losses @ share
    more = losses - losses[int(log_losses.argmin())]
    mean = more @ share
    error = ((more - mean.unsqueeze(1)).square() @ share / weight.sum()).sqrt()
    within = [i for i, one in enumerate((mean <= error).tolist()) if one]
    widest = max(within, key=lambda i: scales[i])
    return VarianceScale(scales[widest], log_losses, losses[widest])


def leave_one_out_losses(
    held_out: Sequence[LeaveOneOutLogits],
    y: Tensor,
    scales: Sequence[float],
    shares: Tensor | None = None,
) -> Tensor:
    """``-log p`` of every row left out under the laws' mixture, at every scale, (S, N) nats.

    ``shares`` (R,) of the laws, of sum one; equal by default.
    """
    n_outputs = held_out[0].mean.shape[1]
    if shares is None:
        shares = torch.full((len(held_out),), 1.0 / len(held_out), dtype=torch.float64)
    rule = points_for_prediction(n_outputs)
    losses = []
    outliers = 1e-3  # share of rows left out that say nothing
    for scale in scales:
        log_p = torch.stack(
            [_log_likelihood(distribution, y, scale, rule) for distribution in held_out]
        )
        log_p = (log_p + shares.log().to(log_p).unsqueeze(1)).logsumexp(0) + log1p(-outliers)
        least = torch.full_like(log_p, log(outliers / max(2, n_outputs)))
        losses.append(-log_p.logaddexp(least))
    return torch.stack(losses)


def _log_likelihood(
    distribution: LeaveOneOutLogits, y: Tensor, variance_scale: float, rule: NormalPoints
) -> Tensor:
    """Log probability of the labels, (N,)."""
    n_outputs = distribution.mean.shape[1]
    root = variance_scale**0.5 * distribution.root if variance_scale else None
    # 32 MB at once
    parts = []
    size = n_rows_per_block(1 << 22, (n_outputs + 1) * len(rule.weights))
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        terms = ClassTerms(distribution.mean[rows], None if root is None else root[rows], rule)
        parts.append(terms.log_likelihood(y[rows]))
    return torch.cat(parts)


class RefittedMember(NamedTuple):
    """A normal law of the weights of a network linearised at ``theta``."""

    theta: Tensor  # (P,), where it is linearised
    loc: Tensor  # (P,), the law's mean
    root: Tensor  # (P, r), the covariance is S^2 - root root'
    scale: Tensor  # (P,), S, prior standard deviations

    def logits(self, network: MLP, x: Tensor) -> LinearisedOutputs:
        """Logits of any rows (N, n_inputs); O(N K P r)."""
        means = []
        covariances = []
        # Blocks whose Jacobians take 32 MB.
        size = n_rows_per_block(1 << 22, network.n_outputs * network.layout.n_params)
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
        left_vectors, sizes, _ = torch.linalg.svd(whitened, full_matrices=False)
        shrunk = 1.0 - (1.0 - sizes.square()).clamp_min(0.0).sqrt()
        away = (self.loc - self.theta) / self.scale
        moved = noise - (noise @ left_vectors * shrunk) @ left_vectors.mT + away
        return logits + torch.einsum("nkp,mp->mnk", rows, moved)


def refit(
    network: MLP, theta: Tensor, scale: Tensor, data: Data, *,
    least: float = 0.01, most_steps: int = 30, settled: float = 1e-2,
) -> tuple[RefittedMember, LinearisedOutputs, LogitDerivatives]:  # fmt: skip
    """The optimum of the Gaussian bound, by damped Newton steps of mean and curvature.

    The law of a member trained to ``theta`` (P,) under prior standard deviations (P,), that of its
    training rows' logits, and the expectations under them. ``least``: a direction's prior variance
    at all rows together; less is never determined. Steps end when no logit moves by ``settled``.

    O(N K P m + m^3), m the smaller of N K and P, and O(N K r^2 + r^3) a step.
    """
    x, y, weight = data
    before, rows = _logits_and_rows(network, theta, scale, x)
    flat = rows.flatten(0, 1)
    (n, n_outputs) = before.shape
    # By r whitened weights, standard normal before the data, along orthonormal directions (P, r).
    if len(flat) <= flat.shape[1]:
        squares, basis = torch.linalg.eigh(flat @ flat.mT)
        basis = basis[:, squares > least]
        squares = squares[squares > least]
        directions = flat.mT @ (basis / squares.sqrt())
        flat = basis * squares.sqrt()
    else:
        squares, directions = torch.linalg.eigh(flat.mT @ flat)
        directions = directions[:, squares > least]
        flat = flat @ directions
    offset = before - rows @ (theta / scale)
    design = flat.view(n, n_outputs, -1)
    by_row = weight.unsqueeze(1)
    mean = directions.mT @ (theta / scale)
    logits = LinearisedOutputs(offset + design @ mean, torch.zeros(()).to(mean))
    terms = ClassTerms(logits.mean).terms(y)
    curvature = terms.curvature * by_row.unsqueeze(2)
    for _ in range(most_steps):
        system = flat.mT @ (curvature @ design).flatten(0, 1)
        system.diagonal().add_(1.0)
        remedy = "Standardise X, or use a smaller prior."
        factor = cholesky(system, name="The posterior's precision", remedy=remedy)
        slope = torch.einsum("nkr,nk->r", design, terms.slope * by_row)
        mean = mean - 0.7 * torch.cholesky_solve((slope + mean).unsqueeze(1), factor).squeeze(1)
        half = torch.linalg.solve_triangular(factor, flat.mT, upper=False)
        half = half.view(-1, n, n_outputs).transpose(0, 1)  # (N, r, K)
        last = logits
        logits = LinearisedOutputs(offset + design @ mean, half.mT @ half)
        terms = ClassTerms(logits.mean, symmetric_root(logits.covariance)).terms(y)
        curvature = torch.lerp(curvature, terms.curvature * by_row.unsqueeze(2), 0.5)
        moved = (logits.mean - last.mean).abs().max()
        widened = (logits.covariance - last.covariance).abs().max()
        if float(torch.maximum(moved, widened)) < settled:
            break
    variance = torch.cholesky_inverse(factor)
    values, vectors = torch.linalg.eigh(torch.eye(len(mean)).to(variance) - variance)
    root = scale.unsqueeze(1) * (directions @ (vectors * values.clamp_min(0.0).sqrt()))
    return RefittedMember(theta, scale * (directions @ mean), root, scale), logits, terms


@dataclass(frozen=True, eq=False)
class RefittedMembers:
    """The laws of M members, each of a network linearised at its own weights."""

    theta: np.ndarray  # (M, P), where the networks are linearised
    loc: np.ndarray  # (M, P), means of the laws
    root: np.ndarray  # (M, P, r), their covariances are ``scale^2 - root root'``
    scale: np.ndarray  # (M, P), prior standard deviations

    @classmethod
    def stack(cls, members: Sequence[RefittedMember]) -> "RefittedMembers":
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
