"""Likelihoods, priors, groups and gaps of one's own, and what doesn't go together."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import LaplaceNoise, Softmax
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_iris

from skbayes_sym import (
    Symmetrized,
    SymmetrizedVIClassifier,
    SymmetrizedVIRegressor,
    VariationalAdam,
    invariance_gap,
)
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.numerics.permanent import log_permanent
from skbayes_sym.symmetry.gaps.unit_gap import Exact, UnitGap
from skbayes_sym.symmetry.group import Product, Trivial
from skbayes_sym.symmetry.units import Units
from skbayes_sym.variational import fit as method
from skbayes_sym.variational.elbo import SymmetrizedElbo
from skbayes_sym.variational.fit import MeanFieldVI

rng = np.random.default_rng(0)
X = rng.standard_normal((40, 3))
Y = X[:, 0] + 0.3 * rng.standard_normal(40)
COUNTS = rng.poisson(np.exp(0.5 * X[:, 0])).astype(float)
LABELS = (Y > 0).astype(int)
FAST = {"hidden_layer_sizes": (3,), "activation": "tanh", "max_iter": 60, "tol": None,
        "random_state": 0}  # fmt: skip


def regressor(**kwargs):
    return SymmetrizedVIRegressor(**(FAST | kwargs))


def test_a_scale_is_learned_in_the_units_of_the_targets():
    reg = regressor(likelihood=LaplaceNoise(torch.zeros(1, dtype=torch.float64))).fit(X, Y)
    scaled = clone(reg).fit(X, 10.0 * Y)
    assert scaled.noise_std_ == pytest.approx(10.0 * reg.noise_std_)
    assert scaled.elbo_ == pytest.approx(reg.elbo_ - 40 * np.log(10.0), abs=1e-6)
    with pytest.raises(ValueError, match=r"noise_std=3.0 does not apply: likelihood= is given"):
        clone(reg).set_params(noise_std=3.0).fit(X, Y)


def test_a_likelihood_of_labels_is_the_softmax_written_again():
    own = SymmetrizedVIClassifier(**FAST, likelihood=Softmax()).fit(X, LABELS)
    ours = SymmetrizedVIClassifier(**FAST).fit(X, LABELS)
    np.testing.assert_allclose(own.predict_proba(X), ours.predict_proba(X), rtol=1e-6)
    assert own.elbo_ == pytest.approx(ours.elbo_, abs=1e-6)


def test_flips_alone_are_a_subgroup():
    reg = regressor(symmetry="sign_flip").fit(X, Y)
    assert reg.symmetry_.log_order == pytest.approx(3 * np.log(2.0))
    assert 0.0 < reg.symmetry_gap_ <= reg.symmetry_.log_order + 1e-12
    assert reg.elbo_ == reg.elbo_upper_  # no permanent in it
    with pytest.raises(ValueError, match=r"'relu'.*odd"):
        regressor(symmetry="sign_flip", activation="relu").fit(X, Y)
    linear = regressor(symmetry="sign_flip", hidden_layer_sizes=()).fit(X, Y)
    assert isinstance(linear.symmetry_, Trivial)


def units(first=(0, 1)):
    """Two of the three hidden units of the network: index_tensor of W1, b1, W2."""
    index = [[3 * i, 3 * i + 1, 3 * i + 2, 9 + i, 12 + i] for i in first]
    return Units(torch.tensor(index))


def test_a_group_of_ones_own_is_checked():
    two = regressor(symmetry=Product((units(),))).fit(X, Y)
    assert two.symmetry_.log_order == pytest.approx(np.log(2.0))
    assert 0.0 < two.symmetry_gap_ <= np.log(2.0) + 1e-12
    swapped_inputs = Units(torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match=r"symmetry=Units changes what the network computes"):
        regressor(symmetry=swapped_inputs).fit(X, Y)
    with pytest.raises(ValueError, match="but the group acts on at least 92 weights"):
        regressor(symmetry=Units(torch.tensor([[90], [91]]))).fit(X, Y)
    with pytest.raises(ValueError, match="prior is not invariant"):
        regressor(symmetry=units(), prior=np.linspace(1, 2, 16)).fit(X, Y)


class Permanent:
    """An estimate of one's own: the permanent itself."""

    side = "exact"

    def __call__(self, log_weights, *, generator):
        return log_permanent(log_weights)


