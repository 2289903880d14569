"""Draws on one representative: the same functions, NumPy in and out, and their display."""

import warnings

import numpy as np
import pytest
import torch
from cases import mixed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from symmetry.modules.architectures import encoder
from torch import nn

from skbayes_sym import DeepEnsembleRegressor, SymmetrizedVIRegressor
from skbayes_sym.inspection import SymmetryDisplay
from skbayes_sym.inspection.symmetry_removal import remove_symmetries
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.symmetry import Wreath, symmetry_of
from skbayes_sym.symmetry.modules.numerical_check import build_output_function
from skbayes_sym.symmetry.relabelling import align_to_mean, orbit_mean_square

SMALL = {"hidden_layer_sizes": (3,), "activation": "tanh", "n_features_in": 1, "random_state": 0}


def make_draws(sizes=(3,), activation="tanh", n_features_in=1, n_outputs=1, n=50, noise=0.1):
    network = MLP(n_features_in, sizes, n_outputs, ACTIVATIONS[activation])
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(network.layout.n_params, generator=generator, dtype=torch.float64)
    draws = base + noise * torch.randn(n, len(base), generator=generator, dtype=torch.float64)
    group = network.symmetry()
    return network, group.act(group.sample((n,), generator=generator), draws).numpy()


@pytest.mark.kept(
    "sizes0-1-tanh",
    "sizes0-1-identity",
    "sizes1-2-relu",
    "sizes1-2-softplus",
    "sizes2-1-sigmoid",
    "sizes2-1-tanh",
    "sizes3-2-identity",
    "sizes3-2-tanh",
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("sizes", "n_outputs"), [((3,), 1), ((5,), 2), ((4, 3), 1), ((), 2)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_functions_stay_and_labels_say_how(sizes, n_outputs, activation):
    network, draws = make_draws(sizes, activation, 2, n_outputs, noise=0.5)
    found = remove_symmetries(
        draws, hidden_layer_sizes=sizes, activation=activation, n_features_in=2,
        n_outputs=n_outputs, random_state=0,
    )  # fmt: skip
    x = torch.linspace(-3, 3, 20, dtype=torch.float64).reshape(10, 2)
    before, after = (network.forward(torch.from_numpy(d), x) for d in (draws, found.draws))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-10)
    rebuilt, given = found.draws, network.layout.unflatten(torch.from_numpy(draws))
    if sizes:
        place, sign = (torch.from_numpy(a[0]) for a in (found.permutations, found.signs))
        bias = network.layout.unflatten(torch.from_numpy(rebuilt))["b1"]
        torch.testing.assert_close(bias, given["b1"].gather(1, place) * sign, rtol=0, atol=0)
        assert ACTIVATIONS[activation].is_odd or bool((sign == 1).all())
    assert [p.shape for p in found.permutations] == [(50, d) for d in sizes]
    assert found.margin.shape == (50,)


def test_a_network_whose_second_layer_has_no_flips(monkeypatch):
    """Copies under that group go away, and signs of the second layer are left alone."""
    network, draws = make_draws((3, 2), noise=0.02)
    group = mixed(network)
    monkeypatch.setattr(MLP, "symmetry", lambda self: group)
    found = remove_symmetries(draws, **SMALL | {"hidden_layer_sizes": (3, 2)})
    assert (found.signs[0] == -1).any()
    assert (found.signs[1] == 1).all()
    moved = group.act(
        group.sample((len(draws),), generator=torch.Generator().manual_seed(0)),
        torch.from_numpy(draws),
    )
    again = remove_symmetries(moved, **SMALL | {"hidden_layer_sizes": (3, 2)})
    np.testing.assert_array_equal(again.draws, found.draws)


def test_chains_keep_their_shape_and_inputs_their_values():
    _, draws = make_draws(n=60)
    before = draws.copy()
    flat = remove_symmetries(draws, **SMALL)
    found = remove_symmetries(draws.reshape(4, 15, -1), **SMALL)
    assert found.draws.shape == (4, 15, draws.shape[1])
    assert found.margin.shape == (4, 15)
    assert found.permutations[0].shape == found.signs[0].shape == (4, 15, 3)
    np.testing.assert_array_equal(found.draws.reshape(60, -1), flat.draws)
    np.testing.assert_array_equal(draws, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_dtypes(dtype):
    _, draws = make_draws()
    draws = (100 * draws).astype(dtype)
    found = remove_symmetries(draws, **SMALL)
    assert found.draws.dtype == (np.float32 if dtype == np.float32 else np.float64)
    np.testing.assert_array_equal(np.sort(abs(found.draws)), np.sort(abs(draws)))


def test_nothing_to_remove():
    _, draws = make_draws(())
    found = remove_symmetries(draws, **{**SMALL, "hidden_layer_sizes": ()})
    np.testing.assert_array_equal(found.draws, draws)
    assert found.permutations == []
    assert found.signs == []
    assert np.isposinf(found.margin).all()


@pytest.mark.long
def test_unfinished_labels_are_reported():
    _, draws = make_draws((16,), n=300, noise=3.0)
    settings = {**SMALL, "hidden_layer_sizes": 16}
    with pytest.warns(ConvergenceWarning, match=r"of 300 draws .* max_sweeps=1 ") as caught:
        found = remove_symmetries(draws, max_sweeps=1, **settings)
    assert caught[0].filename == __file__
    assert found.margin.min() < 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = remove_symmetries(draws, max_sweeps=2000, **settings)
    assert found.margin.min() >= 0
    assert np.median(found.margin) < 2.0  # units that follow the prior: labels mean nothing


def with_value(value):
    draws = make_draws()[1]
    draws[3, 2] = value
    return draws


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (np.zeros((5, 11)), r"11 columns.*10 weights.*W1 \(3, 1\).*noise"),
        (np.zeros(10), r"shape \(10,\)"),
        (np.zeros((2, 2, 2, 10)), r"\(n_chains, n_draws, P\).*\(2, 2, 2, 10\)"),
        (np.zeros((0, 10)), "0 draws.*at least 2"),
        (np.zeros((3, 0, 10)), "0 draws"),
        (np.zeros((1, 10)), "1 draws.*at least 2"),
        (with_value(np.nan), "1 of 50 draws.*first is draw 3"),
        (with_value(np.inf), "draws must be finite"),
        (np.full((5, 10), "a", dtype=object), "could not convert"),
        (np.zeros((5, 10)) + 1j, "Complex"),
    ],
    ids=["columns", "1d", "4d", "empty", "no-draws", "one", "nan", "inf", "object", "complex"],
)
def test_bad_draws(draws, message):
    with pytest.raises(ValueError, match=message):
        remove_symmetries(draws, **SMALL)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("activation", "swish", r"'activation'.*'tanh'.*Got 'swish'"),
        ("hidden_layer_sizes", (0,), "hidden_layer_sizes must be positive"),
        ("hidden_layer_sizes", (2.5,), "hidden_layer_sizes must be an int"),
        ("hidden_layer_sizes", (4,), "10 columns"),
        ("n_features_in", 0, "'n_features_in'"),
        ("n_outputs", 1.5, "'n_outputs'"),
        ("n_starts", 0, "'n_starts'"),
        ("max_sweeps", 0, "'max_sweeps'"),
        ("random_state", "zero", "'random_state'"),
    ],
)
def test_bad_settings(name, value, message):
    with pytest.raises(ValueError, match=message):
        remove_symmetries(make_draws()[1], **{**SMALL, name: value})


