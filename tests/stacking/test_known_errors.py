"""Known errors of targets in stacks: leave-one-out densities, members and predictions."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn import config_context
from sklearn.ensemble import RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.testing import assert_close

from skbayes_sym import PredictiveStackingRegressor, load, predictive, save
from skbayes_sym.stacking.members.gaussian_process import (
    GaussianProcessMember,
    TableKernel,
    fit_gaussian_process,
    log_evidence,
)
from skbayes_sym.stacking.members.linear import Linear
from skbayes_sym.stacking.task import RowBlock, StackTask

MEMBERS = [("linear", "linear"), ("gaussian_process", "gaussian_process")]


def curved_rows(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    noise_std = np.exp(rng.uniform(np.log(0.05), np.log(1.5), n))
    function = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]
    y = function + 0.1 * rng.normal(size=n) + noise_std * rng.normal(size=n)
    return X, y, noise_std, function


def make_task(n, groups=None):
    X, y, noise_std, _ = curved_rows(n)
    x = torch.as_tensor(X)
    weight = torch.ones(n, dtype=torch.float64)
    return StackTask(
        RowBlock(x, X), torch.as_tensor(y)[:, None], weight, y, (), 0, groups=groups,
        noise_std=torch.as_tensor(noise_std),
    )  # fmt: skip


@pytest.mark.parametrize("by_groups", [False, True])
def test_left_out_densities_of_the_linear_model_are_those_of_refits(by_groups):
    """At the same scales, with a flat prior of the intercept."""
    groups = np.arange(40) // 4 if by_groups else None
    task = make_task(40, groups)
    fit = Linear().fit(task)
    regressor = fit.predictor.estimator
    X, y = task.rows.x.numpy(), task.targets
    variance = regressor.noise_std_**2 + task.noise_std.numpy() ** 2
    design = np.column_stack([np.ones(40), X / regressor.x_scale_])
    # The coefficients of scaled inputs and targets have the learned scale.
    scale = regressor.prior_scale_ * regressor.y_scale_[0]
    prior = np.diag([0.0, scale**-2, scale**-2])
    for n in (0, 7, 39):
        rest = np.arange(40) != n if groups is None else groups != groups[n]
        precision = prior + design[rest].T @ (design[rest] / variance[rest, None])
        mean = np.linalg.solve(precision, design[rest].T @ (y[rest] / variance[rest]))
        spread = variance[n] + design[n] @ np.linalg.solve(precision, design[n])
        expected = norm.logpdf(y[n], design[n] @ mean, spread**0.5)
        assert float(fit.leave_one_out.log_density[n]) == pytest.approx(expected, rel=1e-6)


def test_evidence_of_a_gaussian_process_with_known_errors():
    task = make_task(20)
    log_scales = torch.tensor([0.3, 0.1, -0.2, -0.5, -1.2], dtype=torch.float64)
    known = task.noise_std.square()
    value, gradient = log_evidence(log_scales, task.data, known)
    kernel = TableKernel.from_log_scales(log_scales)
    x = task.rows.x
    covariance = kernel(x, x) + torch.diag(kernel.noise.square() + known)
    expected = multivariate_normal(np.zeros(20), covariance.numpy()).logpdf(task.targets)
    assert float(value) == pytest.approx(expected)
    for k in range(5):
        step = torch.zeros(5, dtype=torch.float64)
        step[k] = 1e-5
        difference = (
            log_evidence(log_scales + step, task.data, known)[0]
            - log_evidence(log_scales - step, task.data, known)[0]
        )
        assert float(gradient[k]) == pytest.approx(float(difference) / 2e-5, abs=1e-5)


def test_left_out_densities_of_a_gaussian_process_are_those_of_refits():
    """Of rows centred by their mean weighted by precision."""
    task = make_task(30)
    fit = GaussianProcessMember().fit(task)
    kernel = fit.predictor.kernel
    x, y = task.rows.x, task.y[:, 0]
    noise_variance = kernel.noise.square() + task.noise_std.square()
    for n in (0, 7, 29):
        rest = torch.arange(30) != n
        precision = 1.0 / noise_variance[rest]
        centre = precision @ y[rest] / precision.sum()
        covariance = kernel(x[rest], x[rest]) + torch.diag(noise_variance[rest])
        cross = kernel(x[n : n + 1], x[rest])
        mean = centre + cross @ torch.linalg.solve(covariance, y[rest] - centre)
        explained = cross @ torch.linalg.solve(covariance, cross.mT)
        variance = kernel.variance(x[n : n + 1]) - explained[0] + noise_variance[n]
        expected = norm.logpdf(float(y[n]), float(mean), float(variance) ** 0.5)
        assert float(fit.leave_one_out.log_density[n]) == pytest.approx(expected, rel=1e-6)


def test_no_known_errors_change_no_gaussian_process():
    task = make_task(30)
    plain, _ = fit_gaussian_process(task.data, 0, 1.5)
    zero, _ = fit_gaussian_process(task.data, 0, 1.5, known_variance=torch.zeros(30).double())
    assert_close(torch.as_tensor(zero.log_scales), torch.as_tensor(plain.log_scales))
    assert_close(torch.as_tensor(zero.alpha), torch.as_tensor(plain.alpha))


@pytest.mark.parametrize("grouped", [False, True])
def test_stacks_learn_the_function_behind_the_errors(grouped):
    X, y, noise_std, _ = curved_rows(160)
    groups = np.arange(160) // 2 if grouped else None
    new, _, new_std, function = curved_rows(400, seed=1)
    stack = PredictiveStackingRegressor(MEMBERS, random_state=0)
    plain = predictive(stack.fit(X, y, groups=groups), new).log_prob(function)
    stack.fit(X, y, groups=groups, noise_std=noise_std)
    known = predictive(stack, new)
    assert known.log_prob(function).mean() > plain.mean() + 0.3
    measured = predictive(stack, new, noise_std=new_std)
    np.testing.assert_allclose(measured.mean(), known.mean())
    np.testing.assert_allclose(measured.var(), known.var() + new_std**2)
    # The score of the stack is the density of new measurements, within a standard error or two.
    targets = function + np.random.default_rng(2).normal(size=400) * np.hypot(0.1, new_std)
    score, error = stack.stack_log_density_
    assert measured.log_prob(targets).mean() == pytest.approx(score, abs=3.0 * error)


def test_default_members_that_take_no_known_errors_are_named():
    X, y, noise_std, _ = curved_rows(40)
    with pytest.warns(UserWarning, match=r"the others are left out \('trees', .*'networks'\)"):
        stack = PredictiveStackingRegressor(random_state=0).fit(X, y + 10, noise_std=noise_std)
    assert set(stack.weights_) == {"linear", "gaussian_process"}
    # Positive targets restrict nothing: measurements can be negative.
    assert predictive(stack, X[:2], noise_std=[30.0, 0.0]).cdf(0.0)[0] > 0.2


def test_pipelines_and_files(tmp_path):
    X, y, noise_std, _ = curved_rows(30)
    stack = PredictiveStackingRegressor(MEMBERS[:1], random_state=0)
    direct = stack.fit(StandardScaler().fit_transform(X), y, noise_std=noise_std).weights_
    with config_context(enable_metadata_routing=True):
        stack.set_fit_request(noise_std=True)
        pipeline = make_pipeline(StandardScaler(), stack).fit(X, y, noise_std=noise_std)
    assert pipeline[-1].weights_ == direct
    save(pipeline, tmp_path / "model")
    std = predictive(pipeline, X, noise_std=noise_std).std()
    again = predictive(load(tmp_path / "model"), X, noise_std=noise_std).std()
    np.testing.assert_array_equal(again, std)


def test_refused():
    X, y, noise_std, _ = curved_rows(30)
    for estimators, name in (
        ([*MEMBERS, ("trees", "trees")], "'trees'"),
        ([("forest", RandomForestRegressor())], "'forest'"),
    ):
        with pytest.raises(ValueError, match=f"the members {name} take no noise_std"):
            PredictiveStackingRegressor(estimators).fit(X, y, noise_std=noise_std)
    with pytest.raises(ValueError, match="use cv=None, got cv=5"):
        PredictiveStackingRegressor(MEMBERS, cv=5).fit(X, y, noise_std=noise_std)
    with pytest.raises(ValueError, match="takes one target, got 2: fit one stack per target"):
        PredictiveStackingRegressor(MEMBERS).fit(X, np.column_stack([y, y]), noise_std=noise_std)
    with pytest.raises(ValueError, match="noise_std is -1 in row 0"):
        PredictiveStackingRegressor(MEMBERS).fit(X, y, noise_std=np.full(30, -1.0))
