"""The interface of likelihoods: the distribution of a target given the outputs of a network.

`Likelihood` derives what methods need from a density: derivatives, expectations under independent
normal outputs (`ExpectedLogProb`), and expectations over the correlated outputs of a row
(`SiteLikelihood`), from which Gaussian sites are computed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from skbayes_sym.models.predictive_mixtures import CategoricalMixture, Predictive, TargetMixture
from skbayes_sym.numerics.arguments import short_repr
from skbayes_sym.numerics.bisection import invert_cdf
from skbayes_sym.numerics.gaussian import gauss_hermite


class ExpectedLogProb(NamedTuple):
    """``E[log p(y | f)]`` for ``f ~ N(mean, variance)``, with its derivatives, for each row.

    Attributes
    ----------
    value : Tensor of shape (N,)
        Expectations, in nats.
    d_mean, d_variance : Tensor of shape (N, O)
        Derivatives with respect to the moments of the outputs.
    d_params : Tensor of shape (N, n_params)
        Derivatives with respect to the parameters of the likelihood.
    """

    value: Tensor  # (N,), nats
    d_mean: Tensor  # (N, O)
    d_variance: Tensor  # (N, O)
    d_params: Tensor  # (N, n_params)


class DataTerm(Protocol):
    """Log likelihood of C chains for fixed targets: ``sum_n weight_n log p(y_n | f_cn, params_c)``.

    Targets and weights are prepared once, when the term is made. Outputs come as (C, O, N) and may
    be overwritten. ``params`` has the shape (C, n_params).
    """

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        """Return the log likelihood of each chain, (C,) nats."""

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value (C,) and its derivative with respect to ``params`` (C, n_params).

        The derivative with respect to the outputs is written to ``out``.
        """


def collapse_equal_weights(weight: Tensor) -> Tensor:
    """Replace equal weights by a single one, which is then applied once per chain, not per row.

    On a GPU this isn't worth the synchronisation that the comparison needs.
    """
    if weight.device.type != "cpu":
        return weight
    if bool((weight == weight[:1]).all()):
        return weight[:1]
    return weight


def clone_if_inference(tensor: Tensor) -> Tensor:
    """Copy a tensor that was made in inference mode, so that a backward pass can save it."""
    if tensor.is_inference():
        return tensor.clone()
    return tensor


def as_leaf(tensor: Tensor) -> Tensor:
    """Return a leaf for a derivative, or the tensor itself if it has a graph already."""
    if tensor.requires_grad:
        return tensor
    return clone_if_inference(tensor).detach().requires_grad_()


