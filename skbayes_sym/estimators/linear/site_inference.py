"""Site inference as a method: its start, its updates, and the mean-field optimum beside it."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from skbayes_sym.estimators._fit.compatibility import LINEAR, NORMAL_PRIOR, ONE_OUTPUT, Needs
from skbayes_sym.estimators._fit.rows import Array, Scaling
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.linear.conjugate_method import ConjugateFit, ConjugateRegression
from skbayes_sym.estimators.linear.design import (
    Design,
    Start,
    best_constant,
    coefficients,
    require_covariance,
    warn_of_ends,
)
from skbayes_sym.inference.laplace.labels_predictive import (
    VARIANCE_SCALES,
    left_out_losses,
    without_itself,
)
from skbayes_sym.inference.laplace.search.evidence_problem import LinearisedOutputs, Terms
from skbayes_sym.inference.linear.hyperparameters import Learning, SitesFit, Until, fit_sites
from skbayes_sym.inference.linear.sites import (
    LinearData,
    Sites,
    SiteState,
    converge,
    first_sites,
    mean_field,
    solve,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood, SiteLikelihood
from skbayes_sym.models.model import Data, Model
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import Estimate, mean_and_error, spawn_seeds


class LinearBounds(NamedTuple):
    """At the optimum, of scaled targets, nats; equal rules make them comparable."""

    full: Estimate
    mean_field: Estimate
    gap: Estimate


@dataclass(frozen=True, eq=False)
class SiteFit:
    """Result of `SiteInference`, final or so far."""

    design: Design
    state: SiteState
    prior_scale: Array | None  # () or (K,), or None; as given; None if it is learned
    bounds: LinearBounds | None = None  # once the updates have ended
    elbo_curve: list[float] | None = None  # of scaled targets
    n_iter: int = 0
    stop_reason: Stopped = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        targets = data.y_scaling or Scaling(np.zeros(1), np.ones(1))
        state = self.state
        loc, covariance = (t.cpu().numpy() for t in (state.loc, state.covariance))
        attributes = coefficients(
            data, self.design.posterior(loc, covariance, float(state.prior_variance)),
            state.intercept.cpu().numpy(), state.likelihood.noise_scale.cpu().numpy(),
            self.prior_scale,
        )  # fmt: skip
        if self.bounds is None or self.elbo_curve is None:
            return attributes
        offset = data.log_jacobian
        attributes.update(
            elbo_=offset + self.bounds.full.value,
            elbo_mean_field_=offset + self.bounds.mean_field.value,
            symmetry_gap_=self.bounds.gap.value,
            elbo_std_error_=self.bounds.full.standard_error,
            elbo_curve_=offset + np.array(self.elbo_curve),
            _gap_std_error_=self.bounds.gap.standard_error,
            **self._sites(data, targets),
        )
        if model.likelihood.kind == "normal":
            attributes["log_evidence_"] = attributes["elbo_"]
        return attributes

    def _sites(self, data: Training, targets: Scaling) -> dict[str, Any]:
        """Location and variance of the site of every row as given, in units of ``y``."""
        location, variance = _moments_of_sites(self.state)
        location = location * targets.scale + targets.mean
        variance = variance * targets.scale**2
        if location.shape[1] == 1:
            location, variance = location[:, 0], variance[:, 0, 0]
        n_given, present = len(data.origin), data.origin >= 0
        locations = np.full((n_given, *location.shape[1:]), np.nan)
        variances = np.full((n_given, *variance.shape[1:]), np.inf)
        locations[present] = location[data.origin[present]]
        variances[present] = variance[data.origin[present]]
        return {"site_location_": locations, "site_variance_": variances}


def _moments_of_sites(state: SiteState) -> tuple[Array, Array]:
    """Locations (n, C) and variances (n, C, C), scaled units."""
    precision, shift = (t.cpu().numpy() for t in (state.sites.precision, state.sites.shift))
    n_outputs = precision.shape[-1]
    if n_outputs == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            variance, location = 1.0 / precision, shift / precision[..., 0]
        # An empty site has an infinite variance; then any location will do.
        location = np.where(np.isfinite(variance[..., 0]), location, state.mean.cpu().numpy())
        return location, variance
    # A softmax says nothing of a shift of all outputs, exactly.
    centre = np.eye(n_outputs) - 1.0 / n_outputs
    variance = centre @ np.linalg.pinv(precision, rcond=1e-10, hermitian=True) @ centre
    return np.einsum("ncd,nd->nc", variance, shift), variance


_MOST_ROWS = 5000  # that are left out, evenly spaced


def scale_by_left_out(state: SiteState, data: Data) -> float:
    """The scale whose predictions of left-out rows are best; as of Laplace's approximations.

    ``state``: at the optimum: a row's site is its own gradient and curvature there, so that leaving
    it out is dividing by it; ``data``: the same rows, targets class indices.
    """
    chosen = torch.linspace(0, len(data.x) - 1, min(len(data.x), _MOST_ROWS)).round().long()
    y, weight = data.y[chosen], data.weight[chosen]
    value, gradient, curvature = (t[chosen] for t in state.terms)
    logits = LinearisedOutputs(state.mean[chosen], state.output_covariance[chosen])
    left_out = without_itself(logits, Terms(-value, -gradient, curvature))
    losses = left_out_losses([left_out], y, VARIANCE_SCALES) @ weight
    return VARIANCE_SCALES[int(losses.argmin())]


_MEAN_FIELD_UPDATES = 500
_REPLICATES = 8  # of the quasi-Monte Carlo rule behind the reported bound


@dataclass(frozen=True, eq=False)
class SiteInference:
    """The optimal Gaussian posterior as one Gaussian site per row (Kurle et al. 2022).

    ``prior_scale`` () or (K,), or None: of the coefficients of scaled inputs and targets; None
    learns one for all.
    """

    needs: ClassVar[Needs] = Needs(ONE_OUTPUT, LINEAR, NORMAL_PRIOR)

    prior_scale: Array | None
    learns_noise: bool
    fit_intercept: bool
    max_iter: int
    tol: float | None  # posterior standard deviations; None never stops early

    def fit(self, data: Training, model: Model, run: Run) -> SiteFit | ConjugateFit:
        if is_conjugate(model.likelihood):
            exact = ConjugateRegression(self.prior_scale, self.learns_noise, self.fit_intercept)
            return exact.fit(data, model, run)
        n_outputs = model.network.n_outputs
        require_covariance(data, n_outputs)
        with torch.no_grad():
            unit = np.ones(data.n_features)
            design = Design.of(data, unit if self.prior_scale is None else unit * self.prior_scale)
            problem = design.problem(data, n_outputs, self.fit_intercept)
            sites, *replicates = self._rules(model.likelihood, n_outputs, data.seed)
            length = problem.features.square().sum(1)
            typical = float(problem.weight @ length / problem.weight.sum())
            start = Start.of(data, model.likelihood, typical, self.prior_scale)
            constant = best_constant(data, model.likelihood) * self.fit_intercept
            first = first_sites(problem, sites, torch.as_tensor(constant, device=data.device))
            fitted = self._update(problem, sites, first, start, design, run)
            bounds = self._bounds(design, problem, fitted.state, replicates)
        self._report(fitted, bounds, start.learning, data.log_jacobian)
        return SiteFit(
            design, fitted.state, self.prior_scale, bounds, fitted.elbo_curve, fitted.n_iter,
            fitted.stopped,
        )  # fmt: skip

    def _rules(self, likelihood: Likelihood, n_outputs: int, seed: int) -> list[SiteLikelihood]:
        """Rules of the updates, and of the bound if that takes others."""
        seeds = spawn_seeds(seed, _REPLICATES + 1)[: 1 if n_outputs == 1 else None]
        rules = (likelihood.sites(n_outputs, seed=s, learn=self.learns_noise) for s in seeds)
        return [rule for rule in rules if rule is not None]

    def _update(
        self, problem: LinearData, sites: SiteLikelihood, first: Sites, start: Start,
        design: Design, run: Run,
    ) -> SitesFit:  # fmt: skip
        last: list[SiteState] = []

        def on_step(state: SiteState) -> bool:
            last[:] = [state]
            return run.end_block()

        run.begin(self.max_iter, lambda: SiteFit(design, last[0], self.prior_scale))
        fitted = fit_sites(
            problem, sites, first, start.log_prior_variance, start.learning,
            Until(self.tol or 0.0, self.max_iter, on_step),
        )  # fmt: skip
        run.end(SiteFit(design, fitted.state, self.prior_scale))
        return fitted

    def _bounds(
        self,
        design: Design,
        problem: LinearData,
        state: SiteState,
        replicates: list[SiteLikelihood],
    ) -> LinearBounds:
        """The bound at the optimum, that of the best mean-field posterior, and their difference."""
        family = mean_field(design.inputs)
        start = solve(problem, state.sites, state.prior_variance, state.likelihood, family)
        if start is None:
            raise NotPositiveDefiniteError(
                "the posterior precision isn't positive definite in this arithmetic. Use "
                "standardize=True, or give prior a smaller value."
            )
        tol = self.tol or 0.0
        best = converge(problem, start, family, tol=tol, max_iter=_MEAN_FIELD_UPDATES).state

        def bound(rule: SiteLikelihood, at: SiteState) -> float:
            value = rule.value(at.mean, at.output_covariance, problem.y)
            return float(at.elbo + (value - at.terms.value) @ problem.weight)

        rules = replicates or [state.likelihood]
        full, independent = np.array([[bound(rule, s) for s in (state, best)] for rule in rules]).T
        return LinearBounds(_estimate(full), _estimate(independent), _estimate(full - independent))

    def _report(
        self, fitted: SitesFit, bounds: LinearBounds, learning: Learning, offset: float
    ) -> None:
        """Log a summary; warn of what didn't converge or has no optimum inside its range."""
        logger.info(
            "ELBO %.6g (mean-field %.6g, gap %.4g), stopped: %s after %d updates",
            offset + bounds.full.value, offset + bounds.mean_field.value, bounds.gap.value,
            fitted.stopped, fitted.n_iter,
        )  # fmt: skip
        if fitted.stopped == "max_iter" and self.tol is not None:
            warn_user(
                f"not converged: the last of {fitted.n_iter} updates moved an output by "
                f"{fitted.change:.2g} posterior standard deviations (tol={self.tol:g}). Raise "
                "max_iter."
            )
        state = fitted.state
        log_variance = float(state.prior_variance.log())
        warn_of_ends(log_variance, state.likelihood.params.tolist(), learning)


def is_conjugate(likelihood: Likelihood) -> bool:
    """Whether the posterior has a closed form."""
    return likelihood.kind == "normal"


def _estimate(values: Array) -> Estimate:
    """Mean and error of independent rules; one is deterministic."""
    found = mean_and_error(torch.as_tensor(values))
    return found if len(values) > 1 else found._replace(standard_error=0.0)