def test_fitted_samplers_bring_their_own_network_through_pipelines_too():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 2)), rng.standard_normal(20)
    ensemble = DeepEnsembleRegressor(
        (3,), "tanh", n_members=4, max_iter=20, tol=None, random_state=0
    )
    pipe = make_pipeline(StandardScaler(), ensemble).fit(X, y)
    found = remove_symmetries(pipe, random_state=0)
    expected = remove_symmetries(
        pipe[-1].samples_, hidden_layer_sizes=3, activation="tanh", n_features_in=2, random_state=0
    )
    np.testing.assert_array_equal(found.draws, expected.draws)
    for name, value in {"activation": "tanh", "n_outputs": 2}.items():
        with pytest.raises(ValueError, match=f"{name} is the fitted estimator's own"):
            remove_symmetries(pipe, **{name: value})
    with pytest.raises(TypeError, match="BayesianRidge has no draws"):
        remove_symmetries(BayesianRidge().fit(X, y))
    with pytest.raises(TypeError, match="draws are an array, so activation, n_features_in must"):
        remove_symmetries(pipe[-1].samples_, hidden_layer_sizes=3)


@pytest.mark.long
def test_draws_of_any_module_come_back_to_one_copy():
    torch.manual_seed(0)
    module, x = encoder(4, 2, 5, 1).eval(), torch.randn(3, 6, 9)
    group, generator = symmetry_of(module, x), torch.Generator().manual_seed(1)
    assert any(isinstance(factor, Wreath) for factor in group.factors)
    base = torch.randn(group.layout.n_params, generator=generator, dtype=torch.float64)
    tight = base + 0.1 * torch.randn(60, len(base), generator=generator, dtype=torch.float64)
    draws = group.act(group.sample((60,), generator=generator), tight).numpy()
    found = remove_symmetries(
        draws.reshape(3, 20, -1), module=module, example_input=x, random_state=0
    )
    assert found.draws.shape == (3, 20, len(base))
    flat = torch.from_numpy(found.draws).reshape(60, -1)
    spread, given = flat.std(dim=0), torch.from_numpy(draws).std(dim=0)
    torch.testing.assert_close(spread.mean(), tight.std(dim=0).mean(), rtol=0.01, atol=0)
    assert given.mean() > 5 * spread.mean()
    function = build_output_function(module, group.layout, (x,))
    for before, after in zip(torch.from_numpy(draws)[:5], flat[:5], strict=True):
        torch.testing.assert_close(function(after), function(before), rtol=0, atol=1e-12)
    wide = torch.randn(60, len(base), generator=generator, dtype=torch.float64)
    moved = align_to_mean(wide, group, n_starts=2, max_sweeps=100, generator=generator)
    scaled = moved.theta / orbit_mean_square(wide, group).sqrt()
    assert torch.equal(group.align(scaled, scaled.mean(dim=0))[0], scaled)  # no draw moves more
    assert found.margin is None
    assert all(p.shape[:2] == s.shape[:2] == (3, 20)
               for p, s in zip(found.permutations, found.signs, strict=True))  # fmt: skip


