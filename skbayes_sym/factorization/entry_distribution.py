"""Predictive distributions of entries, in the units of the matrix."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.utils import Bunch
from torch import Tensor

from skbayes_sym.base.distributions import Components, PredictiveDistribution
from skbayes_sym.base.rows import Array
from skbayes_sym.factorization.entry_predictor import DISTRIBUTION_BLOCK, FactorPredictor
from skbayes_sym.factorization.entry_sites import is_normal
from skbayes_sym.models.crps import crps
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, TargetPredictive, Uncertainty
from skbayes_sym.numerics.arguments import draw_seed
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.runtime import one_thread


@dataclass(frozen=True, eq=False)
class OrdinalMixture(TargetPredictive):
    """Distribution of ordered classes that are numbers, such as stars.

    Parameters
    ----------
    classes : CategoricalMixture
        Probabilities of the classes, for S draws and N entries.
    class_values : Tensor of shape (C,)
        Values of the classes, increasing.
    """

    classes: CategoricalMixture
    class_values: Tensor

    @property
    def log_weights(self) -> Tensor | None:  # type: ignore[override]
        """Log weights of the draws, (S,); None if they are equal."""
        return self.classes.log_weights

    @property
    def _like(self) -> Tensor:
        return self.classes.log_probs

    @property
    def means(self) -> Tensor:
        """Expected value given each draw, (S, N, 1)."""
        return (self.classes.means @ self.class_values).unsqueeze(-1)

    @property
    def scales(self) -> Tensor:
        """Standard deviation given each draw, (S, N, 1)."""
        squares = (self.classes.means @ self.class_values.square()).unsqueeze(-1)
        return (squares - self.means.square()).clamp(min=0.0).sqrt()

    @cached_property
    def _probabilities(self) -> Tensor:
        """Probabilities of the classes, averaged over the draws, (N, C)."""
        return self.classes.mean()

    def mean(self) -> Tensor:
        """Expected value, (N, 1)."""
        return (self._probabilities @ self.class_values).unsqueeze(-1)

    def std(self) -> Tensor:
        """Standard deviation, (N, 1)."""
        squares = (self._probabilities @ self.class_values.square()).unsqueeze(-1)
        return (squares - self.mean().square()).clamp(min=0.0).sqrt()

    def uncertainty(self) -> Uncertainty:
        """Variance of the expected value over draws, and mean variance around it, (N, 1) each."""
        total = self.std().square()
        aleatoric = (self.broadcast_weights * self.scales.square()).sum(0)
        return Uncertainty(total, total - aleatoric, aleatoric)

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a value at or below y, (N, 1)."""
        return (self._probabilities * (self.class_values <= y)).sum(-1, keepdim=True)

    def quantile(self, probability: float) -> Tensor:
        """Smallest value whose cumulative probability reaches ``probability``, (N, 1)."""
        is_below = self._probabilities.cumsum(-1) < probability * (1.0 - 1e-12)
        index = is_below.sum(-1, keepdim=True)
        return self.class_values[index.clamp(max=len(self.class_values) - 1)]

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score ``E|Y - y| - E|Y - Y'| / 2`` at any y (N, 1)."""
        below = self._probabilities.cumsum(-1)[:, :-1]
        spread = (below * (1.0 - below)) @ self.class_values.diff()
        distance = (self._probabilities * (self.class_values - y).abs()).sum(-1)
        return (distance - spread).unsqueeze(-1)

    def _sample(self, chosen: Tensor, rng: np.random.Generator) -> Tensor:
        # A protected method of the common base class `Predictive`.
        index = self.classes._sample(chosen, rng)  # noqa: SLF001
        return self.class_values[index].unsqueeze(-1)


