"""Explicit random generators, and Monte Carlo estimates with standard errors."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def generator_from(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator on ``device`` with this seed."""
    return torch.Generator(device=device).manual_seed(seed)


def spawn_seeds(seed: int, n: int) -> list[int]:
    """Derive ``n`` statistically independent seeds from one (`numpy.random.SeedSequence`)."""
    children = (np.random.SeedSequence(seed, spawn_key=(i,)) for i in range(n))
    return [int(child.generate_state(1, np.uint64)[0]) >> 1 for child in children]


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """Return a NumPy generator that is seeded by a draw from ``generator``.

    It is for distributions that torch samples with its global generator only.
    """
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return np.random.default_rng(int(seed))


def resume_generator(state: Tensor, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator that continues from a state.

    The state of another type of device seeds the generator. The tensor itself can be on any device.
    """
    state = state.cpu()
    generator = torch.Generator(device)
    if len(state) == len(generator.get_state()):
        return generator.set_state(state)
    return generator.manual_seed(int.from_bytes(sha256(state.numpy().tobytes()).digest()[:8]) >> 1)


def sample_host_uniforms(n: int, generator: torch.Generator) -> list[float]:
    """Sample uniform numbers that the host knows without synchronisation.

    A generator on a GPU advances as one on the CPU does.
    """
    state = generator.get_state()  # this is on the host for any device
    uniforms = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64)
    if uniforms.device.type != "cpu":
        uniforms = torch.rand(n, generator=resume_generator(state), dtype=torch.float64)
    values: list[float] = uniforms.tolist()
    return values


def replicate_generator(generator: torch.Generator) -> Iterator[torch.Generator]:
    """Yield ``generator`` itself, then copies of its initial state."""
    state = generator.get_state()
    yield generator
    while True:
        copy = torch.Generator(generator.device)
        copy.set_state(state)
        yield copy


def standard_normal(shape: Sequence[int], *, generator: torch.Generator, like: Tensor) -> Tensor:
    """Sample standard normal noise with dtype and device of ``like``.

    The noise is drawn in float32. On a CPU, float64 noise costs 4 times as much, and the rounding
    error (relative 6e-8) is far below Monte Carlo error. It is drawn on the generator's device, so
    a generator on the CPU gives the same noise for any device.
    """
    size = tuple(shape)
    device = generator.device
    return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(like)


def normal_like(shape: Sequence[int], *, generator: torch.Generator, like: Tensor) -> Tensor:
    """Sample standard normal noise in the dtype of ``like``, and move it to the same device.

    `standard_normal` is cheaper but rounds. This function is for draws that are stored.

    Parameters
    ----------
    shape : sequence of int
        Shape of the noise.
    generator : torch.Generator
        Source of random numbers.
    like : Tensor
        Tensor whose dtype and device the noise has.
    """
    size = tuple(shape)
    device = generator.device
    return torch.randn(size, generator=generator, device=device, dtype=like.dtype).to(like)


def float64_normal(shape: Sequence[int], *, generator: torch.Generator) -> Tensor:
    """Sample standard normal noise in float64 on the generator's device.

    It is for starting points, which don't depend on the precision of a fit.
    """
    return torch.randn(
        tuple(shape), generator=generator, device=generator.device, dtype=torch.float64
    )


def random_permutations(shape: Sequence[int], d: int, *, generator: torch.Generator) -> Tensor:
    """Sample independent uniform permutations of ``d`` items, int64 of shape (*shape, d)."""
    keys = torch.rand(
        (*shape, d), generator=generator, device=generator.device, dtype=torch.float64
    )
    return keys.argsort(dim=-1)


def random_orthogonal(shape: Sequence[int], k: int, *, generator: torch.Generator) -> Tensor:
    """Sample independent Haar-uniform orthogonal matrices, float64 of shape (*shape, k, k).

    This is the Q of a QR decomposition of normal noise, with the signs that make R's diagonal
    positive. Otherwise the distribution would depend on LAPACK's choice of signs (Mezzadri 2007).
    """
    q, r = torch.linalg.qr(float64_normal((*shape, k, k), generator=generator))
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0.0, -1.0, 1.0).to(q)
    return q * sign.unsqueeze(-2)


class Estimate(NamedTuple):
    """A Monte Carlo estimate with its error.

    Attributes
    ----------
    value : float
        The estimate.
    standard_error : float
        Its standard error: 0 for an exact value, nan for a single draw.
    """

    value: float
    standard_error: float


def mean_and_error(values: Tensor) -> Estimate:
    """Return the mean of independent draws (n,) with its standard error, computed in float64."""
    values = values.double()
    if len(values) > 1:
        error = float(values.std() / len(values) ** 0.5)
    else:
        error = float("nan")
    return Estimate(float(values.mean()), error)
