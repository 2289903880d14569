"""What modes count for: evidences against quadrature, and saying so where there is none."""

import warnings
from math import log

import numpy as np
import pytest
import torch
from quadrature import linear_log_evidence, one_unit_log_evidence
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import HMC, Chains, MCMCClassifier, MCMCRegressor, ModeWeights
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.models import HalfNormal

FAST = {
    "sampler": Chains(HMC(max_leapfrog=16), init="prior", n_warmup=100), "n_chains": 16,
    "n_draws": 20, "random_state": 0, "remove_symmetries": ModeWeights("evidence"),
    "prior": 1.0,
}  # fmt: skip


def tensors(*arrays):
    return [torch.as_tensor(a, dtype=torch.float64) for a in arrays]


def chains(n_warmup):
    return Chains(HMC(max_leapfrog=16), init="prior", n_warmup=n_warmup)


@pytest.mark.long
@pytest.mark.parametrize("noise_prior_scale", [1.0, 0.3])
def test_a_linear_model_has_its_exact_evidence(noise_prior_scale):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2))
    y = X @ [1.0, -0.5] + 0.4 * rng.standard_normal(30)
    reg = MCMCRegressor((), standardize=False, noise_std=HalfNormal(noise_prior_scale), **FAST)
    reg.fit(X, y)
    exact = linear_log_evidence(*tensors(X, y), noise_prior_scale)
    assert abs(reg.log_evidence_ - exact) < 0.1
    assert abs(reg.log_evidence_ - exact) < 4 * reg.log_evidence_std_error_
    assert len(reg.modes_) == 1


@pytest.mark.long
@pytest.mark.kept("float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_hidden_unit_has_its_evidence_by_quadrature(dtype):
    rng = np.random.default_rng(0)
    x = np.linspace(-2, 2, 25)
    y = 1.2 * np.tanh(1.5 * x + 0.5) + 0.3 * rng.standard_normal(25)
    reg = MCMCRegressor((1,), standardize=False, noise_std=HalfNormal(), **FAST)
    reg.fit(x[:, None].astype(dtype), y)
    exact = one_unit_log_evidence(*tensors(x, y))
    assert abs(reg.log_evidence_ - exact) < 0.1
    assert abs(reg.log_evidence_ - exact) < 4 * reg.log_evidence_std_error_


@pytest.mark.long
def test_evidence_of_a_classifier():
    """Two classes and irrelevant inputs: p(y) by quadrature over the difference of two biases."""
    rng = np.random.default_rng(1)
    X, y = np.zeros((20, 1)), rng.permutation(np.repeat([0, 1], [14, 6]))
    clf = MCMCClassifier((), standardize=False, **FAST).fit(X, y)
    gap = np.linspace(-12, 12, 20_001)  # of two standard normal biases
    log_joint = -0.25 * gap**2 - 0.5 * log(4 * np.pi)
    log_joint -= 14 * np.logaddexp(0, gap) + 6 * np.logaddexp(0, -gap)
    exact = log(np.exp(log_joint).sum() * (gap[1] - gap[0]))
    assert abs(clf.log_evidence_ - exact) < 0.1
    assert abs(clf.log_evidence_ - exact) < 4 * clf.log_evidence_std_error_
    assert clf.modes_[0].log_evidence == clf.log_evidence_  # labels have no unit


@pytest.mark.long
def test_where_weights_are_open_low_modes_have_none_all_the_same(monkeypatch):
    """Some of 16 chains end in a mode 60 nats lower, in which no chain is restarted."""
    monkeypatch.setattr("skbayes_sym.mcmc.mode_weights.robust_weights", lambda *args: None)
    x = np.linspace(-3, 3, 120)
    y = np.sin(2 * x) + 0.1 * np.random.default_rng(0).standard_normal(120)
    reg = MCMCRegressor((2,), **FAST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        reg.fit(x[:, None], y)
    assert "in proportion to how many chains found each." in " ".join(reg.diagnostics_.warnings)
    high = max(m.mean_log_posterior for m in reg.modes_)
    far = [m for m in reg.modes_ if m.mean_log_posterior < high - 30.0]
    assert sum(m.n_initial_chains for m in far) > 0
    assert all(m.weight == 0.0 and not len(m.chains) for m in far)
    near = [m for m in reg.modes_ if m.mean_log_posterior >= high - 30.0]
    assert all(np.isnan(m.weight) for m in near)
    votes = np.array([m.n_initial_chains for m in near])
    got = [reg.chain_weights_[m.chains].sum() for m in near]
    np.testing.assert_allclose(got, votes / votes.sum())


def test_where_the_evidence_cant_be_trusted_it_is_nan():
    """Two wide layers: 2 log(16! 2^16) = 83.5 nats of group elements."""
    X, y = make_sinusoidal(40, random_state=0)
    settings = FAST | {
        "n_chains": 4, "sampler": chains(20), "n_draws": 5,
    }  # fmt: skip
    reg = MCMCRegressor((16, 16), **settings)
    with pytest.warns(ConvergenceWarning) as caught:
        reg.fit(X, y)
    messages = [str(w.message) for w in caught]
    about = [m for m in messages if "evidence can't be trusted" in m]
    assert len(about) == 1
    assert "e^83.5 elements, more than the 10,000" in about[0]
    assert "use one layer, or narrower ones" in about[0]
    assert [f"MCMCRegressor: {told}" for told in reg.diagnostics_.warnings] == messages
    assert np.isnan([reg.log_evidence_, reg.log_evidence_std_error_]).all()
    assert (reg.chain_weights_ == 1 / len(reg.chain_weights_)).all()
    assert np.isfinite(reg.predict(X)).all()


@pytest.mark.long
def test_a_net_too_deep_for_evidence_keeps_all_draws_asked_for():
    """Initial chains make at most 50 draws for bridge sampling; without it they continue."""
    X, y = make_sinusoidal(40, random_state=0)
    settings = FAST | {"n_chains": 2, "sampler": chains(10), "n_draws": 52}
    voting, trying = (
        MCMCRegressor((7, 7), **settings | {"remove_symmetries": weights})
        for weights in map(ModeWeights, ("uniform", "evidence"))
    )
    voting.fit(X, y)
    with pytest.warns(ConvergenceWarning, match="evidence can't be trusted"):
        trying.fit(X, y)
    assert np.array_equal(trying.log_posterior_samples_, voting.log_posterior_samples_)
    assert trying.samples_.shape[:2] == (2, 52)


@pytest.mark.long
def test_a_prior_that_tells_units_apart_is_refused():
    X, y = make_sinusoidal(40, random_state=0)
    scale = np.ones(7)
    scale[0] = 2.0  # the first unit's incoming weight
    reg = MCMCRegressor(
        (2,), **FAST | {"remove_symmetries": ModeWeights("uniform"), "prior": scale}
    )
    with pytest.raises(ValueError, match=r"prior.*remove_symmetries=False"):
        reg.fit(X, y)
    assert not hasattr(reg, "samples_")
    reg.set_params(remove_symmetries=False).fit(X, y)
    assert reg.samples_.shape == (16, 20, 7)
