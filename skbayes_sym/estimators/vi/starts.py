"""Where the ascent starts: ``init=``."""

from collections.abc import Callable
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import (
    EXPECTED_LIKELIHOOD,
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    NORMAL_OR_SOFTMAX,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.model import scales_by_group
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.laplace_starts import labels_starts, regression_starts
from skbayes_sym.inference.mean_field.elbo import GaussianMLP, pack
from skbayes_sym.numerics.memory import Part
from skbayes_sym.numerics.random import generator_from

INITIAL_SCALE = 0.02  # posterior standard deviation of a random start: narrow, then it widens
_DOUBLE = 8  # bytes
_SEARCHES, _COPIES = 2, 5  # searches at once, and copies of a search's system, factors included


def random_start(model: GaussianMLP, data: Training, seed: int) -> Tensor:
    """Weights of their layers' usual size, narrow."""
    layout = model.network.layout
    loc = model.network.init(1, generator=generator_from(seed))[0]
    log_variance = torch.full_like(loc, 2.0 * log(INITIAL_SCALE))
    # Inputs that are always 0 leave their weights at the prior: start them there.
    silent = (data.data.x == 0.0).all(dim=0).cpu()
    where = layout.positions("W1")[:, silent].flatten()
    loc[where] = 0.0
    log_variance[where] = 2.0 * model.prior.scale[where].log()
    return pack(loc, log_variance, model.likelihood)


def laplace_start(model: GaussianMLP, data: Training, seed: int) -> Tensor:
    """A mode, with the variances that maximise Laplace's bound among independent normals.

    Raises
    ------
    KeyboardInterrupt
        If interrupted.
    """
    network, likelihood, rows = model.network, model.likelihood, data.double_data
    prior = scales_by_group(model.prior)
    if SOFTMAX.is_met(likelihood):
        starts = labels_starts(network, rows, prior, n=1, seed=seed)
    else:
        starts = regression_starts(network, likelihood, rows, prior, n=1, seed=seed)
    p = network.layout.n_params
    position, log_variance = starts.position[0].cpu(), 2.0 * starts.spread[0].log().cpu()
    return torch.cat([position[:p], log_variance[:p], position[p:]])


class Init(NamedTuple):
    """One way to start."""

    needs: Needs
    position: Callable[[GaussianMLP, Training, int], Tensor]  # see `pack`
    searches: bool  # for a mode, by Gauss-Newton systems

    def memory(self, model: GaussianMLP) -> list[Part]:
        """Two searches' systems of P weights and T outputs: 80 (T + 1) P^2."""
        if not self.searches:
            return []
        p, t = model.network.layout.n_params, model.network.n_outputs
        return [
            Part(
                f"Gauss-Newton systems of {p:,} weights",
                _SEARCHES * _COPIES * (t + 1) * p**2 * _DOUBLE,
                "Lower hidden_layer_sizes, or use init='random'.",
            )
        ]


# By the name that ``init=`` takes.
INITS: dict[str, Init] = {
    "random": Init(
        Needs(EXPECTED_LIKELIHOOD, FULLY_CONNECTED, NORMAL_OR_LEARNED), random_start, searches=False
    ),
    "laplace": Init(
        Needs(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED), laplace_start, searches=True
    ),
}
