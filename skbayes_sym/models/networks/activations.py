"""Activation functions and the facts about them that symmetry needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """An elementwise nonlinearity.

    Parameters
    ----------
    name : str
    function : callable
        Forward map.
    apply_ : callable (z) -> Tensor
        The same in place.
    backward_ : callable (gradient, h) -> Tensor
        Multiplies ``gradient`` by ``f'(z)`` in place, given ``h = f(z)``, all that a layer keeps.
    is_odd : bool
        Whether ``f(-z) = -f(z)``: then the sign of a hidden unit is a symmetry.
    gain : float
        Factor of the initial weights' scale that keeps the variance of the signal (He et al. 2015).
    """

    name: str
    function: Callable[[Tensor], Tensor]
    apply_: Callable[[Tensor], Tensor]
    backward_: Callable[[Tensor, Tensor], Tensor]
    is_odd: bool
    gain: float = 1.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: functions of torch itself don't pickle."""
        return _by_name, (self.name,)


def _by_name(name: str) -> Activation:
    return ACTIVATIONS[name]


_aten = torch.ops.aten

RELU = Activation(
    "relu", torch.relu, torch.relu_,
    lambda g, h: _aten.threshold_backward.grad_input(g, h, 0, grad_input=g), False, 2.0**0.5,
)  # fmt: skip
TANH = Activation(
    "tanh", torch.tanh, torch.tanh_,
    lambda g, h: _aten.tanh_backward.grad_input(g, h, grad_input=g), True,
)  # fmt: skip
SIGMOID = Activation(
    "sigmoid", torch.sigmoid, torch.sigmoid_,
    lambda g, h: _aten.sigmoid_backward.grad_input(g, h, grad_input=g), False,
)  # fmt: skip
SOFTPLUS = Activation(  # f'(z) = sigmoid(z) = 1 - exp(-softplus(z))
    "softplus", F.softplus, lambda z: z.copy_(F.softplus(z)),
    lambda g, h: g.mul_(torch.expm1(-h).neg_()), False,
)  # fmt: skip
IDENTITY = Activation("identity", lambda z: z, lambda z: z, lambda g, h: g, True)

ACTIVATIONS = {a.name: a for a in (RELU, TANH, SIGMOID, SOFTPLUS, IDENTITY)}
