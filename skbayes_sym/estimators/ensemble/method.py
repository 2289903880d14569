"""Deep ensembles as a method: one posterior, many starting points, one loop."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.convergence import warn_unless_converged
from skbayes_sym.estimators._fit.memory import Part, prior_part, require_memory, rows_part
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import Run, Schedule, logger, n_blocks
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.map import MapObjective
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, Stopped
from skbayes_sym.numerics.random import generator_from

_ADAM = 4  # copies of what is optimised: values, gradient, two moments


@dataclass(frozen=True, eq=False)
class Members:
    """What an ensemble's training has found (so far)."""

    theta: Array  # (M, P)
    log_noise: Array  # (M, n_params of the likelihood), scaled units
    log_posterior: Array | None = None  # (M,), nats; once training has ended
    loss_curve: Array | None = None
    n_iter: int = 0
    stop_reason: Stopped = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        attributes: dict[str, Any] = {"samples_": self.theta}
        noise_scale = model.likelihood.at(torch.as_tensor(self.log_noise).double()).noise_scale
        if data.y_scaling is not None and noise_scale.shape[-1]:
            noise_std = noise_scale.expand(len(self.theta), -1).numpy() * data.y_scaling.scale
            attributes["noise_std_samples_"] = noise_std
        if self.log_posterior is not None:
            attributes["log_posterior_samples_"] = self.log_posterior + data.log_jacobian
        if self.loss_curve is not None:
            attributes["log_posterior_curve_"] = data.log_jacobian - self.loss_curve
        return attributes


@dataclass(frozen=True, eq=False)
class DeepEnsemble:
    """Posterior modes from random starts (Wiese et al. 2023, appendix E.3).

    Parameters
    ----------
    n_members : int
    noise_prior_scale : float
        Scale of the half-normal prior of the noise's standard deviation, scaled target units.
    learning_rate : float
    max_iter : int
    tol : float or None
        Nats per unit of sample weight; None never stops early.
    start : Members, optional
        Where to go on from, in the scaled units of this fit.
    """

    n_members: int
    noise_prior_scale: float
    learning_rate: float
    max_iter: int
    tol: float | None
    start: Members | None = None

    def fit(self, data: Training, model: Model, run: Run) -> Members:
        self._require_memory(data, model)
        posterior = NetworkPosterior(
            model.network, model.likelihood, model.prior, data.data,  # type: ignore[arg-type]
            self.noise_prior_scale,
        )  # fmt: skip
        with torch.no_grad():
            position = self._position(model, data.seed).to(data.data.x)
            objective = MapObjective(posterior, model.network.layout.n_params, position)
            run.begin(n_blocks(self.max_iter), lambda: _members(objective))
            result = self._optimise(objective, data, run)
            run.end()
            log_posterior = objective.log_posterior(objective.position)
        found = _members(objective, log_posterior, result)
        values = log_posterior + data.log_jacobian
        logger.info(
            "log posterior of the members from %.6g to %.6g, stopped by %s after %d steps",
            values.min(), values.max(), result.stopped, result.n_iter,
        )  # fmt: skip
        what = "the members' mean log posterior"
        warn_unless_converged(result, self.tol, data.total_weight, what)
        return found

    def _position(self, model: Model, seed: int) -> Tensor:
        """Starting points (M, D): random ones, or the members to go on from."""
        n, network = self.n_members, model.network
        if self.start is None:
            theta = network.init(n, generator=generator_from(seed))
            return torch.cat([theta, model.likelihood.params.expand(n, -1)], 1)
        shape = (n, network.layout.n_params)
        if self.start.theta.shape != shape:
            raise ValueError(
                f"warm_start=True, but the previous fit has {self.start.theta.shape} members and "
                f"parameters and this one {shape}: data, hidden_layer_sizes or n_members changed."
            )
        n_params = model.likelihood.n_params
        if self.start.log_noise.shape[1] < n_params:
            raise ValueError("warm_start=True, but the previous fit learned no noise.")
        parts = (self.start.theta, self.start.log_noise[:, :n_params])
        return torch.cat([torch.as_tensor(p, dtype=torch.float64) for p in parts], 1)

    def _optimise(self, objective: MapObjective, data: Training, run: Run) -> OptimiseResult:
        n, offset = objective.n_theta, data.log_jacobian
        return run.minimise(
            objective,
            [
                ParamGroup(slice(0, n), self.learning_rate),
                ParamGroup(slice(n, None), self.learning_rate, *data.log_noise_range),
            ],
            Schedule(self.max_iter, None if self.tol is None else self.tol * data.total_weight),
            report=lambda loss: ("mean log posterior", offset - loss),
        )

    def _require_memory(self, data: Training, model: Model) -> None:
        """Weights of M members and what Adam keeps of them: 8 P + 4 M P b."""
        n_params = model.network.layout.n_params
        members = Part(
            f"{self.n_members} members of {n_params:,} weights",
            _ADAM * self.n_members * n_params * data.dtype.itemsize,
            "Lower n_members or hidden_layer_sizes, or use dtype='float32'.",
        )
        require_memory([rows_part(data), prior_part(n_params), members], data.device)


def _members(
    objective: MapObjective,
    log_posterior: Tensor | None = None,
    result: OptimiseResult | None = None,
) -> Members:
    position, n = objective.position, objective.n_theta // len(objective.position)
    theta, log_noise = (t.cpu().numpy().copy() for t in (position[:, :n], position[:, n:]))
    if log_posterior is None or result is None:
        return Members(theta, log_noise)
    values = log_posterior.double().cpu().numpy()
    curve = np.array(result.loss_curve)
    return Members(theta, log_noise, values, curve, result.n_iter, result.stopped)
