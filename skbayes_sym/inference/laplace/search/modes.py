r"""Modes of a classification network with the prior's scales set by the evidence.

The sibling of `skbayes_sym.inference.laplace.search.numbers`: after every step, or every few where
weights are many, the precisions of the prior's groups follow

.. math:: \gamma_g = n_g - \alpha_g \operatorname{tr}_g A^{-1}, \quad
          \alpha_g \leftarrow \frac{\gamma_g + 2a}{|\theta_g|^2 + 2 a s_g^2},

damped geometrically (MacKay 1992, "The evidence framework applied to classification networks").
On separable classes the scales run away under a weak hyperprior, the evidence falling while they
do: take `LayerScales(shape=8.0, output_variance=64.0)`. For the same reason the iterate of the
highest evidence is kept here and not the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.gauss_newton import INITIAL_DAMPING, Expansion, step
from skbayes_sym.inference.laplace.search.labels import LabelsEvidence
from skbayes_sym.inference.laplace.search.systems import System
from skbayes_sym.models.learned_scales import LayerScales
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.optimise import Loop, OnStep, Stopped

_HYPER_START = 8  # iterations before scales move: the weights first
_DOUBT = 0.03  # weight of the rows in these iterations where labels are doubted
_BEST_START = 16  # before the best is kept: the evidence away from a mode says too much
_PATIENCE_START, _PATIENCE = 24, 8  # updates without a new best that end the search
_DAMPING = 0.7  # share of the logarithmic step of a precision
_SETTLED, _LEAST_UPDATES = 2, 5
_MANY_PARAMS, _SELDOM = 1000, 3  # beyond, an update costs as much as a step: one in three


class ClassModes(NamedTuple):
    """R modes with the scales of their priors."""

    theta: Tensor  # (R, P)
    hyper: Tensor  # (R, G), log precisions of the prior's groups
    factor: Tensor  # (R, P, P), Cholesky factor of the posterior's precision A
    log_evidence: Tensor  # (R,), Laplace's estimate, nats, of one mode
    n_iter: Tensor  # int64 (R,)
    curves: list[Tensor]  # of every mode, the log evidence after every update
    stopped: list[Stopped]  # why every search ended

    @property
    def covariance(self) -> Tensor:
        """Of the weights, (R, P, P); O(R P^3)."""
        return torch.cholesky_inverse(self.factor)

    @property
    def root(self) -> None:
        """None: the curvature is that at the mode, averaged over nothing."""
        return None


def starting_points(network: MLP, n: int, *, generator: torch.Generator) -> Tensor:
    """``n`` starts (n, P): every layer's outputs of order one, the logits without bias."""
    theta = LayerScales().bind(network.layout).sample(n, generator=generator)
    theta[:, network.layout.slices[f"b{network.n_layers}"]] = 0.0
    return theta


@dataclass(eq=False)
class _Search:
    """Where one search is, and the best place it has been."""

    theta: Tensor  # (P,)
    log_precision: Tensor  # (G,)
    expansion: Expansion
    damping: Tensor  # (1,)
    curve: list[float] = field(default_factory=list)
    best: tuple[float, Tensor, Tensor] | None = None
    n_iter: int = 0

    def stopped(self, tol: float | None) -> bool:
        """Whether the last updates changed little, or brought no new best."""
        if tol is None or len(self.curve) < _LEAST_UPDATES:
            return False
        last = self.curve[-_SETTLED - 2 :]
        settled = all(abs(last[i + _SETTLED] - last[i]) < tol for i in range(2))
        since = len(self.curve) - 1 - max(range(len(self.curve)), key=self.curve.__getitem__)
        exhausted = self.best is not None and self.n_iter > _PATIENCE_START and since >= _PATIENCE
        return settled or exhausted


