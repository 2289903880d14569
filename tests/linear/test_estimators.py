"""BayesianLinearRegressor and -Classifier: exact cases, what they report, hard data."""

import numpy as np
import pytest
import torch
from cases import LaplaceNoise
from scipy.linalg import block_diag
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge, LogisticRegression

from skbayes_sym import BayesianLinearClassifier, BayesianLinearRegressor
from skbayes_sym.base.requirements import ONE_OUTPUT_LIKELIHOOD
from skbayes_sym.models import Bernoulli, Categorical, Gaussian, StudentT

AS_GIVEN = {"standardize": False}


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


def at(ridge):
    """Our model at a BayesianRidge's hyperparameters."""
    return BayesianLinearRegressor(
        prior=ridge.lambda_**-0.5, noise_std=ridge.alpha_**-0.5,
        fit_intercept=ridge.fit_intercept, **AS_GIVEN,
    )  # fmt: skip


def wide_data(n=30, k=200):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, k)) + 0.3
    return X, X @ rng.normal(size=k) / k**0.5 + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("data", [load_diabetes(return_X_y=True), wide_data()],
                         ids=["diabetes", "K>N"])  # fmt: skip
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_gaussian_equals_bayesian_ridge_after_one_update(data, fit_intercept):
    X, y = data
    # A fixed noise precision keeps the ridge regular where it could interpolate.
    ridge = BayesianRidge(fit_intercept=fit_intercept, alpha_1=1.0, alpha_2=1.0).fit(X, y)
    reg = at(ridge).fit(X, y)
    assert reg.n_iter_ == 1
    scale = np.abs(ridge.coef_).max()
    np.testing.assert_allclose(reg.coef_, ridge.coef_, rtol=1e-10, atol=1e-10 * scale)
    variance = np.abs(ridge.sigma_).max()
    np.testing.assert_allclose(reg.coef_cov_, ridge.sigma_, rtol=1e-10, atol=1e-10 * variance)
    np.testing.assert_allclose(reg.coef_std_**2, np.diag(ridge.sigma_), rtol=1e-9)
    assert reg.intercept_ == pytest.approx(ridge.intercept_, rel=1e-10, abs=1e-10 * np.ptp(y))
    mean, std = reg.predict(X, return_std=True)
    their_mean, their_std = ridge.predict(X, return_std=True)
    np.testing.assert_allclose(mean, their_mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(std, their_std, rtol=1e-9)


def test_learned_scales_are_those_of_bayesian_ridge_without_hyperpriors(diabetes):
    X, y = diabetes
    none = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    ridge = BayesianRidge(max_iter=5000, tol=1e-12, **none).fit(X, y)
    reg = BayesianLinearRegressor(**AS_GIVEN).fit(X, y)
    assert reg.prior_scale_ == pytest.approx(ridge.lambda_**-0.5, rel=1e-6)
    assert reg.noise_std_ == pytest.approx(ridge.alpha_**-0.5, rel=1e-6)
    assert reg.score(X, y) == pytest.approx(ridge.score(X, y), abs=1e-8)


def test_logistic_oracle():
    X = [[1.0, 0.5], [-1.0, 2.0], [0.3, -1.0], [2.0, 1.0], [-0.5, -0.5], [1.5, -2.0]]
    clf = BayesianLinearClassifier(prior=2**0.5, fit_intercept=False, tol=1e-10, standardize=False)
    clf.fit(X, ["yes", "no", "yes", "yes", "no", "yes"])
    assert clf.elbo_ == pytest.approx(-2.8029370525398725, abs=1e-6)
    assert clf.elbo_mean_field_ == pytest.approx(-2.8056618024528994, abs=1e-6)
    np.testing.assert_allclose(clf.coef_, [[1.889139066916685, -0.5547202423011295]], atol=1e-6)
    np.testing.assert_allclose(np.diag(clf.coef_cov_), [0.8476973296, 0.7474829309], atol=1e-6)
    location = [3.0917450266, -4.5933336573, 2.7026020822, 4.8899118474, -2.3517458044, 5.46670794]
    np.testing.assert_allclose(clf.site_location_, location, atol=2e-6)


class GivenNoise(LaplaceNoise):
    params = property(lambda self: self.log_scale[:0])


@pytest.mark.long
def test_ones_own_likelihood(diabetes):
    """Laplace noise: its mean absolute deviation is the scale that is learned."""
    X = diabetes[0][:150]
    rng = np.random.default_rng(0)
    y = 300.0 * X[:, 2] + rng.laplace(scale=5.0, size=len(X))
    own = BayesianLinearRegressor(LaplaceNoise(torch.zeros(1).double())).fit(X, y)
    normal = BayesianLinearRegressor().fit(X, y)
    assert own.noise_std_ == pytest.approx(np.abs(y - own.predict(X)).mean(), rel=0.05)
    assert own.elbo_ > normal.elbo_ + 5.0
    assert own.log_predictive_density(X, y).mean() > normal.log_predictive_density(X, y).mean()
    draws = own.sample_y(X[:3], 4000, random_state=0)
    std = own.predict(X[:3], return_std=True)[1]
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.1)
    # Without a scale of its own to learn, it is in the units of y.
    constant = BayesianLinearRegressor(GivenNoise(torch.tensor([np.log(5.0)])))
    assert constant.fit(X, y).y_scale_ == 1.0
    assert constant.predict_uncertainty(X).aleatoric == pytest.approx(2 * 5.0**2)