def test_a_module_of_plain_layers_is_the_network_described():
    _, draws = make_draws((3, 2), n=30)
    layers = nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)
    found = remove_symmetries(
        draws, module=nn.Sequential(*layers), example_input=torch.zeros(2, 1), random_state=0
    )
    described = remove_symmetries(draws, **{**SMALL, "hidden_layer_sizes": (3, 2)})
    np.testing.assert_array_equal(found.draws, described.draws)
    np.testing.assert_array_equal(found.margin, described.margin)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "example_input"),
        ({"example_input": torch.zeros(2, 1), "n_outputs": 2}, ValueError, "the module's own"),
        ({"example_input": torch.zeros(2, 3)}, ValueError, "can.t be traced"),
    ],
)
def test_bad_settings_of_a_module(arguments, error, message):
    module = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    with pytest.raises(error, match=message):
        remove_symmetries(make_draws()[1], module=module, **arguments)


def columns(estimator, layer=1):
    return estimator.network_.symmetry().factors[layer - 1].index.numpy()


@pytest.mark.long
def test_reduced_draws_are_shown_as_they_are(sampled, axes):
    """As many draws as there are: each once, in order, where the weights are equal."""
    sampled = equal_weights(sampled)
    display = SymmetryDisplay.from_estimator(sampled, n_draws=160, ax=axes)
    theta = sampled.samples_.reshape(160, -1)
    np.testing.assert_array_equal(display.after, theta[:, columns(sampled)[:, :2]])
    assert display.weight_names == ("weight of x0", "bias")
    assert display.before_name == "all symmetric copies"
    assert display.ax_ is axes
    np.testing.assert_array_equal(
        sorted_rows(display.points_[1].get_offsets()), sorted_rows(display.after.reshape(-1, 2))
    )


def test_copies_are_the_same_units_in_other_places(sampled):
    """Up to exchange and sign, each draw has the same units before and after."""
    display = SymmetryDisplay.from_estimator(sampled, n_draws=160)
    unsigned = [np.abs(points) for points in (display.before, display.after)]
    before, after = (np.sort(points, axis=1) for points in unsigned)
    np.testing.assert_allclose(before, after, rtol=1e-12)
    # One unit has two copies, its own and the flipped: half of the draws move.
    moved = np.mean(np.any(display.before != display.after, axis=(1, 2)))
    assert abs(moved - 0.5) < 4.0 * (0.25 / 160) ** 0.5


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_draws_left_as_sampled_are_reduced(sampled, curve_data):
    raw = clone(sampled).set_params(remove_symmetries=False).fit(*curve_data)
    display = SymmetryDisplay.from_estimator(raw, n_draws=160, pair=(2, "weight of x0"))
    theta = raw.samples_.reshape(160, -1)
    np.testing.assert_array_equal(display.before, theta[:, columns(raw)[:, [2, 0]]])
    assert display.before_name == "as sampled"
    assert display.weight_names == ("weight to output 0", "weight of x0")
    assert display.after.var(axis=0).sum() <= display.before.var(axis=0).sum()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_variational_posterior_and_deeper_layers(curve_data):
    reg = SymmetrizedVIRegressor((3, 2), "tanh", max_iter=20, random_state=0).fit(*curve_data)
    display = SymmetryDisplay.from_estimator(reg, layer=2, n_draws=40, pair=(2, 3))
    generator = torch.Generator().manual_seed(int(np.random.RandomState(0).randint(2**31 - 1)))
    theta = reg.posterior_.sample(40, generator=generator).numpy()
    np.testing.assert_allclose(display.after, theta[:, columns(reg, 2)[:, 2:4]])
    assert display.weight_names == ("weight of unit 2 below", "bias")


