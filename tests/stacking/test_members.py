"""Members of stacks: leave-one-out scores, their corrections, weights and trees by hand."""

import pickle
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import PredictiveStackingClassifier, PredictiveStackingRegressor, predictive
from skbayes_sym.base.calibration import fit_calibration
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.fit import fit_weights
from skbayes_sym.stacking.members import MEMBERS, Member
from skbayes_sym.stacking.members.boosting import Boosting
from skbayes_sym.stacking.members.networks import ProbeClassifier
from skbayes_sym.stacking.predictors import UserPredictor
from skbayes_sym.stacking.scoring import _predict_folds, score_member
from skbayes_sym.stacking.task import MemberFit, RowBlock, ScoredMember, StackTask

RNG = np.random.default_rng(0)
SUBSET = RNG.permutation(150)[:60]
FLOWERS, SPECIES = (a[SUBSET] for a in load_iris(return_X_y=True))


def make_task(x, y, weight=None, classes=None):
    folds = list(KFold(5, shuffle=True, random_state=0).split(x))
    rows = torch.as_tensor(x, dtype=torch.float64)
    targets = torch.as_tensor(y)
    if weight is None:
        weight = np.ones(len(x))
    if classes is None:
        targets = targets.reshape(-1, 1)
    return StackTask(
        RowBlock(rows, rows.numpy()), targets, torch.as_tensor(weight),
        np.asarray(y), folds, 0, classes=classes,
    )  # fmt: skip


@dataclass
class Optimistic(Member):
    """A member whose leave-one-out scores are known to be too high by ``optimism``."""

    member: Any
    optimism: float

    def fit(self, task):
        return replace(self.member.fit(task), optimism=self.optimism)


def test_optimism_is_subtracted_from_leave_one_out_scores():
    task = make_task(FLOWERS, SPECIES, classes=np.arange(3))
    linear = MEMBERS["linear"]()
    plain = score_member(Optimistic(linear, 0.0), task, False).log_density
    corrected = score_member(Optimistic(linear, 0.1), task, False).log_density
    np.testing.assert_allclose(corrected, plain - 0.1, rtol=1e-12)


def test_stacking_weights_maximise_the_weighted_score():
    weight = np.array([1.0, 2.0, 7.0, 1.0, 4.0, 1.0])
    density = np.log(np.array([[1.0, 0.3, 0.2, 0.9, 0.4, 0.6], [0.4, 0.5, 0.7, 0.3, 0.5, 0.2]]))
    task = make_task(np.zeros((6, 1)), np.arange(6.0), weight)
    members = {"a": ScoredMember(None, density[0]), "b": ScoredMember(None, density[1])}
    score = density @ weight / weight.sum()
    prior = np.exp((score - score.max()) / StackDefaults.prior_score_scale)

    def loss(share):
        mixture = np.log(share * np.exp(density[0]) + (1.0 - share) * np.exp(density[1]))
        return -(weight @ mixture + prior @ np.log([share, 1.0 - share]))

    best = minimize_scalar(loss, bounds=(1e-6, 1.0 - 1e-6), method="bounded")
    # The optimum is flat: both searches stop where the loss changes by less than 1e-7.
    assert abs(fit_weights(members, task).weights["a"] - best.x) < 1e-3


def test_forests_average_the_mean_squares_of_their_leaves():
    """Not the variances within leaves: no mean square is below the square of the mean."""
    y = 3.0 + RNG.normal(size=60)
    # Equal rows of different targets share leaves that can't be split.
    x = np.repeat(FLOWERS[:30], 2, axis=0)
    predictor = MEMBERS["trees"]().fit(make_task(x, y)).predictor
    forest = predictor.estimator
    mean, mean_square = predictor.average_leaves(torch.as_tensor(x))
    np.testing.assert_allclose(mean[:, 0], forest.predict(x), rtol=1e-12)
    assert (mean_square >= mean[:, 0] ** 2 - 1e-9).all()
    leaves = forest.apply(x).T
    trees = [estimator.tree_ for estimator in forest.estimators_]
    squares = [t.impurity[n] + t.value[n, 0, 0] ** 2 for t, n in zip(trees, leaves, strict=True)]
    np.testing.assert_allclose(mean_square, np.mean(squares, axis=0), rtol=1e-12)
    assert max(t.impurity[n].max() for t, n in zip(trees, leaves, strict=True)) > 0.1


