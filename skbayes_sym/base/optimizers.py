"""Optimisers for the parameter ``optimizer`` of estimators.

A parameter search reaches their parameters by the prefix ``optimizer__``.
"""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

from sklearn.base import BaseEstimator

from skbayes_sym.base.scikit_learn import Interval, StrOptions

__all__ = ["Adam", "EvidenceAdam", "GaussNewton", "Updates", "VariationalAdam"]

CURVATURES = ("auto", "kron-exact", "kron-sketch", "full")

_POSITIVE = Interval(Real, 0, None, closed="neither")
_COUNT = Interval(Integral, 1, None, closed="left")

_ADAM_CONSTRAINTS: dict[str, list[Any]] = {
    "learning_rate": [StrOptions({"auto"}), _POSITIVE],
    "batch_size": [StrOptions({"auto"}), _COUNT],
}


class Optimizer(BaseEstimator):
    """Parameters of an optimiser, with scikit-learn's ``get_params``, ``set_params`` and clones."""

    _parameter_constraints: ClassVar[dict[str, Any]]

    def check(self) -> None:
        """Raise a ValueError that names the first parameter with an invalid value."""
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
        Number of modes, one for every random start. "auto" is 10 in regression and 4 in
        classification, or fewer (at least 3) if they would take long.
    """

    n_restarts: int | str = "auto"

    _parameter_constraints: ClassVar = {"n_restarts": [StrOptions({"auto"}), _COUNT]}


@dataclass(eq=False, repr=False)
class Adam(Optimizer):
    """Adam with a step size that is constant over the first half and then falls linearly.

    Parameters
    ----------
    learning_rate : float or "auto", default="auto"
        Step size of the weights at the start.
    batch_size : int or "auto", default="auto"
        Number of rows per step, at most the number of rows.

    Notes
    -----
    The meaning of "auto" is documented on the page of every estimator.
    """

    learning_rate: float | str = "auto"
    batch_size: int | str = "auto"

    _parameter_constraints: ClassVar = _ADAM_CONSTRAINTS


@dataclass(eq=False, repr=False)
class VariationalAdam(Adam):
    """Adam on a variational bound, whose gradient is averaged over samples of the weights.

    Parameters
    ----------
    learning_rate : float or "auto", default="auto"
        Step size of the means. "auto" is 0.02 on full batches and 0.01 on minibatches. For
        `LayerwiseVIRegressor` it is 0.03 and falls like a half cosine.
    batch_size : int or "auto", default="auto"
        Number of rows per step. "auto" uses all rows up to 1000 distinct rows, and 200 per step for
        more. `LayerwiseVIRegressor` always uses all rows.
    n_weight_samples : int or "auto", default="auto"
        Number of samples over which a step averages: samples of the hidden units (for a module, of
        its weights), and of the weights in the gap. "auto" is 2, and 1 for fully connected networks
        with layers of more than 20 units or minibatches. More samples raise the bound of a module,
        all of whose rows share a sample.
    log_variance_rate : float, default=5.0
        Step size of the log variances relative to ``learning_rate``. They have to move by about 8
        units from a narrow initialisation to the prior.
    init : {"auto", "random", "annealed", "laplace"}, default="auto"
        Initialisation of the posterior. "random" begins at random weights with a small variance.
        "annealed" begins there, too, and raises the weight of the KL divergence from 0 to 1 over
        the first 40 % of the steps. "laplace" begins at a mode that Gauss-Newton steps have found,
        with the independent normals closest to the curvature; it needs ``network="mlp"`` and normal
        noise or softmax. "auto" uses the three in turn, but only the first two for classification,
        for noise that isn't learned, for modules, and for more than 300 weights.
        `LayerwiseVIRegressor` has initialisations of its own.
    n_starts : int or "auto", default="auto"
        Number of initialisations, which are trained at the same time, ``max_iter`` steps each. The
        fit with the highest `elbo_` is kept, or among those within 0.02 nats per row of it the one
        with the lowest learned noise. "auto" is one of every kind. On minibatches and for
        ``max_iter`` below 500 it is only the first kind. For layers of more than 20 units, if
        ``max_iter`` is "auto", it is only the annealed kind.
    warm_start : bool, default=False
        Whether `fit` continues from the previous fit. Ignored by `LayerwiseVIRegressor`.
    """

    n_weight_samples: int | str = "auto"
    log_variance_rate: float = 5.0
    init: str = "auto"
    n_starts: int | str = "auto"
    warm_start: bool = False

    _parameter_constraints: ClassVar = {
        **_ADAM_CONSTRAINTS,
        "n_weight_samples": [StrOptions({"auto"}), _COUNT],
        "log_variance_rate": [_POSITIVE],
        "init": [StrOptions({"auto", "random", "annealed", "laplace"})],
        "n_starts": [StrOptions({"auto"}), _COUNT],
        "warm_start": ["boolean"],
    }


@dataclass(eq=False, repr=False)
class Updates(Optimizer):
    """Updates of the hyperparameters while Adam trains the weights.

    Parameters
    ----------
    n : int, default=100
        Number of updates, spread evenly over the steps.
    burn_in : float, default=0.1
        Fraction of the updates that is skipped at the start.
    learning_rate : float or "auto", default="auto"
        Adam's step size for the logarithms of prior precision and noise. "auto" is 0.3, and 0.1 for
        the LILA estimators.
    gradient : {"auto", "online", "exact"}, default="auto"
        "online" accumulates the gradient of the evidence during the training steps, with the
        preconditioner of the previous update. "exact" makes two additional passes over the data per
        update. "auto" is "online" for minibatches, and for `LILARegressor` and `LILAClassifier` if
        they learn half-widths, because its cost doesn't depend on their number.
    keep_best : bool, default=True
        Whether to return to the parameters of the highest evidence during training, if that is
        higher than at the end.
    objective : {"evidence", "map", "augerino"} or Augerino, default="evidence"
        Objective of the LILA estimators. "map" has no transformations and a fixed prior.
        `~skbayes_sym.models.Augerino` trains half-widths together with the weights, by the
        likelihood and a reward for large half-widths, at a fixed prior (Benton et al. 2020). The
        standard deviation of a fixed prior is 3.0 by default.
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
    """Adam for the weights of one network, with hyperparameters that maximise the evidence.

    Parameters
    ----------
    learning_rate : float or "auto", default="auto"
        Step size of the weights at the start; "auto" is 0.02.
    batch_size : int or "auto", default="auto"
        Number of rows per step. "auto" uses all rows up to 1000 distinct rows, and 200 per step for
        more; if inputs are transformed, these numbers are 250 and 100. The memory is that of one
        batch, multiplied by the number of transformations.
    curvature : str, default="auto"
        "kron-exact" is a Kronecker factorisation of the Gauss-Newton matrix, "kron-sketch" replaces
        its sum over outputs by one with random signs, which is unbiased, and "full" is the whole
        matrix, for small networks. "auto" is "kron-exact", but "kron-sketch" for learned
        half-widths and more than 4 outputs. The reported evidence is never sketched.
    layers : {"all", "last"}, default="all"
        Layers whose weights have a posterior. "last" keeps the other layers at the mode, with their
        initial prior. Only for `LaplaceRegressor` and `LaplaceClassifier`.
    updates : Updates, optional
        Updates of the hyperparameters; by default ``Updates()``.
    """

    curvature: str = "auto"
    layers: str = "all"
    updates: Updates | None = None

    _parameter_constraints: ClassVar = {
        **_ADAM_CONSTRAINTS,
        "curvature": [StrOptions(set(CURVATURES))],
        "layers": [StrOptions({"all", "last"})],
        "updates": [Updates, None],
    }


AdamType = TypeVar("AdamType", bound=Adam)


def resolve_adam(optimizer: object, kind: type[AdamType]) -> AdamType:
    """Return the parameter ``optimizer`` as the kind of Adam that an estimator uses.

    Parameters
    ----------
    optimizer : str or Optimizer
        The user's parameter. A string stands for defaults. A plain `Adam` is completed by defaults
        of the other parameters.
    kind : type
        Class of the result.

    Returns
    -------
    Adam
        Object of class ``kind``.

    Raises
    ------
    TypeError
        If the parameter is another kind of optimiser.
    ValueError
        If one of its parameters has an invalid value.
    """
    if isinstance(optimizer, str):
        return kind()
    if type(optimizer) is Adam and kind is not Adam:
        optimizer = kind(**optimizer.get_params(deep=False))
    if type(optimizer) is not kind:
        raise TypeError(
            f"optimizer={optimizer!r} is not for this estimator: give {kind.__name__}()."
        )
    optimizer.check()
    return optimizer
