"""The matrix factorisation as a scikit-learn user meets it."""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skbayes_sym import SymVIMatrixFactorization
from skbayes_sym.factorization.solvers import VI, Gibbs
from skbayes_sym.symmetry.gaps.row_gaps import SignFlipGap
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units

SOLVERS = {
    "vi": {},
    "mean-field": {"solver": VI(symmetry=None)},
    "map": {"solver": "map", "max_iter": 2000},
    "gibbs": {"solver": "gibbs", "max_iter": 100, "tol": 1e-4},  # the default: it never stops
}
every_solver = pytest.mark.parametrize("settings", SOLVERS.values(), ids=SOLVERS)
every_solver_by_name = pytest.mark.parametrize("name", SOLVERS)


def ratings(n=40, m=25, k=2, missing=0.3, noise=0.5, seed=0):
    """A matrix with holes, and the signal under the noise."""
    rng = np.random.default_rng(seed)
    signal = 3.0 + rng.normal(size=(n, k)) @ rng.normal(size=(k, m))
    X = signal + noise * rng.normal(size=(n, m))
    X[rng.random(X.shape) < missing] = np.nan
    return X, signal


X, SIGNAL = ratings()
HOLES = np.isnan(X)
MODEL = SymVIMatrixFactorization(2, tol=0.01, random_state=0)
PAPER = {"prior": 1.0, "offsets": False}
PLAIN = VI(symmetry=None)  # the paper's model


@pytest.fixture(scope="module")
def fitted():
    return clone(MODEL).fit(X)


@cache
def solved(name):
    """By each solver, once; read only."""
    return clone(MODEL).set_params(**SOLVERS[name]).fit(X)


def as_sparse(matrix, kind=sp.csr_array):
    rows, columns = np.nonzero(~np.isnan(matrix))
    return kind(sp.coo_array((matrix[rows, columns], (rows, columns)), shape=matrix.shape))


def test_it_predicts_what_it_has_not_seen(fitted):
    mean, std = fitted.predict_entries(*np.nonzero(HOLES), return_std=True)
    np.testing.assert_allclose(fitted.reconstruct()[HOLES], mean)
    off = mean - SIGNAL[HOLES]
    assert np.sqrt(np.mean(off**2)) < 0.35 * SIGNAL[HOLES].std()
    assert fitted.noise_std_ == pytest.approx(0.5, abs=0.1)
    covered = np.mean(np.abs(off) < 1.645 * np.sqrt(std**2 - fitted.noise_std_**2))
    assert 0.75 < covered < 0.98


@every_solver_by_name
def test_every_solver_has_the_whole_interface(name):
    model = solved(name)
    factors = model.transform(X)
    assert factors.shape == (40, 2)
    assert model.inverse_transform(factors).shape == X.shape
    assert model.reconstruct().shape == X.shape
    assert np.corrcoef(model.reconstruct()[HOLES], SIGNAL[HOLES])[0, 1] > 0.9
    assert np.isfinite(model.score(X))
    _, std = model.predict_entries([0, 1], [2, 3], return_std=True)
    assert (std >= model.noise_std_).all()
    assert model.components_.shape == (2, 25)
    assert model.components_cov_.shape == (25, 2, 2)
    assert list(model.get_feature_names_out()) == [
        "symvimatrixfactorization0", "symvimatrixfactorization1",
    ]  # fmt: skip
    assert hasattr(model, "elbo_") == (name not in {"map", "gibbs"})
    assert_no_nan(model)


def assert_no_nan(model):
    for name, value in vars(model).items():
        if not name.endswith("_") or name.startswith("_"):
            continue
        arrays = [a for side in value for a in side] if name == "posterior_" else [value]
        for array in arrays:
            if isinstance(array, (float, np.ndarray)) and np.asarray(array).dtype.kind == "f":
                assert np.isfinite(array).all(), name


def test_symmetry_raises_the_bound(fitted):
    plain = clone(MODEL).set_params(solver=PLAIN).fit(X)
    assert plain.symmetry_gap_ == plain.elbo_std_error_ == 0.0
    assert fitted.elbo_ == fitted.elbo_mean_field_ + fitted.symmetry_gap_
    assert fitted.elbo_ > plain.elbo_ + 3.0 * fitted.elbo_std_error_


