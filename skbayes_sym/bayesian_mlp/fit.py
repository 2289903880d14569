"""Fit modes, ensemble members and a linear model, and weight them by leave-one-out predictions.

`Pool.fit` executes the plan of `defaults.plan_fit`. `RegressionPool` and `ClassificationPool`
define how the components are fitted and weighted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from skbayes_sym.base import requirements as asks
from skbayes_sym.base.messages import log_info
from skbayes_sym.base.model_factory import require_mlp
from skbayes_sym.base.noise_shape import NoiseShape, fit_noise_shape
from skbayes_sym.base.plan import Execution, PlannedStage, Results, TableSize, execute
from skbayes_sym.base.progress import FitProgress, StageProgress
from skbayes_sym.base.requirements import Method
from skbayes_sym.base.rows import Array, unwrap_single
from skbayes_sym.base.stacking_weights import (
    fit_baseline_weight,
    leave_one_out,
    mixture,
    select_components,
    stacking_weights,
)
from skbayes_sym.base.training import Training, describe_outliers, evenly_spaced_rows
from skbayes_sym.bayesian_mlp.defaults import PoolDefaults, PoolSettings, plan_fit
from skbayes_sym.ensemble.fit import EnsembleFit
from skbayes_sym.laplace.gauss_newton_classification import GaussNewtonLaplaceClassification
from skbayes_sym.laplace.gauss_newton_regression import GaussNewtonLaplaceRegression
from skbayes_sym.laplace.initialization import noise_variance_fraction
from skbayes_sym.laplace.mode_finding import InitialModes
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.mlp import IDENTITY, MLP
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.models.priors import LayerScales, UnboundPrior
from skbayes_sym.numerics.optimise import StopReason, combine_stop_reasons
from skbayes_sym.symmetry.group import Trivial

# Attributes of the members and of the linear model, and their names in the mixture.
_MEMBER_ATTRIBUTES = {
    "samples_": "samples_",
    "noise_std_samples_": "noise_std_samples_",
    "refitted_members_": "refitted_members_",
    "variance_scale_": "member_variance_scale_",
    "_noise_levels_samples_": "_noise_levels_members_",
}
_LINEAR_ATTRIBUTES = {
    "posterior_": "linear_posterior_",
    "noise_std_modes_": "noise_std_linear_",
    "variance_scale_": "linear_variance_scale_",
    "_noise_levels_modes_": "_noise_levels_linear_",
}


class ComponentWeights(NamedTuple):
    """Weights of the components, with sum 1. Modes, and members, have equal weights."""

    linear: float
    modes: float
    members: float

    @classmethod
    def from_proportions(cls, linear: float, networks: Mapping[str, float]) -> "ComponentWeights":
        """Weights of networks in given proportions, next to a given weight of the linear model."""
        unit = (1.0 - linear) / (sum(networks.values()) or 1.0)
        modes, members = (unit * networks.get(kind, 0.0) for kind in ("modes", "members"))
        return cls(linear, modes, members)

    def with_evidence(self, linear: float, networks: float) -> "ComponentWeights":
        """Raise the weight of the linear model to its weight by the evidence.

        With more weights than rows, leave-one-out scores of networks are 0.25 nats per row too high
        (250 rows x 50 columns), since the features have seen every row.

        Parameters
        ----------
        linear, networks : float
            Log evidence of the linear model and of the networks, in nats.

        Returns
        -------
        ComponentWeights
            These weights, or weights with a larger weight of the linear model.
        """
        weight = float(expit(linear - networks))
        if weight <= self.linear:
            return self
        return ComponentWeights.from_proportions(
            weight, {"modes": self.modes, "members": self.members}
        )


class PoolComponents(NamedTuple):
    """Fitted components of a mixture; None for those that haven't been fitted."""

    modes: Any = None
    members: EnsembleFit | None = None
    linear: Any = None

    @property
    def n_modes(self) -> int:
        """Number of restarts that ended in a mode of the mixture."""
        if self.modes is None:
            return 0
        return int(self.modes.modes.n_restarts.sum())

    @property
    def n_members(self) -> int:
        """Number of ensemble members."""
        if self.members is None:
            return 0
        return len(self.members.theta)

    @property
    def stop_reason(self) -> StopReason:
        """Reason why fitting stopped: the most severe one of the components."""
        return combine_stop_reasons([fit.stop_reason for fit in self if fit is not None])


