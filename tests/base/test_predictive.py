"""One predictive distribution for every model, bare or wrapped, and draws of its functions."""

import numpy as np
import pytest
from fits import FITS, LABELS, NUMBERS, SMALL, TWO_NUMBERS, X, fitted
from scipy import stats
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.inspection import permutation_importance
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from skbayes_sym import DeepEnsembleRegressor, EvidenceAdam, LaplaceRegressor, Updates, predictive
from skbayes_sym.base.predictive import predicts_distribution
from skbayes_sym.model_selection import get_scorer

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Q = [0.1, 0.5, 0.8]
REGRESSORS = [n for n, case in FITS.items() if hasattr(case.estimator, "sample_y")]
NETWORKS = {type(FITS[n].estimator).__name__ for n in REGRESSORS} - {
    "PredictiveStackingRegressor"  # of one target
}  # fmt: skip
CLASSIFIERS = [n for n, case in FITS.items() if hasattr(case.estimator, "predict_proba")]


def small():
    return LaplaceRegressor(
        (3,), max_iter=20, optimizer=EvidenceAdam(updates=Updates(n=4)), random_state=0
    )


@pytest.mark.parametrize("name", REGRESSORS)
def test_it_answers_as_the_methods_of_the_estimator(name):
    model, (rows, y) = fitted(name), FITS[name][1:]
    distribution = predictive(model, rows)
    mean, std = model.predict(rows, return_std=True)
    for got, expected in [
        (distribution.std(), std), (distribution.var(), std**2),
        (distribution.quantile(Q), model.predict_quantiles(rows, Q)),
        (distribution.quantile(0.5), model.predict_quantiles(rows, [0.5])[..., 0]),
        (distribution.interval(0.8), model.predict_interval(rows, 0.8)),
        (distribution.sample(3, 1), model.sample_y(rows, 3, 1)),
        (distribution.log_prob(y), model.log_predictive_density(rows, y)),
        (distribution.uncertainty().total, model.predict_uncertainty(rows).total),
    ]:  # fmt: skip
        np.testing.assert_array_equal(got, expected)
    assert mean.shape == y.shape
    assert distribution.quantile(Q).shape == distribution.sample(3).shape == (*y.shape, 3)
    for noise in {"noise_std_", "noise_std_samples_"} & set(vars(model)):
        assert np.shape(getattr(model, noise))[-1:] in {y.shape[1:], (1,) * (y.ndim == 1)}
    if name != "linear-counts":
        np.testing.assert_allclose(distribution.cdf(distribution.quantile(0.3)), 0.3, rtol=1e-6)
    scale = np.finfo(model.dtype_).eps * np.abs(y).max()  # the mean alone takes another way
    np.testing.assert_allclose(distribution.uncertainty().total, std**2, rtol=1e-6)
    np.testing.assert_allclose(distribution.mean(), mean, rtol=0, atol=100 * scale)
    weights, loc, scale = distribution.components()
    np.testing.assert_allclose(np.tensordot(weights, loc, 1), mean, atol=1e-4 * std.max())
    second = np.tensordot(weights, (loc - mean) ** 2 + scale**2, 1)
    np.testing.assert_allclose(second**0.5, std, rtol=1e-4)
    assert f"mixture of {len(weights):,} " in repr(distribution)
    assert distribution.crps(y).shape == np.shape(y)
    assert np.all(distribution.crps(y) >= 0)


@pytest.mark.parametrize("kind", sorted(NETWORKS))
def test_a_column_of_targets_is_predicted_as_a_column(kind):
    assert clone(SMALL[kind]).fit(X, NUMBERS[:, None]).predict(X).shape == (24, 1)


SCALED = [n for n in REGRESSORS if not n.startswith("linear")]  # those have standardize=False


