"""Laplace approximations of several modes of one network, found by Gauss-Newton steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skbayes_sym.estimators._fit.convergence import warn_of_moving_mode
from skbayes_sym.estimators._fit.memory import rows_part
from skbayes_sym.estimators._fit.model import scale_attributes_of_several
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.laplace.mode_mixture import ModeMixture
from skbayes_sym.inference.laplace.search.modes import Modes, Search, mapped, starting_points
from skbayes_sym.inference.laplace.search.problem import EvidenceProblem
from skbayes_sym.inference.laplace.search.refine import RefinedModes
from skbayes_sym.models.learned_scales import ScalesByGroup
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from

_DOUBLE = 8  # bytes


@dataclass(frozen=True, eq=False)
class ModesFit:
    """What a search has found (so far).

    Parameters
    ----------
    search : Search
    network : MLP
    prior : ScalesByGroup
    predict_seed : int
    """

    search: Search
    network: MLP
    prior: ScalesByGroup
    predict_seed: int

    @property
    def modes(self) -> Modes:
        """The modes on the host."""
        return mapped(lambda t: t.cpu(), self.search.modes)

    @property
    def n_iter(self) -> int:
        return int(self.search.modes.n_iter.max())

    @property
    def stop_reason(self) -> Stopped:
        return self.search.stop_reason

    @property
    def _posterior(self) -> "Modes | RefinedModes":
        """Normal laws around the modes."""
        return self.modes

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        modes, laws = self.modes, self._posterior
        evidence = modes.log_evidence.numpy() + data.log_jacobian
        best = int(evidence.argmax())
        theta, factor = (t.cpu().contiguous().numpy() for t in (laws.theta, laws.factor))
        return {
            "network_": self.network,
            "posterior_": ModeMixture(theta, factor),
            "log_evidence_modes_": evidence,
            "log_evidence_": float(evidence[best]),
            "log_evidence_curve_": self.search.curves[best].numpy() + data.log_jacobian,
            "_predict_seed_": self.predict_seed,
            **learned_scales(self.prior, modes.hyper),
        }

    def report(self, data: Training, tol: object, *, warns: bool) -> None:
        """Log what was found, and warn of a best mode that still moved at the end."""
        values = self.search.modes.log_evidence + data.log_jacobian
        logger.info(
            "log evidence of %d modes from %.6g to %.6g, stopped by %s after %d steps",
            len(values), values.min(), values.max(), self.stop_reason, self.n_iter,
        )  # fmt: skip
        if warns:
            best = int(values.argmax())
            curve, stopped = self.search.curves[best].tolist(), self.search.stopped[best]
            warn_of_moving_mode(curve, stopped, tol, data.total_weight)


@dataclass(frozen=True, eq=False)
class NumbersFit(ModesFit):
    """Modes of regression, each with its noise.

    Parameters
    ----------
    width_scores : mapping, optional
        Nats per row held out, by number of units.
    """

    width_scores: Mapping[int, float] | None = None

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        unit = data.y_scaling.scale
        scaled = self.modes.noise_precision.rsqrt().numpy()
        overall = np.sqrt((scaled**2).mean(axis=0)) * unit
        attributes = super().attributes(data, model)
        attributes["noise_std_modes_"] = scaled * unit
        attributes["noise_std_"] = float(overall[0]) if len(overall) == 1 else overall
        if self.width_scores is not None:
            attributes["widths_"] = np.array(list(self.width_scores))
            attributes["width_scores_"] = np.array(list(self.width_scores.values()))
        return attributes


@dataclass(frozen=True, eq=False)
class LabelsFit(ModesFit):
    """Modes of classification, refined.

    Parameters
    ----------
    refined : RefinedModes or Modes
        The posterior; the modes themselves if refining them was interrupted.
    variance_scale : float
        Of the logits' variance in predictions.
    left_out : Tensor of shape (N,), optional
        Log probability of every row left out, nats; where they chose the variance scale.
    """

    refined: RefinedModes | Modes
    variance_scale: float
    left_out: torch.Tensor | None = None

    @property
    def _posterior(self) -> RefinedModes | Modes:
        return self.refined

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        return {**super().attributes(data, model), "variance_scale_": self.variance_scale}


def learned_scales(prior: ScalesByGroup, hyper: torch.Tensor) -> dict[str, Array]:
    """Standard deviations of the weights of R modes: of groups, and of input columns."""
    if not prior.is_learned:
        return {"prior_scale_": prior.scale.numpy()}
    return scale_attributes_of_several(prior, hyper, "prior_scale_modes_")


def starts(problem: EvidenceProblem, n: int, seed: int) -> torch.Tensor:
    """Starting points (n, P) on the problem's device."""
    drawn = starting_points(problem.network, n, generator=generator_from(seed))
    return drawn.to(problem.data.x.device)


def require_memory_of_modes(data: Training, network: MLP, n: int, matrices: int) -> None:
    """Raise unless rows and ``n`` modes fit, of so many float64 matrices (P, P) each."""
    p = network.layout.n_params
    systems = Part(
        f"Gauss-Newton systems of {n} modes of {p:,} weights", matrices * n * p**2 * _DOUBLE,
        "Lower n_restarts or hidden_layer_sizes, or use optimizer='adam'.",
    )  # fmt: skip
    require_memory([rows_part(data), systems], data.device)
