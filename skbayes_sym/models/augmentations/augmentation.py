r"""Augmentations: random transformations of inputs with learned half-widths.

An augmentation transforms an input x by a random element of a family,

.. math:: x' = g(x, z), \quad z = L(\eta)\,\epsilon, \quad \epsilon_j \sim U(-1, 1).

A network that is averaged over it, :math:`\hat f(x) = E_\epsilon[f(x')]`, is invariant within the
half-widths. These are learned, so :math:`x'` is differentiable with respect to :math:`\eta`.

(A *symmetry* of this package acts on weights, an augmentation on inputs.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import check_count, check_positive, is_number, short_repr
from skbayes_sym.numerics.runtime import constant

# Half-width before learning. At 0 the gradient vanishes, since every family is even in eta.
INITIAL_HALF_WIDTH = 0.05
# Factor of the entries that correlate generators, whose gradients are numerous and noisy.
OFF_DIAGONAL = 0.2
# Order of the soft cap. Up to half the limit, a half-width is within 2 % of its parameter.
_CAP_ORDER = 4


class LearnedHalfWidth(Protocol):
    """Distribution of the coefficients z of a family's k generators, as a function of ``eta``."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the generators."""

    @property
    def n_noise(self) -> int:
        """Number of independent uniform variables that determine z."""

    @property
    def n_params(self) -> int:
        """Number of entries of ``eta``."""

    def start(self) -> Tensor:
        """Return ``eta`` before learning, float64."""

    def lower_limit(self) -> Tensor:
        """Return the smallest size of each entry of ``eta`` until the weights are at a mode."""

    def covariance(self, eta: Tensor) -> Tensor:
        """Return the covariance of z, (k, k), in squared units."""


def amplitude(half_width: LearnedHalfWidth, eta: Tensor) -> Tensor:
    """Return the half-width (k,) of uniform distributions of the same variances."""
    return (3.0 * half_width.covariance(eta).diagonal()).sqrt()


