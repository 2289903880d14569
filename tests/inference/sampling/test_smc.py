"""Tempered SMC against posteriors with known evidence, weights and moments.

Tolerances are 4 standard errors from the spread between seeds.
"""

from math import log, pi

import pytest
import torch
from inference.sampling.known_evidence import (
    F64,
    Linear,
    NormalDraws,
    linear_problem,
    normal_prior,
    seeded,
)
from thin import some
from torch.testing import assert_close

from skbayes_sym.inference.log_density import AutogradPosterior
from skbayes_sym.inference.sampling.smc import (
    SMCSettings,
    SMCStage,
    Stages,
    effective_fraction,
    log_mean_weight,
    next_temperature,
    run_replicates,
    smc,
    systematic_resample,
)
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.group import Product, Trivial
from skbayes_sym.symmetry.units import Units

SMALL = SMCSettings(n_particles=256, n_moves=4)


class TwoWeights:
    """Likelihood of ``y = w2 tanh(w1 x)``: two symmetric modes."""

    x = torch.linspace(-2.0, 2.0, 20, dtype=F64)
    y = 1.2 * torch.tanh(1.5 * x) + 0.3 * torch.sin(37.0 * x)

    def __call__(self, w):
        z = (self.y - w[:, 1:] * torch.tanh(w[:, :1] * self.x)) / 0.3
        return -0.5 * z.square().sum(dim=1) - len(self.x) * log(0.3 * (2 * pi) ** 0.5)


TWO_WEIGHTS = AutogradPosterior(2, normal_prior, TwoWeights(), NormalDraws(2))
FLIP = Product((Units(torch.tensor([[0, 1]]), flip=True),))


def within(values, truth, k=4.0):
    """Whether the mean over seeds is within ``k`` standard errors of the truth."""
    values = torch.as_tensor(values, dtype=F64)
    return bool(((values.mean(0) - truth).abs() < k * values.std(0) / len(values) ** 0.5).all())


@pytest.mark.long
def test_linear_model_evidence_mean_and_covariance():
    posterior, likelihood = linear_problem()
    log_evidence, mean, covariance = likelihood.exact()
    runs = [smc(posterior, Trivial(), SMALL, generator=seeded(s)) for s in range(8)]
    assert all(run.complete and run.stages[-1].temperature == 1.0 for run in runs)
    assert within([(run.log_evidence - log_evidence) for run in runs], 0.0)
    assert max(abs(run.log_evidence - log_evidence) for run in runs) < 1.0
    assert within(torch.stack([run.particles.mean(dim=0) for run in runs]), mean)
    found = torch.stack([torch.cov(run.particles.mT).flatten() for run in runs])
    assert within(found, covariance.flatten())


@pytest.mark.long
@pytest.mark.kept("flip")
@pytest.mark.parametrize("group", [Trivial(), FLIP], ids=["no-symmetry", "flip"])
def test_two_weight_network_against_quadrature(group):
    grid = torch.linspace(-6.0, 6.0, 601, dtype=F64)
    points = torch.cartesian_prod(grid, grid)
    exact = float(torch.logsumexp(TWO_WEIGHTS(points), dim=0)) + 2 * log(0.02)
    weights = torch.softmax(TWO_WEIGHTS(points), dim=0)
    product_mean = float((weights * points.prod(dim=1)).sum())
    runs = [smc(TWO_WEIGHTS, group, SMALL, generator=seeded(s)) for s in range(8)]
    assert within([run.log_evidence for run in runs], exact)
    assert within([float(run.particles.prod(dim=1).mean()) for run in runs], product_mean)
    positive = [float((run.particles[:, 0] > 0).double().mean()) for run in runs]
    assert within(positive, 0.5)
    # The flip is known or found by the particles: known is a coin a particle.
    assert torch.tensor(positive).std() < (0.05 if group is FLIP else 0.15)


