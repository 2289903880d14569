"""The symmetrised ELBO: a bound, with the gradient it claims."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.models.priors import ARD, GaussianPrior
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.unit_gap import Bethe, Exact, Soules, UnitGap
from skbayes_sym.variational.elbo import GatedGap, GaussianNetwork, SymmetrizedElbo, pack
from skbayes_sym.variational.mean_field import expected_log_likelihood


def problem(network, generator, n=30):
    x = torch.randn(n, network.n_inputs, generator=generator, dtype=torch.float64)
    y = torch.sin(2 * x[:, :1]) + 0.1 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    prior = GaussianPrior(torch.ones(network.layout.n_params, dtype=torch.float64))
    return Data(x, y, torch.ones(n, dtype=torch.float64)), prior


def params_of(network, likelihood, generator, scale=0.3, spread=1.0):
    loc = spread * network.init(1, generator=generator)[0]
    return pack(loc, torch.full_like(loc, 2 * np.log(scale)), likelihood)


def objective_of(network, data, prior, params, likelihood, *, batch_size=None, seed=0, **options):
    batches = Batches(data, batch_size or len(data.x), generator_from(seed))
    model = GaussianNetwork(network, likelihood, prior, network.symmetry())
    return SymmetrizedElbo(model, batches, params, n_draws=1, **options)


def posterior_of(params, n):
    loc, log_variance = params[:n].numpy(), params[n : 2 * n].numpy()
    return MeanFieldGaussian(loc.copy(), np.exp(0.5 * log_variance))


def gated(group, generator, **options):
    exact, certificate = UnitGap(group, Exact()), UnitGap(group, Soules())
    return GatedGap(exact, certificate, generator=generator, **options)


@pytest.mark.long
def test_mean_loss_is_minus_the_bound(generator):
    network, likelihood = MLP(2, (4,), 1, TANH), Gaussian(torch.full((1,), -1.0).double())
    data, prior = problem(network, generator)
    params = params_of(network, likelihood, generator)
    n = network.layout.n_params
    gap = gated(network.symmetry(), generator_from(5))
    objective = objective_of(network, data, prior, params, likelihood, gap=gap)
    losses = torch.stack([objective(step) for step in range(250)])
    posterior = posterior_of(params, n)
    log_lik = expected_log_likelihood(
        network, likelihood.at(params[2 * n :]), posterior, data, n_draws=2000,
        generator=generator,
    )  # fmt: skip
    expected_gap = UnitGap(network.symmetry(), Exact()).estimate(
        posterior, 4000, generator=generator
    )
    bound = log_lik.value - posterior.kl_from(prior.scale.numpy()) + expected_gap.value
    error = np.hypot(float(losses.std()) / 250**0.5, log_lik.standard_error)
    error = np.hypot(error, expected_gap.standard_error)
    assert abs(float(losses.mean()) + bound) < 4 * error


def test_learned_scales_are_those_of_the_present_posterior(generator):
    """At step 0 the loss is that of the normal prior which the posterior asks for."""
    network, likelihood = MLP(2, (4,), 1, TANH), Gaussian(torch.full((1,), -1.0).double())
    data, _ = problem(network, generator)
    params = params_of(network, likelihood, generator)
    n = network.layout.n_params
    learned = ARD().bind(network.layout)
    moments = params[:n].clone(), params[n : 2 * n].exp()
    fixed = learned.update(*moments).gaussian()
    one, other = (
        objective_of(network, data, prior, params.clone(), likelihood) for prior in (learned, fixed)
    )
    assert_close(one(0), other(0))
    assert_close(one.gradient, other.gradient)
    # Of all scales these make the KL and the hyperprior least.
    posterior = posterior_of(params, n)

    def cost(hyper):
        kl = posterior.kl_from(learned.at(hyper).scale.numpy())
        return kl - float(learned.log_hyperprior(hyper))

    best = learned.update(*moments).hyper
    for i in range(len(best)):
        for step in (-0.1, 0.1):
            moved = best.clone()
            moved[i] += step
            assert cost(moved) > cost(best)


@pytest.mark.parametrize("with_gap", [False, True], ids=["mean-field", "symmetrised"])
def test_gradient_equals_differences(with_gap, generator):
    """Central differences with the noise held fixed (each call reseeds both streams)."""
    network, likelihood = MLP(2, (3,), 1, TANH), Gaussian(torch.full((1,), -1.0).double())
    data, prior = problem(network, generator, n=8)
    start = params_of(network, likelihood, generator)

    def evaluate(params):
        gap = gated(network.symmetry(), generator_from(5))
        objective = objective_of(
            network, data, prior, params, likelihood, gap=gap if with_gap else None
        )
        return float(objective(0)), objective.gradient

    gradient = evaluate(start.clone())[1]
    step = 1e-4
    for i in range(0, len(start), 3):
        ends = []
        for sign in (1, -1):
            moved = start.clone()
            moved[i] += sign * step
            ends.append(evaluate(moved)[0])
        difference = (ends[0] - ends[1]) / (2 * step)
        # Noise is drawn in float32 but used in float64: the loss itself is float64.
        assert float(gradient[i]) == pytest.approx(difference, rel=2e-5, abs=2e-5)


def test_a_warm_up_weighs_kl_and_gap_in_the_gradient_alone(generator):
    """Half way it is the mean of the gradients without and with them, of the same loss."""
    network, likelihood = MLP(2, (3,), 1, TANH), Gaussian(torch.full((1,), -1.0).double())
    data, prior = problem(network, generator, n=8)
    params = params_of(network, likelihood, generator)

    def at(warm_up, gap=None):
        objective = objective_of(
            network, data, prior, params.clone(), likelihood, gap=gap, warm_up=[warm_up]
        )
        return float(objective(0)), objective.gradient

    losses, (whole, half, none) = zip(
        *(at(w, gated(network.symmetry(), generator_from(5))) for w in (1, 2, 10**15)), strict=True
    )
    assert losses[0] == losses[1] == losses[2]
    assert_close(half, 0.5 * (whole + none))
    (_, mean_field), (_, likelihood_alone) = at(1), at(10**15)
    assert_close(none, likelihood_alone)
    assert not torch.allclose(whole, mean_field)
    n = network.layout.n_params
    assert_close((mean_field - likelihood_alone)[:n], params[:n])  # the KL's, of a standard normal


@pytest.mark.long
def test_minibatches_are_unbiased(generator):
    network, likelihood = MLP(2, (3,), 1, RELU), Gaussian(torch.zeros(1).double())
    data, prior = problem(network, generator, n=40)
    data = data._replace(weight=torch.rand(40, generator=generator, dtype=torch.float64) + 0.5)
    params = params_of(network, likelihood, generator)
    means, errors = [], []
    for batch_size in (40, 10):
        objective = objective_of(network, data, prior, params, likelihood, batch_size=batch_size)
        values = torch.stack([objective(s) for s in range(600)])
        means.append(float(values.mean()))
        errors.append(float(values.std()) / 600**0.5)
    assert abs(means[0] - means[1]) < 4 * np.hypot(*errors)


def test_the_gap_has_its_own_random_stream(generator):
    """With and without the gap, batches and likelihood noise are the same numbers."""
    network, likelihood = MLP(2, (3,), 1, TANH), Gaussian(torch.zeros(1).double())
    data, prior = problem(network, generator)
    params = params_of(network, likelihood, generator)
    gap = gated(network.symmetry(), generator_from(5))
    values = []
    for term in (None, gap):
        objective = objective_of(
            network, data, prior, params, likelihood, gap=term, batch_size=10, seed=3
        )
        values.append(torch.cat([objective(step) for step in range(5)]))
    expected = gap_values(network, params, 5, seed=5)
    assert_close(values[0] - values[1], expected, rtol=1e-9, atol=1e-9)


def gap_values(network, params, n_steps, *, seed):
    gap, loc_and_log_variance = gated(network.symmetry(), generator_from(seed)), params[:-1]
    moments, nothing = loc_and_log_variance.chunk(2), torch.zeros_like(params)
    return torch.stack([gap.add_gradient(*moments, nothing, step) for step in range(n_steps)])


def test_expected_log_likelihood_counts_weights_as_repetitions(generator):
    network = MLP(2, (3,), 2, RELU)
    x = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1, 1])
    repeats = torch.tensor([1, 2, 1, 3, 1])
    posterior = MeanFieldGaussian(
        network.init(1, generator=generator)[0].numpy(), np.full(network.layout.n_params, 0.2)
    )
    again = (t.repeat_interleave(repeats, 0) for t in (x, y))
    weighted, repeated = (
        expected_log_likelihood(
            network, Categorical(), posterior, data, n_draws=20_000, generator=generator
        )
        for data in (Data(x, y, repeats.double()), Data(*again, torch.ones(8).double()))
    )
    error = np.hypot(weighted.standard_error, repeated.standard_error)
    assert abs(weighted.value - repeated.value) < 4 * error


class TestGate:
    network = MLP(2, (4,), 1, RELU)

    def run(self, loc, scale, n_steps, change=None, block=10):
        gap = gated(self.network.symmetry(), generator_from(0), block=block)
        log_variance = torch.full_like(loc, 2 * np.log(scale))
        gradient, norms = torch.zeros(2 * len(loc), dtype=torch.float64), []
        for step in range(n_steps):
            if change is not None and step == change[0]:
                log_variance.fill_(2 * np.log(change[1]))
            gradient.zero_()
            gap.add_gradient(loc, log_variance, gradient, step)
            norms.append(float(gradient.norm()))
        return gap, np.array(norms)

    @pytest.fixture
    def loc(self, generator):
        return torch.randn(self.network.layout.n_params, generator=generator, dtype=torch.float64)

    def test_a_gradient_stands_for_the_steps_it_is_held(self, loc):
        group = self.network.symmetry()
        gap = GatedGap(UnitGap(group, Exact()), generator=generator_from(0), hold=3)
        log_variance, drawn = torch.zeros_like(loc), []
        for step in range(7):
            gradient = torch.zeros(2 * len(loc), dtype=torch.float64)
            value = gap.add_gradient(loc, log_variance, gradient, step)
            drawn.append((float(value), *gradient.tolist()))
        assert drawn[0] == drawn[1] == drawn[2] != drawn[3] == drawn[4] == drawn[5] != drawn[6]

    def test_open_when_units_overlap(self, loc):
        gap, norms = self.run(loc, 1.0, 60)
        assert gap.n_skipped == 0
        assert (norms > 0).all()

    def test_never_latches(self, loc):
        """Units that come to overlap open it again, within the longest period."""
        gap, norms = self.run(loc, 1e-3, 600, change=(300, 1.0))
        assert not norms[:300].any()
        assert gap.n_skipped >= 300
        assert norms[400:].all()
        assert gap.n_skipped <= 400

    @pytest.mark.parametrize(
        ("block", "at"), [(10, [0, 50, 150, 250, 350]), (30, [0, 60, 180, 300]), (401, [0])]
    )
    def test_checks_back_off(self, block, at, loc, monkeypatch):
        """At the first beginning of a block that isn't sooner than the period says."""
        checked = []
        original = GatedGap._check_saturation

        def spy(self, loc, log_variance, step):
            checked.append(step)
            original(self, loc, log_variance, step)

        monkeypatch.setattr(GatedGap, "_check_saturation", spy)
        self.run(loc, 1e-3, 400, block=block)
        assert checked == at

    def test_a_check_waits_once(self, loc, cuda):
        there, generator = loc.to("cuda"), generator_from(0, torch.device("cuda"))
        group = self.network.symmetry()
        gap = GatedGap(UnitGap(group, Soules()), UnitGap(group, Soules()), generator=generator)
        gradient = torch.zeros(2 * len(loc), dtype=torch.float64, device="cuda")
        narrow = torch.full_like(there, 2 * np.log(1e-3))
        for step, n_waits in ((0, 1), (1, 0), (50, 1)):
            with cuda.trace() as seen:
                value = gap.add_gradient(there, narrow, gradient, step)
            assert sum(seen.waits.values()) == n_waits
        assert float(value) == pytest.approx(group.log_order)

    def test_what_is_skipped_is_negligible(self, loc):
        """At the certified saturation the exact gap's own gradient is below the tolerance."""
        leaf = loc.clone().requires_grad_()
        noise = torch.randn(50, len(loc), generator=generator_from(1), dtype=torch.float64)
        values = UnitGap(self.network.symmetry(), Exact()).values(
            leaf, torch.full_like(loc, 0.05), noise, generator=generator_from(0)
        )
        gap, _ = self.run(loc, 0.05, 1)
        (slope,) = torch.autograd.grad(values.mean(), leaf)
        assert gap.n_skipped == 1
        assert float(slope.norm()) < 1e-2 / 0.05  # tol nats per posterior sd

    def test_without_a_certificate_nothing_is_skipped(self, loc):
        gap = GatedGap(UnitGap(self.network.symmetry(), Exact()), generator=generator_from(0))
        gradient = torch.zeros(2 * len(loc), dtype=torch.float64)
        for step in range(3):
            value = gap.add_gradient(loc, torch.full_like(loc, -14.0), gradient, step)
            assert float(value) == pytest.approx(self.network.symmetry().log_order)
        assert gap.n_skipped == 0

    def test_refuses_an_upper_bound(self):
        with pytest.raises(ValueError, match="lower bound"):
            GatedGap(UnitGap(self.network.symmetry(), Bethe(), "upper"), generator=None)
