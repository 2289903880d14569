"""Extreme scales and levels, rows far away, steps too large: numbers, or an error in words."""

import re
import warnings

import numpy as np
import pytest
from fits import COUNTS, FITS, LABELS, NUMBERS, X, fitted
from sklearn.base import clone

import skbayes_sym as sk
from skbayes_sym.base.rows import column_scaling
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.optimise import DivergenceError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = {"hidden_layer_sizes": (3,), "max_iter": 20, "tol": None, "random_state": 0}


@pytest.mark.parametrize("factor", [1e-300, 1e-200, 1e-100, 1e100, 1e200, 1e300])
def test_no_scale_over_or_underflows(factor):
    weight = np.ones(len(X))
    plain, scaled = (column_scaling(a, weight, enabled=True) for a in (X, factor * X))
    np.testing.assert_allclose(scaled.scale / factor, plain.scale, rtol=1e-12)
    np.testing.assert_allclose(scaled.apply(factor * X), plain.apply(X), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("values", "words"), [
    ([[0.0, 1e-315], [1.0, 0.0], [0.0, 0.0]], r"column 1 spreads by less than 2\.2e-308"),
    ([[-1.7e308], [1.7e308], [1.7e308]], "column 0 has values so far apart"),
])  # fmt: skip
def test_columns_that_span_no_number_or_all_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        column_scaling(np.array(values), np.ones(3), enabled=True)


def test_coefficients_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="coefficients exceed all numbers"):
        sk.BayesianLinearRegressor().fit(1e-200 * X, 1e140 * NUMBERS)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_predictions_dont_depend_on_the_scale_of_columns_and_go_with_that_of_targets(factor):
    model, root = sk.SymmetrizedVIRegressor(**QUICK), factor**0.5
    plain, scaled = clone(model).fit(X, NUMBERS), clone(model).fit(factor * X, root * NUMBERS)
    for a, b in zip(plain.predict(X, True), scaled.predict(factor * X, True), strict=True):
        np.testing.assert_allclose(b / root, a, rtol=1e-6)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ["linear-gaussian", "bayesian-mlp"])
def test_noise_goes_with_the_scale_of_targets_whose_squares_are_no_numbers(name):
    model = clone(FITS[name].estimator).set_params(standardize=True)
    plain, scaled = clone(model).fit(X, NUMBERS), clone(model).fit(X, 2.0**490 * NUMBERS)
    assert scaled.noise_std_ == pytest.approx(2.0**490 * plain.noise_std_)


BEYOND = [
    *({"y": y} for y in (1e308 * np.sign(NUMBERS), 3e307 * np.sign(NUMBERS), 1e160 * NUMBERS)),
    *({"y": y} for y in (1e-160 * NUMBERS, 1e-307 * NUMBERS, np.full(24, 1e200))),
    {"X": X * [1.0, 1e120, 1.0], "standardize": False},
    {"noise_std": np.full(24, 1e155)},
    *({"exposure": np.full(24, e), "likelihood": "poisson", "y": COUNTS} for e in (1e-308, 1e308)),
    *({"sample_weight": np.full(24, w)} for w in (1e60, 1e-110)),
]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*y is constant")
@pytest.mark.parametrize("given", BEYOND)
def test_data_whose_squares_are_no_numbers_are_refused(given):
    """The variances of predictions would be 0 or infinite."""
    arguments = {"X": X, "y": NUMBERS, **given}
    names = [name for name in ("standardize", "likelihood") if name in arguments]
    model = sk.LaplaceRegressor((2,), max_iter=1, optimizer="adam")
    model.set_params(**{name: arguments.pop(name) for name in names})
    name = {"X": "column 1 of X"}.get(next(iter(given)), next(iter(given)))
    with pytest.raises(ValueError, match=f"^{name} .*1e[+-]"):
        model.fit(**arguments)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("factor", [1e149, 1e-148])
def test_targets_whose_squares_are_numbers_have_densities_and_variances(factor):
    model = sk.BayesianLinearRegressor(standardize=True)
    plain, scaled = clone(model).fit(X, NUMBERS), clone(model).fit(X, factor * NUMBERS)
    std = scaled.predict(X, return_std=True)[1]
    np.testing.assert_allclose(std / factor, plain.predict(X, return_std=True)[1])
    density = scaled.log_predictive_density(X, factor * NUMBERS) + np.log(factor)
    np.testing.assert_allclose(density, plain.log_predictive_density(X, NUMBERS), atol=1e-9)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_draws_and_covariances_beyond_numbers_are_announced():
    with pytest.warns(UserWarning, match=r"the prediction for row \d+ of X is infinite"):
        fitted("linear-counts").sample_y(1e5 * X, 2)
    with pytest.warns(UserWarning, match=r"the prediction for row \d+ of X is infinite"):
        fitted("linear-gaussian").predict(1e200 * X, return_cov=True)


