r"""The search for modes with scales and noise set by the evidence, of numbers and labels alike.

After every Levenberg-Marquardt step MacKay's update moves the hyperparameters. The last iterate is
kept, not the one of the highest evidence: away from a mode Laplace's approximation says too much.
But where scales run away while the evidence falls (`EvidenceProblem.keeps_best`) the best is.

A restart on its way to a symmetric copy of another's mode ends there, and is counted with it. Two
are as far apart as the posterior's width says: by their functions at the rows in units of the noise
(of labels by twice Hellinger's distance), their weights, brought onto one another by the network's
symmetry, in units of the prior, and their scales and noises,

.. math:: \sum_n w_n \beta (f_n - f'_n)^2 + \sum_k \alpha_k (\theta_k - (g\theta')_k)^2
          + \tfrac12 \sum_g n_g (\Delta\log\alpha_g)^2 + \tfrac12 N (\Delta\log\beta)^2 .

Distinct modes of networks of two to ten units lie at 2 and beyond, copies that have converged at 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.evidence_problem import (
    Begun,
    EvidenceProblem,
    SearchHyper,
    SearchRows,
    evaluated,
)
from skbayes_sym.inference.laplace.search.gauss_newton import INITIAL_DAMPING, step
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import LayerScales
from skbayes_sym.numerics.optimise import Loop, Stopped, gravest

_NEAR = 0.1  # squared distance up to which two restarts are on their way to copies of one mode


def first_alike(problem: EvidenceProblem, theta: Tensor, hyper: SearchHyper) -> list[int]:
    """For each of R restarts the first of those that it is a copy of, which may be itself.

    Functions are compared first, weights only where those agree; O(R^2 N) and an assignment for
    each pair and hidden layer. Restarts that learn from different rows are never alike.
    """
    alike = list(range(len(theta)))
    if problem.share is not None or len(theta) < 2:
        return alike
    sizes = problem.prior.sizes.to(theta)
    weight = problem.total_weight.expand(hyper.noise_precision.shape[1])
    logs = torch.cat([hyper.log_precision, hyper.noise_precision.log()], 1)
    logs = logs * (0.5 * torch.cat([sizes, weight])).sqrt()
    apart = torch.cdist(logs, logs, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart = (apart + problem.function_distances(theta, hyper)).cpu()
    if not bool((apart < _NEAR).triu(1).any()):
        return alike
    group, theta = problem.network.symmetry(), theta.cpu()
    units = (0.5 * hyper.log_precision).exp()[:, problem.prior.group].cpu()
    for r in range(1, len(theta)):
        for s in range(r):
            if alike[s] != s or apart[s, r] >= _NEAR:
                continue
            goal = theta[s] * units[s]
            moved, _ = group.align(theta[r] * units[s], goal)
            if apart[s, r] + (moved - goal).square().sum() < _NEAR:
                alike[r] = s
                break
    return alike


HYPER_START = 8  # iterations before scales and noise move: the weights first
_LOOKS = 3  # in a row that show a restart near another that moves, too
_SELDOM = 3  # steps a hyperparameters' update where weights are many, or a look for copies
# Nats per unit of weight that the evidence rises by at every one of so many steps while a network
# still finds out that there is hardly any noise. Others have made up their minds: from there on
# scales drift and predictions get worse as often as better.
_STEEP, _OVER = 0.01, 10

Batch = TypeVar("Batch")  # a NamedTuple of tensors (R, ...), nested or not


def mapped(function: Callable[..., Tensor], batch: Batch, *others: Batch) -> Batch:
    """The function of every tensor of batches."""
    if isinstance(batch, Tensor):
        return cast(Batch, function(batch, *others))
    parts = zip(*cast(Any, (batch, *others)), strict=True)
    return type(batch)(*(mapped(function, *part) for part in parts))


class Modes(NamedTuple):
    """R modes with their hyperparameters, in the scale of the data."""

    theta: Tensor  # (R, P)
    hyper: Tensor  # (R, G), log precisions of the prior's groups
    noise_precision: Tensor  # (R, T); T = 0 of labels
    factor: Tensor  # (R, P, P), Cholesky factor of the posterior's precision A
    log_evidence: Tensor  # (R,), Laplace's estimate of log p(y | X, hyperparameters), nats
    log_hyperprior: Tensor  # (R,), nats, of the log precisions
    n_iter: Tensor  # int64 (R,)
    n_restarts: Tensor  # int64 (R,), that ended in this mode or its copies

    @property
    def score(self) -> Tensor:
        """Log evidence and hyperprior, by which modes are compared, (R,) nats."""
        return self.log_evidence + self.log_hyperprior

    @property
    def shares(self) -> Tensor:
        """Share of the restarts that each mode has, (R,)."""
        return self.n_restarts.double() / self.n_restarts.sum()

    @property
    def covariance(self) -> Tensor:
        """Covariance of the weights, (R, P, P); O(R P^3)."""
        return torch.cholesky_inverse(self.factor)

    @property
    def root(self) -> None:
        """None: the curvature is that at the mode, averaged over no law of the logits."""
        return None


class Search(NamedTuple):
    """Modes that a search ended with."""

    modes: Modes
    curves: list[Tensor]  # of every mode, the log evidence after every update, on the host
    stopped: list[Stopped]  # why each restart's search ended

    @property
    def stop_reason(self) -> Stopped:
        """Gravest reason of all restarts."""
        return gravest(self.stopped)

    @property
    def has_ended(self) -> bool:
        """Whether the search was told to end."""
        return self.stop_reason in ("callback", "interrupted")

    def of(self, which: Tensor) -> "Search":
        """Some of the restarts."""
        kept = which.tolist()
        modes = mapped(lambda t: t[which], self.modes)
        return Search(modes, [self.curves[i] for i in kept], [self.stopped[i] for i in kept])

    def ended_by(self, reason: Stopped) -> "Search":
        return self._replace(stopped=len(self.stopped) * [reason])


def joined(searches: Sequence[Search]) -> Search:
    """All modes in one."""
    modes = mapped(lambda *parts: torch.cat(parts), *(search.modes for search in searches))
    curves = [curve for search in searches for curve in search.curves]
    return Search(modes, curves, [reason for search in searches for reason in search.stopped])


def distinct(problem: EvidenceProblem, search: Search) -> Search:
    """Keep of copies of one another the mode of the highest score, with their number."""
    modes = search.modes
    order = modes.score.argsort(descending=True, stable=True)
    hyper = SearchHyper(modes.hyper, modes.noise_precision)
    first = torch.tensor(first_alike(problem, modes.theta[order], hyper.of(order)))
    source = order[first.to(order)].scatter(0, order, order[first.to(order)])
    n_restarts = torch.zeros_like(modes.n_iter).index_add(0, source, modes.n_restarts)
    kept = search._replace(modes=modes._replace(n_restarts=n_restarts))
    return kept.of((n_restarts > 0).nonzero().flatten())


# Told the number of steps and a function that gives what has been found; True stops.
OnSearch = Callable[[int, Callable[[], Search]], bool]


def starting_points(network: MLP, n: int, *, generator: torch.Generator) -> Tensor:
    """``n`` starts (n, P): every layer's outputs of order one, the last without bias."""
    theta = LayerScales().bind(network.layout).sample(n, generator=generator)
    theta[:, network.layout.slices[f"b{network.n_layers}"]] = 0.0
    return theta


