"""Low-noise and high-noise initialisation of restarts, for all rows or per cross-validation fold.

Weights that fit noise in their first steps don't lose it later, and such a network predicts worse
than a linear model. But a network that starts with high noise may never find a nonlinearity that is
there. In classification, a start with high noise gives the rows little weight. The evidence shows
which of the two happened: it differs between the two starts by more than between restarts of one
kind.

In regression the restarts are one batch. Half of them start with low noise and half with high
noise. A half whose best evidence is a nat below the other's median is replaced by restarts of the
other kind. In classification the restarts are searched one after the other, each from both starts,
and the mode of the higher evidence is kept. On separated classes both starts end in the same modes,
and one is enough.
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
    Search,
    SearchCallback,
    concatenate_searches,
    map_tensors,
)
from skbayes_sym.laplace.posterior import LinearisedModes
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.progress import part_of_progress
from skbayes_sym.numerics.runtime import run_parallel

# Classes count as separated if a mode's misfit is below this, in nats per row.
SEPARATED_MISFIT = 0.05


def is_sensitive_to_initial_noise(problem: GaussianEvidence) -> bool:
    """Whether the initial noise matters: it is learned, and the network is nonlinear."""
    return problem.noise_precision is None and problem.network.n_layers > 1


def search_regression(
    config: EvidenceSearch,
    problem: GaussianEvidence,
    draw: Callable[[int], Tensor],
    n: int,
    on_step: SearchCallback | None = None,
    initial_modes: Modes | None = None,
) -> Search:
    """Search for up to ``n`` modes from low-noise and high-noise starts.

    Parameters
    ----------
    config : EvidenceSearch
        Numbers of steps and tolerance.
    problem : GaussianEvidence
        Evidence of the network for the training data.
    draw : callable (n) -> Tensor of shape (n, P)
        Draws initial weights of ``n`` restarts.
    n : int
        Number of restarts.
    on_step : callable, optional
        As in `EvidenceSearch.search`. If it stops the search, the first ``n`` restarts are returned
        as they are.
    initial_modes : Modes, optional
        Modes of subsets of the rows, from low-noise and high-noise starts in turn. If there are
        enough of them, the search continues from them.

    Returns
    -------
    Search

    Notes
    -----
    Up to one and a half times the cost of ``n`` modes.
    """
    if not is_sensitive_to_initial_noise(problem):
        return config.search(problem, draw(n), on_step=on_step)

    # The first restarts alternate between the two starts. A single mode is the better of two. Of
    # three modes, the first two show which start is better.
    theta = draw(2 * n)
    n_first = n
    if n <= 3:
        n_first = 2
    high_noise = alternating_mask(n_first, theta)
    with part_of_progress(0.0, 0.7):
        if initial_modes is not None and len(initial_modes.theta) >= n_first:
            modes = map_tensors(lambda t: t[:n_first], initial_modes)
            first = config.resume(problem, modes, on_step)
        else:
            first = config.search(problem, theta[:n_first], high_noise, on_step)
    fallback = first.select(torch.arange(min(n, len(first.stopped)), device=theta.device))
    if first.was_stopped:
        return fallback

    # A start whose modes are all worse is replaced by further restarts of the other one.
    selected = _select_restarts(first.modes.score, high_noise, n)
    n_missing = n - len(selected)
    if not n_missing:
        return first.select(selected)
    n_done = int(first.modes.n_iter.max())
    callback = None
    if on_step is not None:
        # Until the second search has ended, an interrupt keeps the first one.
        def callback(step: int, _search: Callable[[], Search]) -> bool:
            return on_step(n_done + step, lambda: fallback)

    better_start = high_noise[selected[:1]].expand(n_missing)
    with part_of_progress(0.7, 1.0):
        second = config.search(
            problem, theta[n_first : n_first + n_missing], better_start, callback
        )
    if second.was_stopped:
        return fallback.with_stop_reason(second.stop_reason)
    return concatenate_searches([first.select(selected), second])


def alternating_mask(n: int, like: Tensor) -> Tensor:
    """Return a mask of every second of ``n`` restarts, bool (n,), on the device of ``like``."""
    return torch.arange(n, device=like.device) % 2 == 1


def noise_variance_fraction(modes: Modes, y: Tensor) -> float:
    """Fraction of the variance of targets (N, T) that is noise in the mode of highest evidence."""
    best = modes.score.argmax()
    target_variance = y.var(0, correction=0)
    noise_variance = modes.noise_precision[best].reciprocal().to(y)
    return float((noise_variance / torch.where(target_variance > 0.0, target_variance, 1.0)).mean())


def _select_restarts(score: Tensor, high_noise: Tensor, n: int) -> Tensor:
    """Return the indices of up to ``n`` restarts that needn't be replaced."""
    if n == 1:
        return score.argmax().unsqueeze(0)
    high = score[high_noise]
    low = score[~high_noise]
    # Where all restarts find one mode, their evidences differ by less than a nat.
    if high.max() < low.median() - 1.0:
        return (~high_noise).nonzero().flatten()
    if low.max() < high.median() - 1.0:
        return high_noise.nonzero().flatten()
    return torch.arange(len(high_noise), device=high_noise.device)