@pytest.mark.parametrize("name", [n for n in FITS if hasattr(FITS[n].estimator, "predict")])
def test_rows_far_away_are_numbers_or_named(name):
    model, case = fitted(name), FITS[name]
    if case.X.dtype == object:
        pytest.skip("words are never far")
    far = np.repeat(case.X[:2], 2, 0)
    far[2] *= 1e200
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _judge_far(model, far)
    # A user's estimator in a stack reads only the rows beyond the range: row 2 is its row 0.
    rows = "[02]" if name == "stack-numbers" else "2"
    expected = rf"row {rows} of X is infinite: too far|far outside the range of the training data"
    assert not [w for w in caught if not re.search(expected, str(w.message))]


def _judge_far(model, far):
    try:
        values = model.predict(far)
    except (ValueError, NotPositiveDefiniteError) as found:
        error = str(found)
        assert re.search("prediction for row 2 of X is not a number|in this arithmetic", error)
    else:
        assert values.dtype.kind != "f" or not np.isnan(values).any()


@pytest.mark.parametrize("rate", [1e300, 1e308])
@pytest.mark.parametrize("name", ["ensemble-refitted", "vi-regressor", "vi-classifier"])
def test_the_last_step_is_checked(name, rate):
    model = clone(FITS[name].estimator).set_params(max_iter=1, optimizer=sk.Adam(rate))
    with pytest.raises((DivergenceError, NotPositiveDefiniteError, ValueError)):
        model.fit(X, FITS[name].y).predict(X)


def test_log_densities_of_classes_dont_underflow():
    model = clone(FITS["ensemble-classifier"].estimator).set_params(max_iter=300)
    model.fit(X, LABELS)
    far = 1e4 * X
    assert np.isfinite(model.log_predictive_density(far, LABELS)).all()
    near = model.log_predictive_density(X, LABELS)
    codes = (model.classes_[1] == LABELS).astype(int)
    expected = model.predict_log_proba(X)[np.arange(len(X)), codes]
    np.testing.assert_allclose(near, expected, rtol=1e-9)
    assert model.log_predictive_density(X[:1], ["another"])[0] == -np.inf


EVERY = pytest.mark.parametrize("name", ["vi-regressor", "vi-classifier"])


@EVERY
def test_a_batch_larger_than_the_data_warns_and_fits(name):
    case = FITS[name]
    large = clone(case.estimator).set_params(optimizer=sk.Adam(batch_size=500))
    with pytest.warns(UserWarning, match="batch_size=500 exceeds the 24 distinct"):
        large.fit(case.X, case.y)
    assert np.array_equal(large.posterior_.loc, fitted(name).posterior_.loc)


@pytest.mark.parametrize(
    ("rows", "y", "words", "off"),
    [
        (X[:1], NUMBERS[:1], "one distinct row", 1.0),
        (X, np.full(24, 3.0), r": y is constant \(3\)", 1e-2),
    ],
)
@pytest.mark.parametrize(
    "regressor",
    [
        sk.SymmetrizedVIRegressor(**{**QUICK, "max_iter": 300}),
        sk.LayerwiseVIRegressor(**{**QUICK, "max_iter": 100}),
        sk.LayerwiseVIRegressor(**{**QUICK, "max_iter": 100}, hidden_posterior=5),
        sk.DeepEnsembleRegressor(**{**QUICK, "max_iter": 300}, n_members=2),
        sk.MCMCRegressor(
            (1,), n_chains=4, n_draws=10, prior=1.0, random_state=0,
            sampler=sk.Chains(sk.HMC(max_leapfrog=8), init="prior", n_warmup=80),
            remove_symmetries=sk.ModeWeights("evidence"),
        ),
    ],
)  # fmt: skip
def test_data_that_say_little_are_announced(rows, y, words, off, regressor):
    with pytest.warns(UserWarning, match=words):
        reg = clone(regressor).fit(rows, y)
    mean, std = reg.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y[0], rtol=0.0, atol=off)
    assert ((std > 0) & np.isfinite(std)).all()
    assert np.isfinite(getattr(reg, "elbo_", 0.0))


