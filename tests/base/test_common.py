"""scikit-learn's own checks, with no expected failure, and habits every estimator shares."""

from functools import cache, partial
from inspect import signature

import numpy as np
import pytest
import torch
from fits import FITS, fitted
from habits import CHECKED, POOLS, VARIANTS, assert_same_fit, hurried, weights
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from thin import some

import skbayes_sym

# No check is expected to fail. Old versions of scikit-learn have no `xfail_strict`.
_has_strict = "xfail_strict" in signature(parametrize_with_checks).parameters
all_checks = partial(
    parametrize_with_checks,
    expected_failed_checks={}.get,
    **({"xfail_strict": True} if _has_strict else {}),
)
# Too few steps to converge on purpose: the checks fit each estimator some 50 times.
unconverged = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
no_entry = pytest.mark.filterwarnings("ignore:.*no observed entry")
binary_targets = pytest.mark.filterwarnings("ignore:.*all targets are 0 or 1")


# What every fit of rows does first is one code for all classes: these checks of it are made of
# some classes by default, and of all of them with the slow ones.
AT_THE_DOOR = {
    "check_array_api_input", "check_classifier_data_not_an_array", "check_complex_data",
    "check_dict_unchanged", "check_dont_overwrite_parameters", "check_dtype_object",
    "check_estimator_sparse_array", "check_estimator_sparse_matrix", "check_estimators_dtypes",
    "check_estimators_fit_returns_self", "check_estimators_nan_inf",
    "check_estimators_overwrite_params", "check_f_contiguous_array_estimator",
    "check_fit1d", "check_fit2d_1feature", "check_fit2d_1sample", "check_fit2d_predict1d",
    "check_fit_check_is_fitted", "check_fit_score_takes_y", "check_n_features_in",
    "check_n_features_in_after_fitting", "check_pipeline_consistency",
    "check_positive_only_tag_during_fit", "check_readonly_memmap_input",
    "check_regressor_data_not_an_array", "check_regressors_int", "check_sample_weights_list",
    "check_sample_weights_not_an_array", "check_sample_weights_not_overwritten",
    "check_sample_weights_pandas_series", "check_sample_weights_shape", "check_supervised_y_2d",
}  # fmt: skip
OPENED = {
    "SymmetrizedVIRegressor", "SymmetrizedVIClassifier", "LaplaceRegressor",
    "BayesianLinearRegressor", "DeepEnsembleRegressor", "SymVIMatrixFactorization",
}  # fmt: skip


def checks(estimators):
    """Checks made a second time on rows that may not be written to are slow, where another is."""
    names, rows = (mark := all_checks(estimators)).args
    again = "check_classifiers_train", "check_regressors_train", "check_estimators_pickle"

    def marks(estimator, check):
        name = check.func.__name__
        is_again = name in again and "readonly_memmap" in (check.keywords or {})
        is_elsewhere = name in AT_THE_DOOR and type(estimator).__name__ not in OPENED
        return [pytest.mark.slow] if is_again or is_elsewhere else []

    kept = [pytest.param(e, c, marks=marks(e, c)) for e, c in rows]
    # An estimator's name is its repr, which takes a while and is asked for with every check.
    return pytest.mark.parametrize(names, kept, ids=cache(mark.kwargs["ids"]))


def learns(check):
    """Whether a check of scikit-learn judges what was learned: the two named so do."""
    return check.func.__name__ in {"check_classifiers_train", "check_regressors_train"}


@unconverged
@no_entry
@binary_targets
@checks(CHECKED)
def test_sklearn_checks(estimator, check):
    check(estimator if learns(check) else hurried(estimator))


@pytest.mark.slow
@unconverged
@no_entry
@binary_targets
@checks(VARIANTS + POOLS)  # members of a pool are trained to the end
def test_sklearn_checks_of_other_options(estimator, check):
    check(estimator)


def test_every_class_is_checked():
    values = [getattr(skbayes_sym, name) for name in skbayes_sym.__all__]
    classes = {value for value in values if isinstance(value, type) and hasattr(value, "fit")}
    assert {type(estimator) for estimator in CHECKED + POOLS} == classes


TRAINED = [
    "vi-regressor", "vi-classifier", "laplace-kronecker", "laplace-full", "lila-regressor",
    "lila-images", "ensemble-regressor", "ensemble-classifier",
]  # fmt: skip
CHAINS = ["mcmc-regressor", "mcmc-classifier"]
LINEAR = [
    "linear-gaussian", "linear-many-features", "linear-counts", "linear-labels", "linear-three",
]  # fmt: skip
# One kind of loss or the other of each method, in turn.
FIRST = {
    "vi-regressor", "laplace-full", "lila-regressor", "ensemble-classifier", "mcmc-regressor",
    *LINEAR,
}  # fmt: skip
# ... whose modes are searched, and pools of them: a few of their rows may be the same.
MODES = ["laplace-modes", "laplace-classes", "bayesian-mlp-ard", "bayesian-mlp-two-classes"]
SECOND = {*TRAINED, *CHAINS, "linear-many-features", "linear-three"} - FIRST
pytestmark = unconverged


