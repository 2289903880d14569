"""How a stack is fitted: members one after the other, then their weights by left-out rows."""

import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import FitFailedWarning
from torch import Tensor

from skbayes_sym.base.device import one_thread
from skbayes_sym.base.log import log_info
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.rows import Array
from skbayes_sym.base.stacking_weights import (
    ShapedPredictor,
    fit_calibration,
    judge_noise_shape,
    stacking_weights,
)
from skbayes_sym.base.warnings import collect_warnings, warn_user
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.runtime import run_parallel
from skbayes_sym.stacking.members import (
    LEAST_VARIANCE,
    Fit,
    Member,
    Networks,
    Process,
    StackTask,
    UserEstimator,
)
from skbayes_sym.stacking.predictors import CalibratedPredictor, CountsPredictor, StackPart


class CountsFoundError(Exception):
    """A member predicts counts, which no member was scored as."""


class ScoredMember(NamedTuple):
    """A member that was fitted: what predicts, and log densities (N,) of left-out rows, nats."""

    part: Any
    log_density: Array
    worth: float = 1.0  # rows beforehand, as the best of all


@dataclass(frozen=True, eq=False)
class StackFit:
    """Members and their weights (so far), and why others aren't among them.

    ``considered``: names of the members that need no further fit of the same data: those that were
    fitted, and networks that began too far behind.
    """

    members: Mapping[str, ScoredMember]
    weights: Mapping[str, float]
    reasons: tuple[str, ...] = ()
    stop_reason: str = "tol"
    considered: frozenset[str] = frozenset()

    @property
    def n_iter(self) -> int:
        """Number of members."""
        return len(self.members)


def mean_score(density: Array, task: StackTask) -> tuple[float, float]:
    """Mean log density of left-out rows and its standard error, scaled units."""
    known = np.isfinite(density)
    weight = task.weight.numpy()[known]
    share = weight / weight.sum()
    mean = float(share @ density[known])
    variance = float(share @ (density[known] - mean) ** 2)
    return mean, (variance / max(1.0, weight.sum() - 1.0)) ** 0.5


def weighed(members: Mapping[str, ScoredMember], task: StackTask) -> StackFit:
    """The stack of these members, with weights by the rows that all of them leave out."""
    density = torch.as_tensor(np.stack([m.log_density for m in members.values()]))
    known = ~density.isnan().any(0)
    density = density[:, known]
    weight = task.weight[known]
    score = density @ weight / weight.sum()
    prior = ((score - score.max()) / task.effort.forgiven).nan_to_num(0.0, neginf=-np.inf).exp()
    prior = prior * prior.new_tensor([m.worth for m in members.values()])
    p = stacking_weights(density, weight, prior=prior)
    p = torch.where(p < task.effort.least_weight, 0.0, p)
    return StackFit(members, dict(zip(members, (p / p.sum()).tolist(), strict=True)))


def fit_stack(
    members: Mapping[str, Member],
    task: StackTask,
    progress: FitProgress,
    *,
    by_folds: bool,
    n_jobs: int | None,
) -> StackFit:
    """Fit cheap members first; networks that start far behind the best of them aren't finished.

    ``by_folds``: whether every member's left-out rows are those of the folds.
    """
    progress.begin(len(members), lambda: weighed(judged, task))
    judged: dict[str, ScoredMember] = {}
    reasons: list[str] = []
    failed: dict[str, str] = {}
    outrun: list[str] = []  # networks that began too far behind
    stop = False
    late = [name for name, member in members.items() if isinstance(member, Networks)]
    early = [name for name in members if name not in late]
    jobs = [partial(attempt, members[name], task, by_folds) for name in early]
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
            answer = next(fits) if name in early else attempt(member, task, by_folds)
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
    considered = frozenset([*judged, *outrun])
    stack = replace(weighed(judged, task), reasons=tuple(reasons), considered=considered)
    if stop or is_late:
        stack = replace(stack, stop_reason="callback" if stop else "max_seconds")
    progress.end(stack)
    return stack


def _behind(member: Member, judged: Mapping[str, ScoredMember], task: StackTask) -> float | None:
    """How far behind the best of the others networks begin, where they are out of the race.

    Those of labels begin with what they would need anyway, a refit (on six settling tables another
    probe took a third of the time again, and stopped nothing), and are out by more than its error.
    """
    if not judged or not isinstance(member, Networks) or member.last is not None:
        return None
    scores = {name: mean_score(m.log_density, task)[0] for name, m in judged.items()}
    best = max(scores, key=lambda name: scores[name])
    try:
        if not task.n_classes:
            # Counts have probabilities, which are densities per count: probes have scaled units.
            unit = log(task.of_y[1]) if task.is_counts else 0.0
            enough = scores[best] + unit - task.effort.race
            gap = scores[best] + unit - member.probe(task, enough)
        elif not task.folds or (begun := member.begin(task)) is None:
            return None
        else:
            test, density = begun
            away = judged[best].log_density[test] - density
            gap, error = mean_score(away, task.take(test))
            gap = gap if gap > error else 0.0
    except (ArithmeticError, RuntimeError, ValueError):
        return None  # the fit itself says what is wrong
    return gap if gap > task.effort.race else None


def attempt(member: Member, task: StackTask, by_folds: bool) -> ScoredMember | str:
    """Fit and judge a member; what went wrong where it fails."""
    try:
        # Users can reach their own estimators only: warnings of other members are dropped.
        silence = nullcontext() if isinstance(member, UserEstimator) else collect_warnings()
        with one_thread(), torch.enable_grad(), silence:
            return score_member(member, task, by_folds)
    except CountsFoundError:
        raise
    except Exception as error:  # whatever anyone's model raises
        return f"{type(error).__name__}: {error}"


