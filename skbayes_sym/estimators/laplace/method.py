"""Laplace's approximation as a method: a mode, the curvature there, hyperparameters by evidence."""

from dataclasses import dataclass
from math import pi
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import (
    CURVED_LIKELIHOOD,
    NORMAL_PRIOR,
    RECORDED,
    Needs,
)
from skbayes_sym.estimators._fit.convergence import warn_unless_converged
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training, automatic_batch, rows_per_step
from skbayes_sym.estimators.laplace.alternation import Alternation, Pace
from skbayes_sym.estimators.laplace.convergence import (
    FEWEST_UPDATES,
    warn_if_collapsed,
    warn_if_fisher_vanished,
    warn_unless_evidence_converged,
)
from skbayes_sym.estimators.laplace.curvature import curvature_of, is_empirical
from skbayes_sym.estimators.laplace.evaluation import Evaluation
from skbayes_sym.estimators.laplace.found import Convergence, LaplaceFit
from skbayes_sym.estimators.laplace.invariances import Families
from skbayes_sym.estimators.laplace.networks import layer_precisions, recording
from skbayes_sym.estimators.laplace.problem import Problem, Seeds
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.inference.laplace.training import (
    HyperAscent,
    HyperRates,
    JointDensity,
    OnlineEvidence,
    recorded_steps,
)
from skbayes_sym.inference.map import MapObjective
from skbayes_sym.models.augmentations.base import Identity
from skbayes_sym.models.augmentations.invariances import Objective
from skbayes_sym.models.model import Batches, Model
from skbayes_sym.numerics.optimise import ParamGroup
from skbayes_sym.numerics.random import generator_from, spawn_seeds

FULL_BATCH_ROWS = 250  # batch_size="auto" with invariances: all rows up to here ...
MINIBATCH_ROWS = 100  # ... and this many beyond; each is transformed n_augmentations times

# n_hyper_updates="auto" and burn_in="auto". An empirical Fisher matrix vanishes as labels are
# fitted, so that it has to be heard before: without burn-in, and every few steps
# (`examples/papers/reproduce_immer_claims.py fisher`).
_UPDATES, _BURN_IN, _FISHER_STEPS = 100, 0.1, 8

SUBSET_SIZE = 300  # rows of evidence="subset"

_TOTAL_TRAVEL = 3.0 * pi  # Invariances.learning_rate="auto": what one can cover in all updates
_FASTEST = (
    0.2  # ... and in one: half-widths that outrun the weights end beyond what the data support
)
_MEAN_FACTOR = 0.75  # of step sizes that are constant over one half and then fall to 0


class Rates(NamedTuple):
    """Adam's step sizes."""

    weights: float
    hyper: float  # of the logarithms of prior precisions and noise
    half_widths: float | str = "auto"


# Whether an update's sums come from the training steps themselves: "batches", where a step sees a
# part of the rows; "gradients", where more than the prior's precisions is learned.
Online = Literal["never", "always", "batches", "gradients"]


class Updates(NamedTuple):
    """When the hyperparameters move, and what is kept of it."""

    n: int | str  # "auto"
    burn_in: float | str  # share of them that is left out at the start, or "auto"
    keep_best: bool
    online: Online = "never"
    n_rows: int | None = None  # the evidence of a subset of so many; None: of all rows


