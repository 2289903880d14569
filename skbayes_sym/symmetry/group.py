"""Symmetry groups: the interface, products, and checks that a density is invariant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import check_parts
from skbayes_sym.numerics.layout import ParamLayout


class SymmetryGroup(Protocol):
    """A group acting on weights, such that ``theta -> g.theta`` leaves the model unchanged.

    The representation of an element is up to the group (tensors, tuples), with leading batch axes
    ``*B``. The action preserves volume, so that densities need no Jacobian.
    """

    @property
    def log_order(self) -> float:
        """Log of the number of elements |G| in nats; inf if the group is continuous."""

    @property
    def is_compact(self) -> bool:
        """Whether a uniform (Haar) distribution exists."""

    @property
    def factors(self) -> "tuple[SymmetryGroup, ...]":
        """The direct factors. The trivial group has none, and a simple group only itself."""

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Any:
        """Sample uniform elements with batch shape ``shape``; ValueError if not compact."""

    def act(self, g: Any, theta: Tensor) -> Tensor:
        """Return ``g.theta``, of shape (*B, P)."""

    def inverse(self, g: Any) -> Any:
        """Return the inverse of ``g``."""

    def compose(self, g: Any, h: Any) -> Any:
        """Return the element that acts as ``h`` first, then as ``g``."""

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Any]:
        """Return the orbit point of ``theta`` nearest to ``reference``, and the ``g`` used."""

    def identity(self) -> Any:
        """Return the identity element."""

    def generators(self) -> list[tuple[str, Any]]:
        """Return elements that generate the group, each with a name for error messages."""

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Return which entries of ``theta`` the group exchanges or mixes.

        Returns
        -------
        Tensor of shape (n_params,), int64, on the CPU
            For each entry the smallest position in its orbit. An entry that the group doesn't act
            on, or only negates or shifts, is an orbit by itself.

        Notes
        -----
        Scaling by factors that are equal within orbits commutes with the linear part of the action.
        Such scales therefore treat all copies of a mode equally.
        """


class WeightValidationMixin:
    """Base of groups that know how many weights they act on, and check their arguments."""

    @property
    def n_params(self) -> int:
        """Length of the shortest ``theta`` that has all entries that the group moves."""
        raise NotImplementedError

    @property
    def _has_exact_length(self) -> bool:
        """Whether ``theta`` must have exactly `n_params` entries."""
        return False

    def check_weights(self, theta: Any, name: str = "theta") -> None:
        """Raise unless ``theta`` (*B, P) is a tensor with all entries that the group acts on.

        Raises
        ------
        TypeError
            If it isn't a tensor.
        ValueError
            If its last axis is too short or, where the length is known exactly, too long.
        """
        if not isinstance(theta, Tensor):
            raise TypeError(
                f"{name} must be a tensor of shape (..., P), got {type(theta).__name__}: use "
                "torch.as_tensor."
            )
        length = theta.shape[-1] if theta.ndim else 0
        is_exact = self._has_exact_length
        if length < self.n_params or (is_exact and length > self.n_params):
            at_least = "" if is_exact else "at least "
            raise ValueError(
                f"{name} has shape {tuple(theta.shape)}, but the group acts on "
                f"{at_least}{self.n_params:,} weights, which must lie along the last axis."
            )

    def check_pair(self, theta: Any, reference: Any) -> None:
        """Raise unless both are weights of the same length, dtype and device."""
        self.check_weights(theta)
        self.check_weights(reference, "reference")
        if theta.shape[-1] != reference.shape[-1]:
            raise ValueError(
                f"theta has {theta.shape[-1]} weights along its last axis and reference "
                f"{reference.shape[-1]}: give as many of both."
            )
        if theta.dtype != reference.dtype:
            raise TypeError(
                f"theta is {theta.dtype} and reference {reference.dtype}: convert one of them, "
                "for example reference.to(theta)."
            )
        if theta.device != reference.device:
            raise ValueError(
                f"theta is on {theta.device} and reference on {reference.device}: move one of "
                "them, for example reference.to(theta)."
            )


