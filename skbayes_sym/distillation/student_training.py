"""How a student learns: its size, its losses, its training."""

from collections.abc import Callable
from math import cos, pi
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.random import generator_from


class StudentConfig(NamedTuple):
    """Size of a student, and of what it learns."""

    n_rows: int = 20_000  # that the teacher is asked for
    n_probed: int = 2_000  # that show what its networks read, and say
    most_networks: int = 50
    most_numbers: int = 15_000  # for their hidden units, 60 kB
    n_differences: int = 8  # between networks, that a student sees
    # Units a layer and steps. If the first loses `enough`, the better of two is kept: the second
    # has the teacher's networks, too, where it has any.
    first: tuple[int, int] = (32, 2000)
    with_networks: tuple[int, int] = (64, 6000)
    without: tuple[int, int] = (96, 8000)
    batch: int = 256
    enough: float = 0.002  # nats per row


# Outputs of some of the rows, and which, to their cross-entropies in nats, up to a constant.
Loss = Callable[[Tensor, Tensor], Tensor]


def normal_levels(n: int = 17) -> Array:
    """Levels of quantiles, as quantiles of a standard normal."""
    return np.linspace(-4.0, 4.0, n)


def regression_lesson(
    y: Array, n_held: int, seed: int, said: Array | None = None
) -> tuple[Tensor, Loss, dict[str, Array]]:
    """Learn three normals, from quantiles of every row at levels that move every step.

    Of levels that stay normals would become spikes. ``y`` (N, 17): quantiles at `normal_levels`;
    ``said`` (N,): mean of the teacher's networks, from which locations are counted.
    """
    generator = generator_from(seed)
    levels = normal_levels()
    line = np.zeros(2)
    if said is not None:
        density = np.exp(-0.5 * levels**2)
        line = np.polyfit(said, y @ density / density.sum(), 1)
        y = y - np.polyval(line, said)[:, None]
    mean = y.mean()
    scale = y.std() or 1.0
    scaled, below = (torch.as_tensor(a).float() for a in ((y[n_held:] - mean) / scale, levels[:-1]))

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        logits, loc, log_scale = outputs.unsqueeze(1).chunk(3, dim=2)
        share = torch.rand(1, generator=generator, dtype=torch.float32)
        weights = (-0.5 * (below + 0.5 * share).square()).softmax(0)
        target = scaled[rows]
        target = target[:, :-1] + share * target.diff(dim=1)
        z = (target.unsqueeze(2) - loc) * (-log_scale).exp()
        return -(logits.log_softmax(2) - 0.5 * z.square() - log_scale).logsumexp(2) @ weights

    start = torch.tensor([0.0, 0.0, 0.0, -0.1, 0.0, 0.1, -1.0, -1.0, -1.0], dtype=torch.float32)
    units = {"y_mean": mean + line[1], "y_scale": scale, "slope": line[0]}
    return start, loss, {name: np.array(unit) for name, unit in units.items()}


def classification_lesson(proba: Array, classes: Array) -> tuple[Tensor, Loss, dict[str, Array]]:
    """Learn class probabilities (N, K)."""
    target = torch.as_tensor(proba).float()
    if classes.dtype.kind == "O":  # which a file without pickle doesn't hold
        classes = np.array(classes.tolist())

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        return -(target[rows] * outputs.log_softmax(1)).sum(1)

    return target.mean(0).clamp_min(1e-6).log(), loss, {"classes": classes}


def train(
    x: Tensor, start: Tensor, loss: Loss, size: tuple[int, int, int], seed: int
) -> dict[str, Array]:
    """Weights of a network; ``start`` (O,): outputs to begin with; units, steps and rows a step.

    The middle matrix moves by orthogonal steps (Muon; Jordan et al. 2024), which takes half the
    steps that Adam does; all else by Adam. Inputs are whitened, which columns that go together
    need; directions that hardly vary stay small.
    """
    generator = generator_from(seed)
    d = x.shape[1]
    n_outputs = len(start)
    h, n_steps, batch = size
    variance, axes = torch.linalg.eigh(x.T.double().cov(correction=0).reshape(d, d))
    whiten = (axes / (variance + 1e-3 * variance[-1].clamp_min(1e-12)).sqrt()).float()
    x = x @ whiten

    def normal(n: int, m: int, scale: float) -> Tensor:
        return torch.randn(n, m, generator=generator, dtype=torch.float32) * scale

    weights = {
        "weight0": normal(d, h, d**-0.5), "bias0": normal(1, h, 1.0)[0],
        "weight1": normal(h, h, h**-0.5), "bias1": torch.zeros(h, dtype=torch.float32),
        "weight2": normal(h, n_outputs, 0.1 * h**-0.5), "bias2": start.clone(),
        "weight3": torch.zeros(d, n_outputs, dtype=torch.float32),
    }  # fmt: skip

    def outputs(x: Tensor) -> Tensor:
        h = (x @ weights["weight0"] + weights["bias0"]).tanh()
        h = (h @ weights["weight1"] + weights["bias1"]).tanh()
        return h @ weights["weight2"] + weights["bias2"] + x @ weights["weight3"]

    for weight in weights.values():
        weight.requires_grad_()
    middle = weights["weight1"]
    speed = torch.zeros(h, h, dtype=torch.float32)
    adam = torch.optim.Adam([w for w in weights.values() if w is not middle], betas=(0.9, 0.99))
    for step in range(n_steps):
        pace = min(1.0, (step + 1) / 100) * 0.5 * (1.0 + cos(pi * step / n_steps))
        rows = torch.randint(len(x), (batch,), generator=generator)
        total = loss(outputs(x[rows]), rows).mean()
        for weight in weights.values():
            weight.grad = None
        total.backward()
        adam.param_groups[0]["lr"] = 0.01 * pace
        adam.step()
        with torch.no_grad():
            assert middle.grad is not None
            speed.mul_(0.95).add_(middle.grad)
            middle -= 1.6e-4 * h * pace * _orthogonal(middle.grad + 0.95 * speed)
    learned = {name: weight.detach() for name, weight in weights.items()}
    learned |= {name: whiten @ learned[name] for name in ("weight0", "weight3")}
    return {name: weight.numpy() for name, weight in learned.items()}


def _orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly: five steps of Newton and Schulz."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x