def test_out_of_bag_predictions_omit_trees_that_have_seen_a_row():
    y = RNG.normal(size=60)
    task = make_task(FLOWERS, y)
    fit = MEMBERS["trees"]().fit(task)
    forest = fit.predictor.estimator
    by_tree = np.stack([tree.predict(FLOWERS) for tree in forest.estimators_])
    has_seen = np.stack([np.isin(np.arange(60), rows) for rows in forest.estimators_samples_])
    expected = np.ma.array(by_tree, mask=has_seen).mean(axis=0)
    np.testing.assert_allclose(fit.leave_one_out.loc[0, :, 0], expected, rtol=1e-12)


@pytest.mark.parametrize("n_classes", [0, 2, 3])
@pytest.mark.parametrize("name", ["trees", "boosting"])
def test_ensembles_survive_pickles(name, n_classes):
    """Pickles hold arrays, from which scikit-learn's estimators are built again."""
    x = RNG.normal(size=(80, 5)) * 10.0 ** np.arange(-2, 3)
    y = x[:, 1] * (x[:, 2] > 0.0) + 0.1 * RNG.normal(size=80)
    targets = y
    classes = None
    if n_classes:
        targets = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
        classes = np.arange(n_classes)
    predictor = MEMBERS[name]().fit(make_task(x, targets, classes=classes)).predictor
    restored = pickle.loads(pickle.dumps(predictor))
    rows = torch.as_tensor(RNG.normal(size=(500, 5)) * 10.0 ** np.arange(-2, 3))
    assert torch.equal(restored.mean(rows), predictor.mean(rows))
    again = pickle.loads(pickle.dumps(restored))
    assert torch.equal(again.mean(rows), predictor.mean(rows))

    fitted = predictor.estimator
    built = restored.estimator
    assert type(built) is type(fitted)
    np.testing.assert_array_equal(built.predict(rows.numpy()), fitted.predict(rows.numpy()))
    if name == "trees":
        importances = fitted.feature_importances_
        np.testing.assert_allclose(built.feature_importances_, importances, rtol=1e-9)
        assert [t.get_depth() for t in built.estimators_] == [
            t.get_depth() for t in fitted.estimators_
        ]
        assert len(pickle.dumps(predictor)) < 0.2 * len(pickle.dumps(fitted))
    else:
        stages = zip(
            built.staged_predict(rows.numpy()), fitted.staged_predict(rows.numpy()), strict=True
        )
        assert all((first == second).all() for first, second in stages)


def test_weights_of_rows_count_as_repetitions_in_a_calibration():
    scores = torch.as_tensor(RNG.normal(size=(12, 3)))
    y = torch.arange(12) % 3
    weight = torch.tensor([1.0, 2.0, 5.0] * 4, dtype=torch.float64)
    repeated = torch.repeat_interleave(torch.arange(12), weight.long())
    by_weight = fit_calibration(scores, y, weight)
    by_rows = fit_calibration(scores[repeated], y[repeated], torch.ones(len(repeated)).double())
    np.testing.assert_allclose(by_weight.frequency, by_rows.frequency, rtol=1e-12)
    np.testing.assert_allclose(by_weight.log_slope, by_rows.log_slope, atol=1e-5)


class NearestNeighbours(Member):
    """Nearest-neighbour regression or classification of the encoded rows."""

    reads_original_rows: ClassVar[bool] = True

    def fit(self, task):
        model_class = KNeighborsClassifier if task.n_classes else KNeighborsRegressor
        model = model_class(min(5, len(task))).fit(task.rows.original, task.targets)
        predictor = UserPredictor(model, *task.target_scaling, task.classes)
        return MemberFit(predictor, is_point_prediction=not task.n_classes)


