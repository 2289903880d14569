"""Modes of a posterior and their evidence, estimated from the draws of chains.

Each chain ends in a mode that depends on its starting point, so the fraction of chains in a mode
isn't its posterior mass. This module aligns the draws to one representative of their orbits,
clusters them into modes, assigns a region of parameter space to each mode, and estimates the mass
in each region by bridge sampling.
"""

from dataclasses import dataclass, replace
from math import ceil, log
from typing import NamedTuple

import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity
from skbayes_sym.mcmc.bridge import (
    NOT_ESTIMATED,
    BridgeEstimate,
    GaussianMixture,
    Integrand,
    bridge_evidence,
    fit_fundamental_domain,
    fit_gaussian_mixture,
)
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.progress import report_progress
from skbayes_sym.symmetry.fundamental_domain import MAX_ORDER, FundamentalDomain, has_exact_domain
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.relabelling import Labelling, estimate_reference, label_objective, relabel

# Number of draws from which a chain's mean and standard deviation are compared with others.
MIN_CHAIN_LENGTH = 10

# A mode whose mean log density is this much lower than the best holds negligible mass: its volume
# would have to be e^30 times larger.
NEGLIGIBLE_DEFICIT_NATS = 30.0

# Posterior weight below which a mode gets no chain.
MIN_WEIGHT = 1e-3


@dataclass(frozen=True, eq=False)
class ModeRegions:
    """Partition of parameter space into one region per mode, invariant under the group.

    A position belongs to the Gaussian with the highest density at the position's copy in the
    fundamental domain of that Gaussian.

    Parameters
    ----------
    domains : tuple of FundamentalDomain
        Fundamental domain around each mode.
    gaussians : tuple of GaussianMixture
        Gaussian fitted to each mode within its domain.
    """

    domains: tuple[FundamentalDomain, ...]
    gaussians: tuple[GaussianMixture, ...]

    @property
    def n_modes(self) -> int:
        """Number K of regions."""
        return len(self.domains)

    def assign(self, position: Tensor) -> Tensor:
        """Index of the region that each position belongs to.

        Parameters
        ----------
        position : Tensor of shape (n, D)
            Positions, aligned or not.

        Returns
        -------
        Tensor of shape (n,), int64
            Invariant under the group.

        Notes
        -----
        The cost is O(n K (D^2 + d^3)) for d hidden units.
        """
        x = position.detach().cpu().double()
        scores = [
            gaussian.log_prob(domain.enter(x)[0])
            for domain, gaussian in zip(self.domains, self.gaussians, strict=True)
        ]
        regions = torch.stack(scores, dim=-1).nan_to_num(nan=-torch.inf).argmax(dim=-1)
        return regions.to(position.device)


class ModeAssignment(NamedTuple):
    """Aligned draws clustered into modes, the mode with most draws first.

    Parameters
    ----------
    labels : Tensor of shape (n,), int64
        Mode of each draw.
    regions : ModeRegions
        Region of each mode.
    counts : Tensor of shape (K,), int64
        Number of draws in each mode.
    """

    labels: Tensor
    regions: ModeRegions
    counts: Tensor


class EvidenceSummary(NamedTuple):
    """Weights of the modes and their total evidence.

    Parameters
    ----------
    weights : Tensor of shape (K,)
        Posterior mass of each mode; they sum to 1. The weight is 0 if the evidence is unknown.
    log_evidence : float
        Log of the summed evidence of all modes in nats: a lower bound of the log evidence, because
        unknown modes are missing.
    log_evidence_standard_error : float
        Standard error of ``log_evidence`` in nats.
    """

    weights: Tensor
    log_evidence: float
    log_evidence_standard_error: float


class DrawPool(NamedTuple):
    """Draws of all chains on one representative of each orbit, in float64 on the CPU.

    Parameters
    ----------
    draws : Tensor of shape (n, D)
        Aligned positions.
    values : Tensor of shape (n,)
        Log density in nats.
    chains : Tensor of shape (n,), int64
        Chain of each draw.
    """

    draws: Tensor
    values: Tensor
    chains: Tensor


class ModeEvidence(NamedTuple):
    """Modes and their evidence.

    Parameters
    ----------
    pool : DrawPool
        Draws from which the evidence was estimated.
    modes : ModeAssignment
        Modes of these draws.
    estimates : list of BridgeEstimate
        Evidence of each mode; not estimated for modes of negligible mass.
    summary : EvidenceSummary
        Weights of the modes and their total evidence.
    """

    pool: DrawPool
    modes: ModeAssignment
    estimates: list[BridgeEstimate]
    summary: EvidenceSummary