@dataclass(frozen=True, eq=False)
class PoolFit:
    """Fitted mixture, final or in the middle of a fit.

    Parameters
    ----------
    components : PoolComponents
        Modes, members and linear model.
    weights : ComponentWeights
        Weights of the components.
    members_model : Model
        Network, likelihood and prior of the members.
    noise : NoiseShape, optional
        Noise that depends on the predicted mean. None for constant noise.
    leave_one_out : Tensor of shape (N,), optional
        Leave-one-out log densities in nats; nan for unknown rows.
    summary : str
        Description of the fit for users.
    computes_evidence : bool, default=True
        Whether the evidence is summed over the modes and their symmetric copies.
    """

    components: PoolComponents
    weights: ComponentWeights
    members_model: Model
    noise: NoiseShape | None = None
    leave_one_out: Tensor | None = None
    summary: str = "components that were fitted before an interrupt"
    computes_evidence: bool = True

    @property
    def n_iter(self) -> int:
        """Total number of steps."""
        return sum(fit.n_iter for fit in self.components if fit is not None)

    @property
    def stop_reason(self) -> StopReason:
        """Reason why fitting stopped."""
        return self.components.stop_reason

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Attributes of the fitted estimator."""
        weights = self.weights._asdict()
        modes, members, linear = self.components
        attributes: dict[str, Any] = {"summary_": self.summary, "leave_one_out_log_density": None}
        if self.leave_one_out is not None:
            # Rows of zero weight have the index -1 and an unknown density.
            with_unknown = np.append(self.leave_one_out.cpu().numpy(), np.nan)
            log_density = with_unknown[data.inverse_index]
            jacobian = data.log_jacobian / data.total_weight
            attributes["leave_one_out_log_density"] = log_density + jacobian
        attributes |= {f"{name}_weight_": weight for name, weight in weights.items()}
        fitted = [name for name, fit in self.components._asdict().items() if fit is not None]
        attributes["_weights_"] = {name: weights[name] for name in fitted if weights[name]}

        if modes is not None:
            modes = replace(modes, computes_evidence=self.computes_evidence)
            attributes |= modes.attributes(data, model)
        if members is not None:
            found = members.attributes(data, self.members_model)
            attributes |= _rename(found, _MEMBER_ATTRIBUTES)
            attributes["member_network_"] = self.members_model.network
        if linear is not None and self.weights.linear:
            linear = replace(linear, computes_evidence=False)
            attributes |= _rename(linear.attributes(data, model), _LINEAR_ATTRIBUTES)
        if self.noise is not None:
            attributes["noise_shape_"] = self.noise
        if data.y_scaling is not None:
            attributes["noise_std_"] = self._noise_std(data.y_scaling.scale, attributes)
        return attributes

    def _noise_std(self, scale: Array, attributes: Mapping[str, Any]) -> Any:
        """Root of the mean noise variance of the mixture, in the units of the targets."""
        # Squares of standard deviations in the units of the targets could overflow.
        variance = np.zeros(len(scale))
        for name, weight in zip(("linear", "modes", "samples"), self.weights, strict=True):
            if f"noise_std_{name}_" in attributes:
                squares = np.square(attributes[f"noise_std_{name}_"] / scale)
                if name == "modes":
                    mode_weights = attributes["posterior_"].weight
                else:
                    mode_weights = None
                variance += weight * np.average(squares, axis=0, weights=mode_weights)
        if self.noise is not None:
            variance = variance * self.noise.mean_square
        return unwrap_single(scale * np.sqrt(variance))


def _rename(attributes: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Select attributes and give them their names in the mixture."""
    return {new: attributes[name] for name, new in names.items() if name in attributes}


