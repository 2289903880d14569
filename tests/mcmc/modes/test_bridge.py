"""Evidence by bridge sampling: known integrals, quadrature, honest errors, disjoint regions."""

from math import log, pi

import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from torch.distributions import Normal

from skbayes_sym.mcmc.bridge import (
    GaussianMixture,
    Integrand,
    bridge_evidence,
    bridge_ratio,
    can_bridge,
    fit_gaussian_mixture,
)
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain, enumerate_group
from skbayes_sym.symmetry.group import Trivial
from skbayes_sym.symmetry.relabelling import DiagonalReference
from skbayes_sym.symmetry.units import Units

LOG_Z = 3.7
TWO_UNITS = Units(torch.tensor([[0, 1], [2, 3]]), flip=True)  # a fifth column stays put


def gaussian(n_dims, spread=1.0, seed=1):
    generator = generator_from(seed)
    loc = spread * torch.randn(n_dims, generator=generator, dtype=torch.float64)
    root = 0.4 * torch.randn(n_dims, n_dims, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT + 0.1 * torch.eye(n_dims, dtype=torch.float64)
    factor = torch.linalg.cholesky(covariance)
    return GaussianMixture(torch.zeros(1).double(), loc[None], factor[None])


def symmetric_bumps(spread):
    """exp(LOG_Z) times a Gaussian averaged over the group, and the Gaussian."""
    bump, table = gaussian(5, spread), enumerate_group(TWO_UNITS, 5)

    def log_density(x):
        images = bump.log_prob(table.orbit(x))
        return LOG_Z + torch.logsumexp(images, dim=-1) - log(table.order)

    return log_density, bump


def logistic(x):
    """Log density of independent logistic variables: Z = 1, tails heavier than any Gaussian."""
    return (-x - 2 * torch.nn.functional.softplus(-x)).sum(-1)


def logistic_draws(n, n_dims, generator):
    return torch.rand(n, n_dims, generator=generator, dtype=torch.float64).logit()


def bridged(log_density, draws, generator, group=None, **options):
    integrand = Integrand(log_density, Trivial() if group is None else group)
    return bridge_evidence(integrand, draws, generator=generator, **options)


def test_a_gaussian(generator):
    target = gaussian(4)
    draws = target.sample(2000, generator=generator)
    found = bridged(lambda x: LOG_Z + target.log_prob(x), draws, generator)
    assert abs(found.log_evidence - LOG_Z) < 4 * found.standard_error
    assert 0 < found.standard_error < 0.02
    assert found.n_draws == 2000
    again = [bridged(target.log_prob, draws, generator_from(3)) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("max_order", [10_000, 1], ids=["enumerated", "confined"])
@pytest.mark.parametrize("spread", [2.0, 0.1], ids=["apart", "overlapping"])
def test_symmetric_bumps(spread, max_order, generator):
    """All |G| = 8 copies count, whether or not they overlap."""
    log_density, bump = symmetric_bumps(spread)
    draws = bump.sample(3000, generator=generator)  # copies of draws of the whole density
    domain = FundamentalDomain(TWO_UNITS, DiagonalReference(bump.loc[0], torch.ones(5).double()))
    inside = domain.enter(draws)[0]
    found = bridged(log_density, inside, generator, TWO_UNITS, max_order=max_order)
    assert abs(found.log_evidence - LOG_Z) < 4 * found.standard_error
    assert found.standard_error < 0.05


def test_a_large_group_needs_one_hidden_layer(generator):
    wide, deep = MLP(1, (7,), 1, TANH), MLP(1, (6, 6), 1, TANH)
    assert can_bridge(wide.symmetry())
    assert not can_bridge(deep.symmetry())
    n = wide.layout.n_params
    # A prior around 0 is symmetric; its draws are anywhere, so they are aligned by the domain.
    prior = torch.randn(20 * n, n, generator=generator, dtype=torch.float64)
    domain = FundamentalDomain(wide.symmetry(), DiagonalReference(prior[0], torch.ones(n).double()))
    inside = domain.enter(prior)[0]
    found = bridged(lambda x: -0.5 * x.square().sum(-1), inside, generator, wide.symmetry())
    assert abs(found.log_evidence - 0.5 * n * log(2 * pi)) < 4 * found.standard_error
    assert found.standard_error < 0.3
    with pytest.raises(ValueError, match="hidden layers"):
        bridged(logistic, torch.zeros(1000, 61), generator, deep.symmetry())


def test_parts_of_a_mode_sum_to_the_whole(generator):
    log_density, bump = symmetric_bumps(2.0)
    draws, cut = bump.sample(4000, generator=generator), float(bump.loc[0, 4]) + 0.2

    def left(x):
        return x[:, 4] < cut

    def right(x):
        return ~left(x)

    parts = [
        bridge_evidence(Integrand(log_density, TWO_UNITS, region), draws, generator=generator)
        for region in (left, right)
    ]
    whole = bridged(log_density, draws, generator, TWO_UNITS)
    total = np.logaddexp(*(part.log_evidence for part in parts))
    share = np.exp([part.log_evidence - total for part in parts])
    error = np.sqrt(
        (share**2) @ [part.standard_error**2 for part in parts] + whole.standard_error**2
    )
    assert abs(total - whole.log_evidence) < 3 * error
    assert error < 0.05
    assert sum(part.n_draws for part in parts) == 4000
    assert share.min() > 0.1


@pytest.mark.long
@pytest.mark.kept("1", "40")
@pytest.mark.parametrize("n_chains", [1, 4, 40])
def test_errors_allow_for_autocorrelation(n_chains):
    """Draws of slow chains: taking them for independent would give z about 3 times as large."""
    z, effective = [], []
    for seed in range(40):
        generator = generator_from(seed)
        shape = (n_chains, 2400 // n_chains, 2)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        noise[:, 1:] *= (1 - 0.81) ** 0.5
        x = torch.as_tensor(lfilter([1.0], [1.0, -0.9], noise.numpy(), axis=1))  # an AR(1)
        draws = (0.5 + 0.5 * torch.special.erf(x / 2**0.5)).clamp(1e-12, 1 - 1e-12).logit()
        chains = torch.arange(n_chains).repeat_interleave(shape[1])
        found = bridged(logistic, draws.flatten(0, 1), generator, chains=chains)
        z.append(found.log_evidence / found.standard_error)
        effective.append(found.n_effective)
    assert 0.6 < np.std(z, ddof=1) < 1.5
    assert np.mean(effective) < 1200


def test_a_third_component_helps_a_bent_mode(generator):
    """x_2 | x_1 ~ N(x_1^2, 0.2^2): Z = 1."""
    x = torch.randn(3000, 2, generator=generator, dtype=torch.float64)
    draws = torch.stack([x[:, 0], x[:, 0].square() + 0.2 * x[:, 1]], dim=1)

    def log_density(at):
        z = (at[:, 1] - at[:, 0].square()) / 0.2
        return -0.5 * (at[:, 0].square() + z * z) - log(2 * pi) - log(0.2)

    errors = []
    for k in (1, 3):
        found = bridged(log_density, draws, generator, n_components=k)
        assert abs(found.log_evidence) < 4 * found.standard_error
        errors.append(found.standard_error)
    assert errors[1] < 0.7 * errors[0]
    bend = fit_gaussian_mixture(draws, 3)
    assert float(bend.log_prob(draws).mean()) > float(
        fit_gaussian_mixture(draws).log_prob(draws).mean()
    )


def test_nothing_to_go_by_is_nan(generator):
    draws = torch.randn(19, 4, generator=generator, dtype=torch.float64)
    few = bridged(logistic, draws, generator)
    assert np.isnan([few.log_evidence, few.standard_error]).all()
    assert few.n_draws == 19


def test_ratio_solves_the_fixed_point(generator):
    """Meng and Wong's iteration, run long, and its invariance to the unit of l."""
    proposed = 2.0 * torch.randn(400, generator=generator, dtype=torch.float64) - 1.0
    proposed[:50] = -torch.inf
    at_draws = torch.randn(300, generator=generator, dtype=torch.float64)
    found = bridge_ratio(proposed, at_draws)
    n_effective = found.n_effective
    s1, s2 = 400 / (400 + n_effective), n_effective / (400 + n_effective)
    r = 1.0
    for _ in range(5000):
        above = (proposed.exp() / (s1 * r + s2 * proposed.exp())).mean()
        r = float(above / (1.0 / (s1 * r + s2 * at_draws.exp())).mean())
    assert found.log_ratio == pytest.approx(log(r), abs=1e-8)
    shifted = bridge_ratio(proposed - 900.0, at_draws - 900.0)
    assert shifted.log_ratio == pytest.approx(found.log_ratio - 900.0, abs=1e-8)
    assert shifted.standard_error == pytest.approx(found.standard_error, rel=1e-6)


def test_blocks_of_repeated_draws_count_once(generator):
    """Every draw ten times over is no more than every draw once."""
    proposed = torch.randn(4000, generator=generator, dtype=torch.float64)
    at_draws = 1.0 + torch.randn(200, generator=generator, dtype=torch.float64)
    once = bridge_ratio(proposed, at_draws)
    blocks = torch.arange(200).repeat_interleave(10)
    tenfold = bridge_ratio(proposed, at_draws.repeat_interleave(10), blocks)
    assert tenfold.n_effective == pytest.approx(once.n_effective, rel=0.02)
    assert tenfold.standard_error == pytest.approx(once.standard_error, rel=0.02)
    naive = bridge_ratio(proposed, at_draws.repeat_interleave(10))
    assert naive.standard_error < 0.8 * once.standard_error


def test_no_overlap_is_nan():
    missed = bridge_ratio(torch.full((10,), -torch.inf).double(), torch.zeros(10).double())
    assert np.isnan([missed.log_ratio, missed.standard_error]).all()


def test_the_error_is_that_of_repetitions():
    """Of two normals, one a narrow shifted copy: 300 repetitions scatter as one says it does."""
    generator = torch.Generator().manual_seed(1)
    low, high = Normal(0.0, 1.0), Normal(0.5, 0.7)
    found = []
    for _ in range(300):
        z = torch.randn(2, 200, generator=generator, dtype=torch.float64)
        proposed, drawn = z[0], 0.5 + 0.7 * z[1]
        values = [high.log_prob(x) - low.log_prob(x) for x in (proposed, drawn)]
        found.append(bridge_ratio(*values))
    ratios = np.array([one.log_ratio for one in found])
    stated = np.mean([one.standard_error for one in found])
    assert abs(ratios.mean()) < 4.0 * ratios.std() / len(ratios) ** 0.5
    assert ratios.std() == pytest.approx(stated, rel=0.25)
