r"""Normal distributions of weights in classification, and the scale of the logits' variance.

At a mode of separated classes the softmax is flat, so that Laplace's approximation gives the logits
the prior's variance. `refine` takes value, gradient and curvature as expectations under the
logits' own distribution :math:`N(f_n, S_n)`, :math:`S_n = J_n C J_n'` (Opper & Archambeau 2009;
Khan & Rue 2023). It alternates between a damped Gauss-Newton step at fixed S, the covariance
:math:`C = (\sum_n w_n J_n' E[\Lambda_n] J_n + \mathrm{diag}\,\alpha)^{-1}`, and a step of S towards
:math:`J C J'`. The prior's scales stay fixed.

A factor on this variance is chosen by approximate leave-one-out, see
`skbayes_sym.models.normal_logits`.

The member of an ensemble doesn't represent its own uncertainty, and where classes overlap its
probabilities are far too certain. There, `refit` linearises the network at the trained weights,
with logits :math:`f(x) = f_{\theta^*}(x) + J(x) (\theta - \theta^*)` and the weights' prior
:math:`N(0, S^2)`, and solves

.. math:: J' E[p - e_y] + S^{-2} \mu = 0, \qquad C^{-1} = S^{-2} + J' E[\Lambda] J

(Khan et al. 2019 for the linearised network as a Gaussian process). This is convex except for the
width of the logits. Two classes have one logit, the difference of their outputs. With more classes
only the differences to the mean output matter. Weights move only along the principal directions V
of :math:`J S` at the data: :math:`\mu = S V m`, and :math:`C = S^2 - U U'` with few columns U.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.laplace.evidence_problem import CategoricalEvidence, Hyperparameters
from skbayes_sym.laplace.gauss_newton import (
    INITIAL_DAMPING,
    System,
    WeightSystem,
    step,
)
from skbayes_sym.laplace.mode_finding import Modes, map_tensors
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian
from skbayes_sym.models.normal_logits import (
    VARIANCE_SCALES,
    LeaveOneOutLogits,
    LinearisedOutputs,
    LogitDerivatives,
    SoftmaxExpectations,
    VarianceScale,
    leave_one_out_logits,
    leave_one_out_losses,
    symmetric_root,
)
from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.runtime import run_parallel


class RefinedModes(NamedTuple):
    """R normal distributions of the weights.

    Attributes
    ----------
    theta : Tensor of shape (R, P)
        Means.
    hyper : Tensor of shape (R, G)
        Log precisions of the prior's groups.
    factor : Tensor of shape (R, P, P)
        Cholesky factors of the precisions.
    root : Tensor of shape (R, N, K, K)
        Roots of the logits' covariances over which the curvature is averaged.
    """

    theta: Tensor
    hyper: Tensor
    factor: Tensor
    root: Tensor

    @property
    def covariance(self) -> Tensor:
        """Covariances of the weights, (R, P, P); O(R P^3)."""
        return torch.cholesky_inverse(self.factor)


def refine(
    problem: CategoricalEvidence, modes: Modes, n_steps: int = 6, n_jobs: int | None = None
) -> RefinedModes:
    """Take variational steps from every mode.

    Parameters
    ----------
    problem : CategoricalEvidence
    modes : Modes
        R modes of the problem.
    n_steps : int, default=6
        Number of steps. Each costs two steps of the search and a pass for ``J C J'``.
    n_jobs : int, optional
        Number of processes.

    Returns
    -------
    RefinedModes
    """
    by_mode = [map_tensors(lambda t, r=r: t[r : r + 1], modes) for r in range(len(modes.theta))]
    jobs = [partial(_refine_mode, problem, mode, n_steps) for mode in by_mode]
    results = run_parallel(jobs, n_jobs, prefer="threads")
    theta, factor, root = map(torch.stack, zip(*results, strict=True))
    return RefinedModes(theta, modes.hyper, factor, root)


def _refine_mode(
    problem: CategoricalEvidence, mode: Modes, n_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, Cholesky factor and root of one distribution."""
    theta = mode.theta
    hyper = Hyperparameters(mode.hyper, mode.noise_precision)
    precision = mode.hyper.exp()[:, problem.prior.group]
    damping = theta.new_full((1,), INITIAL_DAMPING)
    system: System = WeightSystem(mode.factor, torch.zeros_like(mode.n_iter))
    # Laplace's covariance of the logits is too wide.
    covariance = 0.5 * problem.logits(theta[0], system.covariance[0]).covariance
    for i in range(n_steps):
        if i:
            present = problem.logits(theta[0], system.covariance[0]).covariance
            covariance = torch.lerp(covariance, present, 0.6)
        averaged = replace(problem, root=symmetric_root(covariance))
        theta, damping, _ = step(
            lambda theta, _, averaged=averaged: averaged.misfit(theta),  # type: ignore[misc]
            theta,
            averaged.expansion(theta),
            precision,
            damping,
        )
        system = averaged.system(averaged.expansion(theta).curvature, hyper)
    return theta[0], system.cholesky()[0], symmetric_root(covariance)


