"""Derivatives of any likelihood in its outputs and parameters, by autograd."""

from dataclasses import dataclass

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.base import Likelihood

# Curvatures below this share of a row's largest count as none: their square roots have no slope.
_FLAT = 1e-10


def kept(tensor: Tensor) -> Tensor:
    """The same numbers as a tensor that a backward pass may keep: out of inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor


def leaf(tensor: Tensor) -> Tensor:
    """The same numbers where a derivative can start: itself if it has a graph already."""
    return tensor if tensor.requires_grad else kept(tensor).detach().requires_grad_()


def score(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """Gradient of the log density in the outputs, (N, O); differentiable where they are."""
    graph = _has_graph(likelihood, outputs)
    with torch.inference_mode(False), torch.enable_grad():
        outputs, y = leaf(outputs), kept(y)
        total = likelihood.log_prob(outputs, y).sum()
        return torch.autograd.grad(total, outputs, create_graph=graph)[0]


def hessian_root(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    r"""Columns of a root of the curvature ``H = -d^2 log p / d outputs^2``, (O, N, O).

    Eigenvalues below zero, where the density isn't log-concave, count as zero, so the curvature
    used is at least the true one. Cost: O + 1 backward passes and an eigendecomposition per row.

    Notes
    -----
    Eigenvectors have no derivative where eigenvalues are equal, but a root has: with
    ``R = V diag(sqrt(lambda))`` held fixed, :math:`R + (dH) V diag(1 / sqrt(lambda)) / 2` squares
    to ``H + dH`` up to second order.
    """
    graph = _has_graph(likelihood, outputs)
    with torch.inference_mode(False), torch.enable_grad():
        outputs, y = leaf(outputs), kept(y)
        total = likelihood.log_prob(outputs, y).sum()
        slope = torch.autograd.grad(total, outputs, create_graph=True)[0]
        rows = [_row(slope[:, k], outputs, graph) for k in range(outputs.shape[1])]
    hessian = -torch.stack(rows, 1)
    value, vectors = torch.linalg.eigh(hessian.detach())
    bends = value > _FLAT * value.abs().amax(-1, keepdim=True)
    roots = torch.where(bends, value, 1.0).sqrt()
    root = vectors * torch.where(bends, roots, 0.0).unsqueeze(-2)
    if graph:
        inverse = vectors * torch.where(bends, 1.0 / roots, 0.0).unsqueeze(-2)
        root = root + 0.5 * (hessian - hessian.detach()) @ inverse
    return root.movedim(-1, 0)


def _row(slope: Tensor, outputs: Tensor, graph: bool) -> Tensor:
    """Derivative of one output's slope (N,) in all outputs; 0 where it is constant."""
    if not slope.requires_grad:
        return torch.zeros_like(outputs)
    (row,) = torch.autograd.grad(
        slope.sum(), outputs, create_graph=graph, retain_graph=True, allow_unused=True
    )
    return torch.zeros_like(outputs) if row is None else row


def _has_graph(likelihood: Likelihood, outputs: Tensor) -> bool:
    """Whether somebody wants to differentiate what is made of these."""
    wanted = outputs.requires_grad or likelihood.params.requires_grad
    return bool(torch.is_grad_enabled() and wanted)


@dataclass(frozen=True, eq=False)
class AutogradTerm:
    """A `DataTerm` of any likelihood.

    Parameters
    ----------
    likelihood : Likelihood
    y : Tensor of shape (N, ...)
    weight : Tensor of shape (N,)
    """

    likelihood: Likelihood
    y: Tensor
    weight: Tensor

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
