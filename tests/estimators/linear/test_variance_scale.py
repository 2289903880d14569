"""What is chosen by leaving rows out is what refits without them say."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris

from skbayes_sym import BayesianLinearClassifier
from skbayes_sym.estimators.linear import site_inference as method
from skbayes_sym.inference.laplace.labels_predictive import VARIANCE_SCALES
from skbayes_sym.models import Bernoulli

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

    def keep(left_out, y, scales):
        seen["losses"] = original(left_out, y, scales)
        return seen["losses"]

    original = method.left_out_losses
    monkeypatch.setattr(method, "left_out_losses", keep)
    x = X - X.mean(axis=0)
    order = np.lexsort(x.T[::-1])  # that of the losses
    x, y = x[order], y[order]
    found = clone(CLF).fit(x, y)
    of_all = dict(zip(VARIANCE_SCALES, seen["losses"].mean(dim=1).tolist(), strict=True))
    assert found.variance_scale_ == min(of_all, key=of_all.get)
    of_some = seen["losses"][:, ::4].mean(dim=1).tolist()
    approximate = dict(zip(VARIANCE_SCALES, of_some, strict=True))
    for scale in (0.0, 1.0):
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


def test_a_likelihood_of_one_s_own_keeps_the_posterior_s_variance():
    class Flat(Bernoulli):
        def log_prob(self, outputs, y):
            return super().log_prob(0.5 * outputs, y)

    y, clf = (Y > 0).astype(int), clone(CLF)
    assert clf.set_params(likelihood=Flat()).fit(X, y).variance_scale_ == 1.0
    assert clf.set_params(likelihood=Bernoulli()).fit(X, y).variance_scale_ != 1.0
