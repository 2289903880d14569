"""Symmetrised variational inference as a method: objective, steps, then the bounds."""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import (
    EXPECTED_LIKELIHOOD,
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    Needs,
)
from skbayes_sym.estimators._fit.convergence import warn_unless_converged
from skbayes_sym.estimators._fit.model import fully_connected, normals_or_learned
from skbayes_sym.estimators._fit.run import Run, Schedule, logger, n_blocks
from skbayes_sym.estimators._fit.steps import Steps
from skbayes_sym.estimators._fit.training import Training, automatic_batch, rows_per_step
from skbayes_sym.estimators.vi.collapse import noise_excess, warn_of_collapse
from skbayes_sym.estimators.vi.found import Bounds, MeanFieldFit, found_so_far
from skbayes_sym.estimators.vi.gaps import GivenGap, SymmetryGap
from skbayes_sym.estimators.vi.starts import INITS
from skbayes_sym.inference.mean_field.bounds import expected_log_likelihood
from skbayes_sym.inference.mean_field.elbo import GaussianMLP, SymmetrizedElbo, pack
from skbayes_sym.inference.mean_field.gated import GatedGap
from skbayes_sym.inference.posteriors import MeanFieldGaussian
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Batches, Model
from skbayes_sym.numerics.memory import require_memory
from skbayes_sym.numerics.optimise import DivergenceError, OptimiseResult, ParamGroup
from skbayes_sym.numerics.random import Estimate, generator_from, spawn_seeds
from skbayes_sym.symmetry.gaps.unit_gap import SETTLED

FULL_BATCH_RATE, MINIBATCH_RATE = 1e-2, 3e-3  # learning_rate="auto"
SATURATED = 0.999  # share of log |G| beyond which symmetrisation can't matter for training

_LOG_VARIANCE_RANGE = (-30.0, 10.0)
_EVALUATION_DRAWS = 128  # of the bounds reported after training, fewer where there are many rows:
_EVALUATION_ROWS = 1 << 20  # rows times draws; the rows' noise is independent and averages out
_EVALUATION_ENTRIES = 1 << 17  # of the units' matrices: draws of the gap times width squared


class _Seeds(NamedTuple):
    """One seed a purpose, so that runs that differ in one share all other random numbers."""

    start: int
    gap: int
    training: int
    predict: int
    likelihood_bound: int
    gap_bound: int


