"""Small data, features and posteriors, shared by the tests of layers."""

from math import log, pi

import numpy as np
import pytest
import torch
from scipy import stats

from skbayes_sym.inference.gaussian_vi.collapsed import CollapsedLast, MeanFieldHidden
from skbayes_sym.inference.gaussian_vi.global_inducing import InducingHidden, InducingLast
from skbayes_sym.inference.gaussian_vi.layers import (
    HiddenDraws,
    Layerwise,
    LayerwiseElbo,
    with_ones,
)
from skbayes_sym.inference.gaussian_vi.scales import PriorOfLayers
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.priors import ScalesByGroup
from skbayes_sym.numerics.optimise import ParamGroup, minimise

# One prior scale for a layer, and one per input.
SCALE, SCALES = 0.7, torch.tensor([0.7, 0.2, 1.6, 0.4], dtype=torch.float64)
LOG_NOISE = torch.tensor([log(0.4)], dtype=torch.float64)


def make_data(n=8, d=3, n_targets=1):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, d)), rng.normal(size=(n, n_targets))
    return Data(*(torch.as_tensor(a) for a in (x, y, np.ones(n))))


def some_features(data, width, generator, n=2):
    h = torch.randn(n, len(data.x), width, generator=generator, dtype=torch.float64)
    return with_ones(h)


def no_draws(n=2):
    return HiddenDraws([], torch.zeros(n).double(), torch.zeros(n, 0, 1).double())


EMPTY = torch.zeros(0, dtype=torch.float64)
both_shapes = pytest.mark.parametrize("width", [3, 12], ids=["D<=N", "D>N"])


def one_unit_evidence(x, y, noise):
    """log p(y) of a one-unit tanh network with N(0, 1) priors, the outer layer integrated out."""
    grid = np.linspace(-5, 5, 81)
    w, b = (g.ravel() for g in np.meshgrid(grid, grid))
    h = np.tanh(w[:, None] * x + b[:, None])
    covariance = h[:, :, None] * h[:, None] + 1.0 + noise**2 * np.eye(len(x))
    squares = y @ np.linalg.solve(covariance, np.broadcast_to(y, h.shape)[..., None])[..., 0].T
    log_lik = -0.5 * (squares + np.linalg.slogdet(2 * pi * covariance)[1])
    total = log_lik + stats.norm.logpdf(w) + stats.norm.logpdf(b)
    return np.logaddexp.reduce(total) + 2 * log(grid[1] - grid[0])


def parts_of(name, network, scale=1.0, m=6):
    scales = (scale,) * (network.n_layers - 1)
    hidden = {"m": MeanFieldHidden(network, scales), "g": InducingHidden(network, scales, m)}
    last = {"c": CollapsedLast(scale), "g": InducingLast(scale, m, network.n_outputs)}
    return Layerwise(network, hidden[name[0]], last[name[1]])


def given_prior(network, scale=1.0):
    """One scale for all weights."""
    everywhere = torch.full((network.layout.n_params,), scale, dtype=torch.float64)
    return PriorOfLayers(network, ScalesByGroup.given(everywhere))


every_posterior = pytest.mark.parametrize("name", ["mc", "gc", "gg"])


def train(parts, data, log_noise, steps, *, warm_up=0, seed=0):
    def generator():
        return torch.Generator().manual_seed(seed)

    start = [
        parts.hidden.start(data, at_prior=False, generator=generator()),
        parts.last.start(data, generator=generator()),
        torch.tensor([log_noise], dtype=torch.float64),
    ]
    params = torch.cat(start)
    scale = parts.last.prior_scale
    objective = LayerwiseElbo(
        parts, given_prior(parts.network, scale), Batches(data, 10**6, generator()), params,
        n_draws=2, warm_up=warm_up,
    )  # fmt: skip
    groups = [ParamGroup(slice(0, -1), 0.03, -30, 30)]  # the noise is given
    minimise(objective, groups=groups, max_iter=steps, block_size=steps,
             on_step=lambda step, info: False)  # fmt: skip
    return params