@dataclass(eq=False)
class EntryPredictive(PredictiveDistribution):
    """Distribution of new observations of entries.

    Classes are represented by their values.

    Parameters
    ----------
    predictor : FactorPredictor
        Predictor in scaled units.
    x : Tensor of shape (E, 2) or (E, 2 + c)
        Inputs of the predictor: rows, columns and encoded context of the entries.
    location, scale : float
        A scaled entry is multiplied by ``scale``, and ``location`` is added.
    classes : ndarray of shape (C,) or None
        Values of the classes; None for likelihoods of real values or counts.
    log_density : callable
        Function of inputs (E, 2) and observed values, in the units of the matrix, that returns log
        densities in nats.
    """

    predictor: FactorPredictor
    x: Tensor
    location: float
    scale: float
    classes: Array | None
    log_density: Callable[[Tensor, Any], Array]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n_entries,)``."""
        return (len(self.x),)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether entries are classes or counts."""
        return self.classes is not None or self.predictor.likelihood.is_discrete

    def take_rows(self, rows: Array) -> "EntryPredictive":
        """Return the distribution at positions of entries."""
        return replace(self, x=self.x[torch.as_tensor(rows)])

    @property
    def has_normal_components(self) -> bool:  # type: ignore[override]
        """Whether the likelihood is Gaussian."""
        return is_normal(self.predictor.likelihood)

    def __repr__(self) -> str:
        kind = self.predictor.likelihood.kind
        return f"<{kind} distribution of {len(self.x):,} entries>"

    def _rescale(self, distribution: Any) -> TargetPredictive:
        """Convert a distribution of scaled entries to the units of the matrix."""
        if self.classes is not None:
            class_values = torch.as_tensor(self.classes, dtype=torch.float64)
            return OrdinalMixture(distribution, class_values)
        location = torch.tensor([self.location], dtype=torch.float64)
        scale = torch.tensor([self.scale], dtype=torch.float64)
        rescaled: TargetPredictive = distribution.rescale(location, scale)
        return rescaled

    def _map_blocks(self, evaluate: Callable[..., Tensor], *arrays: Array) -> Array:
        """Evaluate a function of the distribution for blocks of entries.

        Parameters
        ----------
        evaluate : callable
            Function of a `TargetPredictive` of a block, and of the blocks of the arrays.
        *arrays : ndarray of shape (E, ...)
            Further arguments.

        Returns
        -------
        ndarray of shape (E, ...)
            Results of all blocks.
        """
        tensors = [torch.tensor(np.array(array, dtype=float)) for array in arrays]
        blocks = zip(*(t.split(DISTRIBUTION_BLOCK) for t in (self.x, *tensors)), strict=True)
        results = []
        with one_thread(), torch.no_grad():
            for x, *arguments in blocks:
                distribution = self._rescale(self.predictor.distribution(x))
                results.append(evaluate(distribution, *arguments))
        if not results:
            return np.zeros(0)
        return torch.cat(results).numpy()

    def _map_grid(self, y: Array, evaluate: Callable[[Any, Tensor], Tensor]) -> Array:
        """Evaluate a function of the distribution and a grid of values, (G, E, 1)."""

        def evaluate_columns(distribution: Any, values: Tensor) -> Tensor:
            columns = [evaluate(distribution, values[:, k : k + 1]) for k in range(values.shape[1])]
            return torch.cat(columns, 1)

        return self._map_blocks(evaluate_columns, y[..., 0].T).T.reshape(y.shape)

    def mean(self) -> Array:
        """Expected entries, (n_entries,)."""
        if self.predictor.likelihood.scales_targets:
            # The mean alone is cheaper than the whole distribution.
            with one_thread(), torch.no_grad():
                mean = self.predictor.mean(self.x)[:, 0]
                return (mean * self.scale + self.location).numpy()
        return self._map_blocks(lambda distribution: distribution.mean()[:, 0])

    def std(self) -> Array:
        """Standard deviations with the noise included, (n_entries,)."""
        return self._map_blocks(lambda distribution: distribution.std()[:, 0])

    def moments(self) -> Array:
        """`mean` and `std` in one pass, (2, n_entries)."""
        return self._map_blocks(
            lambda distribution: torch.cat([distribution.mean(), distribution.std()], dim=1)
        ).T

    def quantile_grid(self, levels: Array) -> Array:
        """Return the quantiles at levels (Q,), (E, Q)."""
        return self._map_blocks(
            lambda distribution: torch.cat(
                [distribution.quantile(p) for p in levels.tolist()], dim=1
            )
        )

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw entries with their noise.

        Parameters
        ----------
        n : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed or generator.

        Returns
        -------
        ndarray of shape (n_entries, n)
            Entries that share a row or a column are dependent.
        """
        rng = np.random.default_rng(draw_seed(random_state))
        draws = self._sample_conditionals(n, random_state).sample_per_draw(rng)
        return np.asarray(draws[..., 0].numpy().T)

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draw expected entries given the factors, without noise.

        Parameters
        ----------
        n : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed or generator.

        Returns
        -------
        ndarray of shape (n_entries, n)
            A draw has one factor for every row and column, so entries that share one are dependent
            as they are in the posterior. Thompson sampling and the probability of being best need
            that.
        """
        return np.asarray(self._sample_conditionals(n, random_state).means[..., 0].numpy().T)

    def _sample_conditionals(self, n: int, random_state: Any) -> TargetPredictive:
        """Distributions of the entries given each of n draws of the factors."""
        generator = generator_from(draw_seed(random_state), torch.device("cpu"))
        with one_thread(), torch.no_grad():
            conditionals = self.predictor.sample_conditionals(self.x, n, generator=generator)
            return self._rescale(conditionals)

    def log_prob_grid(self, y: Array) -> Array:
        """Log densities (G, E) of a grid; values that are no class have probability 0."""
        values = y[..., 0]
        if self.classes is None:
            return np.stack([self.log_density(self.x, row) for row in values])
        is_class = np.isin(values, self.classes)
        values = np.where(is_class, values, self.classes[0])
        log_prob = np.stack([self.log_density(self.x, row) for row in values])
        return np.where(is_class, log_prob, -np.inf)

    def proba(self) -> Array:
        """Probabilities of ordered classes, or of two classes, (n_entries, n_classes)."""
        if self.classes is None:
            raise TypeError("labels have probabilities with likelihood='ordinal' only.")
        return self._map_blocks(lambda distribution: distribution.classes.mean())

    def cdf_grid(self, y: Array) -> Array:
        """Return the distribution function on a grid, (G, E, 1)."""
        return self._map_grid(y, lambda distribution, values: distribution.cdf(values))

    def crps_grid(self, y: Array) -> Array:
        """Return the CRPS on a grid, (G, E, 1)."""
        if self.classes is not None:
            return self._map_grid(y, lambda distribution, values: distribution.crps(values))
        return self._map_grid(y, crps)

    def uncertainty(self) -> Bunch:
        """Variances by their source: ``total``, ``epistemic`` and ``aleatoric``."""
        parts = self._map_blocks(
            lambda distribution: torch.cat(list(distribution.uncertainty()), dim=1)
        ).T
        return Bunch(**dict(zip(("total", "epistemic", "aleatoric"), parts, strict=True)))

    def components(self) -> Components:
        """Weights, means and standard deviations of the mixture's components."""
        weights = self._rescale(self.predictor.distribution(self.x[:1])).weights.numpy()
        loc = self._map_blocks(lambda distribution: distribution.means[..., 0].T).T
        scale = self._map_blocks(lambda distribution: distribution.scales[..., 0].T).T
        return Components(weights, loc, scale)
