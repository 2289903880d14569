"""What every kernel must do: leave its target invariant, be reproducible, tell the truth."""

from dataclasses import dataclass
from functools import partial
from math import pi
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cases import KERNELS
from mcmc.known_densities import AutogradPosterior, Normal, flat
from scipy import stats
from thin import pairwise
from torch import Tensor

from skbayes_sym.base.log_density import Evaluation
from skbayes_sym.mcmc.kernels import Info, draw_momentum, initial_state, leapfrog
from skbayes_sym.numerics.preconditioners import DensePreconditioner, DiagonalPreconditioner

N_CHAINS = 512  # independent, so that standard errors are those of a plain mean
Z_MAX = 5.0  # standard errors; with 512 chains a right kernel exceeds them once in 1e6 figures
P_MIN = 1e-4

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


def diagonal(covariance, n_chains):
    """Scales of each chain, with errors of up to 40 %."""
    off = torch.rand(n_chains, len(covariance), generator=torch.Generator().manual_seed(1))
    return DiagonalPreconditioner(covariance.diagonal().sqrt() * (0.8 * (off - 0.5)).exp().double())


def dense(covariance, n_chains):
    return DensePreconditioner(torch.linalg.cholesky(covariance))


def dense_of_each_chain(covariance, n_chains):
    off = torch.linspace(0.6, 1.4, n_chains, dtype=torch.float64).reshape(-1, 1, 1)
    return DensePreconditioner(torch.linalg.cholesky(covariance * off))


PRECONDITIONERS = {"diagonal": diagonal, "dense": dense, "dense-own": dense_of_each_chain}


@dataclass(frozen=True)
class AlwaysAccepts:
    """A broken kernel: leapfrog without the Metropolis step."""

    def step(self, state, log_density, *, step_size, preconditioner, generator):
        momentum = draw_momentum(state, generator)
        n_steps = 1 + int(torch.randint(4, (), generator=generator))
        moved, _ = leapfrog(state, log_density, momentum, step_size, preconditioner, n_steps)
        one = torch.ones_like(state.value)
        return moved, Info(one, one.bool(), ~one.bool(), one.long())


class Target(NamedTuple):
    """A density whose expectations are known."""

    log_density: object
    covariance: Tensor  # that a preconditioner is made of
    statistics: object  # (*B, D) -> (*B, k)
    expected: np.ndarray  # (k,)
    step_size: float
    start: Tensor | None = None  # (D,); the origin


def correlated_normal(step_size=0.35):
    """Five dimensions, scales over four orders of magnitude, correlations up to 0.8."""
    scale = 10.0 ** torch.linspace(-2, 2, 5, dtype=torch.float64)
    place = torch.arange(5)
    covariance = scale.outer(scale) * 0.8 ** (place[:, None] - place).abs()
    mean = 2.0 * scale

    def statistics(x):
        away = x - mean
        return torch.cat([x, away**2, away[..., :1] * away[..., 1:]], -1)

    return Target(
        Normal(mean, torch.linalg.inv(covariance)), covariance, statistics,
        torch.cat([mean, scale**2, covariance[0, 1:]]).numpy(), step_size,
    )  # fmt: skip


def unequal_mixture():
    """0.3 N(-1.5, 0.6^2) x N(0, 1) + 0.7 N(1.5, 0.8^2) x N(1, 0.5^2): the weight is an integral."""
    weight = torch.tensor([0.3, 0.7], dtype=torch.float64)
    mean = torch.tensor([[-1.5, 0.0], [1.5, 1.0]], dtype=torch.float64)
    scale = torch.tensor([[0.6, 1.0], [0.8, 0.5]], dtype=torch.float64)

    def log_density(position):
        m, s, w = (t.to(position) for t in (mean, scale, weight))
        z = (position.unsqueeze(1) - m) / s
        return torch.logsumexp(-0.5 * (z * z).sum(-1) - s.log().sum(-1) + w.log(), 1)

    centre = weight @ mean
    covariance = torch.diag(weight @ scale**2) + (mean - centre).T @ (
        weight[:, None] * (mean - centre)
    )
    left = stats.norm.cdf(0.0, mean[:, 0], scale[:, 0]) @ weight.numpy()
    cross = float(weight @ mean.prod(1))
    return Target(
        AutogradPosterior(2, flat, log_density),
        covariance,
        lambda x: torch.stack([(x[..., 0] < 0).double(), x[..., 1], x.prod(-1)], -1),
        np.array([left, float(centre[1]), cross]),
        0.4,
    )