# Returns the mode found from initial weights (P,), with a low-noise or a high-noise start.
SingleSearch = Callable[[CategoricalEvidence, Tensor, bool], Search]
ModeCallback = Callable[[CategoricalEvidence, Search], bool]  # called with a mode. True stops.


def search_single(
    config: EvidenceSearch,
    problem: CategoricalEvidence,
    start: Tensor,
    high_noise: bool,
    on_step: SearchCallback | None = None,
) -> Search:
    """Search for one mode.

    Parameters
    ----------
    config : EvidenceSearch
    problem : CategoricalEvidence
    start : Tensor of shape (P,)
        Initial weights.
    high_noise : bool
        Whether it is a high-noise start.
    on_step : callable, optional
        As in `EvidenceSearch.search`.

    Returns
    -------
    Search
    """
    mask = torch.tensor([high_noise], device=start.device)
    return config.search(problem, start.unsqueeze(0), mask, on_step)


def search_classification(
    search: SingleSearch,
    problem: CategoricalEvidence,
    starts: Tensor,
    alternative_prior: GroupScalePrior | None = None,
    *,
    allow_label_noise: bool = True,
    n_jobs: int | None = None,
    on_mode: ModeCallback = lambda *_: False,
) -> tuple[CategoricalEvidence, Search]:
    """Search for a mode from each of R starting points, and choose the prior.

    Parameters
    ----------
    search : callable
        Searches for one mode.
    problem : CategoricalEvidence
    starts : Tensor of shape (R, P)
        Initial weights.
    alternative_prior : GroupScalePrior, optional
        Prior that is tried from the first starting point if labels are noisy. If its evidence is
        higher, all modes are under it.
    allow_label_noise : bool, default=True
        Whether to find out if labels are noisy. If they are, every starting point is searched with
        low noise and with high noise.
    n_jobs : int, optional
        Number of processes. If there are several, the first two starting points are searched at
        once.
    on_mode : callable, optional
        Called after every search. If it returns True, that search is the last one.

    Returns
    -------
    CategoricalEvidence
        The problem under the prior that was chosen.
    Search
        A mode for every starting point that was reached.

    Notes
    -----
    2 (R + 1) searches where labels are noisy and there is an alternative prior, and R otherwise.
    """
    run_searches = partial(_run_searches, search, n_jobs, on_mode)

    # The first starting point shows whether classes are separated.
    n_parallel = min(2, joblib.effective_n_jobs(n_jobs))
    first, *early = run_searches([(problem, start, False) for start in starts[:n_parallel]])
    is_noisy = (
        allow_label_noise
        and not first.was_stopped
        and misfit_per_row(problem, first) >= SEPARATED_MISFIT
    )

    # If they aren't, it is searched with high noise too, and in both ways under the other prior.
    chosen = problem
    if is_noisy:
        arguments = [(problem, starts[0], True)]
        if alternative_prior is not None:
            alternative = replace(problem, prior=alternative_prior)
            arguments += [(alternative, starts[0], False), (alternative, starts[0], True)]
        results = run_searches(arguments)
        first = _best([first, *results[:1]])
        if len(results) > 1:
            best_alternative = _best(results[1:])
            if best_alternative.modes.score[0] > first.modes.score[0]:
                chosen = alternative
                first = best_alternative
        if results[-1].was_stopped:
            first = first.with_stop_reason(results[-1].stop_reason)
    if first.was_stopped:
        return chosen, first

    # All other starting points are searched under the chosen prior.
    noise_levels = (False, True) if is_noisy else (False,)
    arguments = [(chosen, start, high) for start in starts[1:] for high in noise_levels]
    if chosen is not problem:
        early = []
    results = [*early, *run_searches(arguments[len(early) :])]
    n = len(noise_levels)
    best = [_best(results[i : i + n]) for i in range(0, len(results), n)]
    return chosen, concatenate_searches([first, *best])