def test_an_estimate_of_ones_own():
    own, ours = (
        regressor(symmetry=Symmetrized(gap=gap)).fit(X, Y) for gap in (Permanent(), Exact())
    )
    assert own.elbo_ == ours.elbo_ == own.elbo_upper_
    assert np.array_equal(own.posterior_.loc, ours.posterior_.loc)


class Halved(UnitGap):
    """A gap of one's own: a lower bound on another's."""

    side = "lower"

    def value_and_gradients(self, posterior, *, generator):
        assert posterior.loc.shape == (16,)
        found = super().value_and_gradients(posterior, generator=generator)
        return found._replace(
            value=found.value / 2, d_mean=found.d_mean / 2,
            added_precision=found.added_precision / 2,
        )  # fmt: skip

    def estimate(self, posterior, n_draws=None, *, generator):
        found = super().estimate(posterior, n_draws, generator=generator)
        return found._replace(value=found.value / 2)


def test_a_gap_with_a_group_of_its_own():
    gap = Halved(units(), Exact())
    several = VariationalAdam(n_starts=2)  # which such a gap sees one by one
    reg = regressor(symmetry=Symmetrized(gap=gap), optimizer=several).fit(X, Y)
    assert reg.symmetry_.log_order == pytest.approx(np.log(2.0))
    assert 0.0 < reg.symmetry_gap_ <= 0.5 * np.log(2.0) + 1e-12
    assert reg.elbo_upper_ == reg.elbo_mean_field_ + reg.symmetry_.log_order
    assert invariance_gap(reg).value == pytest.approx(2 * reg.symmetry_gap_, abs=0.05)
    with pytest.raises(ValueError, match=r"symmetry='permutation', but gap=Halved has a group"):
        regressor(symmetry=Symmetrized("permutation", gap)).fit(X, Y)


STILL = VariationalAdam(1e-12, init="laplace")
START = {"max_iter": 1, "optimizer": STILL, "tol": None, "random_state": 0}


def start(sizes, **settings):
    return SymmetrizedVIRegressor(sizes, "tanh", standardize=False, **START | settings)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 3))
    y = X @ np.array([[1.0, 0.3], [-1.0, 0.0], [0.5, 2.0]]) + 0.4 * rng.normal(size=(30, 2))
    return X, y, rng.integers(1, 3, size=30)


def test_in_a_linear_model_the_start_is_the_mean_field_optimum(rows):
    """Mean of the exact posterior, and one over the diagonal of its precision."""
    X, y, weight = rows
    reg = start((), noise_std=0.4, prior=0.7).fit(X, y, sample_weight=weight)
    Z = np.column_stack([X, np.ones(30)])
    precision = (Z.T * weight) @ Z / 0.4**2 + np.eye(4) / 0.7**2
    layers = reg.network_.layers
    mean, bias = layers(torch.as_tensor(reg.posterior_.loc))[0]
    std, bias_std = layers(torch.as_tensor(reg.posterior_.scale))[0]
    for target in range(2):
        exact = np.linalg.solve(precision, (Z.T * weight) @ y[:, target] / 0.4**2)
        np.testing.assert_allclose([*mean[target], bias[target]], exact, rtol=1e-6)
        width = np.diag(precision) ** -0.5
        np.testing.assert_allclose([*std[target], bias_std[target]], width, rtol=1e-6)
    rows_of = np.repeat(np.arange(30), weight)
    exact = sum(
        stats.multivariate_normal(
            np.zeros(len(rows_of)),
            0.7**2 * Z[rows_of] @ Z[rows_of].T + 0.4**2 * np.eye(len(rows_of)),
        ).logpdf(y[rows_of, target])
        for target in range(2)
    )
    # KL[q || p] of the best independent normals: half of log(prod diag(A) / det A) a target.
    lost = np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1]
    assert reg.elbo_ == pytest.approx(exact - lost, abs=5 * reg.elbo_std_error_ + 1e-6)


