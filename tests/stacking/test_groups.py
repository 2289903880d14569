"""Stacks whose members leave out whole groups of rows, and folds in time order."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import clone, config_context
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    StratifiedGroupKFold,
    TimeSeriesSplit,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import (
    BayesianLinearRegressor,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
    load,
    save,
)
from skbayes_sym.base.progress import PREDICT_ROWS
from skbayes_sym.model_selection import compare_models
from skbayes_sym.models.model import Data
from skbayes_sym.stacking.members.gaussian_process import condition
from skbayes_sym.stacking.predictors import ForestPredictor


@pytest.mark.parametrize("n_conditioned", [20, 13])
def test_gaussian_processes_that_leave_out_groups_equal_refits(n_conditioned):
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2, 3, 4], [1, 6, 3, 5, 5])
    x = torch.as_tensor(rng.normal(size=(20, 2)))
    y = torch.as_tensor(rng.normal(size=(20, 2)))
    weight = torch.as_tensor(rng.integers(1, 4, 20).astype(float))
    index = torch.arange(n_conditioned)
    log_scales = torch.tensor([0.3, 0.1, 0.2, -0.5, -1.0], dtype=torch.float64)

    def fit(rows):
        return condition(log_scales, Data(x[rows], y[rows], weight[rows]))

    held_out = fit(index).leave_groups_out(x, y, groups, index)
    for group in range(5):
        test = torch.as_tensor(groups == group)
        refit = fit(index[~test[index]]).distribution(x[test])
        np.testing.assert_allclose(held_out.loc[0, test], refit.loc[0], atol=1e-8)
        np.testing.assert_allclose(held_out.variance[0, test], refit.variance[0], atol=1e-8)


def test_groups_of_one_row_leave_out_single_rows_of_a_gaussian_process():
    rng = np.random.default_rng(1)
    data = Data(
        torch.as_tensor(rng.normal(size=(15, 2))),
        torch.as_tensor(rng.normal(size=(15, 1))),
        torch.as_tensor(rng.integers(1, 4, 15).astype(float)),
    )
    process = condition(torch.tensor([0.3, 0.1, 0.2, -0.5, -1.0], dtype=torch.float64), data)
    held_out = process.leave_groups_out(data.x, data.y, np.arange(15), torch.arange(15))
    expected = process.leave_one_out()
    np.testing.assert_allclose(held_out.loc, expected.loc, atol=1e-10)
    np.testing.assert_allclose(held_out.variance, expected.variance, atol=1e-10)


CHEAP = [(name, name) for name in ("linear", "trees", "boosting", "gaussian_process")]
SHARED = np.random.default_rng(2).normal(size=40)


def make_rows(n_groups, n_rows, seed, shared=SHARED):
    """Rows of groups with random intercepts; half of the variance of the noise is shared."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), n_rows)
    X = rng.normal(size=(len(groups), 3))
    y = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.7 * shared[groups] + 0.7 * rng.normal(size=len(groups))
    return X, y, groups


X, Y, GROUPS = make_rows(30, 5, 0)
STACK = PredictiveStackingRegressor(CHEAP, random_state=0)


def coverage(model, X, y):
    low, high = model.predict_interval(X, 0.9).T
    return np.mean((low <= y) & (y <= high))


@pytest.fixture(scope="module")
def grouped():
    return clone(STACK).fit(X, Y, groups=GROUPS)


def same_predictions(first, second):
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    assert first.weights_ == second.weights_


@pytest.mark.long
@pytest.mark.parametrize("ratio", [0.3, 3.0])
def test_intervals_cover_new_groups(ratio):
    """900 new groups: the standard error of the coverage given the fit is 0.01."""
    rng = np.random.default_rng(5)
    X, y, groups = make_rows(25, 6, 4, np.sqrt(ratio) * rng.normal(size=25))
    X_new, y_new, _ = make_rows(900, 1, 6, np.sqrt(ratio) * rng.normal(size=900))
    assert coverage(clone(STACK).fit(X, y, groups=groups), X_new, y_new) > 0.85


@pytest.mark.long
@pytest.mark.parametrize("name", ["linear", "trees", "boosting", "gaussian_process"])
def test_every_member_is_wider_by_the_variance_between_groups(name):
    # The column tells groups apart, so that members that have seen a group know its intercept.
    shared = np.repeat([-1.0, 1.0], 15)[np.random.default_rng(0).permutation(30)] * 2.0
    X, y, groups = make_rows(30, 5, 7, shared)
    X = np.column_stack([X, np.random.default_rng(1).normal(size=30)[groups]])
    stack = PredictiveStackingRegressor([(name, name)], random_state=0)
    _, narrow = clone(stack).fit(X, y).predict(X, return_std=True)
    _, wide = stack.fit(X, y, groups=groups).predict(X, return_std=True)
    assert np.mean(wide**2) > np.mean(narrow**2)