def test_heavier_chains_have_more_draws(sampled):
    weighted = equal_weights(sampled)
    weighted.chain_weights_ = np.array([0.75, 0.25] + [0.0] * 14)
    after = SymmetryDisplay.from_estimator(weighted, n_draws=40).after
    first = weighted.samples_[0][:, columns(weighted)[:, :2]]
    from_first = [any(np.array_equal(row, draw) for draw in first) for row in after]
    assert sum(from_first) == 30


def test_modes_are_coloured_by_chain(sampled):
    copy = equal_weights(sampled)
    halves = np.split(np.random.default_rng(0).permutation(16), 2)
    copy.modes_ = [
        copy.modes_[0]._replace(weight=weight, chains=chains)
        for weight, chains in zip((0.7, 0.3), halves, strict=True)
    ]
    display = SymmetryDisplay.from_estimator(copy, n_draws=160, color_by="mode")
    chains = np.repeat(np.arange(16), 10)
    select_draws = np.isin(chains, halves[1])
    np.testing.assert_array_equal(display.labels, select_draws[:, None])  # of the one unit
    assert display.label_names == ["mode 0, mass 0.70", "mode 1, mass 0.30"]


def test_mistakes(sampled, network):
    with pytest.raises(ValueError, match=r"layer must lie between 1 and .* 1 here"):
        SymmetryDisplay.from_estimator(sampled, layer=2)
    with pytest.raises(ValueError, match=r"pair takes two positions or names of \['weight of x0'"):
        SymmetryDisplay.from_estimator(sampled, pair=(0, "b"))
    for wrong in ("chain", np.ones(2)):
        with pytest.raises(ValueError, match="color_by must be 'unit' or 'mode'"):
            SymmetryDisplay.from_estimator(sampled, color_by=wrong)
    with pytest.raises(ValueError, match="no modes of this SymmetrizedVIRegressor"):
        SymmetryDisplay.from_estimator(network, color_by="mode")


def equal_weights(sampled):
    """A copy whose chains count alike."""
    copy = clone(sampled)
    copy.__dict__.update(sampled.__dict__)
    copy.chain_weights_ = np.full(16, 1 / 16)
    return copy


def sorted_rows(points):
    points = np.asarray(points)
    return points[np.lexsort(points.T)]


def test_draws_of_anyone_and_any_module(axes):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    draws = np.random.default_rng(0).standard_normal((2, 15, 13))
    removed = remove_symmetries(
        draws, module=module, example_input=torch.zeros(1, 2), random_state=0
    )
    display = SymmetryDisplay.from_draws(draws, removed, pair=(0, 2), n_draws=20, ax=axes)
    assert display.before.shape == display.after.shape == (20, 3, 2)
    index = removed.group.factors[0].index[:, [0, 2]].numpy()
    np.testing.assert_array_equal(display.after[0], removed.draws[0, 0][index])
    np.testing.assert_array_equal(
        np.sort(np.abs(display.before), axis=1), np.sort(np.abs(display.after), axis=1)
    )
    for wrong in ({"layer": 2}, {"pair": (0, 9)}):
        with pytest.raises(ValueError, match=r"layer must|pair takes"):
            SymmetryDisplay.from_draws(draws, removed, **wrong)
    with pytest.raises(ValueError, match="pass the draws that were passed to remove_symmetries"):
        SymmetryDisplay.from_draws(draws[0], removed)
    with pytest.raises(TypeError, match="removed must be the result of remove_symmetries"):
        SymmetryDisplay.from_draws(draws, removed.draws)


def test_random_state_is_private():
    _, draws = make_draws(noise=0.8)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    first = remove_symmetries(draws, **SMALL)
    remove_symmetries(draws, **{**SMALL, "random_state": None})
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state[1])  # noqa: NPY002
    for seed in (0, np.random.RandomState(0)):
        again = remove_symmetries(draws, **{**SMALL, "random_state": seed})
        np.testing.assert_array_equal(again.draws, first.draws)


def test_two_equal_draws():
    draws = np.tile(np.arange(10.0), (2, 1))
    found = remove_symmetries(draws, **SMALL)
    np.testing.assert_array_equal(found.draws[0], found.draws[1])
    assert np.isfinite(found.margin).all()
