"""Pooled networks of classes: what they are made of, and what is chosen for how many rows."""

import numpy as np
import pytest
from habits import Watch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics import log_loss

from skbayes_sym import BayesianMLPClassifier, DeepEnsembleClassifier, LaplaceClassifier
from skbayes_sym.estimators.ensemble import refit
from skbayes_sym.estimators.laplace import labels_method
from skbayes_sym.models import ARD

X, Y = load_iris(return_X_y=True)
ROWS = np.random.default_rng(0).permutation(150)[:70]
X, Y = X[ROWS], Y[ROWS]
CLF = BayesianMLPClassifier((4,), n_modes=2, n_members=2, random_state=0)


@pytest.fixture(scope="module")
def fitted():
    return clone(CLF).fit(X, Y)


@pytest.mark.long
@pytest.mark.kept("3")
@pytest.mark.parametrize("n_classes", [2, 3])
def test_kinds_are_mixed_by_their_shares(n_classes, fitted):
    y = np.minimum(Y, n_classes - 1)
    pool = fitted if n_classes == 3 else clone(CLF).fit(X, y)
    modes = LaplaceClassifier((4,), n_restarts=2, optimizer="gauss-newton", random_state=0)
    members = DeepEnsembleClassifier(n_members=2, correction="gaussian", random_state=0)
    linear = LaplaceClassifier((), n_restarts=1, random_state=0)
    kinds = [estimator.fit(X, y).predict_proba(X) for estimator in (modes, members, linear)]
    shares = [pool.modes_share_, pool.members_share_, pool.linear_share_]
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares[:2]) > 0.01
    expected = np.einsum("k,kij->ij", shares, kinds)
    np.testing.assert_allclose(pool.predict_proba(X), expected, atol=1e-6)
    assert pool.variance_scale_ == modes.variance_scale_
    assert pool.member_variance_scale_ == members.variance_scale_
    assert pool.log_evidence_ == modes.log_evidence_


def test_it_says_what_it_chose_and_why(fitted):
    n = len(np.unique(X, axis=0))
    assert fitted.choice_ == (
        f"{n} distinct rows of 4 features, 3 classes: 2 modes of 4 tanh units by the evidence "
        f"(variance scale {fitted.variance_scale_:g} by left-out rows), {fitted.modes_share_:.0%}; "
        f"2 refitted ensemble members (variance scale {fitted.member_variance_scale_:g}), "
        f"{fitted.members_share_:.0%}; a linear model, {fitted.linear_share_:.0%}"
    )


def test_every_question_is_answered(fitted):
    p = fitted.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(fitted.predict_log_proba(X), np.log(p))
    np.testing.assert_allclose(fitted.log_predictive_density(X, Y), np.log(p[range(len(Y)), Y]))
    assert (fitted.predict(X) == Y).mean() > 0.9
    parts = fitted.predict_uncertainty(X)
    np.testing.assert_allclose(parts.epistemic + parts.aleatoric, parts.total)
    assert np.all(parts.epistemic >= 0.0)
    assert np.all(parts.total <= np.log(3) + 1e-12)


@pytest.mark.long
def test_classes_that_overlap_aren_t_predicted_too_surely():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 6))
    y = (x[:, 0] + 1.5 * rng.standard_normal(300) > 0.0).astype(int)
    clf = BayesianMLPClassifier(n_modes=2, n_members=3, random_state=0).fit(x[:120], y[:120])
    loss = -clf.log_predictive_density(x[120:], y[120:]).mean()
    share = y[:120].mean()
    assert loss < -np.where(y[120:], np.log(share), np.log1p(-share)).mean() - 0.02


def noisy_line(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6))
    return x, (x[:, 0] - x[:, 1] + rng.logistic(size=n) > 0.0).astype(int)


@pytest.fixture(scope="module")
def of_a_noisy_line():
    clf = BayesianMLPClassifier(n_modes=2, n_members=3, random_state=0)
    return clf.fit(*noisy_line(250, 0))