@pytest.fixture
def registered_neighbours(monkeypatch):
    monkeypatch.setitem(MEMBERS, "neighbours", NearestNeighbours)


FAST_MEMBERS = [*(name for name in MEMBERS if name != "networks"), "neighbours"]


@pytest.mark.parametrize(
    ("stack_class", "targets"),
    [(PredictiveStackingRegressor, FLOWERS[:, 3]), (PredictiveStackingClassifier, SPECIES)],
    ids=["regression", "classification"],
)
@pytest.mark.parametrize("name", FAST_MEMBERS)
@pytest.mark.usefixtures("registered_neighbours")
def test_registered_members_are_fitted_weighted_and_pickled(name, stack_class, targets):
    """A member that is registered needs nothing else, as the last one shows."""
    x = FLOWERS[:, :3]
    stack = stack_class([("first", name), ("second", "linear")], random_state=0).fit(x, targets)
    assert set(stack.weights_) == {"first", "second"}
    assert np.isfinite(stack.leave_one_out_log_density_["first"]).all()
    restored = pickle.loads(pickle.dumps(stack))
    np.testing.assert_array_equal(restored.predict(x), stack.predict(x))


@pytest.mark.usefixtures("registered_neighbours")
def test_registered_members_belong_to_the_default_list():
    with pytest.raises(ValueError, match=r"take one of .*'networks', 'neighbours'"):
        PredictiveStackingRegressor([("a", "unknown")]).fit(FLOWERS, FLOWERS[:, 0])
    assert list(PredictiveStackingRegressor()._make_members())[-1] == "neighbours"


@pytest.mark.parametrize("stack_class", [PredictiveStackingRegressor, PredictiveStackingClassifier])
def test_docstrings_list_the_default_members(stack_class):
    sentence = re.search(r"The default members are (.*?), which", stack_class.__doc__, re.S)
    assert re.findall(r'"(\w+)"', sentence[1]) == list(MEMBERS)


def test_user_guide_lists_the_default_members():
    page = Path(__file__).parents[2] / "docs/user_guide/stacking.rst"
    rows = re.findall(r'^``"(\w+)"``  ', page.read_text(encoding="utf-8"), re.M)
    # A second table has the same members in another order.
    assert rows[: len(MEMBERS)] == list(MEMBERS)
    assert set(rows) == set(MEMBERS)


def test_a_mean_without_a_standard_deviation_gets_one():
    """DummyRegressor takes return_std, but always returns zeros."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = rng.normal(size=40)
    stack = PredictiveStackingRegressor([("mean", DummyRegressor())], random_state=0).fit(X, y)
    std = predictive(stack, X).std()
    np.testing.assert_allclose(std, y.std(), rtol=0.15)


def test_parameters_of_members_are_set_by_name():
    """By the conventions of scikit-learn's StackingRegressor, a search included."""
    ridge = make_pipeline(StandardScaler(), Ridge())
    stack = PredictiveStackingRegressor([("line", "linear"), ("ridge", ridge)], random_state=0)
    assert stack.get_params()["ridge__ridge__alpha"] == 1.0
    assert "ridge" not in stack.get_params(deep=False)
    stack.set_params(ridge__ridge__alpha=10.0, line="trees")
    assert stack.estimators[0] == ("line", "trees")
    assert dict(stack.estimators)["ridge"].named_steps["ridge"].alpha == 10.0
    copied = clone(stack)
    assert copied.get_params()["ridge__ridge__alpha"] == 10.0
    search = GridSearchCV(stack, {"ridge__ridge__alpha": [0.1, 1.0], "line": ["drop"]}, cv=2)
    search.fit(FLOWERS[:, :3], FLOWERS[:, 3])
    assert set(search.best_estimator_.weights_) == {"ridge"}
    with pytest.raises(ValueError, match="all are 'drop'"):
        stack.set_params(line="drop", ridge="drop").fit(FLOWERS[:, :3], FLOWERS[:, 3])


