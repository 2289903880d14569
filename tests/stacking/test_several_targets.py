"""Stacks of several targets: shapes, joint width, tables, weights, files and refusals."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import (
    BayesianMLPRegressor,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
    load,
    predictive,
    save,
)

MEMBERS = [("line", "linear"), ("ridge", Ridge())]


def make_table(n_rows, seed, correlation=0.4):
    """Two targets with different means, and residuals that are correlated."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3))
    noise = rng.multivariate_normal([0.0, 0.0], [[1.0, correlation], [correlation, 1.0]], n_rows)
    mean = np.column_stack([X[:, 0] + X[:, 1], X[:, 2] - 0.5 * X[:, 0]])
    return X, mean + 0.7 * noise * [1.0, 3.0]


def make_stack(**params):
    return PredictiveStackingRegressor(MEMBERS, random_state=0, **params)


X, Y = make_table(150, 0)
FITTED = make_stack().fit(X, Y)
JOINT = predictive(FITTED, X[:20])


def test_shapes():
    mean, std = FITTED.predict(X[:5], return_std=True)
    assert (
        mean.shape == std.shape == FITTED.predict(X[:5], return_std="function")[1].shape == (5, 2)
    )
    assert FITTED.predict_interval(X[:5]).shape == (5, 2, 2)
    assert FITTED.predict_quantiles(X[:5]).shape == (5, 2, 3)
    assert FITTED.sample_y(X[:5], 4).shape == FITTED.sample_f(X[:5], 4).shape == (5, 2, 4)
    assert FITTED.log_predictive_density(X[:5], Y[:5]).shape == (5,)
    assert FITTED.predict_uncertainty(X[:5]).total.shape == (5, 2)
    assert JOINT.shape == (20, 2)
    assert len(JOINT) == 20
    assert JOINT[3:5].sample(7).shape == (2, 2, 7)
    assert JOINT.cdf(Y[:20]).shape == JOINT.crps(Y[:20]).shape == (20, 2)
    assert FITTED.leave_one_out_cdf_.shape == (150, 2)
    assert "normal copula of 2 targets" in repr(JOINT)


def test_every_target_has_the_stack_that_is_fitted_to_it_alone():
    for t, (name, stack) in enumerate(FITTED.estimators_.items()):
        alone = clone(stack).fit(X, Y[:, t])
        np.testing.assert_array_equal(FITTED.predict(X)[:, t], alone.predict(X))
        marginal = predictive(alone, X[:20])
        np.testing.assert_array_equal(JOINT.interval(0.8)[:, t], marginal.interval(0.8))
        np.testing.assert_array_equal(
            JOINT.marginals[name].log_prob(Y[:20, t]), marginal.log_prob(Y[:20, t])
        )
        np.testing.assert_allclose(JOINT.crps(Y[:20])[:, t], marginal.crps(Y[:20, t]), rtol=1e-12)
        assert FITTED.weights_[name] == alone.weights_


def test_leave_one_out_cdf_is_that_of_new_rows():
    X_new, Y_new = make_table(2000, 5)
    new = predictive(FITTED, X_new).cdf(Y_new)
    held_out = FITTED.leave_one_out_cdf_
    # Standard deviations of uniform variables are 0.289; of 150 rows +- 0.01.
    np.testing.assert_allclose(held_out.std(axis=0), new.std(axis=0), atol=0.04)
    np.testing.assert_allclose(held_out.mean(axis=0), 0.5, atol=0.07)


@pytest.mark.long
def test_sums_of_targets_are_covered():
    """For 12 tables of 150 rows with correlation 0.4, sums have 90 % intervals at new rows."""
    joint, independent = [], []
    for seed in range(100, 112):
        X, Y = make_table(150, seed)
        X_new, Y_new = make_table(500, 1000 + seed)
        # Equal units: both residuals have the same width.
        model = make_stack().fit(X, Y / [1.0, 3.0])
        total = (Y_new / [1.0, 3.0]).sum(axis=1)
        distribution = predictive(model, X_new)
        draws = distribution.sample(400, seed).sum(axis=1)
        separate = sum(
            marginal.sample(400, seed + t)
            for t, marginal in enumerate(distribution.marginals.values())
        )
        for sample, coverage in ((draws, joint), (separate, independent)):
            low, high = np.quantile(sample, [0.05, 0.95], axis=1)
            coverage.append(np.mean((low <= total) & (total <= high)))
    assert 0.88 < np.mean(joint) < 0.92
    assert np.mean(independent) < 0.87


