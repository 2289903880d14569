"""Calibration errors, and measures of how well uncertainties predict the size of errors.

Calibration errors are distances between predicted probabilities and observed frequencies. With n
rows the errors of a calibrated model are of order 1 / sqrt(n) by chance. To choose between models
prefer log densities, which also reward sharp predictions.
"""

from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu, pearsonr, spearmanr
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

    averaged over all coverages c, exactly. The central interval of coverage c contains ``y_i`` if
    ``|2 u_i - 1| <= c``.

    Parameters
    ----------
    cdf : array-like of shape (n_samples,) or (n_samples, n_targets)
        Predicted probability that a target is at most the observed one, as returned by
        ``predictive(model, X).cdf(y)``. Several targets are pooled.

    Returns
    -------
    float
        Error between 0 and 1/2. With 0.05 the coverage of intervals is wrong by 5 percentage points
        on average. For a calibrated model the error is about 0.31 / sqrt(n) by chance.

    Raises
    ------
    ValueError
        If a probability isn't between 0 and 1.

    Notes
    -----
    The error doesn't detect deviations that leave the coverage right, such as a biased mean
    together with a standard deviation that is too large. The probability integral transform of
    counts isn't uniform, so that the error of the true model isn't 0 unless the counts are large.

    References
    ----------
    Kuleshov, Fenner & Ermon (2018). Accurate uncertainties for deep learning using calibrated
    regression. They use the squared distance for one-sided intervals on a grid of levels.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.stats import norm
    >>> from skbayes_sym.metrics import interval_calibration_error
    >>> y = np.random.default_rng(0).normal(size=1000)
    >>> for scale in (0.5, 1.0, 2.0):  # too narrow, right, too wide
    ...     print(scale, round(interval_calibration_error(norm.cdf(y, scale=scale)), 3))
    0.5 0.2
    1.0 0.01
    2.0 0.212
    """
    u = check_array(cdf, ensure_2d=False, dtype=np.float64, input_name="cdf").ravel()
    if np.any((u < 0) | (u > 1)):
        raise ValueError(f"cdf must lie between 0 and 1, got {u.min():g} to {u.max():g}.")
    edges = np.concatenate([[0.0], np.sort(np.abs(2.0 * u - 1.0)), [1.0]])
    observed = np.arange(len(u) + 1) / len(u)  # coverage between two edges

    def signed_square(x: Any) -> Any:
        """Antiderivative of ``|x|``."""
        return 0.5 * x * np.abs(x)

    return float(np.sum(signed_square(edges[1:] - observed) - signed_square(edges[:-1] - observed)))


def expected_calibration_error(
    y_true: Any, y_proba: Any, *, labels: Any = None, n_bins: int = 15
) -> float:
    r"""Expected calibration error: the distance between confidence and accuracy.

    .. math:: \sum_b \frac{n_b}{n} \, \Big| \mathrm{accuracy}(b) - \mathrm{confidence}(b) \Big|,

    where confidence is the largest probability of a row. The bins of the confidence have equal
    widths, and contain their upper but not their lower edge.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Observed classes.
    y_proba : array-like of shape (n_samples, n_classes)
        Predicted probabilities.
    labels : array-like of shape (n_classes,), optional
        Classes of the columns. By default the sorted classes in ``y_true``.
    n_bins : int, default=15
        Number of bins on [0, 1]. Bins below ``1 / n_classes`` stay empty.

    Returns
    -------
    float
        Error between 0 and 1. With few rows per bin the error of a calibrated model is also above 0
        by chance.

    Raises
    ------
    ValueError
        If the number of columns differs from the number of classes.

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
    if labels is None:
        classes = unique_classes(y_true)
    else:
        classes = np.atleast_1d(labels)
    if proba.shape[1] != len(classes):
        raise ValueError(
            f"y_proba has {proba.shape[1]} columns for {len(classes)} classes: give their labels."
        )
    check_count("n_bins", n_bins)
    confidence = proba.max(axis=1)
    is_correct = classes[proba.argmax(axis=1)] == y_true
    bins = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    excess = np.bincount(bins, weights=is_correct - confidence, minlength=n_bins)
    return float(np.abs(excess).sum() / len(y_true))


