"""One tiny fit of every estimator, and of every kind of fitted state it can have.

An estimator is one line here, which gives it the laws that all of them keep: files, memory and
callbacks.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

import skbayes_sym as sk
from skbayes_sym.factorization.solvers import Gibbs
from skbayes_sym.models import (
    Affine,
    Blur,
    Brightness,
    Categorical,
    ColumnShift,
    Invariances,
    LogScale,
    PixelNoise,
    Rotation2D,
)
from skbayes_sym.models.priors import ARD

_NET = {"hidden_layer_sizes": (3,), "random_state": 0}
_STEPS = {**_NET, "max_iter": 20, "tol": None}
_MEMBERS = {**_STEPS, "n_members": 3}
_CHAINS = {
    **_NET, "prior": 1.0, "n_chains": 4, "n_draws": 5,
    "remove_symmetries": sk.ModeWeights("uniform"),
    "sampler": sk.Chains(sk.HMC(max_leapfrog=8), init="prior", n_warmup=12),
}  # fmt: skip
_LAPLACE = {**_STEPS, "max_iter": 10, "optimizer": sk.EvidenceAdam(updates=sk.Updates(4))}
_ANNEALING = sk.Annealing(4, 6, n_settle=4)
_MODES = {"optimizer": sk.GaussNewton(2), "max_iter": 10}
_IMAGES = {**_LAPLACE, "image_shape": (6, 6)}
_AS_GIVEN = {"standardize": False}
_FACTORS = {
    "n_components": 2, "max_iter": 20, "tol": 10.0, "random_state": 0,
    "prior": 1.0, "offsets": False,
}  # fmt: skip

_rng = np.random.default_rng(0)
X = _rng.standard_normal((24, 3))
NUMBERS = X[:, 0] - 0.5 * X[:, 1] + 0.3 * _rng.standard_normal(24)
TWO_NUMBERS = np.column_stack([NUMBERS, 3.0 + X[:, 2]])
COUNTS = _rng.poisson(np.exp(0.5 * X[:, 0])).astype(float)
LABELS = np.array(["low", "high"])[(NUMBERS + _rng.standard_normal(24) > 0).astype(int)]
THREE = np.digitize(NUMBERS + _rng.standard_normal(24), [-0.5, 0.5])
IMAGES = _rng.random((24, 36))
MATRIX = np.where(_rng.random((24, 8)) < 0.8, _rng.standard_normal((24, 8)), np.nan)
TABLE = X.astype(object)  # words, and numbers that are missing
TABLE[:, 1] = np.array(["red", "green", "blue"], dtype=object)[np.digitize(X[:, 1], [-0.5, 0.5])]
TABLE[::5, 2] = None
GROWING = 2.0 * X[:, 0] + 0.2 * np.exp(2.0 * X[:, 0]) * _rng.standard_normal(24)


class FitCase(NamedTuple):
    estimator: Any
    X: Any
    y: Any


FITS: dict[str, FitCase] = {
    "vi-regressor": FitCase(sk.SymmetrizedVIRegressor(**_STEPS), X, TWO_NUMBERS),
    "vi-classifier": FitCase(sk.SymmetrizedVIClassifier(**_STEPS, activation="tanh"), X, LABELS),
    "vi-collapsed": FitCase(
        sk.LayerwiseVIRegressor(**_STEPS, n_predict_samples=20),
        X, NUMBERS,
    ),
    "vi-collapsed-ard": FitCase(
        sk.LayerwiseVIRegressor(**_STEPS, prior=ARD(), n_predict_samples=20), X, TWO_NUMBERS
    ),
    "vi-inducing": FitCase(
        sk.LayerwiseVIRegressor(**_STEPS, hidden_posterior=5, n_predict_samples=20), X, NUMBERS
    ),
    "vi-ard": FitCase(sk.SymmetrizedVIRegressor(prior=ARD(), **_STEPS), X, NUMBERS),
    "vi-learned-scales": FitCase(
        sk.SymmetrizedVIClassifier(prior="learn", **_STEPS), X, THREE
    ),
    "ensemble-regressor": FitCase(
        sk.DeepEnsembleRegressor(**_MEMBERS, noise_std="learn"), X, TWO_NUMBERS
    ),
    "ensemble-minibatches": FitCase(
        sk.DeepEnsembleRegressor(**_MEMBERS, optimizer=sk.Adam(batch_size=10)), X, NUMBERS
    ),
    "bayesian-mlp-growing-noise": FitCase(
        sk.BayesianMLPRegressor((3,), n_modes=1, n_members=1, random_state=0), X, GROWING
    ),
    "bayesian-mlp": FitCase(
        sk.BayesianMLPRegressor((3,), n_modes=2, n_members=1, random_state=0), X, TWO_NUMBERS
    ),
    "bayesian-mlp-ard": FitCase(
        sk.BayesianMLPRegressor((3,), prior=ARD(), n_modes=1, n_members=1, random_state=0),
        X, X[:, 0] - 0.5 * X[:, 1],  # few rows have members where there is hardly any noise
    ),
    "bayesian-mlp-two-classes": FitCase(
        sk.BayesianMLPClassifier((3,), prior=ARD(8.0, 64.0), n_modes=1, n_members=1,
                                 random_state=0),
        X, LABELS,
    ),
    "bayesian-mlp-classes": FitCase(
        sk.BayesianMLPClassifier((2,), n_modes=2, n_members=1, random_state=0), X, THREE
    ),
    "ensemble-classifier": FitCase(
        sk.DeepEnsembleClassifier(**_MEMBERS, correction=None), X, LABELS
    ),
    "ensemble-refitted": FitCase(sk.DeepEnsembleClassifier(**_MEMBERS), X, THREE),
    "ensemble-ard": FitCase(sk.DeepEnsembleRegressor(**_MEMBERS, prior=ARD()), X, TWO_NUMBERS),
    "ensemble-refitted-learned-scales": FitCase(
        sk.DeepEnsembleClassifier(**_MEMBERS, prior="learn"), X, THREE
    ),
    "mcmc-regressor": FitCase(sk.MCMCRegressor(**_CHAINS), X, NUMBERS),
    "mcmc-classifier": FitCase(
        sk.MCMCClassifier(**_CHAINS | {"sampler": sk.Chains(sk.HMC(1.0), n_warmup=12)}), X, LABELS
    ),
    "mcmc-annealed": FitCase(
        sk.MCMCRegressor(
            (3, 3), likelihood="heteroscedastic", n_chains=5, n_draws=4, random_state=0,
            sampler=sk.Chains(sk.HMC(max_leapfrog=8), init=_ANNEALING, n_warmup=14),
        ),
        X, TWO_NUMBERS,
    ),
    "mcmc-evidence": FitCase(
        sk.MCMCRegressor(
            (1,), prior=1.0, sampler=sk.Chains(sk.HMC(max_leapfrog=8), init="prior", n_warmup=20),
            n_chains=3, n_draws=10, random_state=0,
            remove_symmetries=sk.ModeWeights("evidence", budget=0.0),
        ),
        X, NUMBERS,
    ),
    "mcmc-laplace": FitCase(
        sk.MCMCRegressor(
            (2,), prior=ARD(), n_chains=3, n_draws=4, random_state=0,
            sampler=sk.Chains(sk.HMC(max_leapfrog=8), init="laplace", n_warmup=10),
            remove_symmetries=sk.ModeWeights("uniform"),
        ),
        X, NUMBERS,
    ),
    "laplace-kronecker": FitCase(
        sk.LaplaceRegressor(
            **_STEPS, optimizer=sk.EvidenceAdam(updates=sk.Updates(4, keep_best=True))
        ),
        X, TWO_NUMBERS,
    ),
    "laplace-full": FitCase(
        sk.LaplaceClassifier(
            **_STEPS, optimizer=sk.EvidenceAdam(curvature="full", updates=sk.Updates(4))
        ),
        X, LABELS,
    ),
    "laplace-diagonal-last": FitCase(
        sk.LaplaceClassifier(
            **_STEPS,
            optimizer=sk.EvidenceAdam(layers="last", updates=sk.Updates(4)),
        ),
        X, THREE,
    ),
    "laplace-modes": FitCase(sk.LaplaceRegressor(**_NET, **_MODES), X, TWO_NUMBERS),
    "laplace-modes-ard": FitCase(
        sk.LaplaceRegressor(**_NET, **_MODES, prior=ARD()), X, NUMBERS
    ),
    "laplace-classes": FitCase(
        sk.LaplaceClassifier(**_NET, prior=ARD(8.0, 64.0), optimizer=sk.GaussNewton(2)), X, THREE
    ),
    "laplace-two-classes": FitCase(
        sk.LaplaceClassifier(**_NET, optimizer=sk.GaussNewton(2)), X, LABELS
    ),
    "lila-regressor": FitCase(
        sk.LILARegressor(**_LAPLACE, invariances=Invariances([ColumnShift((1,)), LogScale()], 2)),
        X, NUMBERS,
    ),
    "lila-table": FitCase(
        sk.LILAClassifier(**_LAPLACE, invariances=Invariances([Rotation2D()], 2)), X, LABELS
    ),
    "lila-images": FitCase(
        sk.LILAClassifier(**_IMAGES, invariances=Invariances(Affine(correlated=True), 2),
                          predictive=20),
        IMAGES, LABELS,
    ),
    "lila-pixels": FitCase(
        sk.LILAClassifier(
            **_IMAGES, invariances=Invariances([Brightness(), Blur(), PixelNoise()], 2, "auto", 3)
        ),
        IMAGES, LABELS,
    ),
    "lila-cnn": FitCase(
        sk.LILAClassifier(image_shape=(6, 6), network="cnn", invariances=None,
                          max_iter=2, predictive=5, tol=None,
                          optimizer=sk.EvidenceAdam(updates=sk.Updates(2)),
                          random_state=0),
        IMAGES, LABELS,
    ),
    "factors": FitCase(sk.SymVIMatrixFactorization(**_FACTORS), MATRIX, None),
    "factors-learned": FitCase(
        sk.SymVIMatrixFactorization(2, max_iter=25, tol=10.0, random_state=0), MATRIX, None
    ),
    "factors-ordinal": FitCase(
        sk.SymVIMatrixFactorization(
            2, likelihood="ordinal", prior="ard", max_iter=25, tol=10.0, random_state=0
        ),
        np.round(MATRIX), None,
    ),
    "factors-gibbs": FitCase(
        sk.SymVIMatrixFactorization(**{**_FACTORS, "tol": None}, solver=Gibbs(5)), MATRIX, None
    ),
    "stack-numbers": FitCase(
        sk.PredictiveStackingRegressor(
            [("line", "linear"), ("trees", "trees"), ("boosted", "boosting"),
             ("smooth", "gaussian_process"), ("points", sk.BayesianLinearRegressor())],
            random_state=0,
        ),
        X, NUMBERS,
    ),
    "stack-labels": FitCase(
        sk.PredictiveStackingClassifier(
            [("line", "linear"), ("boosted", "boosting"), ("smooth", "gaussian_process")],
            random_state=0,
        ),
        X, THREE,
    ),
    "stack-table": FitCase(
        sk.PredictiveStackingRegressor([("line", "linear"), ("trees", "trees")], random_state=0),
        TABLE, NUMBERS,
    ),
    "linear-gaussian": FitCase(sk.BayesianLinearRegressor(**_AS_GIVEN), X, NUMBERS),
    "linear-many-features": FitCase(
        sk.BayesianLinearRegressor("student_t", **_AS_GIVEN), IMAGES, NUMBERS
    ),
    "linear-counts": FitCase(sk.BayesianLinearRegressor("poisson", **_AS_GIVEN), X, COUNTS),
    "linear-labels": FitCase(
        sk.BayesianLinearClassifier(variance_scale=1.0, standardize=False, random_state=0),
        X, LABELS,
    ),
    "linear-three": FitCase(
        sk.BayesianLinearClassifier(
            Categorical(n_points=64), variance_scale=1.0, standardize=False, random_state=0
        ),
        X, THREE,
    ),
}  # fmt: skip

# The first case of every class, which learns numbers or labels from `X`.
SMALL = {type(case.estimator).__name__: case.estimator for case in reversed(FITS.values())}


def target(estimator: Any) -> Any:
    """What such a one learns from `X`: labels, numbers or nothing."""
    if not hasattr(estimator, "predict"):
        return None
    return LABELS if hasattr(estimator, "predict_proba") else NUMBERS


@cache
def fitted(name: str) -> Any:
    """The case's estimator, fitted on the CPU; read only: the same one for every test."""
    case = FITS[name]
    return clone(case.estimator).set_params(device="cpu").fit(case.X, case.y)


