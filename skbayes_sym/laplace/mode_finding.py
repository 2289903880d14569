r"""Search for modes with scales and noise set by the evidence, in regression and classification.

After every Levenberg-Marquardt step, MacKay's update moves the hyperparameters. A search keeps the
last iterate and not the one of the highest evidence, because Laplace's approximation overestimates
the evidence away from a mode. The best iterate is kept only where scales may run away while the
evidence falls (`EvidenceProblem.keeps_best`).

A restart on its way to a symmetric copy of another restart's mode ends there, and is counted with
it. The squared distance of two restarts is measured in units of the posterior's width. It adds the
distance of their functions at the rows, in units of the noise (for classes twice Hellinger's
distance), of their weights, aligned by the network's symmetry and in units of the prior, and of
their scales and noise levels:

.. math:: \sum_n w_n \beta (f_n - f'_n)^2 + \sum_k \alpha_k (\theta_k - (g\theta')_k)^2
          + \tfrac12 \sum_g n_g (\Delta\log\alpha_g)^2 + \tfrac12 N (\Delta\log\beta)^2 .

For networks of two to ten units it is at least 2 between distinct modes, and 0 between copies that
have converged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from typing import Any, NamedTuple, TypeVar, cast

import joblib
import torch
from torch import Tensor

from skbayes_sym.laplace.balancing import balance_weights
from skbayes_sym.laplace.evidence_problem import (
    EvidenceProblem,
    Hyperparameters,
)
from skbayes_sym.laplace.gauss_newton import INITIAL_DAMPING, step
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import LayerScales, UnboundPrior
from skbayes_sym.numerics.optimise import Loop, StopReason, combine_stop_reasons
from skbayes_sym.numerics.progress import report_progress
from skbayes_sym.numerics.runtime import run_parallel


def find_copies(problem: EvidenceProblem, theta: Tensor, hyper: Hyperparameters) -> list[int]:
    """Find for each of R restarts the first restart that it is a symmetric copy of.

    Parameters
    ----------
    problem : EvidenceProblem
    theta : Tensor of shape (R, P)
    hyper : Hyperparameters
        Scales and noise of the R restarts.

    Returns
    -------
    list of int
        Indices of restarts. A restart that copies none of those before it has its own index.

    Notes
    -----
    Functions are compared first, and weights only where the functions agree: O(R^2 N) and an
    assignment for each pair and hidden layer. Restarts that learn from different rows are never
    copies.
    """
    source = list(range(len(theta)))
    if problem.weight_factor is not None or len(theta) < 2:
        return source
    sizes = problem.prior.sizes.to(theta)
    weight = problem.total_weight.expand(hyper.noise_precision.shape[1])
    logs = torch.cat([hyper.log_precision, hyper.noise_precision.log()], 1)
    logs = logs * (0.5 * torch.cat([sizes, weight])).sqrt()
    distance = torch.cdist(logs, logs, compute_mode="donot_use_mm_for_euclid_dist").square()
    distance = (distance + problem.function_distances(theta, hyper)).cpu()
    max_distance = problem.schedule.copy_distance
    if not bool((distance < max_distance).triu(1).any()):
        return source
    group = problem.network.symmetry()
    theta = theta.cpu()
    units = (0.5 * hyper.log_precision).exp()[:, problem.prior.group].cpu()
    for r in range(1, len(theta)):
        for s in range(r):
            if source[s] != s or distance[s, r] >= max_distance:
                continue
            target = theta[s] * units[s]
            aligned, _ = group.align(theta[r] * units[s], target)
            if distance[s, r] + (aligned - target).square().sum() < max_distance:
                source[r] = s
                break
    return source


Batch = TypeVar("Batch")  # a NamedTuple of tensors (R, ...), nested or not


def map_tensors(function: Callable[..., Tensor], batch: Batch, *others: Batch) -> Batch:
    """Apply a function to every tensor of a batch, and to its counterparts in other batches."""
    if isinstance(batch, Tensor):
        return cast(Batch, function(batch, *others))
    parts = zip(*cast(Any, (batch, *others)), strict=True)
    return type(batch)(*(map_tensors(function, *part) for part in parts))


class Modes(NamedTuple):
    """R modes with their hyperparameters, in the scale of the data.

    Attributes
    ----------
    theta : Tensor of shape (R, P)
        Weights.
    hyper : Tensor of shape (R, G)
        Log precisions of the prior's groups.
    noise_precision : Tensor of shape (R, T)
        Precisions of the noise of T targets; T is 0 in classification.
    factor : Tensor of shape (R, P, P)
        Cholesky factors of the posterior's precision A.
    log_evidence : Tensor of shape (R,)
        Laplace's estimate of log p(y | X, hyperparameters), nats.
    log_hyperprior : Tensor of shape (R,)
        Log density of the log precisions, nats.
    n_iter : Tensor of shape (R,), int64
        Gauss-Newton steps.
    n_restarts : Tensor of shape (R,), int64
        Number of restarts that ended in this mode or its copies.
    """

    theta: Tensor
    hyper: Tensor
    noise_precision: Tensor
    factor: Tensor
    log_evidence: Tensor
    log_hyperprior: Tensor
    n_iter: Tensor
    n_restarts: Tensor

    @property
    def score(self) -> Tensor:
        """Sum of log evidence and log hyperprior, by which modes are compared, (R,) nats."""
        return self.log_evidence + self.log_hyperprior

    @property
    def weights(self) -> Tensor:
        """Fraction of the restarts that ended in each mode, (R,)."""
        return self.n_restarts.double() / self.n_restarts.sum()

    @property
    def covariance(self) -> Tensor:
        """Covariance of the weights, (R, P, P); O(R P^3)."""
        return torch.cholesky_inverse(self.factor)


class InitialModes(NamedTuple):
    """R modes of an earlier fit, from which a search continues.

    Attributes
    ----------
    network : MLP
        Network of the earlier fit.
    prior : UnboundPrior
        Its prior, one scale per layer or per column.
    theta, hyper, noise_precision : Tensor
        As in `Modes`.
    """

    network: MLP
    prior: UnboundPrior
    theta: Tensor
    hyper: Tensor
    noise_precision: Tensor


class Search(NamedTuple):
    """Result of a search.

    Attributes
    ----------
    modes : Modes
    curves : list of Tensor
        For every mode the log evidence after every update, on the host.
    stopped : list of str
        Why each restart's search ended.
    """

    modes: Modes
    curves: list[Tensor]
    stopped: list[StopReason]

    @property
    def stop_reason(self) -> StopReason:
        """Most severe reason of all restarts."""
        return combine_stop_reasons(self.stopped)

    @property
    def was_stopped(self) -> bool:
        """Whether a callback or an interrupt ended the search."""
        return self.stop_reason in ("callback", "interrupted")

    def select(self, index: Tensor) -> "Search":
        """Select the restarts of an index, int64 (n,)."""
        selected = index.tolist()
        modes = map_tensors(lambda t: t[index], self.modes)
        return Search(
            modes, [self.curves[i] for i in selected], [self.stopped[i] for i in selected]
        )

    def with_stop_reason(self, reason: StopReason) -> "Search":
        """Copy with another reason for the end of every restart."""
        return self._replace(stopped=len(self.stopped) * [reason])


def concatenate_searches(searches: Sequence[Search]) -> Search:
    """Concatenate the modes of several searches."""
    modes = map_tensors(lambda *parts: torch.cat(parts), *(search.modes for search in searches))
    curves = [curve for search in searches for curve in search.curves]
    return Search(modes, curves, [reason for search in searches for reason in search.stopped])


def merge_copies(problem: EvidenceProblem, search: Search) -> Search:
    """Keep one mode of each set of symmetric copies, the one of the highest score.

    Its ``n_restarts`` becomes the sum over the set.
    """
    modes = search.modes
    order = modes.score.argsort(descending=True, stable=True)
    hyper = Hyperparameters(modes.hyper, modes.noise_precision)
    first = torch.tensor(find_copies(problem, modes.theta[order], hyper.select(order)))
    source = order[first.to(order)].scatter(0, order, order[first.to(order)])
    n_restarts = torch.zeros_like(modes.n_iter).index_add(0, source, modes.n_restarts)
    merged = search._replace(modes=modes._replace(n_restarts=n_restarts))
    return merged.select((n_restarts > 0).nonzero().flatten())


# Called with the number of steps and a function that returns the present result. True stops.
SearchCallback = Callable[[int, Callable[[], Search]], bool]


def draw_initial_weights(network: MLP, n: int, *, generator: torch.Generator) -> Tensor:
    """Draw ``n`` initial weight vectors, (n, P).

    Outputs of every layer are of order one, and the last layer has no bias.

    Parameters
    ----------
    network : MLP
        Network with P weights.
    n : int
        Number of weight vectors.
    generator : torch.Generator
        Source of random numbers.
    """
    theta = LayerScales().bind(network.layout).sample(n, generator=generator)
    theta[:, network.layout.slices[f"b{network.n_layers}"]] = 0.0
    return theta


class _Iterate(NamedTuple):
    theta: Tensor  # (R, P)
    hyper: Hyperparameters
    log_evidence: Tensor  # (R,), before the last update; nan before the first
    score: Tensor  # (R,), log evidence and log hyperprior, which the search maximises


class _State(NamedTuple):
    """State of R restarts between two steps."""

    current: _Iterate
    best: _Iterate  # its score is -inf before the first step at which the best is kept
    n_since_best: Tensor  # (R,), updates since the best score
    damping: Tensor  # (R,)
    n_iter: Tensor  # (R,)


class _SearchTask(NamedTuple):
    """Initial values of R restarts."""

    problem: EvidenceProblem
    initial_problem: EvidenceProblem  # the problem as long as scales and noise are fixed
    hyper: Hyperparameters
    theta: Tensor  # (R, P)
    high_noise: Tensor  # bool (R,), whether a restart starts with high noise
    n_skipped: int  # steps of the schedule that an earlier search has made

    def split(self) -> list["_SearchTask"]:
        """Split restarts of large networks into pairs, or into single ones if steps are long.

        The split doesn't depend on the number of processes, because a batch rounds differently
        from its parts. Small networks stay one batch: several of their restarts find the same mode,
        which a batch detects early.
        """
        (n, p) = self.theta.shape
        device = self.theta.device
        n_rows = self.problem.data.y.shape[0]
        size = 2
        if n_rows * p**2 >= 1e8:
            size = 1
        if n <= size or device.type != "cpu" or p < 200 or n_rows < p:
            return [self]
        tasks = []
        for index in torch.arange(n).split(size):
            problem = self.problem.select(index)
            initial_problem = problem
            if self.initial_problem is not self.problem:
                initial_problem = self.initial_problem.select(index)
            parts = (self.hyper.select(index), self.theta[index], self.high_noise[index])
            tasks.append(_SearchTask(problem, initial_problem, *parts, self.n_skipped))
        return tasks


@dataclass(frozen=True)
class EvidenceSearch:
    """Configuration of a search for modes.

    A restart ends when its log evidence moves by less than ``tol`` nats per unit of weight over
    some updates, several times in a row. Where the best iterate is kept, it also ends after some
    updates without a new best.

    Attributes
    ----------
    max_iter : int, default=100
        Maximum number of Gauss-Newton steps of a restart.
    tol : "auto", float or None, default="auto"
        Tolerance in nats per unit of weight. "auto" is the problem's own, and None never stops.
    max_extra_steps : int, default=0
        Further steps of restarts whose evidence still rises steeply after ``max_iter``.
    conservative : bool, default=False
        See `gauss_newton.step`. Searches for modes of classification are always conservative.
    n_jobs : int, optional
        Number of processes, see `run_parallel`.
    """

    max_iter: int = 100
    tol: float | str | None = "auto"
    max_extra_steps: int = 0
    conservative: bool = False
    n_jobs: int | None = None

    def search(
        self,
        problem: EvidenceProblem,
        theta: Tensor,
        high_noise: Tensor | None = None,
        on_step: SearchCallback | None = None,
    ) -> Search:
        """Search for modes from initial weights.

        Parameters
        ----------
        problem : EvidenceProblem
        theta : Tensor of shape (R, P)
            Initial weights of R restarts, which are one batch. Restarts that have settled leave it.
        high_noise : Tensor of shape (R,), bool, optional
            Which restarts start with high noise, see `EvidenceProblem.initialize`. By default none.
        on_step : callable, optional
            Called after every step. If it returns True, the search stops.

        Returns
        -------
        Search
        """
        if high_noise is None:
            high_noise = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        initial_problem, hyper = problem.initialize(high_noise)
        return self._run(
            _SearchTask(problem, initial_problem, hyper, theta, high_noise, 0), on_step
        )

    def resume(
        self,
        problem: EvidenceProblem,
        modes: Modes | InitialModes,
        on_step: SearchCallback | None = None,
    ) -> Search:
        """Continue from modes of a similar problem, with their scales and noise.

        The steps before the schedule's ``first_best_step`` aren't repeated.

        Parameters
        ----------
        problem : EvidenceProblem
        modes : Modes or InitialModes
        on_step : callable, optional
            As in `search`.

        Returns
        -------
        Search
        """
        hyper = Hyperparameters(modes.hyper, modes.noise_precision)
        high_noise = torch.zeros(len(modes.theta), dtype=torch.bool, device=modes.theta.device)
        n_skipped = min(problem.schedule.first_best_step, self.max_iter - 1)
        task = _SearchTask(problem, problem, hyper, modes.theta, high_noise, n_skipped)
        return self._run(task, on_step)

    def _run(self, task: _SearchTask, on_step: SearchCallback | None) -> Search:
        """Search in batches. When stopped, return the modes of the batches that have started."""
        tasks = task.split()
        results = list[Search]()
        n = len(tasks)
        if n == 1:
            return self._search_batch(task, on_step)

        def on_batch_step(step: int, current: Callable[[], Search]) -> bool:
            # The callback is called as often as for one batch, however many there are.
            if on_step is None or step % n:
                return False
            return on_step(step, lambda: concatenate_searches([*results, current()]))

        # Other processes report their results, and not their steps.
        is_serial = joblib.effective_n_jobs(self.n_jobs) == 1
        callback = None
        if is_serial:
            callback = on_batch_step
        jobs = [partial(self._search_batch, part, callback) for part in tasks]
        for search in run_parallel(jobs, self.n_jobs, prefer="threads"):
            results.append(search)
            if search.was_stopped:
                break
            if on_step is not None and on_step(
                self.max_iter, lambda: concatenate_searches(results)
            ):
                stopped = search.with_stop_reason("callback")
                return concatenate_searches([*results[:-1], stopped])
        return concatenate_searches(results)

    def _search_batch(self, task: _SearchTask, on_step: SearchCallback | None) -> Search:
        """Take all steps of one batch."""
        batch = _RestartBatch(task, self)
        n_steps = self.max_iter + self.max_extra_steps - task.n_skipped
        loop = Loop()
        with loop:
            for i in loop.steps(range(task.n_skipped, task.n_skipped + n_steps)):
                batch.advance(i)
                if _has_update(task.problem, i):
                    batch.record_update(i)
                all_settled = batch.end_restarts(i)
                report_progress(i + 1 - task.n_skipped, n_steps)
                loop.stop_if("tol", all_settled)
                if on_step is not None:
                    current = partial(batch.snapshot(), "interrupted")
                    loop.stop_if("callback", on_step(i + 1 - task.n_skipped, current))
                if not batch.active:
                    break
        return batch.snapshot()(loop.stopped)


class _RestartBatch:
    """Restarts that are searched as one batch, until they settle or copy one another."""

    def __init__(self, task: _SearchTask, config: EvidenceSearch) -> None:
        theta = task.theta
        n = len(theta)
        zeros = torch.zeros(n, dtype=torch.int64, device=theta.device)
        current = _Iterate(theta, task.hyper, *theta.new_full((2, n), nan))
        best = current._replace(score=theta.new_full((n,), -inf))
        self._task = task
        self._config = config
        self._n = n
        self._itself = torch.arange(n)
        self._state = _State(current, best, zeros, theta.new_full((n,), INITIAL_DAMPING), zeros)
        self._expansion = task.initial_problem.expansion(theta)  # of the active restarts
        self._source = self._itself  # the restart that each one copies, or itself
        self._checks = [self._itself]  # the last sources that were found
        self._curve: list[Tensor] = []  # of scores and log evidences, (2, R) each
        self._ended = torch.zeros(n, dtype=torch.bool, device=theta.device)
        self.active = list(range(n))
        self._index = torch.arange(n, device=theta.device)  # of the active restarts

    def advance(self, i: int) -> None:
        """Make step ``i`` of the active restarts, and the update that follows it."""
        task = self._task
        schedule = task.problem.schedule
        problem = task.problem
        if i < schedule.first_hyper_step:
            problem = task.initial_problem
        problem = problem.select(self._index)
        all_active = len(self.active) == self._n
        state = self._state
        if not all_active:
            state = map_tensors(lambda t: t[self._index], self._state)
        expansion = self._expansion
        if i == schedule.first_hyper_step and task.initial_problem is not task.problem:
            # From here on all rows have their full weight, for which the damping is too small.
            expansion = problem.expansion(state.current.theta)
            damping = torch.where(task.high_noise[self._index], INITIAL_DAMPING, state.damping)
            state = state._replace(damping=damping)

        # Step of the weights.
        theta, hyper = state.current[:2]
        precision = hyper.log_precision.exp()[:, problem.prior.group]
        conservative = self._config.conservative or schedule.conservative
        theta, damping, n_moved = step(
            lambda theta, index: problem.select(index).misfit(theta, hyper.select(index)),
            theta,
            expansion.at(hyper),
            precision,
            state.damping,
            conservative=conservative,
        )
        if n_moved:
            expansion = problem.expansion(theta)
        current = state.current._replace(theta=theta)
        state = state._replace(current=current, damping=damping, n_iter=state.n_iter + 1)

        # Evidence there, and the update of the hyperparameters.
        if _has_update(problem, i):
            value, system = problem.evaluate(theta, expansion, hyper)
            score = value + problem.prior.log_hyperprior(hyper.log_precision)
            current = _Iterate(theta, hyper, value, score)
            if i >= schedule.first_best_step and problem.keeps_best:
                is_better = current.score > state.best.score
                state = state._replace(
                    best=_choose_by_restart(is_better, current, state.best),
                    n_since_best=torch.where(is_better, 0, state.n_since_best + 1),
                )
            updated = problem.update(theta, expansion, hyper, system)
            state = state._replace(current=current._replace(hyper=updated))

        self._expansion = expansion
        if not all_active:
            state = map_tensors(lambda t, m: t.index_copy(0, self._index, m), self._state, state)
        self._state = state

    def record_update(self, i: int) -> None:
        """Record score and log evidence, and end restarts that copy one another.

        A restart copies another one if several checks in a row have found them close together.
        """
        current = self._state.current
        values = torch.stack([current.score, current.log_evidence])
        self._curve.append(torch.where(self._ended, nan, values))

        schedule = self._task.problem.schedule
        n_steps = i - schedule.first_hyper_step
        if self._config.tol is None or n_steps <= 0 or n_steps % schedule.check_interval:
            return

        # The restart that each active one is close to. Those that have ended and copy no other
        # come first.
        sources = self._source.tolist()
        ended = [r for r, s in enumerate(sources) if r == s and r not in self.active]
        order = ended + self.active
        index = torch.tensor(order).to(current.theta.device)
        problem = self._task.problem
        first = find_copies(problem, current.theta[index], current.hyper.select(index))
        check = self._source.clone()
        check[self.active] = torch.tensor([order[k] for k in first[len(ended) :]])

        self._checks = [*self._checks[-schedule.n_copy_checks + 1 :], check]
        is_certain = torch.stack(self._checks).eq(check).all(0)
        is_certain = is_certain & (len(self._checks) == schedule.n_copy_checks)
        self._source = torch.where(is_certain, check, self._source)
        self._ended = self._ended | (self._source != self._itself).to(self._ended)

    def end_restarts(self, i: int) -> bool:
        """End restarts that have settled, and return whether all have.

        They are removed from the batch of the next step.
        """
        ended = self._ended | self._settled()
        settled = ended
        if i + 1 >= self._config.max_iter:
            # Extra steps are for restarts whose evidence still rises steeply.
            problem = self._task.problem
            window = problem.schedule.rise_window
            rises = torch.zeros_like(ended)
            if len(self._curve) > window:
                rise = self._curve[-1][0] - self._curve[-1 - window][0]
                rises = rise > window * problem.schedule.steep_rise * problem.total_weight
            ended = ended | ~rises
        self._ended = ended
        # One transfer of both, because the host waits for a GPU in each.
        is_ended, is_settled = torch.stack([ended, settled]).tolist()
        previous = self.active
        self.active = [r for r, has_ended in enumerate(is_ended) if not has_ended]
        if self.active and len(self.active) < len(previous):
            self._index = torch.tensor(self.active, device=self._task.theta.device)
            position = torch.tensor([previous.index(r) for r in self.active])
            self._expansion = self._expansion.select(position.to(self._index))
        return all(is_settled)

    def snapshot(self) -> Callable[[StopReason], Search]:
        """Return a function that makes the search's result from the present state."""
        return partial(_collect_modes, self._task.problem, self._state, self._curve, self._source)

    def _settled(self) -> Tensor:
        """Return which restarts have stopped moving or getting better, bool (R,)."""
        problem = self._task.problem
        schedule = problem.schedule
        n_since_best = self._state.n_since_best
        tol = self._config.tol
        unit = problem.total_weight
        if tol is None:
            return torch.zeros_like(n_since_best, dtype=torch.bool)
        settled = n_since_best >= schedule.patience
        if len(self._curve) < schedule.min_updates:
            return settled
        if isinstance(tol, str):
            tol = schedule.tol
            if not schedule.tol_is_per_row:
                unit = torch.ones_like(unit)
        n_recent = schedule.lag + schedule.n_consecutive
        recent = torch.stack([score for score, _ in self._curve[-n_recent:]])
        change = (recent[schedule.lag :] - recent[: -schedule.lag]).abs()
        # The comparison is False for restarts that have ended, whose values are nan.
        return settled | (change < tol * unit).all(0)


