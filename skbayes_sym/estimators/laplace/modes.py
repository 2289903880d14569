"""Laplace approximations of several modes of one network, found by Gauss-Newton steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from skbayes_sym.estimators._fit.memory import rows_part
from skbayes_sym.estimators._fit.model import (
    fully_connected,
    scale_attributes_of_several,
    scales_by_group,
)
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import Run
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.laplace.mode_mixture import ModeMixture
from skbayes_sym.inference.laplace.search.beginnings import (
    begins_both_ways,
    search_modes,
    search_one_of_each,
)
from skbayes_sym.inference.laplace.search.held_out import (
    MODES_A_FOLD,
    HeldOut,
    cross_validated,
    folds,
)
from skbayes_sym.inference.laplace.search.modes import starting_points
from skbayes_sym.inference.laplace.search.numbers import (
    EvidenceModes,
    Modes,
    NumbersEvidence,
    OnModes,
    Search,
)
from skbayes_sym.models.learned_scales import ScalesByGroup
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds

_DOUBLE = 8  # bytes
# Enough to compare widths, at half the cost: steps, and nats per unit of weight.
_ROUGH_STEPS, _ROUGH_TOL = 60, 1e-3


@dataclass(frozen=True, eq=False)
class ModesFit:
    """What the search has found (so far)."""

    modes: Modes
    network: MLP
    prior: ScalesByGroup
    predict_seed: int
    search: Search | None = None  # once it has ended
    width_scores: Mapping[int, float] | None = None  # nats per row held out, by number of units

    @property
    def n_iter(self) -> int:
        return int(self.modes.n_iter.max())

    @property
    def stop_reason(self) -> Stopped:
        return "max_iter" if self.search is None else self.search.stopped

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        modes, unit, offset = self.modes, data.y_scaling.scale, data.log_jacobian
        scaled = modes.noise_precision.rsqrt().numpy()
        noise, overall = scaled * unit, np.sqrt((scaled**2).mean(axis=0)) * unit
        attributes: dict[str, Any] = {
            "network_": self.network,
            "posterior_": ModeMixture(modes.theta.numpy(), modes.factor.contiguous().numpy()),
            "noise_std_modes_": noise,
            "noise_std_": float(overall[0]) if len(overall) == 1 else overall,
            "log_evidence_modes_": modes.log_evidence.numpy() + offset,
            "_predict_seed_": self.predict_seed,
            **learned_scales(self.prior, modes.hyper),
        }
        if self.width_scores is not None:
            attributes["widths_"] = np.array(list(self.width_scores))
            attributes["width_scores_"] = np.array(list(self.width_scores.values()))
        if self.search is not None:
            best = int(modes.log_evidence.argmax())
            curve = self.search.curve(best).numpy() + offset
            attributes["log_evidence_"] = float(attributes["log_evidence_modes_"][best])
            attributes["log_evidence_curve_"] = curve[np.isfinite(curve)]
        return attributes


@dataclass(frozen=True, eq=False)
class ModeTask:
    """The modes of one model: what is searched, from where, and who is told."""

    problem: NumbersEvidence
    how: EvidenceModes
    n_restarts: int
    noise: torch.Tensor | None  # precisions that are given
    seeds: tuple[int, int, int]  # of starts, of predictions and of folds
    data: Training
    run: Run

    @classmethod
    def of(
        cls, model: Model, how: EvidenceModes, n_restarts: int, data: Training, run: Run
    ) -> Self:
        network, prior = fully_connected(model.network), scales_by_group(model.prior)
        noise = None if how.learn_noise else model.likelihood.noise_scale.double() ** -2
        problem = NumbersEvidence(network, data.double_data, prior)
        start, predict, parts = spawn_seeds(data.seed, 3)
        task = cls(problem, how, n_restarts, noise, (start, predict, parts), data, run)
        task._require_memory()
        return task

    @property
    def begins_both_ways(self) -> bool:
        return begins_both_ways(self.how, self.problem)

    def pilot(self, so_far: list[Any]) -> ModesFit:
        """Two modes, by which the noise is judged."""
        on_step, how = self._told(so_far), replace(self.how, max_more=0)
        return self._found(search_one_of_each(how, self.problem, self._draw(2), on_step))

    def search(self, so_far: list[Any]) -> ModesFit:
        """All modes."""
        return self._found(
            search_modes(
                self.how, self.problem, self._draw, self.n_restarts, self.noise,
                self._told(so_far),
            )
        )  # fmt: skip

    def validate(self, n_folds: int, so_far: list[Any]) -> tuple[ModesFit, HeldOut | None]:
        """Modes that leave out a fold each, and what they say of it (None if they were stopped)."""
        generator = generator_from(self.seeds[2])
        fold = folds(self.data.n_rows, n_folds, generator=generator).to(self.data.device)
        start = self._draw(MODES_A_FOLD * n_folds)
        tol = None if self.how.tol is None else max(self.how.tol, _ROUGH_TOL)
        max_iter = min(self.how.max_iter, _ROUGH_STEPS)
        how = replace(self.how, max_iter=max_iter, max_more=0, tol=tol)
        search, rows = cross_validated(how, self.problem, start, fold, self._told(so_far))
        return self._found(search), rows

    def _found(self, search: Search) -> ModesFit:
        return self._modes(search.modes, search)

    def _modes(self, modes: Modes, search: Search | None = None) -> ModesFit:
        problem = self.problem
        return ModesFit(_on_host(modes), problem.network, problem.prior, self.seeds[1], search)

    def _draw(self, n: int) -> torch.Tensor:
        generator = generator_from(self.seeds[0])
        drawn = starting_points(self.problem.network, n, generator=generator)
        return drawn.to(self.data.device)

    def _told(self, so_far: list[Any]) -> OnModes:
        """Ends a block after every step, and keeps what has been found by then."""

        def on_step(_: int, modes: Callable[[], Modes]) -> bool:
            so_far[:] = [lambda: self._modes(modes())]
            return self.run.end_block()

        return on_step

    def _require_memory(self) -> None:
        """Systems of R modes, their factors and inverses: 5 R (T + 1) P^2 numbers, float64."""
        r, network = self.n_restarts, self.problem.network
        p = network.layout.n_params
        systems = Part(
            f"Gauss-Newton systems of {r} modes of {p:,} weights",
            5 * r * (network.n_outputs + 1) * p**2 * _DOUBLE,
            "Lower n_restarts or hidden_layer_sizes, or use optimizer='adam'.",
        )
        require_memory([rows_part(self.data), systems], self.data.device)


def _on_host(modes: Modes) -> Modes:
    return Modes(*(t.cpu() for t in modes))


def learned_scales(prior: ScalesByGroup, hyper: torch.Tensor) -> dict[str, Array]:
    """Standard deviations of the weights of R modes: of groups, and of input columns."""
    if not prior.is_learned:
        return {"prior_scale_": prior.scale.numpy()}
    return scale_attributes_of_several(prior, hyper, "prior_scale_modes_")
