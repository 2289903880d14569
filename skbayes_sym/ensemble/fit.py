"""Deep ensembles as a method: one posterior, many starting points, one loop."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.log import log_info
from skbayes_sym.base.log_density import LogDensity, NetworkPosterior
from skbayes_sym.base.model_factory import (
    fully_connected,
    independent_normals,
    learned_scales,
    scale_attributes,
)
from skbayes_sym.base.progress import Run, Schedule, n_blocks
from skbayes_sym.base.requirements import (
    ANY_LIKELIHOOD,
    ANY_NETWORK,
    ANY_PRIOR,
    CURVED_LIKELIHOOD,
    Requirements,
)
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training, rows_per_step
from skbayes_sym.base.warnings import warn_unless_converged
from skbayes_sym.laplace.class_predictive import (
    LeaveOneOut,
    RefittedMember,
    RefittedMembers,
    leave_one_out_losses,
    refit,
    widest_within_error,
    without_itself,
)
from skbayes_sym.laplace.map import (
    MapObjective,
    MinibatchDensity,
    ScaledModes,
    compute_leverages,
    curvature_size,
    effective_noise,
    update_steps,
)
from skbayes_sym.models.likelihoods.noise import Heteroscedastic, StudentT
from skbayes_sym.models.model import Batches, Model
from skbayes_sym.models.priors import ScalesByGroup
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.numerics.runtime import run_parallel


class RefitResult(NamedTuple):
    """Members that predictions are made of."""

    members: RefittedMembers
    variance_scale: float
    leave_one_out: Tensor | None = None  # (N,), log p of every row left out, nats; by "loo"


@dataclass(frozen=True)
class MemberRefitter:
    """Gaussian variational inference of each member's linearised network.

    ``variance_scale``: factor on the variance of the logits; "loo" chooses it by approximate
    leave-one-out. ``is_optional``: whether to leave members as they are where the refit would take
    long, or the prior isn't normal.
    """

    variance_scale: str | float
    is_optional: bool
    # Under a fixed prior the laws may be far too narrow as well as too wide.
    variance_scales: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    max_work: float = 3e11  # multiplications for all members: some fifteen seconds of one core
    max_jacobian_size: float = 4e7  # of a member's Jacobian: 320 MB

    def is_affordable(self, n_members: int, data: Training, model: Model) -> bool:
        if not self.is_optional:
            return True
        if model.prior.gaussian() is None:
            return False
        n_logits = 1 if model.network.n_outputs == 2 else model.network.n_outputs
        n = data.n_rows * n_logits
        p = model.network.layout.n_params
        m = min(n, p)
        work = n_members * (n * p * m + 60 * n * m**2 + 10 * m**3)
        n_numbers = data.n_rows * model.network.n_outputs * p
        return work <= self.max_work and n_numbers <= self.max_jacobian_size

    def refit_members(
        self, theta: Array, scale: Tensor, data: Training, model: Model, n_jobs: int | None = None
    ) -> RefitResult:
        """All members, ``theta`` (M, P), and the factor on the variance they have in common.

        ``scale`` (P,), or (M, P) of every member its own: the prior's standard deviations.
        """
        network = fully_connected(model.network)
        rows = data.double_data
        members: list[RefittedMember] = []
        leave_one_out: list[LeaveOneOut] = []
        weights = torch.as_tensor(theta).to(rows.x)
        each = zip(weights, scale.to(weights).expand_as(weights), strict=True)
        jobs = [partial(refit, network, theta_m, prior, rows) for theta_m, prior in each]
        for member, logits, terms in run_parallel(jobs, n_jobs):
            members.append(member)
            leave_one_out.append(without_itself(logits, terms, rows.weight))
        together = RefittedMembers.of(members)
        if not isinstance(self.variance_scale, str):
            return RefitResult(together, float(self.variance_scale))
        losses = leave_one_out_losses(leave_one_out, rows.y, self.variance_scales)
        scaled = widest_within_error(losses, rows.weight, self.variance_scales)
        return RefitResult(together, scaled.chosen, -scaled.of_rows)


@dataclass(frozen=True, eq=False)
class EnsembleFit:
    """Result of an ensemble's training (so far)."""

    theta: Array  # (M, P)
    log_noise: Array  # (M, n_params of the likelihood), scaled units
    log_precision: Array | None = None  # (M, G), of the prior's groups where they are learned
    log_posterior: Array | None = None  # (M,), nats; once training has ended
    loss_curve: Array | None = None
    n_iter: int = 0
    stop_reason: Stopped = "max_iter"
    refit: RefitResult | None = None  # of classes
    noise_dof: Array | None = None  # (M, T), rows left to the noise where it is effective
    leverage: Tensor | None = None  # (M, T, n), what rows weigh then, of `chosen_rows`
    noise_levels: Array | None = None  # (M, K, T), in the units of ``y``, where rows are few

    def noise_scale(self, model: Model) -> Tensor:
        """Standard deviations of every member's noise (M, T), scaled units."""
        likelihood = model.likelihood.at(torch.as_tensor(self.log_noise).double())
        return likelihood.noise_scale.expand(len(self.theta), -1)

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        attributes: dict[str, Any] = {"samples_": self.theta, "_likelihood_params_": self.log_noise}
        if self.log_precision is not None:
            prior: ScalesByGroup = model.prior  # type: ignore[assignment]
            hyper = torch.as_tensor(self.log_precision)
            attributes |= scale_attributes(prior, hyper, "prior_scale_samples_")
        noise_scale = self.noise_scale(model)
        if data.y_scaling is not None and noise_scale.shape[-1]:
            attributes["noise_std_samples_"] = noise_scale.numpy() * data.y_scaling.scale
        if self.noise_dof is not None:
            attributes["noise_dof_samples_"] = self.noise_dof
            attributes["_noise_levels_samples_"] = self.noise_levels
        if self.log_posterior is not None:
            attributes["log_posterior_samples_"] = self.log_posterior + data.log_jacobian
        if self.loss_curve is not None:
            attributes["log_posterior_curve_"] = data.log_jacobian - self.loss_curve
        if self.refit is not None:
            attributes["refitted_members_"] = self.refit.members
            attributes["variance_scale_"] = self.refit.variance_scale
        return attributes


