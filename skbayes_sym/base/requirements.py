"""What methods require of a model, and checks that refuse parameters that don't apply.

Each method declares its `Requirements` as data. One check at the start of `fit` raises an error if
the model doesn't meet them, and a test compares the tables of the user guide with them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple, Protocol

import numpy as np
from sklearn.base import BaseEstimator, is_classifier

from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.training import Training
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.optimise import StopReason


def refuse_parameters(
    estimator: BaseEstimator, names: Sequence[str], reason: str, alternative: str
) -> None:
    """Raise a ValueError if a parameter that doesn't apply has another value than its default.

    Parameters
    ----------
    estimator : BaseEstimator
        Estimator whose parameters are checked.
    names : sequence of str
        Parameters that have no meaning here. Names of parameters that the estimator doesn't have
        are skipped.
    reason : str
        Why they don't apply, as a clause.
    alternative : str
        What to use instead.

    Raises
    ------
    ValueError
        If one of the parameters isn't at its default.
    """
    defaults = signature(type(estimator)).parameters
    for name in names:
        if name not in defaults:
            continue
        value = estimator.get_params(deep=False)[name]
        if not np.array_equal(value, defaults[name].default):
            raise ValueError(
                f"{name}={value!r} does not apply: {reason}. Leave {name} at its "
                f"default, or use {alternative}."
            )


def require_attributes(
    part: object, attributes: Sequence[str], *, parameter: str, remedy: str
) -> None:
    """Raise a TypeError if an object lacks an attribute; its type doesn't matter.

    Parameters
    ----------
    part : object
        Value of the parameter.
    attributes : sequence of str
        Names of the attributes and methods that the estimator uses.
    parameter : str
        Name of the parameter, for the error message.
    remedy : str
        Sentence that tells what to do about it.

    Raises
    ------
    TypeError
        Naming all missing attributes.
    """
    missing = [name for name in attributes if not hasattr(part, name)]
    if missing:
        raise TypeError(
            f"{parameter}={part!r} has no {' and no '.join(missing)}, which this estimator "
            f"requires. {remedy}"
        )


def require_kind(
    estimator: BaseEstimator, likelihood: object, unsupported: tuple[type, ...]
) -> None:
    """Raise a ValueError for a regression likelihood in a classifier, and vice versa.

    Parameters
    ----------
    estimator : estimator
        Classifier or regressor.
    likelihood : object
        Its parameter ``likelihood``.
    unsupported : tuple of type
        Classes of likelihoods that it can't have.
    """
    if isinstance(likelihood, unsupported):
        if is_classifier(estimator):
            predicted = "classes"
            other = "numbers"
        else:
            predicted = "numbers"
            other = "classes"
        raise ValueError(
            f"likelihood={likelihood!r} is of {other}, but {type(estimator).__name__} predicts "
            f"{predicted}. Leave likelihood at its default, or give one of {predicted}."
        )


@dataclass(frozen=True)
class Requirement:
    """What a method requires of a likelihood, a network or a prior.

    Parameters
    ----------
    label : str
        Entry in the tables of the user guide, such as "Any" or "Normal noise".
    remedy : str
        Sentence that tells what to do if the requirement isn't met.
    attributes : tuple of str
        Attributes and methods that the object must have.
    condition : callable (object) -> bool, optional
        Further condition on an object that has the attributes.
    """

    label: str
    remedy: str
    attributes: tuple[str, ...] = ()
    condition: Callable[..., bool] | None = None

    def is_met(self, part: object) -> bool:
        """Whether `require` accepts the object."""
        has_attributes = all(hasattr(part, name) for name in self.attributes)
        return has_attributes and (self.condition is None or self.condition(part))

    def require(self, part: object, parameter: str) -> None:
        """Raise an error if an object doesn't meet the requirement.

        Parameters
        ----------
        part : object
            Likelihood, network or prior.
        parameter : str
            Name of the estimator's parameter, for the error message.

        Raises
        ------
        TypeError
            If the object lacks an attribute.
        ValueError
            If the condition doesn't hold.
        """
        require_attributes(part, self.attributes, parameter=parameter, remedy=self.remedy)
        if self.condition is not None and not self.condition(part):
            raise ValueError(
                f"{parameter}={part!r} doesn't go with this estimator, which requires: "
                f"{self.label}. {self.remedy}"
            )


class Requirements(NamedTuple):
    """What a method requires of all three parts of a model."""

    likelihood: Requirement
    network: Requirement
    prior: Requirement

    def check(self, model: Model) -> None:
        """Raise an error if the model doesn't meet a requirement (see `Requirement.require`)."""
        self.likelihood.require(model.likelihood, "likelihood")
        self.network.require(model.network, "network")
        self.prior.require(model.prior, "prior")


