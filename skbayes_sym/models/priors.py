r"""Priors of the flat parameter vector, with fixed or learned scales.

Learned scales are shared by groups of weights:

.. math:: \theta_k \mid \alpha \sim N(0, 1 / \alpha_{g(k)}), \qquad
          \alpha_g \sim \mathrm{Gamma}(a, \text{rate } a s_g^2).

The precision :math:`\alpha_g` of a group has the mean :math:`1 / s_g^2`, and concentrates around it
for large ``a`` (MacKay 1992, "Bayesian interpolation"; Neal 1996, section 1.2). The dependence of
the scales on the width follows Neal: weights into a layer with ``n`` inputs have a variance of
order 1/n.
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
_MIN_SCALE = 1e-100  # squares of smaller scales underflow


@runtime_checkable
class UnboundPrior(Protocol):
    """A prior that is specified before the network is known."""

    def bind(self, layout: ParamLayout) -> "Prior":
        """Return the prior of the parameters with this layout.

        Raises ValueError if it doesn't match the layout.
        """


class Prior:
    """Distribution of the flat parameters ``theta`` (P,) before any data are seen.

    A new prior defines `log_prob` and `sample`, and also `bind` if these depend on the number of
    parameters. By default it is neither normal nor learned.
    """

    def bind(self, layout: ParamLayout) -> "Prior":  # noqa: ARG002
        """Return the prior of the parameters with this layout; by default the prior itself."""
        return self

    def gaussian(self) -> "GaussianPrior | None":
        """Return the prior as independent zero-mean normals, which VI and Laplace need, or None."""
        return None

    @property
    def learned_scales(self) -> "GroupScalePrior | None":
        """Scales that are learned with the weights or integrated out, or None."""
        return None

    def kernel(self, like: Tensor) -> PriorKernel | None:  # noqa: ARG002
        """Return a function for value and gradient, or None if autograd is to be used.

        The function works in the dtype and on the device of ``like``.
        """
        return None

    def log_prob(self, theta: Tensor) -> Tensor:
        """Return the normalised log density in nats, (*B, P) -> (*B,)."""
        raise NotImplementedError(f"{type(self).__name__} needs `log_prob(theta)`.")

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` parameter vectors, (n, P), on the generator's device."""
        raise NotImplementedError(f"{type(self).__name__} needs `sample(n, generator=...)`.")


@dataclass(frozen=True)
class HalfNormal:
    """Prior of the noise's standard deviation, ``|N(0, scale^2)|``, for draws (``noise_std=``).

    It is the prior of every parameter of a likelihood that is the logarithm of a scale.

    Parameters
    ----------
    scale : float, default=1.0
        Scale in units of the scaled targets.

    Raises
    ------
    ValueError
        If ``scale`` isn't between 1e-100 and 1e100.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.scale, int | float) or not 1e-100 <= self.scale <= 1e100:
            raise ValueError(
                f"HalfNormal: scale must be a positive number, 1e-100 to 1e100, got {self.scale!r}."
            )


@dataclass(frozen=True, eq=False)
class GaussianPrior(Prior):
    """Independent zero-mean normals, ``theta_k ~ N(0, scale_k^2)``.

    Parameters
    ----------
    scale : Tensor of shape (P,) or (M, P)
        Standard deviations, or those of each of M weight vectors.
    """

    scale: Tensor

    def __post_init__(self) -> None:
        check_vector("scale", self.scale)

    def bind(self, layout: ParamLayout) -> "GaussianPrior":
        """Return the prior, after checking that it matches the layout."""
        if self.scale.shape != (layout.n_params,):
            raise ValueError(
                f"the prior is over {self.scale.numel()} parameters, the network has "
                f"{layout.n_params}. Use Normal(scale), which takes any number of them."
            )
        return self

    def gaussian(self) -> "GaussianPrior":
        """Return the prior itself."""
        return self

    @property
    def precision(self) -> Tensor:
        """Inverse variances (P,)."""
        return self.scale**-2

    def log_prob(self, theta: Tensor) -> Tensor:
        """Return the normalised log density in nats, (*B, P) -> (*B,)."""
        scale = self.scale.to(theta)
        return normal_log_prob(theta.square(), scale.log()).sum(-1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` parameter vectors, (n, P)."""
        scale = self.scale.to(generator.device)
        return scale * normal_like((n, scale.numel()), generator=generator, like=scale)


