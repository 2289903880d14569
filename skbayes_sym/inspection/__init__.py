"""Displays and analyses of fitted estimators.

Each display has its own file: `predictive`, `attribution`, `calibration`, `class_calibration`,
`comparison`, `weights`, `invariance` and `symmetry`. It holds the plotted arrays, and
``plot(ax=None)`` draws them. ``_drawing`` contains their base class and ``_fitted`` what they need
from an estimator.
Three functions analyse a fitted estimator, as `sklearn.inspection.permutation_importance` does:
`invariance_gap`, `symmetry_removal` and `loss_barrier`.
"""

from skbayes_sym.inspection.attribution import AttributionDisplay
from skbayes_sym.inspection.calibration import IntervalCalibrationDisplay
from skbayes_sym.inspection.class_calibration import ClassCalibrationDisplay
from skbayes_sym.inspection.comparison import ModelComparisonDisplay
from skbayes_sym.inspection.invariance import InvarianceDisplay
from skbayes_sym.inspection.predictive import PredictiveDisplay
from skbayes_sym.inspection.symmetry import SymmetryDisplay
from skbayes_sym.inspection.weights import StackWeightsDisplay

__all__ = [
    "AttributionDisplay", "ClassCalibrationDisplay", "IntervalCalibrationDisplay",
    "InvarianceDisplay", "ModelComparisonDisplay", "PredictiveDisplay", "StackWeightsDisplay",
    "SymmetryDisplay",
]  # fmt: skip
