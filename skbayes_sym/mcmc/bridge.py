"""Evidence of one mode from its draws, by bridge sampling modulo the symmetry.

The evidence of a region that the symmetry group leaves invariant is

    Z = integral over the region of exp(log_density).

Bridge sampling compares the draws with those of a fitted proposal, a mixture of Gaussians. It needs
no annealing, and the estimate is accurate even if the proposal fits only moderately well.
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
    """Mixture of Gaussians ``sum_k w_k N(loc_k, L_k L_k')``.

    Parameters
    ----------
    log_weights : Tensor of shape (K,)
        Logs of the normalised weights.
    loc : Tensor of shape (K, D)
        Means.
    cholesky : Tensor of shape (K, D, D)
        Lower triangular factors L of the covariances.
    """

    log_weights: Tensor
    loc: Tensor
    cholesky: Tensor

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw ``n`` samples, (n, D)."""
        component = torch.multinomial(
            self.log_weights.exp(), n, replacement=True, generator=generator
        )
        noise = normal_like((n, self.loc.shape[1]), generator=generator, like=self.loc)
        draws = torch.empty_like(noise)
        for k in range(len(self.loc)):
            is_in_component = component == k
            draws[is_in_component] = self.loc[k] + noise[is_in_component] @ self.cholesky[k].mT
        return draws

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, D) -> (*B,), in O(K D^2) per point."""
        weighted = self.log_components(theta) + self.log_weights.to(theta.device)
        return torch.logsumexp(weighted, dim=-1)

    def log_components(self, theta: Tensor) -> Tensor:
        """Log density of each Gaussian without its weight, (*B, D) -> (*B, K)."""
        locs = self.loc.to(theta.device)
        factors = self.cholesky.to(theta.device)
        identity = torch.eye(locs.shape[1], dtype=locs.dtype, device=theta.device)
        log_densities = []
        for loc, factor in zip(locs, factors, strict=True):
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            z = (theta - loc) @ inverse.mT
            squared_norm = z.square().sum(-1)
            log_densities.append(
                multivariate_normal_log_prob(squared_norm, log_det(factor), len(loc))
            )
        return torch.stack(log_densities, dim=-1)


def fit_gaussian_mixture(draws: Tensor, n_components: int = 1) -> GaussianMixture:
    """Fit a mixture of Gaussians by expectation maximisation; deterministic.

    The initial components are equally large slices along the first principal axis. They suit one
    curved or skewed cloud of points. They aren't a search for separate clouds.

    Parameters
    ----------
    draws : Tensor of shape (n, D)
        At least 2 points.
    n_components : int, default=1
        At most n / 2.

    Returns
    -------
    GaussianMixture
        Every covariance is ``0.98 S + 0.02 diag(S)``, S the weighted covariance of the draws.

    Notes
    -----
    At most 100 iterations of O(n K D^2).
    """
    # Standardise the columns.
    centre = draws.mean(dim=0)
    scale = draws.std(dim=0, correction=0)
    tiny = torch.finfo(draws.dtype).eps * (1.0 + centre.abs())
    unit = torch.maximum(scale, tiny)
    z = (draws - centre) / unit

    # Start from slices along the first principal axis.
    _, _, axes = torch.linalg.svd(z, full_matrices=False)
    rank = (z @ axes[0]).argsort().argsort()
    slices = torch.nn.functional.one_hot(rank * n_components // len(z), n_components).to(z)
    mixture = _maximise(z, slices)

    # Iterate until the mean log density increases by less than 1e-4 nats.
    previous = -torch.inf
    for _ in range(100 if n_components > 1 else 0):
        joint = mixture.log_components(z) + mixture.log_weights
        mean_log_prob = float(torch.logsumexp(joint, dim=-1).mean())
        if mean_log_prob - previous < 1e-4:
            break
        previous = mean_log_prob
        mixture = _maximise(z, joint.softmax(dim=-1))
    return GaussianMixture(
        mixture.log_weights, centre + unit * mixture.loc, unit.unsqueeze(-1) * mixture.cholesky
    )


def _maximise(z: Tensor, responsibilities: Tensor) -> GaussianMixture:
    """M step: weights, means and shrunk covariances, given the responsibilities (n, K)."""
    size = responsibilities.sum(dim=0)
    # A component without draws must not cause a division by zero. It keeps a wide shape and no
    # weight.
    weight = responsibilities / size.clamp_min(1e-300)
    loc = weight.mT @ z
    residual = z - loc.unsqueeze(1)  # (K, n, D)
    covariance = (residual * weight.mT.unsqueeze(-1)).mT @ residual
    # In standardised coordinates 1e-12 only keeps the covariances of point masses invertible.
    shrunk = add_to_diagonal(shrink_to_diagonal(covariance, 0.02), 1e-12)
    factor = cholesky(
        shrunk,
        name="The covariance of a component's draws",
        remedy="Draws that aren't finite, or overflow when squared, must be left out.",
    )
    return GaussianMixture((size / len(z)).log(), loc, factor)


# Number of draws per parameter below which the fitted covariance is noise and the proposal useless.
MIN_DRAWS_PER_DIM = 5

Region = Callable[[Tensor], Tensor]  # (C, D) -> bool (C,)


class BridgeRatio(NamedTuple):
    """Solution of the bridge equation.

    Parameters
    ----------
    log_ratio : float
        Log of the ratio of normalising constants in nats.
    standard_error : float
        Standard error of ``log_ratio`` in nats.
    n_effective : float
        Effective number of independent draws of the density.
    """

    log_ratio: float
    standard_error: float
    n_effective: float


class BridgeEstimate(NamedTuple):
    """Log evidence of one mode.

    Parameters
    ----------
    log_evidence : float
        Log evidence in nats; nan if there are too few draws or the proposal misses the mode.
    standard_error : float
        Standard error of ``log_evidence`` in nats.
    n_draws : int
        Number of draws within the region.
    n_effective : float
        Effective number of independent draws among them, in the sense of the standard error.
    """

    log_evidence: float
    standard_error: float
    n_draws: int
    n_effective: float


NOT_ESTIMATED = BridgeEstimate(nan, nan, 0, 0.0)


@dataclass(frozen=True, eq=False)
class Integrand:
    """Density over a region, both invariant under a group.

    The density is evaluated in float64 without gradients, in blocks of rows that fit into memory.

    Parameters
    ----------
    log_density : callable (C, D) -> (C,)
        Unnormalised log density in nats, invariant under the group.
    group : SymmetryGroup
        Group that acts on the leading columns.
    region : callable (C, D) -> bool (C,), optional
        Region of integration, invariant under the group. The whole space by default.
    """

    log_density: Callable[[Tensor], Tensor]
    group: SymmetryGroup
    region: Region | None = None

    def __call__(self, position: Tensor) -> Tensor:
        """Log density in nats, -inf outside the region, (C, D) -> (C,)."""
        with torch.no_grad():
            value = torch.cat([self.log_density(rows) for rows in position.split(2048)])
        value = value.double().nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        if self.region is None:
            return value
        return value.masked_fill(~self.region(position), -inf)


def bridge_evidence(
    integrand: Integrand,
    draws: Tensor,
    *,
    chains: Tensor | None = None,
    n_components: int = 1,
    max_order: int = MAX_ORDER,
    generator: torch.Generator,
) -> BridgeEstimate:
    """Estimate the log integral of a density over a region, with its standard error.

    Parameters
    ----------
    integrand : Integrand
        Density and region.
    draws : Tensor of shape (n, D)
        Aligned draws of ``exp(log_density)``. Those outside the region are dropped.
    chains : Tensor of shape (n,), int64, optional
        Chain of each draw; the draws of a chain are in order. Independent draws by default. If
        there are enough chains, the two halves of the draws contain different ones.
    n_components : int, default=1
        Number of Gaussians in the proposal. Three serve as a check: modes that are far from
        Gaussian give a different value.
    max_order : int
        Order of the largest group that is summed over.
    generator : torch.Generator
        Random stream of the proposal and of the halves.

    Returns
    -------
    BridgeEstimate
        nan with fewer than 5 D draws. As an estimate of the integral over the whole space it is, up
        to its error, a lower bound: it includes only what the draws visited.

    Raises
    ------
    ValueError
        If the group is too large to sum over and has no exact fundamental domain, as with several
        hidden layers.

    Notes
    -----
    A mixture of Gaussians h is fitted to one half of the draws. The ratio of the density to
    ``q(x) = 1/|G| sum_g h(g x)`` is evaluated at draws of h and at the other half (`bridge_ratio`).
    Then the halves change roles, and the two estimates are averaged. A group of more than
    ``max_order`` elements isn't summed over. Instead ``Z = |G| Z_F``, where F is the fundamental
    domain around the half, and draws of h outside F count as zeros.

    The standard error accounts for correlated draws within a chain. If the two estimates differ by
    more, half of their difference is the error. The cost is O(n D^2 |G|) if the group is summed
    over, and 4 n evaluations of the density.

    References
    ----------
    Meng and Wong (1996), Statistica Sinica 6. Frühwirth-Schnatter (2004), Econometrics Journal 7.
    """
    draws = draws.detach().double()
    if chains is None:
        chains = torch.arange(len(draws), device=draws.device)
    if integrand.region is not None:
        is_inside = integrand.region(draws)
        draws = draws[is_inside]
        chains = chains[is_inside]
    if len(draws) < MIN_DRAWS_PER_DIM * draws.shape[1]:
        return NOT_ESTIMATED._replace(n_draws=len(draws))

    # Fit the proposal to one half of the draws and compare it with the other, both ways.
    group = integrand.group
    make_proposal = _make_domain_proposal
    if can_enumerate(group, max_order=max_order):
        make_proposal = _make_symmetrised_proposal
    half = _select_random_half(chains, generator)
    ratios = []
    for fitted in (half, ~half):
        proposal = make_proposal(draws[fitted], group, n_components)
        ratio = _compare_with_proposal(
            integrand, proposal, draws[~fitted], chains[~fitted], generator
        )
        ratios.append(ratio)
    first, second = ratios

    # Average the two estimates. Their half difference has the same standard deviation as the mean.
    mean = 0.5 * (first.log_ratio + second.log_ratio)
    error = 0.5 * (first.standard_error**2 + second.standard_error**2) ** 0.5
    difference = 0.5 * abs(first.log_ratio - second.log_ratio)
    if difference > 2.0 * error:
        error = difference
    return BridgeEstimate(mean, error, len(draws), first.n_effective + second.n_effective)


class _Proposal(NamedTuple):
    """Fitted mixture, and how it is compared with the density.

    Parameters
    ----------
    mixture : GaussianMixture
        Mixture that is sampled.
    log_prob : callable (n, D) -> (n,)
        Log of the proposal density in nats.
    enter : callable (n, D) -> (n, D)
        Transformation of the draws before the comparison.
    covers : callable (n, D) -> bool (n,)
        Draws of the mixture that count; the others are zeros.
    log_copies : float
        Log of the integral over the whole space, relative to the part that is compared.
    """

    mixture: GaussianMixture
    log_prob: Callable[[Tensor], Tensor]
    enter: Callable[[Tensor], Tensor]
    covers: Callable[[Tensor], Tensor]
    log_copies: float


def _make_symmetrised_proposal(draws: Tensor, group: SymmetryGroup, n_components: int) -> _Proposal:
    """Fit a mixture and average its density over the group."""
    mixture = fit_gaussian_mixture(draws, n_components)
    table = enumerate_group(group, draws.shape[1])
    table = Enumeration(table.gather.to(draws.device), table.sign.to(draws.device), table.elements)

    def log_prob(x: Tensor) -> Tensor:
        blocks = x.split(n_rows_per_block(1 << 21, table.order * x.shape[1]))
        sums = [torch.logsumexp(mixture.log_prob(table.orbit(rows)), dim=-1) for rows in blocks]
        return torch.cat(sums) - log(table.order)

    def covers_all(x: Tensor) -> Tensor:
        return torch.ones(len(x), dtype=torch.bool, device=x.device)

    return _Proposal(mixture, log_prob, lambda x: x, covers_all, 0.0)


def _make_domain_proposal(draws: Tensor, group: SymmetryGroup, n_components: int) -> _Proposal:
    """Fit a mixture within the fundamental domain around the draws."""
    domain = fit_fundamental_domain(draws, group)
    mixture = fit_gaussian_mixture(domain.enter(draws)[0], n_components)
    return _Proposal(
        mixture,
        mixture.log_prob,
        lambda x: domain.enter(x)[0],
        domain.contains,
        float(group.log_order),
    )


def fit_fundamental_domain(draws: Tensor, group: SymmetryGroup) -> FundamentalDomain:
    """Fundamental domain of the group around aligned draws (n, D)."""
    cpu = draws.cpu()
    return FundamentalDomain(group, estimate_reference(cpu, orbit_mean_square(cpu, group)))


def can_bridge(group: SymmetryGroup) -> bool:
    """Whether `bridge_evidence` supports the group: exchangeable units, and not too many."""
    _, other_factors = split_units(group)
    return not other_factors and (can_enumerate(group) or has_exact_domain(group))


def _compare_with_proposal(
    integrand: Integrand,
    proposal: _Proposal,
    draws: Tensor,
    chains: Tensor,
    generator: torch.Generator,
) -> BridgeRatio:
    """Compare one half of the draws with the proposal fitted to the other half.

    Parameters
    ----------
    integrand : Integrand
        Density and region.
    proposal : _Proposal
        Proposal fitted to the other half.
    draws : Tensor of shape (n, D)
        Aligned draws of the density. The proposal is sampled four times as often.
    chains : Tensor of shape (n,), int64
        Chain of each draw.
    generator : torch.Generator
        Random stream of the proposal.

    Returns
    -------
    BridgeRatio
    """
    proposed = proposal.mixture.sample(4 * len(draws), generator=generator)
    log_l_proposal = proposed.new_full((len(proposed),), -inf, dtype=torch.float64)
    is_covered = proposal.covers(proposed)
    covered = proposed[is_covered]
    if len(covered):
        log_l_proposal[is_covered] = integrand(covered) - proposal.log_prob(covered)
    entered = proposal.enter(draws)
    log_l_draws = integrand(entered) - proposal.log_prob(entered)
    ratio = bridge_ratio(log_l_proposal, log_l_draws, _divide_chains(chains))
    return ratio._replace(log_ratio=ratio.log_ratio + proposal.log_copies)


def _select_random_half(chains: Tensor, generator: torch.Generator) -> Tensor:
    """Select a random half of the draws, bool (n,).

    Whole chains are selected if both sides have at least a third of the draws, pieces of chains
    otherwise.
    """
    for groups in (chains, _divide_chains(chains)):
        _, label, size = groups.unique(return_inverse=True, return_counts=True)
        order = torch.randperm(len(size), generator=generator, device=generator.device)
        order = order.to(size.device)
        is_selected = torch.zeros(len(size), dtype=torch.bool, device=size.device)
        is_selected[order] = size[order].cumsum(0) <= (len(chains) + 1) // 2
        half: Tensor = is_selected[label]
        if len(chains) <= 3 * int(half.sum()) <= 2 * len(chains):
            break
    return half


def _divide_chains(chains: Tensor) -> Tensor:
    """Label consecutive pieces of chains, at least 20 in total if there are enough draws.

    If there are many chains, each is one piece: their means are independent even if
    their draws are correlated.
    """
    _, label, size = chains.unique(return_inverse=True, return_counts=True)
    n_pieces = ceil(20 / len(size))
    order = label.argsort(stable=True)
    start = (size.cumsum(0) - size)[label[order]]
    rank = torch.empty_like(label)
    rank[order] = torch.arange(len(label), device=label.device) - start
    return label * n_pieces + rank * n_pieces // size[label]


def bridge_ratio(
    log_l_proposal: Tensor, log_l_draws: Tensor, blocks: Tensor | None = None
) -> BridgeRatio:
    """Optimal bridge estimate (Meng and Wong 1996) of a density's normalising constant.

    Parameters
    ----------
    log_l_proposal : Tensor of shape (n1,)
        Log of l = density / proposal at draws of the proposal; -inf where the density is zero.
    log_l_draws : Tensor of shape (n2,)
        Log of l at draws of the density.
    blocks : Tensor of shape (n2,), int64, optional
        Labels of mutually independent groups of draws. By default all draws are independent. The
        effective number of draws that the blocks indicate replaces n2 in the weights and in the
        error.

    Returns
    -------
    BridgeRatio
        nan if the density is zero at all draws of the proposal.

    Notes
    -----
    With n1 draws of the proposal and n2 of the density, the ratio r solves

        r = mean over proposals of l / (s1 r + s2 l)  /  mean over draws of 1 / (s1 r + s2 l),

    ``s1 = n1 / (n1 + n2) = 1 - s2``. The fixed-point iteration of Meng and Wong converges to the
    same solution, but slowly if proposal and density hardly overlap. The difference of the two
    sides is monotone in log r, so the root is bracketed instead.

    The error follows from the delta method: it adds the relative variances of the two means
    (Frühwirth-Schnatter 2004, with sums over blocks for the draws).
    """
    if not bool(log_l_proposal.isfinite().any()):
        return BridgeRatio(nan, nan, 0.0)
    if blocks is None:
        blocks = torch.arange(len(log_l_draws))
    n_effective = float(len(log_l_draws))
    for _ in range(2):  # the first solution gives the effective number of draws of the second
        total = log(len(log_l_proposal) + n_effective)
        log_s = log(len(log_l_proposal)) - total, log(n_effective) - total
        log_r = _solve_bridge_equation(log_l_proposal, log_l_draws, log_s)
        numerator = _exp_relative(_bridge_terms(log_l_proposal, log_r, log_s)[0])
        denominator = _exp_relative(_bridge_terms(log_l_draws, log_r, log_s)[1])
        from_proposals = float(numerator.var() / numerator.mean() ** 2) / len(numerator)
        from_draws = _block_variance(denominator, blocks) / float(denominator.mean() ** 2)
        independent = float(denominator.var() / denominator.mean() ** 2)
        if from_draws > 0.0:
            n_effective = min(max(independent / from_draws, 1.0), float(len(denominator)))
    return BridgeRatio(log_r, (from_proposals + from_draws) ** 0.5, n_effective)


def _exp_relative(log_terms: Tensor) -> Tensor:
    """Terms relative to the largest, so that none overflows; relative variances don't change."""
    return (log_terms - log_terms.max()).exp()


