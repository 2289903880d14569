"""Site inference as a method: its start, its updates, and the mean-field optimum beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.linalg import block_diag

from skbayes_sym.base.log import log_info
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import (
    NO_HIDDEN_LAYER,
    NORMAL_PRIOR,
    ONE_OUTPUT_LIKELIHOOD,
    Requirements,
)
from skbayes_sym.base.rows import Array, Scaling
from skbayes_sym.base.training import Training
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.laplace.class_predictive import (
    VARIANCE_SCALES,
    leave_one_out_logits,
    leave_one_out_losses,
)
from skbayes_sym.laplace.evidence_problem import LinearisedOutputs, LogitDerivatives
from skbayes_sym.linear.conjugate import Scales, Statistics, learn
from skbayes_sym.linear.design import (
    Design,
    best_constant,
    coefficients,
    initial_scales,
    require_covariance,
    warn_range_limits,
)
from skbayes_sym.linear.hyperparameters import Range, StoppingRule, fit_sites
from skbayes_sym.linear.sites import (
    LinearData,
    SiteState,
    converge,
    first_sites,
    mean_field,
    solve,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood, SiteLikelihood
from skbayes_sym.models.model import Data, Model
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.random import Estimate, mean_and_error, spawn_seeds


class LinearBounds(NamedTuple):
    """At the optimum, of scaled targets, nats; equal rules make them comparable."""

    full: Estimate
    mean_field: Estimate
    gap: Estimate


@dataclass(frozen=True, eq=False)
class LinearFit:
    """Result of `SiteInference`, final or so far: C outputs, or T targets one by one."""

    design: Design
    prior_scale: Array | None  # () or (K,), as given; None if it is learned
    loc: Array  # (C, r), in the row space
    covariance: Array  # (C r, C r)
    prior_variance: float | Array  # () or (T,)
    intercept: Array  # (C,)
    noise: Array  # (T,), or (0,) where there is none
    state: SiteState | None = None  # None where there is a closed form
    # What follows is known once the updates have ended. Locations and variances of distinct rows'
    # sites are in the units of ``y``, the curve is of scaled targets.
    sites: tuple[Array, Array] | None = None
    bounds: LinearBounds | None = None
    elbo_curve: Sequence[float] = ()
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"
    noise_levels: Array | None = None  # (1, K, T), in the units of ``y``

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        posterior = self.design.posterior(self.loc, self.covariance, self.prior_variance)
        attributes = coefficients(data, posterior, self.intercept, self.noise, self.prior_scale)
        attributes["_noise_levels_"] = self.noise_levels
        if self.bounds is None or self.sites is None:
            return attributes
        offset = data.log_jacobian
        present = data.inverse_index >= 0
        sites = []
        for values, missing in zip(self.sites, (np.nan, np.inf), strict=True):
            of_rows = np.full((len(present), *values.shape[1:]), missing)
            of_rows[present] = values[data.inverse_index[present]]
            sites.append(of_rows)
        attributes |= {
            "elbo_": offset + self.bounds.full.value,
            "elbo_mean_field_": offset + self.bounds.mean_field.value,
            "symmetry_gap_": self.bounds.gap.value,
            "elbo_std_error_": self.bounds.full.standard_error,
            "elbo_curve_": offset + np.array(self.elbo_curve),
            "_gap_std_error_": self.bounds.gap.standard_error,
            "site_location_": sites[0],
            "site_variance_": sites[1],
        }
        if model.likelihood.kind == "normal":
            attributes["log_evidence_"] = attributes["elbo_"]
            attributes["log_evidence_std_error_"] = 0.0
            attributes["log_evidence_side_"] = "exact"
        return attributes


def _site_moments(state: SiteState) -> tuple[Array, Array]:
    """Locations (n, C) and variances (n, C, C), scaled units."""
    precision, shift = (t.cpu().numpy() for t in (state.sites.precision, state.sites.shift))
    n_outputs = precision.shape[-1]
    if n_outputs == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = 1.0 / precision
            location = shift / precision[..., 0]
        # An empty site has an infinite variance; then any location will do.
        location = np.where(np.isfinite(variance[..., 0]), location, state.mean.cpu().numpy())
        return location, variance
    # A softmax says nothing of a shift of all outputs, exactly.
    centre = np.eye(n_outputs) - 1.0 / n_outputs
    variance = centre @ np.linalg.pinv(precision, rcond=1e-10, hermitian=True) @ centre
    return np.einsum("ncd,nd->nc", variance, shift), variance


def fit_variance_scale(state: SiteState, data: Data, most_rows: int = 5000) -> float:
    """The scale whose predictions of left-out rows are best; as of Laplace's approximations.

    ``state``: at the optimum: a row's site is its own gradient and curvature there, so that leaving
    it out is dividing by it; ``data``: the same rows, targets class indices; ``most_rows``: that
    are left out, evenly spaced.
    """
    chosen = torch.linspace(0, len(data.x) - 1, min(len(data.x), most_rows)).round().long()
    y = data.y[chosen]
    weight = data.weight[chosen]
    value, gradient, curvature = (t[chosen] for t in state.terms)
    logits = LinearisedOutputs(state.mean[chosen], state.output_covariance[chosen])
    held_out = leave_one_out_logits(logits, LogitDerivatives(-value, -gradient, curvature), weight)
    losses = leave_one_out_losses([held_out], y, VARIANCE_SCALES) @ weight
    return VARIANCE_SCALES[int(losses.argmin())]


@dataclass(frozen=True, eq=False)
class SiteInference:
    """The optimal Gaussian posterior as one Gaussian site per row (Kurle et al. 2022).

    With normal noise it is the exact posterior, from sufficient statistics; targets have nothing in
    common then but the inputs. ``prior_scale`` () or (K,), or None: of the coefficients of scaled
    inputs and targets; None learns one for all. ``n_replicates``: of the quasi-Monte Carlo rule
    behind the reported bound.
    """

    requirements: ClassVar[Requirements] = Requirements(
        ONE_OUTPUT_LIKELIHOOD, NO_HIDDEN_LAYER, NORMAL_PRIOR
    )

    prior_scale: Array | None
    learns_noise: bool
    fit_intercept: bool
    max_iter: int
    tol: float | None  # posterior standard deviations; None never stops early
    n_replicates: int = 8

    def fit(self, data: Training, model: Model, progress: FitProgress) -> LinearFit:
        is_exact = is_conjugate(model.likelihood)
        n_outputs = data.rows.y.shape[1] if is_exact else model.network.n_outputs
        require_covariance(data, n_outputs)
        unit = np.ones(data.n_features)
        design = Design.of(data, unit if self.prior_scale is None else unit * self.prior_scale)
        if is_exact:
            progress.begin(1)
            fitted = self._exact(data, model.likelihood, design)
            progress.end(fitted)
        else:
            with torch.no_grad():
                fitted = self._by_updates(data, model, design, progress)
        assert fitted.bounds is not None
        log_info(
            "ELBO %.6g (mean-field %.6g, gap %.4g), stopped: %s after %d updates",
            data.log_jacobian + fitted.bounds.full.value,
            data.log_jacobian + fitted.bounds.mean_field.value, fitted.bounds.gap.value,
            fitted.stop_reason, fitted.n_iter,
        )  # fmt: skip
        return fitted

    def _exact(self, data: Training, likelihood: Likelihood, design: Design) -> LinearFit:
        """The exact posterior at the scales of the highest evidence, target by target."""
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
            start, learning = initial_scales(data, likelihood, typical, self.prior_scale, target)
            if learning.prior is not None:
                # The prior's scale may go 1e4 times as far as elsewhere: what small differences of
                # columns that are nearly combinations of each other say takes coefficients so
                # large, and can be told here.
                low, high = learning.prior
                learning = learning._replace(prior=Range(low, high + 2.0 * log(1e4)))
            scales = learn(rows, (start, log_noise), learning, learns_noise=self.learns_noise)
            warn_range_limits(scales.log_variance, [scales.log_noise] * self.learns_noise, learning)
            solved.append((rows, scales))
        locs, covariances = zip(*(rows.posterior(*scales) for rows, scales in solved), strict=True)
        log_variances, log_noises = np.array([scales for _, scales in solved]).T
        evidence = sum(rows.log_evidence(*scales) for rows, scales in solved)
        gap = sum(rows.gap(*scales) for rows, scales in solved)
        noises = np.exp(log_noises)
        assert data.y_scaling is not None
        with np.errstate(over="ignore"):  # of targets above 1e154 it is no number
            variance = np.square(noises * data.y_scaling.scale)
        levels = self._noise_levels(data, solved) if self.learns_noise else None
        # A row says where it is, with the variance of the noise.
        sites = (data.rows.y, np.ones_like(data.rows.y) * variance)
        prior_variance = log_variances
        if data.y_ndim == 1:
            sites = (sites[0][:, 0], sites[1][:, 0])
            prior_variance = log_variances[0]
        return LinearFit(
            design, self.prior_scale, np.array(locs), block_diag(*covariances),
            np.exp(prior_variance), intercepts, noises, sites=sites, elbo_curve=[evidence],
            bounds=LinearBounds(*(Estimate(v, 0.0) for v in (evidence, evidence - gap, gap))),
            n_iter=1, stop_reason="tol", noise_levels=levels,
        )  # fmt: skip

    def _noise_levels(
        self, data: Training, solved: Sequence[tuple[Statistics, Scales]]
    ) -> Array | None:
        """Return the noise levels of all targets at their scales, None of many rows.

        They hold the variance of the intercept, which the posterior doesn't.
        """
        squares, taken = torch.tensor(
            [rows.residuals(*scales) for rows, scales in solved], dtype=torch.float64
        ).T
        freedoms = data.total_weight - taken - float(self.fit_intercept)
        levels = data.noise_levels(squares.unsqueeze(0), freedoms.unsqueeze(0))
        if levels is None or not self.fit_intercept:
            return levels
        return levels * (1.0 + 1.0 / data.total_weight) ** 0.5

    def _by_updates(
        self, data: Training, model: Model, design: Design, progress: FitProgress
    ) -> LinearFit:
        n_outputs = model.network.n_outputs
        problem = design.problem(data, n_outputs, self.fit_intercept)
        # Rules of the updates, and of the bound if that takes others.
        seeds = spawn_seeds(data.seed, self.n_replicates + 1)[: 1 if n_outputs == 1 else None]
        rules = (
            model.likelihood.site_likelihood(n_outputs, seed=s, learn=self.learns_noise)
            for s in seeds
        )
        rule, *replicates = [rule for rule in rules if rule is not None]
        length = problem.features.square().sum(1)
        typical = float(problem.weight @ length / problem.weight.sum())
        start, learning = initial_scales(data, model.likelihood, typical, self.prior_scale)
        constant = best_constant(data, model.likelihood) * self.fit_intercept
        first = first_sites(problem, rule, torch.as_tensor(constant, device=data.device))
        last: list[SiteState] = []

        def on_step(state: SiteState) -> bool:
            last[:] = [state]
            return progress.end_block()

        progress.begin(self.max_iter, lambda: self._found(design, last[0]))
        until = StoppingRule(self.tol or 0.0, self.max_iter, on_step)
        fitted = fit_sites(problem, rule, first, start, learning, until)
        state = fitted.state
        progress.end(self._found(design, state))
        bounds = self._bounds(design, problem, state, replicates)
        if fitted.stopped == "max_iter" and self.tol is not None:
            warn_user(
                f"not converged: the last of {fitted.n_iter} updates moved an output by "
                f"{fitted.change:.2g} posterior standard deviations (tol={self.tol:g}). Raise "
                "max_iter."
            )
        log_variance = float(state.prior_variance.log())
        warn_range_limits(log_variance, state.likelihood.params.tolist(), learning)
        targets = data.y_scaling or Scaling(np.zeros(1), np.ones(1))
        location, variance = _site_moments(state)
        location = location * targets.scale + targets.mean
        variance = variance * targets.scale**2
        if n_outputs == 1:
            location = location[:, 0]
            variance = variance[:, 0, 0]
        return self._found(
            design, state, sites=(location, variance), bounds=bounds, elbo_curve=fitted.elbo_curve,
            n_iter=fitted.n_iter, stop_reason=fitted.stopped,
        )  # fmt: skip

    def _found(self, design: Design, state: SiteState, **ended: Any) -> LinearFit:
        parts = (state.loc, state.covariance, state.intercept, state.likelihood.noise_scale)
        loc, covariance, intercept, noise = (t.cpu().numpy() for t in parts)
        return LinearFit(
            design, self.prior_scale, loc, covariance, float(state.prior_variance), intercept,
            noise, state, **ended,
        )  # fmt: skip

    def _bounds(
        self, design: Design, problem: LinearData, state: SiteState,
        replicates: list[SiteLikelihood],
    ) -> LinearBounds:  # fmt: skip
        """The bound at the optimum, that of the best mean-field posterior, and their difference."""
        family = mean_field(design.inputs)
        start = solve(problem, state.sites, state.prior_variance, state.likelihood, family)
        if start is None:
            raise NotPositiveDefiniteError(
                "the posterior precision isn't positive definite in this arithmetic. Use "
                "standardize=True, or give prior a smaller value."
            )
        best = converge(problem, start, family, tol=self.tol or 0.0, max_iter=500).state

        def bound(rule: SiteLikelihood, optimum: SiteState) -> float:
            value = rule.value(optimum.mean, optimum.output_covariance, problem.y)
            return float(optimum.elbo + (value - optimum.terms.value) @ problem.weight)

        rules = replicates or [state.likelihood]
        full, independent = np.array([[bound(rule, s) for s in (state, best)] for rule in rules]).T
        values = (full, independent, full - independent)
        estimates = [mean_and_error(torch.as_tensor(value)) for value in values]
        if len(rules) == 1:  # one is deterministic
            estimates = [each._replace(standard_error=0.0) for each in estimates]
        return LinearBounds(*estimates)


def is_conjugate(likelihood: Likelihood) -> bool:
    """Whether the posterior has a closed form."""
    return likelihood.kind == "normal"
