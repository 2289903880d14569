"""Gross errors in targets: which are found, which aren't, and what a fit does about them."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skbayes_sym as sk
from skbayes_sym.base import gross_errors
from skbayes_sym.base.gross_errors import (
    add_absent_levels,
    find_gross_errors,
    find_separate_values,
    gap_probability,
)
from skbayes_sym.base.rows import canonical_rows

N_ROWS = 300
ERROR_ROWS = np.array([3, 50, 200])


def make_data(seed, n_rows=N_ROWS):
    """Return inputs, targets of unit scale, and the noise-free targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3))
    f = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]
    return X, f + 0.3 * rng.normal(size=n_rows), f


def find_rows(X, y, weight=None):
    """Return the indices of gross errors."""
    weight = np.ones(len(y)) if weight is None else weight
    rows, inverse_index = canonical_rows(X, y.reshape(len(y), -1), weight)
    return np.flatnonzero(find_gross_errors(rows)[inverse_index])


def test_small_residuals_need_no_second_forest(monkeypatch):
    X, y, _ = make_data(1)
    y[3] = 3.0 * np.abs(y).max()
    n_forests = []
    predict = gross_errors._predict_out_of_bag
    monkeypatch.setattr(
        gross_errors, "_predict_out_of_bag", lambda *rows: n_forests.append(1) or predict(*rows)
    )
    monkeypatch.setattr(gross_errors, "MIN_RESIDUAL", 1e9)
    assert not len(find_rows(X, y))
    assert len(n_forests) == 2  # few trees, and all trees


@pytest.mark.parametrize(("max_probability", "n_forests"), [(0.0, 1), (0.1, 3)])
def test_few_trees_exclude_most_errors(max_probability, n_forests, monkeypatch):
    """A gross error that they don't exclude needs all trees, and a second forest."""
    X, y, _ = make_data(1)
    y[3] = 1e3
    monkeypatch.setattr(gross_errors, "MAX_FIRST_PROBABILITY", max_probability)
    n_trees = []
    predict = gross_errors._predict_out_of_bag

    def record(*arguments):
        n_trees.append(arguments[4] if len(arguments) > 4 else gross_errors.N_TREES)
        return predict(*arguments)

    monkeypatch.setattr(gross_errors, "_predict_out_of_bag", record)
    assert list(find_rows(X, y)) == [3][: n_forests - 1]
    assert n_trees == [20, 100, 100][:n_forests]


@pytest.mark.parametrize("unit", [1.0, 1e-9, -1e5])
@pytest.mark.parametrize("value", [10.0, 100.0, 1e3, 1e6])
def test_finds_three_of_300(value, unit):
    X, y, _ = make_data(1)
    y[ERROR_ROWS] = value
    np.testing.assert_array_equal(find_rows(X, unit * y + 7.0 * unit), ERROR_ROWS)


def test_finds_values_of_different_sizes_and_near_the_largest_number():
    X, y, _ = make_data(2)
    y[ERROR_ROWS] = [1e308, -1e308, 50.0]
    np.testing.assert_array_equal(find_rows(X, y), ERROR_ROWS)


def test_finds_errors_in_one_of_several_targets():
    X, y, _ = make_data(3)
    Y = np.column_stack([y, -y])
    Y[ERROR_ROWS, 1] = 1e3
    np.testing.assert_array_equal(find_rows(X, Y), ERROR_ROWS)


def test_a_weight_equals_repetitions():
    X, y, _ = make_data(4)
    y[ERROR_ROWS] = 1e3
    weight = np.random.default_rng(0).integers(1, 3, N_ROWS).astype(float)
    index = np.repeat(np.arange(N_ROWS), weight.astype(int))
    np.testing.assert_array_equal(find_rows(X, y, weight), ERROR_ROWS)
    found = find_rows(X[index], y[index])
    np.testing.assert_array_equal(np.unique(index[found]), ERROR_ROWS)


