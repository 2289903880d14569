"""Mixtures of networks whose noise is fitted to left-out groups."""

import numpy as np
import pytest
from sklearn import clone, config_context
from sklearn.model_selection import GridSearchCV, GroupKFold

from skbayes_sym import BayesianMLPRegressor, load, save

REG = BayesianMLPRegressor((3,), n_modes=1, n_members=1, random_state=0)


def make_rows(n_groups, n_rows, seed):
    """Rows of groups with random intercepts, and a column that tells the groups apart."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), n_rows)
    X = np.column_stack([rng.normal(size=len(groups)), rng.normal(size=n_groups)[groups]])
    y = 10.0 + X[:, 0] + rng.normal(size=n_groups)[groups] + 0.5 * rng.normal(size=len(groups))
    return X, y, groups


X, Y, GROUPS = make_rows(25, 6, 0)


@pytest.mark.long
def test_intervals_cover_new_groups(tmp_path):
    reg = clone(REG).fit(X, Y, groups=GROUPS)
    X_new, y_new, _ = make_rows(600, 1, 1)
    low, high = reg.predict_interval(X_new, 0.9).T
    # The standard error of the coverage given the fit is 0.012.
    assert np.mean((low <= y_new) & (y_new <= high)) > 0.85
    assert "in left-out groups, noise" in reg.summary_
    plain = clone(REG).fit(X, Y)
    assert np.mean(reg.leave_one_out_log_density) < np.mean(plain.leave_one_out_log_density) - 0.02
    save(reg, tmp_path / "reg.skbayes")
    loaded = load(tmp_path / "reg.skbayes")
    np.testing.assert_array_equal(loaded.predict_interval(X, 0.9), reg.predict_interval(X, 0.9))


@pytest.mark.long
def test_groups_of_one_row_names_and_order_dont_matter():
    plain = clone(REG).fit(X, Y)
    single = clone(REG).fit(X, Y, groups=np.arange(150))
    np.testing.assert_array_equal(single.predict_interval(X, 0.9), plain.predict_interval(X, 0.9))
    grouped = clone(REG).fit(X, Y, groups=GROUPS)
    order = np.random.default_rng(2).permutation(150)
    named = clone(REG).fit(X[order], Y[order], groups=[f"g{500 - g}" for g in GROUPS[order]])
    np.testing.assert_array_equal(named.predict_interval(X, 0.9), grouped.predict_interval(X, 0.9))


@pytest.mark.long
def test_several_targets_and_given_noise():
    both = clone(REG).fit(X, np.column_stack([Y, -Y]), groups=GROUPS)
    assert both.predict(X[:3]).shape == (3, 2)
    fixed = clone(REG).set_params(noise_std=0.5).fit(X, Y, groups=GROUPS)
    assert fixed.noise_shape_ is None
    assert np.isfinite(fixed.leave_one_out_log_density).all()


@pytest.mark.long
def test_searches_pass_groups_on():
    with config_context(enable_metadata_routing=True):
        reg = clone(REG).set_fit_request(groups=True)
        search = GridSearchCV(reg, {"n_modes": [1]}, cv=GroupKFold(2), error_score="raise")
        search.fit(X, Y, groups=GROUPS)
    assert "in left-out groups" in search.best_estimator_.summary_


def test_a_single_group_is_refused():
    with pytest.raises(ValueError, match="groups has a single group"):
        clone(REG).fit(X, Y, groups=np.zeros(150))