@pytest.mark.kept("csr_array", "coo_array")
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_sparse_is_the_same_as_dense(fitted, kind):
    sparse = as_sparse(X, kind)
    model = clone(MODEL).fit(sparse)
    assert np.array_equal(model.components_, fitted.components_)
    assert model.elbo_ == fitted.elbo_
    np.testing.assert_array_equal(model.transform(sparse), fitted.transform(X))
    assert model.score(sparse) == fitted.score(X)


@pytest.mark.long
def test_a_stored_zero_is_observed():
    dense = np.where(HOLES, np.nan, np.round(X - 3.0))
    assert (dense == 0.0).any()
    sparse = as_sparse(dense)
    assert sparse.nnz == (~HOLES).sum()
    assert clone(MODEL).fit(sparse).elbo_ == clone(MODEL).fit(dense).elbo_
    sparse.data[0] = np.nan  # a stored NaN is missing
    there = dense.copy()
    there[tuple(np.argwhere(~HOLES)[0])] = np.nan
    assert clone(MODEL).fit(sparse).elbo_ == clone(MODEL).fit(there).elbo_


@pytest.mark.parametrize("prior", [1.0, 0.6])
def test_new_rows_are_embedded_by_ridge_regression(prior):
    """Against the normal equations of one row."""
    model = clone(MODEL).set_params(prior=prior, offsets=False).fit(X)
    new, _ = ratings(n=5, seed=1)
    factors = model.transform(new)
    noise = (model.noise_std_ / model.scale_) ** 2
    for row, factor in zip(new, factors, strict=True):
        seen = ~np.isnan(row)
        loadings = model.components_.T[seen]
        second = loadings.T @ loadings + model.components_cov_[seen].sum(axis=0)
        precision = np.eye(2) / prior**2 + second / noise
        target = loadings.T @ ((row[seen] - model.mean_) / model.scale_) / noise
        np.testing.assert_allclose(factor, np.linalg.solve(precision, target), atol=1e-10)
    np.testing.assert_allclose(
        model.inverse_transform(factors), model.mean_ + model.scale_ * factors @ model.components_
    )


@pytest.mark.parametrize("prior", [1.0, 0.6])
def test_score_is_a_normal_density_of_whole_rows(prior):
    model = clone(MODEL).set_params(prior=prior, offsets=False).fit(X)
    new, _ = ratings(n=4, seed=2)
    unit = prior * model.scale_
    loadings, total = unit * model.components_.T, 0.0
    spread = unit**2 * np.trace(model.components_cov_, axis1=1, axis2=2)
    for row in new:
        seen = ~np.isnan(row)
        cov = loadings[seen] @ loadings[seen].T
        cov += np.diag(spread[seen] + model.noise_std_**2)
        mean = np.full(seen.sum(), model.mean_)
        total += multivariate_normal(mean, cov).logpdf(row[seen])
    assert model.score(new) == pytest.approx(total / np.sum(~np.isnan(new)), rel=1e-10)


def test_the_units_of_the_matrix_carry_through(fitted):
    """Shifted and stretched data: the same model, the density with its Jacobian."""
    other = clone(MODEL).fit(100.0 * X - 7.0)
    np.testing.assert_allclose(other.reconstruct(), 100.0 * fitted.reconstruct() - 7.0, rtol=1e-6)
    assert other.noise_std_ == pytest.approx(100.0 * fitted.noise_std_, rel=1e-6)
    n_observed = np.sum(~HOLES)
    shifted = fitted.elbo_mean_field_ - n_observed * np.log(100.0)
    assert other.elbo_mean_field_ == pytest.approx(shifted, abs=1e-6)
    # Anchors are learned in twenty steps, so rounding shows in the gap, far below its own error.
    error = 0.2 * fitted.elbo_std_error_
    assert other.symmetry_gap_ == pytest.approx(fitted.symmetry_gap_, abs=error)
    assert other.score(100.0 * X - 7.0) == pytest.approx(fitted.score(X) - np.log(100.0), abs=1e-6)


def test_components_are_in_canonical_orientation(fitted):
    inner = fitted.components_ @ fitted.components_.T
    assert abs(inner[0, 1]) < 1e-10 * inner[0, 0]
    assert inner[0, 0] > inner[1, 1]
    largest = np.abs(fitted.components_).argmax(axis=1)
    assert (fitted.components_[[0, 1], largest] > 0).all()


