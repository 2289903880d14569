"""The parts of a pool as one predictor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, TypeVar

import torch
from torch import Tensor

from skbayes_sym.inference.pooling.noise_shape import NoiseShape
from skbayes_sym.inference.predictor import BasePredictor, Predictor
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture

Law = TypeVar("Law", NormalMixture, CategoricalMixture)


@dataclass(frozen=True, eq=False)
class PooledPredictor(BasePredictor):
    """Mixture of parts; parts of weight zero are never asked, and may have no density."""

    parts: Mapping[str, Predictor]
    weights: Mapping[str, float]  # by the names of the parts, adding up to 1
    noise: NoiseShape | None = None  # how the noise changes with the level of the mixture's mean

    def law(self, x: Tensor) -> Any:
        """Distribution of targets at rows (N, ...)."""
        law = self._one_noise(x)
        return law if self.noise is None else self.noise.shaped(law)

    def _one_noise(self, x: Tensor) -> Any:
        counting = [name for name in self.parts if self.weights[name]]
        laws: list[Any] = [self.parts[name].law(x) for name in counting]
        return mixture(laws, [self.weights[name] for name in counting])

    def mean(self, x: Tensor) -> Tensor:
        means = [w * self.parts[name].mean(x) for name, w in self.weights.items() if w]
        return torch.stack(means).sum(0)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> NormalMixture:
        """Distribution of targets given each of ``n`` joint draws of functions, of chosen parts."""
        weights = torch.tensor([self.weights[name] for name in self.parts], dtype=torch.float64)
        which = torch.multinomial(weights, n, replacement=True, generator=generator)
        parts, counts = list(self.parts.values()), which.bincount().tolist()
        laws: list[Any] = [
            parts[k].drawn(x, m, generator=generator) for k, m in enumerate(counts) if m
        ]
        order = which.argsort(stable=True).argsort().to(x.device)
        loc = torch.cat([law.loc for law in laws])[order]
        noise = torch.cat([law.noise_variance.expand_as(law.loc) for law in laws])[order]
        law = NormalMixture(loc, torch.zeros_like(loc[:, :1]), noise)
        return law if self.noise is None else self.noise.drawn(law, self.mean(x))


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
