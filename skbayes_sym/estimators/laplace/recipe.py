"""The recipe behind the Laplace and LILA estimators: parameters in, fitted attributes out."""

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from skbayes_sym.estimators._fit.context import RUN_CONSTRAINTS, FitContext, Fitted, logger
from skbayes_sym.estimators._fit.memory import require_laplace
from skbayes_sym.estimators._fit.model import NETWORK_CONSTRAINTS, prior_scales
from skbayes_sym.estimators._fit.rows import Array, Scaling
from skbayes_sym.estimators._fit.training import log_jacobian, training_data
from skbayes_sym.estimators.laplace.report import report
from skbayes_sym.inference.laplace.curvature import Diagonal, Full, Kronecker
from skbayes_sym.inference.laplace.jacobian import (
    Directions,
    EmpiricalFisher,
    ExactDirections,
    SketchedDirections,
    parameter_positions,
)
from skbayes_sym.inference.laplace.marginal_likelihood import (
    AveragedNetwork,
    Evidence,
    LaplaceEvidence,
)
from skbayes_sym.inference.laplace.posterior import LaplacePosterior
from skbayes_sym.inference.laplace.precision import (
    diagonal_precision,
    full_precision,
    kronecker_precision,
)
from skbayes_sym.inference.laplace.training import (
    HyperAscent,
    HyperRates,
    ModeObjective,
    OnlineEvidence,
    recorded_steps,
)
from skbayes_sym.numerics.optimise import (
    OptimiseResult,
    ParamGroup,
    half_constant_half_linear,
    minimise,
)
from skbayes_sym.numerics.random import generator_from, spawn_seeds

EVALUATION_SAMPLES = 32  # transformations a row of the reported evidence and of predictions
_EXACT_OUTPUTS = 4  # curvature="auto": all columns of the likelihood's root up to here
CURVATURES = ("auto", "kron-exact", "kron-sketch", "kron-ef", "diag", "full")

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    "curvature": [StrOptions(set(CURVATURES))],
    "learn_prior": ["boolean"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "hyper_learning_rate": [Interval(Real, 0, None, closed="neither")],
    "n_hyper_updates": [Interval(Integral, 1, None, closed="left")],
    "burn_in": [Interval(Real, 0, 1, closed="left")],
    "keep_best": ["boolean"],
    "tol": [Interval(Real, 0, None, closed="left")],
    "random_state": ["random_state"],
}


class Plan(NamedTuple):
    """Everything an estimator decides before the first step."""

    model: AveragedNetwork  # with the number of samples used in training
    batch_size: int
    online: bool  # hyperparameter gradients from the training steps themselves
    learn_precision: bool
    half_width_rate: float  # 0: eta stays where it starts
    reward: float | None  # Augerino's; None where eta isn't trained with the weights
    eta: Tensor  # where it starts
    y_scaling: Scaling | None = None
    learn_noise: bool = False
    baseline: float = -np.inf  # log likelihood of the best constant, in scaled targets


class _Seeds(NamedTuple):
    start: int
    training: int
    hyper: int
    evaluation: int
    predict: int


class Snapshot(NamedTuple):
    """Weights and hyperparameters at one time."""

    theta: Tensor
    hyper: Tensor


def layer_precisions(estimator: Any, n_layers: int) -> Array:
    """``prior_scale`` as one precision for each of the network's weight layers."""
    return np.broadcast_to(prior_scales(estimator, layers=n_layers) ** -2.0, (n_layers,))


def _directions(estimator: Any, plan: Plan) -> Directions:
    kinds: dict[str, Directions] = {
        "kron-sketch": SketchedDirections(),
        "kron-ef": EmpiricalFisher(),
    }
    if estimator.curvature != "auto":
        return kinds.get(estimator.curvature, ExactDirections())
    layout, last = plan.model.network.layout, plan.model.network.weight_layers[-1]
    few = layout.shapes[last.weight][0] <= _EXACT_OUTPUTS
    return ExactDirections() if few or plan.half_width_rate == 0.0 else SketchedDirections()


def _structure(estimator: Any, model: AveragedNetwork) -> tuple[Any, Any]:
    """Structure of the curvature, and what makes a precision of its spectrum."""
    layers, layout = model.layers, model.network.layout
    if estimator.curvature == "diag":
        return Diagonal(layers, layout), diagonal_precision
    if estimator.curvature == "full":
        return Full(layers, layout), full_precision
    return Kronecker(layers), kronecker_precision