@dataclass(frozen=True, eq=False)
class DeepEnsemble:
    """Posterior modes from random starts (Wiese et al. 2023, appendix E.3).

    ``noise_prior_scale``: scale of the half-normal prior of the noise's standard deviation, scaled
    target units; ``has_effective_noise``: whether each member's noise is corrected for the freedoms
    its weights have taken; ``learns_noise``: whether the evidence sets the noise in training, too,
    where it sets the prior's scales; ``refitter``: how the members' linearised
    networks are refitted.
    """

    needs: ClassVar[Requirements] = Requirements(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR)

    n_members: int
    noise_prior_scale: float
    learning_rate: float
    max_iter: int
    tol: float | None  # nats per unit of sample weight; None never stops early
    batch_size: int | str = "auto"
    has_effective_noise: bool = False
    learns_noise: bool = False
    start: EnsembleFit | None = None  # where to go on from, in the scaled units of this fit
    refitter: MemberRefitter | None = None

    def fit(self, data: Training, model: Model, run: Run) -> EnsembleFit:
        if learned_scales(model.prior) is not None:
            n_params = model.network.layout.n_params
            curvature = Part(
                f"the curvature of a member of {n_params:,} weights",
                8 * curvature_size(data.n_rows, model.network.n_outputs, n_params),  # bytes
                "Lower hidden_layer_sizes, or give prior a number.",
            )
            require_memory([curvature], data.device)
        posterior = NetworkPosterior(
            model.network, model.likelihood, model.prior, data.data,  # type: ignore[arg-type]
            self.noise_prior_scale,
        )  # fmt: skip
        with torch.no_grad():
            objective = self._objective(posterior, data)
            run.begin(n_blocks(self.max_iter), lambda: _members(objective))
            tol = None if self.tol is None else self.tol * data.total_weight
            # Larger steps' noise keeps members that see some of the rows from a mode.
            is_whole = self._rows_per_step(data) >= data.n_rows
            rate = self.learning_rate if is_whole else 0.3 * self.learning_rate
            result = run.minimise(
                objective,
                [
                    ParamGroup(slice(0, objective.n_theta), rate),
                    ParamGroup(
                        slice(objective.n_theta, None), rate, *data.param_range(model.likelihood)
                    ),
                ],
                Schedule(self.max_iter, tol),
                report=lambda loss: ("mean log posterior", data.log_jacobian - loss),
            )
            log_posterior = objective.log_posterior(objective.position)
            members = _members(objective, log_posterior, result)
            if self.has_effective_noise and model.prior.gaussian() is not None:
                members = corrected(members, data, model)
            how = self.refitter
            ended = result.stopped == "interrupted"
            if how is not None and not ended and how.is_affordable(self.n_members, data, model):
                scales = prior_scales(members, model)
                refitted = how.refit_members(members.theta, scales, data, model, run.n_jobs)
                log_info("members refitted as linearised networks, variance scale %g", refitted[1])
                members = replace(members, refit=refitted)
            run.end(members)
        values = log_posterior + data.log_jacobian
        log_info(
            "log posterior of the members from %.6g to %.6g, stopped: %s after %d steps",
            values.min(), values.max(), result.stopped, result.n_iter,
        )  # fmt: skip
        what = "the members' mean log posterior"
        warn_unless_converged(result, self.tol, data.total_weight, what)
        return members

    def _position(self, model: Model | NetworkPosterior, seed: int) -> Tensor:
        """Starting points (M, D): random ones, or the members to go on from."""
        n = self.n_members
        network = model.network
        if self.start is None:
            theta = network.init(n, generator=generator_from(seed))
            return torch.cat([theta, model.likelihood.params.expand(n, -1)], 1)
        shape = (n, network.layout.n_params)
        if self.start.theta.shape != shape:
            raise ValueError(
                f"warm_start=True, but the previous fit has {self.start.theta.shape} members and "
                f"parameters and this one {shape}: data, hidden_layer_sizes or n_members changed."
            )
        n_params = model.likelihood.n_params
        if self.start.log_noise.shape[1] < n_params:
            raise ValueError("warm_start=True, but the previous fit learned no noise.")
        parts = (self.start.theta, self.start.log_noise[:, :n_params])
        return torch.cat([torch.as_tensor(p, dtype=torch.float64) for p in parts], 1)

    def _objective(self, posterior: NetworkPosterior, data: Training) -> MapObjective:
        """Objective of training; it holds the scales of the prior that are learned."""
        start_seed = data.seed
        batch_seed = spawn_seeds(data.seed, 1)[0]
        position = self._position(posterior, start_seed).to(data.data.x)
        # where every step sees all rows
        size = self._rows_per_step(data)
        batches = None
        if size < data.n_rows:
            batches = Batches(data.data, size, generator_from(batch_seed, data.device))

        def density(posterior: NetworkPosterior) -> LogDensity:
            return posterior if batches is None else MinibatchDensity(posterior, batches)

        scales = learned_scales(posterior.prior)
        if scales is None:
            n_params = posterior.network.layout.n_params
            return MapObjective(density(posterior), n_params, position)
        CURVED_LIKELIHOOD.require(posterior.likelihood, "likelihood")
        before = None if self.start is None else self.start.log_precision
        if before is not None and before.shape == (self.n_members, scales.n_groups):
            scales = replace(scales, hyper=torch.as_tensor(before))
        start = replace(posterior, prior=scales)
        steps = update_steps(self.max_iter)
        noise_range = data.log_noise_range if self.learns_noise else None
        return ScaledModes(start, density, position, data.double_data, steps, noise_range)

    def _rows_per_step(self, data: Training) -> int:
        auto = data.n_rows if data.n_rows <= 2000 else 500
        return rows_per_step(self.batch_size, data.n_rows, auto)


