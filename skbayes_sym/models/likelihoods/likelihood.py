"""The likelihood: how outputs become the law of a target, and what follows from its density.

Derivatives, expectations under independent normal outputs (`ExpectedLogProb`), and over a row's
correlated outputs (`SiteLikelihood`), which a Gaussian site is made of.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from skbayes_sym.models.predictive_mixtures import (
    CategoricalMixture,
    Predictive,
    TargetMixture,
    invert_cdf,
)
from skbayes_sym.numerics.gaussian import gauss_hermite


class ExpectedLogProb(NamedTuple):
    """E[log p(y | f)] for ``f ~ N(mean, variance)`` with its derivatives, row by row."""

    value: Tensor  # (N,), nats
    d_mean: Tensor  # (N, O)
    d_variance: Tensor  # (N, O)
    d_params: Tensor  # (N, n_params)


class DataTerm(Protocol):
    """``sum_n weight_n log p(y_n | f_cn, params_c)`` of C chains, for targets prepared once.

    Outputs come as (C, O, N) and may be overwritten; ``params`` is (C, n_params).
    """

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        """(C,), nats."""

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """The value (C,) and its derivative (C, n_params); that by the outputs goes to ``out``."""


def collapse_equal_weights(weight: Tensor) -> Tensor:
    """Equal weights as one: they then multiply a number a chain instead of a row.

    On a GPU that isn't worth the wait for the answer.
    """
    if weight.device.type != "cpu":
        return weight
    return weight[:1] if bool((weight == weight[:1]).all()) else weight


def clone_if_inference(tensor: Tensor) -> Tensor:
    """Copy a tensor out of inference mode, so that a backward pass may keep it."""
    return tensor.clone() if tensor.is_inference() else tensor


def as_leaf(tensor: Tensor) -> Tensor:
    """Tensor at which a derivative can start: itself if it has a graph already."""
    return tensor if tensor.requires_grad else clone_if_inference(tensor).detach().requires_grad_()


@dataclass(frozen=True, eq=False)
class AutogradTerm:
    """A `DataTerm` of any likelihood."""

    likelihood: "Likelihood"
    y: Tensor  # (N, ...)
    weight: Tensor  # (N,)

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        likelihood = self.likelihood.at(params.unsqueeze(1))
        return (likelihood.log_prob(outputs.mT, self.y) * self.weight).sum(-1)

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [as_leaf(outputs.detach())]
            if self.likelihood.n_params:
                leaves.append(as_leaf(params.detach()))
            value = self.value(leaves[0], leaves[-1] if len(leaves) > 1 else params)
            slopes = torch.autograd.grad(value.sum(), leaves)
        out.copy_(slopes[0])
        return value.detach(), slopes[1] if len(slopes) > 1 else params


# Of expectations over one output. For a logistic likelihood the error is below 1e-8 nats per row
# for outputs of standard deviation up to 2, 2e-6 at 4 and 3e-3 at 10.
N_NODES = 64

# Enough of them for a logistic likelihood, by the largest standard deviation: value and slopes are
# exact to 1e-15, at a standard deviation of 1 to 2e-13.
_LOGISTIC = {0.1: 8, 0.3: 12, 0.5: 20, 0.7: 32, 1.0: 48}

# Of an output: a row of zeros has none, and the derivatives there would be 0 / 0.
_LEAST_VARIANCE = 1e-16


def expect_by_quadrature(
    value_and_slope: Callable[[Tensor], tuple[Tensor, Tensor]], mean: Tensor, variance: Tensor,
    param_slope: Callable[[Tensor], Tensor] | None = None, *, n_nodes: int = N_NODES,
) -> ExpectedLogProb:  # fmt: skip
    """Expectations over ``f ~ N(mean, variance)``, (N, 1) each, by Gauss-Hermite.

    The derivatives are those of the quadrature itself, so a fixed point of them is a stationary
    point of the value: ``d/dv E[l(m + s z)] = E[l'(m + s z) z] / (2 s)``.
    """
    nodes, weights = (t.to(mean) for t in gauss_hermite(n_nodes))
    sd = variance.clamp_min(_LEAST_VARIANCE).sqrt()
    f = mean + sd * nodes
    value, slope = value_and_slope(f)
    d_mean, d_sd = (slope @ torch.stack([weights, nodes * weights], -1)).split(1, dim=-1)
    d_params = mean.new_zeros(len(mean), 0)
    if param_slope is not None:
        d_params = (param_slope(f) @ weights).unsqueeze(-1)
    return ExpectedLogProb(value @ weights, d_mean, d_sd / (2.0 * sd), d_params)


def choose_n_nodes(variance: Tensor) -> int:
    """How many nodes the widest of these outputs asks for; most where asking would have to wait."""
    if variance.device.type != "cpu" or not variance.numel():
        return N_NODES
    widest = float(variance.detach().amax()) ** 0.5
    return next((n for limit, n in _LOGISTIC.items() if widest <= limit), N_NODES)


def expect_by_autograd(
    likelihood: "Likelihood", mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
) -> ExpectedLogProb:
    """The expectation of any likelihood with its derivatives.

    Where it asks for no noise each target depends on one output, and the expectation of a sum of
    such terms is exact at nodes that all outputs share: 64 evaluations. Else one draw,
    ``f = m + sqrt(v) noise`` (unbiased). Differentiable where its arguments are.
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
            rows = likelihood.params.expand(len(mean), -1)  # a copy of their own per row
            leaves.append(as_leaf(rows))
            likelihood = likelihood.at(leaves[-1])
        if integrates:
            # Kept between calls, of which the first may have been in inference mode.
            nodes, weights = (clone_if_inference(t).to(mean) for t in gauss_hermite(N_NODES))
            sd = variance.clamp_min(_LEAST_VARIANCE).sqrt()
            outputs = mean + sd * nodes[:, None, None]
            value = weights @ likelihood.log_prob(outputs, y)
        else:
            sd = variance.clamp_min(_LEAST_VARIANCE).sqrt()
            value = likelihood.log_prob(mean + sd * noise, y)
        slopes = torch.autograd.grad(value.sum(), leaves, create_graph=graph)
    d_params = slopes[2] if len(slopes) > 2 else mean.new_zeros(len(mean), 0)
    return ExpectedLogProb(value if graph else value.detach(), slopes[0], slopes[1], d_params)


# Numbers of a block of outputs at the points: 1 MB, a core's L2 cache.
CACHE_ELEMENTS = 1 << 17


class SiteTerms(NamedTuple):
    """``E[l]``, ``E[l']`` and ``-E[l'']`` of ``l(f) = log p(y | f)``, row by row."""

    value: Tensor  # (N,), nats
    gradient: Tensor  # (N, C)
    curvature: Tensor  # (N, C, C)


class _Expectation(torch.autograd.Function):
    """``E[l]`` with the derivatives that come with it: nothing is recorded on the way."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, covariance: Tensor, terms: SiteTerms) -> Tensor:
        ctx.save_for_backward(terms.gradient, terms.curvature)
        return terms.value

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        gradient, curvature = ctx.saved_tensors
        slope = slopes[0].unsqueeze(-1)
        return slope * gradient, -0.5 * slope.unsqueeze(-1) * curvature, None


class SiteLikelihood:
    """Expectations of a row's log likelihood over its C outputs ``f ~ N(mean, covariance)``."""

    @property
    def params(self) -> Tensor:
        """Log scales of the targets that may be learned, none by default."""
        return torch.zeros(0, dtype=torch.float64)

    @property
    def noise_scale(self) -> Tensor:
        """Scale of additive noise (1,), learned or not; empty where there is none."""
        return torch.zeros(0, dtype=torch.float64)

    def at(self, params: Tensor) -> "SiteLikelihood":
        return self

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        """``E[l]`` alone, (N,) nats, differentiable in the moments."""
        with torch.no_grad():
            terms = self(mean.detach(), covariance.detach(), y)
        return cast(Tensor, _Expectation.apply(mean, covariance, terms))

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        """(N, C), (N, C, C) and targets -> SiteTerms."""
        raise NotImplementedError

    def outputs(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """Outputs at the points of the rule, (S, N, C), up to a shift of all outputs of a row."""
        raise NotImplementedError


@dataclass(frozen=True)
class ScalarSites(SiteLikelihood):
    """Sites of one output per row, by the likelihood's own expectations.

    Bonnet's and Price's theorems turn derivatives by mean and variance into ``E[l']`` and
    ``E[l''] / 2``.
    """

    likelihood: "Likelihood"
    learn: bool = True  # whether the likelihood's scale is a free parameter

    @property
    def params(self) -> Tensor:
        return self.likelihood.params if self.learn else self.likelihood.params[:0]

    @property
    def noise_scale(self) -> Tensor:
        return self.likelihood.noise_scale

    def at(self, params: Tensor) -> "ScalarSites":
        return replace(self, likelihood=self.likelihood.at(params)) if self.learn else self

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        if self.params.numel():
            return torch.cat([e.value for e in self._blocks(mean, covariance, y)])
        return super().value(mean, covariance, y)

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        blocks = list(self._blocks(mean, covariance, y))
        value, d_mean, d_variance, _ = (torch.cat(t) for t in zip(*blocks, strict=True))
        return SiteTerms(value, d_mean, -2.0 * d_variance.unsqueeze(-1))

    def _blocks(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Iterator[ExpectedLogProb]:
        """Expectations in rows that fit the cache with all nodes of a quadrature."""
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
    """Conditional density of targets given outputs, with parameters of its own.

    Every method asks only for this. Of one's own one writes `log_prob` and `predictive` (or, for
    classes, `log_prob` of a `ClassLikelihood`; for real targets and counts, the law of a
    `TargetLikelihood`) and inherits the rest, by autograd and quadrature. What a subclass with a
    density of its own inherits was made of no other's: neither `kind` nor derivatives,
    expectations or predictions.

    ``n_params`` free parameters, logarithms of scales in the unit of the targets, are learned
    beside the network's; `at` returns the likelihood at their values and `params` reads them, so
    the objects themselves never change. Subclasses are frozen dataclasses; `to` moves their Tensor
    fields. With free parameters they bring `params` and `at`.
    """

    kind: ClassVar[Kind] = "other"  # for methods that have a faster or exact form for a law
    n_outputs_per_target: ClassVar[int] = 1  # outputs of the network for every target or class

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
        return self.params.shape[-1]

    @property
    def noise_scale(self) -> Tensor:
        """Scale of additive noise (O,), the standard deviation if it is normal; else empty.

        By default the free parameters' exponentials.
        """
        return self.params.exp()

    def n_outputs(self, n_targets: int) -> int:
        """Outputs that the network has for the targets, or classes; ValueError if it can't be."""
        return n_targets * self.n_outputs_per_target

    @property
    def scales_targets(self) -> bool:
        """Whether targets may be centred and scaled: not so for counts and classes."""
        return False

    def at(self, params: Tensor) -> Self:
        """The likelihood at parameters (..., n_params) that broadcast with (*B, N) of the outputs.

        So (C, 1, n_params) gives C chains parameters of their own.
        """
        if params.shape[-1]:
            raise NotImplementedError(
                f"{type(self).__name__} has free parameters (`params`), so it needs "
                "`at(params)`: the same likelihood at other values of them."
            )
        return self

    def to(self, like: Tensor) -> Self:
        """Move constants to the dtype and device of ``like``."""
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
        """Whether targets are whole numbers."""
        return False

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(*B, N, O) and the N rows' targets -> (*B, N), nats, every constant included."""
        raise NotImplementedError(f"{type(self).__name__} needs `log_prob(outputs, y)`.")

    @derived_from("log_prob")
    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        """Law of new targets for S draws of the outputs, (S, N, O), with weights (S,)."""
        raise NotImplementedError(
            f"{type(self).__name__} can't predict: it needs `predictive(outputs, log_weights)`."
        )

    @derived_from("log_prob")
    def n_noise(self, n_outputs: int) -> int:
        """Standard normals per row that `expected_log_prob` takes: 0 where it integrates.

        By default it integrates over one output; nothing is known of how several enter.
        """
        return 0 if n_outputs == 1 else n_outputs

    @derived_from("log_prob")
    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Expectation over independent outputs (N, O), exact, by quadrature or by one draw.

        ``noise`` (N, n_noise(O)) makes the draw ``f = mean + sqrt(variance) noise``; likelihoods
        that integrate don't look at it.
        """
        return expect_by_autograd(self, mean, variance, y, noise)

    @derived_from("log_prob")
    def approximate_expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor
    ) -> ExpectedLogProb:
        """`expected_log_prob` of one output, or something cheaper in its place.

        A lower bound, or a rule of few nodes; ``d_variance`` is what a Gaussian site needs.
        """
        return self.expected_log_prob(mean, variance, y, mean.new_empty(len(mean), 0))

    @derived_from("log_prob")
    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        r"""Columns r_k of a root of ``-d^2 log p / d outputs^2 = sum_k r_k r_k'``, (O, N, O).

        Eigenvalues below zero, where the density isn't log-concave, count as zero, so the curvature
        used is at least the true one. Cost: O + 1 backward passes and an eigendecomposition per
        row.

        Eigenvectors have no derivative where eigenvalues are equal, but a root has: with
        ``R = V diag(sqrt(lambda))`` held fixed, :math:`R + (dH) V diag(1 / sqrt(lambda)) / 2`
        squares to ``H + dH`` up to second order.
        """
        wanted = outputs.requires_grad or self.params.requires_grad
        graph = bool(torch.is_grad_enabled() and wanted)  # somebody differentiates what is made
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
        # Nearly flat directions count as flat: the square roots there have no slope.
        bends = value > 1e-10 * value.abs().amax(-1, keepdim=True)
        roots = torch.where(bends, value, 1.0).sqrt()
        root = vectors * torch.where(bends, roots, 0.0).unsqueeze(-2)
        if graph:
            inverse = vectors * torch.where(bends, 1.0 / roots, 0.0).unsqueeze(-2)
            root = root + 0.5 * (hessian - hessian.detach()) @ inverse
        return root.movedim(-1, 0)

    @derived_from("log_prob")
    def fit_constant_outputs(
        self, y: npt.NDArray[Any], weight: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64] | None:
        """Outputs (O,) that fit the targets best without features; None where unknown."""
        return None

    @derived_from("log_prob")
    def site_likelihood(
        self, n_outputs: int, *, seed: int, learn: bool = True
    ) -> SiteLikelihood | None:
        """Rule of expectations over a row's correlated outputs; None where there is none.

        ``learn``: whether scales of the likelihood are free; ``seed``: of the points of a rule.
        """
        return ScalarSites(self, learn) if n_outputs == 1 else None

    @derived_from("log_prob")
    def data_term(self, y: Tensor, weight: Tensor, n_outputs: int) -> DataTerm:
        """The log likelihood of targets that stay, as samplers evaluate it."""
        return AutogradTerm(self, y, weight)


class ClassLikelihood(Likelihood):
    """A likelihood of classes by its density: predictions follow from that of every class."""

    @derived_from("log_prob")
    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        """Densities of all classes, normalised over them: one a class, two of one output."""
        labels = torch.arange(max(2, outputs.shape[-1]), device=outputs.device)
        log_p = [self.log_prob(outputs, label.expand(outputs.shape[-2])) for label in labels]
        return CategoricalMixture(torch.stack(log_p, -1).log_softmax(-1), log_weights)


class TargetLikelihood(Likelihood):
    """A likelihood of real targets or counts by its ``torch.distributions`` law.

    Subclasses bring `distribution`; density, moments, cdf, draws and predictions follow. Of laws
    without a `cdf` in torch they bring that too.

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
    >>> law = LaplaceNoise(torch.tensor(2.0)).predictive(torch.zeros(1, 3, 1))
    >>> law.std().flatten()
    tensor([2.8284, 2.8284, 2.8284])
    """

    def distribution(self, outputs: Tensor) -> Distribution:
        """Law of T independent targets given outputs (*B, N, O), batch shape (*B, N, T).

        Give it ``validate_args=False``: outputs of a lost chain aren't finite.
        """
        raise NotImplementedError(f"{type(self).__name__} needs `distribution(outputs)`.")

    @property
    def _support(self) -> Any:
        like = next(
            (v for v in vars(self).values() if isinstance(v, Tensor)),
            torch.zeros(0, dtype=torch.float32),
        )
        return self.distribution(like.new_zeros(1, self.n_outputs_per_target)).support

    @property
    def is_discrete(self) -> bool:
        return bool(self._support.is_discrete)

    @property
    def scales_targets(self) -> bool:
        return self._support is constraints.real

    @derived_from("log_prob")
    def n_noise(self, n_outputs: int) -> int:
        return 0 if self.n_outputs_per_target == 1 else n_outputs

    @derived_from("distribution")
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.distribution(outputs).log_prob(y).sum(-1)  # type: ignore[no-untyped-call]

    @derived_from("distribution")
    def mean(self, outputs: Tensor) -> Tensor:
        return self.distribution(outputs).mean

    @derived_from("distribution")
    def variance(self, outputs: Tensor) -> Tensor:
        return self.distribution(outputs).variance

    @derived_from("distribution")
    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        """P(target <= y), each target by itself, (*B, N, T)."""
        try:
            return self.distribution(outputs).cdf(y)  # type: ignore[no-untyped-call]
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{type(self).__name__}.cdf: torch has none for this law; quantiles, intervals and "
                "draws need it. Define `cdf(y, outputs)`."
            ) from error

    @derived_from("distribution")
    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Draw one value per target, by inverting the cdf."""
        middle = self.mean(outputs).nan_to_num()
        uniform = torch.as_tensor(rng.uniform(size=tuple(middle.shape))).to(middle)
        tiny = torch.finfo(middle.dtype).tiny
        value = invert_cdf(lambda y: self.cdf(y, outputs), uniform.clamp_min(tiny), middle)
        return value.round() if self.is_discrete else value

    @derived_from("log_prob")
    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        return TargetMixture(self, outputs, log_weights)
