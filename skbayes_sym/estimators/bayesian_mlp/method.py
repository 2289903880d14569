"""Evidence-trained modes and ensemble members, pooled equally."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    LEARNED_NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    Needs,
)
from skbayes_sym.estimators._fit.model import fully_connected
from skbayes_sym.estimators._fit.run import Run, Stage, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.bayesian_mlp.linear_part import (
    LinearPart,
    fit_linear,
    is_affordable,
    shares,
)
from skbayes_sym.estimators.bayesian_mlp.shares import Shares, equal_shares
from skbayes_sym.estimators.ensemble.method import DeepEnsemble, Members
from skbayes_sym.estimators.ensemble.refit import Refitting
from skbayes_sym.estimators.laplace.effort import STEPS, USUAL_WORK, affordable_modes
from skbayes_sym.estimators.laplace.modes import EvidenceLaplace, ModesFit
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.activations import RELU
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import Normal
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.symmetry.base import Trivial

_MODE_TOL = 5e-6
_LINEAR_SHARE = 0.01  # of the fit's blocks

_MEMBER_WIDTH = (50,)
# The ensemble's own defaults: relu under a fixed prior of 1 is what tanh modes lack.
_MEMBER_RATE, _MEMBER_STEPS, _MEMBER_TOL, _NOISE_PRIOR = 0.03, 2000, 1e-3, 1.0
# Of the parts' reasons to stop the pool's, the first that one of them had.
_GRAVEST: tuple[Stopped, ...] = ("interrupted", "callback", "max_iter")


class Ended(Protocol):
    """One of the methods' results."""

    @property
    def n_iter(self) -> int: ...
    @property
    def stop_reason(self) -> Stopped: ...


class Pooled:
    """What results of several methods say together."""

    @property
    def _parts(self) -> Sequence[Ended]:
        raise NotImplementedError

    @property
    def n_iter(self) -> int:
        return sum(part.n_iter for part in self._parts)

    @property
    def stop_reason(self) -> Stopped:
        reasons = [part.stop_reason for part in self._parts]
        return next((reason for reason in _GRAVEST if reason in reasons), "tol")


@dataclass(frozen=True, eq=False)
class PoolFit(Pooled):
    """Linear model, modes and members (so far)."""

    linear: LinearPart | None
    modes: ModesFit | None
    members: Members | None
    member_network: MLP
    choice: str
    by_left_out: Shares | None = None  # once they are known

    @property
    def shares(self) -> Shares:
        """What the kinds count for."""
        if self.by_left_out is not None:
            return self.by_left_out
        n_modes = 0 if self.modes is None else len(self.modes.modes.theta)
        n_members = 0 if self.members is None else len(self.members.theta)
        return equal_shares(n_modes, n_members)

    @property
    def _parts(self) -> Sequence[Ended]:
        return [part for part in (self.modes, self.members) if part is not None]

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        shares = self.shares
        attributes: dict[str, Any] = {
            "choice_": self.choice,
            "linear_share_": shares.linear,
            "modes_share_": shares.modes,
            "members_share_": shares.members,
        }
        variance = np.zeros(len(data.y_scaling.scale))
        if self.modes is not None:
            own = self.modes.attributes(data, model)
            variance += shares.modes * (own["noise_std_modes_"] ** 2).mean(axis=0)
            attributes |= own
        if self.members is not None:
            attributes["samples_"] = self.members.theta
            attributes["member_network_"] = self.member_network
            members = Model(self.member_network, model.likelihood, model.prior, model.group)
            found = self.members.attributes(data, members)["noise_std_samples_"]
            attributes["noise_std_samples_"] = found
            variance += shares.members * (found**2).mean(axis=0)
        if self.linear is not None and shares.linear > 0.0:
            own = self.linear.found.attributes(data, model)
            attributes["linear_posterior_"] = own["posterior_"]
            attributes["noise_std_linear_"] = own["noise_std_modes_"]
            variance += shares.linear * own["noise_std_modes_"][0] ** 2
        overall = np.sqrt(variance)
        attributes["noise_std_"] = float(overall[0]) if len(overall) == 1 else overall
        return attributes


