"""Activation functions and the facts about them that symmetry needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Backward = Callable[[Tensor, Tensor], Tensor]


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
    backward_: Backward
    is_odd: bool
    gain: float = 1.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: functions of torch itself don't pickle."""
        return _by_name, (self.name,)


def _by_name(name: str) -> Activation:
    return ACTIVATIONS[name]


def _identity(z: Tensor) -> Tensor:
    return z


def _relu_backward_(g: Tensor, h: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(g, h, 0, grad_input=g)


def _tanh_backward_(g: Tensor, h: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward.grad_input(g, h, grad_input=g)


def _sigmoid_backward_(g: Tensor, h: Tensor) -> Tensor:
    return torch.ops.aten.sigmoid_backward.grad_input(g, h, grad_input=g)


def _softplus_(z: Tensor) -> Tensor:
    return z.copy_(F.softplus(z))


def _softplus_backward_(g: Tensor, h: Tensor) -> Tensor:
    # f'(z) = sigmoid(z) = 1 - exp(-softplus(z))
    return g.mul_(torch.expm1(-h).neg_())


def _identity_backward_(g: Tensor, h: Tensor) -> Tensor:
    return g


RELU = Activation("relu", torch.relu, torch.relu_, _relu_backward_, False, 2.0**0.5)
TANH = Activation("tanh", torch.tanh, torch.tanh_, _tanh_backward_, True)
SIGMOID = Activation("sigmoid", torch.sigmoid, torch.sigmoid_, _sigmoid_backward_, False)
SOFTPLUS = Activation("softplus", F.softplus, _softplus_, _softplus_backward_, False)
IDENTITY = Activation("identity", _identity, _identity, _identity_backward_, True)

ACTIVATIONS = {a.name: a for a in (RELU, TANH, SIGMOID, SOFTPLUS, IDENTITY)}
