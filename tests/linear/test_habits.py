"""What linear models keep beside the habits of all, and scales chosen by left-out rows."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from cases import LaplaceNoise
from fits import FITS
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_diabetes, load_iris

from skbayes_sym import BayesianLinearClassifier, BayesianLinearRegressor
from skbayes_sym.linear import fit as method
from skbayes_sym.models import Bernoulli
from skbayes_sym.models.likelihoods.likelihood import ExpectedLogProb
from skbayes_sym.models.normal_logits import VARIANCE_SCALES

LINEAR = [name for name in FITS if name.startswith("linear")]


@pytest.mark.filterwarnings("ignore:.*noise_std_ reached the lower end")  # of repeated rows
@pytest.mark.parametrize("name", LINEAR)
def test_sites_of_weighted_rows_are_those_of_repetitions(name):
    estimator, X, y = FITS[name]
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 4, size=len(y))
    repeated = rng.permutation(np.repeat(np.arange(len(y)), weight))
    weighted = clone(estimator).fit(X, y, sample_weight=weight)
    again = clone(estimator).fit(X[repeated], y[repeated])
    kept = weight > 0
    first = [np.flatnonzero(repeated == i)[0] for i in np.flatnonzero(kept)]
    assert np.array_equal(weighted.site_location_[kept], again.site_location_[first])
    assert np.isnan(weighted.site_location_[~kept]).all()
    assert np.isinf(weighted.site_variance_[~kept]).all()


@pytest.mark.parametrize("name", LINEAR)
def test_float32_follows_the_data(name):
    estimator, X, y = FITS[name]
    fitted = clone(estimator).fit(X.astype(np.float32), y)
    assert fitted.dtype_ == "float32"
    spread = fitted.predict_uncertainty(X.astype(np.float32)).total
    # In units of targets, which keep their level.
    assert spread.dtype == (np.float32 if is_classifier(fitted) else np.float64)
    rounded = clone(estimator).fit(X.astype(np.float32).astype(float), y)
    assert fitted.elbo_ == rounded.elbo_  # the fit itself is in float64


LOG_SCALE = torch.zeros(1, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class FoldedLaplaceNoise(LaplaceNoise):
    """With the expectation in closed form: the mean of a folded normal."""

    def at(self, params):
        return FoldedLaplaceNoise(params)

    def expected_log_prob(self, mean, variance, y, noise):
        graph = torch.is_grad_enabled()
        wanted = graph and any(t.requires_grad for t in (mean, variance, self.params))
        with torch.enable_grad():
            m, v, p = (
                t if t.requires_grad else t.detach().requires_grad_()
                for t in (mean, variance, self.log_scale.expand(len(mean), -1))
            )
            away, sd = y - m, v.sqrt()
            ratio = away / sd
            bell = math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * ratio**2)
            distance = sd * bell + away * torch.erf(ratio / math.sqrt(2.0))
            value = (-distance / p.exp() - math.log(2.0) - p).sum(-1)
            slopes = torch.autograd.grad(value.sum(), (m, v, p), create_graph=wanted)
        return ExpectedLogProb(value if wanted else value.detach(), *slopes)


@pytest.mark.long
@pytest.mark.parametrize(
    "n", [12, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 60, 442))]
)
def test_a_learned_scale_is_found(n):
    """64 nodes see a kink to some hundredths of a nat; a start without curvature is 1e14 away."""
    X, y = (a[:n] for a in load_diabetes(return_X_y=True))
    by_nodes, exact = (
        BayesianLinearRegressor(noise(LOG_SCALE), random_state=0).fit(X, y)
        for noise in (LaplaceNoise, FoldedLaplaceNoise)
    )
    assert by_nodes.elbo_ == pytest.approx(exact.elbo_, abs=0.05)
    assert by_nodes.noise_std_ == pytest.approx(exact.noise_std_, rel=0.03)
    mean, std = exact.predict(X, return_std=True)
    assert (np.abs(by_nodes.predict(X) - mean) < 0.2 * std).all()
    assert exact.stop_reason_ == by_nodes.stop_reason_ == "tol"


X, Y = load_iris(return_X_y=True)
ROWS = np.random.default_rng(0).permutation(150)[:36]
X = X[ROWS][:, :2] + 1e-6 * np.arange(36)[:, None]  # all rows distinct
Y = Y[ROWS]
CLF = BayesianLinearClassifier(prior=3.0, fit_intercept=False, standardize=False, random_state=0)


@pytest.mark.long
@pytest.mark.parametrize("n_classes", [2, 3])
def test_left_out_losses_are_those_of_refits(monkeypatch, n_classes):
    y = np.minimum(Y, n_classes - 1)
    seen = {}

    def keep(leave_one_out, y, scales):
        seen["losses"] = original(leave_one_out, y, scales)
        return seen["losses"]

    original = method.leave_one_out_losses
    monkeypatch.setattr(method, "leave_one_out_losses", keep)
    x = X - X.mean(axis=0)
    order = np.lexsort(x.T[::-1])  # that of the losses
    x, y = x[order], y[order]
    found = clone(CLF).fit(x, y)
    of_all = dict(zip(VARIANCE_SCALES, seen["losses"].mean(dim=1).tolist(), strict=True))
    assert found.variance_scale_ == min(of_all, key=of_all.get)
    of_some = seen["losses"][:, ::4].mean(dim=1).tolist()
    approximate = dict(zip(VARIANCE_SCALES, of_some, strict=True))
    for scale in (0.1, 1.0):
        one = clone(CLF).set_params(variance_scale=scale)
        losses = []
        for i in range(0, len(x), 4):
            kept = np.arange(len(x)) != i
            fit = clone(one).fit(x[kept], y[kept])
            losses.append(-fit.log_predictive_density(x[i : i + 1], y[i : i + 1])[0])
        assert np.mean(losses) == pytest.approx(approximate[scale], abs=0.02)


def test_a_given_scale_multiplies_the_variance():
    y = (Y > 0).astype(int)
    entropy = [
        clone(CLF).set_params(variance_scale=v).fit(X, y).predict_uncertainty(X).total.mean()
        for v in (0.0, 1.0, 10.0)
    ]
    assert entropy == sorted(entropy)
    at_mean = clone(CLF).set_params(variance_scale=0.0).fit(X, y)
    logit = X @ at_mean.coef_[0] + at_mean.intercept_[0]
    np.testing.assert_allclose(at_mean.predict_proba(X)[:, 1], 1.0 / (1.0 + np.exp(-logit)))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_functions_have_the_scaled_variance(scale, n_classes):
    """The average of functions is the predicted probability, within the error of the draws."""
    y = np.minimum(Y, n_classes - 1)
    clf = clone(CLF).set_params(variance_scale=scale, prior=1.0).fit(X, y)
    n = 4000
    functions = clf.sample_f(X, n, random_state=0)
    # A probability has a standard deviation of at most 1/2; 0.005 for quasi-Monte Carlo points.
    error = np.abs(functions.mean(axis=-1) - clf.predict_proba(X)).max()
    assert error < 4.5 * 0.5 / n**0.5 * min(1.0, scale**0.5) + 0.005


@pytest.mark.long
def test_the_chosen_scale_leaves_epistemic_uncertainty():
    X, y = load_iris(return_X_y=True)
    clf = BayesianLinearClassifier(random_state=0).fit(X[::6], y[::6])
    assert clf.variance_scale_ >= 0.1
    assert clf.predict_uncertainty(X).epistemic.max() > 1e-3


def test_a_likelihood_of_one_s_own_keeps_the_posterior_s_variance():
    class Flat(Bernoulli):
        def log_prob(self, outputs, y):
            return super().log_prob(0.5 * outputs, y)

    y, clf = (Y > 0).astype(int), clone(CLF)
    assert clf.set_params(likelihood=Flat()).fit(X, y).variance_scale_ == 1.0
    assert clf.set_params(likelihood=Bernoulli()).fit(X, y).variance_scale_ != 1.0
