"""Symmetry groups: the interface, the two simplest ones, and the check that a prior respects it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.layout import ParamLayout


class SymmetryGroup(Protocol):
    """A group acting on weights: ``theta -> g.theta`` leaves the model unchanged.

    Elements are whatever the group likes (tensors, tuples), with leading batch axes ``*B``; the
    action keeps volume, so densities need no Jacobian.
    """

    @property
    def log_order(self) -> float:
        """log |G| in nats; inf if the group is continuous."""

    @property
    def is_compact(self) -> bool:
        """Whether a uniform (Haar) distribution exists."""

    @property
    def factors(self) -> "tuple[SymmetryGroup, ...]":
        """The direct factors: none of the trivial group, a simple group itself."""

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Any:
        """Uniform elements with batch shape ``shape``; ValueError if not compact."""

    def act(self, g: Any, theta: Tensor) -> Tensor:
        """``g.theta``, shape (*B, P)."""

    def inverse(self, g: Any) -> Any:
        """The element that undoes ``g``."""

    def compose(self, g: Any, h: Any) -> Any:
        """The element that acts as ``h`` first, then ``g``."""

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Any]:
        """The orbit point of ``theta`` nearest ``reference``, and the ``g`` that leads there."""

    def identity(self) -> Any:
        """The element that moves nothing."""

    def generators(self) -> list[tuple[str, Any]]:
        """Elements that generate the group, each with a name for error messages."""

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Which entries of ``theta`` the group exchanges or mixes, int64 (n_params,), on the CPU.

        Each entry carries the smallest position in its orbit; entries that the group doesn't know,
        or only negates or shifts, are orbits of their own. Scaling by numbers that are the same
        within orbits commutes with the linear part of the action, so such scales single out no
        copy of a mode.
        """


class WeightValidationMixin:
    """Base of groups that know how many weights they act on, and check what they are given."""

    @property
    def n_params(self) -> int:
        """Length of the shortest ``theta`` that has all entries which the group moves."""
        raise NotImplementedError

    @property
    def _has_exact_length(self) -> bool:
        """Whether ``theta`` must have exactly `n_params` entries."""
        return False

    def check_weights(self, theta: Any, name: str = "theta") -> None:
        """Raise unless ``theta`` (*B, P) is a tensor with all entries that the group acts on."""
        if not isinstance(theta, Tensor):
            raise TypeError(
                f"{name} must be a tensor of shape (..., P), got {type(theta).__name__}: use "
                "torch.as_tensor."
            )
        length = theta.shape[-1] if theta.ndim else 0
        is_exact = self._has_exact_length
        if length < self.n_params or (is_exact and length > self.n_params):
            raise ValueError(
                f"{name} has shape {tuple(theta.shape)}, but the group acts on "
                f"{'' if is_exact else 'at least '}{self.n_params:,} weights, which must lie along "
                "the last axis."
            )

    def check_pair(self, theta: Any, reference: Any) -> None:
        """Raise unless both are weights that can be compared."""
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
    """Base of groups that can move the entries of a ``theta`` without a copy."""

    def batch(self, g: Any) -> tuple[int, ...]:
        """Batch shape of an element."""
        raise NotImplementedError

    def check_element(self, g: Any) -> None:
        """Raise unless ``g`` is an element of a group like this one."""
        raise NotImplementedError

    def move_(self, g: Any, theta: Tensor) -> Tensor:
        """Move the entries of ``theta`` by an element; neither is checked."""
        raise NotImplementedError

    def act_(self, g: Any, theta: Tensor) -> Tensor:
        """Act on ``theta`` itself, which has all batch axes of the element."""
        self.check_weights(theta)
        self.check_element(g)
        batch = self.batch(g)
        if np.broadcast_shapes(batch, theta.shape[:-1]) != theta.shape[:-1]:
            raise ValueError(
                f"theta has batch shape {tuple(theta.shape[:-1])} and the element {batch}: act_ "
                "can't add axes. Use act, which makes a copy."
            )
        if any(
            n > 1 and stride == 0 for n, stride in zip(theta.shape, theta.stride(), strict=True)
        ):
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
        """Act on one copy."""
        self.check_weights(theta)
        self.check_element(g)
        batch = np.broadcast_shapes(self.batch(g), theta.shape[:-1])
        theta = theta.expand(*batch, theta.shape[-1])
        return self.move_(g, theta.clone(memory_format=torch.contiguous_format))


