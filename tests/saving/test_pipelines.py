"""Pipelines in one file: the same predictions come back, and what can't be kept is named."""

import warnings

import numpy as np
import pandas as pd
import pytest
from fits import NUMBERS, TWO_NUMBERS, X
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import (
    TransformedTargetRegressor,
    make_column_selector,
    make_column_transformer,
)
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)

from skbayes_sym import BayesianLinearRegressor, DeepEnsembleRegressor, load, predictive, save

pytest.importorskip("safetensors.numpy")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

TABLE = pd.DataFrame(X, columns=["a", "b", "c"]).assign(
    b=lambda t: t["b"].where(t["b"] > -1.0), kind=np.array(["x", "y", "z"])[np.arange(24) % 3]
)

NUMERIC = make_column_selector(dtype_include="number")


def ensemble():
    return DeepEnsembleRegressor((2,), n_members=2, max_iter=5, random_state=0)


def mixed():
    """Numbers with gaps, and words."""
    return make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), NUMERIC),
        (OneHotEncoder(sparse_output=False), ["kind"]),
    )


MODELS = {
    "frame": (make_pipeline(mixed(), ensemble()), TABLE, NUMBERS),
    "passthrough": (
        make_pipeline(
            make_column_transformer((StandardScaler(), [0, 1]), remainder="passthrough"),
            PCA(2), ensemble(),
        ),
        X, TWO_NUMBERS,
    ),
    "functions": (
        make_pipeline(
            FunctionTransformer(np.arctan), PowerTransformer(), QuantileTransformer(n_quantiles=9),
            PolynomialFeatures(2), BayesianLinearRegressor(),
        ),
        X, NUMBERS,
    ),
    "union": (
        make_pipeline(FeatureUnion([("p", PCA(1)), ("s", StandardScaler())]), ensemble()),
        X, NUMBERS,
    ),
    "target": (
        TransformedTargetRegressor(make_pipeline(StandardScaler(), ensemble()),
                                   transformer=StandardScaler()),
        X, NUMBERS,
    ),
    "search": (
        GridSearchCV(make_pipeline(StandardScaler(), ensemble()),
                     {"deepensembleregressor__max_iter": [3, 5]}, cv=2),
        X, NUMBERS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_same_predictions_come_back(name, tmp_path):
    model, rows, y = MODELS[name]
    model.fit(rows, y)
    save(model, tmp_path / "model")
    same = load(tmp_path / "model")
    assert type(same) is type(getattr(model, "best_estimator_", model))
    np.testing.assert_array_equal(same.predict(rows), model.predict(rows))
    intervals = [predictive(each, rows).interval() for each in (same, model)]
    np.testing.assert_array_equal(*intervals)


def test_what_is_loaded_can_be_fitted_again(tmp_path):
    model, rows, y = MODELS["frame"]
    save(model.fit(rows, y), tmp_path / "model")
    again = load(tmp_path / "model").fit(rows, y)
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))


class Mine(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return X


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Mine(), r"steps\.0\.1 can't be saved without pickle.*Mine"),
        (SelectKBest(f_regression, k=2), r"steps\.0\.1 can't be saved.*SelectKBest"),
        (FunctionTransformer(lambda x: x), r"steps\.0\.1\.func can't be saved.*function"),
    ],
)
def test_the_step_that_cannot_be_kept_is_named(step, message, tmp_path):
    model = make_pipeline(step, BayesianLinearRegressor()).fit(X, NUMBERS)
    with pytest.raises(TypeError, match=message):
        save(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_another_version_of_scikit_learn_is_a_warning(tmp_path, monkeypatch):
    model = make_pipeline(StandardScaler(), BayesianLinearRegressor()).fit(X, NUMBERS)
    save(model, tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path / "model")
    monkeypatch.setattr("skbayes_sym.saving.files.SKLEARN", "0.1")
    with pytest.warns(UserWarning, match="scikit-learn"):
        load(tmp_path / "model")
    save(model[-1], tmp_path / "alone")  # knows nothing of scikit-learn's own state
    load(tmp_path / "alone")
