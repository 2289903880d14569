"""Other people's packages around ours: conformal sets, Bayesian optimisation."""

import numpy as np
import pytest
import torch
from fits import NUMBERS, X, fitted
from numpy.testing import assert_array_equal
from scipy.stats import binom
from sklearn.datasets import load_diabetes, load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearClassifier, BayesianLinearRegressor, predictive
from skbayes_sym.model_selection import as_quantile
from skbayes_sym.surrogates import botorch_model

ROWS, Y = load_diabetes(return_X_y=True)
TRAIN, HELD, TEST = np.split(np.random.default_rng(0).permutation(len(Y)), [200, 320])
MODEL = make_pipeline(StandardScaler(), BayesianLinearRegressor())


def inside(intervals):
    """How many of the test rows; and the range that nine in ten would have by chance, 1 in 1000."""
    low, high = intervals[:, :, 0].T
    count = int(np.sum((low <= Y[TEST]) & (Y[TEST] <= high)))
    return count, binom.ppf([5e-4, 1 - 5e-4], len(TEST), 0.9)


def test_split_and_cross_conformal_regression():
    mapie = pytest.importorskip("mapie.regression")
    split = mapie.SplitConformalRegressor(MODEL, confidence_level=0.9, prefit=False)
    split.fit(ROWS[TRAIN], Y[TRAIN]).conformalize(ROWS[HELD], Y[HELD])
    cross = mapie.CrossConformalRegressor(MODEL, confidence_level=0.9, cv=5)
    seen = np.concatenate([TRAIN, HELD])
    for wrapper in (split, cross.fit_conformalize(ROWS[seen], Y[seen])):
        count, (least, most) = inside(wrapper.predict_interval(ROWS[TEST])[1])
        assert least <= count <= most


@pytest.mark.long
def test_conformal_sets_of_classes():
    mapie = pytest.importorskip("mapie.classification")
    flowers, y = load_iris(return_X_y=True)
    train, held, test = np.split(np.random.default_rng(0).permutation(150), [60, 110])
    model = BayesianLinearClassifier(random_state=0)
    wrapper = mapie.SplitConformalClassifier(model, confidence_level=0.9, prefit=False)
    wrapper.fit(flowers[train], y[train]).conformalize(flowers[held], y[held])
    sets = wrapper.predict_set(flowers[test])[1][:, :, 0]
    assert sets[np.arange(40), y[test]].sum() >= binom.ppf(5e-4, 40, 0.9)
    assert sets.sum(axis=1).max() <= 2  # of three classes


def test_a_quantile_as_a_regressor():
    model = MODEL.fit(ROWS[TRAIN], Y[TRAIN])
    upper = as_quantile(model, 0.95)
    assert_array_equal(upper.predict(ROWS[TEST]), predictive(model, ROWS[TEST]).quantile(0.95))
    assert upper.fit(ROWS[HELD], Y[HELD]).estimator is model
    for level in (0.0, 1.5):
        with pytest.raises(ValueError, match="quantile must lie strictly between 0 and 1"):
            as_quantile(model, level)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_botorch_s_posterior_are_functions_with_gradients():
    """Of a linear model: every draw's slope is its gradient, whatever the batch."""
    pytest.importorskip("botorch")
    model = BayesianLinearRegressor().fit(X, NUMBERS)
    surrogate = botorch_model(model, 16, random_state=1)
    points = torch.as_tensor(X[:6]).reshape(2, 3, 3).requires_grad_()
    posterior = surrogate.posterior(points)
    values = posterior.values
    assert values.shape == (2, 16, 3, 1)
    expected = predictive(model, X[:6]).functions(16, 1)
    np.testing.assert_allclose(values[1, :, 2, 0].detach(), expected[5])
    (gradient,) = torch.autograd.grad(values[0, 4, 1, 0], points)
    slopes = model.sample_f(np.vstack([np.eye(3), np.zeros((1, 3))]), 16, 1)[:, 4]
    np.testing.assert_allclose(gradient[0, 1], slopes[:3] - slopes[3], rtol=1e-6)
    assert not gradient[1].any()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_botorch_optimises_an_acquisition_function():
    pytest.importorskip("botorch")
    from botorch.acquisition.monte_carlo import qExpectedImprovement
    from botorch.optim import optimize_acqf

    surrogate = botorch_model(fitted("vi-ard"), 32)
    utility = qExpectedImprovement(surrogate, best_f=float(NUMBERS.mean()))
    bounds = torch.tensor([[-2.0] * 3, [2.0] * 3], dtype=torch.float64)
    torch.manual_seed(0)
    points, value = optimize_acqf(utility, bounds, q=1, num_restarts=2, raw_samples=16)
    corner = float(utility(torch.zeros(1, 1, 3, dtype=torch.float64)))
    assert points.shape == (1, 3)
    assert float(value) >= corner


def test_without_botorch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "botorch.models.ensemble", None)
    with pytest.raises(ImportError, match="pip install botorch"):
        botorch_model(fitted("linear-gaussian"))


@pytest.mark.filterwarnings("ignore")
def test_scikit_optimize_takes_the_estimator():
    optimizer = pytest.importorskip("skopt.optimizer")
    found = optimizer.base_minimize(
        lambda x: (x[0] - 0.3) ** 2, [(-1.0, 1.0)], BayesianLinearRegressor(),
        n_calls=8, n_initial_points=5, acq_func="LCB", acq_optimizer="sampling", random_state=0,
    )  # fmt: skip
    assert len(found.x_iters) == 8


@pytest.mark.filterwarnings("ignore")
def test_optuna_asks_and_is_told():
    """Candidates are drawn here; the law of the trials so far says which is tried."""
    optuna = pytest.importorskip("optuna")
    from skbayes_sym.acquisition import upper_confidence_bound

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, rng = optuna.create_study(), np.random.default_rng(0)
    for _ in range(6):
        trials = [t for t in study.trials if t.value is not None]
        chosen = float(rng.uniform(-1, 1))
        if len(trials) > 3:
            rows = np.array([[t.params["x"]] for t in trials])
            model = BayesianLinearRegressor().fit(rows, [t.value for t in trials])
            candidates = rng.uniform(-1, 1, (50, 1))
            law = predictive(model, candidates)
            chosen = float(candidates[upper_confidence_bound(law, maximize=False).argmax(), 0])
        study.enqueue_trial({"x": chosen})
        trial = study.ask({"x": optuna.distributions.FloatDistribution(-1, 1)})
        study.tell(trial, trial.params["x"])
    assert len(study.trials) == 6
