"""Dots and texts are the bounds of the fits."""

import numpy as np

from skbayes_sym.inspection import GapDisplay


def test_several_estimators(network, linear, factorisation, axes):
    models = {"network": network, "linear": linear, "matrix": factorisation[0]}
    display = GapDisplay.from_estimators(models, ax=axes)
    assert display.ax_ is axes
    fits = list(models.values())
    np.testing.assert_array_equal(
        display.mean_field_.get_xdata(), [fit.elbo_mean_field_ for fit in fits]
    )
    np.testing.assert_array_equal(display.symmetrised_.get_xdata(), [fit.elbo_ for fit in fits])
    np.testing.assert_array_equal(display.elbo_std_error, [fit.elbo_std_error_ for fit in fits])
    assert [t.get_text() for t in display.texts_] == [f"+{f.symmetry_gap_:.1f}" for f in fits]
    assert [t.get_text() for t in axes.get_yticklabels()] == list(models)
    ends = np.array(display.gaps_.get_segments())[:, :, 0]
    np.testing.assert_array_equal(ends[:, 0], display.elbo_mean_field)
    np.testing.assert_array_equal(ends[:, 1], display.elbo)
    assert "nats" in axes.get_xlabel()


def test_one_estimator_is_named_by_its_class(network):
    display = GapDisplay.from_estimator(network)
    assert display.names == ["SymmetrizedVIRegressor"]
    assert display.symmetry_gap[0] == network.symmetry_gap_ > 0
