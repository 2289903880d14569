r"""Canonical representatives of the rescaling orbits of homogeneous hidden units.

A network doesn't change if the incoming weights and the bias of a relu unit are multiplied by
:math:`s > 0` and its outgoing weights are divided by :math:`s`. Prior and curvature do change, so
Laplace's evidence and linearised predictions would depend on the point of the orbit where an
optimiser stopped. For prior precisions :math:`\alpha` the log prior density along the orbit is

.. math:: -\tfrac12 (a s^2 + b / s^2) + \text{const}, \quad
          a = \sum_{\text{in}} \alpha_k \theta_k^2, \quad b = \sum_{\text{out}} \alpha_k \theta_k^2,

with its maximum at :math:`s = (b / a)^{1/4}`, where both norms are :math:`\sqrt{ab}`.
"""

import torch
from torch import Tensor

from skbayes_sym.models.networks.mlp import MLP

# Sweeps over several hidden layers end where no log scale moves by more than the tolerance. Random
# networks take 20 of them with two hidden layers, 100 with four and 200 with eight.
MAX_SWEEPS = 200
TOLERANCE = 1e-10


def balance_units(network: MLP, theta: Tensor, precision: Tensor) -> Tensor:
    """Rescale hidden units to the point of their orbit with the highest prior density.

    Parameters
    ----------
    network : MLP
    theta : Tensor of shape (*B, P)
        Weights. They aren't changed in place.
    precision : Tensor of shape (*B, P) or (P,)
        Prior precisions of the weights.

    Returns
    -------
    Tensor of shape (*B, P)
        Weights of the same functions. They are ``theta`` itself if the activation isn't positively
        homogeneous or if there is no hidden layer.

    Notes
    -----
    One hidden layer is solved in closed form. The scales of several hidden layers depend on one
    another and are found by cyclic updates. Their objective is a sum of exponentials of linear
    functions of the log scales, which is convex. A unit whose incoming or outgoing weights are all
    zero has no point of highest density and keeps its weights.
    """
    if not network.activation.is_homogeneous or network.n_layers < 2:
        return theta
    balanced = theta.clone()
    layers = network.layers(balanced)
    precisions = network.layers(precision.expand_as(theta))
    n_sweeps = 1 if network.n_layers == 2 else MAX_SWEEPS
    for _ in range(n_sweeps):
        largest = theta.new_zeros(())
        for i in range(network.n_layers - 1):
            (weight, bias), (weight_precision, bias_precision) = layers[i], precisions[i]
            outgoing, outgoing_precision = layers[i + 1][0], precisions[i + 1][0]
            incoming_norm = (weight_precision * weight.square()).sum(-1)
            incoming_norm += bias_precision * bias.square()
            outgoing_norm = (outgoing_precision * outgoing.square()).sum(-2)
            log_scale = 0.25 * (outgoing_norm.log() - incoming_norm.log())
            log_scale = torch.where(log_scale.isfinite(), log_scale, 0.0)
            scale = log_scale.exp()
            weight *= scale.unsqueeze(-1)
            bias *= scale
            outgoing /= scale.unsqueeze(-2)
            largest = torch.maximum(largest, log_scale.abs().amax())
        if largest < TOLERANCE:
            break
    return balanced
