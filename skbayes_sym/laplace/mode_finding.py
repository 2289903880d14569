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

import joblib
import torch
from torch import Tensor

from skbayes_sym.laplace.evidence_problem import (
    EvidenceProblem,
    SearchHyper,
    SearchRows,
)
from skbayes_sym.laplace.gauss_newton import INITIAL_DAMPING, step
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import LayerScales, UnboundPrior
from skbayes_sym.numerics.optimise import Loop, StopReason, combine_stop_reasons
from skbayes_sym.numerics.runtime import run_parallel


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
    near = problem.schedule.near
    if not bool((apart < near).triu(1).any()):
        return alike
    group = problem.network.symmetry()
    theta = theta.cpu()
    units = (0.5 * hyper.log_precision).exp()[:, problem.prior.group].cpu()
    for r in range(1, len(theta)):
        for s in range(r):
            if alike[s] != s or apart[s, r] >= near:
                continue
            goal = theta[s] * units[s]
            moved, _ = group.align(theta[r] * units[s], goal)
            if apart[s, r] + (moved - goal).square().sum() < near:
                alike[r] = s
                break
    return alike


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


class InitialModes(NamedTuple):
    """R modes of an earlier fit, to go on from, with their network and kind of scales."""

    network: MLP
    prior: UnboundPrior
    theta: Tensor  # (R, P), like the next as in `Modes`
    hyper: Tensor
    noise_precision: Tensor


class Search(NamedTuple):
    """Modes that a search ended with."""

    modes: Modes
    curves: list[Tensor]  # of every mode, the log evidence after every update, on the host
    stopped: list[StopReason]  # why each restart's search ended

    @property
    def stop_reason(self) -> StopReason:
        """Gravest reason of all restarts."""
        return combine_stop_reasons(self.stopped)

    @property
    def has_ended(self) -> bool:
        """Whether the search was told to end."""
        return self.stop_reason in ("callback", "interrupted")

    def of(self, which: Tensor) -> "Search":
        """Some of the restarts."""
        kept = which.tolist()
        modes = mapped(lambda t: t[which], self.modes)
        return Search(modes, [self.curves[i] for i in kept], [self.stopped[i] for i in kept])

    def ended_by(self, reason: StopReason) -> "Search":
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


def draw_initial_weights(network: MLP, n: int, *, generator: torch.Generator) -> Tensor:
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


class _Start(NamedTuple):
    """Beginnings of R restarts."""

    problem: EvidenceProblem
    at_first: EvidenceProblem  # while scales and noise stay
    hyper: SearchHyper
    theta: Tensor  # (R, P)
    doubted: Tensor  # (R,)
    n_before: int  # steps that count as made

    def parts(self) -> list["_Start"]:
        """Divide restarts of large networks: into pairs, and where steps are long one by one.

        They are divided whatever the number of processes: a batch rounds otherwise than its parts.
        Modes of fewer weights are found by several restarts, which a batch tells early.
        """
        (n, p) = self.theta.shape
        device = self.theta.device
        n_rows = self.problem.data.y.shape[0]
        size = 1 if n_rows * p**2 >= 1e8 else 2
        if n <= size or device.type != "cpu" or p < 200 or n_rows < p:
            return [self]
        return [self._of(which) for which in torch.arange(n).split(size)]

    def _of(self, which: Tensor) -> "_Start":
        problem = self.problem.of(which)
        at_first = problem if self.at_first is self.problem else self.at_first.of(which)
        parts = (self.hyper.of(which), self.theta[which], self.doubted[which])
        return _Start(problem, at_first, *parts, self.n_before)


