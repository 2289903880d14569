"""SymmetrizedVIRegressor and SymmetrizedVIClassifier: what they report and what they promise."""

import logging
import warnings

import numpy as np
import pytest
import torch
from quadrature import one_unit_evidence
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import (
    Symmetrized,
    SymmetrizedVIRegressor,
    VariationalAdam,
)
from skbayes_sym.models import ARD, Normal
from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.gaps.unit_gap import ExactUpTo, Importance, InfoNCE
from skbayes_sym.variational import fit as method
from skbayes_sym.variational.fit import compute_noise_ratio


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return X[:80], y[:80]


@pytest.fixture(scope="module")
def fitted(diabetes):
    return SymmetrizedVIRegressor((6,), "tanh", max_iter=500, tol=None, random_state=0).fit(
        *diabetes
    )


def quick(**kwargs):
    """An estimator that makes too few steps to converge."""
    kwargs = {"hidden_layer_sizes": (4,), "max_iter": 60, "tol": None, "random_state": 0} | kwargs
    return SymmetrizedVIRegressor(**kwargs)


@pytest.mark.long
def test_the_bounds_fit_together(fitted):
    order = fitted.network_.symmetry().log_order
    assert fitted.elbo_ == pytest.approx(fitted.elbo_mean_field_ + fitted.symmetry_gap_)
    assert fitted.elbo_mean_field_ < fitted.elbo_ <= fitted.elbo_upper_
    assert 0.0 < fitted.symmetry_gap_ < order
    assert fitted.saturation_ == pytest.approx(fitted.symmetry_gap_ / order)
    error = fitted.elbo_std_error_  # of 1024 draws; a block of the curve has five
    assert 0.0 < error < 1.5
    assert fitted.elbo_curve_[-1] == pytest.approx(fitted.elbo_, abs=4 * (1024 / 5) ** 0.5 * error)
    assert fitted.elbo_curve_[-1] > fitted.elbo_curve_[0]
    assert (fitted.n_iter_, fitted.stop_reason_) == (500, "max_iter")


@pytest.mark.long
def test_elbo_is_below_the_evidence_and_symmetry_closes_log_2():
    """One tanh unit has two equivalent modes: the gap recovers log 2 nats, not more."""
    rng = np.random.default_rng(0)
    x = np.linspace(-2, 2, 12)
    y = np.tanh(2 * x) + 0.1 * rng.standard_normal(12)
    reg = SymmetrizedVIRegressor(
        (1,), "tanh", noise_std=0.1, standardize=False, max_iter=1200,
        optimizer=VariationalAdam(n_weight_samples=4), tol=None, random_state=0,
    ).fit(x[:, None], y)  # fmt: skip
    evidence = one_unit_evidence(x, y, 0.1)
    assert reg.elbo_ < evidence + 4 * reg.elbo_std_error_
    assert reg.symmetry_gap_ == pytest.approx(np.log(2), abs=1e-3)
    assert reg.elbo_ > evidence - 1.5


def test_a_trivial_group_is_mean_field(diabetes):
    """One relu unit has nothing to exchange: same random numbers, same fit."""
    one, none = (
        quick(hidden_layer_sizes=(1,), symmetry=s).fit(*diabetes) for s in ("permutation", None)
    )
    assert np.array_equal(one.posterior_.loc, none.posterior_.loc)
    assert none.elbo_ == none.elbo_mean_field_ == none.elbo_upper_
    assert none.symmetry_gap_ == 0.0
    assert np.isnan(none.saturation_)


@pytest.mark.long
def test_symmetrisation_helps_where_units_overlap(diabetes):
    """Small noisy data, tanh: a higher symmetrised bound than the mean-field optimum has."""
    X, y = diabetes
    kwargs = {"max_iter": 400, "tol": None, "random_state": 0}
    mean_field = SymmetrizedVIRegressor((10,), "tanh", symmetry=None, **kwargs).fit(X, y)
    symmetrised = SymmetrizedVIRegressor((10,), "tanh", **kwargs).fit(X, y)
    assert symmetrised.elbo_ > mean_field.elbo_ + 1.0
    assert symmetrised.elbo_mean_field_ < mean_field.elbo_mean_field_ + 1.0


GAPS = ["auto", "exact", "importance", "infonce", "soules", InfoNCE(4),
        Importance(8), ExactUpTo(2, Importance(8))]  # fmt: skip