@EVERY
def test_divergence_names_a_remedy_and_keeps_the_previous_fit(name, monkeypatch):
    case = FITS[name]
    model = clone(case.estimator).fit(case.X, case.y)
    before = {k: v for k, v in vars(model).items() if k.endswith("_")}

    def broken(*args, **kwargs):
        raise DivergenceError("the loss became nan: lower learning_rate")

    monkeypatch.setattr("skbayes_sym.base.progress.minimise", broken)
    with pytest.raises(DivergenceError, match="learning_rate"):
        model.fit(case.X[:, :2], case.y)
    assert {k: v for k, v in vars(model).items() if k.endswith("_")} == before


def test_more_than_there_is_is_said_in_words(monkeypatch):
    """Of a prediction, which asks for memory as it goes."""
    model = clone(FITS["ensemble-regressor"].estimator).fit(X, FITS["ensemble-regressor"].y)
    monkeypatch.setattr(
        sk.DeepEnsembleRegressor, "predictor",
        lambda self, like: (_ for _ in ()).throw(
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
        ),
    )  # fmt: skip
    with pytest.raises(MemoryError, match="Use fewer rows"):
        model.predict(X)


LEVEL = 2.0**30
chance = np.random.default_rng(0)
ROWS = chance.standard_normal((64, 2))
# Numbers whose sums are exact, so that targets less their mean are the same numbers at any level.
TARGETS = np.round((np.sin(2.0 * ROWS[:, 0]) + 0.2 * chance.standard_normal(64)) * 2**12) / 2**12
SHORT = {"max_iter": 30, "tol": None, "random_state": 0}

ESTIMATORS = {
    "linear": sk.BayesianLinearRegressor(),
    "student_t": sk.BayesianLinearRegressor(likelihood="student_t"),
    "laplace": sk.LaplaceRegressor((2,), optimizer=sk.GaussNewton(2), max_iter=20, random_state=0),
    "heteroscedastic": sk.LaplaceRegressor((2,), likelihood="heteroscedastic", **SHORT),
    "lila": sk.LILARegressor((2,), invariances=None, **SHORT),
    "pool": sk.BayesianMLPRegressor((2,), n_modes=2, n_members=2, random_state=0),
    "ensemble": sk.DeepEnsembleRegressor((2,), n_members=3, optimizer=sk.Adam(0.03), **SHORT),
    "vi": sk.SymmetrizedVIRegressor((2,), **SHORT),
    "layerwise": sk.LayerwiseVIRegressor((2,), **SHORT),
    "stack": sk.PredictiveStackingRegressor(
        [("line", "linear"), ("smooth", "gaussian_process"),
         ("points", sk.BayesianLinearRegressor()),
         ("trees", "trees"), ("boosted", "boosting")], random_state=0,
    ),
    "mcmc": sk.MCMCRegressor(
        (2,), n_chains=2, n_draws=8, sampler=sk.Chains(init="prior", n_warmup=10),
        remove_symmetries=sk.ModeWeights("uniform"), random_state=0,
    ),
}  # fmt: skip


def test_every_regressor_is_asked_to_move():
    every = {type(c.estimator) for c in FITS.values() if hasattr(c.estimator, "sample_y")}
    assert every == {type(e) for e in ESTIMATORS.values()}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_predictions_move_with_the_level(name, dtype):
    rows = ROWS.astype(dtype)
    near, far = (clone(ESTIMATORS[name]).fit(rows, TARGETS + level) for level in (0.0, LEVEL))
    mean, std = near.predict(rows, return_std=True)
    shifted, same = far.predict(rows, return_std=True)
    unit = 1e-6 * TARGETS.std()
    np.testing.assert_allclose(shifted - LEVEL, mean, rtol=0, atol=unit)
    np.testing.assert_allclose(same, std, rtol=0, atol=unit)
    np.testing.assert_allclose(far.predict(rows) - LEVEL, near.predict(rows), rtol=0, atol=unit)
    quantiles = far.predict_quantiles(rows) - LEVEL
    np.testing.assert_allclose(quantiles, near.predict_quantiles(rows), rtol=0, atol=2 * unit)
    density = near.log_predictive_density(rows, TARGETS)
    np.testing.assert_allclose(
        far.log_predictive_density(rows, TARGETS + LEVEL), density, atol=1e-4
    )
