r"""Acquisition functions: which row to measure next, and which batch of rows.

Every function takes the `predictive` distribution of candidate rows. Utilities are returned for
each row, and the row with the largest utility is measured next. Let :math:`f(x)` be the function
without noise, with mean :math:`m` and standard deviation :math:`s`, let :math:`b` be the best
value so far and :math:`z = (m - b) / s`. Then

.. math:: E[\max(f - b, 0)] = s\,(z \Phi(z) + \varphi(z)), \qquad
          I(y; f) = \tfrac12 \log(1 + s^2 / \sigma^2)

(Jones et al. 1998, eq. 15; MacKay 1992). Models that don't separate noise from the uncertainty of
the function, such as those of scikit-learn, enter with their whole standard deviation.
"""

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr
from sklearn.base import BaseEstimator
from torch import Tensor

from skbayes_sym.base.distributions import ClassPredictive, PredictiveDistribution
from skbayes_sym.base.pipelines import fitted_attribute, unwrap
from skbayes_sym.base.predictive import predictive
from skbayes_sym.numerics.arguments import check_count, check_number, draw_seed, short_repr

Array = npt.NDArray[np.float64]


def expected_improvement(distribution: Any, best: float, *, maximize: bool = True) -> Array:
    """Expected improvement over the best known value, for normally distributed functions.

    Parameters
    ----------
    distribution : PredictiveDistribution
        ``predictive(model, X)`` of a regressor with one target.
    best : float
        Largest known value (smallest if ``maximize=False``).
    maximize : bool, default=True
        Whether to look for large values.

    Returns
    -------
    ndarray of shape (n_samples,)
        Expected improvements in the units of ``y``.

    Examples
    --------
    >>> from skbayes_sym import BayesianLinearRegressor, predictive
    >>> from skbayes_sym.acquisition import expected_improvement
    >>> reg = BayesianLinearRegressor().fit([[0.0], [1.0], [2.0]], [0.0, 1.1, 1.9])
    >>> int(expected_improvement(predictive(reg, [[1.5], [3.0]]), best=1.9).argmax())
    1
    """
    mean, std = _function_moments(distribution)
    best = check_number("best", best)
    gain = mean - best if maximize else best - mean
    # Far from the best value the square of z overflows, and the normal density is zero.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = gain / std
        value = gain * ndtr(z) + std * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return np.where(std > 0.0, value, np.maximum(gain, 0.0))


def upper_confidence_bound(
    distribution: Any, width: float = 2.0, *, maximize: bool = True
) -> Array:
    """Upper confidence bound: the mean plus ``width`` standard deviations of the function.

    Parameters
    ----------
    distribution : PredictiveDistribution
        ``predictive(model, X)`` of a regressor with one target.
    width : float, default=2.0
        Number of standard deviations.
    maximize : bool, default=True
        Whether to look for large values. Otherwise the result is minus the lower bound.

    Returns
    -------
    ndarray of shape (n_samples,)
        Bounds in the units of ``y``.
    """
    mean, std = _function_moments(distribution)
    if not maximize:
        mean = -mean
    return np.asarray(mean + check_number("width", width, 0.0) * std)


def expected_information_gain(distribution: Any) -> Array:
    """Mutual information of a row's target or class and the function.

    Parameters
    ----------
    distribution : PredictiveDistribution or ClassPredictive
        ``predictive(model, X)`` of a model of this package. For classes the result is BALD (Houlsby
        et al. 2011). For targets it is that of normal functions with normal noise.

    Returns
    -------
    ndarray of shape (n_samples,)
        Information in nats.
    """
    uncertainty = _check_distribution(distribution).uncertainty()
    if isinstance(distribution, ClassPredictive):
        return np.asarray(uncertainty.epistemic)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = _check_one_target(uncertainty.epistemic) / _check_finite(uncertainty.aleatoric)
    return np.asarray(0.5 * np.log1p(np.nan_to_num(ratio, nan=0.0, posinf=np.inf)))


