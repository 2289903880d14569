"""Deep ensembles: modes that are modes, mixed alike, of priors given and learned."""

from dataclasses import replace
from functools import partial
from math import log, pi

import joblib
import numpy as np
import pytest
import torch
from fits import fitted
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, load_linnerud
from sklearn.model_selection import train_test_split

from skbayes_sym import Adam, DeepEnsembleClassifier, DeepEnsembleRegressor
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.ensemble import estimators as ensembles
from skbayes_sym.ensemble import fit as method
from skbayes_sym.laplace import map as maps
from skbayes_sym.laplace.class_predictive import refit
from skbayes_sym.models import ARD, Gaussian, HalfNormal, LayerScales, StudentT
from skbayes_sym.models.model import Data
from skbayes_sym.numerics import runtime as machine

FAST = {
    "hidden_layer_sizes": (3,), "activation": "tanh", "n_members": 4, "max_iter": 200,
    "tol": None, "random_state": 0,
}  # fmt: skip
REG, CLF = DeepEnsembleRegressor(**FAST), DeepEnsembleClassifier(**FAST)
DIABETES = tuple(a[:80] for a in load_diabetes(return_X_y=True))
IRIS = load_iris(return_X_y=True)
every_estimator = pytest.mark.parametrize(
    ("estimator", "data"), [(REG, DIABETES), (CLF, IRIS)], ids=["regressor", "classifier"]
)


def quick(**kwargs):
    return DeepEnsembleRegressor(**(FAST | kwargs))


@pytest.mark.long
def test_a_linear_member_is_the_closed_form():
    """Without hidden layers the mode is ridge regression with penalty sigma^2, at sigma's mode."""
    X, y = DIABETES
    reg = quick(hidden_layer_sizes=(), max_iter=2500, noise_std="learn").fit(X, y)
    x = (X - X.mean(0)) / X.std(0)
    h, t = np.column_stack([x, np.ones(len(x))]), (y - y.mean()) / y.std()
    sigma = 0.5
    for _ in range(200):  # coordinate descent on the two blocks
        theta = np.linalg.solve(h.T @ h + sigma**2 * np.eye(h.shape[1]), h.T @ t)
        # n log s + r / 2 s^2 + s^2 / 2 is least where s^4 + n s^2 - r = 0
        n, r = len(t), np.sum((t - h @ theta) ** 2)
        sigma = (0.5 * (-n + (n * n + 4 * r) ** 0.5)) ** 0.5
    np.testing.assert_allclose(reg.samples_, np.tile(theta, (4, 1)), atol=1e-5)
    np.testing.assert_allclose(reg.noise_std_samples_, sigma * y.std(), rtol=1e-5)
    joint = (
        stats.norm.logpdf(y, y.mean() + y.std() * h @ theta, sigma * y.std()).sum()
        + stats.norm.logpdf(theta).sum()
        + 0.5 * log(2 / pi) - 0.5 * sigma**2
    )  # fmt: skip
    np.testing.assert_allclose(reg.log_posterior_samples_, joint, rtol=1e-9)
    assert reg.log_posterior_curve_[-1] == pytest.approx(joint, abs=1e-6)


def test_the_prior_of_the_noise_pulls():
    """sigma^4 / s^2 + n sigma^2 = r: a narrow prior makes the noise smaller."""
    wide, narrow = (quick(noise_std=HalfNormal(s)).fit(*DIABETES) for s in (1.0, 0.05))
    assert narrow.noise_std_samples_.max() < 0.8 * wide.noise_std_samples_.min()


@pytest.mark.long
def test_classifier():
    X, y = IRIS
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    clf = clone(CLF).set_params(max_iter=1000, correction=None).fit(X, names)
    assert clf.score(X, names) > 0.95
    proba = clf.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    x = torch.as_tensor((X - X.mean(0)) / X.std(0))
    each = clf.network_.forward(torch.as_tensor(clf.samples_), x).softmax(-1)
    np.testing.assert_allclose(proba, each.mean(0).numpy())
    assert (clf.predict_uncertainty(X).epistemic >= 0).all()
    assert not hasattr(clf, "noise_std_samples_")
    at_truth = each.numpy()[:, np.arange(150), y]
    joint = np.log(at_truth).sum(1) + stats.norm.logpdf(clf.samples_).sum(1)
    np.testing.assert_allclose(clf.log_posterior_samples_, joint)