@dataclass(frozen=True, eq=False)
class Laplace:
    """Laplace's approximation (MacKay 1992), learned invariances included (Immer et al. 2022).

    Parameters
    ----------
    curvature : str
        One of `curvature.CURVATURES`.
    n_last : int or None
        How many of the last layers the posterior covers; None: all.
    learn_prior : bool
        Whether the scales of the prior may move, if ``objective`` moves them.
    objective : Objective
    invariances : Families or None
        None: no transformations, and none are reported.
    rates : Rates
    updates : Updates
    max_iter : int
    batch_size : int or "auto"
    tol : float or None
        Nats per unit of sample weight; None never stops.
    """

    needs: ClassVar[Needs] = Needs(CURVED_LIKELIHOOD, RECORDED, NORMAL_PRIOR)

    curvature: str
    n_last: int | None
    learn_prior: bool
    objective: Objective
    invariances: Families | None
    rates: Rates
    updates: Updates
    max_iter: int
    batch_size: int | str
    tol: float | None

    def fit(self, data: Training, model: Model, run: Run) -> LaplaceFit:
        problem = self._problem(data, model)
        problem.require_memory(self.curvature, self.updates.n_rows)
        with torch.no_grad():
            evaluation = Evaluation.of_training(problem.evidence, problem.seeds.evaluation)
            training = self._training(problem)
            run.begin(
                training.pace.n_blocks,
                lambda: problem.found(evaluation.at(training.point()), training),
            )
            result = training.train(self._groups(problem), run.end_block)
            best = training.best[1] if self.updates.keep_best and training.best else None
            evaluated = evaluation.better(training.point(), best)
            value, curve = evaluated.terms.value, np.array(training.evidence_curve)
            how = Convergence(value, curve, result.n_iter, result.stopped)
            found = problem.found(evaluated, training, how)
            run.end(found)
            if is_empirical(self.curvature):
                warn_if_fisher_vanished(problem, evaluated)
        logger.info(
            "log evidence %.6g, stopped by %s after %d steps",
            value + data.log_jacobian, result.stopped, result.n_iter,
        )  # fmt: skip
        if not warn_if_collapsed(problem, evaluated, found) and result.stopped == "max_iter":
            if training.ascent is None or len(curve) < FEWEST_UPDATES:
                warn_unless_converged(result, self.tol, data.total_weight, "the log posterior")
            warn_unless_evidence_converged(curve, self.tol, data.total_weight)
        return found

    def _problem(self, data: Training, model: Model) -> Problem:
        network, given = recording(model.network), self.invariances
        transforms = given is not None and self.objective.transforms
        augmentation = given.bind(data) if given and transforms else Identity()
        n_half_widths = augmentation.half_width.n_params
        n_samples = given.n_samples if given and n_half_widths else 1
        averaged = AveragedNetwork(network, augmentation, model.likelihood, n_samples, self.n_last)
        prior = model.prior.gaussian()
        if prior is None:
            raise ValueError("the Laplace approximation needs a normal prior.")
        return Problem(
            data, averaged, curvature_of(self.curvature, averaged, n_half_widths > 0),
            self._rows_per_step(data.n_rows), layer_precisions(network, prior.precision),
            given is not None, Seeds(*spawn_seeds(data.seed, len(Seeds._fields))),
        )  # fmt: skip

    def _rows_per_step(self, n_rows: int) -> int:
        if self.invariances is None:
            return rows_per_step(self.batch_size, n_rows, automatic_batch(n_rows))
        return rows_per_step(
            self.batch_size, n_rows, n_rows if n_rows <= FULL_BATCH_ROWS else MINIBATCH_ROWS
        )

    @property
    def _n_updates(self) -> int:
        """How often the hyperparameters move."""
        if not isinstance(self.updates.n, str):
            return self.updates.n
        least = self.max_iter // _FISHER_STEPS if is_empirical(self.curvature) else 0
        return max(_UPDATES, least)

    @property
    def _burn_in(self) -> float:
        """Share of the updates that is left out at the start."""
        if not isinstance(self.updates.burn_in, str):
            return self.updates.burn_in
        return 0.0 if is_empirical(self.curvature) else _BURN_IN

    def _is_online(self, problem: Problem) -> bool:
        """Whether the sums of an update may come from the training steps themselves."""
        if self.updates.online == "batches":
            return problem.batch_size < problem.data.n_rows
        return self.updates.online != "never"

    def _pace(self, total_weight: float, *, until_sure: bool = False) -> Pace:
        block = max(1, self.max_iter // self._n_updates)
        n_blocks = -(-self.max_iter // block)
        tol = None if self.tol is None else self.tol * total_weight
        return Pace(self.max_iter, block, int(self._burn_in * n_blocks), tol, until_sure)

    def _training(self, problem: Problem) -> Alternation:
        # Online, the curve is that of weights that still move: its noise isn't to end a fit.
        until_sure = self.updates.online != "gradients" and self._is_online(problem)
        data, pace = problem.data, self._pace(problem.data.total_weight, until_sure=until_sure)
        x, network = data.data.x, problem.model.network
        theta = network.init(1, generator=generator_from(problem.seeds.start))[0]
        hyper = problem.start()
        generator = generator_from(problem.seeds.training, data.device)
        batches = Batches(data.data, problem.batch_size, generator)
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
        """What moves the hyperparameters; None where nothing is learned by the evidence."""
        learns_prior = self.learn_prior and self.objective.learns_prior
        rates = HyperRates(
            self._half_width_rate(problem.model) if self.objective.reward is None else 0.0,
            self.rates.hyper if problem.model.likelihood.n_params else 0.0,
            self.rates.hyper if learns_prior else 0.0,
        )
        if not any(rates):
            return None
        evidence, online = problem.evidence, None
        learns_more = rates.half_width > 0 or rates.likelihood > 0
        if self._is_online(problem) and (learns_more or self.updates.online != "gradients"):
            online = OnlineEvidence(evidence, needs_gradient=learns_more)
            epoch = -(-problem.data.n_rows // problem.batch_size)
            layers = problem.model.network.weight_layers
            n_recorded = recorded_steps(pace.block, epoch, layers)

            def is_watched(step: int) -> bool:
                to_update = pace.end_of_block(step) - step
                return step >= pace.burn_in * pace.block and to_update <= n_recorded

            density.watch_with(online, is_watched)
        looked_at = evidence if self.updates.n_rows is None else problem.subset(self.updates.n_rows)
        return HyperAscent(looked_at, hyper, rates, problem.seeds.hyper, online)

    def _groups(self, problem: Problem) -> list[ParamGroup]:
        """Weights, and eta where it is trained with them."""
        n = problem.model.network.layout.n_params
        return [
            ParamGroup(slice(0, n), self.rates.weights),
            ParamGroup(slice(n, None), self._half_width_rate(problem.model)),
        ]

    def _half_width_rate(self, model: AveragedNetwork) -> float:
        if not model.n_half_widths:
            return 0.0
        if not isinstance(self.rates.half_widths, str):
            return float(self.rates.half_widths)
        if self.objective.reward is not None:
            return float(self.rates.weights)
        n_updates = max(1.0, (1.0 - self._burn_in) * self._n_updates)
        return min(_FASTEST, _TOTAL_TRAVEL / (_MEAN_FACTOR * n_updates))