@pytest.mark.parametrize("name", SCALED)
def test_units_of_targets_carry_through(name):
    """Bounds, evidences and densities are of y as given: -log of the unit for each number.

    Rounding grows in the thousand steps of a pool's members, in chains that explore, and in chains
    with gradients of float32: their unit, a power of two, has none.
    """
    estimator, rows, y = FITS[name]
    rtol = 1e-7
    is_chaotic = name.startswith(("bayesian-mlp", "mcmc-evidence", "mcmc-annealed"))
    unit, zero = (8.0, 0.0) if is_chaotic else (10.0, 3.0)
    plain = fitted(name)
    scaled = clone(estimator).set_params(device="cpu").fit(rows, unit * y + zero)
    np.testing.assert_allclose(scaled.predict(rows), unit * plain.predict(rows) + zero, rtol=rtol)
    for noise in {"noise_std_", "noise_std_samples_"} & set(vars(plain)):
        found, expected = getattr(scaled, noise), unit * getattr(plain, noise)
        np.testing.assert_allclose(found, expected, rtol=rtol)
    gained = plain.log_predictive_density(rows, y) - np.log(unit) * (y.size // len(y))
    found = scaled.log_predictive_density(rows, unit * y + zero)
    np.testing.assert_allclose(found, gained, atol=max(rtol, 1e-6))
    bounds = {"elbo_", "elbo_curve_", "log_evidence_", "log_evidence_curve_",
              "log_posterior_samples_", "log_posterior_curve_"} & set(vars(plain))  # fmt: skip
    assert bounds or name.startswith("stack")  # which has none
    for bound in bounds:
        found, expected = getattr(scaled, bound), getattr(plain, bound) - y.size * np.log(unit)
        np.testing.assert_allclose(found, expected, rtol=rtol, err_msg=bound)
    modes = zip(*(getattr(model, "modes_", []) for model in (plain, scaled)), strict=True)
    for before, after in modes:
        for bound in ("log_evidence", "mean_log_posterior"):
            expected = getattr(before, bound) - y.size * np.log(unit)
            np.testing.assert_allclose(getattr(after, bound), expected, rtol=rtol)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_of_classes_too(name):
    model, (rows, y) = fitted(name), FITS[name][1:]
    distribution = predictive(model, rows)
    np.testing.assert_allclose(distribution.proba().sum(1), 1.0)
    assert np.all(distribution.uncertainty().epistemic >= 0.0)
    np.testing.assert_array_equal(distribution.classes, model.classes_)
    assert f"{len(distribution.classes)} classes" in repr(distribution)
    np.testing.assert_array_equal(distribution.proba(), model.predict_proba(rows))
    np.testing.assert_array_equal(distribution.log_prob(y), model.log_predictive_density(rows, y))
    np.testing.assert_array_equal(
        distribution.uncertainty().total, model.predict_uncertainty(rows).total
    )


def test_other_classifiers():
    model = LogisticRegression().fit(X, LABELS)
    distribution = predictive(model, X)
    columns = (model.classes_[1] == LABELS).astype(int)
    expected = np.log(model.predict_proba(X)[np.arange(len(X)), columns])
    np.testing.assert_allclose(distribution.log_prob(LABELS), expected)
    assert distribution.log_prob(["never", *LABELS[1:]])[0] == -np.inf
    with pytest.raises(TypeError, match=r"LogisticRegression.*a model of this package"):
        distribution.uncertainty()


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (BayesianRidge(), NUMBERS),
        (GaussianProcessRegressor(alpha=0.1, normalize_y=True), NUMBERS),
        (GaussianProcessRegressor(alpha=0.1), TWO_NUMBERS),
    ],
)
def test_a_mean_and_a_standard_deviation_are_a_normal(model, y):
    distribution = predictive(make_pipeline(StandardScaler(), model).fit(X, y), X)
    mean, std = distribution.mean(), distribution.std()
    normal = stats.norm(mean, std)
    np.testing.assert_allclose(distribution.cdf(y), normal.cdf(y))
    np.testing.assert_allclose(distribution.quantile(0.3), normal.ppf(0.3))
    np.testing.assert_allclose(
        distribution.log_prob(y), normal.logpdf(y).reshape(len(y), -1).sum(1)
    )
    draws = distribution.sample(4000, random_state=0)
    assert draws.shape == (*mean.shape, 4000)
    z = (draws.mean(-1) - mean) / (std / 4000**0.5)
    assert np.abs(z).max() < 5.0
    # E|Y - y| - E|Y - Y'| / 2 by the draws themselves
    direct = np.abs(draws - y[..., None]).mean(-1) - std / np.pi**0.5
    np.testing.assert_allclose(distribution.crps(y), direct, atol=0.1 * std.max())
    (weight,), (loc,), (scale,) = distribution.components()
    np.testing.assert_array_equal([weight * loc, scale], [mean, std])
    assert "independent normals" in repr(distribution)
    with pytest.raises(TypeError, match="separate observation noise from model uncertainty"):
        distribution.uncertainty()


