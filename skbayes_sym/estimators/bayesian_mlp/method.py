"""Evidence-trained modes, ensemble members and a linear model, pooled by left-out rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from skbayes_sym.estimators.bayesian_mlp.left_out import Parts, judged
from skbayes_sym.estimators.bayesian_mlp.linear_part import LinearPart, fit_linear, is_affordable
from skbayes_sym.estimators.bayesian_mlp.shares import Shares, equal_shares
from skbayes_sym.estimators.ensemble.method import DeepEnsemble, Members
from skbayes_sym.estimators.ensemble.refit import Refitting
from skbayes_sym.estimators.laplace.effort import (
    MOST_NOISE,
    MOST_WORK,
    USUAL_WORK,
    affordable_modes,
    restarts,
)
from skbayes_sym.estimators.laplace.mode_method import EvidenceLaplace
from skbayes_sym.estimators.laplace.modes import ModesFit
from skbayes_sym.inference.effective_noise import MOST_ROWS
from skbayes_sym.inference.laplace.search.beginnings import noise_share
from skbayes_sym.inference.noise_shape import NoiseShape, fit_noise_shape
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.activations import RELU
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import Normal, UnboundPrior
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.symmetry.base import Trivial

_MODE_TOL = 5e-6
LINEAR_SHARE = 0.01  # of the fit's blocks
INTERRUPTED = "what had been found when the fit was interrupted"

_MEMBER_WIDTH = (50,)
_EIGENVECTORS = 9.0  # multiplications of symmetric matrices' eigenvectors, about, over m^3
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


def has_ended(part: Ended | None) -> bool:
    """Whether a part was told to end, and with it the fit."""
    return part is not None and part.stop_reason in ("interrupted", "callback")


def those_that_count(
    modes: Ended | None, members: Ended | None, linear: Ended | None
) -> list[Ended]:
    """Parts that say how long a fit was and why it ended; the linear model if it was told to."""
    networks = [part for part in (modes, members) if part is not None]
    return [*networks, linear] if linear is not None and has_ended(linear) else networks


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
    noise: NoiseShape | None = None

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
        linear = None if self.linear is None else self.linear.found
        return those_that_count(self.modes, self.members, linear)

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        shares = self.shares
        attributes: dict[str, Any] = {"choice_": self.choice, **shares.attributes()}
        unit = data.y_scaling.scale  # of targets, whose squares may be beyond numbers
        variance = np.zeros(len(unit))
        if self.modes is not None:
            own = self.modes.attributes(data, model)
            variance += shares.modes * np.square(own["noise_std_modes_"] / unit).mean(axis=0)
            attributes |= own
        if self.members is not None:
            attributes["samples_"] = self.members.theta
            attributes["member_network_"] = self.member_network
            members = Model(self.member_network, model.likelihood, model.prior, model.group)
            found = self.members.attributes(data, members)["noise_std_samples_"]
            attributes["noise_std_samples_"] = found
            variance += shares.members * np.square(found / unit).mean(axis=0)
        if self.linear is not None and shares.linear > 0.0:
            own = self.linear.found.attributes(data, model)
            attributes["linear_posterior_"] = own["posterior_"]
            attributes["noise_std_linear_"] = own["noise_std_modes_"]
            variance += shares.linear * np.square(own["noise_std_modes_"][0] / unit)
        if self.noise is not None:
            attributes["noise_shape_"] = self.noise
            variance *= self.noise.mean_square
        overall = np.sqrt(variance) * unit
        attributes["noise_std_"] = float(overall[0]) if len(overall) == 1 else overall
        return attributes


@dataclass(frozen=True, eq=False)
class Pool:
    """Laplace modes of a small network, members of a deep ensemble, and the linear model.

    Left-out rows say what the linear model counts for, which kind of networks, and whether the
    noise changes with the level; where modes find much noise there are no members.

    Parameters
    ----------
    n_modes : int
        Restarts of the evidence-trained network, as far as the rows allow them.
    n_members : int
    widens : bool, default=False
        As of `EvidenceLaplace`, like the next.
    wide_prior : unbound prior, optional
    shapes_noise : bool, default=True
        Whether left-out rows may say that the noise isn't the same for all.
    """

    needs: ClassVar[Needs] = Needs(LEARNED_NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_modes: int
    n_members: int
    widens: bool = False
    wide_prior: UnboundPrior | None = None
    shapes_noise: bool = True

    def fit(self, data: Training, model: Model, run: Run) -> PoolFit:
        network = fully_connected(model.network)
        wide = member_network(network.n_inputs, network.n_outputs)
        run.begin()
        share, modes = 1.0, None
        if affordable_modes(self.n_modes, data.n_rows, network):
            share = 0.5
            stage = Stage(run, share, lambda m: PoolFit(None, m, None, wide, INTERRUPTED))
            modes = self._modes(data, model, stage)
        members = linear = by_left_out = noise = None
        if not has_ended(modes):
            own = member_model(wide, model.likelihood)
            # As many members as modes: neither kind outvotes the other.
            n = self.n_members if modes is None else min(self.n_members, len(modes.modes.theta))
            if modes is None or _has_members(n, modes, wide, data):
                left = share - LINEAR_SHARE
                stage = Stage(run, left, lambda m: PoolFit(None, modes, m, wide, INTERRUPTED))
                members = ensemble(n).fit(data, own, stage)
            affordable = is_affordable(data, network.n_outputs, USUAL_WORK)
            if affordable and not has_ended(members):
                so_far = PoolFit(None, modes, members, wide, INTERRUPTED)
                linear = fit_linear(data, model, Stage(run, LINEAR_SHARE, lambda _: so_far))
            if linear is not None and not has_ended(linear.found):
                parts = Parts(linear, modes, members)
                by_left_out, rows = judged(parts, model, own, data)
                noise = fit_noise_shape(rows) if self.shapes_noise else None
        found = PoolFit(linear, modes, members, wide, "", by_left_out, noise)
        found = replace(found, choice=self._choice(data, found))
        logger.info("%s", found.choice)
        run.end(found)
        return found

    def _modes(self, data: Training, model: Model, run: Run) -> ModesFit:
        how = EvidenceLaplace(
            "auto", "auto", _MODE_TOL, widens=self.widens, wide_prior=self.wide_prior,
            most=self.n_modes,
        )  # fmt: skip
        return how.fit(data, model, run)

    def _choice(self, data: Training, found: PoolFit) -> str:
        parts, n_modes, n_sought = [], 0, 0
        if found.modes is not None:
            n_modes = len(found.modes.modes.theta)
            n_sought = restarts("auto", data.n_rows, found.modes.network, self.n_modes)
            sizes = " x ".join(str(s) for s in found.modes.network.hidden_layer_sizes) or "no"
            parts.append(f"{n_modes} modes of {sizes} tanh units by the evidence")
        if found.members is not None:
            parts.append(f"{len(found.members.theta)} ensemble members with effective noise")
        text = f"{data.n_rows:,} distinct rows of {data.n_features} features: {' and '.join(parts)}"
        if n_modes < n_sought and not has_ended(found.modes):  # stopped, not all were sought
            text += f"; of {n_sought} the others' evidence is lower by a nat per row"
        if found.modes is not None and found.modes.width_scores is not None:
            text += _of_widths(found.modes.width_scores)
        if n_sought < self.n_modes:
            text += f"; {self.n_modes} modes would take too long"
        if found.by_left_out is not None:
            text += _of_shares(found.by_left_out, found)
        if found.noise is not None:
            text += f"; {found.noise}"
        return text


def _of_widths(scores: Mapping[int, float]) -> str:
    """What rows held out have said of how many units, for the same line."""
    if len(scores) < 2:  # it was stopped
        return ""
    told = ", ".join(f"{score:.2f} by {width}" for width, score in scores.items())
    return f"; cross-validated nats per row: {told} units"


def _of_shares(shares: Shares, found: PoolFit) -> str:
    """What left-out rows have said, for the line that tells what was fitted."""
    text = f"; a linear model counts for {shares.linear:.0%}"
    if shares.linear < 1.0 and found.modes is not None and not shares.modes:
        text += ", modes for nothing"
    if shares.linear < 1.0 and found.members is not None and not shares.members:
        text += ", members for nothing"
    return text


def _has_members(n_members: int, modes: ModesFit, network: MLP, data: Training) -> bool:
    """Whether members may add something to modes, and their noise and left-out rows take seconds.

    These cost two eigendecompositions a member, in the smaller of the spaces of rows and weights.
    """
    if noise_share(modes.modes, data.double_data.y.cpu()) > MOST_NOISE:
        return False
    m, larger = sorted((min(data.n_rows, MOST_ROWS) * network.n_outputs, network.layout.n_params))
    return n_members * 2.0 * m**2 * (larger + _EIGENVECTORS * m) <= MOST_WORK


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
