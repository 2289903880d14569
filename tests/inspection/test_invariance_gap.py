"""One question to every variational estimator: what does ignoring the symmetry cost?"""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import skbayes_sym as sk


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return X[:80], y[:80]


def quick(**kwargs):
    kwargs = {"hidden_layer_sizes": (4,), "activation": "tanh", "max_iter": 300, "tol": None,
              "random_state": 0} | kwargs  # fmt: skip
    return sk.SymmetrizedVIRegressor(**kwargs)


@pytest.mark.long
def test_of_a_symmetrised_fit_it_is_the_one_reported(diabetes):
    reg = quick().fit(*diabetes)
    gap = sk.invariance_gap(reg, n_draws=400)
    assert gap.value == pytest.approx(reg.symmetry_gap_, abs=6 * gap.standard_error)
    assert (gap.kind, gap.side) == ("KL at this posterior", "exact")
    assert gap.standard_error > 0
    assert gap.value == sk.invariance_gap(reg, n_draws=400).value
    assert gap.value != sk.invariance_gap(reg, n_draws=400, random_state=1).value


def test_of_a_mean_field_fit_it_is_what_symmetrising_would_add(diabetes):
    """One unit kept apart from the pruned rest: about log 2 of its sign, and its place."""
    reg = quick(symmetry=None).fit(*diabetes)
    gap = sk.invariance_gap(reg)
    assert reg.symmetry_gap_ == 0.0
    assert 0.5 < gap.value < reg.network_.symmetry().log_order
    relu = quick(symmetry=None, activation="relu").fit(*diabetes)
    assert sk.invariance_gap(relu).value < relu.network_.symmetry().log_order


def test_the_side_says_where_it_is_a_bound(diabetes):
    few = {"max_iter": 20}
    assert sk.invariance_gap(quick(hidden_layer_sizes=(12,), **few).fit(*diabetes)).side == "lower"
    assert sk.invariance_gap(quick(hidden_layer_sizes=(3, 3), **few).fit(*diabetes)).side == "lower"
    linear = sk.invariance_gap(quick(hidden_layer_sizes=(), **few).fit(*diabetes))
    assert (linear.value, linear.standard_error, linear.side) == (0.0, 0.0, "exact")


def test_a_prior_without_the_symmetry_has_no_gap(diabetes):
    n = quick(max_iter=1).fit(*diabetes).network_.layout.n_params
    reg = quick(symmetry=None, prior=np.linspace(0.5, 1.0, n)).fit(*diabetes)
    with pytest.raises(ValueError, match="not invariant"):
        sk.invariance_gap(reg)


@pytest.mark.long
def test_of_classifiers():
    X, y = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        net = sk.SymmetrizedVIClassifier((3,), "tanh", max_iter=300, random_state=0).fit(X, y)
    gap, other = (sk.invariance_gap(net, n_draws=4000, random_state=seed) for seed in (0, 1))
    error = np.hypot(gap.standard_error, other.standard_error)
    assert gap.value == pytest.approx(other.value, abs=5 * error)
    assert 0 < gap.value < net.network_.symmetry().log_order
    clf = sk.BayesianLinearClassifier(prior=1.0, random_state=0).fit(X, y)
    gap = sk.invariance_gap(clf)
    assert gap.value == clf.symmetry_gap_ > 0
    assert 0 < gap.standard_error < 0.1
    assert (gap.kind, gap.side) == ("difference of optima", "exact")
    X, y = load_breast_cancer(return_X_y=True)
    clf = sk.BayesianLinearClassifier(standardize=True, prior=1.0).fit(X, y)
    assert sk.invariance_gap(clf).standard_error == 0.0


def test_of_a_linear_regression_it_has_a_closed_form():
    X, y = load_diabetes(return_X_y=True)
    reg = sk.BayesianLinearRegressor().fit(X, y)
    gap = sk.invariance_gap(reg)
    precision = np.linalg.inv(reg.coef_cov_)
    expected = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
    assert gap.value == pytest.approx(expected, rel=1e-9)
    assert (gap.standard_error, gap.kind) == (0.0, "difference of optima")


def test_reaches_through_searches_and_pipelines(diabetes):
    X, y = diabetes
    reg = quick(max_iter=20).fit(X, y)
    inside = make_pipeline(FunctionTransformer(), quick(max_iter=20)).fit(X, y)
    assert sk.invariance_gap(inside, n_draws=20) == sk.invariance_gap(reg, n_draws=20)
    search = GridSearchCV(quick(max_iter=20), {"tol": [100.0]}, cv=2).fit(X, y)
    assert sk.invariance_gap(search, n_draws=20) == sk.invariance_gap(reg, n_draws=20)


def test_strangers_and_the_unfitted():
    with pytest.raises(TypeError, match=r"Ridge has no variational posterior"):
        sk.invariance_gap(Ridge())
    with pytest.raises(NotFittedError):
        sk.invariance_gap(sk.BayesianLinearRegressor())
    with pytest.raises(NotFittedError):
        sk.invariance_gap(quick())


@pytest.mark.parametrize("n_draws", [0, True, 2.5, "many"])
def test_bad_number_of_draws(n_draws, diabetes):
    with pytest.raises(ValueError, match="n_draws must be 'auto' or an int of at least 1"):
        sk.invariance_gap(quick(max_iter=5).fit(*diabetes), n_draws=n_draws)