class SimpleGroup:
    """Base of compact groups that are no products."""

    @property
    def is_compact(self) -> bool:
        return True

    @property
    def factors(self) -> tuple[Any, ...]:
        return (self,)

    def restrict(self, keeps: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        """Subgroup of what ``keeps`` accepts."""
        group: Any = self
        return group if keeps(group) else Trivial()


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

    An element is a tuple with one element of every factor. The hidden layers of a network are the
    example: each layer's units move along their own axes of the weight matrices.
    """

    factors: tuple[SymmetryGroup, ...]

    # Coordinate ascent over the factors ends when no factor moves; this only bounds it.
    _max_sweeps: int = 50

    def __repr__(self) -> str:
        n = len(self.factors)
        heading = f"{type(self).__name__} of {n} factors, log |G| = {self.log_order:.1f} nats"
        return format_lines(heading, [" ".join(repr(f).splitlines()) for f in self.factors])

    @property
    def n_params(self) -> int:
        known = (f.n_params for f in self.factors if isinstance(f, WeightValidationMixin))
        return max(known, default=0)

    def check_element(self, g: Any) -> None:
        """Raise unless ``g`` has an element of every factor."""
        if not isinstance(g, tuple) or len(g) != len(self.factors):
            given = f"{len(g)} parts" if isinstance(g, tuple) else type(g).__name__
            raise ValueError(
                f"an element of this group is a tuple with one element for each of its "
                f"{len(self.factors)} factors, got {given}: take one of group.sample or "
                "group.generators."
            )
        for factor, part in zip(self.factors, g, strict=True):
            if isinstance(factor, InPlaceActionMixin):
                factor.check_element(part)

    @property
    def log_order(self) -> float:
        return float(sum(f.log_order for f in self.factors))

    @property
    def is_compact(self) -> bool:
        return all(f.is_compact for f in self.factors)

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> tuple[Any, ...]:
        return tuple(f.sample(shape, generator=generator) for f in self.factors)

    def act(self, g: tuple[Any, ...], theta: Tensor) -> Tensor:
        self.check_weights(theta)
        self.check_element(g)
        for factor, g_i in zip(self.factors, g, strict=True):
            theta = factor.act(g_i, theta)
        return theta

    def inverse(self, g: tuple[Any, ...]) -> tuple[Any, ...]:
        self.check_element(g)
        return tuple(f.inverse(g_i) for f, g_i in zip(self.factors, g, strict=True))

    def compose(self, g: tuple[Any, ...], h: tuple[Any, ...]) -> tuple[Any, ...]:
        self.check_element(g)
        self.check_element(h)
        return tuple(f.compose(a, b) for f, a, b in zip(self.factors, g, h, strict=True))

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Coordinate ascent over the factors: each sweep aligns every factor exactly.

        The distance to ``reference`` never increases; with two or more factors the end is a local
        optimum (the joint problem is a quadratic assignment).
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
        return tuple(f.identity() for f in self.factors)

    def generators(self) -> list[tuple[str, Any]]:
        identity = self.identity()
        named = []
        for i, factor in enumerate(self.factors):
            for name, g in factor.generators():
                element = (*identity[:i], g, *identity[i + 1 :])
                named.append((f"layer {i + 1}: {name}", element))
        return named

    def restrict(self, keeps: Callable[[SymmetryGroup], bool]) -> SymmetryGroup:
        kept: list[SymmetryGroup] = []
        for factor in self.factors:
            if isinstance(factor, SimpleGroup):
                kept += factor.restrict(keeps).factors
            elif keeps(factor):  # a group of one's own, as a whole
                kept.append(factor)
        return Product(tuple(kept)) if kept else Trivial()

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """The union of the factors' orbits: entries are one where a chain of factors joins them."""
        partitions = [factor.coordinate_orbits(n_params) for factor in self.factors]
        orbits = torch.arange(n_params)
        before = None
        while before is None or not torch.equal(orbits, before):
            before = orbits
            for joined in partitions:
                orbits = orbits.scatter_reduce(0, joined, orbits, "amin")[joined]
        return orbits


@dataclass(frozen=True, repr=False)
class Trivial(Product):
    """The group of one element."""

    factors: tuple[SymmetryGroup, ...] = ()

    def __repr__(self) -> str:
        return "Trivial group of one element"


class NotInvariantError(ValueError):
    """A density changes under a group that was declared its symmetry."""


def check_invariant(
    group: SymmetryGroup, log_prob: Callable[[Tensor], Tensor], layout: ParamLayout, *,
    name: str = "prior", remedy: str = "",
) -> None:  # fmt: skip
    """Raise unless ``log_prob`` is the same at ``theta`` and at ``g.theta``.

    Every generator of the group is tried on a fixed probe vector, and where that changes on one per
    named parameter (all others at 0), so that the error can name what breaks the symmetry.

    Parameters
    ----------
    group : SymmetryGroup
    log_prob : callable (*B, P) -> (*B,)
    layout : ParamLayout
    name : str, default="prior"
        What ``log_prob`` is, for the error message.
    remedy : str, default=""
        Sentence at the end of the error message.

    Raises
    ------
    NotInvariantError
        A `ValueError` with the parameter, the generator and the remedy.
    """
    probe = _probe(layout.n_params)
    changing = next(
        (named for named in group.generators() if _changes(group, named[1], log_prob, probe)), None
    )
    if changing is None:
        return
    generator_name, g = changing
    blocks = torch.zeros(len(layout.shapes), layout.n_params, dtype=torch.float64)
    for row, where in zip(blocks, layout.slices.values(), strict=True):
        row[where] = probe[where]
    broken = (_changes(group, g, log_prob, row) for row in blocks)
    parameters = [n for n, bad in zip(layout.shapes, broken, strict=True) if bad]
    raise NotInvariantError(
        f"the {name} is not invariant under the symmetry ({generator_name}): it tells the units "
        f"apart in {', '.join(parameters) or 'several parameters at once'}. {remedy}".rstrip()
    )


def invariant_subgroup(
    group: SymmetryGroup, log_prob: Callable[[Tensor], Tensor], layout: ParamLayout
) -> SymmetryGroup:
    """The part of a group that leaves ``log_prob`` unchanged too.

    Factors, and within them exchanges and each sign, are tried apart: a prior with means other than
    zero keeps the exchanges and loses the flips.

    ``log_prob`` (*B, P) -> (*B,), of parameters as ``layout`` has them.
    """
    probe = _probe(layout.n_params)

    def keeps(part: SymmetryGroup) -> bool:
        return not any(_changes(part, g, log_prob, probe) for _, g in part.generators())

    return Product(group.factors).restrict(keeps)


def _probe(n: int) -> Tensor:
    return torch.linspace(0.3, 1.7, max(n, 1), dtype=torch.float64)[:n]


def _changes(
    group: SymmetryGroup, g: Any, log_prob: Callable[[Tensor], Tensor], theta: Tensor
) -> bool:
    """Whether the density is another at ``g.theta`` (P,)."""
    before, after = log_prob(torch.stack([theta, group.act(g, theta)])).tolist()
    return not abs(after - before) <= 1e-9 * (1.0 + abs(before))
