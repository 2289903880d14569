"""A fit as a value: averaged network, evidence, starting point, and its result."""

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.memory_parts import rows_part
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.alternation import Alternation, Point
from skbayes_sym.estimators.laplace.curvatures import Curvature
from skbayes_sym.estimators.laplace.evaluation import Evaluated, TrainingEvaluation
from skbayes_sym.estimators.laplace.families import LearnedInvariances
from skbayes_sym.estimators.laplace.found import Convergence, LaplaceFit, as_array
from skbayes_sym.estimators.laplace.predict import averaging_is_negligible, predict_seeds
from skbayes_sym.inference.laplace.curvature import Kronecker
from skbayes_sym.inference.laplace.jacobian import Directions, parameter_positions
from skbayes_sym.inference.laplace.laplace_posterior import LaplacePosterior
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork, LaplaceEvidence
from skbayes_sym.models.model import Data
from skbayes_sym.numerics.memory import Part, require_memory

_ROWS_OF_TRACES = 500

_ADAM = 4  # copies of what is optimised: values, gradient, two moments


class Seeds(NamedTuple):
    """Sources of randomness, one a purpose."""

    start: int
    training: int
    hyper: int
    evaluation: int
    predict: int


@dataclass(frozen=True, eq=False)
class Problem:
    """Network, data and evidence that are trained.

    ``precisions`` (n_layers,): of the priors of all weight layers at the start, covered or not.
    """

    data: Training
    model: AveragedNetwork  # with the number of transformations used in training
    curvature: Curvature
    batch_size: int  # rows per step
    precisions: Tensor
    reports_invariances: bool
    seeds: Seeds

    @property
    def evidence(self) -> LaplaceEvidence:
        """Evidence as training takes it."""
        structure, directions, _ = self.curvature
        return LaplaceEvidence(self.model, self.data.data, structure, directions, self.batch_size)

    def start(self) -> Tensor:
        """Hyperparameters before training."""
        covered = self.precisions[len(self.precisions) - len(self.model.layers) :]
        eta, likelihood = self.model.augmentation.half_width.start(), self.model.likelihood
        return torch.cat([eta, likelihood.params, covered.log()]).to(self.data.data.x)

    def found(
        self, evaluated: Evaluated, training: Alternation, convergence: Convergence | None = None
    ) -> LaplaceFit:
        """The posterior at a point, as arrays."""
        (theta, hyper), _, spectrum = evaluated
        model, layout = self.model, self.model.network.layout
        h = model.hyper.unflatten(hyper)
        delta = h["log_precision"].double().exp()
        precision = self.curvature.make_precision(spectrum, model.layers, layout, delta)
        positions = parameter_positions(model.layers, layout)
        learned = None
        if self.reports_invariances:
            curve = [as_array(eta) for eta in training.eta_curve]
            learned = LearnedInvariances(
                model.augmentation, as_array(h["eta"]), curve, self._predicts_plainly(theta, hyper)
            )
        noise_scale = model.likelihood.at(h["likelihood"].cpu()).noise_scale
        return LaplaceFit(
            LaplacePosterior(as_array(theta), precision.map(as_array), positions.numpy()),
            prior_scale=as_array(delta.rsqrt()),
            noise_scale=as_array(noise_scale.double()),
            likelihood_params=as_array(h["likelihood"].double()),
            predict_seed=self.seeds.predict,
            invariances=learned,
            convergence=convergence,
        )

    def _predicts_plainly(self, theta: Tensor, hyper: Tensor) -> bool:
        """Whether the learned half-widths are too small for predictions to be averages."""
        seed, _ = predict_seeds(self.seeds.predict)
        evaluation = TrainingEvaluation.of_training(self.evidence, self.seeds.evaluation)
        return averaging_is_negligible(evaluation.evidence, theta, hyper, seed)

    def traces(self, point: Point) -> tuple[float, float]:
        """Traces of the empirical Fisher and of the sketched Gauss-Newton matrix, from some rows.

        Of the Kronecker-factored ones, whose trace is that of the matrix where inputs and gradients
        of a layer aren't correlated.
        """
        n_rows = self.data.n_rows
        rows = torch.linspace(0, n_rows - 1, min(n_rows, _ROWS_OF_TRACES)).long()
        data = Data(*(t[rows.to(t.device)] for t in self.data.data))
        found = []
        for directions in (Directions("fisher"), Directions("sketch")):
            evidence = replace(
                self.evidence, data=data, structure=Kronecker(self.model.layers),
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
            what = f"the derivatives of {self.batch_size} rows by {n_covered:,} weights"
            n_copies = 4 if kind == "diag" else 1
            jacobian = n_copies * shapes[-1][0] * self.batch_size * n_covered * size
            parts.append(Part(what, jacobian, "Lower batch_size, or use curvature='auto'."))
        require_memory(parts, self.data.device)
