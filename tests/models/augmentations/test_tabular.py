"""Transformations of columns, by hand."""

from math import pi

import numpy as np
import pytest
import torch
from models.augmentations.families import SCALE
from torch.testing import assert_close

from skbayes_sym.models.augmentations.augmentation import amplitude
from skbayes_sym.models.augmentations.tabular import ColumnShift, LogScale, Rotation2D


def test_rotation_turns_the_named_columns_about_the_centre():
    x = torch.tensor([[1.0, 7.0, 0.0]], dtype=torch.float64)
    out = Rotation2D(columns=(0, 2)).transform(
        x, torch.tensor([pi / 2 * 1.0]).double(), torch.ones(1, 1, 1).double()
    )[0, 0]
    angle = float(Rotation2D().half_width.mixing(torch.tensor([pi / 2]).double()))
    assert_close(out, torch.tensor([np.cos(angle), 7.0, np.sin(angle)]))
    about = Rotation2D(centre=(1.0, 7.0)).transform(
        x, torch.tensor([2.0]).double(), torch.ones(1, 1, 1).double()
    )
    assert_close(about[0], x)


def test_translation_is_in_the_columns_unit():
    part = ColumnShift(columns=(1,)).bind(SCALE)
    assert part.half_width.names == ("translation_1",)
    assert_close(amplitude(part.half_width, torch.tensor([0.5])), torch.tensor([1.0]))
    x = torch.zeros(1, 3)
    out = part.transform(x, torch.tensor([0.5]), torch.full((1, 1, 1), -1.0))
    assert_close(out[0, 0], torch.tensor([0.0, -1.0, 0.0]))


def test_log_scale_is_joint_or_column_by_column():
    x = torch.ones(1, 3, dtype=torch.float64)
    noise = torch.ones(1, 1, 1, dtype=torch.float64)
    joint = LogScale().bind(SCALE).transform(x, torch.tensor([0.1]).double(), noise)
    assert_close(joint[0, 0], torch.full((3,), np.exp(0.1)).double(), rtol=1e-6, atol=0.0)
    own = LogScale(joint=False).bind(SCALE)
    assert own.half_width.names == ("log_scale_0", "log_scale_1", "log_scale_2")
    assert LogScale().bind(SCALE).half_width.names == ("log_scale",)


@pytest.mark.parametrize(
    ("augmentation", "message"),
    [
        (Rotation2D(columns=(0, 3)), r"between 0 and 2.*\(0, 3\).*3 columns"),
        (Rotation2D(columns=(1, 1)), "different columns"),
        (Rotation2D(columns=(0, 1, 2)), "two columns"),
        (ColumnShift(columns=(-1,)), "between 0 and 2"),
        (LogScale(columns=(7,)), "between 0 and 2"),
    ],
)
def test_columns_that_dont_exist(augmentation, message):
    with pytest.raises(ValueError, match=message):
        augmentation.bind(SCALE)
