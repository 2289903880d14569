"""Laplace's approximation as a method: a mode, the curvature there, hyperparameters by evidence."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skbayes_sym.base.log import log_info
from skbayes_sym.base.optimizers import EvidenceAdam, Updates
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import (
    LIKELIHOOD_WITH_HESSIAN,
    NORMAL_PRIOR,
    RECORDED_LAYERS,
    Requirements,
)
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training, default_batch_size, resolve_batch_size
from skbayes_sym.base.warnings import warn_unless_converged, warn_user
from skbayes_sym.laplace.base import layer_precisions, recording
from skbayes_sym.laplace.evidence import AveragedNetwork, LaplaceEvidence
from skbayes_sym.laplace.invariance_parameters import Families
from skbayes_sym.laplace.invariant_evidence import (
    Alternation,
    Evaluated,
    LaplaceFit,
    Pace,
    Problem,
    Seeds,
    check_curvature,
)
from skbayes_sym.laplace.map import MapObjective
from skbayes_sym.laplace.online_training import (
    HyperAscent,
    HyperRates,
    JointDensity,
    OnlineEvidence,
    recorded_steps,
)
from skbayes_sym.models.augmentations.augmentation import OBJECTIVES, Identity, TransformObjective
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Batches, Model
from skbayes_sym.numerics.optimise import ParamGroup, compute_final_gain
from skbayes_sym.numerics.random import generator_from, spawn_seeds

FEWEST_UPDATES = 20  # whose last tenth says anything; of fewer the weights' own loss does


def best_constant(data: Training, likelihood: Likelihood) -> float:
    """Log likelihood of the best constant prediction in scaled targets, nats.

    That of class frequencies, or of the mean with normal noise; minus infinity where nothing is
    known of it.
    """
    weight = data.rows.weight
    if data.rows.y.ndim == 1:
        counts = np.bincount(data.rows.y, weights=weight)
        counts = counts[counts > 0]
        return float(np.sum(counts * np.log(counts / counts.sum())))
    if not likelihood.noise_scale.numel():
        return -np.inf
    spread = data.target_std
    level = spread if likelihood.n_params else likelihood.noise_scale.double().numpy()
    terms = 0.5 * (spread / level) ** 2 + np.log(level) + 0.5 * np.log(2 * np.pi)
    return float(-weight.sum() * np.sum(terms))


def warn_if_collapsed(problem: Problem, mode: Evaluated, fitted: LaplaceFit) -> bool:
    """Warn of a network that predicts a constant."""
    data = problem.data
    constant = best_constant(data, problem.model.likelihood)
    # A hundredth of a nat per row, with a prior precision that has grown by a factor of ten.
    is_constant = mode.terms.log_likelihood < constant + 0.01 * data.total_weight
    smallest = max(fitted.prior_scale.min(), 1e-100)  # whose square is still a number
    growth = float(smallest**-2.0 / problem.precisions.max())
    if not is_constant or growth <= 10.0:
        return False
    warn_user(
        "the network has collapsed onto a constant prediction: the prior precision grew "
        f"{growth:.0f}-fold while it still underfitted. If the data have any signal, give "
        "prior a number, raise burn_in or max_iter, or use another learning_rate or "
        "random_state.",
        ConvergenceWarning,
    )
    return True


def warn_unless_evidence_converged(curve: Array, tol: float | None, total_weight: float) -> None:
    """Warn if the last tenth of the updates still raised the log evidence by ``tol`` per row."""
    gain = compute_final_gain(curve.tolist())
    if tol is None or len(curve) < FEWEST_UPDATES or not gain.exceeds(tol * total_weight):
        return
    warn_user(
        f"not converged: the last tenth of the {len(curve)} hyperparameter updates still raised "
        f"the log evidence by {gain.value / total_weight:.2g} nats per row (tol={tol:g}). Raise "
        "max_iter, learning_rate or Updates.learning_rate.",
        ConvergenceWarning,
    )


@dataclass(frozen=True)
class AdamDefaults:
    """Numbers behind "auto" where Adam trains one network and the evidence its hyperparameters."""

    max_iter: int = 3000
    tol: float = 1e-3  # nats per unit of sample weight, from a tenth of the steps to the next
    weights_rate: float = 0.02
    hyper_rate: float = 0.3
    # Two heads under the usual wide prior fit every row with hardly any noise, and the evidence
    # doesn't lead away from there (13 of 19 tables lose, up to 114 nats per new row).
    heads_start_scale: float = 0.3

    # With invariances a row of a batch is transformed n_augmentations times: all rows up to here,
    # and this many beyond.
    full_batch_rows: int = 250
    minibatch_rows: int = 100

    # Half-widths: the sum of their steps at full size, and the largest. Slower ones stop where
    # weights that fit every row hold them (half way to a full turn), faster ones outrun those.
    total_travel: float = 32.0
    fastest: float = 0.3


@dataclass(frozen=True, eq=False)
class Laplace:
    """Laplace's approximation (MacKay 1992), learned invariances included (Immer et al. 2022)."""

    requirements: ClassVar[Requirements] = Requirements(
        LIKELIHOOD_WITH_HESSIAN, RECORDED_LAYERS, NORMAL_PRIOR
    )

    adam: EvidenceAdam
    learn_prior: bool  # whether the scales of the prior may move, if ``objective`` moves them
    max_iter: int
    tol: float | None  # nats per unit of sample weight; None never stops
    effort: AdamDefaults  # what "auto" is
    objective: TransformObjective = OBJECTIVES["evidence"]  # by default the evidence
    invariances: Families | None = None  # by default no transformations, and none are reported
    half_width_rate: float | str = "auto"  # Adam's step size for half-widths

    def fit(self, data: Training, model: Model, progress: FitProgress) -> LaplaceFit:
        problem = self._problem(data, model)
        problem.require_memory(self.adam.curvature)
        with torch.no_grad():
            training = self._training(problem)
            progress.begin(
                training.pace.n_blocks,
                lambda: problem.found(problem.evaluate(training.point()), training),
            )
            result = training.train(self._groups(problem), progress.end_block)
            evaluated = problem.evaluate(training.point())
            if self._updates.keep_best and training.best:
                best = problem.evaluate(training.best[1])
                evaluated = max(evaluated, best, key=lambda one: one.terms.value)
            value = evaluated.terms.value
            curve = np.array(training.evidence_curve)
            fitted = replace(
                problem.found(evaluated, training), log_evidence=value, curve=curve,
                n_iter=result.n_iter, stop_reason=result.stopped,
            )  # fmt: skip
            progress.end(fitted)
        log_info(
            "log evidence %.6g, stopped: %s after %d steps",
            value + data.log_jacobian, result.stopped, result.n_iter,
        )  # fmt: skip
        if not warn_if_collapsed(problem, evaluated, fitted) and result.stopped == "max_iter":
            if training.ascent is None or len(curve) < FEWEST_UPDATES:
                warn_unless_converged(result, self.tol, data.total_weight, "the log posterior")
            warn_unless_evidence_converged(curve, self.tol, data.total_weight)
        return fitted

    def _problem(self, data: Training, model: Model) -> Problem:
        network = recording(model.network)
        invariances = self.invariances
        transforms = invariances is not None and self.objective.transforms
        augmentation = invariances.bind(data) if invariances and transforms else Identity()
        n_samples = invariances.n_samples if invariances and augmentation.half_width.n_params else 1
        n_last = 1 if self.adam.layers == "last" else None
        averaged = AveragedNetwork(network, augmentation, model.likelihood, n_samples, n_last)
        prior = model.prior.gaussian()
        if prior is None:
            raise ValueError("the Laplace approximation needs a normal prior.")
        precisions = layer_precisions(network, prior.precision)
        if self._starts_narrow(model.likelihood):
            precisions = torch.full_like(precisions, self.effort.heads_start_scale**-2)
        curvature = check_curvature(self.adam.curvature, averaged)
        batch_size = self._rows_per_step(data.n_rows)
        return Problem(
            data, LaplaceEvidence(averaged, data.data, *curvature, batch_size),
            precisions, invariances is not None,
            Seeds(*spawn_seeds(data.seed, len(Seeds._fields))),
        )  # fmt: skip

    def _rows_per_step(self, n_rows: int) -> int:
        few = n_rows <= self.effort.full_batch_rows
        automatic = n_rows if few else self.effort.minibatch_rows
        if self.invariances is None:
            automatic = default_batch_size(n_rows)
        return resolve_batch_size(self.adam.batch_size, n_rows, automatic)

    def _starts_narrow(self, likelihood: Likelihood) -> bool:
        return self.learn_prior and likelihood.kind == "heteroscedastic"

    @property
    def _updates(self) -> Updates:
        return self.adam.updates or Updates()

    @property
    def _weights_rate(self) -> float:
        learning_rate = self.adam.learning_rate
        return self.effort.weights_rate if isinstance(learning_rate, str) else learning_rate

    def _is_online(self, problem: Problem) -> bool:
        """Whether the sums of an update may come from the training steps themselves."""
        if self._updates.gradient == "auto" and self.invariances is None:
            return problem.evidence.batch_size < problem.data.n_rows
        return self._updates.gradient != "exact"

    def _pace(self, problem: Problem, *, until_sure: bool = False) -> Pace:
        block = max(1, self.max_iter // self._updates.n)
        n_blocks = -(-self.max_iter // block)
        tol = None if self.tol is None else self.tol * problem.data.total_weight
        is_due = self.adam.updates is None and self._starts_narrow(problem.model.likelihood)
        burn_in = 0 if is_due else int(self._updates.burn_in * n_blocks)
        return Pace(self.max_iter, block, burn_in, tol, until_sure)

    def _training(self, problem: Problem) -> Alternation:
        # Online, the curve is that of weights that still move: its noise isn't to end a fit.
        until_sure = self.invariances is None and self._is_online(problem)
        data = problem.data
        pace = self._pace(problem, until_sure=until_sure)
        x = data.data.x
        network = problem.model.network
        theta = network.init(1, generator=generator_from(problem.seeds.start))[0]
        hyper = problem.start()
        generator = generator_from(problem.seeds.training, data.device)
        batches = Batches(data.data, problem.evidence.batch_size, generator)
        density = JointDensity(
            problem.model, batches, hyper,
            rest_precision=float(problem.precisions[0]), reward=self.objective.reward,
        )  # fmt: skip
        objective = MapObjective(density, density.n_dims, density.start(theta.to(x)))
        ascent = self._ascent(problem, density, hyper, pace)
        return Alternation(problem.model, objective, hyper, ascent, pace)

    def _ascent(
        self, problem: Problem, density: JointDensity, hyper: Tensor, pace: Pace
    ) -> HyperAscent | None:
        """Ascent of the hyperparameters; None where nothing is learned by the evidence."""
        learns_prior = self.learn_prior and self.objective.learns_prior
        learning_rate = self._updates.learning_rate
        rate = self.effort.hyper_rate if isinstance(learning_rate, str) else learning_rate
        rates = HyperRates(
            self._half_width_rate(problem.model) if self.objective.reward is None else 0.0,
            rate if problem.model.likelihood.n_params else 0.0,
            rate if learns_prior else 0.0,
        )
        if not any(rates):
            return None
        evidence = problem.evidence
        online = None
        learns_more = rates.half_width > 0 or rates.likelihood > 0
        if self._is_online(problem) and (learns_more or self.invariances is None):
            online = OnlineEvidence(evidence, needs_gradient=learns_more)
            epoch = -(-problem.data.n_rows // problem.evidence.batch_size)
            layers = problem.model.network.weight_layers
            n_recorded = recorded_steps(pace.block, epoch, layers)

            def is_recorded(step: int) -> bool:
                to_update = pace.block_end(step) - step
                return step >= pace.burn_in * pace.block and to_update <= n_recorded

            density.record_with(online, is_recorded)
        return HyperAscent(evidence, hyper, rates, problem.seeds.hyper, online)

    def _groups(self, problem: Problem) -> list[ParamGroup]:
        """Weights, and eta where it is trained with them."""
        n = problem.model.network.layout.n_params
        return [
            ParamGroup(slice(0, n), self._weights_rate),
            ParamGroup(slice(n, None), self._half_width_rate(problem.model)),
        ]

    def _half_width_rate(self, model: AveragedNetwork) -> float:
        if not model.n_half_widths:
            return 0.0
        if not isinstance(self.half_width_rate, str):
            return float(self.half_width_rate)
        if self.objective.reward is not None:
            return float(self._weights_rate)
        effort = self.effort
        updates = self._updates
        n_updates = max(1.0, (1.0 - updates.burn_in) * updates.n)
        return min(effort.fastest, effort.total_travel / n_updates)
