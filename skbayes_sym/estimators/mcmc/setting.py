"""What a sampled fit decides before the first move: model, seeds, chains and their blocks."""

from typing import Any, NamedTuple

from torch import Tensor

from skbayes_sym.estimators._fit.context import FitContext
from skbayes_sym.estimators._fit.progress import Progress
from skbayes_sym.estimators._fit.rows import Scaling
from skbayes_sym.estimators._fit.training import training_data
from skbayes_sym.inference.mcmc.chain_count import n_chains_required
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.models.data import Data
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.base import check_invariant

# "auto" chains: three modes, the rarest in the reach of 8 % of the starts (Wiese et al. 2023).
_AUTO_MODES, _AUTO_PROBABILITY = (0.57, 0.35, 0.08), 0.99

# Chains of a block. On small problems a call costs the same for 64 chains as for 256; on others
# blocks are what several processes share. Either way the size depends on the problem alone.
_SMALL_BYTES, _SMALL_BLOCK, _BLOCK = 4096, 256, 64

EXPLORING, ISLANDS, REFRESHING = 0.7, 0.15, 0.15  # shares of the progress reported


class Model(NamedTuple):
    """The recipe's ingredients, fixed before the first move."""

    network: MLP
    prior: GaussianPrior
    likelihood: Likelihood
    noise_prior_scale: float = 1.0
    y_scaling: Scaling | None = None


class Seeds(NamedTuple):
    """One seed a purpose."""

    start: int
    chains: int
    islands: int
    modes: int
    refine: int
    refresh: int
    labels: int


class Setting(NamedTuple):
    """What every stage of a fit needs."""

    estimator: Any
    context: FitContext
    model: Model
    posterior: NetworkPosterior
    seeds: Seeds
    progress: Progress

    @property
    def n_chains(self) -> int:
        """``n_chains``, "auto" resolved."""
        if self.estimator.n_chains == "auto":
            return n_chains_required(_AUTO_MODES, probability=_AUTO_PROBABILITY)
        return int(self.estimator.n_chains)

    @property
    def block_size(self) -> int:
        """Chains that run together."""
        if self.context.device.type != "cpu":
            return self.n_chains
        data, network = self.posterior.data, self.model.network
        row_bytes = len(data.x) * max(network.sizes[1:]) * data.x.element_size()
        return _SMALL_BLOCK if row_bytes <= _SMALL_BYTES else _BLOCK

    def reference(self) -> NetworkPosterior:
        """The posterior in float64 on the CPU, where evidences are computed."""
        data = Data(*(_reference_tensor(t) for t in self.posterior.data))
        return NetworkPosterior(
            self.model.network, self.model.likelihood, self.model.prior, data,
            self.model.noise_prior_scale,
        )  # fmt: skip


def open_setting(estimator: Any, context: FitContext, model: Model) -> Setting:
    """The posterior of scaled data, checked for the symmetry that is to be removed."""
    data = training_data(context, model.y_scaling)
    posterior = NetworkPosterior(
        model.network, model.likelihood, model.prior, data, model.noise_prior_scale
    )
    if estimator.remove_symmetries:
        check_invariant(
            model.network.symmetry(), model.prior.log_prob, model.network.layout,
            what="prior_scale",
            remedy="Give all units of a layer the same scale, or use remove_symmetries=False.",
        )  # fmt: skip
    seeds = Seeds(*spawn_seeds(context.seed, len(Seeds._fields)))
    return Setting(estimator, context, model, posterior, seeds, Progress(context))


def _reference_tensor(tensor: Tensor) -> Tensor:
    tensor = tensor.cpu()
    return tensor.double() if tensor.is_floating_point() else tensor
