"""Priors over the flat parameter vector."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import log_normal
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import normal_like

if TYPE_CHECKING:
    from skbayes_sym.models.learned_scales import ScalesByGroup

PriorKernel = Callable[[Tensor], tuple[Tensor, Tensor]]  # (C, P) -> (C,) nats, (C, P)
_LEAST_SCALE = 1e-100


@runtime_checkable
class UnboundPrior(Protocol):
    """A prior given before the network is known."""

    def bind(self, layout: ParamLayout) -> "Prior":
        """The prior of this layout's parameters; itself if nothing depends on it.

        Raises ValueError if it doesn't fit them.
        """


class Prior:
    """Law of the flat parameters ``theta`` (P,) before any data.

    One's own brings `log_prob` and `sample`, and where these need the number of parameters `bind`
    too. It is then no normal law and learns nothing.
    """

    def bind(self, layout: ParamLayout) -> "Prior":
        return self

    def gaussian(self) -> "GaussianPrior | None":
        """Itself as independent zero-mean normals, which VI and Laplace need; else None."""
        return None

    @property
    def learned(self) -> "ScalesByGroup | None":
        """Scales that are learned with the weights, by themselves or integrated out."""
        return None

    def kernel(self, like: Tensor) -> PriorKernel | None:
        """Value and gradient at once, in dtype and on the device of ``like``; None by autograd."""
        return None

    def log_prob(self, theta: Tensor) -> Tensor:
        """Normalised log density in nats, (*B, P) -> (*B,)."""
        raise NotImplementedError(f"{type(self).__name__} needs `log_prob(theta)`.")

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P), on the generator's device."""
        raise NotImplementedError(f"{type(self).__name__} needs `sample(n, generator=...)`.")


@dataclass(frozen=True)
class HalfNormal:
    """Prior of a noise's standard deviation, ``noise_std=`` of draws: ``|N(0, scale^2)|``.

    Of every parameter of a likelihood that is the logarithm of a scale, alike.

    Parameters
    ----------
    scale : float, default=1.0
        In scaled target units.

    Raises
    ------
    ValueError
        If it isn't between 1e-100 and 1e100.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.scale, int | float) or not 1e-100 <= self.scale <= 1e100:
            raise ValueError(
                f"HalfNormal: scale must be a positive number, 1e-100 to 1e100, got {self.scale!r}."
            )


@dataclass(frozen=True, eq=False)
class GaussianPrior(Prior):
    """Independent zero-mean normals: ``theta_k ~ N(0, scale_k^2)``.

    Parameters
    ----------
    scale : Tensor of shape (P,)
        Standard deviations; (M, P) of M weight vectors, each with its own.
    """

    scale: Tensor

    def bind(self, layout: ParamLayout) -> "GaussianPrior":
        if self.scale.shape != (layout.n_params,):
            raise ValueError(
                f"the prior is over {self.scale.numel()} parameters, the network has "
                f"{layout.n_params}. Use Normal(scale), which takes any number of them."
            )
        return self

    def gaussian(self) -> "GaussianPrior":
        return self

    @property
    def precision(self) -> Tensor:
        """Inverse variances (P,)."""
        return self.scale**-2

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, P) -> (*B,)."""
        scale = self.scale.to(theta)
        return log_normal(theta.square(), scale.log()).sum(-1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P)."""
        scale = self.scale.to(generator.device)
        return scale * normal_like((n, scale.numel()), generator=generator, like=scale)


@dataclass(frozen=True, eq=False)
class Normal:
    """Zero-mean normals whose scales are given before the network is known.

    Parameters
    ----------
    scale : float or array-like of float, default=1.0
        Standard deviation: one number, one for every layer, or one for every parameter.

    Examples
    --------
    >>> from skbayes_sym.models import MLP, Normal, TANH
    >>> layout = MLP(1, (2,), 1, TANH).layout
    >>> Normal([1.0, 0.5]).bind(layout).scale
    tensor([1.0000, 1.0000, 1.0000, 1.0000, 0.5000, 0.5000, 0.5000],
           dtype=torch.float64)
    """

    scale: npt.ArrayLike = 1.0

    def bind(self, layout: ParamLayout) -> GaussianPrior:
        layer = layers_of(layout)
        sizes = {"layers": int(layer.max()) + 1, "parameters": layout.n_params}
        scale = torch.as_tensor(checked_scales(self.scale, **sizes))
        if scale.shape == (sizes["layers"],) and np.ndim(self.scale):
            return GaussianPrior(scale[layer])
        return GaussianPrior(scale.expand(layout.n_params).clone())


def checked_scales(values: npt.ArrayLike, **sizes: int) -> npt.NDArray[np.float64]:
    """``values`` as an array of one number, or of as many as one of the sizes named.

    Raises ValueError if it has another shape, or isn't positive and finite.
    """
    scale = np.atleast_1d(np.asarray(values, dtype=float))
    if scale.shape not in {(1,), *((n,) for n in sizes.values())}:
        several = " or ".join(f"one for each of the {n} {name}" for name, n in sizes.items())
        raise ValueError(
            f"prior must be a number or {several}; got an array of shape {scale.shape}."
        )
    if not np.all(np.isfinite(scale) & (scale > 0)):
        raise ValueError(f"prior must be positive and finite, got {values!r}.")
    if not np.all((scale >= _LEAST_SCALE) & (scale <= 1.0 / _LEAST_SCALE)):
        raise ValueError(
            f"prior must lie between {_LEAST_SCALE:g} and {1.0 / _LEAST_SCALE:g}, where its "
            f"square and the inverse of that are numbers; got {values!r}."
        )
    return scale


def layers_of(layout: ParamLayout) -> Tensor:
    """Number of the layer that every parameter belongs to, int64 (P,).

    Parameters whose names agree up to the last dot ("conv1.weight", "conv1.bias"), or after the
    first letter ("W1", "b1"), are of one layer.
    """
    names = {name: name.rpartition(".")[0] or name[1:] for name in layout.shapes}
    number = {layer: i for i, layer in enumerate(dict.fromkeys(names.values()))}
    counts = torch.tensor([layout.positions(name).numel() for name in names])
    return torch.tensor([number[layer] for layer in names.values()]).repeat_interleave(counts)
