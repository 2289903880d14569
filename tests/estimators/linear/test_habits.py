"""What the linear models keep beside the habits of all estimators."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from cases import LaplaceNoise
from habits import LINEAR, data, every
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_diabetes

from skbayes_sym import BayesianLinearRegressor
from skbayes_sym.models.likelihoods.likelihood import ExpectedLogProb


@pytest.mark.kept("linear-gaussian", "linear-student-t")
@every(LINEAR)
def test_sites_of_weighted_rows_are_those_of_repetitions(estimator):
    X, y = data(estimator)
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


@pytest.mark.kept("linear-gaussian", "linear-student-t")
@every(LINEAR)
def test_float32_follows_the_data(estimator):
    X, y = data(estimator)
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
