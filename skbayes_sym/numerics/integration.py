"""Integrals of elementwise functions by adaptive quadrature."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def integrate(f: Callable[[Tensor], Tensor], start: Tensor, end: Tensor) -> Tensor:
    """Integrate ``f`` from ``start`` to ``end``, elementwise, by adaptive Gauss-Lobatto quadrature.

    For each element, the panel whose integral changes most by halving is halved (in later steps,
    several panels at once) until all changes together are below 1e-8 of the integral, at most 100
    times. A cdf is monotone and the endpoints of each panel are nodes, so no jump is missed.
    """
    edges = start + (end - start) * torch.linspace(0.0, 1.0, 5).to(start).reshape(-1, 1, 1)
    low = edges[:-1]
    high = edges[1:]
    coarse = _panels(f, low, high)
    left, right = _halves(f, low, high)
    accuracy = max(1e-8, 8.0 * torch.finfo(start.dtype).eps)
    for step in range(100):
        error = (coarse - left - right).abs()
        if bool((error.sum(0) <= accuracy * (left + right).sum(0)).all()):
            break
        worst = error.topk(1 + step // 8, dim=0).indices
        a = low.gather(0, worst)
        b = high.gather(0, worst)
        first = left.gather(0, worst)
        second = right.gather(0, worst)
        middle = 0.5 * (a + b)
        first_halves = _halves(f, a, middle)
        second_halves = _halves(f, middle, b)
        low = low.scatter(0, worst, a)
        high = high.scatter(0, worst, middle)
        low = torch.cat([low, middle])
        high = torch.cat([high, b])
        coarse = torch.cat([coarse.scatter(0, worst, first), second])
        left = torch.cat([left.scatter(0, worst, first_halves[0]), second_halves[0]])
        right = torch.cat([right.scatter(0, worst, first_halves[1]), second_halves[1]])
    return (left + right).sum(0)


def _halves(f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integrals over the left and right half of every panel."""
    middle = 0.5 * (low + high)
    return _panels(f, low, middle), _panels(f, middle, high)


def _panels(f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Apply the Gauss-Lobatto rule with eight nodes to every panel, (P, N, T).

    ``f`` takes (N, T).
    """
    legendre = np.polynomial.Legendre.basis(7)
    # The roots have a complex dtype from NumPy 2.5 on.
    nodes = np.concatenate([[-1.0], legendre.deriv().roots().real, [1.0]])
    weights = 2.0 / (8 * 7 * legendre(nodes) ** 2)
    half = 0.5 * (high - low)
    total = torch.zeros_like(low)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        x = low + half * (node + 1.0)
        total += weight * half * torch.stack([f(row) for row in x])
    return total
