"""Gaps of normals whose entries depend on one another: brute-force sums and known limits."""

import numpy as np
import pytest
import torch

from skbayes_sym import LaplaceRegressor
from skbayes_sym.base.optimizers import GaussNewton
from skbayes_sym.laplace.posterior import ModeMixture
from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.symmetry.fundamental_domain import enumerate_group
from skbayes_sym.symmetry.gaps.monte_carlo_gap import (
    MonteCarloGap,
    evidence_over_copies,
    select_children,
)
from skbayes_sym.symmetry.units import Units

# Every kind of group: exchanges and flips, exchanges alone, flips alone, several layers.
GROUPS = {
    "tanh": MLP(2, (3,), 1, TANH).symmetry(),
    "relu": MLP(2, (4,), 1, RELU).symmetry(),
    "flips": Units(MLP(2, (4,), 1, TANH).symmetry().factors[0].index, permute=False, flip=True),
    "two layers": MLP(1, (2, 3), 1, TANH).symmetry(),
    "three layers": MLP(1, (2, 2, 2), 1, RELU).symmetry(),
}


def normal(n, *, spread, rho=0.8, seed=0):
    """Normal with a dense precision, its mean as far from zero as ``spread`` says."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, n)) * rho + np.eye(n)
    return ModeMixture(spread * rng.normal(size=(1, n)), np.linalg.cholesky(root @ root.T)[None])


def n_params(group):
    """One weight more than the units have."""
    return 2 + int(max(factor.index.max() for factor in group.factors))


def brute_force(group, q, n_draws, seed):
    """``log q - log q_G`` at the draws of `MonteCarloGap`, the sum taken element by element."""
    n = q.loc.shape[1]
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n_draws, n, generator=generator, dtype=torch.float64)
    shift = torch.linalg.solve_triangular(torch.as_tensor(q.factor[0]).mT, noise.mT, upper=True)
    theta = torch.as_tensor(q.loc[0]) + shift.mT
    orbit = enumerate_group(group, n, max_order=50_000).orbit(theta)
    log_q = torch.cat([q.log_prob(part) for part in orbit.split(20)])
    return q.log_prob(theta) - log_q.logsumexp(1) + group.log_order


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 200.0])
@pytest.mark.parametrize("name", GROUPS)
def test_small_groups_are_summed_completely(name, spread):
    group = GROUPS[name]
    q = normal(n_params(group), spread=spread)
    gap = MonteCarloGap(group, n_params(group))
    values = gap.values(q, 40, generator=torch.Generator().manual_seed(1))
    assert gap.side == "exact"
    # Branches that are cut off add less than exp(-16); rounding is far below.
    np.testing.assert_allclose(values, brute_force(group, q, 40, 1), rtol=0.0, atol=2e-7)


@pytest.mark.parametrize("lookahead", [0.0, 1.0])
def test_selected_children_stand_for_all(lookahead):
    """One step of the filter leaves the distribution that its weights define unchanged.

    The retained child is a draw in proportion to the weights, and so is a draw from the children
    that are selected, by their new weights.
    """
    weight = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04], dtype=torch.float64)
    n = 100_000
    generator = torch.Generator().manual_seed(0)
    retained = weight.multinomial(n, True, generator=generator)
    ahead = lookahead * torch.tensor([0.0, 2.0, -1.0, 1.0, 0.5, -2.0], dtype=torch.float64)
    selected = select_children(
        weight.log().expand(n, -1), ahead.expand(n, -1), retained, 3, generator=generator
    )
    assert torch.equal(selected.child.gather(1, selected.identity.unsqueeze(1))[:, 0], retained)
    chosen = selected.log_weight.softmax(1).multinomial(1, generator=generator)
    frequency = selected.child.gather(1, chosen)[:, 0].bincount(minlength=6) / n
    error = (weight * (1.0 - weight) / n).sqrt()
    assert torch.all((frequency - weight).abs() < 4.5 * error)


@pytest.mark.parametrize("name", ["tanh", "relu", "two layers"])
def test_a_filter_with_few_particles_is_a_lower_bound(name):
    """At the same draws two particles lose 0.07 to 0.22 nats of the gap, and never gain any."""
    group = GROUPS[name]
    q = normal(n_params(group), spread=0.2)
    gaps = (
        MonteCarloGap(group, n_params(group)),
        MonteCarloGap(group, n_params(group), max_order=1, n_particles=20),
        MonteCarloGap(group, n_params(group), max_order=1, n_particles=2),
    )
    exact, many, few = (
        float(gap.values(q, 1000, generator=torch.Generator().manual_seed(2)).mean())
        for gap in gaps
    )
    assert [gap.side for gap in gaps] == ["exact", "lower", "lower"]
    assert 0.03 < exact - few < 0.3
    assert abs(exact - many) < 0.005


@pytest.mark.parametrize("d", [8, pytest.param(20, marks=pytest.mark.long), 50])
def test_wide_layers_in_known_limits(d):
    """Copies that don't overlap, that all coincide, and half of either."""
    group = MLP(1, (d,), 1, TANH).symmetry()
    n = 3 * d + 1
    index = group.factors[0].index
    rng = np.random.default_rng(0)
    apart = 1e3 * rng.normal(size=n)
    half = apart.copy()
    half[index[: d // 2]] = 0.0
    dead_order = MLP(1, (d // 2,), 1, TANH).symmetry().log_order
    limits = [(np.zeros(n), 0.0), (apart, group.log_order), (half, group.log_order - dead_order)]
    for loc, expected in limits:
        q = ModeMixture(loc[None], np.eye(n)[None])
        gap = MonteCarloGap(group, n).estimate(q, 2, generator=torch.Generator().manual_seed(0))
        assert gap.value == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module", params=[5, pytest.param(6, marks=pytest.mark.long)])
def sine_fit(request):
    """Networks with more units than the curve needs, whose copies overlap."""
    rng = np.random.default_rng(7)
    x = rng.uniform(-2.0, 2.0, (40, 1))
    y = np.sin(1.5 * x[:, 0]) + 0.3 * rng.standard_normal(40)
    optimizer = GaussNewton(2)
    return LaplaceRegressor((request.param,), "tanh", optimizer=optimizer, random_state=0).fit(x, y)


def modes(model):
    posterior = model.posterior_
    return [
        ModeMixture(posterior.loc[r : r + 1], posterior.factor[r : r + 1])
        for r in range(posterior.n_modes)
    ]


def test_the_evidence_sums_all_copies_of_five_and_six_units(sine_fit):
    group = sine_fit.symmetry_
    terms = [
        evidence + float(brute_force(group, mode, 60, 3).mean())
        for evidence, mode in zip(sine_fit.log_evidence_modes_, modes(sine_fit), strict=True)
    ]
    # A draw's gap has a standard deviation below 1 here: 0.13 for 60, and 0.05 of the fit itself.
    assert abs(sine_fit.log_evidence_ - np.logaddexp.reduce(terms)) < 4.0 * 0.14
    assert sine_fit.log_evidence_side_ == "exact"
    assert 0.0 < sine_fit.log_evidence_std_error_ < 0.08


def test_the_estimate_for_wide_layers_agrees_with_the_sum(sine_fit):
    group, n = sine_fit.symmetry_, sine_fit.network_.layout.n_params
    for mode in modes(sine_fit):
        exact, estimate = (
            MonteCarloGap(group, n, max_order=most).values(
                mode, 20, generator=torch.Generator().manual_seed(4)
            )
            for most in (50_000, 1)
        )
        assert abs(float((exact - estimate).mean())) < 0.05


@pytest.mark.long
def test_standard_errors_are_those_of_repetitions():
    """Evidences of two modes whose copies overlap, under 200 seeds."""
    group = MLP(1, (2,), 1, TANH).symmetry()
    n = n_params(group)
    gap = MonteCarloGap(group, n)
    normals = [
        normal(n, spread=spread, rho=0.3, seed=seed) for spread, seed in ((0.6, 1), (0.4, 2))
    ]
    log_evidence = np.array([-3.0, -2.5])
    found = np.array([
        evidence_over_copies(gap, log_evidence, normals, target_error=0.08,
                             generator=torch.Generator().manual_seed(seed))
        for seed in range(200)
    ])  # fmt: skip
    exact = np.logaddexp.reduce(
        [
            evidence + gap.estimate(q, 10_000, generator=torch.Generator().manual_seed(9)).value
            for evidence, q in zip(log_evidence, normals, strict=True)
        ]
    )
    z = (found[:, 0] - exact) / found[:, 1]
    # 200 repetitions give a standard deviation to within 5 %; `exact` is known to 0.01.
    assert abs(found[:, 0].std() / np.sqrt(np.mean(found[:, 1] ** 2)) - 1.0) < 0.25
    assert abs(z.mean()) < 4.0 / 200**0.5 + 0.2
    assert np.all(found[:, 1] < 0.12)


def test_the_group_of_one_element_has_no_gap():
    group = MLP(2, (), 1, TANH).symmetry()
    estimate = MonteCarloGap(group, 3).estimate(normal(3, spread=1.0), generator=torch.Generator())
    assert estimate == (0.0, 0.0)
