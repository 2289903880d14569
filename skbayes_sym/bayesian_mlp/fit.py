"""Evidence-trained modes, ensemble members and a linear model, pooled by the rows they leave out.

`Pool.fit` is the whole sentence: one part after another, each where it may add something and takes
seconds, then the weights that left-out rows give. `Numbers` and `Labels` say how a part is fitted,
and what its left-out rows are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from skbayes_sym.base import requirements as asks
from skbayes_sym.base.log import log_info
from skbayes_sym.base.model_factory import require_mlp
from skbayes_sym.base.noise_shape import NoiseShape, fit_noise_shape
from skbayes_sym.base.progress import FitProgress, StageProgress
from skbayes_sym.base.requirements import Method
from skbayes_sym.base.stacking_weights import (
    fit_baseline_weight,
    leave_one_out,
    mixture,
    select_components,
    stacking_weights,
)
from skbayes_sym.base.training import Training
from skbayes_sym.ensemble.fit import DeepEnsemble, EnsembleFit, MemberRefitter
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, gauss_newton_cost
from skbayes_sym.laplace.gauss_newton_laplace import (
    GaussNewtonLaplaceClassification,
    GaussNewtonLaplaceRegression,
)
from skbayes_sym.laplace.initialization import noise_variance_fraction
from skbayes_sym.laplace.map import evenly_spaced_rows
from skbayes_sym.laplace.mode_finding import InitialModes
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.mlp import IDENTITY, MLP, RELU
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.models.priors import LayerScales, Normal, UnboundPrior
from skbayes_sym.numerics.optimise import StopReason, combine_stop_reasons
from skbayes_sym.symmetry.group import Trivial

# Fitted attributes of a part's own method, and how a pool calls them.
_MEMBERS = {"samples_": "samples_", "noise_std_samples_": "noise_std_samples_",
            "refitted_members_": "refitted_members_",
            "variance_scale_": "member_variance_scale_",
            "_noise_levels_samples_": "_noise_levels_members_"}  # fmt: skip
_LINEAR = {"posterior_": "linear_posterior_", "noise_std_modes_": "noise_std_linear_",
           "variance_scale_": "linear_variance_scale_",
           "_noise_levels_modes_": "_noise_levels_linear_"}  # fmt: skip


@dataclass(frozen=True)
class PoolDefaults:
    """Numbers behind the choices of a pool."""

    mode_tol: float = 5e-6  # nats per unit of sample weight
    modes: GaussNewtonDefaults = field(default=GaussNewtonDefaults())
    modes_blocks: float = 0.5  # of the fit's; members have the rest
    linear_blocks: float = 0.01
    # Two members are trained first, and all only where these, beside two modes, gain a share nearly
    # as large as all must.
    judges: int = 2
    judges_blocks: float = 0.2  # of the members'
    judges_gain: float = 0.7
    # The ensemble's own defaults: relu under a fixed prior of 1 is what tanh modes lack.
    member_width: int = 50
    member_rate: float = 0.03
    member_steps: int = 2000
    member_tol: float | None = 1e-3
    noise_prior_scale: float = 1.0
    eigenvectors: float = 9.0  # multiplications of symmetric matrices' eigenvectors, over m^3
    # Networks of one kind count if they gain at least this share of the other kind's gain over the
    # linear model. Left-out rows of linearised networks are too rough to weigh the kinds more
    # finely: at .91 members gain a tenth of a nat per row (concrete), at .6 to .8 they cost .03 to
    # .2 (yacht, airfoil, friedman1).
    least_gain: float = 0.85
    # Share of the labels' entropy, on rows that modes leave out, up to which members count as
    # trained: beyond they lose up to half a nat per row.
    most_unexplained: float = 0.2
    # With fewer rows a column members fit any labels, and left-out rows promise too much.
    least_rows_a_column: int = 3

    def members_model(self, n_inputs: int, n_outputs: int, likelihood: Likelihood) -> Model:
        """Network and prior of every member."""
        network = MLP(n_inputs, (self.member_width,), n_outputs, RELU)
        return Model(network, likelihood, Normal(1.0).bind(network.layout), Trivial())

    def ensemble(self, n_members: int, refitter: MemberRefitter | None = None) -> DeepEnsemble:
        """How members are trained; those of numbers have effective noise."""
        return DeepEnsemble(
            n_members, self.noise_prior_scale, self.member_rate, self.member_steps,
            self.member_tol, has_effective_noise=refitter is None, refitter=refitter,
        )  # fmt: skip


class Weights(NamedTuple):
    """Weights of the kinds, which add up to 1; within a kind all count alike."""

    linear: float
    modes: float
    members: float

    @classmethod
    def of(cls, linear: float, networks: Mapping[str, float]) -> "Weights":
        """Weights of networks in the proportions given, beside a linear model's."""
        unit = (1.0 - linear) / (sum(networks.values()) or 1.0)
        return cls(linear, *(unit * networks.get(kind, 0.0) for kind in ("modes", "members")))

    def with_evidence(self, linear: float, networks: float) -> "Weights":
        """The linear model counts for at least what the evidences, in nats, give it.

        For more weights than rows: these networks have seen every row that they leave out, and
        promise a quarter of a nat more per row than they keep (250 rows x 50 columns).
        """
        share = float(expit(linear - networks))
        if share <= self.linear:
            return self
        return Weights.of(share, {"modes": self.modes, "members": self.members})


