r"""Likelihoods of single entries, as Gaussians with values and weights of their own.

Given the mean :math:`\bar f` and the variance v of an entry under q, each has a lower bound on
:math:`E_q \log p(x \mid f)`, or that itself, and a normal with its slopes, so a sweep sees Gaussian
entries ("sites"). ``noise_variance`` is :math:`s^2`.

* `Normal`: itself; nothing is bounded.
* `StudentT`: a mixture of normals over precisions; the bound is the density at
  :math:`\sqrt{(x - \bar f)^2 + v}`.
* `Ordinal`: the label says between which cut points ``f + noise`` lies (ordered probit). Nothing is
  bounded: the expectation is by quadrature, and a site has its slope and curvature. (The bound by
  an augmented latent number, Albert & Chib 1993, is cheaper but so loose that learned scales switch
  factors off.)
"""

from dataclasses import dataclass
from functools import lru_cache
from math import lgamma, log, pi
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import LOG_2PI

Array = npt.NDArray[Any]
_N_NODES = 7
_LEAST_CURVATURE = 1e-6  # of an entry whose label is as good as certain


class Seen(NamedTuple):
    """Entries, and what q says of them; (N,) each."""

    value: Tensor
    weight: Tensor | None
    mean: Tensor
    variance: Tensor


class NoiseState(NamedTuple):
    """What is learned of the noise."""

    variance: float
    cuts: Tensor | None = None  # (n_labels - 1,), float64


class Sites(NamedTuple):
    """Gaussian entries that stand for the likelihood, (N,) each."""

    value: Tensor
    weight: Tensor | None