class _Place(NamedTuple):
    theta: Tensor  # (R, P)
    hyper: SearchHyper
    log_evidence: Tensor  # (R,), before the last update; nan before the first
    score: Tensor  # (R,), the same with the hyperprior, which the search climbs


class _State(NamedTuple):
    """Restarts on their way."""

    here: _Place
    best: _Place  # its score is -inf until the best counts
    n_without: Tensor  # (R,), updates since then
    damping: Tensor  # (R,)
    n_iter: Tensor  # (R,)


@dataclass(frozen=True)
class EvidenceSearch:
    """How modes are searched for.

    A restart ends when its log evidence moves by less than ``tol`` nats per unit of weight over
    some updates, several times in a row, or where the best is kept brings no new one.
    """

    max_iter: int = 100  # Gauss-Newton steps of a restart, at most
    tol: float | str | None = "auto"  # the problem's; None never stops
    max_more: int = 0  # further steps of restarts whose evidence still rises steeply

    def search(
        self,
        problem: EvidenceProblem,
        theta: Tensor,
        doubted: Tensor | None = None,
        on_step: OnSearch | None = None,
    ) -> Search:
        """Modes from starting points ``theta`` (R, P), those ``doubted`` (R,) begun in doubt.

        Restarts are one batch, which those that have settled leave, or follow one another; starts
        whose turn hasn't come when the search is told to end are left out then.
        """
        if doubted is None:
            doubted = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        if problem.schedule.is_batch:
            return self._batch(problem, problem.begin(doubted), theta, doubted, on_step)
        searches: list[Search] = []
        for start, is_doubted in zip(theta.split(1), doubted.split(1), strict=True):
            told, begun = (
                on_step and partial(_told_on, on_step, tuple(searches)),
                problem.begin(is_doubted),
            )
            searches.append(self._batch(problem, begun, start, is_doubted, told))
            if searches[-1].has_ended:
                break
        return joined(searches)

    def resumed(
        self, problem: EvidenceProblem, modes: Modes, on_step: OnSearch | None = None
    ) -> Search:
        """Modes from those of nearly the same problem, with their scales and noise; one batch.

        Steps that count as made there aren't made again.
        """
        hyper, sure = SearchHyper(modes.hyper, modes.noise_precision), modes.n_iter < 0
        return self._batch(problem, Begun(problem, hyper), modes.theta, sure, on_step, resumes=True)

    def _batch(
        self,
        problem: EvidenceProblem,
        begun: Begun,
        theta: Tensor,
        doubted: Tensor,
        on_step: OnSearch | None,
        *,
        resumes: bool = False,
    ) -> Search:
        at_first, hyper = begun
        state, rows = _start(theta, hyper), at_first.expansion(theta)
        n_before = min(problem.schedule.best_start, self.max_iter - 1) if resumes else 0
        itself = torch.arange(len(theta))
        source, looks = itself, [itself]  # whose copy each restart is
        curve: list[Tensor] = []  # of scores and log evidences, (2, R) each
        ended = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        moving, alive = list(range(len(theta))), torch.arange(len(theta), device=theta.device)
        loop = Loop()
        with loop:
            for i in loop.steps(range(n_before, self.max_iter + self.max_more)):
                now = (at_first if i < HYPER_START else problem).of(alive)
                part = state if len(moving) == len(theta) else _of(state, alive)
                if i == HYPER_START and at_first is not problem:
                    rows = now.expansion(part.here.theta)
                    damping = torch.where(doubted[alive], INITIAL_DAMPING, part.damping)
                    part = part._replace(damping=damping)
                part, rows = _iterated(now, part, rows, i)
                state = _put(state, alive, part)
                if _has_update(problem, i):
                    values = torch.stack([state.here.score, state.here.log_evidence])
                    curve.append(torch.where(ended, nan, values))
                    looks_now = (i - HYPER_START) % _SELDOM == 0 and self.tol is not None
                    if looks_now and i > HYPER_START:
                        look = _sources(problem, state.here, moving, source)
                        looks = [*looks[-_LOOKS + 1 :], look]
                        is_sure = torch.stack(looks).eq(look).all(0) & (len(looks) == _LOOKS)
                        source = torch.where(is_sure, look, source)
                        ended = ended | (source != itself).to(ended)
                ended = ended | self._settled(problem, curve, state.n_without)
                settled = ended
                if i + 1 >= self.max_iter:
                    ended = ended | ~_rises(curve, problem.total_weight, ended)
                before, (moving, n_settled) = moving, _moving(ended, settled)
                loop.stop_if("tol", n_settled == len(theta))
                if on_step is not None:
                    search = partial(_search, problem, state, curve, "interrupted")
                    so_far = partial(_with_copies, search, source)
                    loop.stop_if("callback", on_step(i + 1 - n_before, so_far))
                if not moving:
                    break
                if len(moving) < len(before):
                    alive = torch.tensor(moving, device=theta.device)
                    rows = rows.of(torch.tensor([before.index(r) for r in moving]).to(alive))
        search = partial(_search, problem, state, curve, loop.stopped)
        return _with_copies(search, source)

    def _settled(
        self, problem: EvidenceProblem, curve: Sequence[Tensor], n_without: Tensor
    ) -> Tensor:
        """Which restarts have stopped moving or getting better, bool (R,)."""
        schedule, unit = problem.schedule, problem.total_weight
        if self.tol is None:
            return torch.zeros_like(n_without, dtype=torch.bool)
        settled = n_without >= schedule.most_without
        if len(curve) < schedule.fewest:
            return settled
        limit = (
            self.tol * unit
            if not isinstance(self.tol, str)
            else schedule.tol * (unit if schedule.tol_is_per_row else 1.0)
        )
        recent = torch.stack([score for score, _ in curve[-(schedule.lag + schedule.times) :]])
        change = (recent[schedule.lag :] - recent[: -schedule.lag]).abs()
        return settled | (change < limit).all(0)  # False where nan: of ended restarts


