"""What fits without methods of their own still ask for; it goes with the last of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from skbayes_sym.estimators._fit.run import FLOATS as FLOATS
from skbayes_sym.estimators._fit.run import PREDICT_ROWS as PREDICT_ROWS
from skbayes_sym.estimators._fit.run import RUN_CONSTRAINTS as RUN_CONSTRAINTS
from skbayes_sym.estimators._fit.run import logger as logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.numerics.optimise import Stopped

FitContext = Training


class Fitted(NamedTuple):
    """What a recipe hands back."""

    attributes: Mapping[str, Any]
    stop_reason: Stopped