def _block_variance(values: Tensor, blocks: Tensor) -> float:
    """Variance of the mean of values (n,) that are correlated only within blocks."""
    _, label = blocks.unique(return_inverse=True)
    n_blocks = int(label.max()) + 1
    sums = values.new_zeros(n_blocks).index_add_(0, label.to(values.device), values - values.mean())
    return float(sums.square().sum()) / len(values) ** 2 * n_blocks / max(n_blocks - 1, 1)


def _bridge_terms(log_l: Tensor, log_r: float, log_s: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Logs of ``l / (s1 r + s2 l)`` and ``r / (s1 r + s2 l)``."""
    log_sum = torch.logaddexp(torch.full_like(log_l, log_s[0] + log_r), log_s[1] + log_l)
    return log_l - log_sum, log_r - log_sum


def _solve_bridge_equation(
    log_l_proposal: Tensor, log_l_draws: Tensor, log_s: tuple[float, float]
) -> float:
    """Solve the bridge equation for log r, the log ratio of the two normalising constants.

    Parameters
    ----------
    log_l_proposal : Tensor of shape (n_proposals,)
        Log density ratios l of the target to the proposal, at draws of the proposal.
    log_l_draws : Tensor of shape (n_draws,)
        The same at draws of the target.
    log_s : tuple of (float, float)
        Logs of the fractions of proposals and of effective draws.

    Returns
    -------
    float
        The r for which the means of ``l / (s1 r + s2 l)`` over proposals and of
        ``r / (s1 r + s2 l)`` over draws are equal.
    """

    def difference(log_r: float) -> float:
        """Log ratio of the two means; it falls with log r."""
        numerator = _bridge_terms(log_l_proposal, log_r, log_s)[0]
        denominator = _bridge_terms(log_l_draws, log_r, log_s)[1]
        log_mean_numerator = torch.logsumexp(numerator, 0) - log(len(numerator))
        return float(log_mean_numerator - (torch.logsumexp(denominator, 0) - log(len(denominator))))

    log_l = torch.cat([log_l_proposal, log_l_draws])
    finite = log_l[log_l.isfinite()]
    low = float(finite.min()) - 1.0
    high = float(finite.max()) + 1.0
    # If the density is zero at many proposals, r lies below every finite l.
    while difference(low) < 0.0:
        low -= 2.0 * (high - low)
    return find_root(difference, low, high)