_LIKELIHOOD_REMEDY = "Inherit from skbayes_sym.models.Likelihood or TargetLikelihood."
_LIKELIHOOD_ATTRIBUTES = (
    "kind", "is_discrete", "params", "n_params", "n_outputs", "at", "to", "log_prob", "predictive",
    "data_term", "scales_targets",
)  # fmt: skip
_ONE_OUTPUT_ATTRIBUTES = (
    "kind", "is_discrete", "params", "n_params", "at", "to", "expected_log_prob", "predictive",
    "n_outputs_per_target", "noise_scale", "scales_targets", "site_likelihood",
    "fit_constant_outputs",
)  # fmt: skip

ANY_LIKELIHOOD = Requirement("Any", _LIKELIHOOD_REMEDY, _LIKELIHOOD_ATTRIBUTES)
LIKELIHOOD_WITH_EXPECTATION = Requirement(
    "Any", _LIKELIHOOD_REMEDY, (*_LIKELIHOOD_ATTRIBUTES, "n_noise", "expected_log_prob")
)
LIKELIHOOD_WITH_HESSIAN = Requirement(
    "Any", _LIKELIHOOD_REMEDY, (*_LIKELIHOOD_ATTRIBUTES, "hessian_root")
)
ONE_OUTPUT_LIKELIHOOD = Requirement(
    "Any of one output, or softmax",
    "A linear model has one output per target and learns at most one scale of additive noise. "
    "skbayes_sym.models.TargetLikelihood has all that follows from a density.",
    _ONE_OUTPUT_ATTRIBUTES,
    lambda likelihood: (
        likelihood.n_outputs_per_target == 1
        and (likelihood.kind == "normal" or likelihood.n_params <= 1)
        and likelihood.n_params <= likelihood.noise_scale.shape[-1]
    ),
)
NORMAL_NOISE = Requirement(
    "Normal noise",
    "MCMCRegressor, DeepEnsembleRegressor, SymmetrizedVIRegressor, LILARegressor and "
    "LaplaceRegressor(optimizer='adam') take any likelihood.",
    condition=lambda likelihood: likelihood.kind == "normal",
)
SOFTMAX = Requirement(
    "Softmax",
    "MCMCClassifier, DeepEnsembleClassifier, SymmetrizedVIClassifier, LILAClassifier and "
    "LaplaceClassifier(optimizer='adam') take any likelihood.",
    condition=lambda likelihood: likelihood.kind == "softmax",
)

NORMAL_OR_SOFTMAX = Requirement(
    "Normal noise or softmax",
    "Modes are found for these only: with other likelihoods, chains start with init='prior', and "
    "mean-field inference with init='random'.",
    condition=lambda likelihood: NORMAL_NOISE.is_met(likelihood) or SOFTMAX.is_met(likelihood),
)

ANY_NETWORK = Requirement(
    "Any",
    "Inherit from skbayes_sym.models.BaseNetwork.",
    ("layout", "n_outputs", "init", "forward", "symmetry", "chain_likelihood"),
)
RECORDED_LAYERS = Requirement(
    "MLP, or a module of Linear and Conv2d layers",
    "The Laplace approximation has to see a network's layers: give a torch.nn.Module of "
    "Linear and Conv2d layers, or an MLP.",
    ("layout", "input_shape", "weight_layers", "init", "forward", "record"),
)
FULLY_CONNECTED = Requirement(
    "MLP",
    "It needs a fully connected network (MLP): MCMCRegressor and DeepEnsembleRegressor take any.",
    ("layout", "hidden_layer_sizes", "sizes", "layers"),
)
NO_HIDDEN_LAYER = Requirement("None: it is linear", "Use hidden_layer_sizes=().", ("layout",))

ANY_PRIOR = Requirement(
    "Any",
    "Inherit from skbayes_sym.models.Prior.",
    ("bind", "gaussian", "learned_scales", "kernel", "log_prob", "sample"),
)
NORMAL_PRIOR = Requirement(
    "Independent zero-mean normals",
    "Give a number, or Normal(scale).",
    ("gaussian",),
    lambda prior: prior.gaussian() is not None,
)
NORMAL_OR_LEARNED_PRIOR = Requirement(
    "Independent zero-mean normals, scales given or learned",
    "Use LayerScales(), ARD() or Normal(scale).",
    ("gaussian", "learned_scales"),
    lambda prior: prior.learned_scales is not None or prior.gaussian() is not None,
)


class FitResult(Protocol):
    """Result of a method, final or intermediate: arrays and numbers in scaled units."""

    @property
    def stop_reason(self) -> StopReason:
        """Why the method's loops ended."""

    @property
    def n_iter(self) -> int:
        """Number of steps."""

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Return the method's own fitted attributes, in the units of the data as given."""


class Method(Protocol):
    """An inference method: a frozen dataclass of parameters, made from a constructor's."""

    @property
    def requirements(self) -> Requirements:
        """Requirements on likelihood, network and prior."""

    def fit(self, data: Training, model: Model, progress: FitProgress) -> FitResult:
        """Fit the model, without reference to an estimator or to scikit-learn.

        Parameters
        ----------
        data : Training
            Scaled training data.
        model : Model
            Network, likelihood and prior, which meet the requirements.
        progress : FitProgress
            Receives reports on the progress of the fit.

        Returns
        -------
        FitResult
        """
