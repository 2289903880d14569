"""Fit a linear model: in closed form with normal noise, else by updates of Gaussian sites."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor

from skbayes_sym.base.messages import log_info, warn_user
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import (
    NO_HIDDEN_LAYER,
    NORMAL_PRIOR,
    ONE_OUTPUT_LIKELIHOOD,
    Requirements,
)
from skbayes_sym.base.rows import Array, Scaling
from skbayes_sym.base.training import Training, evenly_spaced_rows
from skbayes_sym.linear.conjugate import Scales, SufficientStatistics, maximize_evidence
from skbayes_sym.linear.design import (
    Design,
    best_constant,
    coefficient_attributes,
    initial_scales,
    require_covariance,
    warn_range_limits,
)
from skbayes_sym.linear.hyperparameters import (
    LearnedRanges,
    Range,
    StoppingRule,
    fit_sites,
)
from skbayes_sym.linear.known_errors import KnownErrorRows, maximize_known_error_evidence
from skbayes_sym.linear.sites import (
    LinearData,
    SiteState,
    converge_sites,
    initial_sites,
    mean_field,
    solve_sites,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood, SiteLikelihood
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.normal_logits import (
    VARIANCE_SCALES,
    LinearisedOutputs,
    LogitDerivatives,
    leave_one_out_logits,
    leave_one_out_losses,
)
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.random import Estimate, mean_and_error, spawn_seeds

_PINV_ELEMENTS = 1 << 20  # of the sites' precisions that are inverted at once: 8 MB


class LinearBounds(NamedTuple):
    """Bounds at the optimum for scaled targets, in nats.

    All are computed by the same quadrature, which makes them comparable.

    Parameters
    ----------
    full : Estimate
        Bound of the posterior with full covariance.
    mean_field : Estimate
        Bound of the best mean-field posterior at the same hyperparameters.
    gap : Estimate
        Their difference.
    """

    full: Estimate
    mean_field: Estimate
    gap: Estimate


@dataclass(frozen=True, eq=False)
class LinearFit:
    """Result of `SiteInference`, final or intermediate, for C outputs or T independent targets.

    Parameters
    ----------
    design : Design
        Inputs in the units of the prior.
    prior_scale : ndarray of shape () or (K,), or None
        Given standard deviation of the prior; None if it is learned.
    loc : ndarray of shape (C, r)
        Posterior mean in the row space.
    covariance : ndarray of shape (C r, C r)
        Posterior covariance in the row space.
    prior_variance : float or ndarray of shape (T,)
        Variance of the prior in the units of the design.
    intercept : ndarray of shape (C,)
        Intercepts of scaled targets.
    noise : ndarray of shape (T,) or (0,)
        Noise levels of scaled targets; empty for a likelihood without noise.
    state : SiteState or None
        Sites; None for the closed form. The following fields are set after the last update.
    sites : tuple of ndarray, or None
        Locations and variances of the sites of distinct rows, in the units of ``y``.
    bounds : LinearBounds or None
        Bounds at the optimum.
    elbo_curve : sequence of float
        ELBO of scaled targets after every update.
    n_iter : int
        Number of updates.
    stop_reason : StopReason
        Why the updates ended.
    noise_levels : ndarray of shape (1, K, T) or None
        Noise levels that represent their posterior, in the units of ``y``.
    centre : ndarray of shape (K,) or None
        Scaled inputs at which the intercept is the function value; 0 by default.
    """

    design: Design
    prior_scale: Array | None
    loc: Array
    covariance: Array
    prior_variance: float | Array
    intercept: Array
    noise: Array
    state: SiteState | None = None
    sites: tuple[Array, Array] | None = None
    bounds: LinearBounds | None = None
    elbo_curve: Sequence[float] = ()
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"
    noise_levels: Array | None = None
    centre: Array | None = None

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Return fitted attributes, in the units of the data as given."""
        if self.centre is not None:
            mean, scale = data.x_scaling
            data = replace(data, x_scaling=Scaling(mean + self.centre * scale, scale))
        posterior = self.design.posterior(self.loc, self.covariance, self.prior_variance)
        attributes = coefficient_attributes(
            data, posterior, self.intercept, self.noise, self.prior_scale
        )
        attributes["x_mean_"] = data.x_scaling.mean
        attributes["_noise_levels_"] = self.noise_levels
        if self.bounds is None or self.sites is None:
            return attributes
        location, variance = self.sites
        offset = data.log_jacobian
        attributes |= {
            "elbo_": offset + self.bounds.full.value,
            "elbo_mean_field_": offset + self.bounds.mean_field.value,
            "symmetry_gap_": self.bounds.gap.value,
            "elbo_std_error_": self.bounds.full.standard_error,
            "elbo_curve_": offset + np.array(self.elbo_curve),
            "_gap_std_error_": self.bounds.gap.standard_error,
            # Rows of weight zero have no location and an infinite variance.
            "site_location_": _expand_rows(location, data.inverse_index, np.nan),
            "site_variance_": _expand_rows(variance, data.inverse_index, np.inf),
        }
        if model.likelihood.kind == "normal":
            attributes["log_evidence_"] = attributes["elbo_"]
            attributes["log_evidence_std_error_"] = 0.0
            attributes["log_evidence_side_"] = "exact"
        return attributes


