"""Scores by evidence and by predictive density."""

import pickle

import numpy as np
import pytest
from scipy import stats
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.dummy import DummyClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.metrics import mean_pinball_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearClassifier, BayesianLinearRegressor
from skbayes_sym.model_selection import NoSplit, get_scorer

X, y = (a[:80] for a in load_diabetes(return_X_y=True))
LINEAR = BayesianLinearRegressor(
    prior=400.0, noise_std=55.0, fit_intercept=False, standardize=False
)
IRIS = load_iris(return_X_y=True)
DENSITY, EVIDENCE = get_scorer("log_density"), get_scorer("evidence")


def marginal_log_density(X, y, prior_scale, noise_std):
    """log p(y) of a linear model with Gaussian weights, its covariance in full."""
    covariance = prior_scale**2 * X @ X.T + noise_std**2 * np.eye(len(y))
    return stats.multivariate_normal.logpdf(y, cov=covariance)


def test_a_search_by_evidence_selects_the_largest():
    scales = [20.0, 400.0, 2e3, 2e4]
    search = GridSearchCV(LINEAR, {"prior": scales}, scoring=EVIDENCE, cv=NoSplit())
    search.fit(X, y)
    expected = [marginal_log_density(X, y, scale, 55.0) for scale in scales]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], expected, rtol=1e-9)
    assert search.best_params_["prior"] == scales[np.argmax(expected)]


class Reports(RegressorMixin, BaseEstimator):
    """Regressor that reports given values of the evidence."""

    def __init__(self, evidence=None, elbo=None):
        self.evidence = evidence
        self.elbo = elbo

    def fit(self, X, y):
        if self.evidence is not None:
            self.log_evidence_ = self.evidence
        if self.elbo is not None:
            self.elbo_ = self.elbo
        return self


@pytest.mark.parametrize(
    ("evidence", "elbo", "expected"),
    [(-3.0, -5.0, -3.0), (None, -5.0, -5.0), (np.nan, -5.0, -5.0), (-3.0, None, -3.0)],
)
def test_evidence_is_preferred_to_its_bound(evidence, elbo, expected):
    model = Reports(evidence, elbo).fit(X, y)
    assert EVIDENCE(model) == expected
    assert EVIDENCE(make_pipeline(StandardScaler(), model)) == expected


def test_the_error_without_evidence_names_another_scorer():
    pipe = make_pipeline(StandardScaler(), LinearRegression()).fit(X, y)
    with pytest.raises(ValueError, match=r"LinearRegression has neither.*log_density"):
        EVIDENCE(pipe, X, y)
    with pytest.raises(ValueError, match=r"log_evidence_ of Reports is not finite.*log_density"):
        EVIDENCE(Reports(np.nan).fit(X, y), X, y)


@pytest.mark.parametrize("model", [LINEAR, BayesianRidge()], ids=["ours", "scikit-learn's"])
def test_evidence_of_the_model_in_a_pipeline_or_search(model):
    pipe = make_pipeline(StandardScaler(), clone(model))
    search = GridSearchCV(pipe, {"standardscaler__with_mean": [True]}, cv=2).fit(X, y)
    inner = clone(model).fit(StandardScaler().fit_transform(X), y)
    expected = DENSITY(inner, StandardScaler().fit_transform(X), y)
    found = DENSITY(search, X, y)
    assert found == pytest.approx(expected, rel=1e-12)
    assert DENSITY(make_pipeline(inner), X, y) != found  # not scaled


