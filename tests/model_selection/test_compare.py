"""Every column of `compare_models` agrees with a direct computation."""

import builtins

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils import check_random_state

import skbayes_sym as sk
from skbayes_sym.metrics import expected_calibration_error, interval_calibration_error
from skbayes_sym.model_selection import NoSplit, compare_models

X, y = (a[:80] for a in load_diabetes(return_X_y=True))
IRIS = load_iris(return_X_y=True)
NAMES = np.array(["rose", "lily", "iris"])
SECONDS = ["fit_seconds", "predict_seconds"]
LINEAR = sk.BayesianLinearRegressor(standardize=True)
NETWORK = sk.SymmetrizedVIRegressor((2,), "tanh", max_iter=60, tol=None, n_predict_samples=20)


class Constant(RegressorMixin, BaseEstimator):
    """Regressor that predicts the same normal distribution for every row."""

    def __init__(self, mean=150.0, std=70.0):
        self.mean = mean
        self.std = std

    def fit(self, X, y):
        self.n_features_in_, self.mean_ = np.shape(X)[1], self.mean
        return self

    def predict(self, X, return_std=False):
        mean = np.full(len(X), self.mean_)
        return (mean, np.full(len(X), self.std)) if return_std else mean


class Mean(Constant):
    """Regressor that predicts a normal around the mean of the training rows."""

    def fit(self, X, y):
        super().fit(X, y).mean_ = np.mean(y)
        return self


class Fails(Constant):
    """Regressor whose fit fails without one of the rows."""

    def fit(self, X, y):
        if 341.0 not in y:
            raise RuntimeError("no such row")
        return super().fit(X, y)


CONSTANTS = {"wide": Constant(std=200.0), "off": Constant(mean=100.0), "near": Constant()}


def numbers(table):
    """Columns other than the seconds."""
    return table.drop(columns=SECONDS)


@pytest.mark.parametrize("cv", [5, 3, NoSplit(), RepeatedKFold(n_splits=4, n_repeats=3)])
def test_columns_of_constant_predictors(cv):
    """A row counts once, and the columns don't depend on the folds."""
    table = compare_models(CONSTANTS, X, y, cv=cv)
    assert list(table.index) == ["wide", "off", "near"]
    rows = {k: stats.norm.logpdf(y, m.mean, m.std) for k, m in CONSTANTS.items()}
    for name, model in CONSTANTS.items():
        row, difference = table.loc[name], rows[name] - rows["near"]
        assert row.log_density == pytest.approx(rows[name].mean())
        assert row.log_density_se == pytest.approx(stats.sem(rows[name]))
        assert row.difference == pytest.approx(difference.mean())
        assert row.difference_se == pytest.approx(stats.sem(difference))
        if name != "near":  # the power of a two-sided test at 5 %
            shift = row.detectable / row.difference_se
            power = stats.norm.sf(1.95996 - shift) + stats.norm.cdf(-1.95996 - shift)
            assert power == pytest.approx(0.8, abs=1e-4)
        assert row.rmse == pytest.approx(np.sqrt(np.mean((y - model.mean) ** 2)))
        expected = interval_calibration_error(stats.norm.cdf(y, model.mean, model.std))
        assert row.calibration_error == pytest.approx(expected)
        assert row[["evidence", "evidence_se", "loo", "loo_se", "loo_unreliable"]].isna().all()
        assert row.evidence_source == row.evidence_side == ""
        assert (row[SECONDS] >= 0).all()
    assert table.difference.max() == 0.0
    assert table.loc["near", "difference_se"] == 0.0


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_errors_of_extreme_targets_neither_overflow_nor_vanish(scale):
    table = compare_models({"mean": Constant(mean=0.0, std=scale)}, X, scale * y, cv=2)
    assert table.rmse["mean"] == pytest.approx(scale * np.sqrt(np.mean(y**2)))


def test_repeated_tests_of_a_row_are_averaged():
    """Repetitions of a test row aren't additional rows."""
    cv = RepeatedKFold(n_splits=3, n_repeats=4, random_state=0)
    table = compare_models({"mean": Mean()}, X, y, cv=cv)
    rows = np.zeros(80)
    for train, test in cv.split(X):
        rows[test] += stats.norm.logpdf(y[test], y[train].mean(), 70.0) / 4
    assert table.loc["mean", "log_density"] == pytest.approx(rows.mean())
    assert table.loc["mean", "log_density_se"] == pytest.approx(stats.sem(rows))