class Parts(NamedTuple):
    """Fits of the parts that a pool has (so far)."""

    modes: Any = None
    members: EnsembleFit | None = None
    linear: Any = None

    @property
    def n_modes(self) -> int:
        """Restarts that ended in a mode that counts."""
        return 0 if self.modes is None else int(self.modes.modes.n_restarts.sum())

    @property
    def n_members(self) -> int:
        return 0 if self.members is None else len(self.members.theta)

    @property
    def stop_reason(self) -> StopReason:
        return combine_stop_reasons([fit.stop_reason for fit in self if fit is not None])

    @property
    def were_stopped(self) -> bool:
        """Whether a part was told to end, and with it the whole fit."""
        return self.stop_reason in ("interrupted", "callback")


@dataclass(frozen=True, eq=False)
class PoolFit:
    """Parts and their weights (so far)."""

    parts: Parts
    weights: Weights
    members_model: Model
    noise: NoiseShape | None = None
    # (N,), log densities of rows left out, nats; nan where unknown
    leave_one_out: Tensor | None = None
    choice: str = "what had been found when the fit was interrupted"

    @property
    def n_iter(self) -> int:
        return sum(fit.n_iter for fit in self.parts if fit is not None)

    @property
    def stop_reason(self) -> StopReason:
        return self.parts.stop_reason

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        weights = self.weights._asdict()
        (modes, members, linear) = self.parts
        attributes: dict[str, Any] = {"summary_": self.choice, "leave_one_out_log_density": None}
        if self.leave_one_out is not None:
            of_rows = np.append(self.leave_one_out.cpu().numpy(), np.nan)[data.inverse_index]
            jacobian = data.log_jacobian / data.total_weight
            attributes["leave_one_out_log_density"] = of_rows + jacobian
        attributes |= {f"{part}_weight_": weight for part, weight in weights.items()}
        parts = [part for part, fit in self.parts._asdict().items() if fit is not None]
        attributes["_weights_"] = {part: weights[part] for part in parts if weights[part]}
        if modes is not None:
            attributes |= modes.attributes(data, model)
        if members is not None:
            trained = members.attributes(data, self.members_model)
            attributes |= {new: trained[name] for name, new in _MEMBERS.items() if name in trained}
            attributes["member_network_"] = self.members_model.network
        if linear is not None and self.weights.linear:
            line = linear.attributes(data, model)
            attributes |= {new: line[name] for name, new in _LINEAR.items() if name in line}
        if self.noise is not None:
            attributes["noise_shape_"] = self.noise
        if data.y_scaling is not None:
            # Root of the mean noise variance (T,), in units whose squares may be beyond numbers.
            unit = data.y_scaling.scale
            variance = np.zeros(len(unit))
            for name, share in zip(("linear", "modes", "samples"), self.weights, strict=True):
                if f"noise_std_{name}_" in attributes:
                    squares = np.square(attributes[f"noise_std_{name}_"] / unit)
                    by_mode = attributes["posterior_"].weight if name == "modes" else None
                    variance += share * np.average(squares, axis=0, weights=by_mode)
            if self.noise is not None:
                variance = variance * self.noise.mean_square
            noise_std = unit * np.sqrt(variance)
            attributes["noise_std_"] = float(noise_std[0]) if len(noise_std) == 1 else noise_std
        return attributes