def thompson_sampling(
    distribution: Any, n: int = 1, *, maximize: bool = True, random_state: Any = 0
) -> npt.NDArray[np.intp]:
    """Select the best row of each of ``n`` functions drawn from the posterior.

    Parameters
    ----------
    distribution : PredictiveDistribution
        ``predictive(model, X)`` of a regressor of this package with one target.
    n : int, default=1
        Number of rows, at most all. A row is selected only once.
    maximize : bool, default=True
        Whether to look for large values.
    random_state : int, RandomState instance or None, default=0
        Seed or generator of the draws.

    Returns
    -------
    ndarray of int of shape (n,)
        Indices of the rows.
    """
    check_count("n", n)
    draws = _check_distribution(distribution).functions(n, random_state)
    functions = _check_one_target(draws, 2)
    functions = functions * (1.0 if maximize else -1.0)
    rows = np.empty(check_count("n", n, 1, len(functions)), dtype=np.intp)
    for k in range(n):
        rows[k] = functions[:, k].argmax()
        functions[rows[k]] = -np.inf
    return rows


class Batch(NamedTuple):
    """Rows to measure together.

    Attributes
    ----------
    rows : ndarray of int of shape (n,)
        Indices of the rows in the order of their selection.
    value : ndarray of shape (n,)
        Utility of the first 1, 2, ..., n rows together, in the units of ``y`` or in nats.
    """

    rows: npt.NDArray[np.intp]
    value: Array


def select_batch(
    distribution: Any,
    n: int,
    *,
    best: float | None = None,
    maximize: bool = True,
    n_draws: int = 256,
    random_state: Any = 0,
) -> Batch:
    r"""Select rows that have the largest utility together, greedily and by draws of functions.

    With ``best`` the utility is the expected improvement of the best row of the batch. Without it
    the utility is information, half the log determinant of :math:`1 + K / \sigma^2`, where K is the
    covariance of the drawn functions. For classes K is the covariance of probabilities divided by
    the root of their means, which gives the mutual information to second order in the differences
    between functions.

    Parameters
    ----------
    distribution : PredictiveDistribution or ClassPredictive
        ``predictive(model, X)`` of a model of this package.
    n : int
        Number of rows, at most all.
    best : float, optional
        Largest known value (smallest if ``maximize=False``), for expected improvement.
    maximize : bool, default=True
        Whether to look for large values.
    n_draws : int, default=256
        Number of drawn functions, at least two.
    random_state : int, RandomState instance or None, default=0
        Seed or generator of the draws.

    Returns
    -------
    Batch
        Indices of the rows, and the utility of the first 1, 2, ..., n rows together.
    """
    check_count("n_draws", n_draws, 2)
    functions = _check_distribution(distribution).functions(n_draws, random_state)
    check_count("n", n, 1, len(functions))
    if best is not None:
        values = _check_one_target(functions, 2)
        best = check_number("best", best)
        return _maximize_improvement(values - best if maximize else best - values, n)
    if isinstance(distribution, ClassPredictive):
        noise = np.sqrt(functions.mean(axis=-1).clip(1e-9))
    else:
        functions = _check_one_target(functions, 2)[:, None]
        noise = np.sqrt(_check_finite(distribution.uncertainty().aleatoric))[:, None]
    deviations = functions - functions.mean(axis=-1, keepdims=True)
    return _maximize_information(deviations / noise[..., None] / np.sqrt(n_draws - 1.0), n)


def _maximize_improvement(gain: Array, n: int) -> Batch:
    """Select rows by the expected maximum of their gains (N, S) over the best value."""
    rows = np.empty(n, dtype=np.intp)
    values = np.empty(n)
    best_gain = np.zeros(gain.shape[1])  # of the selected rows, for every draw
    for k in range(n):
        utility = np.maximum(gain, best_gain).mean(axis=1)
        utility[rows[:k]] = -np.inf
        row = utility.argmax()
        rows[k] = row
        values[k] = utility[row]
        best_gain = np.maximum(gain[row], best_gain)
    return Batch(rows, values)


