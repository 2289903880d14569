"""Masses, shares and evidences are those of the modes."""

import numpy as np
import pytest
from sklearn.base import clone

from skbayes_sym import ModeWeights
from skbayes_sym.inspection import ModesDisplay


def test_modes_of_a_fit(sampled, axes):
    display = ModesDisplay.from_estimator(sampled, ax=axes)
    modes = sampled.modes_
    assert display.ax_ is axes
    assert display.figure_ is axes.figure
    np.testing.assert_allclose(
        [bar.get_width() for bar in display.bars_], [m.weight for m in modes]
    )
    np.testing.assert_allclose(
        display.found_.get_xdata(), [m.n_explorers / 16 for m in modes], rtol=1e-12
    )
    points, _, (bars,) = display.evidence_.lines
    np.testing.assert_array_equal(points.get_xdata(), [m.log_evidence for m in modes])
    reach = [segment[1, 0] - segment[0, 0] for segment in bars.get_segments()]
    np.testing.assert_allclose(reach, [4 * m.std_error for m in modes], rtol=1e-9)
    assert "nats" in display.axes_[1].get_xlabel()


def test_many_modes_and_untrusted_masses():
    n = 12  # of which ten are drawn
    display = ModesDisplay(
        np.full(n, np.nan), -np.arange(float(n)), np.full(n, 0.1), np.arange(n)[::-1]
    ).plot()
    assert len(display.bars_) == len(display.found_.get_xdata()) == 10
    np.testing.assert_allclose(display.found_.get_xdata(), np.arange(11, 1, -1) / 66)
    label = display.axes_[0].get_xlabel()
    assert "not trusted" in label
    assert "2 lighter modes" in label


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_that_looked_for_none(sampled, curve_data):
    voting = clone(sampled).set_params(remove_symmetries=ModeWeights("uniform")).fit(*curve_data)
    with pytest.raises(ValueError, match=r'this MCMCRegressor has none.*ModeWeights\("evidence"\)'):
        ModesDisplay.from_estimator(voting)
