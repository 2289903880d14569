r"""Predictions of classes by linearised networks, and how much of their variance to keep.

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
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log, log1p
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.evidence_problem import SearchHyper
from skbayes_sym.inference.laplace.search.gauss_newton import (
    INITIAL_DAMPING,
    System,
    WeightSystem,
    step,
)
from skbayes_sym.inference.laplace.search.labels import (
    LabelsEvidence,
    LabelTerms,
    LinearisedOutputs,
    NormalPoints,
    Terms,
    points_for_prediction,
    symmetric_root,
)
from skbayes_sym.inference.laplace.search.mode_search import Modes, mapped
from skbayes_sym.numerics.memory import rows_within


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


def refine(problem: LabelsEvidence, modes: Modes, n_steps: int = 6) -> RefinedModes:
    """Variational steps from every mode.

    Each costs what two steps of the search cost and one pass for ``J C J'``.
    """
    laws = []
    for r in range(len(modes.theta)):
        mode = mapped(lambda t, r=r: t[r : r + 1], modes)
        theta, hyper = mode.theta, SearchHyper(mode.hyper, mode.noise_precision)
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
        laws.append((theta[0], system.cholesky()[0], symmetric_root(spread)))
    theta, factor, root = (torch.stack(t) for t in zip(*laws, strict=True))
    return RefinedModes(theta, modes.hyper, factor, root)


VARIANCE_SCALES = (0.0, 0.1, 0.3, 1.0, 3.0)


def scaled_terms(logits: LinearisedOutputs, variance_scale: float) -> LabelTerms:
    """Points of logits whose variance is multiplied by a factor; one if that is 0."""
    if not variance_scale:
        return LabelTerms(logits.mean)
    root = variance_scale**0.5 * symmetric_root(logits.covariance)
    return LabelTerms(logits.mean, root, points_for_prediction(logits.mean.shape[1]))


class LeftOut(NamedTuple):
    """Law of every training row's logits without the row itself."""

    mean: Tensor  # (N, K)
    root: Tensor  # (N, K, K), of the covariance: root root'


def without_itself(logits: LinearisedOutputs, terms: Terms) -> LeftOut:
    """The law of every row's logits without the row's own term; approximately."""
    root = symmetric_root(logits.covariance)
    leverage, vectors = torch.linalg.eigh(root @ terms.curvature @ root)
    # A row that determines its own logits leaves none behind.
    wider = (1.0 - leverage.clamp(0.0, 1.0 - 1e-6)).rsqrt()
    root = root @ (vectors * wider.unsqueeze(-2)) @ vectors.mT
    shift = root @ (root.mT @ terms.slope.unsqueeze(-1))
    return LeftOut(logits.mean + shift.squeeze(-1), root)


def leave_one_out(problem: LabelsEvidence, laws: Modes | RefinedModes) -> list[LeftOut]:
    """Approximately, by every law. Of a row with weight w one of its w repetitions is left out."""
    left_out = []
    for i, covariance in enumerate(laws.covariance):
        logits = problem.logits(laws.theta[i], covariance)
        root = None if laws.root is None else laws.root[i]
        left_out.append(without_itself(logits, LabelTerms(logits.mean, root).terms(problem.data.y)))
    return left_out


class VarianceScale(NamedTuple):
    """A factor on the logits' variance and what it was chosen by."""

    chosen: float
    log_losses: Tensor  # approximate leave-one-out, nats per row, of all scales
    of_rows: Tensor  # (N,), -log p of every row left out at the chosen one, nats


def choose_variance_scale(
    problem: LabelsEvidence, laws: Modes | RefinedModes, shares: Tensor | None = None
) -> VarianceScale:
    """The scale of `VARIANCE_SCALES` whose mixture of the laws says most of rows left out.

    A pass over the rows for ``J C J'``, O(N R P^2).
    """
    _, y, weight = problem.data
    losses = left_out_losses(leave_one_out(problem, laws), y, VARIANCE_SCALES, shares)
    log_losses = losses @ weight / weight.sum()
    best = int(log_losses.argmin())
    return VarianceScale(VARIANCE_SCALES[best], log_losses, losses[best])


def widest_within_error(losses: Tensor, weight: Tensor, scales: Sequence[float]) -> VarianceScale:
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


def left_out_losses(
    left_out: Sequence[LeftOut], y: Tensor, scales: Sequence[float], shares: Tensor | None = None
) -> Tensor:
    """``-log p`` of every row left out under the laws' mixture, at every scale, (S, N) nats.

    ``shares`` (R,) of the laws, of sum one; equal by default.
    """
    n_outputs = left_out[0].mean.shape[1]
    shares = torch.ones(len(left_out)) / len(left_out) if shares is None else shares
    rule, losses = points_for_prediction(n_outputs), []
    outliers = 1e-3  # share of rows left out that say nothing
    for scale in scales:
        log_p = torch.stack([_log_likelihood(law, y, scale, rule) for law in left_out])
        log_p = (log_p + shares.log().to(log_p).unsqueeze(1)).logsumexp(0) + log1p(-outliers)
        least = torch.full_like(log_p, log(outliers / max(2, n_outputs)))
        losses.append(-log_p.logaddexp(least))
    return torch.stack(losses)


def _log_likelihood(law: LeftOut, y: Tensor, variance_scale: float, rule: NormalPoints) -> Tensor:
    """Log probability of the labels, (N,)."""
    n_outputs = law.mean.shape[1]
    root = variance_scale**0.5 * law.root if variance_scale else None
    parts, size = [], rows_within(1 << 22, (n_outputs + 1) * len(rule.weights))  # 32 MB at once
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        terms = LabelTerms(law.mean[rows], None if root is None else root[rows], rule)
        parts.append(terms.log_likelihood(y[rows]))
    return torch.cat(parts)
