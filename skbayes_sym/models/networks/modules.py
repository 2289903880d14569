"""Any ``torch.nn.Module`` of linear and convolution layers as one of the package's networks."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from skbayes_sym.models.networks.network import (
    BaseNetwork,
    Convolution,
    Dense,
    Recording,
    as_differentiable,
)
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import float64_normal
from skbayes_sym.symmetry.modules.module_symmetry import ModuleSymmetry, symmetry_of
from skbayes_sym.symmetry.modules.validation import check_module


class UnsupportedModuleError(ValueError):
    """A module that the Laplace approximation here can't take."""


_BATCH = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_RANDOM = (nn.modules.dropout._DropoutNd,)
_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU)


@dataclass(frozen=True, eq=False)
class ModuleNetwork(BaseNetwork):
    """A module's architecture; its weights are the ``theta`` it is called with.

    Parameters
    ----------
    module : torch.nn.Module
        Linear and Conv2d layers and elementwise activations; other modules may have scalar
        parameters, such as multipliers, which are fitted and not integrated out. Parameters that
        are frozen (``requires_grad_(False)``) and buffers keep their values: they are not among
        the weights, and layers whose parameters are all frozen may be of any kind. It is copied,
        never changed.
    input_shape : tuple of int
        Shape of one input, as the module takes it.
    initial : mapping of str to (float, float), optional
        Mean and standard deviation of each parameter at the start of training; by default zero,
        and the root mean square of the module's own values (which are redrawn), but scalars of
        other modules than Linear and Conv2d start at their own values.
    architecture : str, default=""
        Name under which `models.convolutional.ARCHITECTURES` makes the same network again.

    Raises
    ------
    UnsupportedModuleError
        If it holds batch normalisation (couples the rows of a batch, so that the likelihood isn't
        a product), dropout (random), grouped or padded-by-reflection convolutions, or parameters
        of other layers that aren't scalars.
    ValueError
        If it has no parameter that isn't frozen, or its shapes or values aren't known yet (lazy
        modules, the meta device).
    """

    module: Any
    input_shape: tuple[int, ...]
    initial: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    architecture: str = ""
    constants: Mapping[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    # The constants in the dtype and on the device of the last call, with these two.
    _converted: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_module(self.module, "network", needs_values=not self.initial)
        for name, layer in self.module.named_modules():
            _check_layer(name or "the module", layer)
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
        frozen = {n: p for n, p in self.module.named_parameters() if not p.requires_grad}
        fixed = frozen | dict(self.module.named_buffers())
        constants = {name: value.detach().cpu().clone() for name, value in fixed.items()}
        object.__setattr__(self, "constants", constants)
        # Only the architecture is kept: without storage it can't be trained by accident.
        module = copy.deepcopy(self.module).eval().to("meta")
        for layer in module.modules():
            if "inplace" in vars(layer):  # would overwrite the pre-activations that are recorded
                layer.inplace = False
        object.__setattr__(self, "module", module)

    @cached_property
    def layout(self) -> ParamLayout:
        """Names and shapes of the module's parameters that aren't frozen, in its own order."""
        return ParamLayout(
            {n: tuple(p.shape) for n, p in self.module.named_parameters() if p.requires_grad}
        )

    @property
    def n_outputs(self) -> int:
        """Rows of the last linear or convolution layer, frozen or not."""
        layers = [m for m in self.module.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        if not layers:
            raise UnsupportedModuleError("network has no Linear or Conv2d layer.")
        return int(layers[-1].weight.shape[0])

    @cached_property
    def _named_layers(self) -> dict[str, Any]:
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
        for name, layer in self._named_layers.items():
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
        """``n`` starting points (n, P), float64, normal with the moments of ``initial``."""
        shape = (n, self.layout.n_params)
        theta = float64_normal(shape, generator=generator)
        for name, values in self.layout.unflatten(theta).items():
            mean, scale = self.initial[name]
            values.mul_(scale).add_(mean)
        return theta

    def symmetry(self) -> ModuleSymmetry:
        """The group that the module's trace shows (`symmetry_of`)."""
        return self._found_symmetry

    def __getstate__(self) -> dict[str, Any]:
        state = {name: v for name, v in vars(self).items() if name != "_found_symmetry"}
        return state | {"_converted": None}

    @cached_property
    def _found_symmetry(self) -> ModuleSymmetry:
        module = copy.deepcopy(self.module).to_empty(device="cpu")
        theta = self.init(1, generator=torch.Generator().manual_seed(0))[0]
        values = self.layout.unflatten(theta) | dict(self.constants)
        with torch.no_grad():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                tensor.copy_(values[name])
        return symmetry_of(module, torch.zeros(2, *self.input_shape))

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs (*B, N, O) at ``theta`` (*B, P) and ``x`` (N, *I)."""
        if theta.ndim == 1:
            return self._call(theta, x)
        rows = [self._call(t, x) for t in theta.reshape(-1, theta.shape[-1])]
        return torch.stack(rows).unflatten(0, theta.shape[:-1])

    def record(self, theta: Tensor, x: Tensor) -> Recording:
        """Forward pass of ``x`` (M, *I) at one ``theta`` (P,), with its intermediates."""
        inputs: dict[str, Tensor] = {}
        preactivations: dict[str, Tensor] = {}
        with _hooks(self._named_layers, inputs, preactivations):
            outputs = self._call(theta, x)
        silent = [n for n in self._named_layers if n not in inputs]
        if silent:
            raise UnsupportedModuleError(f"layer {silent[0]!r} is never called in forward.")
        order = list(self._named_layers)
        head = self.layout.unflatten(theta)[f"{order[-1]}.weight"] if self._has_head else None
        return Recording(
            outputs, [inputs[n] for n in order], [preactivations[n] for n in order], head
        )  # fmt: skip

    @cached_property
    def _has_head(self) -> bool:
        """Whether it ends in a linear layer, an elementwise activation and a linear layer."""
        tail = list(self.module)[-3:] if isinstance(self.module, nn.Sequential) else []
        if len(tail) < 3 or not isinstance(tail[1], _ELEMENTWISE):
            return False
        is_linear = isinstance(tail[0], nn.Linear) and isinstance(tail[2], nn.Linear)
        return is_linear and all(p.requires_grad for layer in tail for p in layer.parameters())

    def _call(self, theta: Tensor, x: Tensor) -> Tensor:
        params = self.layout.unflatten(theta) | self._constants(theta)
        outputs = torch.func.functional_call(self.module, params, (x,))
        return outputs if outputs.ndim > 1 else outputs.unsqueeze(-1)

    def _constants(self, theta: Tensor) -> dict[str, Tensor]:
        """Frozen parameters and buffers in the dtype and on the device of ``theta``."""
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
        # A module may write on its buffers, which must not change the next call.
        buffers = {name for name, _ in self.module.named_buffers()}
        return {n: v.clone() if n in buffers else v for n, v in converted.items()}


@contextmanager
def _hooks(
    layers: dict[str, Any], inputs: dict[str, Tensor], preactivations: dict[str, Tensor]
) -> Iterator[None]:
    """Catch every layer's input and output while inside."""

    def hook(name: str, module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if name in inputs:
            raise UnsupportedModuleError(
                f"layer {name!r} is called more than once in forward: give every place in the "
                "network its own layer."
            )
        inputs[name], preactivations[name] = args[0], as_differentiable(output)
        return preactivations[name]

    handles = []
    try:  # an interrupt between two of them mustn't leave the first on the user's module
        for name, layer in layers.items():
            handles.append(layer.register_forward_hook(partial(hook, name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_layer(name: str, layer: Any) -> None:
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