def test_rows_without_a_test_fold_are_ignored():
    cv = ShuffleSplit(n_splits=1, test_size=30, random_state=0)
    ((_, test),) = cv.split(X)
    table = compare_models(CONSTANTS, X, y, cv=cv)
    rows = stats.norm.logpdf(y[test], 150.0, 70.0)
    assert table.loc["near", "log_density"] == pytest.approx(rows.mean())
    assert table.loc["near", "log_density_se"] == pytest.approx(stats.sem(rows))


@pytest.mark.parametrize("seed", [0, 3])
def test_the_folds_are_shuffled_by_the_seed(seed):
    table = compare_models({"mean": Mean()}, X, y, cv=4, random_state=seed)
    squares = 0.0
    folds = KFold(4, shuffle=True, random_state=check_random_state(seed))
    for train, test in folds.split(X):
        squares += np.sum((y[test] - y[train].mean()) ** 2)
    assert table.loc["mean", "rmse"] == pytest.approx(np.sqrt(squares / 80), rel=1e-12)


def test_columns_of_a_linear_model_agree_with_direct_computation():
    table = compare_models({"linear": LINEAR}, X, y, cv=3)
    rows, cdf = np.zeros(80), np.zeros(80)
    for train, test in KFold(3, shuffle=True, random_state=check_random_state(0)).split(X):
        fitted = clone(LINEAR).fit(X[train], y[train])
        rows[test] = fitted.log_predictive_density(X[test], y[test])
        cdf[test] = stats.norm.cdf(y[test], *fitted.predict(X[test], return_std=True))
    row = table.loc["linear"]
    assert row.log_density == pytest.approx(rows.mean())
    assert row.calibration_error == pytest.approx(interval_calibration_error(cdf))
    assert row.evidence == pytest.approx(clone(LINEAR).fit(X, y).log_evidence_)
    assert (row.evidence_source, row.evidence_side) == ("log_evidence_", "exact")


@pytest.mark.long
def test_evidence_has_its_source_and_side():
    models = {
        "bound": NETWORK,
        "heavy tails": clone(LINEAR).set_params(likelihood="student_t"),
        "none": sk.DeepEnsembleRegressor((2,), n_members=2, max_iter=30, tol=1e9),
    }
    table = compare_models(models, X, y, cv=2)
    assert list(table.evidence_side) == ["lower", "lower", ""]
    assert list(table.evidence_source) == ["elbo_", "elbo_", ""]
    assert table.loc["bound", "evidence_se"] > 0
    assert np.isnan(table.loc["none", "evidence"])
    assert np.isfinite(table.log_density).all()


class Counts(Constant):
    """Notes every fit and the seed it had."""

    seen = []

    def __init__(self, mean=150.0, std=70.0, evidence=False, random_state=None):
        super().__init__(mean, std)
        self.evidence = evidence
        self.random_state = random_state

    def fit(self, X, y):
        self.seen.append((len(X), self.random_state))
        if self.evidence:
            self.elbo_ = -1.0
        return super().fit(X, y)


@pytest.fixture
def seen():
    Counts.seen.clear()
    return Counts.seen


@pytest.mark.parametrize("evidence", [True, False])
def test_all_rows_are_fitted_only_for_evidence(seen, evidence):
    compare_models({"a": Counts(evidence=evidence)}, X, y, cv=4)
    assert [n for n, _ in seen] == [60] * 4 + [80] * evidence


def test_all_models_get_the_same_seeds_and_keep_their_own(seen):
    pipe = make_pipeline(StandardScaler(), Counts(evidence=True))
    models = {"a": Counts(evidence=True), "b": pipe, "c": Counts(random_state=7)}
    compare_models(models, X, y, cv=2)
    seeds = [seed for _, seed in seen]
    a, b, c = (seeds[0:2] + seeds[6:7], seeds[2:4] + seeds[7:8], seeds[4:6])
    assert a == b
    assert len(set(a)) == 3  # one a fold, one for all rows
    assert c == [7, 7]
    seen.clear()
    compare_models(models, X, y, cv=2, random_state=1)
    assert not {seed for _, seed in seen} & set(a)


