"""What chains and ensembles share: objects in, weighted draws out."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from sklearn.base import clone

import skbayes_sym as sk
from skbayes_sym.model_selection._compare import has_posterior_draws
from skbayes_sym.models import Poisson

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

CHAINS = {
    "sampler": sk.Chains(sk.HMC(max_leapfrog=8), init="prior", n_warmup=30), "n_chains": 3,
    "n_draws": 4, "remove_symmetries": sk.ModeWeights("uniform"), "random_state": 0,
}  # fmt: skip
MEMBERS = {"n_members": 3, "max_iter": 60, "activation": "tanh", "random_state": 0}
REGRESSORS = {
    "mcmc": sk.MCMCRegressor((2,), **CHAINS),
    "ensemble": sk.DeepEnsembleRegressor((2,), **MEMBERS),
}
CLASSIFIERS = {
    "mcmc": sk.MCMCClassifier((2,), **CHAINS),
    "ensemble": sk.DeepEnsembleClassifier((2,), correction=None, **MEMBERS),
}
regressors = pytest.mark.parametrize("name", REGRESSORS)

rng = np.random.default_rng(0)
X = rng.standard_normal((30, 2))
Y = X[:, 0] + 0.3 * rng.standard_normal(30)
COUNTS = rng.poisson(np.exp(0.3 * X[:, 0])).astype(float)
LABELS = (Y > 0).astype(int)


@pytest.mark.parametrize("models", [REGRESSORS, CLASSIFIERS], ids=["numbers", "labels"])
@pytest.mark.parametrize("name", REGRESSORS)
def test_likelihoods_of_draws_average_to_the_predictive_density(name, models):
    y = LABELS if models is CLASSIFIERS else Y
    model = clone(models[name]).fit(X, y)
    assert model.chain_weights_.tolist() == [1 / 3] * 3
    if name == "mcmc":
        model.chain_weights_ = np.array([1.0, 2.0, 3.0]) / 6.0
    values = model.log_likelihood_samples(X, y)
    assert values.shape == (*model.samples_.shape[:-1], 30)
    n_draws = values[..., 0].size
    each = np.repeat(model.chain_weights_, n_draws // 3) / (n_draws // 3)
    mixed = logsumexp(values.reshape(-1, 30), axis=0, b=each[:, None])
    np.testing.assert_allclose(mixed, model.log_predictive_density(X, y), rtol=1e-9)


@regressors
def test_only_draws_of_the_posterior_can_leave_rows_out(name):
    """Importance weights of modes would mean nothing."""
    model = clone(REGRESSORS[name]).fit(X, Y)
    assert has_posterior_draws(model) == (name == "mcmc")


@regressors
def test_arviz_takes_members_for_draws_of_one_chain(name):
    pytest.importorskip("arviz_base")
    model = clone(REGRESSORS[name]).fit(X, Y)
    tree = model.to_arviz()
    shape = (3, 4) if name == "mcmc" else (1, 3)
    assert tree["posterior"]["W1"].shape == (*shape, 2, 2)
    assert tree["posterior"]["noise_std"].shape == (*shape, 1)
    assert np.array_equal(
        tree["sample_stats"]["lp"].values.ravel(), model.log_posterior_samples_.ravel()
    )


@regressors
def test_arviz_names_the_dimensions_of_weights(name):
    pytest.importorskip("arviz_base")
    frame = pd.DataFrame(X, columns=["left", "right"])
    draws = clone(REGRESSORS[name]).fit(frame, Y).to_arviz()["posterior"]
    assert draws["W1"].dims == ("chain", "draw", "unit_1", "input")
    assert draws["b1"].dims == ("chain", "draw", "unit_1")
    assert draws["W2"].dims == ("chain", "draw", "output", "unit_1")
    assert draws["noise_std"].dims == ("chain", "draw", "target")
    assert draws["input"].values.tolist() == ["left", "right"]
    np.testing.assert_array_equal(draws["W1"].sel(input="right"), draws["W1"][..., 1])


def test_diagnostics_before_and_after_alignment_are_of_the_same_weights():
    model = clone(REGRESSORS["mcmc"]).fit(X, Y)
    n_weights = model.samples_.shape[-1]
    assert model.diagnostics_.parameter_rhat.shape == (n_weights,)
    assert model.diagnostics_.parameter_rhat_before.shape == (n_weights,)
    assert model.diagnostics_.parameter_ess_before.shape == (n_weights,)


@regressors
def test_a_noise_that_is_known(name):
    """In the units of y, whatever they are; it is no parameter then."""
    model = clone(REGRESSORS[name]).set_params(noise_std=12.0).fit(X, 30.0 * Y + 5.0)
    np.testing.assert_allclose(model.noise_std_samples_, 12.0)
    _, std = model.predict(X, return_std=True)
    assert (std >= 12.0 * (1 - 1e-9)).all()
    by_hand = np.sqrt(model.predict_uncertainty(X).epistemic + 144.0)
    np.testing.assert_allclose(std, by_hand)


def test_a_known_noise_is_what_a_narrow_posterior_of_it_says():
    """The joint density of the draws by hand."""
    model = clone(REGRESSORS["mcmc"]).set_params(noise_std=0.5, prior=1.0).fit(X, Y)
    x = torch.as_tensor((X - X.mean(0)) / X.std(0))
    outputs = model.network_.forward(torch.as_tensor(model.samples_), x)[..., 0].numpy()
    joint = stats.norm.logpdf(Y, outputs * Y.std() + Y.mean(), 0.5).sum(-1)
    joint += stats.norm.logpdf(model.samples_).sum(-1)
    np.testing.assert_allclose(model.log_posterior_samples_, joint, rtol=1e-9)


@regressors
def test_counts(name):
    """Poisson's log rate is the output itself: targets aren't scaled, and there is no noise."""
    model = clone(REGRESSORS[name]).set_params(likelihood=Poisson()).fit(X, COUNTS)
    assert (model.y_mean_.tolist(), model.y_scale_.tolist()) == ([0.0], [1.0])
    assert not hasattr(model, "noise_std_samples_")
    x = torch.as_tensor((X - X.mean(0)) / X.std(0))
    theta = torch.as_tensor(model.samples_).reshape(-1, model.samples_.shape[-1])
    rate = model.network_.forward(theta, x)[..., 0].exp().numpy()
    np.testing.assert_allclose(model.predict(X), rate.mean(0))
    density = logsumexp(stats.poisson.logpmf(COUNTS, rate), axis=0) - np.log(len(rate))
    np.testing.assert_allclose(model.log_predictive_density(X, COUNTS), density)
    drawn = model.sample_y(X, 500, random_state=0)
    assert (drawn == drawn.round()).all()
    error = np.sqrt(model.predict_uncertainty(X).total / 500)
    assert (np.abs(drawn.mean(1) - rate.mean(0)) < 5 * error).all()