@pytest.mark.long
def test_labels_that_follow_a_line_are_the_linear_models(of_a_noisy_line):
    x, y = noisy_line(1000, 1)
    assert of_a_noisy_line.linear_share_ > 0.5
    assert of_a_noisy_line.members_share_ < 0.01
    linear = LaplaceClassifier((), n_restarts=1, random_state=0).fit(*noisy_line(250, 0))
    losses = [-clf.log_predictive_density(x, y).mean() for clf in (of_a_noisy_line, linear)]
    assert losses[0] < losses[1] + 0.005


@pytest.mark.long
def test_members_that_can_t_be_refitted_stay_out_where_classes_overlap(monkeypatch):
    monkeypatch.setattr(refit, "_MOST_WORK", 1.0)
    clf = BayesianMLPClassifier((4,), n_modes=1, n_members=2, random_state=0)
    found = clf.fit(*noisy_line(100, 0))
    assert not hasattr(found, "samples_")
    assert found.members_share_ == 0.0
    assert found.choice_.endswith("; refitting members of an ensemble would take too long")
    separated = clf.fit(X, Y)
    assert separated.members_share_ == separated.modes_share_ == 0.5


@pytest.mark.long
def test_relevance_of_columns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 3))
    y = (np.sin(2.0 * x[:, 0]) + 0.3 * rng.standard_normal(120) > 0.0).astype(int)
    found = clone(CLF).set_params(prior=ARD()).fit(x, y)
    assert found.relevance_.shape == (2, 3)
    strong, *weak = found.relevance_.mean(axis=0)
    assert strong > 1.5 * max(weak)


@pytest.mark.long
def test_what_would_take_long_is_left_out(monkeypatch):
    monkeypatch.setattr(labels_method, "_MOST_WORK", 1.0)
    monkeypatch.setattr(refit, "_MOST_WORK", 1.0)
    found = clone(CLF).fit(X, Y)
    assert not hasattr(found, "posterior_")
    assert not hasattr(found, "refitted_members_")
    assert found.choice_.endswith(
        "2 ensemble members as trained, 100%; 2 modes would take too long; refitting members would "
        "take too long"
    )
    assert found.predict_proba(X).shape == (70, 3)
    assert np.all(found.predict_uncertainty(X).epistemic > 0.0)


@pytest.mark.long
def test_weights_are_repetitions_bit_for_bit():
    weight = np.arange(len(X)) % 3
    few = clone(CLF).set_params(n_modes=1, n_members=1)
    one = clone(few).fit(X, Y, sample_weight=weight)
    two = clone(few).fit(np.repeat(X, weight, axis=0), np.repeat(Y, weight))
    np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_callback_that_stops_leaves_a_model():
    found = clone(CLF).set_callbacks(Watch(3)).fit(X, Y)
    assert found.stop_reason_ == "callback"
    assert not hasattr(found, "samples_")
    np.testing.assert_allclose(found.predict_proba(X).sum(axis=1), 1.0)


@pytest.mark.long
def test_no_modes_is_the_ensemble_alone():
    alone = BayesianMLPClassifier(n_modes=0, n_members=2, random_state=0).fit(X, Y)
    members = DeepEnsembleClassifier(n_members=2, correction="gaussian", random_state=0).fit(X, Y)
    np.testing.assert_array_equal(alone.predict_proba(X), members.predict_proba(X))


@pytest.mark.long
def test_with_more_columns_than_rows_it_doesn_t_lose_to_no_model():
    """Members fit any labels then, and have seen the rows that they leave out."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((450, 60))
    y = 1.2 * x[:, :5].sum(axis=1) + rng.logistic(size=450) > 0.0
    found = BayesianMLPClassifier(n_modes=2, random_state=0).fit(x[:50], y[:50])
    assert found.members_share_ == 0.0
    assert "so many columns are no task" in found.choice_
    assert log_loss(y[50:], found.predict_proba(x[50:])) < np.log(2.0)
