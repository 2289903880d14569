"""Relevances are those of the fit, the largest above, with the range over modes."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import LaplaceRegressor
from skbayes_sym.inspection import RelevanceDisplay
from skbayes_sym.models import ARD

RELEVANCE = np.array([[0.1, 2.0, 0.5], [0.4, 8.0, 0.5]])


def test_draws_means_and_ranges_in_order(axes):
    display = RelevanceDisplay(RELEVANCE, ["a", "b", "c"], name="fit").plot(ax=axes)
    np.testing.assert_allclose(display.mean, [0.2, 4.0, 0.5])
    assert display.order.tolist() == [1, 2, 0]
    np.testing.assert_allclose(display.points_.get_xdata(), [4.0, 0.5, 0.2])
    ends = [segment[:, 0].tolist() for segment in display.ranges_.get_segments()]
    assert ends == [[2.0, 8.0], [0.5, 0.5], [0.1, 0.4]]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["b", "c", "a"]
    assert axes.yaxis_inverted()
    assert axes.get_xlabel().endswith("(2 modes)")


@pytest.mark.long
def test_reads_the_fit_inside_a_pipeline(axes):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = np.sin(2.0 * X[:, 1]) + 0.1 * rng.standard_normal(60)
    reg = LaplaceRegressor((4,), prior=ARD(), n_restarts=2, random_state=0)
    model = make_pipeline(StandardScaler(), reg).fit(X, y)
    display = RelevanceDisplay.from_estimator(model, ax=axes)
    np.testing.assert_array_equal(display.relevance, model[-1].relevance_)
    assert display.feature_names == ["x0", "x1"]
    assert display.order[0] == 1


def test_a_fit_without_relevances_is_named(linear, axes):
    with pytest.raises(TypeError, match=r"RelevanceDisplay needs .*prior=ARD\(\)"):
        RelevanceDisplay.from_estimator(linear, ax=axes)
