"""Sampling: what chains, draws and the evidence of a mode cost, in seconds and bytes.

One hidden layer of 3 units on sinusoidal-sized data (120 rows, 1 input), one process.
"""

from dataclasses import replace

import torch
from torch import Tensor

from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.mcmc.bridge import Integrand, bridge_evidence, fit_fundamental_domain
from skbayes_sym.mcmc.chains import Block, Sampler, sample_chains, start_blocks
from skbayes_sym.mcmc.kernels import HMC
from skbayes_sym.mcmc.mode_evidence import align_draws
from skbayes_sym.mcmc.warmup import PooledDiagonal
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain

from .chains import SHAPES, make_problem
from .common import SingleThread

SHAPE = SHAPES["sinusoidal 3"]
BLOCK = 64
# Short trajectories, always as many steps: the figures are of the code, not of the posterior.
KERNEL = HMC(max_leapfrog=16)


def start(n_chains: int, dtype: torch.dtype = torch.float32) -> tuple[Sampler, list[Block]]:
    """Chains at draws of the prior, and how they are run."""
    posterior, position = make_problem(SHAPE, n_chains, dtype)
    sampler = Sampler(KERNEL, posterior, PooledDiagonal(posterior.network.symmetry()))
    return sampler, start_blocks(position, posterior, block_size=BLOCK, seed=0)


class Chains(SingleThread):
    """Warm-up of 100 moves, then draws, of chains in blocks of 64."""

    params = ([64, 256], [10, 100])
    param_names = ("n_chains", "n_draws")
    timeout = 120

    def setup(self, n_chains: int, n_draws: int) -> None:
        super().setup()
        self.sampler, self.blocks = start(n_chains)

    def time_warm_up_and_draw(self, n_chains: int, n_draws: int) -> None:
        sample_chains(self.sampler, self.blocks, n_warmup=100, n_draws=n_draws)

    def peakmem_warm_up_and_draw(self, n_chains: int, n_draws: int) -> None:
        self.time_warm_up_and_draw(n_chains, n_draws)


class Memory(SingleThread):
    """Draws are all that grows: 4 bytes a number in float32, whatever the rows."""

    params = ([64, 256], [100, 10_000])
    param_names = ("n_chains", "n_draws")
    timeout = 120

    def setup(self, n_chains: int, n_draws: int) -> None:
        super().setup()
        sampler, self.blocks = start(n_chains)
        kernel = HMC(max_leapfrog=1)
        self.sampler = Sampler(kernel, sampler.log_density, sampler.adaptation)

    def peakmem_draw(self, n_chains: int, n_draws: int) -> None:
        sample_chains(self.sampler, self.blocks, n_warmup=0, n_draws=n_draws)


class Confined(SingleThread):
    """100 moves within one copy of a mode: beside `Chains`, the price of the boundary."""

    params = [64, 256]
    param_names = ("n_chains",)

    def setup(self, n_chains: int) -> None:
        super().setup()
        sampler, _ = start(n_chains)
        posterior, position = make_problem(SHAPE, n_chains, torch.float32)
        domain = _domain(posterior, position)
        kernel = replace(KERNEL, domain=domain)
        inside = domain.enter(position.double())[0].float()
        self.sampler = Sampler(kernel, posterior, sampler.adaptation)
        self.blocks = start_blocks(inside, posterior, block_size=BLOCK, seed=0)

    def time_move(self, n_chains: int) -> None:
        sample_chains(self.sampler, self.blocks, n_warmup=0, n_draws=1, thin=100)


class Evidence(SingleThread):
    """Alignment and bridge sampling, in float64, of draws spread like the prior: 48 copies."""

    params = [1_000, 10_000]
    param_names = ("n_draws",)
    timeout = 120

    def setup(self, n_draws: int) -> None:
        super().setup()
        self.posterior, self.draws = make_problem(SHAPE, n_draws, torch.float64)
        self.group = self.posterior.network.symmetry()

    def time_align(self, n_draws: int) -> None:
        self._aligned()

    def time_align_and_bridge(self, n_draws: int) -> None:
        generator = torch.Generator().manual_seed(0)
        integrand = Integrand(self.posterior.log_prior, self.group)
        bridge_evidence(integrand, self._aligned(), generator=generator)

    def peakmem_align_and_bridge(self, n_draws: int) -> None:
        self.time_align_and_bridge(n_draws)

    def _aligned(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return align_draws(self.draws, self.group, generator=generator)


def _domain(posterior: NetworkPosterior, position: Tensor) -> FundamentalDomain:
    """Around draws of the prior: as tight as any."""
    group, generator = posterior.network.symmetry(), torch.Generator().manual_seed(0)
    return fit_fundamental_domain(
        align_draws(position.cpu().double(), group, generator=generator), group
    )