@dataclass(frozen=True, eq=False)
class MeanFieldVI:
    """Independent normals fitted by the symmetrised ELBO (Gelberg et al. 2024, eq. 5).

    Parameters
    ----------
    gap : str, PermanentEstimate or Gap
        See `gaps.SymmetryGap`.
    steps : Steps
    init : str
        Where to start, by its name in `starts.INITS`.
    start : MeanFieldGaussian, optional
        Where to go on from instead, in the scaled units of this fit.
    """

    needs: ClassVar[Needs] = Needs(EXPECTED_LIKELIHOOD, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    gap: GivenGap
    steps: Steps
    init: str = "random"
    start: MeanFieldGaussian | None = None

    def fit(self, data: Training, model: Model, run: Run) -> MeanFieldFit:
        INITS[self.init].needs.check(model)
        known = GaussianMLP(
            fully_connected(model.network),
            model.likelihood,
            normals_or_learned(model.prior),
            model.group,
        )
        seeds = _Seeds(*spawn_seeds(data.seed, len(_Seeds._fields)))
        symmetry_gap = SymmetryGap(self.gap, known.group)
        auto = automatic_batch(data.n_rows)
        batch_size = rows_per_step(self.steps.batch_size, data.n_rows, auto)
        if self.start is None:
            require_memory(INITS[self.init].memory(known), data.device)
        gap = self._gap_term(data, symmetry_gap, seeds.gap)
        n = known.network.layout.n_params
        with torch.no_grad():
            objective = SymmetrizedElbo(
                known,
                Batches(data.data, batch_size, generator_from(seeds.training, data.device)),
                self._position(data, known, seeds.start),
                n_draws=self.steps.n_weight_samples,
                gap=gap,
            )
            run.begin(
                n_blocks(self.steps.max_iter),
                lambda: found_so_far(objective.params, known, seeds.predict),
            )
            result = run.minimise(
                objective,
                self._groups(n, data, model.likelihood, is_minibatch=batch_size < data.n_rows),
                Schedule(self.steps.max_iter, self.steps.absolute_tol(data.total_weight)),
                report=lambda loss: ("training ELBO", data.log_jacobian - loss),
                asks=objective,
            )
            run.end()
            found = found_so_far(result.params, known, seeds.predict)
            if found.prior is not None:
                known = known._replace(prior=found.prior)
            bounds = _bounds(data, known, symmetry_gap, result.params, seeds)
        found = replace(
            found,
            bounds=bounds, loss_curve=result.loss_curve,
            n_iter=result.n_iter, stop_reason=result.stopped,
        )  # fmt: skip
        _report(bounds, data, result, gap.n_skipped if gap else 0)
        warn_unless_converged(result, self.steps.tol, data.total_weight)
        self._warn_of_collapse(data, known, result, seeds.likelihood_bound)
        return found

    def _warn_of_collapse(
        self, data: Training, model: GaussianMLP, result: OptimiseResult, seed: int
    ) -> None:
        if not model.likelihood.n_params or model.likelihood.kind != "normal":
            return
        params = result.params.double()
        posterior, n = _posterior(params, model), model.network.layout.n_params
        with torch.no_grad():
            excess = noise_excess(data, model, posterior, params[2 * n :], seed)
        warn_of_collapse(excess, result, self.steps.absolute_tol(data.total_weight))

    def _gap_term(self, data: Training, gap: SymmetryGap, seed: int) -> GatedGap | None:
        if gap.group.log_order == 0.0:
            return None
        generator = generator_from(seed, data.device)
        trained = gap.trained(self.steps.n_weight_samples)
        return GatedGap(trained, gap.certificate, generator=generator)

    def _position(self, data: Training, model: GaussianMLP, seed: int) -> Tensor:
        """Starting point: as ``init`` says, or the posterior to go on from."""
        if self.start is None:
            return INITS[self.init].position(model, data, seed).to(data.data.x)
        n_params = model.network.layout.n_params
        if len(self.start.loc) != n_params:
            raise ValueError(
                f"warm_start=True, but the previous fit has {len(self.start.loc)} parameters "
                f"and this one {n_params}: data or hidden_layer_sizes changed."
            )
        loc = torch.as_tensor(self.start.loc, dtype=torch.float64)
        log_variance = 2.0 * torch.as_tensor(self.start.scale, dtype=torch.float64).log()
        return pack(loc, log_variance, model.likelihood).to(data.data.x)

    def _groups(
        self, n: int, data: Training, likelihood: Likelihood, *, is_minibatch: bool
    ) -> list[ParamGroup]:
        """Means and log variances of ``n`` weights, and what the likelihood learns."""
        rate = self.steps.rate(MINIBATCH_RATE if is_minibatch else FULL_BATCH_RATE)
        wide_rate = rate * self.steps.log_variance_rate
        return [
            ParamGroup(slice(0, n), rate),
            ParamGroup(slice(n, 2 * n), wide_rate, *_LOG_VARIANCE_RANGE),
            ParamGroup(slice(2 * n, None), rate, *data.param_range(likelihood)),
        ]


def _bounds(
    data: Training, model: GaussianMLP, symmetry_gap: SymmetryGap, params: Tensor, seeds: _Seeds
) -> Bounds:
    """The reported bounds, in float64 and with fresh draws."""
    n, final = model.network.layout.n_params, params.double()
    posterior = _posterior(final, model)
    log_lik = expected_log_likelihood(
        model.network,
        model.likelihood.at(final[2 * n :]),
        posterior,
        data.data,
        n_draws=_evaluation_draws(data.n_rows),
        generator=generator_from(seeds.likelihood_bound, data.device),
    )
    value = log_lik.value - posterior.kl_from(model.prior.scale.numpy())
    if not np.isfinite(value):
        raise DivergenceError(
            f"the bound at the end of the fit is {value}: lower learning_rate, standardize the "
            "data or give X as float64."
        )
    gap, above = _gap_bounds(data, symmetry_gap, posterior, seeds.gap_bound)
    mean_field = Estimate(value, log_lik.standard_error)
    return Bounds(mean_field, gap, above, model.group.log_order)


def _evaluation_draws(n_rows: int) -> int:
    return max(8, min(_EVALUATION_DRAWS, _EVALUATION_ROWS // n_rows))


def _posterior(params: Tensor, model: GaussianMLP) -> MeanFieldGaussian:
    n = model.network.layout.n_params
    scale = (0.5 * params[n : 2 * n]).exp()
    return MeanFieldGaussian(params[:n].cpu().numpy(), scale.cpu().numpy())


def _gap_bounds(
    data: Training, symmetry_gap: SymmetryGap, posterior: MeanFieldGaussian, seed: int
) -> tuple[Estimate, Estimate]:
    """Lower and upper bound on the gap from the same draws; equal where the sum is exact."""
    log_order = symmetry_gap.group.log_order
    if log_order == 0.0:
        return Estimate(0.0, 0.0), Estimate(0.0, 0.0)
    below, above = symmetry_gap.reported
    n_draws = max(16, min(_EVALUATION_DRAWS, _EVALUATION_ENTRIES // symmetry_gap.n_entries))
    lower = below.estimate(posterior, n_draws, generator=generator_from(seed, data.device))
    if log_order - lower.value < 1e-6:  # nothing is left above
        return lower, lower
    if above is None or log_order - lower.value < SETTLED:
        return lower, Estimate(log_order, 0.0)
    return lower, above.estimate(posterior, n_draws, generator=generator_from(seed, data.device))


def _report(bounds: Bounds, data: Training, result: OptimiseResult, n_skipped: int) -> None:
    """The log's summary, and what saturation means."""
    mean_field = bounds.mean_field.value + data.log_jacobian
    logger.info(
        "ELBO %.6g (mean-field %.6g, symmetry gap %.4g), stopped by %s after %d steps, in %d of "
        "them the gap was certified saturated",
        mean_field + bounds.gap.value, mean_field, bounds.gap.value,
        result.stopped, result.n_iter, n_skipped,
    )  # fmt: skip
    if bounds.saturation > SATURATED:
        logger.info(
            "saturation %.4f > %g: the symmetric modes don't overlap, so symmetrisation adds the "
            "constant log |G| to the bound and is a no-op for training.",
            bounds.saturation, SATURATED,
        )  # fmt: skip