@pytest.mark.long
def test_pipelines_and_searches_are_unwrapped():
    raw = 5.0 + 3.0 * X
    pipe = make_pipeline(StandardScaler(), small()).fit(raw, NUMBERS)
    inside = pipe[-1].predict_interval(pipe[:-1].transform(raw))
    np.testing.assert_array_equal(predictive(pipe, raw).interval(), inside)
    search = GridSearchCV(pipe, {"laplaceregressor__max_iter": [10, 20]}, cv=2).fit(raw, NUMBERS)
    best = search.best_estimator_
    expected = predictive(best, raw).quantile(Q)
    np.testing.assert_array_equal(predictive(search, raw).quantile(Q), expected)


class TestTransformedTargets:
    """Known laws: an affine function of a normal, and its exponential."""

    y = np.exp(NUMBERS)
    inner = BayesianRidge().fit(X, NUMBERS)
    mean, std = inner.predict(X, return_std=True)

    def distribution(self, func, inverse, y=None):
        model = TransformedTargetRegressor(BayesianRidge(), func=func, inverse_func=inverse)
        return predictive(model.fit(X, self.y if y is None else y), X)

    def test_lognormal(self):
        distribution, exact = (
            self.distribution(np.log, np.exp),
            stats.lognorm(self.std, scale=np.exp(self.mean)),
        )
        np.testing.assert_allclose(distribution.quantile(Q), exact.ppf(np.array(Q)[:, None]).T)
        np.testing.assert_allclose(distribution.cdf(self.y), exact.cdf(self.y))
        np.testing.assert_allclose(distribution.log_prob(self.y), exact.logpdf(self.y), rtol=1e-12)
        np.testing.assert_allclose(distribution.mean(), exact.mean(), rtol=1e-10)
        np.testing.assert_allclose(distribution.std(), exact.std(), rtol=1e-9)
        assert distribution.interval(0.9).shape == (len(X), 2)
        assert "of <independent normals" in repr(distribution)
        with pytest.raises(TypeError, match="use the inner model"):
            distribution.components()
        assert np.all(distribution.sample(2) > 0)

    @pytest.mark.parametrize("output", ["normal", "uniform"])
    def test_quantile_transformers_have_a_density_at_the_extremes_of_training(self, output):
        transformer = QuantileTransformer(n_quantiles=12, output_distribution=output)
        model = TransformedTargetRegressor(BayesianRidge(), transformer=transformer)
        distribution = predictive(model.fit(X, self.y), X)
        lowest, highest = self.y.min(), self.y.max()
        for end, inside in ((lowest, lowest + 1e-9), (highest, highest - 1e-9)):
            at_end = distribution.log_prob(end)
            np.testing.assert_allclose(at_end, distribution.log_prob(inside), rtol=1e-5)
        assert (distribution.log_prob([[lowest - 1e-6], [highest + 1e-6]]) == -np.inf).all()
        np.testing.assert_array_equal(distribution.cdf(highest), 1.0)

    def test_a_falling_function(self):
        distribution = self.distribution(np.negative, np.negative, -NUMBERS)
        exact = stats.norm(-self.mean, self.std)
        np.testing.assert_allclose(distribution.quantile(Q), exact.ppf(np.array(Q)[:, None]).T)
        np.testing.assert_allclose(distribution.cdf(-NUMBERS), exact.cdf(-NUMBERS))
        np.testing.assert_allclose(
            distribution.log_prob(-NUMBERS), exact.logpdf(-NUMBERS), rtol=1e-12
        )
        normal = predictive(self.inner, X)
        np.testing.assert_allclose(distribution.crps(-NUMBERS), normal.crps(NUMBERS), rtol=1e-9)

    def test_several_targets(self):
        model = TransformedTargetRegressor(
            DeepEnsembleRegressor((2,), max_iter=5, random_state=0), transformer=StandardScaler()
        ).fit(X, TWO_NUMBERS)
        distribution, inner = predictive(model, X), predictive(model.regressor_, X)
        scale, mean = model.transformer_.scale_, model.transformer_.mean_
        np.testing.assert_allclose(
            distribution.quantile(Q), inner.quantile(Q) * scale[:, None] + mean[:, None]
        )
        np.testing.assert_allclose(
            distribution.sample(2), inner.sample(2) * scale[:, None] + mean[:, None]
        )
        jacobian = np.log(scale).sum()
        scaled = model.transformer_.transform(TWO_NUMBERS)
        np.testing.assert_allclose(
            distribution.log_prob(TWO_NUMBERS), inner.log_prob(scaled) - jacobian
        )

    def test_a_function_that_turns_is_refused(self):
        model = TransformedTargetRegressor(
            BayesianRidge(), func=np.sqrt, inverse_func=lambda z: np.cos(3 * z) * z,
            check_inverse=False,
        ).fit(X, self.y)  # fmt: skip
        with pytest.raises(TypeError, match="neither rises nor falls"):
            predictive(model, X)


