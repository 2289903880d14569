"""Laplace approximations of several modes, found by Gauss-Newton and the evidence, as a method."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    Needs,
)
from skbayes_sym.estimators._fit.convergence import warn_of_moving_mode
from skbayes_sym.estimators._fit.memory import rows_part
from skbayes_sym.estimators._fit.model import fully_connected, scales_by_group
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.effort import restarts
from skbayes_sym.inference.laplace.class_modes import starting_points
from skbayes_sym.inference.laplace.evidence_modes import (
    EvidenceModes,
    Modes,
    RegressionEvidence,
    Search,
)
from skbayes_sym.inference.laplace.mode_mixture import ModeMixture
from skbayes_sym.inference.laplace.mode_search import begins_both_ways, search_modes
from skbayes_sym.models.learned_scales import ScalesByGroup
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds

_DOUBLE = 8  # bytes


@dataclass(frozen=True, eq=False)
class ModesFit:
    """What the search has found (so far)."""

    modes: Modes
    prior: ScalesByGroup
    predict_seed: int
    search: Search | None = None  # once it has ended

    @property
    def n_iter(self) -> int:
        return int(self.modes.n_iter.max())

    @property
    def stop_reason(self) -> Stopped:
        return "max_iter" if self.search is None else self.search.stopped

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        modes, unit, offset = self.modes, data.y_scaling.scale, data.log_jacobian
        noise = modes.noise_precision.rsqrt().numpy() * unit
        overall = np.sqrt((noise**2).mean(axis=0))
        attributes: dict[str, Any] = {
            "posterior_": ModeMixture(modes.theta.numpy(), modes.factor.contiguous().numpy()),
            "noise_std_modes_": noise,
            "noise_std_": float(overall[0]) if len(overall) == 1 else overall,
            "log_evidence_modes_": modes.log_evidence.numpy() + offset,
            "_predict_seed_": self.predict_seed,
            **learned_scales(self.prior, modes.hyper),
        }
        if self.search is not None:
            curve = torch.stack(self.search.curves).cpu().numpy() + offset
            best = int(modes.log_evidence.argmax())
            attributes["log_evidence_"] = float(attributes["log_evidence_modes_"][best])
            attributes["log_evidence_curve_"] = curve[np.isfinite(curve[:, best]), best]
        return attributes


@dataclass(frozen=True, eq=False)
class EvidenceLaplace:
    """Modes from several starts, each with scales and noise set by its evidence (MacKay 1992).

    Parameters
    ----------
    n_restarts : int or "auto"
        "auto" is what some seconds of one core are enough for, at most `MOST_MODES`.
    max_iter : int
        Largest number of Gauss-Newton steps.
    tol : float or None
        Nats per unit of sample weight by which a log evidence still moves when it has settled.
    says_unconverged : bool, default=False
        Whether a best mode that still moved at the end is warned of.
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_restarts: int | str
    max_iter: int
    tol: float | None
    says_unconverged: bool = False

    def fit(self, data: Training, model: Model, run: Run) -> ModesFit:
        network = fully_connected(model.network)
        n_restarts = restarts(self.n_restarts, data.n_rows, network)
        self._require_memory(data, network, n_restarts)
        prior = scales_by_group(model.prior)
        problem = RegressionEvidence(network, data.double_data, prior)
        start_seed, predict_seed = spawn_seeds(data.seed, 2)
        learns_noise = model.likelihood.n_params > 0
        how = EvidenceModes(self.max_iter, self.tol, learns_noise, prior.is_learned)
        noise = None if learns_noise else model.likelihood.noise_scale.double() ** -2
        with torch.no_grad():
            run.begin(
                (1 + begins_both_ways(how, problem)) * self.max_iter,
                lambda: ModesFit(_on_host(so_far[-1]()), prior, predict_seed),
            )
            so_far: list[Any] = []

            def draw(n: int) -> torch.Tensor:
                drawn = starting_points(network, n, generator=generator_from(start_seed))
                return drawn.to(data.device)

            def on_step(n_steps: int, modes: Any) -> bool:
                so_far[:] = [modes]
                return run.end_block()

            search = search_modes(how, problem, draw, n_restarts, noise, on_step)
            modes = _on_host(search.modes)
            found = ModesFit(modes, prior, predict_seed, search)
            run.end(found)
        values = modes.log_evidence + data.log_jacobian
        logger.info(
            "log evidence of %d modes from %.6g to %.6g, stopped by %s after %d steps",
            len(values), values.min(), values.max(), search.stopped, found.n_iter,
        )  # fmt: skip
        if self.says_unconverged:
            best = int(values.argmax())
            curve = [float(step[best]) for step in search.curves]
            warn_of_moving_mode(curve, search.stopped, self.tol, data.total_weight)
        return found

    def _require_memory(self, data: Training, network: MLP, r: int) -> None:
        """Systems of R modes, their factors and inverses: 5 R (T + 1) P^2 numbers, float64."""
        p = network.layout.n_params
        systems = Part(
            f"Gauss-Newton systems of {r} modes of {p:,} weights",
            5 * r * (network.n_outputs + 1) * p**2 * _DOUBLE,
            "Lower n_restarts or hidden_layer_sizes, or use optimizer='adam'.",
        )
        require_memory([rows_part(data), systems], data.device)


def _on_host(modes: Modes) -> Modes:
    return Modes(*(t.cpu() for t in modes))


def learned_scales(prior: ScalesByGroup, hyper: torch.Tensor) -> dict[str, Array]:
    """Standard deviations of the weights of R modes: of groups, and of input columns."""
    if not prior.is_learned:
        return {"prior_scale_": prior.scale.numpy()}
    scale = (-0.5 * hyper).exp().numpy()
    found = {
        "prior_scale_": np.exp(np.log(scale).mean(axis=0)),
        "prior_scale_modes_": scale,
        "prior_groups_": np.array(prior.names),
    }
    columns = [i for i, name in enumerate(prior.names) if "[" in name]
    if columns:
        found["relevance_"] = scale[:, columns]
    return found