NAMES = ["linear", "trees", "boosting", "gaussian_process"]


def test_fitted_members_predict():
    """In the units of y. Their average is the prediction of the stack."""
    x = FLOWERS[:, :3]
    y = 100.0 + 5.0 * FLOWERS[:, 3]
    members = [*((name, name) for name in NAMES), ("ridge", BayesianRidge())]
    stack = PredictiveStackingRegressor(members, random_state=0).fit(x, y)
    assert set(stack.named_estimators_) == {*NAMES, "ridge"}
    for name in stack.weights_:
        assert np.abs(stack.estimators_[name].predict(x) - y).mean() < 2.0
    mixed = sum(
        stack.weights_[name] * stack.estimators_[name].predict(x) for name in stack.weights_
    )
    np.testing.assert_allclose(stack.predict(x), mixed, rtol=1e-9)
    assert isinstance(stack.estimators_["trees"].steps[-1][1].regressor_, ExtraTreesRegressor)
    boosting = stack.estimators_["boosting"].steps[-1][1].regressor_
    assert isinstance(boosting, HistGradientBoostingRegressor)
    assert stack.estimators_["gaussian_process"].weights_ == {"gaussian_process": 1.0}
    linear = predictive(stack.estimators_["linear"], x)
    assert np.isfinite(linear.log_prob(y)).all()
    restored = pickle.loads(pickle.dumps(stack.estimators_["trees"]))
    np.testing.assert_array_equal(restored.predict(x), stack.estimators_["trees"].predict(x))


def test_fitted_members_predict_labels():
    labels = np.array(["setosa", "versicolor", "virginica"])[SPECIES]
    members = [(name, name) for name in NAMES]
    stack = PredictiveStackingClassifier(members, random_state=0).fit(FLOWERS, labels)
    for member in stack.estimators_.values():
        assert (member.predict(FLOWERS) == labels).mean() > 0.9
        np.testing.assert_allclose(member.predict_proba(FLOWERS).sum(axis=1), 1.0, rtol=1e-9)
    assert isinstance(stack.estimators_["trees"].steps[-1][1], ExtraTreesClassifier)
    # The fitted trees themselves still predict codes for the stack.
    assert set(stack.predict(FLOWERS)) <= set(labels)


def test_fitted_members_read_tables():
    """With text, missing values and levels that weren't in the training data."""
    pandas = pytest.importorskip("pandas")
    kind = np.array(["a", "b", "c"])[SPECIES]
    table = pandas.DataFrame({"kind": kind, "width": FLOWERS[:, 0], "length": FLOWERS[:, 1]})
    table.loc[3, "width"] = np.nan
    members = [("trees", "trees"), ("linear", "linear")]
    stack = PredictiveStackingRegressor(members, random_state=0).fit(table, FLOWERS[:, 3])
    query = table.iloc[:5].copy()
    query.loc[1, "kind"] = "unknown"
    for member in stack.estimators_.values():
        with pytest.warns(UserWarning, match="unknown"):
            predicted = member.predict(query)
        assert np.abs(predicted - FLOWERS[:5, 3]).max() < 1.5
    columns = stack.estimators_["trees"].steps[0][1]
    with pytest.raises(TypeError, match="fit the stack"):
        columns.fit(table)


def test_members_of_small_weight_are_not_evaluated():
    log_density = np.log(RNG.uniform(0.1, 1.0, size=(2, 400)))
    log_density[0] -= 0.25
    members = {name: ScoredMember(None, d) for name, d in zip("ab", log_density, strict=True)}
    task = make_task(np.zeros((400, 1)), np.arange(400.0))
    free = fit_weights(members, replace(task, defaults=StackDefaults(min_weight=0.0))).weights
    kept = fit_weights(members, replace(task, defaults=StackDefaults(min_weight=free["a"] * 1.1)))
    assert 0.0 < free["a"] < 0.5
    assert kept.weights == {"a": 0.0, "b": 1.0}


