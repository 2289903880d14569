"""Balanced representatives of rescaling orbits: closed form, function, evidence, predictions."""

import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.base import clone, is_regressor
from torch import nn
from torch.testing import assert_close

from skbayes_sym import (
    BayesianMLPClassifier,
    DeepEnsembleClassifier,
    DeepEnsembleRegressor,
    EvidenceAdam,
    GaussNewton,
    LaplaceClassifier,
    LaplaceRegressor,
    LILAClassifier,
    LILARegressor,
    predictive,
)
from skbayes_sym.ensemble import fit as ensemble_fit
from skbayes_sym.laplace import balancing, invariant_evidence, mode_finding
from skbayes_sym.laplace.balancing import balance_axes, balance_units
from skbayes_sym.laplace.evidence_problem import GaussianEvidence, Hyperparameters
from skbayes_sym.laplace.posterior import LinearisedModes
from skbayes_sym.models import ARD, MLP, TANH, Invariances, Rotation2D
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import IDENTITY, RELU
from skbayes_sym.models.priors import LayerScales, layer_index
from skbayes_sym.symmetry import symmetry_of

DEPTHS = ((3,), (3, 4), (2, 3, 4))


def draw(shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def rescale(network, theta, generator):
    """Move every hidden unit along its orbit, by factors between about 0.05 and 20."""
    theta = theta.clone()
    layers = network.layers(theta)
    for i in range(network.n_layers - 1):
        scale = draw(layers[i][1].shape, generator).exp()
        layers[i][0].mul_(scale.unsqueeze(-1))
        layers[i][1].mul_(scale)
        layers[i + 1][0].div_(scale.unsqueeze(-2))
    return theta


def make_problem(generator, hidden=(3,)):
    network = MLP(2, hidden, 1, RELU)
    x = draw((30, 2), generator)
    y = x[:, :1].abs() + 0.3 * draw((30, 1), generator)
    data = Data(x, y, torch.ones(30, dtype=torch.float64))
    return GaussianEvidence(network, data, LayerScales().bind(network.layout))


def test_one_hidden_layer_has_its_closed_form():
    network = MLP(2, (1,), 1, RELU)
    # W1 = (3, 0), b1 = 4, W2 = 2, b2 = 7: norms 2 * (9 + 16) = 50 and 8 * 4 = 32.
    theta = torch.tensor([3.0, 0.0, 4.0, 2.0, 7.0], dtype=torch.float64)
    precision = torch.tensor([2.0, 2.0, 2.0, 8.0, 1.0], dtype=torch.float64)
    scale = (32.0 / 50.0) ** 0.25
    expected = theta * torch.tensor([scale, 1.0, scale, 1.0 / scale, 1.0], dtype=torch.float64)
    assert_close(balance_units(network, theta, precision), expected)


@pytest.mark.parametrize("hidden", DEPTHS, ids=str)
def test_the_density_is_the_highest_of_the_orbit(hidden, generator):
    """A general-purpose optimiser of all log scales finds no higher density."""
    network = MLP(2, hidden, 2, RELU)
    theta = draw((network.layout.n_params,), generator)
    precision = draw(theta.shape, generator).exp()

    def energy(log_scales):
        moved = theta.clone()
        layers = network.layers(moved)
        parts = torch.as_tensor(log_scales).exp().split(hidden)
        for i, scale in enumerate(parts):
            layers[i][0].mul_(scale.unsqueeze(-1))
            layers[i][1].mul_(scale)
            layers[i + 1][0].div_(scale)
        return float((precision * moved.square()).sum())

    lowest = minimize(energy, np.zeros(sum(hidden)), options={"gtol": 1e-7}).fun
    balanced = balance_units(network, theta, precision)
    np.testing.assert_allclose(float((precision * balanced.square()).sum()), lowest, rtol=1e-8)


@pytest.mark.parametrize("hidden", DEPTHS, ids=str)
@pytest.mark.parametrize("activation", [RELU, IDENTITY], ids=lambda a: a.name)
def test_an_orbit_has_one_representative_of_the_same_function(hidden, activation, generator):
    network = MLP(2, hidden, 2, activation)
    theta = draw((4, network.layout.n_params), generator)
    precision = draw(theta.shape, generator).exp()
    x = draw((20, 2), generator)
    balanced = balance_units(network, theta, precision)
    moved = balance_units(network, rescale(network, theta, generator), precision)
    assert_close(network.forward(balanced, x), network.forward(theta, x), rtol=1e-9, atol=1e-10)
    assert_close(moved, balanced, rtol=1e-7, atol=1e-8)


def test_other_networks_keep_their_weights_to_the_last_bit(generator):
    for network in (MLP(2, (3,), 1, TANH), MLP(2, (), 1, RELU)):
        theta = draw((2, network.layout.n_params), generator)
        assert balance_units(network, theta, torch.ones_like(theta)) is theta


def test_units_without_incoming_or_outgoing_weights_keep_theirs(generator):
    network = MLP(2, (3,), 1, RELU)
    theta = draw((network.layout.n_params,), generator)
    (weight, bias), (outgoing, _) = network.layers(theta)
    weight[0] = 0.0
    bias[0] = 0.0
    outgoing[0, 1] = 0.0
    balanced = balance_units(network, theta, torch.ones_like(theta))
    (new_weight, _), (new_outgoing, _) = network.layers(balanced)
    assert torch.equal(new_weight[:2], weight[:2])
    assert torch.equal(new_outgoing[0, :2], outgoing[0, :2])
    assert not torch.equal(new_weight[2], weight[2])


def test_evidence_and_predictions_are_those_of_the_orbit(generator):
    """Without balancing, rescaling moves the evidence by nats and the variances by factors."""
    problem = make_problem(generator)
    network = problem.network
    theta = draw((5, network.layout.n_params), generator)
    log_precision = draw((5, problem.prior.n_groups), generator)
    hyper = Hyperparameters(log_precision, torch.full((5, 1), 4.0, dtype=torch.float64))
    precision = log_precision.exp()[:, problem.prior.group]
    moved = rescale(network, theta, generator)

    def evaluate(weights):
        value, system = problem.evaluate(weights, problem.expansion(weights), hyper)
        equal = torch.full((5,), 0.2, dtype=torch.float64)
        modes = LinearisedModes(network, weights, system.cholesky(), equal)
        return value, modes.outputs(problem.data.x)[1]

    value, covariance = evaluate(balance_units(network, theta, precision))
    moved_value, moved_covariance = evaluate(balance_units(network, moved, precision))
    assert_close(moved_value, value, rtol=1e-9, atol=1e-9)
    assert_close(moved_covariance, covariance, rtol=1e-8, atol=1e-10)
    # Negative control.
    assert float((evaluate(moved)[0] - value).abs().max()) > 1.0
    assert float((evaluate(moved)[1] / covariance).log().abs().max()) > 0.1


def check_is_balanced(network, theta, precision):
    """Incoming and outgoing norms of every unit are equal."""
    (weight, bias), (outgoing, _) = network.layers(theta)
    (weight_precision, bias_precision), (outgoing_precision, _) = network.layers(precision)
    incoming = (weight_precision * weight.square()).sum(-1) + bias_precision * bias.square()
    assert_close(incoming, (outgoing_precision * outgoing.square()).sum(-2))


@pytest.mark.parametrize("optimizer", [GaussNewton(2), "adam"], ids=["gauss-newton", "adam"])
def test_reported_modes_are_balanced_wherever_the_search_stopped(optimizer):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (30, 1))
    y = np.abs(x[:, 0]) + 0.2 * rng.standard_normal(30)
    model = LaplaceRegressor(
        (3,), "relu", optimizer=optimizer, prior=0.7, max_iter=12, tol=None, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stops early
        model.fit(x, y)
    theta = torch.as_tensor(np.atleast_2d(model.posterior_.loc))
    precision = torch.full_like(theta, 0.7**-2)
    check_is_balanced(model.network_, theta, precision)


def test_modules_balance_as_the_same_network_does(generator):
    network = MLP(2, (3, 4), 1, RELU)
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    theta = draw((network.layout.n_params,), generator)
    precision = draw((network.layout.n_params,), generator).exp()
    axes = symmetry_of(module, torch.zeros(3, 2)).scaled_axes
    expected = balance_units(network, theta, precision)
    assert_close(balance_axes(axes, theta, precision), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("max_dense_units", [balancing.MAX_DENSE_UNITS, 0], ids=["dense", "cg"])
def test_units_almost_without_weights_are_balanced(max_dense_units, generator, monkeypatch):
    """A small share of the prior density doesn't excuse a unit from the optimum."""
    monkeypatch.setattr(balancing, "MAX_DENSE_UNITS", max_dense_units)
    network = MLP(2, (3, 4), 1, RELU)
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    theta = draw((network.layout.n_params,), generator)
    (weight, bias), (outgoing, _), _ = network.layers(theta)
    weight[0] *= 1e-5
    bias[0] *= 1e-5
    outgoing[:, 0] *= 1e-4
    axes = symmetry_of(module, torch.zeros(3, 2)).scaled_axes
    balanced = network.layers(balance_axes(axes, theta, torch.ones_like(theta)))
    (weight, bias), (outgoing, _), _ = balanced
    incoming = weight.square().sum(-1) + bias.square()
    assert_close(incoming, outgoing.square().sum(0), rtol=1e-2, atol=0.0)


def test_channels_of_convolutions_are_balanced(generator):
    """The function stays, and so does the result if the start is another point of the orbit."""
    module = nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 1), nn.LeakyReLU(),
        nn.Flatten(), nn.Linear(16, 2),
    ).double()  # fmt: skip
    x = draw((5, 1, 5, 5), generator)
    group = symmetry_of(module, x)
    theta = draw((group.n_params,), generator)
    precision = draw((group.n_params,), generator).exp()
    log_scale = torch.zeros(group.n_params, dtype=torch.float64)
    factors = draw((7,), generator)
    for axis in group.scaled_axes:
        position, unit = torch.as_tensor(axis.entries())
        log_scale[position] += axis.power * factors[unit]

    def outputs(weights):
        return torch.func.functional_call(module, group.layout.unflatten(weights), x)

    balanced = balance_axes(group.scaled_axes, theta, precision)
    assert not torch.allclose(balanced, theta, rtol=0.1)
    assert_close(outputs(balanced), outputs(theta))
    other = balance_axes(group.scaled_axes, theta * log_scale.exp(), precision)
    assert_close(other, balanced, rtol=1e-4, atol=1e-4)


