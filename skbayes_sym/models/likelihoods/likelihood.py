"""The likelihood: how outputs of a network become the distribution of a target."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from skbayes_sym.models.likelihoods.expectations import (
    AutogradTerm,
    DataTerm,
    ExpectedLogProb,
    by_autograd,
    kept,
    leaf,
)
from skbayes_sym.models.likelihoods.site_rules import ScalarSites, SiteLikelihood
from skbayes_sym.models.predictive_mixtures import (
    CategoricalMixture,
    Predictive,
    TargetMixture,
    invert_cdf,
)

Kind = Literal[
    "normal", "heteroscedastic", "student-t", "counts", "softmax", "bernoulli", "ordinal", "other"
]

# Members that are made of the density, and those that are made of the ``torch.distributions`` law.
_OF_DENSITY = (
    "kind", "predictive", "n_noise", "expected_log_prob", "bound", "hessian_root",
    "constant_outputs", "sites", "given",
)  # fmt: skip
_OF_LAW = (*_OF_DENSITY, "log_prob", "mean", "variance", "cdf", "sample")


# Curvatures below this share of a row's largest count as none: their square roots have no slope.
_FLAT = 1e-10


class Likelihood:
    """Conditional density of targets given outputs, with parameters of its own.

    Every method asks only for this. Of one's own one writes `log_prob` and `predictive` (or, for
    classes, `log_prob` of a `LabelLikelihood`; for real targets and counts, the law of a
    `TargetLikelihood`) and inherits the rest, by autograd and quadrature. What a subclass with a
    density of its own inherits was made of no other's: neither `kind` nor derivatives,
    expectations or predictions.

    ``n_params`` free parameters, logarithms of scales in the unit of the targets, are learned
    beside the network's; `at` returns the likelihood at their values and `params` reads them, so
    the objects themselves never change. Subclasses are frozen dataclasses; `to` moves their Tensor
    fields. With free parameters they bring `params` and `at`.
    """

    kind: ClassVar[Kind] = "other"  # for methods that have a faster or exact form for a law

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        brought = vars(cls)
        if cls.__module__ == __name__ or not {"log_prob", "distribution"} & brought.keys():
            return
        generic = [vars(base) for base in cls.__mro__ if base.__module__ == __name__]
        for name in _OF_LAW if "distribution" in brought else _OF_DENSITY:
            if name not in brought and (member := _first(generic, name)) is not None:
                setattr(cls, name, member)

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

    @property
    def n_outputs_per_target(self) -> int:
        """Outputs that the network has for every target (or class)."""
        return 1

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

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        """Law of new targets for S draws of the outputs, (S, N, O), with weights (S,)."""
        raise NotImplementedError(
            f"{type(self).__name__} can't predict: it needs `predictive(outputs, log_weights)`."
        )

    def n_noise(self, n_outputs: int) -> int:
        """Standard normals per row that `expected_log_prob` takes: 0 where it integrates.

        By default it integrates over one output; nothing is known of how several enter.
        """
        return 0 if n_outputs == 1 else n_outputs

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Expectation over independent outputs (N, O), exact, by quadrature or by one draw.

        ``noise`` (N, n_noise(O)) makes the draw ``f = mean + sqrt(variance) noise``; likelihoods
        that integrate don't look at it.
        """
        return by_autograd(self, mean, variance, y, noise)

    def bound(self, mean: Tensor, variance: Tensor, y: Tensor) -> ExpectedLogProb:
        """`expected_log_prob` of one output, or something cheaper in its place.

        A lower bound, or a rule of few nodes; ``d_variance`` is what a Gaussian site needs.
        """
        return self.expected_log_prob(mean, variance, y, mean.new_empty(len(mean), 0))

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        r"""Columns r_k of a root of ``-d^2 log p / d outputs^2 = sum_k r_k r_k'``, (O, N, O).

        Eigenvalues below zero, where the density isn't log-concave, count as zero, so the curvature
        used is at least the true one. Cost: O + 1 backward passes and an eigendecomposition per
        row.

        Eigenvectors have no derivative where eigenvalues are equal, but a root has: with
        ``R = V diag(sqrt(lambda))`` held fixed, :math:`R + (dH) V diag(1 / sqrt(lambda)) / 2`
        squares to ``H + dH`` up to second order.
        """
        graph = self._has_graph(outputs)
        with torch.inference_mode(False), torch.enable_grad():
            outputs, y = leaf(outputs), kept(y)
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
        bends = value > _FLAT * value.abs().amax(-1, keepdim=True)
        roots = torch.where(bends, value, 1.0).sqrt()
        root = vectors * torch.where(bends, roots, 0.0).unsqueeze(-2)
        if graph:
            inverse = vectors * torch.where(bends, 1.0 / roots, 0.0).unsqueeze(-2)
            root = root + 0.5 * (hessian - hessian.detach()) @ inverse
        return root.movedim(-1, 0)

    def _has_graph(self, outputs: Tensor) -> bool:
        """Whether somebody wants to differentiate what is made of these."""
        wanted = outputs.requires_grad or self.params.requires_grad
        return bool(torch.is_grad_enabled() and wanted)

    def constant_outputs(
        self, y: npt.NDArray[Any], weight: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64] | None:
        """Outputs (O,) that fit the targets best without features; None where unknown."""
        return None

    def sites(self, n_outputs: int, *, seed: int, learn: bool = True) -> SiteLikelihood | None:
        """Rule of expectations over a row's correlated outputs; None where there is none.

        ``learn``: whether scales of the likelihood are free; ``seed``: of the points of a rule.
        """
        return ScalarSites(self, learn) if n_outputs == 1 else None

    def given(self, y: Tensor, weight: Tensor, n_outputs: int) -> DataTerm:
        """The log likelihood of targets that stay, as samplers evaluate it."""
        return AutogradTerm(self, y, weight)


def _first(namespaces: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next((members[name] for members in namespaces if name in members), None)


class LabelLikelihood(Likelihood):
    """A likelihood of classes by its density: predictions follow from that of every class."""

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
        like = next((v for v in vars(self).values() if isinstance(v, Tensor)), torch.zeros(0))
        return self.distribution(like.new_zeros(1, self.n_outputs_per_target)).support

    @property
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""
        return bool(self._support.is_discrete)

    @property
    def scales_targets(self) -> bool:
        return self._support is constraints.real

    def n_noise(self, n_outputs: int) -> int:
        return 0 if self.n_outputs_per_target == 1 else n_outputs

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.distribution(outputs).log_prob(y).sum(-1)  # type: ignore[no-untyped-call]

    def mean(self, outputs: Tensor) -> Tensor:
        return self.distribution(outputs).mean

    def variance(self, outputs: Tensor) -> Tensor:
        return self.distribution(outputs).variance

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        """P(target <= y), each target by itself, (*B, N, T)."""
        try:
            return self.distribution(outputs).cdf(y)  # type: ignore[no-untyped-call]
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{type(self).__name__}.cdf: torch has none for this law; quantiles, intervals and "
                "draws need it. Define `cdf(y, outputs)`."
            ) from error

    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Draw one value per target, by inverting the cdf."""
        middle = self.mean(outputs).nan_to_num()
        uniform = torch.as_tensor(rng.uniform(size=tuple(middle.shape))).to(middle)
        tiny = torch.finfo(middle.dtype).tiny
        value = invert_cdf(lambda y: self.cdf(y, outputs), uniform.clamp_min(tiny), middle)
        return value.round() if self.is_discrete else value

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        return TargetMixture(self, outputs, log_weights)
