"""Starts of an ascent of the symmetrised ELBO."""

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


def random_start(model: GaussianMLP, data: Training, seed: int) -> Tensor:
    """Weights of their layers' usual size, standard deviations .02: narrow, then they widen."""
    layout = model.network.layout
    loc = model.network.init(1, generator=generator_from(seed))[0]
    log_variance = torch.full_like(loc, 2.0 * log(0.02))
    # Inputs that are always 0 leave their weights at the prior: start them there.
    silent = (data.data.x == 0.0).all(dim=0).cpu()
    where = layout.positions("W1")[:, silent].flatten()
    loc[where] = 0.0
    log_variance[where] = 2.0 * model.prior.scale[where].log()
    return pack(loc, log_variance, model.likelihood)


def laplace_start(model: GaussianMLP, data: Training, seed: int) -> Tensor:
    """A mode, with the variances that maximise Laplace's bound among independent normals.

    The noise is at least the targets' spread. At a mode of few rows it is that of an interpolation,
    which an ascent never leaves: on 50 rows of diabetes it ended 244 nats below one from random
    weights.
    """
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
    noise = position[p:]
    if likelihood.n_params:
        noise = torch.maximum(noise, torch.as_tensor(data.target_spread).log())
    return torch.cat([position[:p], log_variance[:p], noise])


class Init(NamedTuple):
    """A way to start."""

    needs: Needs
    position: Callable[[GaussianMLP, Training, int], Tensor]  # see `pack`
    # Share of the steps over which the KL's weight rises to 1: means find the data before variances
    # widen to the prior, which is how a fit from narrow random weights loses its units.
    warm_up: float = 0.0


# By the name that ``init=`` takes.
_ANY = Needs(EXPECTED_LIKELIHOOD, FULLY_CONNECTED, NORMAL_OR_LEARNED)
INITS: dict[str, Init] = {
    "random": Init(_ANY, random_start),
    "annealed": Init(_ANY, random_start, warm_up=0.4),
    "laplace": Init(Needs(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED), laplace_start),
}


def kinds_of(init: str, model: GaussianMLP) -> list[str]:
    """Names in `INITS` of the starts that ``init`` stands for.

    Each alone fails somewhere: on folds of a noisy sine the first loses all units in five of five,
    on bodyfat the second keeps too many. Of classes a mode gains nothing, and beyond 300 weights
    its search costs more than the ascent (at 600 to 750 three to five times as much).
    """
    if init != "auto":
        return [init]
    learns_noise = model.likelihood.kind == "normal" and model.likelihood.n_params > 0
    is_searched = learns_noise and model.network.layout.n_params <= 300
    return ["random", "annealed", "laplace"] if is_searched else ["random", "annealed"]
