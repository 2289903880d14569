"""Draws of functions have the moments that the predictive distribution reports."""

import numpy as np
import pytest
from fits import COUNTS, FITS, IMAGES, LABELS, NUMBERS, THREE, FitCase, X
from sklearn.base import clone

import skbayes_sym as sk
from skbayes_sym import predictive
from skbayes_sym.models import Categorical, Invariances, Rotation2D

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N_FUNCTIONS = 1000
N_ROWS = 6
# Predictions that are averages over draws get as many as there are functions.
MANY = {"n_predict_samples": N_FUNCTIONS}

_NET = {"hidden_layer_sizes": (3,), "random_state": 0}
_ADAM = {**_NET, "max_iter": 20, "tol": None}
_OPTIMIZER = sk.EvidenceAdam(updates=sk.Updates(4))


def classify_by_adam(y, **params):
    """Return a case of Laplace by Adam with many draws of the logits."""
    defaults = {"optimizer": _OPTIMIZER, "predictive": N_FUNCTIONS}
    return FitCase(sk.LaplaceClassifier(**{**_ADAM, **defaults, **params}), X, y)


CASES = {
    name: case for name, case in FITS.items() if hasattr(case.estimator, "predict")
} | {
    "adam-two-classes-wide": classify_by_adam(LABELS, variance_scale=9.0),
    "adam-three-classes-wide": classify_by_adam(THREE, variance_scale=9.0),
    "adam-narrow": classify_by_adam(THREE, variance_scale=0.1),
    "adam-no-variance": classify_by_adam(LABELS, variance_scale=0.0),
    "adam-plugin": classify_by_adam(LABELS, predictive="plugin"),
    "adam-exact-factors": classify_by_adam(
        THREE, optimizer=sk.EvidenceAdam(curvature="kron-exact", updates=sk.Updates(4)),
        variance_scale=4.0,
    ),
    "gauss-newton-wide": FitCase(
        sk.LaplaceClassifier(**_NET, optimizer=sk.GaussNewton(1), variance_scale=9.0), X, THREE
    ),
    "gauss-newton-plugin": FitCase(
        sk.LaplaceClassifier(**_NET, optimizer=sk.GaussNewton(1), predictive="plugin"), X, LABELS
    ),
    "lila-sampling": FitCase(
        sk.LILAClassifier(
            **_ADAM, optimizer=_OPTIMIZER, invariances=Invariances([Rotation2D()], 2),
            predictive=N_FUNCTIONS,
        ),
        X, LABELS,
    ),
    "linear-student-t": FitCase(sk.BayesianLinearRegressor("student_t"), X, NUMBERS),
    "linear-poisson": FitCase(sk.BayesianLinearRegressor("poisson"), X, COUNTS),
    "linear-two-classes-wide": FitCase(
        sk.BayesianLinearClassifier(variance_scale=9.0, random_state=0), X, LABELS
    ),
    "linear-three-classes-wide": FitCase(
        sk.BayesianLinearClassifier(
            Categorical(n_points=1024), variance_scale=9.0, random_state=0
        ),
        X, THREE,
    ),
    "linear-many-columns-of-classes": FitCase(
        sk.BayesianLinearClassifier(random_state=0), IMAGES, LABELS
    ),
}  # fmt: skip

# Fits or draws of these take more than 0.2 s; `tests/fits.py` has a cheap case of most classes.
SLOW = {
    "bayesian-mlp-growing-noise", "bayesian-mlp", "bayesian-mlp-two-classes",
    "bayesian-mlp-classes", "ensemble-ard", "mcmc-annealed", "mcmc-evidence", "mcmc-laplace",
    "laplace-kronecker", "laplace-classes", "laplace-two-classes", "lila-regressor",
    "lila-images", "lila-cnn", "stack-numbers", "vi-inducing", "adam-narrow",
    "gauss-newton-plugin", "bayesian-mlp-ard", "stack-labels", "adam-three-classes-wide",
    "linear-three-classes-wide", "lila-sampling", "gauss-newton-wide", "stack-table",
    "ensemble-refitted-learned-scales",
}  # fmt: skip


def fit_with_many_draws(case):
    """Fit a case whose predictions have a small Monte Carlo error of their own."""
    model = clone(case.estimator).set_params(device="cpu")
    params = model.get_params()
    model.set_params(**{name: n for name, n in MANY.items() if name in params})
    if not isinstance(params.get("predictive", "plugin"), str):
        model.set_params(predictive=N_FUNCTIONS)
    return model.fit(case.X, case.y)


def monte_carlo_error(model):
    """Return the standard error of a mean of functions, in their standard deviations.

    Predictions of models that average over draws of their own have an error, too.
    """
    params = model.get_params()
    n_own = np.inf
    if params.get("predictive") == "sampling":
        n_own = 200  # the default number of draws of the logits
    elif "predictive" in params or "n_predict_samples" in params:
        n_own = N_FUNCTIONS
    return np.sqrt(1.0 / N_FUNCTIONS + 1.0 / n_own)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in CASES],
)
def test_functions_have_the_moments_of_the_predictions(name):
    case = CASES[name]
    model = fit_with_many_draws(case)
    rows = case.X[:N_ROWS]
    functions = predictive(model, rows).functions(N_FUNCTIONS, 1)
    mean = functions.mean(-1)
    variance = functions.var(-1)
    relative_error = monte_carlo_error(model)
    is_classifier = hasattr(model, "predict_proba")

    expected = model.predict_proba(rows) if is_classifier else model.predict(rows)
    rounding = 1e-6 * np.abs(expected).max()
    error = np.sqrt(variance) * relative_error + rounding
    assert (np.abs(mean - expected) < 5.0 * error).all()

    if is_classifier:
        # The mutual information, from the draws; its error is of the size of a mean's.
        safe = np.clip(functions, 1e-12, 1.0)
        entropies = -(safe * np.log(safe)).sum(1)
        aleatoric = model.predict_uncertainty(rows).aleatoric
        error = entropies.std(-1) * relative_error + 1e-5
        assert (np.abs(entropies.mean(-1) - aleatoric) < 5.0 * error).all()
        return
    epistemic = predictive(model, rows).uncertainty().epistemic
    fourth = ((functions - mean[..., None]) ** 4).mean(-1)
    error = np.sqrt(np.maximum(fourth - variance**2, 0.0)) * relative_error + rounding**2
    assert (np.abs(variance - epistemic) < 6.0 * error + 1e-6 * variance).all()
