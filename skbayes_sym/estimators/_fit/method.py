"""A method as a value: how a model is fitted, and what comes of it."""

from typing import Any, Protocol

from skbayes_sym.estimators._fit.compatibility import Needs
from skbayes_sym.estimators._fit.run import Run
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.optimise import Stopped


class Fitted(Protocol):
    """What a method found, or has found so far: arrays and numbers, in scaled units."""

    @property
    def stop_reason(self) -> Stopped:
        """Why its loops ended."""
        ...

    @property
    def n_iter(self) -> int:
        """Steps made."""
        ...

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """The method's own fitted attributes, in the units of the data as given."""
        ...


class Method(Protocol):
    """A frozen dataclass of a method's parameters, made from a constructor in one place."""

    @property
    def needs(self) -> Needs:
        """What it asks of a likelihood, a network and a prior."""
        ...

    def fit(self, data: Training, model: Model, run: Run) -> Fitted:
        """The mathematics: no estimator and no scikit-learn in it."""
        ...


def compatible(method: Method, model: Model) -> Method:
    """The method, if the model has what it needs.

    Raises TypeError, ValueError: naming what the likelihood, the network or the prior lacks (see
    `Needs`).
    """
    method.needs.check(model)
    return method
