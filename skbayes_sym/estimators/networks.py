"""What estimators of fully connected networks share: how their constructor becomes a model."""

from typing import Any

from skbayes_sym.estimators._fit.model import layer_sizes, network_prior
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.base import RowEstimator
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.symmetry.base import SymmetryGroup, Trivial


class NetworkEstimator(RowEstimator):
    """An estimator with ``hidden_layer_sizes``, ``activation`` and ``prior_scale``."""

    hidden_layer_sizes: Any
    activation: str
    prior_scale: Any
    network_: MLP

    def _model(self, data: Training) -> Model:
        network = MLP(
            data.n_features,
            layer_sizes(self.hidden_layer_sizes),
            self._n_outputs(data),
            ACTIVATIONS[self.activation],
        )
        prior = network_prior(self.prior_scale, network)
        return Model(network, self._likelihood(data), prior, self._group(network, prior))

    def _likelihood(self, data: Training) -> Likelihood:
        """At its starting parameters, in scaled units."""
        return self._default_likelihood(data)

    def _group(self, network: MLP, prior: GaussianPrior) -> SymmetryGroup:
        """The symmetry that the method uses."""
        return Trivial()
