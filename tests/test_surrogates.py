"""BoTorch, scikit-optimize and Optuna take the regressors; where they are installed."""

import numpy as np
import pytest
import torch
from fits import NUMBERS, X, fitted

from skbayes_sym import BayesianLinearRegressor, predictive
from skbayes_sym.surrogates import botorch_model


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
