"""Train deep ensembles: all members follow one posterior in one batched loop.

Training stops at a mode per member. What a mode alone gets wrong is corrected afterwards: the noise
of regressors by the degrees of freedom that the weights use up, and the overconfident probabilities
of classifiers by Gaussian variational inference of the linearised networks.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity, NetworkPosterior
from skbayes_sym.base.messages import log_info, warn_unless_converged
from skbayes_sym.base.model_factory import (
    learned_scales,
    require_mlp,
    require_normal_prior,
    scale_attributes,
)
from skbayes_sym.base.progress import FitProgress, Schedule, n_blocks
from skbayes_sym.base.requirements import (
    ANY_LIKELIHOOD,
    ANY_NETWORK,
    ANY_PRIOR,
    LIKELIHOOD_WITH_HESSIAN,
    Requirements,
)
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training, resolve_batch_size
from skbayes_sym.laplace.balancing import balance_weights
from skbayes_sym.laplace.class_predictive import RefittedMember, RefittedMembers, refit
from skbayes_sym.laplace.map import (
    MapObjective,
    MinibatchDensity,
    ScaledModes,
    compute_leverages,
    count_curvature_entries,
    estimate_noise,
    scale_update_steps,
)
from skbayes_sym.models.likelihoods.noise import Heteroscedastic, StudentT
from skbayes_sym.models.model import Batches, Model
from skbayes_sym.models.normal_logits import (
    LeaveOneOutLogits,
    choose_largest_within_error,
    leave_one_out_logits,
    leave_one_out_losses,
)
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, StopReason
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.numerics.runtime import run_parallel


class RefitResult(NamedTuple):
    """Refitted members and the leave-one-out densities of their mixture.

    Attributes
    ----------
    members : RefittedMembers
        Normal distributions of the weights of all linearised members.
    variance_scale : float
        Factor on the variance of the logits in predictions.
    leave_one_out : Tensor of shape (N,), optional
        Approximate leave-one-out log predictive densities of the rows, nats. None if the variance
        scale was given by the user.
    """

    members: RefittedMembers
    variance_scale: float
    leave_one_out: Tensor | None = None


@dataclass(frozen=True)
class MemberRefitter:
    """Gaussian variational inference of each member's linearised network.

    Parameters
    ----------
    variance_scale : float or "loo"
        Factor on the variance of the logits. "loo" chooses it among ``variance_scales`` by
        approximate leave-one-out.
    is_optional : bool
        Whether to skip the refit where it would be slow or the prior isn't normal.
    variance_scales : tuple of float
        Candidates for "loo".
    max_work : float
        Largest number of multiplications, for all members, of an optional refit.
    max_jacobian_size : float
        Largest number of entries of a member's Jacobian of an optional refit.
    max_roots_size : float
        Largest number of entries, for all members, of the roots of the covariances (P, r) that an
        optional refit leaves.
    """

    variance_scale: str | float
    is_optional: bool
    # Under a fixed prior the posteriors can be far too narrow as well as too wide.
    variance_scales: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    max_work: float = 3e11  # about fifteen seconds of one core
    max_jacobian_size: float = 4e7  # 320 MB
    max_roots_size: float = 5e7  # 400 MB, and as much again while they are stacked

    def is_affordable(self, n_members: int, n_rows: int, model: Model) -> bool:
        """Whether the members are refitted: always, unless the refit is optional and too slow.

        Parameters
        ----------
        n_members, n_rows : int
            Numbers of members and rows.
        model : Model
            Model of the members.
        """
        if not self.is_optional:
            return True
        if model.prior.gaussian() is None:
            return False
        n_outputs = model.network.n_outputs
        p = model.network.layout.n_params
        n = n_rows * _count_logits(n_outputs)
        m = min(n, p)
        work = n_members * (n * p * m + 60 * n * m**2 + 10 * m**3)
        sizes = (
            (work, self.max_work),
            (n_rows * n_outputs * p, self.max_jacobian_size),
            (n_members * p * m, self.max_roots_size),
        )
        return all(size <= largest for size, largest in sizes)

    def allocation(self, n_members: int, n_rows: int, model: Model) -> MemoryAllocation:
        """Memory of a refit: a member's Jacobian, its contrasts, and the roots of all members.

        Parameters
        ----------
        n_members, n_rows : int
            Numbers of members and rows.
        model : Model
            Model of the members.
        """
        n_outputs = model.network.n_outputs
        p = model.network.layout.n_params
        n_bytes = 0
        if self.is_affordable(n_members, n_rows, model):
            jacobian = n_rows * (n_outputs + _count_logits(n_outputs)) * p
            # Directions of little variance are dropped. About one for each row is left.
            n_bytes = 8 * (jacobian + n_members * p * min(n_rows, p))
        return MemoryAllocation(
            f"the refit of {n_members} members of {p:,} weights",
            n_bytes,
            "Lower hidden_layer_sizes or n_members, or use correction=None.",
        )

    def refit_members(
        self, theta: Array, scale: Tensor, data: Training, model: Model, n_jobs: int | None = None
    ) -> RefitResult:
        """Refit all members and choose the factor on the variance that they share.

        Parameters
        ----------
        theta : ndarray of shape (M, P)
            Weights of the trained members.
        scale : Tensor of shape (P,) or (M, P)
            Standard deviations of the weights' prior, common to all members or for each member.
        data : Training
            Training data.
        model : Model
            Network, likelihood and prior of a member.
        n_jobs : int, optional
            Number of parallel processes.

        Returns
        -------
        RefitResult
            Refitted members, variance scale and leave-one-out densities.
        """
        network = require_mlp(model.network)
        rows = data.double_data
        members: list[RefittedMember] = []
        leave_one_out: list[LeaveOneOutLogits] = []
        weights = torch.as_tensor(theta).to(rows.x)
        pairs = zip(weights, scale.to(weights).expand_as(weights), strict=True)
        jobs = [partial(refit, network, theta_m, scale_m, rows) for theta_m, scale_m in pairs]
        for member, logits, terms in run_parallel(jobs, n_jobs):
            members.append(member)
            leave_one_out.append(leave_one_out_logits(logits, terms, rows.weight))
        refitted = RefittedMembers.stack(members)

        if not isinstance(self.variance_scale, str):
            return RefitResult(refitted, float(self.variance_scale))
        # Ties within the standard error go to the widest predictions.
        losses = leave_one_out_losses(leave_one_out, rows.y, self.variance_scales)
        best = choose_largest_within_error(losses, rows.weight, self.variance_scales)
        return RefitResult(refitted, best.factor, -best.row_losses)


def _count_logits(n_outputs: int) -> int:
    """Return the number of contrasts of the outputs, which is 1 for two classes."""
    return 1 if n_outputs == 2 else n_outputs


@dataclass(frozen=True, eq=False)
class EnsembleFit:
    """Trained members of an ensemble, final or in the middle of training.

    Attributes
    ----------
    theta : ndarray of shape (M, P)
        Weights of the members.
    log_noise : ndarray of shape (M, n_params)
        Parameters of each member's likelihood, in scaled units.
    log_precision : ndarray of shape (M, G), optional
        Log precisions of the prior's groups, if they are learned.
    log_posterior : ndarray of shape (M,), optional
        Log joint densities in nats. None before training has ended.
    loss_curve : ndarray, optional
        Mean loss of the members per block of steps. None before training has ended.
    n_iter : int
        Number of steps.
    stop_reason : str
        Reason why training stopped.
    refit : RefitResult, optional
        Refitted members of a classifier.
    noise_dof : ndarray of shape (M, T), optional
        Degrees of freedom that the weights leave to the noise, if it is effective noise.
    leverage : Tensor of shape (M, T, n), optional
        Leverages of the rows of `evenly_spaced_rows` at the effective noise.
    noise_levels : ndarray of shape (M, K, T), optional
        Quadrature nodes of each member's noise in the units of ``y``. None for large samples.
    """

    theta: Array
    log_noise: Array
    log_precision: Array | None = None
    log_posterior: Array | None = None
    loss_curve: Array | None = None
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"
    refit: RefitResult | None = None
    noise_dof: Array | None = None
    leverage: Tensor | None = None
    noise_levels: Array | None = None

    def noise_scale(self, model: Model) -> Tensor:
        """Standard deviations of every member's noise (M, T), scaled units."""
        likelihood = model.likelihood.at(torch.as_tensor(self.log_noise).double())
        return likelihood.noise_scale.expand(len(self.theta), -1)

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Fitted attributes of the estimator by name."""
        attributes: dict[str, Any] = {"samples_": self.theta, "_likelihood_params_": self.log_noise}
        if self.log_precision is not None:
            prior: GroupScalePrior = model.prior  # type: ignore[assignment]
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

    Parameters
    ----------
    n_members : int
        Number of members.
    noise_prior_scale : float
        Scale of the half-normal prior of the noise's standard deviation, in scaled target units.
    learning_rate : float
        Step size of Adam with all rows per step; minibatches use 0.3 times as much.
    max_iter : int
        Maximum number of steps.
    tol : float or None
        Training stops when the mean log posterior gains less than this many nats per unit of sample
        weight. None never stops early.
    batch_size : int or "auto"
        Rows per step.
    has_effective_noise : bool
        Whether to correct each member's noise for the degrees of freedom that its weights use up.
    learns_noise : bool
        Whether the evidence also sets the noise in training, where it sets the prior's scales.
    start : EnsembleFit, optional
        Members to continue from, in the scaled units of this fit.
    refitter : MemberRefitter, optional
        How the linearised networks of the members are refitted. None leaves them as trained.
    """

    requirements: ClassVar[Requirements] = Requirements(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR)

    n_members: int
    noise_prior_scale: float
    learning_rate: float
    max_iter: int
    tol: float | None
    batch_size: int | str = "auto"
    has_effective_noise: bool = False
    learns_noise: bool = False
    start: EnsembleFit | None = None
    refitter: MemberRefitter | None = None

    def fit(self, data: Training, model: Model, progress: FitProgress) -> EnsembleFit:
        """Train all members, then correct their noise or refit them."""
        self._require_memory(data, model)
        posterior = NetworkPosterior(
            model.network, model.likelihood, model.prior, data.data,  # type: ignore[arg-type]
            self.noise_prior_scale,
        )  # fmt: skip

        with torch.no_grad():
            # All members take their steps together, as one batched optimisation problem.
            objective = self._objective(posterior, data)
            progress.begin(n_blocks(self.max_iter), lambda: _read_members(objective))
            if self.tol is None:
                tol = None
            else:
                tol = self.tol * data.total_weight
            # The noise of larger minibatch steps keeps members away from a mode.
            has_all_rows = self._rows_per_step(data) >= data.n_rows
            if has_all_rows:
                rate = self.learning_rate
            else:
                rate = 0.3 * self.learning_rate
            noise_range = data.param_range(model.likelihood)
            groups = [
                ParamGroup(slice(0, objective.n_theta), rate),
                ParamGroup(slice(objective.n_theta, None), rate, *noise_range),
            ]
            result = progress.minimise(
                objective,
                groups,
                Schedule(self.max_iter, tol),
                report=lambda loss: ("mean log posterior", data.log_jacobian - loss),
            )
            position = self._balanced_position(objective, model)
            log_posterior = objective.log_posterior(position)
            members = _read_members(objective, position, log_posterior, result)

            # Modes underestimate the noise. Both corrections need independent normal weights.
            if self.has_effective_noise and model.prior.gaussian() is not None:
                members = correct_noise(members, data, model)
            members = self._refit(members, data, model, progress)
            progress.end(members)

        values = log_posterior + data.log_jacobian
        log_info(
            "log posterior of the members from %.6g to %.6g, stopped: %s after %d steps",
            values.min(),
            values.max(),
            result.stopped,
            result.n_iter,
        )
        quantity = "the members' mean log posterior"
        warn_unless_converged(result, self.tol, data.total_weight, quantity)
        return members

    def _balanced_position(self, objective: MapObjective, model: Model) -> Tensor:
        """Return the positions of the members, with balanced units if a correction follows.

        Effective noise and refitted members depend on the curvature, which must not depend on where
        on its orbit a rescalable unit has stopped.
        """
        position = objective.position
        prior = model.prior.gaussian()
        if prior is None or not (self.has_effective_noise or self.refitter):
            return position
        scale = prior.scale
        if isinstance(objective, ScaledModes):
            scale = objective.prior.scale
        n_params = model.network.layout.n_params
        weights = position[:, :n_params].double()
        balanced = balance_weights(model.network, weights, scale.to(weights) ** -2)
        return torch.cat([balanced.to(position), position[:, n_params:]], 1)

    def _refit(
        self, members: EnsembleFit, data: Training, model: Model, progress: FitProgress
    ) -> EnsembleFit:
        """Refit the linearised members, unless training was interrupted or the refit is too slow.

        Parameters
        ----------
        members : EnsembleFit
            Members as trained.
        data : Training
            Training data.
        model : Model
            Network, likelihood and prior of a member.
        progress : FitProgress
            Progress of the fit, which knows the number of jobs.

        Returns
        -------
        EnsembleFit
            Members with their refit, or as trained.
        """
        refitter = self.refitter
        if refitter is None or members.stop_reason == "interrupted":
            return members
        if not refitter.is_affordable(self.n_members, data.n_rows, model):
            return members
        scale = compute_prior_scales(members, model)
        result = refitter.refit_members(members.theta, scale, data, model, progress.n_jobs)
        variance_scale = result.variance_scale
        log_info("members refitted as linearised networks, variance scale %g", variance_scale)
        return replace(members, refit=result)

    def _require_memory(self, data: Training, model: Model) -> None:
        """Raise a MemoryError unless there is memory for the members and their corrections."""
        p = model.network.layout.n_params
        # Values, gradients and two moments.
        members = MemoryAllocation(
            f"{self.n_members} members of {p:,} weights",
            4 * self.n_members * p * data.dtype.itemsize,
            "Lower n_members or hidden_layer_sizes, or give X as float32.",
        )
        # The corrections follow each other.
        corrections = []
        learns_scales = learned_scales(model.prior) is not None
        if learns_scales or (self.has_effective_noise and model.prior.gaussian() is not None):
            n_entries = count_curvature_entries(data.n_rows, model.network.n_outputs, p)
            remedy = "Lower hidden_layer_sizes."
            if learns_scales:
                remedy = "Lower hidden_layer_sizes, or give prior a number."
            corrections.append(
                MemoryAllocation(
                    f"the curvature of a member of {p:,} weights", 8 * n_entries, remedy
                )
            )
        if self.refitter is not None:
            corrections.append(self.refitter.allocation(self.n_members, data.n_rows, model))
        largest = sorted(corrections, key=lambda correction: correction.n_bytes)[-1:]
        require_memory([data.rows_allocation, members, *largest], data.device)

    def _starting_position(self, model: Model | NetworkPosterior, seed: int) -> Tensor:
        """Starting points (M, D): random weights, or the members of the previous fit."""
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
        return torch.cat([torch.as_tensor(part, dtype=torch.float64) for part in parts], 1)

    def _objective(self, posterior: NetworkPosterior, data: Training) -> MapObjective:
        """Objective of training, which also updates the scales of a prior that learns them."""
        start_seed = data.seed
        batch_seed = spawn_seeds(data.seed, 1)[0]
        position = self._starting_position(posterior, start_seed).to(data.data.x)
        batch_size = self._rows_per_step(data)
        batches = None
        if batch_size < data.n_rows:
            batches = Batches(data.data, batch_size, generator_from(batch_seed, data.device))

        def make_density(posterior: NetworkPosterior) -> LogDensity:
            if batches is None:
                return posterior
            return MinibatchDensity(posterior, batches)

        scales = learned_scales(posterior.prior)
        if scales is None:
            n_params = posterior.network.layout.n_params
            return MapObjective(make_density(posterior), n_params, position)
        LIKELIHOOD_WITH_HESSIAN.require(posterior.likelihood, "likelihood")

        # A warm start also continues from the scales that the previous fit learned.
        if self.start is None:
            previous = None
        else:
            previous = self.start.log_precision
        if previous is not None and previous.shape == (self.n_members, scales.n_groups):
            scales = replace(scales, hyper=torch.as_tensor(previous))
        start = replace(posterior, prior=scales)
        steps = scale_update_steps(self.max_iter)
        if self.learns_noise:
            noise_range = data.log_noise_range
        else:
            noise_range = None
        return ScaledModes(start, make_density, position, data.double_data, steps, noise_range)

    def _rows_per_step(self, data: Training) -> int:
        """Number of rows in each step of the optimiser."""
        auto = data.n_rows if data.n_rows <= 2000 else 500
        return resolve_batch_size(self.batch_size, data.n_rows, auto)