HEAVY_TAILS = {
    "normal": lambda rng, f: f + rng.normal(size=len(f)),
    "Student t with 2 degrees of freedom": lambda rng, f: f + rng.standard_t(2, len(f)),
    "lognormal": lambda rng, f: np.exp(f + rng.normal(size=len(f))),
    "wide lognormal": lambda rng, f: np.exp(2.0 * rng.normal(size=len(f))),
    "Pareto": lambda rng, f: rng.pareto(1.5, len(f)),
    "explained steps": lambda _, f: np.exp(3.0 * f),
    "two noise levels": lambda rng, f: (
        f + np.where(rng.random(len(f)) < 0.03, 5.0, 0.3) * rng.normal(size=len(f))
    ),
    "costs": lambda rng, f: (
        np.exp(8.5 + 0.5 * f) + (rng.random(len(f)) < 0.05) * rng.exponential(12e3, len(f))
    ),
    "claims": lambda rng, f: (rng.random(len(f)) < 0.03) * rng.uniform(900.0, 1100.0, len(f)),
    "rare events": lambda rng, f: (rng.random(len(f)) < 0.02).astype(float),
    "negative binomial": lambda rng, f: rng.poisson(np.exp(f) * rng.gamma(0.5, 2.0, len(f))),
}


@pytest.mark.parametrize("name", HEAVY_TAILS)
def test_heavy_tails_are_no_errors(name):
    X, _, f = make_data(100)
    y = HEAVY_TAILS[name](np.random.default_rng(0), f)
    assert not len(find_rows(X, y.astype(float)))


