"""Where chains stopped, kept as arrays: what a warm start goes on from."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from skbayes_sym.inference.mcmc.blocks import Block


def as_arrays(block: Block) -> Block:
    """The block with NumPy arrays, which any machine can read."""
    return _converted(block, lambda tensor: tensor.cpu().numpy())


def as_tensors(block: Block, like: Tensor) -> Block:
    """The block with tensors on the device of ``like``, positions in its precision too."""
    moved = _converted(block, lambda array: torch.as_tensor(array).to(like.device))
    state = moved.state._replace(position=moved.state.position.to(like))
    # Generators keep their state on the CPU wherever they draw.
    return moved._replace(state=state, random_state=moved.random_state.cpu())


def _converted(block: Block, convert: Callable[[Any], Any]) -> Block:
    preconditioner: Any = block.preconditioner
    arrays = {f.name: convert(getattr(preconditioner, f.name)) for f in fields(preconditioner)}
    return Block(
        type(block.state)(*map(convert, block.state)),
        convert(block.step_size),
        replace(preconditioner, **arrays),
        convert(block.random_state),
    )