@pytest.mark.parametrize("gap", GAPS, ids=str)
def test_every_gap_trains(gap, diabetes):
    reg = quick(symmetry=Symmetrized(gap=gap), activation="tanh").fit(*diabetes)
    assert 0.0 <= reg.symmetry_gap_ <= reg.network_.symmetry().log_order
    assert reg.elbo_ == pytest.approx(reg.elbo_mean_field_ + reg.symmetry_gap_)


@pytest.mark.kept("relu-*", "*-3")
@pytest.mark.parametrize("hidden", [(), 3, (12,), [3, 4], np.array([2, 2, 2])], ids=str)
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "softplus", "identity"])
def test_every_shape_and_activation(hidden, activation, diabetes):
    X, y = diabetes
    reg = quick(hidden_layer_sizes=hidden, activation=activation).fit(X, y)
    assert reg.predict(X).shape == y.shape
    assert reg.elbo_mean_field_ <= reg.elbo_ <= reg.elbo_upper_ + 1e-9


def test_verbose_writes_to_stderr_and_leaves_no_handler(diabetes, capsys):
    logger = logging.getLogger("skbayes_sym")
    before = list(logger.handlers), logger.level
    quick(verbose=2).fit(*diabetes)
    err = capsys.readouterr().err
    assert "training ELBO" in err
    assert "symmetry gap" in err
    assert (list(logger.handlers), logger.level) == before


def test_silent_inputs_stay_at_the_prior(diabetes):
    X, y = diabetes
    X = np.column_stack([X, np.full(len(X), 7.0)])
    reg = quick(prior=0.5, symmetry=None).fit(X, y)
    where = reg.network_.layout.positions("W1")[:, -1].numpy()
    np.testing.assert_allclose(reg.posterior_.loc[where], 0.0, atol=1e-6)
    np.testing.assert_allclose(reg.posterior_.scale[where], 0.5, rtol=1e-6)


def test_prior_scale_as_number_layers_or_array(diabetes):
    X, y = diabetes
    number = quick(prior=0.7).fit(X, y)
    n = number.network_.layout.n_params
    layers = quick(prior=[0.7, 0.7]).fit(X, y)
    array = quick(prior=np.full(n, 0.7)).fit(X, y)
    normal = quick(prior=Normal([0.7, 0.7])).fit(X, y)
    assert number.elbo_ == layers.elbo_ == array.elbo_ == normal.elbo_
    assert quick(prior=[0.7, 2.0]).fit(X, y).elbo_ != number.elbo_


def test_prior_that_tells_units_apart_is_refused(diabetes):
    X, y = diabetes
    n = quick().fit(X, y).network_.layout.n_params
    scale = np.ones(n)
    scale[0] = 2.0
    with pytest.raises(ValueError, match=r"prior is not invariant.*W1.*symmetry=None"):
        quick(prior=scale).fit(X, y)
    with pytest.raises(ValueError, match=r"prior is not invariant.*symmetry=None"):
        quick(prior=Normal(scale)).fit(X, y)
    quick(prior=scale, symmetry=None).fit(X, y)


def test_targets_that_may_not_be_written_to(fitted, diabetes):
    X, y = diabetes
    protected = y.copy()
    protected.flags.writeable = False
    torch.set_warn_always(True)  # by default torch says it once in a process
    try:
        found = fitted.log_predictive_density(X, protected)
    finally:
        torch.set_warn_always(False)
    assert np.array_equal(found, fitted.log_predictive_density(X, y))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fixed_noise_in_every_precision(dtype, diabetes):
    X, y = diabetes
    reg = quick(noise_std=55.0).fit(X.astype(dtype), y)
    assert reg.noise_std_ == pytest.approx(55.0)
    assert reg.posterior_.loc.dtype == dtype
    assert reg.predict(X).dtype == np.float64  # targets keep their level


@pytest.mark.long
def test_exact_means_exact_in_the_report_too(diabetes):
    kwargs = {"hidden_layer_sizes": (11,), "activation": "tanh"}
    for gap in ("exact", ExactUpTo(11, Importance())):
        exact = quick(**kwargs, symmetry=Symmetrized(gap=gap)).fit(*diabetes)
        assert exact.elbo_ == exact.elbo_upper_
    auto = quick(max_iter=300, **kwargs).fit(*diabetes)
    assert auto.elbo_ < auto.elbo_upper_


