"""What is believed, in one value."""

from typing import NamedTuple

from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.symmetry.base import SymmetryGroup


class Model(NamedTuple):
    """Network, likelihood, prior, and the symmetry that all three have."""

    network: MLP
    likelihood: Likelihood  # at its starting parameters
    prior: GaussianPrior
    group: SymmetryGroup
