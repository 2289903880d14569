r"""Canonical representatives of the rescaling orbits of homogeneous hidden units.

A network doesn't change if the incoming weights and the bias of a relu unit are multiplied by
:math:`s > 0` and its outgoing weights are divided by :math:`s`. Prior and curvature do change, so
Laplace's evidence and linearised predictions would depend on the point of the orbit where an
optimiser stopped. For prior precisions :math:`\alpha` the log prior density along the orbit is

.. math:: -\tfrac12 (a s^2 + b / s^2) + \text{const}, \quad
          a = \sum_{\text{in}} \alpha_k \theta_k^2, \quad b = \sum_{\text{out}} \alpha_k \theta_k^2,

with its maximum at :math:`s = (b / a)^{1/4}`, where both norms are :math:`\sqrt{ab}`.
"""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_array
from torch import Tensor

from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import Network

if TYPE_CHECKING:
    from skbayes_sym.symmetry.modules.group_assembly import ScaledAxis

# Sweeps over several hidden layers end where no log scale moves by more than the tolerance. Random
# networks take 20 of them with two hidden layers, 100 with four and 200 with eight.
MAX_SWEEPS = 200
TOLERANCE = 1e-10

# Scales whose Newton equations are solved directly, with a matrix of at most 130 MB.
MAX_DENSE_UNITS = 4_000


def balance_weights(network: Network, theta: Tensor, precision: Tensor) -> Tensor:
    """Rescale the units of any network to the highest prior density of their orbits.

    Every estimator that reports a curvature, or predictions of the linearised network, calls this
    function first. Scales of whole layers, such as those that a scalar multiplier can undo, stay.

    Parameters
    ----------
    network : Network
    theta : Tensor of shape (*B, P)
        Weights. They aren't changed in place.
    precision : Tensor of shape (*B, P) or (P,)
        Prior precisions of the weights.

    Returns
    -------
    Tensor of shape (*B, P)
        Weights of the same functions. They are ``theta`` itself if no unit can be rescaled, if a
        module can't be traced, or if the network is neither an `MLP` nor a module.
    """
    if isinstance(network, MLP):
        return balance_units(network, theta, precision)
    if not isinstance(network, ModuleNetwork):
        return theta
    try:
        axes = network.symmetry().scaled_axes
    except ValueError:  # the module can't be traced
        return theta
    if not axes:
        return theta
    rows = theta.reshape(-1, theta.shape[-1])
    precisions = precision.expand_as(theta).reshape(rows.shape)
    balanced = [balance_axes(axes, *pair) for pair in zip(rows, precisions, strict=True)]
    return torch.stack(balanced).reshape(theta.shape)


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


def balance_axes(axes: Sequence["ScaledAxis"], theta: Tensor, precision: Tensor) -> Tensor:
    r"""Rescale the units of a torch module to the highest prior density of their orbits.

    Parameters
    ----------
    axes : sequence of ScaledAxis
        What the free scales of the module multiply.
    theta : Tensor of shape (P,)
        Weights.
    precision : Tensor of shape (P,)
        Prior precisions of the weights.

    Returns
    -------
    Tensor of shape (P,)
        Weights of the same function. They are ``theta`` itself if nothing can be rescaled or no
        point of highest density is found.

    Notes
    -----
    With log scales :math:`t` and the matrix of powers :math:`A` of shape (units, P), the objective
    :math:`\tfrac12 \sum_k \alpha_k \theta_k^2 e^{2 (A' t)_k}` is convex. It is minimised by
    Newton steps in trust regions. Their equations are solved by Cholesky's method, and by conjugate
    gradients if there are more than `MAX_DENSE_UNITS` scales. Units that training has left almost
    without weights make the equations ill-conditioned, so each log scale is measured in units of
    its own curvature at the start. Units all of whose nonzero entries have powers of one sign have
    no point of highest density and keep their scale.
    """
    if not axes:
        return theta
    position, unit = np.concatenate([axis.entries() for axis in axes], axis=1)
    power = np.concatenate([np.full(prod(axis.sizes), axis.power) for axis in axes])
    energy = 0.5 * (precision * theta.square()).double().cpu().numpy()
    n_units = 1 + int(unit.max())
    is_nonzero = energy[position] > 0.0
    signs = [(power * sign > 0.0) & is_nonzero for sign in (1.0, -1.0)]
    can_balance = np.logical_and(*(np.bincount(unit[s], minlength=n_units) for s in signs))
    used = can_balance[unit]
    if not used.any():
        return theta
    coordinates = (unit[used], position[used])
    powers = csr_array((power[used], coordinates), shape=(n_units, len(energy)))
    curvature = (powers * powers) @ energy
    powers = powers * np.where(curvature > 0.0, curvature, 1.0)[:, None] ** -0.5

    def weighted(log_scale: np.ndarray) -> np.ndarray:
        return energy * np.exp(2.0 * (powers.T @ log_scale))

    def hessian(log_scale: np.ndarray) -> np.ndarray:
        return 4.0 * ((powers * weighted(log_scale)) @ powers.T).toarray()

    def hessian_product(log_scale: np.ndarray, step: np.ndarray) -> np.ndarray:
        return 4.0 * (powers @ (weighted(log_scale) * (powers.T @ step)))

    method: dict[str, Any] = {"method": "trust-exact", "hess": hessian}
    if n_units > MAX_DENSE_UNITS:
        method = {"method": "trust-ncg", "hessp": hessian_product}
    solution = minimize(
        lambda t: float(weighted(t).sum()),
        np.zeros(n_units),
        jac=lambda t: 2.0 * (powers @ weighted(t)),
        tol=1e-7 * float(energy.sum()) ** 0.5,
        **method,
    )
    if not solution.success:
        return theta
    return theta * torch.as_tensor(np.exp(powers.T @ solution.x)).to(theta)
