"""Contributions are Shapley values of the mean and of the width, and sum to the predictions."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chi2, norm
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skbayes_sym import (
    BayesianLinearRegressor,
    DeepEnsembleRegressor,
    PredictiveStackingRegressor,
    predictive,
)
from skbayes_sym.inspection import AttributionDisplay

WIDTH_OF_UNIT = 2.0 * norm.ppf(0.95)  # of the 90 % interval of a standard normal


class Known(RegressorMixin, BaseEstimator):
    """Normal targets, whose mean and standard deviation are given functions of the columns."""

    def __init__(self, mean, std):
        self.mean = mean
        self.std = std

    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X, return_std=False):
        mean = np.asarray(self.mean(X), dtype=float)
        return (mean, np.asarray(self.std(X), dtype=float)) if return_std else mean


def permutation_values(function, row, background):
    """Shapley values by their definition: averages over all orders and background rows."""
    d = len(row)
    values = np.zeros(d)
    for order in permutations(range(d)):
        mixed = background.copy()
        before = function(mixed).mean()
        for j in order:
            mixed[:, j] = row[j]
            after = function(mixed).mean()
            values[j] += after - before
            before = after
    return values / np.prod(np.arange(1, d + 1))


@pytest.mark.parametrize("n_permutations", [4, 100])
def test_contributions_are_terms_and_halves_of_pairwise_interactions(n_permutations):
    """Orders and their reverses have no error for such functions. With 100 orders all are used."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3, 5))
    background = rng.normal(size=(20, 5))
    model = Known(
        lambda x: 3.0 * x[:, 0] + x[:, 1] ** 2 + x[:, 3] * x[:, 4], lambda x: 1.0 + x[:, 2] ** 2
    ).fit(X)
    display = AttributionDisplay.from_estimator(model, X, background, n_permutations=n_permutations)
    expected = np.zeros((2, 3, 5))
    expected[0, :, 0] = 3.0 * (X[:, 0] - background[:, 0].mean())
    expected[0, :, 1] = X[:, 1] ** 2 - (background[:, 1] ** 2).mean()
    for j, other in ((3, 4), (4, 3)):
        change = X[:, None, j] - background[:, j]
        expected[0, :, j] = 0.5 * (change * (X[:, None, other] + background[:, other])).mean(axis=1)
    expected[1, :, 2] = WIDTH_OF_UNIT * (X[:, 2] ** 2 - (background[:, 2] ** 2).mean())
    np.testing.assert_allclose(display.mean, expected[0], atol=1e-12)
    np.testing.assert_allclose(display.width, expected[1], atol=1e-12)
    np.testing.assert_allclose(display.mean_error, 0.0, atol=1e-12)
    assert display.base_width == pytest.approx(
        WIDTH_OF_UNIT * (1.0 + (background[:, 2] ** 2).mean())
    )


