"""Restarts begun believing their targets or doubting them, of all rows or without a fold.

Weights that follow noise in their first steps aren't given up later, and predict worse than a
linear model. Begun with much noise, or with labels that hardly count, a network may never find a
bend that is there. Which of the two happens shows in the evidence, by more than modes begun alike
differ.

Numbers are searched in a batch: half of the restarts begin in each way, and a half whose best
evidence is a nat below the other's median begins anew in the other's way. Labels are searched from
one start after another: in both ways, and the mode of the higher evidence is kept; on separated
classes both ways end in the same modes, and one is enough.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import joblib
import torch
from torch import Tensor

from skbayes_sym.laplace.evidence_problem import CategoricalEvidence, GaussianEvidence
from skbayes_sym.laplace.mode_finding import (
    EvidenceSearch,
    Modes,
    OnSearch,
    Search,
    joined,
    mapped,
)
from skbayes_sym.laplace.posterior import LinearisedModes
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.runtime import run_parallel

# Nats per row that a mode leaves unexplained, below which classes count as separated.
SEPARATED = 0.05


def needs_high_noise_start(problem: GaussianEvidence) -> bool:
    """Whether the beginning matters: the noise is learned, and there are bends to find."""
    return problem.noise_precision is None and problem.network.n_layers > 1


def search_regression(
    how: EvidenceSearch, problem: GaussianEvidence, draw: Callable[[int], Tensor], n: int,
    on_step: OnSearch | None = None, begun: Modes | None = None,
) -> Search:  # fmt: skip
    """``n`` modes or fewer from points that ``draw(n)`` (n, P) gives, begun in both ways.

    Those of too low an evidence use n more points: up to one and a half times the cost of ``n``
    modes. Told to end, it gives the first ``n`` as they are. ``begun``: modes of parts of the rows,
    begun in both ways, to go on from instead.
    """
    if not needs_high_noise_start(problem):
        return how.search(problem, draw(n), on_step=on_step)
    # a single mode is the better of two
    theta = draw(2 * n)
    n_first = max(n, 2)
    doubted = alternating(n_first, theta)
    if begun is not None and len(begun.theta) >= n_first:
        first = how.resumed(problem, mapped(lambda t: t[:n_first], begun), on_step)
    else:
        first = how.search(problem, theta[:n_first], doubted, on_step)
    as_found = first.of(torch.arange(min(n, len(first.stopped)), device=theta.device))
    if first.has_ended:
        return as_found
    kept = _kept(first.modes.score, doubted, n)
    missing = n - len(kept)
    if not missing:
        return first.of(kept)
    n_done = int(first.modes.n_iter.max())
    again = on_step and (lambda step, _: on_step(n_done + step, lambda: as_found))
    better = doubted[kept[:1]].expand(missing)
    second = how.search(problem, theta[n : n + missing], better, again)
    if second.has_ended:
        return as_found.ended_by(second.stop_reason)
    return joined([first.of(kept), second])


def alternating(n: int, like: Tensor) -> Tensor:
    """Every second of ``n`` restarts, bool (n,)."""
    return torch.arange(n, device=like.device) % 2 == 1


def noise_variance_fraction(modes: Modes, y: Tensor) -> float:
    """Share of the variance of targets (N, T) that the mode of the highest evidence calls noise."""
    best = modes.score.argmax()
    spread = y.var(0, correction=0)
    variance = modes.noise_precision[best].reciprocal().to(y)
    return float((variance / torch.where(spread > 0.0, spread, 1.0)).mean())


def _kept(score: Tensor, doubted: Tensor, n: int) -> Tensor:
    """Indices of the restarts, at most ``n``, that needn't begin anew."""
    if n == 1:
        return score.argmax().unsqueeze(0)
    one = score[doubted]
    other = score[~doubted]
    # By less than a nat none is better, where all restarts find one mode.
    if one.max() < other.median() - 1.0:
        return (~doubted).nonzero().flatten()
    if other.max() < one.median() - 1.0:
        return doubted.nonzero().flatten()
    return torch.arange(len(doubted), device=doubted.device)


# The mode that is found from a starting point (P,), begun with labels doubted or not.
OneSearch = Callable[[CategoricalEvidence, Tensor, bool], Search]
OnFound = Callable[[CategoricalEvidence, Search], bool]  # told a mode; True stops


def search_one(
    how: EvidenceSearch, problem: CategoricalEvidence, start: Tensor, doubted: bool,
    on_step: OnSearch | None = None,
) -> Search:  # fmt: skip
    """Search for one mode."""
    is_doubted = torch.tensor([doubted], device=start.device)
    return how.search(problem, start.unsqueeze(0), is_doubted, on_step)


