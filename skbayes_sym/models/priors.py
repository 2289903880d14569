r"""Priors over the flat parameter vector; some learn their scales, one a group of weights:

.. math:: \theta_k \mid \alpha \sim N(0, 1 / \alpha_{g(k)}), \qquad
          \alpha_g \sim \mathrm{Gamma}(a, \text{rate } a s_g^2),

so that the precision :math:`\alpha_g` of a group is :math:`1 / s_g^2` on average, the more closely
the larger ``a``. (MacKay 1992, "Bayesian interpolation"; Neal 1996, section 1.2, whose scales for
the width these are: weights into a layer of ``n`` inputs have variance of order 1/n.)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lgamma, log, pi
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import check_positive, check_vector
from skbayes_sym.numerics.gaussian import normal_log_prob
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import normal_like
from skbayes_sym.numerics.runtime import constant

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
    def learned_scales(self) -> "GroupScalePrior | None":
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

    def __post_init__(self) -> None:
        check_vector("scale", self.scale)

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
        scale = self.scale.to(theta)
        return normal_log_prob(theta.square(), scale.log()).sum(-1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
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
        layer = layer_index(layout)
        sizes = {"layers": int(layer.max()) + 1, "parameters": layout.n_params}
        scale = torch.as_tensor(check_scales(self.scale, **sizes))
        if scale.shape == (sizes["layers"],) and np.ndim(self.scale):
            return GaussianPrior(scale[layer])
        return GaussianPrior(scale.expand(layout.n_params).clone())


def check_scales(values: npt.ArrayLike, **sizes: int) -> npt.NDArray[np.float64]:
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


def layer_index(layout: ParamLayout) -> Tensor:
    """Number of the layer that every parameter belongs to, int64 (P,).

    Parameters whose names agree up to the last dot ("conv1.weight", "conv1.bias"), or after the
    first letter ("W1", "b1"), are of one layer.
    """
    names = {name: name.rpartition(".")[0] or name[1:] for name in layout.shapes}
    number = {layer: i for i, layer in enumerate(dict.fromkeys(names.values()))}
    counts = torch.tensor([layout.positions(name).numel() for name in names])
    return torch.tensor([number[layer] for layer in names.values()]).repeat_interleave(counts)


@dataclass(frozen=True, eq=False)
class GroupScalePrior(Prior):
    """Zero-mean normals with one learned scale a group of parameters; bound to a layout.

    ``hyper`` (*B, G): log precisions; with leading axes they are those of several weight vectors,
    each its own.
    """

    group: Tensor  # int64 (P,); number of every parameter's group
    names: tuple[str, ...]  # one per group
    reference_variance: Tensor  # (G,); the variances :math:`s_g^2` around which the hyperprior lies
    shape: float  # shape ``a`` of the Gamma hyperprior of the precisions
    hyper: Tensor
    is_learned: bool = True  # false where the scales were given: the hyperprior then doesn't count

    @classmethod
    def fixed(cls, scale: Tensor) -> "GroupScalePrior":
        """Scales (P,) that stay: every parameter is a group."""
        names = tuple(str(i) for i in range(len(scale)))
        variance = scale.double().square()
        group = torch.arange(len(scale))
        return cls(group, names, variance, 1.0, -variance.log(), is_learned=False)

    def bind(self, layout: ParamLayout) -> "GroupScalePrior":
        if self.group.shape != (layout.n_params,):
            raise ValueError(
                f"the prior is over {self.group.numel()} parameters, the network has "
                f"{layout.n_params}."
            )
        return self

    @property
    def learned_scales(self) -> "GroupScalePrior | None":
        return self if self.is_learned else None

    @property
    def n_groups(self) -> int:
        """Number G of scales."""
        return len(self.names)

    @property
    def columns(self) -> list[int]:
        """Groups of the weights from one column of the input."""
        return [i for i, name in enumerate(self.names) if "[" in name]

    @property
    def sizes(self) -> Tensor:
        """Number of parameters in every group, float64 (G,)."""
        return torch.bincount(self.group, minlength=self.n_groups).double()

    @property
    def scale(self) -> Tensor:
        """Standard deviations (*B, P) at the present scales."""
        return (-0.5 * self.hyper).exp()[..., self.group]

    @property
    def precision(self) -> Tensor:
        """Inverse variances (*B, P) at the present scales."""
        return self.hyper.exp()[..., self.group]

    def at(self, hyper: Tensor) -> GaussianPrior:
        """The normal prior at log precisions (*B, G)."""
        return GaussianPrior((-0.5 * hyper).exp()[..., self.group])

    def sum_by_group(self, values: Tensor) -> Tensor:
        """Sum over every group, (*B, P) -> (*B, G)."""
        total = values.new_zeros(*values.shape[:-1], self.n_groups)
        return total.index_add_(-1, self.group.to(values.device), values)

    def log_hyperprior(self, hyper: Tensor) -> Tensor:
        """Density of the log precisions, (*B, G) -> (*B,) nats; 0 of scales that were given."""
        if not self.is_learned:
            return hyper.new_zeros(hyper.shape[:-1])
        a = self.shape
        rates = tuple((a * self.reference_variance).tolist())
        normaliser = sum(a * log(rate) for rate in rates) - self.n_groups * lgamma(a)
        rate = constant(rates, hyper.dtype, hyper.device)
        return (a * hyper - rate * hyper.exp()).sum(-1) + normaliser

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats at the present scales, (*B, P) -> (*B,)."""
        return self.at(self.hyper).log_prob(theta)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws at the present scales, (n, P)."""
        scale = self.scale.to(generator.device)
        return scale * normal_like((n, scale.numel()), generator=generator, like=scale)

    def update(self, mean: Tensor, variance: Tensor) -> "GroupScalePrior":
        """Scales that maximise expected log prior plus hyperprior at moments (P,), closed form.

        .. math:: \\alpha_g = (n_g + 2a) / (E|\\theta_g|^2 + 2 a s_g^2).
        """
        spread = self.sum_by_group(mean.square() + variance)
        n = self.sizes.to(spread)
        a = self.shape
        rate = 2.0 * a * self.reference_variance.to(spread)
        return replace(self, hyper=((n + 2.0 * a) / (spread + rate)).log())

    def gaussian(self) -> GaussianPrior:
        """The normal prior at the present scales."""
        return self.at(self.hyper)

    def evidence_step(
        self, theta: Tensor, variance: Tensor, hyper: Tensor, damping: float
    ) -> Tensor:
        """MacKay's step of log precisions ``hyper`` (*B, G) at a mode (*B, P), damped.

        .. math:: \\alpha_g \\leftarrow \\alpha_g^{1 - d} \\left[ (\\gamma_g + 2a) /
                  (|\\theta_g|^2 + 2 a s_g^2) \\right]^d, \\quad
                  \\gamma_g = n_g - \\alpha_g \\textstyle\\sum_g \\mathrm{variance}

        (MacKay 1992, "A practical Bayesian framework for backpropagation networks", eq. 21.)
        """
        determined = self.sizes.to(theta) - hyper.exp() * self.sum_by_group(variance)
        a = self.shape
        rate = 2.0 * a * self.reference_variance.to(theta)
        target = (determined.clamp_min(0.0) + 2.0 * a) / (self.sum_by_group(theta.square()) + rate)
        return torch.lerp(hyper, target.log(), damping)

    def collapse(self) -> "CollapsedGroupPrior":
        """The prior with its scales integrated out."""
        return CollapsedGroupPrior(self)


@dataclass(frozen=True, eq=False)
class CollapsedGroupPrior(Prior):
    r"""The law of the weights alone: every group a multivariate Student-t.

    .. math:: p(\theta_g) = \frac{\Gamma(a + n_g/2)}{\Gamma(a)}\,
              \frac{(a s_g^2)^a}{(2\pi)^{n_g/2}}\,
              (a s_g^2 + |\theta_g|^2 / 2)^{-(a + n_g/2)}

    It has no scales left to sample, no funnel, and is invariant under exchanges and sign flips
    within a group.
    """

    scales: GroupScalePrior

    def bind(self, layout: ParamLayout) -> "CollapsedGroupPrior":
        self.scales.bind(layout)
        return self

    @property
    def learned_scales(self) -> GroupScalePrior:
        return self.scales

    def log_prob(self, theta: Tensor) -> Tensor:
        kernel = self.kernel(theta)
        return kernel.value(kernel.rates(theta))

    def kernel(self, like: Tensor) -> "CollapsedGroupKernel":
        """Value and gradient at once, in dtype and on the device of ``like``."""
        s = self.scales
        a = self.scales.shape
        rate = a * s.reference_variance
        shape = a + 0.5 * s.sizes
        constant = torch.lgamma(shape) - torch.lgamma(rate.new_tensor(a)) + a * rate.log()
        constant = (constant - 0.5 * s.sizes * log(2.0 * pi)).sum()
        member = torch.nn.functional.one_hot(s.group, s.n_groups)
        return CollapsedGroupKernel(*(t.to(like) for t in (member, rate, shape, constant)))

    def log_scale(self, theta: Tensor) -> Tensor:
        r"""``E[log scale_g | theta]``, (*B, P) -> (*B, G).

        Given the weights a precision is Gamma with shape :math:`a + n_g / 2` and rate
        :math:`a s_g^2 + |\theta_g|^2 / 2`, and its logarithm has mean
        :math:`\psi(\text{shape}) - \log \text{rate}`.
        """
        s = self.scales
        a = self.scales.shape
        rate = a * s.reference_variance.to(theta) + 0.5 * s.sum_by_group(theta.square())
        return 0.5 * (rate.log() - torch.digamma(a + 0.5 * s.sizes.to(theta)))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P): precisions from their Gamma law, then weights."""
        s = self.scales
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        rate = s.shape * s.reference_variance.cpu().numpy()
        rng = np.random.default_rng(seed)
        precision = torch.as_tensor(rng.gamma(s.shape, 1.0 / rate, size=(n, s.n_groups)))
        noise = normal_like((n, len(s.group)), generator=generator, like=precision)
        return noise / precision.sqrt()[:, s.group]


