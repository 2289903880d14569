"""A fit by Adam as a value: averaged network, evidence, starting point, and its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.log import logger
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training
from skbayes_sym.laplace.curvature import (
    Directions,
    Full,
    Kronecker,
    Precision,
    Structure,
    parameter_positions,
)
from skbayes_sym.laplace.evidence import (
    AveragedNetwork,
    EvidenceParts,
    LaplaceEvidence,
)
from skbayes_sym.laplace.invariance_parameters import (
    EVALUATION_SAMPLES,
    LearnedInvariances,
    averaging_is_negligible,
)
from skbayes_sym.laplace.map import MapObjective
from skbayes_sym.laplace.online_training import HyperAscent
from skbayes_sym.laplace.posterior import LaplacePosterior
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.optimise import (
    OptimiseResult,
    ParamGroup,
    StopReason,
    compute_gain,
    half_constant_half_linear,
    minimise,
)


class Pace(NamedTuple):
    """Steps, updates of the hyperparameters among them, and when to stop."""

    max_iter: int
    block: int  # steps between two updates
    burn_in: int  # updates left out at the start
    tol: float | None  # nats; None: never stops
    until_sure: bool = False  # whether a gain must be below it by more than the curve's noise

    @property
    def n_blocks(self) -> int:
        """Blocks of steps, each with an update at its end once ``burn_in`` are over."""
        return -(-self.max_iter // self.block)

    def block_end(self, step: int) -> int:
        """Steps made by the update after ``step``, counted from 0; the last block may be short."""
        return min((step // self.block + 1) * self.block, self.max_iter)

    @property
    def window(self) -> int:
        """A tenth of the updates."""
        return max(1, (self.n_blocks - self.burn_in) // 10)


class Point(NamedTuple):
    """Weights and hyperparameters at one time."""

    theta: Tensor
    hyper: Tensor


class Alternation:
    """Training, and its records.

    ``objective``: of one position: the weights, and eta where it is trained with them. ``hyper``:
    hyperparameters, changed in place. ``ascent``: moves them; without it they stay, and the loss
    says when training has converged. ``evidence_curve``: log evidence at every update, scaled
    targets, nats; ``eta_curve``: eta after every block of steps; ``best``: the highest of
    ``evidence_curve``, and where it was.
    """

    def __init__(
        self, model: AveragedNetwork, objective: MapObjective, hyper: Tensor,
        ascent: HyperAscent | None, pace: Pace,
    ) -> None:  # fmt: skip
        self._model = model
        self._objective = objective
        self._hyper = hyper
        self.ascent = ascent
        self.pace = pace
        self._has_converged = False
        self.evidence_curve: list[float] = []
        self.eta_curve: list[Tensor] = []
        self.best: tuple[float, Point] | None = None

    def point(self) -> Point:
        """Point that training has reached."""
        self._move_eta()
        return Point(self._theta.clone(), self._hyper.clone())

    def train(self, groups: Sequence[ParamGroup], end_block: Callable[[], bool]) -> OptimiseResult:
        """Make all steps and updates, unless something ends them early."""
        pace = self.pace

        def on_step(step: int, info: Mapping[str, float]) -> bool:
            n_updates = -(-step // pace.block) - pace.burn_in
            self._move_eta()
            if self.ascent is not None and n_updates > 0:
                progress = n_updates / max(1, pace.n_blocks - pace.burn_in)
                self._update(self.ascent, half_constant_half_linear(progress))
            self.eta_curve.append(self._eta.clone())
            return end_block() or self._has_converged

        result = minimise(
            self._objective,
            groups=groups,
            max_iter=pace.max_iter,
            block_size=pace.block,
            on_step=on_step,
            tol=pace.tol if self.ascent is None else None,
        )
        self._move_eta()
        by_evidence = self._has_converged and result.stopped == "callback"
        return result._replace(stopped="tol") if by_evidence else result

    def _update(self, ascent: HyperAscent, factor: float) -> None:
        before = self.point()
        eta = self._eta
        curve = self.evidence_curve
        value = ascent.update(self._theta, factor).value
        if factor == 1.0:
            # Lift half-widths to their lower limit: at 0 their gradient vanishes for good. Only
            # while steps have their full size, when the weights aren't there yet; later the
            # evidence may take them to 0.
            floor = self._model.augmentation.half_width.lower_limit().to(eta)
            sign = torch.where(eta < 0.0, -1.0, 1.0).to(eta)
            eta.copy_(torch.where(eta.abs() < floor, sign * floor, eta))
        curve.append(value)
        logger.debug("update %d: log evidence %.6g (scaled targets)", len(curve), value)
        if self.best is None or value > self.best[0]:
            self.best = (value, before)
        # Steps of full size end around a maximum and not in it, and a plateau may be a dip.
        tol = self.pace.tol
        window = self.pace.window
        if tol is not None and factor < 1.0:
            gained = compute_gain(curve, window)
            if self.pace.until_sure:  # of five values the spread says how much of a gain is noise
                self._has_converged = window >= 5 and gained.is_below(tol)
            else:
                self._has_converged = gained.value < tol

    @property
    def _theta(self) -> Tensor:
        """View of the weights in the objective."""
        return self._objective.params[: self._model.network.layout.n_params]

    @property
    def _eta(self) -> Tensor:
        """View of eta among the hyperparameters."""
        return self._model.hyper.unflatten(self._hyper)["eta"]

    def _move_eta(self) -> None:
        """Copy eta to the hyperparameters if it is trained with the weights."""
        trained = self._objective.params[len(self._theta) :]
        if trained.numel():
            self._eta.copy_(trained)


def check_curvature(name: str, model: AveragedNetwork) -> tuple[Structure, Directions]:
    """The part of the curvature that is kept, and how the likelihood's is taken.

    "auto" takes all columns of its root, but a sketch of more than four beside half-widths.
    """
    kind = Full if name == "full" else Kronecker
    many = model.network.n_outputs > 4 and model.n_half_widths > 0
    is_sketched = name == "kron-sketch" or (name == "auto" and many)
    directions = Directions("sketch" if is_sketched else "exact")
    return kind(model.layers, model.network.layout), directions


class Seeds(NamedTuple):
    """Sources of randomness, one a purpose."""

    start: int
    training: int
    hyper: int
    evaluation: int
    predict: int


class Evaluated(NamedTuple):
    """A point with its evidence, and the posterior's precision there."""

    point: Point
    terms: EvidenceParts
    precision: Precision