def _expand_rows(values: Array, inverse_index: Array, missing: float) -> Array:
    """Return values of distinct rows for all rows of the data, ``missing`` for those removed."""
    is_present = inverse_index >= 0
    expanded = np.full((len(inverse_index), *values.shape[1:]), missing)
    expanded[is_present] = values[inverse_index[is_present]]
    return expanded


def _sites_in_target_units(state: SiteState, scaling: Scaling | None) -> tuple[Array, Array]:
    """Return locations and variances of the sites, without an axis if there is one output."""
    scaling = scaling or Scaling(np.zeros(1), np.ones(1))
    location, variance = _site_moments(state)
    location = location * scaling.scale + scaling.mean
    variance = variance * scaling.scale**2
    if location.shape[1] == 1:
        return location[:, 0], variance[:, 0, 0]
    return location, variance


def _site_moments(state: SiteState) -> tuple[Array, Array]:
    """Return locations (n, C) and variances (n, C, C) of the sites, scaled units."""
    sites = state.target_sites()
    precision = sites.precision.cpu().numpy()
    shift = sites.shift.cpu().numpy()
    n_outputs = precision.shape[-1]
    if n_outputs == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = 1.0 / precision
            location = shift / precision[..., 0]
        # An empty site has an infinite variance, so that any location is right.
        location = np.where(np.isfinite(variance[..., 0]), location, state.mean.cpu().numpy())
        return location, variance
    # A softmax doesn't change if all outputs are shifted: its sites have no information on that.
    centre = np.eye(n_outputs) - 1.0 / n_outputs
    variance = np.empty_like(precision)
    size = n_rows_per_block(_PINV_ELEMENTS, n_outputs**2)
    for start in range(0, len(precision), size):
        rows = slice(start, start + size)
        inverse = np.linalg.pinv(precision[rows], rcond=1e-10, hermitian=True)
        variance[rows] = centre @ inverse @ centre
    return np.einsum("ncd,nd->nc", variance, shift), variance


def fit_variance_scale(state: SiteState, data: Data, max_rows: int = 5000) -> float:
    """Return the variance scale with the best leave-one-out predictions.

    At the optimum the site of a row is its own gradient and curvature, so that leaving the row out
    is dividing by its site. Laplace approximations do the same.

    Parameters
    ----------
    state : SiteState
        Sites at the optimum.
    data : Data
        The same rows; the targets are class codes.
    max_rows : int
        Number of rows that are left out, evenly spaced.

    Returns
    -------
    float
        One of ``VARIANCE_SCALES``.
    """
    index = evenly_spaced_rows(len(data.x), max_rows)
    y = data.y[index]
    weight = data.weight[index]
    value, gradient, curvature = (term[index] for term in state.terms)
    logits = LinearisedOutputs(state.mean[index], state.output_covariance[index])
    derivatives = LogitDerivatives(-value, -gradient, curvature)
    held_out = leave_one_out_logits(logits, derivatives, weight)
    losses = leave_one_out_losses([held_out], y, VARIANCE_SCALES) @ weight
    return VARIANCE_SCALES[int(losses.argmin())]


