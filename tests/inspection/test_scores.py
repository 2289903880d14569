"""Displays of class calibration, stacking weights and compared models."""

import itertools

import numpy as np
import pandas as pd
import pytest
from fits import LABELS, NUMBERS, fitted
from fits import X as ROWS
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearRegressor, PredictiveStackingRegressor, predictive
from skbayes_sym.inspection import (
    ClassCalibrationDisplay,
    IntervalCalibrationDisplay,
    ModelComparisonDisplay,
    PredictiveDisplay,
    StackWeightsDisplay,
)
from skbayes_sym.model_selection import compare_models, get_scorer


def test_frequencies_are_counted_in_bins_of_equal_size(axes):
    probability = np.linspace(0, 1, 40)[::-1]
    happened = probability > 0.5
    display = ClassCalibrationDisplay.from_predictions(happened, probability, n_bins=4, ax=axes)
    np.testing.assert_array_equal(display.n_rows, 10)
    np.testing.assert_array_equal(display.frequency, [0, 0, 1, 1])
    np.testing.assert_allclose(display.probability, np.sort(probability).reshape(4, 10).mean(1))
    assert display.interval[0, 0] == 0.0
    assert display.interval[-1, 1] == 1.0


def test_intervals_contain_the_probability_of_a_calibrated_model():
    """Jeffreys intervals of 400 bins: 95 % coverage, within 4 standard errors (1.1 % each)."""
    rng = np.random.default_rng(0)
    probability = rng.uniform(0.1, 0.9, 40_000)
    happened = rng.random(len(probability)) < probability
    display = ClassCalibrationDisplay.from_predictions(happened, probability, n_bins=400)
    low, high = display.interval.T
    coverage = np.mean((low <= display.probability) & (display.probability <= high))
    assert 0.906 < coverage < 0.994


def test_classes_are_selected_and_searched_in_pipelines(axes):
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(X, names)
    display = ClassCalibrationDisplay.from_estimator(model, X, names, pos_label="virginica")
    assert display.event == "class virginica"
    assert display.n_events.sum() == 50
    top = ClassCalibrationDisplay.from_estimator(model, X, names, ax=axes)
    assert top.n_events.sum() == np.sum(model.predict(X) == names)
    with pytest.raises(ValueError, match=r"pos_label must be one of .*setosa.* got 'rose'"):
        ClassCalibrationDisplay.from_estimator(model, X, names, pos_label="rose")


@pytest.mark.parametrize(
    "pos_label",
    [np.full(7, np.nan), np.nan, ["high"], pd.NA, np.array("high"), object(), sparse.eye_array(2)],
)
def test_labels_of_other_types_are_no_classes(pos_label):
    model = fitted("linear-labels")
    with pytest.raises(ValueError, match=r"pos_label must be one of the classes .*, got"):
        ClassCalibrationDisplay.from_estimator(model, ROWS, LABELS, pos_label=pos_label)


def test_observed_labels_are_those_of_fit(axes):
    model = fitted("linear-labels")
    display = ClassCalibrationDisplay.from_estimator(model, ROWS, LABELS)
    column = pd.DataFrame({"label": LABELS})
    same = ClassCalibrationDisplay.from_estimator(model, ROWS, column, ax=axes)
    np.testing.assert_array_equal(same.frequency, display.frequency)
    with pytest.raises(ValueError, match="missing labels"):
        ClassCalibrationDisplay.from_estimator(model, ROWS, [None, *LABELS[1:]])
    score = get_scorer("log_density")
    evaluations = (ClassCalibrationDisplay.from_estimator, type(model).score, score)
    for evaluate in evaluations:
        with pytest.warns(UserWarning, match="y holds none of the classes .*such as 'HIGH'"):
            evaluate(model, ROWS, np.full(24, "HIGH"))
    for evaluate in (type(model).score, score):
        with pytest.raises(TypeError, match="y must hold one target for each row"):
            evaluate(model, ROWS, "high")
    narrow = clone(model).fit(ROWS[:, :1], LABELS)
    PredictiveDisplay.from_estimator(narrow, ROWS[:, :1], column, ax=axes)


def test_rows_in_another_order_are_warned_about(axes):
    frame = pd.DataFrame(ROWS)
    for name, y in (("linear-labels", LABELS), ("linear-gaussian", NUMBERS)):
        model = clone(fitted(name)).fit(frame, y)
        others = pd.Series(y).iloc[::-1]
        evaluations = [type(model).score, type(model).log_predictive_density]
        evaluations.append(get_scorer("log_density"))
        if name == "linear-labels":
            evaluations.append(ClassCalibrationDisplay.from_estimator)
        else:
            evaluations.append(IntervalCalibrationDisplay.from_estimator)
            evaluations.append(PredictiveDisplay.from_estimator)
        for evaluate in evaluations:
            evaluate(model, frame, pd.Series(y))
            with pytest.warns(UserWarning, match="X and y have the same row labels in different"):
                evaluate(model, frame, others)
    with pytest.warns(UserWarning, match="X and noise_std have the same row labels"):
        predictive(model, frame, noise_std=pd.Series(np.ones(24)).iloc[::-1])


