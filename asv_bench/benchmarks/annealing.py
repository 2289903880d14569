"""A network of a thousand weights: what a gradient, a microcanonical step and a trajectory cost.

Four layers of 16 tanh units with heads of mean and noise on 1,202 rows, as of airfoil. Run as a
script (``python -m asv_bench.benchmarks.annealing``) it prints milliseconds a gradient and chain,
on one thread: the least of several rounds, since other processes only add.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.mcmc.annealing import (
    MicrocanonicalState,
    microcanonical_move,
)
from skbayes_sym.mcmc.kernels import (
    draw_momentum,
    initial_state,
    leapfrog,
)
from skbayes_sym.mcmc.kronecker import KroneckerAdaptation
from skbayes_sym.mcmc.warmup import RunningMoments
from skbayes_sym.models.likelihoods.noise import Heteroscedastic
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.priors import Normal
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner

from .common import SingleThread

N_ROWS, N_LEAPFROG, N_ROUNDS = 1_202, 10, 30


def make_wide(n_chains: int) -> tuple[NetworkPosterior, Tensor]:
    """The posterior given random data, and starts of as many chains."""
    generator = torch.Generator().manual_seed(0)
    network = MLP(5, (16,) * 4, 2, TANH)
    x = torch.randn(N_ROWS, 5, generator=generator)
    y = torch.randn(N_ROWS, 1, generator=generator)
    prior = Normal(1.0).bind(network.layout)
    posterior = NetworkPosterior(network, Heteroscedastic(), prior, Data(x, y, torch.ones(N_ROWS)))
    return posterior, network.init(n_chains, generator=generator).float()


class Wide(SingleThread):
    """One of each, of all chains."""

    params = [4, 8]
    param_names = ("n_chains",)

    def setup(self, n_chains: int) -> None:
        super().setup()
        self.posterior, position = make_wide(n_chains)
        self.generator = torch.Generator().manual_seed(0)
        self.size = torch.full((n_chains,), 0.001)
        identity = DiagonalPreconditioner(torch.ones_like(position))
        self.adaptation = KroneckerAdaptation(self.posterior)
        self.identity, self.moments = identity, RunningMoments.empty(position)
        self.kronecker = self.adaptation.fit(identity, self.moments, position)
        self.state = initial_state(position, self.posterior)
        self.start = MicrocanonicalState.start(position, self.posterior, self.generator)
        self.time_trajectory(n_chains)  # scratch and factors are made once

    def time_gradient(self, n_chains: int) -> None:
        self.posterior.evaluate(self.state.position)

    def time_microcanonical_step(self, n_chains: int) -> None:
        microcanonical_move(
            self.start, self.posterior, step_size=self.size, preconditioner=self.identity,
            generator=self.generator,
        )  # fmt: skip

    def time_trajectory(self, n_chains: int) -> None:
        momentum = draw_momentum(self.state, self.generator)
        leapfrog(self.state, self.posterior, momentum, self.size, self.kronecker, N_LEAPFROG)

    def time_curvature(self, n_chains: int) -> None:
        position = self.state.position
        self.adaptation.fit(self.identity, self.moments, position).to_position(position)


def main() -> None:
    def least(work: Callable[[int], None], n_chains: int) -> float:
        found = []
        for _ in range(N_ROUNDS):
            began = time.process_time()
            work(n_chains)
            found.append(time.process_time() - began)
        return 1e3 * min(found) / n_chains

    for n_chains in Wide.params:
        wide = Wide()
        wide.setup(n_chains)
        gradient, step, trajectory, curvature = (
            least(work, n_chains)
            for work in (
                wide.time_gradient, wide.time_microcanonical_step, wide.time_trajectory,
                wide.time_curvature,
            )
        )  # fmt: skip
        print(
            f"{n_chains} chains, ms a gradient and chain: {gradient:.3f} alone, {step / 2:.3f} in "
            f"microcanonical steps, {trajectory / N_LEAPFROG:.3f} in preconditioned trajectories; "
            f"{curvature:.1f} ms a chain for the curvature"
        )


if __name__ == "__main__":
    main()
