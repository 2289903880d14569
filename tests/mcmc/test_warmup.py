from math import exp, log

import pytest
import torch
from mcmc.known_densities import scaled
from torch.testing import assert_close

from skbayes_sym.base.log_density import Evaluation
from skbayes_sym.mcmc.kernels import State, energy_error, initial_state, leapfrog
from skbayes_sym.mcmc.warmup import (
    MAX_STEP_SIZE,
    MIN_STEP_SIZE,
    DualAveraging,
    FixedPreconditioner,
    PooledDiagonal,
    RunningMoments,
    find_reasonable_step_size,
    pooled_variance,
    stan_windows,
)
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner
from skbayes_sym.symmetry.group import Trivial
from skbayes_sym.symmetry.units import Units


@pytest.mark.parametrize(
    ("n_warmup", "lengths"),
    [
        (1000, [75, 25, 50, 100, 200, 500, 50]),  # Stan's reference manual
        (300, [75, 25, 50, 100, 50]),
        (250, [75, 25, 100, 50]),
        (150, [75, 25, 50]),
        (100, [15, 75, 10]),
        (40, [6, 24, 10]),
        (19, [19]),
        (0, []),
    ],
)
def test_windows(n_warmup, lengths):
    windows = stan_windows(n_warmup)
    assert [w.n_moves for w in windows] == lengths
    if n_warmup >= 40:
        assert [w.learns_scale for w in windows] == [False, *[True] * (len(lengths) - 2), False]


def test_dual_averaging_finds_each_chain_its_own_step_size():
    """Acceptance exp(-(eps / s)^2) is 0.8 at s sqrt(-log 0.8), whatever the others' s."""
    s = torch.tensor([1e-3, 0.1, 1.0, 30.0], dtype=torch.float64)
    averaging = DualAveraging.start(s)
    for _ in range(1000):
        averaging = averaging.update((-((averaging.log_step_size.exp() / s) ** 2)).exp(), 0.8)
    expected = s.log() + 0.5 * log(-log(0.8))
    assert_close(averaging.log_average, expected, rtol=0, atol=0.05)


def test_dual_averaging_by_hand():
    """Three updates of Hoffman & Gelman's eq. 6, spelt out."""
    averaging, h, average = DualAveraging.start(torch.tensor([0.5])), 0.0, 0.0
    mu = torch.tensor(5.0).double().log().item()
    for m, acceptance in enumerate([0.3, 1.0, 0.6], start=1):
        averaging = averaging.update(torch.tensor([acceptance]), 0.8)
        h = (1 - 1 / (m + 10)) * h + (0.8 - acceptance) / (m + 10)
        log_eps = mu - m**0.5 / 0.1 * h
        average = m**-0.75 * log_eps + (1 - m**-0.75) * average
        assert float(averaging.log_step_size) == pytest.approx(log_eps, abs=1e-6)
        assert float(averaging.log_average) == pytest.approx(average, abs=1e-6)


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_dual_averaging_stays_bounded(acceptance):
    averaging = DualAveraging.start(torch.tensor([0.1]))
    for _ in range(5000):
        averaging = averaging.update(torch.tensor([acceptance]), 0.8)
    for log_eps in (averaging.log_step_size, averaging.log_average):
        assert MIN_STEP_SIZE * (1 - 1e-9) <= exp(float(log_eps)) <= MAX_STEP_SIZE * (1 + 1e-9)


