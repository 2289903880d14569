"""Predictive distributions of entries, in the units of the matrix."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.utils import Bunch
from torch import Tensor

from skbayes_sym.base.device import one_thread
from skbayes_sym.base.distributions import Components, PredictiveDistribution
from skbayes_sym.base.rows import Array
from skbayes_sym.factorization.entry_predictor import DISTRIBUTION_BLOCK, FactorPredictor
from skbayes_sym.factorization.entry_sites import is_normal
from skbayes_sym.models.predictive_mixtures import (
    CategoricalMixture,
    TargetPredictive,
    Uncertainty,
    crps,
)
from skbayes_sym.numerics.arguments import draw_seed
from skbayes_sym.numerics.random import generator_from


@dataclass(frozen=True, eq=False)
class OrdinalMixture(TargetPredictive):
    """Distribution of numbers that are labels in their order, such as stars."""

    of_labels: CategoricalMixture
    labels: Tensor  # (C,), increasing

    @property
    def log_weights(self) -> Tensor | None:  # type: ignore[override]
        return self.of_labels.log_weights

    @property
    def _like(self) -> Tensor:
        return self.of_labels.log_probs

    @property
    def means(self) -> Tensor:
        return (self.of_labels.means @ self.labels).unsqueeze(-1)

    @property
    def scales(self) -> Tensor:
        squares = (self.of_labels.means @ self.labels.square()).unsqueeze(-1)
        return (squares - self.means.square()).clamp(min=0.0).sqrt()

    @cached_property
    def _proba(self) -> Tensor:
        return self.of_labels.mean()

    def mean(self) -> Tensor:
        return (self._proba @ self.labels).unsqueeze(-1)

    def std(self) -> Tensor:
        squares = (self._proba @ self.labels.square()).unsqueeze(-1)
        return (squares - self.mean().square()).clamp(min=0.0).sqrt()

    def uncertainty(self) -> Uncertainty:
        """Variances (N, 1): of the expected label, and around it."""
        total = self.std().square()
        aleatoric = (self.broadcast_weights * self.scales.square()).sum(0)
        return Uncertainty(total, total - aleatoric, aleatoric)

    def cdf(self, y: Tensor) -> Tensor:
        return (self._proba * (self.labels <= y)).sum(-1, keepdim=True)

    def quantile(self, probability: float) -> Tensor:
        below = self._proba.cumsum(-1) < probability * (1.0 - 1e-12)
        return self.labels[below.sum(-1, keepdim=True).clamp(max=len(self.labels) - 1)]

    def crps(self, y: Tensor) -> Tensor:
        """``E|Y - y| - E|Y - Y'| / 2``, (N, 1); ``y`` (N, 1) are any numbers."""
        below = self._proba.cumsum(-1)[:, :-1]
        spread = (below * (1.0 - below)) @ self.labels.diff()
        distance = (self._proba * (self.labels - y).abs()).sum(-1)
        return (distance - spread).unsqueeze(-1)

    def _sample(self, chosen: Tensor, rng: np.random.Generator) -> Tensor:
        return self.labels[self.of_labels._sample(chosen, rng)].unsqueeze(-1)


