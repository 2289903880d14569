"""Groups of rows: their encoding, closed forms that leave them out, and effective numbers."""

import numpy as np
import pandas as pd
import pytest
import torch

from skbayes_sym.base.groups import (
    encode_groups,
    intraclass_correlation,
    leave_groups_out,
    number_by_appearance,
    scale_weights_to_groups,
    split_into_blocks,
)
from skbayes_sym.base.rows import canonical_rows
from skbayes_sym.models.predictive_mixtures import NormalMixture

polars = pytest.importorskip("polars")

TEXT = ["b", "a", "b", "c"]


@pytest.mark.parametrize(
    "groups",
    [
        TEXT,
        np.array(TEXT),
        np.array(TEXT, dtype=object),
        pd.Series(TEXT, index=[7, 3, 1, 0]),
        pd.Series(TEXT, dtype="category"),
        pd.Series(TEXT, dtype="string"),
        polars.Series(TEXT),
        polars.Series(TEXT, dtype=polars.Categorical),
        [2, 1, 2, 3],
        pd.Series([2, 1, 2, 3], dtype="Int64"),
        torch.tensor([2, 1, 2, 3]),
        [2.5, 1.0, 2.5, 3.0],
        pd.to_datetime(["2020-02-01", "2020-01-01", "2020-02-01", "2021-01-01"]),
        [True, False, True, "yes"],
        [2, 1, 2, "a"],
    ],
)
def test_groups_of_any_dtype_are_numbered_in_their_order(groups):
    np.testing.assert_array_equal(encode_groups(groups, 4), [1, 0, 1, 2])


@pytest.mark.parametrize(
    "groups",
    [
        ["a", None, "a", "b"],
        [1.0, np.nan, 1.0, 2.0],
        pd.Series(["a", pd.NA, "a", "b"], dtype="string"),
        pd.Series([1, pd.NA, 1, 2], dtype="Int64"),
        pd.Series(["a", None, "a", "b"], dtype="category"),
        polars.Series(["a", None, "a", "b"]),
        pd.to_datetime(["2020-02-01", None, "2020-02-01", "2021-01-01"]),
    ],
)
def test_missing_groups_are_refused_with_their_row(groups):
    with pytest.raises(ValueError, match=r"groups has 1 missing values, the first in row 1"):
        encode_groups(groups, 4)


def test_groups_of_a_wrong_shape_are_refused():
    with pytest.raises(
        ValueError, match=r"one value for each of the 4 rows of X, got shape \(3,\)"
    ):
        encode_groups([1, 2, 3], 4)
    with pytest.raises(ValueError, match=r"got shape \(4, 1\)"):
        encode_groups([[1], [2], [3], [4]], 4)


def test_numbers_by_appearance():
    np.testing.assert_array_equal(number_by_appearance(np.array([5, 2, 5, 9, 2])), [0, 1, 0, 2, 1])


def test_equal_rows_of_different_groups_arent_merged():
    X = np.zeros((4, 1))
    rows, inverse = canonical_rows(X, np.ones((4, 1)), np.ones(4), np.array([1, 0, 1, 2]))
    np.testing.assert_array_equal(rows.weight, [1.0, 2.0, 1.0])
    np.testing.assert_array_equal(rows.groups, [0, 1, 2])
    np.testing.assert_array_equal(inverse, [1, 0, 1, 2])


def make_linear_rows(n_columns):
    """Rows of groups of 1 to 5 with weights, and the hyperparameters of a linear model."""
    rng = np.random.default_rng(n_columns)
    groups = np.repeat([0, 1, 2, 3, 4, 5], [1, 5, 2, 2, 4, 3])
    F = rng.normal(size=(len(groups), n_columns))
    return F, rng.normal(size=len(groups)), rng.integers(1, 4, len(groups)).astype(float), groups


@pytest.mark.parametrize("n_columns", [2, 4, 30])
def test_linear_models_that_leave_out_groups_equal_refits(n_columns):
    F, y, w, groups = make_linear_rows(n_columns)
    noise = 0.3

    def posterior(index):
        precision = np.eye(n_columns) + F[index].T @ (w[index, None] * F[index]) / noise
        covariance = np.linalg.inv(precision)
        return covariance @ F[index].T @ (w[index] * y[index]) / noise, covariance

    mean, covariance = posterior(np.arange(len(y)))
    root = F @ np.linalg.cholesky(covariance)
    arrays = (F @ mean, (root**2).sum(1), np.full((1, 1), noise))
    distribution = NormalMixture(*(torch.as_tensor(a).reshape(1, -1, 1) for a in arrays))
    held_out = leave_groups_out(
        distribution, torch.as_tensor(root), torch.as_tensor(y)[:, None], torch.as_tensor(w), groups
    )
    for group in range(6):
        test = groups == group
        mean, covariance = posterior(np.flatnonzero(~test))
        np.testing.assert_allclose(held_out.loc[0, test, 0], F[test] @ mean, atol=1e-10)
        variance = ((F[test] @ covariance) * F[test]).sum(1)
        np.testing.assert_allclose(held_out.variance[0, test, 0], variance, rtol=1e-8)


@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.9])
def test_intraclass_correlation_is_estimated(correlation):
    rng = np.random.default_rng(1)
    sizes = rng.integers(2, 8, 4000)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    residual = correlation**0.5 * rng.normal(size=len(sizes))[groups]
    residual += (1.0 - correlation) ** 0.5 * rng.normal(size=len(groups))
    tensors = torch.as_tensor(residual), torch.ones(len(groups), dtype=torch.float64)
    # The standard error of 4,000 groups is below 0.01.
    assert abs(intraclass_correlation(*tensors, groups) - correlation) < 0.04


def test_weights_count_repetitions_in_correlations():
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(20), 4)
    residual = torch.as_tensor(rng.normal(size=20)[groups] + rng.normal(size=80))
    weight = torch.as_tensor(rng.integers(1, 4, 80).astype(float))
    repeated = np.repeat(np.arange(80), weight.numpy().astype(int))
    ones = torch.ones(len(repeated), dtype=torch.float64)
    expected = intraclass_correlation(residual[repeated], ones, groups[repeated])
    assert intraclass_correlation(residual, weight, groups) == pytest.approx(expected, rel=1e-12)


def test_equal_residuals_within_groups_count_once_per_group():
    groups = np.repeat(np.arange(10), 7)
    residual = torch.as_tensor(np.random.default_rng(3).normal(size=10)[groups])
    weight = torch.ones(70, dtype=torch.float64)
    assert float(scale_weights_to_groups(residual, weight, groups).sum()) == pytest.approx(10.0)
    # Rows that differ as much within groups as between them keep their weights.
    residual = torch.as_tensor(np.tile([1.0, -1.0], 35))
    assert float(scale_weights_to_groups(residual, weight, groups).sum()) == pytest.approx(70.0)


def test_blocks_have_at_most_the_given_size():
    assert list(split_into_blocks([3, 3, 9, 1, 1], 5)) == [[0], [1], [2], [3, 4]]
