"""Parts of the bound, evaluated after training."""

import numpy as np
import pytest
import torch

from skbayes_sym.inference.mean_field.bounds import expected_log_likelihood
from skbayes_sym.inference.posteriors import MeanFieldGaussian
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.activations import RELU, TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.permanent_estimates import (
    DoublyStochastic,
    Exact,
    Importance,
)
from skbayes_sym.symmetry.gaps.unit_gap import UnitGap


def test_expected_log_likelihood_counts_weights_as_repetitions(generator):
    network = MLP(2, (3,), 2, RELU)
    x = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1, 1])
    repeats = torch.tensor([1, 2, 1, 3, 1])
    posterior = MeanFieldGaussian(
        network.init(1, generator=generator)[0].numpy(), np.full(network.layout.n_params, 0.2)
    )
    weighted, repeated = (
        expected_log_likelihood(
            network, Categorical(), posterior, data, n_draws=20_000, generator=generator
        )
        for data in (
            Data(x, y, repeats.double()),
            Data(
                x.repeat_interleave(repeats, 0),
                y.repeat_interleave(repeats),
                torch.ones(8, dtype=torch.float64),
            ),
        )
    )
    error = np.hypot(weighted.standard_error, repeated.standard_error)
    assert abs(weighted.value - repeated.value) < 4 * error


@pytest.mark.long
def test_reported_gap_bounds_enclose_the_truth(generator):
    network = MLP(2, (6,), 1, TANH)
    loc = network.init(1, generator=generator)[0].numpy()
    posterior = MeanFieldGaussian(loc, np.full(len(loc), 0.5))
    lower, exact, upper = (
        UnitGap(network.symmetry(), permanent, bound)
        .estimate(posterior, 3000, generator=generator_from(1))
        .value
        for permanent, bound in (
            (Importance(8), "lower"), (Exact(), "lower"), (DoublyStochastic(), "upper")
        )
    )  # fmt: skip
    assert lower <= exact + 1e-3 < upper
    assert 0.0 < exact < network.symmetry().log_order


def test_expected_log_likelihood_of_a_linear_model_is_exact(generator):
    """``-[(y - m)^2 + x' S x] / 2 s^2 - log(2 pi s^2) / 2`` a row, whatever the draws."""
    network, noise = MLP(2, (), 1, TANH), 0.7
    loc, scale = np.array([0.5, -1.0, 0.2]), np.array([0.3, 0.6, 0.4])  # two slopes, an intercept
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    found = expected_log_likelihood(
        network, Gaussian(torch.tensor([np.log(noise)])), MeanFieldGaussian(loc, scale),
        Data(x, y, torch.ones(6, dtype=torch.float64)), n_draws=4, generator=generator,
    )  # fmt: skip
    design = np.column_stack([x.numpy(), np.ones(6)])
    off = (y[:, 0].numpy() - design @ loc) ** 2 + design**2 @ scale**2
    expected = np.sum(-0.5 * off / noise**2 - 0.5 * np.log(2 * np.pi * noise**2))
    np.testing.assert_allclose(found.value, expected, rtol=1e-12)