def test_what_predicts_no_distribution_is_refused():
    model = LinearRegression().fit(X, NUMBERS)
    with pytest.raises(TypeError, match="DummyRegressor predicts no distribution"):
        predictive(DummyRegressor().fit(X, X[:, 0]), X)  # its standard deviations are always 0
    with pytest.raises(TypeError, match="LinearRegression predicts no distribution"):
        predictive(model, X)
    assert not predicts_distribution(model)
    assert predicts_distribution(make_pipeline(StandardScaler(), BayesianRidge()).fit(X, NUMBERS))
    with pytest.raises(NotFittedError):
        predictive(small(), X)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        predictive(BayesianRidge().fit(X, NUMBERS), X).quantile(1.0)


PREDICTS = [name for name, case in FITS.items() if hasattr(case.estimator, "predict")]
N = 2000
# Their laws are no average over weights alone: logits have another scale, or are shrunk.
OF_ANOTHER_LAW = {"lila-images", "linear-labels", "linear-three"}


def share_of_error(model):
    """Standard error of a mean, in deviations: of these draws, and of those that are the law."""
    n_own = {"n_predict_samples", "predictive"} & set(model.get_params())
    few = 200 if "predictive" in n_own else model.n_predict_samples if n_own else np.inf
    return (1.0 / N + 1.0 / few) ** 0.5


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.long) if n == "lila-cnn" else n for n in PREDICTS],
)
def test_functions_are_the_same_for_other_rows_and_have_the_moments_of_the_law(name):
    model, rows = fitted(name), FITS[name].X
    drawn = predictive(model, rows).functions(N, 1)
    np.testing.assert_allclose(model.sample_f(rows[::3], N, 1), drawn[::3], rtol=1e-6, atol=1e-9)
    is_certain = drawn.std(-1).max() < 1e-9  # of a posterior whose variance was taken off
    assert is_certain or not np.array_equal(model.sample_f(rows, N, 2), drawn)
    mean = model.predict(rows) if name in REGRESSORS else model.predict_proba(rows)
    if name not in REGRESSORS:
        np.testing.assert_allclose(drawn.sum(1), 1.0, rtol=1e-6)
    if name not in OF_ANOTHER_LAW:
        error = drawn.std(-1) * share_of_error(model) + 1e-6 * np.abs(mean).max()
        assert (np.abs(drawn.mean(-1) - mean) < 5.0 * error).all()


