"""Fit the members of a stack one after the other and optimise their weights."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from math import log
from typing import Any

import joblib
import numpy as np
import torch
from sklearn.exceptions import FitFailedWarning
from torch import Tensor

from skbayes_sym.base.messages import log_info, warn_user
from skbayes_sym.base.plan import Execution, PlannedStage, Results, TableSize, execute
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.rows import Array
from skbayes_sym.base.stacking_weights import stacking_weights
from skbayes_sym.numerics.progress import Receiver, reporting_to
from skbayes_sym.numerics.runtime import run_parallel
from skbayes_sym.stacking.defaults import StackSettings, plan_fit
from skbayes_sym.stacking.members import LogTarget, Member, UserEstimator
from skbayes_sym.stacking.members.networks import NetworkProbe, ProbeResult
from skbayes_sym.stacking.scoring import mean_score, try_score_member
from skbayes_sym.stacking.task import ScoredMember, StackTask

# Actions whose stages don't depend on each other.
_PARALLEL_ACTIONS = ("fit_member", "probe_networks")


@dataclass(frozen=True, eq=False)
class StackFit:
    """Fitted members and their weights.

    Parameters
    ----------
    members : mapping of str to ScoredMember
        Members that were fitted.
    weights : mapping of str to float
        Stacking weights, with sum 1.
    plan : sequence of PlannedStage
        Plan of the fit.
    execution : Execution
        Outcome of the plan.
    stop_reason : {"tol", "max_seconds", "callback"}
        Why fitting stopped; "tol" if the plan was completed.
    """

    members: Mapping[str, ScoredMember]
    weights: Mapping[str, float]
    plan: Sequence[PlannedStage] = ()
    execution: Execution = field(default_factory=Execution)
    stop_reason: str = "tol"

    @property
    def n_iter(self) -> int:
        """Number of fitted members."""
        return len(self.members)

    @property
    def known(self) -> set[str]:
        """Members that need no further fit to the same rows: fitted and skipped ones."""
        return {*self.members, *self.execution.skipped}


def optimise_weights(density: Tensor, weight: Tensor, task: StackTask) -> Tensor:
    """Maximise the leave-one-out score of a mixture over its weights.

    The prior of the weights is a Dirichlet distribution whose concentrations decrease with the
    score of a member, see `StackDefaults.prior_score_scale`.

    Parameters
    ----------
    density : Tensor of shape (K, N)
        Held-out log densities of the members, in nats.
    weight : Tensor of shape (N,)
        Sample weights.
    task : StackTask
        Training data, for its constants.

    Returns
    -------
    Tensor of shape (K,)
        Weights with sum 1; small ones are 0.
    """
    score = density @ weight / weight.sum()
    prior = (score - score.max()) / task.defaults.prior_score_scale
    prior = prior.nan_to_num(0.0, neginf=-np.inf).exp()
    weights = stacking_weights(density, weight, prior=prior)
    weights = torch.where(weights < task.defaults.min_weight, 0.0, weights)
    return weights / weights.sum()


def fit_weights(members: Mapping[str, ScoredMember], task: StackTask) -> StackFit:
    """Maximise the leave-one-out score of the stack over the weights of its members.

    Only rows that all members left out are used.
    """
    density = torch.as_tensor(np.stack([member.log_density for member in members.values()]))
    is_known = ~density.isnan().any(0)
    weights = optimise_weights(density[:, is_known], task.weight[is_known], task)
    return StackFit(members, dict(zip(members, weights.tolist(), strict=True)))


def marginal_gain(
    members: Mapping[str, ScoredMember], log_density: Array, task: StackTask
) -> tuple[float, float]:
    """Gain of the stack from another member, and its standard error, in nats per row.

    The weights with and without the member are optimised on all but a fifth of the rows, and
    compared on these, for each fifth. The member therefore doesn't gain by its own weight.

    Parameters
    ----------
    members : mapping of str to ScoredMember
        The other members.
    log_density : ndarray of shape (N,)
        Held-out log densities of the member in nats; nan for unknown rows.
    task : StackTask
        Training data.

    Returns
    -------
    gain, error : float
        Both are 0 if fewer than two rows are known.
    """
    with_member = [*members.values(), ScoredMember(None, log_density)]
    density = torch.as_tensor(np.stack([one.log_density for one in with_member]))
    index = (~density.isnan().any(0)).nonzero().flatten()
    n_parts = min(task.defaults.n_folds, len(index))
    if n_parts < 2:
        return 0.0, 0.0
    difference = np.full(len(task), np.nan)
    part = torch.arange(len(index)) % n_parts
    for k in range(n_parts):
        train = index[part != k]
        test = index[part == k]
        scores = []
        for n_members in (len(members), len(with_member)):
            weights = optimise_weights(density[:n_members, train], task.weight[train], task)
            scores.append((density[:n_members, test] + weights.log().unsqueeze(1)).logsumexp(0))
        difference[test.numpy()] = (scores[1] - scores[0]).numpy()
    return mean_score(difference, task)


def mix_log_densities(stack: StackFit) -> Array:
    """Return leave-one-out log densities of a stack, (N,); nan for rows that a member lacks."""
    weighted = [
        member.log_density + log(stack.weights[name])
        for name, member in stack.members.items()
        if stack.weights[name]
    ]
    with np.errstate(invalid="ignore"):  # rows that no fold leaves out
        return np.logaddexp.reduce(weighted)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class FailedMember:
    """Member that couldn't be fitted.

    Parameters
    ----------
    error : str
        Type and message of the exception.
    """

    error: str

    def __str__(self) -> str:
        return f"failed ({self.error})"


def fit_and_score(
    members: Mapping[str, Member], task: StackTask, by_folds: bool, settings: Mapping[str, Any]
) -> ScoredMember | str:
    """Fit and score a member with the settings of its stage.

    Parameters
    ----------
    members : mapping of str to Member
        Unfitted members by name.
    task : StackTask
        Training data.
    by_folds : bool
        Whether the member is scored by cross-validation.
    settings : mapping
        ``member``, the name, and values of fields of the member.

    Returns
    -------
    ScoredMember or str
        Fitted member, or the error message if the fit failed.
    """
    member: Any = members[settings["member"]]
    fields = {name: value for name, value in settings.items() if name != "member"}
    if fields:
        member = replace(member, **fields)
    return try_score_member(member, task, by_folds)


class StackActions:
    """Actions of a stack's plan, and the members that they have fitted so far.

    Parameters
    ----------
    members : mapping of str to Member
        Unfitted members by name.
    task : StackTask
        Training data.
    progress : FitProgress
        Progress of the fit.
    by_folds : bool
        Whether all members are scored by cross-validation.
    """

    def __init__(
        self, members: Mapping[str, Member], task: StackTask, progress: FitProgress, by_folds: bool
    ) -> None:
        self._members = members
        self._task = task
        self._progress = progress
        self._by_folds = by_folds
        # Action, member and outcome of the fits, and those that no stage has collected.
        self._parallel_fits: Iterator[tuple[tuple[str, str], ScoredMember | str]] = iter(())
        self._outcomes: dict[tuple[str, str], ScoredMember | str] = {}
        self._plan: Sequence[PlannedStage] = ()
        self._members_receiver: Receiver | None = None  # of all members that run in parallel
        self.scored: dict[str, ScoredMember] = {}
        self.failed: dict[str, FailedMember] = {}

    def execute(self, plan: Sequence[PlannedStage], n_jobs: int | None) -> Execution:
        """Run a plan; members and probes of networks are fitted in parallel.

        The longest fits begin first. A single thread, and a fit that may run out of time, begin in
        the order of the plan.
        """
        self._plan = plan
        self._progress.begin(self._task.defaults.progress_blocks)
        stages = [stage for stage in plan if stage.action in _PARALLEL_ACTIONS]
        if joblib.effective_n_jobs(n_jobs) > 1 and self._task.deadline == np.inf:
            stages = self._sort_by_cost(stages)
            members = [stage for stage in stages if stage.action == "fit_member"]
            plan = [*members, *(stage for stage in plan if stage.action != "fit_member")]
        jobs = [self._make_job(stage) for stage in stages]
        costs = self._task.defaults.progress_costs
        self._members_receiver = self._stage_receiver(sum(costs[stage.action] for stage in stages))
        actions: dict[str, Callable[..., Any]] = {
            "fit_member": self._fit_member,
            "probe_networks": self._probe_networks,
            "fit_networks": self._fit_networks,
            "maximise_leave_one_out_score": self._fit_weights,
        }
        keys = [(stage.action, stage.settings["member"]) for stage in stages]
        # Estimators of the user may hold the global interpreter lock, or not be safe in threads.
        has_user_estimators = any(isinstance(m, UserEstimator) for m in self._members.values())
        prefer = None if has_user_estimators else "threads"
        with closing(run_parallel(jobs, n_jobs, prefer=prefer)) as fits:
            self._parallel_fits = zip(keys, fits, strict=True)
            return execute(plan, actions, self._should_stop)

    def _sort_by_cost(self, stages: Sequence[PlannedStage]) -> list[PlannedStage]:
        """Sort stages by decreasing cost, every second one with an exclusive fit.

        Two threads with exclusive fits would wait for one another.
        """
        ordered = sorted(stages, key=lambda stage: -self._member(stage).relative_cost)
        exclusive = [stage for stage in ordered if self._member(stage).has_exclusive_fit]
        others = [stage for stage in ordered if not self._member(stage).has_exclusive_fit]
        pairs = zip_longest(others, exclusive)
        return [stage for pair in pairs for stage in pair if stage is not None]

    def _member(self, stage: PlannedStage) -> Member:
        """Return the member that a stage fits, without a transformation of the targets."""
        if stage.action == "probe_networks":
            return NetworkProbe(stage.settings["width"])
        member = self._members[stage.settings["member"]]
        if isinstance(member, LogTarget):
            return member.inner
        return member

    def _make_job(self, stage: PlannedStage) -> Callable[[], ScoredMember | str]:
        """Return the fit of a stage, for another thread or process."""
        if stage.action == "probe_networks":
            return partial(try_score_member, self._member(stage), self._task, by_folds=False)
        return partial(fit_and_score, self._members, self._task, self._by_folds, stage.settings)

    def _await_fit(self, action: str, member: str) -> ScoredMember | str:
        """Return the outcome of a stage that is fitted in parallel with others."""
        with reporting_to(self._members_receiver):
            while (action, member) not in self._outcomes:
                key, outcome = next(self._parallel_fits)
                self._outcomes[key] = outcome
        return self._outcomes.pop((action, member))

    def _stage_receiver(self, cost: float) -> Receiver:
        """Return the receiver of progress reports in the next stages, of this relative cost."""
        costs = self._task.defaults.progress_costs
        total = sum(costs[stage.action] for stage in self._plan)
        return self._progress.stage_receiver(cost / total)

    def current_fit(self) -> StackFit:
        """Stack of the members that have been fitted."""
        execution = Execution(dict(self.scored))
        stack = fit_weights(self.scored, self._task)
        return replace(stack, plan=self._plan, execution=execution)

    @property
    def stop_reason(self) -> str:
        """Why fitting stopped."""
        if self._progress.is_stopped:
            return "callback"
        if time.monotonic() > self._task.deadline:
            return "max_seconds"
        return "tol"

    def _should_stop(self) -> bool:
        """Whether there is a member, and a callback stopped the fit or time is up."""
        is_late = time.monotonic() > self._task.deadline
        return bool(self.scored) and (self._progress.is_stopped or is_late)

    def _fit_member(
        self, _results: Results, member: str, **_settings: Any
    ) -> ScoredMember | FailedMember:
        """Collect one of the members that are fitted in parallel."""
        return self._collect(member, self._await_fit("fit_member", member))

    def _fit_networks(
        self, results: Results, member: str, probe: str = ""
    ) -> ScoredMember | FailedMember:
        """Fit networks; ``probe`` is the name of the stage that has scored a probe of them."""
        settings: dict[str, Any] = {"member": member}
        if probe in results:
            settings["probe"] = results[probe]
        cost = self._task.defaults.progress_costs["fit_networks"]
        with reporting_to(self._stage_receiver(cost)):
            outcome = fit_and_score(self._members, self._task, self._by_folds, settings)
        return self._collect(member, outcome)

    def _collect(self, name: str, outcome: ScoredMember | str) -> ScoredMember | FailedMember:
        """Keep a fitted member, or warn about one that failed."""
        if isinstance(outcome, str):
            self.failed[name] = FailedMember(outcome)
            warn_user(f"member {name!r} failed and is left out: {outcome}", FitFailedWarning)
            return self.failed[name]
        # The order of the plan, in which the weights don't depend on the number of processes.
        scored = {**self.scored, name: outcome}
        self.scored = {
            stage.name: scored[stage.name] for stage in self._plan if stage.name in scored
        }
        self._progress.set_current_fit(self.current_fit)
        mean, error = mean_score(outcome.log_density, self._task)
        log_info("%s: %.4g +- %.2g nats per held-out row, scaled", name, mean, error)
        self._progress.report_block(shows_fit=True)
        return outcome

    def _probe_networks(self, _results: Results, member: str, **_settings: Any) -> ProbeResult:
        """Score small networks on rows that they haven't seen, next to the other members."""
        outcome = self._await_fit("probe_networks", member)
        if isinstance(outcome, str):
            # The fit of the networks raises the error again, and reports it.
            return ProbeResult()
        others = self._useful_members()
        gain, error = marginal_gain(others, outcome.log_density, self._task)
        return ProbeResult(outcome.log_density, gain, error, outcome.approximate)

    def _fit_weights(self, _results: Results) -> StackFit:
        """Optimise the weights of the members."""
        if not self.scored:
            errors = "; ".join(f"{name}: {member.error}" for name, member in self.failed.items())
            raise ValueError(f"no member of the stack could be fitted. {errors}")
        return fit_weights(self._useful_members(), self._task)

    def _useful_members(self) -> dict[str, ScoredMember]:
        """Fitted members, without those of the logarithm of targets if these gain too little."""
        plain = {
            name: member
            for name, member in self.scored.items()
            if not isinstance(self._members[name], LogTarget)
        }
        if not plain or len(plain) == len(self.scored):
            return self.scored
        stack = fit_weights(self.scored, self._task)
        plain_stack = fit_weights(plain, self._task)
        gain = mix_log_densities(stack) - mix_log_densities(plain_stack)
        is_gain = mean_score(gain, self._task)[0] > self._task.defaults.min_log_gain
        return self.scored if is_gain else plain


