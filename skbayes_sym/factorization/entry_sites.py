r"""Gaussian sites for entries of any likelihood, and updates of the likelihood's parameters.

Given the mean m and the variance v of an entry's output under q,
`Likelihood.approximate_expected_log_prob` is a lower bound in nats with slopes. A Gaussian entry of
value :math:`m + g / \lambda` and precision :math:`\lambda`, where g is the slope in m and
:math:`-\lambda / 2` the slope in v, has the same slopes. It is called a site. With sites in place
of the entries, a sweep handles Gaussian entries only. Entries with a Gaussian likelihood are their
own sites.
"""

from dataclasses import replace
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.factorization.sparse_entries import CSREntries
from skbayes_sym.models.likelihoods.likelihood import ClassLikelihood, ExpectedLogProb, Likelihood

# Entries evaluated at once: together with a few quadrature nodes they stay in the CPU's cache.
_BLOCK = 1 << 13


class EntryMoments(NamedTuple):
    """Entries, and the moments of their outputs under q.

    Attributes
    ----------
    value : Tensor of shape (N,)
        Observed values.
    weight : Tensor of shape (N,) or None
        Weights of the entries; None if all are 1.
    mean, variance : Tensor of shape (N,)
        Moments of the outputs.
    """

    value: Tensor
    weight: Tensor | None
    mean: Tensor
    variance: Tensor

    def weighted_sum(self, terms: Tensor) -> float:
        """Sum a term of every entry by the weights of the entries."""
        if self.weight is not None:
            terms = terms * self.weight
        return float(terms.double().sum())


def is_normal(likelihood: Likelihood) -> bool:
    """Whether the likelihood is Gaussian, so that entries are their own sites."""
    return likelihood.kind == "normal"


def noise_variance(likelihood: Likelihood) -> float:
    """Noise variance of Gaussian entries; 1 for other entries, whose sites have precisions."""
    if not is_normal(likelihood):
        return 1.0
    return float(likelihood.noise_scale.double()[0]) ** 2


def has_learned_scale(likelihood: Likelihood) -> bool:
    """Whether the first free parameter of a likelihood is the log scale of additive noise."""
    if not likelihood.n_params or not likelihood.scales_targets:
        return False
    scale = likelihood.noise_scale
    scale_after_step = likelihood.at(likelihood.params + 1.0).noise_scale
    return len(scale_after_step) > 0 and not torch.equal(scale_after_step, scale)


def set_noise_scale(likelihood: Likelihood, scale: float, *, learn: bool = True) -> Likelihood:
    """Set the noise scale of a likelihood that learns one; hold it fixed unless ``learn``."""
    if not has_learned_scale(likelihood):
        return likelihood
    params = likelihood.params.double().clone()
    params[0] = log(max(scale, 1e-300))
    likelihood = likelihood.at(params)
    if learn:
        return likelihood
    return replace(likelihood, learn=False)  # type: ignore[type-var]


def is_class_likelihood(likelihood: Likelihood) -> bool:
    """Whether entries are class labels."""
    return isinstance(likelihood, ClassLikelihood)


def format_targets(likelihood: Likelihood, value: Tensor) -> Tensor:
    """Values (N,) in the form of the likelihood: classes (N,) int64, or real targets (N, 1)."""
    if is_class_likelihood(likelihood):
        return value.long()
    return value.unsqueeze(-1)