@dataclass(frozen=True)
class HalfWidth:
    r"""Half-widths of the generators of a family, as a function of free parameters ``eta``.

    The coefficients are :math:`z = L \epsilon` with :math:`L = \mathrm{diag}(u)\,c(\Lambda)`. The
    matrix :math:`\Lambda` is diagonal (one parameter per generator), or full with off-diagonal
    entries multiplied by 0.2 (``correlated``). The function c smoothly limits its rows,
    :math:`c(\Lambda)_i = \Lambda_i (1 + (|\Lambda_i| / l_i)^4)^{-1/4}`.

    Parameters
    ----------
    names : tuple of str
        Names of the generators.
    limits : tuple of float
        Largest half-width of each generator, in ``units``.
    units : tuple of float, optional
        Value of a half-width of 1 in the units in which it is reported; 1 by default.
    correlated : bool, default=False
        Whether the coefficients can be correlated.
    """

    names: tuple[str, ...]
    limits: tuple[float, ...]
    units: tuple[float, ...] = ()
    correlated: bool = False

    def __post_init__(self) -> None:
        lists = {"names": self.names, "limits": self.limits, "units": self.units}
        for name, value in lists.items():
            is_default = name == "units" and isinstance(value, tuple) and not value
            if not isinstance(value, tuple) or (len(value) != len(self.names) and not is_default):
                raise TypeError(
                    f"{name} of HalfWidth must be a tuple with an entry for each of the "
                    f"generators in names, got {short_repr(value)}."
                )
        for name, values in (("limits", self.limits), ("units", self.units)):
            if not all(is_number(value) and value > 0.0 for value in values):
                raise TypeError(
                    f"{name} of HalfWidth must be positive numbers, got {short_repr(values)}."
                )

    @property
    def n_noise(self) -> int:
        """Number k of generators."""
        return len(self.names)

    @property
    def n_params(self) -> int:
        """Number of entries of ``eta``."""
        return len(self.names) ** (2 if self.correlated else 1)

    def start(self) -> Tensor:
        """Return ``eta`` before learning: small, but not zero, where the gradient vanishes."""
        eta = INITIAL_HALF_WIDTH * torch.eye(len(self.names), dtype=torch.float64)
        if self.correlated:
            return eta.flatten()
        return eta.diagonal().clone()

    def lower_limit(self) -> Tensor:
        """Return the smallest half-widths, since a half-width of 0 would never grow again."""
        return self.start()

    def mixing(self, eta: Tensor) -> Tensor:
        """Return the matrix L(eta), (k, k)."""
        k = len(self.names)
        if self.correlated:
            eye = torch.eye(k, dtype=eta.dtype, device=eta.device)
            uncapped = eta.reshape(k, k) * (eye + OFF_DIAGONAL * (1.0 - eye))
        else:
            uncapped = eta.diag()
        limits = constant(self.limits, eta.dtype, eta.device)
        relative_square = uncapped.square().sum(1) / limits**2
        cap = (1.0 + relative_square ** (_CAP_ORDER // 2)) ** (-1.0 / _CAP_ORDER)
        units = constant(self.units or (1.0,) * k, eta.dtype, eta.device)
        return (units * cap).unsqueeze(1) * uncapped

    def covariance(self, eta: Tensor) -> Tensor:
        """Return the covariance L L' / 3 of the coefficients, (k, k), in squared units."""
        mixing = self.mixing(eta)
        return mixing @ mixing.T / 3.0


@dataclass(frozen=True, eq=False)
class FreeHalfWidth:
    """Half-widths without limits, each of an independent uniform variable.

    Parameters
    ----------
    name : str
        Name that the report uses.
    initial : Tensor
        ``eta`` before learning, in any shape.
    n_noise : int
        Number of uniform variables.
    """

    name: str
    initial: Tensor
    n_noise: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the generators."""
        n = self.n_params
        if n == 1:
            return (self.name,)
        return tuple(f"{self.name}_{i}" for i in range(n))

    @property
    def n_params(self) -> int:
        """Number of entries of ``eta``."""
        return self.initial.numel()

    def start(self) -> Tensor:
        """Return ``eta`` before learning, float64."""
        return self.initial.flatten().to("cpu", torch.float64)

    def lower_limit(self) -> Tensor:
        """Return 0, since the meaning of small values is unknown."""
        return torch.zeros_like(self.start())

    def covariance(self, eta: Tensor) -> Tensor:
        """Return the covariance of the coefficients, (k, k), in squared units."""
        return (eta**2 / 3.0).diag()


@dataclass(frozen=True)
class JointHalfWidth:
    """Half-widths of several independent families."""

    parts: tuple[LearnedHalfWidth, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all generators; repeated names are numbered."""
        names: list[str] = []
        for name in (n for part in self.parts for n in part.names):
            count = sum(1 for other in names if other.rpartition(" ")[0] == name or other == name)
            names.append(name if count == 0 else f"{name} {count + 1}")
        return tuple(names)

    @property
    def n_noise(self) -> int:
        """Number of independent uniform variables."""
        return sum(part.n_noise for part in self.parts)

    @property
    def n_params(self) -> int:
        """Number of entries of ``eta``."""
        return sum(part.n_params for part in self.parts)

    def split(self, eta: Tensor) -> tuple[Tensor, ...]:
        """Return ``eta`` of each family."""
        return eta.split([part.n_params for part in self.parts])

    def start(self) -> Tensor:
        """Return ``eta`` before learning, float64."""
        return torch.cat([part.start() for part in self.parts])

    def lower_limit(self) -> Tensor:
        """Return the smallest absolute value of each entry of ``eta``."""
        return torch.cat([part.lower_limit() for part in self.parts])

    def covariance(self, eta: Tensor) -> Tensor:
        """Return the covariance of the coefficients, (k, k), in squared units."""
        pieces = zip(self.parts, self.split(eta), strict=True)
        return torch.block_diag(*(part.covariance(e) for part, e in pieces))


def sample_stratified_noise(
    n_rows: int, n_samples: int, n_noise: int, *, generator: torch.Generator, like: Tensor
) -> Tensor:
    """Sample uniform noise on [-1, 1], a Latin hypercube over the samples of each row.

    Every variable takes one value in each of ``n_samples`` equal strata, in random order. Each
    value is uniform, and averages over the samples vary much less than with independent draws.

    Parameters
    ----------
    n_rows, n_samples, n_noise : int
        Shape of the noise.
    generator : torch.Generator
        Random generator.
    like : Tensor
        Determines dtype and device of the result.

    Returns
    -------
    Tensor of shape (n_rows, n_samples, n_noise)
        The noise.
    """
    shape = (n_rows, n_samples, n_noise)
    device = generator.device
    dtype = torch.float32  # independent of torch's default
    keys = torch.rand(shape, generator=generator, device=device, dtype=dtype)
    jitter = torch.rand(shape, generator=generator, device=device, dtype=dtype)
    strata = keys.argsort(dim=1).to(jitter.dtype)
    return ((strata + jitter) * (2.0 / n_samples) - 1.0).to(like)


ImageShape = tuple[int, int, int]  # channels, height, width


class Augmentation(Protocol):
    """A family of random input transformations with learned half-widths."""

    @property
    def half_width(self) -> LearnedHalfWidth:
        """Distribution of the coefficients."""

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Augmentation":
        """Return the family for inputs of known scale and shape.

        Parameters
        ----------
        scale : sequence of float
            Standard deviations of the columns.
        image_shape : tuple of int, optional
            (C, H, W) if the columns are pixels.

        Raises
        ------
        ValueError
            If columns of the family don't exist, or if it transforms pixels and ``image_shape`` is
            missing.
        """

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``.

        Parameters
        ----------
        x : Tensor of shape (N, *I)
            Inputs.
        eta : Tensor of shape (half_width.n_params,)
            Parameters of the half-widths.
        noise : Tensor of shape (N, S, half_width.n_noise)
            Uniform noise on [-1, 1], see `sample_stratified_noise`.
        """


@dataclass(frozen=True)
class Identity:
    """The identity, for which one sample suffices."""

    @property
    def half_width(self) -> HalfWidth:
        """Distribution of the coefficients."""
        return HalfWidth((), ())

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Identity":  # noqa: ARG002
        """Return the family for inputs of known scale and shape."""
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        return x.unsqueeze(1).expand(len(x), noise.shape[1], *x.shape[1:])


@dataclass(frozen=True)
class Composed:
    """Families that are applied one after the other, each with its own noise.

    Parameters
    ----------
    parts : tuple of Augmentation
        Families in the order in which they act.
    """

    parts: tuple[Augmentation, ...]

    def __post_init__(self) -> None:
        is_sequence = isinstance(self.parts, tuple | list)
        if not is_sequence or not self.parts or not all(hasattr(p, "bind") for p in self.parts):
            raise TypeError(
                f"parts must be a tuple of augmentations, such as Rotation2D(), got "
                f"{short_repr(self.parts)}."
            )

    @cached_property
    def half_width(self) -> JointHalfWidth:
        """Distribution of the coefficients."""
        return JointHalfWidth(tuple(part.half_width for part in self.parts))

    def bind(self, scale: Sequence[float], image_shape: ImageShape | None = None) -> "Composed":
        """Return the family for inputs of known scale and shape."""
        return Composed(tuple(part.bind(scale, image_shape) for part in self.parts))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        n, s = noise.shape[:2]
        noises = noise.split([part.half_width.n_noise for part in self.parts], dim=-1)
        out = x.unsqueeze(1).expand(n, s, *x.shape[1:])
        etas = self.half_width.split(eta)
        for part, part_eta, part_noise in zip(self.parts, etas, noises, strict=True):
            rows = out.reshape(n * s, *x.shape[1:])
            out = part.transform(rows, part_eta, part_noise.reshape(n * s, 1, -1))
            out = out.reshape(n, s, *x.shape[1:])
        return out


@dataclass(frozen=True, eq=False)
class RescaledAugmentation:
    """A family that acts on inputs in their own units, for inputs in scaled units.

    Parameters
    ----------
    part : Augmentation
        The family.
    mean, scale : tuple of float
        Scaling of the columns, ``scaled = (x - mean) / scale``.
    """

    part: Augmentation
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def half_width(self) -> LearnedHalfWidth:
        """Distribution of the coefficients."""
        return self.part.half_width

    def bind(
        self, scale: Sequence[float], image_shape: ImageShape | None = None
    ) -> "RescaledAugmentation":
        """Return the family for inputs of known scale and shape."""
        return replace(self, part=self.part.bind(scale, image_shape))

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
        mean = constant(self.mean, x.dtype, x.device)
        scale = constant(self.scale, x.dtype, x.device)
        return (self.part.transform(x * scale + mean, eta, noise) - mean) / scale


@dataclass(frozen=True, eq=False)
class ModuleAugmentation:
    """A ``torch.nn.Module`` ``(x, eps) -> x'`` with a learned parameter ``eta``.

    Parameters
    ----------
    module : torch.nn.Module
        Module that is called with rows (M, *I) and noise (M, k), uniform on [-1, 1], where k is
        ``module.n_noise`` or the size of ``eta``. The module isn't changed. Its ``eta`` is the
        starting point.
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
        """Starting point of ``eta``, after checking the module."""
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
        """Distribution of the coefficients."""
        n_noise = int(getattr(self.module, "n_noise", self._eta.numel()))
        return FreeHalfWidth(type(self.module).__name__, self._eta, n_noise)

    def bind(
        self,
        scale: Sequence[float],  # noqa: ARG002
        image_shape: ImageShape | None = None,  # noqa: ARG002
    ) -> "ModuleAugmentation":
        """Return the family for inputs of known scale and shape."""
        self.half_width.start()
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        """Return transformed inputs (N, S, *I), differentiable with respect to ``eta``."""
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
    """Families of transformations with learned half-widths, and settings of the learning.

    Parameters
    ----------
    families : "auto", augmentation, torch.nn.Module or sequence of them, default="auto"
        Families of transformations. Several act one after the other. "auto" is `Affine` for images,
        and none for tables.
    n_augmentations : int, default=8
        Number of transformations per row in training, a Latin hypercube. Memory and time are
        proportional to it. The reported evidence uses 32.
    learning_rate : float or "auto", default="auto"
        Adam's initial step size for the half-widths. With "auto", a half-width can change by 24 in
        all updates together and by 0.3 in one update. For affine half-widths other than the
        rotation these are a third. Online updates that see less than a third of the rows take
        smaller steps, because their gradient is noisy: 0.5 times the root of that fraction. With
        `Augerino`, "auto" is the step size of the weights.
    n_predict_augmentations : int or "auto", default="auto"
        Number of transformations over which predictions average; time is proportional to it. 1 is
        the input itself. "auto" is 32, or 1 if the half-widths are negligible: if averaging changes
        the log density of none of the inspected training rows by more than 0.001 nats. It can be
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


class _EvidenceObjective(NamedTuple):
    """Weights at their mode, and half-widths, prior and noise by the Laplace evidence or fixed.

    Attributes
    ----------
    transforms : bool
        Whether the network is averaged over transformations.
    learns_prior : bool
        Whether the prior's scales are learned.
    reward : float or None
        Reward for wide distributions that are trained with the weights. None, since they aren't.
    """

    transforms: bool
    learns_prior: bool
    reward: float | None = None


@dataclass(frozen=True)
class Augerino:
    """Half-widths that are trained with the weights, by the likelihood and a reward for large ones.

    The prior stays fixed (Benton et al. 2020).

    Parameters
    ----------
    reward : float, default=0.01
        Nats per row for a unit of the half-widths' norm (0.01 in the paper), in which affine
        half-widths other than the rotation count three times. It needs tuning.
    """

    reward: float = 0.01

    transforms: ClassVar[bool] = True
    learns_prior: ClassVar[bool] = False


TransformObjective = _EvidenceObjective | Augerino
OBJECTIVES: dict[str, TransformObjective] = {
    "evidence": _EvidenceObjective(True, True),
    "map": _EvidenceObjective(False, False),
    "augerino": Augerino(),
}