@dataclass(frozen=True)
class EvidenceSearch:
    """How modes are searched for.

    A restart ends when its log evidence moves by less than ``tol`` nats per unit of weight over
    some updates, several times in a row, or where the best is kept brings no new one.
    """

    max_iter: int = 100  # Gauss-Newton steps of a restart, at most
    tol: float | str | None = "auto"  # the problem's; None never stops
    max_more: int = 0  # further steps of restarts whose evidence still rises steeply
    is_wary: bool = False  # see `gauss_newton.step`; searches of labels always are
    n_jobs: int | None = None  # processes, as `run_parallel` has it

    def search(
        self, problem: EvidenceProblem, theta: Tensor, doubted: Tensor | None = None,
        on_step: OnSearch | None = None,
    ) -> Search:  # fmt: skip
        """Modes from starting points ``theta`` (R, P), those ``doubted`` (R,) begun in doubt.

        Restarts are one batch, which those that have settled leave.
        """
        if doubted is None:
            doubted = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        at_first, hyper = problem.begin(doubted)
        return self._joined(_Start(problem, at_first, hyper, theta, doubted, 0), on_step)

    def resumed(
        self, problem: EvidenceProblem, modes: Modes | InitialModes, on_step: OnSearch | None = None
    ) -> Search:
        """Modes from those of nearly the same problem, with their scales and noise.

        Steps that count as made there aren't made again.
        """
        hyper = SearchHyper(modes.hyper, modes.noise_precision)
        sure = torch.zeros(len(modes.theta), dtype=torch.bool, device=modes.theta.device)
        n_before = min(problem.schedule.best_start, self.max_iter - 1)
        start = _Start(problem, problem, hyper, modes.theta, sure, n_before)
        return self._joined(start, on_step)

    def _joined(self, start: _Start, on_step: OnSearch | None) -> Search:
        """Search from all starts; told to end, give the modes of those that had begun."""
        parts = start.parts()
        ended = list[Search]()
        n = len(parts)
        if n == 1:
            return self._steps(start, on_step)

        def told(step: int, current: Callable[[], Search]) -> bool:
            if on_step is None or step % n:  # all parts are heard as often as one
                return False
            return on_step(step, lambda: joined([*ended, current()]))

        is_here = joblib.effective_n_jobs(self.n_jobs) == 1
        jobs = [partial(self._steps, part, told if is_here else None) for part in parts]
        for search in run_parallel(jobs, self.n_jobs):
            ended.append(search)
            if search.has_ended:
                break
            if on_step is not None and on_step(self.max_iter, lambda: joined(ended)):
                return joined([*ended[:-1], search.ended_by("callback")])
        return joined(ended)

    def _steps(self, start: _Start, on_step: OnSearch | None) -> Search:
        """Make all steps after ``n_before``."""
        problem, at_first, hyper, theta, doubted, n_before = start
        how = problem.schedule
        n = len(theta)
        none = torch.zeros(n, dtype=torch.int64, device=theta.device)
        here = _Place(theta, hyper, *theta.new_full((2, n), nan))
        best = here._replace(score=theta.new_full((n,), -inf))
        state = _State(here, best, none, theta.new_full((n,), INITIAL_DAMPING), none)
        rows = at_first.expansion(theta)
        itself = torch.arange(n)
        # whose copy each restart is
        source = itself
        looks = [itself]
        curve: list[Tensor] = []  # of scores and log evidences, (2, R) each
        ended = torch.zeros(n, dtype=torch.bool, device=theta.device)
        moving = list(range(n))
        alive = torch.arange(n, device=theta.device)
        loop = Loop()
        with loop:
            for i in loop.steps(range(n_before, self.max_iter + self.max_more)):
                now = (at_first if i < how.hyper_start else problem).of(alive)
                all_move = len(moving) == n
                part = state if all_move else mapped(lambda t: t[alive], state)  # noqa: B023
                if i == how.hyper_start and at_first is not problem:
                    rows = now.expansion(part.here.theta)
                    damping = torch.where(doubted[alive], INITIAL_DAMPING, part.damping)
                    part = part._replace(damping=damping)
                part, rows = _iterated(now, part, rows, i, is_wary=self.is_wary or how.is_wary)
                if not all_move:
                    part = mapped(lambda t, m: t.index_copy(0, alive, m), state, part)  # noqa: B023
                state = part
                if _has_update(problem, i):
                    values = torch.stack([state.here.score, state.here.log_evidence])
                    curve.append(torch.where(ended, nan, values))
                    is_look = (i - how.hyper_start) % how.seldom == 0 and self.tol is not None
                    if is_look and i > how.hyper_start:
                        look = _sources(problem, state.here, moving, source)
                        looks = [*looks[-how.looks + 1 :], look]
                        is_sure = torch.stack(looks).eq(look).all(0) & (len(looks) == how.looks)
                        source = torch.where(is_sure, look, source)
                        ended = ended | (source != itself).to(ended)
                ended = ended | self._settled(problem, curve, state.n_without)
                settled = ended
                if i + 1 >= self.max_iter:
                    ended = ended | ~_rises(problem, curve)
                # A GPU is waited for once.
                before = moving
                (are_over, are_settled) = torch.stack([ended, settled]).tolist()
                moving = [r for r, is_over in enumerate(are_over) if not is_over]
                loop.stop_if("tol", all(are_settled))
                if on_step is not None:
                    so_far = partial(_found, problem, state, curve, source, "interrupted")
                    loop.stop_if("callback", on_step(i + 1 - n_before, so_far))
                if not moving:
                    break
                if len(moving) < len(before):
                    alive = torch.tensor(moving, device=theta.device)
                    rows = rows.of(torch.tensor([before.index(r) for r in moving]).to(alive))
        return _found(problem, state, curve, source, loop.stopped)

    def _settled(
        self, problem: EvidenceProblem, curve: Sequence[Tensor], n_without: Tensor
    ) -> Tensor:
        """Which restarts have stopped moving or getting better, bool (R,)."""
        how = problem.schedule
        unit = problem.total_weight
        tol = self.tol
        if tol is None:
            return torch.zeros_like(n_without, dtype=torch.bool)
        settled = n_without >= how.most_without
        if len(curve) < how.fewest:
            return settled
        if isinstance(tol, str):
            tol = how.tol
            unit = unit if how.tol_is_per_row else torch.ones_like(unit)
        recent = torch.stack([score for score, _ in curve[-(how.lag + how.times) :]])
        change = (recent[how.lag :] - recent[: -how.lag]).abs()
        return settled | (change < tol * unit).all(0)  # False where nan: of ended restarts


