"""One representative of every draw's orbit, for groups of any kind."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import HMC, Chains, MCMCRegressor, ModeWeights
from skbayes_sym.models import BaseNetwork
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.group import Product
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units


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
    network=Mixed(),
    prior=1.0,
    sampler=Chains(HMC(max_leapfrog=4), n_warmup=50),
    n_chains=8,
    n_draws=20,
    remove_symmetries=ModeWeights("uniform"),
    random_state=0,
)


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
