"""Normal noise that changes with the input, two outputs a target."""

from dataclasses import dataclass
from math import inf, isfinite, log, pi
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Normal

from skbayes_sym.models.likelihoods.expectations import N_NODES, ExpectedLogProb, collapsed_weight
from skbayes_sym.models.likelihoods.likelihood import Kind, TargetLikelihood
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.gaussian import gauss_hermite


@dataclass(frozen=True)
class Heteroscedastic(TargetLikelihood):
    r"""``y ~ N(f_1, sigma^2)``, ``sigma = least + exp(log_std + spread f_2)``: two heads a target.

    The outputs (N, 2 T) are the T targets' means, then their log standard deviations.

    Parameters
    ----------
    log_std : float, default=0.0
        Logarithm of the standard deviation where the second head is 0, in standardised units: at 0
        the noise is then as large as the targets' own spread.
    spread : float, default=1.0
        Standard deviation of the second head's prior, relative to the first's. Weights and biases
        of both have the network's one prior, so ``log sigma`` is believed to lie within about
        ``spread`` times the prior standard deviation of a function value around ``log_std``, and
        any two inputs may differ in it as far. Less says that the noise changes less: 0.1 is
        nearly one noise for all rows.
    least : float, default=0.0
        Standard deviation that is added to the second head's, in standardised units: what targets
        are known to at best. Identical rows with identical targets have a likelihood that grows
        without bound as their noise falls to 0; with repeated rows give at least their rounding.

    Notes
    -----
    Expectations over normal outputs are in closed form, with ``least`` by quadrature over the
    second head. The curvature is the expected one (Fisher
    information), which is diagonal, ``1 / sigma^2`` and ``2 (d log sigma / d f_2)^2``: the observed
    one isn't positive definite. `NaturalHeteroscedastic` has a full
    one.

    References
    ----------
    D. A. Nix and A. S. Weigend (1994). Estimating the mean and variance of the target probability
    distribution. ICNN, eq. 6.
    """

    kind: ClassVar[Kind] = "heteroscedastic"

    log_std: float = 0.0
    spread: float = 1.0
    least: float = 0.0

    def __post_init__(self) -> None:
        if not isfinite(self.log_std) or not (self.spread > 0.0 and isfinite(self.spread)):
            raise ValueError(
                "log_std must be finite and spread positive, got "
                f"{self.log_std!r} and {self.spread!r}."
            )
        if not 0.0 <= self.least < inf:
            raise ValueError(f"least must be finite and not negative, got {self.least!r}.")

    @property
    def n_outputs_per_target(self) -> int:
        return 2

    def heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log standard deviations (*B, N, T) of outputs (*B, N, 2 T)."""
        mean, second = outputs.chunk(2, -1)
        return mean, self._log_std_of(second)

    def _log_std_of(self, second: Tensor) -> Tensor:
        log_std = self.log_std + self.spread * second
        return (
            torch.logaddexp(log_std, log_std.new_tensor(log(self.least))) if self.least else log_std
        )

    def _slope(self, log_std: Tensor) -> Tensor:
        """Slope of ``log sigma`` by the second head."""
        return self.spread * (1.0 - self.least * (-log_std).exp())

    def distribution(self, outputs: Tensor) -> Normal:
        mean, log_std = self.heads(outputs)
        return Normal(mean, log_std.exp(), validate_args=False)

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> NormalMixture:
        mean, log_std = self.heads(outputs)
        return NormalMixture(mean, mean.new_zeros(()), (2.0 * log_std).exp(), log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, log_std = self.heads(outputs)
        z = (y - mean) * (-log_std).exp()
        return -(0.5 * (z * z) + log_std + 0.5 * log(2 * pi)).sum(-1)

    def n_noise(self, n_outputs: int) -> int:
        return 0

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        r"""Closed form: ``-E[log s] - [(y - m_1)^2 + v_1] E[s^-2] / 2 - log(2 pi) / 2``.

        :math:`E[s^{-2}] = \exp(-2 E[\log s] + 2 \mathrm{Var}[\log s])`, without ``least``.
        """
        if self.least:
            return self._by_quadrature(mean, variance, y)
        m, log_std = self.heads(mean)
        v, v_second = variance.chunk(2, -1)
        precision = (-2.0 * log_std + 2.0 * self.spread**2 * v_second).exp()
        residual = y - m
        scaled = torch.addcmul(v, residual, residual) * precision
        value = -(0.5 * scaled + log_std + 0.5 * log(2 * pi)).sum(-1)
        d_mean = torch.cat([residual * precision, self.spread * (scaled - 1.0)], -1)
        d_variance = torch.cat([-0.5 * precision, -(self.spread**2) * scaled], -1)
        return ExpectedLogProb(value, d_mean, d_variance, mean.new_zeros(len(mean), 0))

    def _by_quadrature(self, mean: Tensor, variance: Tensor, y: Tensor) -> ExpectedLogProb:
        """Exact over the first head, 64 nodes over the second."""
        (m, m_second), (v, v_second) = mean.chunk(2, -1), variance.chunk(2, -1)
        nodes, weights = (t.to(mean) for t in gauss_hermite(N_NODES))
        sd = v_second.sqrt()
        log_std = self._log_std_of(m_second.unsqueeze(-1) + sd.unsqueeze(-1) * nodes)
        precision = (-2.0 * log_std).exp()
        residual = y - m
        square = torch.addcmul(v, residual, residual).unsqueeze(-1)
        slope = self._slope(log_std) * (square * precision - 1.0) * weights
        value = -(0.5 * square * precision + log_std + 0.5 * log(2 * pi)) @ weights
        expected = precision @ weights
        d_mean = torch.cat([residual * expected, slope.sum(-1)], -1)
        d_variance = torch.cat([-0.5 * expected, slope @ nodes / (2.0 * sd)], -1)
        return ExpectedLogProb(value.sum(-1), d_mean, d_variance, mean.new_zeros(len(mean), 0))

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Root of the Fisher information, diagonal, (2 T, N, 2 T)."""
        _, log_std = self.heads(outputs)
        diagonal = torch.cat([(-log_std).exp(), 2**0.5 * self._slope(log_std)], -1)
        return diagonal.diag_embed().movedim(-1, 0)

    def given(self, y: Tensor, weight: Tensor, n_outputs: int) -> "HeteroscedasticTerm":
        return HeteroscedasticTerm(
            y.T.contiguous(), collapsed_weight(weight), weight.sum().double(), self.log_std,
            self.spread, self.least,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class HeteroscedasticTerm:
    """A `DataTerm` with a noise of every row.

    ``log_std``, ``spread``, ``least``: as `Heteroscedastic` has them.
    """

    y: Tensor  # (T, N)
    weight: Tensor  # (N,), or (1,) where all are equal
    total_weight: Tensor  # (); float64
    log_std: float
    spread: float
    least: float = 0.0

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        return self.gradient(outputs, params, torch.empty_like(outputs))[0]

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """O(C T N), in place: four passes over the outputs."""
        n_targets = len(self.y)
        mean, log_std = outputs[:, :n_targets], outputs[:, n_targets:]
        first, second = out[:, :n_targets], out[:, n_targets:]
        log_std.mul_(self.spread).add_(self.log_std)
        slope = self.weight * self.spread
        if self.least:
            floor = log_std.new_full((), log(self.least))
            slope = slope * (log_std - floor).sigmoid()
            torch.logaddexp(log_std, floor, out=log_std)
        residual = torch.sub(self.y, mean, out=mean)
        weighted = torch.mul(log_std, -2.0, out=first).exp_()
        weighted.mul_(residual)  # (y - m) / s^2
        torch.mul(weighted, residual, out=second)  # the square of z
        terms, weight = torch.add(second, log_std, alpha=2.0), self.weight
        value = terms.sum((1, 2)) * weight if len(weight) == 1 else terms.sum(1) @ weight
        value.mul_(-0.5)
        value.sub_((0.5 * log(2 * pi) * self.total_weight * n_targets).to(value))
        second.sub_(1.0).mul_(slope)
        first.mul_(self.weight)
        return value, params


@dataclass(frozen=True)
class NaturalHeteroscedastic(TargetLikelihood):
    r"""``y ~ N(f_1 / p, 1 / p)`` with the precision ``p = exp f_2``, two heads a target.

    The outputs (N, 2 T) are the T targets' :math:`\eta_1 = \mu / \sigma^2`, then the logarithms of
    their precisions, :math:`\eta_2 = -\exp(f_2) / 2`: the natural parameters (Immer et al. 2023).
    What `Heteroscedastic` believes of the mean is believed of the mean over the variance here, so
    means are larger where there is more noise.

    Notes
    -----
    The log density is concave in the natural parameters, so the Gauss-Newton curvature through
    them is the Fisher information, a full matrix of every row,

    .. math:: \begin{pmatrix} \sigma^2 & -\mu \\ -\mu & \mu^2 / \sigma^2 + 1/2 \end{pmatrix},

    in place of the diagonal one of mean and log standard deviation: the Laplace approximation knows
    that the two heads are correlated. Expectations over normal outputs are in closed form.

    References
    ----------
    A. Immer, E. Palumbo, A. Marx and J. Vogt (2023). Effective Bayesian heteroscedastic regression
    with deep neural networks. NeurIPS.
    """

    kind: ClassVar[Kind] = "heteroscedastic"

    @property
    def n_outputs_per_target(self) -> int:
        return 2

    def heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations (*B, N, T) of outputs (*B, N, 2 T)."""
        first, second = outputs.chunk(2, -1)
        return first * (-second).exp(), (-0.5 * second).exp()

    def distribution(self, outputs: Tensor) -> Normal:
        return Normal(*self.heads(outputs), validate_args=False)

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> NormalMixture:
        mean, std = self.heads(outputs)
        return NormalMixture(mean, mean.new_zeros(()), std.square(), log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        first, second = outputs.chunk(2, -1)
        # As a square: the sum of its three parts cancels.
        z = y * (0.5 * second).exp() - first * (-0.5 * second).exp()
        return (-0.5 * z * z + 0.5 * second - 0.5 * log(2 * pi)).sum(-1)

    def n_noise(self, n_outputs: int) -> int:
        return 0

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        r"""Closed form.

        With :math:`E[e^{\pm f_2}] = \exp(\pm m_2 + v_2 / 2)` the expectation of
        :math:`-\tfrac12 y^2 e^{f_2} + y f_1 - \tfrac12 f_1^2 e^{-f_2} + \tfrac12 f_2
        - \tfrac12 \log 2\pi`.
        """
        (m1, m2), (v1, v2) = (t.chunk(2, -1) for t in (mean, variance))
        inverse = (0.5 * v2 - m2).exp()
        noise_part, mean_part = y * y * (0.5 * v2 + m2).exp(), (m1 * m1 + v1) * inverse
        value = y * m1 - 0.5 * (noise_part + mean_part) + 0.5 * m2 - 0.5 * log(2 * pi)
        d_second = 0.5 * (1.0 + mean_part - noise_part)
        d_mean = torch.cat([y - m1 * inverse, d_second], -1)
        d_variance = torch.cat([-0.5 * inverse, -0.25 * (noise_part + mean_part)], -1)
        return ExpectedLogProb(value.sum(-1), d_mean, d_variance, mean.new_zeros(len(mean), 0))

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cholesky factors of the Fisher information, (2 T, N, 2 T).

        A target's is ``(sigma, 0; -mu / sigma, 1 / sqrt 2)``.
        """
        mean, std = self.heads(outputs)
        zero = torch.zeros_like(mean).diag_embed()
        top = torch.cat([std.diag_embed(), zero], -1)
        half = torch.full_like(mean, 0.5**0.5).diag_embed()
        bottom = torch.cat([(-mean / std).diag_embed(), half], -1)
        return torch.cat([top, bottom], -2).movedim(-1, 0)
