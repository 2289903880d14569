"""The linear model in a pool of networks, and the rows that each part of the pool leaves out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.model import fully_connected, independent_normals
from skbayes_sym.estimators._fit.run import Run
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.bayesian_mlp.shares import Shares, shared
from skbayes_sym.estimators.ensemble.method import Members
from skbayes_sym.estimators.laplace.effort import STEPS, work
from skbayes_sym.estimators.laplace.mode_method import EvidenceLaplace
from skbayes_sym.estimators.laplace.modes import ModesFit
from skbayes_sym.inference.effective_noise import leverages_of
from skbayes_sym.inference.laplace.evidence_modes import Modes
from skbayes_sym.inference.laplace.mode_mixture import LinearisedModes
from skbayes_sym.inference.left_out import left_out_log_density
from skbayes_sym.models.data import Data
from skbayes_sym.models.learned_scales import LayerScales
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.activations import IDENTITY
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.symmetry.base import Trivial

_TOL = 5e-6


@dataclass(frozen=True, eq=False)
class LinearPart:
    """A Bayesian linear model, its scales and noise set by the evidence.

    Parameters
    ----------
    found : ModesFit
        Its one mode, which is exact given the scales.
    """

    found: ModesFit


def linear_network(n_inputs: int, n_outputs: int) -> MLP:
    """Without a hidden layer."""
    return MLP(n_inputs, (), n_outputs, IDENTITY)


def is_affordable(data: Training, n_outputs: int, most_work: float) -> bool:
    """Whether the linear model is found in the time that the modes may take."""
    n_params = linear_network(data.n_features, n_outputs).layout.n_params
    return work(1, STEPS, data.n_rows * n_outputs, n_params) <= most_work


def fit_linear(data: Training, model: Model, run: Run) -> LinearPart:
    """The linear model of the same likelihood; its share is still to be found."""
    network = linear_network(data.n_features, model.network.n_outputs)
    prior = LayerScales().bind(network.layout)
    linear = Model(network, model.likelihood, prior, Trivial())
    return LinearPart(EvidenceLaplace(1, STEPS, _TOL).fit(data, linear, run))


def shares(
    part: LinearPart, modes: ModesFit | None, members: Members | None, model: Model, wide: Model,
    data: Training,
) -> Shares:  # fmt: skip
    """What every kind counts for by the rows it leaves out.

    Members are of ``wide``. Where there are any, of more than 4,096 rows that many decide.
    """
    chosen, of_members = data.double_data, data.double_data.x.new_empty(0, len(data.double_data.x))
    if members is not None:
        rows, of_members = _members_left_out(members, wide, chosen)
        chosen = Data(*(t[rows] for t in chosen))
    linear = linear_network(data.n_features, model.network.n_outputs)
    of_modes = of_members[:0]
    if modes is not None:
        of_modes = _modes_left_out(modes.modes, modes.network, chosen)
    first = _modes_left_out(part.found.modes, linear, chosen)[0]
    return shared(first, of_modes, of_members, chosen.weight)


def _modes_left_out(modes: Modes, network: MLP, data: Data) -> Tensor:
    """Log densities (R, N) of left-out rows at every mode."""
    x, y, _ = data
    theta, factor = modes.theta.to(x), modes.factor.to(x)
    mean, covariance = LinearisedModes(network, theta, factor).outputs(x)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    noise = modes.noise_precision.to(x).reciprocal().unsqueeze(1)
    return left_out_log_density(y - mean, variance / noise, noise)


def _members_left_out(members: Members, model: Model, data: Data) -> tuple[Tensor, Tensor]:
    """Rows (n,) and their log densities (M, n) at every member, each linearised."""
    x, y, weight = data
    theta = torch.as_tensor(members.theta).to(x)
    noise = model.likelihood.at(torch.as_tensor(members.log_noise).to(x)).noise_scale.to(x)
    network, scale = fully_connected(model.network), independent_normals(model.prior).scale.to(x)
    found = []
    for one, std in zip(theta, noise.expand(len(theta), -1), strict=True):
        rows, at = leverages_of(network, one, data, scale)
        share = float(weight.sum()) / float(weight[rows].sum())
        leverage = at(std**-2).T / (share * weight[rows]).unsqueeze(1)  # of one repetition
        residual = y[rows] - network.forward(one, x[rows])
        found.append(left_out_log_density(residual, leverage, std.square()))
    return rows, torch.stack(found)