def _members(
    objective: MapObjective,
    log_posterior: Tensor | None = None,
    result: OptimiseResult | None = None,
) -> EnsembleFit:
    position = objective.position
    n = objective.n_theta // len(objective.position)
    theta, log_noise = (t.cpu().numpy().copy() for t in (position[:, :n], position[:, n:]))
    scales = objective.prior.hyper.cpu().numpy() if isinstance(objective, ScaledModes) else None
    if log_posterior is None or result is None:
        return EnsembleFit(theta, log_noise, scales)
    values = log_posterior.double().cpu().numpy()
    curve = np.array(result.loss_curve)
    return EnsembleFit(theta, log_noise, scales, values, curve, result.n_iter, result.stopped)


def prior_scales(members: EnsembleFit, model: Model) -> Tensor:
    """Standard deviations of the weights' prior: (P,), or (M, P) of members that learned them."""
    scales = learned_scales(model.prior)
    log_precision = members.log_precision
    if scales is None or log_precision is None:
        return independent_normals(model.prior).scale
    return replace(scales, hyper=torch.as_tensor(log_precision)).scale


def corrected(members: EnsembleFit, data: Training, model: Model) -> EnsembleFit:
    """The members with what rows weigh, and noise that counts the noise_dof of the weights.

    Noise that isn't learned stays as it is. That of every row is multiplied, by the bias of the
    head that says its logarithm.
    """
    network = fully_connected(model.network)
    rows = data.double_data
    theta = torch.as_tensor(members.theta).to(data.device, torch.float64)
    scale = prior_scales(members, model).to(theta).expand_as(theta)
    likelihood = model.likelihood
    n_targets = rows.y.shape[1]
    if isinstance(likelihood, Heteroscedastic):
        one = rows.y.new_ones(n_targets)
        by_head = members.theta.copy()
        for i, (t, s) in enumerate(zip(theta, scale, strict=True)):
            row_noise = likelihood.heads(network.forward(t, rows.x))[1].exp()
            factor = effective_noise(network, t, rows, s, one, row_noise=row_noise).std
            by_head[i, -n_targets:] += (factor.log() / likelihood.spread).cpu().numpy()
        return replace(members, theta=by_head)
    noise_std = members.noise_scale(model).to(theta)
    if not likelihood.n_params:
        at_noise = [
            compute_leverages(network, t, rows, s)[1](noise**-2).cpu()
            for t, s, noise in zip(theta, scale, noise_std, strict=True)
        ]
        return replace(members, leverage=torch.stack(at_noise))
    df: list[float | None] = [None] * len(theta)
    if is_student := isinstance(likelihood, StudentT):
        learned = likelihood.at(torch.as_tensor(members.log_noise).double())
        df = learned.degrees_of_freedom.flatten().expand(len(theta)).tolist()
    each = [
        effective_noise(network, t, rows, s, noise, df=tails)
        for t, s, noise, tails in zip(theta, scale, noise_std, df, strict=True)
    ]
    std, taken, leverage = (torch.stack(t).cpu() for t in zip(*each, strict=True))
    if is_student:
        log_noise = members.log_noise.copy()
        log_noise[:, :n_targets] = std.log().numpy()
        return replace(members, log_noise=log_noise)
    # Residuals of members that fit nearly all rows are uninformative. Their effective noise comes
    # from leave-one-out residuals, so it replaces the residual sum of squares.
    noise_dof = data.total_weight - taken
    squares = noise_dof * std.square()
    return replace(
        members,
        log_noise=std.log().numpy(),
        noise_dof=noise_dof.numpy(),
        leverage=leverage,
        noise_levels=data.noise_levels(squares, noise_dof),
    )
