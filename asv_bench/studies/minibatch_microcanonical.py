"""Minibatch microcanonical sampling (SMILE, arXiv 2602.06500) next to the package's chains.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/minibatch_microcanonical.py [--splits 1 2]
    ... --data bike --splits 0 --steps 20000 --no-chains --store

The sampler isn't part of the package. It is written out here, to see whether it would be a better
kernel of `Chains` for networks of a thousand weights. State: weights x and a direction u of length
1 in d dimensions. A kick by the gradient g of the minibatch's estimate of the negative log
posterior, with e = -g / |g|, delta = eps |g| / (d - 1) and c = e'u, is

    u <- (u + e (sinh delta + c (cosh delta - 1))) / (cosh delta + c sinh delta),

and the drift is x <- x + eps u. The noise of the minibatches takes the place of momentum refreshes.
The step size follows the energy error: it shrinks while the moving average of its square, divided
by d, is above ``ENERGY_VARIANCE`` and grows below. Chains start from networks trained by Adam.

Networks, data and scores are those of ``compare_bde.py``: four layers of 16 tanh units, mean and
noise learned, airfoil or bike sharing. Printed for each number of steps: RMSE, "nll" of the normal
with the predictive mean and standard deviation, "mix" of the mixture, CPU seconds, and the median
R-hat of functions between and within chains. ``--store`` keeps these with data, split, date and
commit in ``minibatch_microcanonical.json``.
"""

import argparse
import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare_bde import OURS, load, normal_nll, scores
from sklearn.base import clone
from timing import current_commit
from torch import Tensor

from skbayes_sym.models.networks.mlp import MLP, TANH

N_CHAINS = 10
BATCH_SIZE = 256
ADAM_STEPS = 3000
N_DRAWS = 100  # kept, per chain
ENERGY_VARIANCE = 0.05
STEP_COUNTS = (5_000, 20_000)
RESULTS = Path(__file__).with_suffix(".json")


def potential(network: MLP, theta: Tensor, x: Tensor, y: Tensor, n_rows: int) -> Tensor:
    """Minibatch estimate of the negative log posterior, (K,), up to a constant."""
    mean, log_std = network.forward(theta, x).unbind(-1)
    log_std = log_std.clamp(-6.0, 3.0)
    nll = log_std + 0.5 * ((y - mean) * (-log_std).exp()).square()
    return n_rows / len(y) * nll.sum(-1) + 0.5 * theta.square().sum(-1)


def value_and_gradient(
    network: MLP, theta: Tensor, x: Tensor, y: Tensor, n_rows: int
) -> tuple[Tensor, Tensor]:
    """The potential of each chain and its gradient."""
    theta = theta.detach().requires_grad_(True)
    value = potential(network, theta, x, y, n_rows)
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    return value.detach(), gradient


def kick(u: Tensor, gradient: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """New direction, and the change of the kinetic energy, by the exact flow."""
    d = u.shape[1]
    length = gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)
    e = -gradient / length
    delta = step * length / (d - 1)
    c = (e * u).sum(dim=1, keepdim=True)
    # Divided by exp(delta), so that nothing overflows.
    decay = torch.exp(-delta)
    sinh = 0.5 * (1.0 - decay**2)
    cosh = 0.5 * (1.0 + decay**2)
    scale = cosh + c * sinh
    u = (u * decay + e * (sinh + c * (cosh - decay))) / scale
    return u / u.norm(dim=1, keepdim=True), (d - 1) * (delta + scale.log())[:, 0]


