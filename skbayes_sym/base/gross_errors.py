r"""Gross errors in targets: values far beyond all others that the inputs don't explain.

A gross error is a target that was recorded wrongly, such as a slipped decimal point or a code for
missing values. Heavy tails must not be mistaken for it. Three conditions have to hold.

1. At most 5 % of the targets lie beyond a gap that separates them from all others.
2. A forest doesn't predict out of bag that they lie beyond the gap.
3. Their residuals from a forest that was fitted to clipped targets are too large for the tail of
   the other residuals.

The third condition tests the residuals :math:`r_{(1)} \ge r_{(2)} \ge \dots` (absolute values, in
decreasing order) for a Pareto tail, :math:`P(r > t) \propto t^{-1/\xi}`. By Rényi's representation
the spacings :math:`s_j = j \log(r_{(j)} / r_{(j+1)})` are independent, and exponential with mean
:math:`\xi`. Hence the probability of a gap after the :math:`k` largest residuals that is as large
as the observed one, compared with the next :math:`m` spacings (Hill's estimate), is

.. math:: \left(1 + \frac{s_k}{s_{k+1} + \dots + s_{k+m}}\right)^{-m} .

Normal, exponential and lognormal tails decrease faster than a Pareto tail that is fitted to them,
so that the test is conservative. It doesn't depend on the unit of the targets.

References
----------
Rényi (1953). On the theory of order statistics.

Hill (1975). A simple general approach to inference about the tail of a distribution.
"""

import numpy as np
import numpy.typing as npt

from skbayes_sym.base.rows import Array, Rows
from skbayes_sym.numerics.runtime import filters_lock

Mask = npt.NDArray[np.bool_]

# Rows below which no target is called a gross error: a gap in few values shows little.
MIN_ROWS = 20
# Largest share of gross errors. More values apart from the others are a group of their own.
MAX_SHARE = 0.05
# Smallest gap to the other targets, in units of the range of their central 90 %. Larger gaps occur
# in one of 2,000 normal samples of 300.
MIN_GAP = 0.5
# Smallest residual, in robust standard deviations of the residuals.
MIN_RESIDUAL = 8.0
# Largest probability of the gap between residuals under a Pareto tail.
MAX_PROBABILITY = 1e-4
# Share of the residuals to which the tail is fitted, and their smallest number.
TAIL_SHARE = 0.1
MIN_TAIL = 10
# Largest out-of-bag probability that a row's target is apart from the others.
MAX_EXPLAINED = 0.25
# Targets are clipped this far beyond their central 90 %, in units of the range of these.
CLIP_MARGIN = 0.25
# Forest that predicts clipped targets.
N_TREES = 100
# A fifth of the trees comes first. Unless they find gross errors by half of the smallest residual
# and a far larger probability, the whole forest wouldn't find any.
N_FIRST_TREES = 20
MIN_FIRST_RESIDUAL = 4.0
MAX_FIRST_PROBABILITY = 0.1
MIN_LEAF_ROWS = 5
MAX_TREE_ROWS = 2000


def find_gross_errors(rows: Rows) -> Mask:
    """Find gross errors in real targets.

    Parameters
    ----------
    rows : Rows
        Distinct training rows with targets (n, n_targets).

    Returns
    -------
    ndarray of bool of shape (n,)
        Whether a target of the row is a gross error.
    """
    is_gross = np.zeros(len(rows.y), dtype=bool)
    for y in rows.y.T:
        is_gross |= _find_in_target(rows.X, y, rows.weight)
    return is_gross


def _find_in_target(X: Array, y: Array, weight: Array) -> Mask:
    """Find gross errors in one target (n,)."""
    scaled = _scale_robustly(y)
    if scaled is None:
        return np.zeros(len(y), dtype=bool)
    is_apart = find_separate_values(scaled)
    if not is_apart.any():
        return is_apart

    # Clipped values can't dominate the forest.
    low, high = np.quantile(scaled, [0.05, 0.95])
    clipped = scaled.clip(low - CLIP_MARGIN, high + CLIP_MARGIN)
    limits = (MIN_FIRST_RESIDUAL, MAX_FIRST_PROBABILITY), (MIN_RESIDUAL, MAX_PROBABILITY)
    for n_trees, limit in zip((N_FIRST_TREES, N_TREES), limits, strict=True):
        predicted = _predict_out_of_bag(X, clipped, weight, MIN_LEAF_ROWS, n_trees)
        residual = np.abs(scaled - predicted)
        scale = np.median(residual[~is_apart]) / 0.6745
        is_extreme = find_extreme_residuals(residual, scale, is_apart, *limit)
        if not is_extreme.any():
            return is_extreme

    # Values that X explains, such as those of a rare category, are apart from others for a reason.
    levels = add_absent_levels(X)
    is_explained = _predict_out_of_bag(levels, is_apart.astype(float), weight, 1) > MAX_EXPLAINED
    return find_extreme_residuals(residual, scale, is_apart & ~is_explained)


