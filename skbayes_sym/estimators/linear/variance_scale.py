"""How much of the logits' variance a linear classifier's predictions keep."""

import torch

from skbayes_sym.inference.laplace.labels_predictive import (
    VARIANCE_SCALES,
    left_out_losses,
    without_itself,
)
from skbayes_sym.inference.laplace.search.label_terms import Terms
from skbayes_sym.inference.laplace.search.labels import LinearisedLogits
from skbayes_sym.inference.linear.sites import State
from skbayes_sym.models.model import Data

_MOST_ROWS = 5000  # that are left out, evenly spaced


def scale_by_left_out(state: State, data: Data) -> float:
    """The scale whose predictions of left-out rows are best; as of Laplace's approximations.

    ``state``: at the optimum: a row's site is its own gradient and curvature there, so that leaving
    it out is dividing by it; ``data``: the same rows, targets class indices.
    """
    chosen = torch.linspace(0, len(data.x) - 1, min(len(data.x), _MOST_ROWS)).round().long()
    y, weight = data.y[chosen], data.weight[chosen]
    value, gradient, curvature = (t[chosen] for t in state.terms)
    logits = LinearisedLogits(state.mean[chosen], state.output_covariance[chosen])
    left_out = without_itself(logits, Terms(-value, -gradient, curvature))
    losses = left_out_losses([left_out], y, VARIANCE_SCALES) @ weight
    return VARIANCE_SCALES[int(losses.argmin())]