@pytest.mark.long
def test_groups_of_one_row_equal_no_groups():
    stack = clone(STACK).set_params(estimators=CHEAP[:2])
    rows = np.r_[:150, :30]
    plain = clone(stack).fit(X[rows], Y[rows])
    same_predictions(clone(stack).fit(X[rows], Y[rows], groups=np.arange(180)), plain)
    # A repeated row is one row of a larger weight, with its group.
    same_predictions(clone(stack).fit(X[rows], Y[rows], groups=rows), plain)


@pytest.mark.long
def test_names_dtypes_and_order_of_groups_dont_matter(grouped):
    text = pd.Series([f"site {1000 - g}" for g in GROUPS], dtype="category")
    order = np.random.default_rng(3).permutation(len(Y))
    same_predictions(clone(STACK).fit(X, Y, groups=text), grouped)
    same_predictions(clone(STACK).fit(X[order], Y[order], groups=GROUPS[order]), grouped)
    assert grouped.leave_one_out_log_density_.keys() == dict(CHEAP).keys()


@pytest.mark.long
def test_weights_are_repetitions_of_rows_with_their_groups():
    weight = np.arange(150) % 3
    weighted = clone(STACK).fit(X, Y, sample_weight=weight, groups=GROUPS)
    rows = np.repeat(np.arange(150), weight)
    same_predictions(weighted, clone(STACK).fit(X[rows], Y[rows], groups=GROUPS[rows]))
    # Equal rows of two groups stay two rows.
    twice = clone(STACK).set_params(estimators=CHEAP[:1])
    X2, Y2, G2 = np.r_[X, X], np.r_[Y, Y], np.r_[GROUPS, GROUPS + 50]
    assert "300 rows of" in twice.fit(X2, Y2, groups=G2).summary_


def test_linear_models_leave_out_groups_of_several_blocks_of_predictions():
    X, y, groups = make_rows(PREDICT_ROWS // 5 + 10, 5, 0, np.zeros(200))
    stack = PredictiveStackingRegressor([("linear", "linear")], random_state=0)
    score, error = clone(stack).fit(X, y, groups=groups).stack_log_density_
    assert score == pytest.approx(clone(stack).fit(X, y).stack_log_density_[0], abs=error)


def test_invalid_groups_are_refused():
    stack = clone(STACK).set_params(estimators=CHEAP[:1])
    with pytest.raises(ValueError, match="groups has a single group"):
        stack.fit(X, Y, groups=np.ones(150))
    with pytest.raises(ValueError, match="groups has a single group"):
        stack.fit(X, Y, sample_weight=GROUPS == 3, groups=GROUPS)
    with pytest.raises(ValueError, match="groups has 1 missing values, the first in row 0"):
        stack.fit(X, Y, groups=[None, *GROUPS[1:]])
    with pytest.raises(ValueError, match="rows of one group in the training and in the left-out"):
        clone(stack).set_params(cv=KFold(4)).fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="pass groups to fit"):
        clone(stack).set_params(cv=GroupKFold(5)).fit(X, Y)


@pytest.mark.long
@pytest.mark.parametrize("cv", [3, GroupKFold(3), LeaveOneGroupOut()])
def test_groups_can_be_of_types_that_dont_compare(cv):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 2)), rng.normal(size=12)
    groups = np.array([1, "a", 2.5] * 4, dtype=object)
    codes = np.arange(12) % 3

    def scores(groups):
        table = compare_models({"ridge": BayesianRidge()}, X, y, cv=cv, groups=groups)
        stack = PredictiveStackingRegressor([("line", "linear")], cv=cv, random_state=0)
        return table.log_density["ridge"], stack.fit(X, y, groups=groups).predict(X)

    for mixed, numbered in zip(scores(groups), scores(codes), strict=True):
        np.testing.assert_allclose(mixed, numbered, rtol=1e-9)


@pytest.mark.parametrize("cv", [GroupKFold(3), LeaveOneGroupOut(), 4])
def test_group_splitters_are_folds_of_a_stack(cv):
    stack = clone(STACK).set_params(estimators=[*CHEAP[:2], ("user", Ridge())], cv=cv)
    assert stack.fit(X, Y, groups=GROUPS).score(X, Y) > 0.3
    assert stack.weights_.keys() == {"linear", "trees", "user"}


