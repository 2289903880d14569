"""Decisions before the first move of a sampled fit: the posterior, seeds, chains and blocks."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from torch import Tensor

from skbayes_sym.estimators._fit.run import Run
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.mcmc.sampling_effort import SamplingEffort
from skbayes_sym.estimators.samplers import ModeWeights
from skbayes_sym.inference.log_density import NetworkPosterior
from skbayes_sym.inference.sampling.annealing import Annealing
from skbayes_sym.inference.sampling.chains import Block
from skbayes_sym.inference.sampling.kernels import Kernel
from skbayes_sym.inference.sampling.modes.confined import Allowance
from skbayes_sym.models.model import Data, Model
from skbayes_sym.numerics.random import spawn_seeds


class SamplingSeeds(NamedTuple):
    """Seeds, by purpose."""

    start: int
    chains: int
    spare: int  # asked of nobody; those below keep their streams
    modes: int
    refine: int
    refresh: int
    labels: int


@dataclass(frozen=True, eq=False)
class SamplingSetting:
    """Everything that a stage of a fit needs."""

    data: Training
    model: Model
    run: Run
    effort: SamplingEffort
    init: str  # where chains start, by its name in `chain_starts.INITS`
    kernel: Kernel  # moves the chains that explore
    n_chains: int
    n_warmup: int
    n_draws: int
    thinning: int
    annealing: Annealing | None  # what chains do before they warm up
    start: list[Block] | None  # where those of the previous fit stopped, to go on with
    evidence: ModeWeights  # what the modes they find count for
    remove_symmetries: bool  # whether draws are moved to one representative of their orbit
    noise_prior_scale: float  # of the half-normal prior of the noise, scaled target units
    n_jobs: int | None

    @cached_property
    def seeds(self) -> SamplingSeeds:
        return SamplingSeeds(*spawn_seeds(self.data.seed, len(SamplingSeeds._fields)))

    @cached_property
    def posterior(self) -> NetworkPosterior:
        """The posterior as chains see it: in the working precision, on the device."""
        return self._posterior_of(self.data.data)

    @cached_property
    def reference(self) -> NetworkPosterior:
        """The posterior in float64 on the CPU, where evidences are computed."""

        def exact(tensor: Tensor) -> Tensor:
            tensor = tensor.cpu()
            return tensor.double() if tensor.is_floating_point() else tensor

        return self._posterior_of(Data(*map(exact, self.data.data)))

    def _posterior_of(self, data: Data) -> NetworkPosterior:
        network, likelihood, prior, _ = self.model
        return NetworkPosterior(network, likelihood, prior, data, self.noise_prior_scale)  # type: ignore[arg-type]

    @cached_property
    def weighs(self) -> bool:
        """Whether modes are weighed by evidence; those of annealed chains only if asked."""
        if self.evidence.method != "auto":
            return self.evidence.method == "evidence"
        n_draws = self.n_chains * min(self.n_draws, self.effort.explored)
        return not self.annealing and n_draws >= self.effort.worth_weighing * self.posterior.n_dims

    def allowance(self, left: float = inf) -> Allowance:
        """Work, in gradients of this posterior."""
        return Allowance(6.0 * len(self.data.data.x) * self.posterior.n_dims, left)

    @property
    def block_size(self) -> int:
        """Chains that run together."""
        if self.data.device.type != "cpu":
            return self.n_chains
        x, shapes = self.data.data.x, self.model.network.layout.shapes.values()
        widest = max(shape[0] for shape in shapes)  # as (out, in) says, or (out,)
        is_small = len(x) * widest * x.element_size() <= self.effort.small_bytes
        return self.effort.small_block if is_small else self.effort.block