def _has_update(problem: EvidenceProblem, i: int) -> bool:
    """Whether hyperparameters move after step ``i``."""
    schedule = problem.schedule
    n_steps = i - schedule.first_hyper_step
    is_large = problem.network.layout.n_params > schedule.large_n_params
    if is_large:
        interval = schedule.check_interval
    else:
        interval = 1
    return n_steps >= 0 and n_steps % interval == 0


def _choose_by_restart(condition: Tensor, first: Batch, second: Batch) -> Batch:
    """Select restarts of ``first`` where the condition (R,) is true, of ``second`` elsewhere."""

    def select(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(condition.view(-1, *[1] * (a.ndim - 1)), a, b)

    return map_tensors(select, first, second)


def _collect_modes(
    problem: EvidenceProblem,
    state: _State,
    curve: Sequence[Tensor],
    source: Tensor,
    stopped: StopReason,
) -> Search:
    """Make the result of a search from its state.

    Parameters
    ----------
    problem : EvidenceProblem
    state : _State
        State of all R restarts. Their best iterates are the modes where the best is kept, and the
        present ones elsewhere.
    curve : sequence of Tensor of shape (2, R)
        Scores and log evidences after every update.
    source : Tensor of shape (R,), int64
        The restart that each one copies, whose mode it gets.
    stopped : str
        Why the search ended.

    Returns
    -------
    Search
    """
    theta, hyper, *_ = _choose_by_restart(state.best.score > -inf, state.best, state.current)
    # Evidence and predictions mustn't depend on where on its orbit a rescalable unit has stopped.
    precision = hyper.log_precision.exp()[:, problem.prior.group]
    theta = balance_weights(problem.network, theta, precision)
    value, system = problem.evaluate(theta, problem.expansion(theta), hyper)
    log_hyperprior = problem.prior.log_hyperprior(hyper.log_precision)
    n_restarts = torch.ones_like(state.n_iter)
    factor = system.cholesky()
    modes = Modes(theta, *hyper, factor, value, log_hyperprior, state.n_iter, n_restarts)
    values = torch.stack([theta.new_full((len(theta),), nan), *(value for _, value in curve)]).cpu()
    curves = [values_r[values_r.isfinite()] for values_r in values.T]
    search = Search(modes, curves, len(theta) * [stopped])
    # A copy may copy a restart that copies a third one.
    while not torch.equal(source, source[source]):
        source = source[source]
    return search.select(source.to(theta.device))
