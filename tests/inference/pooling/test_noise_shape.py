"""Noise shapes against what rows were drawn with, by their density, and where there is none."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.pooling import NoiseShape, fit_noise_shape
from skbayes_sym.models.predictive_mixtures import NormalMixture


def drawn(noise, n=600, n_targets=1, n_models=3, seed=0):
    """Left-out rows of models that are right but for their noise, which they take to be 1."""
    rng = np.random.default_rng(seed)
    f = rng.standard_normal((n, n_targets))
    off = 0.05 * rng.standard_normal((n_models, n, n_targets))
    y = torch.as_tensor(f + noise(f, rng))
    law = NormalMixture(
        torch.as_tensor(f + off),
        torch.full((n_models, n, n_targets), 0.05**2).double(),
        torch.ones(n_models, 1, n_targets).double(),
        torch.tensor([0.5, 0.3, 0.2]).double().log(),
    )
    return law, y, torch.ones(n).double()


def growing(f, rng):
    return np.exp(0.4 * f) * rng.standard_normal(f.shape)


def heavy(f, rng):
    wide = rng.random((len(f), 1)) < 0.1
    return np.where(wide, 2.7, 0.55) * rng.standard_normal(f.shape)  # of variance 1


def test_growing_noise_is_found():
    found = fit_noise_shape(*drawn(growing, n=3000))
    assert float(found.slope[0]) == pytest.approx(0.4, abs=0.05)
    mean = torch.tensor([[-1.0], [1.0]]).double()
    assert_close(found.factor(mean).log(), 0.4 * mean, rtol=0.0, atol=0.06)


def test_tails_are_found():
    found = fit_noise_shape(*drawn(heavy, n=3000))
    variance, share = found.states
    assert found.wide_share == pytest.approx(0.1, abs=0.03)
    assert found.wide_ratio == pytest.approx(24.1, rel=0.3)
    assert float(share @ variance) == pytest.approx(1.0)
    total = float(np.exp(2.0 * found.offset[0]))
    assert total == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_one_noise_stays_one(seed):
    """Of 0.7, not of the 1 that the models took: a level alone is no shape."""
    rows = drawn(lambda f, rng: 0.7 * rng.standard_normal(f.shape), n=200, seed=seed)
    assert fit_noise_shape(*rows) is None


def test_each_target_has_its_own_slope():
    found = fit_noise_shape(*drawn(
        lambda f, rng: np.exp([0.5, -0.5] * f) * rng.standard_normal(f.shape), n=2000, n_targets=2
    ))  # fmt: skip
    np.testing.assert_allclose(found.slope, [0.5, -0.5], atol=0.08)


def test_weights_are_repetitions():
    law, y, weight = drawn(growing, n=100)
    loc, variance = (t.repeat(1, 2, 1) for t in (law.loc, law.variance))
    twice = replace(law, loc=loc, variance=variance)
    one = fit_noise_shape(twice, y.repeat(2, 1), weight.repeat(2))
    other = fit_noise_shape(law, y, 2.0 * weight)
    np.testing.assert_allclose(one.slope, other.slope)
    assert one.wide_ratio == pytest.approx(other.wide_ratio)


def test_one_model_without_doubt_becomes_two_normals():
    f = torch.linspace(-2.0, 2.0, 50).double().unsqueeze(1)
    quarter = torch.full((1, 1, 1), 0.25).double()
    law = NormalMixture(f[None], 0.0 * quarter, quarter)
    nothing = np.zeros(1)
    shape = NoiseShape(nothing, nothing + 0.3, nothing, nothing + 1.0, nothing - 1.5,
                       nothing + 1.5, 0.2, 4.0, nothing + 1.0)  # fmt: skip
    variance, share = shape.states
    width = (0.3 * f[:, 0].clamp(-1.5, 1.5)).exp() * 0.5
    normals = [torch.distributions.Normal(f[:, 0], width * v.sqrt()) for v in variance]
    pairs = list(zip(share, normals, strict=True))
    shaped, y = shape.shaped(law), f + 0.3
    assert_close(shaped.log_prob(y).exp(), sum(p * n.log_prob(y[:, 0]).exp() for p, n in pairs))
    assert_close(shaped.cdf(y)[:, 0], sum(p * n.cdf(y[:, 0]) for p, n in pairs))
    assert_close(shaped.std()[:, 0], width)


def test_means_that_are_all_the_same_have_no_level():
    law = NormalMixture(*(torch.ones(1, 9, 1).double() for _ in range(3)))
    assert fit_noise_shape(law, torch.zeros(9, 1).double(), torch.ones(9).double()) is None