def uncertainty_error_measures(
    y_true: Any, y_pred: Any, y_std: Any, *, threshold: float = 1.0, n_groups: int = 20
) -> dict[str, Any]:
    r"""Measures of how well predicted uncertainties tell large errors from small ones.

    They compare absolute errors :math:`e_i = |y_i - \hat y_i|` with the uncertainties :math:`u_i`
    and depend on the order or the relative size of the uncertainties alone: unlike a log density or
    a coverage they don't notice that all intervals are too wide or too narrow.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Observed targets, such as ratings.
    y_pred : array-like of shape (n_samples,)
        Predicted targets.
    y_std : array-like of shape (n_samples,)
        Predicted standard deviations, or any other measure of uncertainty.
    threshold : float, default=1.0
        Absolute error, in the units of the targets, above which an error is large.
    n_groups : int, default=20
        Number of groups of rows for ``"rmse_by_uncertainty"``.

    Returns
    -------
    dict
        - ``"pearson"`` and ``"spearman"``: correlations of errors and uncertainties.
        - ``"reliability_prediction_index"``: :math:`\frac 1n \sum_i e_i (e_i - \bar e)
          (u_i - \bar u) / (\bar e\, d_e\, d_u)` with the mean absolute deviations :math:`d_e` and
          :math:`d_u` of errors and uncertainties, a covariance in which large errors count more.
        - ``"large_error_auc"``: probability that a row with a large error has a larger uncertainty
          than a row with a small error, ties counted half; nan if all or no errors are large.
        - ``"rmse_by_uncertainty"``: ndarray of shape (n_groups,), root mean squared errors of
          groups of rows with increasing uncertainty; nan for empty groups. It should increase.

        Correlations and the index are nan if all errors or all uncertainties are equal.

    Raises
    ------
    ValueError
        If the arguments differ in length, or an uncertainty is negative.

    References
    ----------
    Coscrato & Bridge (2023). Estimating and evaluating the uncertainty of rating predictions and
    top-n recommendations in recommender systems. ACM Transactions on Recommender Systems 1(2). They
    fit a logistic regression to the uncertainty before the area under the curve is computed, which
    doesn't change the order of the rows if its slope is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym.metrics import uncertainty_error_measures
    >>> rng = np.random.default_rng(0)
    >>> std = rng.uniform(0.2, 2.0, size=5000)
    >>> y = std * rng.normal(size=5000)
    >>> measures = uncertainty_error_measures(y, np.zeros(5000), std, n_groups=2)
    >>> round(measures["spearman"], 1), round(measures["large_error_auc"], 1)
    (0.5, 0.8)
    >>> measures["rmse_by_uncertainty"].round(1)
    array([0.7, 1.6])
    """
    y_true = column_or_1d(y_true, dtype=np.float64)
    y_pred = column_or_1d(y_pred, dtype=np.float64)
    uncertainty = column_or_1d(y_std, dtype=np.float64)
    check_consistent_length(y_true, y_pred, uncertainty)
    check_count("n_groups", n_groups)
    error = np.abs(y_true - y_pred)
    for name, values in (("errors y_true - y_pred", error), ("y_std", uncertainty)):
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} must be finite, got {values[~np.isfinite(values)][0]}.")
    if np.any(uncertainty < 0):
        raise ValueError(f"y_std must be at least 0, got {uncertainty.min():g}.")

    pearson = spearman = index = np.nan
    if np.ptp(error) > 0 and np.ptp(uncertainty) > 0:
        pearson = float(pearsonr(error, uncertainty).statistic)
        spearman = float(spearmanr(error, uncertainty).statistic)
        error_deviation = error - error.mean()
        uncertainty_deviation = uncertainty - uncertainty.mean()
        covariance = np.mean(error * error_deviation * uncertainty_deviation)
        scale = np.abs(error_deviation).mean() * np.abs(uncertainty_deviation).mean()
        index = float(covariance / (error.mean() * scale))

    is_large = error > threshold
    auc = np.nan
    if 0 < is_large.sum() < len(error):
        n_pairs = is_large.sum() * (~is_large).sum()
        auc = float(mannwhitneyu(uncertainty[is_large], uncertainty[~is_large]).statistic / n_pairs)

    edges = np.quantile(uncertainty, np.linspace(0, 1, n_groups + 1)[1:-1])
    group = np.searchsorted(edges, uncertainty)
    n_rows = np.bincount(group, minlength=n_groups)
    sum_of_squares = np.bincount(group, weights=error**2, minlength=n_groups)
    mean_square = np.full(n_groups, np.nan)
    np.divide(sum_of_squares, n_rows, out=mean_square, where=n_rows > 0)
    return {
        "pearson": pearson,
        "spearman": spearman,
        "reliability_prediction_index": index,
        "large_error_auc": auc,
        "rmse_by_uncertainty": np.sqrt(mean_square),
    }
