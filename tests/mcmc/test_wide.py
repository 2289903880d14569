"""Chains that start as an ensemble's members do: ``Chains(init="ensemble")``."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import HMC, Annealing, Chains, MCMCClassifier, MCMCRegressor
from skbayes_sym.mcmc.config import SamplingDefaults
from skbayes_sym.mcmc.diagnostics import chain_warnings
from skbayes_sym.mcmc.initialization import INITS, choose_init, default_prior_scale
from skbayes_sym.models.likelihoods.noise import Gaussian, Heteroscedastic
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.priors import Normal
from skbayes_sym.symmetry.group import Trivial

rng = np.random.default_rng(0)
X = rng.standard_normal((60, 2))
SIGNAL = np.sin(2 * X[:, 0])
Y = SIGNAL + 0.1 * rng.standard_normal(60)
TWO = np.column_stack([Y, 5.0 - 3.0 * X[:, 1]])
LABELS = np.digitize(SIGNAL, [-0.4, 0.4])

QUICK = {
    "hidden_layer_sizes": (6, 5), "n_chains": 5, "n_draws": 12, "random_state": 0,
    "sampler": Chains(HMC(max_leapfrog=4), init=Annealing(60, 40, n_settle=20), n_warmup=30),
}  # fmt: skip
NOISY = MCMCRegressor(**QUICK, likelihood="heteroscedastic")
# For comparisons of two fits.
SHORT = clone(NOISY).set_params(
    sampler__init=Annealing(10, 6, n_settle=3), sampler__n_warmup=4, n_draws=3
)


def fitted(estimator, *data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so few moves don't converge
        return clone(estimator).fit(*data)


@pytest.fixture(scope="module")
def noisy():
    return fitted(NOISY, X, Y)


CASES = {
    "two-targets": (MCMCRegressor(**QUICK), TWO),
    "relu": (MCMCRegressor(**QUICK, activation="relu"), Y),
    "three-layers": (
        MCMCRegressor(**{**QUICK, "hidden_layer_sizes": (6, 4, 3)}, activation="softplus"), Y,
    ),
    "classes": (MCMCClassifier(**QUICK), LABELS),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.kept("three-layers", "classes")
@pytest.mark.parametrize("name", CASES)
def test_it_learns(name):
    estimator, y = CASES[name]
    found = fitted(estimator, X, y)
    assert found.samples_.shape[:2] == (5, 12)
    assert np.isfinite(found.log_posterior_samples_).all()
    assert found.score(X, y) > 0.6


@pytest.mark.long
def test_all_chains_have_one_vote_and_say_why(noisy):
    np.testing.assert_array_equal(noisy.chain_weights_, 0.2)
    assert np.isnan(noisy.log_evidence_)
    assert "all chains have equal weights" in noisy.diagnostics_.evidence_problems
    assert noisy.modes_ == []


def test_what_is_known_of_every_chain(noisy):
    found = noisy.diagnostics_
    for name in ("acceptance", "energy_error", "function_rhat_within", "function_ess_within"):
        assert found[name].shape == (5,)
        assert np.isfinite(found[name]).all()
    assert ((found.acceptance > 0) & (found.acceptance <= 1)).all()
    assert (found.energy_error > 0).all()
    # Adam, then two gradients a step, then trajectories
    assert (found.n_gradients > 60 + 2 * 60 + 42).all()


@pytest.mark.long
def test_a_warm_start_goes_on_without_annealing():
    model = fitted(clone(NOISY).set_params(sampler__warm_start=True), X, Y)
    before = model.diagnostics_.n_gradients
    model.set_params(sampler__n_warmup=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, Y)
    assert (model.diagnostics_.n_gradients < 0.7 * before).all()
    assert model.n_iter_ == 12


def test_it_needs_a_warm_up():
    with pytest.raises(ValueError, match="init='ensemble' needs n_warmup of at least 1, got 0"):
        clone(NOISY).set_params(sampler__n_warmup=0).fit(X, Y)


@pytest.mark.long
def test_a_linear_network_has_its_closed_form():
    """The whole pipeline against the conjugate posterior: means and variances of the weights."""
    z = rng.standard_normal((80, 2)) * [1.0, 4.0]
    y = z @ [1.0, -0.5] + 0.3 + 0.5 * rng.standard_normal(80)
    settings = {"hidden_layer_sizes": (), "activation": "identity", "noise_std": 0.5}
    model = fitted(
        MCMCRegressor(
            **{**QUICK, **settings, "n_chains": 24, "n_draws": 60}, standardize=False,
        ),
        z, y,
    )  # fmt: skip
    design = np.column_stack([z, np.ones(80)])
    covariance = np.linalg.inv(design.T @ design / 0.25 + np.eye(3))
    mean = covariance @ design.T @ y / 0.25
    chains = model.samples_.mean(1)
    assert (abs(chains.mean(0) - mean) < 4.5 * chains.std(0, ddof=1) / 24**0.5).all()
    ratio = ((model.samples_ - mean) ** 2).mean(1) / covariance.diagonal()
    assert (abs(ratio.mean(0) - 1) < 4.5 * ratio.std(0, ddof=1) / 24**0.5).all()


@pytest.mark.long
def test_annealed_chains_have_given_scales_by_default(noisy):
    assert not hasattr(noisy, "prior_scale_")
    theta = torch.as_tensor(noisy.samples_[0]).double()
    given = clone(NOISY).set_params(prior=1.0)
    posterior, expected = (
        noisy.posterior_density().prior, given._make_prior(noisy.network_)
    )  # fmt: skip
    assert torch.equal(posterior.log_prob(theta), expected.log_prob(theta))
    np.testing.assert_array_equal(fitted(given, X, Y).samples_, noisy.samples_)


@pytest.mark.long
def test_noise_of_repeated_rows_has_a_least(noisy):
    """Without the bound their likelihood is unbounded. A likelihood object isn't changed."""
    assert noisy.likelihood_.least == 0.0
    twice = np.concatenate([np.arange(60), [0, 1]])
    repeated = fitted(SHORT, X[twice], Y[twice])
    assert repeated.likelihood_.least == 0.02
    spread = repeated.predict_uncertainty(X).aleatoric
    assert (spread > (0.02 * repeated.y_scale_[0]) ** 2).all()
    given = Heteroscedastic(least=0.0)
    assert (
        fitted(clone(SHORT).set_params(likelihood=given), X[twice], Y[twice]).likelihood_ == given
    )
    again = fitted(SHORT, X, Y, np.where(np.arange(60) < 2, 2.0, 1.0))
    np.testing.assert_array_equal(again.predict(X), repeated.predict(X))


