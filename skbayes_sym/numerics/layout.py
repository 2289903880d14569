"""The layout of named parameters in one flat vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import check_ints, short_repr


@dataclass(frozen=True)
class ParamLayout:
    """Bijection between named arrays and one flat vector ``theta``.

    Arrays follow one another in the order of ``shapes``, each in row-major order.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Shape of each named parameter.

    Examples
    --------
    >>> import torch
    >>> from skbayes_sym.numerics.layout import ParamLayout
    >>> layout = ParamLayout({"W1": (2, 3), "b1": (2,)})
    >>> layout.n_params
    8
    >>> layout.unflatten(torch.arange(8.0))["b1"]
    tensor([6., 7.])
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        if not isinstance(self.shapes, Mapping):
            raise TypeError(
                "shapes of ParamLayout must map names of parameters to their shapes, got "
                f"{short_repr(self.shapes)}."
            )
        for name, shape in self.shapes.items():
            check_ints("ParamLayout", f"shapes[{name!r}]", shape)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Slice of each named parameter in the flat vector."""
        slices = {}
        start = 0
        for name, shape in self.shapes.items():
            slices[name] = slice(start, start + prod(shape))
            start += prod(shape)
        return slices

    @cached_property
    def n_params(self) -> int:
        """Length P of the flat vector."""
        return sum(prod(shape) for shape in self.shapes.values())

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Split ``theta`` (*B, P) into named views of shape (*B, *shape)."""
        if theta.shape[-1] != self.n_params:
            raise ValueError(
                f"theta has {theta.shape[-1]} parameters in its last axis, "
                f"the layout expects {self.n_params}."
            )
        params = {}
        for name, shape in self.shapes.items():
            span = self.slices[name]
            if shape:
                params[name] = theta[..., span].unflatten(-1, shape)
            else:
                params[name] = theta[..., span.start]
        return params

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Join named arrays (*B, *shape) into ``theta`` (*B, P); inverse of `unflatten`."""
        pieces = []
        for name, shape in self.shapes.items():
            array = params[name]
            batch = array.shape[: array.ndim - len(shape)]
            pieces.append(array.reshape(*batch, prod(shape)))
        return torch.cat(pieces, dim=-1)

    def positions(self, name: str) -> Tensor:
        """Return the indices of a parameter in the flat vector, int64, in the parameter's shape."""
        span = self.slices[name]
        return torch.arange(span.start, span.stop).reshape(self.shapes[name])
