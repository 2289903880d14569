"""Columns that look like groups are named if leaving out their values costs much."""

import numpy as np
import pandas as pd
import pytest
import torch

from skbayes_sym import PredictiveStackingRegressor
from skbayes_sym.base.progress import PREDICT_ROWS
from skbayes_sym.stacking.group_columns import describe_group_columns, find_groups, group_loss
from skbayes_sym.stacking.task import RowBlock, StackTask


def make_task(std, seed=0, n_sites=40):
    """Rows of sites, whose intercepts have a standard deviation in units of the noise."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(n_sites), 6)
    x = rng.normal(size=(len(site), 2))
    y = x[:, 0] + std * rng.normal(size=n_sites)[site] + rng.normal(size=len(site))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": [f"s{k}" for k in site]})
    rows = RowBlock(torch.as_tensor(x), frame)
    targets = torch.as_tensor((y - y.mean()) / y.std())[:, None]
    weight = torch.ones(len(site), dtype=torch.float64)
    return StackTask(rows, targets, weight, y, (), 0), site


@pytest.mark.parametrize("std", [1.0, 3.0])
def test_random_intercepts_lose_what_a_known_intercept_explains(std):
    losses = [group_loss(*make_task(std, seed)) for seed in range(5)]
    # With five other rows of the site, 1 / (1 + 1 / 5 std^2) of its variance is explained.
    remaining = 1.0 + std**2 / (1.0 + 5.0 * std**2)
    expected = 0.5 * np.log((1.0 + std**2) / remaining)
    assert np.mean(losses) == pytest.approx(expected, abs=0.07)


def test_rows_of_several_blocks_of_predictions_have_one_intercept():
    task, site = make_task(1.0, n_sites=PREDICT_ROWS // 6 + 10)
    assert group_loss(task, site) == pytest.approx(0.5 * np.log(12.0 / 7.0), abs=0.07)


def test_columns_with_differences_between_their_values_are_named():
    task, _ = make_task(1.0)
    assert "rows with the same 'site' resemble each other" in describe_group_columns(task)
    assert describe_group_columns(make_task(0.0)[0]) == ""


@pytest.mark.parametrize(
    ("values", "is_group"),
    [
        (np.repeat(np.arange(6), 3), True),
        (np.repeat(np.arange(6.0), 3), True),
        (np.repeat(np.arange(6.0), 3) + 0.5, False),
        (np.arange(18), False),
        (np.repeat(np.arange(3), 6), False),
        (np.array(list("abcdef") * 3, dtype=object), True),
        (np.array([None, *"bcdef"] * 3, dtype=object), True),
        (np.array([np.nan, *range(5)] * 3), False),
        (np.arange(18) > 5, False),
    ],
)
def test_groups_are_text_or_whole_numbers_that_repeat(values, is_group):
    assert (find_groups(values, is_categorical=False) is not None) == is_group


@pytest.mark.long
def test_the_summary_of_a_default_stack_names_the_column():
    task, site = make_task(2.0)
    frame = task.rows.original.head(120)
    stack = PredictiveStackingRegressor(random_state=0)
    assert "the same 'site'" in stack.fit(frame, task.targets[:120]).summary_
    assert "resemble" not in stack.fit(frame, task.targets[:120], groups=site[:120]).summary_


def test_targets_that_the_columns_determine_exactly():
    """The posterior of the linear model has no variance left, as with minutes of times of day."""
    rng = np.random.default_rng(0)
    hour = rng.integers(5, 24, 400)
    minute = rng.integers(0, 60, 400)
    frame = pd.DataFrame({"time": 100 * hour + minute, "hour": hour, "z": rng.normal(size=400)})
    frame["line"] = rng.choice(list("abcd"), 400)
    stack = PredictiveStackingRegressor(random_state=0).fit(frame, minute)
    np.testing.assert_allclose(stack.predict(frame), minute, atol=0.05)
    assert abs(stack.sample_y(frame[:20], 50) - minute[:20, None]).max() < 5.0
