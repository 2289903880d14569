"""What a sampled fit decides before the first move: the posterior, seeds, chains and blocks."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from torch import Tensor

from skbayes_sym.estimators._fit.run import Run
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.inference.samplers import SMC
from skbayes_sym.inference.sampling.allowance import Allowance
from skbayes_sym.inference.sampling.annealing import Approach
from skbayes_sym.inference.sampling.blocks import Block
from skbayes_sym.inference.sampling.kernels.base import Kernel
from skbayes_sym.models.model import Data, Model
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.units import split_units

# Chains of a block. On small problems a call costs the same for 64 chains as for 256; on others
# blocks are what several processes share. Either way the size depends on the problem alone.
_SMALL_BYTES, _SMALL_BLOCK, _BLOCK = 4096, 256, 64

# Draws of exploring chains that are weighed by evidence: only the bridge uses them.
MOST_EXPLORED = 50

# Draws a parameter, of all chains together, from which mode_weights="auto" is "evidence": as many
# as bridge six modes. With fewer most modes have no evidence, and finding that out is not free.
_WORTH_WEIGHING = 30

# Moves of a replicate's stage: particles look for modes, whose weights come from elsewhere.
REPLICATE_MOVES = 4

EXPLORING, REPLICATES, REFRESHING = 0.7, 0.15, 0.15  # shares of the progress reported


class Search(NamedTuple):
    """How modes are looked for, and what they count for."""

    kernel: Kernel | None  # moves the chains that explore; None if only particles do
    particles: SMC | None
    by_evidence: bool  # else every chain, or replicate, has one vote
    insists: bool = True  # on evidence, however few draws there are
    all_replicates: bool = True  # as many as `particles` has, whatever they cost
    effort: float = 1.0  # what the evidence may cost, in units of what the chains do


class Plan(NamedTuple):
    """How many chains there are and how long they run, where a person doesn't say."""

    n_chains: int = 64
    n_warmup: int = 1000
    n_draws: int = 50


class Chains(NamedTuple):
    """How many chains there are, and how long they run."""

    n_chains: int
    n_warmup: int
    n_draws: int
    thinning: int
    init: str = "prior"  # where they start, by its name in `starts.INITS`
    approach: Approach | None = None  # what they do before they warm up
    n_jobs: int | None = None
    start: list[Block] | None = None  # where those of the previous fit stopped, to go on with


class Seeds(NamedTuple):
    """One seed a purpose."""

    start: int
    chains: int
    replicates: int
    modes: int
    refine: int
    refresh: int
    labels: int


@dataclass(frozen=True, eq=False)
class Setting:
    """What every stage of a fit needs.

    Parameters
    ----------
    search : Search
    chains : Chains
    remove_symmetries : bool
        Whether draws are moved to one representative of their orbit.
    noise_prior_scale : float
        Of the half-normal prior of the noise, scaled target units.
    data : Training
    model : Model
    run : Run
    """

    search: Search
    chains: Chains
    remove_symmetries: bool
    noise_prior_scale: float
    data: Training
    model: Model
    run: Run

    @cached_property
    def seeds(self) -> Seeds:
        return Seeds(*spawn_seeds(self.data.seed, len(Seeds._fields)))

    @cached_property
    def posterior(self) -> NetworkPosterior:
        """As chains see it: in the working precision, on the device."""
        return self._posterior_of(self.data.data)

    @cached_property
    def reference(self) -> NetworkPosterior:
        """The same in float64 on the CPU, where evidences are computed."""
        return self._posterior_of(Data(*map(_reference_tensor, self.data.data)))

    @cached_property
    def units(self) -> SymmetryGroup:
        """The part of the model's group that exchanges units."""
        return split_units(self.model.group)[0]

    def _posterior_of(self, data: Data) -> NetworkPosterior:
        network, likelihood, prior, _ = self.model
        return NetworkPosterior(network, likelihood, prior, data, self.noise_prior_scale)  # type: ignore[arg-type]

    @cached_property
    def weighs(self) -> bool:
        """Whether modes are weighed by evidence."""
        plan, search = self.chains, self.search
        if not search.by_evidence or search.insists:
            return search.by_evidence
        n_draws = plan.n_chains * min(plan.n_draws, MOST_EXPLORED)
        return n_draws >= _WORTH_WEIGHING * self.posterior.n_dims

    def allowance(self, left: float = inf) -> Allowance:
        """So much work, in gradients of this posterior."""
        return Allowance(6.0 * len(self.data.data.x) * self.posterior.n_dims, left)

    @property
    def block_size(self) -> int:
        """Chains that run together."""
        if self.data.device.type != "cpu":
            return self.chains.n_chains
        x, shapes = self.data.data.x, self.model.network.layout.shapes.values()
        widest = max(shape[0] for shape in shapes)  # as (out, in) says, or (out,)
        row_bytes = len(x) * widest * x.element_size()
        return _SMALL_BLOCK if row_bytes <= _SMALL_BYTES else _BLOCK


def _reference_tensor(tensor: Tensor) -> Tensor:
    tensor = tensor.cpu()
    return tensor.double() if tensor.is_floating_point() else tensor