def _maximize_information(root: Array, n: int) -> Batch:
    """Select rows by the log determinant of a covariance with the given root (N, C, S).

    Every selected row adds a block of columns to the Cholesky factor of the covariance.
    """
    rows = np.empty(n, dtype=np.intp)
    values = np.empty(n)
    total = 0.0
    covariance = root @ root.swapaxes(1, 2)  # of each row given the selected ones
    identity = np.eye(root.shape[1])
    columns: list[Array] = []  # blocks (N, C, C) of the factor, one per selected row
    for k in range(n):
        utility = 0.5 * np.linalg.slogdet(identity + covariance)[1]
        utility[rows[:k]] = -np.inf
        row = utility.argmax()
        rows[k] = row
        total += utility[row]
        values[k] = total
        explained = sum((c @ c[row].T for c in columns), np.zeros(()))
        cross_covariance = root @ root[row].T - explained
        factor = np.linalg.cholesky(identity + covariance[row])
        column = np.linalg.solve(factor, cross_covariance.swapaxes(1, 2)).swapaxes(1, 2)
        columns.append(column)
        covariance = covariance - column @ column.swapaxes(1, 2)
    return Batch(rows, values)


def _function_moments(distribution: Any) -> tuple[Array, Array]:
    """Mean and standard deviation (N,) of the function, or of targets if noise is unknown."""
    if isinstance(_check_distribution(distribution), ClassPredictive):
        raise ValueError(
            "distribution must be predictive(model, X) of a regressor, got that of a classifier. "
            "expected_information_gain and select_batch take both."
        )
    mean = _check_one_target(distribution.mean())
    try:
        return mean, np.sqrt(distribution.uncertainty().epistemic)
    except TypeError:
        return mean, np.asarray(distribution.std())


def _check_distribution(distribution: Any) -> Any:
    """Return a predictive distribution; a ValueError for models and everything else."""
    if not isinstance(distribution, PredictiveDistribution | ClassPredictive):
        if isinstance(distribution, BaseEstimator):
            kind = "a model"
        else:
            kind = short_repr(distribution)
        raise ValueError(
            "distribution must be a predictive distribution, skbayes_sym.predictive(model, X), "
            f"got {kind}."
        )
    return distribution


def _check_finite(variance: Array) -> Array:
    """Return noise variances; a ValueError if they are infinite."""
    if np.isinf(variance).any():
        raise ValueError(
            "the noise has infinite variance (Student's t with at most 2 degrees of freedom), so "
            "that the information isn't defined: fit with StudentT(df=4.0), or give best."
        )
    return variance


def _check_one_target(values: Array, ndim: int = 1) -> Array:
    """Return values of a single target; a ValueError if there are several."""
    if values.ndim != ndim:
        raise ValueError("acquisition takes regressors of one target: give y one axis.")
    return values


class _DifferentiableDraws(torch.autograd.Function):
    """Function draws with gradients with respect to the rows, by central differences."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, draw: Callable[[Tensor], Tensor], steps: Tensor) -> Tensor:
        """Draws (S, N, T) at rows (N, d); ``steps`` (d,) are the differences of each column."""
        ctx.save_for_backward(rows)
        ctx.draw = draw
        ctx.steps = steps
        return draw(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Pull gradients (S, N, T) back to the rows; draws at a row depend only on that row."""
        (rows,) = ctx.saved_tensors
        n, d = rows.shape
        steps = torch.diag(ctx.steps.to(rows)).unsqueeze(1)  # (d, 1, d)
        upper = rows + steps
        lower = rows - steps
        draws = ctx.draw(torch.cat([upper, lower]).reshape(-1, d))
        above, below = draws.unflatten(1, (2, d, n)).unbind(1)  # (S, d, N, T) each
        # Far from zero steps are rounded, so the actual differences are used.
        actual_steps = torch.diagonal(upper - lower, dim1=0, dim2=2).T  # (d, N)
        slopes = (above - below) / actual_steps.unsqueeze(-1)
        return torch.einsum("sjnt,snt->nj", slopes, gradients[0]), None, None


# Candidates for the scale of a column, in the units of the column.
_LENGTHS = np.logspace(-15, 15, 61)


