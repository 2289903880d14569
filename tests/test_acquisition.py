"""Utilities against closed forms: of normals, of the linear model's covariance, of two classes.

BoTorch and scikit-optimize take the regressors, where they are installed.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fits import NUMBERS, X, fitted
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearRegressor, DeepEnsembleRegressor, acquisition, predictive
from skbayes_sym.acquisition import botorch_model
from skbayes_sym.base.distributions import ClassPredictive, NormalPredictive
from skbayes_sym.models import StudentT

LAW = predictive(BayesianLinearRegressor().fit(X, NUMBERS), X)
NOISE = np.sqrt(LAW.uncertainty().aleatoric)


def covariance():
    """Of the linear model's functions at `X`."""
    _, joint = LAW._model.predict(X, return_cov=True)
    return joint - np.diag(NOISE**2)


@pytest.mark.parametrize("maximize", [True, False])
def test_expected_improvement_is_the_integral(maximize):
    std = np.sqrt(LAW.uncertainty().epistemic)
    sign = 1.0 if maximize else -1.0
    value = acquisition.expected_improvement(LAW, 0.2, maximize=maximize)
    for row in (0, 7):
        distribution = stats.norm(LAW.mean()[row], std[row])
        ends = np.sort([0.2, distribution.mean() + sign * 12.0 * std[row]])
        exact = integrate.quad(
            lambda f, distribution=distribution: abs(f - 0.2) * distribution.pdf(f), *ends
        )[0]
        assert value[row] == pytest.approx(exact, rel=1e-6, abs=1e-12)


def test_bounds_are_means_and_deviations_and_of_a_sure_function_the_gain_is_known():
    distribution = NormalPredictive(np.array([1.0, 2.0]), np.array([0.0, 3.0]))
    np.testing.assert_array_equal(acquisition.upper_confidence_bound(distribution, 1.0), [1.0, 5.0])
    low = acquisition.upper_confidence_bound(distribution, 1.0, maximize=False)
    np.testing.assert_array_equal(low, [-1.0, 1.0])
    assert acquisition.expected_improvement(distribution, 0.5)[0] == 0.5
    assert acquisition.expected_improvement(distribution, 1.5)[0] == 0.0


def test_information_is_that_of_normals_and_of_classes():
    exact = 0.5 * np.log1p(np.diag(covariance()) / NOISE**2)
    np.testing.assert_allclose(acquisition.expected_information_gain(LAW), exact)
    labels = predictive(fitted("ensemble-classifier"), X)
    epistemic = labels.uncertainty().epistemic
    np.testing.assert_array_equal(acquisition.expected_information_gain(labels), epistemic)


def test_what_has_no_utility_is_refused():
    heavy = {"likelihood": StudentT(df=1.5), "n_members": 2, "max_iter": 20, "tol": None}
    distribution = predictive(
        DeepEnsembleRegressor((2,), **heavy, random_state=0).fit(X, NUMBERS), X
    )
    for utility in (
        acquisition.expected_information_gain,
        lambda distribution: acquisition.select_batch(distribution, 2),
    ):
        with pytest.raises(ValueError, match="the noise has infinite variance"):
            utility(distribution)
    with pytest.raises(ValueError, match="best must be a finite number, got nan"):
        acquisition.expected_improvement(LAW, np.nan)
    for wrong in (LAW._model, predictive(fitted("ensemble-classifier"), X)):
        with pytest.raises(ValueError, match="distribution must be"):
            acquisition.upper_confidence_bound(wrong)


def test_a_batch_is_the_greedy_one_of_the_exact_covariance():
    """The value of its rows, within what 4,000 draws leave open; its rows are hardly worse."""
    chosen = acquisition.select_batch(LAW, 3, n_draws=4000)
    root = covariance() / NOISE[:, None] / NOISE

    def exact(rows):
        return 0.5 * np.linalg.slogdet(np.eye(len(rows)) + root[np.ix_(rows, rows)])[1]

    greedy: list[int] = []
    for k in range(3):
        greedy.append(max(range(len(X)), key=lambda row: exact([*greedy, row])))
        error = 6.0 * (k + 1) / 4000**0.5
        assert chosen.value[k] == pytest.approx(exact(chosen.rows[: k + 1]), abs=error)
        assert exact(chosen.rows[: k + 1]) == pytest.approx(exact(greedy), abs=2.0 * error)
    assert len(set(chosen.rows)) == 3