def _iterated(
    problem: EvidenceProblem, state: _State, rows: SearchRows, i: int, *, is_wary: bool
) -> tuple[_State, SearchRows]:
    """Restarts after one step, and the update that follows it, with their passes over the rows."""
    theta, hyper = state.here[:2]
    precision = hyper.log_precision.exp()[:, problem.prior.group]
    theta, damping, n_moved = step(
        lambda theta, which: problem.of(which).misfit(theta, hyper.of(which)),
        theta, rows.expansion(hyper), precision, state.damping, is_wary=is_wary,
    )  # fmt: skip
    if n_moved:
        rows = problem.expansion(theta)
    here = state.here._replace(theta=theta)
    state = state._replace(here=here, damping=damping, n_iter=state.n_iter + 1)
    if not _has_update(problem, i):
        return state, rows
    value, system = problem.evaluated(theta, rows, hyper)
    score = value + problem.prior.log_hyperprior(hyper.log_precision)
    here = _Place(theta, hyper, value, score)
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
    how = problem.schedule
    is_large = problem.network.layout.n_params > how.many_params
    return i >= how.hyper_start and (i - how.hyper_start) % (how.seldom if is_large else 1) == 0


def _where(which: Tensor, one: Batch, other: Batch) -> Batch:
    """Restarts of ``one`` where ``which`` (R,) is true, of ``other`` elsewhere."""
    return mapped(lambda a, b: torch.where(which.view(-1, *[1] * (a.ndim - 1)), a, b), one, other)


def _rises(problem: EvidenceProblem, curve: Sequence[Tensor]) -> Tensor:
    """Which restarts are far from having moved where they go, bool (R,)."""
    steep = problem.schedule.steep
    over = problem.schedule.over
    if len(curve) <= over:
        return problem.total_weight < 0.0
    return curve[-1][0] - curve[-1 - over][0] > over * steep * problem.total_weight


def _sources(problem: EvidenceProblem, here: _Place, moving: list[int], source: Tensor) -> Tensor:
    """Which restart each moving one comes near, those first that have ended and are no copies."""
    over = [r for r, s in enumerate(source.tolist()) if r == s and r not in moving]
    order = over + moving
    look = source.clone()
    which = torch.tensor(order).to(here.theta.device)
    first = first_alike(problem, here.theta[which], here.hyper.of(which))
    look[moving] = torch.tensor([order[k] for k in first[len(over) :]])
    return look


def _found(
    problem: EvidenceProblem, state: _State, curve: Sequence[Tensor], source: Tensor,
    stopped: StopReason,
) -> Search:  # fmt: skip
    """Modes where restarts are, or were best; those of sources in the places of their copies."""
    theta, hyper, *_ = _where(state.best.score > -inf, state.best, state.here)
    value, system = problem.evaluated(theta, problem.expansion(theta), hyper)
    log_hyperprior = problem.prior.log_hyperprior(hyper.log_precision)
    n_restarts = torch.ones_like(state.n_iter)
    factor = system.cholesky()
    modes = Modes(theta, *hyper, factor, value, log_hyperprior, state.n_iter, n_restarts)
    values = torch.stack([theta.new_full((len(theta),), nan), *(value for _, value in curve)]).cpu()
    search = Search(modes, [one[one.isfinite()] for one in values.T], len(theta) * [stopped])
    while not torch.equal(source, source[source]):
        source = source[source]
    return search.of(source.to(theta.device))
