"""Laplace approximation of one network by Adam: its mode, curvature and hyperparameters."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from skbayes_sym.base.messages import log_info, warn_unless_converged, warn_user
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
from skbayes_sym.laplace.base import layer_precisions, recording
from skbayes_sym.laplace.defaults import resolve_auto
from skbayes_sym.laplace.evidence import AveragedNetwork, LaplaceEvidence
from skbayes_sym.laplace.invariance_parameters import TransformationFamilies
from skbayes_sym.laplace.invariant_evidence import (
    AlternatingTrainer,
    AveragedProblem,
    EvaluatedState,
    LaplaceFit,
    Seeds,
    TrainingSchedule,
    make_curvature,
)
from skbayes_sym.laplace.map import MapObjective
from skbayes_sym.laplace.online_training import (
    HyperAscent,
    HyperRates,
    JointDensity,
    OnlineEvidence,
    recorded_steps,
)
from skbayes_sym.models.augmentations.augmentation import (
    OBJECTIVES,
    Augmentation,
    Identity,
    TransformObjective,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Batches, Model
from skbayes_sym.numerics.optimise import ParamGroup, compute_final_gain
from skbayes_sym.numerics.random import generator_from, spawn_seeds

# Fewest updates whose last tenth shows convergence. With fewer the loss of the weights does.
MIN_CURVE_UPDATES = 20


def best_constant(data: Training, likelihood: Likelihood) -> float:
    """Return the log likelihood of the best constant prediction in scaled targets, nats.

    The prediction is the class frequencies, or the mean with normal noise. The result is minus
    infinity if the likelihood has no noise scale.
    """
    weight = data.rows.weight
    if data.rows.y.ndim == 1:
        counts = np.bincount(data.rows.y, weights=weight)
        counts = counts[counts > 0]
        return float(np.sum(counts * np.log(counts / counts.sum())))
    if not likelihood.noise_scale.numel():
        return -np.inf
    std = data.target_std
    noise = std
    if not likelihood.n_params:
        noise = likelihood.noise_scale.double().numpy()
    terms = 0.5 * (std / noise) ** 2 + np.log(noise) + 0.5 * np.log(2 * np.pi)
    return float(-weight.sum() * np.sum(terms))


def warn_if_collapsed(problem: AveragedProblem, mode: EvaluatedState, fitted: LaplaceFit) -> bool:
    """Warn if the network predicts a constant, and return whether it does.

    The criterion is a log likelihood within 0.01 nats per row of the best constant, and a prior
    precision that has grown at least tenfold.

    Parameters
    ----------
    problem : AveragedProblem
        Data and model.
    mode : EvaluatedState
        Mode with its log likelihood.
    fitted : LaplaceFit
        Fit with the learned scales of the prior.
    """
    data = problem.data
    constant = best_constant(data, problem.model.likelihood)
    is_constant = mode.terms.log_likelihood < constant + 0.01 * data.total_weight
    smallest = max(fitted.prior_scale.min(), 1e-100)  # whose square doesn't underflow
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
    """Warn if the last tenth of the updates still raised the log evidence by ``tol`` per row.

    Parameters
    ----------
    curve : ndarray
        Log evidence after each update of the hyperparameters.
    tol : float or None
        Tolerance in nats per row; None never warns.
    total_weight : float
        Sum of the sample weights.
    """
    gain = compute_final_gain(curve.tolist())
    if tol is None or len(curve) < MIN_CURVE_UPDATES or not gain.exceeds(tol * total_weight):
        return
    warn_user(
        f"not converged: the last tenth of the {len(curve)} hyperparameter updates still raised "
        f"the log evidence by {gain.value / total_weight:.2g} nats per row (tol={tol:g}). Raise "
        "max_iter, learning_rate or Updates.learning_rate.",
        ConvergenceWarning,
    )


@dataclass(frozen=True)
class AdamDefaults:
    """Constants behind "auto" where Adam trains one network.

    Attributes
    ----------
    max_iter : int
        Number of steps.
    tol : float
        Tolerance in nats per unit of sample weight, from a tenth of the steps to the next.
    weights_rate : float
        Adam's step size of the weights.
    hyper_rate : float
        Adam's step size of the prior's log precisions and of the likelihood's parameters.
    initial_scale_two_outputs : float
        Initial prior scale of likelihoods whose noise depends on the input. Under the usual wide
        prior, their two outputs fit every row with hardly any noise, and the evidence doesn't lead
        away from there (13 of 19 tables lose, up to 114 nats per new row).
    full_batch_rows, minibatch_rows : int
        With invariances a row of a batch is transformed ``n_augmentations`` times. Up to
        ``full_batch_rows`` a batch is all rows, and ``minibatch_rows`` of more.
    total_half_width_rate : float
        Sum of the half-widths' step sizes over all updates. Slower half-widths stop where weights
        that fit every row keep them (half way to a full rotation), and faster ones move ahead of
        the weights.
    max_half_width_rate : float
        Largest step size of the half-widths.
    noisy_half_width_rate : float
        Largest step size of the half-widths, divided by the root of the fraction of rows that an
        update sees. Adam's steps are as large for a noisy gradient as for an accurate one, and
        half-widths vary about their optimum with a variance proportional to this ratio. With 1.3
        they followed the noise out of the image, and 0.5 to 0.7 worked in all versions of MNIST.
    """

    max_iter: int = 3000
    tol: float = 1e-3
    weights_rate: float = 0.02
    hyper_rate: float = 0.3
    initial_scale_two_outputs: float = 0.3
    full_batch_rows: int = 250
    minibatch_rows: int = 100
    total_half_width_rate: float = 32.0
    max_half_width_rate: float = 0.3
    noisy_half_width_rate: float = 0.5


@dataclass(frozen=True, eq=False)
class AdamLaplace:
    """Laplace's approximation (MacKay 1992) of one network, trained by Adam.

    Half-widths of input transformations may be learned with it (Immer et al. 2022).

    Attributes
    ----------
    adam : EvidenceAdam
    learn_prior : bool
        Whether the scales of the prior may move, if the objective moves them.
    max_iter : int
        Number of steps.
    tol : float or None
        Tolerance in nats per unit of sample weight. None never stops.
    defaults : AdamDefaults
        Constants behind "auto".
    objective : TransformObjective
        By default the evidence.
    invariances : TransformationFamilies, optional
        By default there are no transformations, and none are reported.
    half_width_rate : float or "auto", default="auto"
        Adam's step size of the half-widths.
    """

    requirements: ClassVar[Requirements] = Requirements(
        LIKELIHOOD_WITH_HESSIAN, RECORDED_LAYERS, NORMAL_PRIOR
    )

    adam: EvidenceAdam
    learn_prior: bool
    max_iter: int
    tol: float | None
    defaults: AdamDefaults
    objective: TransformObjective = OBJECTIVES["evidence"]
    invariances: TransformationFamilies | None = None
    half_width_rate: float | str = "auto"

    def fit(self, data: Training, model: Model, progress: FitProgress) -> LaplaceFit:
        """Train the network and its hyperparameters.

        Parameters
        ----------
        data : Training
        model : Model
        progress : FitProgress

        Returns
        -------
        LaplaceFit
        """
        problem = self._make_problem(data, model)
        problem.require_memory(self.adam.curvature)
        with torch.no_grad():
            # Steps of the weights alternate with updates of the hyperparameters.
            trainer = self._make_trainer(problem)

            def current_fit() -> LaplaceFit:
                state = problem.balance(trainer.state())
                return problem.make_fit(problem.evaluate(state), trainer)

            progress.begin(trainer.schedule.n_blocks, current_fit)
            result = trainer.train(self._param_groups(problem), progress.end_block)

            # The result is the last state, or the one of the highest evidence.
            evaluated = problem.evaluate(problem.balance(trainer.state()))
            if self._updates.keep_best and trainer.best:
                best = problem.evaluate(problem.balance(trainer.best[1]))
                evaluated = max(evaluated, best, key=lambda candidate: candidate.terms.value)
            log_evidence = evaluated.terms.value
            curve = np.array(trainer.evidence_curve)
            fitted = replace(
                problem.make_fit(evaluated, trainer),
                log_evidence=log_evidence,
                curve=curve,
                n_iter=result.n_iter,
                stop_reason=result.stopped,
            )
            progress.end(fitted)

        log_info(
            "log evidence %.6g, stopped: %s after %d steps",
            log_evidence + data.log_jacobian,
            result.stopped,
            result.n_iter,
        )
        # One warning is enough: a collapsed network needs other remedies than more steps.
        if not warn_if_collapsed(problem, evaluated, fitted) and result.stopped == "max_iter":
            if trainer.ascent is None or len(curve) < MIN_CURVE_UPDATES:
                warn_unless_converged(result, self.tol, data.total_weight, "the log posterior")
            warn_unless_evidence_converged(curve, self.tol, data.total_weight)
        return fitted

    def _make_problem(self, data: Training, model: Model) -> AveragedProblem:
        # Network averaged over transformations.
        network = recording(model.network)
        augmentation: Augmentation = Identity()
        n_samples = 1
        if self.invariances is not None and self.objective.transforms:
            augmentation = self.invariances.bind(data)
            if augmentation.half_width.n_params:
                n_samples = self.invariances.n_samples
        n_last = 1 if self.adam.layers == "last" else None
        averaged = AveragedNetwork(network, augmentation, model.likelihood, n_samples, n_last)

        # Initial prior precisions, one per weight layer.
        prior = model.prior.gaussian()
        if prior is None:
            raise ValueError("the Laplace approximation needs a normal prior.")
        precisions = layer_precisions(network, prior.precision)
        if self._has_narrow_start(model.likelihood):
            precision = self.defaults.initial_scale_two_outputs**-2
            precisions = torch.full_like(precisions, precision)

        structure, directions = make_curvature(self.adam.curvature, averaged)
        batch_size = self._batch_size(data.n_rows)
        evidence = LaplaceEvidence(averaged, data.data, structure, directions, batch_size)
        seeds = Seeds(*spawn_seeds(data.seed, len(Seeds._fields)))
        return AveragedProblem(data, evidence, precisions, self.invariances is not None, seeds)

    def _batch_size(self, n_rows: int) -> int:
        if self.invariances is None:
            default = default_batch_size(n_rows)
        elif n_rows <= self.defaults.full_batch_rows:
            default = n_rows
        else:
            default = self.defaults.minibatch_rows
        return resolve_batch_size(self.adam.batch_size, n_rows, default)

    def _has_narrow_start(self, likelihood: Likelihood) -> bool:
        return self.learn_prior and likelihood.kind == "heteroscedastic"

    @property
    def _updates(self) -> Updates:
        return self.adam.updates or Updates()

    @property
    def _weights_rate(self) -> float:
        return resolve_auto(self.adam.learning_rate, self.defaults.weights_rate)

    def _is_online(self, problem: AveragedProblem) -> bool:
        """Whether the sums of an update may come from the training steps themselves."""
        if self._updates.gradient == "auto" and not problem.model.n_half_widths:
            return problem.evidence.batch_size < problem.data.n_rows
        return self._updates.gradient != "exact"

    def _make_schedule(
        self, problem: AveragedProblem, *, allows_noise: bool = False
    ) -> TrainingSchedule:
        block = max(1, self.max_iter // self._updates.n)
        n_blocks = -(-self.max_iter // block)
        tol = self.tol
        if tol is not None:
            tol = tol * problem.data.total_weight
        burn_in = int(self._updates.burn_in * n_blocks)
        if self.adam.updates is None and self._has_narrow_start(problem.model.likelihood):
            burn_in = 0
        return TrainingSchedule(self.max_iter, block, burn_in, tol, allows_noise)

    def _make_trainer(self, problem: AveragedProblem) -> AlternatingTrainer:
        data = problem.data
        # Online, the evidence is that of weights that still move. Its noise mustn't end a fit.
        allows_noise = not problem.model.n_half_widths and self._is_online(problem)
        schedule = self._make_schedule(problem, allows_noise=allows_noise)

        # Joint density of weights and data, in minibatches.
        x = data.data.x
        network = problem.model.network
        theta = network.init(1, generator=generator_from(problem.seeds.start))[0]
        hyper = problem.initial_hyper()
        generator = generator_from(problem.seeds.training, data.device)
        batches = Batches(data.data, problem.evidence.batch_size, generator)
        density = JointDensity(
            problem.model,
            batches,
            hyper,
            rest_precision=float(problem.precisions[0]),
            reward=self.objective.reward,
        )
        objective = MapObjective(density, density.n_dims, density.start(theta.to(x)))
        ascent = self._make_ascent(problem, density, hyper, schedule)
        return AlternatingTrainer(problem.model, objective, hyper, ascent, schedule)

    def _make_ascent(
        self,
        problem: AveragedProblem,
        density: JointDensity,
        hyper: Tensor,
        schedule: TrainingSchedule,
    ) -> HyperAscent | None:
        """Make the ascent of the hyperparameters.

        Parameters
        ----------
        problem : AveragedProblem
        density : JointDensity
            Density whose evaluations are recorded for online updates.
        hyper : Tensor
            Flat vector of hyperparameters, which the ascent changes in place.
        schedule : TrainingSchedule

        Returns
        -------
        HyperAscent or None
            None if the evidence determines nothing.
        """
        learns_prior = self.learn_prior and self.objective.learns_prior
        rate = resolve_auto(self._updates.learning_rate, self.defaults.hyper_rate)
        half_width_rate = 0.0
        if self.objective.reward is None:
            half_width_rate = self._half_width_rate(problem, schedule)
        if problem.model.likelihood.n_params:
            likelihood_rate = rate
        else:
            likelihood_rate = 0.0
        rates = HyperRates(half_width_rate, likelihood_rate, rate if learns_prior else 0.0)
        if not any(rates):
            return None

        # Online updates record the last steps before each of them.
        evidence = problem.evidence
        online = None
        needs_gradient = rates.half_width > 0 or rates.likelihood > 0
        if self._is_online(problem) and (needs_gradient or not problem.model.n_half_widths):
            online = OnlineEvidence(evidence, needs_gradient=needs_gradient)
            n_recorded = self._recorded_steps(problem, schedule)

            def is_recorded(step: int) -> bool:
                to_update = schedule.block_end(step) - step
                return step >= schedule.burn_in * schedule.block and to_update <= n_recorded

            density.record_with(online, is_recorded)
        return HyperAscent(evidence, hyper, rates, problem.seeds.hyper, online)

    def _param_groups(self, problem: AveragedProblem) -> list[ParamGroup]:
        """Return the ranges of the weights, and of eta where it is trained with them."""
        n = problem.model.network.layout.n_params
        half_width_rate = self._half_width_rate(problem, self._make_schedule(problem))
        return [
            ParamGroup(slice(0, n), self._weights_rate),
            ParamGroup(slice(n, None), half_width_rate),
        ]

    @staticmethod
    def _recorded_steps(problem: AveragedProblem, schedule: TrainingSchedule) -> int:
        """Return the number of steps before an update that an online evidence records."""
        epoch = -(-problem.data.n_rows // problem.evidence.batch_size)
        return recorded_steps(schedule.block, epoch, problem.model.network.weight_layers)

    def _half_width_rate(self, problem: AveragedProblem, schedule: TrainingSchedule) -> float:
        if not problem.model.n_half_widths:
            return 0.0
        if not isinstance(self.half_width_rate, str):
            return float(self.half_width_rate)
        if self.objective.reward is not None:
            return float(self._weights_rate)
        updates = self._updates
        n_updates = max(1.0, (1.0 - updates.burn_in) * updates.n)
        rate = self.defaults.total_half_width_rate / n_updates
        fraction = 1.0
        if self._is_online(problem):
            n_rows = self._recorded_steps(problem, schedule) * problem.evidence.batch_size
            fraction = min(1.0, n_rows / problem.data.n_rows)
        noise_limit = self.defaults.noisy_half_width_rate * fraction**0.5
        return min(self.defaults.max_half_width_rate, noise_limit, rate)
