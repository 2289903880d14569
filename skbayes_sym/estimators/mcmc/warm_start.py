"""Where chains stopped, kept as arrays: what a warm start goes on from."""

from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from skbayes_sym.estimators.mcmc.setting import Setting
from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.sampling.blocks import Block
from skbayes_sym.inference.sampling.kernels.base import initial_state


def continued(setting: Setting, density: LogDensity) -> list[Block] | None:
    """Blocks of the previous fit, on this fit's data; None if this one starts anew."""
    previous, posterior = setting.chains.start, setting.posterior
    if not previous:
        return None
    n_dims = previous[0].state.position.shape[1]
    n_chains = sum(len(block.step_size) for block in previous)
    if n_dims != posterior.n_dims or n_chains != setting.chains.n_chains:
        raise ValueError(
            f"warm_start=True, but the previous fit has {n_chains} chains of {n_dims} parameters "
            f"and this one {setting.chains.n_chains} of {posterior.n_dims}: data, "
            "hidden_layer_sizes or n_chains changed."
        )
    blocks = [_as_tensors(kept, posterior.data.x) for kept in previous]
    return [b._replace(state=initial_state(b.state.position, density)) for b in blocks]


def as_arrays(block: Block) -> Block:
    """The block with NumPy arrays, which any machine can read."""
    return _converted(block, lambda tensor: tensor.cpu().numpy())


def _as_tensors(block: Block, like: Tensor) -> Block:
    """The block with tensors on the device of ``like``, positions in its precision too."""
    moved = _converted(block, lambda array: torch.as_tensor(array).to(like.device))
    state = moved.state._replace(position=moved.state.position.to(like))
    stream = _stream_state(block.random_state, like.device)
    return moved._replace(state=state, random_state=stream)


def _stream_state(kept: Any, device: torch.device) -> Tensor:
    """The state of a generator on the device, which goes on where the one that was kept stopped.

    A state of another kind of device can't go on: it leads a new stream instead.
    """
    generator = torch.Generator(device)
    state = torch.as_tensor(kept)  # on the CPU, wherever a generator draws
    if len(state) == len(generator.get_state()):
        return state
    digest = sha256(state.numpy().tobytes()).digest()
    return generator.manual_seed(int.from_bytes(digest[:8]) >> 1).get_state()


def _converted(block: Block, convert: Callable[[Any], Any]) -> Block:
    preconditioner: Any = block.preconditioner
    arrays = {
        f.name: _each(getattr(preconditioner, f.name), convert) for f in fields(preconditioner)
    }
    return Block(
        type(block.state)(*map(convert, block.state)),
        convert(block.step_size),
        replace(preconditioner, **arrays),
        convert(block.random_state),
    )


def _each(value: Any, convert: Callable[[Any], Any]) -> Any:
    """An array, or nested tuples of them, plain or named, converted."""
    if not isinstance(value, tuple):
        return convert(value)
    items = [_each(item, convert) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
