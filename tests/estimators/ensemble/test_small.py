"""Ensembles on a handful of rows: never sure of what they can't know."""

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_linnerud
from sklearn.model_selection import train_test_split

from skbayes_sym import DeepEnsembleRegressor

X, Y = load_linnerud(return_X_y=True)
REG = DeepEnsembleRegressor(n_members=4, random_state=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_fifteen_rows(seed):
    """A row far from the others is mistaken by eight standard deviations, not by 35 nats."""
    train, test = train_test_split(np.arange(20), train_size=15, random_state=seed)
    reg = clone(REG).fit(X[train], Y[train, 0])
    density = reg.log_predictive_density(X[test], Y[test, 0])
    spread = Y[train, 0].std()
    assert density.min() > -12.0 - np.log(spread)
    assert density.mean() > stats.norm.logpdf(0.0, 0.0, spread) - 3.0


def test_functions_of_members_with_student_s_noise():
    reg = clone(REG).fit(X, Y)
    mean, std = reg.predict(X[:3], return_std=True)
    draws = reg.sample_y(X[:3], 20_000, random_state=0)
    assert np.abs((draws.mean(axis=-1) - mean) / (std / 20_000**0.5)).max() < 4.5
    inside = (draws > reg.predict_interval(X[:3], 0.8)[..., :1]) & (
        draws < reg.predict_interval(X[:3], 0.8)[..., 1:]
    )
    np.testing.assert_allclose(inside.mean(axis=-1), 0.8, atol=0.015)
    each = reg.log_likelihood_samples(X, Y)
    mixed = np.logaddexp.reduce(each, axis=0) - np.log(4)
    np.testing.assert_allclose(mixed, reg.log_predictive_density(X, Y))
