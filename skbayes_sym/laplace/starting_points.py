r"""Starts of chains and ascents: modes found by Gauss-Newton and the evidence, and their widths.

The metric of chains that start at a mode is the inverse of its damped curvature,

.. math:: M = \sum_n J_n' \Lambda_n J_n + c\, \mathrm{diag}\,\alpha, \qquad c = 1000.

Undamped it collapses the step: directions that the rows leave to the prior are wide and curved.
Damped it moved functions 1.5 to 2.7 times as far at equal cost as a diagonal, on four tables at 20
units.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.laplace.evidence_problem import CategoricalEvidence, GaussianEvidence
from skbayes_sym.laplace.initialization import search_regression
from skbayes_sym.laplace.mode_finding import EvidenceSearch, Search, draw_initial_weights
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.numerics.preconditioners import DensePreconditioner
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.symmetry.group import SymmetryGroup


class StartingModes(NamedTuple):
    """R modes, where chains or an ascent may start, and their widths."""

    position: Tensor  # (R, D), float64
    metric: Tensor  # (R, D, D): ``L`` with ``L L'`` the inverse of the damped curvature
    # (R, D), standard deviations of the independent normals q of least KL[q || Laplace's]: one over
    # the root of the curvature's diagonal.
    spread: Tensor
    score: Tensor  # (R,): evidence and hyperprior of each, nats

    def select_distinct(self, group: SymmetryGroup) -> "tuple[StartingModes, list[int]]":
        """Modes that no element of the group makes one, the best first, and starts in each."""
        order = self.score.argsort(descending=True)
        kept = []
        visits = list[int]()
        while len(order):
            place = self.position[order[0]]
            distance = group.align(self.position[order], place)[0] - place
            alike = (distance.abs() < 0.1 * (1.0 + place.abs())).all(1)
            kept.append(order[0])
            visits.append(int(alike.sum()))
            order = order[~alike]
        return StartingModes(*(part[torch.stack(kept)] for part in self)), visits

    def chains(self, n: int, like: Tensor) -> tuple[Tensor, DensePreconditioner]:
        """Positions and metrics of ``n`` chains, the modes in turn, in the dtype of ``like``."""
        mode = torch.arange(n) % len(self.position)
        position, metric = (t[mode.to(t.device)].to(like) for t in (self.position, self.metric))
        return position, DensePreconditioner(metric)


def find_regression_modes(
    network: MLP, likelihood: Likelihood, data: Data, prior: GroupScalePrior, *, n: int, seed: int
) -> StartingModes:
    """Modes under normal noise, learned if it has parameters; O(n (N P^2 + P^3)) a step."""
    learns_noise = likelihood.n_params > 0
    noise = None if learns_noise else likelihood.noise_scale.double() ** -2

    def draw(n_starts: int) -> Tensor:
        drawn = draw_initial_weights(network, n_starts, generator=generator_from(seed))
        return drawn.to(data.x.device)

    problem = GaussianEvidence(network, data, prior, noise_precision=noise)
    search = search_regression(EvidenceSearch(100), problem, draw, n)
    modes = search.modes
    starts = _starts(search, prior)
    if not learns_noise:
        return starts
    log_noise = -0.5 * modes.noise_precision.log()
    # The curvature by the log noise at a mode: twice the number of rows.
    spread = (2.0 * data.weight.sum()).rsqrt().expand_as(log_noise)
    p = starts.metric.shape[1]
    q = spread.shape[1]
    metric = starts.metric.new_zeros(len(spread), p + q, p + q)
    metric[:, :p, :p], metric[:, p:, p:] = starts.metric, torch.diag_embed(spread)
    position = torch.cat([starts.position, log_noise], 1)
    return StartingModes(position, metric, torch.cat([starts.spread, spread], 1), starts.score)


def find_distinct_modes(
    search: Callable[[int, int], StartingModes],  # of so many starts, with a seed
    group: SymmetryGroup,
    *,
    n: int,  # of the first search
    n_extra: int,  # of all others
    seed: int,
) -> StartingModes:
    """Distinct modes of searches that go on until unseen basins attract 1 % of starts or less.

    That share is about the share of modes that one start alone arrived at (Good 1953). Such a mode
    may have all the mass: on energy with three units one start in 200 finds the best, 140 nats
    above those that chains from the prior find. Modes 30 nats below the best are left out.
    """
    starts = search(n, seed)
    for other in spawn_seeds(seed, n_extra // 64):
        if starts.select_distinct(group)[1].count(1) <= 0.01 * len(starts.score):
            break
        starts = StartingModes(*map(torch.cat, zip(starts, search(64, other), strict=True)))
    modes = starts.select_distinct(group)[0]
    near = modes.score > modes.score.max() - 30.0
    return StartingModes(*(part[near] for part in modes))


def find_classification_modes(
    network: MLP, data: Data, prior: GroupScalePrior, *, n: int, seed: int
) -> StartingModes:
    """Modes under the softmax, found one after the other; O(N P^2 + P^3) a step of each."""
    theta = draw_initial_weights(network, n, generator=generator_from(seed)).to(data.x.device)
    return _starts(
        EvidenceSearch(60).search(CategoricalEvidence(network, data, prior), theta), prior
    )


def _starts(search: Search, prior: GroupScalePrior) -> StartingModes:
    """Metrics and widths by the Cholesky factor of every mode's curvature with the prior's own."""
    if search.stop_reason == "interrupted":
        raise KeyboardInterrupt
    modes = search.modes
    precision = modes.factor @ modes.factor.mT
    spread = precision.diagonal(dim1=1, dim2=2).rsqrt()
    more = 999.0 * modes.hyper.exp()[:, prior.group]
    precision.diagonal(dim1=1, dim2=2).add_(more)
    factor = cholesky(
        precision, name="The curvature at a mode", remedy="Standardise X, or use another init."
    )
    eye = torch.eye(precision.shape[1]).to(precision).expand_as(precision)
    metric = torch.linalg.solve_triangular(factor, eye, upper=False).mT
    return StartingModes(modes.theta, metric, spread, modes.score)
