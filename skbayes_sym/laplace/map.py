r"""Modes of a posterior by Adam, and scales and noise that the evidence of every mode sets.

With the Gauss-Newton curvature of the likelihood and independent normal weights of standard
deviations S before the data, weights have at a mode the covariance

.. math:: C^{-1} = S^{-2} + \sum_n w_n J_n' \Lambda_n J_n .

The rows :math:`R = \sqrt{w_n} \Lambda_n^{1/2} J_n S`, one per output of every row, give C in the
smaller of two dimensions, the number of weights or that of rows:

.. math:: C = S (I + R'R)^{-1} S = S \left[ I - R' (I + R R')^{-1} R \right] S,

and the leverages of rows as the diagonal of :math:`R (I + R'R)^{-1} R' = I - (I + R R')^{-1}`.

A mode of weights and scales together would count all :math:`n_g` weights of a group as determined,
also those that only follow their prior. The evidence integrates the weights out: by Laplace's
approximation its maximum under the hyperprior is at

.. math:: \alpha_g = \frac{\gamma_g + 2a}{|\theta_g|^2 + 2 a s_g^2}, \qquad
          \gamma_g = n_g - \alpha_g \operatorname{tr}_g C

(MacKay 1992, "A practical Bayesian framework for backpropagation networks", eq. 21). A group that
no row speaks for has :math:`\gamma_g = 0`, and at weights of zero the precision :math:`1 / s_g^2`.
Normal noise that the evidence sets, too, follows
:math:`\beta_t = (N - \gamma_t) / \sum_n w_n r_{nt}^2`, with :math:`\gamma_t` the sum of the rows'
leverages (eq. 22): trained as a parameter it would be too small by what the weights have taken.

Where the weights have taken nearly all rows, it is the root mean square of the linearised network's
leave-one-out residuals :math:`r_{nt} / (1 - h_{nt})`, at most the spread of the targets. Of an
estimate from :math:`\nu = N - \gamma` rows a new target follows Student's t of :math:`\nu` degrees
of freedom, a mixture of normals of precision :math:`\beta u`, :math:`u \sim \chi^2_\nu / \nu`.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from skbayes_sym.base.log_density import Evaluation, LogDensity, NetworkPosterior
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
    """Minus the log posterior density of M positions, as `numerics.optimise.minimise` wants it.

    The loss is a sum over positions, and Adam treats every coordinate by itself. ``params``,
    ``gradient`` (M * D,): ``theta`` of all positions, then ``log sigma`` of all: two stretches with
    ranges of their own. The mode looked for is that of the density of (theta, sigma).

    ``log_density``: over positions ``[theta | log sigma]``; ``n_theta``: length of ``theta``, all
    of the position where there is no sigma; ``position`` (M, D): where the searches start.
    """

    def __init__(self, log_density: LogDensity, n_theta: int, position: Tensor) -> None:
        self._log_density = log_density
        self._split = [n_theta, position.shape[1] - n_theta]
        self._n = len(position)
        self.params = self._flat(position)
        self.gradient = torch.zeros_like(self.params)

    @property
    def n_theta(self) -> int:
        """Length of the stretch of ``params`` that holds ``theta``."""
        return self._n * self._split[0]

    @property
    def position(self) -> Tensor:
        """(M, D)."""
        parts = self.params.split([self._n * n for n in self._split])
        return torch.cat([p.view(self._n, -1) for p in parts if p.numel()], 1)

    def log_posterior(self, position: Tensor) -> Tensor:
        """Log density of (theta, sigma), (M, D) -> (M,) nats."""
        return self._log_density(position) - position[:, self._split[0] :].sum(1)

    def __call__(self, step: int) -> Tensor:
        """Mean of the losses, 0-d; the gradient written is that of their sum."""
        position = self.position
        value, gradient = self._log_density.evaluate(position)
        torch.neg(self._flat(gradient), out=self.gradient)
        self.gradient[self.n_theta :] += 1.0
        return (position[:, self._split[0] :].sum(1) - value).mean()

    def _flat(self, position: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in position.split(self._split, 1)])


@dataclass(frozen=True, eq=False)
class MinibatchDensity:
    """A log posterior density estimated from the rows of a batch, another one at every call.

    Unbiased: the rows' weights are scaled to the whole data set.
    """

    posterior: NetworkPosterior  # of all rows
    batches: Batches

    @property
    def n_dims(self) -> int:
        """Length of a position."""
        return self.posterior.n_dims

    def __call__(self, position: Tensor) -> Tensor:
        return self.posterior(position)

    def evaluate(self, position: Tensor) -> Evaluation:
        return self.posterior.evaluate(position, self.batches.next())


_MOST_WORK = 4e9  # multiplications of a product: a third of a second of one core
_REMEDY = "Standardise X and y, or give prior a number."


class EffectiveParameters(NamedTuple):
    """Variances and leverages at one weight vector."""

    variance: Tensor  # (P,), the diagonal of C
    taken: Tensor  # (K,), sums of leverages: how many rows each column of the root has lost


def determined(
    network: Network, likelihood: Likelihood, theta: Tensor, data: Data, scale: Tensor
) -> EffectiveParameters:
    """Variances of the weights, and what they take of the rows.

    ``likelihood``: with a ``hessian_root``, at its parameters; normal noise has a column a target.
    ``theta`` (P,). ``data``: float64; a row of weight 2 counts as two. ``scale`` (P,): standard
    deviations of the weights' prior.

    O(n K P m + m^3) for n rows of K outputs, m the smaller of n K and P. Where that takes more
    than 4e9 multiplications an even selection of rows stands for all, its curvature scaled.
    """
    x, y, weight = data
    chosen = affordable_rows(len(x), network.n_outputs, len(theta)).to(x.device)
    share = weight.sum() / weight[chosen].sum()
    root = (share * weight[chosen]).sqrt()
    with torch.inference_mode(False), torch.enable_grad():
        columns = _root_rows(network, likelihood, theta.detach().clone(), x[chosen], y[chosen])
    rows = (root[:, None] * columns).flatten(0, 1) * scale
    n, p = rows.shape
    if p <= n:
        system = rows.mT @ rows
        system.diagonal().add_(1.0)
        factor = cholesky(system, name="The posterior's precision", remedy=_REMEDY)
        share = torch.cholesky_inverse(factor).diagonal()
        solved = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
        leverage = solved.square().sum(0)
    else:
        system = rows @ rows.mT
        system.diagonal().add_(1.0)
        factor = cholesky(system, name="The covariance of the outputs", remedy=_REMEDY)
        solved = torch.linalg.solve_triangular(factor, rows, upper=False)
        share = (1.0 - solved.square().sum(0)).clamp_min(0.0)
        leverage = 1.0 - torch.cholesky_inverse(factor).diagonal()
    return EffectiveParameters(scale.square() * share, leverage.view(len(columns), -1).sum(1))


def evenly_spaced_rows(n_rows: int, most: int = 4096) -> Tensor:
    """Places of the rows that stand for all, at most so many, spread evenly, int64 (n,)."""
    return torch.linspace(0, n_rows - 1, min(n_rows, most), dtype=torch.float32).round().long()


def affordable_rows(n: int, n_outputs: int, p: int) -> Tensor:
    """Places of the rows that stand for all ``n``, int64: all of them where work allows."""
    # (n K) P min(n K, P) multiplications
    most = max((_MOST_WORK / p) ** 0.5 if p**3 > _MOST_WORK else _MOST_WORK / p**2, 1.0)
    return evenly_spaced_rows(n, n_rows_per_block(int(most), n_outputs))


def count_curvature_entries(n: int, n_outputs: int, p: int) -> int:
    """Numbers that are held together: rows, and the matrix of the smaller dimension."""
    size = len(affordable_rows(n, n_outputs, p)) * n_outputs
    return size * p + min(size, p) ** 2


def _root_rows(
    network: Network, likelihood: Likelihood, theta: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """The columns of a root of every row's curvature, through the network: (K, n, P)."""
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
        # One direction a row: the others are 0.
        alone = torch.eye(n).to(columns)[:, :, None] * columns[:, None]
        (slopes,) = torch.autograd.grad(outputs, theta, alone.flatten(0, 1), is_grads_batched=True)
        blocks.append(slopes.view(n_columns, n, -1))
    return torch.cat(blocks, 1).detach()


