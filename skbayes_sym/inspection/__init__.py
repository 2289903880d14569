"""Pictures of fitted estimators: arrays to keep, and ``plot(ax=None)`` to look at them.

A Display a file: `predictive`, `calibration`, `invariance`, `symmetry`. They share ``_fitted``
(what is asked of an estimator) and ``_drawing``. Three functions look at a fit as
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
