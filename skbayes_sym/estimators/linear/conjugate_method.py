"""Normal noise: the exact posterior and its evidence from sufficient statistics, as a method."""

from dataclasses import dataclass
from math import exp, log
from typing import Any, ClassVar

import numpy as np

from skbayes_sym.estimators._fit.compatibility import LINEAR, NORMAL_NOISE, NORMAL_PRIOR, Needs
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.linear.design import (
    Design,
    Start,
    coefficients,
    require_covariance,
    warn_of_ends,
)
from skbayes_sym.inference.linear.conjugate import Statistics, learn
from skbayes_sym.inference.linear.hyperparameters import Range
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.optimise import Stopped

# How much farther than elsewhere the prior's scale may go: what small differences of columns that
# are nearly combinations of each other say takes coefficients so large, and can be told here.
_COLLINEAR = 1e4


@dataclass(frozen=True, eq=False)
class ConjugateFit:
    """The posterior in the row space, and how much its independence would cost."""

    design: Design
    prior_scale: Array | None  # () or (K,), as given; None if it is learned
    loc: Array  # (1, r)
    covariance: Array  # (r, r)
    prior_variance: float
    intercept: float
    noise_std: float
    log_evidence: float  # of scaled targets, nats
    gap: float  # to the best mean-field posterior's bound, nats
    n_iter: int = 1
    stop_reason: Stopped = "tol"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        posterior = self.design.posterior(self.loc, self.covariance, self.prior_variance)
        intercept, noise = np.array([self.intercept]), np.array([self.noise_std])
        log_evidence = self.log_evidence + data.log_jacobian
        assert data.y_scaling is not None
        present = data.origin >= 0  # a row says where it is, with the variance of the noise
        with np.errstate(over="ignore"):  # of targets above 1e154 it is no number
            variance = np.square(self.noise_std * data.y_scaling.scale[0])
        return {
            **coefficients(data, posterior, intercept, noise, self.prior_scale),
            "log_evidence_": log_evidence,
            "elbo_": log_evidence,
            "elbo_mean_field_": log_evidence - self.gap,
            "symmetry_gap_": self.gap,
            "elbo_std_error_": 0.0,
            "elbo_curve_": np.array([log_evidence]),
            "_gap_std_error_": 0.0,
            "site_location_": np.where(present, data.rows.y[data.origin, 0], np.nan),
            "site_variance_": np.where(present, variance, np.inf),
        }


@dataclass(frozen=True, eq=False)
class ConjugateRegression:
    """The exact posterior at the scales of the highest evidence.

    ``prior_scale`` () or (K,), or None: of the coefficients of scaled inputs and targets; None
    learns one for all.
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, LINEAR, NORMAL_PRIOR)

    prior_scale: Array | None
    learns_noise: bool
    fit_intercept: bool

    def fit(self, data: Training, model: Model, run: Run) -> ConjugateFit:
        require_covariance(data, 1)
        run.begin(1)
        unit = np.ones(data.n_features)
        design = Design.of(data, unit if self.prior_scale is None else unit * self.prior_scale)
        found = self._solve(data, model, design)
        run.end(found)
        log_evidence = found.log_evidence + data.log_jacobian
        logger.info("log evidence %.6g (mean-field %.6g lower)", log_evidence, found.gap)
        return found

    def _solve(self, data: Training, model: Model, design: Design) -> ConjugateFit:
        _, y, weight = data.double_data
        targets, each = y[:, 0], None if (data.rows.weight == 1.0).all() else weight
        intercept = 0.0
        if self.fit_intercept:
            intercept = float(weight @ targets) / data.total_weight
            targets = targets - intercept
        diagonal = None if design.basis is None else weight @ design.inputs.square()
        rows = Statistics.of(design.features, targets, each, diagonal)
        typical = float(rows.values.sum()) / rows.weight
        start = Start.of(data, model.likelihood, typical, self.prior_scale)
        learning, given = start.learning, float(model.likelihood.noise_scale.log())
        if learning.prior is not None:
            low, high = learning.prior
            learning = learning._replace(prior=Range(low, high + 2.0 * log(_COLLINEAR)))
        scales = learn(
            rows, (start.log_prior_variance, given), learning, learns_noise=self.learns_noise
        )
        log_noise = scales.log_noise
        warn_of_ends(scales.log_variance, [log_noise] * self.learns_noise, learning)
        loc, covariance = rows.posterior(*scales)
        return ConjugateFit(
            design, self.prior_scale, loc[None], covariance, exp(scales.log_variance), intercept,
            exp(log_noise), rows.log_evidence(*scales), rows.gap(*scales),
        )  # fmt: skip
