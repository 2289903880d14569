"""Normal noise: the exact posterior and its evidence from sufficient statistics, as a method."""

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.linalg import block_diag

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
from skbayes_sym.inference.linear.conjugate import Scales, Statistics, learn
from skbayes_sym.inference.linear.hyperparameters import Range
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.optimise import Stopped

# How much farther than elsewhere the prior's scale may go: what small differences of columns that
# are nearly combinations of each other say takes coefficients so large, and can be told here.
_COLLINEAR = 1e4


@dataclass(frozen=True, eq=False)
class ConjugateFit:
    """Posteriors of T targets in the row space, and how much their independence would cost."""

    design: Design
    prior_scale: Array | None  # () or (K,), as given; None if it is learned
    loc: Array  # (T, r)
    covariance: Array  # (T r, T r)
    prior_variance: Array  # (T,)
    intercept: Array  # (T,)
    noise_std: Array  # (T,)
    log_evidence: float  # of all scaled targets, nats
    gap: float  # to the best mean-field posterior's bound, nats
    n_iter: int = 1
    stop_reason: Stopped = "tol"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        is_single = data.y_ndim == 1
        prior_variance = float(self.prior_variance[0]) if is_single else self.prior_variance
        posterior = self.design.posterior(self.loc, self.covariance, prior_variance)
        log_evidence = self.log_evidence + data.log_jacobian
        assert data.y_scaling is not None
        present = data.origin >= 0  # a row says where it is, with the variance of the noise
        with np.errstate(over="ignore"):  # of targets above 1e154 it is no number
            variance = np.square(self.noise_std * data.y_scaling.scale)
        sites = (
            np.where(present[:, None], data.rows.y[data.origin], np.nan),
            np.where(present[:, None], variance, np.inf),
        )
        location, spread = (s[:, 0] if is_single else s for s in sites)
        return {
            **coefficients(data, posterior, self.intercept, self.noise_std, self.prior_scale),
            "log_evidence_": log_evidence,
            "elbo_": log_evidence,
            "elbo_mean_field_": log_evidence - self.gap,
            "symmetry_gap_": self.gap,
            "elbo_std_error_": 0.0,
            "elbo_curve_": np.array([log_evidence]),
            "_gap_std_error_": 0.0,
            "site_location_": location,
            "site_variance_": spread,
        }


@dataclass(frozen=True, eq=False)
class ConjugateRegression:
    """The exact posterior at the scales of the highest evidence.

    ``prior_scale`` () or (K,), or None: of the coefficients of scaled inputs and targets; None
    learns one for all. Targets have nothing in common but the inputs.
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, LINEAR, NORMAL_PRIOR)

    prior_scale: Array | None
    learns_noise: bool
    fit_intercept: bool

    def fit(self, data: Training, model: Model, run: Run) -> ConjugateFit:
        require_covariance(data, data.rows.y.shape[1])
        run.begin(1)
        unit = np.ones(data.n_features)
        design = Design.of(data, unit if self.prior_scale is None else unit * self.prior_scale)
        found = self._solve(data, model.likelihood, design)
        run.end(found)
        log_evidence = found.log_evidence + data.log_jacobian
        logger.info("log evidence %.6g (mean-field %.6g lower)", log_evidence, found.gap)
        return found

    def _solve(self, data: Training, likelihood: Likelihood, design: Design) -> ConjugateFit:
        _, y, weight = data.double_data
        each = None if (data.rows.weight == 1.0).all() else weight
        diagonal = None if design.basis is None else weight @ design.inputs.square()
        intercepts = np.zeros(y.shape[1])
        if self.fit_intercept:
            intercepts = (weight @ y).cpu().numpy() / data.total_weight
            y = y - torch.as_tensor(intercepts).to(y)
        solved: list[tuple[Statistics, Scales]] = []
        for target, log_noise in enumerate(likelihood.noise_scale.log().tolist()):
            rows = Statistics.of(design.features, y[:, target], each, diagonal)
            typical = float(rows.values.sum()) / rows.weight
            start = Start.of(data, likelihood, typical, self.prior_scale, target)
            learning, begin = start.learning, (start.log_prior_variance, log_noise)
            if learning.prior is not None:
                low, high = learning.prior
                learning = learning._replace(prior=Range(low, high + 2.0 * log(_COLLINEAR)))
            scales = learn(rows, begin, learning, learns_noise=self.learns_noise)
            warn_of_ends(scales.log_variance, [scales.log_noise] * self.learns_noise, learning)
            solved.append((rows, scales))
        locs, covariances = zip(*(rows.posterior(*scales) for rows, scales in solved), strict=True)
        log_variances, log_noises = np.array([scales for _, scales in solved]).T
        return ConjugateFit(
            design, self.prior_scale, np.array(locs), block_diag(*covariances),
            np.exp(log_variances), intercepts, np.exp(log_noises),
            sum(rows.log_evidence(*scales) for rows, scales in solved),
            sum(rows.gap(*scales) for rows, scales in solved),
        )  # fmt: skip