def test_a_failing_model_has_nan_only_in_its_own_row():
    good = {"near": Constant(), "linear": LINEAR}
    with pytest.warns(FitFailedWarning, match=r"'bad' failed in 1 of 5 fits.*RuntimeError: no suc"):
        table = compare_models({"bad": Fails(), **good}, X, y)
    alone = compare_models(good, X, y)
    pd.testing.assert_frame_equal(numbers(table.loc[list(good)]), numbers(alone))
    assert table.loc["bad"].drop(["evidence_source", "evidence_side"]).isna().all()


@pytest.mark.parametrize(
    "n_jobs", [None, pytest.param(2, marks=[pytest.mark.processes, pytest.mark.long])]
)
def test_warnings_are_repeated_once_per_model(n_jobs):
    models = {"short": clone(NETWORK).set_params(tol=0.0, max_iter=3), "linear": LINEAR}
    with pytest.warns(ConvergenceWarning) as caught:
        compare_models(models, X, y, cv=3, n_jobs=n_jobs)
    (said,) = [str(w.message) for w in caught]
    assert said.startswith("'short', in 4 of 4 fits: SymmetrizedVIRegressor: not converged")
    assert caught[0].filename == __file__


def test_point_predictions_have_an_error_and_no_density():
    remedy = r"'ols' predicts no distribution.*StackingRegressor\(\[\('ols', model\)\]\)"
    with pytest.warns(UserWarning, match=remedy) as caught:
        table = compare_models({"ols": LinearRegression(), "ridge": BayesianRidge()}, X, y)
    assert len(caught) == 1
    columns = ["log_density", "difference", "difference_se", "calibration_error"]
    assert table.loc["ols", columns].isna().all()
    assert table.loc["ols", "rmse"] > 0
    assert table.loc["ridge", "difference"] == 0.0


def test_impossible_observations_have_density_minus_infinity():
    table = compare_models({"sure": Constant(std=0.0), "near": Constant()}, X, y)
    assert table.loc["sure", "log_density"] == table.loc["sure", "difference"] == -np.inf
    assert np.isnan(table.loc["sure", "difference_se"])


@pytest.mark.parametrize("labels", [np.arange(3), NAMES], ids=["numbers", "strings"])
def test_classifiers(labels):
    X, codes = IRIS
    y = labels[codes]
    models = {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
        "ours": sk.SymmetrizedVIClassifier((2,), max_iter=60, tol=None, n_predict_samples=20),
        "margin": LinearSVC(),
    }
    remedy = "'margin' predicts no distribution.*CalibratedClassifierCV"
    with pytest.warns(UserWarning, match=remedy) as caught:
        table = compare_models(models, X, y, cv=3)
    assert sum("no distribution" in str(w.message) for w in caught) == 1
    proba, classes = np.zeros((150, 3)), np.unique(y)
    folds = StratifiedKFold(3, shuffle=True, random_state=check_random_state(0))
    for train, test in folds.split(X, y):
        proba[test] = clone(models["logistic"]).fit(X[train], y[train]).predict_proba(X[test])
    row = table.loc["logistic"]
    columns = np.searchsorted(classes, y)
    assert row.log_density == pytest.approx(np.log(proba[np.arange(150), columns]).mean())
    assert row.accuracy == pytest.approx(np.mean(classes[proba.argmax(axis=1)] == y))
    assert row.calibration_error == pytest.approx(expected_calibration_error(y, proba))
    assert table.loc["ours", "evidence_side"] == "lower"
    assert table.loc["margin", "accuracy"] > 0.9
    assert np.isnan(table.loc["margin", "log_density"])


def test_a_class_missing_from_a_training_fold():
    X, y = IRIS
    rows = np.arange(150)
    table = compare_models({"nb": GaussianNB()}, X, y, cv=[(rows[y < 2], rows[40:])])
    assert table.loc["nb", "log_density"] == -np.inf
    fitted = GaussianNB().fit(X[y < 2], y[y < 2])
    proba = np.column_stack([fitted.predict_proba(X[40:]), np.zeros(110)])
    expected = expected_calibration_error(y[40:], proba)
    assert table.loc["nb", "calibration_error"] == pytest.approx(expected)