def two_weights():
    """``y = w2 tanh(w1 x)``, standard normal weights, noise 0.7: both modes by 2-D quadrature."""
    x = torch.linspace(-1.5, 1.5, 6, dtype=torch.float64)
    y = torch.tensor([-0.9, -0.2, -0.5, 0.4, 0.3, 1.1], dtype=torch.float64)

    def prior(w):
        return -0.5 * (w * w).sum(-1)

    def likelihood(w):
        residual = (y - w[:, 1:] * torch.tanh(w[:, :1] * x)) / 0.7
        return -0.5 * (residual**2).sum(-1)

    axis = torch.linspace(-7, 7, 401, dtype=torch.float64)  # analytic: the sum is exact to rounding
    grid = torch.cartesian_prod(axis, axis)
    mass = torch.softmax(prior(grid) + likelihood(grid), 0).numpy()
    w1, w2 = grid.T.numpy()
    return Target(
        AutogradPosterior(2, prior, likelihood),
        torch.eye(2, dtype=torch.float64),
        lambda w: torch.stack([w[..., 0].abs(), w.prod(-1), (w[..., 0] > 0).double()], -1),
        np.array([mass @ np.abs(w1), mass @ (w1 * w2), 0.5]),
        0.3,
    )


@dataclass(frozen=True)
class HalfNormal:
    """No mass below zero: trajectories meet a boundary."""

    n_dims: int = 1

    def __call__(self, position):
        return self.evaluate(position).value

    def evaluate(self, position):
        value = torch.where(position > 0, -0.5 * position**2, -torch.inf).squeeze(-1)
        return Evaluation(value, -position)


def half_normal():
    return Target(
        HalfNormal(), torch.eye(1, dtype=torch.float64), lambda x: torch.cat([x, x**2], -1),
        np.array([(2 / pi) ** 0.5, 1.0]), 0.5, torch.ones(1, dtype=torch.float64),
    )  # fmt: skip


TARGETS = {
    "correlated-normal": correlated_normal, "unequal-mixture": unequal_mixture,
    "two-weights": two_weights, "half-normal": half_normal,
}  # fmt: skip


def sample(
    kernel, log_density, start, *, preconditioner, step_size, n_warmup, n_draws, thin=1, seed=0
):
    """Draws (n_draws, C, D) after a warm-up in which nothing adapts; step sizes differ by chain."""
    generator = torch.Generator().manual_seed(seed)
    size = step_size * torch.linspace(0.8, 1.2, len(start)).to(start)
    state, draws = initial_state(start, log_density), []
    for move in range(n_warmup + n_draws * thin):
        state, _ = kernel.step(
            state, log_density, step_size=size, preconditioner=preconditioner, generator=generator
        )
        if move >= n_warmup and (move - n_warmup) % thin == thin - 1:
            draws.append(state.position)
    return torch.stack(draws)


def z_scores(kernel, target, precondition):
    """Errors of estimated expectations in standard errors over independent chains."""
    start = torch.zeros(len(target.covariance), dtype=torch.float64)
    start = (start if target.start is None else target.start).repeat(N_CHAINS, 1)
    draws = sample(
        kernel, target.log_density, start, preconditioner=precondition(target.covariance, N_CHAINS),
        step_size=target.step_size, n_warmup=50, n_draws=40,
    )  # fmt: skip
    per_chain = target.statistics(draws).mean(0).numpy()
    return (per_chain.mean(0) - target.expected) / (per_chain.std(0, ddof=1) / N_CHAINS**0.5)


@pytest.mark.long
@pytest.mark.kept("hmc-*", "aligned-*")
@pytest.mark.parametrize(
    ("kernel", "target", "precondition"), pairwise(KERNELS, TARGETS, PRECONDITIONERS)
)
def test_expectations_of_a_known_target(kernel, precondition, target):
    assert np.abs(z_scores(kernel, target(), precondition)).max() < Z_MAX


def test_a_kernel_that_accepts_everything_is_caught():
    assert np.abs(z_scores(AlwaysAccepts(), correlated_normal(0.8), dense)).max() > Z_MAX


# Simulation-based calibration (Talts et al. 2018): chain c has a data set of its own, drawn from
# the prior predictive; the rank of its true parameters among its draws is uniform.
N_DATA_SETS, N_ROWS, N_RANKS = 1024, 10, 16


class Replications(NamedTuple):
    truth: Tensor  # (C, 2), mean and log scale of normal data
    log_density: AutogradPosterior
    start: Tensor  # (C, 2), a draw from the prior


def _normal_prior(position):
    mean, log_scale = position.unbind(-1)
    return -0.5 * (mean**2 + (log_scale / 0.3) ** 2)


def _normal_likelihood(y, position):
    mean, log_scale = position.unsqueeze(-1).unbind(-2)
    return (-0.5 * ((y - mean) / log_scale.exp()) ** 2 - log_scale).sum(-1)


def replications():
    draw = partial(
        torch.randn, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )  # fmt: skip
    prior_scale = torch.tensor([1.0, 0.3], dtype=torch.float64)
    truth, start = (draw(N_DATA_SETS, 2) * prior_scale for _ in range(2))
    y = truth[:, :1] + truth[:, 1:].exp() * draw(N_DATA_SETS, N_ROWS)
    log_density = AutogradPosterior(2, _normal_prior, partial(_normal_likelihood, y))
    return Replications(truth, log_density, start)