def add_absent_levels(X: Array) -> Array:
    """Add a column of the rows without a level, such as a missing one, for each one-hot encoding.

    These rows have 0 in all columns of the encoding. A tree would need a split for each level to
    tell them from the others.

    Parameters
    ----------
    X : ndarray of shape (n, n_features)
        Inputs. Consecutive columns of 0 and 1, of which at most one is 1 in each row, are a one-hot
        encoding.

    Returns
    -------
    ndarray of shape (n, n_features + n_encodings)
    """
    is_binary = ((X == 0.0) | (X == 1.0)).all(axis=0)
    n_levels = 0
    total = np.zeros(len(X))
    absent = []
    for column, binary in zip([*X.T, np.zeros(len(X))], [*is_binary, False], strict=True):
        if binary and (total + column <= 1.0).all():
            total = total + column
            n_levels += 1
            continue
        if n_levels > 1 and (total == 0.0).any():
            absent.append(1.0 - total)
        total = column if binary else np.zeros(len(X))
        n_levels = int(binary)
    return np.column_stack([X, *absent])


def _scale_robustly(y: Array) -> Array | None:
    """Return targets minus their median, in units of the range of their central 90 %.

    None if there are too few targets, or if the central 90 % are equal, such as zeros in amounts of
    claims. Values apart from these are no errors then.
    """
    if len(y) < MIN_ROWS:
        return None
    # Differences of halves don't overflow.
    low, median, high = 0.5 * np.quantile(y, [0.05, 0.5, 0.95])
    half_range = high - low
    if half_range == 0.0:
        return None
    with np.errstate(over="ignore"):
        scaled = (0.5 * y - median) / half_range
    return scaled.clip(-1e300, 1e300)


def find_separate_values(scaled: Array) -> Mask:
    """Find values beyond a gap in the lower or upper 5 % of the values.

    Parameters
    ----------
    scaled : ndarray of shape (n,)
        Values in units of the range of their central 90 %.

    Returns
    -------
    ndarray of bool of shape (n,)
    """
    max_errors = max(1, int(MAX_SHARE * len(scaled)))
    ascending = np.sort(scaled)
    gaps = np.diff(ascending)
    low = -np.inf
    high = np.inf
    below = np.flatnonzero(gaps[:max_errors] > MIN_GAP)
    if len(below):
        low = ascending[below[-1]]
    above = np.flatnonzero(gaps[-max_errors:] > MIN_GAP)
    if len(above):
        high = ascending[len(ascending) - max_errors + above[0]]
    return (scaled <= low) | (scaled >= high)


def _predict_out_of_bag(
    X: Array, y: Array, weight: Array, min_leaf_rows: int, n_trees: int = N_TREES
) -> Array:
    """Predict each row by the trees of a forest that haven't seen it.

    Parameters
    ----------
    X : ndarray of shape (n, n_features)
        Inputs.
    y : ndarray of shape (n,)
        Targets.
    weight : ndarray of shape (n,)
        Sample weights.
    min_leaf_rows : int
        Smallest number of rows in a leaf.
    n_trees : int, default=N_TREES
        Number of trees.

    Returns
    -------
    ndarray of shape (n,)
    """
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(
        n_trees,
        min_samples_leaf=min_leaf_rows,
        max_features=0.5,
        max_samples=min(len(y), MAX_TREE_ROWS),
        random_state=0,
    )
    with filters_lock:
        forest.fit(X, y, weight)
        total = np.zeros(len(y))
        n_unseen = np.zeros(len(y))
        for tree, sample in zip(forest.estimators_, forest.estimators_samples_, strict=True):
            is_unseen = np.ones(len(y), dtype=bool)
            is_unseen[sample] = False
            total[is_unseen] += tree.predict(X[is_unseen])
            n_unseen[is_unseen] += 1.0
    return total / n_unseen.clip(1.0)


def find_extreme_residuals(
    residual: Array,
    scale: float,
    is_candidate: Mask,
    min_residual: float = MIN_RESIDUAL,
    max_probability: float = MAX_PROBABILITY,
) -> Mask:
    """Find candidates whose residuals are too large for the tail of the other residuals.

    Parameters
    ----------
    residual : ndarray of shape (n,)
        Absolute residuals.
    scale : float
        Robust standard deviation of the residuals of other rows.
    is_candidate : ndarray of bool of shape (n,)
        Rows that can be gross errors.
    min_residual : float, default=MIN_RESIDUAL
        Smallest residual in robust standard deviations.
    max_probability : float, default=MAX_PROBABILITY
        Largest probability of the gap between residuals under a Pareto tail.

    Returns
    -------
    ndarray of bool of shape (n,)
        The largest set of candidates that have the largest residuals of all rows and pass the test.
    """
    is_extreme = np.zeros(len(residual), dtype=bool)
    order = np.argsort(-residual, kind="stable")
    descending = residual[order]
    max_errors = max(1, int(MAX_SHARE * len(residual)))
    for k in range(1, max_errors + 1):
        if not is_candidate[order[k - 1]]:
            break
        is_large = descending[k - 1] > min_residual * scale
        if is_large and gap_probability(descending, k) < max_probability:
            is_extreme[order[:k]] = True
    return is_extreme


def gap_probability(descending: Array, k: int) -> float:
    """Return the probability under a Pareto tail of the gap after the k largest values.

    Parameters
    ----------
    descending : ndarray of shape (n,)
        Positive values in decreasing order.
    k : int
        Number of values before the gap.

    Returns
    -------
    float
    """
    n_remaining = len(descending) - k
    m = min(max(MIN_TAIL, int(TAIL_SHARE * n_remaining)), n_remaining - 1)
    logs = np.log(descending[k - 1 : k + m + 1].clip(np.finfo(float).tiny))
    spacings = -np.diff(logs) * np.arange(k, k + m + 1)
    others = spacings[1:].sum()
    if others == 0.0:
        return float(spacings[0] == 0.0)
    return float((1.0 + spacings[0] / others) ** -m)
