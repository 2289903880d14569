"""Choose the device and the floating-point precision of a fit."""

from collections.abc import Callable
from math import prod

import numpy as np
import torch

from skbayes_sym.base.messages import log_info
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import Network

# Number of floating-point operations per step from which "auto" selects a GPU. Smaller steps are
# dominated by the launches of 50 to 700 kernels. Each takes about six microseconds whatever it
# computes, so together they take 0.3 to 4 ms, the time in which one core of a CPU makes 1e7 to 1e8
# operations (`asv_bench/studies/device_waits.py` counts launches). Not measured on a GPU.
MIN_GPU_FLOPS = 1e8

# Operations per weight and row: a multiplication and an addition in the forward pass, and twice as
# many in the backward pass.
_FLOPS_PER_WEIGHT = 6.0

# torch knows other kinds of devices, which lack what fits need, such as float64.
_KINDS = {"cpu", "cuda"}
_REMEDY = ", or install a CUDA build of torch"


def resolve_device(device: str) -> torch.device:
    """Return the device that a parameter selects.

    Parameters
    ----------
    device : str
        "auto", or a name such as "cpu", "cuda" or "cuda:1".

    Returns
    -------
    torch.device
        For "auto" CUDA if it is available, else the CPU.

    Raises
    ------
    ValueError
        If there is no such device; another one is never selected silently.
    """
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
        if torch.cuda.is_available():
            n = torch.cuda.device_count()
        else:
            n = 0
        if (resolved.index or 0) >= n:
            raise ValueError(
                f"device={device!r} was asked for, but torch sees {n} CUDA devices here. "
                f"Use device='auto' or 'cpu'{_REMEDY if n == 0 else ''}."
            )
    return resolved


def choose_device(
    parameter: str, device: torch.device, count_flops: Callable[[], float]
) -> torch.device:
    """Replace a GPU by the CPU if "auto" selected it and the model is too small to benefit.

    Parameters
    ----------
    parameter : str
        The user's parameter ``device``.
    device : torch.device
        Device that it selects.
    count_flops : callable () -> float
        Estimates the floating-point operations of a step.

    Returns
    -------
    torch.device
    """
    if parameter != "auto" or device.type == "cpu":
        return device
    flops = count_flops()
    if flops >= MIN_GPU_FLOPS:
        chosen = device
    else:
        chosen = torch.device("cpu")
    log_info(
        "device='auto' takes the %s: a step is about %.1e floating-point operations, and a GPU is "
        "taken from %.0e on",
        "GPU" if chosen.type == "cuda" else "CPU",
        flops,
        MIN_GPU_FLOPS,
    )
    return chosen


def gradient_flops(network: Network, n_rows: int, n_networks: float = 1.0) -> float:
    """Estimate the floating-point operations of a gradient.

    Every weight is used once per row, and a weight of a convolution once per pixel of the row.

    Parameters
    ----------
    network : Network
        Architecture.
    n_rows : int
        Number of rows.
    n_networks : float
        Number of networks whose gradients are computed.

    Returns
    -------
    float
    """
    if isinstance(network, ModuleNetwork):
        n_pixels = prod(network.input_shape[1:])
    else:
        n_pixels = 1
    n_uses = 0
    for shape in network.layout.shapes.values():
        is_convolution = len(shape) > 2
        n_uses += prod(shape) * (n_pixels if is_convolution else 1)
    return _FLOPS_PER_WEIGHT * n_networks * n_rows * n_uses


def choose_dtype(X: np.ndarray) -> torch.dtype:
    """Return the precision of a fit: float32 if ``X`` is float32, else float64."""
    if X.dtype == np.float32:
        return torch.float32
    return torch.float64