def calibration(kernel, precondition, step_size):
    """p-values of uniform ranks: of the mean, of the log scale and of the log likelihood.

    The last depends on the data as no parameter does (Modrak et al. 2023).
    """
    case = replications()
    covariance = torch.diag(torch.tensor([0.3, 0.18], dtype=torch.float64) ** 2)
    draws = sample(
        kernel, case.log_density, case.start, preconditioner=precondition(covariance, N_DATA_SETS),
        step_size=step_size, n_warmup=40, n_draws=N_RANKS - 1, thin=4,
    )  # fmt: skip

    def with_likelihood(position):
        return torch.cat([position, case.log_density.likelihood(position).unsqueeze(-1)], -1)

    draws = torch.stack([with_likelihood(d) for d in draws])
    ranks = (draws < with_likelihood(case.truth)).sum(0)  # (C, 3)
    counts = [torch.bincount(r, minlength=N_RANKS) for r in ranks.T]
    return np.array([stats.chisquare(c.numpy()).pvalue for c in counts])


@pytest.mark.long
@pytest.mark.parametrize(
    ("kernel", "precondition"),
    [
        pytest.param(k, p, marks=[] if i == j else pytest.mark.slow)
        for i, k in enumerate(KERNELS.values())
        for j, p in enumerate(PRECONDITIONERS.values())
    ],
)
def test_simulation_based_calibration(kernel, precondition):
    assert calibration(kernel, precondition, 0.5).min() > P_MIN


def test_calibration_catches_a_kernel_that_accepts_everything():
    assert calibration(AlwaysAccepts(), dense, 0.9).min() < P_MIN


def few_moves(kernel, dtype=torch.float64, seed=0, step_size=0.3, start=None, n=3):
    target = unequal_mixture()
    if start is None:
        start = torch.randn(64, 2, generator=torch.Generator().manual_seed(3))
    state = initial_state(start.to(dtype), target.log_density)
    generator = torch.Generator().manual_seed(seed)
    infos = []
    for _ in range(n):
        state, info = kernel.step(
            state, target.log_density,
            step_size=torch.full((len(start),), step_size, dtype=dtype),
            preconditioner=DiagonalPreconditioner(torch.ones(2, dtype=dtype)), generator=generator,
        )  # fmt: skip
        infos.append(info)
    return state, infos


@every_kernel
def test_the_seed_decides_everything_and_nothing_global_moves(kernel):
    before = torch.get_rng_state()
    first, second, other = (few_moves(kernel, seed=s)[0] for s in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.position, second.position)
    assert not torch.equal(first.position, other.position)


@every_kernel
def test_a_state_knows_its_value_and_gradient(kernel):
    state, _ = few_moves(kernel)
    again = initial_state(state.position, unequal_mixture().log_density)
    torch.testing.assert_close(state, again)


@every_kernel
def test_the_state_given_stays_as_it_was(kernel):
    start = torch.randn(64, 2, generator=torch.Generator().manual_seed(3)).double()
    before = start.clone()
    few_moves(kernel, start=start)
    assert torch.equal(start, before)


@every_kernel
def test_float32_follows_float64(kernel):
    """One move. Rounding may change the acceptance of a rare chain, but not of 1 in 32."""
    single, double = (few_moves(kernel, dtype, n=1)[0] for dtype in (torch.float32, torch.float64))
    assert {t.dtype for t in single} == {torch.float32}
    close = torch.isclose(single.position.double(), double.position, atol=1e-4).all(1)
    assert close.double().mean() >= 1 - 1 / 32


@every_kernel
def test_the_report_is_true(kernel):
    start, _ = few_moves(kernel, n=1)
    state, infos = few_moves(kernel, n=2)
    info = infos[-1]
    assert torch.equal(info.accepted, (state.position != start.position).any(1))
    assert ((info.acceptance > 0) & (info.acceptance <= 1)).all()
    assert not info.divergent.any()
    assert info.n_gradients.dtype == torch.int64
    assert (info.n_gradients >= 1).all()


@every_kernel
def test_a_step_far_too_long_is_divergent_and_rejected(kernel):
    start = torch.randn(64, 2, generator=torch.Generator().manual_seed(3)).double()
    state, infos = few_moves(kernel, start=start, step_size=1e3, n=1)
    assert infos[0].divergent.all()
    assert not infos[0].accepted.any()
    assert torch.equal(state.position, start)


@every_kernel
def test_chains_dont_see_each_other(kernel):
    """A divergent chain doesn't change the others."""
    start = torch.randn(64, 2, generator=torch.Generator().manual_seed(3)).double()
    lost = start.clone()
    lost[5] = 1e200
    (a, infos_a), (b, infos_b) = (few_moves(kernel, start=s, n=1) for s in (start, lost))
    others = torch.arange(64) != 5
    for before, after in zip((*a, *infos_a[0]), (*b, *infos_b[0]), strict=True):
        if before is not None:  # not every move has an energy error
            assert torch.equal(before[others], after[others])
    assert torch.equal(b.position[5], lost[5])