def leave_one_out_by_mode(
    problem: CategoricalEvidence, distributions: Modes | RefinedModes
) -> list[LeaveOneOutLogits]:
    """Approximate the leave-one-out logits of every row under each of the posteriors."""
    held_out = []
    for i, covariance in enumerate(distributions.covariance):
        logits = problem.logits(distributions.theta[i], covariance)
        root = None
        if isinstance(distributions, RefinedModes):
            root = distributions.root[i]
        terms = SoftmaxExpectations(logits.mean, root).derivatives(problem.data.y)
        held_out.append(leave_one_out_logits(logits, terms, problem.data.weight))
    return held_out


def choose_variance_scale(
    problem: CategoricalEvidence, distributions: Modes | RefinedModes, weights: Tensor | None = None
) -> VarianceScale:
    """Choose the factor of `VARIANCE_SCALES` whose mixture has the smallest leave-one-out loss.

    Parameters
    ----------
    problem : CategoricalEvidence
    distributions : Modes or RefinedModes
        R posteriors.
    weights : Tensor of shape (R,), optional
        Weights of the posteriors in the mixture, equal by default.

    Returns
    -------
    VarianceScale

    Notes
    -----
    One pass over the rows for ``J C J'``, O(N R P^2).
    """
    _, y, sample_weight = problem.data
    held_out = leave_one_out_by_mode(problem, distributions)
    losses = leave_one_out_losses(held_out, y, VARIANCE_SCALES, weights)
    log_losses = losses @ sample_weight / sample_weight.sum()
    best = int(log_losses.argmin())
    return VarianceScale(VARIANCE_SCALES[best], log_losses, losses[best])


class RefittedMember(NamedTuple):
    """A normal distribution of the weights of a network linearised at ``theta``.

    Attributes
    ----------
    theta : Tensor of shape (P,)
        Weights at which the network is linearised.
    loc : Tensor of shape (P,)
        Mean of the distribution.
    root : Tensor of shape (P, r)
        The covariance is S^2 - root root'.
    scale : Tensor of shape (P,)
        Prior standard deviations S.
    """

    theta: Tensor
    loc: Tensor
    root: Tensor
    scale: Tensor

    def logits(self, network: MLP, x: Tensor) -> LinearisedOutputs:
        """Return the logits of rows (N, n_inputs); O(N K P r)."""
        means = []
        covariances = []
        # Blocks whose Jacobians take 32 MB.
        size = n_rows_per_block(1 << 22, network.n_outputs * network.layout.n_params)
        for block in x.split(size):
            logits, jacobian = _whitened_jacobian(network, self.theta, self.scale, block)
            reduction = jacobian @ (self.root / self.scale.unsqueeze(1))
            means.append(logits + jacobian @ ((self.loc - self.theta) / self.scale))
            covariances.append(jacobian @ jacobian.mT - reduction @ reduction.mT)
        return LinearisedOutputs(torch.cat(means), torch.cat(covariances))

    def sample_logits(self, network: MLP, x: Tensor, noise: Tensor) -> Tensor:
        """Sample functions.

        Parameters
        ----------
        network : MLP
        x : Tensor of shape (N, n_inputs)
        noise : Tensor of shape (m, P)
            Standard normal numbers.

        Returns
        -------
        Tensor of shape (m, N, K)
            Logits.

        Notes
        -----
        A root of the whitened covariance ``I - U U'``, with ``U = Q s V'``, is
        ``I - Q (1 - sqrt(1 - s^2)) Q'``: O(P r^2 + m N K P).
        """
        logits, jacobian = _whitened_jacobian(network, self.theta, self.scale, x)
        whitened = self.root / self.scale.unsqueeze(1)
        q, singular_values, _ = torch.linalg.svd(whitened, full_matrices=False)
        shrinkage = 1.0 - (1.0 - singular_values.square()).clamp_min(0.0).sqrt()
        offset = (self.loc - self.theta) / self.scale
        deviation = noise - (noise @ q * shrinkage) @ q.mT + offset
        return logits + torch.einsum("nkp,mp->mnk", jacobian, deviation)


