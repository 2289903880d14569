"""Singular values without the matrix equal those of the matrix."""

import numpy as np
import pytest

from skbayes_sym import SymVIMatrixFactorization
from skbayes_sym.inference.solvers import Gibbs
from skbayes_sym.inspection import SingularValueDisplay


def dense(model, k):
    """Of the dense mean without offsets and mean."""
    product = model.reconstruct() - model.mean_
    product -= model.row_offsets_[:, None] + model.column_offsets_
    return np.linalg.svd(product, compute_uv=False)[:k]


def test_values_are_those_of_the_reconstruction(factorisation, axes):
    model, X = factorisation
    display = SingularValueDisplay.from_estimator(model, X, ax=axes)
    assert display.ax_ is axes
    np.testing.assert_allclose(display.line_.get_ydata(), dense(model, 4), rtol=1e-9)
    np.testing.assert_allclose(
        display.data_line_.get_ydata(), np.linalg.svd(X - X.mean(), compute_uv=False)[:4]
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_draws_are_averaged_as_products(factorisation):
    X = factorisation[1]
    gibbs = SymVIMatrixFactorization(3, solver=Gibbs(5), max_iter=20, random_state=0)
    display = SingularValueDisplay.from_estimator(gibbs.fit(X))
    np.testing.assert_allclose(display.values, dense(gibbs, 3), rtol=1e-9)
    assert display.data_line_ is None


def test_switched_off_components_are_counted():
    values = np.array([5.0, 1.0, 1e-4, 0.0])
    display = SingularValueDisplay(values, name="m").plot()
    assert display.n_active == 2
    assert display.line_.get_label() == "m (2 of 4 components)"
    assert SingularValueDisplay(np.zeros(3)).n_active == 0


def test_comparison_in_the_same_axes(factorisation):
    model, X = factorisation
    first = SingularValueDisplay.from_estimator(model, X, name="one")
    second = SingularValueDisplay.from_estimator(model, X, name="two", ax=first.ax_)
    assert second.data_line_ is None  # drawn once
    assert first.line_.get_color() != second.line_.get_color()


def test_missing_entries(factorisation):
    model, X = factorisation
    with pytest.raises(ValueError, match="X is complete"):
        SingularValueDisplay.from_estimator(model, np.where(X > 0, X, np.nan))


@pytest.mark.long
@pytest.mark.kept("0.6")
@pytest.mark.parametrize("seen", [1.0, 0.6])
def test_three_components_stand_above_the_noise(seen):
    """Rank 3 fitted with eight; the line is where noise alone would end."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 60)) + rng.normal(size=(80, 60))
    X[rng.random(X.shape) > seen] = np.nan
    model = SymVIMatrixFactorization(8, random_state=0).fit(X)
    display = SingularValueDisplay.from_estimator(model, name="m")
    assert display.n_above_noise == 3
    assert display.line_.get_label() == "m (3 of 8 above the noise)"
    level = (80**0.5 + 60**0.5) / seen**0.5
    assert display.noise_line_.get_ydata()[0] == pytest.approx(level, rel=0.06)
    assert SingularValueDisplay.from_estimator(model, ax=display.ax_).noise_line_ is None
