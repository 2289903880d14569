"""Evidence-trained modes and refitted ensemble members of classes, and a linear model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.model import fully_connected
from skbayes_sym.estimators._fit.run import Run, Stage, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.bayesian_mlp.linear_part import linear_network
from skbayes_sym.estimators.bayesian_mlp.method import (
    INTERRUPTED,
    LINEAR_SHARE,
    Ended,
    Pooled,
    ensemble,
    has_ended,
    member_model,
    member_network,
    those_that_count,
)
from skbayes_sym.estimators.bayesian_mlp.shares import Shares, shared_by_classes
from skbayes_sym.estimators.ensemble.method import Members
from skbayes_sym.estimators.ensemble.refit import Refitting
from skbayes_sym.estimators.laplace.labels_method import (
    EvidenceLaplaceLabels,
    LabelsFit,
    affordable,
)
from skbayes_sym.inference.laplace.search.systems import are_outnumbered
from skbayes_sym.models.data import Data
from skbayes_sym.models.learned_scales import LayerScales
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import UnboundPrior
from skbayes_sym.symmetry.base import Trivial

# Share of the labels' entropy, on rows that modes leave out, up to which members count as trained:
# beyond they don't know that classes overlap, and lose up to half a nat per row.
_MOST_UNEXPLAINED = 0.2
# Fewer rows a column, and members fit any labels: refitted, their left-out rows look a quarter to
# two thirds of a nat better than new ones are (90 rows x 50 to 400 columns, 250 x 100).
_LEAST_ROWS_A_COLUMN = 3


@dataclass(frozen=True, eq=False)
class ClassPoolFit(Pooled):
    """Modes, members and the linear model (so far)."""

    modes: LabelsFit | None
    members: Members | None
    member_network: MLP
    choice: str
    linear: LabelsFit | None = None
    by_left_out: Shares | None = None  # once they are known

    @property
    def shares(self) -> Shares:
        """What the kinds count for: halves, unless left-out rows have spoken."""
        if self.by_left_out is not None:
            return self.by_left_out
        of_modes = 0.0 if self.modes is None else 1.0 if self.members is None else 0.5
        return Shares(0.0, of_modes, 1.0 - of_modes)

    @property
    def _parts(self) -> Sequence[Ended]:
        return those_that_count(self.modes, self.members, self.linear)

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        shares = self.shares
        attributes: dict[str, Any] = {"choice_": self.choice, **shares.attributes()}
        if self.modes is not None:
            attributes |= self.modes.attributes(data, model)
        if self.members is not None:
            attributes["samples_"] = self.members.theta
            attributes["member_network_"] = self.member_network
            if self.members.refitted is not None:
                attributes["refitted_members_"] = self.members.refitted.members
                attributes["member_variance_scale_"] = self.members.refitted.variance_scale
        if self.linear is not None and shares.linear > 0.0:
            own = self.linear.attributes(data, model)
            attributes["linear_posterior_"] = own["posterior_"]
            attributes["linear_variance_scale_"] = own["variance_scale_"]
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
        Of the modes, as `EvidenceLaplaceLabels` has it.
    """

    needs: ClassVar[Needs] = Needs(SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_modes: int
    n_members: int
    n_classes: int
    alternative: UnboundPrior | None = None

    def fit(self, data: Training, model: Model, run: Run) -> ClassPoolFit:
        network = fully_connected(model.network)
        n_modes, tries = affordable(self.n_modes, data.n_rows, network)
        wide = member_network(network.n_inputs, self.n_classes)
        own = member_model(wide, model.likelihood)
        refitting = Refitting("loo", is_optional=True)
        run.begin()
        share = 0.5 if n_modes else 1.0
        modes = members = linear = by_left_out = None
        if n_modes:
            how = EvidenceLaplaceLabels(
                n_modes, "auto", "auto", "loo", alternative=self.alternative, tries=tries
            )
            stage = Stage(run, share, lambda m: ClassPoolFit(m, None, wide, INTERRUPTED))
            modes = how.fit(data, model, stage)
        if not has_ended(modes):
            if modes is None or self._has_members(refitting, own, modes, data):
                left = share - LINEAR_SHARE
                stage = Stage(run, left, lambda m: ClassPoolFit(modes, m, wide, INTERRUPTED))
                members = ensemble(self.n_members, refitting).fit(data, own, stage)
            if not has_ended(members):
                so_far = ClassPoolFit(modes, members, wide, INTERRUPTED)
                linear = self._linear(data, model, Stage(run, LINEAR_SHARE, lambda _: so_far))
            if not has_ended(members) and not has_ended(linear):
                by_left_out = _shares(linear, modes, members, data)
                n_logits = data.n_rows * network.n_outputs
                outnumbered = are_outnumbered(n_logits, network.layout.n_params)
                if outnumbered and by_left_out and linear and modes:
                    by_left_out = by_left_out.with_evidence(*_evidences(linear, modes))
        found = ClassPoolFit(modes, members, wide, "", linear, by_left_out)
        found = replace(found, choice=self._choice(data, network, found))
        logger.info("%s", found.choice)
        run.end(found)
        return found

    def _has_members(
        self, refitting: Refitting, own: Model, modes: LabelsFit, data: Training
    ) -> bool:
        """Whether members may add something to modes."""
        if data.n_rows < _LEAST_ROWS_A_COLUMN * data.n_features:
            return False
        is_due = refitting.is_due(self.n_members, data, own)
        return is_due or _is_explained(modes, data.double_data)

    def _linear(self, data: Training, model: Model, run: Run) -> LabelsFit | None:
        """The linear model beside networks that have a hidden layer, where it is found in time."""
        network = linear_network(data.n_features, model.network.n_outputs)
        long = not affordable(1, data.n_rows, network)[0]
        if long or not self.n_modes or fully_connected(model.network).n_layers == 1:
            return None
        prior = LayerScales().bind(network.layout)
        linear = Model(network, model.likelihood, prior, Trivial())
        return EvidenceLaplaceLabels(1, "auto", "auto", "loo").fit(data, linear, run)

    def _choice(self, data: Training, network: MLP, found: ClassPoolFit) -> str:
        modes, members, shares = found.modes, found.members, found.shares
        kinds, reasons = [], []
        sizes = " x ".join(str(s) for s in network.hidden_layer_sizes) or "no"
        n_modes = 0 if modes is None else len(modes.modes.theta)
        if modes is not None:
            kinds.append(
                f"{n_modes} modes of {sizes} tanh units by the evidence (variance scale "
                f"{modes.variance_scale:g} by left-out rows), {shares.modes:.0%}"
            )
        if n_modes < self.n_modes:
            reasons.append(f"; {self.n_modes} modes would take too long")
        if members is None and data.n_rows < _LEAST_ROWS_A_COLUMN * data.n_features:
            reasons.append("; so many columns are no task for an ensemble's members")
        elif members is None:
            reasons.append("; refitting members of an ensemble would take too long")
        elif members.refitted is not None:
            kinds.append(
                f"{len(members.theta)} refitted ensemble members (variance scale "
                f"{members.refitted.variance_scale:g}), {shares.members:.0%}"
            )
        else:
            kinds.append(f"{len(members.theta)} ensemble members as trained, {shares.members:.0%}")
            reasons.append("; refitting members would take too long")
        if found.linear is not None:
            kinds.append(f"a linear model, {shares.linear:.0%}")
        rows = f"{data.n_rows:,} distinct rows of {data.n_features} features"
        return f"{rows}, {self.n_classes} classes: {'; '.join(kinds)}{''.join(reasons)}"


def _is_explained(modes: LabelsFit, data: Data) -> bool:
    """Whether modes predict labels of left-out rows well enough for classes not to overlap."""
    if modes.left_out is None:
        return False
    weight = data.weight / data.weight.sum()
    frequency = torch.bincount(data.y, weight)
    entropy = -torch.xlogy(frequency, frequency).sum()
    return bool(-(weight @ modes.left_out) <= _MOST_UNEXPLAINED * entropy)


def _evidences(linear: LabelsFit, modes: LabelsFit) -> tuple[float, float]:
    """Of the linear model and of the best mode, nats.

    Without the mode's copies: under this prior most units are pruned, and their copies overlap.
    """
    return float(linear.modes.log_evidence.max()), float(modes.modes.log_evidence.max())


def _shares(
    linear: LabelsFit | None, modes: LabelsFit | None, members: Members | None,
    data: Training,
) -> Shares | None:  # fmt: skip
    """What left-out rows say, or None where members leave none out."""
    of_linear = None if linear is None else linear.left_out
    of_modes = None if modes is None else modes.left_out
    of_members = None
    if members is not None:
        if members.refitted is None or members.refitted.left_out is None:
            return None
        of_members = members.refitted.left_out
    return shared_by_classes(of_linear, of_modes, of_members, data.double_data.weight)
