"""How far input transformations reach: half-widths by free parameters, and their noise."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.machine import constant

# Half-width before learning: at 0 the gradient vanishes, every family being even in eta.
START = 0.05
OFF_DIAGONAL = 0.2  # damps the entries that correlate generators, which are many and noisy
_CAP_ORDER = 4  # of the soft cap: a half-width is within 2 % of its parameter up to half the limit


class LearnedHalfWidth(Protocol):
    """Law of the coefficients z of a family's k generators, as a function of ``eta``."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names, one a generator."""

    @property
    def n_noise(self) -> int:
        """Number of independent uniform variables behind z."""

    @property
    def n_params(self) -> int:
        """Number of entries of ``eta``."""

    def start(self) -> Tensor:
        """``eta`` before learning, float64."""

    def lower_limit(self) -> Tensor:
        """Size that no entry of ``eta`` falls below while the weights are far from their mode."""

    def covariance(self, eta: Tensor) -> Tensor:
        """Covariance of z, (k, k), in squared units."""


def amplitude(half_width: LearnedHalfWidth, eta: Tensor) -> Tensor:
    """Half-width of each generator, (k,): that of a uniform law of the same variance."""
    return (3.0 * half_width.covariance(eta).diagonal()).sqrt()


@dataclass(frozen=True)
class HalfWidth:
    r"""How far each generator of a family reaches, as a function of free parameters ``eta``.

    The coefficients are :math:`z = L \epsilon` with :math:`L = \mathrm{diag}(u)\,c(\Lambda)`:
    :math:`\Lambda` is diagonal (one parameter per generator), or full with its off-diagonal entries
    multiplied by 0.2 (``correlated``), and c shrinks its rows smoothly below the limits,
    :math:`c(\Lambda)_i = \Lambda_i (1 + (|\Lambda_i| / l_i)^4)^{-1/4}`.

    Parameters
    ----------
    names : tuple of str
        One per generator.
    limits : tuple of float
        Largest half-width of each generator, in ``units``.
    units : tuple of float, optional
        What a half-width of 1 means, in the units it is reported in; 1 by default.
    correlated : bool, default=False
        Whether generators may vary together.
    """

    names: tuple[str, ...]
    limits: tuple[float, ...]
    units: tuple[float, ...] = ()
    correlated: bool = False

    @property
    def n_noise(self) -> int:
        """Number k of generators."""
        return len(self.names)

    @property
    def n_params(self) -> int:
        """Number of entries of ``eta``."""
        return len(self.names) ** (2 if self.correlated else 1)

    def start(self) -> Tensor:
        """``eta`` before learning: small, and not zero, where the gradient vanishes."""
        eta = START * torch.eye(len(self.names), dtype=torch.float64)
        return eta.flatten() if self.correlated else eta.diagonal().clone()

    def lower_limit(self) -> Tensor:
        """Least half-width: at 0 a half-width would stay for good."""
        return self.start()

    def mixing(self, eta: Tensor) -> Tensor:
        """The matrix L(eta), (k, k)."""
        k = len(self.names)
        if self.correlated:
            eye = torch.eye(k, dtype=eta.dtype, device=eta.device)
            spread = eta.reshape(k, k) * (eye + OFF_DIAGONAL * (1.0 - eye))
        else:
            spread = eta.diag()
        limits = constant(self.limits, eta.dtype, eta.device)
        share = spread.square().sum(1) / limits**2
        cap = (1.0 + share ** (_CAP_ORDER // 2)) ** (-1.0 / _CAP_ORDER)
        units = constant(self.units or (1.0,) * k, eta.dtype, eta.device)
        return (units * cap).unsqueeze(1) * spread

    def covariance(self, eta: Tensor) -> Tensor:
        """Covariance L L' / 3 of the coefficients, (k, k), in squared units."""
        mixing = self.mixing(eta)
        return mixing @ mixing.T / 3.0


@dataclass(frozen=True, eq=False)
class FreeHalfWidth:
    """Parameters that are half-widths, each of a uniform variable of its own, without limits."""

    name: str
    initial: Tensor  # ``eta`` before learning, in any shape
    n_noise: int

    @property
    def names(self) -> tuple[str, ...]:
        n = self.n_params
        return (self.name,) if n == 1 else tuple(f"{self.name}_{i}" for i in range(n))

    @property
    def n_params(self) -> int:
        return self.initial.numel()

    def start(self) -> Tensor:
        return self.initial.flatten().to("cpu", torch.float64)

    def lower_limit(self) -> Tensor:
        """None: what a small entry means is the module's business."""
        return torch.zeros_like(self.start())

    def covariance(self, eta: Tensor) -> Tensor:
        return (eta**2 / 3.0).diag()


@dataclass(frozen=True)
class JointHalfWidth:
    """Independent families side by side."""

    parts: tuple[LearnedHalfWidth, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parts; a repeated one gets its number."""
        names: list[str] = []
        for name in (n for part in self.parts for n in part.names):
            count = sum(1 for other in names if other.rpartition(" ")[0] == name or other == name)
            names.append(name if count == 0 else f"{name} {count + 1}")
        return tuple(names)

    @property
    def n_noise(self) -> int:
        return sum(part.n_noise for part in self.parts)

    @property
    def n_params(self) -> int:
        return sum(part.n_params for part in self.parts)

    def split(self, eta: Tensor) -> tuple[Tensor, ...]:
        """``eta`` of each part."""
        return eta.split([part.n_params for part in self.parts])

    def start(self) -> Tensor:
        return torch.cat([part.start() for part in self.parts])

    def lower_limit(self) -> Tensor:
        return torch.cat([part.lower_limit() for part in self.parts])

    def covariance(self, eta: Tensor) -> Tensor:
        pieces = zip(self.parts, self.split(eta), strict=True)
        return torch.block_diag(*(part.covariance(e) for part, e in pieces))


def stratified_noise(
    n_rows: int, n_samples: int, n_noise: int, *, generator: torch.Generator, like: Tensor
) -> Tensor:
    """Uniform noise on [-1, 1], a Latin hypercube over the samples of each row.

    Every variable takes one value in each of ``n_samples`` equal strata, in random order: each
    value is uniform, and averages over the samples vary much less than with independent draws.

    Returns (n_rows, n_samples, n_noise).
    """
    shape = (n_rows, n_samples, n_noise)
    keys = torch.rand(shape, generator=generator, device=generator.device)
    jitter = torch.rand(shape, generator=generator, device=generator.device)
    strata = keys.argsort(dim=1).to(jitter.dtype)
    return ((strata + jitter) * (2.0 / n_samples) - 1.0).to(like)