@dataclass(frozen=True, eq=False)
class Pool:
    """Modes, members and a linear model: base of pools of numbers and of labels."""

    kinds_are_alike: ClassVar[bool] = False

    n_modes: int  # restarts of the evidence-trained network, as far as rows and weights allow them
    n_members: int
    effort: PoolDefaults = field(default=PoolDefaults(), kw_only=True)

    def fit(self, data: Training, model: Model, progress: FitProgress) -> PoolFit:
        """Fit one part after another, and weigh them by the rows that each leaves out."""
        network = require_mlp(model.network)
        effort = self.effort
        n_columns = network.n_outputs if data.y_scaling is not None else max(2, network.n_outputs)
        members = effort.members_model(network.n_inputs, n_columns, model.likelihood)
        linear = MLP(network.n_inputs, (), network.n_outputs, IDENTITY)
        line = Model(linear, model.likelihood, LayerScales().bind(linear.layout), Trivial())
        progress.begin()
        parts = Parts()
        blocks = 1.0 - effort.linear_blocks

        def pooled(parts: Parts) -> PoolFit:
            """Networks that count alike, of labels the two kinds; the linear model doesn't."""
            counts = {"modes": parts.n_modes, "members": parts.n_members}
            if self.kinds_are_alike:
                counts = {kind: min(1, n) for kind, n in counts.items()}
            return PoolFit(parts, Weights.of(0.0, counts), members)

        def fitted(name: str, method: Method | None, of: Model, blocks: float) -> Parts:
            if method is None or parts.were_stopped:
                return parts
            stage = StageProgress(
                progress, blocks, lambda fit: pooled(parts._replace(**{name: fit}))
            )
            fit: Any = method.fit(data, of, stage)
            return parts._replace(**{name: fit})

        parts = fitted("modes", self.modes(data, model), model, effort.modes_blocks)
        if parts.modes is not None:
            blocks -= effort.modes_blocks
        parts = fitted("linear", self.linear(data, line, parts), line, effort.linear_blocks)
        for share in (effort.judges_blocks, 1.0 - effort.judges_blocks):
            more = self.members(data, members, parts)
            parts = fitted("members", more, members, share * blocks)
        pool = pooled(parts) if parts.were_stopped else self.weighed(pooled(parts), data)
        pool = replace(pool, choice=self._choice(data, pool))
        log_info("%s", pool.choice)
        progress.end(pool)
        return pool

    def modes(self, data: Training, model: Model) -> Any:
        """How modes are found; None where there are none, like the next two."""
        raise NotImplementedError

    def members(self, data: Training, model: Model, parts: Parts) -> DeepEnsemble | None:
        raise NotImplementedError

    def linear(self, data: Training, model: Model, parts: Parts) -> Any:
        raise NotImplementedError

    def weighed(self, pooled: PoolFit, data: Training) -> PoolFit:
        """Parts with the weights, and the noise, that left-out rows give."""
        raise NotImplementedError

    def reasons(self, data: Training, pooled: PoolFit) -> list[str]:
        """Why there are no other parts, and what left-out rows say besides."""
        raise NotImplementedError

    def _choice(self, data: Training, pooled: PoolFit) -> str:
        """Line that says what was fitted, with which weight and why."""
        rows = f"{data.n_rows:,} distinct rows of {data.n_features} features"
        if data.y_scaling is None:
            rows += f", {pooled.members_model.network.n_outputs} classes"
        (modes, members, linear) = pooled.parts
        told = []
        if modes is not None:
            sizes = " x ".join(map(str, modes.network.hidden_layer_sizes)) or "no"
            text = f"{len(modes.modes.theta)} modes of {sizes} tanh units by the evidence"
            if modes.variance_scale is not None:
                text += f" (variance scale {modes.variance_scale:g} by left-out rows)"
            told.append(f"{text}, {pooled.weights.modes:.0%}")
        if members is not None:
            text = "ensemble members with effective noise"
            if members.refit is not None:
                scale = members.refit.variance_scale
                text = f"refitted ensemble members (variance scale {scale:g})"
            elif data.y_scaling is None:
                text = "ensemble members as trained"
            told.append(f"{pooled.parts.n_members} {text}, {pooled.weights.members:.0%}")
        if linear is not None:
            told.append(f"a linear model, {pooled.weights.linear:.0%}")
        return "; ".join([f"{rows}: {told[0]}", *told[1:], *self.reasons(data, pooled)])