@dataclass(frozen=True)
class ClassModeSearch:
    """How modes are searched for.

    Parameters
    ----------
    max_iter : int
        Largest number of Gauss-Newton steps.
    tol : float or None
        A search ends when its log evidence moves by less than this many nats over two updates,
        twice in a row, or after eight updates without a new best. None never stops.
    update_every : int, optional
        Steps from one update of the scales to the next; by default 1, and 3 beyond 1,000 weights.
    learn_scales : bool
        Whether scales move. If they don't the last iterate is kept: it is the nearest to a mode.
    doubts_labels : bool
        Whether labels hardly count in the first steps, before scales move: weights that follow
        noise in them don't give it up later.
    """

    max_iter: int = 60
    tol: float | None = 0.1
    update_every: int | None = None
    learn_scales: bool = True
    doubts_labels: bool = False

    def search(
        self,
        problem: LabelsEvidence,
        theta: Tensor,
        on_step: OnStep | None = None,
        keep: Callable[[Callable[[], ClassModes]], None] | None = None,
    ) -> ClassModes:
        """Modes from starting points ``theta`` (R, P), one after the other.

        Together they would take as long: the sums over rows, O(N P^2), fill a processor alone.
        ``on_step`` is told the steps of all searches so far; True ends the search where it is, and
        the starts that haven't had their turn are left out. ``keep`` is given, after the first step
        of every search, a function that says what has been found whenever it is called.
        """
        found: list[ClassModes] = []
        n_steps, ended = 0, False
        at_first = self._at_first(problem)
        for start in theta:
            state = _Search(
                start, problem.prior.hyper.to(theta), at_first.expansion(start),
                theta.new_full((1,), INITIAL_DAMPING),
            )  # fmt: skip
            loop = Loop()
            with loop:
                for i in loop.steps(range(self.max_iter)):
                    if self.doubts_labels and i == _HYPER_START:
                        state.expansion = problem.expansion(state.theta)
                        state.damping = theta.new_full((1,), INITIAL_DAMPING)
                    updated = self._iterate(at_first if i < _HYPER_START else problem, state)
                    n_steps += 1
                    if i == 0 and keep is not None:
                        keep(partial(_so_far, problem, tuple(found), state))
                    loop.stop_if("tol", updated and state.stopped(self.tol))
                    loss = -state.curve[-1] if state.curve else float(state.expansion.value)
                    ended = on_step is not None and on_step(n_steps, {"loss": loss})
                    loop.stop_if("callback", ended)
            found.append(_end(problem, state, loop.stopped))
            if ended or loop.stopped == "interrupted":
                break
        return stacked(found)

    def _at_first(self, problem: LabelsEvidence) -> LabelsEvidence:
        """What is searched before scales move."""
        if not self.doubts_labels:
            return problem
        weight = _DOUBT * problem.data.weight
        return replace(problem, data=problem.data._replace(weight=weight))

    def _iterate(self, problem: LabelsEvidence, state: _Search) -> bool:
        """One step, and whether the scales were updated after it."""
        precision = state.log_precision.exp()[problem.prior.group].unsqueeze(0)
        made = step(
            lambda theta, _: torch.stack([problem.misfit(t) for t in theta]),
            state.theta.unsqueeze(0), state.expansion, precision, state.damping, is_wary=True,
        )  # fmt: skip
        state.theta, state.damping = made.theta[0], made.damping
        if bool(made.moved):
            state.expansion = problem.expansion(state.theta)
        since, state.n_iter = state.n_iter - _HYPER_START, state.n_iter + 1
        every = self.update_every or (_SELDOM if len(state.theta) > _MANY_PARAMS else 1)
        if since < 0 or since % every:
            return False
        system = _record(problem, state)
        if self.learn_scales:
            _update(problem, state, system)
        return True


def _record(problem: LabelsEvidence, state: _Search) -> System:
    """The evidence where the search is; returns the posterior's precision there."""
    here, expansion = state.log_precision, state.expansion
    system = problem.system(expansion.curvature, here)
    value = problem.log_evidence(state.theta, expansion.value[0], here, system)
    state.curve.append(float(value))
    return system


def _update(problem: LabelsEvidence, state: _Search, system: System) -> None:
    """Keeps the best place so far and makes MacKay's step of the scales."""
    here, value = state.log_precision, state.curve[-1]
    if state.n_iter > _BEST_START and (state.best is None or value > state.best[0]):
        state.best = value, state.theta, here
    variance = system.variance[0]
    state.log_precision = problem.prior.evidence_step(state.theta, variance, here, _DAMPING)


def _so_far(problem: LabelsEvidence, found: Sequence[ClassModes], state: _Search) -> ClassModes:
    """The modes that were found before, and the one that a search is on the way to."""
    return stacked([*found, _end(problem, state, "interrupted")])


def _end(problem: LabelsEvidence, state: _Search, stopped: Stopped) -> ClassModes:
    """Evidence and curvature at the best place, of a batch of one."""
    theta, hyper = state.theta, state.log_precision
    if state.best is not None:
        _, theta, hyper = state.best
    expansion = problem.expansion(theta)  # the last one may be of another place or of doubt
    system = problem.system(expansion.curvature, hyper)
    value = problem.log_evidence(theta, expansion.value[0], hyper, system)
    curve = torch.tensor(state.curve, dtype=torch.float64)
    return ClassModes(
        theta.unsqueeze(0), hyper.unsqueeze(0), system.cholesky(), value.unsqueeze(0),
        torch.tensor([state.n_iter]), [curve], [stopped],
    )  # fmt: skip


def stacked(modes: Sequence[ClassModes]) -> ClassModes:
    """All modes in one."""
    theta, hyper, factor, log_evidence, n_iter, curves, stopped = zip(*modes, strict=True)
    return ClassModes(
        torch.cat(theta), torch.cat(hyper), torch.cat(factor), torch.cat(log_evidence),
        torch.cat(n_iter), [curve for part in curves for curve in part],
        [reason for part in stopped for reason in part],
    )  # fmt: skip
