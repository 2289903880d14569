"""Base class of estimators of neural networks, which builds the model from the constructor."""

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
    lambda _likelihood: True, {"auto": REGRESSION_LIKELIHOODS["gaussian"]}
)
# Constraints on parameters that take objects, for estimators that have them.
OBJECT_CONSTRAINTS: dict[str, list[Any]] = {
    "network": [StrOptions({"mlp"}), nn.Module, HasMethods("forward")],
    "likelihood": [StrOptions(_NAMED_LIKELIHOODS.keys()), HasMethods("log_prob")],
}


class NetworkEstimator(RowEstimator):
    """Estimator with the parameters ``hidden_layer_sizes``, ``activation`` and ``prior``.

    Some subclasses also have ``network`` and ``likelihood``, which take objects.
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
        """Return network, likelihood, prior and the symmetry group that the method uses."""
        likelihood = self._make_likelihood(data)
        network = self._make_network(data, likelihood.n_outputs(self._count_outputs(data)))
        weights = prior_allocation(network.layout.n_params)
        require_memory([data.rows_allocation, weights], data.device)
        prior = self._make_prior(network)
        return Model(network, likelihood, prior, self._symmetry_group(network, prior))

    def _make_network(self, data: Training, n_outputs: int) -> Network:
        """Return the network, an MLP by default, after checking its number of outputs."""
        network = self.network
        if isinstance(network, str):
            sizes = layer_sizes(self.hidden_layer_sizes)
            return MLP(data.n_features, sizes, n_outputs, ACTIVATIONS[self.activation])
        unused = ("hidden_layer_sizes", "activation")
        refuse_parameters(self, unused, "network= is given", "network='mlp'")
        if isinstance(network, nn.Module):
            network = ModuleNetwork(network, (data.n_features,))
        ANY_NETWORK.require(network, "network")
        if network.n_outputs != n_outputs:
            raise ValueError(
                f"network has {network.n_outputs} outputs, but the targets and the likelihood "
                f"need {n_outputs}: change its last layer."
            )
        return network

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood with its initial parameters, in scaled units."""
        likelihood = self.resolved_likelihood
        if likelihood is self._likelihoods_by_name["auto"]:
            return self._default_likelihood(data)
        if not isinstance(self.noise_std, HalfNormal):
            alternative = "parameters of a likelihood object, such as log_noise of StudentT"
            refuse_parameters(self, ("noise_std",), "likelihood= is given", alternative)
        require_kind(self, likelihood, self._unsupported_likelihoods)
        ANY_LIKELIHOOD.require(likelihood, "likelihood")
        return likelihood

    def _default_likelihood(self, _data: Training) -> Likelihood:
        """Return the likelihood that "auto" stands for."""
        return self._likelihoods_by_name["auto"]

    @property
    def resolved_likelihood(self) -> Likelihood:
        """The likelihood that the parameter names, or the object that it is."""
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

    def _learned_prior(self, _network: Network) -> UnboundPrior:
        """Return the prior that "learn" stands for."""
        return LayerScales()

    def _make_prior(self, network: Network) -> Prior:
        """Return the prior of the network's parameters."""
        prior = bind_prior(self.prior, self._learned_prior(network), network)
        ANY_PRIOR.require(prior, "prior")
        return prior

    @property
    def feature_importances_(self) -> Array:
        """Relative prior scale of the weights of every column, if each column has its own.

        The scales are averaged over fits and divided by their sum over columns, (n_features,).
        """
        scale = fitted_attribute(self, "relevance_")
        if scale is None:
            raise AttributeError("feature_importances_ needs prior=ARD(), a scale for every column")
        mean = np.asarray(scale).reshape(-1, np.shape(scale)[-1]).mean(axis=0)
        return np.asarray(mean / mean.sum())

    @property
    def symmetry_(self) -> SymmetryGroup:
        """Subgroup of the network's symmetry group that leaves the prior invariant."""
        check_is_fitted(self)
        network = self.network_
        prior = self._make_prior(network)
        return invariant_subgroup(network.symmetry(), prior.log_prob, network.layout)

    def _symmetry_group(self, _network: Network, _prior: Prior) -> SymmetryGroup:
        """Return the symmetry group that the method uses, trivial by default."""
        return Trivial()
