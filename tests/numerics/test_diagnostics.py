"""R-hat and effective sample sizes: a reference implementation, known answers, undefined cases."""

import numpy as np
import pytest

from skbayes_sym.numerics.diagnostics import bulk_ess, mean_ess, rank_rhat


def ar1(coefficient, n_chains, n_draws, n_quantities, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n_chains, n_draws, n_quantities))
    x = noise.copy()
    for t in range(1, n_draws):
        x[:, t] = coefficient * x[:, t - 1] + (1 - coefficient**2) ** 0.5 * noise[:, t]
    return x


SHAPES = [(4, 100), (1, 57), (7, 4), (3, 5), (2, 33), (16, 10)]


@pytest.mark.parametrize("coefficient", [-0.7, 0.0, 0.5, 0.97])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_arviz(coefficient, shape):
    array_stats = pytest.importorskip("arviz_stats.base").array_stats
    draws = ar1(coefficient, *shape, 5)
    draws[..., 1] = np.exp(2 * draws[..., 1])
    draws[..., 2] = np.round(draws[..., 2], 1)  # ties
    draws[0, :, 3] += 3.0
    draws[..., 4] /= np.abs(ar1(0.0, *shape, 1, seed=1)[..., 0]) ** 2
    pairs = {bulk_ess: ("ess", "bulk"), mean_ess: ("ess", "mean")}
    if shape[0] > 1:  # arviz has no R-hat for one chain; its halves have one
        pairs[rank_rhat] = ("rhat", "rank")
    for ours, (theirs, method) in pairs.items():
        function = getattr(array_stats, theirs)
        expected = [
            function(draws[..., q], chain_axis=0, draw_axis=1, method=method) for q in range(5)
        ]
        np.testing.assert_allclose(ours(draws), expected, rtol=1e-9)


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.9])
def test_known_autocorrelation(coefficient):
    """ESS / n of an AR(1) process is (1 - a) / (1 + a)."""
    found = mean_ess(ar1(coefficient, 8, 2000, 20)) / 16000
    error = found.std(ddof=1) / 20**0.5
    assert abs(found.mean() - (1 - coefficient) / (1 + coefficient)) < 4 * error + 0.01


def test_chains_that_disagree():
    draws = ar1(0.0, 4, 200, 2)
    draws[0, :, 1] += 5.0
    agree, apart = rank_rhat(draws)
    assert agree < 1.02
    assert apart > 1.5
    assert bulk_ess(draws)[1] < 12
    wide = ar1(0.0, 4, 500, 1)
    wide[0] *= 4.0  # the same location: only the folded ranks see it
    assert rank_rhat(wide)[0] > 1.1


def test_weights_of_chains():
    draws = ar1(0.5, 4, 200, 3)
    for statistic in (bulk_ess, mean_ess, rank_rhat):
        np.testing.assert_allclose(statistic(draws, [2, 2, 2, 2]), statistic(draws))
        np.testing.assert_allclose(statistic(draws, [1, 1, 0, 1]), statistic(draws[[0, 1, 3]]))
    kish = 10**2 / (4 * (1 + 4 + 9 + 16))
    np.testing.assert_allclose(bulk_ess(draws, [1, 2, 3, 4]), kish * bulk_ess(draws))


@pytest.mark.parametrize("statistic", [bulk_ess, mean_ess, rank_rhat])
def test_undefined_is_nan(statistic):
    draws = ar1(0.5, 4, 20, 4)
    draws[..., 1] = 2.0
    draws[0, 3, 2] = np.nan
    draws[1, 3, 3] = np.inf
    assert np.isnan(statistic(draws)).tolist() == [False, True, True, True]
    assert np.isnan(statistic(draws[:, :3])).all()
    assert np.isnan(statistic(draws, [0, 0, 0, 0])).all()
    with pytest.raises(ValueError, match="shape"):
        statistic(draws[0])
    with pytest.raises(ValueError, match="chain_weights"):
        statistic(draws, [1, -1, 1, 1])
