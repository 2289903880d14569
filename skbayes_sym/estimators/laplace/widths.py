"""How many units a table asks for: few, unless rows held out are more likely under more."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from skbayes_sym.estimators.laplace.effort import (
    FEWEST_ROWS,
    FOLDS,
    MOST_ROWS_ASKED,
    MOST_UNEXPLAINED,
    NARROW,
    STEPS,
    VALIDATION_WORK,
    WIDTHS,
    network_of,
    work,
)
from skbayes_sym.estimators.laplace.modes import NumbersFit
from skbayes_sym.inference.laplace.search.held_out import (
    MODES_A_FOLD,
    HeldOut,
    is_better,
    unexplained_share,
)
from skbayes_sym.models.networks.mlp import MLP

# What modes of so many units, each without a fold, are, and what they say of it (None if stopped).
Validate = Callable[[int], tuple[NumbersFit, HeldOut | None]]


class Widths(NamedTuple):
    """What rows held out have said."""

    chosen: int
    scores: dict[int, float]  # nats per unit of weight, by number of units
    ended: NumbersFit | None = None  # what there was when it was stopped


def are_asked(network: MLP, n_rows: int) -> bool:
    """Whether rows are held out to choose the width of "auto"."""
    n_numbers = n_rows * network.n_outputs
    if network.hidden_layer_sizes != (NARROW,) or n_rows < FEWEST_ROWS:
        return False
    if n_numbers > MOST_ROWS_ASKED * network.layout.n_params:
        return False
    return _work(network_of(network, WIDTHS[-2]), n_numbers) <= VALIDATION_WORK


def choose_width(validate: Validate, network: MLP, y: Tensor, weight: Tensor) -> Widths:
    """Few units, some, or the usual number.

    Parameters
    ----------
    validate : callable
    network : MLP
        Of the usual number of units, which is taken unasked where some units are better than few
        and leave little unexplained.
    y : Tensor of shape (N, T)
    weight : Tensor of shape (N,)
    """
    scores: dict[int, float] = {}
    chosen, best = WIDTHS[0], None
    for width in WIDTHS:
        if _work(network_of(network, width), y.numel()) > VALIDATION_WORK:
            break
        found, rows = validate(width)
        if rows is None:
            return Widths(width, scores, found)
        scores[width] = float(weight @ rows.log_density / weight.sum())
        if best is None:
            best = rows
        elif is_better(rows.log_density, best.log_density, weight):
            chosen, best = width, rows
            if unexplained_share(rows.mean, y, weight) <= MOST_UNEXPLAINED:
                return Widths(NARROW, scores)
    return Widths(chosen, scores)


def _work(network: MLP, n_numbers: int) -> float:
    """Multiplications of a cross-validation, about."""
    return work(FOLDS * MODES_A_FOLD, STEPS, n_numbers, network.layout.n_params)
