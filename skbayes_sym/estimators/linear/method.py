"""Site inference as a method: its start, its updates, and the mean-field optimum beside it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.estimators._fit.compatibility import LINEAR, NORMAL_PRIOR, ONE_OUTPUT, Needs
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.linear.design import Design
from skbayes_sym.estimators.linear.found import Bounds, SiteFit
from skbayes_sym.estimators.linear.start import Start
from skbayes_sym.inference.linear.expectations import ScalarSites, SiteLikelihood, SoftmaxSites
from skbayes_sym.inference.linear.hyperparameters import (
    Learning,
    SitesFit,
    Until,
    fit_sites,
)
from skbayes_sym.inference.linear.sites import (
    LinearData,
    State,
    converge,
    first_sites,
    mean_field,
    solve,
)
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.monte_carlo import Estimate, mean_and_error
from skbayes_sym.numerics.quadrature import sobol_normal
from skbayes_sym.numerics.random import spawn_seeds

_AT_THE_END = 1e-3  # a log scale this close to an end has reached it
_MEAN_FIELD_UPDATES = 500
_REPLICATES = 8  # of the quasi-Monte Carlo rule behind the reported bound
_DOUBLE = 8  # bytes


@dataclass(frozen=True, eq=False)
class SiteInference:
    """The optimal Gaussian posterior as one Gaussian site per row (Kurle et al. 2022).

    Parameters
    ----------
    prior_scale : ndarray of shape () or (K,), or None
        Of the coefficients of scaled inputs and targets; None learns one for all.
    learns_noise : bool
    fit_intercept : bool
    max_iter : int
    tol : float or None
        Posterior standard deviations; None never stops early.
    """

    needs: ClassVar[Needs] = Needs(ONE_OUTPUT, LINEAR, NORMAL_PRIOR)

    prior_scale: Array | None
    learns_noise: bool
    fit_intercept: bool
    max_iter: int
    tol: float | None

    def fit(self, data: Training, model: Model, run: Run) -> SiteFit:
        n_outputs = model.network.n_outputs
        _require_memory(data, n_outputs)
        with torch.no_grad():
            design = Design.of(data, self._prior_unit(data.n_features))
            problem = design.problem(data, n_outputs, self.fit_intercept)
            sites, *replicates = self._rules(model.likelihood, n_outputs, data.seed)
            start = Start.of(data, model.likelihood, problem, self.prior_scale)
            fitted = self._update(problem, sites, start, design, run)
            bounds = self._bounds(design, problem, fitted.state, replicates)
        self._report(fitted, bounds, start.learning, data.log_jacobian)
        return SiteFit(
            design, fitted.state, self.prior_scale, bounds, fitted.elbo_curve, fitted.n_iter,
            fitted.stopped,
        )  # fmt: skip

    def _prior_unit(self, n_features: int) -> Array:
        scale = 1.0 if self.prior_scale is None else self.prior_scale
        return np.broadcast_to(np.asarray(scale, float), (n_features,)).copy()

    def _rules(self, likelihood: Likelihood, n_outputs: int, seed: int) -> list[SiteLikelihood]:
        """Of the updates, and of the bound if that takes others.

        A likelihood with ``n_points`` has correlated outputs.
        """
        n_points = getattr(likelihood, "n_points", None)
        if n_points is None:
            return [ScalarSites(likelihood, self.learns_noise)]
        seeds = spawn_seeds(seed, _REPLICATES + 1)
        return [SoftmaxSites(sobol_normal(n_points, n_outputs - 1, seed=s)) for s in seeds]

    def _update(
        self, problem: LinearData, sites: SiteLikelihood, start: Start, design: Design, run: Run
    ) -> SitesFit:
        last: list[State] = []

        def on_step(state: State) -> bool:
            last[:] = [state]
            return run.end_block()

        run.begin(self.max_iter, lambda: SiteFit(design, last[0], self.prior_scale))
        constant = start.constant * self.fit_intercept
        intercept = torch.as_tensor(constant, device=problem.weight.device)
        fitted = fit_sites(
            problem, sites, first_sites(problem, sites, intercept), start.log_prior_variance,
            start.learning, Until(self.tol or 0.0, self.max_iter, on_step),
        )  # fmt: skip
        run.end(SiteFit(design, fitted.state, self.prior_scale))
        return fitted

    def _bounds(
        self, design: Design, problem: LinearData, state: State, replicates: list[SiteLikelihood]
    ) -> Bounds:
        """The bound at the optimum, that of the best mean-field posterior, and their difference."""
        family = mean_field(design.inputs)
        start = solve(problem, state.sites, state.prior_variance, state.likelihood, family)
        if start is None:
            raise NotPositiveDefiniteError(
                "the posterior precision isn't positive definite in this arithmetic. Use "
                "standardize=True, or give prior_scale a smaller value."
            )
        tol = self.tol or 0.0
        best = converge(problem, start, family, tol=tol, max_iter=_MEAN_FIELD_UPDATES).state

        def bound(rule: SiteLikelihood, at: State) -> float:
            value = rule.value(at.mean, at.output_covariance, problem.y)
            return float(at.elbo + (value - at.terms.value) @ problem.weight)

        rules = replicates or [state.likelihood]
        full, independent = np.array([[bound(rule, s) for s in (state, best)] for rule in rules]).T
        return Bounds(_estimate(full), _estimate(independent), _estimate(full - independent))

    def _report(self, fitted: SitesFit, bounds: Bounds, learning: Learning, offset: float) -> None:
        """Log a summary; warn of what didn't converge or has no optimum inside its range."""
        logger.info(
            "ELBO %.6g (mean-field %.6g, gap %.4g), stopped by %s after %d updates",
            offset + bounds.full.value, offset + bounds.mean_field.value, bounds.gap.value,
            fitted.stopped, fitted.n_iter,
        )  # fmt: skip
        if fitted.stopped == "max_iter" and self.tol is not None:
            _warn(
                f"not converged: the last of {fitted.n_iter} updates moved an output by "
                f"{fitted.change:.2g} posterior standard deviations (tol={self.tol:g}). Raise "
                "max_iter."
            )
        _warn_of_ends(fitted.state, learning)


