r"""A Gaussian process for tables: one length scale a column, and a linear part.

.. math:: k(x, x') = a^2 (1 + r + r^2 / 3) e^{-r} + \frac{b^2}{d}\, x' x, \qquad
          r^2 = 5 \sum_j (x_j - x'_j)^2 / \ell_j^2,

Matern's kernel of smoothness 5/2 (Rasmussen & Williams 2006, eq. 4.17) and a linear one, on d
standardised columns, with normal noise. Scales and noise are at the maximum of the evidence times
their log-normal priors, found on some hundred rows; the posterior is of up to two thousand.
Several targets share all of them.
"""

from dataclasses import dataclass
from functools import partial
from math import log, pi
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.models.model import Data
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.linalg import cholesky, try_cholesky
from skbayes_sym.numerics.optimise import lbfgs
from skbayes_sym.numerics.random import float64_normal, generator_from

Array = npt.NDArray[np.float64]

_REMEDY = "Drop rows that repeat each other, or give X as float64."


@dataclass(frozen=True)
class GaussianProcessDefaults:
    """Numbers behind a Gaussian process.

    ``scale_std``: of the prior of the logarithms of the length scales, about a common one; that of
    labels keeps them together, since scales that are free have seen the labels that rows leave out
    (`horse-colic`: -.17 nats by left-out rows, -.62 by new ones).
    """

    rows_of_scales: int = 500
    most_rows: int = 2000
    steps: int = 60
    scale_std: float = 1.5
    scale_std_of_labels: float = 0.1
    n_features: int = 128  # random frequencies of the prior, new ones for each sampled function


