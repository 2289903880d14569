"""Few rows are predicted by a walk through all trees, with the same bits as by scikit-learn."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_friedman1

import skbayes_sym as sk
from skbayes_sym.stacking import predictors
from skbayes_sym.stacking.tree_arrays import TreeNodes
from skbayes_sym.stacking.tree_walk import TreeWalk

X, Y = make_friedman1(200, n_features=6, noise=1.0, random_state=0)
NEW = make_friedman1(4, n_features=6, random_state=1)[0]
TREES = [("trees", "trees"), ("boosting", "boosting")]


def fit(n_classes):
    if not n_classes:
        return sk.PredictiveStackingRegressor(TREES, random_state=0).fit(X, Y)
    rows, labels = make_classification(
        200, 6, n_informative=4, n_redundant=0, n_classes=n_classes, random_state=0
    )
    return sk.PredictiveStackingClassifier(TREES, random_state=0).fit(rows, labels)


def predict(model):
    return getattr(model, "predict_proba", model.predict)(NEW)


@pytest.mark.long
@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_walks_change_no_bit(n_classes, monkeypatch):
    model = fit(n_classes)
    assert all(weight > 0.0 for weight in model.weights_.values())
    walked = predict(model)
    alone = [getattr(model, "predict_proba", model.predict)(row[None]) for row in NEW]
    np.testing.assert_array_equal(np.concatenate(alone), walked)
    calls = []
    leaf_values = predictors.TreeWalk.leaf_values
    monkeypatch.setattr(
        predictors.TreeWalk, "leaf_values", lambda *a: calls.append(1) or leaf_values(*a)
    )
    np.testing.assert_array_equal(predict(model), walked)
    assert len(calls) == 2
    monkeypatch.setattr(predictors, "MAX_WALKED_ROWS", 0)
    np.testing.assert_array_equal(predict(model), walked)
    assert len(calls) == 2


def test_large_ensembles_are_predicted_tree_by_tree(monkeypatch):
    model = fit(0)
    expected = predict(model)
    monkeypatch.setattr(predictors, "MAX_WALKED_NODES", 10)
    monkeypatch.setattr(predictors.TreeWalk, "leaf_values", None)
    np.testing.assert_array_equal(predict(pickle.loads(pickle.dumps(model))), expected)


def test_rows_at_a_threshold_go_to_the_left_child():
    root = TreeNodes(
        np.array([1, 0, 0]), np.array([0.5, 0.0, 0.0]), np.array([1, -1, -1]),
        np.array([2, -1, -1]), np.arange(3.0)[:, None],
    )  # fmt: skip
    leaf = TreeNodes(
        np.array([0]), np.array([0.0]), np.array([-1]), np.array([-1]), np.array([[7.0]])
    )
    walk = TreeWalk([leaf, root], [leaf.values, root.values])
    values = walk.leaf_values(np.array([[9.0, 0.5], [9.0, 0.6]]))[..., 0]
    np.testing.assert_array_equal(values, [[7.0, 1.0], [7.0, 2.0]])