def expected_log_prob(likelihood: Likelihood, moments: EntryMoments) -> ExpectedLogProb:
    """Bounds on the expected log density of all entries, with their slopes, float64.

    The shapes are (N,), (N, 1), (N, 1) and (N, n_params).
    """
    mean = moments.mean.double().unsqueeze(-1)
    variance = moments.variance.double().unsqueeze(-1)
    y = format_targets(likelihood, moments.value.double())
    likelihood = likelihood.to(mean)
    blocks = []
    for begin in range(0, max(len(y), 1), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        blocks.append(likelihood.approximate_expected_log_prob(mean[rows], variance[rows], y[rows]))
    return ExpectedLogProb(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def compute_sites(
    moments: EntryMoments, terms: ExpectedLogProb, log2_radius: int
) -> tuple[Tensor, Tensor]:
    """Compute values and weights of Gaussian entries of variance 1 that have given slopes.

    Parameters
    ----------
    moments : EntryMoments
        Entries and the moments of their outputs.
    terms : ExpectedLogProb
        Bounds of the entries with their slopes.
    log2_radius : int
        A site may lie at most ``3 * 2**log2_radius`` from the mean of its output, because the
        slopes change farther away. The weight of a site beyond is raised instead. The radius grows
        with the sweeps, so that at convergence the sites have the slopes of the bound.

    Returns
    -------
    value, weight : Tensor of shape (N,)
        Sites.
    """
    gradient = terms.d_mean[:, 0]
    # An entry of the lowest precision has next to no influence.
    precision = (-2.0 * terms.d_variance[:, 0]).clamp(min=1e-6)
    precision = torch.maximum(precision, gradient.abs() / (3.0 * 2.0 ** min(log2_radius, 500)))
    weight = precision
    if moments.weight is not None:
        weight = precision * moments.weight
    return moments.mean + gradient / precision, weight


def update_trust_radius(
    log2_radius: int, bound: float, previous_bound: float, entries: CSREntries
) -> int:
    """Update the trust radius of sites after a sweep.

    Parameters
    ----------
    log2_radius : int
        Base-2 logarithm of the radius, in units of 3.
    bound, previous_bound : float
        Bound in nats after this sweep and after the one before.
    entries : CSREntries
        Observed entries.

    Returns
    -------
    int
        The radius is doubled. It is divided by eight if the bound has fallen by more than 0.1 nats
        per entry: sites on straight flanks, as the Laplace density has, have no curvature that
        would limit the step.
    """
    has_fallen = bound < previous_bound - 0.1 * entries.total_weight
    if has_fallen:
        return log2_radius - 3
    return log2_radius + 1


def update_likelihood(
    likelihood: Likelihood,
    moments: EntryMoments,
    terms: ExpectedLogProb,
    noise_range: tuple[float, float],
) -> tuple[Likelihood, ExpectedLogProb]:
    """Take a step in the likelihood's parameters that doesn't lower the bound.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood at its present parameters.
    moments : EntryMoments
        Entries and the moments of their outputs.
    terms : ExpectedLogProb
        Bounds of the entries at the present parameters, with their slopes.
    noise_range : tuple of float
        Smallest and largest variance of additive noise.

    Returns
    -------
    likelihood : Likelihood
        Likelihood at the new parameters.
    terms : ExpectedLogProb
        Bounds of the entries at the new parameters.

    Notes
    -----
    It is a Gauss-Newton step with the outer products of the entries' gradients (Berndt et al.
    1974), halved until the bound rises, at most seven times.
    """
    if not likelihood.n_params or not len(moments.value):
        return likelihood, terms

    gradients = terms.d_params
    weighted = gradients
    if moments.weight is not None:
        weighted = gradients * moments.weight.unsqueeze(-1)
    curvature = weighted.mT @ gradients
    curvature.diagonal().add_(1e-9 * curvature.diagonal().max() + 1e-300)
    step = torch.linalg.solve(curvature, weighted.sum(0)).clamp(-1.0, 1.0)

    start = likelihood.params
    low = torch.full_like(start, -12.0)
    high = torch.full_like(start, 12.0)
    if has_learned_scale(likelihood):
        low[0] = 0.5 * log(noise_range[0])
        high[0] = 0.5 * log(noise_range[1])

    previous_bound = moments.weighted_sum(terms.value)
    for _ in range(8):
        proposal = likelihood.at((start + step.to(start)).clamp(low, high))
        proposal_terms = expected_log_prob(proposal, moments)
        if moments.weighted_sum(proposal_terms.value) >= previous_bound:
            return proposal, proposal_terms
        step = 0.5 * step
    return likelihood, terms