def _run_searches(
    search: SingleSearch,
    n_jobs: int | None,
    on_mode: ModeCallback,
    arguments: Sequence[tuple[CategoricalEvidence, Tensor, bool]],
) -> list[Search]:
    """Run searches up to the first one that was stopped.

    Parameters
    ----------
    search : callable
        Searches for one mode.
    n_jobs : int, optional
        Number of processes.
    on_mode : callable
        Called after every search. If it returns True, that search is the last one.
    arguments : sequence of tuple
        Problem, starting point and whether to start with high noise, of every search.

    Returns
    -------
    list of Search
    """
    results: list[Search] = []
    jobs = [partial(search, *one) for one in arguments]
    with closing(run_parallel(jobs, n_jobs, prefer="threads")) as outputs:
        for (searched_problem, _, _), result in zip(arguments, outputs, strict=True):
            if on_mode(searched_problem, result) and not result.was_stopped:
                result = result.with_stop_reason("callback")
            results.append(result)
            if result.was_stopped:
                break
    return results


def misfit_per_row(problem: CategoricalEvidence, search: Search) -> float:
    """Misfit of a search's first mode, in nats per row."""
    return float(problem.misfit(search.modes.theta[:1])[0] / problem.data.weight.sum())


def _best(searches: Sequence[Search]) -> Search:
    """Return the search of the highest evidence, marked as stopped if the last search was.

    Among equal ones it is the first.
    """
    best = max(searches, key=lambda search: float(search.modes.score[0]))
    last = searches[-1]
    if last.was_stopped:
        return best.with_stop_reason(last.stop_reason)
    return best


MODES_PER_FOLD = 2  # one from a low-noise start, one from a high-noise start


class HeldOutPredictions(NamedTuple):
    """Predictions of every row by the modes that were fitted without it, equally weighted.

    Attributes
    ----------
    log_density : Tensor of shape (N,)
        Held-out log density, nats.
    mean : Tensor of shape (N, T)
        Predicted means.
    distribution : NormalMixture
        Predictive distributions, with one component per mode of a fold, (S, N, T).
    """

    log_density: Tensor
    mean: Tensor
    distribution: NormalMixture


def assign_folds(n_rows: int, n_folds: int, *, generator: torch.Generator) -> Tensor:
    """Assign rows at random to folds of nearly equal size, int64 (n_rows,).

    Parameters
    ----------
    n_rows, n_folds : int
        Numbers of rows and folds.
    generator : torch.Generator
        Source of random numbers.
    """
    order = torch.randperm(n_rows, generator=generator, device=generator.device)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(n_rows, device=order.device) % n_folds
    return fold


def cross_validate(
    config: EvidenceSearch,
    problem: GaussianEvidence,
    theta: Tensor,
    fold: Tensor,
    on_step: SearchCallback | None = None,
) -> tuple[Search, HeldOutPredictions | None]:
    """Fit modes without each of K folds, and predict the rows that were held out.

    Parameters
    ----------
    config : EvidenceSearch
    problem : GaussianEvidence
        Problem of all rows, with a noise that is learned.
    theta : Tensor of shape (2 K, P)
        Initial weights of two modes per fold.
    fold : Tensor of shape (N,), int64
        Fold of every row, from 0 to K - 1.
    on_step : callable, optional
        As in `EvidenceSearch.search`.

    Returns
    -------
    Search
        The 2 K modes.
    HeldOutPredictions or None
        None if the search was stopped.

    Notes
    -----
    All modes are one batch, in which the rows of a mode's own fold have no weight: O(K) searches of
    two modes each.
    """
    held_out = torch.arange(len(theta), device=theta.device) // MODES_PER_FOLD
    is_training = fold != torch.arange(int(fold.max()) + 1, device=fold.device).unsqueeze(1)
    problem = replace(problem, weight_factor=is_training[held_out].to(theta))
    search = config.search(problem, theta, alternating_mask(len(theta), theta), on_step)
    if search.was_stopped:
        return search, None
    return search, _predict_held_out(problem, search.modes, fold)


