"""Small constants on a device, made once: an upload every step would have the device wait."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_MOST = 256  # kept at once


@lru_cache(_MOST)
@torch.inference_mode(False)  # else autograd couldn't use it later
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor of ``values``, numbers or tuples of them, the same one for every call.

    It is shared: never write to it.
    """
    return torch.tensor(values, dtype=dtype, device=device)


def positions(values: tuple[int, ...], like: Tensor) -> Tensor:
    """Positions as an index on the device of ``like``, int64."""
    return constant(values, torch.int64, like.device)