def test_values_are_as_precise_as_the_data(noisy):
    """Only gradients are float32; the acceptance step corrects their error."""
    last = torch.as_tensor(noisy.draw_positions()[:, -1])
    offset = noisy.log_posterior_samples_[:, -1] - noisy.posterior_density()(last).numpy()
    np.testing.assert_allclose(offset, offset[0], rtol=1e-12)


def test_wide_layers_have_smaller_ones():
    scale = default_prior_scale(MLP(5, (100, 3), 2, TANH))
    weights = [500, 100, 300, 3, 6, 2]
    expected = [1.0, 1.0, 0.4, 1.0, 1.0, 1.0]
    torch.testing.assert_close(scale, torch.tensor(expected).double().repeat_interleave(
        torch.tensor(weights)
    ))  # fmt: skip


@pytest.mark.long
def test_scales_are_learned_where_asked():
    """Annealing uses fixed scales and float32; the chains then sample the learned scales."""
    model = fitted(clone(NOISY).set_params(prior="learn"), X, Y)
    assert model.samples_.dtype == np.float64
    assert model.prior_scale_.shape == (6,)
    assert hasattr(model.posterior_density().prior, "log_scale")
    draws = torch.as_tensor(model.draw_positions())
    values = model.posterior_density()(draws.flatten(0, 1)).numpy().reshape(5, 12)
    offset = model.log_posterior_samples_ - values
    np.testing.assert_allclose(offset, offset[0, 0], rtol=1e-9)  # the exact part's own density


def model_of(*hidden):
    network = MLP(5, hidden, 1, TANH)
    return Model(network, Gaussian(), Normal(1.0).bind(network.layout), Trivial())


def test_the_size_of_the_network_chooses():
    n_rows = 10**8  # too many rows to find modes
    few, many = model_of(28), model_of(29)  # 197 weights
    assert choose_init(few, n_rows, SamplingDefaults()) == "prior"
    assert choose_init(many, n_rows, SamplingDefaults()) == "ensemble"
    assert choose_init(few, 100, SamplingDefaults()) == "laplace"
    usual = {name: (init.n_chains, init.n_warmup) for name, init in INITS.items()}
    assert usual == {"prior": (64, 1000), "laplace": (16, 150), "ensemble": (12, 100)}
    for explicit in ("hmc", Chains("hmc"), Chains(init="prior")):
        assert MCMCRegressor(sampler=explicit)._make_method().choose_init(many, n_rows) == "prior"
    assert MCMCRegressor()._make_method().choose_init(many, n_rows) == "ensemble"


def test_chains_not_to_be_believed_are_named():
    acceptance, rhat = np.array([0.8, 0.3, np.nan]), np.array([1.0, 1.1, 2.0])
    first, second = chain_warnings(acceptance, rhat, SamplingDefaults())
    assert first.startswith("of 3 chains number 1 (0.30) accepted fewer than 65 %")
    assert second.startswith("of 3 chains number 2 (2.00)")
    assert chain_warnings(np.array([0.9]), np.array([1.0]), SamplingDefaults()) == []