def train(network: MLP, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Networks at the mode of their posterior, roughly, by Adam."""
    fan_in = network.layout.n_params**0.5
    theta = torch.randn(N_CHAINS, network.layout.n_params, generator=generator) * 4.0 / fan_in
    theta.requires_grad_(True)
    optimizer = torch.optim.Adam([theta], lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ADAM_STEPS)
    for _ in range(ADAM_STEPS):
        rows = torch.randint(len(y), (BATCH_SIZE,), generator=generator)
        optimizer.zero_grad()
        potential(network, theta, x[rows], y[rows], len(y)).sum().backward()
        optimizer.step()
        schedule.step()
    return theta.detach()


def sample(
    network: MLP, theta: Tensor, x: Tensor, y: Tensor, n_steps: int, generator: torch.Generator
) -> Tensor:
    """Draws (K, N_DRAWS, P): the second half of the steps, thinned."""
    d = theta.shape[1]
    u = torch.randn(theta.shape, generator=generator)
    u = u / u.norm(dim=1, keepdim=True)
    step = torch.full((len(theta), 1), 0.01)
    average = torch.full((len(theta),), ENERGY_VARIANCE)
    keep_every = n_steps // 2 // N_DRAWS
    draws = []
    for i in range(n_steps):
        rows = torch.randint(len(y), (BATCH_SIZE,), generator=generator)
        before, gradient = value_and_gradient(network, theta, x[rows], y[rows], len(y))
        u, kinetic_first = kick(u, gradient, 0.5 * step)
        theta = theta + step * u
        after, gradient = value_and_gradient(network, theta, x[rows], y[rows], len(y))
        u, kinetic_second = kick(u, gradient, 0.5 * step)
        error = after - before + kinetic_first + kinetic_second
        average = 0.99 * average + 0.01 * (error.square() / d).clamp(max=10.0 * ENERGY_VARIANCE)
        if i < n_steps // 2:
            step = step * torch.where(average > ENERGY_VARIANCE, 0.98, 1.02)[:, None]
        elif (i - n_steps // 2) % keep_every == keep_every - 1:
            draws.append(theta)
    return torch.stack(draws, dim=1)[:, :N_DRAWS]


def function_rhat(mean: Tensor) -> tuple[float, float]:
    """Median over rows of R-hat of predictions (K, S, N): between chains, and within halves."""

    def rhat(chains: Tensor) -> Tensor:
        within = chains.var(dim=1).mean(dim=0)
        between = chains.mean(dim=1).var(dim=0)
        return ((within + between) / within).sqrt()

    n = mean.shape[1] // 2
    halves = torch.stack([mean[:, :n], mean[:, n : 2 * n]], dim=1)  # (K, 2, S / 2, N)
    within = torch.stack([rhat(chain) for chain in halves])
    return float(rhat(mean).median()), float(within.median())


def sample_and_score(name: str, split: int, n_steps: int) -> dict[str, Any]:
    """Train and sample; sampler, scores, CPU seconds and R-hat."""
    data = load(name, split)
    x, y = (torch.from_numpy(a).float() for a in (data.x, data.y))
    x_test, y_test = torch.from_numpy(data.x_test).float(), data.y_test
    generator = torch.Generator().manual_seed(split)
    network = MLP(x.shape[1], (16,) * 4, 2, TANH)
    begin = time.process_time()
    theta = train(network, x, y, generator)
    draws = sample(network, theta, x, y, n_steps, generator)
    seconds = time.process_time() - begin
    with torch.no_grad():
        outputs = network.forward(draws.flatten(0, 1), x_test).double()
    mean, std = outputs[..., 0].numpy(), outputs[..., 1].clamp(-6.0, 3.0).exp().numpy()
    total = np.sqrt((std**2).mean(0) + mean.var(0))
    log_density = -0.5 * ((y_test - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    mixture = np.logaddexp.reduce(log_density, axis=0) - np.log(len(log_density))
    between, within = function_rhat(outputs[..., 0].unflatten(0, draws.shape[:2]))
    rmse = np.sqrt(np.mean((mean.mean(0) - y_test) ** 2))
    nll = normal_nll(mean.mean(0), total, y_test)
    sampler = f"microcanonical, {n_steps} steps"
    return as_result(sampler, rmse, nll, -mixture.mean(), seconds, between, within)


def fit_chains(name: str, split: int) -> dict[str, Any]:
    """The same of the package's chains at their defaults."""
    data = load(name, split)
    model = clone(OURS).set_params(random_state=split)
    begin = time.process_time()
    model.fit(data.x, data.y)
    seconds = time.process_time() - begin
    rmse, nll, mix = scores(model, data)
    diagnostics = model.diagnostics_
    between = np.nanmedian(diagnostics.function_rhat)
    within = np.median(diagnostics.function_rhat_within)
    return as_result("Chains", rmse, nll, mix, seconds, between, within)


def as_result(
    sampler: str,
    rmse: float,
    nll: float,
    mix: float,
    seconds: float,
    between: float,
    within: float,
) -> dict[str, Any]:
    """Rounded scores in a dictionary."""
    return {
        "sampler": sampler,
        "rmse": round(float(rmse), 4),
        "nll": round(float(nll), 4),
        "mix": round(float(mix), 4),
        "CPU s": round(seconds),
        "R-hat between": round(float(between), 2),
        "R-hat within": round(float(within), 2),
    }


def store(result: dict[str, Any]) -> None:
    """Add a result to the file; it replaces one of the same data, split and sampler."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    key = ("data", "split", "sampler")
    kept = [one for one in stored if [one[k] for k in key] != [result[k] for k in key]]
    text = json.dumps([*kept, result], indent=1) + "\n"
    RESULTS.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="airfoil", choices=("airfoil", "bike"))
    parser.add_argument("--splits", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--steps", type=int, nargs="+", default=STEP_COUNTS)
    parser.add_argument("--no-chains", action="store_true", help="the minibatch sampler alone")
    parser.add_argument("--store", action="store_true", help="keep the results")
    parser.add_argument("--fast", action="store_true", help="a test run: 200 steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    commit = current_commit() if args.store else ""
    for split in args.splits:
        fits = [
            (sample_and_score, (args.data, split, n_steps))
            for n_steps in ((200,) if args.fast else args.steps)
        ]
        if not args.fast and not args.no_chains:
            fits.append((fit_chains, (args.data, split)))
        for function, arguments in fits:
            result = function(*arguments)
            print(f"{args.data}, split {split}: {result}", flush=True)
            if args.store and not args.fast:
                origin = {"data": args.data, "split": split}
                when = {"date": str(date.today()), "commit": commit}
                store(origin | result | when)


if __name__ == "__main__":
    main()
