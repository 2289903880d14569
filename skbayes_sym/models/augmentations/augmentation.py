r"""Augmentations: random transformations of inputs, with learned half-widths.

An augmentation transforms an input x by a random element of a family,

.. math:: x' = g(x, z), \quad z = L(\eta)\,\epsilon, \quad \epsilon_j \sim U(-1, 1),

and a network averaged over it, :math:`\hat f(x) = E_\epsilon[f(x')]`, is invariant to it as far as
the half-widths reach. The half-widths are learned, so :math:`x'` is differentiable in :math:`\eta`.

(A *symmetry* of this package acts on weights; an augmentation acts on inputs.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import check_count, check_positive
from skbayes_sym.numerics.runtime import constant

# Half-width before learning: at 0 the gradient vanishes, every family being even in eta.
INITIAL_HALF_WIDTH = 0.05
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
        eta = INITIAL_HALF_WIDTH * torch.eye(len(self.names), dtype=torch.float64)
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


def sample_stratified_noise(
    n_rows: int, n_samples: int, n_noise: int, *, generator: torch.Generator, like: Tensor
) -> Tensor:
    """Uniform noise on [-1, 1], a Latin hypercube over the samples of each row.

    Every variable takes one value in each of ``n_samples`` equal strata, in random order: each
    value is uniform, and averages over the samples vary much less than with independent draws.

    Returns (n_rows, n_samples, n_noise).
    """
    shape = (n_rows, n_samples, n_noise)
    device = generator.device
    dtype = torch.float32  # whatever torch's default is
    keys = torch.rand(shape, generator=generator, device=device, dtype=dtype)
    jitter = torch.rand(shape, generator=generator, device=device, dtype=dtype)
    strata = keys.argsort(dim=1).to(jitter.dtype)
    return ((strata + jitter) * (2.0 / n_samples) - 1.0).to(like)


ImageShape = tuple[int, int, int]  # channels, height, width


class Augmentation(Protocol):
    """A family of random input transformations with learned half-widths."""

    @property
    def half_width(self) -> LearnedHalfWidth: ...

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Augmentation":
        """Family for inputs that are known.

        Parameters
        ----------
        scale : sequence of float
            Standard deviations of the columns.
        image_shape : tuple of int, optional
            (C, H, W) if the columns are pixels.

        Raises
        ------
        ValueError
            If it names columns that don't exist, or moves pixels and there are none.
        """

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Transformed inputs (N, S, *I), differentiable in ``eta``.

        Parameters
        ----------
        x : Tensor of shape (N, *I)
        eta : Tensor of shape (half_width.n_params,)
        noise : Tensor of shape (N, S, half_width.n_noise)
            Uniform on [-1, 1], see `sample_stratified_noise`.
        """


@dataclass(frozen=True)
class Identity:
    """Inputs as they are; one sample is enough."""

    @property
    def half_width(self) -> HalfWidth:
        return HalfWidth((), ())

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Identity":
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(len(x), noise.shape[1], *x.shape[1:])


@dataclass(frozen=True)
class Composed:
    """Families applied one after the other, each with its own noise.

    Parameters
    ----------
    parts : tuple of Augmentation
        The first acts first.
    """

    parts: tuple[Augmentation, ...]

    def __post_init__(self) -> None:
        is_sequence = isinstance(self.parts, tuple | list)
        if not is_sequence or not all(hasattr(part, "bind") for part in self.parts):
            raise TypeError(
                f"parts must be a tuple of augmentations, such as Rotation2D(), got {self.parts!r}."
            )

    @cached_property
    def half_width(self) -> JointHalfWidth:
        return JointHalfWidth(tuple(part.half_width for part in self.parts))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Composed":
        return Composed(tuple(part.bind(scale, image_shape) for part in self.parts))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        n, s = noise.shape[:2]
        noises = noise.split([part.half_width.n_noise for part in self.parts], dim=-1)
        out = x.unsqueeze(1).expand(n, s, *x.shape[1:])
        for part, part_eta, part_noise in zip(
            self.parts, self.half_width.split(eta), noises, strict=True
        ):
            rows = out.reshape(n * s, *x.shape[1:])
            out = part.transform(rows, part_eta, part_noise.reshape(n * s, 1, -1))
            out = out.reshape(n, s, *x.shape[1:])
        return out


@dataclass(frozen=True, eq=False)
class RescaledAugmentation:
    """A family that acts on inputs in their own units, for inputs given in scaled ones.

    ``mean``, ``scale``: ``scaled = (x - mean) / scale``.
    """

    part: Augmentation
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def half_width(self) -> LearnedHalfWidth:
        return self.part.half_width

    def bind(
        self, scale: Sequence[float], image_shape: ImageShape | None = None
    ) -> "RescaledAugmentation":
        return replace(self, part=self.part.bind(scale, image_shape))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        mean, scale = (constant(values, x.dtype, x.device) for values in (self.mean, self.scale))
        return (self.part.transform(x * scale + mean, eta, noise) - mean) / scale