@pytest.mark.long
@pytest.mark.parametrize("name", ["linear", "trees", "boosting", "gaussian_process", "networks"])
def test_classification_members_leave_out_all_repetitions_of_a_row(name):
    """Held-out odds of a row of large weight, next to refits without all and without one of it."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 2))
    y = (x[:, 0] + 0.3 * rng.normal(size=80) > 0.0).astype(int)
    row = int(np.argmin(np.abs(x[:, 0] - 0.4)))
    y[row] = 0  # among rows of class 1
    weight = np.ones(80)
    weight[row] = 12.0

    def log_odds(values):
        scores = torch.as_tensor(values).reshape(-1)
        if len(scores) > 1:
            return float(scores[1] - scores[0])
        return float(torch.log1p(-scores.exp()) - scores)

    def fit(weight):
        kept = weight > 0.0
        task = make_task(x[kept], y[kept], weight[kept], classes=np.arange(2))
        member = MEMBERS[name]()
        return member, task, member.fit(task)

    def refitted(weight):
        fitted = fit(weight)[2]
        block = torch.as_tensor(x[[row]])
        if fitted.is_calibrated:
            return log_odds(fitted.predictor.log_density(block, np.zeros(1, dtype=int)))
        return log_odds(fitted.predictor.mean(block))

    member, task, fitted = fit(weight)
    held_out = fitted.leave_one_out
    if held_out is None:
        held_out = _predict_folds(member, task, fitted, member.choose_folds(task))
    held_out = log_odds(held_out[row])
    weight[row] = 11.0
    without_one = refitted(weight)
    weight[row] = 0.0
    without_all = refitted(weight)
    assert without_all - without_one > 0.5  # the row matters
    # Posteriors leave rows out approximately. One repetition alone would be 0.9 of the way off.
    assert abs(held_out - without_all) < 0.5 * (without_all - without_one)


def test_boosting_adds_rounds_until_twice_the_best_number(monkeypatch):
    """Held-out predictions are those of fits with the best number of rounds in one go."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = x[:, 0] + rng.normal(size=60)
    task = make_task(x, y)
    member = Boosting(40)
    n_rounds = []
    fit_model = Boosting._fit_model

    def counted(self, task, n, *args):
        n_rounds.append(n)
        return fit_model(self, task, n, *args)

    monkeypatch.setattr(Boosting, "_fit_model", counted)
    fitted = member.fit(task)
    best = fitted.predictor.estimator.n_iter_
    tried = sorted(set(n_rounds) - {best})
    assert tried[-1] < 40
    assert 2 * best <= tried[-1]
    assert all(2 * best > n for n in tried[:-1])
    for train, test in task.folds:
        model = fit_model(member, task, best, train)
        np.testing.assert_allclose(fitted.leave_one_out.loc[0, test, 0], model.predict(x[test]))


def test_boosting_of_few_rounds_tries_all():
    for n_rounds in (1, 2, 3, 5, 6, 7):
        task = make_task(FLOWERS, FLOWERS[:, 3])
        held_out, best = Boosting(n_rounds)._predict_folds(task)
        assert held_out.shape == (60, 1)
        assert best == n_rounds - 1  # four flower sizes predict each other


def test_probes_of_classes_fit_no_linear_model():
    """The stack has one."""
    classifier = ProbeClassifier(3, n_modes=1, random_state=0)
    with config_context(skip_parameter_validation=True):
        classifier.set_params(n_members=0).fit(FLOWERS, SPECIES)
    assert classifier.linear_weight_ == 0.0
    assert "linear model: skipped" in classifier.summary_
    assert classifier.score(FLOWERS, SPECIES) > 0.9