def _start(theta: Tensor, hyper: SearchHyper) -> _State:
    n = len(theta)
    none = torch.zeros(n, dtype=torch.int64, device=theta.device)
    here = _Place(theta, hyper, *theta.new_full((2, n), nan))
    best = here._replace(score=theta.new_full((n,), -inf))
    return _State(here, best, none, theta.new_full((n,), INITIAL_DAMPING), none)


def _iterated(
    problem: EvidenceProblem, state: _State, rows: SearchRows, i: int
) -> tuple[_State, SearchRows]:
    """Restarts after one step, and the update that follows it, with their passes over the rows."""
    theta, hyper = state.here[:2]

    def misfit(theta: Tensor, which: Tensor) -> Tensor:
        return problem.of(which).misfit(theta, hyper.of(which))

    precision = hyper.log_precision.exp()[:, problem.prior.group]
    theta, damping, n_moved = step(
        misfit, theta, rows.expansion(hyper), precision, state.damping,
        is_wary=problem.schedule.is_wary,
    )  # fmt: skip
    if n_moved:
        rows = problem.expansion(theta)
    here = state.here._replace(theta=theta)
    state = state._replace(here=here, damping=damping, n_iter=state.n_iter + 1)
    if not _has_update(problem, i):
        return state, rows
    value, system = evaluated(problem, theta, rows, hyper)
    here = _Place(theta, hyper, value, value + problem.log_hyperprior(hyper))
    if i >= problem.schedule.best_start and problem.keeps_best:
        higher = here.score > state.best.score
        state = state._replace(
            best=_where(higher, here, state.best),
            n_without=torch.where(higher, 0, state.n_without + 1),
        )
    updated = problem.update(theta, rows, hyper, system)
    return state._replace(here=here._replace(hyper=updated)), rows