def _read_members(
    objective: MapObjective,
    position: Tensor | None = None,
    log_posterior: Tensor | None = None,
    result: OptimiseResult | None = None,
) -> EnsembleFit:
    """Read the members in the middle of training or at its end.

    Parameters
    ----------
    objective : MapObjective
        Objective of training.
    position : Tensor of shape (M, D), optional
        Positions of the members; by default those in the optimiser's vector.
    log_posterior : Tensor of shape (M,), optional
        Log joint densities at the end, nats.
    result : OptimiseResult, optional
        Result of training, at its end.

    Returns
    -------
    EnsembleFit
    """
    if position is None:
        position = objective.position
    n_params = objective.n_theta // len(position)
    theta = position[:, :n_params].cpu().numpy().copy()
    log_noise = position[:, n_params:].cpu().numpy().copy()
    log_precision = None
    if isinstance(objective, ScaledModes):
        log_precision = objective.prior.hyper.cpu().numpy()
    if log_posterior is None or result is None:
        return EnsembleFit(theta, log_noise, log_precision)
    return EnsembleFit(
        theta,
        log_noise,
        log_precision,
        log_posterior.double().cpu().numpy(),
        np.array(result.loss_curve),
        result.n_iter,
        result.stopped,
    )


def compute_prior_scales(members: EnsembleFit, model: Model) -> Tensor:
    """Standard deviations of the weights' prior: (P,), or (M, P) if members learned their own."""
    scales = learned_scales(model.prior)
    log_precision = members.log_precision
    if scales is None or log_precision is None:
        return require_normal_prior(model.prior).scale
    return replace(scales, hyper=torch.as_tensor(log_precision)).scale