@pytest.mark.long
@pytest.mark.parametrize("cv", [None, StratifiedGroupKFold(3)])
def test_classifiers_leave_out_groups(cv):
    rng = np.random.default_rng(8)
    labels = np.where(Y + rng.normal(size=150) > 0.0, "yes", "no")
    # The third column numbers the groups: trees that have seen a group know its labels.
    rows = np.column_stack([X, rng.normal(size=30)[GROUPS]])
    stack = PredictiveStackingClassifier([*CHEAP[1:3], ("user", LogisticRegression())], cv=cv)
    stack.set_params(random_state=0).fit(rows, labels, groups=GROUPS)
    assert stack.score(rows, labels) > 0.6
    assert all(-1.0 < mean < 0.0 for mean, _ in stack.leave_one_out_log_density_.values())


@pytest.mark.long
def test_classifier_members_score_lower_in_new_groups():
    rng = np.random.default_rng(9)
    classes = rng.integers(0, 2, 30)[GROUPS]
    rows = np.column_stack([X[:, :1], rng.normal(size=30)[GROUPS]])
    stack = PredictiveStackingClassifier(CHEAP, random_state=0)
    seen = clone(stack).fit(rows, classes).leave_one_out_log_density_
    new = clone(stack).fit(rows, classes, groups=GROUPS).leave_one_out_log_density_
    # The other members can't tell the groups apart.
    for name in ("trees", "boosting"):
        assert seen[name][0] > -0.5
        assert new[name][0] < -0.6


@pytest.mark.long
@pytest.mark.parametrize("routing", [False, True])
def test_pipelines_and_searches_pass_groups_on(routing):
    stack = clone(STACK).set_params(estimators=CHEAP[:1], cv=GroupKFold(3))
    with config_context(enable_metadata_routing=routing):
        if routing:
            stack.set_fit_request(groups=True)
        pipeline = make_pipeline(StandardScaler(), stack)
        grid = {"predictivestackingregressor__cv": [GroupKFold(3), GroupKFold(4)]}
        search = GridSearchCV(pipeline, grid, cv=GroupKFold(2), error_score="raise", n_jobs=2)
        # GroupKFold in the stack raises an error if the groups don't arrive.
        if routing:
            pipeline.fit(X, Y, groups=GROUPS)
            search.fit(X, Y, groups=GROUPS)
            cross_validate(
                stack, X, Y, params={"groups": GROUPS}, cv=GroupKFold(3), error_score="raise"
            )
        else:
            named = {"predictivestackingregressor__groups": GROUPS}
            pipeline.fit(X, Y, **named)
            search.fit(X, Y, groups=GROUPS, **named)
            cross_validate(
                stack, X, Y, groups=GROUPS, params={"groups": GROUPS}, cv=GroupKFold(3),
                error_score="raise",
            )  # fmt: skip
    assert search.best_score_ > 0.2


@pytest.mark.long
def test_grouped_stacks_are_saved_and_pickled(grouped, tmp_path):
    save(grouped, tmp_path / "stack.skbayes")
    same_predictions(load(tmp_path / "stack.skbayes"), grouped)
    same_predictions(pickle.loads(pickle.dumps(grouped)), grouped)


@pytest.mark.long
def test_only_rows_that_a_forward_fold_leaves_out_are_scored():
    stack = clone(STACK).set_params(estimators=[*CHEAP[:2], ("user", Ridge())])
    folds = list(TimeSeriesSplit(4).split(X))
    fitted = clone(stack).set_params(cv=TimeSeriesSplit(4)).fit(X, Y)
    same_predictions(fitted, clone(stack).set_params(cv=folds).fit(X, Y))
    test = np.concatenate([test for _, test in folds])
    held_out = np.empty(len(Y))
    for train, rows in folds:
        ridge = Ridge().fit(X[train], Y[train])
        held_out[rows] = Y[rows] - ridge.predict(X[rows])
    _, std = clone(stack).set_params(
        estimators=[("user", Ridge())], cv=folds
    ).fit(X, Y).predict(X, return_std=True)  # fmt: skip
    assert np.mean(std**2) == pytest.approx(np.mean(held_out[test] ** 2), rel=0.1)


