"""Device and precision of a fit."""

from collections.abc import Callable
from math import prod

import numpy as np
import torch

from skbayes_sym.base.log import log_info
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import Network
from skbayes_sym.numerics.runtime import one_thread as one_thread

# Floating-point operations of a step from which "auto" takes a GPU. Below, a step is launches: 50
# to 700 kernels, of some six microseconds each whatever they compute, which are the 0.3 to 4 ms
# that one core of a CPU takes for 1e7 to 1e8 operations (`asv_bench/studies/device_waits.py` counts
# launches). Not measured on a GPU.
WORTH_A_GPU = 1e8

_PER_MULTIPLICATION = 6.0  # and addition: forwards once, backwards twice

# Others that torch knows lack what fits need, float64 for one.
_KINDS = {"cpu", "cuda"}
_REMEDY = ", or install a CUDA build of torch"


def resolve_device(device: str) -> torch.device:
    """The device a parameter ``device`` stands for; never another one silently."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        resolved = None
    if resolved is None or resolved.type not in _KINDS:
        raise ValueError(
            f"device={device!r} is not a device: use 'auto', 'cpu', 'cuda' or 'cuda:1'."
        )
    if resolved.type == "cuda":
        n = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= n:
            raise ValueError(
                f"device={device!r} was asked for, but torch sees {n} CUDA devices here. "
                f"Use device='auto' or 'cpu'{_REMEDY if n == 0 else ''}."
            )
    return resolved


def choose_device(asked: str, device: torch.device, flops: Callable[[], float]) -> torch.device:
    """The CPU instead of a GPU that nobody asked for, where the model is too small for one.

    ``asked``: the parameter ``device``: only "auto" leaves a choice; ``device``: what it stands
    for; ``flops``: floating-point operations of a step, about.
    """
    if asked != "auto" or device.type == "cpu":
        return device
    count = flops()
    chosen = device if count >= WORTH_A_GPU else torch.device("cpu")
    log_info(
        "device='auto' takes the %s: a step is about %.1e floating-point operations, and a GPU is "
        "taken from %.0e on", "GPU" if chosen.type == "cuda" else "CPU", count, WORTH_A_GPU,
    )  # fmt: skip
    return chosen


def gradient_flops(network: Network, n_rows: int, n_networks: float = 1.0) -> float:
    """Floating-point operations of a gradient of ``n_networks`` networks at ``n_rows`` rows, about.

    A weight is used once a row, one of a convolution at every pixel of it.
    """
    image = prod(network.input_shape[1:]) if isinstance(network, ModuleNetwork) else 1
    shapes = network.layout.shapes.values()
    uses = sum(prod(shape) * (image if len(shape) > 2 else 1) for shape in shapes)
    return _PER_MULTIPLICATION * n_networks * n_rows * uses


def choose_dtype(X: np.ndarray) -> torch.dtype:
    """Precision of a fit: that of ``X``, float64 but where it is float32."""
    return torch.float32 if X.dtype == np.float32 else torch.float64