def _floored(weights: Weights, parts: Parts, data: Training, copies: float = 0.0) -> Weights:
    """Weights by the evidences, too, where weights of the best mode outnumber the rows."""
    if parts.modes is None or parts.linear is None:
        return weights
    network = parts.modes.network
    if data.n_rows * network.n_outputs >= network.layout.n_params:
        return weights
    linear, modes = (float(p.modes.score.max()) for p in (parts.linear, parts.modes))
    return weights.with_evidence(linear, modes + copies)


@dataclass(frozen=True, eq=False)
class RegressionPool(Pool):
    """Pool of regression: where modes find much noise there are no members."""

    requirements: ClassVar[asks.Requirements] = asks.Requirements(
        asks.NORMAL_NOISE, asks.FULLY_CONNECTED, asks.NORMAL_OR_LEARNED_PRIOR
    )

    widens: bool = False  # as for `GaussNewtonLaplaceRegression`, like the next
    wide_prior: UnboundPrior | None = None
    shapes_noise: bool = True  # whether left-out rows may say that the noise isn't the same for all
    start: InitialModes | None = None  # to go on from

    def modes(self, data: Training, model: Model) -> GaussNewtonLaplaceRegression | None:
        network = require_mlp(model.network)
        if not self.effort.modes.affordable_modes(self.n_modes, data.n_rows, network):
            return None
        return GaussNewtonLaplaceRegression(
            "auto", "auto", self.effort.mode_tol, selects_width=self.widens,
            unbound_prior=self.wide_prior,
            max_modes=self.n_modes, initial_modes=self.start,
            defaults=self.effort.modes,
        )  # fmt: skip

    def members(self, data: Training, model: Model, parts: Parts) -> DeepEnsemble | None:
        n = self.n_members
        effort = self.effort
        if not model.likelihood.n_params:  # under hardly any noise nats per row never settle
            effort = replace(effort, member_tol=None)
        if parts.modes is None:
            return None if parts.members else effort.ensemble(max(1, n))
        # As many members as modes: neither kind outvotes the other.
        n = min(n, parts.n_modes)
        if parts.n_members == n or (parts.members and not self._count(parts, data, model)):
            return None
        modes = effort.modes
        is_few = data.n_rows <= effort.modes.small_sample_rows
        most = modes.negligible_noise_fraction if is_few else modes.max_noise_fraction
        if noise_variance_fraction(parts.modes.modes, data.double_data.y.cpu()) > most:
            return None
        # The noise and the left-out rows of a member cost two eigendecompositions in the smaller of
        # the spaces of rows and weights.
        network = model.network
        n_numbers = len(evenly_spaced_rows(data.n_rows)) * network.n_outputs
        m, larger = sorted((n_numbers, network.layout.n_params))
        done = n * 2.0 * m**2 * (larger + effort.eigenvectors * m)
        is_judged = parts.linear is not None and parts.members is None
        n = min(n, effort.judges) if is_judged else n
        return effort.ensemble(n) if done <= effort.modes.max_work else None

    def _count(self, parts: Parts, data: Training, model: Model) -> bool:
        """Whether members gain, on left-out rows, nearly what as many modes do."""
        assert parts.modes is not None
        search = parts.modes.search
        some = search.select(torch.arange(min(parts.n_members, len(search.modes.theta))))
        parts = parts._replace(modes=replace(parts.modes, search=some))
        _, density, rows = _left_out(parts, model, data)
        baseline = density.pop("linear")
        least = self.effort.judges_gain
        return "members" in select_components(baseline, density, rows.weight, least)

    def linear(
        self, data: Training, model: Model, parts: Parts
    ) -> GaussNewtonLaplaceRegression | None:
        n_numbers = data.n_rows * model.network.n_outputs
        effort = self.effort.modes
        if (
            gauss_newton_cost(1, effort.steps, n_numbers, model.network.layout.n_params)
            > effort.target_work
        ):
            return None
        return GaussNewtonLaplaceRegression(1, effort.steps, self.effort.mode_tol, defaults=effort)

    def weighed(self, pooled: PoolFit, data: Training) -> PoolFit:
        parts = pooled.parts
        equal = pooled.weights._asdict()
        if parts.linear is None:
            return pooled
        distributions, density, rows = _left_out(parts, pooled.members_model, data)
        baseline = density.pop("linear")
        kept = select_components(baseline, density, rows.weight, self.effort.least_gain)
        inner = {kind: equal[kind] / sum(equal[k] for k in kept) for kind in kept}
        share = fit_baseline_weight(baseline, density, inner, rows.weight)
        copies = 0.0 if parts.modes is None else parts.modes.network.symmetry().log_order
        weights = _floored(Weights.of(share, inner), parts, data, copies)
        counting = {kind: share for kind, share in weights._asdict().items() if share}
        distribution = mixture([distributions[kind] for kind in counting], list(counting.values()))
        noise = None
        without = distribution.log_prob(rows.y)
        if self.shapes_noise:
            if "modes" in counting:
                # Left-out rows of members are the more favourable: all of their many units saw
                # them.
                counting.pop("members", None)
            judged = mixture([distributions[kind] for kind in counting], list(counting.values()))
            noise, judged_density = fit_noise_shape(judged, rows.y, rows.weight)
            if noise is not None:
                # What the rows lose where the shape is fitted without them.
                lost = noise.shaped(judged).log_prob(rows.y) - judged_density
                without = noise.shaped(distribution).log_prob(rows.y) - lost
        if parts.members is not None:  # by the rows that were judged, among all
            everywhere = without.new_full((data.n_rows,), torch.nan)
            everywhere[evenly_spaced_rows(data.n_rows).to(without.device)] = without
            without = everywhere
        return replace(pooled, weights=weights, noise=noise, leave_one_out=without)

    def reasons(self, data: Training, pooled: PoolFit) -> list[str]:
        reasons = []
        modes = pooled.parts.modes
        n_sought = 0
        if modes is not None:
            n_sought = self.effort.modes.choose_n_restarts(
                "auto", data.n_rows, modes.network, self.n_modes
            )
            if pooled.parts.n_modes < n_sought and not pooled.parts.were_stopped:
                reasons.append(f"of {n_sought} the others predict left-out rows worse")
            scores = modes.width_scores or {}
            if len(scores) > 1:  # else it was stopped
                told = ", ".join(f"{score:.2f} by {width}" for width, score in scores.items())
                reasons.append(f"cross-validated nats per row: {told} units")
        if n_sought < self.n_modes:
            reasons.append(f"{self.n_modes} modes would take too long")
        return reasons if pooled.noise is None else [*reasons, str(pooled.noise)]


