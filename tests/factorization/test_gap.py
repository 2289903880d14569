"""What a factorisation pays for its rotations: closed forms and sums over the group."""

import itertools
from functools import cache

import numpy as np
import pytest
from gap_oracle import planar_elements
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.base import clone

from skbayes_sym import SymVIMatrixFactorization, invariance_gap
from skbayes_sym.factorization.solvers import VI

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2)) @ RNG.normal(size=(2, 9)) + 2.0 * RNG.normal(size=(12, 9))
X[RNG.random(X.shape) < 0.2] = np.nan
MODEL = SymVIMatrixFactorization(2, tol=0.01, random_state=0)
N_DRAWS = 400

# Group asked about, covariances, and the sides of the answers at two components.
FITS = {
    "rotations, isotropic": ("orthogonal", "isotropic", "exact"),
    "rotations, row": ("orthogonal", "row", "exact"),
    "rotations, diagonal": ("orthogonal", "diag", "lower"),
    "rotations, full": ("orthogonal", "full", "lower"), "mean-field, row": (None, "row", "exact"),
    "mean-field, diagonal": (None, "diag", "lower"), "mean-field, full": (None, "full", "lower"),
    "flips": ("sign_flip", "diag", "exact"), "flips, full": ("sign_flip", "full", "lower"),
    "signed permutations, full": ("signed_permutation", "full", "lower"),
    "signed permutations": ("signed_permutation", "diag", "exact"),
}  # fmt: skip
every_fit = pytest.mark.parametrize(("symmetry", "covariance", "side"), FITS.values(), ids=FITS)


@cache
def fitted(symmetry, covariance, k=2):
    """Read only. A finite group gets less to see: its gap would be log |G| otherwise."""
    model = clone(MODEL).set_params(n_components=k, solver=VI(covariance, symmetry))
    model.set_params(prior=1.0, offsets=False)
    if symmetry in {"sign_flip", "signed_permutation"}:
        return model.set_params(noise_std=2.0).fit(X[:4, :3])
    return model.fit(X)


def stacked(model):
    """Means (n, k) and covariances (n, k, k) of all rows."""
    rows, columns = model.posterior_
    return np.concatenate([rows.mean, columns.mean]), np.concatenate([rows.cov, columns.cov])


def elements(symmetry, axes):
    """The group as matrices, in the coordinates of ``posterior_``."""
    if symmetry in {"orthogonal", None}:
        return planar_elements(180).numpy()
    flips = [np.diag(signs) for signs in itertools.product([1.0, -1.0], repeat=2)]
    swaps = [np.eye(2), np.eye(2)[::-1]] if symmetry == "signed_permutation" else [np.eye(2)]
    return [axes.T @ flip @ swap @ axes for flip in flips for swap in swaps]


def summed_gap(model, seed=1):
    """Mean and standard error of log q - log q_G at draws of q, by brute force."""
    mean, cov = stacked(model)
    noise = np.random.default_rng(seed).normal(size=(N_DRAWS, *mean.shape))
    draws = mean + np.einsum("ipq,diq->dip", np.linalg.cholesky(cov), noise)
    values = log_ratios(draws, mean, cov, elements(model.solver.symmetry, model._rotation_))
    return values.mean(), values.std() / N_DRAWS**0.5


@pytest.mark.long
@pytest.mark.kept("mean-field*", "flips*", "rotations*", "signed permutations, full")
@every_fit
def test_against_a_sum_over_the_group(symmetry, covariance, side):
    """Equal where it is exact; a bound is below, by at most a tenth here."""
    model = fitted(symmetry, covariance)
    gap = invariance_gap(model, n_draws=N_DRAWS)
    expected, error = summed_gap(model)
    slack = 4.0 * np.hypot(error, gap.standard_error)
    assert (gap.kind, gap.side) == ("KL at this posterior", side)
    assert gap.value < expected + slack
    assert gap.value > expected * (1.0 if side == "exact" else 0.9) - slack
    assert expected > 0.5  # there is something to find


@pytest.mark.kept("signed permutations, full", "flips*", "rotations*", "mean-field*")
@every_fit
def test_of_a_symmetrised_fit_it_is_the_one_reported(symmetry, covariance, side):
    model = fitted(symmetry, covariance)
    gap = invariance_gap(model, n_draws=N_DRAWS)
    if symmetry is None:
        assert model.symmetry_gap_ == 0.0 < gap.value - 4.0 * gap.standard_error
        return
    slack = 4.0 * np.hypot(gap.standard_error, model.elbo_std_error_)
    assert gap.value == pytest.approx(model.symmetry_gap_, abs=slack + 1e-12)
    again, other = (invariance_gap(model, n_draws=N_DRAWS, random_state=s) for s in (0, 1))
    assert gap.value == again.value
    assert (gap.value != other.value) == (gap.standard_error > 0.0)


def turned_coordinates(n_angles=90):
    """O(2) on the factors of rows that have an offset too."""
    whole = np.tile(np.eye(3), (2 * n_angles, 1, 1))
    whole[:, :2, :2] = planar_elements(n_angles).numpy()
    return whole


def log_ratios(draws, mean, cov, group):
    """``log q - log q_G`` at draws (D, n, d), by a sum over the group."""
    precision = np.linalg.inv(cov)

    def log_q(x):
        off = x - mean
        return -0.5 * np.einsum("dip,ipq,diq->d", off, precision, off, optimize=True)

    orbit = np.stack([log_q(draws @ g) for g in group])
    return log_q(draws) - (np.logaddexp.reduce(orbit) - np.log(len(orbit)))


