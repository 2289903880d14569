"""Likelihood of ordered classes: the interval between cut points that contains a noisy output."""

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
    check_parameter,
    expect_by_quadrature,
)
from skbayes_sym.models.predictive_mixtures import CategoricalMixture
from skbayes_sym.numerics.arguments import check_flag, check_positive, check_vector
from skbayes_sym.numerics.gaussian import LOG_2PI, gauss_hermite

# For ends of intervals above these, probabilities don't underflow. Below them, and on a GPU, where
# the comparison would synchronise, log probabilities are computed, at four times the cost.
_MIN_END = {torch.float32: -12.0, torch.float64: -35.0}


@dataclass(frozen=True, eq=False)
class Ordinal(ClassLikelihood):
    r"""Ordered probit: ``y`` cut points lie below ``f + noise``; targets int64, from 0.

    .. math:: p(y = c \mid f) = \Phi\big((b_{c+1} - f) / s\big) - \Phi\big((b_c - f) / s\big),
              \qquad b_0 = -\infty, \; b_C = \infty

    Parameters
    ----------
    steps : Tensor of shape (C - 1,)
        First cut point, followed by the logarithms of the distances between consecutive cut points.
    noise_std : float, default=1.0
        Standard deviation ``s`` of the noise, the unit of outputs.
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
        """Return the cut points that match the class frequencies.

        They do if outputs and noise together are standard normal.

        Parameters
        ----------
        y : Tensor of shape (N,), int64
            Classes.
        weight : Tensor of shape (N,)
            Weights of the rows.
        n_classes : int
            Number of classes C.
        noise_std : float
            Standard deviation of the noise.
        """
        counts = torch.bincount(y, weight.double(), minlength=n_classes) + 0.5
        cuts = torch.special.ndtri((counts.cumsum(0) / counts.sum())[:-1])
        return cls(torch.cat([cuts[:1], cuts.diff().log()]), noise_std)

    @property
    def cuts(self) -> Tensor:
        """Cut points in increasing order, (..., C - 1)."""
        return torch.cat([self.steps[..., :1], self.steps[..., 1:].exp()], -1).cumsum(-1)

    @property
    def params(self) -> Tensor:
        """Free parameters, (n_params,)."""
        if self.learn:
            return self.steps
        return self.steps[..., :0]

    @property
    def noise_scale(self) -> Tensor:
        """Empty: the noise has no unit."""
        return self.steps.new_zeros(0)

    def at(self, params: Tensor) -> "Ordinal":
        """Return the likelihood at other values of the parameters."""
        if self.learn:
            return replace(self, steps=params)
        return self

    def n_outputs(self, n_targets: int) -> int:
        """Return the number of outputs, which is 1."""
        check_parameter(self, "steps", {n_targets - 1}, f"{n_targets} classes")
        return 1

    def _edges(self, like: Tensor) -> Tensor:
        """Return the cut points between ends at +-1e4 standard deviations of the noise.

        (..., C + 1).
        """
        cuts = self.cuts.to(like)
        outermost = cuts.new_full((*cuts.shape[:-1], 1), 1e4 * self.noise_std)
        return torch.cat([-outermost, cuts, outermost], -1)

    def _interval(self, f: Tensor, y: Tensor) -> "_Interval":
        """Return the intervals of the noise for outputs f (*B, N) of rows of classes y (N,)."""
        edges = self._edges(f)
        edges = edges.expand(*edges.shape[:-2], len(y), edges.shape[-1])
        index = y[:, None].expand(*edges.shape[:-1], 1)
        lower = edges.gather(-1, index)[..., 0]
        upper = edges.gather(-1, index + 1)[..., 0]
        s = self.noise_std
        return _Interval.accurate((lower - f) / s, (upper - f) / s)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        return self._interval(outputs.squeeze(-1), y).log_mass

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        """Return the distribution of new targets for S draws of the outputs, (S, N, O)."""
        ends = (self._edges(outputs) - outputs) / self.noise_std
        masses = _Interval.accurate(ends[..., :-1], ends[..., 1:])
        return CategoricalMixture(masses.log_mass, log_weights)

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,  # noqa: ARG002
    ) -> ExpectedLogProb:
        """Compute expectations by quadrature."""
        return self._expected(mean, variance, y, N_NODES, _Interval.accurate)

    def approximate_expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor
    ) -> ExpectedLogProb:
        """Compute the expectation with five nodes.

        It is exact to 1e-6 nats if the standard deviation of outputs is half that of the noise.
        """
        return self._expected(mean, variance, y, 5, _Interval.fast)

    def _expected(
        self, mean: Tensor, variance: Tensor, y: Tensor, n: int,
        interval: Callable[[Tensor, Tensor], "_Interval"],
    ) -> ExpectedLogProb:  # fmt: skip
        """Compute expectations by quadrature.

        Parameters
        ----------
        mean, variance : Tensor of shape (N, 1)
            Moments of the outputs.
        y : Tensor of shape (N,), int64
            Classes.
        n : int
            Number of quadrature nodes.
        interval : callable (lower, upper) -> _Interval
            Computes probabilities of intervals.
        """
        weights = gauss_hermite(n)[1].to(mean)
        edges = self._edges(mean)
        s = self.noise_std
        intervals = list[_Interval]()

        def value_and_slope(f: Tensor) -> tuple[Tensor, Tensor]:
            lower = (edges[y, None] - f) / s
            upper = (edges[y + 1, None] - f) / s
            intervals.append(interval(lower, upper))
            return intervals[-1].log_mass, (intervals[-1].lower - intervals[-1].upper) / s

        terms = expect_by_quadrature(value_and_slope, mean, variance, n_nodes=n)
        if not self.learn:
            return terms
        d_edges = mean.new_zeros(len(mean), len(edges))
        d_edges.scatter_(1, y[:, None] + 1, (intervals[0].upper @ weights / s)[:, None])
        d_edges.scatter_(1, y[:, None], (-intervals[0].lower @ weights / s)[:, None])
        # A step moves its cut point and all later ones.
        d_steps = d_edges[:, 1:-1].flip(-1).cumsum(-1).flip(-1)
        d_steps[:, 1:] *= self.steps[1:].exp().to(mean)
        return terms._replace(d_params=d_steps)


class _Interval(NamedTuple):
    """Probability of an interval under a standard normal distribution.

    Attributes
    ----------
    log_mass : Tensor
        Log probability.
    lower, upper : Tensor
        Density at each end divided by the probability.
    """

    log_mass: Tensor
    lower: Tensor
    upper: Tensor

    @classmethod
    def accurate(cls, lower: Tensor, upper: Tensor) -> "_Interval":
        """Compute log probabilities, in the lower tail to avoid differences of numbers near 1."""
        log_a, log_b = (torch.special.log_ndtr(end) for end in _in_lower_tail(lower, upper))
        log_mass = log_b + torch.log(-torch.expm1(log_a - log_b))
        ends = ((-0.5 * end.square() - 0.5 * LOG_2PI - log_mass).exp() for end in (lower, upper))
        return cls(log_mass, *ends)

    @classmethod
    def fast(cls, lower: Tensor, upper: Tensor) -> "_Interval":
        """Compute probabilities by erfc, in a quarter of the time, if none of them underflows."""
        a, b = _in_lower_tail(lower, upper)
        if b.device.type == "cpu" and b.numel() and float(b.detach().min()) > _MIN_END[b.dtype]:
            root_half = 0.5**0.5
            mass = 0.5 * (torch.erfc(-root_half * b) - torch.erfc(-root_half * a))
            scaled = (2.0 * pi) ** -0.5 / mass
            ends = (scaled * (-0.5 * end.square()).exp() for end in (lower, upper))
            return cls(mass.log(), *ends)
        return cls.accurate(lower, upper)


def _in_lower_tail(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Reflect intervals to the lower tail, which avoids differences of numbers near 1."""
    flip = lower + upper > 0.0
    return torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
