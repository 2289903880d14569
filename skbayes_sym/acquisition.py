r"""Which row to measure next: utilities of candidates, and batches of them.

Each takes the `predictive` distribution of candidate rows and says of every row what measuring it
is worth; the row with the greatest value is next. With :math:`f(x)` the function without noise, of
mean :math:`m` and standard deviation :math:`s`, and :math:`z = (m - b) / s`,

.. math:: E[\max(f - b, 0)] = s\,(z \Phi(z) + \varphi(z)), \qquad
          I(y; f) = \tfrac12 \log(1 + s^2 / \sigma^2)

(Jones et al. 1998, eq. 15; MacKay 1992). Models that don't say which part of their standard
deviation is noise, such as scikit-learn's, are taken at all of it.
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
    """Expected excess over the best function value known, of normal functions.

    Parameters
    ----------
    law : PredictiveDistribution
        ``predictive(model, X)`` of a regressor with one target.
    best : float
        Largest (smallest) value known.
    maximize : bool, default=True
        Whether large values are looked for.

    Returns
    -------
    ndarray of shape (n_samples,)
        In the units of ``y``.

    Examples
    --------
    >>> from skbayes_sym import BayesianLinearRegressor, predictive
    >>> from skbayes_sym.acquisition import expected_improvement
    >>> reg = BayesianLinearRegressor().fit([[0.0], [1.0], [2.0]], [0.0, 1.1, 1.9])
    >>> int(expected_improvement(predictive(reg, [[1.5], [3.0]]), best=1.9).argmax())
    1
    """
    mean, std = _function(distribution)
    best = check_number("best", best)
    gain = mean - best if maximize else best - mean
    # Far from the best value z overflows when squared: the normal density is zero there.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = gain / std
        value = gain * ndtr(z) + std * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return np.where(std > 0.0, value, np.maximum(gain, 0.0))


def upper_confidence_bound(
    distribution: Any, width: float = 2.0, *, maximize: bool = True
) -> Array:
    """Optimistic function value: the mean and ``width`` standard deviations of the function.

    Parameters
    ----------
    law, maximize : object
        As for `expected_improvement`; minus the lower bound where small values are looked for.
    width : float, default=2.0

    Returns
    -------
    ndarray of shape (n_samples,)
        In the units of ``y``.
    """
    mean, std = _function(distribution)
    return np.asarray((mean if maximize else -mean) + check_number("width", width, 0.0) * std)


def expected_information(distribution: Any) -> Array:
    """Nats that a row's label or target is expected to tell about the model.

    Parameters
    ----------
    law : PredictiveDistribution or ClassPredictive
        Of a model of this package. Of classes it is the mutual information of label and function
        (BALD; Houlsby et al. 2011), of numbers that of normal functions in normal noise.

    Returns
    -------
    ndarray of shape (n_samples,)
    """
    parts = _check_law(distribution).uncertainty()
    if isinstance(distribution, ClassPredictive):
        return np.asarray(parts.epistemic)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = _one_target(parts.epistemic) / _finite(parts.aleatoric)
    return np.asarray(0.5 * np.log1p(np.nan_to_num(share, nan=0.0, posinf=np.inf)))


def thompson(
    distribution: Any, n: int = 1, *, maximize: bool = True, random_state: Any = 0
) -> npt.NDArray[np.intp]:
    """Best rows of ``n`` functions drawn, each among those not yet taken.

    Parameters
    ----------
    law, maximize : object
        As for `expected_improvement`, of a model of this package.
    n : int, default=1
        Rows, at most all.
    random_state : int, RandomState instance or None, default=0

    Returns
    -------
    ndarray of int of shape (n,)
    """
    functions = _one_target(
        _check_law(distribution).functions(check_count("n", n), random_state), 2
    )
    functions = functions * (1.0 if maximize else -1.0)
    rows = np.empty(check_count("n", n, 1, len(functions)), dtype=np.intp)
    for k in range(n):
        rows[k] = functions[:, k].argmax()
        functions[rows[k]] = -np.inf
    return rows


class Batch(NamedTuple):
    """Rows to measure together, in the order of choice, and what the first 1, 2, ... are worth."""

    rows: npt.NDArray[np.intp]  # (n,)
    value: Array  # (n,), in units of y, or nats


def batch(
    distribution: Any,
    n: int,
    *,
    best: float | None = None,
    maximize: bool = True,
    n_draws: int = 256,
    random_state: Any = 0,
) -> Batch:
    r"""Rows that are worth most together, one after another, by draws of functions.

    With ``best`` it is the expected improvement of the best of them. Without it is information:
    half the log determinant of :math:`1 + K / \sigma^2`, where K is the covariance of the functions
    drawn. Of classes K is of probabilities over the root of their means: the mutual information to
    second order, where functions disagree little.

    Parameters
    ----------
    law : PredictiveDistribution or ClassPredictive
        Of a model of this package.
    n : int
        Rows, at most all.
    best, maximize : object
        As for `expected_improvement`; no ``best`` by default.
    n_draws : int, default=256
        Functions drawn, at least two.
    random_state : int, RandomState instance or None, default=0

    Returns
    -------
    Batch
        ``rows`` (n,), and the ``value`` (n,) of the first 1, 2, ... of them together.
    """
    functions = _check_law(distribution).functions(check_count("n_draws", n_draws, 2), random_state)
    size = check_count("n", n, 1, len(functions))
    if best is not None:
        values = _one_target(functions, 2)
        best = check_number("best", best)
        gain = values - best if maximize else best - values
        rows = np.empty(size, dtype=np.intp)
        worths = np.empty(size)
        reached = np.zeros(n_draws)
        for k in range(size):
            worth = np.maximum(gain, reached).mean(axis=1)
            worth[rows[:k]] = -np.inf
            rows[k] = worth.argmax()
            worths[k], reached = worth[rows[k]], np.maximum(gain[rows[k]], reached)
        return Batch(rows, worths)
    if isinstance(distribution, ClassPredictive):
        noise = np.sqrt(functions.mean(axis=-1).clip(1e-9))
    else:
        functions = _one_target(functions, 2)[:, None]
        noise = np.sqrt(_finite(distribution.uncertainty().aleatoric))[:, None]
    off = functions - functions.mean(axis=-1, keepdims=True)
    return _by_information(off / noise[..., None] / np.sqrt(n_draws - 1.0), size)


def _by_information(root: Array, n: int) -> Batch:
    """Greedy log determinant of roots of covariances (N, C, S), blocks of a Cholesky factor."""
    rows = np.empty(n, dtype=np.intp)
    values = np.empty(n)
    total = 0.0
    covariance = root @ root.swapaxes(1, 2)
    one = np.eye(root.shape[1])
    columns: list[Array] = []  # (N, C, C) of the factor, for every row chosen
    for k in range(n):
        worth = 0.5 * np.linalg.slogdet(one + covariance)[1]
        worth[rows[:k]] = -np.inf
        r = rows[k] = worth.argmax()
        total += worth[r]
        values[k] = total
        across = root @ root[r].T - sum((c @ c[r].T for c in columns), np.zeros(()))
        factor = np.linalg.cholesky(one + covariance[r])
        columns.append(np.linalg.solve(factor, across.swapaxes(1, 2)).swapaxes(1, 2))
        covariance = covariance - columns[-1] @ columns[-1].swapaxes(1, 2)
    return Batch(rows, values)


def _function(distribution: Any) -> tuple[Array, Array]:
    """Mean and standard deviation of the function (N,), or of targets where that is all known."""
    if isinstance(_check_law(distribution), ClassPredictive):
        raise ValueError(
            "law must be predictive(model, X) of a regressor, got the distribution of a "
            "classifier. expected_information and batch take both."
        )
    mean = _one_target(distribution.mean())
    try:
        return mean, np.sqrt(distribution.uncertainty().epistemic)
    except TypeError:
        return mean, np.asarray(distribution.std())


def _check_law(distribution: Any) -> Any:
    """A predictive distribution; ValueError for models and everything else."""
    if not isinstance(distribution, PredictiveDistribution | ClassPredictive):
        kind = "a model" if isinstance(distribution, BaseEstimator) else short_repr(distribution)
        raise ValueError(
            f"law must be a predictive distribution, skbayes_sym.predictive(model, X), got {kind}."
        )
    return distribution


def _finite(variance: Array) -> Array:
    if np.isinf(variance).any():
        raise ValueError(
            "the noise has no variance (Student's t of at most 2 degrees of freedom), so that "
            "information can't be counted: fit with StudentT(df=4.0), or give best."
        )
    return variance


def _one_target(values: Array, ndim: int = 1) -> Array:
    if values.ndim != ndim:
        raise ValueError("acquisition takes regressors of one target: give y one axis.")
    return values


class _Functions(torch.autograd.Function):
    """Draws at rows, differentiable in the rows by central differences."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, draw: Callable[[Tensor], Tensor], steps: Tensor) -> Tensor:
        """Draws (S, N, T) at rows (N, d); ``steps`` (d,): of the differences, a column's each."""
        ctx.save_for_backward(rows)
        ctx.draw = draw
        ctx.steps = steps
        return draw(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Pull gradients (S, N, T) back to the rows: draws of a row depend on that row alone."""
        (rows,) = ctx.saved_tensors
        n, d = rows.shape
        steps = torch.diag(ctx.steps.to(rows)).unsqueeze(1)  # (d, 1, d)
        upper = rows + steps
        lower = rows - steps
        draws = ctx.draw(torch.cat([upper, lower]).reshape(-1, d))
        above, below = draws.unflatten(1, (2, d, n)).unbind(1)  # (S, d, N, T) each
        # Far from zero a step is rounded: the difference of the ends is what was taken.
        taken = torch.diagonal(upper - lower, dim1=0, dim2=2).T  # (d, N)
        slopes = (above - below) / taken.unsqueeze(-1)
        return torch.einsum("sjnt,snt->nj", slopes, gradients[0]), None, None


# Lengths at which a column is tried, in its own units.
_LENGTHS = np.logspace(-15, 15, 61)


def _column_scales(model: Any, n_columns: int) -> Array:
    """Find the unit in which each column of a model's rows varies.

    Parameters
    ----------
    model : fitted estimator
        Regressor of this package, or a pipeline or search around one.
    n_columns : int
        Number of columns of the rows that it takes.

    Returns
    -------
    ndarray of shape (n_columns,)
        Standard deviations in the training data, or, behind the other steps of a pipeline, the
        lengths that move an input of the model by about one of them. 1 where nothing is known.
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
        except (TypeError, ValueError):  # a step that takes words
            return scales
        if inputs.shape[1:] != np.shape(inner):
            return scales
        moved = np.abs((inputs[1:] - inputs[0]) / inner).max(axis=1)
        if (moved >= 1.0).any():
            scales[column] = _LENGTHS[np.argmax(moved >= 1.0)]
    return scales


def _training_centre(model: Any, core: Any, n_columns: int) -> Array:
    """Mean of the training rows in the user's units, where a pipeline's steps can be inverted."""
    pipeline = fitted_attribute(model, "best_estimator_", model)
    try:
        centre = pipeline[:-1].inverse_transform(core.x_mean_[None])
        return np.asarray(centre, dtype=np.float64).reshape(n_columns)
    except (AttributeError, TypeError, ValueError, KeyError):
        return np.zeros(n_columns)


def botorch_model(
    model: Any, n_draws: int = 128, *, step: float = 1e-4, random_state: Any = 0
) -> Any:
    """A fitted regressor for BoTorch's acquisition functions.

    Its posterior is an ensemble of functions: draws are joint over the points of a batch and the
    same for all points, without observation noise.

    Parameters
    ----------
    model : fitted estimator
        Regressor of this package, or a pipeline or search around one.
    n_draws : int, default=128
        Functions drawn.
    step : float, default=1e-4
        Step of the central differences that give gradients, in units of each column's standard
        deviation in the training data. Gradients of smooth models are right to about 1e-7.
    random_state : int, RandomState instance or None, default=0

    Returns
    -------
    botorch.models.ensemble.EnsembleModel

    Raises
    ------
    ImportError
        Without BoTorch: ``pip install skbayes-sym[botorch]``.
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

    class FunctionDraws(EnsembleModel):  # type: ignore[misc]
        """Functions drawn from a fitted regressor."""

        def forward(self, X: Tensor) -> Tensor:
            """Functions (..., S, q, T) at points (..., q, d)."""
            values = _Functions.apply(X.flatten(0, -2), draw, steps)
            return values.unflatten(1, X.shape[:-1]).movedim(0, -3)

    surrogate = FunctionDraws()
    surrogate._num_outputs = int(np.prod(np.shape(model.predict(np.zeros((1, d))))))
    return surrogate
