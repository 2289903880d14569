"""A pool's predictor against its parts."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.pooling.noise_shape import NoiseShape
from skbayes_sym.inference.pooling.predictor import PooledPredictor, mixture
from skbayes_sym.models.predictive import CategoricalMixture, NormalMixture

X = torch.linspace(-1.0, 1.0, 7, dtype=torch.float64).unsqueeze(1)


class Lines:
    """Two lines of a slope, each with a noise."""

    def __init__(self, slope, noise_std):
        self.slopes = slope + torch.tensor([0.0, 0.1], dtype=torch.float64).reshape(2, 1, 1)
        self.noise_std = noise_std

    def law(self, x):
        noise = torch.full((2, 1, 1), self.noise_std**2, dtype=torch.float64)
        return NormalMixture(self.slopes * x, 0.0 * noise, noise)

    def functions(self, x, n, *, generator):
        which = torch.randint(2, (n,), generator=generator)
        noise_std = torch.full((n, 1, 1), self.noise_std, dtype=torch.float64)
        return self.slopes[which] * x, noise_std


class NeverAsked:
    pass


PARTS = {"flat": Lines(0.0, 0.1), "none": NeverAsked(), "steep": Lines(2.0, 0.5)}
WEIGHTS = {"flat": 0.25, "none": 0.0, "steep": 0.75}
SHAPE = NoiseShape(*(np.array([v]) for v in (0.1, 0.4, 0.0, 1.0, -1.0, 1.0)), 0.2, 9.0, np.ones(1))


def test_the_law_is_that_of_the_parts_by_their_weights():
    law, y = PooledPredictor(PARTS, WEIGHTS).law(X), torch.zeros(7, 1).double()
    densities = [w * PARTS[k].law(X).log_prob(y).exp() for k, w in WEIGHTS.items() if w]
    assert_close(law.log_prob(y).exp(), sum(densities))


@pytest.mark.parametrize("noise", [None, SHAPE])
def test_draws_of_functions_with_their_noise_have_the_moments_of_the_law(noise):
    pool, n = PooledPredictor(PARTS, WEIGHTS, noise), 20_000
    functions, noise_std = pool.functions(X, n, generator=torch.Generator().manual_seed(0))
    _, epistemic, aleatoric = pool.law(X).uncertainty()
    mean = pool.law(X).mean()
    assert bool(((functions.mean(0) - mean).abs() < 4.5 * (epistemic / n).sqrt()).all())
    assert_close(functions.var(0), epistemic, rtol=0.05, atol=1e-9)
    assert_close(noise_std.square().mean(0).expand_as(mean), aleatoric, rtol=0.05, atol=0.0)


def test_functions_are_the_same_for_other_rows():
    pool = PooledPredictor(PARTS, WEIGHTS, SHAPE)
    whole, half = (
        pool.functions(x, 9, generator=torch.Generator().manual_seed(3)) for x in (X, X[:4])
    )
    assert_close(whole[0][:, :4], half[0])
    assert_close(whole[1][:, :4], half[1])


def test_classes_are_mixed_by_the_parts_weights():
    rng = torch.Generator().manual_seed(0)
    one, other = (
        CategoricalMixture(torch.randn(n, 4, 3, generator=rng).double().log_softmax(-1), weights)
        for n, weights in ((2, None), (3, torch.tensor([0.5, 0.3, 0.2]).double().log()))
    )
    found = mixture([one, other], [1.0, 3.0]).probabilities()
    assert_close(found, 0.25 * one.probabilities() + 0.75 * other.probabilities())
