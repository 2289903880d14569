"""Gradients of a Bayesian network's posterior at many chains: hand-written and by autograd.

The shapes are those of the sampling experiments: airfoil (1,202 rows, 5 inputs) and sinusoidal (120
rows, 1 input) with 3 hidden units, and sinusoidal with 3 layers of 16. Run as a script it prints
gradients per CPU-second, both ways in turn on one thread.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.base.log_density import (
    Evaluation,
    LogDensity,
    NetworkPosterior,
    by_autograd,
)
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP, TANH, Activation
from skbayes_sym.models.priors import GaussianPrior

from .common import DEVICES, SingleThread, require, synchronise


class Shape(NamedTuple):
    """Sizes of a regression."""

    n_rows: int
    n_inputs: int
    hidden: tuple[int, ...]
    activation: Activation = TANH


SHAPES = {
    "airfoil 3": Shape(1_202, 5, (3,)),
    "sinusoidal 3": Shape(120, 1, (3,)),
    "sinusoidal 16-16-16": Shape(120, 1, (16, 16, 16)),
}
N_CHAINS = [64, 128, 256, 1274]
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def make_problem(
    shape: Shape, n_chains: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[NetworkPosterior, Tensor]:
    """A posterior given random data, and prior draws as positions."""
    generator = torch.Generator().manual_seed(0)
    network = MLP(shape.n_inputs, shape.hidden, 1, shape.activation)
    x = torch.randn(shape.n_rows, shape.n_inputs, generator=generator)
    y = torch.randn(shape.n_rows, 1, generator=generator)
    data = Data(*(t.to(device, dtype) for t in (x, y, torch.ones(shape.n_rows))))
    prior = GaussianPrior(torch.ones(network.layout.n_params))
    posterior = NetworkPosterior(network, Gaussian(torch.zeros(1)), prior, data)
    return posterior, posterior.sample_prior(n_chains, generator=generator)


class AutogradPosterior(NamedTuple):
    """A density differentiated by torch."""

    n_dims: int
    value: Callable[[Tensor], Tensor]

    def __call__(self, position: Tensor) -> Tensor:
        return self.value(position)

    def evaluate(self, position: Tensor) -> Evaluation:
        return by_autograd(self, position)


def plain(posterior: NetworkPosterior) -> AutogradPosterior:
    """The same density, batched but differentiated by torch."""
    x, y, weight = posterior.data

    def log_likelihood(position: Tensor) -> Tensor:
        theta, log_noise = position[:, :-1], position[:, -1:]
        outputs = posterior.network.forward(theta, x)
        likelihood = posterior.likelihood.at(log_noise.unsqueeze(1))
        return likelihood.log_prob(outputs, y) @ weight

    prior = torch.distributions.Normal(0.0, 1.0)

    def log_prior(position: Tensor) -> Tensor:
        log_noise = position[:, -1]
        half_normal = log_noise - 0.5 * (2.0 * log_noise).exp()
        return prior.log_prob(position[:, :-1]).sum(1) + half_normal

    return AutogradPosterior(posterior.n_dims, lambda p: log_prior(p) + log_likelihood(p))


class Gradient(SingleThread):
    """One evaluation of value and gradient at all chains."""

    params = (list(SHAPES), N_CHAINS, list(DTYPES), DEVICES)
    param_names = ("shape", "n_chains", "dtype", "device")

    def setup(self, shape: str, n_chains: int, dtype: str, device: str) -> None:
        require(device)
        super().setup()
        self.posterior, self.position = make_problem(SHAPES[shape], n_chains, DTYPES[dtype], device)
        self.posterior.evaluate(self.position)

    def time_evaluate(self, shape: str, n_chains: int, dtype: str, device: str) -> None:
        self.posterior.evaluate(self.position)
        synchronise(device)


def _rate(evaluate: Callable[[Tensor], object], position: Tensor, seconds: float) -> float:
    """Gradients per CPU-second."""
    start, n = time.process_time(), 0
    while time.process_time() - start < seconds:
        evaluate(position)
        n += len(position)
    return n / (time.process_time() - start)


def main(n_rounds: int = 5, seconds: float = 0.1) -> None:
    """Print the table: medians over alternating rounds."""
    torch.set_num_threads(1)
    print("thousand gradients per CPU-second: hand-written / autograd")
    for name, shape in SHAPES.items():
        for dtype_name, dtype in DTYPES.items():
            cells = []
            for n_chains in N_CHAINS:
                posterior, position = make_problem(shape, n_chains, dtype)
                both: list[LogDensity] = [posterior, plain(posterior)]
                rounds = [
                    [_rate(d.evaluate, position, seconds) for d in both] for _ in range(n_rounds)
                ]
                hand, auto = (statistics.median(r) / 1e3 for r in zip(*rounds, strict=True))
                cells.append(f"{n_chains}: {hand:.0f} / {auto:.0f}")
            print(f"{name:20} {dtype_name}  " + "   ".join(cells))


if __name__ == "__main__":
    main()