@pytest.mark.long
def test_offsets_leave_the_gap_as_it_is():
    """They aren't rotated. Apart from the factors under q, they change nothing at any draw;
    bound to them they can only tell more of a rotation: what is reported stays a lower bound."""
    model = clone(MODEL).fit(X)  # learned priors and offsets on both sides
    whole = model.predictor()
    sides = [(whole.rows, [0, 1, 2]), (whole.columns, [0, 1, 3])]
    mean = np.concatenate([side.mean[:, free] for side, free in sides])
    cov = np.concatenate([side.cov[:, free][:, :, free] for side, free in sides])
    noise = np.random.default_rng(1).normal(size=(N_DRAWS, *mean.shape, 1))
    group, factors = turned_coordinates(), planar_elements(90).numpy()

    def ratios(cov):
        draws = mean + (np.linalg.cholesky(cov) @ noise)[..., 0]
        of_factors = log_ratios(draws[..., :2], mean[:, :2], cov[:, :2, :2], factors)
        return log_ratios(draws, mean, cov, group), of_factors

    apart = cov.copy()
    apart[:, 2, :2] = apart[:, :2, 2] = 0.0
    np.testing.assert_allclose(*ratios(apart), atol=1e-8)
    whole, of_factors = ratios(cov)
    assert np.abs(whole - of_factors).max() > 1e-3
    more = whole - of_factors
    assert more.mean() > -4.0 * more.std() / N_DRAWS**0.5
    slack = 4.0 * np.hypot(of_factors.std() / N_DRAWS**0.5, model.elbo_std_error_)
    assert 0.9 * of_factors.mean() - slack < model.symmetry_gap_ < of_factors.mean() + slack


@pytest.mark.kept("2.0-None", "2.0-sign_flip", "2.0-orthogonal")
@pytest.mark.parametrize("symmetry", ["orthogonal", "sign_flip", "signed_permutation", None])
@pytest.mark.parametrize("noise", [2.0, 4.0])
def test_one_component_is_a_sign_flip(symmetry, noise):
    """log 2 - E log(1 + exp(-2 t)), t ~ N(a, a), a = m' S^-1 m: Moore, section 3.1."""
    model = SymVIMatrixFactorization(
        1, solver=VI("diag", symmetry), noise_std=noise, random_state=0,
        prior=1.0, offsets=False,
    ).fit(X[:3, :3])  # fmt: skip
    mean, cov = stacked(model)
    a = float(np.sum(mean[:, 0] ** 2 / cov[:, 0, 0]))
    gap = invariance_gap(model, n_draws=500)
    expected = 0.0
    if a > 1e-12:
        spread = a**0.5
        lost, _ = quad(
            lambda t: np.logaddexp(0.0, -2.0 * t) * norm.pdf(t, a, spread),
            a - 12.0 * spread, a + 12.0 * spread, epsabs=1e-12, limit=200,
        )  # fmt: skip
        expected = np.log(2.0) - lost
    assert gap.value == pytest.approx(expected, abs=1e-9 + 4.0 * gap.standard_error)
    assert gap.side == "exact"
    assert (gap.standard_error == 0.0) == (symmetry != "signed_permutation") or a < 1e-12


def test_symmetrising_afterwards_gives_less_than_with_it():
    """The gap of the mean-field optimum lifts its bound, but not above that of the fit."""
    for covariance in ("row", "full"):
        plain, model = fitted(None, covariance), fitted("orthogonal", covariance)
        gap = invariance_gap(plain, n_draws=2000)
        slack = 4.0 * np.hypot(gap.standard_error, model.elbo_std_error_)
        assert plain.elbo_ < plain.elbo_ + gap.value < model.elbo_ + slack


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # at any posterior
@pytest.mark.parametrize(("k", "side"), [(3, "exact"), (4, "lower")])
def test_more_components_are_a_bound(k, side):
    """Conjectured from four on: it rests on the large-rank saddle."""
    model = clone(MODEL).set_params(n_components=k, solver=VI("row"), max_iter=3)
    gap = invariance_gap(model.set_params(prior=1.0, offsets=False).fit(X), n_draws=50)
    assert gap.side == side


def test_single_precision():
    given = {"prior": 1.0, "offsets": False}
    model = clone(MODEL).set_params(solver=VI("row"), **given).fit(X.astype(np.float32))
    gap, double = invariance_gap(model), invariance_gap(fitted("orthogonal", "row"))
    assert gap.value == pytest.approx(double.value, abs=5.0 * double.standard_error)


def test_few_draws():
    for covariance in ("row", "full"):
        one = invariance_gap(fitted("orthogonal", covariance), n_draws=1)
        assert np.isfinite(one.value)
        assert np.isnan(one.standard_error)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # few draws
@pytest.mark.parametrize("solver", ["map", "gibbs"])
def test_no_variational_posterior(solver):
    model = clone(MODEL).set_params(solver=solver, tol=1e-4)
    model.set_params(max_iter=2000 if solver == "map" else 50)
    with pytest.raises(TypeError, match=rf"solver='{solver}' has no variational posterior"):
        invariance_gap(model.fit(X))