def test_units_without_a_point_of_highest_density_stay(generator):
    """Outgoing weights of zero, and an odd activation."""
    for activation in (nn.ReLU(), nn.Tanh()):
        module = nn.Sequential(nn.Linear(2, 3), activation, nn.Linear(3, 1))
        group = symmetry_of(module, torch.zeros(3, 2))
        theta = draw((group.n_params,), generator)
        theta[9:12] = 0.0
        balanced = balance_axes(group.scaled_axes, theta, torch.ones_like(theta))
        assert_close(balanced, theta, rtol=0.0, atol=0.0)


def test_modules_end_in_balanced_units():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2))
    y = np.abs(x[:, 0]) + 0.1 * rng.standard_normal(60)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    model = LaplaceRegressor(network=module, max_iter=30, tol=None, random_state=0).fit(x, y)
    first, bias, second, _ = model.network_.layout.unflatten(
        torch.as_tensor(model.posterior_.loc)
    ).values()
    precision = 1.0 / np.asarray(model.prior_scale_) ** 2  # one of each layer
    incoming = precision[0] * (first.square().sum(1) + bias.square())
    outgoing = precision[1] * second.square().sum(0)
    assert_close(incoming, outgoing, rtol=1e-3, atol=1e-6)


def move_along_orbits(network, theta):
    """Rescale every unit of one network or a batch by a random factor, the same in every call."""
    generator = torch.Generator().manual_seed(5)
    if isinstance(network, MLP):
        return rescale(network, theta, generator)
    log_scale = torch.zeros(theta.shape[-1], dtype=torch.float64)
    axes = network.symmetry().scaled_axes
    entries = [torch.as_tensor(axis.entries()) for axis in axes]
    factors = draw((1 + max(int(units.max()) for _, units in entries),), generator)
    for axis, (position, unit) in zip(axes, entries, strict=True):
        log_scale[position] += axis.power * factors[unit]
    return theta * log_scale.exp().to(theta)


