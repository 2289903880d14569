"""The evidence of one mode from draws of it, by bridge sampling modulo the symmetry.

    Z = integral over a region of exp(log_density),

the region being unchanged by the symmetry group. Draws and a fitted proposal, a mixture of
Gaussians, meet in the middle: nothing is annealed, and the estimate is good where the proposal is
merely fair.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, log, nan
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import multivariate_normal_log_prob
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky, log_det, shrink_to_diagonal
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.optimise import find_root
from skbayes_sym.numerics.random import normal_like
from skbayes_sym.symmetry.fundamental_domain import (
    MAX_ORDER,
    Enumeration,
    FundamentalDomain,
    can_enumerate,
    enumerate_group,
    has_exact_domain,
)
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.relabelling import estimate_reference, orbit_mean_square
from skbayes_sym.symmetry.units import split_units


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """``sum_k w_k N(loc_k, L_k L_k')``."""

    log_weights: Tensor  # (K,): normalised
    loc: Tensor  # (K, D)
    cholesky: Tensor  # (K, D, D): lower triangular L

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, D)."""
        which = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        noise = normal_like((n, self.loc.shape[1]), generator=generator, like=self.loc)
        draws = torch.empty_like(noise)
        for k in range(len(self.loc)):
            drawn = which == k
            draws[drawn] = self.loc[k] + noise[drawn] @ self.cholesky[k].mT
        return draws

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, D) -> (*B,). O(K D^2) a point."""
        weighted = self.log_components(theta) + self.log_weights.to(theta.device)
        return torch.logsumexp(weighted, dim=-1)

    def log_components(self, theta: Tensor) -> Tensor:
        """Log density of each Gaussian, without its weight, (*B, D) -> (*B, K)."""
        parts = []
        loc_of, factor_of = (t.to(theta.device) for t in (self.loc, self.cholesky))
        identity = torch.eye(loc_of.shape[1], dtype=loc_of.dtype, device=theta.device)
        for loc, factor in zip(loc_of, factor_of, strict=True):
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            z = (theta - loc) @ inverse.mT
            parts.append(
                multivariate_normal_log_prob(z.square().sum(-1), log_det(factor), len(loc))
            )
        return torch.stack(parts, dim=-1)


