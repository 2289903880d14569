"""Modes found by Gauss-Newton steps, and the fitted attributes that they define."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.messages import log_info, warn_moving_mode
from skbayes_sym.base.model_factory import model_symmetry, scale_attributes
from skbayes_sym.base.noise_levels import MAX_FREEDOMS
from skbayes_sym.base.rows import unwrap_single
from skbayes_sym.base.stacking_weights import leave_one_out
from skbayes_sym.base.training import Training, evenly_spaced_rows
from skbayes_sym.laplace.class_predictive import RefinedModes
from skbayes_sym.laplace.evidence_problem import (
    EvidenceProblem,
)
from skbayes_sym.laplace.mode_finding import (
    Modes,
    Search,
    map_tensors,
)
from skbayes_sym.laplace.posterior import LinearisedModes, ModeMixture
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.models.priors import (
    GroupScalePrior,
)
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.random import Estimate, generator_from

if TYPE_CHECKING:
    from skbayes_sym.symmetry.gaps.gap import Side

Problem = TypeVar("Problem", bound=EvidenceProblem)


@dataclass(frozen=True, eq=False)
class ModesFit:
    """Modes that a search has found, and the fitted attributes that they define.

    Attributes
    ----------
    search : Search
        Distinct modes. They are those found so far if the search is still running.
    network : MLP
    prior : GroupScalePrior
    predict_seed : int
        Seed of draws in predictions.
    width_scores : mapping of int to float, optional
        Held-out log density by number of units, nats per row, if the width was cross-validated.
    refined : RefinedModes, optional
        Variational posteriors of classification, unless the fit was interrupted.
    variance_scale : float, optional
        Factor on the logits' variance in predictions.
    leave_one_out : Tensor of shape (N,), optional
        Leave-one-out log probabilities of the rows, if they chose ``variance_scale``.
    computes_evidence : bool, default=True
        Whether `attributes` sum the evidence over the symmetric copies of the modes.
    """

    search: Search
    network: MLP
    prior: GroupScalePrior
    predict_seed: int
    width_scores: Mapping[int, float] | None = None
    refined: RefinedModes | None = None
    variance_scale: float | None = None
    leave_one_out: Tensor | None = None
    computes_evidence: bool = True

    @property
    def modes(self) -> Modes:
        """The modes on the host."""
        return map_tensors(lambda t: t.cpu(), self.search.modes)

    @property
    def n_iter(self) -> int:
        """Number of steps of the restart with the most."""
        return int(self.search.modes.n_iter.max())

    @property
    def stop_reason(self) -> StopReason:
        """Why the search ended."""
        return self.search.stop_reason

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Return the fitted attributes of the estimator."""
        modes = self.modes
        prior = self.prior
        weights = modes.weights.numpy()

        # Posterior and evidence of the modes.
        distributions = modes if self.refined is None else self.refined
        theta = distributions.theta.cpu().contiguous().numpy()
        factor = distributions.factor.cpu().contiguous().numpy()
        evidence = modes.log_evidence.numpy() + data.log_jacobian
        best = int(evidence.argmax())
        attributes: dict[str, Any] = {
            "network_": self.network,
            "posterior_": ModeMixture(theta, factor, weights),
            "n_modes_": len(theta),
            "multiplicity_modes_": modes.n_restarts.numpy(),
            "log_evidence_modes_": evidence,
            "log_evidence_curve_": self.search.curves[best].numpy() + data.log_jacobian,
            "_predict_seed_": self.predict_seed,
        }
        if self.computes_evidence:
            total, side = self.sum_over_copies(evidence)
            attributes["log_evidence_"] = total.value
            attributes["log_evidence_std_error_"] = total.standard_error
            attributes["log_evidence_side_"] = side

        # Scales of the prior and of the logits.
        if prior.is_learned:
            attributes |= scale_attributes(prior, modes.hyper, "prior_scale_modes_", weights)
        else:
            attributes["prior_scale_"] = prior.scale.numpy()
        if self.variance_scale is not None:
            attributes["variance_scale_"] = self.variance_scale

        # Noise in the units of y.
        if data.y_scaling is not None:
            unit = data.y_scaling.scale
            noise_std = modes.noise_precision.rsqrt().numpy()
            overall = np.sqrt(np.average(noise_std**2, axis=0, weights=weights)) * unit
            attributes["noise_std_modes_"] = noise_std * unit
            attributes["noise_std_"] = unwrap_single(overall)
            attributes["_noise_levels_modes_"] = None
            if model.likelihood.n_params:
                attributes["_noise_levels_modes_"] = self._noise_levels(data)

        # Cross-validation of the width.
        if self.width_scores is not None:
            attributes["widths_"] = np.array(list(self.width_scores))
            attributes["width_scores_"] = np.array(list(self.width_scores.values()))
        return attributes

    def sum_over_copies(self, evidence: np.ndarray) -> tuple[Estimate, "Side"]:
        r"""Sum the evidence over all modes and their copies under the network's symmetry.

        Parameters
        ----------
        evidence : ndarray of shape (R,)
            Log evidence of every mode, nats.

        Returns
        -------
        Estimate
            :math:`\log \sum_r \exp(\log Z_r + \mathrm{gap}_r)` in nats, with its standard error.
        Side
            "exact" if all copies are summed, else "lower".

        Notes
        -----
        Copies count as far as they don't overlap.
        """
        # Only this sum needs the gaps, whose import takes time.
        from skbayes_sym.symmetry.gaps.monte_carlo_gap import MonteCarloGap, evidence_over_copies

        network = self.network
        modes = self.modes
        group = model_symmetry(network, self.prior)
        gap = MonteCarloGap(group, network.layout.n_params)
        normals = [
            ModeMixture(theta.numpy()[None], factor.numpy()[None])
            for theta, factor in zip(modes.theta, modes.factor, strict=True)
        ]
        generator = generator_from(self.predict_seed)
        return evidence_over_copies(gap, evidence, normals, generator=generator), gap.side

    def _noise_levels(self, data: Training) -> np.ndarray | None:
        """Return the noise levels of every mode, (R, K, T), in the units of ``y``.

        None if there are so many rows that they determine the noise.
        """
        n_params = self.network.layout.n_params
        if data.total_weight - n_params > MAX_FREEDOMS and not data.is_constant.any():
            return None
        x, y, weight = data.double_data
        distribution = self._predict_by_mode(x)
        squares = torch.einsum("n,rnt->rt", weight, (y - distribution.loc).square())
        n_effective = torch.einsum(
            "n,rnt->rt", weight, distribution.variance / distribution.noise_variance
        )
        return data.noise_levels_at_mode(squares, n_effective)

    def leave_one_out_predictive(self, data: Data) -> NormalMixture:
        """Predict the targets of every row from all others, with one component per mode."""
        x, y, weight = data
        return leave_one_out(self._predict_by_mode(x), y, weight)

    def _predict_by_mode(self, x: Tensor) -> NormalMixture:
        """Predict rows by the linearised networks, with one component per mode."""
        modes = self.search.modes
        parts = (t.to(x) for t in (modes.theta, modes.factor, modes.weights))
        networks = LinearisedModes(self.network, *parts)
        mean, covariance = networks.outputs(x)
        noise = modes.noise_precision.to(x).reciprocal().unsqueeze(1)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        log_weights = networks.weight.log()
        return NormalMixture(mean, variance, noise, log_weights)

    def report(self, data: Training, tol: object, *, warns: bool) -> None:
        """Log the result, and warn if the best mode still moved at the end.

        Parameters
        ----------
        data : Training
        tol : object
            Tolerance of the search, which the warning states.
        warns : bool
            Whether to warn.

        Raises
        ------
        NotPositiveDefiniteError
            If there is no mode.
        """
        values = self.search.modes.log_evidence + data.log_jacobian
        if not len(values):
            raise NotPositiveDefiniteError(
                "no restart ended in a mode whose precision is positive definite in this "
                "arithmetic: give noise_std a larger number, or learn it."
            )
        log_info(
            "log evidence of %d distinct modes from %.6g to %.6g, stopped: %s after %d steps",
            len(values),
            values.min(),
            values.max(),
            self.stop_reason,
            self.n_iter,
        )
        if warns:
            best = int(values.argmax())
            curve = self.search.curves[best].tolist()
            stopped = self.search.stopped[best]
            warn_moving_mode(curve, stopped, tol, data.total_weight)


def subsample_problem(problem: Problem, max_rows: int) -> Problem:
    """Return the problem of at most ``max_rows`` evenly spaced rows."""
    rows = evenly_spaced_rows(len(problem.data.x), max_rows)
    return replace(problem, data=Data(*(t[rows.to(t.device)] for t in problem.data)))


def require_memory_for_systems(data: Training, network: MLP, n_modes: int, n_matrices: int) -> None:
    """Raise an error unless there is memory for the rows and the systems.

    Parameters
    ----------
    data : Training
    network : MLP
    n_modes : int
    n_matrices : int
        Number of float64 matrices (P, P) of each mode.
    """
    p = network.layout.n_params
    systems = MemoryAllocation(
        f"Gauss-Newton systems of {n_modes} modes of {p:,} weights",
        n_matrices * n_modes * p**2 * 8,
        "Lower n_restarts or hidden_layer_sizes, or use optimizer='adam'.",
    )
    require_memory([data.rows_allocation, systems], data.device)