@dataclass(frozen=True, eq=False)
class ModuleAugmentation:
    """Any ``torch.nn.Module`` ``(x, eps) -> x'`` with a learned parameter ``eta``.

    Parameters
    ----------
    module : torch.nn.Module
        Called with rows (M, *I) and noise (M, k), uniform on [-1, 1]; k is ``module.n_noise`` or
        the size of ``eta``. It is never changed; ``eta`` there is where learning starts.
    """

    module: Any

    def __post_init__(self) -> None:
        if not isinstance(self.module, torch.nn.Module):
            raise TypeError(
                f"module must be a torch.nn.Module with a parameter `eta`, got {self.module!r}: "
                "write the transformation as the module's forward(x, eps)."
            )

    @cached_property
    def _eta(self) -> Tensor:
        eta = dict(self.module.named_parameters()).get("eta")
        name = type(self.module).__name__
        if eta is None:
            raise ValueError(f"{name} has no parameter `eta`: an invariance needs one to learn.")
        if not eta.requires_grad:
            raise ValueError(
                f"{name}.eta is frozen (requires_grad=False): there is nothing to learn. Unfreeze "
                "it, or apply the transformation to the data instead."
            )
        if not bool(torch.isfinite(eta).all()):
            raise ValueError(f"{name}.eta must be finite, got {eta.detach().tolist()}.")
        return eta.detach().to("cpu", torch.float64)

    @cached_property
    def half_width(self) -> FreeHalfWidth:
        n_noise = int(vars(self.module).get("n_noise", self._eta.numel()))
        return FreeHalfWidth(type(self.module).__name__, self._eta, n_noise)

    def bind(
        self, scale: Sequence[float], image_shape: ImageShape | None = None
    ) -> "ModuleAugmentation":
        self.half_width.start()
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        n, s = noise.shape[:2]
        rows = x.unsqueeze(1).expand(n, s, *x.shape[1:]).reshape(n * s, *x.shape[1:])
        parameters = {"eta": eta.reshape(self._eta.shape)}
        out = torch.func.functional_call(self.module, parameters, (rows, noise.flatten(0, 1)))
        if out.shape != rows.shape:
            raise ValueError(
                f"{type(self.module).__name__} must return inputs of the shape it got, "
                f"{tuple(rows.shape)}, got {tuple(out.shape)}."
            )
        return out.reshape(n, s, *x.shape[1:])


Family = Augmentation | torch.nn.Module


@dataclass(frozen=True)
class Invariances:
    """Families of transformations whose half-widths are learned, and how.

    Parameters
    ----------
    families : "auto", augmentation, torch.nn.Module or sequence of them, default="auto"
        Several act one after the other. "auto" is `Affine` for images, and none for tables.
    n_augmentations : int, default=8
        Transformations per row in training, a Latin hypercube: what memory and time go with. The
        reported evidence takes 32.
    learning_rate : float or "auto", default="auto"
        Adam's step size for the half-widths at the start. "auto" lets one travel 24 in all
        updates and at most 0.3 in one, and affine half-widths other than the rotation a third of
        it (with `Augerino`: that of the weights).
    n_predict_augmentations : int or "auto", default="auto"
        Transformations that predictions average over, what their time goes with; 1 is the input as
        it is. "auto" is 32, and 1 where the learned half-widths are negligible: where averaging
        moves the log density of no training row looked at by more than 0.001 nats. It may be
        changed after `fit`.

    Raises
    ------
    ValueError
        If one of the numbers isn't positive.
    """

    families: str | Family | Sequence[Family] = "auto"
    n_augmentations: int = 8
    learning_rate: float | str = "auto"
    n_predict_augmentations: int | str = "auto"

    def __post_init__(self) -> None:
        n = self.n_augmentations
        n_predict = self.n_predict_augmentations
        rate = self.learning_rate
        check_count("n_augmentations", n)
        if not (isinstance(n_predict, str) and n_predict == "auto"):
            check_count("n_predict_augmentations ('auto' or a number)", n_predict)
        if not (isinstance(rate, str) and rate == "auto"):
            check_positive("learning_rate ('auto' or a number)", rate)


class _ByEvidence(NamedTuple):
    """Weights at their mode; half-widths, prior and noise by the Laplace evidence, or as given.

    ``transforms``: whether the network is averaged over transformations at all; ``reward``: of wide
    laws that are trained with the weights; None where they aren't.
    """

    transforms: bool
    learns_prior: bool
    reward: float | None = None


@dataclass(frozen=True)
class Augerino:
    """Half-widths trained with the weights, by the likelihood and a reward for wide ones.

    The prior stays as it is (Benton et al. 2020).

    Parameters
    ----------
    reward : float, default=0.01
        Nats per row for a unit of the half-widths' norm (the paper's 0.01), in which affine
        ones other than the rotation count three times. It needs tuning.
    """

    reward: float = 0.01

    transforms: ClassVar[bool] = True
    learns_prior: ClassVar[bool] = False


TransformObjective = _ByEvidence | Augerino
OBJECTIVES: dict[str, TransformObjective] = {
    "evidence": _ByEvidence(True, True),
    "map": _ByEvidence(False, False),
    "augerino": Augerino(),
}