@dataclass(frozen=True, eq=False)
class SiteInference:
    """Optimal Gaussian posterior with one Gaussian site per row (Kurle et al. 2022).

    With normal noise it is the exact posterior, computed from sufficient statistics. The targets
    are then independent given the inputs.

    Parameters
    ----------
    prior_scale : ndarray of shape () or (K,), or None
        Prior standard deviation of the coefficients of scaled inputs and targets; None learns one
        for all coefficients.
    learns_noise : bool
        Whether the noise level is learned.
    fit_intercept : bool
        Whether there are intercepts.
    max_iter : int
        Largest number of updates.
    tol : float or None
        Tolerance in posterior standard deviations; None never stops early.
    n_replicates : int
        Number of replicates of the quasi-Monte Carlo rule that evaluates the reported bound.
    """

    requirements: ClassVar[Requirements] = Requirements(
        ONE_OUTPUT_LIKELIHOOD, NO_HIDDEN_LAYER, NORMAL_PRIOR
    )

    prior_scale: Array | None
    learns_noise: bool
    fit_intercept: bool
    max_iter: int
    tol: float | None
    n_replicates: int = 8

    def fit(self, data: Training, model: Model, progress: FitProgress) -> LinearFit:
        """Fit the posterior.

        Parameters
        ----------
        data : Training
            Scaled training data.
        model : Model
            Linear model with its likelihood.
        progress : FitProgress
            Receives reports on the progress of the fit.

        Returns
        -------
        LinearFit
        """
        is_exact = is_conjugate(model.likelihood)
        if is_exact:
            n_outputs = data.rows.y.shape[1]
        else:
            n_outputs = model.network.n_outputs
        require_covariance(data, n_outputs)
        prior_unit = np.ones(data.n_features)
        if self.prior_scale is not None:
            prior_unit = prior_unit * self.prior_scale
        design = Design.from_data(data, prior_unit)
        if is_exact:
            progress.begin(1)
            if data.rows.row_parameter is None:
                fitted = self._fit_exactly(data, model.likelihood, design)
            else:
                fitted = self._fit_with_known_errors(data, model.likelihood, design)
            progress.end(fitted)
        else:
            with torch.no_grad():
                fitted = self._fit_by_updates(data, model, design, progress)
        assert fitted.bounds is not None
        log_info(
            "ELBO %.6g (mean-field %.6g, gap %.4g), stopped: %s after %d updates",
            data.log_jacobian + fitted.bounds.full.value,
            data.log_jacobian + fitted.bounds.mean_field.value,
            fitted.bounds.gap.value,
            fitted.stop_reason,
            fitted.n_iter,
        )
        return fitted

    def _fit_exactly(self, data: Training, likelihood: Likelihood, design: Design) -> LinearFit:
        """Return the exact posterior at the scales of the highest evidence, for every target."""
        # Centre the targets, and compute statistics without weights if all are 1.
        _, y, weight = data.double_data
        if (data.rows.weight == 1.0).all():
            row_weight = None
        else:
            row_weight = weight
        if design.basis is None:
            diagonal = None
        else:
            diagonal = weight @ design.inputs.square()
        intercepts = np.zeros(y.shape[1])
        if self.fit_intercept:
            intercepts = (weight @ y).cpu().numpy() / data.total_weight
            y = y - torch.as_tensor(intercepts).to(y)

        # Posterior and evidence at the scales of every target.
        pairs = []
        for target in range(y.shape[1]):
            statistics = SufficientStatistics.from_rows(
                design.features, y[:, target], row_weight, diagonal
            )
            pairs.append((statistics, self._fit_scales(data, likelihood, statistics, target)))
        locs, covariances = zip(*(s.posterior(*at) for s, at in pairs), strict=True)
        evidence = sum(s.log_evidence(*at) for s, at in pairs)
        gap = sum(s.mean_field_gap(*at) for s, at in pairs)
        log_variance_array, log_noise_array = np.array([scales for _, scales in pairs]).T
        noise = np.exp(log_noise_array)
        if self.learns_noise:
            levels = self._noise_levels(data, pairs)
        else:
            levels = None

        # The site of a row is its target with the variance of the noise.
        assert data.y_scaling is not None
        with np.errstate(over="ignore"):
            # For targets above 1e154 the variance overflows.
            noise_variance = np.square(noise * data.y_scaling.scale)
        site_variance = np.ones_like(data.rows.y) * noise_variance
        sites = (data.rows.y, site_variance)
        if data.y_ndim == 1:
            sites = (data.rows.y[:, 0], site_variance[:, 0])
            log_variance_array = log_variance_array[0]
        bounds = LinearBounds(*(Estimate(v, 0.0) for v in (evidence, evidence - gap, gap)))
        return LinearFit(
            design=design,
            prior_scale=self.prior_scale,
            loc=np.array(locs),
            covariance=block_diag(*covariances),
            prior_variance=np.exp(log_variance_array),
            intercept=intercepts,
            noise=noise,
            sites=sites,
            bounds=bounds,
            elbo_curve=[evidence],
            n_iter=1,
            stop_reason="tol",
            noise_levels=levels,
        )

    def _fit_scales(
        self,
        data: Training,
        likelihood: Likelihood,
        statistics: SufficientStatistics,
        target: int,
    ) -> Scales:
        """Return the scales of the prior and of the noise with the highest evidence of a target.

        Parameters
        ----------
        data : Training
            Scaled training data.
        likelihood : Likelihood
            Normal noise, with its initial level.
        statistics : SufficientStatistics
            Statistics of the target.
        target : int
            Index of the target.

        Returns
        -------
        Scales
        """
        initial, ranges = self._initialize_search(data, likelihood, statistics, target)
        scales = maximize_evidence(statistics, initial, ranges, learns_noise=self.learns_noise)
        log_noises = []
        if self.learns_noise:
            log_noises = [scales.log_noise]
        warn_range_limits(scales.log_variance, log_noises, ranges)
        return scales

    def _initialize_search(
        self,
        data: Training,
        likelihood: Likelihood,
        statistics: SufficientStatistics,
        target: int,
    ) -> tuple[Scales, LearnedRanges]:
        """Return initial scales of the search in closed form, and the ranges of learned ones.

        Parameters
        ----------
        data : Training
            Scaled training data.
        likelihood : Likelihood
            Normal noise, with its initial level.
        statistics : SufficientStatistics
            Statistics of the target.
        target : int
            Index of the target.

        Returns
        -------
        initial : Scales
        ranges : LearnedRanges
        """
        mean_square = float(statistics.eigenvalues.sum()) / statistics.weight
        log_variance, ranges = initial_scales(
            data, likelihood, mean_square, self.prior_scale, target
        )
        if ranges.prior is not None:
            # The prior scale may be 1e4 times as large as for other likelihoods. Small differences
            # between nearly collinear columns need such large coefficients, and the closed form can
            # resolve them.
            low, high = ranges.prior
            ranges = ranges._replace(prior=Range(low, high + 2.0 * log(1e4)))
        return Scales(log_variance, float(likelihood.noise_scale.log()[target])), ranges

    def _fit_with_known_errors(
        self, data: Training, likelihood: Likelihood, design: Design
    ) -> LinearFit:
        """Return the exact posterior of one target whose rows have known errors."""
        # The scales with the highest evidence. Known variances are a further column of the targets.
        _, y, weight = data.double_data
        rows = KnownErrorRows(
            design.features, y[:, 0], weight, y[:, 1].square(), self.fit_intercept
        )
        scales = self._learn_known_error_scales(data, likelihood, rows)

        # Posterior, evidence and the loss by independent coefficients.
        inputs = None
        if design.basis is not None:
            inputs = design.inputs
        weighted = rows.weighted(scales.log_noise, inputs)
        at = (scales.log_variance, weighted.log_reference)
        loc, covariance = weighted.statistics.posterior(*at)
        evidence = weighted.log_evidence(scales.log_variance)
        gap = weighted.statistics.mean_field_gap(*at)

        levels = None
        if self.learns_noise:
            _, n_effective = weighted.statistics.residuals(*at)
            degrees = data.total_weight - n_effective - float(self.fit_intercept)
            squares = rows.squared_residuals(weighted, loc)
            levels = self._known_error_levels(data, squares, degrees)

        # Parameters in the units of the user.
        assert data.y_scaling is not None
        assert data.rows.row_parameter is not None
        centre = weighted.centre
        if design.basis is not None:
            centre = design.basis @ centre
        noise = np.exp([scales.log_noise])
        site_variance = (noise * data.y_scaling.scale) ** 2 + data.rows.row_parameter**2
        sites = (data.rows.y, site_variance)
        prior_variance = np.exp([scales.log_variance])
        if data.y_ndim == 1:
            sites = (data.rows.y[:, 0], site_variance[:, 0])
            prior_variance = prior_variance[0]
        bounds = LinearBounds(*(Estimate(v, 0.0) for v in (evidence, evidence - gap, gap)))
        return LinearFit(
            design=design,
            prior_scale=self.prior_scale,
            loc=loc[None],
            covariance=covariance,
            prior_variance=prior_variance,
            intercept=np.array([weighted.intercept]),
            noise=noise,
            sites=sites,
            bounds=bounds,
            elbo_curve=[evidence],
            n_iter=1,
            stop_reason="tol",
            noise_levels=levels,
            centre=centre.cpu().numpy() / design.prior_unit,
        )

    def _learn_known_error_scales(
        self, data: Training, likelihood: Likelihood, rows: KnownErrorRows
    ) -> Scales:
        """Return the scales with the highest evidence, and warn if they are at their limits.

        Parameters
        ----------
        data : Training
            Scaled training data.
        likelihood : Likelihood
            Normal noise, with its initial level.
        rows : KnownErrorRows
            Features and targets with known errors.

        Returns
        -------
        Scales
        """
        start = rows.weighted(float(likelihood.noise_scale.log()[0])).statistics
        initial, ranges = self._initialize_search(data, likelihood, start, 0)
        scales = maximize_known_error_evidence(
            rows, initial, ranges, learns_noise=self.learns_noise
        )
        log_noises = []
        if self.learns_noise and not rows.known_variance.all():
            # If all rows have known errors, these can be all of the noise.
            log_noises = [scales.log_noise]
        warn_range_limits(scales.log_variance, log_noises, ranges)
        return scales

    def _known_error_levels(
        self, data: Training, squares: Tensor, degrees_of_freedom: float
    ) -> Array | None:
        """Return noise levels that represent their posterior, each with the intercept's variance.

        Parameters
        ----------
        data : Training
            Training data of one target.
        squares : Tensor of shape (N,)
            Squared residuals, in scaled units.
        degrees_of_freedom : float
            Total weight of the rows minus the effective number of parameters.

        Returns
        -------
        ndarray of shape (1, K, 1) or None
            Levels in the units of the target; None if there are so many rows that the noise is
            known.
        """
        degrees = squares.new_tensor([degrees_of_freedom])
        levels = data.known_error_levels(squares.unsqueeze(1), degrees)
        if levels is None or not self.fit_intercept:
            return levels
        assert data.rows.row_parameter is not None
        row_variance = np.square(levels) + np.square(data.rows.row_parameter[:, 0])  # (1, K, N)
        precision = (data.rows.weight / row_variance).sum(axis=-1, keepdims=True)
        return np.sqrt(np.square(levels) + 1.0 / precision)

    def _noise_levels(
        self, data: Training, pairs: Sequence[tuple[SufficientStatistics, Scales]]
    ) -> Array | None:
        """Return noise levels of all targets at their scales, None for many rows.

        They include the variance of the intercept, which the posterior doesn't have.
        """
        residuals = [statistics.residuals(*scales) for statistics, scales in pairs]
        squares, n_effective = torch.tensor(residuals, dtype=torch.float64).T
        degrees_of_freedom = data.total_weight - n_effective - float(self.fit_intercept)
        levels = data.noise_levels(squares.unsqueeze(0), degrees_of_freedom.unsqueeze(0))
        if levels is None or not self.fit_intercept:
            return levels
        return levels * (1.0 + 1.0 / data.total_weight) ** 0.5

    def _fit_by_updates(
        self, data: Training, model: Model, design: Design, progress: FitProgress
    ) -> LinearFit:
        """Fit by updates of the sites, with hyperparameters learned between them.

        Parameters
        ----------
        data : Training
            Scaled training data.
        model : Model
            Linear model with its likelihood.
        design : Design
            Inputs in the units of the prior.
        progress : FitProgress
            Receives reports on the progress of the fit.

        Returns
        -------
        LinearFit
        """
        # Quadrature rules of the updates and, if they are random, of the reported bound.
        n_outputs = model.network.n_outputs
        linear_data = design.linear_data(data, n_outputs, self.fit_intercept)
        seeds = spawn_seeds(data.seed, self.n_replicates + 1)[: 1 if n_outputs == 1 else None]
        n_rows, n_weights = linear_data.features.shape
        rules = (
            model.likelihood.site_likelihood(
                n_outputs,
                seed=seed,
                learn=self.learns_noise,
                rows_per_weight=n_rows / max(1, n_weights),
            )
            for seed in seeds
        )
        rule, *replicates = [rule for rule in rules if rule is not None]

        # Initial scales, and sites around a constant function.
        squared_length = linear_data.features.square().sum(1)
        mean_square = float(linear_data.weight @ squared_length / linear_data.weight.sum())
        log_variance, ranges = initial_scales(data, model.likelihood, mean_square, self.prior_scale)
        constant = best_constant(data, model.likelihood) * self.fit_intercept
        sites = initial_sites(linear_data, rule, torch.as_tensor(constant, device=data.device))

        # Updates, which report every state for callbacks and interrupts.
        latest: list[SiteState] = []

        def on_step(state: SiteState) -> bool:
            latest[:] = [state]
            return progress.end_block()

        progress.begin(self.max_iter, lambda: self._current_fit(design, latest[0]))
        stopping_rule = StoppingRule(self.tol or 0.0, self.max_iter, on_step)
        fitted = fit_sites(linear_data, rule, sites, log_variance, ranges, stopping_rule)
        state = fitted.state
        progress.end(self._current_fit(design, state))

        # Bounds, and warnings if the optimum wasn't reached or is at the end of a range.
        bounds = self._bounds(design, linear_data, state, replicates)
        if fitted.stopped == "max_iter" and self.tol is not None:
            warn_user(
                f"not converged: the last of {fitted.n_iter} updates moved an output by "
                f"{fitted.change:.2g} posterior standard deviations (tol={self.tol:g}). Raise "
                "max_iter."
            )
        warn_range_limits(
            float(state.prior_variance.log()), state.likelihood.params.tolist(), ranges
        )

        return replace(
            self._current_fit(design, state),
            sites=_sites_in_target_units(state, data.y_scaling),
            bounds=bounds,
            elbo_curve=fitted.elbo_curve,
            n_iter=fitted.n_iter,
            stop_reason=fitted.stopped,
        )

    def _current_fit(self, design: Design, state: SiteState) -> LinearFit:
        """Return the fit with the sites of a state."""
        return LinearFit(
            design=design,
            prior_scale=self.prior_scale,
            loc=state.loc.cpu().numpy(),
            covariance=state.covariance.cpu().numpy(),
            prior_variance=float(state.prior_variance),
            intercept=state.intercept.cpu().numpy(),
            noise=state.likelihood.noise_scale.cpu().numpy(),
            state=state,
        )

    def _bounds(
        self,
        design: Design,
        linear_data: LinearData,
        state: SiteState,
        replicates: list[SiteLikelihood],
    ) -> LinearBounds:
        """Evaluate the bound, that of the best mean-field posterior, and their difference.

        Parameters
        ----------
        design : Design
            Inputs in the units of the prior.
        linear_data : LinearData
            Rows in the row space of the inputs.
        state : SiteState
            Optimum with full covariance.
        replicates : list of SiteLikelihood
            Independent quadrature rules; empty if the rule of the updates is deterministic.

        Returns
        -------
        LinearBounds

        Raises
        ------
        NotPositiveDefiniteError
            If the mean-field posterior has no positive definite precision.
        """
        family = mean_field(design.inputs)
        initial = solve_sites(
            linear_data, state.sites, state.prior_variance, state.likelihood, family
        )
        if initial is None:
            raise NotPositiveDefiniteError(
                "the posterior precision isn't positive definite in this arithmetic. Use "
                "standardize=True, or give prior a smaller value."
            )
        tol = self.tol or 0.0
        independent = converge_sites(linear_data, initial, family, tol=tol, max_iter=500).state

        def bound(rule: SiteLikelihood, optimum: SiteState) -> float:
            value = rule.value(optimum.mean, optimum.output_covariance, linear_data.y)
            return float(optimum.elbo + (value - optimum.terms.value) @ linear_data.weight)

        rules = replicates or [state.likelihood]
        values = [[bound(rule, optimum) for optimum in (state, independent)] for rule in rules]
        full_values, mean_field_values = np.array(values).T
        estimates = [
            mean_and_error(torch.as_tensor(replicate_values))
            for replicate_values in (
                full_values,
                mean_field_values,
                full_values - mean_field_values,
            )
        ]
        if len(rules) == 1:
            # A single rule is deterministic.
            estimates = [estimate._replace(standard_error=0.0) for estimate in estimates]
        return LinearBounds(*estimates)


def is_conjugate(likelihood: Likelihood) -> bool:
    """Whether the posterior has a closed form."""
    return likelihood.kind == "normal"
