"""Fans, intervals and probabilities are the estimator's own numbers."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skbayes_sym import (
    BayesianLinearClassifier,
    BayesianLinearRegressor,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
)
from skbayes_sym.inspection import PredictiveDisplay


def ends_of(band, x):
    """Lower and upper curve of a filled band."""
    vertices = band.get_paths()[0].vertices
    return np.array([(v.min(), v.max()) for v in (vertices[vertices[:, 0] == at, 1] for at in x)])


def test_fan_over_the_only_feature(network, curve_data, axes):
    x, y = curve_data
    grid = np.linspace(-3, 3, 7)
    display = PredictiveDisplay.from_estimator(
        network, x, y, grid=grid, coverages=(0.9, 0.5), ax=axes
    )
    assert display.ax_ is axes
    assert display.figure_ is axes.figure
    assert display.kind == "fan"
    assert [band.get_label() for band in display.bands_] == ["90 %", "50 %"]
    for band, coverage in zip(display.bands_, (0.9, 0.5), strict=True):
        interval = network.predict_interval(grid[:, None], coverage)
        np.testing.assert_allclose(ends_of(band, grid), interval, rtol=1e-12)
    (median,) = display.lines_
    expected = network.predict_quantiles(grid[:, None], (0.5,))[:, 0]
    np.testing.assert_allclose(median.get_ydata(), expected, rtol=1e-12)
    np.testing.assert_array_equal(display.points_[0].get_xydata(), np.column_stack([x[:, 0], y]))


def test_fan_over_one_of_several_holds_the_others_at_their_medians(table):
    X, y = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    pipe = make_pipeline(StandardScaler(), BayesianLinearRegressor()).fit(frame, y)
    display = PredictiveDisplay.from_estimator(pipe, frame, y, feature="b", grid=5)
    rows = pd.DataFrame(np.tile(np.median(X, axis=0), (5, 1)), columns=frame.columns)
    rows["b"] = display.x
    np.testing.assert_allclose(display.lines_[0].get_ydata(), pipe.predict(rows), rtol=1e-9)
    assert display.ax_.get_xlabel() == "b"
    assert display.x[0] < X[:, 1].min() < X[:, 1].max() < display.x[-1]
    assert not display.points_  # they belong to other values of a and c


def test_fan_over_one_of_a_frame_with_categories_and_missing_values(table):
    X, y = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["kind"] = pd.Categorical(["x", "y", "y", "z"] * (len(y) // 4))
    frame.loc[3, ["b", "kind"]] = np.nan
    encode = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["kind"]), remainder=SimpleImputer()
    )
    pipe = make_pipeline(encode, BayesianLinearRegressor()).fit(frame, y)
    display = PredictiveDisplay.from_estimator(pipe, frame, feature="b", grid=5)
    rows = pd.DataFrame({name: np.full(5, np.nanmedian(frame[name])) for name in "abc"})
    rows["b"], rows["kind"] = display.x, "y"
    np.testing.assert_allclose(display.lines_[0].get_ydata(), pipe.predict(rows), rtol=1e-9)
    levels = PredictiveDisplay.from_estimator(pipe, frame, feature="kind")
    assert levels.x_levels == ["x", "y", "z"]
    with pytest.raises(ValueError, match="feature 1 has no value in X"):
        PredictiveDisplay.from_estimator(pipe, frame[3:4], feature="b")


MANY_KINDS = {
    "text": lambda level: level,
    "ordered": lambda level: pd.Categorical(level, ["small", "middle", "large"], ordered=True),
    "boolean": lambda level: level == "small",
    "intervals": lambda level: pd.cut(pd.Series(level).str.len(), [0, 5, 9]),
    "array": lambda level: level,
}


@pytest.fixture
def leveled(table):
    """Rows with a column of levels that shift the target."""
    X, y = table
    level = np.array(["large", "small", "small", "middle"] * (len(y) // 4), dtype=object)
    return X, level, y + 3.0 * (level == "large")


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kind", MANY_KINDS)
def test_a_column_of_levels_has_one_interval_per_level(leveled, kind, average):
    X, level, y = leveled
    frame = pd.DataFrame({"a": X[:, 0], "size": MANY_KINDS[kind](level)})
    data = frame.to_numpy(dtype=object) if kind == "array" else frame
    reg = PredictiveStackingRegressor([("a", "linear")], random_state=0).fit(data, y)
    display = PredictiveDisplay.from_estimator(
        reg, data, y, feature=1, coverages=[0.9], average=average
    )
    if kind == "ordered":
        expected_levels = ["small", "middle", "large"]
    else:
        expected_levels = sorted(set(map(str, frame["size"])))
    assert display.x_levels == expected_levels
    assert [t.get_text() for t in display.ax_.get_xticklabels()] == expected_levels
    bars = display.bands_[0].patches
    assert [bar.get_x() + 0.5 * bar.get_width() for bar in bars] == list(range(len(bars)))
    if average:
        assert np.isfinite(display.values).all()
        return
    for bar, name in zip(bars, expected_levels, strict=True):
        row = frame[frame["size"].astype(str) == name].iloc[:1].assign(a=frame["a"].median())
        row = row.to_numpy(dtype=object) if kind == "array" else row
        low, high = reg.predict_interval(row, 0.9)[0]
        np.testing.assert_allclose([bar.get_y(), bar.get_height()], [low, high - low], rtol=1e-9)


def test_given_or_most_frequent_levels_and_their_observations(leveled):
    _, level, y = leveled
    frame = pd.DataFrame({"size": level})
    frame.loc[0, "size"] = None
    reg = PredictiveStackingRegressor([("a", "linear")], random_state=0).fit(frame, y)
    display = PredictiveDisplay.from_estimator(reg, frame, y, grid=["large", "small"])
    assert display.x_levels == ["large", "small"]
    shown = display.points_[0].get_xdata()
    np.testing.assert_array_equal(shown[:4], [np.nan, 1, 1, np.nan])
    assert (shown == 0).sum() == (frame["size"] == "large").sum()
    most = PredictiveDisplay.from_estimator(reg, frame, feature="size", grid=1)
    assert most.x_levels == ["small"]
    with pytest.raises(ValueError, match="feature 0 has no value in X"):
        PredictiveDisplay.from_estimator(reg, frame[:1], feature="size")
    with pytest.raises(ValueError, match="x_levels must name the 2 positions x, got 1"):
        PredictiveDisplay(display.x, display.values, levels=display.levels, x_levels=["a"])


def test_class_probabilities_of_levels_are_markers(leveled):
    X, level, y = leveled
    frame = pd.DataFrame({"a": X[:, 0], "size": level})
    clf = PredictiveStackingClassifier([("a", "linear")], random_state=0).fit(frame, y > 1)
    display = PredictiveDisplay.from_estimator(clf, frame, feature="size")
    assert [line.get_linestyle() for line in display.lines_] == ["None"] * 2
    rows = pd.DataFrame({"a": frame["a"].median(), "size": ["large", "middle", "small"]})
    np.testing.assert_allclose(display.values, clf.predict_proba(rows), rtol=1e-9)


def test_rows_of_text_are_refused(linear):
    with pytest.raises(ValueError, match="X must hold numbers"):
        PredictiveDisplay.from_estimator(linear, np.full((4, 3), "a"), feature=0)


def test_what_cannot_be_drawn_is_refused(linear, table):
    X, y = table
    draw = PredictiveDisplay.from_estimator
    for given, error, message in [
        ({"X": csr_array(X), "feature": 0}, TypeError, "[Ss]parse"),
        ({"X": X[:0], "feature": 0}, ValueError, "0 sample"),
        ({"X": X, "y": y + 1j}, ValueError, "[Cc]omplex"),
        ({"X": X, "y": y, "target": 1}, ValueError, "target must lie between 0 and 0, got 1"),
        ({"X": X, "y": y, "target": [0, 0]}, ValueError, "target must lie between"),
        ({"X": X, "y": y, "coverages": ["a"]}, ValueError, "coverages must lie"),
        ({"X": X, "y": y, "coverages": np.array([0.5, 1.0])}, ValueError, "coverages must lie"),
    ]:
        with pytest.raises(error, match=message):
            draw(linear, **given)


def test_intervals_against_observations(linear, table):
    X, y = table
    display = PredictiveDisplay.from_estimator(linear, X, y, coverages=(0.8,))
    low, high = linear.predict_interval(X, 0.8).T
    inside = (low <= y) & (y <= high)
    assert display.kind == "intervals"
    np.testing.assert_allclose(display.x, linear.predict(X), rtol=1e-9)
    for points, mask in zip(display.points_, (inside, ~inside), strict=True):
        np.testing.assert_array_equal(points.get_ydata(), y[mask])
        assert points.get_label().endswith(f": {mask.sum()} of 80")
    segments = np.array(display.bands_[0].get_segments())[:, :, 1]
    np.testing.assert_allclose(np.sort(segments[:, 0]), np.sort(low), rtol=1e-9)
    np.testing.assert_allclose(np.sort(segments[:, 1]), np.sort(high), rtol=1e-9)


@pytest.mark.parametrize("feature", [None, 0])
def test_a_series_names_the_axis_of_the_target(linear, table, feature):
    X, y = table
    price = pd.Series(y, name="price")
    display = PredictiveDisplay.from_estimator(linear, X, price, feature=feature)
    assert display.ax_.get_ylabel() == "price"
    display = PredictiveDisplay.from_estimator(linear, X, price, feature=feature, y_name="euros")
    assert display.ax_.get_ylabel() == "euros"


def test_a_series_of_classes_does_not_name_the_axis_of_probabilities(curve_data):
    x, y = curve_data
    classes = pd.Series(y > np.median(y), name="is high")
    classifier = BayesianLinearClassifier().fit(x, classes)
    display = PredictiveDisplay.from_estimator(classifier, x, classes)
    assert display.ax_.get_ylabel() == "probability"


def test_fewer_intervals_are_drawn_than_counted(linear, table, monkeypatch):
    monkeypatch.setattr("skbayes_sym.inspection.predictive._MAX_INTERVALS", 10)
    display = PredictiveDisplay.from_estimator(linear, *table)
    assert len(display.bands_[0].get_segments()) == 10
    assert sum(len(p.get_xdata()) for p in display.points_) == 10
    assert display.points_[0].get_label().endswith("of 80")
    shown = np.concatenate([p.get_xdata() for p in display.points_])
    assert {shown.min(), shown.max()} == {display.x.min(), display.x.max()}


def test_class_probabilities(curve_data):
    x, y = curve_data
    labels = np.array(["low", "mid", "high"])[np.digitize(y, [-0.5, 0.5])]
    clf = BayesianLinearClassifier(max_iter=20, tol=9.0).fit(x, labels)
    display = PredictiveDisplay.from_estimator(clf, x, labels, grid=np.linspace(-2, 2, 9))
    expected = clf.predict_proba(display.x[:, None])
    assert [line.get_label() for line in display.lines_] == list(clf.classes_)
    for line, points, k in zip(display.lines_, display.points_, range(3), strict=True):
        np.testing.assert_allclose(line.get_ydata(), expected[:, k])
        np.testing.assert_array_equal(points.get_xdata(), x[labels == clf.classes_[k], 0])


def test_one_of_several_targets(table):
    from skbayes_sym import SymmetrizedVIRegressor

    X, y = table
    Y = np.column_stack([y, 10.0 + 0.5 * y])
    reg = SymmetrizedVIRegressor((), max_iter=20, tol=None, random_state=0).fit(X, Y)
    display = PredictiveDisplay.from_estimator(reg, X, Y, target=1)
    np.testing.assert_array_equal(display.y_observed, Y[:, 1])
    expected = reg.predict_quantiles(X, (0.05, 0.5, 0.95))[:, 1]
    np.testing.assert_allclose(display.values, expected)


def test_mistakes(linear, table):
    X, y = table
    with pytest.raises(ValueError, match="needs y to draw the intervals of BayesianLinear"):
        PredictiveDisplay.from_estimator(linear, X)
    with pytest.raises(ValueError, match="feature must lie between 0 and 2, got 3"):
        PredictiveDisplay.from_estimator(linear, X, feature=3)
    with pytest.raises(ValueError, match="feature must be one of"):
        PredictiveDisplay.from_estimator(linear, X, feature="d")
    with pytest.raises(ValueError, match=r"grid must be numbers of shape \(n,\), got \['a'\]"):
        PredictiveDisplay.from_estimator(linear, X, y, feature=0, grid=["a"])
    with pytest.raises(ValueError, match="coverages must lie strictly between 0 and 1"):
        PredictiveDisplay.from_estimator(linear, X, y, coverages=(1.0,))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        PredictiveDisplay.from_estimator(linear, X, y[1:])
    clf = BayesianLinearClassifier().fit(X, y > 0)
    with pytest.raises(ValueError, match=r"classifier and X has 3 features.*feature=0"):
        PredictiveDisplay.from_estimator(clf, X, y > 0)


def test_partial_dependence_of_a_linear_model_is_its_slope(table):
    """Averaged over rows: the slope times the feature, with the standard error of that line."""
    X, y = table
    reg = BayesianLinearRegressor().fit(X, y)
    grid = np.linspace(-1, 1, 3)
    display = PredictiveDisplay.from_estimator(
        reg, X, y, feature=1, average=True, grid=grid, coverages=[0.9]
    )
    chosen = np.unique(np.linspace(0, len(X) - 1, 100).round().astype(int))
    rows = np.tile(X[chosen].mean(axis=0), (3, 1))
    rows[:, 1] = grid
    mean, std = reg.predict(rows, return_std="function")
    error = 5.0 * std / 400**0.5
    assert (np.abs(display.values[:, 1] - mean) < 1.3 * error).all()
    half = 0.5 * (display.values[:, 2] - display.values[:, 0])
    np.testing.assert_allclose(half, 1.645 * std, rtol=0.25)
    assert not display.points_


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.filterwarnings("ignore:.*beyond the dates")
def test_a_column_of_dates_is_one_feature(as_text, average):
    rng = np.random.default_rng(0)
    days = pd.Series(pd.date_range("2020-01-20", periods=60))
    frame = pd.DataFrame({"day": days.dt.strftime("%d/%m/%Y") if as_text else days})
    frame["z"] = rng.normal(size=60)
    frame["other"] = days
    y = np.arange(60.0) + frame["z"]
    model = PredictiveStackingRegressor([("a", "linear")], random_state=0).fit(frame, y)
    display = PredictiveDisplay.from_estimator(
        model, frame, y, feature="day", grid=5, average=average
    )
    assert display.ax_.get_xlabel() == "day"
    middle = np.datetime64("2020-02-18") + np.timedelta64(12, "h")
    assert np.datetime64("1970-01-01") + np.timedelta64(round(24 * display.x[2]), "h") == middle
    fan = PredictiveDisplay.from_estimator(model, frame, y, feature="z", grid=3)
    assert np.isfinite(fan.values).all()
