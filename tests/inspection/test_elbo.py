"""The curve and the bounds are the fit's own."""

import numpy as np
import pytest

from skbayes_sym import EvidenceAdam, LaplaceRegressor, SymmetrizedVIRegressor, Updates
from skbayes_sym.inspection import ELBODisplay


def test_variational_fit(network, axes):
    display = ELBODisplay.from_estimator(network, ax=axes)
    assert display.ax_ is axes
    np.testing.assert_array_equal(display.line_.get_ydata(), network.elbo_curve_)
    assert display.line_.get_xdata()[-1] == network.n_iter_
    bounds = {line.get_label(): line.get_ydata()[0] for line in display.bounds_}
    assert bounds == {
        f"symmetrised {network.elbo_:.1f}": network.elbo_,
        f"mean-field {network.elbo_mean_field_:.1f}": network.elbo_mean_field_,
    }
    assert axes.get_ylabel() == "nats"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("max_iter", [90, 250])
def test_iterations_are_those_of_the_blocks(curve_data, max_iter):
    """Each point is the mean over a block of steps, drawn at its last."""
    reg = SymmetrizedVIRegressor((2,), "tanh", max_iter=max_iter, random_state=0).fit(*curve_data)
    ends = ELBODisplay.from_estimator(reg).iterations
    assert len(ends) == len(reg.elbo_curve_)
    assert len(set(np.diff(ends[:-1]))) == 1  # of equal length, but for the last
    assert ends[-1] == max_iter


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_laplace_fit_shows_its_evidence(curve_data):
    reg = LaplaceRegressor(
        (3,), max_iter=40, optimizer=EvidenceAdam(updates=Updates(n=8)), random_state=0
    ).fit(*curve_data)
    display = ELBODisplay.from_estimator(reg)
    np.testing.assert_array_equal(display.line_.get_ydata(), reg.log_evidence_curve_)
    assert display.bounds_ == []
    assert display.ax_.get_xlabel() == "hyperparameter update"


def test_view_leaves_out_the_start_only():
    curve = np.array([-1e6, -1e5, *np.linspace(-60.0, -50.0, 8), -np.inf])
    display = ELBODisplay(np.arange(11.0), curve, elbo_mean_field=-70.0, elbo=-49.0).plot()
    low, high = display.ax_.get_ylim()
    assert -75.0 < low < -70.0
    assert -49.0 < high < -45.0
    assert len(display.line_.get_ydata()) == 11
