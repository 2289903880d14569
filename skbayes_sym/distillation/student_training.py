"""Size, losses and training of a student."""

from collections.abc import Callable
from math import cos, log, pi
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.random import generator_from


class NetworkSize(NamedTuple):
    """Size of a student's network and length of its training.

    Attributes
    ----------
    n_units : int
        Units in each of the two hidden layers.
    n_steps : int
        Steps of training.
    """

    n_units: int
    n_steps: int


class StudentConfig(NamedTuple):
    """Sizes of students and of their training data.

    A second student is trained if the first is worse than the teacher by more than ``tolerance``.
    It has the hidden units of the teacher's networks as additional features, if there are any. The
    better of the two is returned.

    Attributes
    ----------
    n_rows : int
        Number of training rows.
    n_probe_rows : int
        Number of rows from which the teacher's networks are extracted.
    max_networks : int
        Largest number of networks whose hidden units are extracted.
    max_feature_weights : int
        Largest number of weights of these hidden units (60 kB).
    n_directions : int
        Number of directions in which the outputs of the networks differ, as features.
    first : NetworkSize
        Size of the first student.
    with_networks : NetworkSize
        Size of a second student with the teacher's networks.
    without_networks : NetworkSize
        Size of a second student without them.
    batch_size : int
        Rows per step.
    n_draws : int
        Draws of each row's distribution if the teacher predicts counts.
    tolerance : float
        Largest loss of the first student against its teacher, nats per row.
    """

    n_rows: int = 20_000
    n_probe_rows: int = 2_000
    max_networks: int = 50
    max_feature_weights: int = 15_000
    n_directions: int = 8
    first: NetworkSize = NetworkSize(32, 2000)
    with_networks: NetworkSize = NetworkSize(64, 6000)
    without_networks: NetworkSize = NetworkSize(96, 8000)
    batch_size: int = 256
    n_draws: int = 256
    tolerance: float = 0.002


# From the outputs for a batch and the indices of its rows to cross-entropies in nats, up to a
# constant.
Loss = Callable[[Tensor, Tensor], Tensor]

_LOG_ROOT_2_PI = 0.5 * log(2.0 * pi)
# Draws of each row's count in a step.
_COUNTS_PER_STEP = 16
# Width of the latent interval of the count 0, standardised, instead of infinity.
_WIDTH_OF_ZERO = 1e4
# Width, in standard deviations, below which an interval has a constant density.
_NARROW = 0.02


class StudentProblem(NamedTuple):
    """Loss of a student, and what depends on the targets.

    Attributes
    ----------
    initial_outputs : Tensor of shape (O,)
        Outputs of the untrained network.
    loss : callable
        Cross-entropy with the teacher's predictive distribution.
    arrays : dict of str to ndarray
        Arrays of the student: units of the target, or classes.
    """

    initial_outputs: Tensor
    loss: Loss
    arrays: dict[str, Array]


def normal_levels(n: int = 17) -> Array:
    """Levels of the teacher's quantiles, as quantiles of a standard normal distribution."""
    return np.linspace(-4.0, 4.0, n)


def choose_target_kind(quantiles: Array) -> str:
    """Choose the kind of a student's targets, see `Student`.

    Targets are positive if the teacher's quantiles at levels above 2 % are, and if its
    distributions of their logarithms are more symmetric.

    Parameters
    ----------
    quantiles : ndarray of shape (N, L)
        Quantiles of the teacher at `normal_levels`.

    Returns
    -------
    {"real", "positive"}
        Kind of the targets.
    """
    if (quantiles[:, normal_levels() >= -2.0] <= 0.0).any():
        return "real"
    if _asymmetry(np.log(raise_to_positive(quantiles))) < _asymmetry(quantiles):
        return "positive"
    return "real"


def raise_to_positive(quantiles: Array) -> Array:
    """Replace the lowest quantiles that aren't positive by a geometric sequence.

    Mixtures of few positive and many other distributions, such as stacks, often have a negligible
    probability of negative targets.

    Parameters
    ----------
    quantiles : ndarray of shape (N, L)
        Quantiles, of which the larger ones are positive.

    Returns
    -------
    ndarray of shape (N, L)
        Positive quantiles, which increase with their level.
    """
    positive = quantiles.copy()
    for k in range(quantiles.shape[1] - 3, -1, -1):
        extrapolated = positive[:, k + 1] ** 2 / positive[:, k + 2]
        is_negative = positive[:, k] <= 0.0
        positive[is_negative, k] = extrapolated[is_negative]
    return positive