def estimate_mode_evidence(
    log_density: LogDensity, pool: DrawPool, group: SymmetryGroup, *, generator: torch.Generator
) -> ModeEvidence:
    """Cluster draws into modes and estimate the evidence of each by `bridge_evidence`.

    Parameters
    ----------
    log_density : LogDensity
        Log density in float64, on the CPU.
    pool : DrawPool
        Aligned draws.
    group : SymmetryGroup
        Trivial, Units or a product of them.
    generator : torch.Generator
        Random stream of bridge sampling.

    Returns
    -------
    ModeEvidence
    """
    modes = find_modes(pool.draws, pool.values, pool.chains, group)
    integrand = Integrand(log_density, group)
    estimates = []
    for k, is_relevant in enumerate(select_relevant_modes(pool, modes).tolist()):
        report_progress(k, modes.regions.n_modes)
        if is_relevant:
            estimates.append(_bridge_mode(integrand, pool, modes, k, generator))
        else:
            estimates.append(NOT_ESTIMATED._replace(n_draws=int(modes.counts[k])))
    return ModeEvidence(pool, modes, estimates, combine_evidence(estimates))


def pool_draws(
    draws: Tensor, values: Tensor, group: SymmetryGroup, *, generator: torch.Generator
) -> DrawPool:
    """Align the draws of chains and pool them.

    Parameters
    ----------
    draws : Tensor of shape (C, S, D)
        Positions.
    values : Tensor of shape (C, S)
        Log density of each draw in nats.
    group : SymmetryGroup
        Symmetry of the density.
    generator : torch.Generator
        Random stream of the relabelling.

    Returns
    -------
    DrawPool
        Repeated draws of chains with fewer than 10 different positions are included only once:
        such a chain shows where it is but not how often.
    """
    n_chains, n_draws, _ = draws.shape
    is_new = torch.ones(draws.shape[:2], dtype=torch.bool, device=draws.device)
    is_new[:, 1:] = (draws[:, 1:] != draws[:, :-1]).any(dim=-1)
    is_moving = is_new.sum(dim=1, keepdim=True) >= MIN_CHAIN_LENGTH
    is_included = (is_new | is_moving).flatten()
    chains = torch.arange(n_chains).repeat_interleave(n_draws)[is_included.cpu()]
    included = draws.flatten(0, 1)[is_included].cpu().double()
    aligned = align_draws(included, group, generator=generator)
    return DrawPool(aligned, values.flatten()[is_included].cpu().double(), chains)


