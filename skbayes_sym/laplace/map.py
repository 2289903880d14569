r"""Modes of a posterior by Adam, with scales and noise set by the evidence of every mode.

With the Gauss-Newton curvature of the likelihood and independent normal weights with prior standard
deviations S, the weights have at a mode the covariance

.. math:: C^{-1} = S^{-2} + \sum_n w_n J_n' \Lambda_n J_n .

The rows :math:`R = \sqrt{w_n} \Lambda_n^{1/2} J_n S`, one per output of every row, give C in the
smaller of two dimensions, the number of weights or the number of rows:

.. math:: C = S (I + R'R)^{-1} S = S \left[ I - R' (I + R R')^{-1} R \right] S,

and the leverages of rows as the diagonal of :math:`R (I + R'R)^{-1} R' = I - (I + R R')^{-1}`.

A joint mode of weights and scales would count all :math:`n_g` weights of a group as determined,
including those that only follow their prior. The evidence integrates the weights out. By Laplace's
approximation its maximum under the hyperprior is at

.. math:: \alpha_g = \frac{\gamma_g + 2a}{|\theta_g|^2 + 2 a s_g^2}, \qquad
          \gamma_g = n_g - \alpha_g \operatorname{tr}_g C

(MacKay 1992, "A practical Bayesian framework for backpropagation networks", eq. 21). A group that
the data don't inform has :math:`\gamma_g = 0`, and if its weights are zero the precision
:math:`1 / s_g^2`. Normal noise whose level the evidence sets follows
:math:`\beta_t = (N - \gamma_t) / \sum_n w_n r_{nt}^2`, with :math:`\gamma_t` the sum of the rows'
leverages (eq. 22). As a trained parameter it would be too small, because training ignores the
degrees of freedom that the weights use.

If the weights use nearly all degrees of freedom, the noise is the root mean square of the
linearised network's leave-one-out residuals :math:`r_{nt} / (1 - h_{nt})`, but at most the spread
of the targets. If it is estimated from :math:`\nu = N - \gamma` rows, a new target follows
Student's t distribution with :math:`\nu` degrees of freedom, a mixture of normals of precision
:math:`\beta u`, :math:`u \sim \chi^2_\nu / \nu`.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from skbayes_sym.base.log_density import Evaluation, LogDensity, NetworkPosterior
from skbayes_sym.base.training import evenly_spaced_rows
from skbayes_sym.laplace.curvature import AveragedJacobian, dense_jacobian
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian
from skbayes_sym.models.networks.network import Network, RecordingNetwork
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.linalg import cholesky
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.runtime import explain_torch_errors, import_symbolic_shapes


class MapObjective:
    """Negative log posterior density of M positions, as an objective of `numerics.optimise`.

    The loss is a sum over positions, and Adam treats every coordinate separately. ``params`` and
    ``gradient`` (M * D,) hold ``theta`` of all positions and then ``log sigma`` of all, in two
    ranges that may have different step sizes. The mode is that of the density of (theta, sigma).

    Parameters
    ----------
    log_density : LogDensity
        Log density of positions ``[theta | log sigma]``.
    n_theta : int
        Length of ``theta``. It is the whole position if there is no sigma.
    position : Tensor of shape (M, D)
        Initial positions.
    """

    def __init__(self, log_density: LogDensity, n_theta: int, position: Tensor) -> None:
        self._log_density = log_density
        self._split = [n_theta, position.shape[1] - n_theta]
        self._n = len(position)
        self.params = self._flat(position)
        self.gradient = torch.zeros_like(self.params)

    @property
    def n_theta(self) -> int:
        """Length of the range of ``params`` that holds ``theta``."""
        return self._n * self._split[0]

    @property
    def position(self) -> Tensor:
        """Present positions, (M, D)."""
        parts = self.params.split([self._n * n for n in self._split])
        return torch.cat([p.view(self._n, -1) for p in parts if p.numel()], 1)

    def log_posterior(self, position: Tensor) -> Tensor:
        """Log density of (theta, sigma), (M, D) -> (M,) nats."""
        return self._log_density(position) - position[:, self._split[0] :].sum(1)

    def __call__(self, step: int) -> Tensor:
        """Return the mean of the losses, 0-d, and write the gradient of their sum."""
        del step  # used where scales move
        position = self.position
        value, gradient = self._log_density.evaluate(position)
        torch.neg(self._flat(gradient), out=self.gradient)
        self.gradient[self.n_theta :] += 1.0
        return (position[:, self._split[0] :].sum(1) - value).mean()

    def _flat(self, position: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in position.split(self._split, 1)])


@dataclass(frozen=True, eq=False)
class MinibatchDensity:
    """Unbiased minibatch estimate of a log posterior density, from another batch at every call.

    Attributes
    ----------
    posterior : NetworkPosterior
        Posterior given all rows.
    batches : Batches
        Rows whose weights are scaled to the whole data set.
    """

    posterior: NetworkPosterior
    batches: Batches

    @property
    def n_dims(self) -> int:
        """Length of a position."""
        return self.posterior.n_dims

    def __call__(self, position: Tensor) -> Tensor:
        """Log density given all rows, (M, D) -> (M,) nats."""
        return self.posterior(position)

    def evaluate(self, position: Tensor) -> Evaluation:
        """Estimate value and gradient at positions (M, D) from the next batch."""
        return self.posterior.evaluate(position, self.batches.next())


_MAX_WORK = 4e9  # multiplications of a product, a third of a second of one core
_REMEDY = "Standardise X and y, or give prior a number."


class EffectiveParameters(NamedTuple):
    """Variances and effective numbers of parameters at one weight vector.

    Attributes
    ----------
    variance : Tensor of shape (P,)
        Posterior variances of the weights, the diagonal of C.
    n_effective : Tensor of shape (K,)
        Sums of the rows' leverages for each column of the curvature's root.
    """

    variance: Tensor
    n_effective: Tensor


def compute_effective_parameters(
    network: Network, likelihood: Likelihood, theta: Tensor, data: Data, scale: Tensor
) -> EffectiveParameters:
    """Compute posterior variances of the weights, and effective numbers of parameters.

    Parameters
    ----------
    network : Network
    likelihood : Likelihood
        Likelihood with a ``hessian_root``, at its parameters. For normal noise the root has one
        column per target.
    theta : Tensor of shape (P,)
        Weights.
    data : Data
        Float64. A row of weight 2 counts as two.
    scale : Tensor of shape (P,)
        Prior standard deviations of the weights.

    Returns
    -------
    EffectiveParameters

    Notes
    -----
    O(n K P m + m^3) for n rows of K outputs, with m the smaller of n K and P. If that takes more
    than 4e9 multiplications, an evenly spaced subsample of the rows is used and its curvature is
    scaled.
    """
    x, y, weight = data
    index = affordable_rows(len(x), network.n_outputs, len(theta)).to(x.device)
    factor = weight.sum() / weight[index].sum()
    root = (factor * weight[index]).sqrt()
    with torch.inference_mode(False), torch.enable_grad():
        columns = _root_rows(network, likelihood, theta.detach().clone(), x[index], y[index])
    rows = (root[:, None] * columns).flatten(0, 1) * scale
    n, p = rows.shape
    if p <= n:
        system = rows.mT @ rows
        system.diagonal().add_(1.0)
        factor = cholesky(system, name="The posterior's precision", remedy=_REMEDY)
        variance = torch.cholesky_inverse(factor).diagonal()
        solved = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
        leverage = solved.square().sum(0)
    else:
        system = rows @ rows.mT
        system.diagonal().add_(1.0)
        factor = cholesky(system, name="The covariance of the outputs", remedy=_REMEDY)
        solved = torch.linalg.solve_triangular(factor, rows, upper=False)
        variance = (1.0 - solved.square().sum(0)).clamp_min(0.0)
        leverage = 1.0 - torch.cholesky_inverse(factor).diagonal()
    return EffectiveParameters(scale.square() * variance, leverage.view(len(columns), -1).sum(1))


def affordable_rows(n_rows: int, n_outputs: int, n_params: int) -> Tensor:
    """Return the indices of the rows for which there is time, all of them if possible, int64.

    n K P min(n K, P) multiplications, for n rows of K outputs and P weights, are affordable.

    Parameters
    ----------
    n_rows, n_outputs, n_params : int
        Numbers n, K and P of rows, outputs and weights.
    """
    if n_params**3 > _MAX_WORK:
        max_outputs = (_MAX_WORK / n_params) ** 0.5
    else:
        max_outputs = _MAX_WORK / n_params**2
    return evenly_spaced_rows(n_rows, n_rows_per_block(int(max(max_outputs, 1.0)), n_outputs))


def count_curvature_entries(n_rows: int, n_outputs: int, n_params: int) -> int:
    """Count the numbers held at once: rows, and the matrix of the smaller dimension.

    Parameters
    ----------
    n_rows, n_outputs, n_params : int
        Numbers of rows, outputs and weights.
    """
    n = len(affordable_rows(n_rows, n_outputs, n_params)) * n_outputs
    return n * n_params + min(n, n_params) ** 2


def _root_rows(
    network: Network, likelihood: Likelihood, theta: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """Compute a root of every row's curvature, through the network.

    Parameters
    ----------
    network : Network
    likelihood : Likelihood
    theta : Tensor of shape (P,)
    x : Tensor of shape (n, n_inputs)
    y : Tensor of shape (n, T) or (n,)

    Returns
    -------
    Tensor of shape (K, n, P)
        Columns of the roots.
    """
    if isinstance(network, RecordingNetwork):
        recording = network.record(theta, x)
        outputs = recording.outputs
        directions = _directions(likelihood, outputs.detach(), y)
        jacobian = AveragedJacobian(recording, network.weight_layers, 1, outputs, directions)
        return dense_jacobian(jacobian, network.layout).detach()
    directions = _directions(likelihood, network.forward(theta, x).detach(), y)
    blocks = []
    theta = theta.requires_grad_()
    import_symbolic_shapes()
    for rows in torch.arange(len(x), device=x.device).split(16):
        outputs = network.forward(theta, x[rows])
        columns = directions[:, rows]
        n_columns, n, _ = columns.shape
        # Every gradient is that of one row in one direction.
        selected = torch.eye(n).to(columns)[:, :, None] * columns[:, None]
        (slopes,) = torch.autograd.grad(
            outputs, theta, selected.flatten(0, 1), is_grads_batched=True
        )
        blocks.append(slopes.view(n_columns, n, -1))
    return torch.cat(blocks, 1).detach()


def _directions(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the columns (K, n, O) of a root of every row's curvature that aren't all zero.

    Class probabilities don't change if all logits change equally. The columns are rotated so that
    this direction is a column of zeros, which is left out.
    """
    root = likelihood.hessian_root(outputs, y).movedim(0, -1)  # (n, O, K)
    values, vectors = torch.linalg.eigh(root.mT @ root)  # in rising order
    if vectors.shape[-1] == 1 or bool((values[:, 0] > 1e-10 * values[:, -1]).any()):
        return root.movedim(-1, 0)
    return (root @ vectors)[..., 1:].movedim(-1, 0)


