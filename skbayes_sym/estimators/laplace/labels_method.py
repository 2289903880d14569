"""Laplace approximations of several modes of a classification network, refined, as a method."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.convergence import warn_of_moving_mode
from skbayes_sym.estimators._fit.memory import rows_part
from skbayes_sym.estimators._fit.model import fully_connected, scales_by_group
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.effort import MOST_CLASS_MODES, work
from skbayes_sym.estimators.laplace.modes import learned_scales
from skbayes_sym.inference.laplace.labels_predictive import choose_variance_scale
from skbayes_sym.inference.laplace.mode_mixture import ModeMixture
from skbayes_sym.inference.laplace.search.labels import LabelsEvidence
from skbayes_sym.inference.laplace.search.labels_beginnings import search_labels
from skbayes_sym.inference.laplace.search.modes import (
    ClassModes,
    ClassModeSearch,
    starting_points,
)
from skbayes_sym.inference.laplace.search.refine import RefinedModes, refine
from skbayes_sym.models.learned_scales import LayerScales, ScalesByGroup
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import UnboundPrior
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds

_DOUBLE = 8  # bytes
# The default priors: on separated classes the evidence is higher under the first by tens of nats,
# where labels are noisy under the second.
STEEP, FLAT = LayerScales(8.0, 64.0), LayerScales(8.0, 4.0)
# Multiplications for all modes, and for one where no more are found: some 25 seconds of one core.
_MOST_WORK = 4e11
TRIES = 2.5  # times the work, where labels are noisy
# Of the searches' reasons to stop the fit's, the first that one of them had.
_GRAVEST: tuple[Stopped, ...] = ("interrupted", "callback", "max_iter", "tol")


def most_steps(n_params: int) -> int:
    """What ``max_iter="auto"`` is: beyond 1,000 weights fewer do, and each costs much more."""
    return 60 if n_params <= 1000 else 30


def affordable(most: int, n_rows: int, network: MLP) -> tuple[int, bool]:
    """How many modes some seconds of one core are enough for, and whether for tries too.

    Of more rows than weights tries come first: a mode found in the better of two ways predicts
    noisy labels better than four found in one (3,000 rows x 20 columns: by .001 to .027 nats).
    """
    n_params = network.layout.n_params
    each = work(1, most_steps(n_params), n_rows, n_params, network.n_outputs)
    n_modes, n_tried = (min(most, int(_MOST_WORK / (w * each))) for w in (1.0, TRIES))
    if n_tried and n_rows >= n_params:
        return n_tried, True
    return n_modes, n_tried == n_modes


def automatic_restarts(n_rows: int, network: MLP) -> int:
    """What ``n_restarts="auto"`` is: of more rows than weights what tries have time for, or one."""
    n_modes, tries = affordable(MOST_CLASS_MODES, n_rows, network)
    has_time = tries or n_rows < network.layout.n_params
    return max(1, n_modes) if has_time else 1


@dataclass(frozen=True, eq=False)
class LabelsFit:
    """What the searches have found.

    Parameters
    ----------
    modes : ClassModes
        With the scales of their priors, and the evidence.
    refined : RefinedModes or ClassModes
        The posterior; the modes themselves if refining them was interrupted.
    prior : ScalesByGroup
    variance_scale : float
        Of the logits' variance in predictions.
    stop_reason : str
    predict_seed : int
    left_out : Tensor of shape (N,), optional
        Log probability of every row left out, nats; where they chose the variance scale.
    """

    modes: ClassModes
    refined: RefinedModes | ClassModes
    prior: ScalesByGroup
    variance_scale: float
    stop_reason: Stopped
    predict_seed: int
    left_out: torch.Tensor | None = None

    @property
    def n_iter(self) -> int:
        return int(self.modes.n_iter.max())

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        evidence = self.modes.log_evidence.cpu().numpy()
        best = int(evidence.argmax())
        theta, factor = (
            t.cpu().contiguous().numpy() for t in (self.refined.theta, self.refined.factor)
        )
        return {
            "posterior_": ModeMixture(theta, factor),
            "variance_scale_": self.variance_scale,
            "log_evidence_modes_": evidence,
            "log_evidence_": float(evidence[best]),
            "log_evidence_curve_": self.modes.curves[best].numpy(),
            "_predict_seed_": self.predict_seed,
            **learned_scales(self.prior, self.modes.hyper.cpu()),
        }


class _Kept:
    """The best mode so far, whichever search it comes from: what an interrupt between two leaves.

    Parameters
    ----------
    run : Run
    as_found : callable (problem, modes) -> LabelsFit
    """

    def __init__(
        self, run: Run, as_found: Callable[[LabelsEvidence, ClassModes], LabelsFit]
    ) -> None:
        self._run, self._as_found = run, as_found
        self._best: tuple[LabelsEvidence, ClassModes] | None = None

    def on_the_way(self, problem: LabelsEvidence, so_far: Callable[[], ClassModes]) -> None:
        """A search has made its first step."""
        self._run.keep(lambda: self._as_found(*self._better(problem, so_far())))

    def found(self, problem: LabelsEvidence, modes: ClassModes) -> None:
        """A search has ended."""
        self._best = best = self._better(problem, modes)
        self._run.keep(lambda: self._as_found(*best))

    def _better(
        self, problem: LabelsEvidence, modes: ClassModes
    ) -> tuple[LabelsEvidence, ClassModes]:
        best = self._best
        if best is None or modes.log_evidence.max() > best[1].log_evidence.max():
            return problem, modes
        return best


@dataclass(frozen=True, eq=False)
class EvidenceLaplaceLabels:
    """Modes from several starts, their scales set by the evidence, then Gaussian variational steps.

    Parameters
    ----------
    n_restarts : int or "auto"
        "auto" is what some seconds of one core are enough for, at most `MOST_CLASS_MODES`.
    max_iter : int or "auto"
        Largest number of Gauss-Newton steps of a restart; "auto" is `most_steps`.
    tol : "auto", float or None
        Nats per unit of sample weight; "auto" is a tenth of a nat, None never stops.
    variance_scale : "loo" or float
        Of the logits' variance in predictions; "loo" chooses it by approximate leave-one-out.
    says_unconverged : bool, default=False
        Whether a best mode that still moved at the end is warned of.
    alternative : unbound prior, optional
        Tried from the first start where labels are noisy; all modes are then of the prior with the
        higher evidence.
    tries : bool, default=True
        Whether noisy labels are looked for, and every start then searched from in two ways.
    """

    needs: ClassVar[Needs] = Needs(SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_restarts: int | str
    max_iter: int | str
    tol: float | str | None
    variance_scale: str | float
    says_unconverged: bool = False
    alternative: UnboundPrior | None = None
    tries: bool = True

    def fit(self, data: Training, model: Model, run: Run) -> LabelsFit:
        network = fully_connected(model.network)
        n_restarts = self.n_restarts
        if isinstance(n_restarts, str):
            n_restarts = automatic_restarts(data.n_rows, network)
        self._require_memory(data, network, n_restarts)
        prior = scales_by_group(model.prior)
        problem = LabelsEvidence(network, data.double_data, prior)
        start_seed, predict_seed = spawn_seeds(data.seed, 2)
        starts = starting_points(network, n_restarts, generator=generator_from(start_seed))
        run.begin()
        with torch.no_grad():
            fixed = 1.0 if isinstance(self.variance_scale, str) else self.variance_scale

            def as_found(problem: LabelsEvidence, modes: ClassModes) -> LabelsFit:
                stopped = next(reason for reason in _GRAVEST if reason in modes.stopped)
                return LabelsFit(modes, modes, problem.prior, fixed, stopped, predict_seed)

            kept = _Kept(run, as_found)
            problem, modes = self._search(problem, starts.to(data.device), run, kept)
            prior, stopped = problem.prior, as_found(problem, modes).stop_reason
            run.keep(lambda: as_found(problem, modes))
            refined = refine(problem, modes)
            scale, left_out = self._scale(problem, refined)
            found = LabelsFit(modes, refined, prior, scale, stopped, predict_seed, left_out)
        run.end(found)
        values = modes.log_evidence
        logger.info(
            "log evidence of %d modes from %.6g to %.6g, stopped by %s after %d steps; "
            "variance scale %g",
            len(values), values.min(), values.max(), stopped, found.n_iter, scale,
        )  # fmt: skip
        if self.says_unconverged:
            best = int(values.argmax())
            own = modes.stopped[best]
            warn_of_moving_mode(modes.curves[best].tolist(), own, self.tol, data.total_weight)
        return found

    def _search(
        self, problem: LabelsEvidence, starts: torch.Tensor, run: Run, kept: "_Kept"
    ) -> tuple[LabelsEvidence, ClassModes]:
        """The problem under the prior that was taken, and its modes."""
        max_iter = self.max_iter
        if isinstance(max_iter, str):
            max_iter = most_steps(problem.network.layout.n_params)
        tries = self.tries and problem.network.n_layers > 1 and problem.prior.is_learned
        share = 1.0 / (2 * len(starts) + 2 if tries else len(starts))
        how = ClassModeSearch(max_iter, self._tol(problem), learn_scales=problem.prior.is_learned)

        def search(problem: LabelsEvidence, start: torch.Tensor, doubted: bool) -> ClassModes:
            one = replace(how, doubts_labels=doubted)
            keep = partial(kept.on_the_way, problem)
            found = one.search(problem, start.unsqueeze(0), run.phase(share, max_iter), keep)
            kept.found(problem, found)
            return found

        alternative = None
        if tries and self.alternative is not None:
            alternative = scales_by_group(self.alternative.bind(problem.network.layout))
        return search_labels(search, problem, starts, alternative, tries=tries)

    def _tol(self, problem: LabelsEvidence) -> float | None:
        if isinstance(self.tol, str):
            return ClassModeSearch.tol
        return None if self.tol is None else self.tol * float(problem.data.weight.sum())

    def _scale(
        self, problem: LabelsEvidence, refined: RefinedModes
    ) -> tuple[float, torch.Tensor | None]:
        """Factor on the logits' variance, and the log probabilities of left-out rows with it."""
        if not isinstance(self.variance_scale, str):
            return float(self.variance_scale), None
        found = choose_variance_scale(problem, refined)
        return found.chosen, -found.of_rows

    def _require_memory(self, data: Training, network: MLP, r: int) -> None:
        """Factors of R modes, found and refined, and covariances: 3 R P^2 numbers, float64."""
        p = network.layout.n_params
        systems = Part(
            f"Gauss-Newton systems of {r} modes of {p:,} weights", 3 * r * p**2 * _DOUBLE,
            "Lower n_restarts or hidden_layer_sizes, or use optimizer='adam'.",
        )  # fmt: skip
        require_memory([rows_part(data), systems], data.device)
