"""A fit by Adam: averaged network, evidence, alternating training, and its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.messages import logger
from skbayes_sym.base.rows import Array, unwrap_single
from skbayes_sym.base.training import Training
from skbayes_sym.laplace.balancing import balance_weights
from skbayes_sym.laplace.curvature import (
    Directions,
    Full,
    Kronecker,
    Precision,
    Structure,
    parameter_positions,
)
from skbayes_sym.laplace.evidence import (
    AveragedNetwork,
    EvidenceParts,
    LaplaceEvidence,
)
from skbayes_sym.laplace.invariance_parameters import (
    EVALUATION_SAMPLES,
    LearnedInvariances,
    Transformations,
    averaging_is_negligible,
)
from skbayes_sym.laplace.map import MapObjective
from skbayes_sym.laplace.online_training import HyperAscent
from skbayes_sym.laplace.posterior import LaplacePosterior, LinearisedNetwork
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.likelihoods.row_parameters import KnownErrors
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.optimise import (
    OptimiseResult,
    ParamGroup,
    StopReason,
    compute_gain,
    half_constant_half_linear,
    minimise,
)

# With more rows the noise is taken as known. Levels of 31 to 200 rows matter only for networks
# that fit nearly all of them, and beyond they would take as long as an update.
_MAX_NOISE_ROWS = 200


class TrainingSchedule(NamedTuple):
    """Steps, updates of the hyperparameters between them, and when to stop.

    Attributes
    ----------
    max_iter : int
        Number of steps.
    block : int
        Steps between two updates.
    burn_in : int
        Number of updates that are left out at the start.
    tol : float or None
        Training stops when the evidence gains less than this, in nats. None never stops.
    allows_noise : bool, default=False
        Whether the gain must be smaller than ``tol`` by more than the noise of the curve.
    """

    max_iter: int
    block: int
    burn_in: int
    tol: float | None
    allows_noise: bool = False

    @property
    def n_blocks(self) -> int:
        """Number of blocks of steps, each with an update at its end after the burn-in."""
        return -(-self.max_iter // self.block)

    def block_end(self, step: int) -> int:
        """Number of steps before the next update after ``step``; the last block may be short."""
        return min((step // self.block + 1) * self.block, self.max_iter)

    @property
    def window(self) -> int:
        """A tenth of the updates."""
        return max(1, (self.n_blocks - self.burn_in) // 10)


class TrainingState(NamedTuple):
    """Weights and hyperparameters at one time.

    Attributes
    ----------
    theta : Tensor of shape (P,)
    hyper : Tensor
        Flat vector of hyperparameters.
    """

    theta: Tensor
    hyper: Tensor


class AlternatingTrainer:
    """Training that alternates between weights and hyperparameters, with its records.

    Parameters
    ----------
    model : AveragedNetwork
    objective : MapObjective
        Objective of one position: the weights, and eta if it is trained with them.
    hyper : Tensor
        Flat vector of hyperparameters, changed in place.
    ascent : HyperAscent or None
        Updates of the hyperparameters. Without it they are fixed, and the loss determines when
        training has converged.
    schedule : TrainingSchedule

    Attributes
    ----------
    evidence_curve : list of float
        Log evidence at every update, for scaled targets, nats.
    eta_curve : list of Tensor
        Eta after every block of steps.
    best : tuple or None
        Highest value of ``evidence_curve``, and its state.
    """

    def __init__(
        self,
        model: AveragedNetwork,
        objective: MapObjective,
        hyper: Tensor,
        ascent: HyperAscent | None,
        schedule: TrainingSchedule,
    ) -> None:
        self._model = model
        self._objective = objective
        self._hyper = hyper
        self.ascent = ascent
        self.schedule = schedule
        self._has_converged = False
        self.evidence_curve: list[float] = []
        self.eta_curve: list[Tensor] = []
        self.best: tuple[float, TrainingState] | None = None

    def state(self) -> TrainingState:
        """Present weights and hyperparameters."""
        self._copy_eta()
        return TrainingState(self._theta.clone(), self._hyper.clone())

    def train(self, groups: Sequence[ParamGroup], end_block: Callable[[], bool]) -> OptimiseResult:
        """Make all steps and updates, unless training ends early.

        Parameters
        ----------
        groups : sequence of ParamGroup
            Step sizes of the objective's parameters.
        end_block : callable
            Called after every block. If it returns True, training stops.

        Returns
        -------
        OptimiseResult
        """
        schedule = self.schedule

        def on_step(step: int, _info: Mapping[str, float]) -> bool:
            n_updates = -(-step // schedule.block) - schedule.burn_in
            self._copy_eta()
            if self.ascent is not None and n_updates > 0:
                progress = n_updates / max(1, schedule.n_blocks - schedule.burn_in)
                self._update(self.ascent, half_constant_half_linear(progress))
            self.eta_curve.append(self._eta.clone())
            return end_block() or self._has_converged

        result = minimise(
            self._objective,
            groups=groups,
            max_iter=schedule.max_iter,
            block_size=schedule.block,
            on_step=on_step,
            tol=schedule.tol if self.ascent is None else None,
        )
        self._copy_eta()
        if self._has_converged and result.stopped == "callback":
            return result._replace(stopped="tol")
        return result

    def _update(self, ascent: HyperAscent, factor: float) -> None:
        """Update the hyperparameters with a factor on the step size, and record the evidence."""
        before = self.state()
        eta = self._eta
        curve = self.evidence_curve
        value = ascent.update(self._theta, factor).value
        if factor == 1.0:
            # At 0 the gradient of a half-width vanishes for good, so that it is raised to a lower
            # limit. This is only done as long as steps have their full size and the weights aren't
            # there yet. Later the evidence may set half-widths to 0.
            floor = self._model.augmentation.half_width.lower_limit().to(eta)
            sign = torch.where(eta < 0.0, -1.0, 1.0).to(eta)
            eta.copy_(torch.where(eta.abs() < floor, sign * floor, eta))
        curve.append(value)
        logger.debug("update %d: log evidence %.6g (scaled targets)", len(curve), value)
        if self.best is None or value > self.best[0]:
            self.best = (value, before)
        # Steps of full size oscillate around a maximum, where a plateau may be a dip.
        tol = self.schedule.tol
        window = self.schedule.window
        if tol is not None and factor < 1.0:
            gain = compute_gain(curve, window)
            if self.schedule.allows_noise:
                # Five values show how much of a gain is noise.
                self._has_converged = window >= 5 and gain.is_below(tol)
            else:
                self._has_converged = gain.value < tol

    @property
    def _theta(self) -> Tensor:
        """View of the weights in the objective."""
        return self._objective.params[: self._model.network.layout.n_params]

    @property
    def _eta(self) -> Tensor:
        """View of eta in the hyperparameters."""
        return self._model.hyper.unflatten(self._hyper)["eta"]

    def _copy_eta(self) -> None:
        """Copy eta to the hyperparameters if it is trained with the weights."""
        trained = self._objective.params[len(self._theta) :]
        if trained.numel():
            self._eta.copy_(trained)


def make_curvature(name: str, model: AveragedNetwork) -> tuple[Structure, Directions]:
    """Return the structure of the curvature, and the directions of the likelihood's.

    "auto" takes all columns of the likelihood's root, but a sketch if there are more than four
    outputs and half-widths.
    """
    structure = Full if name == "full" else Kronecker
    is_expensive = model.network.n_outputs > 4 and model.n_half_widths > 0
    is_sketched = name == "kron-sketch" or (name == "auto" and is_expensive)
    directions = Directions("sketch" if is_sketched else "exact")
    return structure(model.layers, model.network.layout), directions


class Seeds(NamedTuple):
    """Seeds, one for each purpose.

    Attributes
    ----------
    start, training, hyper, evaluation, predict : int
        Seeds of the initial weights, of the training steps, of the updates of the hyperparameters,
        of the reported evidence, and of predictions.
    """

    start: int
    training: int
    hyper: int
    evaluation: int
    predict: int


class EvaluatedState(NamedTuple):
    """A state with its evidence, and the posterior's precision there.

    Attributes
    ----------
    state : TrainingState
    terms : EvidenceParts
    precision : Precision
    """

    state: TrainingState
    terms: EvidenceParts
    precision: Precision


@dataclass(frozen=True, eq=False)
class AveragedProblem:
    """Network, data and evidence of a fit.

    Attributes
    ----------
    data : Training
    evidence : LaplaceEvidence
        Evidence that training uses.
    precisions : Tensor of shape (n_layers,)
        Initial prior precisions of all weight layers, covered or not.
    reports_invariances : bool
        Whether half-widths are among the fitted attributes.
    seeds : Seeds
    """

    data: Training
    evidence: LaplaceEvidence
    precisions: Tensor
    reports_invariances: bool
    seeds: Seeds

    @property
    def model(self) -> AveragedNetwork:
        """The network, with the number of transformations used in training."""
        return self.evidence.model

    @property
    def learns_noise(self) -> bool:
        """Whether the noise is normal and learned."""
        likelihood = self.model.likelihood
        return isinstance(likelihood, Gaussian | KnownErrors) and likelihood.n_params > 0

    @cached_property
    def reported_evidence(self) -> LaplaceEvidence:
        """The evidence that is reported, without sketch and with many transformations."""
        evidence = self.evidence
        model = self.model
        if model.n_half_widths:
            n_samples = max(model.n_samples, EVALUATION_SAMPLES)
        else:
            n_samples = 1
        batch_size = max(1, evidence.batch_size * model.n_samples // n_samples)
        directions = evidence.directions
        if directions.kind == "sketch":
            directions = Directions("exact")
        model = replace(model, n_samples=n_samples)
        return replace(evidence, model=model, directions=directions, batch_size=batch_size)

    def initial_hyper(self) -> Tensor:
        """Hyperparameters before training, as a flat vector."""
        covered = self.precisions[len(self.precisions) - len(self.model.layers) :]
        eta = self.model.augmentation.half_width.start()
        likelihood = self.model.likelihood
        return torch.cat([eta, likelihood.params, covered.log()]).to(self.data.data.x)

    def balance(self, state: TrainingState) -> TrainingState:
        """Move the weights of rescalable units to one representative of their orbit.

        The prior is that of training, which gives parameters outside of the covered layers the
        precision of the first layer.
        """
        theta, hyper = state
        covered = self.model.hyper.unflatten(hyper)["log_precision"].exp()
        rest = self.precisions[:1].to(covered)
        precision = torch.cat([covered, rest])[self.model.owner.to(theta.device)]
        return TrainingState(balance_weights(self.model.network, theta, precision), hyper)

    def evaluate(self, state: TrainingState) -> EvaluatedState:
        """Evaluate a state by one pass over the data, with the same noise for every state."""
        evidence = self.reported_evidence
        sums = evidence.compute_data_sums(*state, self.seeds.evaluation)
        precision = evidence.precision(sums.factors, state.hyper)
        terms, _ = evidence.evidence(*state, sums.log_likelihood, precision)
        return EvaluatedState(state, terms, precision)

    def make_fit(self, evaluated: EvaluatedState, trainer: AlternatingTrainer) -> "LaplaceFit":
        """Return the posterior at a state, as arrays."""
        (theta, hyper), _, precision = evaluated
        model = self.model
        h = self.model.hyper.unflatten(hyper)
        positions = parameter_positions(model.layers, model.network.layout)
        learned = None
        if self.reports_invariances:
            is_negligible = averaging_is_negligible(
                self.reported_evidence, *evaluated.state, self.seeds.predict
            )
            curve = [as_array(eta) for eta in trainer.eta_curve]
            learned = LearnedInvariances(
                model.augmentation, as_array(h["eta"]), curve, is_negligible
            )
        noise_scale = model.likelihood.at(h["likelihood"].cpu()).noise_scale
        posterior = LaplacePosterior(as_array(theta), precision.map(as_array), positions.numpy())
        return LaplaceFit(
            posterior,
            prior_scale=as_array((-0.5 * h["log_precision"].double()).exp()),
            noise_scale=as_array(noise_scale.double()),
            likelihood_params=as_array(h["likelihood"].double()),
            predict_seed=self.seeds.predict,
            invariances=learned,
            noise_levels=self._noise_levels(posterior, h["eta"], noise_scale),
        )

    def _noise_levels(
        self, posterior: LaplacePosterior, eta: Tensor, noise_scale: Tensor
    ) -> Array | None:
        """Return noise levels (1, K, T) of few rows in the units of ``y``.

        They follow from the residuals of the linearised network and its effective number of
        parameters. None if the rows determine the noise, or if it isn't normal or is given.

        Parameters
        ----------
        posterior : LaplacePosterior
            Posterior of the weights.
        eta : Tensor
            Half-widths of the transformations.
        noise_scale : Tensor of shape (n_targets,)
            Learned noise of scaled targets.
        """
        data = self.data
        if not self.learns_noise:
            return None
        if data.n_rows > _MAX_NOISE_ROWS and not data.is_constant.any():
            return None
        x, y, weight = data.data
        transformations = Transformations(self.model.augmentation, eta)
        noise = transformations.noise(self.seeds.predict).to(eta)
        averaged = replace(self.model, n_samples=len(noise))
        network = LinearisedNetwork(averaged, posterior.tensors(eta), eta, noise)
        outputs = network.outputs(x)
        variance = outputs.covariance.diagonal(dim1=-2, dim2=-1).double()
        n_targets = outputs.mean.shape[1]
        squares = (y[:, :n_targets] - outputs.mean).double().square()
        # Known errors are further columns of the targets.
        noise_variance = noise_scale.to(variance).square()
        errors = y[:, n_targets:].double()
        if errors.numel():
            noise_variance = noise_variance + errors.square()
        n_effective = torch.einsum("n,nt->t", weight.double(), variance / noise_variance)
        if errors.numel():
            n_fitted = n_effective + data.missing_constant(n_effective)
            return data.known_error_levels(squares, data.total_weight - n_fitted)
        total_squares = torch.einsum("n,nt->t", weight.double(), squares)
        return data.noise_levels_at_mode(total_squares.unsqueeze(0), n_effective.unsqueeze(0))

    def require_memory(self, curvature: str) -> None:
        """Raise an error unless there is memory for Adam's copies of the weights and the curvature.

        For P weights, P' of them covered, and numbers of b bytes, the curvature takes

        * full: 3 P'^2 b for the matrix, its sum with the prior's and the Cholesky factor, and
          K B P' b for the derivatives of K outputs at B rows;
        * Kronecker: 4 sum_l (D_l^2 + G_l^2) b for the factors of D_l inputs and G_l outputs, their
          bases, and both of the previous step.
        """
        layout = self.model.network.layout
        size = self.data.dtype.itemsize
        n_covered = int(self.model.sizes.sum())
        shapes = [layout.shapes[layer.weight] for layer in self.model.layers]
        n_numbers = 4 * sum(s[0] ** 2 + prod(s[1:]) ** 2 for s in shapes)
        remedy = "Use narrower layers."
        if curvature == "full":
            n_numbers = 3 * n_covered**2
            remedy = "Use curvature='auto', or a smaller network."
        parts = [
            self.data.rows_allocation,
            # Values, gradient and two moments.
            MemoryAllocation(
                f"{layout.n_params:,} weights",
                4 * layout.n_params * size,
                "Lower hidden_layer_sizes, or give X as float32.",
            ),
            MemoryAllocation(f"the curvature of {n_covered:,} weights", n_numbers * size, remedy),
        ]
        if curvature == "full":
            name = f"the derivatives of {self.evidence.batch_size} rows by {n_covered:,} weights"
            jacobian = shapes[-1][0] * self.evidence.batch_size * n_covered * size
            parts.append(
                MemoryAllocation(name, jacobian, "Lower batch_size, or use curvature='auto'.")
            )
        require_memory(parts, self.data.device)


@dataclass(frozen=True, eq=False)
class LaplaceFit:
    """A posterior and its hyperparameters.

    Attributes
    ----------
    posterior : LaplacePosterior
    prior_scale : ndarray of shape (L,)
        Prior scales of the covered layers.
    noise_scale : ndarray of shape (n_targets,) or (0,)
        Noise of scaled targets.
    likelihood_params : ndarray of shape (n_params,)
        Learned parameters of the likelihood, in scaled units.
    predict_seed : int
        Seed of the noise in predictions.
    invariances : LearnedInvariances, optional
    log_evidence : float, optional
        Log evidence for scaled targets, nats, after the end of training.
    curve : ndarray, optional
        The same at every update.
    n_iter : int, default=0
        Number of steps.
    stop_reason : str, default="max_iter"
        Why training ended.
    noise_levels : ndarray of shape (1, K, n_targets), optional
        Noise levels of few rows in the units of ``y``, see `noise_levels`.
    """

    posterior: LaplacePosterior
    prior_scale: Array
    noise_scale: Array
    likelihood_params: Array
    predict_seed: int
    invariances: LearnedInvariances | None = None
    log_evidence: float | None = None
    curve: Array | None = None
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"
    noise_levels: Array | None = None

    def attributes(self, data: Training, _model: Model) -> dict[str, Any]:
        """Return the fitted attributes of the estimator."""
        attributes: dict[str, Any] = {
            "posterior_": self.posterior,
            "prior_scale_": self.prior_scale,
            "_predict_seed_": self.predict_seed,
            "_likelihood_params_": self.likelihood_params,
        }
        if data.y_scaling is not None:
            attributes["_noise_levels_modes_"] = self.noise_levels
        if self.noise_scale.size and data.y_scaling is not None:
            noise = self.noise_scale * data.y_scaling.scale
            attributes["noise_std_"] = unwrap_single(noise)
        if self.invariances is not None:
            attributes.update(self.invariances.attributes())
        if self.log_evidence is not None and self.curve is not None:
            attributes["log_evidence_"] = self.log_evidence + data.log_jacobian
            # Nothing is random but the transformations of the rows, whose error is unknown.
            is_random = self.invariances is not None
            attributes["log_evidence_std_error_"] = float("nan") if is_random else 0.0
            attributes["log_evidence_side_"] = "lower"  # copies of the mode aren't counted
            attributes["log_evidence_curve_"] = self.curve + data.log_jacobian
        return attributes


def as_array(tensor: Any) -> Array:
    """Copy to an array on the host."""
    if isinstance(tensor, Tensor):
        tensor = tensor.detach().cpu().numpy()
    return np.array(tensor)
