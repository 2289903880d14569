"""Leave-one-out scores of members, with the noise models and calibrations that they need."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import exp
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.calibration import fit_calibration
from skbayes_sym.base.groups import scale_weights_to_groups
from skbayes_sym.base.messages import collect_warnings
from skbayes_sym.base.noise_shape import ShapedPredictor, fit_noise_shape
from skbayes_sym.base.rows import Array
from skbayes_sym.base.stacking_weights import merge_components
from skbayes_sym.models.copula import middle_cdf
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.arguments import select_optional
from skbayes_sym.numerics.progress import part_of_progress
from skbayes_sym.numerics.runtime import one_thread
from skbayes_sym.stacking.members import LogTarget, Member, UserEstimator
from skbayes_sym.stacking.members.log_target import standardise_logarithm
from skbayes_sym.stacking.predictors import (
    CalibratedPredictor,
    CountsPredictor,
    LogPredictor,
    MemberPredictor,
)
from skbayes_sym.stacking.task import HeldOutScores, MemberFit, ScoredMember, StackTask

# Smallest mean squared residual of point predictions, in scaled units.
_MIN_SQUARE = 1e-12


class CountMemberError(Exception):
    """A member predicts counts, so that all members have to be scored as counts."""


def mean_score(density: Array, task: StackTask) -> tuple[float, float]:
    """Mean log density of known rows and its standard error, in nats per row and scaled units."""
    is_known = np.isfinite(density)
    weight = task.weight.numpy()[is_known]
    share = weight / weight.sum()
    mean = float(share @ density[is_known])
    variance = float(share @ (density[is_known] - mean) ** 2)
    return mean, (variance / max(1.0, weight.sum() - 1.0)) ** 0.5


def try_score_member(member: Member, task: StackTask, by_folds: bool) -> ScoredMember | str:
    """Fit and score a member, or return the error message if that fails.

    Parameters
    ----------
    member : Member
        Unfitted member.
    task : StackTask
        Training data.
    by_folds : bool
        Whether it is scored by cross-validation.
    """
    try:
        # Users can only change their own estimators, so that warnings of others are dropped.
        is_user = isinstance(member, UserEstimator)
        warnings_context = nullcontext() if is_user else collect_warnings()
        with one_thread(), torch.enable_grad(), warnings_context:
            return score_member(member, task, by_folds)
    except CountMemberError:
        raise
    except Exception as error:  # a user's estimator can raise anything
        return f"{type(error).__name__}: {error}"


def score_member(member: Member, task: StackTask, by_folds: bool) -> ScoredMember:
    """Fit a member, and fit its noise model or calibration to its held-out predictions.

    Parameters
    ----------
    member : Member
        Unfitted member.
    task : StackTask
        Training data.
    by_folds : bool
        Whether held-out predictions are those of refits without each fold, even if the member has
        leave-one-out predictions of its own.

    Returns
    -------
    ScoredMember
        Predictor and leave-one-out log densities.

    Raises
    ------
    CountMemberError
        If the member predicts counts while others are scored by densities.
    ValueError
        If the log densities of the held-out rows aren't finite.
    """
    if isinstance(member, LogTarget):
        return _score_log_target(member, task, by_folds)
    # Refits without each fold take longer than the fit, if the user asks for them.
    fit_fraction = 0.2 if by_folds else 0.8
    with part_of_progress(0.0, fit_fraction):
        fit = member.fit(task)
    reads_original_rows = member.reads_original_rows
    if reads_original_rows and not task.n_classes and not task.is_count:
        _require_density(fit, task)
    with part_of_progress(fit_fraction, 1.0):
        held_out, cdf, scored = _hold_out(member, task, fit, by_folds)

    # Calibrate probabilities of classes, or fit the noise of regression.
    if task.n_classes and not fit.is_calibrated:
        assert isinstance(held_out, Tensor)
        calibration = fit_calibration(held_out, scored.y, scored.weight)
        density = calibration.log_probs(held_out)[torch.arange(len(scored)), scored.y]
        base: Any = CalibratedPredictor(fit.predictor, calibration)
    elif isinstance(held_out, NormalMixture):
        base, density, cdf = _fit_noise(fit, held_out, scored, rounding_std(task))
    else:
        base = fit.predictor
        density = held_out
        if not task.n_classes:
            base = ShapedPredictor(fit.predictor, None, rounding_std(task))

    # Rows that no fold leaves out have unknown scores.
    if len(scored) < len(task):
        unknown = torch.full_like(task.weight, torch.nan)
        scored_index = (torch.as_tensor(task.left_out_index),)
        density = unknown.index_put(scored_index, density)
        if cdf is not None:
            cdf = unknown.index_put(scored_index, cdf)
    if bool(density.isposinf().any() | density.isnan().all()):
        raise ValueError("the log densities of its held-out rows aren't finite.")

    predictor = MemberPredictor(_as_counts(base, task), reads_original_rows)
    if reads_original_rows and not task.n_classes:
        distribution = predictor.distribution(task.rows.take(np.arange(1)))
        predictor = replace(predictor, is_normal=isinstance(distribution, NormalMixture))
    if task.is_count:
        predictor = replace(predictor, is_normal=False, is_discrete=True)
    return ScoredMember(
        predictor,
        density.numpy() - fit.optimism,
        None if cdf is None else cdf.numpy(),
        fit.approximate,
    )


class _HeldOut(NamedTuple):
    """Held-out predictions of a member.

    Parameters
    ----------
    predictions : NormalMixture or Tensor
        Distributions (S, n, 1), scores of classes (n, K), or log densities (n,) in nats.
    cdf : Tensor of shape (n,), optional
        Distribution function at the targets.
    task : StackTask
        The n rows that they predict: all rows of the stack, or those that a fold leaves out.
    """

    predictions: Any
    cdf: Tensor | None
    task: StackTask


def _hold_out(member: Member, task: StackTask, fit: MemberFit, by_folds: bool) -> _HeldOut:
    """Return leave-one-out predictions of a fit, or those of refits without each fold.

    Parameters
    ----------
    member : Member
        Unfitted member.
    task : StackTask
        Training data.
    fit : MemberFit
        Fit to all rows.
    by_folds : bool
        Whether to refit even if the fit has leave-one-out predictions of its own.

    Returns
    -------
    _HeldOut
    """
    held_out: Any = fit.leave_one_out
    cdf = None
    uses_folds = held_out is None or by_folds or fit.used_folds
    if held_out is None or (by_folds and not fit.used_folds):
        folds = task.folds
        if not by_folds:
            folds = member.choose_folds(task)
        held_out = _predict_folds(member, task, fit, folds)
    if isinstance(held_out, HeldOutScores):
        held_out, cdf = held_out
    if not uses_folds or len(task.left_out_index) == len(task):
        return _HeldOut(held_out, cdf, task)

    # Forward folds leave out only some of the rows, and only these are scored.
    index = task.left_out_index
    scored = replace(task.take(index), groups=select_optional(task.groups, index))
    if len(_row_values(held_out)) == len(task):
        held_out = _take_rows(held_out, index)
    return _HeldOut(held_out, cdf, scored)


def _row_values(held_out: NormalMixture | Tensor) -> Tensor:
    """Values of held-out predictions with the rows as their first axis."""
    if isinstance(held_out, NormalMixture):
        return held_out.mean()
    return held_out


def _take_rows(held_out: NormalMixture | Tensor, index: Array) -> NormalMixture | Tensor:
    """Select rows of held-out predictions."""
    if isinstance(held_out, Tensor):
        return held_out[torch.as_tensor(index)]
    return replace(
        held_out,
        loc=held_out.loc[:, index],
        variance=held_out.variance.expand_as(held_out.loc)[:, index],
        noise_variance=held_out.noise_variance.expand_as(held_out.loc)[:, index],
    )


def _score_log_target(member: LogTarget, task: StackTask, by_folds: bool) -> ScoredMember:
    """Fit a member to the logarithm of the targets, and score it by the density of the targets."""
    if task.is_count:
        raise ValueError(
            "its logarithmic target has a density, which can't be compared with probabilities."
        )
    y, log_mean, log_scale = standardise_logarithm(task)
    log_task = replace(task, y=y, target_scaling=(log_mean, log_scale))
    scored = score_member(member.inner, log_task, by_folds)

    # Change of variables from the standardised logarithm to the standardised target.
    target_mean, target_scale = task.target_scaling
    log_jacobian = np.log(target_scale) - np.log(log_scale) - np.log(task.targets)
    max_log = float(np.log(task.targets.max()) + np.log(task.defaults.max_target_factor))
    base = LogPredictor(
        scored.predictor.base, log_mean, log_scale, max_log, target_mean, target_scale
    )
    predictor = MemberPredictor(base, is_normal=False)
    # The logarithm increases, so that the distribution function stays the same.
    return scored._replace(predictor=predictor, log_density=scored.log_density + log_jacobian)


def _as_counts(base: Any, task: StackTask) -> Any:
    """Round the distributions of a predictor to counts if the task is one of counts."""
    if task.is_count:
        return CountsPredictor(base, *task.target_scaling)
    return base


def _require_density(fit: MemberFit, task: StackTask) -> None:
    """Raise an error if a member predicts probabilities where other members predict densities."""
    distribution = fit.predictor.distribution(task.rows.take(np.arange(1)).original)
    if not distribution.is_discrete:
        return
    if are_counts(task.targets):
        raise CountMemberError
    raise ValueError(
        "it predicts whole numbers, whose probabilities can't share a score with the densities of "
        "the other members, and not all targets are counts."
    )


def are_counts(targets: Array) -> bool:
    """Whether all targets are whole numbers from 0 on."""
    return bool(((targets >= 0) & (targets == np.floor(targets))).all())


def _fit_noise(
    fit: MemberFit, distribution: NormalMixture, task: StackTask, floor: float
) -> tuple[ShapedPredictor, Tensor, Tensor]:
    """Fit a noise model to leave-one-out residuals.

    Parameters
    ----------
    fit : MemberFit
        Fitted member.
    distribution : NormalMixture
        Held-out predictive distributions of the rows.
    task : StackTask
        Rows that are scored.
    floor : float
        Least standard deviation of predictions.

    Returns
    -------
    predictor : ShapedPredictor
        Predictor with this noise.
    log_density : Tensor of shape (N,)
        Its held-out log densities.
    cdf : Tensor of shape (N,)
        Its held-out distribution function at the targets.
    """
    # Point predictions get the level of their residuals first.
    base = distribution
    log_unit = 0.0
    if fit.is_point_prediction:
        residual = task.y - distribution.mean()
        mean_square = task.weight @ residual.square() / task.weight.sum()
        mean_square = mean_square.clamp_min(_MIN_SQUARE)
        log_unit = 0.5 * float(mean_square.log())
        base = replace(distribution, noise_variance=distribution.noise_variance * mean_square)

    # Rows of a group tell less about the noise than as many independent rows.
    weight = task.weight
    n_fitted = fit.optimism * len(task)
    if task.groups is not None:
        std = (base.variance + base.noise_variance).sqrt()[0, :, 0]
        residual = (task.y - base.mean())[:, 0] / std
        weight = scale_weights_to_groups(residual, weight, task.groups)
        n_fitted = n_fitted * float(weight.sum() / task.weight.sum())
    shape, log_density = fit_noise_shape(
        base, task.y, weight, is_free=True, floor=floor, n_fitted=n_fitted
    )
    assert shape is not None
    shape = replace(
        shape, offset=shape.offset + log_unit, mean_square=shape.mean_square * exp(2.0 * log_unit)
    )
    predictor = ShapedPredictor(fit.predictor, shape, floor)
    shaped = predictor.shaped(distribution)
    if not task.is_count:
        return predictor, log_density, shaped.cdf(task.y)[:, 0]

    # The noise model has seen the rows. Its leave-one-out density is lower by the same amount.
    counts = CountsPredictor(predictor, *task.target_scaling).round_distribution(shaped)
    log_probability = counts.log_prob(task.y)
    log_density = log_probability + log_density - shaped.log_prob(task.y)
    return predictor, log_density, middle_cdf(counts, task.y)[:, 0]


def _predict_folds(
    member: Member, task: StackTask, fit: MemberFit, folds: Sequence[tuple[Array, Array]]
) -> NormalMixture | Tensor | HeldOutScores:
    """Refit a member without each fold and predict the held-out rows.

    Parameters
    ----------
    member : Member
        Unfitted member.
    task : StackTask
        Training data.
    fit : MemberFit
        Fit to all rows.
    folds : sequence of (ndarray, ndarray)
        Training and test indices.

    Returns
    -------
    NormalMixture, Tensor or HeldOutScores
        Distributions (1, n, 1) or scores (n, K), or scores of a calibrated member, for the n rows
        that a fold leaves out, in increasing order of their indices.
    """
    test_index = []
    predictions: list[Any] = []
    for k, (train, test) in enumerate(folds):
        rows = task.take(test)
        with part_of_progress(k / len(folds), (k + 1) / len(folds)):
            base = member.fit_fold(task.take(train), fit)
        if fit.is_calibrated and not task.n_classes:
            base = _as_counts(base, task)
        predictor = MemberPredictor(base, member.reads_original_rows)
        test_index.append(torch.as_tensor(test))
        # The training rows of a fold can lack rare values, which isn't the user's concern.
        with collect_warnings():
            if fit.is_calibrated and task.n_classes:
                # Class codes differ in a fold that lacks a class, so that labels are scored.
                predictions.append(base.log_density(rows.rows.x, rows.targets))
            elif fit.is_calibrated:
                distribution = predictor.distribution(rows.rows)
                if task.exposure is not None:
                    distribution = distribution.multiply_rate(rows.exposures[:, None])
                cdf = middle_cdf(distribution, rows.y)[:, 0]
                predictions.append(torch.stack([distribution.log_prob(rows.y), cdf], dim=1))
            elif task.n_classes:
                predictions.append(predictor.mean(rows.rows))
            else:
                predictions.append(merge_components(predictor.distribution(rows.rows)))
    order = torch.cat(test_index).argsort()
    if fit.is_calibrated and not task.n_classes:
        return HeldOutScores(*torch.cat(predictions)[order].unbind(1))
    if task.n_classes:
        return torch.cat(predictions)[order]
    fields = [
        (
            distribution.loc,
            distribution.variance.expand_as(distribution.loc),
            distribution.noise_variance.expand_as(distribution.loc),
        )
        for distribution in predictions
    ]
    return NormalMixture(*(torch.cat(folds, 1)[:, order] for folds in zip(*fields, strict=True)))


def rounding_std(task: StackTask) -> float:
    r"""Standard deviation of rounding to the grid of the targets, in scaled units; 0 for classes.

    Notes
    -----
    A log score rewards ever narrower spikes at values that targets take repeatedly. Therefore no
    predicted standard deviation is below :math:`\delta / \sqrt{12}`, where :math:`\delta` is the
    smallest difference between two targets.
    """
    y = task.y.unique()
    gaps = y.diff()
    gaps = gaps[gaps > 1e-9 * (y[-1] - y[0])]  # smaller gaps are rounding errors
    if task.n_classes or not len(gaps):
        return 0.0
    return float(gaps.min()) / 12.0**0.5