def unfitted(name, **parameters):
    """The case's estimator on the CPU, its rows and targets."""
    case = FITS[name]
    return clone(case.estimator).set_params(device="cpu", **parameters), case.X, case.y


@some("name", TRAINED + CHAINS + LINEAR, keep=FIRST)
def test_fits_repeat_and_nothing_global_moves(name):
    estimator, X, y = unfitted(name)
    first = fitted(name)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert_same_fit(first, estimator.fit(X, y), X)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


@some("name", TRAINED + CHAINS, keep=SECOND)
def test_random_state_matters(name):
    other, X, y = unfitted(name, random_state=1)
    assert not np.array_equal(weights(other.fit(X, y)), weights(fitted(name)))


@some("name", TRAINED + CHAINS + LINEAR + MODES, keep=FIRST | set(MODES))
@pytest.mark.parametrize("batch_size", ["auto", 16], ids=["full", "minibatch"])
def test_weights_are_repetitions_bit_for_bit(name, batch_size):
    estimator, X, y = unfitted(name)
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 4, size=len(y))
    repeated = rng.permutation(np.repeat(np.arange(len(y)), weight))
    names = {"batch_size", "optimizer__batch_size"} & set(estimator.get_params())
    if names:
        estimator.set_params(**{names.pop(): batch_size})
    elif batch_size != "auto":
        pytest.skip("has no minibatches")
    weighted = clone(estimator).fit(X, y, sample_weight=weight)
    assert_same_fit(weighted, estimator.fit(X[repeated], y[repeated]), X)


@some("name", TRAINED + CHAINS + LINEAR, keep=SECOND)
def test_threads_are_left_alone_and_dont_matter(name):
    estimator, X, y = unfitted(name)
    try:
        torch.set_num_threads(3)
        estimator.fit(X, y).predict(X)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert_same_fit(fitted(name), estimator, X)


@pytest.mark.long
@some("name", TRAINED, keep={"vi-regressor", "laplace-full", "ensemble-regressor"})
def test_fits_in_several_threads_are_the_same_and_restore_the_setting(name):
    estimator, X, y = unfitted(name)
    one = clone(estimator).set_params(max_iter=30).fit(X, y)
    try:
        torch.set_num_threads(3)
        fits = Parallel(n_jobs=3, backend="threading")(
            delayed(clone(estimator).set_params(max_iter=max_iter).fit)(X, y)
            for max_iter in (10, 30, 60, 30)
        )
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert_same_fit(one, fits[1], X)
    assert_same_fit(one, fits[3], X)


@pytest.mark.long
@pytest.mark.processes
@some("name", TRAINED + CHAINS + LINEAR, keep={"vi-regressor", "laplace-full", "mcmc-regressor"})
def test_grid_search_through_a_pipeline_is_the_same_in_two_processes(name):
    estimator, X, y = unfitted(name)
    kind = type(estimator).__name__.lower()
    parameter, values = ("symmetry", ["auto", None]) if hasattr(estimator, "symmetry") else (
        "prior", [1.0, 3.0]
    )  # fmt: skip
    searches = [
        GridSearchCV(
            make_pipeline(StandardScaler(), clone(estimator)),
            {f"{kind}__{parameter}": values}, cv=2, n_jobs=n_jobs, refit=n_jobs is None,
        ).fit(X, y)
        for n_jobs in (None, 2)
    ]  # fmt: skip
    assert np.array_equal(*(s.cv_results_["mean_test_score"] for s in searches))
    best = searches[0].best_estimator_
    if not hasattr(estimator, "predict_proba"):
        mean, std = best.predict(X, return_std=True)  # through the pipeline
        assert mean.shape == std.shape == y.shape


@some("name", TRAINED + CHAINS, keep=SECOND)
def test_float32_follows_the_data(name):
    estimator, X, y = unfitted(name)
    double, single = fitted(name), estimator.fit(X.astype(np.float32), y)
    assert single.dtype_ == "float32"
    assert weights(single).dtype == np.float32
    if hasattr(single, "n_chains"):  # they part ways within some steps: other draws of the same
        spread = double.log_posterior_samples_.std()
        gap = single.log_posterior_samples_.mean() - double.log_posterior_samples_.mean()
        assert abs(gap) < 5 * spread
        return
    # Some Adam steps in two precisions: the same model up to the noise of rounding.
    figures = ("elbo_", "log_evidence_", "log_posterior_samples_")
    figure = next(name for name in figures if hasattr(double, name))
    assert getattr(single, figure) == pytest.approx(getattr(double, figure), abs=0.02 * len(X))


@pytest.mark.parametrize("name", TRAINED + CHAINS + LINEAR)
def test_predictions_dont_depend_on_the_other_rows(name):
    model, X = fitted(name), FITS[name].X
    total = model.predict_uncertainty(X).total
    np.testing.assert_allclose(model.predict_uncertainty(X[::7]).total, total[::7], rtol=1e-9)
