"""Base of estimators of networks: how their constructor becomes a model."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

from skbayes_sym.base.estimator import RowEstimator
from skbayes_sym.base.model_factory import PriorParameter, bind_prior, layer_sizes
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.requirements import (
    ANY_LIKELIHOOD,
    ANY_NETWORK,
    ANY_PRIOR,
    refuse_parameters,
    require_kind,
)
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import HasMethods, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.registry import REGRESSION_LIKELIHOODS, SupportedLikelihoods
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import HalfNormal, LayerScales, Prior, UnboundPrior
from skbayes_sym.numerics.memory import prior_allocation, require_memory
from skbayes_sym.symmetry.group import SymmetryGroup, Trivial, invariant_subgroup

_NAMED_LIKELIHOODS = SupportedLikelihoods(
    lambda likelihood: True, {"auto": REGRESSION_LIKELIHOODS["gaussian"]}
)
# Of the parameters that take objects, for estimators that have them.
OBJECT_CONSTRAINTS: dict[str, list[Any]] = {
    "network": [StrOptions({"mlp"}), nn.Module, HasMethods("forward")],
    "likelihood": [StrOptions(_NAMED_LIKELIHOODS.keys()), HasMethods("log_prob")],
}


class NetworkEstimator(RowEstimator):
    """An estimator with ``hidden_layer_sizes``, ``activation`` and ``prior``.

    Some take objects: ``network`` and ``likelihood``.
    """

    hidden_layer_sizes: Any
    activation: str
    network: str | nn.Module | Network = "mlp"
    likelihood: str | Likelihood = "auto"
    prior: PriorParameter
    network_: Network
    _likelihoods_by_name: ClassVar[Mapping[str, Likelihood]]
    _unsupported_likelihoods: ClassVar[tuple[type, ...]]

    def _make_model(self, data: Training) -> Model:
        likelihood = self._make_likelihood(data)
        network = self._make_network(data, likelihood.n_outputs(self._count_outputs(data)))
        require_memory(
            [data.rows_allocation, prior_allocation(network.layout.n_params)], data.device
        )
        prior = self._make_prior(network)
        return Model(network, likelihood, prior, self._symmetry_group(network, prior))

    def _make_network(self, data: Training, n_outputs: int) -> Network:
        network = self.network
        if isinstance(network, str):
            sizes = layer_sizes(self.hidden_layer_sizes)
            return MLP(data.n_features, sizes, n_outputs, ACTIVATIONS[self.activation])
        refuse_parameters(
            self, ("hidden_layer_sizes", "activation"), "network= is given", "network='mlp'"
        )
        if isinstance(network, nn.Module):
            network = ModuleNetwork(network, (data.n_features,))
        ANY_NETWORK.require(network, "network")
        if network.n_outputs != n_outputs:
            raise ValueError(
                f"network has {network.n_outputs} outputs, but the targets and the likelihood ask "
                f"for {n_outputs}: change its last layer."
            )
        return network

    def _make_likelihood(self, data: Training) -> Likelihood:
        """At its starting parameters, in scaled units."""
        chosen = self.resolved_likelihood
        if chosen is self._likelihoods_by_name["auto"]:
            return self._default_likelihood(data)
        if not isinstance(self.noise_std, HalfNormal):
            instead = "parameters of a likelihood object, such as log_noise of StudentT"
            refuse_parameters(self, ("noise_std",), "likelihood= is given", instead)
        require_kind(self, chosen, self._unsupported_likelihoods)
        ANY_LIKELIHOOD.require(chosen, "likelihood")
        return chosen

    def _default_likelihood(self, data: Training) -> Likelihood:
        """Likelihood that "auto" stands for."""
        return self._likelihoods_by_name["auto"]

    @property
    def resolved_likelihood(self) -> Likelihood:
        """Likelihood by name or as an object."""
        likelihood = self._likelihood_parameter
        if not isinstance(likelihood, str):
            return likelihood  # type: ignore[no-any-return]
        if likelihood not in self._likelihoods_by_name:
            known = ", ".join(map(repr, self._likelihoods_by_name))
            raise ValueError(
                f"likelihood={likelihood!r} doesn't go with {type(self).__name__}, which "
                f"takes {known} or an object."
            )
        return self._likelihoods_by_name[likelihood]

    def _learned_prior(self, network: Network) -> UnboundPrior:
        """Prior that "learn" stands for."""
        return LayerScales()

    def _make_prior(self, network: Network) -> Prior:
        bound = bind_prior(self.prior, self._learned_prior(network), network)
        ANY_PRIOR.require(bound, "prior")
        return bound

    @property
    def feature_importances_(self) -> Array:
        """Share of every column in the scales of the weights from it, where they are learned."""
        scale = fitted_attribute(self, "relevance_")
        if scale is None:
            raise AttributeError("feature_importances_ needs prior=ARD(), a scale for every column")
        mean = np.asarray(scale).reshape(-1, np.shape(scale)[-1]).mean(axis=0)
        return np.asarray(mean / mean.sum())

    @property
    def symmetry_(self) -> SymmetryGroup:
        """The part of the network's group that the prior keeps."""
        check_is_fitted(self)
        network = self.network_
        return invariant_subgroup(
            network.symmetry(), self._make_prior(network).log_prob, network.layout
        )

    def _symmetry_group(self, network: Network, prior: Prior) -> SymmetryGroup:
        """The symmetry that the method uses."""
        return Trivial()
