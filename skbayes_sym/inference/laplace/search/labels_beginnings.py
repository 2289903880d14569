"""Restarts of a classification network where labels are noisy: two beginnings, two priors.

Weights that follow noisy labels in their first steps aren't given up later: at 1,500 rows such
modes have an evidence that is ten to forty nats lower, and predict worse than a linear model. Begun
with labels that hardly count, a network may never find a bend that is there. Which of the two
happens shows in the evidence, so each start is searched from in both ways, and the mode of the
higher evidence kept. On separated classes both ways end in the same modes, and one is enough.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from skbayes_sym.inference.laplace.search.labels import LabelsEvidence
from skbayes_sym.inference.laplace.search.modes import ClassModes, stacked
from skbayes_sym.models.learned_scales import ScalesByGroup

# Nats per row that a mode leaves unexplained, below which classes count as separated.
SEPARATED = 0.05
# The mode that is found from a starting point (P,), begun with labels doubted or not.
OneSearch = Callable[[LabelsEvidence, Tensor, bool], ClassModes]


def search_labels(
    search: OneSearch,
    problem: LabelsEvidence,
    starts: Tensor,
    alternative: ScalesByGroup | None = None,
    *,
    tries: bool = True,
) -> tuple[LabelsEvidence, ClassModes]:
    """The problem, under the prior that was taken, and a mode from every start (R, P).

    Parameters
    ----------
    search : callable
        Told to end, it gives what it has found with that reason, and nothing more is searched.
    problem : LabelsEvidence
    starts : Tensor of shape (R, P)
    alternative : ScalesByGroup, optional
        Tried from the first start where labels are noisy; all modes are then of the prior with the
        higher evidence.
    tries : bool
        Whether noisy labels are looked for at all.

    Notes
    -----
    R searches, or where labels are noisy 2 (R + 1).
    """
    first = search(problem, starts[0], False)
    is_noisy = tries and not has_ended(first) and unexplained(problem, first) >= SEPARATED
    if is_noisy:
        first = _better_way(search, problem, starts[0], first)
        if alternative is not None and not has_ended(first):
            other = replace(problem, prior=alternative)
            second = _better_way(search, other, starts[0])
            if _is_higher(second, first):
                problem, first = other, second
            elif has_ended(second):
                first = first._replace(stopped=second.stopped)
    found = [first]
    for start in starts[1:]:
        if has_ended(found[-1]):
            break
        found.append(
            _better_way(search, problem, start) if is_noisy else search(problem, start, False)
        )
    return problem, stacked(found)


def unexplained(problem: LabelsEvidence, modes: ClassModes) -> float:
    """Misfit of the first mode, nats per row."""
    return float(problem.misfit(modes.theta[0]) / problem.data.weight.sum())


def has_ended(modes: ClassModes) -> bool:
    """Whether the last search was told to end, and with it all of them."""
    return modes.stopped[-1] in ("callback", "interrupted")


def _better_way(
    search: OneSearch, problem: LabelsEvidence, start: Tensor, believed: ClassModes | None = None
) -> ClassModes:
    """Of the modes that the two beginnings lead to, that of the higher evidence."""
    if believed is None:
        believed = search(problem, start, False)
    if has_ended(believed):
        return believed
    doubted = search(problem, start, True)
    better = doubted if _is_higher(doubted, believed) else believed
    return better._replace(stopped=doubted.stopped) if has_ended(doubted) else better


def _is_higher(one: ClassModes, other: ClassModes) -> bool:
    return bool(one.log_evidence[0] > other.log_evidence[0])
