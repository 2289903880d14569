r"""
Wiese et al. (2023): the baselines, trained as the paper says
=============================================================

Table 1 of the paper sets samples beside a Laplace approximation (LA) and a deep ensemble of ten
(DE), "trained with an RMSProp optimizer for 500 (f1) and 1000 (f2) epochs, using a constant
learning rate of 1e-4 and no weight decay", on all rows at once (appendix E.3). What is minimised
over weights and noise is its equation 27,

.. math:: \frac{1}{2 s^2} \sum_i (f(x_i) - y_i)^2 + N \log s + \frac12 w^\top w .

This script does just that. Not said, and chosen here: PyTorch's initial weights, s = 1 at the
start, inputs of unit variance, the full Gauss-Newton matrix for LA. "LA samples were drawn directly
from the posterior": a thousand weights from the Gaussian, each through the network, no
linearisation.

A step of RMSProp is about the learning rate, whatever the gradient. So 500 of them can hardly move
a weight by 0.1, and the last column shows how far one has moved at most: these networks are still
about where they were drawn. The columns "longer" are LA and DE of the same networks after 2000
steps of 0.01.

Run ``python reproduce_wiese_baselines.py`` (a minute), with ``--network f2`` for f2; ``--fast`` is
a smoke run. The environment variable ``SKBAYES_SYM_DATA`` names the folder of the data.
"""

import argparse
import math

import numpy as np
import torch
from reproduce_wiese_table1 import NETWORKS, PAPER, load_split
from torch import Tensor
from torch.func import jacrev

from skbayes_sym.models import MLP, TANH

EPOCHS = {"f1": 500, "f2": 1000}
LEARNING_RATE, LONGER, LONGER_RATE = 1e-4, 2000, 1e-2
N_MEMBERS, N_DRAWS = 10, 1000


def initial(net: MLP, generator: torch.Generator) -> Tensor:
    """Weights of ten networks as ``torch.nn.Linear`` draws them: uniform, 1 / sqrt(fan-in)."""
    theta = torch.rand(N_MEMBERS, net.layout.n_params, generator=generator).double() * 2 - 1
    for weight, bias in net.layers(theta):
        bias /= weight.shape[-1] ** 0.5
        weight /= weight.shape[-1] ** 0.5
    return theta


def train(net: MLP, start: Tensor, X: Tensor, y: Tensor, n_steps: int, rate: float):
    """Weights and noise of ten networks by equation 27; one sum, since RMSProp knows no scale."""
    theta = start.clone().requires_grad_()
    log_noise = torch.zeros(len(start), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.RMSprop([theta, log_noise], lr=rate)
    for _ in range(n_steps):
        optimizer.zero_grad()
        squares = (net.forward(theta, X)[..., 0] - y).square().sum(-1)
        loss = 0.5 * squares * (-2 * log_noise).exp() + len(y) * log_noise
        (loss + 0.5 * theta.square().sum(-1)).sum().backward()
        optimizer.step()
    return theta.detach(), log_noise.detach().exp()


def lppd(outputs: Tensor, noise: Tensor, y: Tensor) -> np.ndarray:
    """Log density of every row under the mixture of networks (S, N)."""
    standard = (y - outputs) / noise[:, None]
    each = -0.5 * standard.square() - noise[:, None].log() - 0.5 * math.log(2 * math.pi)
    return (torch.logsumexp(each, 0) - math.log(len(each))).numpy()


def laplace_draws(net: MLP, mode: Tensor, noise: Tensor, X: Tensor, generator: torch.Generator):
    """Weights from the Gaussian around one network: Gauss-Newton, and the prior N(0, 1)."""
    jacobian = jacrev(lambda w: net.forward(w, X)[..., 0])(mode)
    precision = jacobian.T @ jacobian / noise**2 + torch.eye(len(mode), dtype=torch.float64)
    factor = torch.linalg.cholesky(precision)
    z = torch.randn(len(mode), N_DRAWS, generator=generator).double()
    return mode + torch.linalg.solve_triangular(factor.T, z, upper=True).T


def densities(name: str, network: str, *, n_steps: int, rate: float, seed: int):
    """Test log densities of LA and of DE, and the largest move of a weight."""
    X, y, X_test, y_test = (torch.as_tensor(a, dtype=torch.float64) for a in load_split(name, 0))
    mean, scale = X.mean(0), X.std(0, correction=0)
    X, X_test = (X - mean) / scale, (X_test - mean) / scale
    net = MLP(X.shape[1], NETWORKS[network], 1, TANH)
    generator = torch.Generator().manual_seed(seed)
    start = initial(net, generator)
    theta, noise = train(net, start, X, y, n_steps, rate)
    draws = laplace_draws(net, theta[0], noise[0], X, generator)
    at_draws = net.forward(draws, X_test)[..., 0]
    laplace = lppd(at_draws, noise[0].expand(N_DRAWS), y_test)
    ensemble = lppd(net.forward(theta, X_test)[..., 0], noise, y_test)
    return laplace, ensemble, float((theta - start).abs().max())


def cell(density: np.ndarray) -> str:
    """Mean and deviation over test rows, as in the paper."""
    return f"{density.mean():9.2f} ({density.std():.2f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--network", choices=sorted(NETWORKS), default="f1")
    parser.add_argument("--data", nargs="+", default=list(PAPER["f1"]))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fast", action="store_true", help="one data set, few steps")
    options = parser.parse_args()
    epochs, longer = EPOCHS[options.network], LONGER
    if options.fast:
        options.data, epochs, longer = ["sinusoidal"], 10, 10
    print(f"{options.network}, LPPD of test rows (deviation over them)")
    heads = ["LA", "DE", "LA longer", "DE longer", "paper LA", "paper DE"]
    print(f"{'':12}" + "".join(f"{head:>18}" for head in heads) + f"{'largest move':>16}")
    for name in options.data:
        short, long = (
            densities(name, options.network, n_steps=n_steps, rate=rate, seed=options.seed)
            for n_steps, rate in ((epochs, LEARNING_RATE), (longer, LONGER_RATE))
        )
        cells = [cell(density) for density in (*short[:2], *long[:2])]
        paper = PAPER[options.network][name]
        cells += [f"{mean:.2f} ({deviation:.2f})" for mean, deviation in paper[1:]]
        print(f"{name:12}" + "".join(f"{c:>18}" for c in cells) + f"{short[2]:16.3f}", flush=True)


if __name__ == "__main__":
    main()