@pytest.mark.parametrize("share", [0.02, 0.04, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_rare_claims_of_similar_amounts_are_no_errors(seed, share):
    """Nearly all targets are zero, and the others are far from zero and close to one another."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1000, 3))
    y = (rng.random(1000) < share) * rng.uniform(900.0, 1100.0, 1000)
    assert len(find_rows(X, y)) == 0


def test_a_rare_category_is_no_error():
    X, y, _ = make_data(5)
    is_rare = np.arange(N_ROWS) < 6
    X[:, 2] = is_rare
    y[is_rare] += 100.0
    assert not len(find_rows(X, y))
    # The same targets in arbitrary rows are.
    X[:, 2] = np.random.default_rng(0).permutation(is_rare)
    np.testing.assert_array_equal(find_rows(X, y), np.flatnonzero(is_rare))


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_rows_without_a_level_are_no_errors(seed):
    """Four rows have no town, and a mean of their own. Their one-hot columns are all 0."""
    X, y, _ = make_data(seed)
    town = np.random.default_rng(seed).integers(16, size=N_ROWS)
    one_hot = np.eye(16)[town]
    y += 0.3 * town
    has_town = np.ones(N_ROWS, dtype=bool)
    has_town[[3, 50, 120, 200]] = False
    one_hot[~has_town] = 0.0
    y[~has_town] = 30.0 + 0.1 * np.arange(4)
    table = np.column_stack([X[:, :1], one_hot, X[:, 1:] > 0.0, X[:, 1:]])
    assert not len(find_rows(table, y))
    # Errors among the rows with a town are found.
    y[ERROR_ROWS + 1] = 1e3
    np.testing.assert_array_equal(find_rows(table, y), ERROR_ROWS + 1)


def test_absent_levels_of_one_hot_encodings():
    one_hot = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=float)
    flag = np.array([[1.0], [1.0], [0.0], [1.0]])
    number = np.array([[0.5], [0.0], [1.0], [2.0]])
    X = np.column_stack([number, one_hot, flag, one_hot[[0, 2, 3, 0]], number])
    # The last encoding has no absent level, and a single flag is no encoding.
    expected = np.column_stack([X, [0.0, 1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(add_absent_levels(X), expected)
    np.testing.assert_array_equal(add_absent_levels(number), number)


def test_values_within_the_range_or_in_large_groups_are_no_errors():
    X, y, _ = make_data(6)
    y[::10] = 1e3
    assert not len(find_rows(X, y))
    assert not find_separate_values(np.linspace(-1.0, 1.0, 100)).any()


def test_the_gap_has_its_probability_under_a_pareto_tail():
    # The probability of a gap is uniformly distributed under the hypothesis that it tests.
    rng = np.random.default_rng(0)
    n_repeats = 2000
    for k, index in [(1, 0.5), (3, 3.0)]:
        samples = -np.sort(-(1.0 + rng.pareto(index, size=(n_repeats, 200))), axis=1)
        probability = np.array([gap_probability(sample, k) for sample in samples])
        for level in (0.05, 0.5):
            error = (level * (1.0 - level) / n_repeats) ** 0.5
            assert abs((probability < level).mean() - level) < 4.0 * error


@pytest.mark.parametrize("n_rows", [1, 2, 19])
def test_few_rows_have_no_gross_errors(n_rows):
    X, y, _ = make_data(7)
    y[0] = 1e9
    assert not len(find_rows(X[:n_rows], y[:n_rows]))


def make_linear_stack(**params):
    return sk.PredictiveStackingRegressor([("linear", "linear")], random_state=0, **params)


def make_small_network(**params):
    return sk.BayesianMLPRegressor((), n_modes=1, n_members=1, random_state=0, **params)


MODELS = {"stack": make_linear_stack, "networks": make_small_network}


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_equals_the_fit_without_the_rows(name):
    X, y, _ = make_data(8)
    is_right = np.ones(N_ROWS, dtype=bool)
    is_right[ERROR_ROWS] = False
    model = MODELS[name]()
    expected = clone(model).fit(X[is_right], y[is_right])
    assert len(expected.outliers_) == 0

    y[ERROR_ROWS] = [1e3, -1e6, 1e3]
    with pytest.warns(UserWarning, match=r"3 of 300, row 3 \(y = 1000\), row 50 \(y = -1e\+06\)"):
        model.fit(X, y)
    np.testing.assert_array_equal(model.outliers_, ERROR_ROWS)
    assert "left out as gross errors: 3 rows (3, 50, 200)" in model.summary_
    np.testing.assert_array_equal(model.predict_interval(X), expected.predict_interval(X))
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.outliers_, ERROR_ROWS)


@pytest.mark.parametrize("name", MODELS)
def test_keeping_outliers(name, tmp_path):
    X, y, _ = make_data(9)
    y[ERROR_ROWS] = 1e3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = MODELS[name](outliers="keep").fit(X, y)
    assert not hasattr(model, "outliers_")
    assert model.y_scale_ > 50.0
    with pytest.raises(ValueError, match="outliers"):
        MODELS[name](outliers="drop").fit(X, y)

    with pytest.warns(UserWarning, match="3 of 300"):
        model = MODELS[name]().fit(X, y)
    sk.save(model, tmp_path / "model")
    loaded = sk.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.outliers_, ERROR_ROWS)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_targets_of_0_and_1_name_the_classifier():
    X, y, _ = make_data(12, 40)
    with pytest.warns(UserWarning, match="Use PredictiveStackingClassifier, whose predict_proba"):
        make_linear_stack().fit(X, y > 0.0)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_of_zero_weight_and_pipelines():
    X, y, _ = make_data(10)
    y[ERROR_ROWS] = 1e3
    weight = np.ones(N_ROWS)
    weight[[0, 50]] = 0.0
    model = make_linear_stack().fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(model.outliers_, [3, 200])

    pipeline = make_pipeline(StandardScaler(), make_linear_stack())
    name = "predictivestackingregressor__outliers"
    search = GridSearchCV(pipeline, {name: ["exclude", "keep"]}, cv=3, n_jobs=2).fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()


def test_user_folds_and_members_do_without_the_rows():
    from sklearn.linear_model import LinearRegression

    X, y, f = make_data(11)
    y[ERROR_ROWS] = 1e6
    model = sk.PredictiveStackingRegressor([("ols", LinearRegression())], cv=4, random_state=0)
    with pytest.warns(UserWarning, match="3 of 300"):
        model.fit(X, y)
    assert np.median(np.abs(model.predict(X) - f)) < 1.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("value", [10.0, 100.0, -1e3, 1e6])
@pytest.mark.parametrize("make", [sk.PredictiveStackingRegressor, sk.BayesianMLPRegressor])
def test_intervals_and_medians_survive(make, value):
    X, y, f = make_data(12, 600)
    clean = make(random_state=0).fit(X[:N_ROWS], y[:N_ROWS])
    width = np.median(np.diff(clean.predict_interval(X[N_ROWS:])))
    y[ERROR_ROWS] = value
    model = make(random_state=0).fit(X[:N_ROWS], y[:N_ROWS])
    assert np.median(np.diff(model.predict_interval(X[N_ROWS:]))) < 1.5 * width
    median = model.predict_quantiles(X[N_ROWS:], [0.5])[:, 0]
    assert np.median(np.abs(median - f[N_ROWS:])) < 0.3
