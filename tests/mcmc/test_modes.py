"""Budget of the evidence, and symmetries that aren't exchanges of units."""

from dataclasses import dataclass
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import HMC, Chains, MCMCRegressor, ModeWeights
from skbayes_sym.mcmc.mode_weights import evidence_budget
from skbayes_sym.mcmc.within_mode import ComputeBudget
from skbayes_sym.models import BaseNetwork
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.group import Product
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units

N_CHAINS, N_GRADIENTS = 16, 1000


def make_fit(cost, n_draws, made_draws):
    """Settings, and initial chains: 1,000 gradients each, in 50 moves and ``made_draws``."""
    config = SimpleNamespace(
        n_warmup=50, n_draws=n_draws, thinning=1, mode_weights=ModeWeights(budget=cost),
        block_size=N_CHAINS,
        make_budget=lambda remaining=inf: ComputeBudget(1e4, remaining),
    )  # fmt: skip
    made, n_moves, none = (torch.full((N_CHAINS,), n) for n in (N_GRADIENTS, 100, 0))
    chains = SimpleNamespace(
        draws=torch.empty(N_CHAINS, made_draws, 3),
        warmup=SimpleNamespace(n_gradients=made, n_moves=n_moves),
        sampling=SimpleNamespace(n_gradients=none, n_moves=none),
    )  # fmt: skip
    return config, chains


@pytest.mark.parametrize("cost", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("n_draws", [50, 100, 1000])
def test_the_total_cost_is_within_the_budget(cost, n_draws):
    made = ComputeBudget(1e4).batch_cost(N_GRADIENTS, N_CHAINS) + ComputeBudget(1e4).batch_cost(
        8 * 100, 0
    )
    asked = made * (50 + n_draws) / 100
    evidence, rest = evidence_budget(*make_fit(cost, n_draws, 50))
    assert 0.0 <= evidence.remaining <= cost * asked * (1.0 + 1e-12)
    assert made + evidence.remaining + rest <= (1.0 + cost) * asked * (1.0 + 1e-12)
    if cost >= 1.0:  # half of the requested cost is left for restarted chains
        assert rest >= 0.49 * asked


@dataclass(frozen=True)
class Mixed(BaseNetwork):
    """``|x A|^2 + sum_j |w_j| x_1``: A can be rotated, the two w exchanged."""

    n_outputs: int = 1
    layout = ParamLayout({"A": (2, 2), "w": (2, 1)})

    def init(self, n, *, generator):
        return torch.randn(n, 6, generator=generator, dtype=torch.float64)

    def forward(self, theta, x):
        rotated = x @ theta[..., :4].unflatten(-1, (2, 2))
        outputs = rotated.square().sum(-1) + theta[..., 4:].abs().sum(-1, keepdim=True) * x[:, 0]
        return outputs.unsqueeze(-1)

    def symmetry(self):
        rotations = Orthogonal(torch.arange(4).view(2, 2))
        return Product((rotations, Units(torch.tensor([[4], [5]]))))


rng = np.random.default_rng(0)
X = rng.standard_normal((40, 2))
Y = (X**2).sum(1) + 2.0 * X[:, 0] + 0.1 * rng.standard_normal(40)
REG = MCMCRegressor(
    network=Mixed(), prior=1.0, sampler=Chains(HMC(max_leapfrog=4), n_warmup=50), n_chains=8,
    n_draws=20, remove_symmetries=ModeWeights("uniform"), random_state=0,
)  # fmt: skip


def test_rotations_are_aligned_and_units_labelled():
    aligned = clone(REG).fit(X, Y)
    raw = clone(REG).set_params(remove_symmetries=False).fit(X, Y)
    np.testing.assert_allclose(aligned.predict(X), raw.predict(X), rtol=1e-8)
    spread = [m.samples_.reshape(-1, 6).var(0) for m in (aligned, raw)]
    assert spread[0][:4].sum() < 0.2 * spread[1][:4].sum()
    units = aligned.samples_[..., 4:].reshape(-1, 2)
    assert (units[:, 0] - units[:, 1]).std() <= (raw.samples_[..., 4] - raw.samples_[..., 5]).std()
    best = np.unravel_index(aligned.log_posterior_samples_.argmax(), (8, 20))
    np.testing.assert_allclose(aligned.samples_[best][:4], raw.samples_[best][:4], atol=1e-8)


@pytest.mark.long
def test_rotations_have_no_evidence_and_the_reason_is_given():
    sampler = Chains(HMC(max_leapfrog=4), n_warmup=60)
    reg = MCMCRegressor(
        network=Mixed(), prior=1.0, sampler=sampler, n_chains=4, n_draws=10,
        remove_symmetries=ModeWeights("evidence"), random_state=0,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning, match=r"isn't made of exchangeable units \(Orthogonal\)"):
        reg.fit(X, Y)
    assert np.isnan(reg.log_evidence_)
    assert reg.modes_ == []
    assert reg.score(X, Y) > 0.8