class OnlyDensity:
    def log_prob(self, outputs, y):
        return outputs.squeeze(-1)


def test_an_object_that_lacks_something_is_refused_by_name():
    with pytest.raises(TypeError, match=r"likelihood=.*OnlyDensity.*expected_log_prob.*Target"):
        BayesianLinearRegressor(OnlyDensity()).fit(X, Y)
    with pytest.raises(ValueError, match=r"has two classes, y has 3"):
        BayesianLinearClassifier(Bernoulli()).fit(X, np.arange(20) % 3)


def test_covariance_of_new_targets(diabetes):
    X, y = diabetes
    reg = BayesianLinearRegressor().fit(X[:200], y[:200])
    mean, std = reg.predict(X[200:230], return_std=True)
    again, cov = reg.predict(X[200:230], return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-9)
    assert np.array_equal(mean, again)
    centred = X[200:230] - X[:200].mean(0)
    expected = centred @ reg.coef_cov_ @ centred.T + reg.noise_std_**2 * np.eye(30)
    np.testing.assert_allclose(cov, expected, rtol=1e-8, atol=1e-8 * cov.max())
    Xw, yw = wide_data()
    wide = BayesianLinearRegressor(prior=0.1, noise_std=0.3).fit(Xw, yw)
    _, cov = wide.predict(Xw[:9], return_cov=True)
    centred = Xw[:9] - Xw.mean(0)
    expected = centred @ wide.coef_cov_ @ centred.T + 0.3**2 * np.eye(9)
    np.testing.assert_allclose(cov, expected, rtol=1e-8)
    with pytest.raises(ValueError, match="return_cov=True needs a normal posterior of functions"):
        BayesianLinearRegressor("student_t").fit(X, y).predict(X, return_cov=True)


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson"])
def test_every_regression_predicts_consistently(likelihood, diabetes):
    X, y = diabetes
    X, y = X[:120], np.round(y[:120] / 20)
    reg = BayesianLinearRegressor(likelihood).fit(X, y)
    assert reg.elbo_mean_field_ < reg.elbo_
    assert reg.symmetry_gap_ == pytest.approx(reg.elbo_ - reg.elbo_mean_field_)
    assert hasattr(reg, "log_evidence_") == (likelihood == "gaussian")
    assert hasattr(reg, "noise_std_") == (likelihood != "poisson")
    assert reg.score(X, y) > 0.3
    assert np.isfinite(reg.log_predictive_density(X, y)).all()