def align_draws(draws: Tensor, group: SymmetryGroup, *, generator: torch.Generator) -> Tensor:
    """Move every draw to a representative of its orbit by Stephens' relabelling.

    The spread of unaligned draws is the distance between the |G| copies of a mode. The labels are
    optimised on a subsample from four random starts, and then assigned to all draws.

    Parameters
    ----------
    draws : Tensor of shape (n, D)
        Positions.
    group : SymmetryGroup
        Symmetry of the density.
    generator : torch.Generator
        Random stream of the relabelling.

    Returns
    -------
    Tensor of shape (n, D)
    """
    labelling = Labelling.from_draws(draws, group)
    if not labelling.layers:
        return draws
    subsample = labelling.theta[:: max(1, len(labelling.theta) // 256)]
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    stream = torch.Generator().manual_seed(int(seed))  # labels are optimised on the CPU
    max_sweeps = 20  # units that follow their prior never converge and needn't
    relabelled = relabel(subsample, group, n_starts=4, max_sweeps=max_sweeps, generator=stream)
    reference = estimate_reference(relabelled.theta, labelling.mean_square)
    candidates = [labelling.descend(reference, max_sweeps)]
    if len(labelling.layers) > 1:
        forward = labelling.label_forward(reference)
        candidates.append(forward.descend(reference, max_sweeps))
    return min(candidates, key=lambda candidate: label_objective(candidate.theta, group)).theta


def find_modes(
    draws: Tensor, values: Tensor, chains: Tensor, group: SymmetryGroup
) -> ModeAssignment:
    """Cluster aligned draws of chains into modes; deterministic.

    Parameters
    ----------
    draws : Tensor of shape (n, D)
        Aligned positions.
    values : Tensor of shape (n,)
        Log density of each draw in nats.
    chains : Tensor of shape (n,), int64
        Chain of each draw.
    group : SymmetryGroup
        Symmetry of the density.

    Returns
    -------
    ModeAssignment
        Its labels are ``regions.assign(draws)``.

    Notes
    -----
    Draws of one chain begin in the same cluster. Three rules join chains, transitively:

    1. Two chains of at least 10 draws are in one mode if their means differ by less than 3
       within-chain standard deviations in every coordinate, and their mean log densities by less
       than 5 nats or one standard deviation.
    2. A draw of a shorter chain is in the mode of its nearest 2 log n neighbours among all draws
       whose log densities differ by no more than chance allows.
    3. A Gaussian is fitted to each cluster, and every draw is assigned to the Gaussian with the
       highest density. Clusters that exchange a tenth of their draws, or share a chain that spends
       a tenth of its draws in each, are joined.

    Splitting one mode in two only costs accuracy, because the evidences of the parts add up.
    Joining two modes costs more: bridge sampling with more components (`bridge_evidence`) then
    gives a different evidence. The cost is O(C^2 D), plus O(n D) per draw of a shorter chain.
    """
    draws = draws.detach().cpu().double()
    values = values.detach().cpu().double()
    chain = chains.cpu().unique(return_inverse=True)[1]

    # Rules 1 and 2.
    is_long = torch.bincount(chain) >= MIN_CHAIN_LENGTH
    edges = [_connect_similar_chains(draws, values, chain, is_long)]
    if not bool(is_long.all()):
        edges.append(_connect_neighbors(draws, values, chain, ~is_long[chain]))
    labels = _label_components(torch.cat(edges, dim=1), len(is_long))[chain]

    # Rule 3, until no clusters are joined.
    while True:
        regions = _fit_regions(draws, labels, group)
        assigned = regions.assign(draws)
        joined = _join_clusters(labels, assigned, chain)
        if int(joined.max()) + 1 == regions.n_modes:
            break
        labels = joined[labels]

    # Order the modes by their number of draws.
    counts = torch.bincount(assigned, minlength=regions.n_modes)
    order = counts.argsort(descending=True, stable=True)
    domains = tuple(regions.domains[k] for k in order)
    gaussians = tuple(regions.gaussians[k] for k in order)
    rank = order.argsort()
    return ModeAssignment(rank[assigned], ModeRegions(domains, gaussians), counts[order])


def _label_components(edges: Tensor, n_nodes: int) -> Tensor:
    """Label the connected components of the graph with these edges, (2, E) -> (n_nodes,)."""
    heads, tails = edges.numpy()
    graph = coo_matrix(([True] * len(heads), (heads, tails)), shape=(n_nodes, n_nodes))
    return torch.from_numpy(connected_components(graph, directed=False)[1]).long()


def _connect_similar_chains(
    draws: Tensor, values: Tensor, chain: Tensor, is_long: Tensor
) -> Tensor:
    """Connect long chains whose means and log densities agree (rule 1 of `find_modes`).

    Parameters
    ----------
    draws : Tensor of shape (n, D)
        Aligned positions.
    values : Tensor of shape (n,)
        Log density of each draw in nats.
    chain : Tensor of shape (n,), int64
        Chain of each draw.
    is_long : Tensor of shape (C,), bool
        Whether each chain has enough draws.

    Returns
    -------
    Tensor of shape (2, E), int64
        Pairs of chains.
    """
    # Mean and variance of each chain, with the log density as the last coordinate.
    features = torch.cat([draws, values.unsqueeze(-1)], dim=1)
    size = torch.bincount(chain).clamp_min(1).unsqueeze(-1).double()
    mean = features.new_zeros(len(size), features.shape[1]).index_add_(0, chain, features) / size
    square = (features - mean[chain]).square()
    variance = torch.zeros_like(mean).index_add_(0, chain, square) / (size - 1.0).clamp_min(1.0)

    index = is_long.nonzero().squeeze(-1)
    mean = mean[index]
    variance = variance[index]
    edges = [torch.zeros(2, 0, dtype=torch.int64)]
    for i in range(len(index) - 1):
        difference = (mean[i + 1 :] - mean[i]).abs()
        std = (0.5 * (variance[i + 1 :] + variance[i])).sqrt()
        is_similar = (difference[:, :-1] <= 3.0 * std[:, :-1]).all(dim=-1)
        is_similar &= difference[:, -1] <= std[:, -1].clamp_min(5.0)
        neighbors = index[i + 1 :][is_similar]
        edges.append(torch.stack([index[i].expand_as(neighbors), neighbors]))
    return torch.cat(edges, dim=1)


def _connect_neighbors(draws: Tensor, values: Tensor, chain: Tensor, is_short: Tensor) -> Tensor:
    """Connect short chains to the chains of the nearest draws (rule 2 of `find_modes`).

    With 2 log n neighbours a random graph of one mode is connected (Brito et al. 1997). The log
    density of a Gaussian doesn't deviate by 6 standard deviations by chance.

    Parameters
    ----------
    draws : Tensor of shape (n, D)
        Aligned positions.
    values : Tensor of shape (n,)
        Log density of each draw in nats.
    chain : Tensor of shape (n,), int64
        Chain of each draw.
    is_short : Tensor of shape (n,), bool
        Whether the chain of each draw is short.

    Returns
    -------
    Tensor of shape (2, E), int64
        Pairs of chains.
    """
    scale = draws.std(dim=0, correction=0)
    points = draws / torch.where(scale > 0, scale, 1.0)
    max_difference = 6.0 * (0.5 * draws.shape[1]) ** 0.5
    n_neighbors = min(ceil(2.0 * log(len(points))) + 1, len(points))  # includes the draw itself
    edges = [torch.zeros(2, 0, dtype=torch.int64)]
    for rows in is_short.nonzero().squeeze(-1).split(n_rows_per_block(1 << 22, len(points))):
        distance = torch.cdist(points[rows], points)
        neighbors = distance.topk(n_neighbors, largest=False).indices
        difference = values[neighbors] - values[rows].unsqueeze(-1)
        is_similar = difference.abs() <= max_difference
        short_chain = chain[rows].unsqueeze(-1).expand_as(neighbors)
        edges.append(torch.stack([short_chain[is_similar], chain[neighbors][is_similar]]))
    return torch.cat(edges, dim=1)


def _fit_regions(draws: Tensor, labels: Tensor, group: SymmetryGroup) -> ModeRegions:
    """Fit a Gaussian to each cluster; small clusters borrow the average variance of all."""
    clusters = [draws[labels == k] for k in range(int(labels.max()) + 1)]
    variances = torch.stack([cluster.var(dim=0, correction=0) for cluster in clusters])
    sizes = torch.tensor([len(cluster) for cluster in clusters]).unsqueeze(-1)
    mean_variance = variances[0]
    if len(clusters) > 1:
        mean_variance = (sizes * variances).sum(0) / len(draws)
    domains = tuple(fit_fundamental_domain(cluster, group) for cluster in clusters)
    gaussians = tuple(_fit_gaussian(cluster, mean_variance) for cluster in clusters)
    return ModeRegions(domains, gaussians)


def _fit_gaussian(draws: Tensor, mean_variance: Tensor) -> GaussianMixture:
    """Fit a Gaussian to draws, diagonal and shrunk towards ``mean_variance`` if they are few."""
    n_draws, n_dims = draws.shape
    if n_draws >= 2 * n_dims:
        return fit_gaussian_mixture(draws)
    mean = draws.mean(dim=0)
    variance = draws.var(dim=0, correction=0)
    floor = torch.finfo(draws.dtype).eps * (1.0 + mean.square())
    variance = torch.maximum((n_draws * variance + 2 * mean_variance) / (n_draws + 2), floor)
    return GaussianMixture(mean.new_zeros(1), mean[None], torch.diag(variance.sqrt())[None])


def _join_clusters(labels: Tensor, assigned: Tensor, chain: Tensor) -> Tensor:
    """Join clusters that exchange draws or share a chain (rule 3 of `find_modes`).

    Parameters
    ----------
    labels : Tensor of shape (n,), int64
        Cluster of each draw.
    assigned : Tensor of shape (n,), int64
        Region that each draw is assigned to.
    chain : Tensor of shape (n,), int64
        Chain of each draw.

    Returns
    -------
    Tensor of shape (K,), int64
        New label of each cluster.
    """
    n_clusters = int(labels.max()) + 1

    def count_pairs(row: Tensor) -> Tensor:
        """Contingency table of ``row`` and the assigned regions."""
        n_rows = int(row.max()) + 1
        pairs = torch.bincount(row * n_clusters + assigned, minlength=n_rows * n_clusters)
        return pairs.view(n_rows, n_clusters).double()

    moved = count_pairs(labels)
    exchanges_draws = moved > 0.1 * moved.sum(dim=1, keepdim=True).clamp_min(1.0)
    visits = count_pairs(chain)
    is_visited = (visits > 0.1 * visits.sum(dim=1, keepdim=True)).double()
    shares_chain = (is_visited.mT @ is_visited) > 0
    edges = (exchanges_draws | shares_chain).nonzero().mT
    return _label_components(edges, n_clusters)


def _bridge_mode(
    integrand: Integrand, pool: DrawPool, modes: ModeAssignment, k: int, generator: torch.Generator
) -> BridgeEstimate:
    """Estimate the evidence of one mode by bridge sampling.

    Parameters
    ----------
    integrand : Integrand
        Density over the whole space.
    pool : DrawPool
        Aligned draws.
    modes : ModeAssignment
        Modes of the draws.
    k : int
        Index of the mode.
    generator : torch.Generator
        Random stream of bridge sampling.

    Returns
    -------
    BridgeEstimate
    """
    is_in_mode = modes.labels == k
    draws = modes.regions.domains[k].enter(pool.draws[is_in_mode])[0]
    if modes.regions.n_modes > 1:
        assign = modes.regions.assign
        integrand = replace(integrand, region=lambda position: assign(position) == k)
    n_draws, n_dims = draws.shape

    # With one layer the fundamental domain is exact and as accurate as a sum over the group. It is
    # used if the sum would take more than about a second. A draw meets five proposals.
    group = integrand.group
    max_order = MAX_ORDER
    if has_exact_domain(group) and len(group.factors) == 1:
        max_order = min(MAX_ORDER, int(2e9 / (5 * n_draws * n_dims**2)))
    return bridge_evidence(
        integrand,
        draws,
        chains=pool.chains[is_in_mode],
        # Few modes of a network are close to one Gaussian, so three are fitted if there are enough
        # draws.
        n_components=3 if n_draws >= 30 * n_dims else 1,
        max_order=max_order,
        generator=generator,
    )


def combine_evidence(estimates: list[BridgeEstimate]) -> EvidenceSummary:
    """Combine the evidences of modes into weights and the total evidence.

    Parameters
    ----------
    estimates : list of BridgeEstimate
        Evidences of disjoint regions with independent errors. Unknown ones are nan and have weight
        0.

    Returns
    -------
    EvidenceSummary
        nan if no evidence is known.

    Notes
    -----
    The weights are ``softmax(log Z)`` and the total is ``logsumexp(log Z)``, with its standard
    error to first order.
    """
    log_z = torch.tensor([e.log_evidence for e in estimates], dtype=torch.float64)
    variance = torch.tensor([e.standard_error for e in estimates], dtype=torch.float64).square()
    is_known = log_z.isfinite()
    if not bool(is_known.any()):
        return EvidenceSummary(torch.full_like(log_z, torch.nan), torch.nan, torch.nan)
    weights = log_z.masked_fill(~is_known, -torch.inf).softmax(0)
    total_variance = (weights.square() * variance.masked_fill(~is_known, 0.0)).sum()
    log_evidence = torch.logsumexp(log_z[is_known], 0)
    return EvidenceSummary(weights, float(log_evidence), float(total_variance.sqrt()))


def apportion_chains(weights: Tensor, n_chains: int) -> Tensor:
    """Apportion chains to modes by largest remainders, with at least one from weight 0.001 on.

    Parameters
    ----------
    weights : Tensor of shape (K,)
        Weights of the modes; nan counts as 0.
    n_chains : int
        Number of chains. If it is smaller than the number of modes, the heaviest modes get one.

    Returns
    -------
    Tensor of shape (K,), int64
        Sums to ``n_chains``.
    """
    weights = weights.nan_to_num(0.0)
    is_eligible = weights >= MIN_WEIGHT
    if int(is_eligible.sum()) > n_chains:
        is_eligible &= weights >= weights.sort(descending=True).values[n_chains - 1]
    quota = torch.where(is_eligible, weights, 0.0)
    quota = quota / quota.sum() * n_chains
    counts = quota.floor().clamp_min(1.0).where(is_eligible, torch.zeros(())).long()
    while int(counts.sum()) != n_chains:
        remainder = quota - counts
        if int(counts.sum()) < n_chains:
            counts[remainder.argmax()] += 1
        else:
            counts[remainder.where(counts > 1, torch.inf).argmin()] -= 1
    return counts


def select_relevant_modes(pool: DrawPool, modes: ModeAssignment) -> Tensor:
    """Modes whose mean log density is high enough for a relevant mass, bool (K,)."""
    mean = mean_log_density_by_mode(pool, modes)
    return mean >= mean.max() - NEGLIGIBLE_DEFICIT_NATS


def mean_log_density_by_mode(pool: DrawPool, modes: ModeAssignment) -> Tensor:
    """Mean log density of each mode's draws in nats, (K,)."""
    return torch.stack([pool.values[modes.labels == k].mean() for k in range(len(modes.counts))])