def _left_out(
    parts: Parts, members_model: Model, data: Training
) -> tuple[dict[str, NormalMixture], dict[str, Tensor], Data]:
    """Distributions and log densities of the rows that each part leaves out, and these rows.

    Where there are members, of more than 4,096 rows that many decide.
    """
    (modes, members, linear) = parts
    rows = data.double_data
    distributions = {}
    if members is not None:
        chosen = evenly_spaced_rows(len(rows.x)).to(rows.x.device)
        theta = torch.as_tensor(members.theta).to(rows.x)
        leverage = members.leverage
        assert leverage is not None  # of members with effective noise that have ended
        share = float(rows.weight.sum()) / float(rows.weight[chosen].sum())
        rows = Data(*(t[chosen] for t in rows))
        each = leverage.to(rows.x).mT / (share * rows.weight).unsqueeze(1)  # of one repetition
        noise = members.noise_scale(members_model).to(rows.x).square().unsqueeze(1)
        outputs = members_model.network.forward(theta, rows.x)
        distribution = NormalMixture(outputs, noise * each, noise)
        distributions["members"] = leave_one_out(distribution, rows.y, rows.weight)
    for name, fit in (("modes", modes), ("linear", linear)):
        if fit is not None:
            distributions[name] = fit.leave_one_out_predictive(rows)
    return (
        distributions,
        {kind: distribution.log_prob(rows.y) for kind, distribution in distributions.items()},
        rows,
    )