def test_counts_add_up(diabetes):
    X, y = diabetes
    y = np.round(y[:60] / 40)
    reg = BayesianLinearRegressor("poisson").fit(X[:60], y)
    counts = np.arange(200.0)
    density = np.exp(reg.log_predictive_density(np.repeat(X[:1], 200, 0), counts))
    assert density.sum() == pytest.approx(1.0, abs=1e-9)
    mean, std = reg.predict(X[:1], return_std=True)
    assert counts @ density == pytest.approx(mean[0], rel=1e-7)
    assert counts**2 @ density - mean[0] ** 2 == pytest.approx(std[0] ** 2, rel=1e-6)
    median = reg.predict_quantiles(X[:1], [0.5])[0, 0]
    below = density.cumsum()
    assert below[int(median)] >= 0.5 > below[int(median) - 1]


def test_heavy_tails_resist_outliers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=60)
    y[::10] += 30.0
    heavy = BayesianLinearRegressor("student_t").fit(X, y)
    normal = BayesianLinearRegressor().fit(X, y)
    assert np.abs(heavy.coef_ - [1.0, -2.0]).max() < 0.1
    assert np.abs(normal.coef_ - [1.0, -2.0]).max() > 0.3
    assert (heavy.site_variance_[::10] < 0).all()
    assert heavy.noise_std_ < 0.3


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
def test_binary_classifiers_agree_with_logistic_regression(likelihood):
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    theirs = LogisticRegression(C=0.25).fit(X, y)
    # Two softmax rows of variance v are one logistic row of variance 2 v.
    scale = 0.5 if likelihood == "bernoulli" else 0.5 / 2**0.5
    clf = BayesianLinearClassifier(likelihood, prior=scale, random_state=0).fit(X, y)
    assert (clf.predict(X) == theirs.predict(X)).mean() > 0.98
    assert clf.coef_.shape == ((1, 30) if likelihood == "bernoulli" else (2, 30))
    assert clf.elbo_mean_field_ < clf.elbo_
    proba = clf.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    assert (clf.predict_uncertainty(X).epistemic >= 0).all()


@pytest.mark.long
def test_multinomial_reports_sites_of_rank_c():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    clf = BayesianLinearClassifier(prior=2.0, random_state=0).fit(X, names)
    assert clf.site_location_.shape == (150, 3)
    assert clf.site_variance_.shape == (150, 3, 3)
    # Nothing is said about a shift of all outputs; the datum's own class is pulled up.
    size = np.abs(clf.site_variance_).max(axis=(1, 2))[:, None]
    np.testing.assert_allclose(clf.site_variance_.sum(axis=2) / size, 0.0, atol=1e-12)
    assert (clf.site_location_.argmax(axis=1) == y).mean() > 0.9
    assert clf.score(X, names) > 0.95
    assert clf.coef_.shape == (3, 4)
    assert clf.coef_cov_.shape == (12, 12)
    np.testing.assert_allclose(np.sqrt(np.diag(clf.coef_cov_)), clf.coef_std_.ravel(), rtol=1e-9)
    assert 0.0 < clf.elbo_std_error_ < 0.2
    other = clone(clf).set_params(random_state=1, likelihood=Categorical(1024)).fit(X, names)
    assert clf.elbo_ == pytest.approx(other.elbo_, abs=5 * clf.elbo_std_error_)
    assert clf.elbo_curve_[-1] == pytest.approx(clf.elbo_, abs=6 * clf.elbo_std_error_ * 8**0.5)


def test_sites_rebuild_the_posterior():
    """Prior times sites is the posterior, in the rows' own order."""
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[:80, :5] / X[:80, :5].std(0), y[:80]
    clf = BayesianLinearClassifier(prior=1.5, tol=1e-10, standardize=False).fit(X, y)
    centred = X - X.mean(0)
    precision = np.eye(5) / 1.5**2 + centred.T @ (centred / clf.site_variance_[:, None])
    np.testing.assert_allclose(clf.coef_cov_, np.linalg.inv(precision), rtol=1e-6)
    offset = clf.intercept_ + X.mean(0) @ clf.coef_[0]
    right = centred.T @ ((clf.site_location_ - offset) / clf.site_variance_)
    np.testing.assert_allclose(clf.coef_[0], np.linalg.solve(precision, right), rtol=1e-5)


