"""Ensembles whose prior learns its scales: one law with VI, Laplace and chains."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fits import fitted
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris

from skbayes_sym import Adam, DeepEnsembleClassifier, DeepEnsembleRegressor
from skbayes_sym.estimators.ensemble import members as method
from skbayes_sym.inference import map as maps
from skbayes_sym.inference.laplace.member_refit import LinearisedMember, refit
from skbayes_sym.models import ARD, LayerScales, StudentT
from skbayes_sym.models.model import Data

FAST = {
    "hidden_layer_sizes": (4,), "activation": "tanh", "n_members": 3, "max_iter": 400, "tol": None,
    "random_state": 0,
}  # fmt: skip
DIABETES = tuple(a[:100] for a in load_diabetes(return_X_y=True))
IRIS = load_iris(return_X_y=True)

# Too few steps to converge, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def quick(**kwargs):
    return DeepEnsembleRegressor(**(FAST | kwargs))


def bent(n=150, seed=0):
    """Of five columns, only the first two matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    return X, np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.standard_normal(n)


@pytest.mark.long
def test_a_linear_member_ends_where_the_exact_evidence_is_highest():
    """MacKay's fixed point in closed form: ridge regression, and its freedoms by an SVD."""
    X, y = DIABETES
    reg = quick(hidden_layer_sizes=(), max_iter=4000, prior="learn").fit(X, y)
    x, t = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    h = np.column_stack([x, np.ones(len(x))])
    group = np.array([0] * 10 + [1])
    alpha, beta, a = np.ones(2), 4.0, 0.5  # the weights' and the offset's
    for _ in range(2000):
        cov = np.linalg.inv(beta * h.T @ h + np.diag(alpha[group]))
        theta = beta * cov @ h.T @ t
        gamma = np.bincount(group) - alpha * np.bincount(group, np.diag(cov))
        squares = np.bincount(group, theta**2)
        alpha = (gamma + 2 * a) / (squares + 2 * a * np.array([0.1, 1.0]))
        beta = (len(t) - gamma.sum()) / np.sum((t - h @ theta) ** 2)
    np.testing.assert_allclose(reg.prior_scale_samples_, np.tile(alpha**-0.5, (3, 1)), rtol=1e-4)
    np.testing.assert_allclose(reg.prior_scale_, alpha**-0.5, rtol=1e-4)
    np.testing.assert_allclose(reg.samples_, np.tile(theta, (3, 1)), atol=1e-4)
    np.testing.assert_allclose(reg.noise_std_samples_, beta**-0.5 * y.std(), rtol=1e-4)
    np.testing.assert_allclose(reg.noise_freedoms_samples_, len(t) - gamma.sum(), rtol=1e-4)
    assert reg.prior_groups_.tolist() == ["W1", "b1"]
    assert not hasattr(reg, "relevance_")


@pytest.mark.long
def test_relevance_says_which_columns_matter():
    X, y = bent()
    reg = quick(hidden_layer_sizes=(10,), max_iter=900, prior=ARD()).fit(X, y)
    assert reg.relevance_.shape == (3, 5)
    np.testing.assert_array_equal(reg.relevance_, reg.prior_scale_samples_[:, :5])
    assert np.all(reg.relevance_[:, :2].min(1) > 1.3 * reg.relevance_[:, 2:].max(1))
    assert reg.prior_groups_[0] == "W1[:, 0]"
    given = quick(max_iter=2).fit(X, y)
    assert not hasattr(given, "prior_scale_")


@pytest.mark.long
def test_noise_doesn_t_follow_the_residuals_where_weights_have_taken_the_rows():
    """More weights than rows, and nothing but noise of standard deviation 1."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5))
    y = rng.standard_normal(60)
    settings = {"hidden_layer_sizes": (30,), "max_iter": 800, "standardize": "X"}
    given = quick(**settings, noise_std="learn").fit(X, y)
    learned = quick(**settings, prior="learn").fit(X, y)
    assert np.all(given.noise_std_samples_ < 0.5)
    assert np.all(learned.noise_std_samples_ > 0.7)


@pytest.mark.long
def test_modes_of_weights_and_scales_together_collapse(monkeypatch):
    """Negative control: without the weights' variances nothing is left of the function."""
    X, y = bent(50)
    wide = quick(hidden_layer_sizes=(50,), max_iter=800, prior="learn")
    found = clone(wide).fit(X, y)
    assert found.score(X, y) > 0.8

    def together(prior, theta, variance):
        each = [prior.update(one, torch.zeros_like(one)).hyper for one in theta]
        return replace(prior, hyper=torch.stack(each))

    monkeypatch.setattr(maps, "learned", together)
    collapsed = clone(wide).fit(X, y)
    assert collapsed.score(X, y) < 0.1
    assert collapsed.prior_scale_[2] < 0.1 * found.prior_scale_[2]


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["heteroscedastic", StudentT()], ids=str)
def test_other_likelihoods(likelihood):
    X, y = bent()
    reg = quick(likelihood=likelihood, prior="learn", noise_std="effective").fit(X, y)
    assert reg.prior_scale_samples_.shape == (3, 4)
    assert reg.score(X, y) > 0.3