def test_forward_folds_of_noise_that_falls_are_as_narrow_as_the_scored_rows():
    rng = np.random.default_rng(4)
    noise = np.where(np.arange(120) < 60, 5.0, 0.1)
    y = X[:120, 0] + noise * rng.normal(size=120)
    late = [(np.arange(60), np.arange(60, 90)), (np.arange(90), np.arange(90, 120))]
    stack = PredictiveStackingRegressor([("user", Ridge(1e-3))], cv=late, random_state=0)
    _, std = stack.fit(X[:120], y).predict(X, return_std=True)
    _, std_all = stack.set_params(cv=5).fit(X[:120], y).predict(X, return_std=True)
    assert std.mean() < 0.5 * std_all.mean()


def test_forward_folds_of_positive_targets_cause_no_warning():
    members = [("linear", "linear"), ("log_linear", "log_linear")]
    stack = PredictiveStackingRegressor(members, cv=TimeSeriesSplit(4), random_state=0)
    stack.fit(X[:80], np.exp(Y[:80]))  # warnings are errors
    assert stack.weights_["log_linear"] > 0.5


@pytest.mark.long
def test_classifiers_take_forward_folds():
    labels = (Y > 0.0).astype(int)
    stack = PredictiveStackingClassifier(CHEAP[1:3], cv=TimeSeriesSplit(2), random_state=0)
    assert stack.fit(X, labels).score(X, labels) > 0.6


@pytest.mark.long
def test_searches_with_time_series_splits_take_stacks():
    stack = PredictiveStackingRegressor(CHEAP[:1], cv=TimeSeriesSplit(3), random_state=0)
    search = GridSearchCV(stack, {"cv": [None, TimeSeriesSplit(2)]}, cv=TimeSeriesSplit(2))
    assert search.fit(X, Y).best_score_ > 0.0
    table = compare_models({"stack": stack, "ridge": BayesianRidge()}, X, Y, cv=TimeSeriesSplit(2))
    assert np.isfinite(table.log_density).all()


@pytest.mark.long
def test_folds_that_train_on_one_class_are_left_out():
    """All members are scored by the other folds, and nothing is fitted if there are none."""
    labels = np.repeat(["a", "b", "c"], 20)
    X = np.random.default_rng(0).normal(size=(60, 2)) + (labels[:, None] == "b")
    members = [("l", "linear"), ("t", "trees"), ("u", LogisticRegression())]
    stack = PredictiveStackingClassifier(members, cv=TimeSeriesSplit(10), random_state=0)
    with pytest.warns(UserWarning, match="training rows of 3 of 10 folds of cv are all of one"):
        stack.fit(X, labels)
    assert set(stack.named_estimators_) == {"l", "t", "u"}
    stack.set_params(cv=[(np.arange(20), np.arange(20, 60))])
    with pytest.raises(ValueError, match="training rows of every fold are all of one class"):
        stack.fit(X, labels)


@pytest.mark.parametrize("cv", [None, 3, LeaveOneGroupOut()])
def test_groups_that_equal_the_classes_are_refused_before_any_fit(cv):
    """Members were fitted and weighted by probabilities of classes that they can't predict."""

    class Unfitted(LogisticRegression):
        def fit(self, *_):
            raise AssertionError

    labels = np.repeat(["a", "b", "c"], 10)
    rows = np.random.default_rng(0).normal(size=(30, 2))
    stack = PredictiveStackingClassifier([("u", Unfitted())], cv=cv, random_state=0)
    with pytest.raises(ValueError, match="lack the classes of the rows that it leaves out"):
        stack.fit(rows, labels, groups=labels)


def test_trees_of_a_fold_give_classes_that_it_lacks_no_probability():
    codes = np.repeat([0, 2], 10)
    X = np.random.default_rng(0).normal(size=(20, 2)) + codes[:, None]
    forest = ExtraTreesClassifier(5, random_state=0).fit(X, codes)
    average, _ = ForestPredictor(forest, 2, 3).average_leaves(torch.as_tensor(X))
    np.testing.assert_allclose(average[:, [0, 2]], forest.predict_proba(X), atol=1e-12)
    assert not average[:, 1].any()


def test_rare_values_of_folds_are_no_concern_of_the_user():
    """A fold of ten rows lacks a value that another one in forty rows has."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = X[:, 0] + X[:, 1] ** 2
    X[:, 2] = np.arange(40) == 7
    stack = PredictiveStackingRegressor([("u", BayesianLinearRegressor())], random_state=0)
    stack.fit(X, y)
    with pytest.warns(UserWarning, match="X varies in columns that were constant in fit"):
        BayesianLinearRegressor().fit(X[8:], y[8:]).predict(X[7:8])
