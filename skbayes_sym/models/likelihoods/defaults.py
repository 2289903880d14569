"""The members of a likelihood that follow from its density: what one's own inherits."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from skbayes_sym.models.likelihoods import derivatives
from skbayes_sym.models.likelihoods.base import DataTerm, ExpectedLogProb
from skbayes_sym.models.likelihoods.derivatives import AutogradTerm
from skbayes_sym.models.likelihoods.expectations import by_autograd
from skbayes_sym.models.predictive import Predictive, TargetMixture, invert_cdf


class BaseLikelihood:
    """Everything but `log_prob` and `predictive`, by autograd and quadrature.

    Subclasses are frozen dataclasses; `to` moves their Tensor fields. With free parameters they
    bring `params` and `at` too.
    """

    @property
    def params(self) -> Tensor:
        """None to learn."""
        return torch.zeros(0, dtype=torch.float64)

    @property
    def n_params(self) -> int:
        return self.params.shape[-1]

    @property
    def noise_scale(self) -> Tensor:
        """The free parameters' exponentials."""
        return self.params.exp()

    @property
    def n_outputs_per_target(self) -> int:
        return 1

    def n_outputs(self, n_targets: int) -> int:
        return n_targets * self.n_outputs_per_target

    @property
    def scales_targets(self) -> bool:
        return False

    def at(self, params: Tensor) -> Self:
        if params.shape[-1]:
            raise NotImplementedError(
                f"{type(self).__name__} has free parameters (`params`), so it needs "
                "`at(params)`: the same likelihood at other values of them."
            )
        return self

    def to(self, like: Tensor) -> Self:
        if not is_dataclass(self):
            return self
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {
            name: value.to(like)
            for name, value in values.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        return replace(self, **moved) if moved else self  # type: ignore[type-var]

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} needs `log_prob(outputs, y)`.")

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        raise NotImplementedError(
            f"{type(self).__name__} can't predict: it needs `predictive(outputs, log_weights)`."
        )

    def n_noise(self, n_outputs: int) -> int:
        """None for one output; nothing is known of how several enter."""
        return 0 if n_outputs == 1 else n_outputs

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        return by_autograd(self, mean, variance, y, noise)

    def bound(self, mean: Tensor, variance: Tensor, y: Tensor) -> ExpectedLogProb:
        return self.expected_log_prob(mean, variance, y, mean.new_empty(len(mean), 0))

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        return derivatives.score(self, outputs, y)

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        return derivatives.hessian_root(self, outputs, y)

    def given(self, y: Tensor, weight: Tensor, n_outputs: int) -> DataTerm:
        return AutogradTerm(self, y, weight)


class TargetLikelihood(BaseLikelihood):
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
        """One value per target, by inverting the cdf."""
        middle = self.mean(outputs).nan_to_num()
        uniform = torch.as_tensor(rng.uniform(size=tuple(middle.shape))).to(middle)
        tiny = torch.finfo(middle.dtype).tiny
        value = invert_cdf(lambda y: self.cdf(y, outputs), uniform.clamp_min(tiny), middle)
        return value.round() if self.is_discrete else value

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        return TargetMixture(self, outputs, log_weights)
