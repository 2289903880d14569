r"""Noise level of few rows, which a bound alone determines badly.

Given the posterior q of the weights, the optimal independent factor of the noise level is (Bishop
2006, eq. 10.9)

.. math:: q(\sigma) \propto p(\sigma) \, \sigma^{-W} e^{-E_q[R] / 2 \sigma^2},

with the residual sum of squares R of rows of total weight W and the half-t prior of
`skbayes_sym.base.noise_levels`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from skbayes_sym.base.noise_levels import spread_levels
from skbayes_sym.base.predictor import select_draws
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.random import generator_from

_N_RESIDUAL_DRAWS = 256  # of the expected residual sum of squares
_BLOCK_DRAWS = 16  # that are evaluated at once


def noise_level_factor(
    data: Training, model: Model, sample: Callable[..., Tensor], seed: int
) -> Array | None:
    """Return noise levels in the units of ``y``, (1, K, T), that represent their factor.

    Parameters
    ----------
    data : Training
        Scaled training data.
    model : Model
        Network and likelihood.
    sample : callable (n, *, generator) -> Tensor of shape (n, P)
        Draws weights from their posterior.
    seed : int
        Seed of the draws of the weights.

    Returns
    -------
    ndarray or None
        None if the noise is known, or determined by many rows.
    """
    is_learned = isinstance(model.likelihood, Gaussian) and model.likelihood.n_params
    if not is_learned or data.noise_prior is None:
        return None
    x, y, weight = (values.cpu() for values in data.double_data)
    generator = generator_from(seed)
    squares = torch.zeros(1, y.shape[1], dtype=torch.float64)
    for _ in range(_N_RESIDUAL_DRAWS // _BLOCK_DRAWS):
        theta = sample(_BLOCK_DRAWS, generator=generator).double()
        residual = y - model.network.forward(theta, x)
        squares += torch.einsum("n,snt->t", weight, residual.square())
    squares = squares / _N_RESIDUAL_DRAWS
    return data.noise_levels(squares, torch.full_like(squares, data.total_weight))


def assign_noise_levels(levels: Array, n_draws: int) -> Array:
    """Return the noise level of each of ``n_draws`` draws, (n_draws, 1, T)."""
    return spread_levels(torch.as_tensor(levels), n_draws).numpy()


def draw_likelihoods(likelihood: Likelihood, n: int, *, generator: torch.Generator) -> Likelihood:
    """Return the likelihood with the parameters of ``n`` draws if every draw has its own."""
    if likelihood.params.ndim == 1:
        return likelihood
    index = torch.randint(len(likelihood.params), (n,), generator=generator)
    return select_draws(likelihood, index)