def search_classification(
    search: OneSearch, problem: CategoricalEvidence, starts: Tensor,
    alternative: GroupScalePrior | None = None, *, tries: bool = True,
    n_jobs: int | None = None, on_found: OnFound = lambda *_: False,
) -> tuple[CategoricalEvidence, Search]:  # fmt: skip
    """The problem, under the prior that was taken, and a mode from every start (R, P).

    Where labels are noisy, if noise is looked for at all, the alternative prior is tried from the
    first start, and all modes are of the prior with the higher evidence: 2 (R + 1) searches in
    place of R. One that was told to end is the last. Of ``n_jobs`` processes two begin with a
    start each.
    """

    def searched(*ways: tuple[CategoricalEvidence, Tensor, bool]) -> list[Search]:
        searches: list[Search] = []
        jobs = [partial(search, *way) for way in ways]
        with closing(run_parallel(jobs, n_jobs)) as results:
            for (tried, _, _), one in zip(ways, results, strict=True):
                stops = on_found(tried, one) and not one.has_ended
                searches.append(one.ended_by("callback") if stops else one)
                if stops or one.has_ended:
                    break
        return searches

    at_once = min(2, joblib.effective_n_jobs(n_jobs))
    start = starts[0]
    of_all = problem
    first, *early = searched(*((problem, one, False) for one in starts[:at_once]))
    is_noisy = tries and not first.has_ended and unexplained(problem, first) >= SEPARATED
    if is_noisy:
        other = problem if alternative is None else replace(problem, prior=alternative)
        second = [] if alternative is None else [(other, start, False), (other, start, True)]
        ways = searched((problem, start, True), *second)
        first = _best([first, *ways[:1]])
        second_best = _best(ways[1:]) if ways[1:] else None
        if second_best is not None and second_best.modes.score[0] > first.modes.score[0]:
            problem = other
            first = second_best
        first = first.ended_by(ways[-1].stop_reason) if ways[-1].has_ended else first
    beginnings = (False, True) if is_noisy else (False,)
    rest = [(problem, start, doubted) for start in starts[1:] for doubted in beginnings]
    early = early if problem is of_all else []
    n = len(beginnings)
    each = [] if first.has_ended else [*early, *searched(*rest[len(early) :])]
    return problem, joined([first, *(_best(each[i : i + n]) for i in range(0, len(each), n))])


def unexplained(problem: CategoricalEvidence, search: Search) -> float:
    """Misfit of the first mode, nats per row."""
    return float(problem.misfit(search.modes.theta[:1])[0] / problem.data.weight.sum())


def _best(ways: Sequence[Search]) -> Search:
    """The mode of the highest evidence, of equal ones the first; ended if the last was told to."""
    best = max(ways, key=lambda way: float(way.modes.score[0]))
    return best.ended_by(ways[-1].stop_reason) if ways[-1].has_ended else best


MODES_A_FOLD = 2  # one begun believing the targets, one doubting them


class HeldOutFold(NamedTuple):
    """Every row by the modes that haven't seen it, as an equal mixture."""

    log_density: Tensor  # (N,), nats
    mean: Tensor  # (N, T)


def folds(n_rows: int, n_folds: int, *, generator: torch.Generator) -> Tensor:
    """Which of ``n_folds`` parts of nearly equal size every row belongs to, int64 (n_rows,)."""
    order = torch.randperm(n_rows, generator=generator, device=generator.device)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(n_rows, device=order.device) % n_folds
    return fold


def cross_validated(
    how: EvidenceSearch, problem: GaussianEvidence, theta: Tensor, fold: Tensor,
    on_step: OnSearch | None = None,
) -> tuple[Search, HeldOutFold | None]:  # fmt: skip
    """Modes that leave out a fold each, and what these say of its rows, unless it was stopped.

    Two of the starting points (2 K, P) leave out each of the K folds that ``fold`` (N,) numbers.
    All modes are one batch, in which the rows of a mode's own fold have no weight: O(K) searches of
    two modes each.
    """
    held = torch.arange(len(theta), device=theta.device) // MODES_A_FOLD
    problem = replace(problem, share=(fold != held.unsqueeze(1)).to(theta))
    search = how.search(problem, theta, alternating(len(theta), theta), on_step)
    if search.has_ended:
        return search, None
    modes = search.modes
    (x, y, _) = problem.data
    log_density = y.new_empty(len(y))
    mean = torch.empty_like(y)
    for k in range(len(theta) // MODES_A_FOLD):
        rows = (fold == k).nonzero().flatten()
        of_fold = held == k
        theta = modes.theta[of_fold]
        factor = modes.factor[of_fold]
        equal = theta.new_full((len(theta),), 1.0 / len(theta))
        networks = LinearisedModes(problem.network, theta, factor, equal)
        outputs, covariance = networks.outputs(x[rows])
        noise = modes.noise_precision[of_fold].reciprocal().unsqueeze(1)
        distribution = NormalMixture(outputs, covariance.diagonal(dim1=-2, dim2=-1), noise)
        log_density[rows] = distribution.log_prob(y[rows])
        mean[rows] = outputs.mean(0)
    return search, HeldOutFold(log_density, mean)


def is_better(log_density: Tensor, other: Tensor, weight: Tensor) -> bool:
    """Whether log densities (N,) of rows held out are higher by over half a standard error.

    The simpler model stands unless that is so (Breiman, Friedman, Olshen & Stone 1984, section
    3.4.3, with one standard error).
    """
    total = weight.sum()
    gain = log_density - other
    mean = weight @ gain / total
    error = (weight @ (gain - mean).square()).sqrt() / total
    return bool(mean > 0.5 * error)


def unexplained_variance_fraction(mean: Tensor, y: Tensor, weight: Tensor) -> float:
    """Share of the targets' variance that predictions (N, T) of rows held out leave."""
    total = weight.sum()
    spread = weight @ (y - weight @ y / total).square()
    unexplained = weight @ (y - mean).square()
    return float((unexplained / torch.where(spread > 0.0, spread, 1.0)).mean())
