"""Likelihoods of counts, whose mean is the exponential of the output."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import betainc
from torch import Tensor
from torch.distributions import Distribution

from skbayes_sym.models.likelihoods.likelihood import (
    ExpectedLogProb,
    Kind,
    TargetLikelihood,
    as_leaf,
    choose_n_nodes,
    clone_if_inference,
    expect_by_quadrature,
)
from skbayes_sym.numerics.arguments import check_flag, check_vector

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Poisson(TargetLikelihood):
    """``y ~ Poisson(exp f)``, counts (N, T)."""

    kind: ClassVar[Kind] = "counts"

    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of the targets given outputs."""
        return torch.distributions.Poisson(outputs.exp(), validate_args=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        return (y * outputs - outputs.exp() - torch.lgamma(y + 1.0)).sum(-1)

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,  # noqa: ARG002
    ) -> ExpectedLogProb:
        """Compute the closed form ``y m - exp(m + v / 2) - log y!``."""
        rate = (mean + 0.5 * variance).exp()
        value = (y * mean - rate - torch.lgamma(y + 1.0)).sum(-1)
        return ExpectedLogProb(value, y - rate, -0.5 * rate, mean.new_zeros(len(mean), 0))

    def fit_constant_outputs(self, y: Floats, weight: Floats) -> Floats:
        """Return the log of the mean count, or of half a count if all counts are 0."""
        return log_mean_count(y, weight)

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (*B, N, T)."""
        # P(Y <= y) = Q(floor(y) + 1, rate), the regularised upper incomplete gamma function.
        rate = outputs.exp()
        shape = (y.floor() + 1.0).clamp_min(1e-300).expand_as(rate)
        return torch.where(y < 0.0, torch.zeros_like(rate), torch.special.gammaincc(shape, rate))

    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Sample one value per target."""
        with np.errstate(over="ignore"):  # an infinite rate gives an infinite count
            rate = np.exp(outputs.cpu().double().numpy())
        return torch.as_tensor(sample_poisson(rate, rng)).to(outputs)


def log_mean_count(y: Floats, weight: Floats) -> Floats:
    """Return the log of the mean count of the first column, (1,).

    If all counts are 0, the sum of the counts is taken to be 0.5.
    """
    average = np.atleast_1d(weight @ y[:, 0] / weight.sum())
    return np.asarray(np.log(np.maximum(average, 0.5 / weight.sum())))


def sample_poisson(rate: Floats, rng: np.random.Generator) -> Floats:
    """Sample a count for each rate.

    NumPy's sampler doesn't exceed 2^63. For such rates the relative standard deviation is below
    1e-9, and the rounded rate is returned.
    """
    large = rate > 1e18
    counts = rng.poisson(np.where(large, 0.0, rate)).astype(np.float64)
    return np.where(large, np.rint(rate), counts)


_STIRLING_MIN = 20.0  # from here on Stirling's series is exact to 1e-12