def _estimate(values: Array) -> Estimate:
    """Of independent rules; one is deterministic."""
    found = mean_and_error(torch.as_tensor(values))
    return found if len(values) > 1 else found._replace(standard_error=0.0)


def _warn_of_ends(state: State, learning: Learning) -> None:
    if learning.prior is not None:
        at = float(state.prior_variance.log())
        if at > learning.prior.high - _AT_THE_END:
            _warn(
                "prior_scale_ reached the upper end of its range: the evidence rises with it "
                "without end, as with classes that the features separate perfectly. Give "
                "prior_scale a value."
            )
    for log_noise in state.likelihood.params.tolist():
        if log_noise < learning.noise.low + _AT_THE_END:
            _warn(
                "noise_std_ reached the lower end of its range: the features fit the targets "
                "without error, or the targets are all the same. Give noise_std a value."
            )


def _warn(message: str) -> None:
    warn_user(message, ConvergenceWarning)


def _require_memory(data: Training, n_outputs: int) -> None:
    """Rows, a basis of them, and the covariance in it, float64: 8 (n K + K r + 2 C^2 r^2)."""
    n, n_features = data.n_rows, data.n_features
    r = min(n, n_features)
    require_memory(
        [
            Part(
                f"{n} distinct rows of {n_features} features and a basis of them",
                (n + r * (n_features > n)) * n_features * _DOUBLE,
                "Use fewer of them.",
            ),
            Part(
                f"the covariance of {n_outputs} outputs in {r} dimensions",
                2 * (n_outputs * r) ** 2 * _DOUBLE,
                "Use fewer rows or fewer features (as many dimensions as the smaller of the two), "
                "or one likelihood='bernoulli' per class.",
            ),
        ],
        data.device,
    )
