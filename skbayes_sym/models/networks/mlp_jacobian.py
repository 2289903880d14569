"""Derivatives of a fully connected network's outputs by all its weights, in closed form."""

import torch
from torch import Tensor

from skbayes_sym.models.networks.mlp import MLP


def outputs_and_jacobian(network: MLP, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and their derivatives, for several weight vectors at once.

    Parameters
    ----------
    network : MLP
    theta : Tensor of shape (R, P)
    x : Tensor of shape (N, n_inputs)

    Returns
    -------
    outputs : Tensor of shape (R, N, O)
    jacobian : Tensor of shape (R, N, O, P)

    Notes
    -----
    One forward pass and one backward pass an output, O(R N O P) time and memory.
    """
    layers = network.layers(theta)
    inputs, slopes, h = [], [], x.expand(len(theta), *x.shape)
    for i, (weight, bias) in enumerate(layers, start=1):
        inputs.append(h)
        h = torch.baddbmm(bias.unsqueeze(1), h, weight.mT)
        if i < network.n_layers:
            h = network.activation.function(h)
            slopes.append(network.activation.backward_(torch.ones_like(h), h))
    n_outputs = network.n_outputs
    shape = (len(theta), len(x), n_outputs)
    jacobian = theta.new_empty(*shape, network.layout.n_params)
    where = network.layout.slices
    delta = torch.eye(n_outputs, dtype=theta.dtype, device=theta.device).expand(*shape, n_outputs)
    for i in range(network.n_layers, 0, -1):
        by_weight = delta.unsqueeze(-1) * inputs[i - 1][:, :, None, None, :]
        jacobian[..., where[f"W{i}"]] = by_weight.flatten(-2)
        jacobian[..., where[f"b{i}"]] = delta
        if i > 1:
            delta = torch.einsum("rnok,rkj->rnoj", delta, layers[i - 1][0])
            delta = delta * slopes[i - 2].unsqueeze(2)
    return h, jacobian