# Moore's Figure 3: E[uv | r] by Nelder-Mead over the symmetrised bound with 400 quadrature nodes.
FIGURE_3 = {  # r: SymVI, its ELBO, MFVI, MAP
    0.25: (0.09016582, -1.22886557, 0.0, 0.0),
    0.5: (0.16801947, -1.29015855, 0.0, 0.0),
    1.0: (0.31855242, -1.54408042, 0.0, 0.0),
    2.0: (0.78246401, -2.52215769, 0.5, 1.0),
    4.0: (2.75002966, -5.11208980, 2.75, 3.0),
}
SCALAR = SymVIMatrixFactorization(
    1, standardize=False, noise_std=1.0, tol=1e-11, max_iter=4000, random_state=0, **PAPER
)


# With one component the orthogonal group is the sign flip (at full covariances only bounded).
OF_ONE = {
    "orthogonal": ["isotropic", "row", "diag", "full"],
    "sign_flip": ["isotropic", "row", "diag"],
}


@pytest.mark.kept(
    "*-2.0",
    "orthogonal-full-0.25",
    "orthogonal-isotropic-0.5",
    "orthogonal-diag-1.0",
    "sign_flip-row-1.0",
    "sign_flip-diag-4.0",
)
@pytest.mark.parametrize("r", FIGURE_3)
@pytest.mark.parametrize(("symmetry", "covariance"), [(g, c) for g in OF_ONE for c in OF_ONE[g]])
def test_figure_3_symmetrised(r, covariance, symmetry):
    model = clone(SCALAR).set_params(solver=VI(covariance, symmetry)).fit([[r]])
    mean, elbo, _, _ = FIGURE_3[r]
    assert abs(model.reconstruct()[0, 0]) == pytest.approx(mean, abs=1e-3)
    assert model.elbo_ == pytest.approx(elbo, abs=1e-4)


@pytest.mark.kept("0.25", "0.5", "2.0")
@pytest.mark.parametrize("r", FIGURE_3)
def test_figure_3_rivals(r):
    _, _, mean_field, most_probable = FIGURE_3[r]
    plain = clone(SCALAR).set_params(solver=PLAIN).fit([[r]])
    assert abs(plain.reconstruct()[0, 0]) == pytest.approx(mean_field, abs=1e-3)
    model = clone(SCALAR).set_params(solver="map", tol=1e-9).fit([[r]])
    assert abs(model.reconstruct()[0, 0]) == pytest.approx(most_probable, abs=1e-3)


def figure_4(n_matrices, n_draws=300, n_gibbs=800):
    """RMSE of the paper's matrices by method, (n_matrices,) each."""
    g = torch.Generator().manual_seed(0)
    u, v, noise = (torch.randn(80, 40, w, generator=g, dtype=torch.float64) for w in (20, 20, 40))
    signal = (u @ v.mT / 20**0.5).numpy()
    matrices = signal + 2.0 * noise.numpy()
    methods = {
        "SymVI": {},
        "isotropic": {"solver": VI("isotropic")},
        "MAP": {"solver": "map", "max_iter": 3000, "tol": 1e-7},
        "MFVI": {"solver": VI("diag", None), "max_iter": 3000, "tol": 1e-7},
        "Gibbs": {"solver": Gibbs(n_draws), "max_iter": n_gibbs},
    }
    known = SymVIMatrixFactorization(20, standardize=False, noise_std=2.0, random_state=0, **PAPER)
    found = {}
    for name, settings in methods.items():
        model = clone(known).set_params(**settings)
        found[name] = np.array(
            [
                np.sqrt(np.mean((model.fit(m).reconstruct() - s) ** 2))
                for m, s in zip(matrices[:n_matrices], signal, strict=False)
            ]
        )
    return found


def check_figure_4(found):
    mean = {name: values.mean() for name, values in found.items()}
    assert mean["SymVI"] < mean["MAP"] < mean["MFVI"]
    for name in ("SymVI", "isotropic"):
        assert np.mean(found["MAP"] - found[name]) >= 0.015
        assert abs(np.mean(found[name] - found["Gibbs"])) < 0.01
    return mean


@pytest.mark.long
def test_figure_4_on_a_few_matrices():
    check_figure_4(figure_4(1, n_draws=100, n_gibbs=150))


