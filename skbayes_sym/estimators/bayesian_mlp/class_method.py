"""Evidence-trained modes and refitted ensemble members of classes, half of the pool each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.model import fully_connected
from skbayes_sym.estimators._fit.run import Run, Stage, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.bayesian_mlp.method import (
    Ended,
    Pooled,
    ensemble,
    member_model,
    member_network,
)
from skbayes_sym.estimators.ensemble.method import Members
from skbayes_sym.estimators.ensemble.refit import Refitting
from skbayes_sym.estimators.laplace.class_method import (
    ClassModesFit,
    EvidenceLaplaceClasses,
    most_steps,
)
from skbayes_sym.estimators.laplace.modes import work
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import UnboundPrior

# Multiplications for all modes, and for one where no more are found: some 25 seconds of one core.
_MOST_WORK = 4e11

_INTERRUPTED = "what had been found when the fit was interrupted"


@dataclass(frozen=True, eq=False)
class ClassPoolFit(Pooled):
    """Modes and members (so far)."""

    modes: ClassModesFit | None
    members: Members | None
    member_network: MLP
    choice: str

    @property
    def _parts(self) -> Sequence[Ended]:
        return [part for part in (self.modes, self.members) if part is not None]

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        attributes: dict[str, Any] = {"choice_": self.choice}
        if self.modes is not None:
            attributes |= self.modes.attributes(data, model)
        if self.members is not None:
            attributes["samples_"] = self.members.theta
            attributes["member_network_"] = self.member_network
            if self.members.refitted is not None:
                refitted, scale = self.members.refitted
                attributes["refitted_members_"] = refitted
                attributes["member_variance_scale_"] = scale
        return attributes


@dataclass(frozen=True, eq=False)
class ClassPool:
    """Refined modes of a small network and refitted members of a deep ensemble.

    Parameters
    ----------
    n_modes : int
        Restarts of the evidence-trained network, as far as rows and weights allow them.
    n_members : int
    n_classes : int
    alternative : unbound prior, optional
        Of the modes, as `EvidenceLaplaceClasses` has it.
    """

    needs: ClassVar[Needs] = Needs(SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_modes: int
    n_members: int
    n_classes: int
    alternative: UnboundPrior | None = None

    def fit(self, data: Training, model: Model, run: Run) -> ClassPoolFit:
        network = fully_connected(model.network)
        n_modes = self._affordable(data.n_rows, network)
        wide = member_network(network.n_inputs, self.n_classes)
        run.begin()
        share = 0.5 if n_modes else 1.0
        modes = members = None
        if n_modes:
            how = EvidenceLaplaceClasses(
                n_modes, "auto", "auto", "loo", alternative=self.alternative
            )
            stage = Stage(run, share, lambda m: ClassPoolFit(m, None, wide, _INTERRUPTED))
            modes = how.fit(data, model, stage)
        if modes is None or modes.stop_reason not in ("interrupted", "callback"):
            own = member_model(wide, model.likelihood)
            refitting = Refitting("loo", is_optional=True)
            stage = Stage(run, share, lambda m: ClassPoolFit(modes, m, wide, _INTERRUPTED))
            members = ensemble(self.n_members, refitting).fit(data, own, stage)
        choice = self._choice(data, network, modes, members)
        logger.info("%s", choice)
        found = ClassPoolFit(modes, members, wide, choice)
        run.end(found)
        return found

    def _affordable(self, n_rows: int, network: MLP) -> int:
        """How many modes some seconds of one core are enough for."""
        n_params = network.layout.n_params
        each = work(1, most_steps(n_params), n_rows, n_params)
        return min(self.n_modes, int(_MOST_WORK / each))

    def _choice(
        self, data: Training, network: MLP, modes: ClassModesFit | None, members: Members | None
    ) -> str:
        kinds, reasons = [], []
        sizes = " x ".join(str(s) for s in network.hidden_layer_sizes) or "no"
        n_modes = 0 if modes is None else len(modes.modes.theta)
        if modes is not None:
            kinds.append(
                f"{n_modes} modes of {sizes} tanh units by the evidence (variance scale "
                f"{modes.variance_scale:g} by left-out rows)"
            )
        if n_modes < self.n_modes:
            reasons.append(f"; {self.n_modes} modes would take too long")
        if members is not None and members.refitted is not None:
            kinds.append(
                f"{len(members.theta)} refitted ensemble members (variance scale "
                f"{members.refitted.variance_scale:g})"
            )
        elif members is not None:
            kinds.append(f"{len(members.theta)} ensemble members as trained")
            reasons.append("; refitting members would take too long")
        rows = f"{data.n_rows:,} distinct rows of {data.n_features} features"
        return f"{rows}, {self.n_classes} classes: {' and '.join(kinds)}{''.join(reasons)}"