@dataclass(frozen=True, eq=False)
class NegativeBinomial(TargetLikelihood):
    r"""Counts (N, T) of mean ``mu = exp f`` and variance ``mu + alpha mu^2``.

    .. math:: p(y \mid f) = \frac{\Gamma(y + r)}{y!\,\Gamma(r)}
              \Big(\frac{r}{r + \mu}\Big)^r \Big(\frac{\mu}{r + \mu}\Big)^y,
              \qquad r = 1 / \alpha

    This is a Poisson distribution whose rate has a gamma distribution of relative variance
    :math:`\alpha`. Without dispersion it is the Poisson distribution.

    Parameters
    ----------
    log_dispersion : Tensor of shape (1,) or (T,)
        Log of ``alpha``; 0 by default. Samplers and ensembles give ``alpha`` a half-normal prior of
        scale 1 (`HalfNormal`).
    learn : bool, default=True
        Whether ``log_dispersion`` is a free parameter.

    References
    ----------
    A. C. Cameron and P. K. Trivedi (2013). Regression Analysis of Count Data, 2nd edition,
    eq. 3.26 ("NB2").
    """

    kind: ClassVar[Kind] = "counts"

    log_dispersion: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    learn: bool = True

    def __post_init__(self) -> None:
        check_vector("log_dispersion", self.log_dispersion)
        check_flag("learn", self.learn)

    @property
    def params(self) -> Tensor:
        """Free parameters, (n_params,)."""
        if self.learn:
            return self.log_dispersion
        return self.log_dispersion[..., :0]

    def at(self, params: Tensor) -> "NegativeBinomial":
        """Return the likelihood at other values of the parameters."""
        if self.learn:
            return replace(self, log_dispersion=params)
        return self

    @property
    def dispersion(self) -> Tensor:
        """Dispersion ``alpha``."""
        return self.log_dispersion.exp()

    @property
    def noise_scale(self) -> Tensor:
        """Empty: the likelihood has no additive noise."""
        return self.log_dispersion.new_zeros(0)

    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of the targets given outputs."""
        size = (-self.log_dispersion).exp().to(outputs)
        logits = outputs + self.log_dispersion.to(outputs)
        size = size.expand_as(logits)
        return torch.distributions.NegativeBinomial(size, logits=logits, validate_args=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        log_alpha = self.log_dispersion.to(outputs)
        # With a small dispersion, differences of large log gammas would lose all digits.
        size = (-log_alpha).exp()
        factors = _log_rising(y, size) - torch.lgamma(y + 1.0)
        mean = torch.log1p((outputs + log_alpha).exp())
        return (factors + y * outputs - (y + size) * mean).sum(-1)

    def approximate_expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor
    ) -> ExpectedLogProb:
        r"""Compute the expectation over one output with closed-form slopes at the nodes.

        With :math:`a = f + \log\alpha`, only :math:`-(y + r) \log(1 + e^a)` isn't linear in f. The
        gamma functions don't depend on f and are computed once per row instead of at every node.
        """
        log_alpha = self.log_dispersion.detach().to(mean)
        if mean.shape[1] != 1 or log_alpha.shape != (1,):
            return super().approximate_expected_log_prob(mean, variance, y)
        size = (-log_alpha).exp()

        at_nodes = list[tuple[Tensor, Tensor]]()  # log(1 + e^a) and its slope

        def value_and_slope(f: Tensor) -> tuple[Tensor, Tensor]:
            logit = f + log_alpha
            small = logit.abs().neg_().exp_()
            log_one_plus = small.log1p().add_(logit.clamp_min(0.0))
            probability = torch.where(logit < 0.0, small, 1.0).div_(small.add_(1.0))
            at_nodes.append((log_one_plus, probability))
            return y * f - (y + size) * log_one_plus, y - (y + size) * probability

        def dispersion_slope(_f: Tensor) -> Tensor:
            log_one_plus, probability = at_nodes[-1]
            return size * log_one_plus - (y + size) * probability

        terms = expect_by_quadrature(
            value_and_slope, mean, variance, dispersion_slope if self.learn else None,
            n_nodes=choose_n_nodes(variance),
        )  # fmt: skip
        with torch.inference_mode(False), torch.enable_grad():
            rows = as_leaf(log_alpha.expand_as(y).clone())
            rising = _log_rising(clone_if_inference(y), (-rows).exp())
            (rising_slope,) = torch.autograd.grad(rising.sum(), rows)
        value = terms.value + (rising.detach() - torch.lgamma(y + 1.0))[:, 0]
        if self.learn:
            d_params = terms.d_params + rising_slope
        else:
            d_params = terms.d_params
        return terms._replace(value=value, d_params=d_params)

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the expected targets."""
        return outputs.exp()

    def variance(self, outputs: Tensor) -> Tensor:
        """Return the variances of the targets."""
        mean = outputs.exp()
        return mean + self.dispersion.to(outputs) * mean.square()

    def fit_constant_outputs(self, y: Floats, weight: Floats) -> Floats:
        """Return the log of the mean count, or of half a count if all counts are 0."""
        return log_mean_count(y, weight)

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (*B, N, T)."""
        # P(Y <= y) = I_p(r, floor(y) + 1), p = r / (r + mu); torch has no incomplete beta function.
        log_alpha = self.log_dispersion.to(outputs)
        p = torch.sigmoid(-outputs - log_alpha).double().cpu().numpy()
        size = (-log_alpha).exp().double().cpu().numpy()
        shape = np.maximum(np.floor(y.double().cpu().numpy()) + 1.0, 1e-300)
        value = torch.as_tensor(betainc(size, shape, p)).to(outputs)
        return torch.where(y < 0.0, torch.zeros_like(value), value)

    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Sample one value per target."""
        alpha = self.dispersion.cpu().double().numpy()
        mean = np.exp(outputs.cpu().double().numpy())
        rate = rng.gamma(1.0 / alpha, alpha * mean)
        return torch.as_tensor(sample_poisson(rate, rng)).to(outputs)


def _log_rising(y: Tensor, size: Tensor) -> Tensor:
    r"""Return ``log[Gamma(y + r) / Gamma(r)] - y log r``, accurate to rounding for any size r.

    This is :math:`\sum_{k < y} \log(1 + k / r)`. For large r it is computed by Stirling's series.
    """
    small = size.clamp_max(_STIRLING_MIN)
    large = size.clamp_min(_STIRLING_MIN)
    direct = torch.lgamma(y + small) - torch.lgamma(small) - y * small.log()
    ratio = torch.log1p(y / large)
    correction = _stirling_correction(y + large) - _stirling_correction(large)
    series = y * (ratio - 1.0) + (large - 0.5) * ratio + correction
    return torch.where(size < _STIRLING_MIN, direct, series)


def _stirling_correction(z: Tensor) -> Tensor:
    """Return the terms of Stirling's series of log gamma after the leading ones."""
    inverse = 1.0 / z
    square = inverse * inverse
    return inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0)))