@pytest.mark.kept("regressor")
@every_estimator
def test_warm_start_goes_on(estimator, data):
    model = clone(estimator).set_params(warm_start=True, max_iter=300)
    if "noise_std" in model.get_params():
        model.set_params(noise_std="learn")  # what training left, not corrected afterwards
    model.fit(*data)
    first = model.log_posterior_samples_
    model.set_params(optimizer=Adam(1e-9)).fit(*data)
    np.testing.assert_allclose(model.log_posterior_samples_, first, rtol=1e-5)
    with pytest.raises(ValueError, match=r"warm_start=True.*changed"):
        model.set_params(n_members=3).fit(*data)


@pytest.mark.long
def test_effective_noise_counts_the_freedoms_that_weights_have_taken():
    """Few rows: the plug-in noise of a flexible member is far too small."""
    X, y = DIABETES[0][:30], DIABETES[1][:30]
    settings = {"hidden_layer_sizes": (10,), "max_iter": 500}
    plain = quick(**settings, noise_std="learn").fit(X, y)
    effective = quick(**settings).fit(X, y)
    np.testing.assert_array_equal(plain.samples_, effective.samples_)
    assert np.all(effective.noise_std_samples_ > 1.3 * plain.noise_std_samples_)


@pytest.mark.long
def test_minibatches_reach_what_all_rows_reach():
    X, y = make_sinusoidal(random_state=0)
    whole, parts = (
        quick(max_iter=800, optimizer=Adam(batch_size=size), noise_std="learn").fit(X, y)
        for size in ("auto", 40)
    )
    assert abs(parts.noise_std_samples_.mean() / whole.noise_std_samples_.mean() - 1.0) < 0.1
    with pytest.warns(UserWarning, match="batch_size=1000 exceeds"):
        quick(max_iter=2, optimizer=Adam(batch_size=1000)).fit(X, y)


def overlapping(n=260):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 8))
    return X, (X[:, 0] + 1.5 * rng.standard_normal(n) > 0.0).astype(int)


@pytest.mark.long
def test_refitted_members_know_that_classes_overlap():
    """Members fit the labels; their linearised networks under the same prior don't."""
    X, y = overlapping()
    clf = DeepEnsembleClassifier((20,), n_members=3, random_state=0)
    train, test = slice(0, 130), slice(130, None)
    losses = {}
    for correction in (None, "auto"):
        one = clone(clf).set_params(correction=correction).fit(X[train], y[train])
        losses[correction] = -one.log_predictive_density(X[test], y[test]).mean()
        p = one.predict_proba(X[test])
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
    prevalence = y[train].mean()
    constant = -np.where(y[test], np.log(prevalence), np.log1p(-prevalence)).mean()
    assert losses["auto"] < min(losses[None] - 0.1, constant)
    assert one.variance_scale_ >= 1.0
    assert np.all(one.predict_uncertainty(X).epistemic > 0.0)


@pytest.mark.long
def test_a_given_variance_scale_and_members_as_trained():
    X, y = overlapping(60)
    fits = [clone(CLF).set_params(correction=given).fit(X, y) for given in (None, 0.0, 2.0)]
    plain, at_mean, wide = fits
    assert (at_mean.variance_scale_, wide.variance_scale_) == (0.0, 2.0)
    assert plain.refitted_members_ is None
    np.testing.assert_array_equal(plain.samples_, wide.samples_)
    # Weights as trained, whatever predictions are made of.
    for fit in fits:
        np.testing.assert_array_equal(
            fit.log_likelihood_samples(X, y), plain.log_likelihood_samples(X, y)
        )
    entropy = [fit.predict_uncertainty(X).total.mean() for fit in (at_mean, wide)]
    assert entropy[0] < entropy[1]
    x = torch.as_tensor((X - wide.x_mean_) / wide.x_scale_)
    alone = clone(CLF).set_params(n_members=1, correction=0.0).fit(X, y)
    one = alone.refitted_members_
    theta = torch.as_tensor(one.theta[0])
    rows = torch.func.jacrev(lambda t: alone.network_.forward(t, x))(theta)
    expected = alone.network_.forward(theta, x) + rows @ torch.as_tensor(one.loc[0] - one.theta[0])
    np.testing.assert_allclose(alone.predict_proba(X)[:, 1], expected.diff(dim=1)[:, 0].sigmoid())