@dataclass(frozen=True)
class EntryPredictive(PredictiveDistribution):
    """Distribution of new observations of entries; of labels, of the numbers that they are.

    ``log_density``: of places (E, 2) and their values, as the model knows them; nats.
    """

    predictor: FactorPredictor
    x: Tensor  # (E, 2), places
    location: float
    scale: float
    labels: Array | None
    log_density: Callable[[Tensor, Any], Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.x),)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return self.labels is not None or self.predictor.likelihood.is_discrete

    def _take(self, rows: Array) -> "EntryPredictive":
        return replace(self, x=self.x[torch.as_tensor(rows)])

    @property
    def has_normal_components(self) -> bool:  # type: ignore[override]
        return is_normal(self.predictor.likelihood)

    def __repr__(self) -> str:
        return f"<{self.predictor.likelihood.kind} law of {len(self.x):,} entries>"

    def _in_units(self, distribution: Any) -> TargetPredictive:
        if self.labels is not None:
            return OrdinalMixture(distribution, torch.as_tensor(self.labels, dtype=torch.float64))
        units = torch.tensor([[self.location], [self.scale]], dtype=torch.float64)
        moved: TargetPredictive = distribution.rescale(*units)
        return moved

    def _each(self, ask: Callable[..., Tensor], *arrays: Array) -> Array:
        """Evaluate a function of the distribution block by block, (E, ...)."""
        targets = [torch.tensor(np.array(a, dtype=float)) for a in arrays]
        blocks = zip(*(t.split(DISTRIBUTION_BLOCK) for t in (self.x, *targets)), strict=True)
        with one_thread(), torch.no_grad():
            parts = [ask(self._in_units(self.predictor.distribution(x)), *y) for x, *y in blocks]
        return torch.cat(parts).numpy() if parts else np.zeros(0)

    def _of_grid(self, y: Array, ask: Callable[[Any, Tensor], Tensor]) -> Array:
        """Answers (G, E, 1) for a grid of values (G, E, 1)."""

        def of_columns(distribution: Any, values: Tensor) -> Tensor:
            return torch.cat(
                [ask(distribution, values[:, k : k + 1]) for k in range(values.shape[1])], 1
            )

        return self._each(of_columns, y[..., 0].T).T.reshape(y.shape)

    def mean(self) -> Array:
        with one_thread(), torch.no_grad():
            if self.predictor.likelihood.scales_targets:  # cheaper than the law
                return (self.predictor.mean(self.x)[:, 0] * self.scale + self.location).numpy()
        return self._each(lambda distribution: distribution.mean()[:, 0])

    def std(self) -> Array:
        return self._each(lambda distribution: distribution.std()[:, 0])

    def moments(self) -> Array:
        """`mean` and `std` by one pass, (2, n_entries)."""
        return self._each(
            lambda distribution: torch.cat([distribution.mean(), distribution.std()], dim=1)
        ).T

    def _quantiles(self, levels: Array) -> Array:
        return self._each(
            lambda distribution: torch.cat(
                [distribution.quantile(p) for p in levels.tolist()], dim=1
            )
        )

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draws with their noise, (n_entries, n); entries that share a row or column depend."""
        noise = np.random.default_rng(draw_seed(random_state))
        return np.asarray(self._drawn(n, random_state).sample_per_draw(noise)[..., 0].numpy().T)

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draws without noise, (n_entries, n): expected entries given the factors of each draw.

        Factors are drawn once a draw, so entries that share a row or a column are dependent as they
        are in the posterior: what Thompson sampling and the probability of being best need.
        """
        return np.asarray(self._drawn(n, random_state).means[..., 0].numpy().T)

    def _drawn(self, n: int, random_state: Any) -> TargetPredictive:
        generator = generator_from(draw_seed(random_state), torch.device("cpu"))
        with one_thread(), torch.no_grad():
            return self._in_units(
                self.predictor.sample_conditionals(self.x, n, generator=generator)
            )

    def _log_prob(self, y: Array) -> Array:
        """Log density of new observations, as given, nats; of labels their log probability."""
        values = y[..., 0]
        if self.labels is None:
            return np.stack([self.log_density(self.x, of_entries) for of_entries in values])
        known = np.isin(values, self.labels)
        values = np.where(known, values, self.labels[0])
        density = [self.log_density(self.x, of_entries) for of_entries in values]
        return np.where(known, np.stack(density), -np.inf)

    def proba(self) -> Array:
        """Probabilities of ordinal labels, or of two classes, (n_entries, n_classes)."""
        if self.labels is None:
            raise TypeError("labels have probabilities with likelihood='ordinal' only.")
        return self._each(lambda distribution: distribution.of_labels.mean())

    def _cdf(self, y: Array) -> Array:
        return self._of_grid(y, lambda distribution, values: distribution.cdf(values))

    def _crps(self, y: Array) -> Array:
        if self.labels is not None:
            return self._of_grid(y, lambda distribution, values: distribution.crps(values))
        return self._of_grid(y, crps)

    def uncertainty(self) -> Bunch:
        parts = self._each(
            lambda distribution: torch.cat(list(distribution.uncertainty()), dim=1)
        ).T
        return Bunch(**dict(zip(("total", "epistemic", "aleatoric"), parts, strict=True)))

    def components(self) -> Components:
        weights = self._in_units(self.predictor.distribution(self.x[:1])).weights.numpy()
        loc, scale = (
            self._each(lambda distribution, name=name: getattr(distribution, name)[..., 0].T).T
            for name in ("means", "scales")
        )
        return Components(weights, loc, scale)
