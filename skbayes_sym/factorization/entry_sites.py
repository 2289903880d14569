r"""Entries of any likelihood as Gaussian ones, and steps in what is learned of it.

Given the mean m and the variance v of an entry's output under q, its `Likelihood.bound` is a number
of nats with slopes; a normal entry of value :math:`m + g / \lambda` and precision :math:`\lambda`,
with g the slope in m and :math:`-\lambda / 2` that in v, has the same ("site"), so a sweep sees
Gaussian entries. Normal entries are their own.
"""

from dataclasses import replace
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.factorization.sparse_entries import CSREntries
from skbayes_sym.models.likelihoods.likelihood import ClassLikelihood, ExpectedLogProb, Likelihood

_BLOCK = 1 << 13  # entries: with a few nodes of a quadrature they stay in the cache


class EntryMoments(NamedTuple):
    """Entries, and the moments of their outputs under q; (N,) each."""

    value: Tensor
    weight: Tensor | None
    mean: Tensor
    variance: Tensor

    def total(self, values: Tensor) -> float:
        """Weighted sum over entries."""
        return float((values if self.weight is None else values * self.weight).double().sum())


def is_normal(likelihood: Likelihood) -> bool:
    """Whether entries are their own sites."""
    return likelihood.kind == "normal"


def noise_variance(likelihood: Likelihood) -> float:
    """Variance of normal entries; 1 of others, whose sites have precisions of their own."""
    return float(likelihood.noise_scale.double()[0]) ** 2 if is_normal(likelihood) else 1.0


def has_learned_scale(likelihood: Likelihood) -> bool:
    """Whether the first free parameter is the log scale of additive noise."""
    if not likelihood.n_params or not likelihood.scales_targets:
        return False
    moved = likelihood.at(likelihood.params + 1.0).noise_scale
    return len(moved) > 0 and not torch.equal(moved, likelihood.noise_scale)


def set_noise_scale(likelihood: Likelihood, scale: float, *, learn: bool = True) -> Likelihood:
    """The likelihood with this scale of the noise, if it learns one; held unless ``learn``."""
    if not has_learned_scale(likelihood):
        return likelihood
    params = likelihood.params.double().clone()
    params[0] = log(max(scale, 1e-300))
    likelihood = likelihood.at(params)
    return likelihood if learn else replace(likelihood, learn=False)  # type: ignore[type-var]


def is_class_likelihood(likelihood: Likelihood) -> bool:
    """Whether entries are positions among classes."""
    return isinstance(likelihood, ClassLikelihood)


def format_targets(likelihood: Likelihood, value: Tensor) -> Tensor:
    """Values (N,) as the likelihood takes them: classes (N,) int64, or numbers (N, 1)."""
    return value.long() if is_class_likelihood(likelihood) else value.unsqueeze(-1)


def expected(likelihood: Likelihood, seen: EntryMoments) -> ExpectedLogProb:
    """Bounds of all entries with their slopes, float64: (N,), (N, 1), (N, 1), (N, n_params)."""
    mean, variance = (t.double().unsqueeze(-1) for t in (seen.mean, seen.variance))
    y = format_targets(likelihood, seen.value.double())
    likelihood = likelihood.to(mean)
    parts = [
        likelihood.approximate_expected_log_prob(*(t[b : b + _BLOCK] for t in (mean, variance, y)))
        for b in range(0, max(len(y), 1), _BLOCK)
    ]
    return ExpectedLogProb(*(torch.cat(part) for part in zip(*parts, strict=True)))


def sites(seen: EntryMoments, terms: ExpectedLogProb, trust: int) -> tuple[Tensor, Tensor]:
    """Values and weights of Gaussian entries of variance one with these slopes, (N,) each.

    Entries farther off than ``3 * 2**trust`` weigh more instead: there a rate is another one.
    ``trust`` grows with sweeps, so that where they end sites are what the bound says.
    """
    gradient = terms.d_mean[:, 0]
    # An entry of the least precision is as good as certain.
    precision = (-2.0 * terms.d_variance[:, 0]).clamp(min=1e-6)
    precision = torch.maximum(precision, gradient.abs() / (3.0 * 2.0 ** min(trust, 500)))
    weight = precision if seen.weight is None else precision * seen.weight
    return seen.mean + gradient / precision, weight


def update_trust_radius(trust: int, bound: float, before: float, entries: CSREntries) -> int:
    """How far the next sites are trusted: twice as far, or an eighth where the bound has fallen.

    By a tenth of a nat an entry: sites of straight flanks, as Laplace's density has, have no
    curvature to say how far they hold.
    """
    return trust - 3 if bound < before - 0.1 * entries.total_weight else trust + 1


def learned(
    likelihood: Likelihood,
    seen: EntryMoments,
    terms: ExpectedLogProb,
    noise_range: tuple[float, float],
) -> tuple[Likelihood, ExpectedLogProb]:
    """A step in the likelihood's parameters that doesn't lower the bound, and the terms there.

    A Gauss-Newton step by the slopes of single entries (Berndt et al. 1974), shortened until the
    bound rises; the scale of additive noise stays within ``noise_range`` (variances).
    """
    if not likelihood.n_params or not len(seen.value):
        return likelihood, terms
    slopes = terms.d_params
    weighted = slopes if seen.weight is None else slopes * seen.weight.unsqueeze(-1)
    gradient = weighted.sum(0)
    curvature = weighted.mT @ slopes
    curvature.diagonal().add_(1e-9 * curvature.diagonal().max() + 1e-300)
    step = torch.linalg.solve(curvature, gradient).clamp(-1.0, 1.0)
    before = seen.total(terms.value)
    start = likelihood.params
    low = torch.full_like(start, -12.0)
    high = torch.full_like(start, 12.0)
    if has_learned_scale(likelihood):
        low[0], high[0] = (0.5 * log(variance) for variance in noise_range)
    for _ in range(8):
        moved = likelihood.at((start + step.to(start)).clamp(low, high))
        after = expected(moved, seen)
        if seen.total(after.value) >= before:
            return moved, after
        step = 0.5 * step
    return likelihood, terms
