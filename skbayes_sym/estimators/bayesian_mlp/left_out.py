"""The rows that each part of a pool leaves out, and what they say of the parts."""

from collections.abc import Mapping
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.model import fully_connected
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.bayesian_mlp.linear_part import LinearPart, linear_network
from skbayes_sym.estimators.bayesian_mlp.shares import Shares, shared
from skbayes_sym.estimators.ensemble.method import Members
from skbayes_sym.estimators.laplace.modes import ModesFit
from skbayes_sym.inference.effective_noise import chosen_rows
from skbayes_sym.inference.laplace.mode_mixture import LinearisedModes
from skbayes_sym.inference.laplace.search.numbers import Modes
from skbayes_sym.inference.laplace.search.systems import are_outnumbered
from skbayes_sym.inference.left_out import LeftOut, left_out
from skbayes_sym.inference.noise_shape import PooledLeftOut
from skbayes_sym.models.data import Data
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP


class Parts(NamedTuple):
    """Everything a pool may be made of."""

    linear: LinearPart
    modes: ModesFit | None
    members: Members | None


def judged(parts: Parts, model: Model, wide: Model, data: Training) -> tuple[Shares, PooledLeftOut]:
    """What every kind counts for by the rows it leaves out, and what all then say of these rows.

    Members are of ``wide``. Where there are any, of more than 4,096 rows that many decide.
    """
    chosen, members = data.double_data, None
    if parts.members is not None:
        rows, members = _members_left_out(parts.members, wide, chosen)
        chosen = Data(*(t[rows] for t in chosen))
    modes = None
    if parts.modes is not None:
        modes = _modes_left_out(parts.modes.modes, parts.modes.network, chosen)
    network = linear_network(data.n_features, model.network.n_outputs)
    linear = _modes_left_out(parts.linear.found.modes, network, chosen)
    none = chosen.x.new_empty(0, len(chosen.x))
    of_modes, of_members = (
        none if law is None else law.log_prob(chosen.y) for law in (modes, members)
    )
    shares = shared(linear.log_prob(chosen.y)[0], of_modes, of_members, chosen.weight)
    if parts.modes is not None:
        n_params = parts.modes.network.layout.n_params
        if are_outnumbered(data.double_data.y.numel(), n_params):
            shares = shares.with_evidence(*_evidences(parts.linear, parts.modes))
    laws = {"linear": linear, "modes": modes, "members": members}
    return shares, _pooled(shares, laws, chosen)


def _evidences(linear: LinearPart, modes: ModesFit) -> tuple[float, float]:
    """Of the linear model and of the best mode with all its copies, nats."""
    copies = modes.network.symmetry().log_order
    best = float(modes.modes.log_evidence.max()) + copies
    return float(linear.found.modes.log_evidence.max()), best


def _pooled(shares: Shares, laws: Mapping[str, LeftOut | None], rows: Data) -> PooledLeftOut:
    """The kinds that count, as one distribution of every row.

    Members only where no modes count: their rows are the more favourable, since all of their many
    hidden units have seen them.
    """
    left = {kind: law for kind, law in laws.items() if law is not None and getattr(shares, kind)}
    if "modes" in left:
        left.pop("members", None)
    total = sum(getattr(shares, kind) for kind in left)
    log_shares = torch.cat([
        rows.y.new_full((len(law.mean),), log(getattr(shares, kind) / total / len(law.mean)))
        for kind, law in left.items()
    ])  # fmt: skip
    laws_of_all = map(torch.cat, zip(*left.values(), strict=True))
    return PooledLeftOut(LeftOut(*laws_of_all), log_shares, rows.y, rows.weight)


def _modes_left_out(modes: Modes, network: MLP, data: Data) -> LeftOut:
    """Left-out rows at every mode."""
    x, y, _ = data
    theta, factor = modes.theta.to(x), modes.factor.to(x)
    mean, covariance = LinearisedModes(network, theta, factor).outputs(x)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    noise = modes.noise_precision.to(x).reciprocal().unsqueeze(1)
    return left_out(y, mean, variance / noise, noise)


def _members_left_out(members: Members, model: Model, data: Data) -> tuple[Tensor, LeftOut]:
    """Rows (n,) and what every member, linearised, says of them."""
    x, y, weight = data
    rows = chosen_rows(len(x)).to(x.device)
    theta, leverage = torch.as_tensor(members.theta).to(x), members.leverage
    assert leverage is not None  # of members with effective noise that have ended
    noise = model.likelihood.at(torch.as_tensor(members.log_noise).to(x)).noise_scale.to(x)
    squares = noise.expand(len(theta), -1).square().unsqueeze(1)
    share = float(weight.sum()) / float(weight[rows].sum())
    each = leverage.to(x).mT / (share * weight[rows]).unsqueeze(1)  # of one repetition
    fitted = fully_connected(model.network).forward(theta, x[rows])
    return rows, left_out(y[rows], fitted, each, squares)
