"""Modes of a posterior and their weights, from the draws that found them.

Chains end where their starts lead them, which doesn't weigh modes by posterior mass. Here their
draws are put on one representative of their orbits and divided into modes, each with a region of
space of its own, and the mass of each is estimated by bridge sampling.
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
    fit_gaussian_mixture,
    fundamental_domain_of_mode,
)
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.symmetry.fundamental_domain import MAX_ORDER, FundamentalDomain, has_exact_domain
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.relabelling import Labelling, estimate_reference, label_objective, relabel

LONG = 10  # draws from which a chain has a mean and a spread to compare


@dataclass(frozen=True, eq=False)
class Regions:
    """A division of all space into one region a mode, the same for every copy of a position.

    A position belongs to the Gaussian under which its copy in that Gaussian's fundamental domain
    is likeliest.
    """

    domains: tuple[FundamentalDomain, ...]
    gaussians: tuple[GaussianMixture, ...]

    @property
    def n_modes(self) -> int:
        """Number K of regions."""
        return len(self.domains)

    def assign(self, position: Tensor) -> Tensor:
        """Index of each position's region, (C, D) -> int64 (C,); invariant under the group.

        O(C K (D^2 + d^3)) for d hidden units.
        """
        places = position.detach().cpu().double()
        scores = [
            gaussian.log_prob(domain.enter(places)[0])
            for domain, gaussian in zip(self.domains, self.gaussians, strict=True)
        ]
        regions = torch.stack(scores, dim=-1).nan_to_num(nan=-torch.inf).argmax(dim=-1)
        return regions.to(position.device)


class DrawModes(NamedTuple):
    """Aligned draws by mode, the largest first."""

    labels: Tensor  # int64 (n,): the region of each draw
    regions: Regions
    counts: Tensor  # int64 (K,): draws in each


class ModeMasses(NamedTuple):
    """Shares of the modes and evidence of the whole."""

    weights: Tensor  # (K,), sum 1; 0 where the evidence isn't known
    log_evidence: float  # nats, of all modes whose evidence is known: a lower bound on the whole
    log_evidence_standard_error: float


def find_modes(
    draws: Tensor,  # (n, D): aligned
    values: Tensor,  # (n,): log density of each, nats
    chains: Tensor,  # (n,), int64: the chain of each
    group: SymmetryGroup,
) -> DrawModes:
    """Cluster aligned draws of chains; deterministic.

    Draws of one chain start together. Three rules join chains, transitively:

    1. Two chains (of 10 draws or more) are in one mode if their means differ by less than 3
       within-chain standard deviations in every coordinate, and their mean log densities by less
       than 5 nats or one standard deviation.
    2. A draw of a shorter chain is in the mode of its nearest 2 log n neighbours among all draws,
       where their log densities differ by no more than chance makes them.
    3. A Gaussian is fitted to each cluster, and every draw goes to the Gaussian under which it is
       likeliest. Clusters that exchange a tenth of their draws, or share a chain that spends a
       tenth of its draws in each, are one.

    ``labels`` are ``regions.assign(draws)``. Splitting one mode in two costs accuracy only: their
    evidences add up. Taking two for one costs more: a bridge with more components
    (`bridge_evidence`) then gives another evidence. O(C^2 D), and O(n D) a draw of a shorter chain.
    """
    draws = draws.detach().cpu().double()
    values = values.detach().cpu().double()
    chain = chains.cpu().unique(return_inverse=True)[1]
    long = torch.bincount(chain) >= LONG
    edges = [_alike(draws, values, chain, long)]
    if not bool(long.all()):
        edges.append(_neighbors(draws, values, chain, ~long[chain]))
    labels = _components(torch.cat(edges, dim=1), len(long))[chain]
    while True:
        regions = _fit_regions(draws, labels, group)
        assigned = regions.assign(draws)
        merged = _merge(labels, assigned, chain)
        if int(merged.max()) + 1 == regions.n_modes:
            break
        labels = merged[labels]
    counts = torch.bincount(assigned, minlength=regions.n_modes)
    order = counts.argsort(descending=True, stable=True)
    parts = ((regions.domains[k], regions.gaussians[k]) for k in order)
    in_order = Regions(*map(tuple, zip(*parts, strict=True)))
    return DrawModes(order.argsort()[assigned], in_order, counts[order])


def weigh_modes(
    # Of disjoint regions, with independent errors. Those that are nan get weight 0.
    estimates: list[BridgeEstimate],
) -> ModeMasses:
    """Weights ``softmax(log Z)``; total ``logsumexp(log Z)`` with its error to first order.

    All nan if no evidence is known.
    """
    log_z = torch.tensor([e.log_evidence for e in estimates], dtype=torch.float64)
    variance = torch.tensor([e.standard_error for e in estimates], dtype=torch.float64).square()
    known = log_z.isfinite()
    if not bool(known.any()):
        return ModeMasses(torch.full_like(log_z, torch.nan), torch.nan, torch.nan)
    weights = log_z.masked_fill(~known, -torch.inf).softmax(0)
    total = (weights.square() * variance.masked_fill(~known, 0.0)).sum()
    return ModeMasses(weights, float(torch.logsumexp(log_z[known], 0)), float(total.sqrt()))


def _components(edges: Tensor, n: int) -> Tensor:
    """Labels of the connected components of a graph with these edges (2, E)."""
    a, b = edges.numpy()
    graph = coo_matrix(([True] * len(a), (a, b)), shape=(n, n))
    return torch.from_numpy(connected_components(graph, directed=False)[1]).long()


def _alike(draws: Tensor, values: Tensor, chain: Tensor, long: Tensor) -> Tensor:
    """Edges (2, E) between long chains that rule 1 holds together."""
    named = torch.cat([draws, values.unsqueeze(-1)], dim=1)
    size = torch.bincount(chain).clamp_min(1).unsqueeze(-1).double()
    mean = named.new_zeros(len(size), named.shape[1]).index_add_(0, chain, named) / size
    square = (named - mean[chain]).square()
    variance = torch.zeros_like(mean).index_add_(0, chain, square) / (size - 1.0).clamp_min(1.0)
    edges = [torch.zeros(2, 0, dtype=torch.int64)]
    ids = long.nonzero().squeeze(-1)
    mean = mean[ids]
    variance = variance[ids]
    for i in range(len(ids) - 1):
        gap = (mean[i + 1 :] - mean[i]).abs()
        spread = (0.5 * (variance[i + 1 :] + variance[i])).sqrt()
        near = (gap[:, :-1] <= 3.0 * spread[:, :-1]).all(dim=-1)
        near &= gap[:, -1] <= spread[:, -1].clamp_min(5.0)
        others = ids[i + 1 :][near]
        edges.append(torch.stack([ids[i].expand_as(others), others]))
    return torch.cat(edges, dim=1)


def _neighbors(draws: Tensor, values: Tensor, chain: Tensor, asked: Tensor) -> Tensor:
    """Edges (2, E) between chains: from draws of short ones to the nearest draws, rule 2.

    With 2 log n neighbours a random graph of one mode is connected (Brito et al. 1997); no chance
    takes a Gaussian's log density 6 standard deviations away.
    """
    scale = draws.std(dim=0, correction=0)
    points = draws / torch.where(scale > 0, scale, 1.0)
    allowed = 6.0 * (0.5 * draws.shape[1]) ** 0.5
    k = min(ceil(2.0 * log(len(points))) + 1, len(points))  # itself is one of them
    edges = [torch.zeros(2, 0, dtype=torch.int64)]
    for rows in asked.nonzero().squeeze(-1).split(n_rows_per_block(1 << 22, len(points))):
        near = torch.cdist(points[rows], points).topk(k, largest=False).indices
        alike = (values[near] - values[rows].unsqueeze(-1)).abs() <= allowed
        asking = chain[rows].unsqueeze(-1).expand_as(near)
        edges.append(torch.stack([asking[alike], chain[near][alike]]))
    return torch.cat(edges, dim=1)


def _fit_regions(draws: Tensor, labels: Tensor, group: SymmetryGroup) -> Regions:
    """Fit a Gaussian a cluster; few draws borrow the spread that clusters have on average."""
    clusters = [draws[labels == k] for k in range(int(labels.max()) + 1)]
    spread = torch.stack([c.var(dim=0, correction=0) for c in clusters])
    size = torch.tensor([len(c) for c in clusters]).unsqueeze(-1)
    typical = (size * spread).sum(0) / len(draws) if len(clusters) > 1 else spread[0]
    domains = tuple(fundamental_domain_of_mode(c, group) for c in clusters)
    gaussians = tuple(_gaussian(c, typical) for c in clusters)
    return Regions(domains, gaussians)


def _gaussian(draws: Tensor, typical: Tensor) -> GaussianMixture:
    """A Gaussian around draws, widened to ``typical`` variances where they are few."""
    n, d = draws.shape
    if n >= 2 * d:
        return fit_gaussian_mixture(draws)
    mean = draws.mean(dim=0)
    variance = draws.var(dim=0, correction=0)
    floor = torch.finfo(draws.dtype).eps * (1.0 + mean.square())
    variance = torch.maximum((n * variance + 2 * typical) / (n + 2), floor)
    return GaussianMixture(mean.new_zeros(1), mean[None], torch.diag(variance.sqrt())[None])


def _merge(labels: Tensor, assigned: Tensor, chain: Tensor) -> Tensor:
    """Rule 3: the new label of each cluster; crossed by a tenth, a boundary is none."""
    n = int(labels.max()) + 1

    def table(rows: Tensor) -> Tensor:
        """Counts of pairs of a row and the cluster that a draw is assigned to."""
        n_rows = int(rows.max()) + 1
        return torch.bincount(rows * n + assigned, minlength=n_rows * n).view(n_rows, n).double()

    moved = table(labels)
    visits = table(chain)
    crossing = moved > 0.1 * moved.sum(dim=1, keepdim=True).clamp_min(1.0)
    lives = (visits > 0.1 * visits.sum(dim=1, keepdim=True)).double()
    edges = (crossing | ((lives.mT @ lives) > 0)).nonzero().mT
    return _components(edges, n)


# A mode so many nats lower, on average over its draws, than the best holds no mass worth bridging:
# its volume would have to be e^30 times larger.
NEGLIGIBLE_DEFICIT_NATS = 30.0

# Of the posterior: modes below it get no chain.
LEAST_WEIGHT = 1e-3


class DrawPool(NamedTuple):
    """Draws of chains, one representative of each orbit, float64 on the CPU."""

    draws: Tensor  # (n, D)
    values: Tensor  # (n,), log density, nats
    chains: Tensor  # int64 (n,): the chain of each


class ModeWeighting(NamedTuple):
    """Modes, and what each counts for."""

    pool: DrawPool
    modes: DrawModes
    estimates: list[BridgeEstimate]  # one a mode; not estimated where hopeless
    weights: ModeMasses


def pool_draws(
    draws: Tensor,  # (C, S, D)
    values: Tensor,  # (C, S), their log density, nats
    group: SymmetryGroup,
    *,
    generator: torch.Generator,
) -> DrawPool:
    """Align the draws of chains.

    A chain that hardly moved says where it is, not how often: its draws count once each.
    """
    n_chains, n_draws, _ = draws.shape
    new = torch.ones(draws.shape[:2], dtype=torch.bool, device=draws.device)
    new[:, 1:] = (draws[:, 1:] != draws[:, :-1]).any(dim=-1)
    counts = (new | (new.sum(dim=1, keepdim=True) >= LONG)).flatten()
    chains = torch.arange(n_chains).repeat_interleave(n_draws)[counts.cpu()]
    kept = draws.flatten(0, 1)[counts].cpu().double()
    aligned = align_draws(kept, group, generator=generator)
    return DrawPool(aligned, values.flatten()[counts].cpu().double(), chains)


def align_draws(draws: Tensor, group: SymmetryGroup, *, generator: torch.Generator) -> Tensor:
    """Move every draw (n, D) to a representative of its orbit, by Stephens' relabelling.

    Raw draws sit in all |G| copies of a mode, so their spread is the distance between copies. The
    labels are searched on some of the draws, from four starts, and given to all.
    """
    labelling = Labelling.from_draws(draws, group)
    if not labelling.layers:
        return draws
    some = labelling.theta[:: max(1, len(labelling.theta) // 256)]
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    stream = torch.Generator().manual_seed(int(seed))  # labels are found on the CPU
    sweeps = 20  # prior-like units never settle and needn't
    fresh = relabel(some, group, n_starts=4, max_sweeps=sweeps, generator=stream)
    reference = estimate_reference(fresh.theta, labelling.mean_square)
    runs = [labelling.descend(reference, sweeps)]
    if len(labelling.layers) > 1:
        runs.append(labelling.label_forward(reference).descend(reference, sweeps))
    return min(runs, key=lambda run: label_objective(run.theta, group)).theta


def weigh(
    log_density: LogDensity,  # in float64, on the CPU
    pool: DrawPool,
    group: SymmetryGroup,
    *,
    generator: torch.Generator,
) -> ModeWeighting:
    """Divide the pool into modes and estimate the evidence of each by `bridge_evidence`."""
    modes = find_modes(pool.draws, pool.values, pool.chains, group)
    estimates = [
        _evidence(Integrand(log_density, group), pool, modes, k, generator)
        if matters
        else NOT_ESTIMATED._replace(n_draws=int(modes.counts[k]))
        for k, matters in enumerate(contending(pool, modes).tolist())
    ]
    return ModeWeighting(pool, modes, estimates, weigh_modes(estimates))


def _evidence(
    integrand: Integrand, pool: DrawPool, modes: DrawModes, k: int, generator: torch.Generator
) -> BridgeEstimate:
    """Evidence of mode ``k``."""
    chosen = modes.labels == k
    draws = modes.regions.domains[k].enter(pool.draws[chosen])[0]
    if modes.regions.n_modes > 1:
        assign = modes.regions.assign
        integrand = replace(integrand, region=lambda position: assign(position) == k)
    (n, n_dims) = draws.shape
    group = integrand.group
    max_order = MAX_ORDER
    if has_exact_domain(group) and len(group.factors) == 1:
        # One layer has a fundamental domain, as accurate as a sum over the group: chosen beyond
        # about a second of multiplications. A draw meets five proposals.
        max_order = min(MAX_ORDER, int(2e9 / (5 * n * n_dims**2)))
    return bridge_evidence(
        integrand, draws, chains=pool.chains[chosen],
        # Three Gaussians where draws are many: few modes of a network are one.
        n_components=3 if n >= 30 * n_dims else 1, max_order=max_order, generator=generator,
    )  # fmt: skip


def largest_remainders(weights: Tensor, n_chains: int) -> Tensor:
    """Chains for every mode, int64 (K,): by largest remainders, at least one from 0.001 on."""
    weights = weights.nan_to_num(0.0)
    wanted = weights >= LEAST_WEIGHT
    if int(wanted.sum()) > n_chains:  # the heaviest only
        wanted &= weights >= weights.sort(descending=True).values[n_chains - 1]
    share = torch.where(wanted, weights, 0.0)
    share = share / share.sum() * n_chains
    counts = share.floor().clamp_min(1.0).where(wanted, torch.zeros(())).long()
    while int(counts.sum()) != n_chains:
        remainder = share - counts
        if int(counts.sum()) < n_chains:
            counts[remainder.argmax()] += 1
        else:
            counts[remainder.where(counts > 1, torch.inf).argmin()] -= 1
    return counts


def contending(pool: DrawPool, modes: DrawModes) -> Tensor:
    """Which modes may hold mass worth a bridge, bool (K,): those that none is far above."""
    height = mean_log_density_by_mode(pool, modes)
    return height >= height.max() - NEGLIGIBLE_DEFICIT_NATS


def mean_log_density_by_mode(pool: DrawPool, modes: DrawModes) -> Tensor:
    """Mean log density of each mode's draws, (K,) nats."""
    return torch.stack([pool.values[modes.labels == k].mean() for k in range(len(modes.counts))])