@pytest.mark.long
@pytest.mark.kept("True")
@pytest.mark.parametrize("full", [True, False])
def test_overlapping_copies_are_sampled_right(full):
    """The boundary runs through the bulk, and either kernel keeps the law of the gap.

    Three exchangeable coordinates of which the data see the sum alone: ``x_1 - x_2`` is N(0, 2).
    The full kernel is kept whatever the boundary costs.
    """
    group = Product((Units(torch.tensor([[0], [1], [2]])),))
    y = torch.tensor([2.0, 1.0, 1.5, 2.5], dtype=F64)
    likelihood = Linear(torch.ones(4, 3, dtype=F64), y, 0.5)
    posterior = AutogradPosterior(3, normal_prior, likelihood, NormalDraws(3))
    settings = SMCSettings(n_particles=512, n_moves=10, allow_full=full, most_lost=1.0)
    runs = [smc(posterior, group, settings, generator=seeded(s)) for s in range(8)]
    assert any(stage.full for stage in runs[0].stages) == full
    assert (max(stage.boundary_loss for stage in runs[0].stages) > 0.1) == full
    log_evidence, mean, _ = likelihood.exact()
    assert within([run.log_evidence for run in runs], log_evidence)
    ends = torch.stack([run.particles.amax(1) - run.particles.amin(1) for run in runs])
    assert within(ends.mean(dim=1), 3.0 / pi**0.5)  # range of three standard normals
    assert within(torch.stack([run.particles.mean(dim=0) for run in runs]), mean)


def network_problem(hidden, dtype=F64, n_rows=30):
    network = MLP(1, hidden, 1, TANH)
    x = torch.linspace(-2.0, 2.0, n_rows, dtype=dtype).unsqueeze(1)
    y = torch.sin(2.0 * x[:, 0])
    n_dims = network.layout.n_params

    def likelihood(theta):
        z = (y - network.forward(theta, x).squeeze(-1)) / 0.2
        return -0.5 * z.square().sum(dim=1) - n_rows * log(0.2 * (2 * pi) ** 0.5)

    draws = NormalDraws(n_dims, dtype=dtype)
    return AutogradPosterior(n_dims, normal_prior, likelihood, draws), network.symmetry()


@pytest.mark.long
def test_stages_of_a_network_and_what_they_report():
    posterior, group = network_problem((3,))
    told = []
    run = smc(
        posterior,
        group,
        SMALL,
        generator=seeded(0),
        on_step=lambda stage, info: told.append((stage, info)) and False,
    )
    assert run.complete
    temperatures = [stage.temperature for stage in run.stages]
    assert temperatures == sorted(set(temperatures))
    assert [stage for stage, _ in told] == list(range(1, len(run.stages) + 1))
    assert told[-1][1]["log_evidence"] == run.log_evidence == run.stages[-1].log_evidence
    assert_close(run.log_likelihood, posterior.log_likelihood(run.particles))
    eves = [stage.n_eves for stage in run.stages]
    assert eves == sorted(eves, reverse=True)
    assert eves[-1] == len(run.eves.unique()) < 200
    assert not run.stages[0].full
    assert run.stages[-1].full
    assert abs(run.stages[-1].correlation) < 0.9
    assert abs(run.stages[-1].acceptance - 0.8) < 0.15
    n_most = 256 * len(run.stages) * (1 + 4 * 16)
    assert 256 * len(run.stages) * (1 + 4) <= run.n_gradients <= n_most
    again = smc(posterior, group, SMALL, generator=seeded(0))
    assert_close(again.particles, run.particles, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("hidden", "n_particles", "ever_full"),
    [((2, 2), 128, True), ((5, 5), 128, False), ((3,), 15, False)],
    ids=["small-product", "large-product", "few-particles"],
)
def test_full_kernel_where_its_domain_and_covariance_exist(hidden, n_particles, ever_full):
    posterior, group = network_problem(hidden)
    settings = SMCSettings(n_particles=n_particles, n_moves=1, max_stages=3)
    run = smc(posterior, group, settings, generator=seeded(0))
    assert any(stage.full for stage in run.stages) == ever_full
    assert run.stopped == "max_iter"
    assert run.log_evidence != run.log_evidence
    assert bool(run.particles.isfinite().all())