def test_refits_are_shared_by_the_processes_that_joblib_is_told_of(monkeypatch):
    X, y = overlapping(60)
    alone = clone(CLF).set_params(correction="gaussian").fit(X, y)
    run, n_run = machine._QuietParallel, []
    monkeypatch.setattr(machine, "_QuietParallel", lambda **how: n_run.append(1) or run(**how))
    with joblib.parallel_config("threading", n_jobs=2):
        together = clone(CLF).set_params(correction="gaussian").fit(X, y)
    assert n_run == [1]
    np.testing.assert_array_equal(together.predict_proba(X), alone.predict_proba(X))


def test_what_would_take_long_stays_as_trained(monkeypatch):
    X, y = overlapping(60)
    monkeypatch.setattr(ensembles, "MemberRefitter", partial(method.MemberRefitter, max_work=1.0))
    assert not hasattr(clone(CLF).fit(X, y), "variance_scale_")
    assert hasattr(clone(CLF).set_params(correction="gaussian").fit(X, y), "variance_scale_")


X, Y = load_linnerud(return_X_y=True)
FEW_ROWS = DeepEnsembleRegressor(n_members=4, random_state=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_fifteen_rows(seed):
    """A row far from the others is mistaken by eight standard deviations, not by 35 nats."""
    train, test = train_test_split(np.arange(20), train_size=15, random_state=seed)
    reg = clone(FEW_ROWS).fit(X[train], Y[train, 0])
    density = reg.log_predictive_density(X[test], Y[test, 0])
    spread = Y[train, 0].std()
    assert density.min() > -12.0 - np.log(spread)
    assert density.mean() > stats.norm.logpdf(0.0, 0.0, spread) - 3.0


def test_functions_of_members_with_student_s_noise():
    reg = clone(FEW_ROWS).fit(X, Y)
    mean, std = reg.predict(X[:3], return_std=True)
    draws = reg.sample_y(X[:3], 20_000, random_state=0)
    assert np.abs((draws.mean(axis=-1) - mean) / (std / 20_000**0.5)).max() < 4.5
    inside = (draws > reg.predict_interval(X[:3], 0.8)[..., :1]) & (
        draws < reg.predict_interval(X[:3], 0.8)[..., 1:]
    )
    np.testing.assert_allclose(inside.mean(axis=-1), 0.8, atol=0.015)
    each = reg.log_likelihood_samples(X, Y)
    mixed = np.logaddexp.reduce(each, axis=0) - np.log(4)
    np.testing.assert_allclose(mixed, reg.log_predictive_density(X, Y))


SCALED = {
    "hidden_layer_sizes": (4,), "activation": "tanh", "n_members": 3, "max_iter": 400, "tol": None,
    "random_state": 0,
}  # fmt: skip
HUNDRED = tuple(a[:100] for a in load_diabetes(return_X_y=True))

# Too few steps to converge, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def scaled(**kwargs):
    return DeepEnsembleRegressor(**(SCALED | kwargs))


def bent(n=150, seed=0):
    """Of five columns, only the first two matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    return X, np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.standard_normal(n)


@pytest.mark.long
def test_a_linear_member_ends_where_the_exact_evidence_is_highest():
    """MacKay's fixed point in closed form: ridge regression, and its freedoms by an SVD."""
    X, y = HUNDRED
    reg = scaled(hidden_layer_sizes=(), max_iter=4000, prior="learn").fit(X, y)
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
    np.testing.assert_allclose(reg.noise_dof_samples_, len(t) - gamma.sum(), rtol=1e-4)
    assert reg.prior_groups_.tolist() == ["W1", "b1"]
    assert not hasattr(reg, "relevance_")


@pytest.mark.long
def test_relevance_says_which_columns_matter():
    X, y = bent()
    reg = scaled(hidden_layer_sizes=(10,), max_iter=900, prior=ARD()).fit(X, y)
    assert reg.relevance_.shape == (3, 5)
    np.testing.assert_array_equal(reg.relevance_, reg.prior_scale_samples_[:, :5])
    assert np.all(reg.relevance_[:, :2].min(1) > 1.3 * reg.relevance_[:, 2:].max(1))
    assert reg.prior_groups_[0] == "W1[:, 0]"
    given = scaled(max_iter=2).fit(X, y)
    assert not hasattr(given, "prior_scale_")


@pytest.mark.long
def test_noise_doesn_t_follow_the_residuals_where_weights_have_taken_the_rows():
    """More weights than rows, and nothing but noise of standard deviation 1."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5))
    y = rng.standard_normal(60)
    settings = {"hidden_layer_sizes": (30,), "max_iter": 800, "standardize": "X"}
    given = scaled(**settings, noise_std="learn").fit(X, y)
    learned = scaled(**settings, prior="learn").fit(X, y)
    assert np.all(given.noise_std_samples_ < 0.5)
    assert np.all(learned.noise_std_samples_ > 0.7)


@pytest.mark.long
def test_modes_of_weights_and_scales_together_collapse(monkeypatch):
    """Negative control: without the weights' variances nothing is left of the function."""
    X, y = bent(50)
    wide = scaled(hidden_layer_sizes=(50,), max_iter=800, prior="learn")
    found = clone(wide).fit(X, y)
    assert found.score(X, y) > 0.8

    def together(prior, theta, variance):
        each = [prior.update(one, torch.zeros_like(one)).hyper for one in theta]
        return replace(prior, hyper=torch.stack(each))

    monkeypatch.setattr(maps, "update_scales", together)
    collapsed = clone(wide).fit(X, y)
    assert collapsed.score(X, y) < 0.1
    assert collapsed.prior_scale_[2] < 0.1 * found.prior_scale_[2]


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["heteroscedastic", StudentT()], ids=str)
def test_other_likelihoods(likelihood):
    X, y = bent()
    reg = scaled(likelihood=likelihood, prior="learn", noise_std="effective").fit(X, y)
    assert reg.prior_scale_samples_.shape == (3, 4)
    assert reg.score(X, y) > 0.3


