"""A fit by Adam as a value: averaged network, evidence, starting point, and its result."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.memory_parts import rows_part
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.alternation import Alternation, Point
from skbayes_sym.estimators.laplace.families import LearnedInvariances
from skbayes_sym.estimators.laplace.predict import EVALUATION_SAMPLES, averaging_is_negligible
from skbayes_sym.inference.laplace.curvature import Diagonal, Full, Kronecker, Structure
from skbayes_sym.inference.laplace.jacobian import Directions, parameter_positions
from skbayes_sym.inference.laplace.laplace_posterior import LaplacePosterior
from skbayes_sym.inference.laplace.marginal_likelihood import (
    AveragedNetwork,
    EvidenceParts,
    LaplaceEvidence,
)
from skbayes_sym.inference.laplace.precision import Precision
from skbayes_sym.models.model import Data, Model
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped

_EXACT_OUTPUTS = 4  # curvature="auto": all columns of the likelihood's root up to here
_ROWS_OF_TRACES = 500
_ADAM = 4  # copies of what is optimised: values, gradient, two moments


def is_empirical(curvature: str) -> bool:
    """Whether the likelihood's curvature is taken from the labels: the empirical Fisher matrix."""
    return curvature.endswith("-ef")


def curvature_of(name: str, model: AveragedNetwork) -> tuple[Structure, Directions]:
    """The part of the curvature that is kept, and how the likelihood's is taken."""
    kinds: dict[str, type[Structure]] = {"diag": Diagonal, "diag-ef": Diagonal, "full": Full}
    kind: Any = kinds.get(name, Kronecker)
    structure: Structure = kind(model.layers, model.network.layout)
    many = model.network.n_outputs > _EXACT_OUTPUTS and model.n_half_widths > 0
    if name == "kron-sketch" or (name == "auto" and many):
        return structure, Directions("sketch")
    return structure, Directions("fisher" if is_empirical(name) else "exact")


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
        evidence, model = self.evidence, self.model
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
        eta, likelihood = self.model.augmentation.half_width.start(), self.model.likelihood
        return torch.cat([eta, likelihood.params, covered.log()]).to(self.data.data.x)

    def evaluated(self, point: Point) -> Evaluated:
        """A point by one pass over the data, with the noise of every other one."""
        evidence = self.reported
        sums = evidence.one_pass(*point, self.seeds.evaluation)
        precision = evidence.precision(sums.factors, point.hyper)
        terms, _ = evidence.evidence(*point, sums.log_likelihood, precision)
        return Evaluated(point, terms, precision)

    def found(
        self, evaluated: Evaluated, training: Alternation, convergence: "Convergence | None" = None
    ) -> "LaplaceFit":
        """The posterior at a point, as arrays."""
        (theta, hyper), _, precision = evaluated
        model, h = self.model, self.model.hyper.unflatten(hyper)
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
            convergence=convergence,
        )

    def traces(self, point: Point) -> tuple[float, float]:
        """Traces of the empirical Fisher and of the sketched Gauss-Newton matrix, from some rows.

        Of the Kronecker-factored ones, whose trace is that of the matrix where inputs and gradients
        of a layer aren't correlated.
        """
        n_rows = self.data.n_rows
        rows = torch.linspace(0, n_rows - 1, min(n_rows, _ROWS_OF_TRACES)).long()
        data = Data(*(t[rows.to(t.device)] for t in self.data.data))
        found, layout = [], self.model.network.layout
        for directions in (Directions("fisher"), Directions("sketch")):
            evidence = replace(
                self.evidence, data=data, structure=Kronecker(self.model.layers, layout),
                directions=directions,
            )  # fmt: skip
            factors = evidence.one_pass(point.theta, point.hyper, self.seeds.evaluation).factors
            pairs = zip(factors[::2], factors[1::2], strict=True)
            found.append(sum(float(a.trace().double() * g.trace().double()) for a, g in pairs))
        return found[0], found[1]

    def require_memory(self, curvature: str) -> None:
        """Adam's copies of P weights, and the curvature of the P' covered ones.

        full        3 P'^2 b + K B P' b      matrix, its sum with the prior's, Cholesky factor
        diag        4 K B P' b               derivatives of K outputs at B rows, squares, a graph
        Kronecker   4 sum_l (D_l^2 + G_l^2) b      factors of D_l inputs and G_l outputs, bases,
                                             and both of the step before
        """
        layout, size = self.model.network.layout, self.data.dtype.itemsize
        n_covered = int(self.model.sizes.sum())
        shapes = [layout.shapes[layer.weight] for layer in self.model.layers]
        squares = sum(s[0] ** 2 + prod(s[1:]) ** 2 for s in shapes)
        kind = curvature.removesuffix("-ef")
        n_bytes, remedy = {
            "full": (3 * n_covered**2, "Use curvature='auto', or a smaller network."),
            "diag": (0, ""),
        }.get(kind, (4 * squares, "Use curvature='diag', or narrower layers."))
        weights = Part(
            f"{layout.n_params:,} weights", _ADAM * layout.n_params * size,
            "Lower hidden_layer_sizes, or give X as float32.",
        )  # fmt: skip
        matrix = Part(f"the curvature of {n_covered:,} weights", n_bytes * size, remedy)
        parts = [rows_part(self.data), weights, matrix]
        if kind in {"full", "diag"}:
            what = f"the derivatives of {self.evidence.batch_size} rows by {n_covered:,} weights"
            n_copies = 4 if kind == "diag" else 1
            jacobian = n_copies * shapes[-1][0] * self.evidence.batch_size * n_covered * size
            parts.append(Part(what, jacobian, "Lower batch_size, or use curvature='auto'."))
        require_memory(parts, self.data.device)


@dataclass(frozen=True, eq=False)
class Convergence:
    """How training went."""

    log_evidence: float  # scaled targets, nats
    curve: Array  # the same at every update
    n_iter: int
    stop_reason: Stopped


@dataclass(frozen=True, eq=False)
class LaplaceFit:
    """A posterior and the hyperparameters it belongs to."""

    posterior: LaplacePosterior
    prior_scale: Array  # (L,); of the covered layers
    noise_scale: Array  # (n_targets,) or (0,); scaled targets
    likelihood_params: Array  # (n_params,); what was learned of the likelihood, scaled units
    predict_seed: int  # of the noise in predictions
    invariances: LearnedInvariances | None = None
    convergence: Convergence | None = None  # once training has ended

    @property
    def n_iter(self) -> int:
        return 0 if self.convergence is None else self.convergence.n_iter

    @property
    def stop_reason(self) -> Stopped:
        return "max_iter" if self.convergence is None else self.convergence.stop_reason

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
        if self.convergence is not None:
            offset = data.log_jacobian
            attributes["log_evidence_"] = self.convergence.log_evidence + offset
            attributes["log_evidence_curve_"] = self.convergence.curve + offset
        return attributes


def as_array(tensor: Any) -> Array:
    """A copy on the host."""
    return np.array(tensor.detach().cpu().numpy() if isinstance(tensor, Tensor) else tensor)