@dataclass(frozen=True, eq=False)
class Pool:
    """Laplace modes of a small network and members of a deep ensemble, all counted alike.

    Beside them stands the linear model, with the share that left-out rows give it.

    Parameters
    ----------
    n_modes : int
        Restarts of the evidence-trained network, as far as the rows allow them.
    n_members : int
    """

    needs: ClassVar[Needs] = Needs(LEARNED_NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_modes: int
    n_members: int

    def fit(self, data: Training, model: Model, run: Run) -> PoolFit:
        network = fully_connected(model.network)
        n_modes = affordable_modes(self.n_modes, data.n_rows, network)
        choice = self._choice(n_modes, data, network)
        logger.info("%s", choice)
        wide = member_network(network.n_inputs, network.n_outputs)
        run.begin()
        share = 0.5 if n_modes else 1.0
        modes = members = linear = by_left_out = None
        if n_modes:
            found = EvidenceLaplace(n_modes, STEPS, _MODE_TOL)
            stage = Stage(run, share, lambda m: PoolFit(None, m, None, wide, choice))
            modes = found.fit(data, model, stage)
        interrupted = modes is not None and modes.stop_reason in ("interrupted", "callback")
        # As many members as modes: neither kind outvotes the other.
        n_members = min(self.n_members, n_modes) if n_modes else self.n_members
        if not interrupted:
            own = member_model(wide, model.likelihood)
            left = share - _LINEAR_SHARE
            stage = Stage(run, left, lambda m: PoolFit(None, modes, m, wide, choice))
            members = ensemble(n_members).fit(data, own, stage)
            if is_affordable(data, network.n_outputs, USUAL_WORK):
                so_far = PoolFit(None, modes, members, wide, choice)
                stage = Stage(run, _LINEAR_SHARE, lambda _: so_far)
                linear = fit_linear(data, model, stage)
                by_left_out = shares(linear, modes, members, model, own, data)
                choice += _of_shares(by_left_out, has_modes=modes is not None)
        found_all = PoolFit(linear, modes, members, wide, choice, by_left_out)
        run.end(found_all)
        return found_all

    def _choice(self, n_modes: int, data: Training, network: MLP) -> str:
        sizes = " x ".join(str(s) for s in network.hidden_layer_sizes) or "no"
        n_members = min(self.n_members, n_modes) if n_modes else self.n_members
        parts = [
            f"{n_modes} modes of {sizes} tanh units by the evidence" if n_modes else "",
            f"{n_members} ensemble members with effective noise",
        ]
        kinds = " and ".join(part for part in parts if part)
        text = f"{data.n_rows:,} distinct rows of {data.n_features} features: {kinds}"
        if n_modes < self.n_modes:
            text += f"; {self.n_modes} modes would take too long"
        return text


def _of_shares(shares: Shares, has_modes: bool) -> str:
    """What left-out rows have said, for the line that tells what was fitted."""
    text = f"; a linear model counts for {shares.linear:.0%}"
    if shares.linear < 1.0 and has_modes and not shares.modes:
        text += ", modes for nothing"
    if shares.linear < 1.0 and has_modes and not shares.members:
        text += ", members for nothing"
    return text


def member_network(n_inputs: int, n_outputs: int) -> MLP:
    """What every member is."""
    return MLP(n_inputs, _MEMBER_WIDTH, n_outputs, RELU)


def member_model(network: MLP, likelihood: Likelihood) -> Model:
    """What is believed of it."""
    return Model(network, likelihood, Normal(1.0).bind(network.layout), Trivial())


def ensemble(n_members: int, refitting: Refitting | None = None) -> DeepEnsemble:
    """How members are trained; numbers have effective noise, classes may be refitted."""
    return DeepEnsemble(
        n_members, _NOISE_PRIOR, _MEMBER_RATE, _MEMBER_STEPS, _MEMBER_TOL,
        has_effective_noise=refitting is None, refitting=refitting,
    )  # fmt: skip
