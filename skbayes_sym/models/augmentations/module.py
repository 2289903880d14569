"""Any torch module as a family of transformations."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from skbayes_sym.models.augmentations.augmentation import ImageShape
from skbayes_sym.models.augmentations.half_width import FreeHalfWidth


@dataclass(frozen=True, eq=False)
class ModuleAugmentation:
    """Any ``torch.nn.Module`` ``(x, eps) -> x'`` with a learned parameter ``eta``.

    Parameters
    ----------
    module : torch.nn.Module
        Called with rows (M, *I) and noise (M, k), uniform on [-1, 1]; k is ``module.n_noise`` or
        the size of ``eta``. It is never changed; ``eta`` there is where learning starts.
    """

    module: Any

    @cached_property
    def _eta(self) -> Tensor:
        eta = dict(self.module.named_parameters()).get("eta")
        name = type(self.module).__name__
        if eta is None:
            raise ValueError(f"{name} has no parameter `eta`: an invariance needs one to learn.")
        if not eta.requires_grad:
            raise ValueError(
                f"{name}.eta is frozen (requires_grad=False): there is nothing to learn. Unfreeze "
                "it, or apply the transformation to the data instead."
            )
        if not bool(torch.isfinite(eta).all()):
            raise ValueError(f"{name}.eta must be finite, got {eta.detach().tolist()}.")
        return eta.detach().to("cpu", torch.float64)

    @cached_property
    def half_width(self) -> FreeHalfWidth:
        n_noise = int(vars(self.module).get("n_noise", self._eta.numel()))
        return FreeHalfWidth(type(self.module).__name__, self._eta, n_noise)

    def bind(
        self, scale: Sequence[float], image_shape: ImageShape | None = None
    ) -> "ModuleAugmentation":
        self.half_width.start()
        return self

    def transform(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        n, s = noise.shape[:2]
        rows = x.unsqueeze(1).expand(n, s, *x.shape[1:]).reshape(n * s, *x.shape[1:])
        given = {"eta": eta.reshape(self._eta.shape)}
        out = torch.func.functional_call(self.module, given, (rows, noise.flatten(0, 1)))
        if out.shape != rows.shape:
            raise ValueError(
                f"{type(self.module).__name__} must return inputs of the shape it got, "
                f"{tuple(rows.shape)}, got {tuple(out.shape)}."
            )
        return out.reshape(n, s, *x.shape[1:])