def correct_noise(members: EnsembleFit, data: Training, model: Model) -> EnsembleFit:
    """Correct the learned noise for the degrees of freedom that the weights use up.

    Fixed noise stays as it is; only the leverages of the rows are added. Noise that depends on the
    input is multiplied by one factor, through the bias of the output that predicts its logarithm.

    Parameters
    ----------
    members : EnsembleFit
        Members as trained.
    data : Training
        Training data.
    model : Model
        Network, likelihood and prior of a member. The prior is normal.

    Returns
    -------
    EnsembleFit
        Members with effective noise and, except for heteroscedastic and Student's noise, leverages.
    """
    network = require_mlp(model.network)
    rows = data.double_data
    theta = torch.as_tensor(members.theta).to(data.device, torch.float64)
    scale = compute_prior_scales(members, model).to(theta).expand_as(theta)
    likelihood = model.likelihood
    n_targets = rows.y.shape[1]

    if isinstance(likelihood, Heteroscedastic):
        unit_noise = rows.y.new_ones(n_targets)
        corrected = members.theta.copy()
        for i, (theta_m, scale_m) in enumerate(zip(theta, scale, strict=True)):
            row_noise = likelihood.heads(network.forward(theta_m, rows.x))[1].exp()
            noise = estimate_noise(network, theta_m, rows, scale_m, unit_noise, row_noise=row_noise)
            corrected[i, -n_targets:] += (noise.std.log() / likelihood.spread).cpu().numpy()
        return replace(members, theta=corrected)

    noise_std = members.noise_scale(model).to(theta)
    if not likelihood.n_params:
        leverages = []
        for theta_m, scale_m, std in zip(theta, scale, noise_std, strict=True):
            leverage_at = compute_leverages(network, theta_m, rows, scale_m)[1]
            leverages.append(leverage_at(std**-2).cpu())
        return replace(members, leverage=torch.stack(leverages))

    df: list[float | None] = [None] * len(theta)
    if isinstance(likelihood, StudentT):
        learned = likelihood.at(torch.as_tensor(members.log_noise).double())
        df = learned.degrees_of_freedom.flatten().expand(len(theta)).tolist()
    noises = [
        estimate_noise(network, theta_m, rows, scale_m, std, df=df_m)
        for theta_m, scale_m, std, df_m in zip(theta, scale, noise_std, df, strict=True)
    ]
    std, n_effective, leverage = (torch.stack(part).cpu() for part in zip(*noises, strict=True))
    if isinstance(likelihood, StudentT):
        log_noise = members.log_noise.copy()
        log_noise[:, :n_targets] = std.log().numpy()
        return replace(members, log_noise=log_noise)

    # Residuals of members that fit nearly all rows are uninformative. Their effective noise comes
    # from leave-one-out residuals, so it replaces the residual sum of squares.
    noise_dof = data.total_weight - n_effective
    squares = noise_dof * std.square()
    return replace(
        members,
        log_noise=std.log().numpy(),
        noise_dof=noise_dof.numpy(),
        leverage=leverage,
        noise_levels=data.noise_levels(squares, noise_dof),
    )
