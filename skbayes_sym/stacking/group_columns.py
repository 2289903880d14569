"""Find columns whose values are groups of rows that resemble each other."""

from dataclasses import dataclass, replace
from math import log

import numpy as np
import torch

from skbayes_sym.base.groups import leave_groups_out
from skbayes_sym.base.messages import collect_warnings
from skbayes_sym.base.rows import Array
from skbayes_sym.base.stacking_weights import leave_one_out
from skbayes_sym.linear.estimators import BayesianLinearRegressor
from skbayes_sym.numerics.tables import read_table
from skbayes_sym.stacking.members.linear import posterior_root
from skbayes_sym.stacking.predictors import EstimatorPredictor
from skbayes_sym.stacking.task import StackTask


@dataclass(frozen=True)
class GroupColumnDefaults:
    """Numbers behind the search for groups."""

    # Fewer values are levels of a factor rather than groups.
    min_groups: int = 5
    # Nats per row by which leaving out groups has to score worse. Random intercepts with a quarter
    # of the variance of the noise lose 0.11.
    min_loss: float = 0.1
    # Linear models are fitted for at most this many columns, the first ones, each of at most this
    # many operations. This takes some hundredths of a second.
    max_columns: int = 3
    max_operations: float = 5e7


def describe_group_columns(task: StackTask) -> str:
    """Describe columns that look like groups and whose values are hard to predict without rows.

    A linear model of all columns and of one effect per value is scored twice in closed form: by
    leaving out single rows, and by leaving out all rows of a value. The score is the log density at
    the best noise level of the residuals.

    Parameters
    ----------
    task : StackTask
        Training data of a regression without groups.

    Returns
    -------
    str
        One line per column; empty if there is none.
    """
    defaults = GroupColumnDefaults()
    table = read_table(task.rows.original)
    if table is None or task.n_classes or task.groups is not None:
        return ""
    lines = []
    n_checked = 0
    for name, values, is_declared in zip(table.names, table.columns, table.declared, strict=True):
        codes = find_groups(values, is_categorical=is_declared)
        if codes is None:
            continue
        n_weights = task.rows.x.shape[1] + int(codes.max()) + 1
        if len(codes) * n_weights**2 > defaults.max_operations or n_checked >= defaults.max_columns:
            continue
        n_checked += 1
        loss = group_loss(task, codes)
        if loss > defaults.min_loss:
            lines.append(
                f"\nrows with the same {name!r} resemble each other: a linear model scores "
                f"{loss:.2f} nats per row worse if all rows of a value are left out. If "
                "predictions are for new values, pass this column as groups to fit"
            )
    return "".join(lines)


def find_groups(values: Array, *, is_categorical: bool) -> Array | None:
    """Number the values of a column that looks like groups.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Values of the column.
    is_categorical : bool
        Whether its dtype is categorical.

    Returns
    -------
    ndarray of int of shape (n,) or None
        None unless the column is text, categorical or whole numbers, with at least five values and
        two rows per value on average.
    """
    is_number = values.dtype.kind in "iuf"
    if values.dtype.kind == "b" or not (is_number or values.dtype.kind in "OUST"):
        return None
    if values.dtype.kind == "f" and not is_categorical:
        is_whole = np.isfinite(values) & (values == np.floor(values))
        if not is_whole.all():
            return None
    try:
        levels, codes = np.unique(values, return_inverse=True)
    except TypeError:  # missing values between text
        levels, codes = np.unique(values.astype(str), return_inverse=True)
    if not GroupColumnDefaults().min_groups <= len(levels) <= len(values) // 2:
        return None
    return codes


def group_loss(task: StackTask, groups: Array) -> float:
    """Score of leaving out rows minus that of leaving out groups, in nats per row.

    Parameters
    ----------
    task : StackTask
        Training data.
    groups : ndarray of int of shape (N,)
        Groups of the rows.

    Returns
    -------
    float
        0 if the linear model can't be fitted.
    """
    _, y, weight = task.arrays
    effects = torch.nn.functional.one_hot(torch.as_tensor(groups)).double()
    x = torch.cat([task.rows.x, effects], 1)
    try:
        with collect_warnings():
            model = BayesianLinearRegressor(device="cpu", random_state=0).fit(x.numpy(), y, weight)
    except (ArithmeticError, RuntimeError, ValueError):
        return 0.0
    distribution = EstimatorPredictor(model).distribution(x)
    noise = distribution.noise_variance
    if len(distribution.loc) > 1:
        # Few rows have several noise levels.
        return 0.0
    intercept_variance = noise / weight.sum()
    distribution = replace(distribution, variance=distribution.variance + intercept_variance)
    root = posterior_root(model, x, intercept_variance)
    by_rows = leave_one_out(distribution, task.y, task.weight)
    by_groups = leave_groups_out(distribution, root, task.y, task.weight, groups)
    squares = [
        float(task.weight @ (task.y - held_out.mean())[:, 0].square())
        for held_out in (by_rows, by_groups)
    ]
    return 0.5 * log(max(squares[1], 1e-300) / max(squares[0], 1e-300))
