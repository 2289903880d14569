"""Shapes of questions to every type of predictive distribution, and their agreement."""

import copy
import pickle

import numpy as np
import pytest
import torch
from fits import COUNTS, LABELS, NUMBERS, TWO_NUMBERS, X
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import VotingRegressor
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PowerTransformer, StandardScaler

from skbayes_sym import (
    BayesianLinearClassifier,
    BayesianLinearRegressor,
    PredictiveStackingRegressor,
    predictive,
)
from skbayes_sym.base.distributions import NormalPredictive, TensorPredictive
from skbayes_sym.base.predictive import OtherPredictive, as_targets, scipy_rows


class SigmaRegressor(RegressorMixin, BaseEstimator):
    """A user's estimator that returns a mean and a standard deviation."""

    def fit(self, X, y):
        self.std_ = float(np.std(y))
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, X, return_std=False):
        mean = np.full(len(X), self.mean_)
        return (mean, np.full(len(X), self.std_)) if return_std else mean


def of(model, y, rows=X):
    return predictive(model.fit(X, y), rows)


def skewed():
    return OtherPredictive(stats.gamma(2.0 + X[:, 0] ** 2), "logpdf", (len(X),), scipy_rows)


STUDENT = {"likelihood": "student_t"}
POISSON = BayesianLinearRegressor(likelihood="poisson")
EXP = {"func": np.log1p, "inverse_func": np.expm1}

# Every type that `predictive` returns: name, distribution, observed targets.
CASES = {
    "linear": lambda: of(BayesianLinearRegressor(), NUMBERS),
    "student": lambda: of(BayesianLinearRegressor(**STUDENT), NUMBERS),
    "counts": lambda: of(POISSON, COUNTS),
    "two targets": lambda: of(BayesianLinearRegressor(), TWO_NUMBERS),
    "a column": lambda: of(BayesianLinearRegressor(), NUMBERS[:, None]),
    "ridge": lambda: of(make_pipeline(StandardScaler(), BayesianRidge()), NUMBERS),
    "sigma": lambda: of(SigmaRegressor(), NUMBERS),
    "scipy": skewed,
    "voting": lambda: of(
        VotingRegressor([("a", BayesianRidge()), ("b", BayesianLinearRegressor(**STUDENT))]),
        NUMBERS,
    ),
    "voting counts": lambda: of(VotingRegressor([("a", POISSON), ("b", POISSON)]), COUNTS),
    "many": lambda: of(MultiOutputRegressor(BayesianRidge()), TWO_NUMBERS),
    "logged": lambda: of(TransformedTargetRegressor(BayesianRidge(), **EXP), COUNTS),
    "scaled": lambda: of(
        TransformedTargetRegressor(BayesianLinearRegressor(), transformer=StandardScaler()),
        TWO_NUMBERS,
    ),
    "stack": lambda: of(
        PredictiveStackingRegressor(
            [("l", "linear"), ("t", BayesianLinearRegressor(**STUDENT))], random_state=0
        ),
        NUMBERS,
    ),
    "stack of counts": lambda: of(
        PredictiveStackingRegressor([("l", "linear"), ("p", POISSON)], random_state=0), COUNTS
    ),
    "scaled powers": lambda: of(
        TransformedTargetRegressor(
            BayesianLinearRegressor(),
            transformer=make_pipeline(MinMaxScaler((1.0, 2.0)), PowerTransformer("box-cox")),
        ),
        NUMBERS,
    ),
    "quadrature": lambda: TensorPredictive(
        [as_targets(NormalPredictive(NUMBERS, np.ones(24)))], is_flat=False
    ),
}


