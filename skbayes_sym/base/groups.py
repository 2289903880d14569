r"""Groups of rows that are left out together.

Rows of one group, such as visits of a patient, share what the columns don't measure. A model that
leaves out single rows has seen the group of each left-out row, so that its errors in new groups
are larger than its leave-one-out errors. With groups, all rows of a group are left out at once.

**Linear models.** Let :math:`S = F F'` be the posterior covariance of the function values of a
group's rows, :math:`R = \mathrm{diag}(\sigma^2 / w)` their noise and r their residuals. Without the
group, the residuals and the covariance of the function values are

.. math:: r_{-g} = (I - S R^{-1})^{-1} r, \qquad S_{-g} = (I - S R^{-1})^{-1} S .

The posterior precision without the group is lower by :math:`J' R^{-1} J`, where J are the group's
rows, and the equations follow by the identity of Woodbury (Cook & Weisberg 1982, "Residuals and
influence in regression", section 3.6). For a group of one row they are eqs. 5.10 to 5.12 of
Rasmussen & Williams (2006).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.arguments import check_not_masked
from skbayes_sym.numerics.tables import missing_rows

Codes = npt.NDArray[np.int64]


def encode_groups(groups: Any, n_samples: int) -> Codes:
    """Number the groups of rows.

    Parameters
    ----------
    groups : array-like of shape (n_samples,)
        Group of every row: text, numbers, dates or categories, as an array, a list or a column of a
        frame.
    n_samples : int
        Number of rows.

    Returns
    -------
    ndarray of shape (n_samples,)
        Position of each row's group among the sorted groups.

    Raises
    ------
    ValueError
        If the shape is wrong, or a group is missing.
    """
    check_not_masked("groups", groups)
    values = np.asarray(groups)
    if isinstance(groups, list | tuple) and values.dtype.kind in "US":
        # NumPy makes nan in a list of texts a text.
        values = np.asarray(groups, dtype=object)
    if values.shape != (n_samples,):
        raise ValueError(
            f"groups must have one value for each of the {n_samples} rows of X, got shape "
            f"{values.shape}. Give a single column, such as frame['patient']."
        )
    is_missing = missing_rows(values)
    if is_missing.any():
        raise ValueError(
            f"groups has {int(is_missing.sum())} missing values, the first in row "
            f"{int(is_missing.argmax())}: give every row a group. Rows of no group can have one of "
            "their own each, such as their row number."
        )
    if values.dtype.kind != "O":
        return np.unique(values, return_inverse=True)[1].astype(np.int64)

    # Objects can be of types that don't compare with each other, such as 1 and "a".
    levels = list(set(values.tolist()))
    try:
        levels.sort()
    except TypeError:
        levels.sort(key=lambda level: (type(level).__name__, str(level)))
    code = {level: k for k, level in enumerate(levels)}
    return np.array([code[value] for value in values.tolist()], dtype=np.int64)


def number_by_appearance(codes: Codes) -> Codes:
    """Renumber groups in the order in which they first appear, (n,)."""
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def groups_by_size(groups: Codes) -> Iterator[Tensor]:
    """Yield the rows of all groups of equal size, (n_groups, size)."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        first = starts[sizes == size]
        yield torch.as_tensor(order[first[:, None] + np.arange(size)])


def split_by_group(groups: Codes, n_groups: int) -> list[Tensor]:
    """Return the rows of each group, in increasing order."""
    order = torch.as_tensor(np.argsort(groups, kind="stable"))
    sizes = np.bincount(groups, minlength=n_groups).tolist()
    return list(order.split(sizes))


def split_into_blocks(sizes: Sequence[int], max_size: int) -> Iterator[list[int]]:
    """Yield consecutive positions whose sizes sum to at most ``max_size``, at least one each."""
    block: list[int] = []
    total = 0
    for position, size in enumerate(sizes):
        if block and total + size > max_size:
            yield block
            block = []
            total = 0
        block.append(position)
        total += size
    if block:
        yield block