@pytest.mark.slow
def test_figure_4():
    """All 80; the other implementation's means are good to 0.001."""
    mean = check_figure_4(figure_4(80))
    oracle = {"isotropic": 0.8944, "MAP": 0.9146, "MFVI": 0.9735, "Gibbs": 0.8872}
    for name, expected in oracle.items():
        assert mean[name] == pytest.approx(expected, abs=2e-3), name


@pytest.mark.long
def test_far_modes_of_signed_permutations():
    rng = np.random.default_rng(0)
    strong = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 150)) * 5.0
    noisy = strong + 0.1 * rng.normal(size=strong.shape)
    model = SymVIMatrixFactorization(
        3, solver=VI("diag", "signed_permutation"), random_state=0, max_iter=100, tol=1.0,
        **PAPER,
    ).fit(noisy)  # fmt: skip
    assert model.symmetry_gap_ == pytest.approx(np.log(48.0), abs=1e-6)
    flips = clone(model).set_params(solver=VI("diag", "sign_flip")).fit(noisy)
    assert flips.symmetry_gap_ == pytest.approx(3 * np.log(2.0), abs=1e-6)


@pytest.mark.parametrize("name", ["vi", "gibbs"])
def test_threads_and_global_states_are_left_alone_and_dont_matter(name):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    try:
        torch.set_num_threads(3)
        three = clone(MODEL).set_params(**SOLVERS[name]).fit(X)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert np.array_equal(three.components_, solved(name).components_)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_reconstruction_does_not_depend_on_the_number_of_threads():
    # NumPy's products of matrices of this size round differently in two threads.
    matrix = np.random.default_rng(0).standard_normal((500, 500))
    model = SymVIMatrixFactorization(20, solver="gibbs", max_iter=2, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(matrix)
    factors = model.transform(matrix)
    results = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads):
            results.append((model.reconstruct(), model.inverse_transform(factors)))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_float32_follows_the_data(fitted):
    single = clone(MODEL).fit(X.astype(np.float32))
    assert single.dtype_ == "float32"
    assert single.components_.dtype == single.transform(X.astype(np.float32)).dtype == np.float32
    assert single.elbo_ == pytest.approx(fitted.elbo_, abs=0.01 * np.sum(~HOLES))


@pytest.mark.long
def test_grid_search_over_new_rows():
    strong, _ = ratings(n=60, k=2, noise=0.3)
    grid = {"symvimatrixfactorization__n_components": [1, 2]}
    pipeline = make_pipeline(StandardScaler(), clone(MODEL))
    search = GridSearchCV(pipeline, grid, cv=3).fit(strong)
    assert search.best_params_ == {"symvimatrixfactorization__n_components": 2}
    assert search.best_estimator_.transform(strong).shape == (60, 2)


# Rows and columns with nothing in them, constants, single entries.


def test_empty_rows_and_columns_predict_the_prior_and_warn_once():
    holed = X.copy()
    holed[4], holed[:, [2, 9]] = np.nan, np.nan
    with pytest.warns(UserWarning, match="1 rows and 2 columns of X have no observed") as caught:
        model = clone(MODEL).set_params(**PAPER).fit(holed)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    np.testing.assert_allclose(model.posterior_.rows.mean[4], 0.0, atol=1e-12)
    np.testing.assert_allclose(model.posterior_.rows.cov[4], np.eye(2), atol=1e-12)
    np.testing.assert_allclose(model.components_[:, [2, 9]], 0.0, atol=1e-12)
    mean, std = model.predict_entries([4, 4], [2, 0], return_std=True)
    np.testing.assert_allclose(mean, model.mean_)
    # The product of two priors has variance k / k = 1 in scaled units.
    assert std[0] == pytest.approx(np.hypot(model.scale_, model.noise_std_), rel=1e-9)
    assert not model.transform(holed)[4].any()
    assert_no_nan(model)


@pytest.mark.long
@every_solver
@pytest.mark.filterwarnings("ignore:.*no observed entry")
def test_nothing_observed_at_all(settings):
    model = clone(MODEL).set_params(**{"tol": 0.1} | settings).fit(np.full((5, 4), np.nan))
    assert_no_nan(model)
    assert model.score(np.full((5, 4), np.nan)) == 0.0
    if hasattr(model, "elbo_"):
        given = clone(MODEL).set_params(**settings, **PAPER).fit(np.full((5, 4), np.nan))
        assert given.elbo_ == pytest.approx(0.0, abs=1e-9)
        assert -20.0 < model.elbo_ < 0.0  # rows that are told apart by nothing, and yet are