def test_two_classifiers_share_axes_and_differ_in_colour(axes):
    for name in ("first", "second"):
        display = ClassCalibrationDisplay.from_predictions([0, 1], [0.2, 0.7], name=name, ax=axes)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["perfect", "first (95 % intervals)", "second (95 % intervals)"]
    colours = {line.get_color() for line in axes.get_lines() if line.get_gid()}
    assert len(colours) == 2
    assert display.ax_ is axes


@pytest.mark.parametrize(
    ("y_true", "y_prob", "message"),
    [([0, 2], [0.5, 0.5], "y_true must be boolean"), ([0, 1], [0.5, 1.5], "y_prob must lie")],
)
def test_wrong_predictions_are_named(y_true, y_prob, message):
    with pytest.raises(ValueError, match=message):
        ClassCalibrationDisplay.from_predictions(y_true, y_prob)


@pytest.mark.long
def test_weights_are_those_of_the_stack(table):
    X, y = table
    stack = PredictiveStackingRegressor(random_state=0).fit(X, y)
    display = StackWeightsDisplay.from_estimator(make_pipeline(stack))
    assert dict(zip(display.names, display.weights, strict=True)) == stack.weights_
    scores = stack.leave_one_out_log_density_
    np.testing.assert_array_equal(display.log_density, [scores[n][0] for n in display.names])
    np.testing.assert_array_equal(display.weights, np.sort(display.weights)[::-1])
    assert len(display.bars_) == len(stack.weights_)


def test_a_stack_of_several_targets_is_shown_by_target(table):
    X, y = table
    targets = np.column_stack([y, -y])
    stack = PredictiveStackingRegressor([("line", "linear")], random_state=0).fit(X, targets)
    with pytest.raises(ValueError, match=r"has the targets '0', '1'\. Pass the stack of one"):
        StackWeightsDisplay.from_estimator(stack)
    assert StackWeightsDisplay.from_estimator(stack.estimators_["1"]).names == ["line"]


def test_every_weight_needs_a_name():
    for names in (["linear"], 1, dict):
        with pytest.raises(ValueError, match="names must be 2 strings"):
            StackWeightsDisplay(names, [0.5, 0.5], [-1, -1], [0.1, 0.1])


def test_weights_without_standard_errors_have_no_error_bars():
    display = StackWeightsDisplay(["a", "b"], [0.3, 0.7], [-1.0, np.nan]).plot()
    assert not display.points_.has_xerr
    with pytest.raises(ValueError, match=r"log_density must be numbers of shape \(2,\), got None"):
        StackWeightsDisplay(["a", "b"], [0.3, 0.7], None)


def test_compared_models_have_densities_and_times(table):
    models = {"linear": BayesianLinearRegressor(), "ridge": BayesianRidge()}
    scores = compare_models(models, *table, cv=2)
    display = ModelComparisonDisplay.from_table(scores)
    np.testing.assert_array_equal(display.points_[0].get_xdata(), scores["log_density"])
    np.testing.assert_array_equal(
        [bar.get_width() for bar in display.bars_[0]], scores["fit_seconds"]
    )
    scores.loc["ridge"] = np.nan
    labels = [
        text.get_text() for text in ModelComparisonDisplay.from_table(scores).panels_[0].texts
    ]
    assert labels == ["no result"]


@pytest.mark.parametrize("fit_seconds", [[0.04, 0.07, 0.03], [0.01, 0.3, 2.0], [1e-3, 1.0, 90.0]])
def test_labels_of_times_dont_overlap(fit_seconds, axes):
    table = pd.DataFrame({
        "log_density": [-1.0, -2.0, -1.5], "log_density_se": 0.1,
        "fit_seconds": fit_seconds, "predict_seconds": np.divide(fit_seconds, 2.0),
    })  # fmt: skip
    display = ModelComparisonDisplay.from_table(table, ax=axes)
    canvas = axes.figure.canvas
    canvas.draw()
    low, high = (display.panels_[1].transAxes.transform((x, 0.0))[0] for x in (0.0, 1.0))
    ticks = display.panels_[1].get_xticklabels(which="both")
    boxes = [tick.get_window_extent() for tick in ticks if tick.get_text()]
    boxes = sorted((box.x0, box.x1) for box in boxes if low <= (box.x0 + box.x1) / 2 <= high)
    assert len(boxes) >= 2
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(boxes))


def test_models_of_which_all_failed_are_drawn_without_results(axes):
    columns = ["log_density", "log_density_se", "fit_seconds", "predict_seconds"]
    table = pd.DataFrame(np.nan, index=["linear", "ridge"], columns=columns)
    display = ModelComparisonDisplay.from_table(table, ax=axes)
    assert [text.get_text() for text in display.panels_[0].texts] == ["no result"] * 2
    axes.figure.canvas.draw()


def test_other_tables_are_refused():
    with pytest.raises(ValueError, match=r"result of compare_models, with a column 'log_density'"):
        ModelComparisonDisplay.from_table([1, 2])