@pytest.mark.long
def test_the_joint_density_of_new_rows_is_higher_than_that_of_independent_targets():
    X_new, Y_new = make_table(1000, 7)
    distribution = predictive(FITTED, X_new)
    joint = distribution.log_prob(Y_new).mean()
    marginals = distribution.marginals.values()
    separate = sum(m.log_prob(Y_new[:, t]).mean() for t, m in enumerate(marginals))
    # Mutual information of the true noise: -log(1 - 0.4^2) / 2 = 0.087 nats.
    assert 0.04 < joint - separate < 0.13
    np.testing.assert_array_equal(FITTED.log_predictive_density(X_new, Y_new).mean(), joint)


@pytest.mark.long
def test_networks_alone_have_the_dependence_of_their_residuals():
    members = [("networks", BayesianMLPRegressor(3, n_modes=1, n_members=0))]
    model = PredictiveStackingRegressor([("networks", "networks")], random_state=0).fit(X, Y)
    assert 0.2 < model.target_correlation_[0, 1] < 0.6
    own = PredictiveStackingRegressor(members, random_state=0).fit(X, Y)
    assert np.isfinite(own.leave_one_out_cdf_).all()
    assert 0.2 < own.target_correlation_[0, 1] < 0.6


def test_draws_are_joint_and_reproducible():
    draws = JOINT.sample(500, 3)
    np.testing.assert_array_equal(draws, FITTED.sample_y(X[:20], 500, 3))
    residual = draws - draws.mean(axis=2, keepdims=True)
    r = np.mean(residual[:, 0] * residual[:, 1]) / np.sqrt(
        np.prod(np.mean(residual**2, axis=(0, 2)))
    )
    assert abs(r - FITTED.target_correlation_[0, 1]) < 0.05


def test_frames_keep_names_also_beside_text_and_levels_that_are_unknown():
    frame = pd.DataFrame({"size": X[:, 0], "place": np.where(X[:, 1] > 0, "a", "b")})
    names = ["height", "weight"]
    lines = PredictiveStackingRegressor([("line", "linear")], random_state=0)
    model = lines.fit(frame, pd.DataFrame(Y, columns=names))
    assert list(model.estimators_) == list(predictive(model, frame).marginals) == names
    assert "(height, weight)" in model.summary_
    assert "target height" in model.summary_
    new = frame[:4].assign(place=["a", "c", "b", "c"])
    distribution = predictive(model, new)
    with pytest.warns(UserWarning, match="'c'"):
        mean = distribution.mean()
    cdf = distribution.cdf(mean)  # a distribution warns once
    for t, stack in enumerate(model.estimators_.values()):
        with pytest.warns(UserWarning, match="'c'"):
            alone = predictive(stack, new).evaluated()
        np.testing.assert_allclose(alone.mean(), mean[:, t])
        np.testing.assert_allclose(alone.cdf(mean[:, t]), cdf[:, t])