@pytest.mark.parametrize("start", [1e-4, 0.3, 100.0])
def test_reasonable_step_size_crosses_the_target(start, generator):
    """The final size and the one before, a factor of two apart, bracket the target."""
    scale = torch.tensor([1e-2, 1.0, 3.0]).double()
    state = initial_state(torch.randn(40, 3, generator=generator).double() * scale, scaled(scale))
    preconditioner = DiagonalPreconditioner(
        torch.linspace(0.1, 10, 40).double().unsqueeze(1).expand(40, 3)
    )
    step, n_gradients = find_reasonable_step_size(
        state, scaled(scale), step_size=torch.full((40,), start).double(),
        preconditioner=preconditioner,
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    p = torch.randn(40, 3, generator=torch.Generator().manual_seed(3)).double()

    def acceptance(eps):
        end = leapfrog(state, scaled(scale), p, eps, preconditioner, 1)
        return (-energy_error(state, p, *end)).exp()

    down = step < start
    assert bool((acceptance(step[down].new_tensor(start).expand(40))[down] <= 0.8).all())
    assert bool((acceptance(step)[down] > 0.8).all())
    assert bool((acceptance(2 * step)[down] <= 0.8).all())
    assert bool((acceptance(step)[~down] <= 0.8).all())
    assert bool((acceptance(step / 2)[~down] > 0.8).all())
    assert n_gradients <= 40


def test_reasonable_step_size_is_bounded_and_per_chain(generator):
    """A flat density, a wall on all sides, and a normal beside them."""

    class Odd:
        n_dims = 1

        def evaluate(self, x):
            flat, wall, normal = 0 * x[0], torch.where(x[1] == 0, 0.0, -torch.inf), -0.5 * x[2] ** 2
            return Evaluation(
                torch.cat([flat, wall.double(), normal]), x * torch.tensor([[0.0], [0.0], [-1.0]])
            )

    position = torch.tensor([[0.0], [0.0], [0.5]]).double()
    state = State(position, *Odd().evaluate(position))
    step, n_gradients = find_reasonable_step_size(
        state, Odd(), step_size=torch.ones(3).double(), generator=generator,
        preconditioner=DiagonalPreconditioner(torch.ones(1).double()),
    )  # fmt: skip
    assert float(step[0]) == MAX_STEP_SIZE
    assert float(step[1]) == MIN_STEP_SIZE
    assert 0.1 < float(step[2]) < 10
    assert n_gradients < 30


def moments_of(draws):
    moments = RunningMoments.empty(draws[0])
    for draw in draws:
        moments = moments.add(draw)
    return moments


def test_moments(generator):
    x = 1e4 + torch.randn(50, 3, 4, generator=generator, dtype=torch.float64)
    moments = moments_of(x)
    assert_close(moments.mean, x.mean(0), rtol=1e-14, atol=0)
    assert_close(moments.variance(), x.var(0), rtol=1e-10, atol=0)


UNITS = Units(torch.tensor([[0, 3], [1, 4], [2, 5]]))  # two weights each, and one alone
ORBITS = UNITS.coordinate_orbits(7)


def test_pooled_variance_by_hand():
    variance = torch.tensor([[1.0, 2.0, 4.0], [2.0, 4.0, 5.0], [30.0, 3.0, 6.0]]).double()
    # first orbit: means 1.5, 3, 16.5, median 3; second: median 5
    pooled = torch.tensor([3.0, 3.0, 5.0]).double()
    expected = (10 * variance + 5 * pooled) / 15
    assert_close(pooled_variance(variance, 10, torch.tensor([0, 0, 1])), expected)


def test_stuck_chains_do_not_set_the_scale(generator):
    """Chains that hardly move or diverge barely change the scales of the others."""
    variance = 1 + 0.01 * torch.rand(9, 7, generator=generator, dtype=torch.float64)
    odd = torch.cat([variance, torch.full((2, 7), 1e-12), torch.full((2, 7), 1e12)]).double()
    dead = torch.cat([variance, torch.zeros(30, 7).double()])
    plain = pooled_variance(variance, 20, ORBITS)
    assert_close(pooled_variance(odd, 20, ORBITS)[:9], plain, rtol=0.01, atol=0)
    assert_close(pooled_variance(dead, 20, ORBITS)[:9], plain, rtol=0, atol=0)
    # A chain without any information of its own gets its orbit's scale, not zero.
    assert float(pooled_variance(dead, 20, ORBITS)[9:].min()) > 0.15


def test_pooled_variance_is_equivariant(generator):
    """With another copy of the mode in every chain the scales are permuted alike."""
    variance = torch.rand(8, 7, generator=generator, dtype=torch.float64).exp()
    keys = torch.rand(8, 3, generator=generator)
    order = torch.cat([keys.argsort(1), keys.argsort(1) + 3, torch.full((8, 1), 6)], 1)
    moved = pooled_variance(variance.gather(1, order), 30, ORBITS)
    assert_close(moved, pooled_variance(variance, 30, ORBITS).gather(1, order), rtol=1e-13, atol=0)


def test_preconditioner_without_any_move_stays():
    position = torch.ones(4, 7)
    moments = moments_of([position] * 10)
    before = DiagonalPreconditioner(torch.full((4, 7), 0.3))
    assert PooledDiagonal(UNITS).fit(before, moments, position) is before


def test_fit_gives_standard_deviations_in_the_working_dtype(generator):
    scale = torch.logspace(-3, 3, 7)
    x = torch.randn(4000, 2, 7, generator=generator) * scale
    before = DiagonalPreconditioner(torch.ones(2, 7))
    fitted = PooledDiagonal(Trivial()).fit(before, moments_of(x), x[0])
    assert fitted.scale.dtype == torch.float32
    ratio = fitted.scale / scale
    assert_close(ratio, torch.ones(2, 7), rtol=0, atol=4.5 * (2 * 4000) ** -0.5)


def test_windows_add_up():
    for n in range(500):
        assert sum(w.n_moves for w in stan_windows(n)) == n
        assert sum(w.n_moves for w in FixedPreconditioner().windows(n)) == n
        assert not any(w.learns_scale for w in FixedPreconditioner().windows(n))
