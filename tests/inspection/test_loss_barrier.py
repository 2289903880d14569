from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skbayes_sym as sk
from skbayes_sym.numerics.random import generator_from

X = np.random.default_rng(0).standard_normal((40, 2))
Y = np.tanh(2 * X[:, 0]) - 0.5 * X[:, 1]
FAST = {
    "sampler": sk.Chains(sk.HMC(max_leapfrog=8), n_warmup=60), "n_chains": 3, "n_draws": 4,
    "remove_symmetries": sk.ModeWeights("uniform"), "random_state": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return sk.MCMCRegressor((3,), noise_std=0.3, **FAST).fit(X, Y)


def test_aligning_a_symmetric_copy_takes_the_barrier_away(model):
    """The same draw under another name: the function is the same, the way between is not."""
    group, generator = model.network_.symmetry(), generator_from(5)
    theta = torch.as_tensor(model.samples_[0, 0])
    copy = group.act(group.sample((), generator=generator), theta)
    both = deepcopy(model)
    both.samples_[1, 0] = copy.numpy()
    found = sk.loss_barrier(both, (0, 0), (1, 0))
    assert found.distance_before > 0.5 > 1e-5 > found.distance_after
    assert found.barrier_before > 0.01
    assert found.barrier_after < 1e-6
    np.testing.assert_allclose(found.loss_after, found.loss_after[0], atol=1e-6)


def test_the_ends_are_the_draws_losses(model):
    """Minus the log density of the targets per row, by the estimator's own account."""
    found = sk.loss_barrier(model, (0, 1), (2, 3), n_points=5)
    each = -model.log_likelihood_samples(X, Y).mean(-1) - np.log(model.y_scale_).sum()
    np.testing.assert_allclose(found.loss_before[[0, -1]], [each[0, 1], each[2, 3]], rtol=1e-5)
    np.testing.assert_allclose(found.loss_after[[0, -1]], [each[0, 1], each[2, 3]], rtol=1e-5)
    assert found.barrier_before >= 0
    assert found.distance_after <= found.distance_before
    np.testing.assert_allclose(found.fraction, [0, 0.25, 0.5, 0.75, 1])


def test_classes_and_pipelines():
    labels = (Y > 0).astype(int)
    pipeline = make_pipeline(StandardScaler(), sk.MCMCClassifier((3,), **FAST)).fit(X, labels)
    assert np.isfinite(sk.loss_barrier(pipeline, (0, 0), (1, 0)).loss_before).all()


def test_what_has_no_draws_is_refused(model):
    ensemble = sk.DeepEnsembleRegressor((3,), n_members=2, max_iter=5, tol=None).fit(X, Y)
    with pytest.raises(TypeError, match="loss_barrier needs draws of a network"):
        sk.loss_barrier(ensemble, (0, 0), (1, 0))
    with pytest.raises(ValueError, match="n_points must be an int of at least 3, got 2"):
        sk.loss_barrier(model, (0, 0), (1, 0), n_points=2)


def test_two_modules_that_compute_the_same():
    """The second has its units in another order: the barrier is all theirs."""
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    second, order = deepcopy(first), torch.randperm(16)
    x, y = torch.randn(50, 2), torch.randn(50, 1)
    with torch.no_grad():
        second[0].weight.copy_(-first[0].weight[order])
        second[0].bias.copy_(-first[0].bias[order])
        second[2].weight.copy_(-first[2].weight[:, order])

    def loss(module):
        return torch.nn.functional.mse_loss(module(x), y)

    found = sk.loss_barrier(loss, first, second, n_points=5, example_input=x)
    assert found.barrier_before > 1e-3 > 1e-6 > found.barrier_after
    assert found.distance_before > 1.0 > 1e-6 > found.distance_after
    np.testing.assert_allclose(found.loss_before[[0, -1]], loss(first).item(), rtol=1e-5)
    with pytest.raises(TypeError, match="needs example_input"):
        sk.loss_barrier(loss, first, second)
    with pytest.raises(TypeError, match="an estimator and two draws"):
        sk.loss_barrier(loss, (0, 0), (1, 0), example_input=x)