class InPlaceActionMixin(WeightValidationMixin):
    """Base of groups that can move the entries of ``theta`` without a copy."""

    def batch(self, g: Any) -> tuple[int, ...]:
        """Return the batch shape of an element."""
        raise NotImplementedError

    def check_element(self, g: Any) -> None:
        """Raise unless ``g`` is an element of a group of this kind and size."""
        raise NotImplementedError

    def move_(self, g: Any, theta: Tensor) -> Tensor:
        """Act on ``theta`` in place, without checks, and return it."""
        raise NotImplementedError

    def act_(self, g: Any, theta: Tensor) -> Tensor:
        """Act on ``theta`` in place and return it.

        Parameters
        ----------
        g : object
            Element of the group.
        theta : Tensor of shape (*B, P)
            Weights, which must have all batch axes of the element.

        Raises
        ------
        ValueError
            If the element has more batch axes, or entries of ``theta`` share memory.
        """
        self.check_weights(theta)
        self.check_element(g)
        batch = self.batch(g)
        if np.broadcast_shapes(batch, theta.shape[:-1]) != theta.shape[:-1]:
            raise ValueError(
                f"theta has batch shape {tuple(theta.shape[:-1])} and the element {batch}: act_ "
                "can't add axes. Use act, which makes a copy."
            )
        axes = zip(theta.shape, theta.stride(), strict=True)
        if any(n > 1 and stride == 0 for n, stride in axes):
            raise ValueError(
                "theta is an expanded view whose entries share memory, so act_ can't write on it. "
                "Use act, or theta.clone()."
            )
        if theta.requires_grad and theta.is_leaf and torch.is_grad_enabled():
            raise ValueError(
                "theta requires gradients, so act_ can't write on it. Use act, or torch.no_grad()."
            )
        return self.move_(g, theta)

    def act(self, g: Any, theta: Tensor) -> Tensor:
        """Return ``g.theta``, a copy."""
        self.check_weights(theta)
        self.check_element(g)
        batch = np.broadcast_shapes(self.batch(g), theta.shape[:-1])
        theta = theta.expand(*batch, theta.shape[-1])
        return self.move_(g, theta.clone(memory_format=torch.contiguous_format))