_DAMPING = 0.7  # fraction of a logarithmic step, as in the search by Gauss-Newton steps
_MIN_DOF = 1.0  # smallest number of degrees of freedom of the noise


def scale_update_steps(max_iter: int) -> range:
    """Return the steps of ``max_iter`` at which scales move.

    There are eighteen. In the first tenth of the steps only the weights move.
    """
    interval = max(1, max_iter // 20)
    first = max(1, max_iter // 10)
    return range(-(-first // interval) * interval, max_iter, interval)


class ScaledModes(MapObjective):
    """`MapObjective` under a prior whose scales follow the evidence of every position.

    An update of the scales takes M times `compute_effective_parameters`. Between updates scales
    (and noise) are fixed.

    Parameters
    ----------
    posterior : NetworkPosterior
        Posterior with a prior of learned scales, at the initial ones: (G,), or (M, G).
    density : callable
        Returns the density that training uses, of all rows or of minibatches.
    position : Tensor of shape (M, D)
        Initial positions.
    rows : Data
        All rows in float64, for the curvature.
    steps : container of int
        Steps at which scales move, see `scale_update_steps`.
    log_noise_range : tuple of float, optional
        Smallest and largest log noise, if the evidence sets the noise, which must be normal and
        learned. By default it is trained as a parameter.
    """

    def __init__(
        self,
        posterior: NetworkPosterior,
        density: Callable[[NetworkPosterior], LogDensity],
        position: Tensor,
        rows: Data,
        steps: Container[int],
        log_noise_range: tuple[float, float] | None = None,
    ) -> None:
        prior: GroupScalePrior = posterior.prior  # type: ignore[assignment]
        self._posterior = posterior
        self._make = density
        self._rows = rows
        self._steps = steps
        self._log_noise_range = log_noise_range
        self._has_fixed_noise = False
        self.prior = replace(prior, hyper=prior.hyper.expand(len(position), -1))
        super().__init__(self._density(), posterior.network.layout.n_params, position)

    def __call__(self, step: int) -> Tensor:
        """Return the mean of the losses, 0-d, and write the gradient of their sum."""
        if step in self._steps:
            self._update()
        value = super().__call__(step)
        if self._has_fixed_noise:
            self.gradient[self.n_theta :] = 0.0
        return value

    def _update(self) -> None:
        """Move the scales, and the noise if the evidence sets it."""
        position = self.position.double()
        n = self._posterior.network.layout.n_params
        variance, n_effective = effective_parameters_by_position(
            self._posterior, self.prior, position, self._rows
        )
        self.prior = update_scales(self.prior, position[:, :n], variance)
        self._log_density = self._density()
        if self._log_noise_range is not None:
            log_noise = update_noise(self._posterior, position, n_effective, self._rows)
            self.params[self.n_theta :] = log_noise.clamp(*self._log_noise_range).flatten()
            self._has_fixed_noise = True

    def _density(self) -> LogDensity:
        self._posterior = replace(self._posterior, prior=self.prior)
        return self._make(self._posterior)


def effective_parameters_by_position(
    posterior: NetworkPosterior, prior: GroupScalePrior, position: Tensor, rows: Data
) -> EffectiveParameters:
    """Compute the effective parameters of every position, under its own scales.

    Parameters
    ----------
    posterior : NetworkPosterior
    prior : GroupScalePrior
        Prior with scales (M, G).
    position : Tensor of shape (M, D)
    rows : Data
        Float64.

    Returns
    -------
    EffectiveParameters
        Variances (M, P) and effective numbers of parameters (M, K).
    """
    network = posterior.network
    n = posterior.network.layout.n_params
    likelihood = posterior.likelihood.to(rows.x)
    scale = prior.scale.to(rows.x)
    by_position = [
        compute_effective_parameters(
            network, likelihood.at(position_m[n:]), position_m[:n], rows, scale_m
        )
        for position_m, scale_m in zip(position, scale, strict=True)
    ]
    return EffectiveParameters(*(torch.stack(t) for t in zip(*by_position, strict=True)))


def update_scales(prior: GroupScalePrior, theta: Tensor, variance: Tensor) -> GroupScalePrior:
    """Return the prior after one damped step of the scales (M, G), given weights (M, P).

    Parameters
    ----------
    prior : GroupScalePrior
        Prior with M sets of scales.
    theta : Tensor of shape (M, P)
        Weights.
    variance : Tensor of shape (M, P)
        Posterior variances of the weights.
    """
    hyper = prior.evidence_step(theta, variance, prior.hyper.to(theta), _DAMPING)
    return replace(prior, hyper=hyper.to(prior.hyper))


def update_noise(
    posterior: NetworkPosterior, position: Tensor, n_effective: Tensor, rows: Data
) -> Tensor:
    """Make one damped step of the log noise.

    Parameters
    ----------
    posterior : NetworkPosterior
    position : Tensor of shape (M, D)
        Weights and log noise.
    n_effective : Tensor of shape (M, T)
        Effective numbers of parameters of every target.
    rows : Data
        Float64.

    Returns
    -------
    Tensor of shape (M, T)
        Log noise.
    """
    n = posterior.network.layout.n_params
    residual = rows.y - posterior.network.forward(position[:, :n], rows.x)
    squares = torch.einsum("n,mnt->mt", rows.weight, residual.square_())
    dof = (rows.weight.sum() - n_effective).clamp_min(_MIN_DOF)
    target = 0.5 * (squares.clamp_min(torch.finfo(squares.dtype).tiny) / dof).log()
    return torch.lerp(position[:, n:], target, _DAMPING)


class EffectiveNoise(NamedTuple):
    """Noise of one network, and the degrees of freedom that its weights use.

    Attributes
    ----------
    std : Tensor of shape (T,)
        Standard deviation of the noise, or the factor on the noise of every row.
    n_effective : Tensor of shape (T,)
        Effective number of parameters of every target.
    leverage : Tensor of shape (T, n)
        Leverages of the rows of `evenly_spaced_rows` at this noise.
    """

    std: Tensor
    n_effective: Tensor
    leverage: Tensor


def estimate_noise(
    network: MLP,
    theta: Tensor,
    data: Data,
    prior_scale: Tensor,
    noise_std: Tensor,
    *,
    df: float | None = None,
    row_noise: Tensor | None = None,
) -> EffectiveNoise:
    """Estimate the noise of every target, by a fixed-point iteration.

    Parameters
    ----------
    network : MLP
        Network whose first T outputs predict the targets.
    theta : Tensor of shape (P,)
        Weights.
    data : Data
        Float64, targets (N, T).
    prior_scale : Tensor of shape (P,)
        Prior standard deviations of the weights.
    noise_std : Tensor of shape (T,)
        Noise during training, for leave-one-out residuals.
    df : float, optional
        Degrees of freedom of Student's noise, whose scale is estimated.
    row_noise : Tensor of shape (N, T), optional
        Noise of every row, whose common factor is estimated.

    Returns
    -------
    EffectiveNoise

    Notes
    -----
    O(n T P m + 20 m^3) with m the smaller of n T and P, and without the 20 for one target.
    """
    x, y, weight = data
    total = float(weight.sum())
    floor = torch.finfo(y.dtype).tiny
    residual = y - network.forward(theta, x)[:, : y.shape[1]]
    deviation = y - weight @ y / total
    if row_noise is not None:
        residual = residual / row_noise
        deviation = deviation / row_noise

    def sum_squares(square: Tensor, weight: Tensor, precision: Tensor) -> Tensor:
        """Sum squares (n, T) over rows. Under Student's distribution outliers count less."""
        if df is not None:
            square = square * ((df + 1.0) / (df + square * precision))
        return (weight @ square).clamp_min(floor)

    squares = residual.square()
    variance = weight @ deviation.square() / total
    index, leverages = compute_leverages(network, theta, data, prior_scale, row_noise)
    precision = total / (weight @ squares).clamp_min(floor)
    for _ in range(20):
        n_effective = leverages(precision).sum(1)
        dof = (total - n_effective).clamp_min(_MIN_DOF)
        precision = dof / sum_squares(squares, weight, precision)

    # If the weights use more than this fraction of the degrees of freedom, the residuals contain no
    # information (diabetes, concrete and linnerud with 15 to 600 rows: up to 0.9 the fixed point
    # predicts best, from 0.97 on it loses 2 to 1,000 nats per row).
    is_saturated = n_effective > 0.95 * total
    if bool(is_saturated.any()):
        training_precision = noise_std.to(y).clamp_min(1e-3) ** -2
        one_minus_leverage = (1.0 - leverages(training_precision)).clamp_min(1e-9)
        held_out_squares = (residual[index] / one_minus_leverage.T).square()
        weight = weight[index]
        held_out_precision = 1.0 / variance
        for _ in range(1 if df is None else 20):
            held_out_sum = sum_squares(held_out_squares, weight, held_out_precision)
            held_out_precision = weight.sum() / held_out_sum
        largest = torch.maximum(held_out_precision, 1.0 / variance)
        precision = torch.where(is_saturated, largest, precision)
    return EffectiveNoise(precision.rsqrt(), n_effective, leverages(precision))


# Boundaries of cells of probability, each represented by its median, with narrow ones for the
# tails of the precision.
_CELLS = np.array([0.0, 0.0005, 0.003, 0.012, 0.04, 0.1, 0.22, 0.42, 0.7, 1.0])


class NoiseNodes(NamedTuple):
    """Normal distributions whose mixture is each member's Student's t.

    Attributes
    ----------
    std : Tensor of shape (M, Q, T)
        Standard deviations.
    weight : Tensor of shape (Q,)
        Weights with a sum of one.
    """

    std: Tensor
    weight: Tensor


def compute_noise_nodes(dof: np.ndarray) -> NoiseNodes:
    """Return the mixture for a noise of 1 that is estimated with degrees of freedom (M, T).

    They are at least four, with which the variance of Student's t is twice the noise's.
    """
    dof = np.maximum(dof, 4.0)[:, None, :]
    median = (0.5 * (_CELLS[1:] + _CELLS[:-1]))[:, None]
    factor = np.sqrt(dof / chi2.ppf(median, dof))
    return NoiseNodes(torch.as_tensor(factor), torch.as_tensor(np.diff(_CELLS)))


def compute_leverages(
    network: MLP, theta: Tensor, data: Data, prior_scale: Tensor, row_noise: Tensor | None = None
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Prepare the leverages of evenly spaced rows as a function of the noise.

    Parameters
    ----------
    network : MLP
    theta : Tensor of shape (P,)
        Weights.
    data : Data
        Float64, targets (N, T). A row of weight w counts once, with the leverage of all its
        repetitions.
    prior_scale : Tensor of shape (P,)
        Prior standard deviations of the weights.
    row_noise : Tensor of shape (N, T), optional
        Unit of the outputs, row by row.

    Returns
    -------
    Tensor of shape (n,), int64
        Indices of the rows of `evenly_spaced_rows`, whose curvature is scaled to that of all rows.
    callable
        Returns the leverages (T, n) at noise precisions (T,).
    """
    x, y, weight = data
    index = evenly_spaced_rows(len(x))
    factor = float(weight.sum()) / float(weight[index].sum())
    _, jacobian = outputs_and_jacobian(network, theta.unsqueeze(0), x[index])
    root = (factor * weight[index]).sqrt().unsqueeze(1)
    if row_noise is not None:
        root = root / row_noise[index]
    jacobian_targets = jacobian[0, :, : y.shape[1]]
    rows = (jacobian_targets * root.unsqueeze(2) * prior_scale).transpose(0, 1)  # (T, n, P)
    n_targets, n, p = rows.shape
    if n_targets == 1:
        return index, _single_target_leverages(rows[0])
    if p < n_targets * n:
        return index, _leverages_by_weights(rows)
    return index, _leverages_by_rows(rows)


def _single_target_leverages(rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function for the leverages of one target.

    Its noise scales all of the curvature, whose eigenvectors don't change: O(n m).
    """
    n, p = rows.shape
    with explain_torch_errors():
        if p < n:
            values, vectors = torch.linalg.eigh(rows.mT @ rows)
            values = values.clamp_min(0.0)
            squares = (rows @ vectors).square()
        else:
            values, vectors = torch.linalg.eigh(rows @ rows.mT)
            values = values.clamp_min(0.0)
            squares = vectors.square() * values
    return lambda precision: (squares @ (precision / (1.0 + precision * values))).unsqueeze(0)


def _leverages_by_weights(rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function for the leverages of several targets, in the space of the weights."""
    products = rows.mT @ rows

    def leverages(precision: Tensor) -> Tensor:
        system = torch.einsum("t,tpq->pq", precision, products)
        system.diagonal().add_(1.0)
        factor = cholesky(system, name="The posterior's precision", remedy=_REMEDY)
        solved = torch.linalg.solve_triangular(factor, rows.flatten(0, 1).mT, upper=False)
        return precision.unsqueeze(1) * solved.square().sum(0).view(rows.shape[:2])

    return leverages


def _leverages_by_rows(rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function for the leverages of several targets, in the space of the rows."""
    flat = rows.flatten(0, 1)
    kernel = flat @ flat.mT

    def leverages(precision: Tensor) -> Tensor:
        noise = (1.0 / precision).repeat_interleave(rows.shape[1])
        system = kernel.clone()
        system.diagonal().add_(noise)
        factor = cholesky(system, name="The covariance of the targets", remedy=_REMEDY)
        one_minus_leverage = noise * torch.cholesky_inverse(factor).diagonal()
        return (1.0 - one_minus_leverage).view(rows.shape[:2])

    return leverages
