"""Pictures of fitted estimators: arrays to keep, and ``plot(ax=None)`` to look at them.

One Display a file: `predictive`, `calibration`, `elbo`, `gap`, `modes`, `symmetry`, `invariance`,
`singular_values`, `model_comparison`. Two functions: `invariance_gap` (the price of a symmetry) and
`symmetry_removal`. What they share: `_drawing` (axes and colours), `_fitted` (estimators at the end
of pipelines), `_predictions` and `_orbit_draws` (the arrays of two of the pictures).

Tested elsewhere: `_drawing` (with every Display, in `test_inspection`), `_fitted` (there, too),
`_predictions` (with `predictive`), `_orbit_draws` (with `symmetry`).

In: fitted estimators, or arrays. Out: Displays, whose arrays are NumPy's.
"""

from skbayes_sym.inspection.calibration import IntervalCalibrationDisplay
from skbayes_sym.inspection.elbo import ELBODisplay
from skbayes_sym.inspection.gap import GapDisplay
from skbayes_sym.inspection.invariance import InvarianceDisplay
from skbayes_sym.inspection.model_comparison import ModelComparisonDisplay
from skbayes_sym.inspection.modes import ModesDisplay
from skbayes_sym.inspection.predictive import PredictiveDisplay
from skbayes_sym.inspection.singular_values import SingularValueDisplay
from skbayes_sym.inspection.symmetry import SymmetryDisplay

__all__ = [
    "ELBODisplay",
    "GapDisplay",
    "IntervalCalibrationDisplay",
    "InvarianceDisplay",
    "ModelComparisonDisplay",
    "ModesDisplay",
    "PredictiveDisplay",
    "SingularValueDisplay",
    "SymmetryDisplay",
]