def test_searches_pipelines_and_frames():
    frame, series = pd.DataFrame(X).add_prefix("x"), pd.Series(y, index=np.arange(80)[::-1])
    pipe = make_pipeline(StandardScaler(), LINEAR)
    search = GridSearchCV(pipe, {"bayesianlinearregressor__noise_std": [55.0]}, cv=2)
    models = {"pipe": pipe, "search": search, "plain": LINEAR}
    with pytest.warns(UserWarning, match="same row labels in different orders"):
        table = compare_models(models, frame, series, cv=2)
    expected = clone(LINEAR).set_params(noise_std=55.0).fit(X, y).log_evidence_
    assert table.loc["search", "evidence"] == pytest.approx(expected)
    for name in ("log_density", "evidence", "calibration_error"):
        assert table.loc["pipe", name] == pytest.approx(table.loc["plain", name], rel=1e-9)


def test_several_targets():
    Y = np.column_stack([y, -2.0 * y])
    network = clone(NETWORK).set_params(random_state=0)
    row = compare_models({"network": network}, X, Y, cv=[(np.arange(60), np.arange(60, 80))])
    fitted = clone(network).fit(X[:60], Y[:60])
    density = fitted.log_predictive_density(X[60:], Y[60:])
    assert row.loc["network", "log_density"] == pytest.approx(density.mean())
    squares = (fitted.predict(X[60:]) - Y[60:]) ** 2
    assert row.loc["network", "rmse"] == pytest.approx(np.sqrt(squares.mean()))
    expected = interval_calibration_error(sk.predictive(fitted, X[60:]).cdf(Y[60:]))
    assert row.loc["network", "calibration_error"] == pytest.approx(expected)


class Conjugate(RegressorMixin, BaseEstimator):
    """Draws of the mean of normals with unit variance, prior N(0, 1); widened, with weights."""

    def __init__(self, n_draws=4000, widen=1.0, n_impossible=0):
        self.n_draws = n_draws
        self.widen = widen
        self.n_impossible = n_impossible

    def fit(self, X, y):
        variance = 1.0 / (1.0 + len(y))
        posterior = stats.norm(variance * y.sum(), variance**0.5)
        proposal = stats.norm(posterior.mean(), self.widen * posterior.std())
        draws = proposal.rvs(self.n_draws, random_state=0)
        weights = posterior.pdf(draws) / proposal.pdf(draws)
        self.draws_ = np.append(draws, np.full(self.n_impossible, 50.0))[:, None]
        weights = np.append(weights, np.zeros(self.n_impossible))
        self.chain_weights_ = weights / weights.sum()
        return self

    def predict(self, X):
        return np.full(len(X), self.chain_weights_ @ self.draws_[:, 0])

    def log_likelihood_samples(self, X, y):
        return stats.norm.logpdf(y, self.draws_[:, :, None])


@pytest.mark.filterwarnings("ignore:'model' predicts no distribution")
@pytest.mark.parametrize("model", [Conjugate(), Conjugate(widen=2.0), Conjugate(n_impossible=3)])
def test_loo_against_its_closed_form(model):
    """Weighted draws of any distribution with the same support agree."""
    y = np.random.default_rng(0).normal(0.5, 1.0, size=30)
    table = compare_models({"model": model}, np.zeros((30, 1)), y, cv=2)
    left = y.sum() - y
    exact = stats.norm.logpdf(y, left / 30, np.sqrt(1 + 1 / 30))
    row = table.loc["model"]
    # The error of a row's mean over draws of p(y_i | theta), whose logarithm varies by
    # |y_i - mu| / sqrt(n) a draw; rows share the draws.
    error = np.mean(np.abs(y - y.mean())) / 31**0.5 / 4000**0.5
    assert abs(row.loo - exact.mean()) < 5 * error
    assert row.loo_se == pytest.approx(stats.sem(exact), rel=0.02)
    assert row.loo_unreliable == 0