def test_contributions_of_interactions_are_averages_over_all_orders():
    """Sampled for 300 copies of a row, they scatter about the exact ones by their errors."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2, 5))
    background = rng.normal(size=(8, 5))

    def mean(x):
        return np.exp(x[:, 0] * x[:, 1] + 0.5 * x[:, 2]) * x[:, 3] + x[:, 0] * x[:, 1] * x[:, 4]

    def std(x):
        return np.exp(0.3 * x[:, 0] - 0.2 * x[:, 2] * x[:, 4] + 0.2 * x[:, 1] * x[:, 3])

    model = Known(mean, std).fit(X)
    exact = AttributionDisplay.from_estimator(model, X, background, n_permutations=8)
    expected = np.array([permutation_values(mean, row, background) for row in X])
    np.testing.assert_allclose(exact.mean, expected, rtol=1e-9)
    expected = np.array([permutation_values(std, row, background) for row in X])
    np.testing.assert_allclose(exact.width, WIDTH_OF_UNIT * expected, rtol=1e-9)
    assert not exact.width_error.any()

    copies = np.repeat(X[:1], 300, axis=0)
    sampled = AttributionDisplay.from_estimator(model, copies, background)
    again = AttributionDisplay.from_estimator(model, copies, background, random_state=0)
    np.testing.assert_array_equal(again.width, sampled.width)
    low, high = chi2.ppf([1e-5, 1 - 1e-5], 299) / 299
    for values, error, known in [
        (sampled.mean, sampled.mean_error, exact.mean[0]),
        (sampled.width, sampled.width_error, exact.width[0]),
    ]:
        np.testing.assert_allclose(values.sum(axis=1), known.sum(), rtol=1e-9)
        variance = (error**2).mean(axis=0)
        assert (np.abs(values.mean(axis=0) - known) < 4.5 * np.sqrt(variance / 300)).all()
        ratio = values.var(axis=0, ddof=1) / variance
        assert ((low < ratio) & (ratio < high)).all()


def make_deliveries(n_rows, seed):
    """Hours of deliveries: the distance determines the mean, and the carrier the spread."""
    rng = np.random.default_rng(seed)
    days = pd.to_timedelta(rng.integers(0, 200, n_rows), unit="D")
    frame = pd.DataFrame(
        {
            "carrier": pd.Categorical(rng.choice(["Ada", "Bolt"], n_rows)),
            "distance": rng.uniform(0.0, 10.0, n_rows),
            "place": rng.choice(["north", "south", None], n_rows),
            "ordered": pd.Timestamp("2024-01-01") + days,
        }
    )
    std = np.where(frame["carrier"] == "Ada", 0.3, 3.0)
    return frame, (frame["distance"] + std * rng.normal(size=n_rows)).to_numpy()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_text_dates_and_missing_values_sum_to_the_predictions(library):
    frame, y = make_deliveries(80, 0)
    if library == "polars":
        polars = pytest.importorskip("polars")
        columns = {name: frame[name].tolist() for name in frame}
        columns["place"] = [None if value != value else value for value in columns["place"]]
        frame = polars.DataFrame(columns, schema_overrides={"carrier": polars.Categorical})
    model = PredictiveStackingRegressor([("line", "linear"), ("trees", "trees")], random_state=0)
    model.fit(frame, y)
    rows = frame[:3]
    background = frame[10:70]
    display = AttributionDisplay.from_estimator(
        model, rows, background, coverage=0.8, n_background=15, y_name="hours"
    )
    chosen = 10 + np.linspace(0, 59, 15).round().astype(int)
    base = predictive(model, frame[chosen.tolist()] if library == "polars" else frame.iloc[chosen])
    distribution = predictive(model, rows)
    width = np.diff(distribution.interval(0.8))[:, 0]
    assert display.base_width == pytest.approx(np.diff(base.interval(0.8)).mean())
    np.testing.assert_allclose(
        display.mean.sum(axis=1), distribution.mean() - base.mean().mean(), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        display.width.sum(axis=1), width - display.base_width, rtol=1e-9, atol=1e-9
    )
    assert display.feature_names == ["carrier", "distance", "place", "ordered"]
    titles = [panel.get_title() for panel in display.panels_]
    assert titles == ["Mean", "Width of 80 % intervals"]
    assert display.panels_[1].get_xlabel() == "contribution to the width (hours)"


@pytest.mark.long
def test_columns_of_the_mean_and_of_the_spread_are_found_in_a_pipeline():
    frame, y = make_deliveries(300, 1)
    frame = frame.drop(columns=["place", "ordered"]).assign(noise=np.arange(300.0) % 7)
    encode = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["carrier"]), remainder=StandardScaler()
    )
    network = DeepEnsembleRegressor((8,), likelihood="heteroscedastic", random_state=0)
    model = make_pipeline(encode, network).fit(frame, y)
    display = AttributionDisplay.from_estimator(model, frame[:40], frame)
    carrier, distance, noise = np.abs(display.mean).mean(axis=0)
    assert distance > 5.0 * max(carrier, noise)
    carrier, distance, noise = np.abs(display.width).mean(axis=0)
    assert carrier > 5.0 * max(distance, noise)
    # Half of the rows have a standard deviation of 3 instead of 0.3.
    expected = 0.5 * WIDTH_OF_UNIT * 2.7
    assert carrier == pytest.approx(expected, rel=0.2)


def test_a_single_row_has_bars_with_values_and_standard_errors(axes):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(30, 6)), columns=list("abcdef"))
    frame["f"] = pd.Timestamp("2024-02-03")
    model = Known(
        lambda x: x["a"] * x["b"] + 0.1 * x["c"] + 0.01 * x["d"], lambda x: np.exp(x["a"] * x["b"])
    ).fit(frame)
    display = AttributionDisplay.from_estimator(
        model, frame[:1], frame, max_features=2, y_name="kg", ax=axes
    )
    labels = [label.get_text() for label in display.panels_[0].get_yticklabels()]
    shown = [f"{name} = {frame[name][0]:.4g}" for name in "ab"]
    assert sorted(labels[:2]) == sorted(shown)
    assert labels[2] == "sum of 4 other columns"
    totals = [sum(bar.get_width() for bar in bars) for bars in display.bars_]
    assert totals[0] == pytest.approx(display.mean.sum())
    assert totals[1] == pytest.approx(display.width.sum())
    segments = display.bars_[1].errorbar.lines[2][0].get_segments()
    assert np.diff(segments[0][:, 0])[0] == pytest.approx(
        2.0 * display.width_error[0, display._order_columns()[0]]
    )
    value = display.base_mean + totals[0]
    assert display.panels_[0].get_title() == f"Mean: {value:.4g}\n(average {display.base_mean:.4g})"
    assert display._label_column(5) == "f = 2024-02-03"
    assert not display.points_


def test_several_rows_have_points_coloured_by_the_rank_of_the_value():
    frame = pd.DataFrame({
        "x": [3.0, 1.0, np.nan, 2.0], "day": pd.date_range("2024-01-01", periods=4), "word": "ab",
    })  # fmt: skip
    model = Known(lambda x: x["x"].fillna(0.0), lambda x: 1.0 + 0.0 * x["x"].fillna(0.0)).fit(frame)
    display = AttributionDisplay.from_estimator(model, frame)
    assert not display.bars_
    assert len(display.points_) == 6
    assert display.feature_names == ["x", "day", "word"]  # in the order of importance
    low, middle, high = (0.267004, 0.127568, 0.993248)  # red of viridis at 0, 1/2 and 1
    red = [points.get_facecolor()[:, 0] for points in display.points_[:3]]
    np.testing.assert_allclose(red[0], [high, low, 0.65, middle], atol=1e-5)
    np.testing.assert_allclose(red[1][[0, 3]], [low, high], atol=1e-5)
    np.testing.assert_allclose(red[2], 0.65)
    np.testing.assert_allclose(
        display.points_[0].get_offsets()[:, 0], frame["x"].fillna(0.0) - frame["x"].sum() / 4
    )


def test_one_of_several_targets(table):
    X, y = table
    model = PredictiveStackingRegressor([("line", "linear")], random_state=0)
    model.fit(X, np.column_stack([y, 10.0 * X[:, 2]]))
    display = AttributionDisplay.from_estimator(model, X[:4], X, target=1)
    expected = 10.0 * (X[:4, 2] - display.mean.sum(axis=1) / 10.0)
    np.testing.assert_allclose(expected, display.base_mean, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="target must lie between 0 and 1, got 2"):
        AttributionDisplay.from_estimator(model, X, target=2)


def test_wrong_arguments_are_named(linear, table):
    X, _ = table
    draw = AttributionDisplay.from_estimator
    for arguments, message in [
        ({"X": X[:1]}, "background is needed to explain a single row"),
        ({"X": X, "background": X[:, :2]}, "background must have the 3 columns of X, got"),
        ({"X": X, "background": pd.DataFrame(X)}, "background must have the 3 columns of X, got"),
        ({"X": X, "n_permutations": 5}, "n_permutations must be even, got 5"),
        ({"X": X, "n_permutations": 2}, "n_permutations must be"),
        ({"X": X, "n_background": 0}, "n_background must be"),
        ({"X": X, "coverage": 1.0}, "coverage must lie"),
        ({"X": X, "coverage": [0.5, 0.9]}, "coverage must"),
        ({"X": X[:0]}, "0 sample"),
    ]:
        with pytest.raises(ValueError, match=message):
            draw(linear, **arguments)
    for names in (["a"], 1, dict):
        with pytest.raises(ValueError, match="feature_names must be 2 strings"):
            AttributionDisplay(names, [[1.0, 2.0]], [[0.0, 0.0]])
    with pytest.raises(TypeError, match="requires grad"):
        draw(linear, X=torch.tensor(X, requires_grad=True))
    with pytest.raises(ValueError, match=r"feature_values must have the shape \(1, 2\)"):
        AttributionDisplay(["a", "b"], [[1.0, 2.0]], [[0.0, 0.0]], feature_values=[1.0, 2.0])
    with pytest.raises(ValueError, match="width must be numbers of shape"):
        AttributionDisplay(["a", "b"], [[1.0, 2.0]], [[0.0]])


def test_a_single_column_has_the_whole_difference():
    X = np.arange(4.0)[:, None]
    model = BayesianLinearRegressor().fit(X, [0.0, 1.2, 1.7, 3.1])
    display = AttributionDisplay.from_estimator(model, X)
    expected = model.predict(X) - model.predict(X).mean()
    np.testing.assert_allclose(display.mean[:, 0], expected, rtol=1e-9)
