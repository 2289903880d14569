"""Results don't depend on torch's default dtype, nor on the caller's gradient mode."""

import numpy as np
import pytest
import torch
from fits import FITS, fitted
from sklearn.base import clone, is_classifier

import skbayes_sym as sk

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

ALL_FITS = [
    pytest.param(name, marks=[] if name == "linear-gaussian" else pytest.mark.long) for name in FITS
]


def results(model, case):
    """Numbers that the model predicts and samples, by name."""
    found = {}
    if hasattr(model, "predict_entries"):
        found["mean"], found["std"] = model.predict_entries([0, 1], [2, 3], return_std=True)
        found["transformed"] = model.transform(case.X)
        found["score"] = model.score(case.X)
        return found
    if is_classifier(model):
        found["proba"] = model.predict_proba(case.X)
    else:
        found["mean"], found["std"] = model.predict(case.X, return_std=True)
        found["interval"] = model.predict_interval(case.X)
        found["targets"] = model.sample_y(case.X[:5], 3, random_state=0)
    distribution = sk.predictive(model, case.X)
    found["log density"] = distribution.log_prob(case.y)
    found["functions"] = model.sample_f(case.X[:5], 3, random_state=0)
    return found


def assert_same(name, mode):
    case = FITS[name]
    expected = results(fitted(name), case)
    with mode:
        found = results(clone(case.estimator).set_params(device="cpu").fit(case.X, case.y), case)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


class Float64Default:
    """Context in which torch's default dtype is float64."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error):
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ALL_FITS)
def test_default_dtype_changes_nothing(name):
    assert_same(name, Float64Default())


@pytest.mark.parametrize("name", ALL_FITS)
def test_inference_mode_changes_nothing(name):
    assert_same(name, torch.inference_mode())


@pytest.mark.parametrize("name", ALL_FITS)
def test_models_fitted_in_inference_mode_and_without_gradients_can_be_used_outside(name):
    case = FITS[name]
    with torch.inference_mode():
        model = clone(case.estimator).set_params(device="cpu").fit(case.X, case.y)
    with torch.no_grad():
        results(model, case)
        model.fit(case.X, case.y)
    results(model, case)
