"""Where and in which precision a fit computes."""

import numpy as np
import torch

from skbayes_sym.numerics.threads import one_thread as one_thread

# Others that torch knows lack what fits need, float64 for one.
_KINDS = {"cpu", "cuda"}


def resolve_device(device: str) -> torch.device:
    """The device a parameter ``device`` stands for; never another one silently.

    Raises
    ------
    ValueError
        If the name isn't the CPU's or a CUDA device's, or the CUDA device isn't there.
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
        n = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= n:
            raise ValueError(
                f"device={device!r} was asked for, but torch sees {n} CUDA devices here. "
                "Use device='auto' or 'cpu', or install a CUDA build of torch."
            )
    return resolved


def resolve_dtype(dtype: str, X: np.ndarray) -> torch.dtype:
    """The torch dtype; ``"auto"`` follows ``X`` (float32 stays float32)."""
    name = str(X.dtype) if dtype == "auto" else dtype
    return {"float32": torch.float32, "float64": torch.float64}[name]
