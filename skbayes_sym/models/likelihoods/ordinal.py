"""Classes in an order: between which cut points a noisy output lies."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import pi
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import (
    N_NODES,
    ClassLikelihood,
    ExpectedLogProb,
    Kind,
    expect_by_quadrature,
)
from skbayes_sym.models.predictive_mixtures import CategoricalMixture
from skbayes_sym.numerics.arguments import check_flag, check_positive, check_vector
from skbayes_sym.numerics.gaussian import LOG_2PI, gauss_hermite

# Above these ends masses are numbers; below, and where the answer would be waited for, logarithms,
# at four times the cost.
_LEAST_END = {torch.float32: -12.0, torch.float64: -35.0}


@dataclass(frozen=True, eq=False)
class Ordinal(ClassLikelihood):
    r"""Ordered probit: ``y`` cut points lie below ``f + noise``; targets int64, from 0.

    .. math:: p(y = c \mid f) = \Phi\big((b_{c+1} - f) / s\big) - \Phi\big((b_c - f) / s\big),
              \qquad b_0 = -\infty, \; b_C = \infty

    Parameters
    ----------
    steps : Tensor of shape (C - 1,)
        The first cut point, then the logs of the distances to the next.
    noise_std : float, default=1.0
        ``s``: the unit of outputs.
    learn : bool, default=True
        Whether ``steps`` are free parameters.
    """

    kind: ClassVar[Kind] = "ordinal"

    steps: Tensor
    noise_std: float = 1.0
    learn: bool = True

    def __post_init__(self) -> None:
        check_vector("steps", self.steps)
        check_positive("noise_std", self.noise_std)
        check_flag("learn", self.learn)

    @classmethod
    def from_class_frequencies(
        cls, y: Tensor, weight: Tensor, n_classes: int, noise_std: float
    ) -> "Ordinal":
        """Cut points that give standard normal outputs and noise together the classes' shares."""
        counts = torch.bincount(y, weight.double(), minlength=n_classes) + 0.5
        cuts = torch.special.ndtri((counts.cumsum(0) / counts.sum())[:-1])
        return cls(torch.cat([cuts[:1], cuts.diff().log()]), noise_std)

    @property
    def cuts(self) -> Tensor:
        """Cut points in increasing order, (..., C - 1)."""
        return torch.cat([self.steps[..., :1], self.steps[..., 1:].exp()], -1).cumsum(-1)

    @property
    def params(self) -> Tensor:
        return self.steps if self.learn else self.steps[..., :0]

    @property
    def noise_scale(self) -> Tensor:
        """None: the noise has no unit."""
        return self.steps.new_zeros(0)

    def at(self, params: Tensor) -> "Ordinal":
        return replace(self, steps=params) if self.learn else self

    def n_outputs(self, n_targets: int) -> int:
        n_classes = self.steps.shape[-1] + 1
        if n_targets != n_classes:
            raise ValueError(f"Ordinal has cut points for {n_classes} classes, y has {n_targets}.")
        return 1

    def _edges(self, like: Tensor) -> Tensor:
        """Cut points between two ends 1e4 standard deviations of the noise away, (..., C + 1)."""
        cuts = self.cuts.to(like)
        far = cuts.new_full((*cuts.shape[:-1], 1), 1e4 * self.noise_std)
        return torch.cat([-far, cuts, far], -1)

    def _interval(self, f: Tensor, y: Tensor) -> "_Interval":
        """Ends of the noise at outputs f (*B, N) of rows of classes y (N,)."""
        edges = self._edges(f)
        edges = edges.expand(*edges.shape[:-2], len(y), edges.shape[-1])
        places = y[:, None].expand(*edges.shape[:-1], 1)
        lower, upper = (edges.gather(-1, places + i)[..., 0] for i in (0, 1))
        s = self.noise_std
        return _Interval.between((lower - f) / s, (upper - f) / s)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self._interval(outputs.squeeze(-1), y).log_mass

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        ends = (self._edges(outputs) - outputs) / self.noise_std
        masses = _Interval.between(ends[..., :-1], ends[..., 1:])
        return CategoricalMixture(masses.log_mass, log_weights)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        return self._expected(mean, variance, y, N_NODES, _Interval.between)

    def approximate_expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor
    ) -> ExpectedLogProb:
        """Five nodes: exact to 1e-6 nats where outputs spread half as much as the noise."""
        return self._expected(mean, variance, y, 5, _Interval.near)

    def _expected(
        self, mean: Tensor, variance: Tensor, y: Tensor, n: int,
        between: Callable[[Tensor, Tensor], "_Interval"],
    ) -> ExpectedLogProb:  # fmt: skip
        weights = gauss_hermite(n)[1].to(mean)
        edges = self._edges(mean)
        s = self.noise_std
        intervals = list[_Interval]()

        def value_and_slope(f: Tensor) -> tuple[Tensor, Tensor]:
            lower, upper = ((edges[y + i, None] - f) / s for i in (0, 1))
            intervals.append(between(lower, upper))
            return intervals[-1].log_mass, (intervals[-1].lower - intervals[-1].upper) / s

        terms = expect_by_quadrature(value_and_slope, mean, variance, n_nodes=n)
        if not self.learn:
            return terms
        d_edges = mean.new_zeros(len(mean), len(edges))
        d_edges.scatter_(1, y[:, None] + 1, (intervals[0].upper @ weights / s)[:, None])
        d_edges.scatter_(1, y[:, None], (-intervals[0].lower @ weights / s)[:, None])
        # A step moves its cut point and all after it.
        d_steps = d_edges[:, 1:-1].flip(-1).cumsum(-1).flip(-1)
        d_steps[:, 1:] *= self.steps[1:].exp().to(mean)
        return terms._replace(d_params=d_steps)


class _Interval(NamedTuple):
    """Mass of a standard normal between two ends, and its density at each over the mass."""

    log_mass: Tensor
    lower: Tensor
    upper: Tensor

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor) -> "_Interval":
        """Masses on the side where the tail is small: none is a difference of ones."""
        log_a, log_b = (torch.special.log_ndtr(end) for end in _in_lower_tail(lower, upper))
        log_mass = log_b + torch.log(-torch.expm1(log_a - log_b))
        ends = ((-0.5 * end.square() - 0.5 * LOG_2PI - log_mass).exp() for end in (lower, upper))
        return cls(log_mass, *ends)

    @classmethod
    def near(cls, lower: Tensor, upper: Tensor) -> "_Interval":
        """Masses as numbers, in a quarter of the time, where all of them are numbers."""
        a, b = _in_lower_tail(lower, upper)
        if b.device.type == "cpu" and b.numel() and float(b.detach().min()) > _LEAST_END[b.dtype]:
            root_half = 0.5**0.5
            mass = 0.5 * (torch.erfc(-root_half * b) - torch.erfc(-root_half * a))
            scaled = (2.0 * pi) ** -0.5 / mass
            ends = (scaled * (-0.5 * end.square()).exp() for end in (lower, upper))
            return cls(mass.log(), *ends)
        return cls.between(lower, upper)


def _in_lower_tail(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the same mass on the side where no mass is a difference of ones."""
    flip = lower + upper > 0.0
    return torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