def fit_gaussian_mixture(
    draws: Tensor,  # (n, D): at least 2
    n_components: int = 1,  # at most n / 2
) -> GaussianMixture:
    """Expectation maximisation from equal slices along the first principal axis; deterministic.

    Every covariance is ``0.98 S + 0.02 diag(S)``, S the weighted covariance of the draws. The
    slices are a start for one bent or skewed cloud, not a search for distant ones. O(n K D^2) a
    step, at most 100 steps.
    """
    centre = draws.mean(dim=0)
    scale = draws.std(dim=0, correction=0)
    tiny = torch.finfo(draws.dtype).eps * (1.0 + centre.abs())
    z = (draws - centre) / torch.maximum(scale, tiny)
    _, _, axes = torch.linalg.svd(z, full_matrices=False)
    rank = (z @ axes[0]).argsort().argsort()
    slices = torch.nn.functional.one_hot(rank * n_components // len(z), n_components).to(z)
    mixture = _maximise(z, slices)
    before = -torch.inf
    for _ in range(100 if n_components > 1 else 0):
        joint = mixture.log_components(z) + mixture.log_weights
        mean_log_prob = float(torch.logsumexp(joint, dim=-1).mean())
        if mean_log_prob - before < 1e-4:
            break
        before = mean_log_prob
        mixture = _maximise(z, joint.softmax(dim=-1))
    unit = torch.maximum(scale, tiny)
    return GaussianMixture(
        mixture.log_weights, centre + unit * mixture.loc, unit.unsqueeze(-1) * mixture.cholesky
    )


def _maximise(z: Tensor, share: Tensor) -> GaussianMixture:
    """Weights, means and shrunk covariances given the components' shares of the draws."""
    size = share.sum(dim=0)
    # A component that loses its draws must not divide by zero; it keeps a wide, weightless shape.
    weight = share / size.clamp_min(1e-300)
    loc = weight.mT @ z
    residual = z - loc.unsqueeze(1)  # (K, n, D)
    covariance = (residual * weight.mT.unsqueeze(-1)).mT @ residual
    # In coordinates of unit scale 1e-12 does nothing but keep point masses invertible.
    shrunk = add_to_diagonal(shrink_to_diagonal(covariance, 0.02), 1e-12)
    factor = cholesky(
        shrunk,
        name="The covariance of a component's draws",
        remedy="Draws that aren't finite, or overflow when squared, must be left out.",
    )
    return GaussianMixture((size / len(z)).log(), loc, factor)


MIN_DRAWS_PER_DIM = 5  # below that the fitted covariance is noise, and the proposal useless

Region = Callable[[Tensor], Tensor]  # (C, D) -> bool (C,)


class BridgeRatio(NamedTuple):
    """Solution of the bridge equation."""

    log_ratio: float
    standard_error: float  # of log_ratio, nats
    n_effective: float


class BridgeEstimate(NamedTuple):
    """Log evidence of one mode."""

    log_evidence: float  # nats; nan where there are too few draws or the proposal misses the mode
    standard_error: float  # nats
    n_draws: int  # that lie in the region
    n_effective: float  # of those, in the sense of the standard error


NOT_ESTIMATED = BridgeEstimate(nan, nan, 0, 0.0)


@dataclass(frozen=True, eq=False)
class Integrand:
    """A density over a region, both unchanged by a group.

    Evaluated in float64 without gradients, in rows that fit the memory.
    """

    # (C, D) -> (C,): nats, unnormalised, invariant under the group.
    log_density: Callable[[Tensor], Tensor]
    group: SymmetryGroup  # acts on the leading columns
    # (C, D) -> bool (C,): the whole space by default. Must be invariant under the group.
    region: Region | None = None

    def __call__(self, position: Tensor) -> Tensor:
        with torch.no_grad():
            value = torch.cat([self.log_density(rows) for rows in position.split(2048)])
        value = value.double().nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        return value if self.region is None else value.masked_fill(~self.region(position), -inf)


def bridge_evidence(
    integrand: Integrand,
    # (n, D): aligned draws of ``exp(log_density)`` within the region; others are dropped.
    draws: Tensor,
    *,
    # (n,), int64: the chain of each draw; draws of one chain stand in order. Independent draws by
    # default. Halves hold different chains where there are enough.
    chains: Tensor | None = None,
    # Gaussians in h. Three are a check: modes that are far from Gaussian give another value.
    n_components: int = 1,
    max_order: int = MAX_ORDER,
    generator: torch.Generator,
) -> BridgeEstimate:
    """Log of the integral, with its standard error.

    A mixture of Gaussians h is fitted to one half of the draws; the ratio of the density to
    ``q(x) = 1/|G| sum_g h(g x)`` is compared at draws of h and at the other half (`bridge_ratio`);
    the halves change places, and the two estimates are averaged. Groups larger than ``max_order``
    aren't summed over: then ``Z = |G| Z_F``, F the fundamental domain of the half, and draws of h
    that miss F count as zeros.

    nan with fewer than 5 D draws. Of the whole space it is, up to its error, a lower bound: only
    what the draws visited is in it. The error allows for correlated draws of a chain; where the
    halves differ by more, their difference is the error. Raises ValueError if the group is too
    large to sum over and has no exact fundamental domain (several hidden layers).

    O(n D^2 |G|) where the group is summed over, and 4 n evaluations of the density. Meng and Wong
    (1996), Statistica Sinica 6; Frühwirth-Schnatter (2004), Econometrics Journal 7.
    """
    draws = draws.detach().double()
    chains = torch.arange(len(draws), device=draws.device) if chains is None else chains
    if integrand.region is not None:
        inside = integrand.region(draws)
        draws = draws[inside]
        chains = chains[inside]
    if len(draws) < MIN_DRAWS_PER_DIM * draws.shape[1]:
        return NOT_ESTIMATED._replace(n_draws=len(draws))
    group = integrand.group
    half = _random_half(chains, generator)
    make = _symmetrised if can_enumerate(group, max_order=max_order) else _confined
    first, second = (
        _compare(integrand, make(draws[a], group, n_components), draws[~a], chains[~a], generator)
        for a in (half, ~half)
    )
    mean = 0.5 * (first.log_ratio + second.log_ratio)
    error = 0.5 * (first.standard_error**2 + second.standard_error**2) ** 0.5
    difference = 0.5 * abs(first.log_ratio - second.log_ratio)
    if difference > 2.0 * error:  # its standard deviation is ``error``, too
        error = difference
    return BridgeEstimate(mean, error, len(draws), first.n_effective + second.n_effective)


class _Proposal(NamedTuple):
    """A mixture h, how it is compared with the density, and what the comparison leaves out."""

    h: GaussianMixture
    log_prob: Callable[[Tensor], Tensor]  # of the density that is compared
    enter: Callable[[Tensor], Tensor]  # of draws, before they are compared
    covers: Callable[[Tensor], Tensor]  # draws of h that count; others are zeros
    log_copies: float  # log of the integral over everything / over what is compared


def _symmetrised(draws: Tensor, group: SymmetryGroup, n_components: int) -> _Proposal:
    h = fit_gaussian_mixture(draws, n_components)
    table = enumerate_group(group, draws.shape[1])
    table = Enumeration(table.gather.to(draws.device), table.sign.to(draws.device), table.elements)

    def log_prob(x: Tensor) -> Tensor:
        rows = x.split(n_rows_per_block(1 << 21, table.order * x.shape[1]))
        sums = [torch.logsumexp(h.log_prob(table.orbit(part)), dim=-1) for part in rows]
        return torch.cat(sums) - log(table.order)

    def all_of(x: Tensor) -> Tensor:
        return torch.ones(len(x), dtype=torch.bool, device=x.device)

    return _Proposal(h, log_prob, lambda x: x, all_of, 0.0)


def _confined(draws: Tensor, group: SymmetryGroup, n_components: int) -> _Proposal:
    domain = fundamental_domain_of_mode(draws, group)
    h = fit_gaussian_mixture(domain.enter(draws)[0], n_components)
    return _Proposal(
        h, h.log_prob, lambda x: domain.enter(x)[0], domain.contains, float(group.log_order)
    )


def fundamental_domain_of_mode(draws: Tensor, group: SymmetryGroup) -> FundamentalDomain:
    """The fundamental domain around aligned draws (n, D)."""
    cpu = draws.cpu()
    return FundamentalDomain(group, estimate_reference(cpu, orbit_mean_square(cpu, group)))


def can_bridge(group: SymmetryGroup) -> bool:
    """Whether `bridge_evidence` has a way to deal with this group: one of units, not too large."""
    _, others = split_units(group)
    return not others and (can_enumerate(group) or has_exact_domain(group))


def _compare(
    integrand: Integrand, proposal: _Proposal, draws: Tensor, chains: Tensor,
    generator: torch.Generator,
) -> BridgeRatio:  # fmt: skip
    """Compare one half's draws with the other half's proposal."""
    proposed = proposal.h.sample(4 * len(draws), generator=generator)
    at_proposed = proposed.new_full((len(proposed),), -inf, dtype=torch.float64)
    counts = proposal.covers(proposed)
    kept = proposed[counts]
    if len(kept):
        at_proposed[counts] = integrand(kept) - proposal.log_prob(kept)
    entered = proposal.enter(draws)
    at_draws = integrand(entered) - proposal.log_prob(entered)
    ratio = bridge_ratio(at_proposed, at_draws, _chain_blocks(chains))
    return ratio._replace(log_ratio=ratio.log_ratio + proposal.log_copies)


def _random_half(chains: Tensor, generator: torch.Generator) -> Tensor:
    """A random half of the draws, bool (n,): whole chains if neither side gets below a third."""
    for units in (chains, _chain_blocks(chains)):
        _, label, size = units.unique(return_inverse=True, return_counts=True)
        order = torch.randperm(len(size), generator=generator, device=generator.device)
        order = order.to(size.device)
        taken = torch.zeros(len(size), dtype=torch.bool, device=size.device)
        taken[order] = size[order].cumsum(0) <= (len(chains) + 1) // 2
        first: Tensor = taken[label]
        if len(chains) <= 3 * int(first.sum()) <= 2 * len(chains):
            break
    return first


def _chain_blocks(chains: Tensor) -> Tensor:
    """Labels of consecutive pieces of chains, at least 20 in all where there are draws enough.

    Whole chains where there are many: their means are independent whatever happens within.
    """
    _, label, size = chains.unique(return_inverse=True, return_counts=True)
    pieces = ceil(20 / len(size))
    order = label.argsort(stable=True)
    start = (size.cumsum(0) - size)[label[order]]
    rank = torch.empty_like(label)
    rank[order] = torch.arange(len(label), device=label.device) - start
    return label * pieces + rank * pieces // size[label]


def bridge_ratio(
    log_l_proposal: Tensor,  # (n1,): log l at draws of the proposal; -inf where the density is zero
    log_l_draws: Tensor,  # (n2,)
    # (n2,), int64: labels of groups of draws independent of each other; every draw its own by
    # default. In the weights and in the error, n2 is replaced by the effective number that the
    # blocks reveal.
    blocks: Tensor | None = None,
) -> BridgeRatio:
    """Meng and Wong's optimal bridge between a proposal and draws of an unnormalised density.

    With l = density / proposal, at n1 draws of the proposal and n2 of the density, solves

        r = mean over proposals of l / (s1 r + s2 l)  /  mean over draws of 1 / (s1 r + s2 l),

    ``s1 = n1 / (n1 + n2) = 1 - s2``. Their fixed-point iteration converges to the same number,
    slowly where the two hardly meet; in log r the difference of the sides is monotone, and the
    root is bracketed.

    Error by the delta method: relative variances of the two means, added
    (Frühwirth-Schnatter's equation, with sums over blocks for the draws). nan if no proposal
    meets the density.
    """
    if not bool(log_l_proposal.isfinite().any()):
        return BridgeRatio(nan, nan, 0.0)
    blocks = torch.arange(len(log_l_draws)) if blocks is None else blocks
    n_effective = float(len(log_l_draws))
    for _ in range(2):  # effective draws at the first solution set the weights of the second
        total = log(len(log_l_proposal) + n_effective)
        log_s = log(len(log_l_proposal)) - total, log(n_effective) - total
        log_r = _solve(log_l_proposal, log_l_draws, log_s)
        over = _relative(_bridge_terms(log_l_proposal, log_r, log_s)[0])
        under = _relative(_bridge_terms(log_l_draws, log_r, log_s)[1])
        from_proposals = float(over.var() / over.mean() ** 2) / len(over)
        from_draws = _block_variance(under, blocks) / float(under.mean() ** 2)
        independent = float(under.var() / under.mean() ** 2)
        if from_draws > 0.0:
            n_effective = min(max(independent / from_draws, 1.0), float(len(under)))
    return BridgeRatio(log_r, (from_proposals + from_draws) ** 0.5, n_effective)


def _relative(log_terms: Tensor) -> Tensor:
    """Terms in units of the largest: relative variances don't change, and none underflows."""
    return (log_terms - log_terms.max()).exp()


def _block_variance(values: Tensor, blocks: Tensor) -> float:
    """Variance of the mean of values (n,) that depend on each other only within blocks."""
    _, label = blocks.unique(return_inverse=True)
    n_blocks = int(label.max()) + 1
    sums = values.new_zeros(n_blocks).index_add_(0, label.to(values.device), values - values.mean())
    return float(sums.square().sum()) / len(values) ** 2 * n_blocks / max(n_blocks - 1, 1)


def _bridge_terms(log_l: Tensor, log_r: float, log_s: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Logs of ``l / (s1 r + s2 l)`` and ``r / (s1 r + s2 l)``."""
    below = torch.logaddexp(torch.full_like(log_l, log_s[0] + log_r), log_s[1] + log_l)
    return log_l - below, log_r - below


def _solve(at_proposal: Tensor, at_draws: Tensor, log_s: tuple[float, float]) -> float:
    """log r at which the two means agree."""

    def imbalance(log_r: float) -> float:
        over = _bridge_terms(at_proposal, log_r, log_s)[0]
        under = _bridge_terms(at_draws, log_r, log_s)[1]
        ours = torch.logsumexp(over, 0) - log(len(over))
        return float(ours - (torch.logsumexp(under, 0) - log(len(under))))

    both = torch.cat([at_proposal, at_draws])
    finite = both[both.isfinite()]
    low = float(finite.min()) - 1.0
    high = float(finite.max()) + 1.0
    while imbalance(low) < 0.0:  # zeros among the proposals put r below every finite l
        low -= 2.0 * (high - low)
    return find_root(imbalance, low, high)