def refit(
    network: MLP,
    theta: Tensor,
    scale: Tensor,
    data: Data,
    *,
    min_variance: float = 0.01,
    max_iter: int = 30,
    tol: float = 1e-2,
) -> tuple[RefittedMember, LinearisedOutputs, LogitDerivatives]:
    """Fit the Gaussian variational approximation of a linearised network.

    Mean and curvature alternate in damped Newton steps to the optimum of the bound.

    Parameters
    ----------
    network : MLP
    theta : Tensor of shape (P,)
        Weights to which the member was trained.
    scale : Tensor of shape (P,)
        Prior standard deviations of the weights.
    data : Data
        Float64, with classes (N,).
    min_variance : float, default=0.01
        Directions whose prior variance, summed over all rows, is smaller than this are left at the
        prior, because the data never determine them.
    max_iter : int, default=30
        Maximum number of steps.
    tol : float, default=0.01
        The steps end when no mean and no covariance of the logits changes by this.

    Returns
    -------
    RefittedMember
        Distribution of the weights.
    LinearisedOutputs
        Distribution of the training rows' logits.
    LogitDerivatives
        Expected derivatives under it.

    Notes
    -----
    O(N K P m + m^3), with m the smaller of N K and P, and O(N K r^2 + r^3) a step.
    """
    x, y, weight = data
    initial_logits, jacobian = _whitened_jacobian(network, theta, scale, x)
    flat = jacobian.flatten(0, 1)
    (n, n_outputs) = initial_logits.shape

    # The distribution is over r whitened weights, standard normal a priori, along orthonormal
    # directions (P, r).
    flat, directions = _principal_directions(flat, min_variance)
    offset = initial_logits - jacobian @ (theta / scale)
    design = flat.view(n, n_outputs, -1)

    # Start from the trained weights, without variance.
    row_weight = weight.unsqueeze(1)
    mean = directions.mT @ (theta / scale)
    logits = LinearisedOutputs(offset + design @ mean, torch.zeros(()).to(mean))
    terms = SoftmaxExpectations(logits.mean).derivatives(y)
    curvature = terms.curvature * row_weight.unsqueeze(2)
    for _ in range(max_iter):
        # A damped Newton step of the mean.
        system = flat.mT @ (curvature @ design).flatten(0, 1)
        system.diagonal().add_(1.0)
        remedy = "Standardise X, or use a smaller prior."
        factor = cholesky(system, name="The posterior's precision", remedy=remedy)
        slope = torch.einsum("nkr,nk->r", design, terms.slope * row_weight)
        mean = mean - 0.7 * torch.cholesky_solve((slope + mean).unsqueeze(1), factor).squeeze(1)

        # The logits, and a step of the curvature towards its expectation under them.
        half = torch.linalg.solve_triangular(factor, flat.mT, upper=False)
        half = half.view(-1, n, n_outputs).transpose(0, 1)  # (N, r, K)
        previous = logits
        logits = LinearisedOutputs(offset + design @ mean, half.mT @ half)
        root = symmetric_root(logits.covariance)
        terms = SoftmaxExpectations(logits.mean, root).derivatives(y)
        curvature = torch.lerp(curvature, terms.curvature * row_weight.unsqueeze(2), 0.5)

        mean_change = (logits.mean - previous.mean).abs().max()
        covariance_change = (logits.covariance - previous.covariance).abs().max()
        if float(torch.maximum(mean_change, covariance_change)) < tol:
            break

    # Back to the weights: their covariance is the prior's minus a matrix of low rank.
    covariance = torch.cholesky_inverse(factor)
    values, vectors = torch.linalg.eigh(torch.eye(len(mean)).to(covariance) - covariance)
    root = scale.unsqueeze(1) * (directions @ (vectors * values.clamp_min(0.0).sqrt()))
    return RefittedMember(theta, scale * (directions @ mean), root, scale), logits, terms