def fit_laplace(estimator: Any, context: FitContext, plan: Plan) -> Fitted:
    """Train, then evaluate evidence and posterior at the best point found."""
    require_laplace(estimator, context, plan.model, plan.batch_size)
    fit = _LaplaceFit(estimator, context, plan)
    with torch.no_grad():
        result = fit.train()
        attributes = {**fit.finish(), "n_iter_": result.n_iter}
    report(
        attributes,
        log_likelihood=fit.final.log_likelihood,
        baseline=plan.baseline,
        start_precision=float(fit.start_precision.max()),
        total_weight=float(context.rows.weight.sum()),
        tol=estimator.tol,
    )
    return Fitted(attributes, result.stopped)


class _LaplaceFit:
    """One fit's tensors and records."""

    def __init__(self, estimator: Any, context: FitContext, plan: Plan) -> None:
        self.estimator, self.context, self.plan = estimator, context, plan
        self.seeds = _Seeds(*spawn_seeds(context.seed, len(_Seeds._fields)))
        self.data = training_data(context, plan.y_scaling)
        self.offset = log_jacobian(context.rows.weight, plan.y_scaling)
        model = plan.model
        start = model.network.init(1, generator=generator_from(self.seeds.start))[0]
        precisions = layer_precisions(estimator, len(model.network.weight_layers))
        self.rest_precision = float(precisions[0])
        covered = np.log(precisions[len(precisions) - len(model.layers) :])
        self.hyper = torch.cat(
            [plan.eta, model.likelihood.params, torch.as_tensor(covered.copy())]
        ).to(self.data.x)
        self.start_precision = precisions
        structure, self.make_precision = _structure(estimator, model)
        self.evidence = LaplaceEvidence(
            model, self.data, structure, _directions(estimator, plan), plan.batch_size
        )
        self.objective = ModeObjective(
            model, self.data, start.to(self.data.x), self.hyper,
            rest_precision=self.rest_precision, batch_size=plan.batch_size,
            generator=generator_from(self.seeds.training, context.device), reward=plan.reward,
        )  # fmt: skip
        self.history: list[Evidence] = []
        self.eta_history: list[Tensor] = []
        self.best: tuple[float, Snapshot] | None = None

    # Training

    def train(self) -> OptimiseResult:
        estimator, plan = self.estimator, self.plan
        block = max(1, estimator.max_iter // estimator.n_hyper_updates)
        n_blocks = -(-estimator.max_iter // block)
        burn_in = int(estimator.burn_in * n_blocks)
        ascent = self._ascent(block, burn_in)
        task = self.context.begin(n_blocks)

        def on_step(step: int, info: Mapping[str, float]) -> bool:
            done = -(-step // block)
            self._move_eta()
            if ascent is not None and done > burn_in:
                progress = (done - burn_in) / max(1, n_blocks - burn_in)
                self._update(ascent, half_constant_half_linear(progress))
            self.eta_history.append(self._named()["eta"].clone())
            return task.end_block(self.reconstruct)

        n = len(self.objective.theta)
        groups = [
            ParamGroup(slice(0, n), estimator.learning_rate),
            ParamGroup(slice(n, None), plan.half_width_rate),
        ]
        result = minimise(
            self.objective, groups=groups, max_iter=estimator.max_iter, block_size=block,
            on_step=on_step,
        )  # fmt: skip
        self._move_eta()
        task.end(self.reconstruct)
        return result

    def _ascent(self, block: int, burn_in: int) -> HyperAscent | None:
        plan = self.plan
        half_width = plan.half_width_rate if plan.reward is None and len(plan.eta) else 0.0
        rates = HyperRates(
            half_width,
            self.estimator.hyper_learning_rate * plan.learn_noise,
            self.estimator.hyper_learning_rate * plan.learn_precision,
        )
        if not any(rates):
            return None
        has_gradient = rates.half_width > 0 or rates.likelihood > 0
        online = OnlineEvidence(self.evidence) if plan.online and has_gradient else None
        if online is not None:
            epoch = -(-len(self.data.x) // plan.batch_size)
            start = block - recorded_steps(block, epoch, plan.model.network.weight_layers)
            self.objective.watch_with(
                online, lambda step: step >= burn_in * block and step % block >= start
            )
        return HyperAscent(self.evidence, self.hyper, rates, self.seeds.hyper, online)

    def _update(self, ascent: HyperAscent, factor: float) -> None:
        before = self.snapshot()
        terms = ascent.update(self.objective.theta, factor)
        if factor == 1.0:
            self._keep_half_widths_alive()
        self.history.append(terms)
        logger.debug("update %d: log evidence %.6g", len(self.history), terms.value + self.offset)
        if self.best is None or terms.value > self.best[0]:
            self.best = (terms.value, before)

    def _keep_half_widths_alive(self) -> None:
        """Lift half-widths to their lower limit: at 0 their gradient vanishes for good.

        Done while the steps are at their full size, when the weights aren't there yet; later the
        evidence may take them to 0.
        """
        eta = self._named()["eta"]
        limit = self.plan.model.augmentation.half_width.lower_limit().to(eta)
        sign = torch.where(eta < 0.0, -1.0, 1.0).to(eta)
        eta.copy_(torch.where(eta.abs() < limit, sign * limit, eta))

    def _named(self) -> dict[str, Tensor]:
        return self.plan.model.hyper.unflatten(self.hyper)

    def _move_eta(self) -> None:
        """Where eta is trained with the weights, copy it to the hyperparameters."""
        if self.plan.reward is not None:
            self._named()["eta"].copy_(self.objective.params[len(self.objective.theta) :])

    def snapshot(self) -> Snapshot:
        return Snapshot(self.objective.theta.clone(), self.hyper.clone())

    # Evaluation

    @property
    def evaluation(self) -> LaplaceEvidence:
        """The evidence as it is reported: no sketch, and many transformations."""
        plan = self.plan
        n_samples = max(plan.model.n_samples, EVALUATION_SAMPLES) if len(plan.eta) else 1
        model = replace(plan.model, n_samples=n_samples)
        directions = self.evidence.directions
        if isinstance(directions, SketchedDirections):
            directions = ExactDirections()
        rows = max(1, plan.batch_size * plan.model.n_samples // n_samples)
        return replace(self.evidence, model=model, directions=directions, batch_size=rows)

    def evaluate(self, at: Snapshot) -> tuple[Evidence, Any]:
        """Evidence and spectrum, always with the same noise."""
        evidence = self.evaluation
        sums = evidence.one_pass(at.theta, at.hyper, self.seeds.evaluation)
        spectrum = evidence.spectrum(sums.factors)
        return evidence.evidence(at.theta, at.hyper, sums.log_likelihood, spectrum)[0], spectrum

    def finish(self) -> dict[str, Any]:
        """Attributes at the better of the last point and the best one on the way."""
        last = self.snapshot()
        terms, spectrum = self.evaluate(last)
        at = last
        if self.estimator.keep_best and self.best is not None:
            best_terms, best_spectrum = self.evaluate(self.best[1])
            if best_terms.value > terms.value:
                at, terms, spectrum = self.best[1], best_terms, best_spectrum
        self.final = terms
        curve = np.array([e.value for e in self.history]) + self.offset
        return {
            **self._state(at, spectrum),
            "log_evidence_": terms.value + self.offset,
            "log_evidence_history_": curve,
            "_eta_history_": [_array(eta) for eta in self.eta_history],
        }

    def reconstruct(self) -> Mapping[str, Any]:
        """What predicting needs in the middle of a fit, for callbacks that ask."""
        with torch.no_grad():
            at = self.snapshot()
            return self._state(at, self.evaluate(at)[1])

    def _state(self, at: Snapshot, spectrum: Any) -> dict[str, Any]:
        plan, context = self.plan, self.context
        model = plan.model
        h = model.hyper.unflatten(at.hyper)
        delta = h["log_precision"].double().exp()
        precision = self.make_precision(spectrum, model.layers, model.network.layout, delta)
        posterior = LaplacePosterior(
            _array(at.theta),
            precision.map(_array),
            parameter_positions(model.layers, model.network.layout).numpy(),
        )
        attributes = {
            "posterior_": posterior,
            "network_": model.network,
            "prior_precision_": _array(delta),
            "x_mean_": context.x_scaling.mean,
            "x_scale_": context.x_scaling.scale,
            "device_": str(context.device),
            "dtype_": str(context.dtype).removeprefix("torch."),
            "_eta_": _array(h["eta"]),
            "_augmentation_": model.augmentation,
            "_n_last_": model.n_last,
            "_predict_seed_": self.seeds.predict,
            "_cache": {},
        }
        if plan.y_scaling is not None:
            likelihood = model.likelihood.at(h["likelihood"].cpu())
            noise = likelihood.noise_scale.double().numpy() * plan.y_scaling.scale
            attributes["y_mean_"], attributes["y_scale_"] = plan.y_scaling
            attributes["noise_std_"] = float(noise[0]) if len(noise) == 1 else noise
        return attributes


def _array(tensor: Any) -> Array:
    return np.array(torch.as_tensor(tensor).detach().cpu().numpy())