@pytest.mark.long
def test_loo_of_a_sampler_agrees_with_cross_validation():
    X, y = (a[:40] for a in load_diabetes(return_X_y=True))
    model = sk.MCMCRegressor(
        (1,), prior=1.0, sampler=sk.Chains(sk.HMC(max_leapfrog=16), init="prior", n_warmup=60),
        n_chains=16, n_draws=20, remove_symmetries=sk.ModeWeights("uniform"),
    )  # fmt: skip
    row = compare_models({"m": model}, X[:, [2, 8]], y, cv=4).loc["m"]
    assert abs(row.loo - row.log_density) < 0.1  # nats a row; folds leave out ten rows
    assert row.loo_unreliable < 40


@pytest.mark.filterwarnings("ignore:'model' predicts no distribution")
def test_loo_needs_arviz_stats(monkeypatch):
    without(monkeypatch, "arviz_stats")
    row = compare_models({"model": Conjugate()}, np.zeros((30, 1)), y[:30], cv=2).loc["model"]
    assert row[["loo", "loo_se", "loo_unreliable"]].isna().all()


def without(monkeypatch, package):
    """As if a package weren't installed."""
    real = builtins.__import__

    def fake(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)


def test_without_pandas_a_dict_of_the_same_columns(monkeypatch):
    frame = compare_models(CONSTANTS, X, y)
    with monkeypatch.context() as patch:
        without(patch, "pandas")
        table = compare_models(CONSTANTS, X, y)
    assert list(table) == ["model", *frame.columns]
    assert table["model"] == list(frame.index)
    for name in set(table) - {"model", *SECONDS}:
        np.testing.assert_array_equal(table[name], frame[name].to_numpy())


@pytest.mark.processes
def test_jobs_dont_change_the_numbers():
    models = {"network": NETWORK, "linear": LINEAR}
    one, two = (compare_models(models, X, y, cv=2, n_jobs=n) for n in (None, 2))
    pd.testing.assert_frame_equal(numbers(one), numbers(two), check_exact=True)


class Neither(ClassifierMixin, BaseEstimator):
    pass


@pytest.mark.parametrize(
    ("models", "match"),
    [({}, "at least one"), ([LINEAR], "map names"),
     ({"a": LINEAR, "b": Neither()}, "all classifiers or all regressors.*Neither.*classifier"),
     ({"a": StandardScaler()}, "neither")],
)  # fmt: skip
def test_models_that_cannot_be_compared_are_refused(models, match):
    with pytest.raises(ValueError, match=match):
        compare_models(models, X, y)


@pytest.mark.parametrize(
    ("y", "settings", "match"),
    [(None, {}, "needs y"), (y, {"cv": []}, r"cv gives no split.*got \[\]")],
)  # fmt: skip
def test_other_arguments_are_checked(y, settings, match):
    with pytest.raises(ValueError, match=match):
        compare_models(CONSTANTS, X, y, **settings)


class ReadsGroups(Constant):
    """Its mean is the largest number of rows of a group that it was fitted to."""

    def fit(self, X, y, groups=None):
        super().fit(X, y)
        self.mean_ = -1.0 if groups is None else np.bincount(groups).max()
        return self


def test_groups_reach_folds_and_models():
    groups = np.array(["a", "b", "c", "d"])[np.arange(80) % 4]
    models = {
        "plain": Constant(20.0),
        "groups": ReadsGroups(),
        "pipeline": make_pipeline(StandardScaler(), ReadsGroups()),
        "search": GridSearchCV(ReadsGroups(), {"std": [70.0]}, cv=GroupKFold(2)),
        "linear": BayesianRidge(),
    }
    zeros = np.zeros(80)
    for cv in (4, LeaveOneGroupOut()):
        table = compare_models(models, X, zeros, cv=cv, groups=groups)
        # Groups of 20 rows are whole in every training fold, and the models read them.
        assert table.rmse[:4].tolist() == [20.0] * 4
    assert compare_models({"g": ReadsGroups()}, X, zeros).rmse.tolist() == [1.0]
    with pytest.raises(ValueError, match="groups has 1 missing values"):
        compare_models(models, X, zeros, groups=[None, *groups[1:]])
