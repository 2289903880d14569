"""The evidence as it is reported: no sketch, many transformations, and always the same noise."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from skbayes_sym.estimators.laplace.alternation import Point
from skbayes_sym.inference.laplace.curvature import Spectrum
from skbayes_sym.inference.laplace.jacobian import Directions
from skbayes_sym.inference.laplace.marginal_likelihood import EvidenceParts, LaplaceEvidence

EVALUATION_SAMPLES = 32  # transformations per row of the reported evidence and of predictions


class Evaluated(NamedTuple):
    """A point with its evidence, and the curvature there."""

    point: Point
    terms: EvidenceParts
    spectrum: Spectrum


@dataclass(frozen=True)
class TrainingEvaluation:
    """Evidence of points on the way and at the end, comparable with each other."""

    evidence: LaplaceEvidence
    seed: int  # of the transformations

    @classmethod
    def of_training(cls, evidence: LaplaceEvidence, seed: int) -> "TrainingEvaluation":
        """Evaluation by the evidence as training takes it."""
        model = evidence.model
        n_samples = max(model.n_samples, EVALUATION_SAMPLES) if model.n_half_widths else 1
        rows = max(1, evidence.batch_size * model.n_samples // n_samples)
        directions = evidence.directions
        if directions.kind == "sketch":
            directions = Directions("exact")
        model = replace(model, n_samples=n_samples)
        return cls(replace(evidence, model=model, directions=directions, batch_size=rows), seed)

    def at(self, point: Point) -> Evaluated:
        """Evaluate a point in one pass over the data."""
        sums = self.evidence.one_pass(point.theta, point.hyper, self.seed)
        spectrum = self.evidence.spectrum(sums.factors)
        terms, _ = self.evidence.evidence(*point, sums.log_likelihood, spectrum)
        return Evaluated(point, terms, spectrum)

    def better(self, last: Point, best: Point | None) -> Evaluated:
        """The one of higher evidence."""
        at_last = self.at(last)
        if best is None:
            return at_last
        at_best = self.at(best)
        return at_best if at_best.terms.value > at_last.terms.value else at_last