@dataclass(frozen=True, eq=False)
class CollapsedGroupKernel:
    """`CollapsedGroupPrior` as samplers want it: what doesn't depend on the weights, made once."""

    member: Tensor  # (P, G), 1 where a parameter is of a group
    rate: Tensor  # (G,)
    shape: Tensor  # (G,), of the precisions given the weights
    constant: Tensor  # ()

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        r"""Log density (C,) in nats and its gradient at ``theta`` (C, P); O(C P G).

        .. math:: \nabla_g = -\frac{a + n_g / 2}{a s_g^2 + |\theta_g|^2 / 2}\, \theta_g
        """
        rate = self.rates(theta)
        precision = (self.shape / rate) @ self.member.T
        return self.value(rate), -precision * theta

    def rates(self, theta: Tensor) -> Tensor:
        """Rates of the precisions given the weights, (*B, P) -> (*B, G)."""
        return self.rate + 0.5 * (theta.square() @ self.member)

    def value(self, rate: Tensor) -> Tensor:
        """The log density from `rates`, (*B, G) -> (*B,) nats."""
        return self.constant - rate.log() @ self.shape


@dataclass(frozen=True)
class LayerScales:
    """Learned scales, one per layer's weights and one per layer's biases.

    Parameters
    ----------
    shape : float, default=0.5
        Of the Gamma hyperprior of the precisions: how closely the scales keep to their reference.
        Classifiers take 8, since on separable classes weaker ones run away.
    output_variance : float, default=1.0
        Reference variance of an output from hidden units of size one, or of a linear model's from
        columns of size one, however many they are.
    """

    shape: float = 0.5
    output_variance: float = 1.0

    _by_column: ClassVar[bool] = False  # of the first layer's weights

    def __post_init__(self) -> None:
        check_positive("shape", self.shape)
        check_positive("output_variance", self.output_variance)

    def bind(self, layout: ParamLayout) -> GroupScalePrior:
        weights = [name for name, s in layout.shapes.items() if len(s) > 1]
        group: list[Tensor] = []
        names: list[str] = []
        variances: list[float] = []  # before any data, features and targets standardised
        for name, size in layout.shapes.items():
            columns = size[1] if self._by_column and name == weights[0] else 1
            group.append(len(names) + torch.arange(columns).broadcast_to(size).reshape(-1))
            names += [name] if columns == 1 else [f"{name}[:, {j}]" for j in range(columns)]
            variance = 1.0
            if name in weights:
                # Standardised features come in with variance 2.25: tanh units then bend within the
                # data and not at once.
                variance = self.output_variance if name == weights[-1] else 2.25
                variance /= float(np.prod(size[1:]))
            variances += columns * [variance]
        reference = torch.tensor(variances, dtype=torch.float64)
        shape = float(self.shape)
        return GroupScalePrior(torch.cat(group), tuple(names), reference, shape, -reference.log())


@dataclass(frozen=True)
class ARD(LayerScales):
    """Automatic relevance determination: one learned scale per column of the input.

    All hidden units share a column's scale, so that exchanges and sign flips of units stay
    symmetries; beyond the first layer columns *are* units, and there is one scale a layer.

    Parameters
    ----------
    shape, output_variance : float
        As of `LayerScales`.

    References
    ----------
    MacKay (1994). Bayesian nonlinear modelling for the prediction competition.
    Neal (1996). Bayesian learning for neural networks, section 1.2.
    """

    _by_column: ClassVar[bool] = True
