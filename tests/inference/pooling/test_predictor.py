"""A pool's predictor against its parts."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.pooling import NoiseShape, PooledPredictor, ShapedPredictor, mixture
from skbayes_sym.inference.predictor import BasePredictor
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture

X = torch.linspace(-1.0, 1.0, 7, dtype=torch.float64).unsqueeze(1)


class Lines(BasePredictor):
    """Two lines of a slope, each with a noise."""

    def __init__(self, slope, noise_std):
        self.slopes = slope + torch.tensor([0.0, 0.1], dtype=torch.float64).reshape(2, 1, 1)
        self.noise_std = noise_std

    def law(self, x):
        noise = torch.full((2, 1, 1), self.noise_std**2, dtype=torch.float64)
        return NormalMixture(self.slopes * x, 0.0 * noise, noise)

    def drawn(self, x, n, *, generator):
        law, which = self.law(x), torch.randint(2, (n,), generator=generator)
        return NormalMixture(law.loc[which], law.variance[which], law.noise_variance[which])


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
def test_draws_have_the_moments_of_the_law(noise):
    pool, n = ShapedPredictor(PooledPredictor(PARTS, WEIGHTS), noise), 20_000
    drawn, law = pool.drawn(X, n, generator=torch.Generator().manual_seed(0)), pool.law(X)
    _, epistemic, aleatoric = law.uncertainty()
    assert_close(pool.mean(X), law.mean())
    assert bool(((drawn.loc.mean(0) - law.mean()).abs() < 4.5 * (epistemic / n).sqrt()).all())
    assert_close(drawn.loc.var(0), epistemic, rtol=0.05, atol=1e-9)
    assert_close(drawn.noise_variance.mean(0), aleatoric, rtol=0.05, atol=0.0)


def test_targets_of_draws_have_the_law_of_the_pool():
    pool, n = ShapedPredictor(PooledPredictor(PARTS, WEIGHTS), SHAPE), 20_000
    drawn = pool.drawn(X, n, generator=torch.Generator().manual_seed(0))
    targets, law = drawn.sample_of_draws(np.random.default_rng(0)), pool.law(X)
    for probability in (0.02, 0.5, 0.98):
        below = (targets <= law.quantile(probability)).double().mean(0)
        error = (probability * (1.0 - probability) / n) ** 0.5
        assert_close(below, torch.full_like(below, probability), rtol=0.0, atol=4.5 * error)


def test_functions_are_the_same_for_other_rows():
    pool = ShapedPredictor(PooledPredictor(PARTS, WEIGHTS), SHAPE)
    whole, half = (pool.drawn(x, 9, generator=torch.Generator().manual_seed(3)) for x in (X, X[:4]))
    assert_close(whole.loc[:, :4], half.loc)


def test_classes_are_mixed_by_the_parts_weights():
    rng = torch.Generator().manual_seed(0)
    one, other = (
        CategoricalMixture(torch.randn(n, 4, 3, generator=rng).double().log_softmax(-1), weights)
        for n, weights in ((2, None), (3, torch.tensor([0.5, 0.3, 0.2]).double().log()))
    )
    found = mixture([one, other], [1.0, 3.0]).mean()
    assert_close(found, 0.25 * one.mean() + 0.75 * other.mean())