def _counted(base: Any, task: StackTask) -> Any:
    """A predictor whose distributions are of counts if any member's are."""
    return CountsPredictor(base, *task.of_y) if task.is_counts else base


def _require_one_measure(fit: Fit, task: StackTask) -> None:
    """Raise if a member gives probabilities to numbers that others have densities for."""
    distribution = fit.part.distribution(task.rows.take(np.arange(1)).as_given)
    if not distribution.is_discrete:
        return
    if is_of_counts(task.targets):
        raise CountsFoundError
    raise ValueError(
        "it predicts whole numbers, whose probabilities can't share a score with the densities of "
        "the other members, and not all targets are counts."
    )


def is_of_counts(targets: Array) -> bool:
    """Whether all targets are whole numbers from 0 on."""
    return bool(((targets >= 0) & (targets == np.floor(targets))).all())


def score_member(member: Member, task: StackTask, by_folds: bool) -> ScoredMember:
    """Fit a member; give its predictions noise, or calibrate them, by the rows it leaves out."""
    fit = member.fit(task)
    if isinstance(member, UserEstimator) and not task.n_classes and not task.is_counts:
        _require_one_measure(fit, task)
    without = fit.leave_one_out
    if without is None or (by_folds and not fit.is_by_folds):
        without = _by_folds(member, task, fit)
    if task.n_classes and not fit.is_final:
        assert isinstance(without, Tensor)
        calibration = fit_calibration(without, task.y, task.weight)
        density = calibration.log_probs(without)[torch.arange(len(task)), task.y]
        base: Any = CalibratedPredictor(fit.part, calibration)
    elif isinstance(without, NormalMixture):
        base, density = _shaped(fit, without, task)
    else:
        base = fit.part
        density = without
        if not task.n_classes:
            base = ShapedPredictor(fit.part, None, resolution(task))
    if bool(density.isposinf().any() | density.isnan().all()):
        raise ValueError("the log densities of its left-out rows are no numbers.")
    reads_given = isinstance(member, UserEstimator)
    part = StackPart(_counted(base, task), reads_given)
    if reads_given and not task.n_classes:
        distribution = part.distribution(task.rows.take(np.arange(1)))
        part = replace(part, is_normal=isinstance(distribution, NormalMixture))
    if task.is_counts:
        part = replace(part, is_normal=False, is_discrete=True)
    is_process = isinstance(member, Process) and not task.n_classes
    worth = task.effort.process_rows if is_process else 1.0
    return ScoredMember(part, density.numpy() - fit.optimism, worth)


def _shaped(
    fit: Fit, distribution: NormalMixture, task: StackTask
) -> tuple[ShapedPredictor, Tensor]:
    """A part of numbers with noise as its left-out rows ask for."""
    base = distribution
    weight = task.weight
    log_unit = 0.0
    if fit.is_point_prediction:
        square = weight @ (task.y - distribution.mean()).square() / weight.sum()
        square = square.clamp_min(LEAST_VARIANCE)
        log_unit = 0.5 * float(square.log())
        base = replace(distribution, noise_variance=distribution.noise_variance * square)
    floor = resolution(task)
    shape, log_density = judge_noise_shape(
        base, task.y, weight, is_free=True, floor=floor, n_fitted=fit.optimism * len(task)
    )
    assert shape is not None
    shape = replace(
        shape, offset=shape.offset + log_unit, mean_square=shape.mean_square * exp(2.0 * log_unit)
    )
    part = ShapedPredictor(fit.part, shape, floor)
    if task.is_counts:
        shaped = part.shaped(distribution)
        log_mass = CountsPredictor(part, *task.of_y).counted(shaped).log_prob(task.y)
        # What the shape has gained by having seen the rows is taken off masses as off densities.
        return part, log_mass + log_density - shaped.log_prob(task.y)
    return part, log_density


def _by_folds(member: Member, task: StackTask, fit: Fit) -> NormalMixture | Tensor:
    """Left-out rows of every fold: a law or scores, or log densities of what is final."""
    places = []
    answers = []
    for train, test in task.folds:
        rows = task.take(test)
        base = member.fit(task.take(train)).part
        is_complete = fit.is_final and not task.n_classes
        part = StackPart(
            _counted(base, task) if is_complete else base, isinstance(member, UserEstimator)
        )
        places.append(torch.as_tensor(test))
        if fit.is_final and task.n_classes:  # codes of a fold that lacks a class are others
            answers.append(base.log_density(rows.rows.x, rows.targets))
        elif fit.is_final:
            answers.append(part.distribution(rows.rows).log_prob(rows.y))
        else:
            answers.append(part.mean(rows.rows) if task.n_classes else part.distribution(rows.rows))
    order = torch.cat(places).argsort()
    if fit.is_final or task.n_classes:
        return torch.cat(answers)[order]
    wide = [
        (
            distribution.loc,
            distribution.variance.expand_as(distribution.loc),
            distribution.noise_variance.expand_as(distribution.loc),
        )
        for distribution in answers
    ]
    return NormalMixture(*(torch.cat(parts, 1)[:, order] for parts in zip(*wide, strict=True)))


def resolution(task: StackTask) -> float:
    r"""Standard deviation of rounding to the targets' grid, scaled units; 0 of labels.

    A log score rewards ever narrower spikes at values that targets take again and again: no
    predicted width is less than :math:`\delta / \sqrt{12}`, with the least difference
    :math:`\delta` of two targets.
    """
    y = task.y.unique()
    gaps = y.diff()
    gaps = gaps[gaps > 1e-9 * (y[-1] - y[0])]  # less is rounding
    return float(gaps.min()) / 12.0**0.5 if len(gaps) and not task.n_classes else 0.0