@pytest.mark.long
def test_learned_prior_scales_are_where_the_bound_is_highest(diabetes):
    """A fit at the scales found reaches the same bound; at twice or half of them, a lower one."""
    settings = {"max_iter": 300, "optimizer": VariationalAdam(init="laplace")}
    learned = quick(prior="learn", **settings).fit(*diabetes)
    assert learned.prior_groups_.tolist() == ["W1", "b1", "W2", "b2"]
    sizes = [40, 4, 4, 1]

    def at(factor):
        scale = np.repeat(factor * learned.prior_scale_, sizes)
        return quick(prior=scale, **settings).fit(*diabetes).elbo_

    assert at(1.0) == pytest.approx(learned.elbo_, abs=2.0)
    assert max(at(2.0), at(0.5)) < learned.elbo_ - 3.0
    assert learned.elbo_ > quick(**settings).fit(*diabetes).elbo_ + 3.0


@pytest.mark.long
def test_a_column_that_says_nothing_is_found_irrelevant():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(150)
    reg = quick(
        prior=ARD(), optimizer=VariationalAdam(init="laplace"), max_iter=300, activation="tanh"
    ).fit(X, y)
    strong, weak = reg.relevance_
    assert strong > 1.5 * weak


rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (60, 1))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(60)
REG = SymmetrizedVIRegressor((3,), activation="tanh", max_iter=600, random_state=0)


@pytest.mark.long
def test_the_excess_is_noise_over_residuals_of_the_mean(monkeypatch):
    seen = {}

    def keep(*args):
        seen["excess"] = compute_noise_ratio(*args)
        return seen["excess"]

    monkeypatch.setattr("skbayes_sym.variational.fit.compute_noise_ratio", keep)
    monkeypatch.setattr(method, "compute_final_gain", lambda curve: Estimate(0.0, 0.0))  # settled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        reg = REG.fit(X, Y)
    residual = Y - reg.predict(X)
    expected = reg.noise_std_ / np.sqrt(np.mean(residual**2))
    assert float(seen["excess"]) == pytest.approx(expected, rel=0.02)
    assert 1.0 < float(seen["excess"]) < 1.2


def test_a_converged_fit_with_more_noise_than_residuals_says_so(monkeypatch):
    monkeypatch.setattr(
        "skbayes_sym.variational.fit.compute_noise_ratio",
        lambda *args: torch.tensor([1.0, 1.8]),
    )
    with pytest.warns(UserWarning, match=r"1\.80 times the spread.*use LayerwiseVIRegressor"):
        SymmetrizedVIRegressor((2,), tol=1e9, max_iter=40, random_state=0).fit(X, Y)
    # Not converged: the noise may still fall.
    SymmetrizedVIRegressor((2,), tol=None, max_iter=40, random_state=0).fit(X, Y)
    # A noise that was given isn't learned.
    SymmetrizedVIRegressor((2,), noise_std=1.0, tol=1e9, max_iter=40, random_state=0).fit(X, Y)


@pytest.mark.parametrize(("prior", "is_told"), [("learn", True), (1.0, False)])
def test_scales_that_switch_a_network_off_are_told(prior, is_told):
    """Targets that have nothing to do with X."""
    y = np.random.default_rng(1).standard_normal(60)
    reg = SymmetrizedVIRegressor((2,), "tanh", prior=prior, tol=None, max_iter=300, random_state=0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert reg.fit(X, y).noise_std_ > 0.95 * y.std()
    assert any("learned scales of the prior" in str(one.message) for one in told) == is_told


@pytest.mark.parametrize("max_iter", [60, 100])
def test_no_collapse_is_told_of_a_fit_on_its_way(max_iter):
    """Noise 1.5 times the residuals, neither converged nor surely not; 1.05 times at the end."""
    local = np.random.default_rng(0)
    x = local.uniform(-2.0, 2.0, (60, 1))
    y = np.sin(x[:, 0]) + 0.2 * local.standard_normal(60)
    reg = SymmetrizedVIRegressor((2,), activation="tanh", max_iter=max_iter, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert reg.fit(x, y).noise_std_ > 1.5 * 0.2
