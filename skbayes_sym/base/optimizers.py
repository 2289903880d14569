"""Optimisers as constructors take them: a grid reaches their parameters by ``optimizer__``."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

from sklearn.base import BaseEstimator

from skbayes_sym.base.scikit_learn import Interval, StrOptions

__all__ = ["Adam", "EvidenceAdam", "GaussNewton", "Updates", "VariationalAdam"]

CURVATURES = ("auto", "kron-exact", "kron-sketch", "full")

_POSITIVE = Interval(Real, 0, None, closed="neither")
_COUNT = Interval(Integral, 1, None, closed="left")


class Optimizer(BaseEstimator):
    """Parameters of an optimiser, with scikit-learn's ``get_params``, ``set_params`` and clones."""

    _parameter_constraints: ClassVar[dict[str, Any]]

    def check(self) -> None:
        """Raise a `ValueError` that names the parameter and its value, if it is no value for it."""
        self._validate_params()
        for value in self.get_params(deep=False).values():
            if isinstance(value, Optimizer):
                value.check()


@dataclass(eq=False, repr=False)
class GaussNewton(Optimizer):
    """Gauss-Newton steps from several random starts, for small fully connected networks.

    Parameters
    ----------
    n_restarts : int or "auto", default="auto"
        Modes, one a random start; "auto" is 10 (4 of classes), fewer (at least 3) where they'd take
        long. In regression modes are left out whose evidence and left-out rows are behind the best
        by a quarter of a nat per row.
    """

    n_restarts: int | str = "auto"

    _parameter_constraints: ClassVar = {"n_restarts": [StrOptions({"auto"}), _COUNT]}


@dataclass(eq=False, repr=False)
class Adam(Optimizer):
    """Adam, whose step size is constant over the first half of the steps and then falls linearly.

    Parameters
    ----------
    learning_rate : float or "auto", default="auto"
        Step size of the weights at the start.
    batch_size : int or "auto", default="auto"
        Rows per step; never more than there are.

    Notes
    -----
    "auto" says the page of every estimator.
    """

    learning_rate: float | str = "auto"
    batch_size: int | str = "auto"

    _parameter_constraints: ClassVar = {
        "learning_rate": [StrOptions({"auto"}), _POSITIVE],
        "batch_size": [StrOptions({"auto"}), _COUNT],
    }


@dataclass(eq=False, repr=False)
class VariationalAdam(Adam):
    """Adam on a bound, whose gradient is an average over draws of the weights.

    Parameters
    ----------
    learning_rate : float or "auto", default="auto"
        Step size of the means. "auto" is 0.02 on full batches and 0.01 on minibatches, and 0.03 of
        `LayerwiseVIRegressor`, where it falls like a half cosine.
    batch_size : int or "auto", default="auto"
        Rows per step. "auto" is all of them up to 1000 distinct rows, 200 beyond; always all of
        `LayerwiseVIRegressor`.
    n_weight_samples : int or "auto", default="auto"
        Draws averaged per step, of the hidden units (of the weights of a module) and of the weights
        in the gap: "auto" is 2, and 1 of fully connected networks with layers of more than 20 units
        or steps that take some of the rows. More raise the bound of a module, all of whose rows
        share a draw.
    log_variance_rate : float, default=5.0
        Step size of the log variances relative to ``learning_rate``: they have to travel about 8
        units from a narrow start to the prior.
    init : {"auto", "random", "annealed", "laplace"}, default="auto"
        Where training starts. "random": at random weights, narrow. "annealed": the same, while the
        weight of the KL rises from 0 to 1 over the first 40 % of the steps. "laplace": at a mode
        found by Gauss-Newton steps, with the independent normals closest to its curvature; for
        normal noise and the softmax of "mlp" only. "auto" takes the three in turn; the first two
        for classes, for noise that isn't learned, of modules and beyond 300 weights.
        `LayerwiseVIRegressor` has starts of its own.
    n_starts : int or "auto", default="auto"
        Starts, which climb at once, ``max_iter`` steps each. The highest `elbo_` is kept; of those
        within 0.02 nats per row of it, the one that learned the least noise. "auto" is one of every
        kind; the first alone on minibatches and for ``max_iter`` below 500; the annealed one of
        layers of more than 20 units where ``max_iter`` is "auto".
    warm_start : bool, default=False
        Whether `fit` goes on from the previous one; not of `LayerwiseVIRegressor`.
    """

    n_weight_samples: int | str = "auto"
    log_variance_rate: float = 5.0
    init: str = "auto"
    n_starts: int | str = "auto"
    warm_start: bool = False

    _parameter_constraints: ClassVar = {
        **Adam._parameter_constraints,
        "n_weight_samples": [StrOptions({"auto"}), _COUNT],
        "log_variance_rate": [_POSITIVE],
        "init": [StrOptions({"auto", "random", "annealed", "laplace"})],
        "n_starts": [StrOptions({"auto"}), _COUNT],
        "warm_start": ["boolean"],
    }


