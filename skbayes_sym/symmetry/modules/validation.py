"""Checks of the modules and inputs that users pass."""

from typing import Any

from torch import Tensor, nn


def check_module(
    module: Any, name: str = "module", *, needs_values: bool = True, needs_trainable: bool = True
) -> None:
    """Raise unless ``module`` has trainable parameters of known shapes and values.

    Parameters
    ----------
    module : object
        The argument that a user passed.
    name : str, default="module"
        Name of the argument, for error messages.
    needs_values : bool, default=True
        Whether parameters that aren't frozen must have values, too.
    needs_trainable : bool, default=True
        Whether there must be a parameter that isn't frozen.

    Raises
    ------
    TypeError
        If ``module`` isn't a module.
    ValueError
        If a parameter or buffer has no known shape, no values, no entries or complex values, or if
        there are no (trainable) parameters.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{name} must be a torch.nn.Module, got {type(module).__name__}.")
    kind = type(module).__name__
    parameters = dict(module.named_parameters())
    for key, tensor in (parameters | dict(module.named_buffers())).items():
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{name}: {key} of {kind} has no shape yet, because the layer is lazy. Call the "
                "module once on an input before."
            )
        if tensor.is_meta and (needs_values or not tensor.requires_grad):
            raise ValueError(
                f"{name}: {key} of {kind} is on the meta device and has no values. Use "
                "module.to_empty(device='cpu') and initialise or load its weights before."
            )
        if tensor.is_complex():
            raise ValueError(
                f"{name}: {key} of {kind} is complex ({tensor.dtype}); parameters and buffers must "
                "be real."
            )
    empty = [key for key, p in parameters.items() if not p.numel()]
    if empty:
        raise ValueError(
            f"{name}: {empty[0]} of {kind} has shape {tuple(parameters[empty[0]].shape)}, no "
            "entries. Give every layer at least one input and one output."
        )
    if not parameters:
        raise ValueError(f"{name}: {kind} has no parameters, so there is nothing to act on.")
    if needs_trainable and not any(p.requires_grad for p in parameters.values()):
        raise ValueError(
            f"{name}: all parameters of {kind} are frozen (requires_grad=False), so nothing may "
            "change. Use module.requires_grad_(True) to let them."
        )


def validate_inputs(example_input: Any) -> tuple[Any, ...]:
    """Return ``example_input`` as the arguments of a call.

    Raises
    ------
    TypeError
        If it is neither a tensor nor a tuple of tensors.
    """
    if isinstance(example_input, nn.utils.rnn.PackedSequence):
        raise TypeError(
            "example_input is a PackedSequence: give a padded tensor instead, on which the module "
            "computes the same."
        )
    if isinstance(example_input, tuple):
        inputs = example_input
    else:
        inputs = (example_input,)
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(
                "example_input must be a tensor, or a tuple of tensors, the arguments of one call "
                f"of the module; got {type(value).__name__}."
            )
    return tuple(value.detach() for value in inputs)