@pytest.mark.long
def test_modules_learn_noise_and_scales_too():
    X, y = bent()
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    mlp = scaled(prior="learn").fit(X, y)
    module = DeepEnsembleRegressor(
        network=net, prior="learn", n_members=3, max_iter=400, tol=None, random_state=0
    ).fit(X, y)
    assert module.noise_dof_samples_ is None
    np.testing.assert_allclose(module.noise_std_samples_, mlp.noise_std_samples_, rtol=0.3)
    fixed = scaled(prior="learn", noise_std=0.1).fit(X, y)
    assert np.all(fixed.noise_std_samples_ == pytest.approx(0.1))


@pytest.mark.long
def test_classes_are_refitted_under_every_member_s_own_scales():
    X, y = IRIS
    clf = DeepEnsembleClassifier(**SCALED, prior="learn").fit(X[::2], y[::2])
    assert clf.score(X[1::2], y[1::2]) > 0.9
    same = clone(clf).set_params(prior=LayerScales(8.0, 64.0))
    np.testing.assert_array_equal(same.fit(X[::2], y[::2]).samples_, clf.samples_)
    members, network = clf.refitted_members_, clf.network_
    groups = LayerScales(8.0, 64.0).bind(network.layout).group.numpy()
    np.testing.assert_allclose(members.scale, clf.prior_scale_samples_[:, groups])
    order = np.lexsort(np.column_stack([X[::2], y[::2]]).T[::-1])
    x = torch.as_tensor((X[::2] - clf.x_mean_) / clf.x_scale_)[order]
    rows = Data(x, torch.as_tensor(y[::2][order]), torch.ones(75, dtype=torch.float64))
    one, *_ = refit(*(network, *map(torch.as_tensor, (clf.samples_[0], members.scale[0]))), rows)
    np.testing.assert_allclose(members.loc[0], one.loc, atol=0.02)
    linear = clone(clf).set_params(hidden_layer_sizes=()).fit(X, y)
    assert linear.prior_scale_.shape == (2,)