@pytest.mark.parametrize("name", REGRESSORS)
def test_their_spread_is_epistemic_and_noise_comes_on_top(name):
    model, rows = fitted(name), FITS[name].X
    drawn, parts = model.sample_f(rows, N), model.predict_uncertainty(rows)
    std = model.predict(rows, return_std="function")[1]
    np.testing.assert_allclose(std**2, parts.epistemic, rtol=1e-5)
    # A variance of N draws is off by sqrt((kurtosis - 1) / N): of mixtures up to some tenths.
    kurtosis = ((drawn - drawn.mean(-1, keepdims=True)) ** 4).mean(-1) / drawn.var(-1) ** 2
    error = 6.0 * np.sqrt(kurtosis) * share_of_error(model) + 1e-6
    assert (np.abs(parts.epistemic / drawn.var(-1) - 1.0) < error).all()
    noisy = model.sample_y(rows, N)
    assert (noisy.var(-1) > 0.8 * parts.aleatoric).all()


def test_functions_of_a_linear_model_have_its_covariance():
    model = fitted("linear-gaussian")
    drawn = model.sample_f(X, N)
    _, covariance = model.predict(X, return_cov=True)
    exact = covariance - np.diag(model.predict_uncertainty(X).aleatoric)
    scale = np.sqrt(np.diag(exact))
    assert np.abs(np.cov(drawn) - exact).max() < 6.0 * scale.max() ** 2 / (N / 2) ** 0.5


def test_who_draws_no_functions_says_so_and_words_are_checked():
    ridge = BayesianRidge().fit(X, X[:, 0])
    with pytest.raises(
        TypeError, match=r"no joint distribution over rows.*a model of this package"
    ):
        predictive(ridge, X).functions(2)
    with pytest.raises(TypeError, match="has no functions"):
        predictive(LogisticRegression().fit(X, X[:, 0] > 0), X).functions(2)
    with pytest.raises(ValueError, match="return_std must be True, False or 'function', got 'f'"):
        fitted("linear-gaussian").predict(X, return_std="f")


def test_scipy_s_names_are_the_same_answers():
    distribution, y = predictive(fitted("linear-gaussian"), X), FITS["linear-gaussian"].y
    np.testing.assert_array_equal(distribution.logpdf(y), distribution.log_prob(y))
    np.testing.assert_array_equal(distribution.pdf(y), np.exp(distribution.log_prob(y)))
    np.testing.assert_array_equal(distribution.ppf([0.1, 0.9]), distribution.quantile([0.1, 0.9]))


@pytest.mark.filterwarnings("ignore:.*far outside the range of the training data")
@pytest.mark.parametrize("name", [n for n in REGRESSORS if FITS[n].X.dtype != object])
def test_functions_spread_far_from_all_rows(name):
    """Eight times as far from the middle of the rows, in the mean over rows."""
    model, rows = fitted(name), FITS[name].X
    far = rows.mean(axis=0) + 8.0 * (rows - rows.mean(axis=0))
    (_, near), (_, distant) = (model.predict(x, return_std="function") for x in (rows, far))
    assert distant.mean() > 1.3 * near.mean()


def test_importance_of_a_column_in_nats():
    """By scikit-learn's permutations: the density of others' values is what is lost."""
    result = permutation_importance(
        fitted("linear-gaussian"), X, FITS["linear-gaussian"].y, n_repeats=5, random_state=0,
        scoring=get_scorer("log_density"),
    )  # fmt: skip
    assert result.importances_mean.argmax() == 0  # whose slope is 1, the others' -0.5 and 0
    assert result.importances_mean[0] > 0.1


def test_draws_that_do_not_fit_into_memory_are_refused():
    multiple = MultiOutputRegressor(BayesianRidge()).fit(X, np.column_stack([NUMBERS, NUMBERS]))
    fits = [predictive(multiple, X), predictive(BayesianRidge().fit(X, NUMBERS), X)]
    for distribution in fits:
        with pytest.raises(MemoryError, match="sample takes at least"):
            distribution.sample(10**12)
        with pytest.raises(ValueError, match="n must be an int of at least 1"):
            distribution.sample(0)
        with pytest.raises(
            IndexError, match=f"row {len(X)} is out of bounds: there are {len(X)} rows"
        ):
            distribution[len(X)]
