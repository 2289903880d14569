"""Decisions before the first move of a sampled fit: the posterior, seeds, chains and blocks."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from torch import Tensor

from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.training import Training
from skbayes_sym.mcmc.annealing import Annealing
from skbayes_sym.mcmc.bridge import MIN_DRAWS_PER_DIM
from skbayes_sym.mcmc.chains import Block
from skbayes_sym.mcmc.kernels import Kernel
from skbayes_sym.mcmc.samplers import ModeWeights
from skbayes_sym.mcmc.within_mode import Allowance
from skbayes_sym.models.model import Data, Model
from skbayes_sym.numerics.random import spawn_seeds


@dataclass(frozen=True)
class SamplingDefaults:
    """Policy of `MCMCRegressor` and `MCMCClassifier`."""

    # n_chains="auto": three modes, the rarest in the reach of 8 % of starts (Wiese et al. 2023).
    auto_modes: tuple[float, ...] = (0.57, 0.35, 0.08)
    auto_probability: float = 0.99

    n_draws: int = 50  # n_draws=None

    # init="auto" starts at modes up to so many weights, where finding them takes up to so many
    # multiplications, some twenty seconds of one core; of classes fewer modes, as they are found
    # one after the other. Chains from the prior don't arrive at what the data say beyond 200.
    mode_weights: int = 500
    mode_work: float = 1e12
    mode_steps: int = 100
    mode_gradients: int = 40  # of a move, at most
    modes: int = 16
    label_modes: int = 4
    many_weights: int = 200
    least_noise: float = 0.3  # at a start, of the targets' spread: tighter noise is a steep wall

    # Chains of a block: on small problems a call costs the same for 64 chains as for 256; on others
    # blocks are what several processes share. Of networks of hundreds of weights a gradient of four
    # chains is arithmetic already. The size depends on the problem alone.
    small_bytes: int = 4096
    small_block: int = 256
    block: int = 64
    wide_block: int = 4

    # Annealed chains come to places narrower than those their steps were tuned in: on concrete data
    # to some where steps tuned for .8 are accepted at .3 to .6. So steps are shorter, and below .65
    # a chain warms up again.
    wide_acceptance: float = 0.9
    least_accepted: float = 0.65

    # Draws of an exploring chain that are weighed by evidence (only the bridge uses them), and
    # draws a parameter, of all chains together, from which ModeWeights("auto") is "evidence": as
    # many as bridge six modes. With fewer most have none, and finding that out is not free.
    explored: int = 50
    worth_weighing: int = 30

    # Chains restarted in their mode: moves are cheap there, so draws are spaced; step sizes need 30
    # moves. Then chains that make more draws in a mode whose evidence is poorly known, draws a
    # parameter that are enough, and evaluations of the density a draw that is bridged.
    refresh_warmup: int = 100
    refresh_thin: int = 4
    least_warmup: int = 30
    refining_chains: int = 32
    refining_draws: int = 50
    enough_draws: int = 2 * MIN_DRAWS_PER_DIM
    evaluations: int = 10

    # Beyond these an evidence isn't trusted: nats of its error, weight of a mode moved by doubts,
    # share of chains that never moved, R-hat between chains of one mode.
    most_error: float = 1.0
    most_moved: float = 0.1
    most_stuck: float = 0.5
    most_rhat: float = 1.5
    telling_moves: int = 10  # rejected all, a chain is stuck; fewer may be chance
    diagnosed_rows: int = 50  # training rows whose outputs are watched
    missed: float = 0.01  # probability with which a basin of `unseen_basin` has been missed

    # Shares of the progress that is reported.
    exploring: float = 0.7
    retuning: float = 0.15
    refreshing: float = 0.15


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
class SamplingConfig:
    """Everything that a stage of a fit needs."""

    data: Training
    model: Model
    progress: FitProgress
    effort: SamplingDefaults
    init: str  # where chains start, by its name in `exploring.INITS`
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
        return self._make_posterior(self.data.data)

    @cached_property
    def reference(self) -> NetworkPosterior:
        """The posterior in float64 on the CPU, where evidences are computed."""

        def exact(tensor: Tensor) -> Tensor:
            tensor = tensor.cpu()
            return tensor.double() if tensor.is_floating_point() else tensor

        return self._make_posterior(Data(*map(exact, self.data.data)))

    def _make_posterior(self, data: Data) -> NetworkPosterior:
        network, likelihood, prior, _ = self.model
        return NetworkPosterior(network, likelihood, prior, data, self.noise_prior_scale)  # type: ignore[arg-type]

    @cached_property
    def weighs(self) -> bool:
        """Whether modes are weighed by evidence; those of annealed chains only if asked."""
        if self.evidence.method != "auto":
            return self.evidence.method == "evidence"
        n_draws = self.n_chains * min(self.n_draws, self.effort.explored)
        return not self.annealing and n_draws >= self.effort.worth_weighing * self.posterior.n_dims

    def allowance(self, budget: float = inf) -> Allowance:
        """Work, in gradients of this posterior."""
        return Allowance(6.0 * len(self.data.data.x) * self.posterior.n_dims, budget)

    @property
    def block_size(self) -> int:
        """Chains that run together."""
        if self.data.device.type != "cpu":
            return self.n_chains
        x = self.data.data.x
        shapes = self.model.network.layout.shapes.values()
        widest = max(shape[0] for shape in shapes)  # as (out, in) says, or (out,)
        is_small = len(x) * widest * x.element_size() <= self.effort.small_bytes
        return self.effort.small_block if is_small else self.effort.block