class EntryLikelihood(Protocol):
    """What a sweep asks of the distribution of an entry."""

    @property
    def is_normal(self) -> bool:
        """Whether entries are their own sites."""
        ...

    def start_cuts(self, value: Tensor, weight: Tensor | None) -> Tensor | None:
        """Where cut points begin, if there are any."""
        ...

    def log_density(self, seen: Seen, state: NoiseState) -> float:
        """Lower bound on the expected log density of all entries, nats."""
        ...

    def sites(self, seen: Seen, state: NoiseState) -> Sites:
        """Where that bound is attained."""
        ...

    def learn(
        self, seen: Seen, state: NoiseState, noise_range: tuple[float, float] | None
    ) -> NoiseState:
        """A step in what is learned of the noise that doesn't lower the bound."""
        ...

    def predictive_log_density(self, seen: Seen, state: NoiseState) -> Tensor:
        """Log density of new entries, (N,) nats."""
        ...

    def new_moments(
        self, mean: Tensor, variance: Tensor, state: NoiseState
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of new entries, (N,) each, float64."""
        ...

    def draw(self, at: Array, state: NoiseState, rng: np.random.Generator) -> Array:
        """New entries where f is ``at``."""
        ...


def _total(values: Tensor, weight: Tensor | None) -> float:
    values = values.double()
    return float((values if weight is None else values * weight).sum())


def _n(seen: Seen) -> float:
    return _total(torch.ones_like(seen.value), seen.weight)


class _NoCuts:
    """Of numbers."""

    def start_cuts(self, value: Tensor, weight: Tensor | None) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Normal(_NoCuts):
    """``x = f + noise``."""

    is_normal: ClassVar[bool] = True

    def log_density(self, seen: Seen, state: NoiseState) -> float:
        squares = _total((seen.value - seen.mean).square() + seen.variance, seen.weight)
        return -0.5 * (_n(seen) * log(2.0 * pi * state.variance) + squares / state.variance)

    def sites(self, seen: Seen, state: NoiseState) -> Sites:
        return Sites(seen.value, seen.weight)

    def learn(
        self, seen: Seen, state: NoiseState, noise_range: tuple[float, float] | None
    ) -> NoiseState:
        squares = _total((seen.value - seen.mean).square() + seen.variance, seen.weight)
        return _within(squares / max(_n(seen), 1e-300), state, noise_range)

    def predictive_log_density(self, seen: Seen, state: NoiseState) -> Tensor:
        variance = seen.variance + state.variance
        return -0.5 * ((seen.value - seen.mean).square() / variance + variance.log() + LOG_2PI)

    def new_moments(
        self, mean: Tensor, variance: Tensor, state: NoiseState
    ) -> tuple[Tensor, Tensor]:
        return mean, variance + state.variance

    def draw(self, at: Array, state: NoiseState, rng: np.random.Generator) -> Array:
        return at + np.sqrt(state.variance) * rng.standard_normal(at.shape)


@dataclass(frozen=True)
class StudentT(_NoCuts):
    """``x = f + s t``, t with ``df`` degrees of freedom: an entry far off is given little weight.

    Parameters
    ----------
    df : float, default=4.0
        Degrees of freedom.
    """

    df: float = 4.0
    is_normal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.df > 0.0:
            raise ValueError(f"df must be positive, got {self.df!r}.")

    def _log_t(self, squares: Tensor, variance: float | Tensor) -> Tensor:
        constant = lgamma(0.5 * (self.df + 1.0)) - lgamma(0.5 * self.df)
        scale = torch.as_tensor(self.df * variance * pi, dtype=squares.dtype).log()
        power = 0.5 * (self.df + 1.0)
        return constant - 0.5 * scale - power * (squares / (self.df * variance)).log1p()

    def _squares(self, seen: Seen) -> Tensor:
        return (seen.value - seen.mean).square() + seen.variance

    def log_density(self, seen: Seen, state: NoiseState) -> float:
        return _total(self._log_t(self._squares(seen).double(), state.variance), seen.weight)

    def sites(self, seen: Seen, state: NoiseState) -> Sites:
        weight = (self.df + 1.0) / (self.df + self._squares(seen) / state.variance)
        return Sites(seen.value, weight if seen.weight is None else weight * seen.weight)

    def learn(
        self, seen: Seen, state: NoiseState, noise_range: tuple[float, float] | None
    ) -> NoiseState:
        weight = self.sites(seen, state).weight
        return _within(_total(self._squares(seen), weight) / _n(seen), state, noise_range)

    def predictive_log_density(self, seen: Seen, state: NoiseState) -> Tensor:
        """With the scale widened by the variance of the mean, as a normal's would be."""
        return self._log_t((seen.value - seen.mean).square(), seen.variance + state.variance)

    def new_moments(
        self, mean: Tensor, variance: Tensor, state: NoiseState
    ) -> tuple[Tensor, Tensor]:
        """The variance is infinite up to two degrees of freedom."""
        wider = self.df / (self.df - 2.0) if self.df > 2.0 else torch.inf
        return mean, variance + state.variance * wider

    def draw(self, at: Array, state: NoiseState, rng: np.random.Generator) -> Array:
        return at + np.sqrt(state.variance) * rng.standard_t(self.df, size=at.shape)


@dataclass(frozen=True)
class Ordinal:
    """Labels in their order: cut points lie below ``f + noise`` as many as labels before it.

    Entries are positions among the labels; what is predicted is in the labels' own numbers.

    Parameters
    ----------
    labels : tuple of float
        In increasing order, at least two.
    """

    labels: tuple[float, ...]
    is_normal: ClassVar[bool] = False

    def start_cuts(self, value: Tensor, weight: Tensor | None) -> Tensor | None:
        """Those that give a standard normal the labels' frequencies, (C - 1,)."""
        weights = torch.ones_like(value) if weight is None else weight
        counts = torch.bincount(value.long(), weights.double(), minlength=len(self.labels)) + 0.5
        below = (counts.cumsum(0) / counts.sum())[:-1]
        return torch.special.ndtri(below)

    def edges(self, state: NoiseState) -> Tensor:
        """Cut points with infinities at both ends, (C + 1,)."""
        if state.cuts is None:
            raise ValueError("ordinal entries need cut points: start_cuts(value, weight).")
        end = state.cuts.new_tensor([torch.inf])
        return torch.cat([-end, state.cuts, end])

    def _at_nodes(self, seen: Seen, state: NoiseState) -> tuple["_Interval", Tensor]:
        """Between which ends the noise lies, (N, n_nodes), and the weights of the nodes."""
        nodes, weights = _nodes(seen.mean.device)
        spread = seen.variance.double().sqrt().unsqueeze(-1) * nodes
        return self._between(seen, state, spread, state.variance), weights

    def _between(
        self, seen: Seen, state: NoiseState, spread: Tensor, variance: Tensor | float
    ) -> "_Interval":
        edges, label = self.edges(state).to(seen.mean.device), seen.value.long().unsqueeze(-1)
        scale = torch.as_tensor(variance, dtype=torch.float64).sqrt()
        mean = seen.mean.double().unsqueeze(-1) + spread
        return _Interval.of((edges[label] - mean) / scale, (edges[label + 1] - mean) / scale)

    def log_density(self, seen: Seen, state: NoiseState) -> float:
        at, weights = self._at_nodes(seen, state)
        return _total(at.log_mass @ weights, seen.weight)

    def sites(self, seen: Seen, state: NoiseState) -> Sites:
        """The slope and the curvature of the expectation in the mean, as those of a normal."""
        at, weights = self._at_nodes(seen, state)
        slope = (at.lower_ratio - at.upper_ratio) @ weights
        curvature = (
            (at.upper_ratio - at.lower_ratio).square()
            + at.upper_ratio * at.upper_finite
            - at.lower_ratio * at.lower_finite
        ) @ weights
        curvature = curvature.clamp(min=_LEAST_CURVATURE)
        value = seen.mean.double() + state.variance**0.5 * slope / curvature
        weight = curvature if seen.weight is None else curvature * seen.weight
        return Sites(value.to(seen.mean), weight.to(seen.mean))

    def learn(
        self, seen: Seen, state: NoiseState, noise_range: tuple[float, float] | None
    ) -> NoiseState:
        """One Newton step in the cut points, shortened until it raises the bound.

        The noise stays: factors, cut points and noise have no unit of their own.
        """
        cuts = self.edges(state)[1:-1]
        gradient, curvature = self._derivatives(seen, state)
        step = torch.linalg.solve(curvature, gradient)
        before = self.log_density(seen, state)
        for _ in range(8):
            moved = state._replace(cuts=cuts + step)
            is_ordered = bool((self.edges(moved).diff() > 0).all())
            if is_ordered and self.log_density(seen, moved) >= before:
                return moved
            step = 0.5 * step
        return state

    def _derivatives(self, seen: Seen, state: NoiseState) -> tuple[Tensor, Tensor]:
        """Of the log density in the cut points: gradient, and minus the Hessian."""
        (at, nodes), label = self._at_nodes(seen, state), seen.value.long()
        n_labels, scale = len(self.labels), state.variance**0.5
        weight = torch.ones_like(label) if seen.weight is None else seen.weight.double()

        def by_label(values: Tensor) -> Tensor:
            return torch.bincount(label, (values @ nodes) * weight, minlength=n_labels)

        # log(Phi(b) - Phi(a)): d/db = r_b, d/da = -r_a, with densities over masses r.
        lower, upper = at.lower_ratio, at.upper_ratio
        gradient = (by_label(upper)[:-1] - by_label(lower)[1:]) / scale
        of_upper = by_label(upper.square() + upper * at.upper_finite)[:-1]
        of_lower = by_label(lower.square() - lower * at.lower_finite)[1:]
        diagonal = (of_upper + of_lower) / scale**2
        between = -by_label(upper * lower)[1:-1] / scale**2
        ridge = 1e-9 * diagonal.clamp(min=1e-6)
        hessian = (diagonal + ridge).diag() + between.diag(1) + between.diag(-1)
        return gradient, hessian

    def predictive_log_density(self, seen: Seen, state: NoiseState) -> Tensor:
        """Log probability of the label."""
        variance = (state.variance + seen.variance.double()).unsqueeze(-1)
        nowhere = torch.zeros_like(variance)
        return self._between(seen, state, nowhere, variance).log_mass.squeeze(-1)

    def new_moments(
        self, mean: Tensor, variance: Tensor, state: NoiseState
    ) -> tuple[Tensor, Tensor]:
        """Of the labels' numbers."""
        labels = torch.tensor(self.labels, dtype=torch.float64)
        probabilities = self.probabilities(mean, variance, state)
        first = probabilities @ labels
        return first, (probabilities @ labels.square() - first.square()).clamp(min=0.0)

    def draw(self, at: Array, state: NoiseState, rng: np.random.Generator) -> Array:
        latent = at + np.sqrt(state.variance) * rng.standard_normal(at.shape)
        place = np.searchsorted(self.edges(state)[1:-1].numpy(), latent)
        return np.asarray(np.array(self.labels)[place])

    def probabilities(self, mean: Tensor, variance: Tensor, state: NoiseState) -> Tensor:
        """Of every label at entries with these moments, (N, C)."""
        scale = (state.variance + variance.double()).sqrt().unsqueeze(-1)
        below = torch.special.ndtr((self.edges(state) - mean.double().unsqueeze(-1)) / scale)
        return below.diff(dim=-1)


class _Interval(NamedTuple):
    """A standard normal between two ends, (N, n_nodes) each, float64."""

    log_mass: Tensor
    lower_ratio: Tensor  # density at the end over the mass
    upper_ratio: Tensor
    lower_finite: Tensor  # the end, 0 where it is infinite
    upper_finite: Tensor

    @classmethod
    def of(cls, lower: Tensor, upper: Tensor) -> "_Interval":
        """Both ends on the side where the tail is small: no mass is a difference of ones."""
        flip = (lower + upper).nan_to_num(0.0) > 0.0
        a, b = torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
        log_a, log_b = torch.special.log_ndtr(a), torch.special.log_ndtr(b)
        log_mass = log_b + torch.log(-torch.expm1(log_a - log_b))

        def ratio(end: Tensor) -> Tensor:
            return (-0.5 * end.square() - 0.5 * LOG_2PI - log_mass).exp()

        def finite(end: Tensor) -> Tensor:
            return end.nan_to_num(0.0, 0.0, 0.0)

        return cls(log_mass, ratio(lower), ratio(upper), finite(lower), finite(upper))


@lru_cache(maxsize=8)
def _nodes(device: torch.device) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite rule of a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_N_NODES)
    at, share = (torch.as_tensor(a, device=device) for a in (nodes, weights / weights.sum()))
    return at, share


def _within(
    variance: float, state: NoiseState, noise_range: tuple[float, float] | None
) -> NoiseState:
    if noise_range is None:
        return state
    return state._replace(variance=min(max(variance, noise_range[0]), noise_range[1]))