def test_which_kernel_is_next():
    """Pooled first; the full one every third stage until it pays, then for good."""
    losses = iter([0.5, 0.3, 0.11, 0.1, 0.0, 0.2, 0.0])  # of its stages
    posterior, group = network_problem((2,))
    stages = Stages(posterior, group, SMCSettings(), seeded(0))
    tuning, sequence = stages.first_tuning(), ""
    for _ in range(16):
        full = stages.use_full(tuning)
        sequence += "f" if full else "t"
        size, loss = (2.0, next(losses)) if full else (3.0, 0.0)
        tuning = stages.next_tuning(
            tuning, tuning.reference, SMCStage(0.5, 0.0, full, 0.8, size, loss, 9, 0.0)
        )
    assert sequence == "tfttfttfttfff" + "ttf"
    assert_close(tuning.log_steps, (log(3.0), log(2.0)))


def test_pooled_kernel_does_not_depend_on_the_copies_given(generator):
    """The same scale from other copies of the particles, and it commutes with the group."""
    posterior, group = network_problem((3,))
    x = posterior.sample_prior(200, generator=generator)
    other = group.act(group.sample((200,), generator=generator), x)
    scales = []
    for particles in (x, other):
        stages = Stages(posterior, group, SMALL, seeded(5))
        aligned, _ = stages.align(particles, stages.first_tuning())
        scales.append(stages.pooled(aligned).preconditioner.scale)
    assert_close(*scales)
    g = group.sample((10,), generator=generator)
    z = torch.randn(10, posterior.n_dims, generator=generator, dtype=F64)
    assert_close(group.act(g, scales[0] * z), scales[0] * group.act(g, z), rtol=0, atol=0)


def test_stopping_keeps_the_particles():
    posterior, group = network_problem((2,))

    def at_two(stage, info):
        return stage == 2

    def interrupt(stage, info):
        if stage == 2:
            raise KeyboardInterrupt
        return False

    for callback, why in ((at_two, "callback"), (interrupt, "interrupted")):
        run = smc(posterior, group, SMALL, generator=seeded(0), on_step=callback)
        assert run.stopped == why
        assert len(run.stages) == 2
        assert run.log_evidence != run.log_evidence  # of no posterior: nan
        assert run.particles.shape == (256, posterior.n_dims)
        assert_close(run.log_likelihood, posterior.log_likelihood(run.particles))


def test_no_likelihood_anywhere_is_an_error():
    posterior = AutogradPosterior(
        2, normal_prior, lambda x: torch.full((len(x),), torch.nan, dtype=F64), NormalDraws(2)
    )
    with pytest.raises(ValueError, match="finite at none of 256 draws"):
        smc(posterior, Trivial(), SMALL, generator=seeded(0))


def test_regions_without_likelihood_are_left():
    """x_1 > 0 alone has mass: evidence 1/2."""

    def likelihood(x):
        return torch.where(x[:, 0] > 0, 0.0 * x[:, 0], torch.nan)

    posterior = AutogradPosterior(2, normal_prior, likelihood, NormalDraws(2))
    runs = [smc(posterior, Trivial(), SMALL, generator=seeded(s)) for s in range(8)]
    assert all(bool((run.particles[:, 0] > 0).all()) for run in runs)
    assert within([run.log_evidence for run in runs], log(0.5))


