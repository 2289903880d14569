"""Fit the members of a stack one after the other and optimise their weights."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import log

import numpy as np
import torch
from sklearn.exceptions import FitFailedWarning

from skbayes_sym.base.log import log_info
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.stacking_weights import stacking_weights
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.numerics.runtime import run_parallel
from skbayes_sym.stacking.members import Member, Networks
from skbayes_sym.stacking.scoring import ScoredMember, mean_score, try_score_member
from skbayes_sym.stacking.task import StackTask


@dataclass(frozen=True, eq=False)
class StackFit:
    """Fitted members and their weights.

    Parameters
    ----------
    members : mapping of str to ScoredMember
        Members that were fitted.
    weights : mapping of str to float
        Stacking weights, with sum 1.
    reasons : tuple of str
        Why other members are missing.
    stop_reason : {"tol", "max_seconds", "callback"}
        Why fitting stopped; "tol" if every member of the plan was fitted.
    known : frozenset of str
        Names of members that need no further fit to the same rows: fitted ones, and networks whose
        probe was far behind.
    """

    members: Mapping[str, ScoredMember]
    weights: Mapping[str, float]
    reasons: tuple[str, ...] = ()
    stop_reason: str = "tol"
    known: frozenset[str] = frozenset()

    @property
    def n_iter(self) -> int:
        """Number of fitted members."""
        return len(self.members)


def fit_weights(members: Mapping[str, ScoredMember], task: StackTask) -> StackFit:
    """Maximise the leave-one-out score of the stack over the weights of its members.

    Only rows that all members left out are used. The prior of the weights is a Dirichlet
    distribution whose concentrations decrease with the score of a member, see
    `StackDefaults.prior_score_scale`.
    """
    density = torch.as_tensor(np.stack([member.log_density for member in members.values()]))
    is_known = ~density.isnan().any(0)
    density = density[:, is_known]
    weight = task.weight[is_known]
    score = density @ weight / weight.sum()
    prior = (score - score.max()) / task.defaults.prior_score_scale
    prior = prior.nan_to_num(0.0, neginf=-np.inf).exp()
    prior = prior * prior.new_tensor([member.prior_rows for member in members.values()])
    weights = stacking_weights(density, weight, prior=prior)
    weights = torch.where(weights < task.defaults.min_weight, 0.0, weights)
    weights = weights / weights.sum()
    return StackFit(members, dict(zip(members, weights.tolist(), strict=True)))


def fit_stack(
    members: Mapping[str, Member],
    task: StackTask,
    progress: FitProgress,
    *,
    by_folds: bool,
    n_jobs: int | None,
) -> StackFit:
    """Fit cheap members first, then networks, unless their probe is far behind.

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
        Number of processes.

    Returns
    -------
    StackFit
        Fitted members and their weights.

    Raises
    ------
    ValueError
        If no member could be fitted.
    """
    progress.begin(len(members), lambda: fit_weights(judged, task))
    judged: dict[str, ScoredMember] = {}
    reasons: list[str] = []
    failed: dict[str, str] = {}
    outrun: list[str] = []
    stop = False
    late = [name for name, member in members.items() if isinstance(member, Networks)]
    early = [name for name in members if name not in late]
    jobs = [partial(try_score_member, members[name], task, by_folds) for name in early]
    with closing(run_parallel(jobs, n_jobs)) as fits:
        for name in [*early, *late]:
            if stop or (judged and time.monotonic() > task.deadline):
                break
            member = members[name]
            behind = _behind(member, judged, task)
            if behind is not None:
                outrun.append(name)
                reasons.append(
                    f"{name} began {behind:.2f} nats per row behind and weren't finished"
                )
                continue
            answer = next(fits) if name in early else try_score_member(member, task, by_folds)
            if isinstance(answer, str):
                failed[name] = answer
                warn_user(f"member {name!r} failed and is left out: {answer}", FitFailedWarning)
                continue
            judged[name] = answer
            mean, error = mean_score(answer.log_density, task)
            log_info("%s: %.4g +- %.2g nats per left-out row, scaled", name, mean, error)
            stop = progress.end_block()
    if not judged:
        told = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise ValueError(f"no member of the stack could be fitted. {told}")
    reasons += [f"{name} failed" for name in failed]
    missing = [n for n in members if n not in {*judged, *failed, *outrun}]
    is_late = time.monotonic() > task.deadline
    if is_late and not stop and missing:
        reasons += [f"no time was left for {name}" for name in missing]
        warn_user(
            f"max_seconds left no time for {', '.join(missing)}, which the stack doesn't have. "
            "Raise max_seconds, or name fewer estimators."
        )
    known = frozenset([*judged, *outrun])
    stack = replace(fit_weights(judged, task), reasons=tuple(reasons), known=known)
    if stop or is_late:
        stack = replace(stack, stop_reason="callback" if stop else "max_seconds")
    progress.end(stack)
    return stack


def _behind(member: Member, judged: Mapping[str, ScoredMember], task: StackTask) -> float | None:
    if not judged or not isinstance(member, Networks) or member.previous is not None:
        return None
    scores = {name: mean_score(m.log_density, task)[0] for name, m in judged.items()}
    best = max(scores, key=lambda name: scores[name])
    try:
        if not task.n_classes:
            # Counts have probabilities, which are densities per count: probes have scaled units.
            unit = log(task.target_scaling[1]) if task.is_count else 0.0
            enough = scores[best] + unit - task.defaults.max_probe_gap
            gap = scores[best] + unit - member.probe(task, enough)
        elif not task.folds or (begun := member.refit_before_fit(task)) is None:
            return None
        else:
            test, density = begun
            away = judged[best].log_density[test] - density
            gap, error = mean_score(away, task.take(test))
            gap = gap if gap > error else 0.0
    except (ArithmeticError, RuntimeError, ValueError):
        return None  # the fit itself says what is wrong
    return gap if gap > task.defaults.max_probe_gap else None