@dataclass(frozen=True, eq=False)
class ModesResult:
    """Result of the stage that finds modes.

    Parameters
    ----------
    fit : object
        Modes with their Laplace approximations.
    data : Training
        Training data.
    """

    fit: Any
    data: Training

    @property
    def n_modes(self) -> int:
        """Number of restarts that ended in a mode of the mixture."""
        return int(self.fit.modes.n_restarts.sum())

    def noise_fraction(self) -> float:
        """Share of the targets' variance that is noise according to the modes."""
        return noise_variance_fraction(self.fit.modes, self.data.double_data.y.cpu())

    @property
    def held_out_loss(self) -> Tensor | None:
        """Mean leave-one-out log loss of the classes, in nats per row; None if it is unknown."""
        if self.fit.leave_one_out is None:
            return None
        weight = self.data.double_data.weight
        return -((weight / weight.sum()) @ self.fit.leave_one_out)

    @property
    def class_entropy(self) -> Tensor:
        """Entropy of the class frequencies, in nats."""
        weight = self.data.double_data.weight
        frequency = torch.bincount(self.data.double_data.y, weight / weight.sum())
        return -torch.xlogy(frequency, frequency).sum()

    def __str__(self) -> str:
        widths = " x ".join(map(str, self.fit.network.hidden_layer_sizes)) or "no"
        text = f"{len(self.fit.modes.theta)} modes of {widths} tanh units by the evidence"
        if self.fit.variance_scale is not None:
            text += f", variance scale {self.fit.variance_scale:g} by leave-one-out"
        scores = getattr(self.fit, "width_scores", None) or {}
        if len(scores) > 1:  # otherwise cross-validation was stopped
            listed = ", ".join(f"{score:.2f} for {width}" for width, score in scores.items())
            text += f", cross-validated nats per row: {listed} units"
        return text


@dataclass(frozen=True, eq=False)
class MembersResult:
    """Result of a stage that trains ensemble members.

    Parameters
    ----------
    fit : EnsembleFit
        Trained members.
    leave_one_out : callable
        Computes the leave-one-out log densities of the linear model (N,), of the other components
        by name, and the weights of the rows (N,). As many modes as members take part.
    """

    fit: EnsembleFit
    leave_one_out: Callable[[], tuple[Tensor, dict[str, Tensor], Tensor]]

    @property
    def n_members(self) -> int:
        """Number of trained members."""
        return len(self.fit.theta)

    @property
    def is_refitted(self) -> bool:
        """Whether the members were refitted as linearised networks."""
        return self.fit.refit is not None

    def __str__(self) -> str:
        if self.fit.refit is not None:
            scale = self.fit.refit.variance_scale
            return f"{self.n_members} refitted ensemble members, variance scale {scale:g}"
        if self.fit.leverage is not None:
            return f"{self.n_members} ensemble members with effective noise"
        return f"{self.n_members} ensemble members as trained"


class LinearResult(NamedTuple):
    """Result of the stage that fits a linear model."""

    fit: Any

    def __str__(self) -> str:
        return "a linear model by the evidence"