@dataclass(eq=False, repr=False)
class Updates(Optimizer):
    """When hyperparameters move while Adam trains the weights, and by what.

    Parameters
    ----------
    n : int, default=100
        Times they move, evenly over the steps.
    burn_in : float, default=0.1
        Share of the updates that is left out at the start.
    learning_rate : float or "auto", default="auto"
        Adam's step size for the logarithms of prior precision and noise; "auto" is 0.3, and 0.1 of
        the LILA estimators.
    gradient : {"auto", "online", "exact"}, default="auto"
        "online" gathers the gradient of the evidence from the training steps themselves, with the
        preconditioner of the update before; "exact" makes two passes of its own per update. "auto"
        is "online" where a step sees a part of the rows or half-widths or noise are learned by
        `LILARegressor` and `LILAClassifier`: its cost doesn't depend on how many.
    keep_best : bool, default=True
        Whether to return to the point of highest evidence on the way, if that is higher than at
        the end.
    objective : {"evidence", "map", "augerino"} or Augerino, default="evidence"
        Of the LILA estimators. "map" has no transformations and a fixed prior.
        `~skbayes_sym.models.Augerino` trains half-widths with the weights, by the likelihood and a
        reward for wide ones, at a fixed prior (Benton et al. 2020). A fixed prior that isn't given
        is 3.0.
    """

    n: int = 100
    burn_in: float = 0.1
    learning_rate: float | str = "auto"
    gradient: str = "auto"
    keep_best: bool = True
    objective: Any = "evidence"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n": [_COUNT],
        "burn_in": [Interval(Real, 0, 1, closed="left")],
        "learning_rate": [StrOptions({"auto"}), _POSITIVE],
        "gradient": [StrOptions({"auto", "online", "exact"})],
        "keep_best": ["boolean"],
        "objective": "no_validation",
    }


@dataclass(eq=False, repr=False)
class EvidenceAdam(Adam):
    """Adam for the weights of one network, whose hyperparameters follow the Laplace evidence.

    Parameters
    ----------
    learning_rate : float or "auto", default="auto"
        Step size of the weights at the start; "auto" is 0.02.
    batch_size : int or "auto", default="auto"
        Rows per step. "auto" is all of them up to 1000 distinct rows, 200 beyond; where inputs are
        transformed, up to 250 and 100. Memory is that of one batch, once a transformation.
    curvature : str, default="auto"
        "kron-exact" (what "auto" is; with learned half-widths up to 4 outputs), "kron-sketch"
        (random signs in place of a sum over outputs; unbiased) or "full" (small networks). The
        reported evidence is never sketched.
    layers : {"all", "last"}, default="all"
        What the posterior covers. "last" keeps the other layers at the mode, and their prior as it
        starts; of `LaplaceRegressor` and `LaplaceClassifier`.
    updates : Updates, optional
        When the hyperparameters move; by default ``Updates()``.
    """

    curvature: str = "auto"
    layers: str = "all"
    updates: Updates | None = None

    _parameter_constraints: ClassVar = {
        **Adam._parameter_constraints,
        "curvature": [StrOptions(set(CURVATURES))],
        "layers": [StrOptions({"all", "last"})],
        "updates": [Updates, None],
    }


AnAdam = TypeVar("AnAdam", bound=Adam)


def resolve_adam(optim: object, kind: type[AnAdam]) -> AnAdam:
    """``optimizer`` as this kind of Adam; what a plain one doesn't say is at its default.

    Raises TypeError if it is another kind of optimiser, ValueError if one of its parameters is no
    value for it.
    """
    if isinstance(optim, str):
        return kind()
    if type(optim) is Adam and kind is not Adam:
        optim = kind(**optim.get_params(deep=False))
    if type(optim) is not kind:
        raise TypeError(f"optimizer={optim!r} is not for this estimator: give {kind.__name__}().")
    optim.check()
    return optim