@dataclass(frozen=True, eq=False)
class Normal:
    """Zero-mean normals with fixed scales, for any network.

    Parameters
    ----------
    scale : float or array-like of float, default=1.0
        Standard deviation: a single one, one per layer, or one per parameter.

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
        """Return the normal prior of the parameters with this layout."""
        layer = layer_index(layout)
        sizes = {"layers": int(layer.max()) + 1, "parameters": layout.n_params}
        scale = torch.as_tensor(check_scales(self.scale, **sizes))
        if scale.shape == (sizes["layers"],) and np.ndim(self.scale):
            return GaussianPrior(scale[layer])
        return GaussianPrior(scale.expand(layout.n_params).clone())


def check_scales(values: npt.ArrayLike, **sizes: int) -> npt.NDArray[np.float64]:
    """Return prior scales as an array, after checking shape and values.

    Parameters
    ----------
    values : array-like of float
        One scale, or as many as one of ``sizes``.
    **sizes : int
        Admissible numbers of scales, by the name that error messages use ("layers").

    Returns
    -------
    ndarray of shape (1,) or (n,)
        Scales as float64.

    Raises
    ------
    ValueError
        If the shape is another one, or if a scale isn't positive and finite.
    """
    scale = np.atleast_1d(np.asarray(values, dtype=float))
    if scale.shape not in {(1,), *((n,) for n in sizes.values())}:
        alternatives = " or ".join(f"one for each of the {n} {name}" for name, n in sizes.items())
        raise ValueError(
            f"prior must be a number or {alternatives}; got an array of shape {scale.shape}."
        )
    if not np.all(np.isfinite(scale) & (scale > 0)):
        raise ValueError(f"prior must be positive and finite, got {values!r}.")
    if not np.all((scale >= _MIN_SCALE) & (scale <= 1.0 / _MIN_SCALE)):
        raise ValueError(
            f"prior must lie between {_MIN_SCALE:g} and {1.0 / _MIN_SCALE:g}, where its "
            f"square and the inverse of that are numbers; got {values!r}."
        )
    return scale


def layer_index(layout: ParamLayout) -> Tensor:
    """Return the index of each parameter's layer, int64 (P,).

    Parameters belong to one layer if their names agree up to the last dot ("conv1.weight",
    "conv1.bias"), or after the first letter ("W1", "b1").
    """
    names = {name: name.rpartition(".")[0] or name[1:] for name in layout.shapes}
    index = {layer: i for i, layer in enumerate(dict.fromkeys(names.values()))}
    counts = torch.tensor([layout.positions(name).numel() for name in names])
    return torch.tensor([index[layer] for layer in names.values()]).repeat_interleave(counts)


@dataclass(frozen=True, eq=False)
class GroupScalePrior(Prior):
    """Zero-mean normals with a scale per group of parameters, bound to a layout.

    Attributes
    ----------
    group : Tensor of shape (P,), int64
        Index of each parameter's group.
    names : tuple of str
        Names of the G groups.
    reference_variance : Tensor of shape (G,)
        Variances :math:`s_g^2` around which the hyperprior concentrates.
    shape : float
        Shape ``a`` of the Gamma hyperprior of the precisions.
    hyper : Tensor of shape (*B, G)
        Log precisions. Leading axes are those of several weight vectors with different scales.
    is_learned : bool
        Whether the scales are learned. The hyperprior of fixed scales is 1.
    """

    group: Tensor
    names: tuple[str, ...]
    reference_variance: Tensor
    shape: float
    hyper: Tensor
    is_learned: bool = True

    @classmethod
    def fixed(cls, scale: Tensor) -> "GroupScalePrior":
        """Return a prior with fixed scales (P,), where every parameter is a group."""
        names = tuple(str(i) for i in range(len(scale)))
        variance = scale.double().square()
        group = torch.arange(len(scale))
        return cls(group, names, variance, 1.0, -variance.log(), is_learned=False)

    def bind(self, layout: ParamLayout) -> "GroupScalePrior":
        """Return the prior, after checking that it matches the layout."""
        if self.group.shape != (layout.n_params,):
            raise ValueError(
                f"the prior is over {self.group.numel()} parameters, the network has "
                f"{layout.n_params}."
            )
        return self

    @property
    def learned_scales(self) -> "GroupScalePrior | None":
        """Scales that are learned with the weights or integrated out, or None."""
        return self if self.is_learned else None

    @property
    def n_groups(self) -> int:
        """Number G of groups."""
        return len(self.names)

    @property
    def columns(self) -> list[int]:
        """Indices of the groups that contain the weights of one input column."""
        return [i for i, name in enumerate(self.names) if "[" in name]

    @property
    def sizes(self) -> Tensor:
        """Number of parameters in each group, float64 (G,)."""
        return torch.bincount(self.group, minlength=self.n_groups).double()

    @property
    def scale(self) -> Tensor:
        """Standard deviations (*B, P) at the current log precisions."""
        return (-0.5 * self.hyper).exp()[..., self.group]

    @property
    def precision(self) -> Tensor:
        """Inverse variances (*B, P) at the current log precisions."""
        return self.hyper.exp()[..., self.group]

    def at(self, hyper: Tensor) -> GaussianPrior:
        """Return the normal prior at log precisions (*B, G)."""
        return GaussianPrior((-0.5 * hyper).exp()[..., self.group])

    def sum_by_group(self, values: Tensor) -> Tensor:
        """Sum values over each group, (*B, P) -> (*B, G)."""
        total = values.new_zeros(*values.shape[:-1], self.n_groups)
        return total.index_add_(-1, self.group.to(values.device), values)

    def log_hyperprior(self, hyper: Tensor) -> Tensor:
        """Return the log density of log precisions, (*B, G) -> (*B,); 0 for fixed scales."""
        if not self.is_learned:
            return hyper.new_zeros(hyper.shape[:-1])
        a = self.shape
        rates = tuple((a * self.reference_variance).tolist())
        normaliser = sum(a * log(rate) for rate in rates) - self.n_groups * lgamma(a)
        rate = constant(rates, hyper.dtype, hyper.device)
        return (a * hyper - rate * hyper.exp()).sum(-1) + normaliser

    def log_prob(self, theta: Tensor) -> Tensor:
        """Return the log density at the current log precisions, (*B, P) -> (*B,) nats."""
        return self.at(self.hyper).log_prob(theta)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` parameter vectors at the current log precisions, (n, P)."""
        scale = self.scale.to(generator.device)
        return scale * normal_like((n, scale.numel()), generator=generator, like=scale)

    def update(self, mean: Tensor, variance: Tensor) -> "GroupScalePrior":
        r"""Return the prior with the scales of highest expected log prior plus log hyperprior.

        Parameters
        ----------
        mean, variance : Tensor of shape (P,)
            Posterior moments of the parameters.

        Notes
        -----
        In closed form,

        .. math:: \alpha_g = (n_g + 2a) / (E|\theta_g|^2 + 2 a s_g^2).
        """
        squares = self.sum_by_group(mean.square() + variance)
        n = self.sizes.to(squares)
        a = self.shape
        rate = 2.0 * a * self.reference_variance.to(squares)
        return replace(self, hyper=((n + 2.0 * a) / (squares + rate)).log())

    def gaussian(self) -> GaussianPrior:
        """Return the normal prior at the current log precisions."""
        return self.at(self.hyper)

    def evidence_step(
        self, theta: Tensor, variance: Tensor, hyper: Tensor, damping: float
    ) -> Tensor:
        r"""Return the log precisions after a damped step of MacKay's evidence maximisation.

        Parameters
        ----------
        theta : Tensor of shape (*B, P)
            Parameters at a mode.
        variance : Tensor of shape (*B, P)
            Posterior variances of the parameters.
        hyper : Tensor of shape (*B, G)
            Log precisions at which the mode was found.
        damping : float
            Weight d of the new log precisions; 1 is the undamped step.

        Returns
        -------
        Tensor of shape (*B, G)
            New log precisions.

        Notes
        -----
        .. math:: \alpha_g \leftarrow \alpha_g^{1 - d} \left[ (\gamma_g + 2a) /
                  (|\theta_g|^2 + 2 a s_g^2) \right]^d, \quad
                  \gamma_g = n_g - \alpha_g \textstyle\sum_g \mathrm{variance}

        (MacKay 1992, "A practical Bayesian framework for backpropagation networks", eq. 21), where
        :math:`\gamma_g` is the effective number of parameters of a group.
        """
        n_effective = self.sizes.to(theta) - hyper.exp() * self.sum_by_group(variance)
        a = self.shape
        rate = 2.0 * a * self.reference_variance.to(theta)
        squares = self.sum_by_group(theta.square())
        target = (n_effective.clamp_min(0.0) + 2.0 * a) / (squares + rate)
        return torch.lerp(hyper, target.log(), damping)

    def collapse(self) -> "CollapsedGroupPrior":
        """Return the prior with its scales integrated out."""
        return CollapsedGroupPrior(self)