def _column_scales(model: Any, n_columns: int) -> Array:
    """Determine the scale on which each column of a model's rows varies.

    Parameters
    ----------
    model : fitted estimator
        Regressor of this package, or a pipeline or search around one.
    n_columns : int
        Number of columns of the rows that the model takes.

    Returns
    -------
    ndarray of shape (n_columns,)
        Standard deviations in the training data. For a pipeline, the change of a column that moves
        an input of its last step by about one standard deviation. 1 if the scale is unknown.
    """
    core, prepare = unwrap(model)
    inner = fitted_attribute(core, "x_scale_")
    if inner is None:
        return np.ones(n_columns)
    if core is model and len(inner) == n_columns:
        return np.where(inner > 0.0, inner, 1.0)
    scales = np.ones(n_columns)
    centre = _training_centre(model, core, n_columns)
    for column in range(n_columns):
        ends = np.repeat(centre[None], len(_LENGTHS) + 1, axis=0)
        ends[1:, column] += _LENGTHS
        try:
            inputs = np.asarray(prepare(ends), dtype=np.float64)
        except (TypeError, ValueError):  # a step that takes text
            return scales
        if inputs.shape[1:] != np.shape(inner):
            return scales
        change = np.abs((inputs[1:] - inputs[0]) / inner).max(axis=1)
        if (change >= 1.0).any():
            scales[column] = _LENGTHS[np.argmax(change >= 1.0)]
    return scales


def _training_centre(model: Any, core: Any, n_columns: int) -> Array:
    """Mean of the training rows in the user's units, or 0 if a pipeline can't be inverted."""
    pipeline = fitted_attribute(model, "best_estimator_", model)
    try:
        centre = pipeline[:-1].inverse_transform(core.x_mean_[None])
        return np.asarray(centre, dtype=np.float64).reshape(n_columns)
    except (AttributeError, TypeError, ValueError, KeyError):
        return np.zeros(n_columns)


def botorch_model(
    model: Any, n_draws: int = 128, *, step: float = 1e-4, random_state: Any = 0
) -> Any:
    """Convert a fitted regressor to a model for BoTorch's acquisition functions.

    The posterior is an ensemble of drawn functions without observation noise. Draws are joint over
    the points of a batch, and all points share the same functions.

    Parameters
    ----------
    model : fitted estimator
        Regressor of this package, or a pipeline or search around one.
    n_draws : int, default=128
        Number of drawn functions.
    step : float, default=1e-4
        Step of the central differences that give gradients, in units of each column's standard
        deviation in the training data. Gradients of smooth models are accurate to about 1e-7.
    random_state : int, RandomState instance or None, default=0
        Seed or generator of the draws.

    Returns
    -------
    botorch.models.ensemble.EnsembleModel
        Model without trainable parameters.

    Raises
    ------
    ImportError
        If BoTorch isn't installed: ``pip install skbayes-sym[botorch]``.
    """
    try:
        from botorch.models.ensemble import EnsembleModel
    except ImportError as error:
        raise ImportError("botorch_model needs BoTorch: pip install botorch.") from error
    n_draws = check_count("n_draws", n_draws)
    seed = random_state if isinstance(random_state, Integral) else draw_seed(random_state) % 2**32
    check_number("step", step, np.finfo(float).eps)
    d = model.n_features_in_
    steps = torch.as_tensor(step * _column_scales(model, d))

    def draw(rows: Tensor) -> Tensor:
        values = predictive(model, rows.detach().cpu().numpy()).functions(n_draws, seed)
        return torch.as_tensor(values.reshape(len(rows), -1, n_draws)).to(rows).movedim(2, 0)

    n_outputs = int(np.prod(np.shape(model.predict(np.zeros((1, d))))))

    class FunctionDraws(EnsembleModel):  # type: ignore[misc]
        """Functions drawn from a fitted regressor."""

        _num_outputs = n_outputs

        def forward(self, X: Tensor) -> Tensor:
            """Functions (..., S, q, T) at points (..., q, d)."""
            values = _DifferentiableDraws.apply(X.flatten(0, -2), draw, steps)
            return values.unflatten(1, X.shape[:-1]).movedim(0, -3)

    return FunctionDraws()
