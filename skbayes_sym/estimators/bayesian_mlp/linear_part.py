"""The linear model in a pool of networks."""

from dataclasses import dataclass

from skbayes_sym.estimators._fit.run import Run
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.effort import STEPS, work
from skbayes_sym.estimators.laplace.mode_method import EvidenceLaplace
from skbayes_sym.estimators.laplace.modes import ModesFit
from skbayes_sym.models.learned_scales import LayerScales
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.activations import IDENTITY
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.symmetry.base import Trivial

_TOL = 5e-6


@dataclass(frozen=True, eq=False)
class LinearPart:
    """A Bayesian linear model, its scales and noise set by the evidence.

    Parameters
    ----------
    found : ModesFit
        Its one mode, which is exact given the scales.
    """

    found: ModesFit


def linear_network(n_inputs: int, n_outputs: int) -> MLP:
    """Without a hidden layer."""
    return MLP(n_inputs, (), n_outputs, IDENTITY)


def is_affordable(data: Training, n_outputs: int, most_work: float) -> bool:
    """Whether the linear model is found in the time that the modes may take."""
    n_params = linear_network(data.n_features, n_outputs).layout.n_params
    return work(1, STEPS, data.n_rows * n_outputs, n_params) <= most_work


def fit_linear(data: Training, model: Model, run: Run) -> LinearPart:
    """The linear model of the same likelihood; its share is still to be found."""
    network = linear_network(data.n_features, model.network.n_outputs)
    prior = LayerScales().bind(network.layout)
    linear = Model(network, model.likelihood, prior, Trivial())
    return LinearPart(EvidenceLaplace(1, STEPS, _TOL).fit(data, linear, run))
