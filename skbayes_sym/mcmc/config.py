"""Settings of one fit by Markov chain Monte Carlo, and the constants behind "auto"."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from torch import Tensor

from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.base.noise_levels import MAX_FREEDOMS, prior_degrees, prior_scale
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.training import Training
from skbayes_sym.mcmc.annealing import Annealing
from skbayes_sym.mcmc.bridge import MIN_DRAWS_PER_DIM
from skbayes_sym.mcmc.chains import Block
from skbayes_sym.mcmc.kernels import Kernel
from skbayes_sym.mcmc.samplers import ModeWeights
from skbayes_sym.mcmc.within_mode import ComputeBudget
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Data, Model
from skbayes_sym.numerics.random import spawn_seeds


@dataclass(frozen=True)
class SamplingDefaults:
    """Constants behind the defaults of `MCMCRegressor` and `MCMCClassifier`."""

    # n_chains="auto" assumes three modes. The rarest one attracts 8 % of the starting points
    # (Wiese et al. 2023).
    mode_probabilities: tuple[float, ...] = (0.57, 0.35, 0.08)
    coverage_probability: float = 0.99

    n_draws: int = 50  # draws per chain for n_draws=None

    # init="auto" starts chains at Laplace modes if the network has at most this many weights and
    # finding the modes takes at most this many multiplications, about twenty seconds of one core.
    # Classification starts from fewer modes, because they are found one after the other. Chains
    # that start from the prior don't reach the posterior's bulk beyond 200 weights.
    laplace_max_weights: int = 500
    laplace_max_work: float = 1e12
    gauss_newton_steps: int = 100  # steps per search for a mode
    max_gradients_per_move: int = 40
    regression_modes: int = 16
    classification_modes: int = 4
    ensemble_min_weights: int = 200
    min_initial_noise: float = 0.3  # relative to the targets' spread; the density is steep below

    # Number of chains per block. On small problems a call takes the same time for 64 chains as for
    # 256. On larger ones the blocks are distributed over the processes. In networks of hundreds of
    # weights, arithmetic dominates the gradient of four chains already. The block size depends on
    # the problem alone.
    small_activation_bytes: int = 4096
    small_problem_block: int = 256
    block: int = 64
    annealed_block: int = 4

    # Annealed chains reach regions that are narrower than those in which their step sizes were
    # tuned. On the concrete data, step sizes tuned for an acceptance of 0.8 are accepted at 0.3 to
    # 0.6 in some of them. Annealed chains are therefore tuned for a higher acceptance, and a chain
    # below the minimum acceptance is warmed up again.
    annealed_acceptance: float = 0.9
    min_acceptance: float = 0.65

    # Draws per initial chain that are used to estimate the evidence, and draws per parameter, over
    # all chains together, from which ModeWeights("auto") estimates it. That many draws suffice to
    # bridge six modes. With fewer, most modes have no estimate, and trying costs time.
    max_evidence_draws: int = 50
    min_draws_per_parameter: int = 30

    # Chains that are restarted within their mode. Moves are cheap there, so draws are thinned.
    # Tuning the step sizes takes 30 moves. The refinement constants apply to the chains that add
    # draws to a mode with an uncertain evidence: their number, draws per chain, sufficient draws
    # per parameter, and evaluations of the density per bridged draw.
    mode_warmup: int = 100
    mode_thinning: int = 4
    min_mode_warmup: int = 30
    refinement_chains: int = 32
    refinement_draws: int = 50
    sufficient_draws_per_parameter: int = 2 * MIN_DRAWS_PER_DIM
    evaluations_per_draw: int = 10

    # Limits beyond which an evidence isn't trusted: its standard error in nats, the change of a
    # mode's weight within the errors, the fraction of chains that never moved, and R-hat between
    # the chains of one mode.
    max_standard_error: float = 1.0
    max_weight_change: float = 0.1
    max_stuck_fraction: float = 0.5
    max_rhat: float = 1.5
    min_moves_stuck: int = 10  # rejections in a row before a chain counts as stuck
    n_diagnostic_rows: int = 50  # training rows at which the outputs are monitored
    miss_probability: float = 0.01  # probability that a basin of `detectable_basin` was missed

    # Blocks of the progress that callbacks see, and the fractions of the stages. A search for modes
    # before the first chains is part of the fraction of sampling.
    progress_blocks: int = 500
    sampling_progress: float = 0.75
    retuning_progress: float = 0.05
    evidence_progress: float = 0.1
    reallocation_progress: float = 0.05
    alignment_progress: float = 0.05


class SamplingSeeds(NamedTuple):
    """Seeds of the random streams, one per purpose."""

    initialization: int  # starting points of the chains
    chains: int  # moves of the initial chains
    noise: int  # noise levels of few rows given the weights
    modes: int  # alignment and bridge sampling of modes
    refinement: int  # further chains in modes with an uncertain evidence
    reallocation: int  # new chains in proportion to the modes' weights
    alignment: int  # relabelling of the final draws


@dataclass(frozen=True, eq=False)
class SamplingConfig:
    """Settings of one fit, with every "auto" and None resolved.

    Parameters
    ----------
    data : Training
        Training data.
    model : Model
        Network, likelihood, prior and symmetry group.
    progress : FitProgress
        Progress reports of the fit.
    defaults : SamplingDefaults
        Constants behind "auto".
    init : str
        Name in `initialization.INITS` of how the chains start.
    kernel : Kernel
        Markov kernel of the initial chains.
    n_chains : int
        Number of chains.
    n_warmup : int
        Warm-up moves per chain.
    n_draws : int
        Draws per chain.
    thinning : int
        Moves per draw.
    annealing : Annealing or None
        Moves before the warm-up, or None to skip them.
    previous_blocks : list of Block or None
        Final states of the previous fit's chains for a warm start, or None to start anew.
    mode_weights : ModeWeights
        How modes are weighted.
    remove_symmetries : bool
        Whether draws are moved to one representative of their orbit.
    noise_prior_scale : float or None
        Scale of the half-normal prior of the noise's standard deviation, in scaled target units.
        None is the default, see `make_posterior`.
    n_jobs : int or None
        Number of processes.
    """

    data: Training
    model: Model
    progress: FitProgress
    defaults: SamplingDefaults
    init: str
    kernel: Kernel
    n_chains: int
    n_warmup: int
    n_draws: int
    thinning: int
    annealing: Annealing | None
    previous_blocks: list[Block] | None
    mode_weights: ModeWeights
    remove_symmetries: bool
    noise_prior_scale: float | None
    n_jobs: int | None

    @cached_property
    def seeds(self) -> SamplingSeeds:
        """Seeds derived from the fit's random state."""
        return SamplingSeeds(*spawn_seeds(self.data.seed, len(SamplingSeeds._fields)))

    @cached_property
    def posterior(self) -> NetworkPosterior:
        """Posterior in the working precision, on the device of the fit."""
        return self._make_posterior(self.data.data)

    @cached_property
    def float64_posterior(self) -> NetworkPosterior:
        """Posterior in float64 on the CPU, for evidence estimates."""

        def to_float64(tensor: Tensor) -> Tensor:
            tensor = tensor.cpu()
            if tensor.is_floating_point():
                return tensor.double()
            return tensor

        return self._make_posterior(Data(*map(to_float64, self.data.data)))

    def _make_posterior(self, data: Data) -> NetworkPosterior:
        """Posterior of the model given ``data``."""
        return make_posterior(self.model, data, self.noise_prior_scale)

    @cached_property
    def uses_evidence(self) -> bool:
        """Whether modes are weighted by evidence.

        ``ModeWeights("auto")`` does so if there are enough draws per parameter. It never does so
        for annealed chains.
        """
        if self.mode_weights.method != "auto":
            return self.mode_weights.method == "evidence"
        if self.annealing:
            return False
        n_draws = self.n_chains * min(self.n_draws, self.defaults.max_evidence_draws)
        return n_draws >= self.defaults.min_draws_per_parameter * self.posterior.n_dims

    def make_budget(self, remaining: float = inf) -> ComputeBudget:
        """Compute budget that counts gradients of this posterior.

        Parameters
        ----------
        remaining : float, default=inf
            Multiplications that may be spent.

        Returns
        -------
        ComputeBudget
        """
        return ComputeBudget(6.0 * len(self.data.data.x) * self.posterior.n_dims, remaining)

    @property
    def block_size(self) -> int:
        """Number of chains that move as one batch."""
        if self.data.device.type != "cpu":
            return self.n_chains
        x = self.data.data.x
        shapes = self.model.network.layout.shapes.values()
        widest = max(shape[0] for shape in shapes)  # shapes are (out, in) or (out,)
        if len(x) * widest * x.element_size() <= self.defaults.small_activation_bytes:
            return self.defaults.small_problem_block
        return self.defaults.block


def make_posterior(model: Model, data: Data, noise_prior_scale: float | None) -> NetworkPosterior:
    """Posterior of a model given data.

    Parameters
    ----------
    model : Model
        Network, likelihood, prior and symmetry group.
    data : Data
        Training rows in scaled units.
    noise_prior_scale : float or None
        Scale of the half-normal prior of the noise. None is 1, and for normal noise and few rows
        the half-t prior of `noise_levels`.
    """
    network, likelihood, prior, _ = model
    total_weight = float(data.weight.sum())
    learns_noise = isinstance(likelihood, Gaussian) and likelihood.n_params > 0
    if noise_prior_scale is not None or not learns_noise or total_weight >= MAX_FREEDOMS:
        if noise_prior_scale is None:
            scale = 1.0
        else:
            scale = noise_prior_scale
        return NetworkPosterior(network, likelihood, prior, data, scale)  # type: ignore[arg-type]
    return NetworkPosterior(
        network,
        likelihood,
        prior,  # type: ignore[arg-type]
        data,
        noise_prior_scale=prior_scale(data.y, data.weight).cpu(),
        noise_prior_degrees=prior_degrees(total_weight),
    )
