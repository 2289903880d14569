"""MCMCRegressor and MCMCClassifier: what a fit holds and predicts; chains that stop and go on."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from habits import Watch
from scipy import stats
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from skbayes_sym import HMC, Chains, MCMCClassifier, MCMCRegressor, ModeWeights
from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.mcmc.config import SamplingDefaults

FAST = {
    "sampler": Chains(HMC(max_leapfrog=16), init="prior", n_warmup=50), "n_chains": 6, "n_draws": 8,
    "hidden_layer_sizes": (2,), "remove_symmetries": ModeWeights("uniform"), "random_state": 0,
    "prior": 1.0,
}  # fmt: skip
REG, CLF = MCMCRegressor(**FAST), MCMCClassifier(**FAST)
DIABETES = tuple(a[:60] for a in load_diabetes(return_X_y=True))
IRIS = tuple(a[::3] for a in load_iris(return_X_y=True))


@pytest.fixture(scope="module")
def fitted():
    return clone(REG).fit(*DIABETES)


@pytest.fixture(scope="module")
def weighed():
    """Chains allocated to modes by evidence."""
    X, y = make_sinusoidal(60, random_state=0)
    reg = MCMCRegressor(
        (2,), prior=1.0, sampler=Chains(HMC(max_leapfrog=16), init="prior", n_warmup=150),
        n_chains=12, n_draws=20, remove_symmetries=ModeWeights("evidence"), random_state=0,
    )  # fmt: skip
    return reg.fit(X, y), X, y


def by_hand(model, X):
    """Outputs of every draw, (chains, draws, rows, outputs)."""
    x = torch.as_tensor((X - X.mean(0)) / X.std(0))
    return model.network_.forward(torch.as_tensor(model.samples_), x).numpy()


@pytest.mark.long
def test_attributes(weighed):
    reg, X, _ = weighed
    assert reg.samples_.shape == (12, 20, 7)
    assert reg.noise_std_samples_.shape == (12, 20, 1)
    assert reg.log_posterior_samples_.shape == (12, 20)
    assert reg.chain_weights_.shape == (12,)
    assert reg.chain_weights_.sum() == pytest.approx(1.0)
    assert (reg.n_iter_, reg.stop_reason_) == (170, "max_iter")
    assert (reg.n_features_in_, reg.dtype_, reg.device_) == (1, "float64", "cpu")
    assert np.isfinite([reg.log_evidence_, reg.log_evidence_std_error_]).all()
    assert sum(m.weight for m in reg.modes_) == pytest.approx(1.0)
    assert sorted(np.concatenate([m.chains for m in reg.modes_])) == list(range(12))
    assert sum(m.n_initial_chains for m in reg.modes_) <= 12
    heights = [m.log_evidence for m in reg.modes_ if np.isfinite(m.log_evidence)]
    assert heights == sorted(heights, reverse=True)
    assert logsumexp(heights) == pytest.approx(reg.log_evidence_)
    for mode in reg.modes_:
        assert reg.chain_weights_[mode.chains].sum() == pytest.approx(
            mode.weight if len(mode.chains) else 0.0, abs=1e-3
        )
    assert reg.score(X, weighed[2]) > 0.6


def test_diagnostics(weighed):
    reg, found = weighed[0], weighed[0].diagnostics_
    n_functions = 50 + 1  # outputs at rows, and the log noise
    for name in ("function_rhat", "function_ess", "function_rhat_before"):
        assert found[name].shape == (n_functions,), name
    for name in ("parameter_rhat", "parameter_ess"):
        assert found[name].shape == (7,), name
    for name in ("n_divergent", "acceptance", "stuck", "n_gradients"):
        assert found[name].shape == (12,), name
    assert 0.99 < (1.0 - found.detectable_basin) ** found.n_gradients.size / 0.01 < 1.01
    assert (found.n_gradients > reg.n_iter_).all()
    assert ((found.acceptance > 0.3) & (found.acceptance <= 1)).all()
    assert not found.stuck.any()
    assert found.warnings == []
    assert np.nanmax(found.function_rhat) < 1.2


@pytest.mark.long
def test_removing_symmetries_moves_weights_and_nothing_else(fitted):
    X, y = DIABETES
    raw = clone(REG).set_params(remove_symmetries=False).fit(X, y)
    np.testing.assert_allclose(raw.predict(X), fitted.predict(X), rtol=1e-10)
    np.testing.assert_allclose(
        raw.log_predictive_density(X, y), fitted.log_predictive_density(X, y), rtol=1e-10
    )
    assert np.array_equal(raw.noise_std_samples_, fitted.noise_std_samples_)
    assert not np.array_equal(raw.samples_, fitted.samples_)
    spread = [m.samples_.reshape(-1, m.samples_.shape[-1]).var(0).sum() for m in (raw, fitted)]
    assert spread[1] < 0.8 * spread[0]
    np.testing.assert_allclose(by_hand(raw, X), by_hand(fitted, X), atol=1e-10)
    assert raw.modes_ == []


def test_the_log_posterior_is_the_joint_density(fitted):
    X, y = DIABETES
    sigma = fitted.noise_std_samples_[..., 0]
    scaled = sigma / y.std()
    mean = by_hand(fitted, X)[..., 0] * y.std() + y.mean()
    joint = (
        stats.norm.logpdf(y, mean, sigma[..., None]).sum(-1)
        + stats.norm.logpdf(fitted.samples_).sum(-1)
        + stats.halfnorm.logpdf(scaled) + np.log(scaled)
    )  # fmt: skip
    np.testing.assert_allclose(fitted.log_posterior_samples_, joint, rtol=1e-9)


@pytest.mark.parametrize("which", ["uniform", "evidence"])
def test_predictions_are_the_weighted_mixture_of_draws(which, fitted, weighed):
    reg, X, y = weighed if which == "evidence" else (fitted, *DIABETES)
    mean = by_hand(reg, X)[..., 0] * y.std() + y.mean()
    mean = mean.reshape(-1, len(X))
    sigma = reg.noise_std_samples_.reshape(-1, 1)
    n_draws = reg.samples_.shape[1]
    weight = np.repeat(reg.chain_weights_ / n_draws, n_draws)
    predicted, std = reg.predict(X, return_std=True)
    np.testing.assert_allclose(predicted, weight @ mean)
    np.testing.assert_allclose(std**2, weight @ (mean**2 + sigma**2) - predicted**2, rtol=1e-8)
    density = logsumexp(stats.norm.logpdf(y, mean, sigma), b=weight[:, None], axis=0)
    np.testing.assert_allclose(reg.log_predictive_density(X, y), density)
    ends = reg.predict_quantiles(X, [0.1, 0.5, 0.9])
    below = stats.norm.cdf(ends, mean[..., None], sigma[..., None])
    np.testing.assert_allclose(
        np.einsum("s,snq->nq", weight, below), np.tile([0.1, 0.5, 0.9], (len(X), 1)), atol=1e-8
    )


def test_classifier():
    X, y = IRIS
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    clf = clone(CLF).fit(X, names)
    assert clf.score(X, names) > 0.9
    each = torch.as_tensor(by_hand(clf, X)).softmax(-1).numpy()
    np.testing.assert_allclose(clf.predict_proba(X), each.mean((0, 1)))
    at_truth = each[:, :, np.arange(len(y)), y]
    np.testing.assert_allclose(clf.log_predictive_density(X, names), np.log(at_truth.mean((0, 1))))
    joint = np.log(at_truth).sum(-1) + stats.norm.logpdf(clf.samples_).sum(-1)
    np.testing.assert_allclose(clf.log_posterior_samples_, joint)
    assert (clf.predict_uncertainty(X).epistemic >= 0).all()
    assert list(clf.classes_) == sorted(set(names))
    assert not hasattr(clf, "noise_std_samples_")


class Shy:
    """A third party's kernel: HMC with short trajectories, counting its moves."""

    n_moves = 0

    def step(self, state, log_density, **how):
        type(self).n_moves += 1
        return HMC(max_leapfrog=2).step(state, log_density, **how)