def fit_stack(
    members: Mapping[str, Member],
    task: StackTask,
    progress: FitProgress,
    *,
    by_folds: bool,
    n_jobs: int | None,
) -> StackFit:
    """Plan the fit of a stack and execute the plan.

    Parameters
    ----------
    members : mapping of str to Member
        Unfitted members by name.
    task : StackTask
        Training data.
    progress : FitProgress
        Progress of the fit.
    by_folds : bool
        Whether all members are scored by cross-validation.
    n_jobs : int or None
        Number of threads, or of processes with estimators of the user.

    Returns
    -------
    StackFit
        Fitted members, their weights and the executed plan.

    Raises
    ------
    ValueError
        If no member could be fitted.
    """
    size = TableSize(
        n_rows=len(task),
        n_columns=max(1, task.rows.x.shape[1]),
        n_classes=task.n_classes,
        total_weight=float(task.weight.sum()),
    )
    plan = plan_fit(size, StackSettings(members), task.defaults)
    actions = StackActions(members, task, progress, by_folds)

    execution = actions.execute(plan, n_jobs)

    # Name the members for which there was no time.
    stop_reason = actions.stop_reason
    missing = [name for name in execution.unreached if name in members]
    if stop_reason == "max_seconds" and missing:
        warn_user(
            f"max_seconds left no time for {', '.join(missing)}, which the stack doesn't have. "
            "Raise max_seconds, or name fewer estimators."
        )

    stack = replace(
        execution.results["weights"], plan=plan, execution=execution, stop_reason=stop_reason
    )
    progress.end(stack)
    return stack
