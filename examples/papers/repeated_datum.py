r"""One input seen N times: what mean-field loses by a translation symmetry, in closed form.

Section 4 of Kurle et al. (2022). The model is

.. math:: y_n = x^T w + \epsilon_n, \quad \epsilon_n \sim N(0, \sigma_y^2), \quad
          w \sim N(\mu, \operatorname{diag} \sigma^2),

with one input for all n. (Their ``y = 1'w / K`` is ``x = 1 / K`` here.) The "mean-field
likelihood" ``g_0 = N(w; m, diag(lambda))`` with parameters ``theta = (m, lambda)`` makes two
posteriors: ``q_0``, proportional to ``p g_0`` (eq. 6a), and ``q_mix``, proportional to ``p g_mix``
(eq. 6b) with ``g_mix`` the average of ``g_0`` over the translations orthogonal to x.

What differs from the print, and why:

* eq. 10: ``ELBO(q_mix) - ELBO(q_0) = KL[q_0 || q_mix]``; the printed difference has the other sign;
* eqs. 9 and 10 (Lemmas 1 and 2) hold where ``lambda_k / sigma_k^2`` is the same for all k with
  ``x_k != 0``, not for any lambda: appendix C commutes two matrices that don't commute. In general
  the variance of the output under ``q_0`` is at most that under ``q_mix``;
* eq. 16 is convex in ``phi`` for ``phi <= 2`` only (it rises everywhere, and is convex in 1 / phi);
* eq. 19: the printed location is that of eq. 18. The optimum's makes the mean of ``q_0`` the exact
  posterior mean, for every K: the mean never collapses, only the variance does;
* eqs. 3, 11 and 85 bound the KL of those q whose ELBO is at least the prior's, not of all q.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Site(NamedTuple):
    """Gaussian factor ``exp(-(x' w - location)^2 / (2 variance))`` of one row."""

    location: float
    variance: float


def marginal_site(loc: Floats, variance: Floats, x: Floats) -> Site:
    """Marginalise ``N(w; loc, diag(variance))`` over all translations orthogonal to ``x``.

    Kurle et al. (2022), eqs. 14 and 72. Of the 2 K numbers two remain, ``x' loc`` and
    ``sum_k x_k^2 variance_k``. The limit of the density itself is 0 everywhere (eq. 14 holds up to
    a factor), and no component of ``x`` need be different from 0 (the paper's B divides by one).
    """
    return Site(float(x @ loc), float(x**2 @ variance))


class MeanFieldLikelihood(NamedTuple):
    """``g_0(w) = N(w; loc, diag(variance))``, shapes (K,); an infinite variance says nothing."""

    loc: Floats
    variance: Floats


@dataclass(frozen=True, eq=False)
class RankOneGaussian:
    """``N(loc, (diag(precision) + coefficient x x')^-1)``; everything costs O(K).

    Parameters
    ----------
    loc, precision, x : ndarray of shape (K,)
    coefficient : float
        Non-negative.
    """

    loc: Floats
    precision: Floats
    x: Floats
    coefficient: float

    @cached_property
    def _seen(self) -> float:
        """``x' diag(precision)^-1 x``."""
        return float(self.x**2 @ (1.0 / self.precision))

    @property
    def covariance(self) -> Floats:
        """(K, K); eq. 73 by the Woodbury formula."""
        scaled = self.x / self.precision
        shrink = self.coefficient / (1.0 + self.coefficient * self._seen)
        return np.diag(1.0 / self.precision) - shrink * np.outer(scaled, scaled)

    @property
    def variance(self) -> Floats:
        """Diagonal of the covariance, (K,)."""
        shrink = self.coefficient / (1.0 + self.coefficient * self._seen)
        return 1.0 / self.precision - shrink * (self.x / self.precision) ** 2

    @property
    def output_mean(self) -> float:
        """Mean of ``x' w``."""
        return float(self.x @ self.loc)

    @property
    def output_variance(self) -> float:
        """Variance of ``x' w``."""
        return self._seen / (1.0 + self.coefficient * self._seen)

    @property
    def log_det_precision(self) -> float:
        rank_one = float(np.log1p(self.coefficient * self._seen))
        return float(np.log(self.precision).sum()) + rank_one

    def kl(self, other: "RankOneGaussian") -> float:
        """KL[self || other] in nats; both have the same ``x``."""
        shift = other.loc - self.loc
        trace = float(other.precision @ self.variance) + other.coefficient * self.output_variance
        distance = float(other.precision @ shift**2)
        distance += other.coefficient * float(self.x @ shift) ** 2
        log_det = self.log_det_precision - other.log_det_precision
        return 0.5 * (trace + distance - len(self.loc) + log_det)


@dataclass(frozen=True, eq=False)
class RepeatedDatum:
    """The model above and its data.

    Parameters
    ----------
    x : ndarray of shape (K,)
        The input.
    y : ndarray of shape (N,)
        Targets.
    noise_variance : float
    prior_variance : ndarray of shape (K,)
    prior_loc : ndarray of shape (K,), optional
        Zero by default.
    """

    x: Floats
    y: Floats
    noise_variance: float
    prior_variance: Floats
    prior_loc: Floats | None = None

    @cached_property
    def prior(self) -> RankOneGaussian:
        """``p(w)``."""
        loc = np.zeros_like(self.x) if self.prior_loc is None else self.prior_loc
        return RankOneGaussian(loc, 1.0 / self.prior_variance, self.x, 0.0)

    @property
    def exact_site(self) -> Site:
        """The likelihood of all data as a function of ``x' w``."""
        return Site(float(self.y.mean()), self.noise_variance / len(self.y))

    def posterior(self) -> RankOneGaussian:
        """The exact posterior, eqs. 13 and 75."""
        return self._with_site(self.exact_site)

    def _with_site(self, site: Site) -> RankOneGaussian:
        """Prior times one rank-one site: eq. 15, for any input appendix D.2 with eq. 73."""
        prior = self.prior
        gain = (site.location - prior.output_mean) / (site.variance + prior.output_variance)
        loc = prior.loc + gain * self.prior_variance * self.x
        return RankOneGaussian(loc, prior.precision, self.x, 1.0 / site.variance)

    def q_mix(self, theta: MeanFieldLikelihood) -> RankOneGaussian:
        """The invariance-abiding posterior, eqs. 6b and 15; two numbers of theta matter."""
        return self._with_site(marginal_site(theta.loc, theta.variance, self.x))

    def q_0(self, theta: MeanFieldLikelihood) -> RankOneGaussian:
        """The mean-field posterior, eq. 6a."""
        prior, site_precision = self.prior, 1.0 / theta.variance
        precision = prior.precision + site_precision
        loc = prior.loc + site_precision / precision * (theta.loc - prior.loc)
        return RankOneGaussian(loc, precision, self.x, 0.0)

    def optimal_theta_mix(self) -> MeanFieldLikelihood:
        """A maximiser of ``ELBO(q_mix)``: ``q_mix`` is then the exact posterior, eqs. 17a and 18.

        Of all thetas with the same `marginal_site` this one has a constant
        ``lambda_k / sigma_k^2``, the case of eqs. 9 and 10.
        """
        site, prior = self.exact_site, self.prior
        step = (site.location - prior.output_mean) / prior.output_variance
        return MeanFieldLikelihood(
            prior.loc + step * self.prior_variance * self.x,
            self.prior_variance * (site.variance / prior.output_variance),
        )

    def optimal_theta_0(self) -> MeanFieldLikelihood:
        """The maximiser of ``ELBO(q_0)``, eqs. 17b and 19 with the location corrected.

        ``q_0`` has the exact posterior's mean and the inverse diagonal of its precision. For
        ``x = 1 / K`` and equal prior variances ``s^2`` the location is
        ``mean(y) (s^2 + K^2 v) / (s^2 + K v)`` with ``v = noise_variance / N``; printed is
        ``mean(y)``.
        """
        seen = self.x != 0.0
        with np.errstate(divide="ignore"):
            variance = self.exact_site.variance / self.x**2
        pull = self.posterior().loc - self.prior.loc
        ratio = np.where(seen, variance / self.prior_variance, 0.0)
        return MeanFieldLikelihood(self.prior.loc + (1.0 + ratio) * pull, variance)

    def printed_theta_0(self) -> MeanFieldLikelihood:
        """Eq. 19 as printed: the location of eq. 18, with which ``q_0`` collapses to the prior."""
        return MeanFieldLikelihood(self.optimal_theta_mix().loc, self.optimal_theta_0().variance)

    def expected_log_likelihood(self, q: RankOneGaussian) -> float:
        """``E_q[log p(y | w)]`` in nats (ELL of eq. 2)."""
        squares = (self.y - q.output_mean) ** 2 + q.output_variance
        constant = np.log(2 * np.pi * self.noise_variance)
        return float(-0.5 * np.sum(constant + squares / self.noise_variance))

    def elbo(self, q: RankOneGaussian) -> float:
        """``E_q[log p(y | w)] - KL[q || p]`` in nats (eq. 2): at most `log_evidence`."""
        return self.expected_log_likelihood(q) - q.kl(self.prior)

    def log_evidence(self) -> float:
        """``log p(y)`` in nats."""
        return self.elbo(self.posterior())

    def gap(self, theta: MeanFieldLikelihood) -> float:
        """The invariance gap ``KL[q_0 || q_mix]`` at one theta, nats (eq. 10)."""
        return self.q_0(theta).kl(self.q_mix(theta))

    def data_bound(self) -> float:
        """``ELL`` of a perfect fit minus that of the prior, nats (eqs. 3 and 11).

        Bounds ``KL[q || p]`` of every q whose ELBO is at least the prior's (so of every optimum);
        the paper says of all q, which is false. Both terms of eq. 3 count the noise twice; their
        difference is right.
        """
        squares = (self.y - self.prior.output_mean) ** 2 + self.prior.output_variance
        return float(np.sum(squares) / (2.0 * self.noise_variance))


def constant_ratio_gap(n_seen: int, ratio: float) -> float:
    """The invariance gap ``KL[q_0 || q_mix]`` where ``lambda_k / sigma_k^2 = ratio``, eq. 16, nats.

    ``(K - 1) / 2 [log phi + 1 / phi - 1]`` with ``phi = 1 + 1 / ratio``: 0 at the prior (``ratio``
    infinite), and rising without bound as the posterior concentrates.

    Parameters
    ----------
    n_seen : int
        K, the number of weights.
    ratio : float
        Positive.
    """
    return 0.5 * (n_seen - 1) * (float(np.log1p(1.0 / ratio)) - 1.0 / (1.0 + ratio))
