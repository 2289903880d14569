"""Samplers against posteriors that others have published: means and squares with their errors.

Figures are copied from posteriordb (stan-dev/posteriordb on GitHub, ``summary_statistics`` of
``reference_posteriors``: mean and mean_squared_value, long runs of Stan with their Monte Carlo
errors): eight schools, and the mixture of two normals, whose reference orders the components. Eight
schools are normal given their spread, so that quadrature over it judges the reference too.
"""

from itertools import islice
from math import log, pi

import numpy as np
import pytest
import torch
from mcmc.known_densities import AutogradPosterior
from scipy.special import ndtri
from torch.testing import assert_close

from skbayes_sym import HMC
from skbayes_sym.mcmc.chains import Sampler, sample_chains, start_blocks
from skbayes_sym.mcmc.warmup import PooledDiagonal
from skbayes_sym.numerics.diagnostics import mean_ess, rank_rhat
from skbayes_sym.symmetry import Trivial, Units
from skbayes_sym.symmetry.relabelling import relabel

N_SE = 4.5  # P(|z| > 4.5) = 7e-6, in some thirty comparisons a kernel


def normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - torch.as_tensor(sd).log() - 0.5 * log(2 * pi)


def chains(posterior, kernel, *, group=None, n_chains=32, n_draws=250, seed=0):
    """Draws (C, S, D) of chains that start uniformly within 1 of 0.

    Stan's 2 would do for schools; a component that starts narrow collapses on one row of a mixture,
    where the density is as high as one likes and the mass is not.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = n_chains, posterior.n_dims
    start = 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1
    blocks = start_blocks(start, posterior, block_size=n_chains, seed=seed)
    group = group or Trivial()
    sampler = Sampler(kernel, posterior, PooledDiagonal(group))
    return sample_chains(sampler, blocks, n_warmup=200, n_draws=n_draws).draws


def check(mean, mean_error, values):
    """Means of ``values`` (C, S, Q) are those that were published, with their own errors."""
    error = values.std((0, 1)) / np.sqrt(mean_ess(values))
    z = (values.mean((0, 1)) - mean) / np.hypot(error, mean_error)
    assert (abs(z) < N_SE).all(), z
    # A test with errors as large as the posterior would pass anything.
    assert (error < 0.1 * values.std((0, 1))).all()


# Rubin (1981): effects of coaching in eight schools, and their standard errors.
EFFECT = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12]).double()
ERROR = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18]).double()


def schools(x):
    """The effects, mu and tau at positions (mu / 5, log tau, (theta - mu) / tau)."""
    mu, tau = 5.0 * x[..., :1], x[..., 1:2].exp()
    return torch.cat([mu + tau * x[..., 2:], mu, tau], -1)


def log_half_cauchy(log_tau):
    """Of scale 5, as a density of the logarithm."""
    return log(2 / (5 * pi)) - torch.log1p((log_tau.exp() / 5) ** 2) + log_tau


def by_quadrature():
    """E[theta], E[mu] and E[tau]: everything is normal given tau."""
    log_tau = torch.linspace(-12.0, 9.0, 20_001).double()
    tau = log_tau.exp()[:, None]
    total = ERROR**2 + tau**2
    precision = 1 / 5.0**2 + (1 / total).sum(1)
    mu = (EFFECT / total).sum(1) / precision
    log_likelihood = normal(EFFECT, mu[:, None], total.sqrt()).sum(1) + normal(mu, 0.0, 5.0)
    weight = (log_half_cauchy(log_tau) + log_likelihood - 0.5 * precision.log()).softmax(0)
    theta = mu[:, None] + tau**2 / total * (EFFECT - mu[:, None])
    return (weight @ torch.cat([theta, mu[:, None], tau], 1)).numpy()


SCHOOLS = (
    np.array([
        6.15050229334425, 4.9395811407422, 3.90590609001582, 4.79601675138494, 3.6144363246799,
        4.0511475789675, 6.31716975886893, 4.88399694353288, 4.41051833695493, 3.60205952364059,
    ]),
    np.array([
        0.0557375282295219, 0.0462293788624847, 0.0542313705632124, 0.0474935816762281,
        0.0461450610244603, 0.0485195392528031, 0.0498766794075794, 0.0542511606560972,
        0.0330374705950917, 0.0318615135640706,
    ]),
)  # fmt: skip


def test_published_schools_are_those_of_quadrature():
    assert (abs(by_quadrature() - SCHOOLS[0]) < N_SE * SCHOOLS[1]).all()


@pytest.mark.long
def test_eight_schools():
    """mu ~ N(0, 5), tau ~ half-Cauchy(5)."""

    def prior(x):
        return normal(x[:, [0, *range(2, 10)]], 0.0, 1.0).sum(1) + log_half_cauchy(x[:, 1])

    def likelihood(x):
        return normal(EFFECT, schools(x)[:, :8], ERROR).sum(1)

    draws = torch.as_tensor(chains(AutogradPosterior(10, prior, likelihood), HMC(max_leapfrog=32)))
    check(*SCHOOLS, schools(draws).numpy())


def uniforms_of_r(seed):
    """R's Mersenne Twister after ``set.seed(seed)``."""
    state = np.empty(675, dtype=np.uint32)
    for i in range(675):
        seed = (69069 * seed + 1) % 2**32
        state[i] = seed
    twister = np.random.RandomState()
    twister.set_state(("MT19937", state[51:], 624))
    while True:
        yield int(twister.randint(2**32, dtype=np.uint32)) * 2.3283064365386963e-10


