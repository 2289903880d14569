"""Where chains start, and the prior that learns its scales, collapsed: exact evidences."""

import numpy as np
import pytest
import torch
from quadrature import one_unit_log_evidence_of_learned_scales
from scipy import stats
from sklearn.datasets import load_diabetes, load_iris

from skbayes_sym import HMC, Chains, MCMCClassifier, MCMCRegressor, ModeWeights
from skbayes_sym.mcmc.config import SamplingDefaults
from skbayes_sym.mcmc.initialization import choose_init
from skbayes_sym.models import MLP, TANH, Categorical, Gaussian, HalfNormal, Model, Poisson
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.priors import ARD, LayerScales
from skbayes_sym.numerics.preconditioners import DensePreconditioner

FAST = {"n_chains": 8, "n_draws": 30, "random_state": 0,
        "remove_symmetries": ModeWeights("evidence")}  # fmt: skip
VOTES = {**FAST, "n_chains": 4, "n_draws": 10, "remove_symmetries": ModeWeights("uniform")}


def chains(init="prior", n_warmup=60, **settings):
    return Chains(HMC(max_leapfrog=16), init=init, n_warmup=n_warmup, **settings)


DIABETES = tuple(a[:60] for a in load_diabetes(return_X_y=True))


NETWORK = MLP(3, (4,), 1, TANH)
MODEL = Model(
    NETWORK, Gaussian(), LayerScales().bind(NETWORK.layout).collapse(), NETWORK.symmetry()
)


def one_unit_data():
    rng = np.random.default_rng(0)
    x = np.linspace(-2, 2, 25)
    return x, 1.2 * np.tanh(1.5 * x + 0.5) + 0.3 * rng.standard_normal(25)


@pytest.fixture(scope="module")
def exact():
    x, y = (torch.as_tensor(a) for a in one_unit_data())
    return one_unit_log_evidence_of_learned_scales(x, y, 2.0)


@pytest.mark.long
@pytest.mark.parametrize("init", ["prior", "laplace"])
def test_one_hidden_unit_under_learned_scales_has_its_evidence(init, exact):
    x, y = one_unit_data()
    many = {**FAST, "n_chains": 32}  # of 8 chains the standard error is .07 already
    many["sampler"] = chains(init, 100)
    prior = {"prior": LayerScales(shape=2.0), "noise_std": HalfNormal()}
    reg = MCMCRegressor((1,), standardize=False, **prior, **many)
    reg.fit(x[:, None], y)
    assert abs(reg.log_evidence_ - exact) < 0.1
    assert abs(reg.log_evidence_ - exact) < 4 * reg.log_evidence_std_error_


@pytest.mark.slow
def test_evidences_under_cauchy_tails_are_off_by_their_errors():
    """Twenty fits, at most three standard errors above a root mean square of 1."""
    z = []
    for seed in range(20):
        x = np.linspace(-2, 2, 10)
        y = 1.2 * np.tanh(1.5 * x + 0.5) + 0.3 * np.random.default_rng(seed).standard_normal(10)
        exact = one_unit_log_evidence_of_learned_scales(*map(torch.as_tensor, (x, y)), 0.5)
        reg = MCMCRegressor(
            (1,), sampler=Chains(n_warmup=200), n_chains=16, n_draws=50, standardize=False,
            noise_std=HalfNormal(), random_state=seed,
        ).fit(x[:, None], y)  # fmt: skip
        z.append((reg.log_evidence_ - exact) / reg.log_evidence_std_error_)
    assert np.mean(np.square(z)) ** 0.5 < 1.0 + 3.0 / 40**0.5


@pytest.mark.long
@pytest.mark.kept("prior1")
@pytest.mark.parametrize("prior", [LayerScales(), ARD()])
def test_scales_and_relevances(prior):
    X, y = DIABETES
    reg = MCMCRegressor((3,), prior=prior, sampler=chains("laplace"), **VOTES).fit(X, y)
    bound = prior.bind(reg.network_.layout)
    assert tuple(reg.prior_groups_) == bound.names
    theta = torch.as_tensor(reg.samples_)
    rate = bound.shape * bound.reference_variance + 0.5 * bound.sum_by_group(theta.square())
    distribution = stats.gamma(bound.shape + 0.5 * bound.sizes.numpy(), scale=1 / rate.numpy())
    scale = distribution.rvs((400, *rate.shape), random_state=0) ** -0.5
    np.testing.assert_allclose(np.log(reg.prior_scale_), np.log(scale).mean((0, 1, 2)), atol=0.05)
    assert hasattr(reg, "relevance_") == (prior == ARD())
    if prior == ARD():
        assert reg.relevance_.shape == (4, X.shape[1])
        assert reg.relevance_.mean(0).argmax() in (2, 8)  # body mass index, a serum


@pytest.mark.long
def test_chains_start_at_modes_in_turn_with_the_metric_there():
    X, y = DIABETES
    few = {**VOTES, "n_draws": 1}
    reg = MCMCRegressor((2,), sampler=chains("laplace", 0), **few).fit(X, y)
    (block,) = reg._blocks_
    assert isinstance(block.preconditioner, DensePreconditioner)
    assert block.preconditioner.cholesky.shape == (4, 26, 26)
    prior = MCMCRegressor((2,), sampler=chains("prior", 0), **few).fit(X, y)
    assert reg.log_posterior_samples_.min() > prior.log_posterior_samples_.max()


@pytest.mark.long
def test_classes():
    X, y = load_iris(return_X_y=True)
    clf = MCMCClassifier((2,), sampler=chains("laplace"), prior="learn", **VOTES)
    clf.fit(X[::3], y[::3])
    assert clf.score(X, y) > 0.9
    assert clf.prior_groups_.tolist() == ["W1", "b1", "W2", "b2"]
    assert clf.diagnostics_.acceptance.min() > 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": torch.nn.Linear(10, 1)}, "needs a fully connected network"),
        ({"likelihood": Poisson()}, "init='prior'"),
    ],
)
def test_what_gauss_newton_steps_cant_do_is_refused(settings, message):
    X, y = DIABETES
    with pytest.raises((TypeError, ValueError), match=message):
        MCMCRegressor(sampler=chains("laplace"), **VOTES | settings).fit(X, y)


@pytest.mark.parametrize(
    ("model", "n_rows", "expected"),
    [
        (MODEL, 1000, True),
        (MODEL._replace(likelihood=Categorical()), 1000, True),
        (MODEL._replace(likelihood=Poisson()), 1000, False),
        (MODEL._replace(network=ModuleNetwork(torch.nn.Linear(3, 1), (3,))), 1000, False),
        (MODEL._replace(network=MLP(3, (120,), 1, TANH)), 1000, False),  # 601 weights
        (MODEL, 10**8, False),  # too many for seconds
    ],
)
def test_modes_are_found_where_that_takes_seconds(model, n_rows, expected):
    assert (choose_init(model, n_rows, SamplingDefaults()) == "laplace") == expected


@pytest.mark.long
def test_defaults_start_at_modes():
    X, y = (a[:20] for a in DIABETES)
    reg = MCMCRegressor((2,), n_draws=2, random_state=0).fit(X, y)
    assert (len(reg.samples_), reg.n_iter_) == (16, 152)
    assert reg._blocks_[0].preconditioner.cholesky.shape == (16, 26, 26)
    assert MCMCRegressor().hidden_layer_sizes == (20,)
