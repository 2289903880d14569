"""Evidence-trained modes and ensemble members, pooled equally."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    LEARNED_NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    Needs,
)
from skbayes_sym.estimators._fit.model import fully_connected
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import Run, Stage, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.ensemble.method import DeepEnsemble, Members
from skbayes_sym.estimators.laplace.modes import MOST_WORK, EvidenceLaplace, ModesFit, work
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.activations import RELU, TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import Normal
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.symmetry.base import Trivial

_MODE_STEPS, _MODE_TOL = 100, 5e-6
_FEWEST_MODES = 3  # worth finding at all
_USUAL_WORK = 8e10  # multiplications for all modes: three to six seconds of one core

# hidden_layer_sizes="auto" and prior=None: beyond so many rows forty units and a scale a column
# predict better (airfoil: .1 nats per row), below twenty units and a scale a layer do.
MANY_ROWS, _NARROW, _WIDE = 1000, 20, 40
_MEMBER_WIDTH = (50,)
# The ensemble's own defaults: relu under a fixed prior of 1 is what tanh modes lack.
_MEMBER_RATE, _MEMBER_STEPS, _MEMBER_TOL, _NOISE_PRIOR = 0.03, 2000, 1e-3, 1.0


@dataclass(frozen=True, eq=False)
class PoolFit:
    """Modes and members (so far)."""

    modes: ModesFit | None
    members: Members | None
    member_network: MLP
    choice: str

    @property
    def n_iter(self) -> int:
        return sum(part.n_iter for part in (self.modes, self.members) if part is not None)

    @property
    def stop_reason(self) -> Stopped:
        reasons = [part.stop_reason for part in (self.modes, self.members) if part is not None]
        for reason in ("interrupted", "callback", "max_iter"):
            if reason in reasons:
                return reason  # type: ignore[return-value]
        return "tol"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        attributes: dict[str, Any] = {"choice_": self.choice}
        noise: list[Array] = []
        if self.modes is not None:
            own = self.modes.attributes(data, model)
            noise.append(own["noise_std_modes_"])
            attributes |= own
        if self.members is not None:
            attributes["samples_"] = self.members.theta
            attributes["member_network_"] = self.member_network
            members = Model(self.member_network, model.likelihood, model.prior, model.group)
            found = self.members.attributes(data, members)
            attributes["noise_std_samples_"] = found["noise_std_samples_"]
            noise.append(found["noise_std_samples_"])
        overall = np.sqrt((np.concatenate(noise) ** 2).mean(axis=0))
        attributes["noise_std_"] = float(overall[0]) if len(overall) == 1 else overall
        return attributes


@dataclass(frozen=True, eq=False)
class Pool:
    """Laplace modes of a small network and members of a deep ensemble, all counted alike.

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
        n_modes = self._affordable(data.n_rows, network)
        choice = self._choice(n_modes, data, network)
        logger.info("%s", choice)
        wide = MLP(network.n_inputs, _MEMBER_WIDTH, network.n_outputs, RELU)
        run.begin()
        share = 0.5 if n_modes else 1.0
        modes = members = None
        if n_modes:
            found = EvidenceLaplace(n_modes, _MODE_STEPS, _MODE_TOL)
            modes = found.fit(data, model, Stage(run, share))
        interrupted = modes is not None and modes.stop_reason in ("interrupted", "callback")
        # As many members as modes: neither kind outvotes the other.
        n_members = min(self.n_members, n_modes) if n_modes else self.n_members
        if not interrupted:
            prior = Normal(1.0).bind(wide.layout)
            own = Model(wide, model.likelihood, prior, Trivial())
            members = self._ensemble(n_members).fit(data, own, Stage(run, share))
        found_all = PoolFit(modes, members, wide, choice)
        run.end(found_all)
        return found_all

    def _ensemble(self, n_members: int) -> DeepEnsemble:
        return DeepEnsemble(
            n_members, _NOISE_PRIOR, _MEMBER_RATE, _MEMBER_STEPS, _MEMBER_TOL,
            has_effective_noise=True,
        )  # fmt: skip

    def _affordable(self, n_rows: int, network: MLP) -> int:
        """How many modes some seconds of one core are enough for; a few may take longer."""
        each = _work(n_rows, network)
        few = min(_FEWEST_MODES, self.n_modes)
        if few * each > MOST_WORK:
            return 0
        return min(self.n_modes, max(few, int(_USUAL_WORK / each)))

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


def automatic_width(n_rows: int, n_inputs: int, n_outputs: int) -> int:
    """Hidden units of the modes' network: more where there are more rows and time for them."""
    wide = MLP(n_inputs, (_WIDE,), n_outputs, TANH)
    affordable = _FEWEST_MODES * _work(n_rows, wide) <= MOST_WORK
    return _WIDE if n_rows > MANY_ROWS and affordable else _NARROW


def _work(n_rows: int, network: MLP) -> float:
    """Multiplications for one mode, about."""
    return work(1, _MODE_STEPS, n_rows * network.n_outputs, network.layout.n_params)