def everything_predicted(estimator: Any, X: Any) -> dict[str, Any]:
    """All that a fitted estimator says of rows, as arrays."""
    found: dict[str, Any] = {}
    if hasattr(estimator, "predict_entries"):
        found["transform"] = estimator.transform(X)
        found["reconstruct"] = estimator.reconstruct()
        found["mean"], found["std"] = estimator.predict_entries([0, 1, 5], [2, 0, 3], True)
        found["score"] = np.array(estimator.score(X))
        return found
    found["predict"] = estimator.predict(X)
    found.update(estimator.predict_uncertainty(X))
    if hasattr(estimator, "predict_proba"):
        found["proba"] = estimator.predict_proba(X)
        return found
    found["std"] = estimator.predict(X, return_std=True)[1]
    found["sample_y"] = estimator.sample_y(X, 3, random_state=0)
    found["quantiles"] = estimator.predict_quantiles(X, [0.1, 0.9])
    return found


@cache
def predicted(name: str) -> dict[str, Any]:
    """All that the fitted case says of its own rows; read only."""
    return everything_predicted(fitted(name), FITS[name].X)


def assert_same_predictions(a: Any, b: Any, X: Any) -> None:
    """Bit for bit."""
    assert_predicted(b, X, everything_predicted(a, X))


def assert_predicts_as(name: str, model: Any) -> None:
    """Bit for bit what the fitted case says of its rows."""
    assert_predicted(model, FITS[name].X, predicted(name))


def assert_predicted(model: Any, X: Any, expected: dict[str, Any]) -> None:
    """Bit for bit."""
    got = everything_predicted(model, X)
    assert expected.keys() == got.keys()
    for name, values in expected.items():
        assert values.dtype == got[name].dtype, name
        np.testing.assert_array_equal(got[name], values, err_msg=name)