@pytest.mark.long
def test_repeated_rows_equal_weights_and_groups_are_left_out():
    weight = np.tile([1.0, 2.0, 0.0], 50)
    weighted = make_stack().fit(X, Y, sample_weight=weight)
    repeated = np.repeat(np.arange(150), weight.astype(int))
    again = make_stack().fit(X[repeated], Y[repeated])
    np.testing.assert_allclose(weighted.predict(X), again.predict(X), rtol=1e-9)
    np.testing.assert_allclose(weighted.target_correlation_, again.target_correlation_, atol=1e-9)
    grouped = make_stack().fit(X, Y, groups=np.arange(150) // 5)
    assert not np.array_equal(grouped.leave_one_out_cdf_, FITTED.leave_one_out_cdf_)


@pytest.mark.long
def test_pickles_files_and_clones(tmp_path):
    lines = PredictiveStackingRegressor([("line", "linear")], random_state=0).fit(X, Y)
    save(lines, tmp_path / "model")
    for model in (pickle.loads(pickle.dumps(lines)), load(tmp_path / "model")):
        np.testing.assert_array_equal(model.sample_y(X[:4], 3), lines.sample_y(X[:4], 3))
        assert model.weights_ == lines.weights_
    assert not hasattr(clone(lines), "weights_")


@pytest.mark.long
def test_pipelines_searches_and_scores():
    pipeline = make_pipeline(StandardScaler(), make_stack())
    assert cross_val_score(pipeline, X, Y, cv=3).min() > 0.0
    assert predictive(pipeline.fit(X, Y), X[:3]).sample(2).shape == (3, 2, 2)
    search = GridSearchCV(make_stack(), {"ridge__alpha": [0.1, 10.0]}, cv=2).fit(X, Y)
    assert search.predict(X[:3]).shape == (3, 2)
    by_folds = make_stack(cv=KFold(3).split(X)).fit(X, Y)
    assert np.isfinite(by_folds.leave_one_out_cdf_).all()


@pytest.mark.long
@pytest.mark.processes
def test_searches_of_several_targets_in_two_processes_equal_serial_ones():
    grid = {"ridge__alpha": [0.1, 100.0], "cv": [None, 3]}
    frame = pd.DataFrame(Y, columns=["height", "weight"])
    serial = GridSearchCV(make_stack(), grid, cv=2, error_score="raise").fit(X, frame)
    parallel = clone(serial).set_params(n_jobs=2).fit(X, frame)
    for key in ("mean_test_score", "split1_test_score"):
        np.testing.assert_array_equal(parallel.cv_results_[key], serial.cv_results_[key])
    best = parallel.best_estimator_
    np.testing.assert_array_equal(best.predict(X), serial.best_estimator_.predict(X))
    assert set(best.weights_) == {"height", "weight"}
    np.testing.assert_array_equal(
        best.target_correlation_, serial.best_estimator_.target_correlation_
    )


@pytest.mark.long
@pytest.mark.processes
def test_the_result_does_not_depend_on_n_jobs():
    parallel = make_stack(n_jobs=2).fit(X, Y)
    np.testing.assert_array_equal(parallel.predict(X), FITTED.predict(X))
    np.testing.assert_array_equal(parallel.target_correlation_, FITTED.target_correlation_)


@pytest.mark.long
def test_a_fit_of_one_target_follows_and_warm_starts_work():
    model = make_stack(warm_start=True).fit(X, Y).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), FITTED.predict(X), atol=0.05)
    model.fit(X, Y[:, 0])
    assert model.predict(X[:3]).shape == (3,)
    assert set(model.weights_) == {"line", "ridge"}
    column = make_stack().fit(X, Y[:, :1])
    assert column.predict(X[:3]).shape == (3, 1)


def test_missing_targets_are_refused_with_their_column():
    missing = pd.DataFrame(Y, columns=["height", "weight"])
    missing.loc[7, "weight"] = np.nan
    with pytest.raises(ValueError, match=r"column 'weight' of y contains nan at row 7"):
        make_stack().fit(X, missing)
    with pytest.raises(ValueError, match="two columns of the same name"):
        make_stack().fit(X, missing.set_axis(["a", "a"], axis=1))
    with pytest.raises(ValueError, match="numbers"):
        make_stack().fit(X, np.where(Y > 0, "yes", "no"))


@pytest.mark.long
def test_what_has_no_joint_meaning_is_refused():
    with pytest.raises(ValueError, match="takes a model of one target"):
        FITTED.predict(X[:3], return_cov=True)
    with pytest.raises(TypeError, match="has no components"):
        JOINT.components()
    with pytest.raises(ValueError, match="y has 1 targets, the model has 2"):
        FITTED.log_predictive_density(X, Y[:, 0])
    with pytest.raises(ValueError, match="y"):
        PredictiveStackingClassifier(random_state=0).fit(X, (Y > 0).astype(int))


@pytest.mark.long
def test_warnings_name_the_target():
    gross = Y.copy()
    gross[3, 1] = 1e6
    with pytest.warns(UserWarning, match="target '1': rows with targets far beyond") as caught:
        model = make_stack().fit(X, gross)
    assert not [w for w in caught if "target '0'" in str(w.message)]
    assert model.outliers_.tolist() == [3]
    assert np.isnan(model.leave_one_out_cdf_[3, 1])


def test_one_weight_is_that_of_every_row():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 2)), rng.normal(size=(12, 2))
    one, each = (
        PredictiveStackingRegressor([("line", "linear")], random_state=0).fit(X, y, weight)
        for weight in (2.0, np.full(12, 2.0))
    )
    np.testing.assert_array_equal(one.target_correlation_, each.target_correlation_)
    np.testing.assert_array_equal(one.predict(X), each.predict(X))