def leave_groups_out(
    distribution: NormalMixture, root: Tensor, y: Tensor, weight: Tensor, groups: Codes
) -> NormalMixture:
    """Predict each row of a linear model from the rows of all other groups.

    Parameters
    ----------
    distribution : NormalMixture
        Predictive distributions of the training rows, (1, N, 1): function values and noise.
    root : Tensor of shape (N, r)
        Root F of the posterior covariance ``F F'`` of the function values.
    y : Tensor of shape (N, 1)
        Targets.
    weight : Tensor of shape (N,)
        Sample weights.
    groups : ndarray of shape (N,)
        Group of each row.

    Returns
    -------
    NormalMixture
        Predictive distributions given the other groups at the same hyperparameters, (1, N, 1).

    Notes
    -----
    With :math:`B = R^{-1/2} F` the equations of the module are evaluated in the smaller of two
    spaces: :math:`(I - B B')^{-1}` of the group's rows, or :math:`(I - B' B)^{-1}` of the columns
    of F. The cost is O(N min(m, r)^2) for groups of m rows.
    """
    noise_variance = distribution.noise_variance.expand_as(distribution.loc)
    noise_std = (noise_variance.reshape(-1) / weight).sqrt()
    scaled_root = root / noise_std.unsqueeze(1)
    scaled_residual = (y - distribution.loc[0])[:, 0] / noise_std
    residual = torch.empty_like(scaled_residual)
    variance = torch.empty_like(scaled_residual)
    rank = root.shape[1]
    for index in groups_by_size(groups):
        b = scaled_root[index]  # (n_groups, m, r)
        r = scaled_residual[index].unsqueeze(2)
        if index.shape[1] <= rank:
            identity = torch.eye(index.shape[1]).to(b)
            inverse = torch.linalg.inv(identity - b @ b.mT)
            residual[index] = (inverse @ r)[..., 0]
            variance[index] = inverse.diagonal(0, 1, 2) - 1.0
        else:
            identity = torch.eye(rank).to(b)
            without_group = torch.linalg.solve(identity - b.mT @ b, b.mT)  # (n_groups, r, m)
            residual[index] = (r + b @ (without_group @ r))[..., 0]
            variance[index] = (b * without_group.mT).sum(2)
    loc = y[:, 0] - residual * noise_std
    variance = variance.clamp_min(0.0) * noise_std.square()
    return NormalMixture(
        loc.reshape(1, -1, 1), variance.reshape(1, -1, 1), distribution.noise_variance
    )


def intraclass_correlation(residual: Tensor, weight: Tensor, groups: Codes) -> float:
    """Estimate the correlation of residuals within groups by the analysis of variance.

    Parameters
    ----------
    residual : Tensor of shape (N,)
        Residuals.
    weight : Tensor of shape (N,)
        Sample weights, which count repetitions.
    groups : ndarray of shape (N,)
        Group of each row.

    Returns
    -------
    float
        Between 0 and 1; 0 if no group has two rows.

    References
    ----------
    Donner (1986). A review of inference procedures for the intraclass correlation coefficient in
    the one-way random effects model, eq. 2.
    """
    r = residual.numpy()
    w = weight.numpy()
    total = w.sum()
    size = np.bincount(groups, w)
    size = size[size > 0]
    _, codes = np.unique(groups, return_inverse=True)
    n_groups = len(size)
    means = np.bincount(codes, w * r) / size
    overall = (size @ means) / total
    within = (w @ (r - means[codes]) ** 2) / max(total - n_groups, 1.0)
    between = (size @ (means - overall) ** 2) / max(n_groups - 1, 1)
    mean_size = (total - (size @ size) / total) / max(n_groups - 1, 1)
    if total - n_groups < 1.0 or not np.isfinite(between + within) or between <= within:
        return 0.0
    return float((between - within) / (between + (mean_size - 1.0) * within))


def scale_weights_to_groups(residual: Tensor, weight: Tensor, groups: Codes) -> Tensor:
    r"""Divide weights by the number of rows that count as one when a noise level is fitted.

    Parameters
    ----------
    residual : Tensor of shape (N,)
        Residuals, in units of their predicted standard deviations.
    weight : Tensor of shape (N,)
        Sample weights.
    groups : ndarray of shape (N,)
        Group of each row.

    Returns
    -------
    Tensor of shape (N,)
        Weights whose sum is the effective number of rows.

    Notes
    -----
    The squares of two normal residuals with correlation :math:`\rho` have the correlation
    :math:`\rho^2`. In groups of m rows, :math:`1 + (m - 1) \rho^2` rows therefore count as one
    (the design effect of Kish 1965, section 5.4). For groups of different sizes m is the mean size
    of a row's group.
    """
    correlation = intraclass_correlation(residual, weight, groups)
    size = np.bincount(groups, weight.numpy())
    mean_size = float((size @ size) / size.sum())
    return weight / (1.0 + max(mean_size - 1.0, 0.0) * correlation**2)