def test_density_is_the_mean_over_rows_in_units_of_y():
    for model in (clone(LINEAR).fit(X, y), BayesianRidge().fit(X, y)):
        expected = stats.norm.logpdf(y, *model.predict(X, return_std=True)).mean()
        assert DENSITY(model, X, y) == pytest.approx(expected, rel=1e-12)
    Y = np.column_stack([y, 2.0 * y])
    gp = GaussianProcessRegressor(alpha=1.0, optimizer=None).fit(X, Y)
    mean, std = gp.predict(X, return_std=True)
    expected = stats.norm.logpdf(Y, mean, std).sum(axis=1).mean()
    assert DENSITY(gp, X, Y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.long
@pytest.mark.kept("names1")
@pytest.mark.parametrize("names", [None, np.array(["rose", "lily", "iris"])])
def test_classifiers_by_their_probabilities(names):
    X, y = IRIS
    y = y if names is None else names[y]
    for clf in (LogisticRegression(max_iter=1000), BayesianLinearClassifier(prior=1.0)):
        clf.fit(X, y)
        columns = np.searchsorted(clf.classes_, y)
        expected = np.log(clf.predict_proba(X)[np.arange(150), columns]).mean()
        assert DENSITY(clf, X, y) == pytest.approx(expected, rel=1e-9)


def test_classes_missing_in_training_have_density_minus_infinity():
    X, y = IRIS
    clf = LogisticRegression(max_iter=1000).fit(X[y < 2], y[y < 2])
    assert DENSITY(clf, X, y) == -np.inf
    assert DENSITY(DummyClassifier(strategy="most_frequent").fit(X, y), X, y) == -np.inf


def test_a_transformed_target_is_scored_in_its_own_units():
    ridge = BayesianRidge()  # whose quantiles are a formula
    model = TransformedTargetRegressor(
        ridge, func=lambda t: t / 7.0, inverse_func=lambda t: 7.0 * t
    )
    inside = DENSITY(clone(ridge).fit(X, y / 7.0), X, y / 7.0)
    found = DENSITY(model.fit(X, y), X, y)
    np.testing.assert_allclose(found, inside - np.log(7.0), rtol=1e-9)


def test_scorers_are_callables_of_a_search():
    grid = {"prior": [0.01, 2e3]}
    search = GridSearchCV(LINEAR, grid, scoring=DENSITY, cv=3).fit(X, y)
    assert search.best_params_ == {"prior": 2e3}
    best = clone(LINEAR).set_params(prior=2e3)
    scores = cross_val_score(best, X, y, scoring=DENSITY, cv=3)
    assert scores.mean() == pytest.approx(search.best_score_)


@pytest.mark.long
def test_scorers_by_name_inside_cross_validation():
    """The CRPS is twice the average of scikit-learn's pinball loss over levels."""
    model = make_pipeline(StandardScaler(), LINEAR)
    levels = (np.arange(60) + 0.5) / 60
    scoring = {f"{q:.5f}": get_scorer("neg_pinball", quantile=q) for q in levels}
    scoring["neg_crps"] = get_scorer("neg_crps")
    found = cross_validate(model, X, y, scoring=scoring, cv=2)
    average = np.mean([found[f"test_{q:.5f}"] for q in levels], axis=0)
    np.testing.assert_allclose(
        found["test_neg_crps"], 2 * average, rtol=1e-3
    )  # the rule's error is below 1 / 60^2
    fitted = model.fit(X, y)
    upper = fitted[-1].predict_quantiles(fitted[:-1].transform(X), [0.9])[:, 0]
    scorer = pickle.loads(pickle.dumps(get_scorer("neg_pinball", quantile=0.9)))
    assert scorer(fitted, X, y) == pytest.approx(-mean_pinball_loss(y, upper, alpha=0.9))


def test_weights_of_held_out_rows_are_routed():
    """Rows of weight 0 don't count. A search passes the weights if they are requested."""
    model, weight = clone(LINEAR).fit(X, y), (np.arange(80) % 2).astype(float)
    for scorer in (get_scorer("neg_crps"), get_scorer("neg_pinball", quantile=0.9)):
        half = scorer(model, X[1::2], y[1::2])
        assert scorer(model, X, y, sample_weight=weight) == pytest.approx(half)
    with config_context(enable_metadata_routing=True):
        scorer = get_scorer("log_density").set_score_request(sample_weight=True)
        linear = clone(LINEAR).set_fit_request(sample_weight=True)
        found = cross_validate(linear, X, y, scoring=scorer, cv=2, params={"sample_weight": weight})
        assert not get_scorer("log_density").get_metadata_routing().score.requests["sample_weight"]
    for (train, test), score in zip(KFold(2).split(X), found["test_score"], strict=True):
        fold = clone(LINEAR).fit(X[train], y[train], sample_weight=weight[train])
        mean = np.average(fold.log_predictive_density(X[test], y[test]), weights=weight[test])
        assert score == pytest.approx(mean)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_means_of_extreme_scores_neither_overflow_nor_vanish(scale):
    class StandardNormal(RegressorMixin, BaseEstimator):
        def fit(self, X, y):
            self.n_features_in_ = X.shape[1]
            return self

        def predict(self, X, return_std=False):
            return (np.zeros(len(X)), np.full(len(X), scale)) if return_std else np.zeros(len(X))

    targets = np.linspace(-1e8, 1e8, 80)
    model = StandardNormal().fit(X, y)
    score = get_scorer("neg_pinball", quantile=0.5)(model, X, scale * targets)
    assert score == pytest.approx(-0.5 * scale * np.mean(np.abs(targets)))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "crps",
            {},
            "isn't a scorer of this package, which has evidence, log_density, neg_crps",
        ),
        (np.ones(2), {}, "isn't a scorer of this package"),
        ("neg_pinball", {}, "needs quantile"),
        ("neg_pinball", {"quantile": 90}, "strictly between 0 and 1, got 90"),
        ("neg_crps", {"quantile": 0.9}, "quantile is only for neg_pinball"),
    ],
)
def test_a_wrong_name_or_quantile_is_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        get_scorer(name, **settings)


def test_classes_have_no_crps():
    with pytest.raises(ValueError, match="LogisticRegression predicts classes"):
        get_scorer("neg_crps")(LogisticRegression(max_iter=500).fit(*IRIS), *IRIS)


def test_no_split_is_all_rows_twice():
    ((train, test),) = NoSplit().split(X, y)
    assert np.array_equal(train, np.arange(80))
    assert np.array_equal(test, np.arange(80))
    assert train is not test
    assert NoSplit().get_n_splits() == NoSplit().get_n_splits(X, y) == 1
    assert repr(NoSplit()) == "NoSplit()"
