"""Settings of the whole suite."""

import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # else scikit-learn skips some of its checks

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh seeded stream."""
    return torch.Generator().manual_seed(0)
