"""The parts of a pool as one predictor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, TypeVar

import torch
from torch import Tensor

from skbayes_sym.inference.pooling.noise_shape import NoiseShape
from skbayes_sym.inference.predictor import BasePredictor, Predictor
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture
from skbayes_sym.numerics.random import generator_from

Law = TypeVar("Law", NormalMixture, CategoricalMixture)


@dataclass(frozen=True, eq=False)
class PooledPredictor(BasePredictor):
    """Mixture of parts; parts of weight zero are never asked, and may have no density."""

    parts: Mapping[str, Predictor]
    weights: Mapping[str, float]  # by the names of the parts, adding up to 1

    def law(self, x: Tensor) -> Any:
        """Distribution of targets at rows (N, ...)."""
        counting = [name for name in self.parts if self.weights[name]]
        laws: list[Any] = [self.parts[name].law(x) for name in counting]
        return mixture(laws, [self.weights[name] for name in counting])

    def mean(self, x: Tensor) -> Tensor:
        means = [w * self.parts[name].mean(x) for name, w in self.weights.items() if w]
        return torch.stack(means).sum(0)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> Any:
        """Distribution of targets given each of ``n`` joint draws of functions, of chosen parts."""
        weights = torch.tensor([self.weights[name] for name in self.parts], dtype=torch.float64)
        which = torch.multinomial(weights, n, replacement=True, generator=generator)
        parts, counts = list(self.parts.values()), which.bincount().tolist()
        laws: list[Any] = [
            parts[k].drawn(x, m, generator=generator) for k, m in enumerate(counts) if m
        ]
        order = which.argsort(stable=True).argsort().to(x.device)
        if isinstance(laws[0], CategoricalMixture):
            return CategoricalMixture(torch.cat([law.log_probs for law in laws])[order])
        loc = torch.cat([law.loc for law in laws])[order]
        noise = torch.cat([law.noise_variance.expand_as(law.loc) for law in laws])[order]
        return NormalMixture(loc, torch.zeros_like(loc[:, :1]), noise)


@dataclass(frozen=True, eq=False)
class ShapedPredictor(BasePredictor):
    """Numbers with noise by left-out rows, nowhere narrower than ``floor``."""

    base: Predictor
    noise: NoiseShape | None
    floor: float = 0.0

    def law(self, x: Tensor) -> NormalMixture:
        law: Any = self.base.law(x)
        return self.shaped(law)

    def shaped(self, law: NormalMixture) -> NormalMixture:
        """A law of the base with this noise."""
        law = law if self.noise is None else self.noise.shaped(law)
        return replace(law, noise_variance=law.noise_variance.clamp_min(self.floor**2))

    def mean(self, x: Tensor) -> Tensor:
        return self.base.mean(x)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> NormalMixture:
        """Distribution given each of ``n`` functions: every row's noise is in one of its states."""
        # States have a stream of their own: functions don't depend on the rows that are asked for.
        stream = generator_from(int(torch.randint(2**62, (), generator=generator)))
        law: Any = self.base.drawn(x, n, generator=generator)
        noise = law.noise_variance
        if self.noise is not None:
            (narrow, wide), (_, share) = self.noise.states
            is_wide = torch.rand((n, len(x), 1), generator=stream) < float(share)
            state = torch.where(is_wide, wide, narrow).to(noise)
            noise = noise * self.noise.factor(self.base.mean(x)).square() * state
        return replace(law, noise_variance=noise.clamp_min(self.floor**2))


def mixture(laws: Sequence[Law], shares: Sequence[float]) -> Law:
    """Mixture of mixtures of one kind in the proportions ``shares``, whose sum doesn't matter."""
    pairs = zip(laws, shares, strict=True)
    log_weights = torch.cat([_log_weights(law) + log(p / sum(shares)) for law, p in pairs])
    every: Sequence[Any] = laws
    whole: Any
    if isinstance(laws[0], CategoricalMixture):
        whole = CategoricalMixture(torch.cat([law.log_probs for law in every]), log_weights)
    else:
        covariances = [law.covariance for law in every]
        if any(covariance is None for covariance in covariances):
            covariances = [_covariance(law) for law in every]
        whole = NormalMixture(
            torch.cat([law.loc for law in every]),
            torch.cat([law.variance.expand_as(law.loc) for law in every]),
            torch.cat([law.noise_variance.expand_as(law.loc) for law in every]),
            log_weights,
            torch.cat(covariances),
        )
    return whole  # type: ignore[no-any-return]


def _log_weights(law: NormalMixture | CategoricalMixture) -> Tensor:
    if law.log_weights is not None:
        return law.log_weights
    like = law.loc if isinstance(law, NormalMixture) else law.log_probs
    return like.new_full((len(like),), -log(len(like)))


def _covariance(law: NormalMixture) -> Tensor:
    if law.covariance is not None:
        return law.covariance
    return torch.diag_embed(law.variance.expand_as(law.loc))
