"""A likelihood with a kink: straight almost everywhere, while its expectation bends."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from cases import LaplaceNoise
from scipy import integrate, stats
from sklearn.datasets import load_diabetes

from skbayes_sym import BayesianLinearRegressor
from skbayes_sym.models.likelihoods.expectations import ExpectedLogProb

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


@pytest.mark.kept("1.0")
@pytest.mark.parametrize("sd", [0.1, 1.0, 5.0])
def test_the_closed_form_is_the_integral(sd):
    mean, variance, y = (torch.tensor([[t]], dtype=torch.float64) for t in (0.3, sd**2, 1.0))
    found = FoldedLaplaceNoise(LOG_SCALE).expected_log_prob(mean, variance, y, mean[:, :0])

    def integral(m, v):
        law = stats.norm(m, v**0.5)
        ends = (m - 12 * v**0.5, m + 12 * v**0.5)
        return integrate.quad(
            lambda f: law.pdf(f) * stats.laplace(f).logpdf(1.0), *ends, points=[1.0], epsabs=1e-12
        )[0]

    assert float(found.value) == pytest.approx(integral(0.3, sd**2), abs=1e-9)
    h = 1e-4 * sd**2
    slope = (integral(0.3, sd**2 + h) - integral(0.3, sd**2 - h)) / (2 * h)
    assert float(found.d_variance) == pytest.approx(slope, rel=1e-4, abs=1e-8)


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
