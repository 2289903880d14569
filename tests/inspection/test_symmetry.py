"""Before and after are draws of the fit and the same functions."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skbayes_sym import DeepEnsembleRegressor, SymmetrizedVIRegressor
from skbayes_sym.inspection import SymmetryDisplay
from skbayes_sym.inspection.symmetry_removal import remove_symmetries

ALL = ["weight of x0", "bias", "weight to output 0"]


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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_members_of_an_ensemble(curve_data):
    ensemble = DeepEnsembleRegressor((2,), "tanh", n_members=6, max_iter=20, random_state=0)
    display = SymmetryDisplay.from_estimator(ensemble.fit(*curve_data))
    np.testing.assert_array_equal(
        display.before, ensemble.samples_[:, columns(ensemble)[:, :2]].astype(float)
    )


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
        copy.modes_[0]._replace(weight=weight, members=members)
        for weight, members in zip((0.7, 0.3), halves, strict=True)
    ]
    display = SymmetryDisplay.from_estimator(copy, n_draws=160, color_by="mode")
    chains = np.repeat(np.arange(16), 10)
    of_draws = np.isin(chains, halves[1])
    np.testing.assert_array_equal(display.labels, of_draws[:, None])  # of the one unit
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
    with pytest.raises(ValueError, match="give the draws that remove_symmetries was given"):
        SymmetryDisplay.from_draws(draws[0], removed)
    with pytest.raises(TypeError, match="removed must be what remove_symmetries returned"):
        SymmetryDisplay.from_draws(draws, removed.draws)