@pytest.mark.kept("3.0-vi", "3.0-mean-field", "0.0-map", "0.0-gibbs")
@every_solver
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_matrix(settings, value):
    with pytest.warns(UserWarning, match="all observed entries of X are equal"):
        model = clone(MODEL).set_params(**{"tol": 0.1} | settings).fit(np.full((6, 5), value))
    assert_no_nan(model)
    np.testing.assert_allclose(model.reconstruct(), value, atol=0.3)


@pytest.mark.long
def test_learned_prior_would_collapse():
    """Without a law of its own the scale would end where only noise is left."""
    g = torch.Generator().manual_seed(0)
    u, v, noise = (torch.randn(40, w, generator=g, dtype=torch.float64) for w in (20, 20, 40))
    weak = (u @ v.T / 20**0.5 + 2.0 * noise).numpy()
    fits = [
        SymVIMatrixFactorization(
            20, standardize=False, prior=scale, offsets=False, tol=0.01, random_state=0
        ).fit(weak)
        for scale in (1.0, 0.2)
    ]
    assert fits[1].elbo_ > fits[0].elbo_
    assert np.abs(fits[1].reconstruct()).max() < 0.1 * np.abs(fits[0].reconstruct()).max()


# Mistakes.


@pytest.mark.parametrize("bad", [X[:1], X[:, :1]], ids=["one-row", "one-column"])
def test_too_small_for_its_components(bad):
    with pytest.raises(ValueError, match="n_components=2 must be at most"):
        clone(MODEL).fit(bad)


def test_bad_settings_of_solvers_are_named():
    with pytest.raises(ValueError, match=r"symmetry must be one of.*'rotation'"):
        VI(symmetry="rotation")
    with pytest.raises(
        TypeError, match=r"solver=.*has no learns_prior and no group.*Solver documents"
    ):
        clone(MODEL).set_params(solver=Unfinished()).fit(X)
    with pytest.raises(ValueError, match=r"VI\(gap=...\) has no effect"):
        VI(symmetry=None, gap=SignFlipGap(None))
    with pytest.raises(ValueError, match=r"symmetry=Orthogonal\(...\) acts on 4 numbers"):
        clone(MODEL).set_params(solver=VI(symmetry=Orthogonal(torch.arange(4).view(2, 2)))).fit(X)


class Unfinished:
    def solve(self, problem, on_sweep):
        raise AssertionError("never asked")


# Few sweeps on purpose.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_auto_takes_ten_components_or_the_smaller_side():
    auto = SymVIMatrixFactorization(random_state=0, max_iter=3)
    assert len(auto.fit(X[:8, :6]).components_) == 6
    assert len(auto.fit(X).components_) == 10


def test_a_grid_reaches_the_settings_of_a_solver():
    model = clone(MODEL).set_params(solver=VI("row"))
    again = clone(model).set_params(solver__covariance="diag")
    assert (model.solver, again.solver) == (VI("row"), VI("diag"))
    with pytest.raises(ValueError, match=r"covariance must be one of.*'round'"):
        again.set_params(solver__covariance="round")
    with pytest.raises(ValueError, match="no parameter 'n_draws'"):
        again.solver.set_params(n_draws=3)
    assert again.solver == VI("diag")


@pytest.mark.parametrize("value", [1e-200, 1e-9, 1e9, 1e200])
@pytest.mark.parametrize("name", ["prior", "noise_std"])
def test_extreme_scales_are_refused_with_their_units(name, value):
    with pytest.raises(ValueError, match=rf"{name}=.*must lie between 1e-06 and 1e\+06"):
        clone(MODEL).set_params(**{name: value}).fit(X)


@pytest.mark.kept("auto-1e-05-*", "None-100000.0-*")
@pytest.mark.parametrize("name", ["prior", "noise_std"])
@pytest.mark.parametrize("value", [1e-5, 1e5])
@pytest.mark.parametrize("symmetry", ["auto", None])
def test_wide_and_narrow_scales_have_finite_answers(name, value, symmetry):
    settings = {"solver": VI(symmetry=symmetry), "max_iter": 20, "tol": None}
    assert_no_nan(clone(MODEL).set_params(**{name: value}, **settings).fit(X))