def test_many_more_features_than_rows():
    """No K x K array: 20,000 features would need 3.2 GB."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 20_000))
    y = X[:, :50].sum(axis=1) + rng.normal(size=40)
    reg = BayesianLinearRegressor(prior=0.05, noise_std=1.0, **AS_GIVEN).fit(X, y)
    assert reg.coef_.shape == reg.coef_std_.shape == (20_000,)
    kernel = 0.05**2 * (X - X.mean(0)) @ (X - X.mean(0)).T
    weights = np.linalg.solve(kernel + np.eye(40), y - y.mean())
    np.testing.assert_allclose(reg.predict(X), y.mean() + kernel @ weights, rtol=1e-9)
    wider = np.zeros((40, 30_000))
    wider[:, :20_000] = X
    with pytest.raises(MemoryError, match="30000 coefficients would take 7200000000 bytes"):
        _ = at_most(wider, y).coef_cov_


def at_most(X, y):
    return BayesianLinearRegressor(prior=0.05, noise_std=1.0).fit(X, y)


# --- hard data -------------------------------------------------------------------------------

X = np.random.default_rng(0).standard_normal((20, 3))
Y, LABELS = X[:, 0] + 0.3 * np.sin(9 * X[:, 1]), (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)
REG = BayesianLinearRegressor(prior=1.0, noise_std=0.5, **AS_GIVEN)
CLF = BayesianLinearClassifier(prior=1.0, standardize=False, random_state=0)
every_estimator = pytest.mark.parametrize(
    ("estimator", "y"), [(REG, Y), (CLF, LABELS)], ids=["regressor", "classifier"]
)


def test_bad_parameters_of_one_face():
    with pytest.raises(ValueError, match=r"likelihood='poisson'.*negative.*normal noise"):
        BayesianLinearRegressor("poisson").fit(X, Y)
    with pytest.raises(ValueError, match=r"'bernoulli' has two classes, y has 3.*'categorical'"):
        clone(CLF).set_params(likelihood="bernoulli").fit(X, np.arange(20) % 3)


@pytest.mark.kept("*-gaussian", "*-poisson", "learn-student_t")
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson"])
@pytest.mark.parametrize("prior", [1.0, "learn"])
def test_single_row(likelihood, prior):
    """Without a second row the intercept explains all: the coefficients stay at the prior."""
    noise_std = "learn" if likelihood == "poisson" else 0.6
    reg = BayesianLinearRegressor(likelihood, prior=prior, noise_std=noise_std)
    with pytest.warns(UserWarning, match="one distinct row"):
        reg.fit(X[:1], [2.0])
    np.testing.assert_allclose(reg.coef_, 0.0, atol=1e-12)
    unit = 1.0 if likelihood == "poisson" else 2.0  # constant targets are in units of their size
    np.testing.assert_allclose(reg.coef_std_, unit * reg.prior_scale_, rtol=1e-9)
    assert reg.predict(X[:1]) == pytest.approx(2.0, rel=1e-6)
    assert np.isfinite(reg.elbo_)


def test_exact_fits_and_constant_targets_warn_and_are_defined():
    for y in (np.full(20, 3.0), X @ [1.0, 2.0, 3.0]):
        with pytest.warns(UserWarning, match="y is constant|lower end") as caught:
            reg = BayesianLinearRegressor().fit(X, y)
        said = " ".join(str(warning.message) for warning in caught)
        assert "noise_std_ reached the lower end" in said
        assert ("y is constant" in said) == (np.ptp(y) == 0.0)
        np.testing.assert_allclose(reg.predict(X), y, atol=1e-4)
        assert np.isfinite(reg.elbo_)
    with pytest.raises(ValueError, match=r"at least one positive count.*fit_intercept=False"):
        BayesianLinearRegressor("poisson").fit(X, np.zeros(20))
    zero = BayesianLinearRegressor("poisson", fit_intercept=False, prior=1.0)
    assert zero.fit(X, np.zeros(20)).predict(X).mean() < 1.2  # the prior's mean is e^1.5


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical", "student_t", "poisson"])
def test_rows_of_zeros_say_nothing(likelihood):
    """Their outputs have no variance, where a quadrature's derivatives would be 0 / 0."""
    settings = {"prior": 0.7, "fit_intercept": False, "standardize": False, "tol": 1e-9}
    if likelihood in ("bernoulli", "categorical"):
        y = (X[:, 0] + X[:, 1] > 0.3).astype(int)
        model = BayesianLinearClassifier(likelihood, variance_scale=1.0, random_state=0, **settings)
    else:
        y = np.abs(np.round(3 * X[:, 0]))
        own = {} if likelihood == "poisson" else {"noise_std": 0.5}
        model = BayesianLinearRegressor(likelihood, **own, **settings)
    plain = clone(model).fit(X, y)
    assert plain.n_iter_ > 2
    zeros = clone(model).fit(np.vstack([X, np.zeros((2, 3))]), np.append(y, [0, 1]))
    np.testing.assert_allclose(zeros.coef_, plain.coef_, atol=1e-6)
    np.testing.assert_allclose(zeros.coef_std_, plain.coef_std_, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_two_rows_of_two_classes_are_no_certainty(seed):
    """Any two rows are separable; the scale of the logits ended at its limit of 30."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2, 1))
    clf = BayesianLinearClassifier().fit(X, ["a", "b"])
    slope = clf.prior_scale_ * clf.x_scale_[0] / X.std()  # logits per standard deviation
    assert 0.5 < float(slope) < 4.0
    far = X.mean() + 20.0 * np.ptp(X)
    assert 0.9 < clf.predict_proba([[far]]).max() < 1.0
    assert clf.predict_proba(X).max() < 0.95


def test_perfect_separation_warns_and_is_defined():
    """With more rows than have a hyperprior of the scale of logits."""
    y = (X[:, 0] > 0).astype(int)
    weight = np.full(len(X), 31.0 / len(X))
    with pytest.warns(ConvergenceWarning, match=r"prior_scale_ reached the upper end.*prior"):
        clf = BayesianLinearClassifier().fit(X[:, :1], y, sample_weight=weight)
    assert clf.score(X[:, :1], y) == 1.0
    assert np.isfinite(clf.elbo_)
    fixed = BayesianLinearClassifier(prior=1.0).fit(X[:, :1], y)
    assert fixed.predict_proba(X[:, :1]).min() > 0.0


@every_estimator
def test_constant_and_repeated_features(estimator, y):
    """A constant column stays at the prior; two equal columns share their coefficient."""
    plain = clone(estimator).fit(X, y)
    constant = clone(estimator).fit(np.column_stack([X, np.full(20, 7.0)]), y)
    coef, std = np.atleast_2d(constant.coef_)[0], np.atleast_2d(constant.coef_std_)[0]
    assert coef[3] == 0.0
    assert std[3] == pytest.approx(1.0)
    np.testing.assert_allclose(coef[:3], np.atleast_2d(plain.coef_)[0], rtol=1e-6)
    assert constant.elbo_ == pytest.approx(plain.elbo_, abs=1e-8)
    twice = clone(estimator).set_params(prior=[0.5**0.5, 1.0, 1.0, 0.5**0.5])
    twice.fit(np.column_stack([X, X[:, 0]]), y)
    coef = np.atleast_2d(twice.coef_)[0]
    assert coef[0] == pytest.approx(coef[3])
    assert 2 * coef[0] == pytest.approx(np.atleast_2d(plain.coef_)[0][0], rel=1e-6)
    assert twice.elbo_ == pytest.approx(plain.elbo_, abs=1e-8)


def test_not_converged_is_a_warning_with_the_figure():
    with pytest.warns(ConvergenceWarning, match=r"last of 2 updates.*standard deviations.*tol"):
        BayesianLinearClassifier(max_iter=2).fit(X, LABELS)


@pytest.mark.parametrize("n_features", [3, 30], ids=["tall", "wide"])
def test_several_targets_are_fitted_as_each_alone(n_features):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, n_features))
    Y = X[:, :2] @ [[1.0, 100.0], [0.0, 40.0]] + rng.normal(size=(20, 2)) * [0.3, 9.0]
    both = BayesianLinearRegressor().fit(X, Y)
    alone = [BayesianLinearRegressor().fit(X, y) for y in Y.T]
    for ask in (lambda m: m.predict(X, return_std=True), lambda m: m.predict_quantiles(X, (0.2,))):
        several, each = np.asarray(ask(both)), np.stack([ask(m) for m in alone], -1)
        np.testing.assert_allclose(several.reshape(each.shape), each, rtol=1e-9)
    for name in ("coef_", "coef_std_", "intercept_", "noise_std_", "prior_scale_"):
        each = np.array([getattr(m, name) for m in alone])
        np.testing.assert_allclose(getattr(both, name), each, rtol=1e-9)
    np.testing.assert_allclose(both.coef_cov_, block_diag(*(m.coef_cov_ for m in alone)), atol=1e-9)
    assert both.log_evidence_ == pytest.approx(sum(m.log_evidence_ for m in alone))
    theta = both.posterior_.sample(2, generator=torch.Generator().manual_seed(0))
    pairs = zip(alone, theta.chunk(2, dim=-1), strict=True)
    each = sum(m.posterior_.log_prob(t) for m, t in pairs)
    np.testing.assert_allclose(both.posterior_.log_prob(theta), each, rtol=1e-9)
    with pytest.raises(ValueError, match=r"'student_t' takes one target, got y of shape \(20, 2\)"):
        BayesianLinearRegressor("student_t").fit(X, Y)


class Shown:
    """A likelihood of which only the members that linear models say they need can be seen."""

    def __init__(self, inner):
        self.inner = inner
        for name in {*ONE_OUTPUT_LIKELIHOOD.attributes, "log_prob"} - {"at", "to"}:
            setattr(self, name, getattr(inner, name))

    def at(self, params):
        return Shown(self.inner.at(params))

    def to(self, like):
        return Shown(self.inner.to(like))


def test_a_likelihood_needs_what_is_named_and_no_more():
    plain, shown = (
        BayesianLinearRegressor(one, random_state=0).fit(X, Y)
        for one in (StudentT(), Shown(StudentT()))
    )
    assert shown.elbo_ == plain.elbo_
    np.testing.assert_array_equal(shown.predict_quantiles(X), plain.predict_quantiles(X))
    np.testing.assert_array_equal(shown.sample_y(X[:3]), plain.sample_y(X[:3]))
    assert shown.score(X, Y) == plain.score(X, Y)


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_fixed_noise_of_a_likelihood_is_the_fixed_noise_of_the_estimator(scale):
    fixed = Gaussian(torch.full((1,), np.log(scale), dtype=torch.float64), learn=False)
    own = BayesianLinearRegressor(fixed).fit(X, Y)
    expected = BayesianLinearRegressor(noise_std=scale).fit(X, Y)
    assert own.noise_std_ == pytest.approx(scale, rel=1e-12)
    assert own.elbo_ == pytest.approx(expected.elbo_, rel=1e-6)
    for one, other in zip(
        own.predict(X, return_std=True), expected.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3)


def test_one_fixed_noise_level_serves_all_targets():
    targets = np.column_stack([Y, -2.0 * Y])
    one, two = (
        BayesianLinearRegressor(Gaussian(torch.zeros(n), learn=False)).fit(X, targets)
        for n in (1, 2)
    )
    np.testing.assert_array_equal(one.predict(X, return_std=True), two.predict(X, return_std=True))