@dataclass(frozen=True, eq=False)
class ClassificationPool(Pool):
    """Pool of classification: members are refitted, or stay out where classes overlap."""

    requirements: ClassVar[asks.Requirements] = asks.Requirements(
        asks.SOFTMAX, asks.FULLY_CONNECTED, asks.NORMAL_OR_LEARNED_PRIOR
    )
    kinds_are_alike: ClassVar[bool] = True

    # of the modes, as `GaussNewtonLaplaceClassification` has it
    alternative: UnboundPrior | None = None

    def modes(self, data: Training, model: Model) -> GaussNewtonLaplaceClassification | None:
        network = require_mlp(model.network)
        effort = self.effort.modes
        n_modes, tries = effort.affordable_classification_modes(self.n_modes, data.n_rows, network)
        return GaussNewtonLaplaceClassification(
            n_modes, "auto", "auto", "loo", alternative_prior=self.alternative,
            allow_label_noise=tries, defaults=effort,
        ) if n_modes else None  # fmt: skip

    def members(self, data: Training, model: Model, parts: Parts) -> DeepEnsemble | None:
        refitter = MemberRefitter("loo", is_optional=True)
        modes = parts.modes
        if parts.members is not None or (modes is not None and not self.n_members):
            return None
        if modes is not None:
            is_due = refitter.is_affordable(self.n_members, data, model)
            if not is_due and modes.leave_one_out is not None:
                # Labels of left-out rows may be predicted too well for classes to overlap.
                weight = data.double_data.weight / data.double_data.weight.sum()
                frequency = torch.bincount(data.double_data.y, weight)
                entropy = -torch.xlogy(frequency, frequency).sum()
                most = self.effort.most_unexplained * entropy
                is_due = bool(-(weight @ modes.leave_one_out) <= most)
            if self._has_many_columns(data) or not is_due:
                return None
        return self.effort.ensemble(max(1, self.n_members), refitter)

    def _has_many_columns(self, data: Training) -> bool:
        return data.n_rows < self.effort.least_rows_a_column * data.n_features

    def linear(
        self, data: Training, model: Model, parts: Parts
    ) -> GaussNewtonLaplaceClassification | None:
        effort = self.effort.modes
        is_there = parts.modes is not None and parts.modes.network.n_layers == 1
        long = not effort.affordable_classification_modes(
            1, data.n_rows, require_mlp(model.network)
        )[0]
        if long or is_there or not self.n_modes:
            return None
        return GaussNewtonLaplaceClassification(
            1, "auto", "auto", "loo", defaults=self.effort.modes
        )

    def weighed(self, pooled: PoolFit, data: Training) -> PoolFit:
        modes, members, linear = pooled.parts
        if members is not None and members.refit is None:  # which leave no rows out
            return pooled
        fits = {"modes": modes, "members": members and members.refit, "linear": linear}
        density = {kind: fit.leave_one_out for kind, fit in fits.items() if fit is not None}
        baseline = density.pop("linear", None)
        weight = data.double_data.weight
        inner = dict.fromkeys(density, 1.0)
        if len(density) == 2:
            # A few rows leave each near a half.
            p = stacking_weights(torch.stack([*density.values()]), weight, prior=torch.ones(2))
            inner = dict(zip(density, p.tolist(), strict=True))
        share = fit_baseline_weight(baseline, density, inner, weight)
        # The best mode without its copies: most units are pruned under this prior, so they overlap.
        weights = _floored(Weights.of(share, inner), pooled.parts, data)
        density = density if baseline is None else {**density, "linear": baseline}
        shares = weights._asdict()
        judged = [rows + log(shares[kind]) for kind, rows in density.items() if shares[kind]]
        return replace(pooled, weights=weights, leave_one_out=torch.stack(judged).logsumexp(0))

    def reasons(self, data: Training, pooled: PoolFit) -> list[str]:
        members = pooled.parts.members
        reasons = []
        if pooled.parts.n_modes < self.n_modes:
            reasons.append(f"{self.n_modes} modes would take too long")
        if members is None and self._has_many_columns(data):
            reasons.append("so many columns are no task for an ensemble's members")
        elif members is None:
            reasons.append("refitting members of an ensemble would take too long")
        elif members.refit is None:
            reasons.append("refitting members would take too long")
        return reasons