def make_rows(n_classes=0):
    rng = np.random.default_rng(1)
    x = rng.uniform(-2.0, 2.0, (60, 2))
    y = np.abs(x[:, 0]) + 0.3 * rng.standard_normal(60)
    if n_classes:
        y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    return x, y


def make_images():
    rng = np.random.default_rng(2)
    y = np.arange(60) % 2
    x = 0.5 * rng.standard_normal((60, 5, 5))
    x[y == 1, 1:3, 1:3] += 1.0
    return x.reshape(60, -1), y


def make_module(n_outputs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(2, 5), nn.LeakyReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, n_outputs)
        )


def make_convolutions():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
        )


EARLY = {"max_iter": 30, "tol": None, "random_state": 0}
SMALL = {"hidden_layer_sizes": (4,), "activation": "relu", **EARLY}
IMAGES = {"network": make_convolutions(), "image_shape": (5, 5), **EARLY}
TURNS = Invariances([Rotation2D()], n_augmentations=3)
RELU_ESTIMATORS = {
    "Laplace, Gauss-Newton": (LaplaceRegressor(**SMALL, optimizer=GaussNewton(2)), make_rows),
    "Laplace, Adam": (LaplaceRegressor(**SMALL, optimizer="adam"), make_rows),
    "Laplace, two layers": (
        LaplaceRegressor((4, 3), "relu", optimizer=GaussNewton(2), prior=ARD(), **EARLY), make_rows
    ),
    "Laplace, full": (
        LaplaceRegressor(**SMALL, optimizer=EvidenceAdam(curvature="full")), make_rows
    ),
    "Laplace, last layer": (
        LaplaceRegressor(**SMALL, optimizer=EvidenceAdam(layers="last")), make_rows
    ),
    "Laplace, module": (LaplaceRegressor(network=make_module(1), **EARLY), make_rows),
    "Laplace, classes": (
        LaplaceClassifier(**SMALL, optimizer=GaussNewton(2)), lambda: make_rows(3)
    ),
    "Laplace, classes, module": (
        LaplaceClassifier(network=make_module(3), **EARLY), lambda: make_rows(3)
    ),
    "LILA": (LILARegressor(**SMALL, invariances=TURNS), make_rows),
    "LILA, classes, convolutions": (LILAClassifier(**IMAGES), make_images),
    "ensemble": (DeepEnsembleRegressor((4,), n_members=2, **EARLY), make_rows),
    "ensemble, learned scales": (
        DeepEnsembleRegressor((4, 3), n_members=2, prior="learn", **EARLY), make_rows
    ),
    "ensemble, two targets": (
        DeepEnsembleRegressor((4,), n_members=2, **EARLY),
        lambda: (make_rows()[0], np.column_stack([make_rows()[1], make_rows()[0][:, 1]])),
    ),
    "ensemble, classes": (
        DeepEnsembleClassifier((4, 3), n_members=2, **EARLY), lambda: make_rows(3)
    ),
    "mixture, classes": (
        BayesianMLPClassifier(n_modes=2, n_members=2, random_state=0), lambda: make_rows(3)
    ),
}  # fmt: skip


