r"""Gaussian process with one length scale per column and a linear part, as a member of a stack.

.. math:: k(x, x') = a^2 (1 + r + r^2 / 3) e^{-r} + \frac{b^2}{d}\, x' x, \qquad
          r^2 = 5 \sum_j (x_j - x'_j)^2 / \ell_j^2,

is the sum of Matern's kernel of smoothness 5/2 (Rasmussen & Williams 2006, eq. 4.17) and a linear
kernel on d standardised columns, with normal noise. Length scales, amplitudes and noise maximise
the evidence times log-normal priors on some hundred rows. The posterior is conditioned on up to two
thousand rows. Several targets share all hyperparameters.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import exp, log, pi
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.groups import Codes, split_by_group, split_into_blocks
from skbayes_sym.base.plan import TableSize
from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.models.model import Data
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.linalg import cholesky, try_cholesky
from skbayes_sym.numerics.optimise import lbfgs
from skbayes_sym.numerics.progress import report_progress
from skbayes_sym.numerics.random import float64_normal, generator_from
from skbayes_sym.numerics.runtime import one_thread
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.task import HeldOutScores, MemberFit, StackTask

Array = npt.NDArray[np.float64]

_MIN_NOISE = 0.0002  # standard deviation, in units of the targets
_LOG_NOISE = -1.0  # mean of the prior of its logarithm
# Variance that is added where the covariance isn't positive definite, relative to the largest.
_ROUNDING = 1e-11

# Rows whose covariances with all others are computed together when groups are left out.
_GROUP_BLOCK_ROWS = 500
# Rows that are predicted together. Covariances of few rows fit into the cache, where elementwise
# functions are faster. Triangular systems are solved faster for more rows.
_MEAN_BLOCK_ROWS = 128
_BLOCK_ROWS = 512

_REMEDY = "Drop rows that repeat each other, or give X as float64."


@dataclass(frozen=True)
class GaussianProcessDefaults:
    """Numbers behind a Gaussian process."""

    # Hyperparameters maximise the evidence of at most this many rows, by this many steps.
    max_hyperparameter_rows: int = 500
    max_iter: int = 60
    # The posterior is conditioned on at most this many rows, in O(n^3).
    max_rows: int = 2000
    # Prior standard deviation of the logarithms of the length scales about a common one. For
    # classification they are kept together, since free scales have seen the left-out labels
    # (`horse-colic`: leave-one-out score -0.17, test score -0.62).
    log_scale_std: float = 1.5
    classification_log_scale_std: float = 0.1
    # Variances given so many rows are computed in single precision, twice as fast, if the noise has
    # at least this part of the variance of Matern's part. Their error is then below 1e-4 of the
    # noise.
    min_single_rows: int = 1000
    min_single_noise: float = 0.01
    # Random frequencies of the prior. Each sampled function has its own.
    n_features: int = 128


class TableKernel(NamedTuple):
    """Hyperparameters of the kernel and of the noise."""

    length: Tensor  # length scales, (d,)
    amplitude: Tensor  # of Matern's part, a
    slope: Tensor  # of the linear part, b
    noise: Tensor  # standard deviation

    @classmethod
    def from_log_scales(cls, log_scales: Tensor) -> "TableKernel":
        """Kernel with logarithms of its hyperparameters (d + 3,) in the order of the fields."""
        scales = log_scales.exp()
        noise = (scales[-1].square() + _MIN_NOISE**2).sqrt()
        return cls(scales[:-3], scales[-3], scales[-2], noise)

    def matern(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled distances r and Matern's part of the covariance, both (N, M)."""
        scaled_x = 5.0**0.5 * x / self.length
        scaled_other = 5.0**0.5 * other / self.length
        squared_distances = scaled_x.square().sum(1, keepdim=True) + scaled_other.square().sum(1)
        squared_distances -= 2.0 * scaled_x @ scaled_other.mT
        r = squared_distances.clamp_min_(1e-24).sqrt_()
        # a^2 (1 + r + r^2 / 3) e^-r, in place, since new arrays of this size take much of the time
        covariance = (r * r).div_(3.0)
        covariance = (1.0 + r).add_(covariance).mul_(self.amplitude.square())
        return r, covariance.mul_((-r).exp_())

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Covariances of function values (N, M)."""
        return self.matern(x, other)[1] + self.slope.square() / x.shape[1] * x @ other.mT

    def variance(self, x: Tensor) -> Tensor:
        """Variances of function values (N,)."""
        return self.amplitude.square() + self.slope.square() * x.square().mean(1)


def log_evidence(
    log_scales: Tensor, data: Data, known_variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log evidence of centred targets and its gradient.

    Takes O(N^3 + N^2 d) operations without a matrix for each column.

    Parameters
    ----------
    log_scales : Tensor of shape (d + 3,)
        Logarithms of the hyperparameters, see `TableKernel`.
    data : Data
        Inputs (N, d), centred targets (N, T) and weights (N,).
    known_variance : Tensor of shape (N,), optional
        Squares of known errors of the targets.

    Returns
    -------
    value : Tensor of shape ()
        Log evidence in nats; -inf if the covariance isn't positive definite numerically.
    gradient : Tensor of shape (d + 3,)
        Derivatives by the logarithms of the hyperparameters.

    Notes
    -----
    With the covariance K of the targets, the derivative of the log evidence by K is
    :math:`(K^{-1} y y' K^{-1} - K^{-1}) / 2` (Rasmussen & Williams 2006, eq. 5.9).
    """
    x, y, weight = data
    kernel = TableKernel.from_log_scales(log_scales)
    r, matern = kernel.matern(x, x)
    linear = kernel.slope.square() / x.shape[1] * x @ x.mT
    noise = kernel.noise.square() / weight
    if known_variance is not None:
        noise = noise + known_variance / weight
    factor = try_cholesky(matern + linear + torch.diag(noise))
    if factor is None:
        return log_scales.new_tensor(-torch.inf), torch.zeros_like(log_scales)
    inverse = torch.cholesky_inverse(factor)
    alpha = inverse @ y
    n_targets = y.shape[1]
    value = -0.5 * (y * alpha).sum() - n_targets * factor.diagonal().log().sum()
    value = value - 0.5 * y.numel() * log(2.0 * pi)
    covariance_gradient = 0.5 * (alpha @ alpha.mT - n_targets * inverse)

    # The derivative of Matern's part by log l_j is 5/3 a^2 (1 + r) e^-r (x_j - x'_j)^2 / l_j^2.
    radial = covariance_gradient * (5.0 / 3.0) * kernel.amplitude.square() * (1.0 + r) * (-r).exp()
    length_gradient = 2.0 * (radial.sum(1) @ x.square() - (x * (radial @ x)).sum(0))
    amplitude_gradient = 2.0 * (covariance_gradient * matern).sum()
    slope_gradient = 2.0 * (covariance_gradient * linear).sum()
    noise_gradient = 2.0 * (covariance_gradient.diagonal() / weight).sum()
    noise_gradient = noise_gradient * (2.0 * log_scales[-1]).exp()
    gradient = torch.cat([
        length_gradient / kernel.length.square(),
        torch.stack([amplitude_gradient, slope_gradient, noise_gradient]),
    ])  # fmt: skip
    return value, gradient