def test_a_coordinate_that_is_zero_for_everyone():
    """A prior draw of exactly 0 must not stop the particles."""

    def draws(n, generator):
        x = torch.randn(n, 2, generator=generator, dtype=F64)
        x[0] = 0.0
        return x

    posterior = AutogradPosterior(2, normal_prior, lambda x: -2.0 * x[:, 0].square(), draws)
    run = smc(posterior, Trivial(), SMALL, generator=seeded(0))
    assert all(stage.boundary_loss == 0.0 for stage in run.stages)
    assert min(stage.acceptance for stage in run.stages) > 0.3


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("power", [1.0, 8.0, 40.0])
def test_step_leaves_the_effective_fraction(alpha, power, generator):
    """Also for log likelihoods over 40 orders of magnitude, as of prior draws of a network."""
    beta = 0.2
    log_likelihood = -(10.0 ** (power * torch.rand(500, generator=generator, dtype=F64)))
    found = next_temperature(log_likelihood, beta, alpha)
    w = ((found - beta) * log_likelihood).exp()
    expected = alpha if found < 1.0 else None
    fraction = float(w.mean().square() / w.square().mean())
    assert_close(effective_fraction((found - beta) * log_likelihood), fraction)
    if expected is not None and found - beta > 1e-12:  # below, beta + step itself is rounded
        assert abs(fraction - alpha) < 1e-3
    assert beta < found <= 1.0


def test_effective_fraction_of_lost_of_one_and_of_equal_particles():
    log_likelihood = torch.tensor([-1.0, -1.0, -torch.inf, -torch.inf], dtype=F64)
    assert_close(effective_fraction(log_likelihood), 0.5)
    assert_close(log_mean_weight(log_likelihood), -1.0 - log(2.0))
    assert next_temperature(torch.full((10,), -3.0), 0.0, 0.5) == 1.0  # flat: one step
    one = torch.full((100,), -1e6)
    one[7] = 0.0
    assert_close(effective_fraction(one), 0.01)
    assert_close(effective_fraction(torch.zeros(100) + 700.0), 1.0)


def test_resampling_is_unbiased(generator):
    """N w_i children on average, rounded up or down each time."""
    n, n_runs = 8, 4000
    w = torch.tensor([0.3, 0.0, 0.01, 0.19, 0.2, 0.05, 0.25, 0.0], dtype=F64)
    counts = torch.stack(
        [
            torch.bincount(systematic_resample(w.log() + 3.0, generator=generator), minlength=n)
            for _ in range(n_runs)
        ]
    ).double()
    wanted = n * w
    assert bool(((counts - wanted).abs() < 1.0 + 1e-9).all())
    se = (wanted.frac() * (1 - wanted.frac()) / n_runs).sqrt()
    assert bool(((counts.mean(dim=0) - wanted).abs() <= 4 * se + 1e-12).all())


@pytest.mark.processes
def test_replicates_do_not_depend_on_the_number_of_jobs():
    posterior, _ = linear_problem()
    arguments = (posterior, Trivial(), SMCSettings(n_particles=64, n_moves=2))
    told = []
    one = run_replicates(
        *arguments,
        seeds=spawn_seeds(7, 3),
        on_step=lambda k, info: told.append((k, info)) and False,
    )
    two = run_replicates(*arguments, seeds=spawn_seeds(7, 3), n_jobs=2)
    assert one[1] == two[1] == "max_iter"
    for ours, theirs in zip(one[0], two[0], strict=True):
        assert_close(ours.particles, theirs.particles, rtol=0, atol=0)
        assert ours.log_evidence == theirs.log_evidence
    assert len({run.log_evidence for run in one[0]}) == 3
    assert [k for k, _ in told] == [1, 2, 3]
    assert told[0][1]["log_evidence"] == one[0][0].log_evidence


@some("n_jobs", [1, 2], keep={1})
def test_replicates_can_be_stopped(n_jobs):
    posterior, _ = linear_problem()
    arguments = (posterior, Trivial(), SMCSettings(n_particles=32, n_moves=1))
    runs, stopped = run_replicates(
        *arguments, seeds=spawn_seeds(7, 4), n_jobs=n_jobs, on_step=lambda k, info: k == 2
    )
    assert len(runs) == 2
    assert stopped == "callback"