@pytest.mark.long
def test_modules_learn_noise_and_scales_too():
    X, y = bent()
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    mlp = quick(prior="learn").fit(X, y)
    module = DeepEnsembleRegressor(
        network=net, prior="learn", n_members=3, max_iter=400, tol=None, random_state=0
    ).fit(X, y)
    assert module.noise_freedoms_samples_ is None
    np.testing.assert_allclose(module.noise_std_samples_, mlp.noise_std_samples_, rtol=0.3)
    fixed = quick(prior="learn", noise_std=0.1).fit(X, y)
    assert np.all(fixed.noise_std_samples_ == pytest.approx(0.1))


def test_classes_are_refitted_under_every_member_s_own_scales():
    X, y = IRIS
    clf = DeepEnsembleClassifier(**FAST, prior="learn").fit(X[::2], y[::2])
    assert clf.score(X[1::2], y[1::2]) > 0.9
    same = clone(clf).set_params(prior=LayerScales(8.0, 64.0))
    np.testing.assert_array_equal(same.fit(X[::2], y[::2]).samples_, clf.samples_)
    members, network = clf.refitted_members_, clf.network_
    groups = LayerScales(8.0, 64.0).bind(network.layout).group.numpy()
    np.testing.assert_allclose(members.scale, clf.prior_scale_samples_[:, groups])
    order = np.lexsort(np.column_stack([X[::2], y[::2]]).T[::-1])
    x = torch.as_tensor((X[::2] - clf.x_mean_) / clf.x_scale_)[order]
    rows = Data(x, torch.as_tensor(y[::2][order]), torch.ones(75, dtype=torch.float64))
    one = LinearisedMember.at(
        network, torch.as_tensor(clf.samples_[0]), torch.as_tensor(members.scale[0]), x
    )
    np.testing.assert_allclose(members.loc[0], refit(one, rows).member.loc, atol=0.02)
    linear = clone(clf).set_params(hidden_layer_sizes=()).fit(X, y)
    assert linear.prior_scale_.shape == (2,)


@pytest.mark.long
def test_warm_start_goes_on_from_the_scales():
    X, y = DIABETES
    reg = quick(prior="learn", warm_start=True, max_iter=1000).fit(X, y)
    before = reg.prior_scale_samples_
    reg.set_params(max_iter=2).fit(X, y)
    np.testing.assert_allclose(reg.prior_scale_samples_, before, rtol=0.1)
    assert np.ptp(np.log(before), axis=1).min() > 0.5
    reg.set_params(prior=ARD()).fit(X, y)  # other groups: scales begin anew
    assert reg.prior_scale_samples_.shape == (3, 13)
    classifier = DeepEnsembleClassifier(**FAST, prior="learn", warm_start=True)
    first = classifier.fit(*IRIS).prior_scale_samples_
    classifier.set_params(max_iter=2).fit(*IRIS)
    np.testing.assert_allclose(classifier.prior_scale_samples_, first, rtol=0.2)


@pytest.mark.long
def test_minibatches_and_float32_find_them_too():
    X, y = bent(300)
    whole = quick(prior=ARD(), max_iter=1000).fit(X, y)
    parts = quick(prior=ARD(), max_iter=1000, optimizer=Adam(batch_size=100)).fit(X, y)
    single = quick(prior=ARD(), max_iter=1000).fit(X.astype(np.float32), y)
    for other in (parts, single):
        ratio = other.relevance_.mean(0) / whole.relevance_.mean(0)
        assert np.all(np.abs(np.log(ratio)) < 0.5)
    assert single.prior_scale_samples_.dtype == np.float64


@pytest.mark.parametrize("scale", [1.0, "learn"])
def test_memory_for_the_curvature_is_asked_for_in_advance(scale, monkeypatch):
    asked = []
    monkeypatch.setattr(method, "require_memory", lambda parts, device: asked.extend(parts))
    quick(prior=scale, max_iter=2).fit(*DIABETES)
    curvature = [part.n_bytes for part in asked if "curvature of a member" in part.what]
    assert curvature == ([8 * (100 * 49 + 49**2)] if scale == "learn" else [])


def test_importances_are_shares_of_the_relevance():
    reg, without = fitted("bayesian-mlp-ard"), fitted("bayesian-mlp")
    expected = reg.relevance_.mean(axis=0) / reg.relevance_.mean(axis=0).sum()
    np.testing.assert_allclose(reg.feature_importances_, expected)
    with pytest.raises(AttributeError, match=r"needs prior=ARD\(\)"):
        without.feature_importances_  # noqa: B018
