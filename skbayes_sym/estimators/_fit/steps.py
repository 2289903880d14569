"""How a variational bound is climbed: what the constructors of several methods share."""

from numbers import Integral, Real
from typing import Any, NamedTuple

from skbayes_sym.estimators._fit.scikit_learn import Interval, StrOptions
from skbayes_sym.estimators.optimizers import Adam, VariationalAdam

STEP_CONSTRAINTS: dict[str, list[Any]] = {
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "optimizer": [StrOptions({"adam"}), Adam],
    "n_predict_samples": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "random_state": ["random_state"],
}


class Steps(NamedTuple):
    """Steps of stochastic gradient ascent, in the words of the constructors."""

    max_iter: int
    tol: float | None  # nats per unit of sample weight; None: never stops
    batch_size: int | str
    learning_rate: float | str
    log_variance_rate: float  # of the log variances' step size, relative to the others'
    n_weight_samples: int  # draws a step

    @classmethod
    def of(
        cls, adam: VariationalAdam, max_iter: int, tol: float | None, *, n_draws: int
    ) -> "Steps":
        """Steps as an optimiser says; ``n_draws`` by default."""
        given = adam.n_weight_samples
        n = n_draws if isinstance(given, str) else given
        return cls(max_iter, tol, adam.batch_size, adam.learning_rate, adam.log_variance_rate, n)

    def rate(self, auto: float) -> float:
        """``learning_rate``, with ``auto`` by default."""
        return auto if isinstance(self.learning_rate, str) else float(self.learning_rate)

    def absolute_tol(self, total_weight: float) -> float | None:
        """``tol`` of the whole bound, nats."""
        return None if self.tol is None else self.tol * total_weight
