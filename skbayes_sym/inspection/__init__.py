"""Pictures of fitted estimators: arrays to keep, and ``plot(ax=None)`` to look at them.

A Display a file: `predictive`, `calibration`, `elbo`, `invariance`, `symmetry`, `modes`,
`model_comparison`. They share ``_fitted`` (what is asked of an
estimator), ``_predictions`` and ``_drawing``. Three functions look at a fit as
`sklearn.inspection.permutation_importance` does: `invariance_gap`, `symmetry_removal` and
`loss_barrier`.
"""

from skbayes_sym.inspection.calibration import IntervalCalibrationDisplay
from skbayes_sym.inspection.elbo import ELBODisplay
from skbayes_sym.inspection.invariance import InvarianceDisplay
from skbayes_sym.inspection.model_comparison import ModelComparisonDisplay
from skbayes_sym.inspection.modes import ModesDisplay
from skbayes_sym.inspection.predictive import PredictiveDisplay
from skbayes_sym.inspection.symmetry import SymmetryDisplay

__all__ = [
    "ELBODisplay",
    "IntervalCalibrationDisplay",
    "InvarianceDisplay",
    "ModelComparisonDisplay",
    "ModesDisplay",
    "PredictiveDisplay",
    "SymmetryDisplay",
]