@pytest.mark.long
def test_warm_start_goes_on_from_the_scales():
    X, y = HUNDRED
    reg = scaled(prior="learn", warm_start=True, max_iter=1000).fit(X, y)
    before = reg.prior_scale_samples_
    reg.set_params(max_iter=2).fit(X, y)
    np.testing.assert_allclose(reg.prior_scale_samples_, before, rtol=0.1)
    assert np.ptp(np.log(before), axis=1).min() > 0.5
    reg.set_params(prior=ARD()).fit(X, y)  # other groups: scales begin anew
    assert reg.prior_scale_samples_.shape == (3, 13)
    classifier = DeepEnsembleClassifier(**SCALED, prior="learn", warm_start=True)
    first = classifier.fit(*IRIS).prior_scale_samples_
    classifier.set_params(max_iter=2).fit(*IRIS)
    np.testing.assert_allclose(classifier.prior_scale_samples_, first, rtol=0.2)


@pytest.mark.long
def test_minibatches_and_float32_find_them_too():
    X, y = bent(300)
    whole = scaled(prior=ARD(), max_iter=1000).fit(X, y)
    parts = scaled(prior=ARD(), max_iter=1000, optimizer=Adam(batch_size=100)).fit(X, y)
    single = scaled(prior=ARD(), max_iter=1000).fit(X.astype(np.float32), y)
    for other in (parts, single):
        ratio = other.relevance_.mean(0) / whole.relevance_.mean(0)
        assert np.all(np.abs(np.log(ratio)) < 0.5)
    assert single.prior_scale_samples_.dtype == np.float64


@pytest.mark.parametrize("scale", [1.0, "learn"])
def test_memory_for_the_curvature_is_asked_for_in_advance(scale, monkeypatch):
    asked = []
    monkeypatch.setattr(method, "require_memory", lambda parts, device: asked.extend(parts))
    scaled(prior=scale, max_iter=2).fit(*HUNDRED)
    curvature = [part.n_bytes for part in asked if "curvature of a member" in part.description]
    # Learned scales need the curvature, and so does the correction of the noise.
    assert curvature == [8 * (100 * 49 + 49**2)]


def test_importances_are_shares_of_the_relevance():
    reg, without = fitted("bayesian-mlp-ard"), fitted("bayesian-mlp")
    expected = reg.relevance_.mean(axis=0) / reg.relevance_.mean(axis=0).sum()
    np.testing.assert_allclose(reg.feature_importances_, expected)
    with pytest.raises(AttributeError, match=r"needs prior=ARD\(\)"):
        without.feature_importances_  # noqa: B018


def test_normal_noise_as_an_object_is_corrected_like_the_default():
    """Five rows leave few degrees of freedom, over whose noise predictions are averaged."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5, 1))
    y = x[:, 0] + 0.3 * rng.normal(size=5)
    widths = []
    for likelihood in ("auto", Gaussian()):
        ensemble = DeepEnsembleRegressor(
            (4,), n_members=2, max_iter=60, tol=None, random_state=0, likelihood=likelihood
        )
        low, high = ensemble.fit(x, y).predict_interval([[0.5]])[0]
        widths.append(high - low)
        assert ensemble.noise_dof_samples_.shape == (2, 1)
    assert widths[1] == pytest.approx(widths[0], rel=0.3)