def test_a_kernel_of_ones_own():
    X, y = DIABETES
    reg = clone(REG).set_params(sampler__kernel=Shy(), sampler__n_warmup=20).fit(X, y)
    assert Shy.n_moves == reg.n_iter_ == 28
    expected = clone(reg).set_params(sampler__kernel=HMC(max_leapfrog=2)).fit(X, y)
    assert np.array_equal(reg.samples_, expected.samples_)


R = "remove_symmetries"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({R: "evidence"}, "'remove_symmetries' parameter of MCMCRegressor .*ModeWeights"),
        ({R: ModeWeights("votes")}, "'method' parameter of ModeWeights .*Got 'votes'"),
        ({R: ModeWeights(budget=-1)}, r"'budget' parameter of ModeWeights .*Got -1"),
        ({"sampler": Chains("smc")}, r"'kernel' parameter of Chains .*Got 'smc'"),
        ({"sampler": Chains(init="modes")}, r"'init' parameter of Chains .*Got 'modes'"),
        ({"sampler": Chains(warm_start="yes")}, r"'warm_start' parameter of Chains .*Got 'yes'"),
    ],
)
def test_settings_of_samplers_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        MCMCRegressor(**settings).fit(*DIABETES)


def test_a_grid_reaches_into_the_sampler():
    grid = {"sampler__n_warmup": [2, 3], "remove_symmetries__method": ["uniform", "evidence"]}
    reg = clone(REG).set_params(remove_symmetries=ModeWeights(), n_draws=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = GridSearchCV(reg, grid, cv=2).fit(*DIABETES)
    assert {p["sampler__n_warmup"] for p in search.cv_results_["params"]} == {2, 3}
    assert reg.sampler.n_warmup == 50
    assert reg.remove_symmetries.method == "auto"
    assert "n_warmup=50" in repr(reg)


def test_auto_chains_and_thinning():
    reg = MCMCRegressor(
        (1,), prior=1.0, n_chains="auto", n_draws=2, random_state=0,
        remove_symmetries=ModeWeights("uniform"),
        sampler=Chains(HMC(max_leapfrog=8), init="prior", n_warmup=30, thinning=3),
    )  # fmt: skip
    reg.fit(*DIABETES)
    assert reg.samples_.shape[:2] == (56, 2)
    assert reg.n_iter_ == 30 + 2 * 3
    dense = clone(reg).set_params(sampler__thinning=1, n_draws=6).fit(*DIABETES)
    assert np.array_equal(dense.noise_std_samples_[:, 2::3], reg.noise_std_samples_)


def test_log_likelihood_of_a_class_never_seen():
    X, y = IRIS
    clf = clone(CLF).fit(X[y < 2], y[y < 2])
    values = clf.log_likelihood_samples(X, y)
    assert np.array_equal(np.isneginf(values).any(axis=(0, 1)), y == 2)


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("weights", [ModeWeights("uniform"), ModeWeights("evidence")])
def test_draws_dont_depend_on_the_number_of_processes(weights, monkeypatch):
    monkeypatch.setattr(
        MCMCRegressor, "_defaults", SamplingDefaults(block=4, small_problem_block=4)
    )
    X, y = make_sinusoidal(40, random_state=0)
    reg = MCMCRegressor(
        (1,), prior=1.0, n_chains=10, n_draws=12, random_state=0,
        remove_symmetries=weights, sampler=Chains(HMC(max_leapfrog=8), init="prior", n_warmup=60),
    )  # fmt: skip
    one, two = (clone(reg).set_params(n_jobs=n).fit(X, y) for n in (1, 2))
    assert len(one._blocks_) == 3
    assert np.array_equal(one.samples_, two.samples_)
    assert np.array_equal(one.chain_weights_, two.chain_weights_)
    assert np.array_equal(one.log_evidence_, two.log_evidence_, equal_nan=True)
    assert (weights.method == "uniform") == np.isnan(one.log_evidence_)


def test_verbose_says_what_was_found(capsys):
    clone(REG).set_params(verbose=1).fit(*DIABETES)
    assert "R-hat" in capsys.readouterr().err


SHORT = {
    "sampler": Chains(HMC(max_leapfrog=8), init="prior", n_warmup=80), "n_chains": 4, "n_draws": 30,
    "hidden_layer_sizes": (2,), "remove_symmetries": ModeWeights("uniform"), "random_state": 0,
    "prior": 1.0,
}  # fmt: skip
BRIEF, LABELS = MCMCRegressor(**SHORT), MCMCClassifier(**SHORT)
every_estimator = pytest.mark.parametrize(
    ("estimator", "data"), [(BRIEF, DIABETES), (LABELS, IRIS)], ids=["regressor", "classifier"]
)


@pytest.fixture
def gradients(monkeypatch):
    """Counts batches of gradients; Ctrl-C when the budget is spent."""
    original = NetworkPosterior.evaluate

    class Counter:
        count, budget = 0, None

    def evaluate(self, position):
        Counter.count += 1
        if Counter.budget is not None and Counter.count > Counter.budget:
            Counter.budget = None
            raise KeyboardInterrupt
        return original(self, position)

    monkeypatch.setattr(NetworkPosterior, "evaluate", evaluate)
    return Counter


def interrupted_fit(model, data):
    with (
        pytest.warns(ConvergenceWarning, match=r"interrupted after \d+ steps"),
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(*data)
    assert model.stop_reason_ == "interrupted"
    return model


@pytest.mark.long
def test_every_task_ends_and_an_interrupt_while_chains_are_allocated_keeps_the_modes(gradients):
    X, y = DIABETES[0][:, :1], DIABETES[1]
    reg = MCMCRegressor(
        (1,), sampler=Chains(init="prior", n_warmup=40), prior=1.0, n_chains=4, n_draws=20,
        remove_symmetries=ModeWeights("evidence"), random_state=0,
    )  # fmt: skip
    watch = Watch()
    whole = clone(reg).set_callbacks(watch).fit(X, y)
    assert whole.stop_reason_ == "max_iter"
    assert watch.begun == watch.ended > 70
    gradients.budget, gradients.count = gradients.count - 20, 0
    part = interrupted_fit(clone(reg), (X, y))
    assert 1 <= part.samples_.shape[1] < 20
    assert part.log_evidence_ == whole.log_evidence_
    assert part.chain_weights_.sum() == pytest.approx(1.0)
    assert part.predict(X).shape == y.shape


@pytest.mark.kept("160-50-1-regressor", "300-90-10-classifier", "370-110-30-regressor")
@every_estimator
@pytest.mark.parametrize(
    ("n_blocks", "n_iter", "n_draws"),
    [(160, 50, 1), (260, 80, 1), (300, 90, 10), (330, 100, 20), (370, 110, 30)],
)
def test_a_callback_stops_the_fit(estimator, data, n_blocks, n_iter, n_draws):
    """375 of the 500 blocks are the 110 moves of the chains, 80 of them warm-up; every fifth
    move is reported. A draw a move is kept, and without any where the chains are."""
    stop = Watch(n_blocks)
    fitted = clone(estimator).set_callbacks(stop).fit(*data)
    assert fitted.stop_reason_ == "callback"
    assert fitted.n_iter_ == n_iter
    assert fitted.samples_.shape[1] == n_draws == max(fitted.n_iter_ - 80, 1)
    assert stop.begun == stop.ended == n_blocks + 1  # and the fit itself
    fitted.predict(data[0])


@pytest.mark.long
@pytest.mark.kept("regressor")
@every_estimator
def test_warm_start_goes_on_bit_for_bit(estimator, data):
    """Twice 30 draws are 60 draws."""
    estimator = clone(estimator).set_params(remove_symmetries=False)
    long = clone(estimator).set_params(n_draws=60).fit(*data)
    short = clone(estimator).set_params(sampler__warm_start=True).fit(*data)
    assert np.array_equal(short.samples_, long.samples_[:, :30])
    short.set_params(sampler__n_warmup=0).fit(*data)
    assert np.array_equal(short.samples_, long.samples_[:, 30:])
    assert short.n_iter_ == 30
    fresh = clone(estimator).fit(*data)
    assert np.array_equal(fresh.samples_, long.samples_[:, :30])


@pytest.mark.long
@pytest.mark.kept("classifier")
@every_estimator
def test_warm_start_from_another_problem(estimator, data):
    model = clone(estimator).set_params(sampler__warm_start=True).fit(*data)
    before = model.samples_
    with pytest.raises(ValueError, match=r"warm_start=True.*4 chains.*and this one 5"):
        model.set_params(n_chains=5).fit(*data)
    with pytest.raises(ValueError, match=r"warm_start=True.*changed"):
        model.set_params(n_chains=4, hidden_layer_sizes=(3,)).fit(*data)
    with pytest.raises(ValueError, match=r"warm_start=True.*changed"):
        model.set_params(hidden_layer_sizes=(2,)).fit(data[0][:, :2], data[1])
    assert model.samples_ is before


def with_step_sizes(model, step_size):
    """Go on with these step sizes, one a chain."""
    block = model._blocks_[0]
    model._blocks_ = [block._replace(step_size=torch.tensor(step_size, dtype=torch.float64))]
    return model.set_params(sampler__warm_start=True, sampler__n_warmup=0)


@pytest.mark.long
def test_one_stuck_chain_is_named_and_counted():
    model = clone(BRIEF).fit(*DIABETES)
    sizes = model._blocks_[0].step_size.tolist()
    sizes[2] = 1e3
    with pytest.warns(ConvergenceWarning, match=r"1 of 4 chains never moved.*n_warmup"):
        with_step_sizes(model, sizes).fit(*DIABETES)
    found = model.diagnostics_
    assert found.stuck.tolist() == [False, False, True, False]
    assert found.n_divergent[2] == 30
    assert found.n_divergent[[0, 1, 3]].max() < 15
    assert found.acceptance[2] < 1e-6
    assert len(found.warnings) == 1
    assert np.isfinite(model.predict(DIABETES[0])).all()


@pytest.mark.long
@pytest.mark.kept("weights1")
@pytest.mark.parametrize("weights", [ModeWeights("uniform"), ModeWeights("evidence")])
def test_all_chains_stuck(weights):
    model = clone(BRIEF).fit(*DIABETES)
    with pytest.warns(ConvergenceWarning) as caught:
        with_step_sizes(model, [1e3] * 4).set_params(remove_symmetries=weights).fit(*DIABETES)
    messages = [str(w.message) for w in caught]
    assert any("4 of 4 chains never moved" in m for m in messages)
    assert model.diagnostics_.stuck.all()
    assert np.isnan(model.log_evidence_)
    assert (model.chain_weights_ == 0.25).all()


def test_targets_beyond_the_arithmetics_range_are_an_error():
    X, y = DIABETES
    reg = clone(BRIEF).set_params(standardize=False)
    with pytest.raises(ValueError, match=r"must lie between 1e-12 and 1e\+12.*standardize=True"):
        reg.fit(X.astype(np.float32), 1e30 * y)


def test_chains_that_weigh_more_are_drawn_more_often(fitted):
    reg = pickle.loads(pickle.dumps(fitted))
    reg.samples_ = np.zeros_like(reg.samples_)
    reg.noise_std_samples_ = np.ones_like(reg.noise_std_samples_)
    reg.noise_std_samples_[0] = 1e4
    reg.chain_weights_ = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    X, _ = DIABETES
    draws = reg.sample_y(X, 400, random_state=3)
    loud = draws.std(axis=0) > 100.0
    assert abs(loud.mean() - 0.5) < 5 * 0.5 / 400**0.5
    assert np.array_equal(draws, reg.sample_y(X, 400, random_state=3))
