"""Where an ascent of the symmetrised ELBO may start."""

from collections.abc import Callable
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.building import scales_by_group
from skbayes_sym.estimators._fit.compatibility import (
    EXPECTED_LIKELIHOOD,
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    NORMAL_OR_SOFTMAX,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.gaussian_vi.elbo import GaussianMLP, pack
from skbayes_sym.inference.laplace_starts import labels_starts, regression_starts
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.random import generator_from

INITIAL_SCALE = 0.02  # posterior standard deviation of a random start: narrow, then it widens


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
    """A mode, with the variances that maximise Laplace's bound among independent normals."""
    network, likelihood, rows = model.network, model.likelihood, data.double_data
    p = network.layout.n_params
    systems = Part(
        f"Gauss-Newton systems of {p:,} weights",
        80 * (network.n_outputs + 1) * p**2,  # bytes: five copies of two searches'
        "Lower hidden_layer_sizes, or use init='random'.",
    )
    require_memory([systems], data.device)
    prior = scales_by_group(model.prior)
    if SOFTMAX.is_met(likelihood):
        starts = labels_starts(network, rows, prior, n=1, seed=seed)
    else:
        starts = regression_starts(network, likelihood, rows, prior, n=1, seed=seed)
    position, log_variance = starts.position[0].cpu(), 2.0 * starts.spread[0].log().cpu()
    return torch.cat([position[:p], log_variance[:p], position[p:]])


class Init(NamedTuple):
    """A way to start."""

    needs: Needs
    position: Callable[[GaussianMLP, Training, int], Tensor]  # see `pack`


# By the name that ``init=`` takes.
INITS: dict[str, Init] = {
    "random": Init(Needs(EXPECTED_LIKELIHOOD, FULLY_CONNECTED, NORMAL_OR_LEARNED), random_start),
    "laplace": Init(Needs(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED), laplace_start),
}