def test_of_classes_the_start_is_stationary():
    X, y = load_iris(return_X_y=True)
    clf = SymmetrizedVIClassifier((3,), "tanh", **START).fit(X[::2], y[::2])
    x = torch.as_tensor((X[::2] - clf.x_mean_) / clf.x_scale_)

    def slope(theta):
        theta = theta.clone().requires_grad_()
        log_p = clf.network_.forward(theta, x).log_softmax(-1)
        value = log_p[torch.arange(75), torch.as_tensor(y[::2])].sum() - 0.5 * theta.square().sum()
        return torch.autograd.grad(value, theta)[0].abs().max()

    mode = torch.as_tensor(clf.posterior_.loc)
    elsewhere = mode[torch.randperm(len(mode), generator=torch.Generator().manual_seed(0))]
    assert float(slope(mode)) < 0.02 * float(slope(elsewhere))


@pytest.mark.long
def test_a_fit_from_a_mode_is_closer_at_a_lower_bound():
    X, y = make_sinusoidal(120, random_state=0)
    reg = SymmetrizedVIRegressor((20,), "tanh", max_iter=200, tol=None, random_state=0)
    from_mode = clone(reg).set_params(optimizer=VariationalAdam(init="laplace")).fit(X, y)
    reg.fit(X, y)
    assert from_mode.score(X, y) > reg.score(X, y)
    assert from_mode.elbo_ < reg.elbo_
    assert from_mode.noise_std_ != reg.noise_std_
    few = clone(from_mode).set_params(max_iter=20)
    assert np.array_equal(*(clone(few).fit(X[:30], y[:30]).posterior_.loc for _ in range(2)))


def test_starts_warm_up_by_their_kind_and_ties_go_to_the_least_noise(monkeypatch):
    made, ascents, ascend = [], [], MeanFieldVI._ascend

    def objective(*args, gap, warm_up, **kwargs):
        made.append((warm_up, gap._hold))
        return SymmetrizedElbo(*args, gap=gap, warm_up=warm_up, **kwargs)

    monkeypatch.setattr(method, "SymmetrizedElbo", objective)
    monkeypatch.setattr(MeanFieldVI, "_ascend", lambda *a: ascents.append(ascend(*a)) or ascents[0])
    regressor(max_iter=50, optimizer=VariationalAdam(n_starts=3)).fit(X, Y)
    assert made == [([1, 20, 1], 5)]
    annealed, laplace = ascents[0][1][1:]
    quiet = annealed._replace(fit=replace(annealed.fit, likelihood_params=np.array([-9.0])))
    assert annealed.bounds.elbo < laplace.bounds.elbo
    assert MeanFieldVI._select_best([quiet, laplace], 0.0) is laplace
    assert MeanFieldVI._select_best([quiet, laplace], 1e9) is quiet
    auto, nine = (regressor(max_iter=n)._make_method()._plan_starts for n in ("auto", 9))
    assert (auto(quiet.model, is_minibatch=True)[1], nine(quiet.model, is_minibatch=True)[1]) == (
        3000,
        9,
    )
    wide = quiet.model._replace(network=MLP(1, (3, 21), 1, TANH))
    assert auto(wide, is_minibatch=False) == (["annealed"], 3000)


def test_a_warm_start_goes_on_from_the_fit(rows):
    X, y, _ = rows
    reg = start((2,)).set_params(optimizer__warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"warm_start=True.*changed"):
        reg.fit(X[:, :2], y)
    assert reg.n_features_in_ == 3
    mode = reg.posterior_.loc
    reg.set_params(optimizer=VariationalAdam(warm_start=True), max_iter=50).fit(X, y)
    moved = reg.posterior_.loc
    reg.set_params(optimizer=clone(STILL).set_params(warm_start=True), max_iter=1).fit(X, y)
    np.testing.assert_allclose(reg.posterior_.loc, moved, rtol=1e-6)
    assert not np.allclose(mode, moved)