def normals_of_r(uniforms):
    """R's rnorm, by inversion of 53 bits."""
    while True:
        high = int(2**27 * next(uniforms))
        yield ndtri((high + next(uniforms)) / 2**27)


def mixed_targets():
    """posteriordb's low_dim_gauss_mix as R made it: set.seed(689934); z <- rbinom(1000, 1, .4) + 1;
    y <- rnorm(1000, c(-2.75, 2.75)[z], 1)."""
    uniforms = uniforms_of_r(689934)
    of_second = np.array(list(islice(uniforms, 1000))) >= 0.6
    noise = np.array(list(islice(normals_of_r(uniforms), 1000)))
    return torch.as_tensor(np.where(of_second, 2.75, -2.75) + noise)


MIXTURE = (
    np.array([
        -2.73351447451795, 2.86983188566572, 1.02807388317639, 1.0238215386158, 0.621549344358064,
        7.473869, 8.2389163, 1.0579241, 1.0498493, 0.3865632,
    ]),
    np.array([
        0.0004164428422851, 0.000559642756180628, 0.000315855160487549, 0.000414631666695789,
        0.000154376331059873, 0.0022789232, 0.0032252901, 0.0006525962, 0.0008548406, 0.0001929592,
    ]),
)  # fmt: skip

# Of each component its mean, log sd and log amount; amounts of Gamma(5) make shares of Beta(5, 5).
COMPONENTS = Units(torch.tensor([[0, 2, 4], [1, 3, 5]]))


def mixture():
    """mu ~ N(0, 2) unordered, sigma ~ half-normal(2), theta ~ Beta(5, 5)."""
    y = mixed_targets()[:, None, None]

    def prior(x):
        mu, log_sd, amount = x.split(2, 1)
        of_sd = log(2) + normal(log_sd.exp(), 0.0, 2.0) + log_sd
        of_amount = 5 * amount - amount.exp() - log(24)
        return (normal(mu, 0.0, 2.0) + of_sd + of_amount).sum(1)

    def likelihood(x):
        mu, log_sd, amount = x.split(2, 1)
        each = normal(y, mu, log_sd.exp()) + amount.log_softmax(1)
        return each.logsumexp(-1).sum(0)

    return AutogradPosterior(6, prior, likelihood)


def named(x):
    """mu, sigma, theta of the first component, and their squares."""
    values = torch.cat([x[..., :2], x[..., 2:4].exp(), x[..., 4:].softmax(-1)[..., :1]], -1)
    return torch.cat([values, values**2], -1)


def labelled(draws):
    """Each component under one label, by `relabel`; which is called the first is a convention."""
    flat = torch.as_tensor(draws).reshape(-1, draws.shape[-1])
    generator = torch.Generator().manual_seed(0)
    found = relabel(flat, COMPONENTS, n_starts=2, max_sweeps=20, generator=generator).theta
    if float(found[:, 0].mean()) > float(found[:, 1].mean()):
        found = found[:, [1, 0, 3, 2, 5, 4]]
    return named(found).reshape(*draws.shape[:2], -1).numpy()


def test_the_stream_of_r():
    """``set.seed(1); rnorm(3)`` prints -0.6264538 0.1836433 -0.8356286."""
    found = list(islice(normals_of_r(uniforms_of_r(1)), 3))
    assert_close(found, [-0.6264538, 0.1836433, -0.8356286], rtol=0, atol=5e-8)


@pytest.mark.long
def test_labels_of_a_mixture():
    """Chains end at either labelling; what removal of the symmetry leaves is Stan's ordered one."""
    draws = chains(mixture(), HMC(max_leapfrog=12), group=COMPONENTS, n_chains=8, n_draws=100)
    switched = draws[:, :, 0].mean(1) > draws[:, :, 1].mean(1)
    assert 0 < switched.sum() < len(switched)
    values = labelled(draws)
    check(*MIXTURE, values)
    assert rank_rhat(values).max() < 1.03
    before = named(torch.as_tensor(draws)).numpy()
    assert rank_rhat(before)[:2].min() > 1.5  # labels as they came