class SimpleGroup:
    """Base of compact groups with a single direct factor."""

    @property
    def is_compact(self) -> bool:
        """Whether a uniform (Haar) distribution exists."""
        return True

    @property
    def factors(self) -> tuple[Any, ...]:
        """The group itself."""
        return (self,)

    def restrict(self, is_invariant: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        """Return the largest subgroup made of parts that ``is_invariant`` accepts."""
        group: Any = self
        if is_invariant(group):
            return group
        return Trivial()


_MAX_LINES = 10  # of a group's repr


def format_lines(heading: str, lines: Sequence[str], *, remedy: str = "") -> str:
    """Format a repr of at most ten lines, a heading and an item in each other line.

    Parameters
    ----------
    heading : str
        First line.
    lines : sequence of str
        Items.
    remedy : str, default=""
        How to see all items, shown if some are omitted.
    """
    if len(lines) >= _MAX_LINES:
        n_omitted = len(lines) - _MAX_LINES + 2
        omitted = f"and {n_omitted} more"
        if remedy:
            omitted = f"{omitted}: {remedy}"
        lines = [*lines[: _MAX_LINES - 2], omitted]
    return "\n- ".join([heading, *lines])


@dataclass(frozen=True, repr=False)
class Product(WeightValidationMixin):
    """Direct product of groups whose actions on one ``theta`` commute.

    An element is a tuple with one element of every factor. The hidden layers of a network are an
    example: the units of each layer move along separate axes of the weight matrices.

    Parameters
    ----------
    factors : tuple of SymmetryGroup
        The direct factors.
    """

    factors: tuple[SymmetryGroup, ...]

    # Bound on the sweeps of `align`, which ends when no factor moves.
    _max_sweeps: int = 50

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_parts(name, "factors", self.factors, ("act", "log_order"), "symmetry groups")

    def __repr__(self) -> str:
        n = len(self.factors)
        heading = f"{type(self).__name__} of {n} factors, log |G| = {self.log_order:.1f} nats"
        return format_lines(heading, [" ".join(repr(f).splitlines()) for f in self.factors])

    @property
    def n_params(self) -> int:
        """Length of the shortest ``theta`` that has all entries that the group moves."""
        lengths = (f.n_params for f in self.factors if isinstance(f, WeightValidationMixin))
        return max(lengths, default=0)

    def check_element(self, g: Any) -> None:
        """Raise unless ``g`` has an element of every factor."""
        if not isinstance(g, tuple) or len(g) != len(self.factors):
            if isinstance(g, tuple):
                received = f"{len(g)} parts"
            else:
                received = type(g).__name__
            raise ValueError(
                f"an element of this group is a tuple with one element for each of its "
                f"{len(self.factors)} factors, got {received}: take one of group.sample or "
                "group.generators."
            )
        for factor, part in zip(self.factors, g, strict=True):
            if isinstance(factor, InPlaceActionMixin):
                factor.check_element(part)

    @property
    def log_order(self) -> float:
        """Log of the number of elements, in nats."""
        return float(sum(f.log_order for f in self.factors))

    @property
    def is_compact(self) -> bool:
        """Whether a uniform (Haar) distribution exists."""
        return all(f.is_compact for f in self.factors)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> tuple[Any, ...]:
        """Sample uniform elements with batch shape ``shape``."""
        return tuple(f.sample(shape, generator=generator) for f in self.factors)

    def act(self, g: tuple[Any, ...], theta: Tensor) -> Tensor:
        """Return ``g.theta``."""
        self.check_weights(theta)
        self.check_element(g)
        for factor, g_i in zip(self.factors, g, strict=True):
            theta = factor.act(g_i, theta)
        return theta

    def inverse(self, g: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inverse of ``g``."""
        self.check_element(g)
        return tuple(f.inverse(g_i) for f, g_i in zip(self.factors, g, strict=True))

    def compose(self, g: tuple[Any, ...], h: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the element that acts as ``h`` first, then as ``g``."""
        self.check_element(g)
        self.check_element(h)
        return tuple(f.compose(a, b) for f, a, b in zip(self.factors, g, h, strict=True))

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Align by coordinate ascent over the factors.

        Each sweep aligns every factor with the others held fixed. The distance to ``reference``
        never increases. With two or more factors the result is a local optimum, because the joint
        problem is a quadratic assignment problem.

        Parameters
        ----------
        theta, reference : Tensor of shape (*B, P)
            Weights to move, and where to move them.

        Returns
        -------
        moved : Tensor of shape (*B, P)
            ``g.theta``.
        g : tuple
            The element of the group.
        """
        self.check_pair(theta, reference)
        total: list[Any] = [None] * len(self.factors)
        for _ in range(self._max_sweeps):
            before = theta
            for i, factor in enumerate(self.factors):
                theta, g = factor.align(theta, reference)
                total[i] = g if total[i] is None else factor.compose(g, total[i])
            if torch.equal(before, theta):
                break
        return theta, tuple(total)

    def identity(self) -> tuple[Any, ...]:
        """Return the identity element."""
        return tuple(f.identity() for f in self.factors)

    def generators(self) -> list[tuple[str, Any]]:
        """Return named elements that generate the group."""
        identity = self.identity()
        generators = []
        for i, factor in enumerate(self.factors):
            for name, g in factor.generators():
                element = (*identity[:i], g, *identity[i + 1 :])
                generators.append((f"layer {i + 1}: {name}", element))
        return generators

    def restrict(self, is_invariant: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        """Return the largest subgroup made of parts that ``is_invariant`` accepts."""
        factors: list[SymmetryGroup] = []
        for factor in self.factors:
            if isinstance(factor, SimpleGroup):
                factors += factor.restrict(is_invariant).factors
            elif is_invariant(factor):  # a user's group is accepted or rejected as a whole
                factors.append(factor)
        if not factors:
            return Trivial()
        return Product(tuple(factors))

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Return orbits that join all entries connected by a chain of the factors' orbits."""
        partitions = [factor.coordinate_orbits(n_params) for factor in self.factors]
        orbits = torch.arange(n_params)
        before = None
        while before is None or not torch.equal(orbits, before):
            before = orbits
            for partition in partitions:
                orbits = orbits.scatter_reduce(0, partition, orbits, "amin")[partition]
        return orbits


@dataclass(frozen=True, repr=False)
class Trivial(Product):
    """The group of one element."""

    factors: tuple[SymmetryGroup, ...] = ()

    def __repr__(self) -> str:
        return "Trivial group of one element"


class NotInvariantError(ValueError):
    """A density changes under a group that should be its symmetry."""


def check_invariant(
    group: SymmetryGroup,
    log_prob: Callable[[Tensor], Tensor],
    layout: ParamLayout,
    *,
    name: str = "prior",
    remedy: str = "",
) -> None:
    """Raise unless ``log_prob`` is the same at ``theta`` and at ``g.theta``.

    Parameters
    ----------
    group : SymmetryGroup
        The group, every generator of which is tried.
    log_prob : callable (*B, P) -> (*B,)
        A log density.
    layout : ParamLayout
        Names and shapes of the parameters.
    name : str, default="prior"
        What ``log_prob`` is, for the error message.
    remedy : str, default=""
        Sentence at the end of the error message.

    Raises
    ------
    NotInvariantError
        A `ValueError` with the parameter, the generator and the remedy.

    Notes
    -----
    Generators are tried at a fixed probe vector. Where the density changes, one probe for each
    parameter, with zeros for all others, shows which parameter breaks the symmetry.
    """
    probe = _probe(layout.n_params)
    breaking = (
        (generator_name, g)
        for generator_name, g in group.generators()
        if _has_changed(group, g, log_prob, probe)
    )
    generator = next(breaking, None)
    if generator is None:
        return
    generator_name, g = generator
    blocks = torch.zeros(len(layout.shapes), layout.n_params, dtype=torch.float64)
    for row, entries in zip(blocks, layout.slices.values(), strict=True):
        row[entries] = probe[entries]
    parameters = [
        parameter
        for parameter, row in zip(layout.shapes, blocks, strict=True)
        if _has_changed(group, g, log_prob, row)
    ]
    raise NotInvariantError(
        f"the {name} is not invariant under the symmetry ({generator_name}): it tells the units "
        f"apart in {', '.join(parameters) or 'several parameters at once'}. {remedy}".rstrip()
    )


def invariant_subgroup(
    group: SymmetryGroup, log_prob: Callable[[Tensor], Tensor], layout: ParamLayout
) -> SymmetryGroup:
    """Return the part of a group that leaves ``log_prob`` unchanged.

    Factors, and within them exchanges and each sign, are tried separately. A prior with nonzero
    means, for example, keeps the exchanges and loses the sign flips.

    Parameters
    ----------
    group : SymmetryGroup
        The group.
    log_prob : callable (*B, P) -> (*B,)
        A log density.
    layout : ParamLayout
        Names and shapes of the parameters.

    Returns
    -------
    SymmetryGroup
        A subgroup of ``group``.
    """
    probe = _probe(layout.n_params)

    def is_invariant(part: SymmetryGroup) -> bool:
        return not any(_has_changed(part, g, log_prob, probe) for _, g in part.generators())

    return Product(group.factors).restrict(is_invariant)


def _probe(n: int) -> Tensor:
    """Return a vector (n,) of different positive numbers."""
    return torch.linspace(0.3, 1.7, max(n, 1), dtype=torch.float64)[:n]


def _has_changed(
    group: SymmetryGroup, g: Any, log_prob: Callable[[Tensor], Tensor], theta: Tensor
) -> bool:
    """Return whether the density at ``g.theta`` differs from that at ``theta``.

    Parameters
    ----------
    group : SymmetryGroup
        The group.
    g : object
        An element of it.
    log_prob : callable (*B, P) -> (*B,)
        A log density.
    theta : Tensor of shape (P,)
        Weights.
    """
    before, after = log_prob(torch.stack([theta, group.act(g, theta)])).tolist()
    return not abs(after - before) <= 1e-9 * (1.0 + abs(before))
