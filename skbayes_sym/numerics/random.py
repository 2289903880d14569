"""Explicit random streams, and numbers known up to Monte Carlo noise."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def generator_from(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Private generator on ``device`` seeded with ``seed``."""
    return torch.Generator(device=device).manual_seed(seed)


def spawn_seeds(seed: int, n: int) -> list[int]:
    """Split one seed into ``n`` statistically independent ones (`numpy.random.SeedSequence`)."""
    children = (np.random.SeedSequence(seed, spawn_key=(i,)) for i in range(n))
    return [int(child.generate_state(1, np.uint64)[0]) >> 1 for child in children]


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """NumPy's generator, for laws that torch draws from its global one only; seeded by a draw."""
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return np.random.default_rng(int(seed))


def resume_generator(state: Tensor, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that goes on from a state; led by it, if that is of another kind of device."""
    generator = torch.Generator(device)
    if len(state) == len(generator.get_state()):
        return generator.set_state(state)
    return generator.manual_seed(int.from_bytes(sha256(state.numpy().tobytes()).digest()[:8]) >> 1)


def sample_host_uniforms(n: int, generator: torch.Generator) -> list[float]:
    """Uniform numbers that the host knows without a wait; a GPU's stream moves on as the CPU's."""
    state = generator.get_state()  # on the host, wherever a generator draws
    drawn = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64)
    if drawn.device.type != "cpu":
        drawn = torch.rand(n, generator=resume_generator(state), dtype=torch.float64)
    numbers: list[float] = drawn.tolist()
    return numbers


def replicate_generator(generator: torch.Generator) -> Iterator[torch.Generator]:
    """Streams of the same numbers: ``generator`` itself first, then copies of what it was."""
    state = generator.get_state()
    yield generator
    while True:
        copy = torch.Generator(generator.device)
        copy.set_state(state)
        yield copy


def standard_normal(shape: Sequence[int], *, generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal noise with dtype and device of ``like``.

    The draw itself is made in float32: on a CPU a float64 normal costs 4 times as much, and the
    rounding (relative 6e-8) is far below Monte Carlo error. And on the generator's device: what
    is drawn from a stream of the CPU is the same wherever it is used.
    """
    size = tuple(shape)
    device = generator.device
    return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(like)


def normal_like(shape: Sequence[int], *, generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal noise drawn in the dtype of ``like``, for its device.

    `standard_normal` is cheaper, and rounds; this is for draws that are kept.
    """
    size = tuple(shape)
    device = generator.device
    return torch.randn(size, generator=generator, device=device, dtype=like.dtype).to(like)


def float64_normal(shape: Sequence[int], *, generator: torch.Generator) -> Tensor:
    """Standard normal noise in float64 on the generator's device.

    For starting points, which are the same whatever precision a fit runs in.
    """
    return torch.randn(
        tuple(shape), generator=generator, device=generator.device, dtype=torch.float64
    )


def random_permutations(shape: Sequence[int], d: int, *, generator: torch.Generator) -> Tensor:
    """Independent uniform permutations of ``d`` items, int64 of shape (*shape, d)."""
    keys = torch.rand(
        (*shape, d), generator=generator, device=generator.device, dtype=torch.float64
    )
    return keys.argsort(dim=-1)


def random_orthogonal(shape: Sequence[int], k: int, *, generator: torch.Generator) -> Tensor:
    """Independent Haar-uniform orthogonal matrices, float64 of shape (*shape, k, k).

    The Q of a QR decomposition of normal noise, with the signs that make R's diagonal positive:
    without them the law depends on the signs LAPACK happens to choose (Mezzadri 2007).
    """
    q, r = torch.linalg.qr(float64_normal((*shape, k, k), generator=generator))
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0.0, -1.0, 1.0).to(q)
    return q * sign.unsqueeze(-2)


class Estimate(NamedTuple):
    """A Monte Carlo estimate and how far off it may be."""

    value: float
    standard_error: float  # 0 where nothing was drawn, nan where one draw can't tell


def mean_and_error(values: Tensor) -> Estimate:
    """Mean of independent draws of shape (n,), with its standard error; in float64."""
    values = values.double()
    error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else float("nan")
    return Estimate(float(values.mean()), error)
