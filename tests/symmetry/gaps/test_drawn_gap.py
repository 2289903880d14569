"""Gap of normals whose entries depend on one another, against sums over the group and a grid."""

from math import log

import numpy as np
import pytest
import torch

from skbayes_sym.inference.laplace.laplace_posterior import ModeMixture
from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.symmetry.fundamental_domain import enumerate_group
from skbayes_sym.symmetry.gaps.drawn_gap import DrawnGap


def normal(n, *, spread, rho=0.8, seed=0):
    """Entries that go together, by rotations of independent ones."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, n)) * rho + np.eye(n)
    return ModeMixture(spread * rng.normal(size=(1, n)), np.linalg.cholesky(root @ root.T)[None])


@pytest.mark.parametrize(("sizes", "activation"), [((3,), TANH), ((2, 2), TANH), ((4,), RELU)])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0, 200.0])
def test_what_draws_tell_is_below_the_sum(sizes, activation, spread, generator):
    network = MLP(2, sizes, 1, activation)
    group, n = network.symmetry(), network.layout.n_params
    q = normal(n, spread=spread)
    below = DrawnGap(group, n, max_order=1).estimate(q, generator=generator)
    found = DrawnGap(group, n).estimate(q, generator=generator)
    theta = q.sample(200, generator=generator)
    each = enumerate_group(group, n).orbit(theta).unbind(-2)
    log_q = torch.stack([q.log_prob(t) for t in each])
    values = q.log_prob(theta) - log_q.logsumexp(0) + log(len(each))
    error = 4.0 * float(values.var() / len(values) + found.standard_error**2) ** 0.5 + 1e-9
    assert group.log_order == pytest.approx(log(len(each)))
    assert abs(found.value - float(values.mean())) < error
    assert below.value < float(values.mean()) + error + 4.0 * below.standard_error
    assert spread < 200.0 or below.value == pytest.approx(group.log_order, abs=1e-3)
