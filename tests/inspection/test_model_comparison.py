"""The picture of a comparison: what it holds and where it draws it."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from skbayes_sym.inspection import ModelComparisonDisplay

TABLE = pd.DataFrame(
    {
        "log_density": [-5.4, -5.5, np.nan, -np.inf],
        "log_density_se": [0.03, 0.04, np.nan, np.nan],
        "difference": [0.0, -0.1, np.nan, -np.inf],
        "difference_se": [0.0, 0.02, np.nan, np.nan],
        "rmse": [54.0, 56.0, 57.0, 70.0],
        "calibration_error": [0.01, 0.02, np.nan, 0.4],
        "evidence": [-2405.0, -2430.0, np.nan, np.nan],
        "evidence_se": [np.nan, 0.4, np.nan, np.nan],
        "evidence_source": ["log_evidence_", "elbo_", "", ""],
        "evidence_side": ["exact", "lower", "", ""],
        "fit_seconds": [0.1, 10.0, 1.0, 1.0],
    },
    index=pd.Index(["linear", "network", "forest", "sure"], name="model"),
)


def points(panel):
    """Where the markers are, (n, 2)."""
    return panel.containers[0].lines[0].get_xydata()


def test_values_and_bars_of_two_errors():
    display = ModelComparisonDisplay.from_table(TABLE)
    difference, rmse, calibration = display.ax_
    assert np.array_equal(points(difference), [[0.0, 0], [-0.1, 1]])
    (bars,) = difference.containers[0].lines[2]
    assert np.allclose(bars.get_segments()[1][:, 0], [-0.14, -0.06], rtol=1e-12)
    assert np.array_equal(points(rmse)[:, 0], TABLE.rmse)
    assert np.array_equal(points(calibration)[:, 1], [0, 1, 3])
    assert [t.get_text() for t in difference.get_yticklabels()] == list(TABLE.index)
    top, bottom = difference.transData.transform([[0, 0], [0, 3]])[:, 1]
    assert top > bottom
    assert "nats" in difference.get_xlabel()
    assert display.figure_ is difference.figure


def test_lower_bounds_are_told_apart():
    display = ModelComparisonDisplay.from_table(TABLE, columns=["evidence"])
    markers = [line for line in display.ax_.lines if line.get_marker() == ">"]
    assert [line.get_xydata().tolist() for line in markers] == [[[-2430.0, 1.0]]]


def test_a_dict_without_pandas_is_as_good():
    table = {"model": list(TABLE.index), **{k: TABLE[k].to_numpy() for k in TABLE}}
    display = ModelComparisonDisplay.from_table(table)
    assert display.models == list(TABLE.index)
    assert np.array_equal(display.values["rmse"], TABLE.rmse)


def test_on_axes_given():
    figure, axes = plt.subplots(1, 2)
    display = ModelComparisonDisplay.from_table(TABLE, ax=axes, columns=["rmse", "fit_seconds"])
    assert list(display.ax_) == list(axes)
    assert display.figure_ is figure
    assert axes[1].get_xscale() == "log"
    single = display.plot(plt.figure().subplots(), columns=["rmse"])
    assert single is display
    assert single.ax_.get_xlabel().startswith("RMSE")


def test_columns_share_the_frame_of_one_axes():
    ax = plt.figure().subplots()
    display = ModelComparisonDisplay.from_table(TABLE, ax=ax)
    assert len(display.ax_) == 3
    assert list(ax.child_axes) == list(display.ax_)
    assert np.array_equal(points(display.ax_[1])[:, 0], TABLE.rmse)


def test_columns_that_dont_fit():
    display = ModelComparisonDisplay.from_table(TABLE)
    with pytest.raises(ValueError, match=r"columns must be among.*rmse.*got \['colour'\]"):
        display.plot(columns=["colour"])
    with pytest.raises(ValueError, match="2 Axes for the 3 columns"):
        display.plot(plt.figure().subplots(1, 2))