def _has_update(problem: EvidenceProblem, i: int) -> bool:
    """Hyperparameters move after step ``i``."""
    is_large = problem.network.layout.n_params > problem.schedule.many_params
    return i >= HYPER_START and (i - HYPER_START) % (_SELDOM if is_large else 1) == 0


def _of(state: _State, which: Tensor) -> _State:
    return mapped(lambda t: t[which], state)


def _where(which: Tensor, one: Batch, other: Batch) -> Batch:
    """Restarts of ``one`` where ``which`` (R,) is true, of ``other`` elsewhere."""
    return mapped(lambda a, b: torch.where(which.view(-1, *[1] * (a.ndim - 1)), a, b), one, other)


def _put(state: _State, which: Tensor, moved: _State) -> _State:
    """All restarts, those of ``which`` replaced."""
    if len(which) == len(state.n_iter):
        return moved
    return mapped(lambda t, m: t.index_copy(0, which, m), state, moved)


def _rises(curve: Sequence[Tensor], weight: Tensor, ended: Tensor) -> Tensor:
    """Which restarts are far from having moved where they go, bool (R,)."""
    if len(curve) <= _OVER:
        return torch.zeros_like(ended)
    return curve[-1][0] - curve[-1 - _OVER][0] > _OVER * _STEEP * weight  # False where nan


def _moving(ended: Tensor, settled: Tensor) -> tuple[list[int], int]:
    """Restarts that go on, and how many are settled; a GPU is waited for once."""
    has_ended, is_settled = torch.stack([ended, settled]).tolist()
    return [i for i, over in enumerate(has_ended) if not over], sum(is_settled)


def _search(
    problem: EvidenceProblem, state: _State, curve: Sequence[Tensor], stopped: Stopped
) -> Search:
    """Evidence and curvature where restarts are, or were best."""
    theta, hyper, *_ = _where(state.best.score > -inf, state.best, state.here)
    value, system = evaluated(problem, theta, problem.expansion(theta), hyper)
    log_hyperprior = problem.log_hyperprior(hyper)
    n_restarts = torch.ones_like(state.n_iter)
    factor = system.cholesky()
    modes = Modes(theta, *hyper, factor, value, log_hyperprior, state.n_iter, n_restarts)
    values = torch.stack([theta.new_full((len(theta),), nan), *(value for _, value in curve)]).cpu()
    return Search(modes, [one[one.isfinite()] for one in values.T], len(theta) * [stopped])


def _sources(problem: EvidenceProblem, here: _Place, moving: list[int], source: Tensor) -> Tensor:
    """Which restart each moving one comes near, those first that have ended and are no copies."""
    over = [r for r, s in enumerate(source.tolist()) if r == s and r not in moving]
    order, look = over + moving, source.clone()
    which = torch.tensor(order).to(here.theta.device)
    first = first_alike(problem, here.theta[which], here.hyper.of(which))
    look[moving] = torch.tensor([order[k] for k in first[len(over) :]])
    return look


def _with_copies(search: Callable[[], Search], source: Tensor) -> Search:
    """The search, with the modes of sources in the places of their copies."""
    each = search()
    while not torch.equal(source, source[source]):
        source = source[source]
    return each.of(source.to(each.modes.theta.device))


def _told_on(
    on_step: OnSearch, before: Sequence[Search], i: int, so_far: Callable[[], Search]
) -> bool:
    """Tells of a search beside those that ended before it."""
    n_before = sum(int(search.modes.n_iter.max()) for search in before)
    return on_step(n_before + i, lambda: joined([*before, so_far()]))