@dataclass(frozen=True, eq=False)
class CollapsedGroupPrior(Prior):
    r"""Marginal distribution of the weights: a multivariate Student-t for every group.

    .. math:: p(\theta_g) = \frac{\Gamma(a + n_g/2)}{\Gamma(a)}\,
              \frac{(a s_g^2)^a}{(2\pi)^{n_g/2}}\,
              (a s_g^2 + |\theta_g|^2 / 2)^{-(a + n_g/2)}

    Sampling the weights alone avoids the funnel of weights and scales. The density is invariant
    under permutations and sign flips within a group.
    """

    scales: GroupScalePrior

    def bind(self, layout: ParamLayout) -> "CollapsedGroupPrior":
        """Return the prior, after checking that it matches the layout."""
        self.scales.bind(layout)
        return self

    @property
    def learned_scales(self) -> GroupScalePrior:
        """Scales that are learned with the weights or integrated out, or None."""
        return self.scales

    def log_prob(self, theta: Tensor) -> Tensor:
        """Return the normalised log density in nats, (*B, P) -> (*B,)."""
        kernel = self.kernel(theta)
        return kernel.value(kernel.rates(theta))

    def kernel(self, like: Tensor) -> "CollapsedGroupKernel":
        """Return value and gradient in the dtype and on the device of ``like``."""
        s = self.scales
        a = self.scales.shape
        rate = a * s.reference_variance
        shape = a + 0.5 * s.sizes
        constant = torch.lgamma(shape) - torch.lgamma(rate.new_tensor(a)) + a * rate.log()
        constant = (constant - 0.5 * s.sizes * log(2.0 * pi)).sum()
        member = torch.nn.functional.one_hot(s.group, s.n_groups)
        return CollapsedGroupKernel(*(t.to(like) for t in (member, rate, shape, constant)))

    def log_scale(self, theta: Tensor) -> Tensor:
        r"""Return ``E[log scale_g | theta]``, (*B, P) -> (*B, G).

        Given the weights, a precision has a Gamma distribution with shape :math:`a + n_g / 2` and
        rate
        :math:`a s_g^2 + |\theta_g|^2 / 2`. The mean of its logarithm is
        :math:`\psi(\text{shape}) - \log \text{rate}`.
        """
        s = self.scales
        a = self.scales.shape
        rate = a * s.reference_variance.to(theta) + 0.5 * s.sum_by_group(theta.square())
        return 0.5 * (rate.log() - torch.digamma(a + 0.5 * s.sizes.to(theta)))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` parameter vectors (n, P): Gamma precisions, then normal weights."""
        s = self.scales
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        rate = s.shape * s.reference_variance.cpu().numpy()
        rng = np.random.default_rng(seed)
        precision = torch.as_tensor(rng.gamma(s.shape, 1.0 / rate, size=(n, s.n_groups)))
        noise = normal_like((n, len(s.group)), generator=generator, like=precision)
        return noise / precision.sqrt()[:, s.group]


@dataclass(frozen=True, eq=False)
class CollapsedGroupKernel:
    """Value and gradient of `CollapsedGroupPrior`, with everything precomputed for samplers.

    Attributes
    ----------
    member : Tensor of shape (P, G)
        Indicators of the groups.
    rate : Tensor of shape (G,)
        Rates of the Gamma hyperprior.
    shape : Tensor of shape (G,)
        Shapes of the precisions given the weights.
    constant : Tensor of shape ()
        Log of the normalising constant.
    """

    member: Tensor
    rate: Tensor
    shape: Tensor
    constant: Tensor

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the log density (C,) in nats and its gradient at ``theta`` (C, P); O(C P G).

        .. math:: \nabla_g = -\frac{a + n_g / 2}{a s_g^2 + |\theta_g|^2 / 2}\, \theta_g
        """
        rate = self.rates(theta)
        precision = (self.shape / rate) @ self.member.T
        return self.value(rate), -precision * theta

    def rates(self, theta: Tensor) -> Tensor:
        """Return the rates of the precisions given the weights, (*B, P) -> (*B, G)."""
        return self.rate + 0.5 * (theta.square() @ self.member)

    def value(self, rate: Tensor) -> Tensor:
        """Return the log density from `rates`, (*B, G) -> (*B,) nats."""
        return self.constant - rate.log() @ self.shape


@dataclass(frozen=True)
class LayerScales:
    """Learned scales, one for the weights and one for the biases of each layer.

    Parameters
    ----------
    shape : float, default=0.5
        Shape of the Gamma hyperprior of the precisions. The larger it is, the closer scales stay to
        their reference. Classifiers use 8, since with weaker hyperpriors scales diverge on
        separable classes.
    output_variance : float, default=1.0
        Reference variance of an output, for hidden units of size one (or for columns of size one in
        a linear model), whatever their number.
    """

    shape: float = 0.5
    output_variance: float = 1.0

    # Whether each column of the first layer's weights is a group.
    _by_column: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive("shape", self.shape)
        check_positive("output_variance", self.output_variance)

    def bind(self, layout: ParamLayout) -> GroupScalePrior:
        """Return the prior of the parameters with this layout."""
        weights = [name for name, s in layout.shapes.items() if len(s) > 1]
        group: list[Tensor] = []
        names: list[str] = []
        variances: list[float] = []
        for name, size in layout.shapes.items():
            if self._by_column and name == weights[0]:
                columns = size[1]
            else:
                columns = 1
            group.append(len(names) + torch.arange(columns).broadcast_to(size).reshape(-1))
            names += [name] if columns == 1 else [f"{name}[:, {j}]" for j in range(columns)]
            variance = 1.0
            if name in weights:
                # Pre-activations have variance 2.25 for standardised features, so that tanh units
                # are nonlinear within the range of the data, but not saturated.
                if name == weights[-1]:
                    variance = self.output_variance
                else:
                    variance = 2.25
                variance /= float(np.prod(size[1:]))
            variances += columns * [variance]
        reference = torch.tensor(variances, dtype=torch.float64)
        shape = float(self.shape)
        return GroupScalePrior(torch.cat(group), tuple(names), reference, shape, -reference.log())


# Hyperprior of classifiers. With the default one, scales of separable classes grow without limit.
CLASSIFICATION_SCALES = LayerScales(8.0, 64.0)


@dataclass(frozen=True)
class ARD(LayerScales):
    """Automatic relevance determination: one learned scale per input column.

    All hidden units share the scale of a column, so permutations and sign flips of units remain
    symmetries. In later layers the columns are units, and there is one scale per layer.

    Parameters
    ----------
    shape, output_variance : float
        See `LayerScales`.

    References
    ----------
    MacKay (1994). Bayesian nonlinear modelling for the prediction competition.
    Neal (1996). Bayesian learning for neural networks, section 1.2.
    """

    _by_column: ClassVar[bool] = True
