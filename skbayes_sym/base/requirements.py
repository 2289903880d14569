"""Parameters and objects that don't apply are refused by name, never ignored.

What a method asks of a model is data, its `Needs`: one check at the start of `fit` turns a mismatch
into an error, and `table` makes the page that says what goes with what.
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


def refuse(estimator: BaseEstimator, names: Sequence[str], why: str, instead: str) -> None:
    """Raise if a parameter that doesn't apply was given another value than its default.

    ``names``: parameters without a meaning here; those that the estimator doesn't have are passed
    over. ``why``: the reason, as a clause. ``instead``: what to use.
    """
    defaults = signature(type(estimator)).parameters
    for name in names:
        if name not in defaults:
            continue
        value = estimator.get_params(deep=False)[name]
        if not np.array_equal(value, defaults[name].default):
            raise ValueError(
                f"{name}={value!r} does not apply: {why}. Leave {name} at its "
                f"default, or use {instead}."
            )


def require_members(part: object, members: Sequence[str], *, parameter: str, remedy: str) -> None:
    """Ask the object, not its type."""
    missing = [name for name in members if not hasattr(part, name)]
    if missing:
        raise TypeError(
            f"{parameter}={part!r} has no {' and no '.join(missing)}, which this estimator asks "
            f"of it. {remedy}"
        )


def require_kind(estimator: BaseEstimator, likelihood: object, foreign: tuple[type, ...]) -> None:
    """Refuse a likelihood of numbers for classes, and one of classes for numbers."""
    if isinstance(likelihood, foreign):
        kind, other = ("classes", "numbers") if is_classifier(estimator) else ("numbers", "classes")
        raise ValueError(
            f"likelihood={likelihood!r} is of {other}, but {type(estimator).__name__} predicts "
            f"{kind}. Leave likelihood at its default, or give one of {kind}."
        )


@dataclass(frozen=True)
class Requirement:
    """Demands on a likelihood, a network or a prior.

    ``holds``: what else must hold of it, if having the members isn't enough.
    """

    words: str  # in a table: "Any", "Normal"
    remedy: str  # what to do where it isn't met: a sentence
    members: tuple[str, ...] = ()  # that the object must have
    holds: Callable[..., bool] | None = None

    def is_met(self, part: object) -> bool:
        """Whether `require` passes."""
        has_all = all(hasattr(part, name) for name in self.members)
        return has_all and (self.holds is None or self.holds(part))

    def require(self, part: object, parameter: str) -> None:
        """Ask the object."""
        require_members(part, self.members, parameter=parameter, remedy=self.remedy)
        if self.holds is not None and not self.holds(part):
            raise ValueError(
                f"{parameter}={part!r} doesn't go with this estimator, which asks for: "
                f"{self.words}. {self.remedy}"
            )


class Requirements(NamedTuple):
    """Demands of a method on all three."""

    likelihood: Requirement
    network: Requirement
    prior: Requirement

    def check(self, model: Model) -> None:
        """Raise where the model isn't what the method needs (see `Need.require`)."""
        self.likelihood.require(model.likelihood, "likelihood")
        self.network.require(model.network, "network")
        self.prior.require(model.prior, "prior")


_OWN_LIKELIHOOD = "Inherit from skbayes_sym.models.Likelihood or TargetLikelihood."
_LIKELIHOOD = (
    "kind", "is_discrete", "params", "n_params", "n_outputs", "at", "to", "log_prob", "predictive",
    "data_term", "scales_targets",
)  # fmt: skip
_OF_ONE_OUTPUT = (
    "kind", "is_discrete", "params", "n_params", "at", "to", "expected_log_prob", "predictive",
    "n_outputs_per_target", "noise_scale", "scales_targets", "site_likelihood",
    "fit_constant_outputs",
)  # fmt: skip

ANY_LIKELIHOOD = Requirement("Any", _OWN_LIKELIHOOD, _LIKELIHOOD)
LIKELIHOOD_WITH_EXPECTATION = Requirement(
    "Any", _OWN_LIKELIHOOD, (*_LIKELIHOOD, "n_noise", "expected_log_prob")
)
LIKELIHOOD_WITH_HESSIAN = Requirement("Any", _OWN_LIKELIHOOD, (*_LIKELIHOOD, "hessian_root"))
ONE_OUTPUT_LIKELIHOOD = Requirement(
    "Any of one output, or softmax",
    "A linear model has one output per target and learns at most one scale of additive noise. "
    "skbayes_sym.models.TargetLikelihood has all that follows from a density.",
    _OF_ONE_OUTPUT,
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
    holds=lambda likelihood: likelihood.kind == "normal",
)
SOFTMAX = Requirement(
    "Softmax",
    "MCMCClassifier, DeepEnsembleClassifier, SymmetrizedVIClassifier, LILAClassifier and "
    "LaplaceClassifier(optimizer='adam') take any likelihood.",
    holds=lambda likelihood: likelihood.kind == "softmax",
)

NORMAL_OR_SOFTMAX = Requirement(
    "Normal noise or softmax",
    "Only their modes are looked for: with others, chains start with init='prior', and mean-field "
    "inference with init='random'.",
    holds=lambda likelihood: NORMAL_NOISE.is_met(likelihood) or SOFTMAX.is_met(likelihood),
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


class Fitted(Protocol):
    """Result of a method, final or so far: arrays and numbers, in scaled units."""

    @property
    def stop_reason(self) -> StopReason:
        """Why its loops ended."""

    @property
    def n_iter(self) -> int:
        """Steps made."""

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """The method's own fitted attributes, in the units of the data as given."""


class Method(Protocol):
    """A frozen dataclass of a method's parameters, made from a constructor in one place."""

    @property
    def requirements(self) -> Requirements:
        """Requirements on a likelihood, a network and a prior."""

    def fit(self, data: Training, model: Model, progress: FitProgress) -> Fitted:
        """The mathematics: no estimator and no scikit-learn in it."""