class PoolActions:
    """Actions of the plan, and the components that they have fitted so far.

    Parameters
    ----------
    pool : Pool
        Method of a mixture for regression or classification.
    data : Training
        Training data.
    model : Model
        Network, likelihood and prior of the modes.
    progress : FitProgress
        Progress of the fit.
    """

    def __init__(self, pool: "Pool", data: Training, model: Model, progress: FitProgress) -> None:
        self._pool = pool
        self._data = data
        self._model = model
        self._progress = progress
        self._progress_left = 1.0 - pool.defaults.linear_progress
        self.components = PoolComponents()
        network = require_mlp(model.network)
        linear = MLP(network.n_inputs, (), network.n_outputs, IDENTITY)
        prior = LayerScales().bind(linear.layout)
        self._linear_model = Model(linear, model.likelihood, prior, Trivial())
        n_outputs = network.n_outputs
        if data.y_scaling is None:
            n_outputs = max(2, n_outputs)
        self.members_model = pool.defaults.members_model(
            network.n_inputs, n_outputs, model.likelihood
        )

    def execute(self, plan: Sequence[PlannedStage]) -> Execution:
        """Run the stages of a plan until a component is stopped."""
        actions: dict[str, Callable[..., Any]] = {
            "find_modes": self._find_modes,
            "fit_linear": self._fit_linear,
            "train_members": self._train_members,
            "maximise_leave_one_out_score": self._fit_weights,
        }
        return execute(
            plan, actions, lambda: self.components.stop_reason in ("interrupted", "callback")
        )

    def with_equal_weights(self, components: PoolComponents) -> PoolFit:
        """Mixture in which networks have equal weights and the linear model has none."""
        counts = {"modes": components.n_modes, "members": components.n_members}
        if self._pool.kinds_have_equal_weights:
            counts = {kind: min(1, n) for kind, n in counts.items()}
        weights = ComponentWeights.from_proportions(0.0, counts)
        return PoolFit(
            components,
            weights,
            self.members_model,
            computes_evidence=self._pool.computes_evidence,
        )

    def _fit(self, name: str, method: Method, model: Model, progress: float) -> Any:
        """Fit a component, which is ``progress`` of the whole fit.

        Parameters
        ----------
        name : str
            Name of the component.
        method : Method
            Method that fits it.
        model : Model
            Network, likelihood and prior of the component.
        progress : float
            Fraction of the whole fit that the component takes.
        """
        components = self.components

        def mixture_with(fit: Any) -> PoolFit:
            return self.with_equal_weights(components._replace(**{name: fit}))

        fit: Any = method.fit(
            self._data, model, StageProgress(self._progress, progress, mixture_with)
        )
        self.components = components._replace(**{name: fit})
        return fit

    def _find_modes(self, _results: Results, **settings: Any) -> ModesResult:
        """Find modes of the small network."""
        progress = self._pool.defaults.modes_progress
        method = self._pool.modes_method(**settings)
        fit = self._fit("modes", method, self._model, progress)
        self._progress_left -= progress
        return ModesResult(fit, self._data)

    def _fit_linear(self, _results: Results, **settings: Any) -> LinearResult:
        """Fit the linear model."""
        progress = self._pool.defaults.linear_progress
        method = self._pool.linear_method(**settings)
        return LinearResult(self._fit("linear", method, self._linear_model, progress))

    def _train_members(
        self,
        _results: Results,
        *,
        n_members: int,
        tol: float | None,
        progress: float,
        not_more_than_modes: bool = False,
    ) -> MembersResult:
        """Train members of an ensemble.

        Parameters
        ----------
        n_members : int
            Number of members.
        tol : float or None
            Training stops when the log posterior gains less than this many nats per row.
        progress : float
            Share of this stage in the progress that the modes leave.
        not_more_than_modes : bool, default=False
            Whether the number of members is at most the number of modes.

        Returns
        -------
        MembersResult
            Trained members.
        """
        if not_more_than_modes:
            n_members = min(n_members, self.components.n_modes)
        is_classifier = self._data.y_scaling is None
        method = self._pool.defaults.ensemble(n_members, tol, is_classifier=is_classifier)
        progress = progress * self._progress_left
        fit = self._fit("members", method, self.members_model, progress)
        return MembersResult(fit, self._leave_one_out_of_trial)

    def _leave_one_out_of_trial(self) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Leave-one-out log densities with as many modes as members."""
        modes = self.components.modes
        n_modes = min(self.components.n_members, len(modes.search.modes.theta))
        search = modes.search.select(torch.arange(n_modes))
        components = self.components._replace(modes=replace(modes, search=search))
        _, density, rows = _predict_leave_one_out(components, self.members_model, self._data)
        baseline = density.pop("linear")
        return baseline, density, rows.weight

    def _fit_weights(self, _results: Results, **settings: Any) -> PoolFit:
        """Maximise the leave-one-out score over the weights of the components."""
        return self._pool.fit_weights(
            self.with_equal_weights(self.components), self._data, **settings
        )


@dataclass(frozen=True, eq=False)
class Pool:
    """Base of the mixtures of modes, ensemble members and a linear model.

    Parameters
    ----------
    n_modes : int
        Largest number of modes. There are fewer if they would take too long.
    n_members : int
        Largest number of ensemble members.
    computes_evidence : bool, default=True
        Whether the evidence is summed over the modes and their symmetric copies.
    fits_linear : bool, default=True
        Whether a linear model is a component of a mixture for classification.
    defaults : PoolDefaults
        Constants of the mixture.
    """

    kinds_have_equal_weights: ClassVar[bool] = False

    n_modes: int
    n_members: int
    computes_evidence: bool = field(default=True, kw_only=True)
    fits_linear: bool = field(default=True, kw_only=True)
    defaults: PoolDefaults = field(default=PoolDefaults(), kw_only=True)

    def fit(self, data: Training, model: Model, progress: FitProgress) -> PoolFit:
        """Plan the fit, execute the plan, and describe its outcome.

        Parameters
        ----------
        data : Training
            Training data.
        model : Model
            Network, likelihood and prior of the modes.
        progress : FitProgress
            Progress of the fit.

        Returns
        -------
        PoolFit
            Components and their weights.
        """
        actions = PoolActions(self, data, model, progress)
        network = require_mlp(model.network)
        size = TableSize(
            n_rows=data.n_rows,
            n_columns=data.n_features,
            n_outputs=network.n_outputs,
            n_classes=0 if data.y_scaling is not None else actions.members_model.network.n_outputs,
        )
        settings = PoolSettings(
            self.n_modes, self.n_members, network, actions.members_model, self.fits_linear
        )
        plan = plan_fit(size, settings, self.defaults)

        progress.begin(self.defaults.progress_blocks)
        execution = actions.execute(plan)

        # A fit that was stopped has equal weights.
        pool = execution.results.get("weights")
        if pool is None:
            pool = actions.with_equal_weights(actions.components)
        summary = summarize(
            data.description, size, plan, execution, pool, describe_outliers(data.outliers)
        )
        pool = replace(pool, summary=summary)
        log_info("%s", pool.summary)
        progress.end(pool)
        return pool

    def modes_method(self, *args: Any, **settings: Any) -> Any:
        """Method that finds the modes."""
        raise NotImplementedError

    def linear_method(self, *args: Any, **settings: Any) -> Any:
        """Method that fits the linear model."""
        raise NotImplementedError

    def fit_weights(self, *args: Any, **settings: Any) -> PoolFit:
        """Set the weights of the components, and the noise, by leave-one-out predictions."""
        raise NotImplementedError


def summarize(
    rows: str,
    size: TableSize,
    plan: Sequence[PlannedStage],
    execution: Execution,
    pool: PoolFit,
    outliers: str = "",
) -> str:
    """Describe the table, and each stage of the plan with its result.

    Parameters
    ----------
    rows : str
        Number of rows in words.
    size : TableSize
        Size of the training data.
    plan : sequence of PlannedStage
        Plan of the fit.
    execution : Execution
        Outcome of the plan.
    pool : PoolFit
        Components and their weights.
    outliers : str
        Clause about rows that were left out.

    Returns
    -------
    str
        One line for the table and one for each stage.
    """
    table = f"{rows} of {size.n_columns} features"
    if size.n_classes:
        table += f", {size.n_classes} classes"
    weights = {
        "modes": pool.weights.modes,
        "linear model": pool.weights.linear,
        "members": pool.weights.members,
    }
    if "members" not in execution.results:
        weights["trial members"] = pool.weights.members

    def describe(stage: str) -> str:
        if stage == "weights":
            return f"by leave-one-out{'' if pool.noise is None else f', {pool.noise}'}"
        text = str(execution.results[stage])
        if stage in weights:
            return f"{text}, weight {100 * weights[stage]:.0f} %"
        return text

    return f"{table}{outliers}\n{execution.format(plan, describe)}"


def _require_evidence(
    weights: ComponentWeights, components: PoolComponents, data: Training, log_copies: float = 0.0
) -> ComponentWeights:
    """Respect the evidence of the linear model if a mode has more weights than there are rows.

    Parameters
    ----------
    weights : ComponentWeights
        Weights by leave-one-out.
    components : PoolComponents
        Fitted components.
    data : Training
        Training data.
    log_copies : float, default=0.0
        Logarithm of the number of symmetric copies of the best mode.

    Returns
    -------
    ComponentWeights
        Weights in which the linear model has at least its weight by the evidence.
    """
    modes = components.modes
    linear = components.linear
    if modes is None or linear is None:
        return weights
    if data.n_rows * modes.network.n_outputs >= modes.network.layout.n_params:
        return weights
    linear_evidence = float(linear.modes.score.max())
    mode_evidence = float(modes.modes.score.max())
    return weights.with_evidence(linear_evidence, mode_evidence + log_copies)


@dataclass(frozen=True, eq=False)
class RegressionPool(Pool):
    """Mixture for regression.

    Parameters
    ----------
    selects_width : bool, default=False
        Whether cross-validation chooses the number of hidden units.
    unbound_prior : UnboundPrior, optional
        Prior of the modes; None lets cross-validation choose between scales per layer and per
        column.
    fits_noise_shape : bool, default=True
        Whether leave-one-out predictions decide if the noise depends on the predicted mean.
    initial_modes : InitialModes, optional
        Modes from which the fit continues.
    """

    requirements: ClassVar[asks.Requirements] = asks.Requirements(
        asks.NORMAL_NOISE, asks.FULLY_CONNECTED, asks.NORMAL_OR_LEARNED_PRIOR
    )

    selects_width: bool = False
    unbound_prior: UnboundPrior | None = None
    fits_noise_shape: bool = True
    initial_modes: InitialModes | None = None

    def modes_method(self, *, max_modes: int, **_settings: Any) -> GaussNewtonLaplaceRegression:
        """Method that finds the modes."""
        return GaussNewtonLaplaceRegression(
            "auto",
            "auto",
            self.defaults.mode_tol,
            selects_width=self.selects_width,
            unbound_prior=self.unbound_prior,
            max_modes=max_modes,
            initial_modes=self.initial_modes,
            defaults=self.defaults.modes,
        )

    def linear_method(self, *, max_iter: int) -> GaussNewtonLaplaceRegression:
        """Method that fits the linear model."""
        return GaussNewtonLaplaceRegression(
            1, max_iter, self.defaults.mode_tol, defaults=self.defaults.modes
        )

    def fit_weights(self, pool: PoolFit, data: Training, *, min_gain: float) -> PoolFit:
        """Set the weights of the components, and the noise, by leave-one-out predictions.

        Parameters
        ----------
        pool : PoolFit
            Mixture with equal weights of its networks.
        data : Training
            Training data.
        min_gain : float
            Modes, or members, get no weight if they gain less than this share of what the others
            gain over the linear model.

        Returns
        -------
        PoolFit
            Mixture with its weights, noise and leave-one-out log densities.
        """
        components = pool.components
        distributions, density, rows = _predict_leave_one_out(components, pool.members_model, data)

        # Networks keep their proportions. Only the weight of the linear model is optimised.
        baseline = density.pop("linear")
        selected = select_components(baseline, density, rows.weight, min_gain)
        equal = pool.weights._asdict()
        total = sum(equal[kind] for kind in selected)
        proportions = {kind: equal[kind] / total for kind in selected}
        linear_weight = fit_baseline_weight(baseline, density, proportions, rows.weight)
        log_copies = 0.0
        if components.modes is not None:
            log_copies = components.modes.network.symmetry().log_order
        weights = _require_evidence(
            ComponentWeights.from_proportions(linear_weight, proportions),
            components,
            data,
            log_copies,
        )

        positive = {kind: weight for kind, weight in weights._asdict().items() if weight}
        distribution = _mix(distributions, positive)
        noise = None
        log_density = distribution.log_prob(rows.y)
        if self.fits_noise_shape:
            if "modes" in positive:
                # Leave-one-out predictions of members are too optimistic, since their many units
                # have seen all rows.
                positive.pop("members", None)
            reference = _mix(distributions, positive)
            noise, reference_density = fit_noise_shape(reference, rows.y, rows.weight)
            if noise is not None:
                # The shape of the noise has seen the rows. Leave-one-out densities are lower.
                optimism = noise.shaped(reference).log_prob(rows.y) - reference_density
                log_density = noise.shaped(distribution).log_prob(rows.y) - optimism

        if components.members is not None:
            # Only some of the rows have leave-one-out predictions.
            all_rows = log_density.new_full((data.n_rows,), torch.nan)
            index = evenly_spaced_rows(data.n_rows).to(log_density.device)
            all_rows[index] = log_density
            log_density = all_rows
        return replace(pool, weights=weights, noise=noise, leave_one_out=log_density)


def _mix(distributions: Mapping[str, NormalMixture], weights: Mapping[str, float]) -> NormalMixture:
    """Mixture of the distributions that have a weight."""
    return mixture([distributions[kind] for kind in weights], list(weights.values()))


def _predict_leave_one_out(
    components: PoolComponents, members_model: Model, data: Training
) -> tuple[dict[str, NormalMixture], dict[str, Tensor], Data]:
    """Leave-one-out predictions of the components.

    With ensemble members, at most 4,096 evenly spaced rows are predicted.

    Parameters
    ----------
    components : PoolComponents
        Fitted components.
    members_model : Model
        Network, likelihood and prior of the members.
    data : Training
        Training data.

    Returns
    -------
    distributions : dict of str to NormalMixture
        Predictive distributions of the rows, by component.
    log_density : dict of str to Tensor of shape (N,)
        Their log densities in nats.
    rows : Data
        The predicted rows.
    """
    modes, members, linear = components
    rows = data.double_data
    distributions = {}
    if members is not None:
        index = evenly_spaced_rows(len(rows.x)).to(rows.x.device)
        theta = torch.as_tensor(members.theta).to(rows.x)
        leverage = members.leverage
        assert leverage is not None  # members with effective noise have it after training
        weight_ratio = float(rows.weight.sum()) / float(rows.weight[index].sum())
        rows = Data(*(tensor[index] for tensor in rows))
        # Leverage of a single repetition of each row.
        single_leverage = leverage.to(rows.x).mT / (weight_ratio * rows.weight).unsqueeze(1)
        noise = members.noise_scale(members_model).to(rows.x).square().unsqueeze(1)
        outputs = members_model.network.forward(theta, rows.x)
        distribution = NormalMixture(outputs, noise * single_leverage, noise)
        distributions["members"] = leave_one_out(distribution, rows.y, rows.weight)
    if modes is not None:
        distributions["modes"] = modes.leave_one_out_predictive(rows)
    if linear is not None:
        distributions["linear"] = linear.leave_one_out_predictive(rows)
    log_density = {kind: d.log_prob(rows.y) for kind, d in distributions.items()}
    return distributions, log_density, rows


@dataclass(frozen=True, eq=False)
class ClassificationPool(Pool):
    """Mixture for classification.

    Parameters
    ----------
    alternative_prior : UnboundPrior, optional
        Prior that modes use if its evidence is higher, as with noisy labels.
    """

    requirements: ClassVar[asks.Requirements] = asks.Requirements(
        asks.SOFTMAX, asks.FULLY_CONNECTED, asks.NORMAL_OR_LEARNED_PRIOR
    )
    kinds_have_equal_weights: ClassVar[bool] = True

    alternative_prior: UnboundPrior | None = None

    def modes_method(
        self, *, n_modes: int, allow_label_noise: bool, **_settings: Any
    ) -> GaussNewtonLaplaceClassification:
        """Method that finds the modes."""
        return GaussNewtonLaplaceClassification(
            n_modes,
            "auto",
            "auto",
            "loo",
            alternative_prior=self.alternative_prior,
            allow_label_noise=allow_label_noise,
            defaults=self.defaults.modes,
        )

    def linear_method(self) -> GaussNewtonLaplaceClassification:
        """Method that fits the linear model."""
        return GaussNewtonLaplaceClassification(
            1, "auto", "auto", "loo", defaults=self.defaults.modes
        )

    def fit_weights(self, pool: PoolFit, data: Training) -> PoolFit:
        """Set the weights of the components by leave-one-out predictions."""
        modes, members, linear = pool.components
        log_density = {}
        if modes is not None:
            log_density["modes"] = modes.leave_one_out
        if members is not None and members.refit is not None:
            log_density["members"] = members.refit.leave_one_out
        if linear is None:
            baseline = None
        else:
            baseline = linear.leave_one_out
        weight = data.double_data.weight

        proportions = dict.fromkeys(log_density, 1.0)
        if len(log_density) == 2:
            # With few rows the prior leaves each near one half.
            stacked = torch.stack([*log_density.values()])
            fitted = stacking_weights(stacked, weight, prior=torch.ones(2))
            proportions = dict(zip(log_density, fitted.tolist(), strict=True))
        linear_weight = fit_baseline_weight(baseline, log_density, proportions, weight)

        # Symmetric copies of the best mode aren't counted: most units are pruned under this prior,
        # so that the copies overlap.
        weights = _require_evidence(
            ComponentWeights.from_proportions(linear_weight, proportions), pool.components, data
        )
        if baseline is not None:
            log_density["linear"] = baseline
        by_kind = weights._asdict()
        weighted = [
            density + log(by_kind[kind]) for kind, density in log_density.items() if by_kind[kind]
        ]
        mixed = torch.stack(weighted).logsumexp(0)
        return replace(pool, weights=weights, leave_one_out=mixed)