@dataclass(frozen=True, eq=False)
class AutogradTerm:
    """A `DataTerm` of any likelihood, differentiated by autograd."""

    likelihood: "Likelihood"
    y: Tensor  # (N, ...)
    weight: Tensor  # (N,)

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        """Return the log likelihood of each chain, (C,) nats."""
        likelihood = self.likelihood.at(params.unsqueeze(1))
        return (likelihood.log_prob(outputs.mT, self.y) * self.weight).sum(-1)

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and the derivative by ``params``; the one by outputs goes to ``out``."""
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [as_leaf(outputs.detach())]
            if self.likelihood.n_params:
                leaves.append(as_leaf(params.detach()))
            value = self.value(leaves[0], leaves[-1] if len(leaves) > 1 else params)
            slopes = torch.autograd.grad(value.sum(), leaves)
        out.copy_(slopes[0])
        return value.detach(), slopes[1] if len(slopes) > 1 else params


# Number of nodes of expectations over one output. For a logistic likelihood the error is below
# 1e-8 nats per row for outputs of standard deviation up to 2, 2e-6 at 4 and 3e-3 at 10.
N_NODES = 64

# Number of nodes that a logistic likelihood needs, by the largest standard deviation of an output.
# Value and slopes are then exact to 1e-15, and to 2e-13 at a standard deviation of 1.
_LOGISTIC_NODES = {0.1: 8, 0.3: 12, 0.5: 20, 0.7: 32, 1.0: 48}

# Smallest variance of an output. The output of a row of zeros has no variance, and derivatives
# would be 0 / 0 there.
_MIN_VARIANCE = 1e-16


def expect_by_quadrature(
    value_and_slope: Callable[[Tensor], tuple[Tensor, Tensor]], mean: Tensor, variance: Tensor,
    param_slope: Callable[[Tensor], Tensor] | None = None, *, n_nodes: int = N_NODES,
) -> ExpectedLogProb:  # fmt: skip
    """Compute expectations over one output by Gauss-Hermite quadrature.

    Parameters
    ----------
    value_and_slope : callable (f) -> (Tensor, Tensor)
        Log likelihood and its derivative with respect to the output, at outputs (N, n_nodes).
    mean, variance : Tensor of shape (N, 1)
        Moments of the outputs, ``f ~ N(mean, variance)``.
    param_slope : callable (f) -> Tensor, optional
        Derivative with respect to a parameter of the likelihood, if it has one.
    n_nodes : int, default=64
        Number of quadrature nodes.

    Returns
    -------
    ExpectedLogProb
        Expectations and their derivatives.

    Notes
    -----
    The derivatives are those of the quadrature itself, so a fixed point of them is a stationary
    point of the value: ``d/dv E[l(m + s z)] = E[l'(m + s z) z] / (2 s)``.
    """
    nodes, weights = (t.to(mean) for t in gauss_hermite(n_nodes))
    sd = variance.clamp_min(_MIN_VARIANCE).sqrt()
    f = mean + sd * nodes
    value, slope = value_and_slope(f)
    d_mean, d_sd = (slope @ torch.stack([weights, nodes * weights], -1)).split(1, dim=-1)
    d_params = mean.new_zeros(len(mean), 0)
    if param_slope is not None:
        d_params = (param_slope(f) @ weights).unsqueeze(-1)
    return ExpectedLogProb(value @ weights, d_mean, d_sd / (2.0 * sd), d_params)


def choose_n_nodes(variance: Tensor) -> int:
    """Return the number of nodes that the output with the largest variance needs.

    On a GPU, where reading the variance would synchronise, this is the maximum.
    """
    if variance.device.type != "cpu" or not variance.numel():
        return N_NODES
    widest = float(variance.detach().amax()) ** 0.5
    return next((n for limit, n in _LOGISTIC_NODES.items() if widest <= limit), N_NODES)


def expect_by_autograd(
    likelihood: "Likelihood", mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
) -> ExpectedLogProb:
    """Compute expectations for any likelihood, with derivatives by autograd.

    Parameters
    ----------
    likelihood : Likelihood
        The likelihood. If ``likelihood.n_noise(O)`` is 0, each target depends on one output.
    mean, variance : Tensor of shape (N, O)
        Moments of the outputs.
    y : Tensor
        Targets of the N rows.
    noise : Tensor of shape (N, O) or (N, 0)
        Standard normal variables for one draw of the outputs. Unused by quadrature.

    Returns
    -------
    ExpectedLogProb
        Expectations and their derivatives. They are differentiable if the arguments are.

    Notes
    -----
    If each target depends on one output, the expectation of a sum of such terms is exact at nodes
    that all outputs share, which takes 64 evaluations. Otherwise there is one draw per row, ``f = m
    + sqrt(v) noise``, which is unbiased.
    """
    integrates = not likelihood.n_noise(mean.shape[1])
    graph = torch.is_grad_enabled() and any(
        t.requires_grad for t in (mean, variance, likelihood.params)
    )
    with torch.inference_mode(False), torch.enable_grad():
        mean = as_leaf(mean)
        variance = as_leaf(variance)
        y = clone_if_inference(y)
        noise = clone_if_inference(noise)
        leaves = [mean, variance]
        if likelihood.n_params:
            rows = likelihood.params.expand(len(mean), -1)  # parameters of each row
            leaves.append(as_leaf(rows))
            likelihood = likelihood.at(leaves[-1])
        if integrates:
            # The nodes are cached, possibly by a call in inference mode.
            nodes, weights = (clone_if_inference(t).to(mean) for t in gauss_hermite(N_NODES))
            sd = variance.clamp_min(_MIN_VARIANCE).sqrt()
            outputs = mean + sd * nodes[:, None, None]
            value = weights @ likelihood.log_prob(outputs, y)
        else:
            sd = variance.clamp_min(_MIN_VARIANCE).sqrt()
            value = likelihood.log_prob(mean + sd * noise, y)
        slopes = torch.autograd.grad(value.sum(), leaves, create_graph=graph)
    if len(slopes) > 2:
        d_params = slopes[2]
    else:
        d_params = mean.new_zeros(len(mean), 0)
    return ExpectedLogProb(value if graph else value.detach(), slopes[0], slopes[1], d_params)


# Elements of a block of outputs at the nodes: 1 MB, the L2 cache of a core.
CACHE_ELEMENTS = 1 << 17


class SiteTerms(NamedTuple):
    """``E[l]``, ``E[l']`` and ``-E[l'']`` of the log likelihood ``l(f) = log p(y | f)``, by row.

    Attributes
    ----------
    value : Tensor of shape (N,)
        Expectations, in nats.
    gradient : Tensor of shape (N, C)
        Expected gradients.
    curvature : Tensor of shape (N, C, C)
        Negative expected Hessians.
    """

    value: Tensor  # (N,), nats
    gradient: Tensor  # (N, C)
    curvature: Tensor  # (N, C, C)


class _Expectation(torch.autograd.Function):
    """``E[l]`` as a differentiable function of the moments, with given derivatives."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, covariance: Tensor, terms: SiteTerms) -> Tensor:  # noqa: ARG004
        """Return the value, and save its derivatives for `backward`."""
        ctx.save_for_backward(terms.gradient, terms.curvature)
        return terms.value

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the derivatives by mean and covariance (Bonnet's and Price's theorems)."""
        gradient, curvature = ctx.saved_tensors
        slope = slopes[0].unsqueeze(-1)
        return slope * gradient, -0.5 * slope.unsqueeze(-1) * curvature, None


class SiteLikelihood:
    """Expected log likelihood of a row over correlated outputs ``f ~ N(mean, covariance)``."""

    @property
    def params(self) -> Tensor:
        """Learned log scales of the likelihood; none by default."""
        return torch.zeros(0, dtype=torch.float64)

    @property
    def noise_scale(self) -> Tensor:
        """Scale of additive noise (1,), whether it is learned or not; empty if there is none."""
        return torch.zeros(0, dtype=torch.float64)

    def at(self, params: Tensor) -> "SiteLikelihood":  # noqa: ARG002
        """Return the same expectations at other values of the parameters."""
        return self

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        """Return ``E[l]``, (N,) nats, differentiable with respect to the moments.

        Parameters
        ----------
        mean : Tensor of shape (N, O)
            Means of normal outputs.
        covariance : Tensor of shape (N, O, O)
            Their covariances.
        y : Tensor
            Targets or classes.
        """
        with torch.no_grad():
            terms = self(mean.detach(), covariance.detach(), y)
        return cast(Tensor, _Expectation.apply(mean, covariance, terms))

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        """Return expectations for means (N, C), covariances (N, C, C) and targets."""
        raise NotImplementedError

    def outputs(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """Return outputs at the points, (S, N, C), up to a shift of all outputs of a row."""
        raise NotImplementedError


@dataclass(frozen=True)
class ScalarSites(SiteLikelihood):
    """Expectations for one output per row, by the likelihood's own expectations.

    Bonnet's and Price's theorems turn the derivatives with respect to mean and variance into
    ``E[l']`` and ``E[l''] / 2``.

    Parameters
    ----------
    likelihood : Likelihood
        The likelihood of one output.
    learn : bool, default=True
        Whether the scale of the likelihood is a free parameter.
    """

    likelihood: "Likelihood"
    learn: bool = True

    @property
    def params(self) -> Tensor:
        """Free parameters, (n_params,)."""
        if self.learn:
            return self.likelihood.params
        return self.likelihood.params[:0]

    @property
    def noise_scale(self) -> Tensor:
        """Scale of the noise, (T,)."""
        return self.likelihood.noise_scale

    def at(self, params: Tensor) -> "ScalarSites":
        """Return the same expectations at other values of the parameters."""
        if self.learn:
            return replace(self, likelihood=self.likelihood.at(params))
        return self

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        """Return ``E[l]``, (N,) nats, differentiable with respect to the moments."""
        if self.params.numel():
            return torch.cat([e.value for e in self._blocks(mean, covariance, y)])
        return super().value(mean, covariance, y)

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        """Return expectations for means (N, 1), covariances (N, 1, 1) and targets."""
        blocks = list(self._blocks(mean, covariance, y))
        value, d_mean, d_variance, _ = (torch.cat(t) for t in zip(*blocks, strict=True))
        return SiteTerms(value, d_mean, -2.0 * d_variance.unsqueeze(-1))

    def _blocks(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Iterator[ExpectedLogProb]:
        """Yield expectations for blocks of rows whose nodes fit into the cache."""
        likelihood = self.likelihood.to(mean)
        variance = covariance[..., 0]
        n_rows = CACHE_ELEMENTS // N_NODES
        for start in range(0, len(mean), n_rows):
            rows = slice(start, start + n_rows)
            no_noise = mean.new_empty(len(mean[rows]), 0)
            yield likelihood.expected_log_prob(mean[rows], variance[rows], y[rows], no_noise)


Kind = Literal[
    "normal", "heteroscedastic", "student-t", "counts", "softmax", "bernoulli", "ordinal", "other"
]

Member = TypeVar("Member", bound=Callable[..., Any])


def derived_from(definition: str) -> Callable[[Member], Member]:
    """Mark a method of a base class that follows from ``definition`` alone.

    ``definition`` is "log_prob" or "distribution". A subclass that replaces it gets the marked
    methods of the base classes back, see `Likelihood.__init_subclass__`.
    """

    def mark(method: Member) -> Member:
        method.__dict__["derived_from"] = definition
        return method

    return mark


class Likelihood:
    """Conditional density of targets given outputs, with parameters.

    All methods of the package use a likelihood through this interface. A new likelihood defines
    `log_prob` and `predictive`, and inherits everything else, which is computed by autograd and
    quadrature. A `ClassLikelihood` only defines `log_prob`, and a `TargetLikelihood` only defines
    its distribution. A subclass that replaces the density of its base class doesn't inherit closed
    forms that belong to the replaced one: its ``kind`` is "other", and derivatives, expectations
    and predictions are the generic ones.

    The ``n_params`` free parameters are logarithms of scales in the unit of the targets. They are
    learned with the weights of the network. `params` returns them, and `at` returns the likelihood
    at other values, so objects never change. Subclasses are frozen dataclasses, and `to` converts
    their Tensor fields. Subclasses with free parameters define `params` and `at`.
    """

    # Family, by which methods choose a faster or exact form.
    kind: ClassVar[Kind] = "other"
    # Outputs of the network for each target or class.
    n_outputs_per_target: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Drop inherited closed forms that belong to a density which ``cls`` replaces.

        A class that inherits from `Categorical`, say, and has a ``log_prob`` of its own must not
        inherit the expectations and predictions of the softmax. It gets the generic methods of the
        base classes in this module, which `derived_from` marks, and no ``kind``.
        """
        super().__init_subclass__(**kwargs)
        is_base_class = cls.__module__ == __name__
        if is_base_class or not {"log_prob", "distribution"} & vars(cls).keys():
            return
        if "kind" not in vars(cls):
            cls.kind = "other"
        generic = [vars(base) for base in cls.__mro__ if base.__module__ == __name__]
        methods = dict(item for members in reversed(generic) for item in members.items())
        # In this order: a density that follows from a new distribution is new, too.
        for definition in ("distribution", "log_prob"):
            if definition not in vars(cls):
                continue
            for name, method in methods.items():
                is_derived = getattr(method, "derived_from", None) == definition
                if is_derived and name not in vars(cls):
                    setattr(cls, name, method)

    @property
    def params(self) -> Tensor:
        """Values of the free parameters, (n_params,); none by default."""
        return torch.zeros(0, dtype=torch.float64)

    @property
    def n_params(self) -> int:
        """Number of free parameters."""
        return self.params.shape[-1]

    @property
    def noise_scale(self) -> Tensor:
        """Scale of additive noise (O,): the standard deviation of normal noise, or empty.

        By default, the exponentials of the free parameters.
        """
        return self.params.exp()

    def n_outputs(self, n_targets: int) -> int:
        """Return the number of outputs of a network for these targets or classes.

        Raises ValueError if the likelihood doesn't go with as many.
        """
        return n_targets * self.n_outputs_per_target

    @property
    def scales_targets(self) -> bool:
        """Whether targets may be centred and scaled. Counts and classes may not."""
        return False

    def at(self, params: Tensor) -> Self:
        """Return the likelihood at parameters (..., n_params) that broadcast with rows (*B, N).

        For example, (C, 1, n_params) gives each of C chains its own parameters.
        """
        if params.shape[-1]:
            raise NotImplementedError(
                f"{type(self).__name__} has free parameters (`params`), so it needs "
                "`at(params)`: the same likelihood at other values of them."
            )
        return self

    def to(self, like: Tensor) -> Self:
        """Return a copy with constants in the dtype and on the device of ``like``."""
        if not is_dataclass(self):
            return self
        names = {field.name for field in fields(self)}
        moved = {
            name: value.to(like)
            for name, value in vars(self).items()
            if name in names and isinstance(value, Tensor) and value.is_floating_point()
        }
        return replace(self, **moved) if moved else self  # type: ignore[type-var]

    @property
    def is_discrete(self) -> bool:
        """Whether targets are integers."""
        return False

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return normalised log densities, outputs (*B, N, O) and targets -> (*B, N) nats."""
        raise NotImplementedError(f"{type(self).__name__} needs `log_prob(outputs, y)`.")

    @derived_from("log_prob")
    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        """Return the distribution of new targets for draws of the outputs (S, N, O)."""
        raise NotImplementedError(
            f"{type(self).__name__} can't predict: it needs `predictive(outputs, log_weights)`."
        )

    @derived_from("log_prob")
    def n_noise(self, n_outputs: int) -> int:
        """Return the number of normal variables per row that `expected_log_prob` needs.

        It is 0 if the likelihood integrates. By default one output is integrated over. With several
        outputs it isn't known which of them a target depends on, so each needs a variable.
        """
        return 0 if n_outputs == 1 else n_outputs

    @derived_from("log_prob")
    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Compute expectations over independent outputs, exactly, by quadrature or by one draw.

        Parameters
        ----------
        mean, variance : Tensor of shape (N, O)
            Moments of the outputs.
        y : Tensor
            Targets of the N rows.
        noise : Tensor of shape (N, n_noise(O))
            Standard normal variables for the draw ``f = mean + sqrt(variance) noise``. Likelihoods
            that integrate don't use them.

        Returns
        -------
        ExpectedLogProb
            Expectations and their derivatives.
        """
        return expect_by_autograd(self, mean, variance, y, noise)

    @derived_from("log_prob")
    def approximate_expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor
    ) -> ExpectedLogProb:
        """Compute `expected_log_prob` of one output, or a cheaper approximation.

        This is a lower bound or a quadrature with few nodes. ``d_variance`` is the derivative that
        a Gaussian site needs.

        Parameters
        ----------
        mean, variance : Tensor of shape (N, 1)
            Moments of normal outputs.
        y : Tensor of shape (N, 1)
            Targets.
        """
        return self.expected_log_prob(mean, variance, y, mean.new_empty(len(mean), 0))

    @derived_from("log_prob")
    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return a root of the negative Hessian with respect to the outputs, (O, N, O).

        Its columns r_k satisfy ``-d^2 log p / d outputs^2 = sum_k r_k r_k'``. Negative eigenvalues,
        which occur where the density isn't log-concave, are set to zero, so the curvature is at
        least the true one. This takes O + 1 backward passes and one eigendecomposition per row.

        Eigenvectors have no derivative at equal eigenvalues, but a root has one: with ``R = V
        diag(sqrt(lambda))`` held fixed, the square of :math:`R + (dH) V diag(1 / sqrt(lambda)) / 2`
        is ``H + dH`` up to second order.
        """
        has_gradient = outputs.requires_grad or self.params.requires_grad
        graph = bool(torch.is_grad_enabled() and has_gradient)
        with torch.inference_mode(False), torch.enable_grad():
            outputs = as_leaf(outputs)
            y = clone_if_inference(y)
            total = self.log_prob(outputs, y).sum()
            slope = torch.autograd.grad(total, outputs, create_graph=True)[0]
            rows = [torch.zeros_like(outputs)] * outputs.shape[1]
            for k in range(outputs.shape[1] if slope.requires_grad else 0):
                (row,) = torch.autograd.grad(
                    slope[:, k].sum(), outputs, create_graph=graph, retain_graph=True,
                    allow_unused=True,
                )  # fmt: skip
                rows[k] = rows[k] if row is None else row  # None where the slope is constant
        hessian = -torch.stack(rows, 1)
        value, vectors = torch.linalg.eigh(hessian.detach())
        # Directions with negligible curvature are treated as flat, since the square root has no
        # derivative at 0.
        is_curved = value > 1e-10 * value.abs().amax(-1, keepdim=True)
        roots = torch.where(is_curved, value, 1.0).sqrt()
        root = vectors * torch.where(is_curved, roots, 0.0).unsqueeze(-2)
        if graph:
            inverse = vectors * torch.where(is_curved, 1.0 / roots, 0.0).unsqueeze(-2)
            root = root + 0.5 * (hessian - hessian.detach()) @ inverse
        return root.movedim(-1, 0)

    @derived_from("log_prob")
    def fit_constant_outputs(
        self,
        y: npt.NDArray[Any],  # noqa: ARG002
        weight: npt.NDArray[np.float64],  # noqa: ARG002
    ) -> npt.NDArray[np.float64] | None:
        """Return the outputs (O,) that fit best without features, or None if unknown."""
        return None

    @derived_from("log_prob")
    def site_likelihood(
        self,
        n_outputs: int,
        *,
        seed: int,  # noqa: ARG002
        learn: bool = True,
        rows_per_weight: float = 1.0,  # noqa: ARG002
    ) -> SiteLikelihood | None:
        """Return expectations over correlated outputs of a row, or None if there is no such rule.

        Parameters
        ----------
        n_outputs : int
            Number of outputs per row.
        seed : int
            Seed of quasi-Monte Carlo points, if the rule needs any.
        learn : bool, default=True
            Whether scales of the likelihood are free parameters.
        rows_per_weight : float, default=1.0
            Number of rows per weight. The more there are, the smaller are the variances of the
            outputs.
        """
        if n_outputs == 1:
            return ScalarSites(self, learn)
        return None

    @derived_from("log_prob")
    def data_term(self, y: Tensor, weight: Tensor, n_outputs: int) -> DataTerm:  # noqa: ARG002
        """Return the log likelihood for fixed targets, as samplers evaluate it.

        Parameters
        ----------
        y : Tensor
            Targets of the N rows.
        weight : Tensor of shape (N,)
            Weights of the rows.
        n_outputs : int
            Number of outputs of the network.
        """
        return AutogradTerm(self, y, weight)


def check_parameter(likelihood: Likelihood, name: str, lengths: set[int], data: str) -> None:
    """Raise a ValueError unless a parameter that the user gave is a vector of finite numbers.

    Likelihoods don't check it themselves, since those of several draws have further axes.

    Parameters
    ----------
    likelihood : Likelihood
        The user's likelihood.
    name : str
        Attribute with the parameter.
    lengths : set of int
        Admissible lengths.
    data : str
        Noun phrase for the data that determine the length, such as "2 target(s)".
    """
    value = getattr(likelihood, name)
    argument = f"likelihood={type(likelihood).__name__}({name}=...)"
    if value.shape not in {(length,) for length in lengths}:
        shapes = " or ".join(f"({length},)" for length in sorted(lengths))
        raise ValueError(
            f"{argument} has {name} of shape {tuple(value.shape)}: for {data} it must have shape "
            f"{shapes}."
        )
    is_finite = value.is_floating_point() and bool(value.isfinite().all())
    if value.requires_grad or not is_finite:
        raise ValueError(
            f"{argument} must hold finite floating-point numbers that don't require gradients, got "
            f"{short_repr(value)}."
        )


class ClassLikelihood(Likelihood):
    """Likelihood of classes that is defined by its density.

    Predictions normalise the densities of all classes.
    """

    @derived_from("log_prob")
    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        """Return class probabilities: the densities of all classes, normalised over the classes.

        With one output there are two classes; otherwise there is a class per output.
        """
        classes = torch.arange(max(2, outputs.shape[-1]), device=outputs.device)
        log_p = [self.log_prob(outputs, c.expand(outputs.shape[-2])) for c in classes]
        return CategoricalMixture(torch.stack(log_p, -1).log_softmax(-1), log_weights)


class TargetLikelihood(Likelihood):
    """Likelihood of real targets or counts that is defined by a ``torch.distributions`` object.

    Subclasses define `distribution`. Density, moments, cdf, draws and predictions follow from it.
    If the distribution has no ``cdf`` in torch, the subclass defines that as well.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import torch
    >>> from skbayes_sym.models import TargetLikelihood
    >>> @dataclass(frozen=True, eq=False)
    ... class LaplaceNoise(TargetLikelihood):
    ...     scale: torch.Tensor
    ...     def distribution(self, outputs):
    ...         return torch.distributions.Laplace(outputs, self.scale, validate_args=False)
    >>> predictive = LaplaceNoise(torch.tensor(2.0)).predictive(torch.zeros(1, 3, 1))
    >>> predictive.std().flatten()
    tensor([2.8284, 2.8284, 2.8284])
    """

    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of targets (*B, N, T) given outputs (*B, N, O).

        Pass it ``validate_args=False``, since the outputs of a diverged chain aren't finite.
        """
        raise NotImplementedError(f"{type(self).__name__} needs `distribution(outputs)`.")

    @property
    def _support(self) -> Any:
        """Support of the distribution."""
        like = next(
            (v for v in vars(self).values() if isinstance(v, Tensor)),
            torch.zeros(0, dtype=torch.float32),
        )
        return self.distribution(like.new_zeros(1, self.n_outputs_per_target)).support

    @property
    def is_discrete(self) -> bool:
        """Whether targets are integers."""
        return bool(self._support.is_discrete)

    @property
    def scales_targets(self) -> bool:
        """Whether targets may be centred and scaled."""
        return self._support is constraints.real

    @derived_from("log_prob")
    def n_noise(self, n_outputs: int) -> int:
        """Return how many standard normal variables per row `expected_log_prob` needs."""
        if self.n_outputs_per_target == 1:
            return 0
        return n_outputs

    @derived_from("distribution")
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        return self.distribution(outputs).log_prob(y).sum(-1)  # type: ignore[no-untyped-call]

    @derived_from("distribution")
    def mean(self, outputs: Tensor) -> Tensor:
        """Return the expected targets."""
        return self.distribution(outputs).mean

    @derived_from("distribution")
    def variance(self, outputs: Tensor) -> Tensor:
        """Return the variances of the targets."""
        return self.distribution(outputs).variance

    @derived_from("distribution")
    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (*B, N, T)."""
        try:
            return self.distribution(outputs).cdf(y)  # type: ignore[no-untyped-call]
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{type(self).__name__}.cdf: torch has none for this distribution, but quantiles, "
                "intervals and draws need it. Define `cdf(y, outputs)`."
            ) from error

    @derived_from("distribution")
    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Sample one value per target by inverting the cdf."""
        middle = self.mean(outputs).nan_to_num()
        uniform = torch.as_tensor(rng.uniform(size=tuple(middle.shape))).to(middle)
        tiny = torch.finfo(middle.dtype).tiny
        return invert_cdf(
            lambda y: self.cdf(y, outputs),
            uniform.clamp_min(tiny),
            middle,
            is_discrete=self.is_discrete,
        )

    @derived_from("log_prob")
    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        """Return the distribution of new targets for S draws of the outputs, (S, N, O)."""
        return TargetMixture(self, outputs, log_weights)
