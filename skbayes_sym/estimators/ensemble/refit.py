"""Members of a classification ensemble, refitted as linearised networks where affordable."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.model import fully_connected
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.laplace.labels_predictive import (
    LeftOut,
    left_out_losses,
    widest_within_error,
    without_itself,
)
from skbayes_sym.inference.laplace.member_refit import (
    LinearisedMember,
    RefittedMember,
    RefittedMembers,
    refit,
)
from skbayes_sym.models.model import Model

# Under a fixed prior the laws may be far too narrow as well as too wide.
VARIANCE_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)
_MOST_WORK = 3e11  # multiplications for all members: some fifteen seconds of one core
_MOST_NUMBERS = 4e7  # of a member's Jacobian: 320 MB


class Refitted(NamedTuple):
    """Members that predictions are made of."""

    members: RefittedMembers
    variance_scale: float
    left_out: Tensor | None = None  # (N,), log p of every row left out, nats; by "loo"


@dataclass(frozen=True)
class Refitting:
    """Gaussian variational inference of each member's linearised network.

    ``variance_scale``: factor on the variance of the logits; "loo" chooses it by approximate
    leave-one-out. ``is_optional``: whether to leave members as they are where the refit would take
    long, or the prior isn't normal.
    """

    variance_scale: str | float
    is_optional: bool

    def is_due(self, n_members: int, data: Training, model: Model) -> bool:
        if not self.is_optional:
            return True
        if model.prior.gaussian() is None:
            return False
        n_logits = 1 if model.network.n_outputs == 2 else model.network.n_outputs
        n, p = data.n_rows * n_logits, model.network.layout.n_params
        m = min(n, p)
        work = n_members * (n * p * m + 60 * n * m**2 + 10 * m**3)
        return work <= _MOST_WORK and data.n_rows * model.network.n_outputs * p <= _MOST_NUMBERS

    def refitted(self, theta: Array, scale: Tensor, data: Training, model: Model) -> Refitted:
        """All members, ``theta`` (M, P), and the factor on the variance they have in common.

        ``scale`` (P,), or (M, P) of every member its own: the prior's standard deviations.
        """
        network, rows = fully_connected(model.network), data.double_data
        scale = scale.to(rows.x)
        members: list[RefittedMember] = []
        left_out: list[LeftOut] = []
        weights = torch.as_tensor(theta).to(rows.x)
        for theta_m, prior_scale in zip(weights, scale.expand_as(weights), strict=True):
            member = refit(LinearisedMember.at(network, theta_m, prior_scale, rows.x), rows)
            members.append(member.member)
            left_out.append(without_itself(member.logits, member.terms))
        together = RefittedMembers.of(members, scale)
        if not isinstance(self.variance_scale, str):
            return Refitted(together, float(self.variance_scale))
        losses = left_out_losses(left_out, rows.y, VARIANCE_SCALES)
        scaled = widest_within_error(losses, rows.weight, VARIANCE_SCALES)
        return Refitted(together, scaled.chosen, -scaled.of_rows)
