"""Modules of torch with linear and convolution layers as networks of this package."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from skbayes_sym.models.networks.network import (
    BaseNetwork,
    Convolution,
    Dense,
    Recording,
    as_differentiable,
)
from skbayes_sym.numerics.arguments import short_repr
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import float64_normal

if TYPE_CHECKING:
    from skbayes_sym.symmetry.modules.module_symmetry import ModuleSymmetry


class UnsupportedModuleError(ValueError):
    """Raised for a module that the Laplace approximation doesn't support."""


# The common base classes of torch's layers are private.
_BATCH = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001
_RANDOM = (nn.modules.dropout._DropoutNd,)  # noqa: SLF001
_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU)


@dataclass(frozen=True, eq=False)
class ModuleNetwork(BaseNetwork):
    """Architecture of a module, called with weights ``theta``.

    Parameters
    ----------
    module : torch.nn.Module
        Module of Linear and Conv2d layers and elementwise activations. Other submodules can have
        scalar parameters, such as multipliers, which are point estimates that aren't integrated
        out. Frozen parameters (``requires_grad_(False)``) and buffers keep their values and aren't
        part of the weights. Layers whose parameters are all frozen can have any type. The module is
        copied and never changed.
    input_shape : tuple of int
        Shape of one input of the module.
    initial : mapping of str to (float, float), optional
        Mean and standard deviation of each parameter at the start of training. By default the mean
        is 0, and the standard deviation is the root mean square of the module's own values, which
        are sampled anew. Scalars of submodules other than Linear and Conv2d start at their own
        values.
    architecture : str, default=""
        Name of the network in `models.convolutional.ARCHITECTURES`, by which files refer to it.

    Raises
    ------
    UnsupportedModuleError
        If the module has batch normalisation (which couples the rows of a batch, so that the
        likelihood isn't a product), dropout (which is random), grouped convolutions, convolutions
        with other than zero padding, parameters of other layers that aren't scalars, or different
        layers that share a parameter. A layer that is called several times is one layer.
    ValueError
        If all parameters are frozen, or shapes or values aren't known yet (lazy modules, the meta
        device).
    """

    module: Any
    input_shape: tuple[int, ...]
    initial: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    architecture: str = ""
    constants: Mapping[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    # The constants in the dtype and on the device of the last call, with these two.
    _converted: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.initial, Mapping):
            raise TypeError(
                "initial must map names of parameters to their (mean, standard deviation), got "
                f"{short_repr(self.initial)}."
            )
        from skbayes_sym.symmetry.modules.validation import check_module

        check_module(self.module, "network", needs_values=not self.initial)
        for name, layer in self.module.named_modules():
            _check_layer(name or "the module", layer)
        _refuse_tied(self.module)
        if not self.initial:
            moments = {
                n: (0.0, float(p.detach().double().square().mean().sqrt()))
                for n, p in self.module.named_parameters()
                if p.requires_grad
            }
            for prefix, layer in self.module.named_modules():
                if not isinstance(layer, (nn.Linear, nn.Conv2d)):
                    for name, value in layer.named_parameters(prefix, recurse=False):
                        if value.requires_grad:
                            moments[name] = (float(value.detach()), 0.0)
            object.__setattr__(self, "initial", moments)
        # A copy on another device has each of several names of one tensor.
        parameters = self.module.named_parameters(remove_duplicate=False)
        frozen = {n: p for n, p in parameters if not p.requires_grad}
        fixed = frozen | dict(self.module.named_buffers(remove_duplicate=False))
        constants = {name: value.detach().cpu().clone() for name, value in fixed.items()}
        object.__setattr__(self, "constants", constants)
        # Only the architecture is stored. Without values it can't be trained by accident.
        module = copy.deepcopy(self.module).eval().to("meta")
        for layer in module.modules():
            if hasattr(layer, "inplace"):  # it would overwrite the recorded pre-activations
                layer.inplace = False
        object.__setattr__(self, "module", module)

    @cached_property
    def layout(self) -> ParamLayout:
        """Names and shapes of the parameters that aren't frozen, in the module's order."""
        return ParamLayout(
            {n: tuple(p.shape) for n, p in self.module.named_parameters() if p.requires_grad}
        )

    @property
    def n_outputs(self) -> int:
        """Number of rows of the last linear or convolution layer, frozen or not."""
        layers = [m for m in self.module.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        if not layers:
            raise UnsupportedModuleError("network has no Linear or Conv2d layer.")
        return int(layers[-1].weight.shape[0])

    @cached_property
    def _layers_by_name(self) -> dict[str, Any]:
        """Linear and convolution layers whose weights aren't frozen."""
        recorded = (nn.Linear, nn.Conv2d)
        return {
            name: layer
            for name, layer in self.module.named_modules()
            if isinstance(layer, recorded) and layer.weight.requires_grad
        }

    @cached_property
    def weight_layers(self) -> tuple[Dense | Convolution, ...]:
        """Layers of weights that aren't frozen, in the order of registration."""
        layers = list[Dense | Convolution]()
        for name, layer in self._layers_by_name.items():
            prefix = f"{name}." if name else ""
            has_bias = layer.bias is not None and layer.bias.requires_grad
            names = f"{prefix}weight", f"{prefix}bias" if has_bias else None
            if isinstance(layer, nn.Linear):
                layers.append(Dense(*names))
            else:
                geometry = layer.kernel_size, layer.stride, layer.padding, layer.dilation
                layers.append(Convolution(*names, *geometry))
        return tuple(layers)

    def init(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` starting points (n, P), float64: normal, with the moments of ``initial``."""
        shape = (n, self.layout.n_params)
        theta = float64_normal(shape, generator=generator)
        for name, values in self.layout.unflatten(theta).items():
            mean, scale = self.initial[name]
            values.mul_(scale).add_(mean)
        return theta

    def symmetry(self) -> "ModuleSymmetry":
        """Return the symmetry group of the weights, which `symmetry_of` derives from a trace."""
        return self._module_symmetry

    def __getstate__(self) -> dict[str, Any]:
        state = {name: v for name, v in vars(self).items() if name != "_module_symmetry"}
        return state | {"_converted": None}

    @cached_property
    def _module_symmetry(self) -> "ModuleSymmetry":
        """Symmetry group of the weights, derived from a trace of the module with random weights."""
        from skbayes_sym.symmetry.modules.module_symmetry import symmetry_of

        module = copy.deepcopy(self.module).to_empty(device="cpu")
        theta = self.init(1, generator=torch.Generator().manual_seed(0))[0]
        values = self.layout.unflatten(theta) | dict(self.constants)
        with torch.no_grad():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                tensor.copy_(values[name])
        return symmetry_of(module, torch.zeros(2, *self.input_shape))

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return outputs (*B, N, O) at ``theta`` (*B, P) and ``x`` (N, *I)."""
        if theta.ndim == 1:
            return self._call(theta, x)
        rows = [self._call(t, x) for t in theta.reshape(-1, theta.shape[-1])]
        return torch.stack(rows).unflatten(0, theta.shape[:-1])

    def record(self, theta: Tensor, x: Tensor) -> Recording:
        """Return the forward pass of ``x`` (M, *I) at ``theta`` (P,), with intermediates."""
        inputs: dict[str, Tensor] = {}
        preactivations: dict[str, Tensor] = {}
        with _hooks(self._layers_by_name, inputs, preactivations):
            outputs = self._call(theta, x)
        names = list(self._layers_by_name)
        unused = [name for name in names if name not in inputs]
        if unused:
            raise UnsupportedModuleError(f"layer {unused[0]!r} is never called in forward.")
        head = None
        if self._has_head:
            head = self.layout.unflatten(theta)[f"{names[-1]}.weight"]
        layer_inputs = [inputs[name] for name in names]
        layer_preactivations = [preactivations[name] for name in names]
        return Recording(outputs, layer_inputs, layer_preactivations, head)

    @cached_property
    def _has_head(self) -> bool:
        """Whether the last layers are linear, an elementwise activation, and linear."""
        if isinstance(self.module, nn.Sequential):
            tail = list(self.module)[-3:]
        else:
            tail = []
        if len(tail) < 3 or not isinstance(tail[1], _ELEMENTWISE):
            return False
        is_linear = isinstance(tail[0], nn.Linear) and isinstance(tail[2], nn.Linear)
        return is_linear and all(p.requires_grad for layer in tail for p in layer.parameters())

    def _call(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return outputs (N, O) at one ``theta`` (P,)."""
        params = self.layout.unflatten(theta) | self._constants(theta)
        outputs = torch.func.functional_call(self.module, params, (x,))
        if outputs.ndim > 1:
            return outputs
        return outputs.unsqueeze(-1)

    def _constants(self, theta: Tensor) -> dict[str, Tensor]:
        """Return frozen parameters and buffers in the dtype and on the device of ``theta``."""
        if not self.constants:
            return {}
        key = theta.dtype, theta.device
        if self._converted is None or self._converted[0] != key:
            with torch.inference_mode(False):
                converted = {
                    name: value.to(theta if value.is_floating_point() else theta.device)
                    for name, value in self.constants.items()
                }
            object.__setattr__(self, "_converted", (key, converted))
        _, converted = self._converted
        # A module can write to its buffers, which must not affect the next call.
        buffers = {name for name, _ in self.module.named_buffers()}
        return {n: v.clone() if n in buffers else v for n, v in converted.items()}


def has_bounded_outputs(network: ModuleNetwork, x: Tensor) -> bool:
    """Return whether large weights leave all outputs in [-1, 1], as behind a softmax or a sigmoid.

    Parameters
    ----------
    network : ModuleNetwork
        The network, whose initial weights are multiplied by a hundred.
    x : Tensor of shape (N, n_features)
        Inputs.
    """
    theta = 100.0 * network.init(1, generator=torch.Generator().manual_seed(0))[0]
    with torch.no_grad():
        outputs = network.forward(theta.to(x), x.reshape(-1, *network.input_shape))
    return bool((outputs.abs() <= 1.0).all() & (outputs != 0.0).any())


@contextmanager
def _hooks(
    layers: dict[str, Any], inputs: dict[str, Tensor], preactivations: dict[str, Tensor]
) -> Iterator[None]:
    """Record the input and the output of each layer inside the context."""

    def hook(name: str, _module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if name in inputs:
            raise UnsupportedModuleError(
                f"layer {name!r} is called more than once in forward: give every place in the "
                "network its own layer."
            )
        inputs[name] = args[0]
        preactivations[name] = as_differentiable(output)
        return preactivations[name]

    handles = []
    try:  # also if an interrupt comes between two registrations
        for name, layer in layers.items():
            handles.append(layer.register_forward_hook(partial(hook, name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_tied(module: nn.Module) -> None:
    """Raise UnsupportedModuleError if different layers share a parameter that is trained."""
    names: dict[int, str] = {}
    layers: dict[int, nn.Module] = {}
    for prefix, layer in module.named_modules():
        for name, value in layer.named_parameters(prefix, recurse=False, remove_duplicate=False):
            if not value.requires_grad:
                continue
            first = names.setdefault(id(value), name)
            if layers.setdefault(id(value), layer) is not layer:
                raise UnsupportedModuleError(
                    f"{name} of network is the same tensor as {first}, and tied parameters aren't "
                    "supported. Call one layer in both places, or give each layer its own."
                )


def _check_layer(name: str, layer: Any) -> None:
    """Raise UnsupportedModuleError if a layer has an unsupported type or settings."""
    kind = type(layer).__name__
    trained = [n for n, p in layer.named_parameters(recurse=False) if p.requires_grad]
    if isinstance(layer, _BATCH):
        raise UnsupportedModuleError(
            f"{name} is {kind}: it couples the rows of a batch, so the likelihood is no product "
            "over data and there is no evidence to compute. Use a network without it "
            "(network='resnet' has Fixup initialisation instead)."
        )
    if isinstance(layer, _RANDOM):
        raise UnsupportedModuleError(
            f"{name} is {kind}: it makes the function random. Remove it; the learned prior "
            "precision regularises instead."
        )
    if isinstance(layer, nn.Conv2d):
        if not trained:
            return
        if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise UnsupportedModuleError(
                f"{name} is a Conv2d with groups={layer.groups}, padding={layer.padding!r}, "
                f"padding_mode={layer.padding_mode!r}: only groups=1 and zero padding given as "
                "numbers are supported."
            )
        return
    arrays = [n for n in trained if layer.get_parameter(n).numel() > 1]
    if arrays and not isinstance(layer, nn.Linear):
        raise UnsupportedModuleError(
            f"{name} is {kind} with parameters {arrays}: only Linear and Conv2d layers may have "
            "parameters, and others scalars."
        )