def refit_folds(
    config: EvidenceSearch,
    problem: GaussianEvidence,
    mode: Modes,
    fold: Tensor,
    is_training: Tensor,
    on_step: SearchCallback | None = None,
) -> HeldOutPredictions | None:
    """Continue from one mode of all rows without each of K folds, and predict the held-out rows.

    Parameters
    ----------
    config : EvidenceSearch
    problem : GaussianEvidence
        Problem of all rows, with a noise that is learned.
    mode : Modes
        A single mode of it.
    fold : Tensor of shape (N,), int64
        Fold of every row, from 0 to K - 1, or -1 for rows that no fold holds out.
    is_training : Tensor of shape (K, N), bool
        Rows to which the mode of each fold is fitted.
    on_step : callable, optional
        As in `EvidenceSearch.search`.

    Returns
    -------
    HeldOutPredictions or None
        None if the search was stopped. Rows that no fold holds out have the value nan.

    Notes
    -----
    A few steps replace a search from random weights. What the mode keeps from rows that it has seen
    makes the predictions slightly optimistic.
    """
    n_folds = len(is_training)
    problem = replace(problem, weight_factor=is_training.to(mode.theta))
    initial_modes = map_tensors(lambda t: t.repeat_interleave(n_folds, 0), mode)
    search = config.resume(problem, initial_modes, on_step)
    if search.was_stopped:
        return None
    return _predict_held_out(problem, search.modes, fold)


def _predict_held_out(problem: GaussianEvidence, modes: Modes, fold: Tensor) -> HeldOutPredictions:
    """Predict each of K folds by the modes, equally many per fold, that were fitted without it."""
    (x, y, _) = problem.data
    n_folds = int(fold.max()) + 1
    n_modes = len(modes.theta) // n_folds
    held_out = torch.arange(len(modes.theta), device=fold.device) // n_modes
    loc = y.new_full((n_modes, *y.shape), torch.nan)
    variance = loc.clone()
    noise_variance = loc.clone()
    for k in range(n_folds):
        rows = (fold == k).nonzero().flatten()
        is_fold = held_out == k
        theta = modes.theta[is_fold]
        factor = modes.factor[is_fold]
        weights = theta.new_full((len(theta),), 1.0 / len(theta))
        networks = LinearisedModes(problem.network, theta, factor, weights)
        outputs, covariance = networks.outputs(x[rows])
        loc[:, rows] = outputs
        variance[:, rows] = covariance.diagonal(dim1=-2, dim2=-1)
        noise_variance[:, rows] = modes.noise_precision[is_fold].reciprocal().unsqueeze(1)
    distribution = NormalMixture(loc, variance, noise_variance)
    return HeldOutPredictions(distribution.log_prob(y), loc.mean(0), distribution)


def is_better(log_density: Tensor, other: Tensor, weight: Tensor) -> bool:
    """Whether held-out log densities (N,) are higher by more than half a standard error.

    If they aren't, the simpler model is kept (Breiman, Friedman, Olshen & Stone 1984, section
    3.4.3, with one standard error). ``weight`` (N,) are the rows' weights.

    Parameters
    ----------
    log_density, other : Tensor of shape (N,)
        Held-out log densities of two models.
    weight : Tensor of shape (N,)
        Sample weights.
    """
    total = weight.sum()
    gain = log_density - other
    mean = weight @ gain / total
    error = (weight @ (gain - mean).square()).sqrt() / total
    return bool(mean > 0.5 * error)


def unexplained_variance_fraction(mean: Tensor, y: Tensor, weight: Tensor) -> float:
    """Fraction of the targets' variance that held-out predictions (N, T) leave unexplained.

    Parameters
    ----------
    mean : Tensor of shape (N, T)
        Held-out predictions.
    y : Tensor of shape (N, T)
        Targets.
    weight : Tensor of shape (N,)
        Sample weights.
    """
    total = weight.sum()
    target_squares = weight @ (y - weight @ y / total).square()
    unexplained = weight @ (y - mean).square()
    return float((unexplained / torch.where(target_squares > 0.0, target_squares, 1.0)).mean())
