"""Restarts begun in two ways: with targets that are believed, and with targets taken for noise.

Weights that follow noise in their first steps aren't given up later: on noisy tables such modes
have an evidence that is a tenth of a nat per row lower, and predict worse than a linear model.
Begun with much noise, a network may never find a bend that is there. Which of the two happens shows
in the evidence, by more than modes begun alike differ: so half of the restarts begin in each way,
and a half whose best evidence is below the other's median begins anew in the other's way.

Modes of regression count alike, since evidences say too little of which predicts better. But where
there is hardly any noise a restart may be left so far behind that only the mean is spoilt by it:
one whose evidence is lower by a nat per row is left out.
"""

from collections.abc import Callable
from itertools import zip_longest

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.numbers import (
    EvidenceModes,
    Modes,
    NumbersEvidence,
    OnModes,
    Search,
)

_HOPELESS = 1.0  # nats per unit of weight below the best

# The noise's precision at the beginning, in units of the targets' variance: believed, doubted.
BELIEVED, DOUBTED = 1.0 / 0.3, 0.3


def begins_both_ways(how: EvidenceModes, problem: NumbersEvidence) -> bool:
    """Whether the beginning matters: the noise is learned, and there are bends to find."""
    return how.learn_noise and problem.network.n_layers > 1


def search_modes(
    how: EvidenceModes,
    problem: NumbersEvidence,
    draw: Callable[[int], Tensor],
    n: int,
    noise_precision: Tensor | None = None,
    on_step: OnModes | None = None,
) -> Search:
    """``n`` modes from drawn starting points, or fewer, begun in both ways where that matters.

    Parameters
    ----------
    how : EvidenceModes
    problem : NumbersEvidence
    draw : callable (int) -> Tensor
        So many starting points (., P).
    n : int
    noise_precision : Tensor of shape (T,), optional
        Of a noise that isn't learned.
    on_step : callable (step, modes) -> bool, optional
        As `EvidenceModes.search` has it.
    """
    if not begins_both_ways(how, problem):
        return how.search(problem, draw(n), noise_precision, on_step)
    return _within_reach(search_both_ways(how, problem, draw(2 * n), on_step), problem.total_weight)


def _within_reach(search: Search, weight: Tensor) -> Search:
    """Without modes far below the best; as it is if it was stopped."""
    if search.stopped in ("callback", "interrupted"):
        return search
    value = search.modes.log_evidence
    near = value > value.max() - _HOPELESS * weight
    return search if bool(near.all()) else _of(search, near.nonzero().flatten())


def search_one_of_each(
    how: EvidenceModes, problem: NumbersEvidence, theta: Tensor, on_step: OnModes | None = None
) -> Search:
    """Two modes from starting points (2, P): the first begun believing, the second doubting."""
    doubted = torch.tensor([False, True], device=theta.device)
    return how.search(problem, theta, beginning(problem, doubted), on_step)


def noise_share(modes: Modes, y: Tensor) -> float:
    """Share of the variance of targets (N, T) that the mode of the highest evidence calls noise."""
    best = modes.log_evidence.argmax()
    spread = y.var(0, correction=0)
    variance = modes.noise_precision[best].reciprocal().to(y)
    return float((variance / torch.where(spread > 0.0, spread, 1.0)).mean())


def search_both_ways(
    how: EvidenceModes, problem: NumbersEvidence, theta: Tensor, on_step: OnModes | None = None
) -> Search:
    """R modes from starting points (2R, P), of which those of too low an evidence use the second R.

    Parameters
    ----------
    how : EvidenceModes
        With a noise that is learned.
    problem : NumbersEvidence
    theta : Tensor of shape (2R, P)
    on_step : callable (step, modes) -> bool, optional
        As `EvidenceModes.search` has it.

    Notes
    -----
    Up to one and a half times the cost of R modes. Interrupted, it gives the first R as they are.
    """
    n = len(theta) // 2
    n_first = max(n, 2)  # a single mode is the better of two
    doubted = torch.arange(n_first, device=theta.device) % 2 == 1
    first = how.search(problem, theta[:n_first], beginning(problem, doubted), on_step)
    if first.stopped in ("callback", "interrupted"):
        return _of(first, torch.arange(n, device=theta.device))
    kept = _kept(first.modes.log_evidence, doubted, n)
    missing = n - len(kept)
    if not missing:
        return _of(first, kept)
    as_found = _of(first, torch.arange(n, device=theta.device))
    begun = beginning(problem, doubted[kept[:1]].expand(missing))
    again = _continued(on_step, len(first.curves), as_found.modes)
    second = how.search(problem, theta[n : n + missing], begun, again)
    if second.stopped in ("callback", "interrupted"):
        return as_found._replace(stopped=second.stopped)
    return _joined(_of(first, kept), second)


def beginning(problem: NumbersEvidence, doubted: Tensor) -> Tensor:
    """Noise precisions (R, T)."""
    spread = problem.data.y.var(0, correction=0)
    spread = torch.where(spread > 0.0, spread, 1.0)  # of a constant target any will do
    return torch.where(doubted, DOUBTED, BELIEVED).to(spread).unsqueeze(1) / spread


def _kept(log_evidence: Tensor, doubted: Tensor, n: int) -> Tensor:
    """Indices of the restarts, at most ``n``, that needn't begin anew."""
    if n == 1:
        return log_evidence.argmax().unsqueeze(0)
    one, other = log_evidence[doubted], log_evidence[~doubted]
    if one.max() < other.median():
        return (~doubted).nonzero().flatten()
    if other.max() < one.median():
        return doubted.nonzero().flatten()
    return torch.arange(len(doubted), device=doubted.device)


def _of(search: Search, which: Tensor) -> Search:
    """Some of the restarts."""
    curves = [curve[which] for curve in search.curves]
    return Search(Modes(*(t[which] for t in search.modes)), curves, search.stopped)


def _joined(first: Search, second: Search) -> Search:
    modes = Modes(*(torch.cat(pair) for pair in zip(first.modes, second.modes, strict=True)))
    nans = [search.modes.log_evidence * torch.nan for search in (first, second)]
    curves = [
        torch.cat(
            [ended if curve is None else curve for curve, ended in zip(pair, nans, strict=True)]
        )
        for pair in zip_longest(first.curves, second.curves)
    ]
    return Search(modes, curves, "max_iter" if first.stopped == "max_iter" else second.stopped)


def _continued(on_step: OnModes | None, n_done: int, modes: Modes) -> OnModes | None:
    """Told on; until the second search has ended what the first has found is what there is."""
    if on_step is None:
        return None

    def told(step: int, _: Callable[[], Modes]) -> bool:
        return on_step(n_done + step, lambda: modes)

    return told
