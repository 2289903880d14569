"""What is believed before the data: the four nouns of a model, together."""

from typing import NamedTuple

from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.priors import Prior
from skbayes_sym.symmetry.base import SymmetryGroup


class Model(NamedTuple):
    """Targets ``y ~ likelihood(network(theta, x))`` with ``theta ~ prior``.

    The transformations in ``group`` change neither function nor prior.
    """

    network: Network
    likelihood: Likelihood
    prior: Prior
    group: SymmetryGroup