def test_a_group_object_is_the_group_of_that_name(fitted):
    group = Orthogonal(torch.arange(65 * 2).view(65, 2))
    model = clone(MODEL).set_params(solver=VI(symmetry=group)).fit(X)
    assert model.elbo_ == fitted.elbo_
    assert model.symmetry_ is group


def test_a_gap_object_is_the_estimate_that_is_used():
    """The exact sign flips' gap asked for in place of that of all rotations, which is larger."""
    flips = Units(torch.arange(65 * 2).view(65, 2).mT, permute=False, flip=True)
    given = clone(MODEL).set_params(solver=VI("diag", gap=SignFlipGap(flips))).fit(X)
    named = clone(MODEL).set_params(solver=VI("diag", "sign_flip")).fit(X)
    assert given.elbo_ == named.elbo_


def test_without_tol_all_sweeps_are_made(recwarn):
    model = clone(MODEL).set_params(tol=None, max_iter=40).fit(X)
    assert (model.n_iter_, model.stop_reason_) == (40, "max_iter")
    assert not [w for w in recwarn if issubclass(w.category, ConvergenceWarning)]


def test_too_many_permutations():
    wide = SymVIMatrixFactorization(15, solver=VI("diag", "signed_permutation"))
    with pytest.raises(ValueError, match=r"n_components=15.*at most 14"):
        wide.fit(X)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([0, 40], [0, 0], r"rows must lie between 0 and 39.*got 40"),
        ([-1], [0], r"rows must lie.*got -1"),
        ([0], [25], r"columns must lie between 0 and 24.*got 25"),
        ([0.5], [0], "rows must be a list of integers"),
        ([[0]], [0], "rows must be a list of integers"),
        ([0, 1], [0], "rows has 2 positions and columns 1"),
    ],
)
def test_bad_positions(fitted, rows, columns, message):
    with pytest.raises(ValueError, match=message):
        fitted.predict_entries(rows, columns)


def test_bad_questions(fitted):
    with pytest.raises(ValueError, match=r"24 features.*expecting 25"):
        fitted.transform(X[:, 1:])
    assert len(fitted.predict_entries([], [])) == 0


@pytest.mark.parametrize("method", ["transform", "inverse_transform", "score"])
def test_unfitted(method):
    with pytest.raises(NotFittedError):
        getattr(clone(MODEL), method)(X)
    with pytest.raises(NotFittedError):
        clone(MODEL).reconstruct()
    with pytest.raises(NotFittedError):
        clone(MODEL).predict_entries([0], [0])


def test_errors_keep_the_previous_fit():
    model = clone(MODEL).fit(X)
    before = {k: v for k, v in vars(model).items() if k.endswith("_")}
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.full_like(X, np.inf))
    assert {k: v for k, v in vars(model).items() if k.endswith("_")} == before


def test_verbose_reports_to_stderr(capsys):
    clone(MODEL).set_params(verbose=1).fit(X)
    assert "symmetry gap" in capsys.readouterr().err


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_factors_at_the_end_of_numbers_are_checked_in_silence(fitted):
    k = len(fitted.components_)
    signs = np.resize([1.0, -1.0], (40, k + 1))
    with pytest.raises(ValueError, match=f"{k + 1} columns, but the model has {k} components"):
        fitted.inverse_transform(1.7e308 * signs)


@pytest.mark.parametrize(("factor", "dtype"), [(1e200, "float64"), (1e30, "float32")])
def test_entries_whose_squares_are_no_numbers_are_refused(factor, dtype):
    with pytest.raises(
        ValueError, match=r"entries of X have the standard deviation .* use standardize=True"
    ):
        SymVIMatrixFactorization(1, standardize="center").fit((factor * X).astype(dtype))


@pytest.mark.parametrize("last", [1.5e308, -1e308])
def test_entries_beyond_arithmetic_are_refused_in_words(last):
    """Their sum, or their span, is no number: no warning of the arithmetic comes before it."""
    X = np.array([[1.7e308, 1.6e308], [1.5e308, last]])
    with pytest.raises(ValueError, match="exceeds the range of float64"):
        SymVIMatrixFactorization(1, max_iter=1).fit(X)
