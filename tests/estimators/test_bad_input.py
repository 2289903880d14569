"""What only some estimators can be asked wrongly, and extreme data, by the variational ones."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skbayes_sym import SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.symmetry.gaps.permanent_estimates import DoublyStochastic, Exact

FAST = {"hidden_layer_sizes": (3,), "max_iter": 20, "tol": None, "random_state": 0}
REG, CLF = SymmetrizedVIRegressor(**FAST), SymmetrizedVIClassifier(**FAST)
X = np.random.default_rng(0).standard_normal((20, 3))
Y, LABELS = X[:, 0], (X[:, 0] > 0).astype(int)

every_estimator = pytest.mark.parametrize(
    ("estimator", "y"), [(REG, Y), (CLF, LABELS)], ids=["regressor", "classifier"]
)


@every_estimator
@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("hidden_layer_sizes", 0), ("hidden_layer_sizes", (4, -1)), ("hidden_layer_sizes", (2.5,)),
        ("hidden_layer_sizes", "wide"), ("activation", "selu"), ("symmetry", "rotation"),
        ("gap", "bethe"), ("gap", 3), ("gap", DoublyStochastic()), ("symmetry", Exact()),
        ("prior", 0.0), ("prior", [1.0, 2.0, 3.0]), ("prior", [1.0, np.inf]),
        ("max_iter", 0), ("batch_size", 0), ("learning_rate", -1.0), ("log_variance_rate", 0.0),
        ("n_weight_samples", 0), ("n_predict_samples", 0), ("tol", -1.0),
        ("device", "tpu9"), ("random_state", "today"),
    ],
)  # fmt: skip
def test_bad_parameters_are_named(estimator, y, parameter, value):
    with pytest.raises(ValueError, match=parameter):
        clone(estimator).set_params(**{parameter: value}).fit(X, y)


@pytest.mark.parametrize("value", [0.0, -1.0, "guess", [1.0, 2.0]])
def test_bad_noise(value):
    with pytest.raises(ValueError, match="noise_std"):
        clone(REG).set_params(noise_std=value).fit(X, Y)


@every_estimator
def test_absent_cuda_is_an_error_not_a_fallback(estimator, y, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device='cuda:1'.*0 CUDA devices.*'cpu'"):
        clone(estimator).set_params(device="cuda:1").fit(X, y)
    assert clone(estimator).fit(X, y).device_ == "cpu"


@every_estimator
def test_flips_need_an_odd_activation(estimator, y):
    with pytest.raises(ValueError, match=r"'relu'.*odd.*'permutation'"):
        clone(estimator).set_params(symmetry="signed_permutation").fit(X, y)


@every_estimator
def test_exact_sum_refuses_wide_layers(estimator, y):
    wide = clone(estimator).set_params(hidden_layer_sizes=(21,), gap="exact")
    with pytest.raises(ValueError, match=r"gap='exact'.*width 21.*'auto'"):
        wide.fit(X, y)


@every_estimator
def test_a_batch_larger_than_the_data_warns_and_fits(estimator, y):
    with pytest.warns(UserWarning, match="batch_size=500 exceeds the 20 distinct"):
        large = clone(estimator).set_params(batch_size=500).fit(X, y)
    full = clone(estimator).fit(X, y)
    assert np.array_equal(large.posterior_.loc, full.posterior_.loc)


def test_one_class():
    with pytest.raises(ValueError, match="at least 2 classes in y, got 1 class"):
        clone(CLF).fit(X, LABELS, sample_weight=LABELS)


def test_continuous_labels():
    with pytest.raises(ValueError, match="continuous"):
        clone(CLF).fit(X, Y)


@pytest.mark.parametrize("rows", [1, 2])
def test_one_row_is_enough_for_a_posterior(rows):
    said = nullcontext() if rows > 1 else pytest.warns(UserWarning, match="one distinct row")
    with said:
        reg = clone(REG).fit(X[:rows], Y[:rows])
    mean, std = reg.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.isfinite(reg.elbo_)


def test_constant_target():
    with pytest.warns(UserWarning, match=r"^y is constant \(3\)"):
        reg = clone(REG).set_params(max_iter=300).fit(X, np.full(20, 3.0))
    mean, std = reg.predict(X, return_std=True)
    np.testing.assert_allclose(mean, 3.0, atol=1.0)
    assert np.isfinite(std).all()
    assert (std > 0).all()
    assert np.isfinite(reg.elbo_)


def test_large_scales_are_standardised_away():
    reg = clone(REG).fit(1e8 * X + 1e12, 1e-9 * Y)
    assert np.isfinite(reg.predict(1e8 * X + 1e12)).all()
    assert np.isfinite(reg.elbo_)


def test_bad_questions_to_a_fitted_model():
    reg = clone(REG).fit(X, Y)
    with pytest.raises(ValueError, match="quantiles must lie strictly"):
        reg.predict_quantiles(X, [0.5, 1.0])
    with pytest.raises(ValueError, match="coverage must lie strictly"):
        reg.predict_interval(X, 1.5)
    with pytest.raises(ValueError, match="2 targets, the model has 1"):
        reg.log_predictive_density(X, np.column_stack([Y, Y]))
    with pytest.raises(ValueError, match="20 rows and y 19"):
        reg.log_predictive_density(X, Y[:-1])
    with pytest.raises(ValueError, match="20 rows and y 19"):
        clone(CLF).fit(X, LABELS).log_predictive_density(X, LABELS[:-1])


@every_estimator
def test_divergence_names_a_remedy_and_keeps_the_previous_fit(estimator, y, monkeypatch):
    from skbayes_sym.numerics.optimise import DivergenceError

    fitted = clone(estimator).fit(X, y)
    before = {k: v for k, v in vars(fitted).items() if k.endswith("_")}

    def broken(*args, **kwargs):
        raise DivergenceError("the loss became nan: lower learning_rate")

    monkeypatch.setattr("skbayes_sym.estimators._fit.run.minimise", broken)
    with pytest.raises(DivergenceError, match="learning_rate"):
        fitted.fit(X[:, :2], y)
    assert {k: v for k, v in vars(fitted).items() if k.endswith("_")} == before
    assert fitted.n_features_in_ == 3
    fitted.predict(X)