def summarise(model, x):
    """Return the log evidence and the linearised predictions."""
    if is_regressor(model):
        future = predictive(model, x)
        values = [np.ravel(future.mean()), np.ravel(future.std())]
    else:
        values = [np.log(model.predict_proba(x)).ravel()]
    if np.ndim(getattr(model, "log_evidence_", None)) == 0 and hasattr(model, "log_evidence_"):
        values.append([model.log_evidence_])
    return np.concatenate(values)


@pytest.mark.filterwarnings("ignore")  # training stops early
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if "mixture" in name else ())
        for name in RELU_ESTIMATORS
    ],
)
def test_reports_dont_depend_on_the_point_of_the_orbit_where_training_stopped(name, monkeypatch):
    """Units are rescaled at random before each curvature that an estimator reports."""
    estimator, make_data = RELU_ESTIMATORS[name]
    x, y = make_data()
    reported = summarise(clone(estimator).fit(x, y), x)

    def fit_with(representative):
        calls = []

        def balance(network, theta, precision):
            if isinstance(network, MLP) and not network.activation.is_homogeneous:
                return theta
            calls.append(network)
            return representative(network, move_along_orbits(network, theta), precision)

        for module in (mode_finding, invariant_evidence, ensemble_fit):
            monkeypatch.setattr(module, "balance_weights", balance)
        model = clone(estimator).fit(x, y)
        assert calls
        return summarise(model, x)

    np.testing.assert_allclose(fit_with(balancing.balance_weights), reported, rtol=1e-4, atol=1e-4)
    # Negative control: without balancing the reports depend on it.
    unbalanced = fit_with(lambda _network, theta, _precision: theta)
    assert np.abs(unbalanced - reported).max() > 1e-3


@pytest.mark.filterwarnings("ignore")  # training stops early
def test_members_are_balanced_under_their_own_scales():
    model = DeepEnsembleRegressor((4,), n_members=2, prior="learn", **EARLY).fit(*make_rows())
    scales = model.prior_scale_samples_
    assert not np.allclose(scales, scales[:, :1], rtol=0.1)
    group = LayerScales().bind(model.network_.layout).group
    precision = torch.as_tensor(scales)[:, group] ** -2
    check_is_balanced(model.network_, torch.as_tensor(model.samples_), precision)


@pytest.mark.filterwarnings("ignore")  # training stops early
def test_layers_that_are_not_covered_are_balanced_under_the_prior_of_training():
    optimizer = EvidenceAdam(layers="last")
    model = LaplaceRegressor(**SMALL, prior=[2.0, 0.5], optimizer=optimizer).fit(*make_rows())
    precision = torch.tensor([0.25, 4.0], dtype=torch.float64)
    check_is_balanced(
        model.network_,
        torch.as_tensor(model.posterior_.loc),
        precision[layer_index(model.network_.layout)],
    )
