"""Derivatives of any likelihood, and its expectations under independent normal outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import gauss_hermite

if TYPE_CHECKING:
    from skbayes_sym.models.likelihoods.likelihood import Likelihood


class ExpectedLogProb(NamedTuple):
    """E[log p(y | f)] for ``f ~ N(mean, variance)`` with its derivatives, row by row."""

    value: Tensor  # (N,), nats
    d_mean: Tensor  # (N, O)
    d_variance: Tensor  # (N, O)
    d_params: Tensor  # (N, n_params)


class DataTerm(Protocol):
    """``sum_n weight_n log p(y_n | f_cn, params_c)`` of C chains, for targets prepared once.

    Outputs come as (C, O, N) and may be overwritten; ``params`` is (C, n_params).
    """

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        """(C,), nats."""

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """The value (C,) and its derivative (C, n_params); that by the outputs goes to ``out``."""


def collapsed_weight(weight: Tensor) -> Tensor:
    """Equal weights as one: they then multiply a number a chain instead of a row.

    On a GPU that isn't worth the wait for the answer.
    """
    if weight.device.type != "cpu":
        return weight
    return weight[:1] if bool((weight == weight[:1]).all()) else weight


def kept(tensor: Tensor) -> Tensor:
    """Copy a tensor out of inference mode, so that a backward pass may keep it."""
    return tensor.clone() if tensor.is_inference() else tensor


def leaf(tensor: Tensor) -> Tensor:
    """Tensor at which a derivative can start: itself if it has a graph already."""
    return tensor if tensor.requires_grad else kept(tensor).detach().requires_grad_()


@dataclass(frozen=True, eq=False)
class AutogradTerm:
    """A `DataTerm` of any likelihood."""

    likelihood: Likelihood
    y: Tensor  # (N, ...)
    weight: Tensor  # (N,)

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        likelihood = self.likelihood.at(params.unsqueeze(1))
        return (likelihood.log_prob(outputs.mT, self.y) * self.weight).sum(-1)

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [leaf(outputs.detach())]
            if self.likelihood.n_params:
                leaves.append(leaf(params.detach()))
            value = self.value(leaves[0], leaves[-1] if len(leaves) > 1 else params)
            slopes = torch.autograd.grad(value.sum(), leaves)
        out.copy_(slopes[0])
        return value.detach(), slopes[1] if len(slopes) > 1 else params


# Of expectations over one output. For a logistic likelihood the error is below 1e-8 nats per row
# for outputs of standard deviation up to 2, 2e-6 at 4 and 3e-3 at 10.
N_NODES = 64

# Enough of them for a logistic likelihood, by the largest standard deviation: value and slopes are
# exact to 1e-15, at a standard deviation of 1 to 2e-13.
_LOGISTIC = {0.1: 8, 0.3: 12, 0.5: 20, 0.7: 32, 1.0: 48}

# Of an output: a row of zeros has none, and the derivatives there would be 0 / 0.
_LEAST_VARIANCE = 1e-16


def by_quadrature(
    value_and_slope: Callable[[Tensor], tuple[Tensor, Tensor]],
    mean: Tensor,
    variance: Tensor,
    param_slope: Callable[[Tensor], Tensor] | None = None,
    *,
    n_nodes: int = N_NODES,
) -> ExpectedLogProb:
    """Expectations over ``f ~ N(mean, variance)``, (N, 1) each, by Gauss-Hermite.

    The derivatives are those of the quadrature itself, so a fixed point of them is a stationary
    point of the value: ``d/dv E[l(m + s z)] = E[l'(m + s z) z] / (2 s)``.
    """
    nodes, weights = (t.to(mean) for t in gauss_hermite(n_nodes))
    sd = variance.clamp_min(_LEAST_VARIANCE).sqrt()
    f = mean + sd * nodes
    value, slope = value_and_slope(f)
    d_mean, d_sd = (slope @ torch.stack([weights, nodes * weights], -1)).split(1, dim=-1)
    d_params = mean.new_zeros(len(mean), 0)
    if param_slope is not None:
        d_params = (param_slope(f) @ weights).unsqueeze(-1)
    return ExpectedLogProb(value @ weights, d_mean, d_sd / (2.0 * sd), d_params)


def logistic_nodes(variance: Tensor) -> int:
    """How many nodes the widest of these outputs asks for; most where asking would have to wait."""
    if variance.device.type != "cpu" or not variance.numel():
        return N_NODES
    widest = float(variance.detach().amax()) ** 0.5
    return next((n for limit, n in _LOGISTIC.items() if widest <= limit), N_NODES)


def by_autograd(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
) -> ExpectedLogProb:
    """The expectation of any likelihood with its derivatives.

    Where it asks for no noise each target depends on one output, and the expectation of a sum of
    such terms is exact at nodes that all outputs share: 64 evaluations. Else one draw,
    ``f = m + sqrt(v) noise`` (unbiased). Differentiable where its arguments are.
    """
    integrates = not likelihood.n_noise(mean.shape[1])
    graph = torch.is_grad_enabled() and any(
        t.requires_grad for t in (mean, variance, likelihood.params)
    )
    with torch.inference_mode(False), torch.enable_grad():
        mean, variance, y, noise = leaf(mean), leaf(variance), kept(y), kept(noise)
        leaves = [mean, variance]
        if likelihood.n_params:
            rows = likelihood.params.expand(len(mean), -1)  # a copy of their own per row
            leaves.append(leaf(rows))
            likelihood = likelihood.at(leaves[-1])
        if integrates:
            # Kept between calls, of which the first may have been in inference mode.
            nodes, weights = (kept(t).to(mean) for t in gauss_hermite(N_NODES))
            sd = variance.clamp_min(_LEAST_VARIANCE).sqrt()
            outputs = mean + sd * nodes[:, None, None]
            value = weights @ likelihood.log_prob(outputs, y)
        else:
            sd = variance.clamp_min(_LEAST_VARIANCE).sqrt()
            value = likelihood.log_prob(mean + sd * noise, y)
        slopes = torch.autograd.grad(value.sum(), leaves, create_graph=graph)
    d_params = slopes[2] if len(slopes) > 2 else mean.new_zeros(len(mean), 0)
    return ExpectedLogProb(value if graph else value.detach(), slopes[0], slopes[1], d_params)