def _directions(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """Columns (K, n, O) of a root of every row's curvature, none that all rows can do without.

    Class probabilities don't change along equal logits: columns are turned so that one is 0.
    """
    root = likelihood.hessian_root(outputs, y).movedim(0, -1)  # (n, O, K)
    values, turn = torch.linalg.eigh(root.mT @ root)  # rising
    if turn.shape[-1] == 1 or bool((values[:, 0] > 1e-10 * values[:, -1]).any()):
        return root.movedim(-1, 0)
    return (root @ turn)[..., 1:].movedim(-1, 0)


_DAMPING = 0.7  # share of a logarithmic step, as of modes that Gauss-Newton steps find
_LEAST_FREEDOMS = 1.0  # rows that are left to the noise, at least


def scale_update_steps(max_iter: int) -> range:
    """Steps of ``max_iter`` at which scales move: eighteen, the weights alone before."""
    every = max(1, max_iter // 20)
    first = max(1, max_iter // 10)
    return range(-(-first // every) * every, max_iter, every)


class ScaledModes(MapObjective):
    """`MapObjective` under a prior whose scales follow the evidence of every position.

    ``posterior``: with a prior of learned scales, those to start from: (G,), or (M, G).
    ``density``: what training sees of it: all rows, or minibatches. ``position`` (M, D): where the
    searches start. ``rows``: all rows in float64, for the curvature. ``steps``: when scales move,
    as `scale_update_steps` has it. ``log_noise_range``: where the evidence sets the noise, which
    must be normal and learned: its logarithm's ends. By default it is trained as a parameter.

    An update takes M times `determined`; between updates scales (and noise) stay.
    """

    def __init__(
        self, posterior: NetworkPosterior, density: Callable[[NetworkPosterior], LogDensity],
        position: Tensor, rows: Data, steps: Container[int],
        log_noise_range: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        prior: GroupScalePrior = posterior.prior  # type: ignore[assignment]
        self._posterior = posterior
        self._make = density
        self._rows = rows
        self._steps = steps
        self._log_noise_range = log_noise_range
        self._holds_noise = False
        self.prior = replace(prior, hyper=prior.hyper.expand(len(position), -1))
        super().__init__(self._density(), posterior.network.layout.n_params, position)

    def __call__(self, step: int) -> Tensor:
        if step in self._steps:
            self._update()
        value = super().__call__(step)
        if self._holds_noise:
            self.gradient[self.n_theta :] = 0.0
        return value

    def _update(self) -> None:
        position = self.position.double()
        n = self._posterior.network.layout.n_params
        variance, taken = determined_by_each(self._posterior, self.prior, position, self._rows)
        self.prior = learned(self.prior, position[:, :n], variance)
        self._log_density = self._density()
        if self._log_noise_range is not None:
            log_noise = learned_noise(self._posterior, position, taken, self._rows)
            self.params[self.n_theta :] = log_noise.clamp(*self._log_noise_range).flatten()
            self._holds_noise = True

    def _density(self) -> LogDensity:
        self._posterior = replace(self._posterior, prior=self.prior)
        return self._make(self._posterior)


def determined_by_each(
    posterior: NetworkPosterior, prior: GroupScalePrior, position: Tensor, rows: Data
) -> EffectiveParameters:
    """`determined` of every position (M, D), under scales of its own: (M, P) and (M, K)."""
    network = posterior.network
    n = posterior.network.layout.n_params
    likelihood = posterior.likelihood.to(rows.x)
    scale = prior.scale.to(rows.x)
    each = [
        determined(network, likelihood.at(one[n:]), one[:n], rows, prior_scale)
        for one, prior_scale in zip(position, scale, strict=True)
    ]
    return EffectiveParameters(*(torch.stack(t) for t in zip(*each, strict=True)))


def learned(prior: GroupScalePrior, theta: Tensor, variance: Tensor) -> GroupScalePrior:
    """The prior after one damped step of the scales (M, G) of weights (M, P)."""
    hyper = prior.evidence_step(theta, variance, prior.hyper.to(theta), _DAMPING)
    return replace(prior, hyper=hyper.to(prior.hyper))


def learned_noise(
    posterior: NetworkPosterior, position: Tensor, taken: Tensor, rows: Data
) -> Tensor:
    """Logarithms of the noise (M, T) after one damped step, of ``taken`` rows (M, T)."""
    n = posterior.network.layout.n_params
    residual = rows.y - posterior.network.forward(position[:, :n], rows.x)
    squares = torch.einsum("n,mnt->mt", rows.weight, residual.square_())
    freedoms = (rows.weight.sum() - taken).clamp_min(_LEAST_FREEDOMS)
    goal = 0.5 * (squares.clamp_min(torch.finfo(squares.dtype).tiny) / freedoms).log()
    return torch.lerp(position[:, n:], goal, _DAMPING)


class EffectiveNoise(NamedTuple):
    """Noise of one network, and the freedoms that its weights have taken."""

    std: Tensor  # (T,), or the factor on the noise of every row
    freedoms: Tensor  # (T,), what the weights have taken of the rows
    leverage: Tensor  # (T, n), what the `evenly_spaced_rows` weigh at this noise


def estimate_noise(
    network: MLP, theta: Tensor, data: Data, prior_scale: Tensor, noise_std: Tensor, *,
    df: float | None = None, row_noise: Tensor | None = None,
) -> EffectiveNoise:  # fmt: skip
    """Noise of every target at one weight vector (P,), iterated to its fixed point.

    ``data``: float64, targets (N, T), which the first T outputs predict; ``prior_scale`` (P,):
    standard deviations of the weights' prior; ``noise_std`` (T,): of training, at which rows are
    left out; ``df``: degrees of freedom of Student's noise, whose scale is meant; ``row_noise``
    (N, T): noise of every row, up to the factor that is meant.

    O(n T P m + 20 m^3) with m the smaller of n T and P, of one target without the 20.
    """
    x, y, weight = data
    total = float(weight.sum())
    floor = torch.finfo(y.dtype).tiny
    residual = y - network.forward(theta, x)[:, : y.shape[1]]
    away = y - weight @ y / total
    if row_noise is not None:
        residual = residual / row_noise
        away = away / row_noise

    def sums(square: Tensor, weight: Tensor, precision: Tensor) -> Tensor:
        """Sums (T,) of squares (n, T); by Student's law rows far off count less."""
        if df is not None:
            square = square * ((df + 1.0) / (df + square * precision))
        return (weight @ square).clamp_min(floor)

    squares = residual.square()
    spread = weight @ away.square() / total
    chosen, leverages = compute_leverages(network, theta, data, prior_scale, row_noise)
    precision = total / (weight @ squares).clamp_min(floor)
    for _ in range(20):
        taken = leverages(precision).sum(1)
        freedoms = (total - taken).clamp_min(_LEAST_FREEDOMS)
        precision = freedoms / sums(squares, weight, precision)
    # Beyond such a share of the rows residuals say nothing (diabetes, concrete and linnerud at 15
    # to 600 rows: up to .9 the fixed point predicts best, from .97 it loses 2 to 1,000 nats a row).
    is_all = taken > 0.95 * total
    if bool(is_all.any()):
        rest = (1.0 - leverages(noise_std.to(y).clamp_min(1e-3) ** -2)).clamp_min(1e-9)
        leave_one_out = (residual[chosen] / rest.T).square()
        weight = weight[chosen]
        by_rest = 1.0 / spread
        for _ in range(1 if df is None else 20):
            by_rest = weight.sum() / sums(leave_one_out, weight, by_rest)
        precision = torch.where(is_all, torch.maximum(by_rest, 1.0 / spread), precision)
    return EffectiveNoise(precision.rsqrt(), taken, leverages(precision))


# Cells of probability of the precision, each stood for by its median; narrow ones for the tails.
_CELLS = np.array([0.0, 0.0005, 0.003, 0.012, 0.04, 0.1, 0.22, 0.42, 0.7, 1.0])


class NoiseNodes(NamedTuple):
    """Normals that make up each member's Student's t."""

    std: Tensor  # (M, Q, T), standard deviations
    weight: Tensor  # (Q,), of sum one


def compute_noise_nodes(freedoms: np.ndarray) -> NoiseNodes:
    """Normals for noise of 1 estimated from ``freedoms`` (M, T) rows; four at least."""
    # Of so many degrees Student's variance isn't much larger than the noise's own.
    degrees = np.maximum(freedoms, 4.0)[:, None, :]
    middle = (0.5 * (_CELLS[1:] + _CELLS[:-1]))[:, None]
    factor = np.sqrt(degrees / chi2.ppf(middle, degrees))
    return NoiseNodes(torch.as_tensor(factor), torch.as_tensor(np.diff(_CELLS)))


def compute_leverages(
    network: MLP, theta: Tensor, data: Data, prior_scale: Tensor, row_noise: Tensor | None = None
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Places (n,) of the `evenly_spaced_rows`, and their leverages (T, n) at noise precisions (T,).

    A row of weight w counts once, with the leverage of all its repetitions; the curvature of the
    chosen rows is scaled to that of all. ``row_noise`` (N, T): the outputs' unit, row by row.
    """
    x, y, weight = data
    chosen = evenly_spaced_rows(len(x))
    share = float(weight.sum()) / float(weight[chosen].sum())
    _, jacobian = outputs_and_jacobian(network, theta.unsqueeze(0), x[chosen])
    root = (share * weight[chosen]).sqrt().unsqueeze(1)
    if row_noise is not None:
        root = root / row_noise[chosen]
    of_targets = jacobian[0, :, : y.shape[1]] * root.unsqueeze(2) * prior_scale
    rows = of_targets.transpose(0, 1)  # (T, n, P)
    n_targets, n, p = rows.shape
    if n_targets == 1:
        return chosen, _one_target(rows[0])
    return chosen, _by_weights(rows) if p < n_targets * n else _by_rows(rows)


def _one_target(rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Leverages of one target, whose noise scales all of the curvature: O(n m) in its axes."""
    n, p = rows.shape
    with explain_torch_errors():
        values, axes = torch.linalg.eigh(rows.mT @ rows if p < n else rows @ rows.mT)
    values = values.clamp_min(0.0)
    squares = (rows @ axes).square() if p < n else axes.square() * values
    return lambda precision: (squares @ (precision / (1.0 + precision * values))).unsqueeze(0)


def _by_weights(rows: Tensor) -> Callable[[Tensor], Tensor]:
    products = rows.mT @ rows

    def leverages(precision: Tensor) -> Tensor:
        system = torch.einsum("t,tpq->pq", precision, products)
        system.diagonal().add_(1.0)
        factor = cholesky(system, name="The posterior's precision", remedy=_REMEDY)
        solved = torch.linalg.solve_triangular(factor, rows.flatten(0, 1).mT, upper=False)
        return precision.unsqueeze(1) * solved.square().sum(0).view(rows.shape[:2])

    return leverages


def _by_rows(rows: Tensor) -> Callable[[Tensor], Tensor]:
    flat = rows.flatten(0, 1)
    kernel = flat @ flat.mT

    def leverages(precision: Tensor) -> Tensor:
        noise = (1.0 / precision).repeat_interleave(rows.shape[1])
        system = kernel.clone()
        system.diagonal().add_(noise)
        factor = cholesky(system, name="The covariance of the targets", remedy=_REMEDY)
        kept = noise * torch.cholesky_inverse(factor).diagonal()
        return (1.0 - kept).view(rows.shape[:2])

    return leverages