def _asymmetry(quantiles: Array) -> float:
    """Median over rows of the absolute log ratio of both halves of a central interval."""
    n = quantiles.shape[1]
    low, median, high = quantiles[:, [n // 4, n // 2, -1 - n // 4]].T
    with np.errstate(divide="ignore", invalid="ignore"):  # constants
        asymmetry = np.abs(np.log((high - median) / (median - low)))
    return float(np.nanmedian(asymmetry))


def make_regression_problem(
    quantiles: Array,
    n_held_out: int,
    seed: int,
    network_mean: Array | None = None,
    target_kind: str = "real",
) -> StudentProblem:
    """Set up the training of a mixture of three normals on the teacher's distributions.

    Parameters
    ----------
    quantiles : ndarray of shape (N, L)
        Quantiles of every row at `normal_levels`, held-out rows first. Of counts they are draws in
        ascending order.
    n_held_out : int
        Number of rows held out.
    seed : int
        Seed of the levels.
    network_mean : ndarray of shape (N,), optional
        Mean of the teacher's networks, to which locations are relative.
    target_kind : {"real", "positive", "count"}
        Kind of the targets.

    Returns
    -------
    StudentProblem
        Loss on the training rows, initial outputs and units of the latent variable.
    """
    # Location and scale of the latent variable, which may follow the mean of the networks.
    if target_kind == "count":
        latent: Array = np.sqrt(quantiles)
        level_weights: Array = np.ones(latent.shape[1])
    else:
        latent = np.log(raise_to_positive(quantiles)) if target_kind == "positive" else quantiles
        level_weights = np.exp(-0.5 * normal_levels() ** 2)
    slope = 0.0
    intercept = 0.0
    shift: Array = np.zeros((len(latent), 1))
    if network_mean is not None:
        line = np.polyfit(network_mean, latent @ level_weights / level_weights.sum(), 1)
        slope, intercept = line
        shift = np.polyval(line, network_mean)[:, None]
    mean = (latent - shift).mean()
    scale = (latent - shift).std() or 1.0

    def standardise(z: Array) -> Tensor:
        return torch.as_tensor(((z - shift - mean) / scale)[n_held_out:]).float()

    generator = generator_from(seed)
    if target_kind == "count":
        upper = np.sqrt(quantiles + 0.5)
        width = (upper - np.sqrt(np.maximum(quantiles - 0.5, 0.0))) / scale
        width[quantiles == 0.0] = _WIDTH_OF_ZERO
        widths = torch.as_tensor(width[n_held_out:]).float()
        loss = _count_loss(standardise(upper), widths, generator)
    else:
        loss = _density_loss(standardise(latent), generator)
    initial_outputs = torch.tensor(
        [0.0, 0.0, 0.0, -0.1, 0.0, 0.1, -1.0, -1.0, -1.0], dtype=torch.float32
    )
    arrays = {
        "target_kind": np.array(target_kind),
        "y_mean": np.array(mean + intercept),
        "y_scale": np.array(scale),
        "slope": np.array(slope),
    }
    return StudentProblem(initial_outputs, loss, arrays)


def _density_loss(quantiles: Tensor, generator: torch.Generator) -> Loss:
    """Return the cross-entropy of a mixture of normals with a teacher's distributions.

    Levels are redrawn at every step; with fixed levels the components would collapse onto them.

    Parameters
    ----------
    quantiles : Tensor of shape (N, L)
        Quantiles of the latent variable at `normal_levels`, standardised.
    generator : torch.Generator
        Generator of the levels.

    Returns
    -------
    callable
    """
    levels = normal_levels()
    lower_levels = torch.as_tensor(levels[:-1]).float()
    step = float(levels[1] - levels[0])

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        logits, loc, log_scale = outputs.unsqueeze(1).chunk(3, dim=2)
        # One random level between each two neighbouring ones, with weight by the normal density.
        fraction = torch.rand(1, generator=generator, dtype=torch.float32)
        weights = (-0.5 * (lower_levels + step * fraction).square()).softmax(0)
        target = quantiles[rows]
        target = target[:, :-1] + fraction * target.diff(dim=1)
        z = (target.unsqueeze(2) - loc) * (-log_scale).exp()
        return -(logits.log_softmax(2) - 0.5 * z.square() - log_scale).logsumexp(2) @ weights

    return loss


def _count_loss(upper: Tensor, width: Tensor, generator: torch.Generator) -> Loss:
    """Return the cross-entropy of a latent mixture with a teacher's distributions of counts.

    A step takes some of the draws of each row, spread evenly over their ranks.

    Parameters
    ----------
    upper, width : Tensor of shape (N, L)
        Upper ends and widths of the latent intervals of draws in ascending order, standardised.
    generator : torch.Generator
        Generator of the ranks.

    Returns
    -------
    callable
    """
    stride = max(1, upper.shape[1] // _COUNTS_PER_STEP)

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        logits, loc, log_scale = outputs.unsqueeze(1).chunk(3, dim=2)
        first = int(torch.randint(stride, (), generator=generator))
        inverse_scale = (-log_scale).exp()
        z = (upper[rows, first::stride].unsqueeze(2) - loc) * inverse_scale
        z_width = width[rows, first::stride].unsqueeze(2) * inverse_scale
        log_mass = log_normal_mass(z, z_width)
        return -(logits.log_softmax(2) + log_mass).logsumexp(2).mean(1)

    return loss


def log_normal_mass(upper: Tensor, width: Tensor) -> Tensor:
    """Log probability of intervals under a standard normal distribution, accurate in float32.

    Parameters
    ----------
    upper, width : Tensor
        Upper ends of the intervals, and their widths.

    Returns
    -------
    Tensor
        Logarithms in nats. Narrow intervals have the density in their middle times their width.
    """
    # Above the mean the upper tail is the accurate one.
    is_above = 2.0 * upper > width
    upper = torch.where(is_above, width - upper, upper)
    is_narrow = width < _NARROW
    log_narrow = -0.5 * (upper - 0.5 * width).square() - _LOG_ROOT_2_PI + width.log()
    wide = torch.where(is_narrow, 1.0, width)
    log_upper = _log_ndtr(upper)
    difference = _log_ndtr(upper - wide) - log_upper
    return torch.where(is_narrow, log_narrow, log_upper + (-torch.expm1(difference)).log())


def _log_ndtr(z: Tensor) -> Tensor:
    """Log distribution function of the standard normal, whose gradient is finite in float32."""
    is_far = z < -20.0
    far = torch.where(is_far, z, -20.0)
    log_far = -0.5 * far.square() - (-far).log() - _LOG_ROOT_2_PI
    return torch.where(is_far, log_far, torch.special.log_ndtr(torch.where(is_far, -20.0, z)))


def make_classification_problem(proba: Array, classes: Array) -> StudentProblem:
    """Set up the training of a softmax on the teacher's class probabilities (N, K)."""
    target = torch.as_tensor(proba).float()
    if classes.dtype.kind == "O":  # a file without pickle can't hold objects
        classes = np.array(classes.tolist())

    def loss(outputs: Tensor, rows: Tensor) -> Tensor:
        return -(target[rows] * outputs.log_softmax(1)).sum(1)

    initial_outputs = target.mean(0).clamp_min(1e-6).log()
    return StudentProblem(initial_outputs, loss, {"classes": classes})


def train_network(
    x: Tensor, problem: StudentProblem, size: NetworkSize, batch_size: int, seed: int
) -> dict[str, Array]:
    """Train a network with two hidden layers of tanh units and a linear skip connection.

    Parameters
    ----------
    x : Tensor of shape (N, D)
        Inputs of the training rows, float32.
    problem : StudentProblem
        Loss and initial outputs.
    size : NetworkSize
        Units per layer and number of steps.
    batch_size : int
        Rows per step.
    seed : int
        Seed of the initial weights and batches.

    Returns
    -------
    dict of str to ndarray
        Weights and biases of the network.

    Notes
    -----
    The middle matrix takes orthogonalised steps (Muon; Jordan et al. 2024), which needs half as
    many steps as Adam. All other parameters are trained by Adam. Inputs are whitened, which
    correlated columns need. Directions with almost no variance stay small.
    """
    generator = generator_from(seed)
    d = x.shape[1]
    n_outputs = len(problem.initial_outputs)
    h, n_steps = size
    variance, axes = torch.linalg.eigh(x.T.double().cov(correction=0).reshape(d, d))
    whiten = (axes / (variance + 1e-3 * variance[-1].clamp_min(1e-12)).sqrt()).float()
    x = x @ whiten

    def normal(n: int, m: int, scale: float) -> Tensor:
        return torch.randn(n, m, generator=generator, dtype=torch.float32) * scale

    weights = {
        "weight0": normal(d, h, d**-0.5),
        "bias0": normal(1, h, 1.0)[0],
        "weight1": normal(h, h, h**-0.5),
        "bias1": torch.zeros(h, dtype=torch.float32),
        "weight2": normal(h, n_outputs, 0.1 * h**-0.5),
        "bias2": problem.initial_outputs.clone(),
        "weight3": torch.zeros(d, n_outputs, dtype=torch.float32),
    }

    def outputs(x: Tensor) -> Tensor:
        h = (x @ weights["weight0"] + weights["bias0"]).tanh()
        h = (h @ weights["weight1"] + weights["bias1"]).tanh()
        return h @ weights["weight2"] + weights["bias2"] + x @ weights["weight3"]

    for weight in weights.values():
        weight.requires_grad_()
    middle = weights["weight1"]
    momentum = torch.zeros(h, h, dtype=torch.float32)
    adam = torch.optim.Adam([w for w in weights.values() if w is not middle], betas=(0.9, 0.99))
    for step in range(n_steps):
        # The step size rises over 100 steps and falls as half a cosine.
        rate = min(1.0, (step + 1) / 100) * 0.5 * (1.0 + cos(pi * step / n_steps))
        rows = torch.randint(len(x), (batch_size,), generator=generator)
        total = problem.loss(outputs(x[rows]), rows).mean()
        for weight in weights.values():
            weight.grad = None
        total.backward()
        adam.param_groups[0]["lr"] = 0.01 * rate
        adam.step()
        with torch.no_grad():
            assert middle.grad is not None
            momentum.mul_(0.95).add_(middle.grad)
            middle -= 1.6e-4 * h * rate * _orthogonalise(middle.grad + 0.95 * momentum)

    # The whitening becomes part of the weights.
    learned = {name: weight.detach() for name, weight in weights.items()}
    learned |= {name: whiten @ learned[name] for name in ("weight0", "weight3")}
    return {name: weight.numpy() for name, weight in learned.items()}


def _orthogonalise(matrix: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrix by five Newton-Schulz steps."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x
