"""How far stated probabilities are from observed frequencies.

Both are 0 in expectation only with infinitely many rows: of a calibrated model they are of order
1 / sqrt(n). Densities, which reward sharpness too, are the better criterion to choose by.
"""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array as _check_array
from sklearn.utils.validation import check_consistent_length
from sklearn.utils.validation import column_or_1d as _column_or_1d

from skbayes_sym.numerics.arguments import check_count, unique_classes
from skbayes_sym.numerics.runtime import with_filters_lock

check_array = with_filters_lock(_check_array)
column_or_1d = with_filters_lock(_column_or_1d)


def interval_calibration_error(cdf: Any) -> float:
    r"""Distance between the nominal and the observed coverage of central intervals.

    .. math:: \int_0^1 \Big| \frac 1n \sum_i \mathbf 1[\,|2 u_i - 1| \le c\,] - c \Big| \, dc,
              \qquad u_i = P(Y_i \le y_i),

    averaged over all coverages c, exactly: the central interval of coverage c holds ``y_i`` where
    ``|2 u_i - 1| <= c``.

    Parameters
    ----------
    cdf : array-like of shape (n_samples,) or (n_samples, n_targets)
        Predicted probability that a target lies at or below the observed one, as
        ``predictive(model, X).cdf(y)`` gives it. Targets are pooled.

    Returns
    -------
    float
        Between 0 and 1/2: 0.05 says that intervals are off by 5 percentage points of coverage on
        average. Of a calibrated model it is about 0.31 / sqrt(n) by chance.

    Notes
    -----
    Doesn't see errors that leave the coverage right, such as a shift to one side together with too
    wide a spread. The integral transform of counts isn't uniform: their error isn't 0 even of the
    true model, unless the counts are large.

    References
    ----------
    Kuleshov, Fenner & Ermon (2018). Accurate uncertainties for deep learning using calibrated
    regression. Theirs is the squared distance, of one-sided intervals on a grid of levels.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.stats import norm
    >>> from skbayes_sym.metrics import interval_calibration_error
    >>> y = np.random.default_rng(0).normal(size=1000)
    >>> for scale in (0.5, 1.0, 2.0):  # overconfident, right, timid
    ...     print(scale, round(interval_calibration_error(norm.cdf(y, scale=scale)), 3))
    0.5 0.2
    1.0 0.01
    2.0 0.212
    """
    u = check_array(cdf, ensure_2d=False, dtype=np.float64, input_name="cdf").ravel()
    if np.any((u < 0) | (u > 1)):
        raise ValueError(f"cdf must lie between 0 and 1, got {u.min():g} to {u.max():g}.")
    edges = np.concatenate([[0.0], np.sort(np.abs(2.0 * u - 1.0)), [1.0]])
    observed = np.arange(len(u) + 1) / len(u)  # coverage between one edge and the next

    def signed_square(x: Any) -> Any:
        return 0.5 * x * np.abs(x)  # whose derivative is |x|

    return float(np.sum(signed_square(edges[1:] - observed) - signed_square(edges[:-1] - observed)))


def expected_calibration_error(
    y_true: Any, y_proba: Any, *, labels: Any = None, n_bins: int = 15
) -> float:
    r"""Distance between confidence and accuracy.

    .. math:: \sum_b \frac{n_b}{n} \, \Big| \mathrm{accuracy}(b) - \mathrm{confidence}(b) \Big|,

    over bins of equal width of the confidence, the largest of a row's probabilities; a bin holds
    its upper edge and not its lower one.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Observed classes.
    y_proba : array-like of shape (n_samples, n_classes)
        Predicted probabilities.
    labels : array-like of shape (n_classes,), optional
        Classes of the columns; by default the sorted ones of ``y_true``.
    n_bins : int, default=15
        On [0, 1]; those below ``1 / n_classes`` stay empty.

    Returns
    -------
    float
        Between 0 and 1. With few rows in a bin it is above 0 by chance, also of a calibrated model.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017). On calibration of modern neural networks.

    Examples
    --------
    >>> from skbayes_sym.metrics import expected_calibration_error
    >>> y_proba = [[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.4, 0.6]]
    >>> round(expected_calibration_error(["a", "a", "b", "a"], y_proba), 3)
    0.225
    """
    y_true = column_or_1d(y_true)
    proba = check_array(y_proba, dtype=np.float64, input_name="y_proba")
    check_consistent_length(y_true, proba)
    classes = unique_classes(y_true) if labels is None else np.atleast_1d(labels)
    if proba.shape[1] != len(classes):
        raise ValueError(
            f"y_proba has {proba.shape[1]} columns for {len(classes)} classes: give their labels."
        )
    check_count("n_bins", n_bins)
    confidence = proba.max(axis=1)
    correct = classes[proba.argmax(axis=1)] == y_true
    bins = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    excess = np.bincount(bins, weights=correct - confidence, minlength=n_bins)
    return float(np.abs(excess).sum() / len(y_true))