class TableKernel(NamedTuple):
    """The kernel's scales and the noise; ``position``: their logarithms, (d + 3,)."""

    length: Tensor  # (d,)
    amplitude: Tensor  # of Matern's part, a
    slope: Tensor  # of the linear part, b
    noise: Tensor  # standard deviation

    @classmethod
    def at(cls, position: Tensor) -> "TableKernel":
        """Scales at a position; the noise is at least .0002, in units of the targets."""
        scales = position.exp()
        noise = (scales[-1].square() + 0.0002**2).sqrt()
        return cls(scales[:-3], scales[-3], scales[-2], noise)

    def matern(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled distances r and Matern's part, both (N, M)."""
        one = 5.0**0.5 * x / self.length
        two = 5.0**0.5 * other / self.length
        squares = one.square().sum(1, keepdim=True) + two.square().sum(1) - 2.0 * one @ two.mT
        r = squares.clamp_min(1e-24).sqrt()
        return r, self.amplitude.square() * (1.0 + r + r * r / 3.0) * (-r).exp()

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Covariances of function values (N, M)."""
        return self.matern(x, other)[1] + self.slope.square() / x.shape[1] * x @ other.mT

    def variance(self, x: Tensor) -> Tensor:
        """Variances of function values (N,)."""
        return self.amplitude.square() + self.slope.square() * x.square().mean(1)


def log_evidence(position: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """Log density of centred targets (N, T) and its gradient (d + 3,); -inf beyond arithmetic.

    O(N^3 + N^2 d), without a matrix for each column.
    """
    (x, y, weight), kernel = data, TableKernel.at(position)
    r, matern = kernel.matern(x, x)
    linear = kernel.slope.square() / x.shape[1] * x @ x.mT
    noise = kernel.noise.square() / weight
    factor = try_cholesky(matern + linear + torch.diag(noise))
    if factor is None:
        return position.new_tensor(-torch.inf), torch.zeros_like(position)
    inverse = torch.cholesky_inverse(factor)
    solved = inverse @ y
    n_targets = y.shape[1]
    value = -0.5 * (y * solved).sum() - n_targets * factor.diagonal().log().sum()
    value = value - 0.5 * y.numel() * log(2.0 * pi)
    pull = 0.5 * (solved @ solved.mT - n_targets * inverse)  # of the value by the covariance
    # The slope of Matern's part by log l_j is 5/3 a^2 (1 + r) e^-r (x_j - x'_j)^2 / l_j^2.
    bent = pull * (5.0 / 3.0) * kernel.amplitude.square() * (1.0 + r) * (-r).exp()
    squares = 2.0 * (bent.sum(1) @ x.square() - (x * (bent @ x)).sum(0))
    gradient = torch.cat([
        squares / kernel.length.square(),
        torch.stack([
            2.0 * (pull * matern).sum(), 2.0 * (pull * linear).sum(),
            2.0 * (pull.diagonal() / weight).sum() * (2.0 * position[-1]).exp(),
        ]),
    ])  # fmt: skip
    return value, gradient


def fit_scales(data: Data, effort: GaussianProcessDefaults, scale_std: float) -> Tensor:
    """Position of the scales where evidence times prior is highest, (d + 3,)."""
    d = data.x.shape[1]
    ones = data.x.new_ones(d)
    mean = torch.cat([(0.5 * log(d) + 0.3) * ones, ones.new_tensor([0.0, -1.0, -1.0])])
    std = torch.cat([scale_std * ones, ones.new_tensor([8.0, 1.5, 2.0])])

    def loss(position: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = log_evidence(position, data)
        away = (position - mean) / std
        return 0.5 * away.square().sum() - value, away / std - gradient

    bounds = [(-3.0, 8.0)] * d + [(-4.0, 9.0), (-6.0, 3.0), (-9.0, 2.0)]
    return lbfgs(loss, mean, max_iter=effort.steps, bounds=bounds)


@dataclass(frozen=True, eq=False)
class GaussianProcess(BasePredictor):
    """Posterior of T functions given rows.

    ``position`` (d + 3,): logarithms of the scales; ``x`` (N, d), ``solved`` (N, T): the rows, and
    the covariance's inverse times the centred targets; ``factor`` (N, N): its Cholesky factor;
    ``weight`` (N,): repetitions of the rows; ``centre`` (T,): of the targets.
    """

    position: Array
    x: Array
    solved: Array
    factor: Array
    weight: Array
    centre: Array

    def _tensors(self, like: Tensor) -> tuple[TableKernel, list[Tensor]]:
        """The kernel at its scales, and the arrays."""
        arrays = (self.x, self.solved, self.factor, self.weight, self.centre)
        kernel = TableKernel.at(torch.as_tensor(self.position))
        return TableKernel(*(t.to(like) for t in kernel)), [
            torch.as_tensor(a).to(like) for a in arrays
        ]

    def distribution(self, x: Tensor) -> NormalMixture:
        kernel, (rows, solved, factor, _, centre) = self._tensors(x)
        across = kernel(rows, x)
        root = torch.linalg.solve_triangular(factor, across, upper=False)
        variance = (kernel.variance(x) - root.square().sum(0)).clamp_min(0.0)
        loc = across.mT @ solved + centre
        noise = kernel.noise.square().reshape(1, 1, 1)
        return NormalMixture(loc.unsqueeze(0), variance.reshape(1, -1, 1), noise)

    def mean(self, x: Tensor) -> Tensor:
        kernel, (rows, solved, _, _, centre) = self._tensors(x)
        return kernel(x, rows) @ solved + centre

    def leave_one_out(self) -> NormalMixture:
        r"""Distribution of every row given all others, of one repetition.

        .. math:: y_n \mid y_{-n} \sim N(y_n - [K^{-1} y]_n / [K^{-1}]_{nn}, 1 / [K^{-1}]_{nn})

        (Rasmussen & Williams 2006, eqs. 5.10 to 5.12); K holds the noise. The centre is the mean of
        the other targets. Predictions are linear in the centre, and moving it by one moves the
        prediction of row n by :math:`[K^{-1} 1]_n / [K^{-1}]_{nn}`. The scales are those of all
        rows.
        """
        kernel, (x, solved, factor, weight, centre) = self._tensors(torch.as_tensor(self.x))
        variance = torch.cholesky_inverse(factor).diagonal().reciprocal().unsqueeze(1)
        noise = kernel.noise.square()
        y = kernel(x, x) @ solved + noise / weight.unsqueeze(1) * solved + centre
        of_function = (variance - noise / weight.unsqueeze(1)).clamp_min(0.0)
        other_weight = (weight.sum() - weight).unsqueeze(1)
        shift = -weight.unsqueeze(1) * (y - centre) / other_weight
        shift = torch.where(other_weight > 0.0, shift, 0.0)  # a single row keeps its centre
        response = variance * torch.cholesky_solve(torch.ones_like(variance), factor)
        loc = y - variance * solved + shift * response
        return NormalMixture(loc.unsqueeze(0), of_function.unsqueeze(0), noise.reshape(1, 1, 1))

    def sample_conditionals(
        self, x: Tensor, n: int, *, generator: torch.Generator
    ) -> NormalMixture:
        """Sample functions by Matheron's rule, each from its own random Fourier features.

        Shared features would give all functions the same error of the prior covariance. With new
        frequencies for each function the mean and the covariance over functions are exact for any
        number of features (Wilson et al. 2020).
        """
        kernel, (rows, solved, factor, weight, centre) = self._tensors(x)
        d = x.shape[1]
        n_targets = solved.shape[1]
        m = GaussianProcessDefaults().n_features
        n_rows = len(rows)
        points = torch.cat([rows, x])
        scaled = points / kernel.length
        linear = kernel.slope / d**0.5 * points
        noise_std = kernel.noise / weight.sqrt().unsqueeze(1)

        # Random numbers are drawn function by function, and none depends on the query points: a
        # function is the same at whatever points, and for whatever number of functions.
        normal = partial(float64_normal, generator=generator)
        prior = x.new_empty(n, len(x), n_targets)
        residual = x.new_empty(n_rows, n, n_targets)
        for k in range(n):
            # Matern's spectral density is Student's t with 5 degrees of freedom.
            chi_square = normal((m, 5)).square().sum(1, keepdim=True)
            frequency = (normal((m, d)) * (5.0 / chi_square).sqrt()).to(x)
            height = normal((2 * m, n_targets)).to(x)
            slope = normal((d, n_targets)).to(x)
            noise = normal((n_rows, n_targets)).to(x)

            # With a sine and a cosine of each frequency the variance at a point is exact.
            angle = scaled @ frequency.mT
            waves = angle.cos() @ height[:m] + angle.sin() @ height[m:]
            values = kernel.amplitude / m**0.5 * waves + linear @ slope
            prior[k] = values[n_rows:]
            residual[:, k] = values[:n_rows] + noise_std * noise

        correction = torch.cholesky_solve(residual.flatten(1), factor).unflatten(1, (n, n_targets))
        coefficients = (solved.unsqueeze(1) - correction).movedim(1, 0)
        loc = prior + kernel(x, rows) @ coefficients + centre
        return NormalMixture(loc, 0.0 * loc, kernel.noise.square().reshape(1, 1, 1))


def condition(position: Tensor, data: Data) -> GaussianProcess:
    """Posterior at given scales, O(N^3)."""
    (x, y, weight), kernel = data, TableKernel.at(position)
    centre = weight @ y / weight.sum()
    covariance = kernel(x, x)
    covariance.diagonal().add_(kernel.noise.square() / weight)
    factor = cholesky(covariance, name="The covariance of the targets", remedy=_REMEDY)
    solved = torch.cholesky_solve(y - centre, factor)
    arrays = (t.cpu().numpy() for t in (position, x, solved, factor, weight, centre))
    return GaussianProcess(*arrays)


def fit_process(
    data: Data,
    seed: int,
    scale_std: float,
    effort: GaussianProcessDefaults = GaussianProcessDefaults(),
) -> tuple[GaussianProcess, NormalMixture]:
    """Posterior of float64 rows, and the distribution of every row without itself.

    Beyond `GaussianProcessDefaults.most_rows` a random choice of rows makes the posterior, which
    predicts the others.
    """
    order = torch.randperm(len(data.x), generator=generator_from(seed))
    few = Data(*(t[order[: effort.rows_of_scales]] for t in data))
    centred = few._replace(y=few.y - few.weight @ few.y / few.weight.sum())
    position = fit_scales(centred, effort, scale_std)
    used = order[: effort.most_rows].sort().values
    process = condition(position, Data(*(t[used] for t in data)))
    distribution = process.distribution(data.x)
    without = process.leave_one_out()
    loc = distribution.loc.clone()
    variance = distribution.variance.clone()
    loc[:, used], variance[:, used] = without.loc, without.variance
    return process, NormalMixture(loc, variance, distribution.noise_variance)