class Disagreeing(ClassPredictive):
    """Two rows of two classes whose probabilities are drawn, 0.3 and 0.6 in the mean."""

    def __init__(self, spread):
        draws = np.random.default_rng(0).standard_normal((2, 4000))
        draws[1] += 0.8 * draws[0]
        draws -= draws.mean(axis=1, keepdims=True)
        first = np.array([[0.3], [0.6]]) + spread * draws
        self.draws = np.stack([first, 1.0 - first], axis=1)

    def functions(self, n=1, random_state=0):
        return self.draws


def entropy(p, axis):
    return -(p * np.log(p)).sum(axis)


def test_where_classes_hardly_disagree_a_batch_has_their_mutual_information():
    """Of both rows, labels of pairs enumerated; half the spread halves what is off at least."""
    off = []
    for spread in (0.02, 0.01):
        distribution = Disagreeing(spread)
        pairs = (distribution.draws[0][:, None] * distribution.draws[1]).reshape(4, -1)
        exact = entropy(pairs.mean(-1), 0) - entropy(pairs, 0).mean()
        off.append(acquisition.select_batch(distribution, 2, n_draws=4000).value[-1] / exact - 1.0)
    assert abs(off[1]) < 0.6 * abs(off[0]) < 0.02


def test_a_batch_improves_together_as_the_largest_of_its_functions():
    best = float(LAW.mean().max())
    chosen = acquisition.select_batch(LAW, 3, best=best)
    functions = LAW.functions(256)
    together = np.maximum(functions[chosen.rows] - best, 0.0).max(axis=0).mean()
    assert chosen.value[-1] == pytest.approx(together)
    alone = np.maximum(functions - best, 0.0).mean(axis=1)
    assert chosen.rows[0] == alone.argmax()
    assert (np.diff(chosen.value) >= 0.0).all()


def test_thompson_takes_the_best_row_of_every_function_once():
    functions = -LAW.functions(5, 3)
    rows = acquisition.thompson_sampling(LAW, 5, maximize=False, random_state=3)
    assert rows[0] == functions[:, 0].argmax()
    assert len(set(rows)) == 5


def test_any_model_s_law_is_taken_and_wrong_ones_are_named():
    process = predictive(GaussianProcessRegressor(alpha=0.1).fit(X, NUMBERS), X)
    assert (acquisition.expected_improvement(process, 0.0) >= 0.0).all()
    with pytest.raises(TypeError, match="no joint distribution over rows"):
        acquisition.select_batch(process, 2)
    with pytest.raises(ValueError, match="regressors of one target"):
        acquisition.thompson_sampling(predictive(fitted("vi-regressor"), X))
    with pytest.raises(ValueError, match="n must be an int from 1 to 24, got 25"):
        acquisition.thompson_sampling(LAW, 25)


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


class EnsembleOnly(torch.nn.Module):
    """What `botorch_model` needs of BoTorch."""


@pytest.mark.parametrize("is_scaled_outside", [False, True])
@pytest.mark.parametrize(("unit", "origin"), [(1.0, 0.0), (1e-6, 0.0), (1e5, 0.0), (1e-3, 1e4)])
def test_gradients_don_t_depend_on_the_units_of_columns(
    unit, origin, is_scaled_outside, monkeypatch
):
    module = SimpleNamespace(EnsembleModel=EnsembleOnly)
    monkeypatch.setitem(sys.modules, "botorch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "botorch.models", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "botorch.models.ensemble", module)
    model = clone(fitted("vi-ard"))
    if is_scaled_outside:
        model = make_pipeline(StandardScaler(), model)

    def gradient_at(model, rows):
        points = torch.as_tensor(rows).requires_grad_()
        values = botorch_model(model, 4, random_state=1)(points)
        return torch.autograd.grad(values.sum(), points)[0].numpy()

    columns = np.array([0, 1])  # one column stays as it is
    rows = X.copy()
    rows[:, columns] = origin + unit * X[:, columns]
    expected = gradient_at(clone(model).fit(X, NUMBERS), X[:5])
    got = gradient_at(clone(model).fit(rows, NUMBERS), rows[:5])
    got[:, columns] *= unit
    # Rows at 1e4 +- 1e-3 keep nine digits of their deviation, a step of 1e-7 five.
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


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
    assert isinstance(found.models[-1], BayesianLinearRegressor)


def test_a_best_value_out_of_reach_has_no_improvement():
    assert not acquisition.expected_improvement(LAW, 1e300).any()
    far = acquisition.expected_improvement(LAW, -1e300)
    np.testing.assert_allclose(far, 1e300)