def _principal_directions(jacobian: Tensor, min_variance: float) -> tuple[Tensor, Tensor]:
    """Project a matrix (M, P) onto its right singular vectors with large squared singular values.

    Returns the projected matrix (M, r) and the orthonormal directions (P, r).
    """
    if len(jacobian) <= jacobian.shape[1]:
        squares, basis = torch.linalg.eigh(jacobian @ jacobian.mT)
        basis = basis[:, squares > min_variance]
        squares = squares[squares > min_variance]
        return basis * squares.sqrt(), jacobian.mT @ (basis / squares.sqrt())
    squares, directions = torch.linalg.eigh(jacobian.mT @ jacobian)
    directions = directions[:, squares > min_variance]
    return jacobian @ directions, directions


@dataclass(frozen=True, eq=False)
class RefittedMembers:
    """Distributions of the weights of M members, each linearised at its own weights.

    Attributes
    ----------
    theta : ndarray of shape (M, P)
        Weights at which the networks are linearised.
    loc : ndarray of shape (M, P)
        Means of the distributions.
    root : ndarray of shape (M, P, r)
        The covariances are ``scale^2 - root root'``.
    scale : ndarray of shape (M, P)
        Prior standard deviations.
    """

    theta: np.ndarray
    loc: np.ndarray
    root: np.ndarray
    scale: np.ndarray

    @classmethod
    def stack(cls, members: Sequence[RefittedMember]) -> "RefittedMembers":
        """Stack members, with roots padded to the same number of columns."""
        rank = max(member.root.shape[1] for member in members)
        padded = (m._replace(root=F.pad(m.root, (0, rank - m.root.shape[1]))) for m in members)
        return cls(*(torch.stack(t).cpu().numpy() for t in zip(*padded, strict=True)))

    def tensors(self, device: torch.device) -> list[RefittedMember]:
        """Return the members one by one, float64, on a device."""
        arrays = (self.theta, self.loc, self.root, self.scale)
        parts = (torch.as_tensor(a).to(device) for a in arrays)
        return [RefittedMember(*member) for member in zip(*parts, strict=True)]


def _whitened_jacobian(
    network: MLP, theta: Tensor, scale: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return contrasts of the outputs and their derivatives in whitened weights.

    Parameters
    ----------
    network : MLP
    theta : Tensor of shape (P,)
        Weights.
    scale : Tensor of shape (P,)
        Prior standard deviations of the weights.
    x : Tensor of shape (N, n_inputs)
        Rows.

    Returns
    -------
    contrasts : Tensor of shape (N, K)
        K is 1 for two classes.
    jacobian : Tensor of shape (N, K, P)
    """
    outputs, jacobian = outputs_and_jacobian(network, theta.unsqueeze(0), x)
    return _contrasts(outputs[0]), _contrasts(jacobian[0].mul_(scale))


def _contrasts(values: Tensor) -> Tensor:
    """Return the contrasts of outputs (N, C, ...) that the softmax depends on."""
    if values.shape[1] == 2:
        return values[:, 1:] - values[:, :1]
    return values - values.mean(1, keepdim=True)