# Quantiles of Student-t mixtures are bisections of a slow cdf.
SLOW = {"student", "voting", "voting counts", "stack", "stack of counts"}
NAMES = [pytest.param(n, marks=[pytest.mark.long] if n in SLOW else []) for n in CASES]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", NAMES)
def test_targets_are_broadcast_by_numpy_s_rules(name):
    distribution = CASES[name]()
    assert len(distribution) == len(X) == distribution.shape[0]
    distribution = distribution[:4]
    shape, n = distribution.shape, len(distribution)
    column = (3, 1) if len(shape) == 1 else (3, 1, 1)
    values = np.array([0.0, 1.0, 4.0])
    grid = np.broadcast_to(values.reshape(column), (3, *shape))
    for ask in (
        distribution.cdf,
        distribution.sf,
        distribution.crps,
        distribution.log_prob,
        distribution.pdf,
    ):
        answers = ask(grid)
        expected = shape[:1] if ask in (distribution.log_prob, distribution.pdf) else shape
        assert answers.shape == (3, *expected)
        np.testing.assert_allclose(ask(values.reshape(column)), answers, rtol=1e-12)
        np.testing.assert_allclose(ask(grid[1]), answers[1], rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(ask(1.0), answers[1], rtol=1e-9, atol=1e-13)
    with pytest.raises(ValueError, match=rf"shape \({n + 1},\), which doesn't broadcast"):
        distribution.cdf(np.zeros(n + 1))
    with pytest.raises(ValueError, match="contains NaN"):
        distribution.log_prob(np.where(grid == 4.0, np.nan, grid))
    with pytest.raises(ValueError, match="y must hold real numbers: got dtype complex128"):
        distribution.cdf(1.0 + 2.0j)
    with pytest.raises(ValueError, match=r"y must hold real numbers: .*requires grad"):
        distribution.cdf(torch.ones(n, requires_grad=True))
    np.testing.assert_array_equal(distribution.cdf(np.inf), 1.0)
    np.testing.assert_array_equal(distribution.cdf(-np.inf), 0.0)
    np.testing.assert_array_equal(distribution.log_prob(np.inf), -np.inf)
    assert distribution.quantile(0.3).shape == shape
    assert distribution.quantile([0.3, 0.6, 0.9]).shape == (*shape, 3)
    assert distribution.interval(0.5).shape == (*shape, 2)
    several = distribution.interval([0.5, 0.9])
    assert several.shape == (*shape, 2, 2)
    np.testing.assert_allclose(several[..., 1], distribution.interval(0.9))
    np.testing.assert_allclose(distribution.sf(1.0), 1.0 - distribution.cdf(1.0))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", NAMES)
def test_distributions_are_pickled_and_copied(name):
    """Transformed targets of several steps too, whose functions are made again."""
    distribution = CASES[name]()[:4]
    for copied in (pickle.loads(pickle.dumps(distribution)), copy.deepcopy(distribution)):
        assert repr(copied) == repr(distribution)
        np.testing.assert_array_equal(copied.mean(), distribution.mean())
        np.testing.assert_array_equal(copied.log_prob(1.5), distribution.log_prob(1.5))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_indexed(name):
    distribution = CASES[name]()
    mean, below = distribution.mean(), distribution.cdf(1.0)
    mask = np.arange(len(X)) % 3 == 0
    for rows in (slice(2, 9), mask, [5, 1, 5], np.array([-1])):
        part = distribution[rows]
        assert len(part) == len(mean[rows])
        np.testing.assert_allclose(part.mean(), mean[rows], rtol=1e-9)
        np.testing.assert_allclose(part.cdf(1.0), below[rows], rtol=1e-9)
    assert distribution[3].shape == (1, *distribution.shape[1:])
    assert len(list(distribution[:4])) == 4
    with pytest.raises(IndexError):
        distribution[len(distribution)]
    with pytest.raises(IndexError, match="mask has shape"):
        distribution[mask[:-1]]
    with pytest.raises(TypeError, match="indexed by rows"):
        distribution[:, 0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", NAMES)
def test_answers_agree_with_one_cdf(name):
    """Moments and CRPS are integrals of the cdf, and densities its differences."""
    distribution = CASES[name]()[:3]
    ends = distribution.quantile([1e-7, 1.0 - 1e-7])
    low, high = float(ends.min()) - 1e-3, float(ends.max()) + 1e-3
    column = (-1, 1) if len(distribution.shape) == 1 else (-1, 1, 1)
    if distribution.is_discrete:
        counts = np.arange(0.0, high + 2.0).reshape(column)
        mass = np.diff(distribution.cdf(counts), axis=0, prepend=0.0)
        np.testing.assert_allclose(np.exp(distribution.log_prob(counts)), mass, atol=1e-9)
        mean = (mass * counts).sum(axis=0)
        np.testing.assert_allclose(mean, distribution.mean(), atol=1e-5)
        np.testing.assert_allclose(
            (mass * (counts - mean) ** 2).sum(0), distribution.var(), rtol=1e-3
        )
        distance = np.abs(counts - 2.3)
        below = distribution.cdf(counts)
        spread = (below * (1.0 - below)).sum(axis=0)
        expected = (mass * distance).sum(axis=0) - spread
        np.testing.assert_allclose(distribution.crps(2.3), expected, atol=1e-5)
        return
    x = np.linspace(low, high, 1001).reshape(column)
    step = (high - low) / 1000
    below = distribution.cdf(x)
    jump = (x >= 0.5).astype(float)
    crps = ((below - jump) ** 2).sum(axis=0) * step
    np.testing.assert_allclose(distribution.crps(0.5), crps, atol=2.0 * step)
    mean = high - below.sum(axis=0) * step + 0.5 * step
    scale = float(np.max(distribution.std()))
    np.testing.assert_allclose(distribution.mean(), mean, atol=2.0 * step + 1e-4 * scale)
    if len(distribution.shape) == 1:
        slope = (distribution.cdf(x[1:]) - distribution.cdf(x[:-1])) / step
        density = distribution.pdf(0.5 * (x[1:] + x[:-1]))
        np.testing.assert_allclose(density, slope, atol=5e-3 * density.max())
    draws = distribution.sample(2000, 1)
    below = distribution.cdf(np.moveaxis(draws, -1, 0))
    assert np.abs(below.mean(axis=0) - 0.5).max() < 5.0 * (1.0 / 12.0 / 2000) ** 0.5


@pytest.mark.parametrize(
    "model", [LogisticRegression(), BayesianLinearClassifier()], ids=["scikit-learn", "ours"]
)
def test_labels_are_broadcast_and_checked(model):
    distribution = of(model, LABELS)
    n = len(distribution)
    assert distribution.log_prob("low").shape == (n,)
    grid = distribution.log_prob(np.array([["low"], ["high"]]))
    assert grid.shape == (2, n)
    np.testing.assert_allclose(np.exp(grid).sum(axis=0), 1.0)
    np.testing.assert_allclose(
        distribution.log_prob(np.tile(LABELS, (2, 1)))[1], distribution.log_prob(LABELS)
    )
    np.testing.assert_array_equal(distribution.log_prob("never"), -np.inf)
    np.testing.assert_allclose(distribution[:5].proba(), distribution.proba()[:5])
    for wrong in (LABELS[:-1], np.append(LABELS, "low"), LABELS[:2]):
        with pytest.raises(ValueError, match="doesn't broadcast"):
            distribution.log_prob(wrong)
    with pytest.raises(TypeError, match="labels of the same type as in fit"):
        distribution.log_prob(np.zeros(n))
    numbers = predictive(model.fit(X, (LABELS == "low").astype(float)), X)
    with pytest.raises(ValueError, match="NaN"):
        numbers.log_prob(np.full(n, np.nan))
    np.testing.assert_array_equal(numbers.log_prob(2.0), -np.inf)


def test_swapped_arguments_are_refused_without_the_table():
    pandas = pytest.importorskip("pandas")
    model = BayesianRidge().fit(X, NUMBERS)
    with pytest.raises(TypeError, match="got a DataFrame as model") as error:
        predictive(pandas.DataFrame(X), model)
    assert len(str(error.value)) < 200
    with pytest.raises(TypeError, match="got the class BayesianRidge"):
        predictive(BayesianRidge, X)


@pytest.mark.long
def test_a_mass_and_a_density_have_no_common_logarithm():
    distribution = of(VotingRegressor([("a", POISSON), ("b", BayesianRidge())]), COUNTS, X[:4])
    with pytest.raises(TypeError, match=r"poisson components.*mixture of 1 normal|density"):
        distribution.log_prob(1.0)
    assert np.isfinite(distribution.crps(1.0)).all()


def test_targets_with_reordered_row_labels_are_named():
    """Rows are matched by position, as in scores, also for subsets and transformed targets."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X)
    numbers = pd.Series(frame[0] ** 2 + 1.0)
    flipped = numbers[::-1]
    inner = BayesianLinearRegressor()
    logged = TransformedTargetRegressor(inner, func=np.log, inverse_func=np.exp)
    for model in (inner, BayesianRidge(), logged):
        distribution = predictive(model.fit(frame, numbers), frame)
        for query in (distribution.log_prob, distribution.cdf, distribution.crps):
            query(numbers)
            query(flipped.to_numpy())
            with pytest.warns(UserWarning, match="X and y have the same row labels in different"):
                query(flipped)
        distribution[3:9].cdf(numbers[3:9])
        with pytest.warns(UserWarning, match="X and y have the same row labels in different"):
            distribution[3:9].cdf(numbers[3:9][::-1])
    labels = numbers > 2.0
    classes = predictive(LogisticRegression().fit(frame, labels), frame)
    classes.log_prob(labels)
    with pytest.warns(UserWarning, match="X and y have the same row labels in different"):
        classes.log_prob(labels[::-1])