@dataclass(frozen=True, eq=False)
class Problem:
    """Network, data and evidence that are trained.

    ``precisions`` (n_layers,): of the priors of all weight layers at the start, covered or not.
    """

    data: Training
    evidence: LaplaceEvidence  # as training takes it
    precisions: Tensor
    reports_invariances: bool
    seeds: Seeds

    @property
    def model(self) -> AveragedNetwork:
        """The network, with the number of transformations used in training."""
        return self.evidence.model

    @cached_property
    def reported(self) -> LaplaceEvidence:
        """The evidence as it is reported: no sketch, and many transformations."""
        evidence = self.evidence
        model = self.model
        n_samples = max(model.n_samples, EVALUATION_SAMPLES) if model.n_half_widths else 1
        rows = max(1, evidence.batch_size * model.n_samples // n_samples)
        directions = evidence.directions
        if directions.kind == "sketch":
            directions = Directions("exact")
        model = replace(model, n_samples=n_samples)
        return replace(evidence, model=model, directions=directions, batch_size=rows)

    def start(self) -> Tensor:
        """Hyperparameters before training."""
        covered = self.precisions[len(self.precisions) - len(self.model.layers) :]
        eta = self.model.augmentation.half_width.start()
        likelihood = self.model.likelihood
        return torch.cat([eta, likelihood.params, covered.log()]).to(self.data.data.x)

    def evaluate(self, point: Point) -> Evaluated:
        """A point by one pass over the data, with the noise of every other one."""
        evidence = self.reported
        sums = evidence.one_pass(*point, self.seeds.evaluation)
        precision = evidence.precision(sums.factors, point.hyper)
        terms, _ = evidence.evidence(*point, sums.log_likelihood, precision)
        return Evaluated(point, terms, precision)

    def found(self, evaluated: Evaluated, training: Alternation) -> "LaplaceFit":
        """The posterior at a point, as arrays."""
        (theta, hyper), _, precision = evaluated
        model = self.model
        h = self.model.hyper.unflatten(hyper)
        positions = parameter_positions(model.layers, model.network.layout)
        learned = None
        if self.reports_invariances:
            plainly = averaging_is_negligible(self.reported, *evaluated.point, self.seeds.predict)
            curve = [as_array(eta) for eta in training.eta_curve]
            learned = LearnedInvariances(model.augmentation, as_array(h["eta"]), curve, plainly)
        noise_scale = model.likelihood.at(h["likelihood"].cpu()).noise_scale
        return LaplaceFit(
            LaplacePosterior(as_array(theta), precision.map(as_array), positions.numpy()),
            prior_scale=as_array((-0.5 * h["log_precision"].double()).exp()),
            noise_scale=as_array(noise_scale.double()),
            likelihood_params=as_array(h["likelihood"].double()),
            predict_seed=self.seeds.predict,
            invariances=learned,
        )

    def require_memory(self, curvature: str) -> None:
        """Adam's copies of P weights, and the curvature of the P' covered ones.

        full        3 P'^2 b + K B P' b      matrix, its sum with the prior's, Cholesky factor;
                                             derivatives of K outputs at B rows
        Kronecker   4 sum_l (D_l^2 + G_l^2) b      factors of D_l inputs and G_l outputs, bases,
                                             and both of the step before
        """
        layout = self.model.network.layout
        size = self.data.dtype.itemsize
        n_covered = int(self.model.sizes.sum())
        shapes = [layout.shapes[layer.weight] for layer in self.model.layers]
        n_numbers = 4 * sum(s[0] ** 2 + prod(s[1:]) ** 2 for s in shapes)
        remedy = "Use narrower layers."
        if curvature == "full":
            n_numbers = 3 * n_covered**2
            remedy = "Use curvature='auto', or a smaller network."
        parts = [
            self.data.rows_allocation,
            # Values, gradient, two moments.
            MemoryAllocation(f"{layout.n_params:,} weights", 4 * layout.n_params * size,
                 "Lower hidden_layer_sizes, or give X as float32."),
            MemoryAllocation(f"the curvature of {n_covered:,} weights", n_numbers * size, remedy),
        ]  # fmt: skip
        if curvature == "full":
            what = f"the derivatives of {self.evidence.batch_size} rows by {n_covered:,} weights"
            jacobian = shapes[-1][0] * self.evidence.batch_size * n_covered * size
            parts.append(
                MemoryAllocation(what, jacobian, "Lower batch_size, or use curvature='auto'.")
            )
        require_memory(parts, self.data.device)


@dataclass(frozen=True, eq=False)
class LaplaceFit:
    """A posterior and the hyperparameters it belongs to."""

    posterior: LaplacePosterior
    prior_scale: Array  # (L,); of the covered layers
    noise_scale: Array  # (n_targets,) or (0,); scaled targets
    likelihood_params: Array  # (n_params,); what was learned of the likelihood, scaled units
    predict_seed: int  # of the noise in predictions
    invariances: LearnedInvariances | None = None
    # Once training has ended: the evidence, scaled targets, nats, and the same at every update.
    log_evidence: float | None = None
    curve: Array | None = None
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "posterior_": self.posterior,
            "prior_scale_": self.prior_scale,
            "_predict_seed_": self.predict_seed,
            "_likelihood_params_": self.likelihood_params,
        }
        if self.noise_scale.size and data.y_scaling is not None:
            noise = self.noise_scale * data.y_scaling.scale
            attributes["noise_std_"] = float(noise[0]) if len(noise) == 1 else noise
        if self.invariances is not None:
            attributes.update(self.invariances.attributes())
        if self.log_evidence is not None and self.curve is not None:
            attributes["log_evidence_"] = self.log_evidence + data.log_jacobian
            # Random transformations of the rows have an unknown error; nothing else is drawn.
            is_random = self.invariances is not None
            attributes["log_evidence_std_error_"] = float("nan") if is_random else 0.0
            attributes["log_evidence_side_"] = "lower"  # copies of the mode aren't counted
            attributes["log_evidence_curve_"] = self.curve + data.log_jacobian
        return attributes


def as_array(tensor: Any) -> Array:
    """A copy on the host."""
    return np.array(tensor.detach().cpu().numpy() if isinstance(tensor, Tensor) else tensor)