def fit_log_scales(
    data: Data,
    defaults: GaussianProcessDefaults,
    log_scale_std: float,
    known_variance: Tensor | None = None,
) -> Tensor:
    """Maximise the evidence times the prior of the hyperparameters.

    Length scales have log-normal priors about ``0.5 log(d) + 0.3``. The amplitude has a wide prior,
    the slope of the linear part and the noise have priors about 1/e.

    Parameters
    ----------
    data : Data
        Inputs (N, d), centred targets (N, T) and weights (N,).
    defaults : GaussianProcessDefaults
        Number of steps.
    log_scale_std : float
        Prior standard deviation of the logarithms of the length scales.
    known_variance : Tensor of shape (N,), optional
        Squares of known errors of the targets.

    Returns
    -------
    Tensor of shape (d + 3,)
        Logarithms of the hyperparameters.
    """
    d = data.x.shape[1]
    ones = data.x.new_ones(d)
    mean = torch.cat([(0.5 * log(d) + 0.3) * ones, ones.new_tensor([0.0, -1.0, _LOG_NOISE])])
    std = torch.cat([log_scale_std * ones, ones.new_tensor([8.0, 1.5, 2.0])])

    n_evaluations = 0

    def loss(log_scales: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal n_evaluations
        value, gradient = log_evidence(log_scales, data, known_variance)
        n_evaluations += 1
        report_progress(n_evaluations, defaults.max_iter)
        standardized = (log_scales - mean) / std
        return 0.5 * standardized.square().sum() - value, standardized / std - gradient

    bounds = [(-3.0, 8.0)] * d + [(-4.0, 9.0), (-6.0, 3.0), (-9.0, 2.0)]
    return lbfgs(loss, mean, max_iter=defaults.max_iter, bounds=bounds)


@dataclass(frozen=True, eq=False)
class GaussianProcess(BasePredictor):
    """Posterior of T functions given N rows.

    Parameters
    ----------
    log_scales : ndarray of shape (d + 3,)
        Logarithms of the hyperparameters, see `TableKernel`.
    x : ndarray of shape (N, d)
        Training inputs.
    alpha : ndarray of shape (N, T)
        Inverse covariance of the targets times the centred targets.
    cholesky : ndarray of shape (N, N) or None
        Cholesky factor of the covariance of the targets. None if it is to be computed when it is
        first needed, as after unpickling: it is by far the largest array.
    weight : ndarray of shape (N,)
        Sample weights.
    target_mean : ndarray of shape (T,)
        Weighted mean of the targets.
    """

    log_scales: Array
    x: Array
    alpha: Array
    cholesky: Array | None
    weight: Array
    target_mean: Array

    def __getstate__(self) -> dict[str, Any]:
        names = (field.name for field in fields(self))
        return {name: getattr(self, name) for name in names} | {"cholesky": None}

    def file_fields(self) -> dict[str, Any]:
        """Fields for files, which take no more memory when they are loaded than they have."""
        return self.__getstate__() | {"cholesky": self.factor.numpy()}

    @cached_property
    def kernel(self) -> TableKernel:
        """Kernel with the hyperparameters."""
        return TableKernel.from_log_scales(torch.as_tensor(self.log_scales))

    @cached_property
    def factor(self) -> Tensor:
        """Cholesky factor of the covariance of the targets, (N, N)."""
        if self.cholesky is not None:
            return torch.as_tensor(self.cholesky)
        with one_thread():
            return factorise(self.kernel, torch.as_tensor(self.x), torch.as_tensor(self.weight))

    @cached_property
    def variance_factor(self) -> Tensor:
        """Cholesky factor in the precision that variances need, (N, N)."""
        defaults = GaussianProcessDefaults()
        min_noise = defaults.min_single_noise * self.kernel.amplitude.square()
        if len(self.x) >= defaults.min_single_rows and self.kernel.noise.square() >= min_noise:
            return self.factor.float()
        return self.factor

    def _tensors(self) -> tuple[TableKernel, list[Tensor]]:
        """Kernel, and arrays as tensors."""
        arrays = (self.x, self.alpha, self.weight, self.target_mean)
        return self.kernel, [torch.as_tensor(array) for array in arrays]

    def distribution(self, x: Tensor) -> NormalMixture:
        """Predictive distribution of the rows, in the units of the stack."""
        kernel, (rows, alpha, _, target_mean) = self._tensors()
        factor = self.variance_factor
        means = []
        variances = []
        for block in x.split(_BLOCK_ROWS):
            covariance = kernel(block, rows)
            means.append(covariance @ alpha + target_mean)
            covariance = covariance.to(factor)
            root = torch.linalg.solve_triangular(factor.mT, covariance, upper=True, left=False)
            variances.append((kernel.variance(block) - root.square().sum(1)).clamp_min(0.0))
        variance = torch.cat(variances).reshape(1, -1, 1)
        noise = kernel.noise.square().reshape(1, 1, 1)
        return NormalMixture(torch.cat(means).unsqueeze(0), variance, noise)

    def mean(self, x: Tensor) -> Tensor:
        """Mean predictions (N, 1), or class scores (N, K)."""
        kernel, (rows, alpha, _, target_mean) = self._tensors()
        # The linear part of the covariance needs no product with all rows.
        slopes = kernel.slope.square() / x.shape[1] * rows.mT @ alpha
        blocks = x.split(_MEAN_BLOCK_ROWS)
        matern = torch.cat([kernel.matern(block, rows)[1] @ alpha for block in blocks])
        return matern + x @ slopes + target_mean

    def leave_one_out(self) -> NormalMixture:
        r"""Predictive distribution of one repetition of each row given all other rows.

        Notes
        -----
        .. math:: y_n \mid y_{-n} \sim N(y_n - [K^{-1} y]_n / [K^{-1}]_{nn}, 1 / [K^{-1}]_{nn})

        (Rasmussen & Williams 2006, eqs. 5.10 to 5.12), where K includes the noise. The targets are
        centred by the mean of the other targets. Predictions are linear in this mean: if it moves
        by one, the prediction for row n moves by :math:`[K^{-1} 1]_n / [K^{-1}]_{nn}`. The
        hyperparameters are those of all rows.
        """
        kernel, (x, alpha, weight, target_mean) = self._tensors()
        factor = self.factor
        variance = torch.cholesky_inverse(factor).diagonal().reciprocal().unsqueeze(1)
        noise = kernel.noise.square()
        y = kernel(x, x) @ alpha + noise / weight.unsqueeze(1) * alpha + target_mean
        function_variance = (variance - noise / weight.unsqueeze(1)).clamp_min(0.0)
        other_weight = (weight.sum() - weight).unsqueeze(1)
        shift = -weight.unsqueeze(1) * (y - target_mean) / other_weight
        shift = torch.where(other_weight > 0.0, shift, 0.0)  # a single row keeps its mean
        response = variance * torch.cholesky_solve(torch.ones_like(variance), factor)
        loc = y - variance * alpha + shift * response
        return NormalMixture(
            loc.unsqueeze(0), function_variance.unsqueeze(0), noise.reshape(1, 1, 1)
        )

    def leave_groups_out(
        self, x: Tensor, y: Tensor, groups: Codes, conditioned: Tensor
    ) -> NormalMixture:
        r"""Predictive distribution of one repetition of each row given the rows of other groups.

        Parameters
        ----------
        x : Tensor of shape (M, d)
            Training inputs, of which the posterior is conditioned on N.
        y : Tensor of shape (M, T)
            Targets.
        groups : ndarray of shape (M,)
            Group of each row.
        conditioned : Tensor of shape (N,)
            Indices of the rows on which the posterior is conditioned.

        Returns
        -------
        NormalMixture
            Distributions (1, M, T) at the hyperparameters of all rows.

        Notes
        -----
        The inverse covariance of the targets without the group g is

        .. math:: P_g = K^{-1} - K^{-1}_{\cdot g} (K^{-1}_{gg})^{-1} K^{-1}_{g \cdot},

        by the inverse of a partitioned matrix (Rasmussen & Williams 2006, eq. A.12). With
        :math:`a = K^{-1} k` for a row of covariance k with the others, the mean falls by
        :math:`a_g' (K^{-1}_{gg})^{-1} lpha_g`, and the variance rises by
        :math:`a_g' (K^{-1}_{gg})^{-1} a_g`. The targets are centred by the mean of the other
        groups. If this mean moves by one, the prediction moves by :math:`1 - k' P_g 1`.
        """
        kernel, (rows, alpha, weight, target_mean) = self._tensors()
        factor = self.factor
        inverse = torch.cholesky_inverse(factor)
        inverse_sum = inverse.sum(1, keepdim=True)
        row_groups = groups[conditioned.numpy()]
        rows_by_group = split_by_group(row_groups, int(groups.max()) + 1)
        queries_by_group = split_by_group(groups, int(groups.max()) + 1)
        weighted_y = weight.unsqueeze(1) * y[conditioned]
        loc = x.new_empty(len(x), y.shape[1])
        variance = x.new_empty(len(x), 1)

        # Groups are processed in blocks of some hundred rows, which share one product.
        for block in split_into_blocks(
            [len(index) for index in queries_by_group], _GROUP_BLOCK_ROWS
        ):
            query_index = torch.cat([queries_by_group[g] for g in block])
            covariance = kernel(rows, x[query_index])
            solved = torch.cholesky_solve(covariance, factor)  # a for each query, (N, n_block)
            block_loc = covariance.mT @ alpha
            response = 1.0 - covariance.mT @ inverse_sum
            explained = (covariance * solved).sum(0)
            mean = target_mean.expand(len(query_index), -1).clone()
            start = 0
            for g in block:
                own = rows_by_group[g]
                queries = slice(start, start + len(queries_by_group[g]))
                start = queries.stop
                if not len(own):
                    continue
                part = solved[own, queries]
                fit = torch.linalg.solve(inverse[own][:, own], part)
                block_loc[queries] -= fit.mT @ alpha[own]
                response[queries] += fit.mT @ inverse_sum[own]
                explained[queries] -= (part * fit).sum(0)
                other_weight = weight.sum() - weight[own].sum()
                if other_weight > 0.0:
                    mean[queries] = (weighted_y.sum(0) - weighted_y[own].sum(0)) / other_weight
            loc[query_index] = target_mean + block_loc + (mean - target_mean) * response
            prior_variance = kernel.variance(x[query_index])
            variance[query_index] = (prior_variance - explained).clamp_min(0.0).unsqueeze(1)
        noise = kernel.noise.square().reshape(1, 1, 1)
        return NormalMixture(loc.unsqueeze(0), variance.unsqueeze(0), noise)

    def sample_conditionals(
        self, x: Tensor, n: int, *, generator: torch.Generator
    ) -> NormalMixture:
        """Sample functions by Matheron's rule, each from its own random Fourier features.

        Shared features would give all functions the same error of the prior covariance. With new
        frequencies for each function the mean and the covariance over functions are exact for any
        number of features (Wilson et al. 2020).
        """
        kernel, (rows, alpha, weight, target_mean) = self._tensors()
        factor = self.factor
        d = x.shape[1]
        n_targets = alpha.shape[1]
        m = GaussianProcessDefaults().n_features
        n_rows = len(rows)
        points = torch.cat([rows, x])
        scaled = points / kernel.length
        linear = kernel.slope / d**0.5 * points
        noise_std = kernel.noise / weight.sqrt().unsqueeze(1)

        # Random numbers are generated function by function, and none depends on the query points.
        # A function is therefore the same at any points, and for any number of functions.
        normal = partial(float64_normal, generator=generator)
        prior = x.new_empty(n, len(x), n_targets)
        residual = x.new_empty(n_rows, n, n_targets)
        for k in range(n):
            # Matern's spectral density is Student's t with 5 degrees of freedom.
            chi_square = normal((m, 5)).square().sum(1, keepdim=True)
            frequency = (normal((m, d)) * (5.0 / chi_square).sqrt()).to(x)
            amplitude = normal((2 * m, n_targets)).to(x)
            slope = normal((d, n_targets)).to(x)
            noise = normal((n_rows, n_targets)).to(x)

            # With a sine and a cosine of each frequency the variance at a point is exact.
            angle = scaled @ frequency.mT
            waves = angle.cos() @ amplitude[:m] + angle.sin() @ amplitude[m:]
            values = kernel.amplitude / m**0.5 * waves + linear @ slope
            prior[k] = values[n_rows:]
            residual[:, k] = values[:n_rows] + noise_std * noise

        correction = torch.cholesky_solve(residual.flatten(1), factor).unflatten(1, (n, n_targets))
        coefficients = (alpha.unsqueeze(1) - correction).movedim(1, 0)
        loc = prior + kernel(x, rows) @ coefficients + target_mean
        return NormalMixture(loc, 0.0 * loc, kernel.noise.square().reshape(1, 1, 1))


def factorise(kernel: TableKernel, x: Tensor, weight: Tensor) -> Tensor:
    """Cholesky factor of the covariance of targets at rows (N, d) of weights (N,), in O(N^3).

    Parameters
    ----------
    kernel : TableKernel
        Hyperparameters.
    x : Tensor of shape (N, d)
        Inputs.
    weight : Tensor of shape (N,)
        Sample weights.
    """
    covariance = kernel(x, x)
    covariance.diagonal().add_(kernel.noise.square() / weight)
    factor = try_cholesky(covariance)
    if factor is not None:
        return factor
    # Targets almost without noise beside a large slope: the noise is below the rounding errors.
    covariance.diagonal().add_(_ROUNDING * covariance.diagonal().max())
    return cholesky(covariance, name="The covariance of the targets", remedy=_REMEDY)


def condition(log_scales: Tensor, data: Data) -> GaussianProcess:
    """Compute the posterior for given hyperparameters in O(N^3)."""
    x, y, weight = data
    kernel = TableKernel.from_log_scales(log_scales)
    target_mean = weight @ y / weight.sum()
    factor = factorise(kernel, x, weight)
    alpha = torch.cholesky_solve(y - target_mean, factor)
    tensors = (log_scales, x, alpha, factor, weight, target_mean)
    return GaussianProcess(*(tensor.cpu().numpy() for tensor in tensors))


def fit_gaussian_process(
    data: Data,
    seed: int,
    log_scale_std: float,
    defaults: GaussianProcessDefaults = GaussianProcessDefaults(),
    groups: Codes | None = None,
    known_variance: Tensor | None = None,
) -> tuple[GaussianProcess, NormalMixture]:
    """Fit hyperparameters, condition on the rows and predict each row without itself.

    Parameters
    ----------
    data : Data
        Inputs (N, d), targets (N, T) and weights (N,) in float64.
    seed : int
        Seed of the random choice of rows.
    log_scale_std : float
        Prior standard deviation of the logarithms of the length scales.
    defaults : GaussianProcessDefaults
        Numbers of rows and steps. With more than ``max_rows`` rows the posterior is conditioned on
        a random subset, which predicts the other rows.
    groups : ndarray of shape (N,), optional
        Groups of rows that are left out together.
    known_variance : Tensor of shape (N,), optional
        Squares of known errors of the targets.

    Returns
    -------
    process : GaussianProcess
        Posterior of the functions.
    leave_one_out : NormalMixture
        Predictive distribution of each training row given the others, or given the other groups,
        (1, N, T), without known errors of these rows.

    Notes
    -----
    A row of the known variance :math:`e^2` and the weight w has the noise
    :math:`(s^2 + e^2) / w`. At a given noise s it is a row of the weight
    :math:`w s^2 / (s^2 + e^2)` without a known error.
    """
    order = torch.randperm(len(data.x), generator=generator_from(seed))
    fitted = order[: defaults.max_hyperparameter_rows]
    subset = Data(*(tensor[fitted] for tensor in data))
    centre_weight = subset.weight
    subset_variance = None
    if known_variance is not None:
        subset_variance = known_variance[fitted]
        # The noise is at the mean of its prior as long as it isn't known.
        centre_weight = centre_weight / (exp(2.0 * _LOG_NOISE) + subset_variance)
    centred = subset._replace(y=subset.y - centre_weight @ subset.y / centre_weight.sum())
    log_scales = fit_log_scales(centred, defaults, log_scale_std, subset_variance)
    if known_variance is not None:
        noise_variance = TableKernel.from_log_scales(log_scales).noise.square()
        relative_precision = noise_variance / (noise_variance + known_variance)
        data = data._replace(weight=data.weight * relative_precision)
    index = order[: defaults.max_rows].sort().values
    process = condition(log_scales, Data(*(tensor[index] for tensor in data)))

    if groups is not None:
        return process, process.leave_groups_out(data.x, data.y, groups, index)

    # Rows of the subset are predicted by leave-one-out, the others by the posterior.
    leave_one_out = process.leave_one_out()
    others = order[defaults.max_rows :].sort().values
    if not len(others):
        return process, leave_one_out
    distribution = process.distribution(data.x[others])
    loc = torch.empty_like(data.y).unsqueeze(0)
    variance = data.y.new_empty(1, len(data.x), 1)
    for rows, part in ((index, leave_one_out), (others, distribution)):
        loc[:, rows] = part.loc
        variance[:, rows] = part.variance
    return process, NormalMixture(loc, variance, distribution.noise_variance)


@dataclass(frozen=True)
class GaussianProcessMember(Member):
    """Gaussian process, which regresses on one-hot labels for classification.

    Parameters
    ----------
    max_rows : int, default=2000
        Number of rows on which the posterior is conditioned.
    """

    takes_known_errors: ClassVar[bool] = True
    relative_cost: ClassVar[float] = 5.0

    max_rows: int = GaussianProcessDefaults.max_rows

    def choose_settings(self, _size: TableSize, _defaults: StackDefaults) -> dict[str, Any]:
        """Choose values of the fields by the size of the table."""
        return {"max_rows": GaussianProcessDefaults().max_rows}

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        defaults = replace(GaussianProcessDefaults(), max_rows=self.max_rows)
        if task.n_classes:
            one_hot = torch.nn.functional.one_hot(task.y, task.n_classes).to(task.rows.x)
            data = task.data._replace(y=one_hot)
            std = defaults.classification_log_scale_std
            process, distribution = fit_gaussian_process(
                data, task.seed, std, defaults, task.groups
            )
            return MemberFit(process, distribution.loc[0])
        known_variance = None
        if task.noise_std is not None:
            known_variance = task.noise_std.square()
        process, distribution = fit_gaussian_process(
            task.data, task.seed, defaults.log_scale_std, defaults, task.groups, known_variance
        )
        # Leave-one-out uses hyperparameters of all rows. Each costs one nat in expectation
        # (Akaike's criterion).
        optimism = len(process.log_scales) / len(task)
        held_out: NormalMixture | HeldOutScores = distribution
        if task.noise_std is not None:
            measured = distribution.add_known_errors(task.noise_std.unsqueeze(1))
            held_out = HeldOutScores(measured.log_prob(task.y), measured.cdf(task.y)[:, 0])
        return MemberFit(process, held_out, optimism=optimism)
