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
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.dummy import DummyRegressor
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
from skbayes_sym.stacking.predictors import UserPredictor
from skbayes_sym.stacking.scoring import score_member
from skbayes_sym.stacking.task import MemberFit, RowBlock, ScoredMember, StackTask

RNG = np.random.default_rng(0)
FLOWERS, SPECIES = (a[RNG.permutation(150)[:60]] for a in load_iris(return_X_y=True))


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


def test_nodes_of_forests_hold_the_mean_square_of_their_targets():
    """Not the variance within the node: no mean square is below the square of the mean."""
    y = 3.0 + RNG.normal(size=60)
    trees = MEMBERS["trees"]().fit(make_task(FLOWERS, y)).predictor.trees
    mean, mean_square = np.asarray(trees.value).T
    assert (mean_square >= mean**2 - 1e-9).all()
    assert mean_square.min() > 0.0


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
    assert rows == list(MEMBERS)


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


def test_fitted_members_predict():
    """Their predictions are those of a stack in which they have all the weight."""
    x = FLOWERS[:, :3]
    y = FLOWERS[:, 3]
    names = ["linear", "trees", "boosting", "gaussian_process"]
    members = [*((name, name) for name in names), ("ridge", BayesianRidge())]
    stack = PredictiveStackingRegressor(members, random_state=0).fit(x, y)
    assert set(stack.named_estimators_) == {*names, "ridge"}
    assert stack.named_estimators_.ridge.predict(x).shape == y.shape
    for name in names[1:]:
        member = stack.estimators_[name]
        assert np.corrcoef(member.predict(x), y)[0, 1] > 0.8
        assert member.weights_ == {name: 1.0}
    mixed = sum(stack.weights_[name] * stack.estimators_[name].predict(x) for name in names[1:])
    mixed += stack.weights_["ridge"] * stack.estimators_["ridge"].predict(x)
    rest = stack.predict(x) - mixed
    assert np.abs(rest).max() <= stack.weights_["linear"] * np.abs(y).max() + 1e-9
