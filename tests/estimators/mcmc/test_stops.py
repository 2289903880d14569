"""Chains that end early, go on, or can't go anywhere: kept, continued, reported."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from habits import Watch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import HMC, Chains, MCMCClassifier, MCMCRegressor, ModeWeights
from skbayes_sym.estimators.mcmc.setting import SamplingEffort
from skbayes_sym.inference.log_density import NetworkPosterior

FAST = {
    "sampler": Chains(HMC(max_leapfrog=8), init="prior", n_warmup=80), "n_chains": 4, "n_draws": 30,
    "hidden_layer_sizes": (2,), "remove_symmetries": ModeWeights("uniform"), "random_state": 0,
    "prior": 1.0,
}  # fmt: skip
REG, CLF = MCMCRegressor(**FAST), MCMCClassifier(**FAST)
DIABETES = tuple(a[:60] for a in load_diabetes(return_X_y=True))
IRIS = tuple(a[::3] for a in load_iris(return_X_y=True))
every_estimator = pytest.mark.parametrize(
    ("estimator", "data"), [(REG, DIABETES), (CLF, IRIS)], ids=["regressor", "classifier"]
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
@pytest.mark.kept("regressor")
@every_estimator
def test_an_interrupt_while_drawing_keeps_the_draws(estimator, data, gradients):
    whole = clone(estimator).set_params(remove_symmetries=False).fit(*data)
    gradients.budget, gradients.count = int(0.85 * gradients.count), 0
    part = interrupted_fit(clone(whole), data)
    n = part.samples_.shape[1]
    assert 1 <= n < 30
    assert np.array_equal(part.samples_, whole.samples_[:, :n])
    assert 80 + n <= part.n_iter_ <= 80 + n + 1
    assert np.isfinite(part.log_predictive_density(*data)).all()
    assert part.chain_weights_.sum() == pytest.approx(1.0)


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


@pytest.mark.kept("30-50-1-regressor", "55-90-10-classifier", "64-110-30-regressor")
@every_estimator
@pytest.mark.parametrize(
    ("n_blocks", "n_iter", "n_draws"),
    [(30, 50, 1), (50, 80, 1), (55, 90, 10), (60, 100, 20), (64, 110, 30)],
)
def test_a_callback_stops_the_fit(estimator, data, n_blocks, n_iter, n_draws):
    """70 of the hundred blocks are the 110 moves of the chains, 80 of them warm-up; every tenth
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
    model = clone(REG).fit(*DIABETES)
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
    model = clone(REG).fit(*DIABETES)
    with pytest.warns(ConvergenceWarning) as caught:
        with_step_sizes(model, [1e3] * 4).set_params(remove_symmetries=weights).fit(*DIABETES)
    messages = [str(w.message) for w in caught]
    assert any("4 of 4 chains never moved" in m for m in messages)
    assert model.diagnostics_.stuck.all()
    assert np.isnan(model.log_evidence_)
    assert (model.chain_weights_ == 0.25).all()


def test_targets_beyond_the_arithmetics_range_are_an_error():
    X, y = DIABETES
    reg = clone(REG).set_params(standardize=False)
    with pytest.raises(ValueError, match=r"must lie between 1e-12 and 1e\+12.*standardize=True"):
        reg.fit(X.astype(np.float32), 1e30 * y)


@pytest.mark.long
@pytest.mark.kept("one-row-weights1", "constant-target-weights0", "constant-feature-weights1")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("weights", [ModeWeights("uniform"), ModeWeights("evidence")])
@pytest.mark.parametrize("case", ["one-row", "constant-target", "constant-feature"])
def test_data_that_say_little(case, weights, monkeypatch):
    """Few draws: without noise in the targets a trajectory takes all the gradients it may."""
    monkeypatch.setattr(
        MCMCRegressor, "_effort", SamplingEffort(refining_draws=10, refresh_warmup=30)
    )
    X, y = (a.copy() for a in DIABETES)
    X = X[:, :2].copy()
    if case == "one-row":
        X, y = X[:1], y[:1]
    elif case == "constant-target":
        y[:] = 3.0
    else:
        X[:, 1] = 7.0
    reg = clone(REG).set_params(hidden_layer_sizes=(1,), n_draws=10, remove_symmetries=weights)
    said = {"one-row": "one distinct row", "constant-target": "y is constant"}.get(case)
    with nullcontext() if said is None else pytest.warns(UserWarning, match=said):
        reg.fit(X, y)
    mean, std = reg.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    if case == "constant-target":
        np.testing.assert_allclose(mean, 3.0, atol=1.0)
