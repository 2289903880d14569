"""Scales of aligned draws are those of one mode, whatever copies the draws are."""

import pytest
import torch
from cases import mixed
from symmetry.planted import Case
from torch.testing import assert_close

from skbayes_sym.mcmc.mode_evidence import align_draws
from skbayes_sym.mcmc.within_mode import fit_dense_preconditioner, fit_pooled_preconditioner
from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.symmetry.group import Trivial

F64 = torch.float64
NETWORKS = {
    "3-tanh": MLP(1, (3,), 1, TANH),
    "4-relu": MLP(2, (4,), 1, RELU),
    "3-2-tanh": MLP(2, (3, 2), 1, TANH),
}
CASES = {name: Case(network, network.symmetry()) for name, network in NETWORKS.items()} | {
    "mixed": Case(NETWORKS["3-2-tanh"], mixed(NETWORKS["3-2-tanh"]))
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def cloud(case, n, generator, noise=0.05):
    """Draws around one network and a noise scale, before and after a group element each."""
    n_dims = case.network.layout.n_params + 1
    base = torch.randn(n_dims, generator=generator, dtype=F64)
    scale = noise * (1.0 + torch.rand(n_dims, generator=generator, dtype=F64))
    spread = torch.randn(n, n_dims, generator=generator, dtype=F64)
    x, group = base + scale * spread, case.group
    return x, group.act(group.sample((n,), generator=generator), x), scale


@every_case
def test_scales_of_scrambled_draws_are_those_of_the_mode(case, generator):
    x, scrambled, scale = cloud(case, 2000, generator)
    orbits = case.group.coordinate_orbits(x.shape[1])
    aligned = align_draws(scrambled, case.group, generator=generator)
    # Whatever the labelling, pooled variances are means of planted ones.
    expected = torch.stack([scale[orbits == k].square().mean().sqrt() for k in orbits])
    found = fit_pooled_preconditioner(aligned, case.group).scale
    assert_close(found, expected, rtol=4 * (2 * len(x)) ** -0.5, atol=0)
    assert_close(found, fit_pooled_preconditioner(x, case.group).scale)  # every label came back
    assert_close(
        torch.linalg.slogdet(fit_dense_preconditioner(aligned).cholesky),
        torch.linalg.slogdet(fit_dense_preconditioner(x).cholesky),
        rtol=1e-8,
        atol=0,
    )  # up to one labelling of all


@every_case
def test_pooled_scales_are_one_for_all_units(case, generator):
    x, _, _ = cloud(case, 100, generator)
    scale = fit_pooled_preconditioner(x, case.group).scale
    for factor in case.group.factors:
        assert_close(
            scale[factor.index], scale[factor.index[:1]].expand(factor.index.shape), rtol=0, atol=0
        )
    group = case.group
    z = torch.randn(5, x.shape[1], generator=generator, dtype=F64)
    g = group.sample((5,), generator=generator)
    assert_close(scale * group.act(g, z), group.act(g, scale * z), rtol=0, atol=0)


def test_full_covariance_is_shrunk_by_two_percent(generator):
    mix = torch.tensor([[1.0, 0.0], [2.0, 0.5]], dtype=F64)
    x = torch.randn(50, 2, generator=generator, dtype=F64) @ mix.mT
    factor = fit_dense_preconditioner(x).cholesky
    s = torch.cov(x.mT, correction=0)
    assert_close(factor @ factor.mT, 0.98 * s + 0.02 * s.diag().diag())


def test_draws_that_are_all_the_same_still_have_scales():
    x = torch.ones(10, 3, dtype=F64)
    x[:, 2] = 0.0
    assert bool((fit_pooled_preconditioner(x, Trivial()).scale > 0).all())
    assert bool(fit_dense_preconditioner(x).cholesky.isfinite().all())


def test_trivial_group_aligns_nothing(generator):
    x = torch.randn(20, 3, generator=generator, dtype=F64)
    assert_close(align_draws(x, Trivial(), generator=generator), x, rtol=0, atol=0)
