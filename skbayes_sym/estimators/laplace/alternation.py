"""The loop: weights towards their mode, hyperparameters up the Laplace evidence, by turns."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.run import logger
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork, EvidenceParts
from skbayes_sym.inference.laplace.online_training import HyperAscent
from skbayes_sym.inference.map import MapObjective
from skbayes_sym.numerics.optimise import (
    OptimiseResult,
    ParamGroup,
    gain,
    half_constant_half_linear,
    minimise,
)

_FEWEST = 5  # values whose spread says how much of a gain is noise


class Pace(NamedTuple):
    """Steps, updates of the hyperparameters among them, and when to stop."""

    max_iter: int
    block: int  # steps between two updates
    burn_in: int  # updates left out at the start
    tol: float | None  # nats; None: never stops
    until_sure: bool = False  # whether a gain must be below it by more than the curve's noise

    @property
    def n_blocks(self) -> int:
        """Blocks of steps, each with an update at its end once ``burn_in`` are over."""
        return -(-self.max_iter // self.block)

    def end_of_block(self, step: int) -> int:
        """Steps made by the update after ``step``, counted from 0; the last block may be short."""
        return min((step // self.block + 1) * self.block, self.max_iter)

    @property
    def window(self) -> int:
        """A tenth of the updates."""
        return max(1, (self.n_blocks - self.burn_in) // 10)


class Point(NamedTuple):
    """Weights and hyperparameters at one time."""

    theta: Tensor
    hyper: Tensor


class Alternation:
    """Training, and its records.

    ``objective``: of one position: the weights, and eta where it is trained with them. ``hyper``:
    hyperparameters, changed in place. ``ascent``: moves them; without it they stay, and the loss
    says when training has converged. ``evidence_curve``: log evidence at every update, scaled
    targets, nats; ``eta_curve``: eta after every block of steps; ``best``: the highest of
    ``evidence_curve``, and where it was.
    """

    def __init__(
        self,
        model: AveragedNetwork,
        objective: MapObjective,
        hyper: Tensor,
        ascent: HyperAscent | None,
        pace: Pace,
    ) -> None:
        self._model, self._objective, self._hyper = model, objective, hyper
        self.ascent, self.pace = ascent, pace
        self._has_converged = False
        self.evidence_curve: list[float] = []
        self.eta_curve: list[Tensor] = []
        self.best: tuple[float, Point] | None = None

    def point(self) -> Point:
        """Point that training has reached."""
        self._move_eta()
        return Point(self._theta.clone(), self._hyper.clone())

    def train(self, groups: Sequence[ParamGroup], end_block: Callable[[], bool]) -> OptimiseResult:
        """Make all steps and updates, unless something ends them early."""
        pace = self.pace

        def on_step(step: int, info: Mapping[str, float]) -> bool:
            self._end_block(-(-step // pace.block))
            return end_block() or self._has_converged

        result = minimise(
            self._objective,
            groups=groups,
            max_iter=pace.max_iter,
            block_size=pace.block,
            on_step=on_step,
            tol=pace.tol if self.ascent is None else None,
        )
        self._move_eta()
        by_evidence = self._has_converged and result.stopped == "callback"
        return result._replace(stopped="tol") if by_evidence else result

    def _end_block(self, n_blocks: int) -> None:
        pace = self.pace
        self._move_eta()
        if self.ascent is not None and n_blocks > pace.burn_in:
            progress = (n_blocks - pace.burn_in) / max(1, pace.n_blocks - pace.burn_in)
            self._update(self.ascent, half_constant_half_linear(progress))
        self.eta_curve.append(self._eta.clone())

    def _update(self, ascent: HyperAscent, factor: float) -> None:
        before = self.point()
        terms: EvidenceParts = ascent.update(self._theta, factor)
        if factor == 1.0:
            self._keep_half_widths_alive()
        self.evidence_curve.append(terms.value)
        logger.debug(
            "update %d: log evidence %.6g (scaled targets)", len(self.evidence_curve), terms.value
        )
        if self.best is None or terms.value > self.best[0]:
            self.best = (terms.value, before)
        # Steps of full size end around a maximum and not in it, and a plateau may be a dip.
        tol, curve = self.pace.tol, self.evidence_curve
        if tol is not None and factor < 1.0:
            gained = gain(curve, self.pace.window)
            if self.pace.until_sure:
                known = self.pace.window >= _FEWEST
                self._has_converged = known and gained.falls_short_of(tol)
            else:
                self._has_converged = gained.value < tol

    @property
    def _theta(self) -> Tensor:
        """View of the weights in the objective."""
        return self._objective.params[: self._model.network.layout.n_params]

    @property
    def _eta(self) -> Tensor:
        """View of eta among the hyperparameters."""
        return self._model.hyper.unflatten(self._hyper)["eta"]

    def _keep_half_widths_alive(self) -> None:
        """Lift half-widths to their lower limit: at 0 their gradient vanishes for good.

        Done while the steps are at their full size, when the weights aren't there yet; later the
        evidence may take them to 0.
        """
        eta = self._eta
        floor = self._model.augmentation.half_width.lower_limit().to(eta)
        sign = torch.where(eta < 0.0, -1.0, 1.0).to(eta)
        eta.copy_(torch.where(eta.abs() < floor, sign * floor, eta))

    def _move_eta(self) -> None:
        """Copy eta to the hyperparameters if it is trained with the weights."""
        trained = self._objective.params[len(self._theta) :]
        if trained.numel():
            self._eta.copy_(trained)
