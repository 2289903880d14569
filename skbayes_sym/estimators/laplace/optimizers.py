"""Gauss-Newton steps from several starts, or Adam: what the two Laplace estimators choose from."""

from inspect import signature
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch

from skbayes_sym.estimators._fit.compatibility import refuse
from skbayes_sym.estimators._fit.method import Fitted, Method
from skbayes_sym.estimators._fit.model import fully_connected, independent_normals
from skbayes_sym.estimators._fit.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.base import CONSTRAINTS, LaplaceEstimator
from skbayes_sym.estimators.laplace.effort import ModesEffort, work
from skbayes_sym.estimators.laplace.networks import layer_prior, recording
from skbayes_sym.estimators.networks import NetworkEstimator
from skbayes_sym.models.learned_scales import LayerScales
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import Prior, UnboundPrior

# Parameters without a meaning for Gauss-Newton steps ...
ADAM_ONLY = (
    "likelihood", "curvature", "layers", "batch_size", "learning_rate", "hyper_learning_rate",
    "hyper", "n_hyper_updates", "burn_in", "keep_best", "n_predict_samples",
)  # fmt: skip
# ... and for Adam's.
GAUSS_NEWTON_ONLY = ("n_restarts", "variance_scale")

_ADAM_STEPS, _ADAM_TOL = 3000, 1e-3

OWN_CONSTRAINTS: dict[str, list[Any]] = {
    **CONSTRAINTS,
    "hidden_layer_sizes": [StrOptions({"auto"}), *CONSTRAINTS["hidden_layer_sizes"]],
    "network": [StrOptions({"mlp"}), torch.nn.Module, HasMethods("forward")],
    "layers": [StrOptions({"all", "last"})],
    "optimizer": [StrOptions({"auto", "gauss-newton", "adam"})],
    "n_restarts": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "max_iter": [StrOptions({"auto"}), *CONSTRAINTS["max_iter"]],
    "tol": [StrOptions({"auto"}), *CONSTRAINTS["tol"]],
}


class ChoosesOptimizer(LaplaceEstimator):
    """Gauss-Newton where the network is small and ordinary enough, Adam elsewhere."""

    optimizer: str
    n_restarts: int | str
    _effort: ClassVar[ModesEffort] = ModesEffort()
    _most_modes: int = _effort.most_modes  # of "auto"
    max_iter: int | str
    tol: float | str | None

    optimizer_: str

    def _learned_prior(self, network: MLP) -> UnboundPrior:
        """The prior of Gauss-Newton fits that learn its scales."""
        return LayerScales()

    def _sizes(self, data: Training, n_outputs: int) -> tuple[int, ...]:
        if not isinstance(self.hidden_layer_sizes, str):
            return super()._sizes(data, n_outputs)
        return (
            self._effort.usual_width if self._asks_for_adam() else self._units(data, n_outputs),
        )

    def _units(self, data: Training, n_outputs: int) -> int:
        """What "auto" is by Gauss-Newton steps."""
        raise NotImplementedError

    def _most_steps(self, network: MLP) -> int:
        """Gauss-Newton steps of a restart."""
        raise NotImplementedError

    def _work(self, n_steps: int, n_rows: int, network: MLP) -> float:
        """Multiplications of as many steps of all restarts."""
        n_params = network.layout.n_params
        return work(self._restarts_at_most, n_steps, n_rows, n_params, network.n_outputs)

    @property
    def _restarts_at_most(self) -> int:
        return self._most_modes if isinstance(self.n_restarts, str) else self.n_restarts

    def _takes_long(self, n_rows: int, network: MLP) -> bool:
        """Whether "auto" trains such a network by Adam."""
        return self._work(self._most_steps(network), n_rows, network) > self._effort.most_work

    def _gauss_newton(self) -> Method:
        raise NotImplementedError

    def _model(self, data: Training) -> Model:
        self.optimizer_ = "gauss-newton"
        why = self._why_adam(data)
        if why:
            self.optimizer_ = "adam"
            refuse(self, GAUSS_NEWTON_ONLY, why, "optimizer='gauss-newton'")
        return super()._model(data)

    def _attributes(self, data: Training, model: Model, found: Fitted) -> dict[str, Any]:
        return {**super()._attributes(data, model, found), "optimizer_": self.optimizer_}

    def _why_adam(self, data: Training) -> str:
        """The reason, or nothing where Gauss-Newton steps are made."""
        if self.optimizer == "adam":
            return "optimizer='adam' trains one network"
        if self.optimizer == "gauss-newton":
            refuse(self, ADAM_ONLY, "Gauss-Newton steps have no use for it", "optimizer='adam'")
            return ""
        given = self._given_to_adam()
        if given:
            return f"{given[0]}={getattr(self, given[0])!r} asks for Adam"
        network = self._network(data, self._n_outputs(data))
        if not hasattr(network, "hidden_layer_sizes"):
            return "a network that isn't fully connected is trained by Adam"
        takes_long = self._takes_long(data.n_rows, fully_connected(network))
        return "so many rows and weights are trained by Adam" if takes_long else ""

    def _asks_for_adam(self) -> bool:
        """Whether parameters say so, whatever the data."""
        by_parameter = self.optimizer == "auto" and bool(self._given_to_adam())
        return self.optimizer == "adam" or by_parameter

    def _given_to_adam(self) -> list[str]:
        """Parameters that only Adam has a use for, and that were given."""
        return [name for name in ADAM_ONLY if not self._is_default(name)]

    def _is_default(self, name: str) -> bool:
        known = signature(type(self)).parameters
        return name not in known or np.array_equal(getattr(self, name), known[name].default)

    def _steps_up_to(self, automatic: int) -> int:
        return automatic if isinstance(self.max_iter, str) else self.max_iter

    def _prior(self, network: Network) -> Prior:
        if isinstance(self.prior, str) and self.optimizer_ == "gauss-newton":
            return self._learned_prior(fully_connected(network)).bind(network.layout)
        if not isinstance(self.prior, UnboundPrior):
            return layer_prior(self.prior, recording(network))
        bound = NetworkEstimator._prior(self, network)
        if self.optimizer_ == "adam":
            _require_scales_of_layers(bound, network)
        return bound

    def _networks_at_once(self, n_weights: int) -> float:
        """Of Gauss-Newton steps all restarts, and a gradient a weight for the curvature."""
        if self.optimizer_ == "adam":
            return 1.0
        return float(self._restarts_at_most * n_weights)

    def _method(self) -> Method:
        if self.optimizer_ == "gauss-newton":
            return self._gauss_newton()
        tol = _ADAM_TOL if isinstance(self.tol, str) else self.tol
        return self._adam(self._steps_up_to(_ADAM_STEPS), tol)


def _require_scales_of_layers(prior: Prior, network: Network) -> None:
    """Raise unless Adam can take it: normals with one scale a layer that stay as they are."""
    if prior.learned is not None:
        raise ValueError(
            "this prior learns its scales by Gauss-Newton steps, but the network is trained by "
            "Adam. Use prior='learn', a number, or optimizer='gauss-newton'."
        )
    shown, scale = recording(network), independent_normals(prior).scale
    first = [float(scale[network.layout.slices[layer.weight]][0]) for layer in shown.weight_layers]
    if not torch.allclose(layer_prior(first, shown).scale.to(scale), scale):
        raise ValueError(
            "Adam's curvature takes one prior scale a layer, of weights and biases alike. Use "
            "Normal(scale) with one number or one a layer, or optimizer='gauss-newton'."
        )
