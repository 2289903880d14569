"""Displays and analyses of fitted estimators.

Each display has its own file: `predictive`, `calibration`, `invariance` and `symmetry`. It holds
the plotted arrays, and ``plot(ax=None)`` draws them. ``_drawing`` contains their base class and
``_fitted`` what they need from an estimator. Three functions analyse a fitted estimator, as
`sklearn.inspection.permutation_importance` does: `invariance_gap`, `symmetry_removal` and
`loss_barrier`.
"""

from skbayes_sym.inspection.calibration import IntervalCalibrationDisplay
from skbayes_sym.inspection.invariance import InvarianceDisplay
from skbayes_sym.inspection.predictive import PredictiveDisplay
from skbayes_sym.inspection.symmetry import SymmetryDisplay

__all__ = [
    "IntervalCalibrationDisplay", "InvarianceDisplay", "PredictiveDisplay", "SymmetryDisplay",
]  # fmt: skip
