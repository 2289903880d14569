"""Likelihoods of real targets: constant or input-dependent normal noise, and heavy tails."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lgamma, log, pi
from typing import ClassVar

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor
from torch.distributions import Distribution, Normal

from skbayes_sym.models.likelihoods.likelihood import (
    N_NODES,
    ExpectedLogProb,
    Kind,
    TargetLikelihood,
    collapse_equal_weights,
    expect_by_quadrature,
)
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.arguments import (
    check_flag,
    check_number,
    check_positive,
    check_vector,
    is_number,
    short_repr,
)
from skbayes_sym.numerics.gaussian import gauss_hermite


@dataclass(frozen=True, eq=False)
class Gaussian(TargetLikelihood):
    """``y ~ N(f, noise_scale^2)``, independent over outputs.

    Parameters
    ----------
    log_noise : Tensor of shape (O,)
        Log standard deviation of the noise of each output; 0 by default.
    learn : bool, default=True
        Whether ``log_noise`` is a free parameter (type-II maximum likelihood: the ELBO then bounds
        the evidence at the learned value).
    """

    kind: ClassVar[Kind] = "normal"

    log_noise: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    learn: bool = True

    def __post_init__(self) -> None:
        check_vector("log_noise", self.log_noise)
        check_flag("learn", self.learn)

    @property
    def params(self) -> Tensor:
        """Free parameters, (n_params,)."""
        if self.learn:
            return self.log_noise
        return self.log_noise[..., :0]

    def at(self, params: Tensor) -> "Gaussian":
        """Return the likelihood at other values of the parameters."""
        if self.learn:
            return replace(self, log_noise=params)
        return self

    @property
    def noise_scale(self) -> Tensor:
        """Scale of the noise, (T,)."""
        return self.log_noise.exp()

    def distribution(self, outputs: Tensor) -> Normal:
        """Return the distribution of the targets given outputs."""
        return Normal(outputs, self.noise_scale.to(outputs), validate_args=False)

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> NormalMixture:
        """Return the distribution of new targets for S draws of the outputs, (S, N, O)."""
        variance = self.noise_scale.to(outputs) ** 2
        return NormalMixture(outputs, outputs.new_zeros(()), variance, log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        z = (y - outputs) * (-self.log_noise).exp()
        return -(0.5 * (z * z) + self.log_noise + 0.5 * log(2 * pi)).sum(-1)

    @property
    def is_discrete(self) -> bool:
        """Whether targets are integers: no."""
        return False

    @property
    def scales_targets(self) -> bool:
        """Whether targets may be centred and scaled: yes."""
        return True

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,  # noqa: ARG002
    ) -> ExpectedLogProb:
        """Compute the closed form ``-[(y - m)^2 + v] / 2 s^2 - log s - log(2 pi) / 2``."""
        precision = (-2.0 * self.log_noise).exp()
        residual = y - mean
        scaled = torch.addcmul(variance, residual, residual) * precision
        constant = (self.log_noise + 0.5 * log(2 * pi)).sum()
        value = scaled.sum(-1).mul_(-0.5).sub_(constant)
        d_variance = (-0.5 * precision).expand_as(mean)
        d_params = scaled - 1.0 if self.learn else scaled[:, :0]
        return ExpectedLogProb(value, residual * precision, d_variance, d_params)

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """Return a root of the negative Hessian with respect to the outputs."""
        root = (-self.log_noise).exp().expand(outputs.shape[-1]).diag()
        return root.unsqueeze(1).expand(-1, outputs.shape[0], -1)

    def data_term(self, y: Tensor, weight: Tensor, n_outputs: int) -> "GaussianTerm":  # noqa: ARG002
        """Return the log likelihood for fixed targets."""
        fixed = None if self.learn else self.log_noise
        return GaussianTerm(
            y.T.contiguous(), collapse_equal_weights(weight), weight.sum().double(), fixed
        )


@dataclass(frozen=True, eq=False)
class GaussianTerm:
    """A `DataTerm` of normal noise, with one noise level per chain and output.

    Parameters
    ----------
    y : Tensor of shape (O, N)
        Targets.
    weight : Tensor of shape (N,) or (1,)
        Weights of the rows; a single one if all are equal.
    total_weight : Tensor of shape (), float64
        Sum of the weights.
    fixed : Tensor of shape (O,), optional
        Log standard deviation of the noise. By default ``params`` contains it.
    """

    y: Tensor  # (O, N)
    weight: Tensor  # (N,), or (1,) where all are equal
    total_weight: Tensor  # (); float64
    fixed: Tensor | None = None

    @cached_property
    def _constant(self) -> Tensor:
        """Normalising constant of the log likelihood, apart from the noise."""
        return (-0.5 * log(2 * pi) * self.total_weight * len(self.y)).to(self.y)

    @cached_property
    def _total(self) -> Tensor:
        """Sum of the weights in the dtype of the targets."""
        return self.total_weight.to(self.y)

    @cached_property
    def _log_weight(self) -> Tensor:
        """Logarithms of the weights."""
        return self.weight.log()

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        """Return the log likelihood of each chain, (C,) nats."""
        return self.gradient(outputs, params, torch.empty_like(outputs))[0]

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and the derivative by ``params``; the one by outputs goes to ``out``."""
        if self.fixed is None:
            log_noise = params
        else:
            log_noise = self.fixed.expand(len(params), -1)
        precision = torch.add(self._log_weight, log_noise.unsqueeze(2), alpha=-2.0).exp_()
        residual = torch.sub(self.y, outputs, out=outputs)
        torch.mul(residual, precision, out=out)
        squares = residual.mul_(out).sum(2)  # (C, O)
        minus_twice = torch.addcmul(squares, log_noise, self._total, value=2.0).sum(1)
        value = torch.add(self._constant, minus_twice, alpha=-0.5)
        if self.fixed is None:
            d_params = squares.sub_(self._total)
        else:
            d_params = params
        return value, d_params


@dataclass(frozen=True)
class Heteroscedastic(TargetLikelihood):
    """``y ~ N(f_1, sigma^2)``, ``sigma = least + exp(log_std + spread f_2)``: two heads a target.

    The outputs (N, 2 T) are the means of the T targets, followed by their log standard deviations.

    Parameters
    ----------
    log_std : float, default=0.0
        Logarithm of the standard deviation where the second output is 0, in standardised units. At
        0 the noise is then as large as the standard deviation of the targets.
    spread : float, default=1.0
        Prior standard deviation of the second output relative to the first. Both outputs share the
        network's prior, so ``log sigma`` lies within about ``spread`` times the prior standard
        deviation of a function value around ``log_std``, and differs by as much between inputs.
        Smaller values make the noise more constant; 0.1 is nearly constant noise.
    least : float, default=0.0
        Smallest standard deviation, which is added to that of the second output, in standardised
        units: the best precision of the targets. If identical rows have identical targets, the
        likelihood grows without bound as their noise falls to 0. With repeated rows, give at least
        the rounding error of the targets.

    Notes
    -----
    Expectations over normal outputs are in closed form. With ``least`` they are computed by
    quadrature over the second output. The curvature is the expected one (Fisher information), which
    is diagonal, ``1 / sigma^2`` and ``2 (d log sigma / d f_2)^2``. The observed one isn't positive
    definite. `NaturalHeteroscedastic` has a full matrix.

    References
    ----------
    D. A. Nix and A. S. Weigend (1994). Estimating the mean and variance of the target probability
    distribution. ICNN, eq. 6.
    """

    kind: ClassVar[Kind] = "heteroscedastic"
    n_outputs_per_target: ClassVar[int] = 2

    log_std: float = 0.0
    spread: float = 1.0
    least: float = 0.0

    def __post_init__(self) -> None:
        check_number("log_std", self.log_std)
        check_positive("spread", self.spread)
        check_number("least", self.least, 0.0)

    def heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations (*B, N, T) from outputs (*B, N, 2 T)."""
        mean, second = outputs.chunk(2, -1)
        return mean, self._bounded_log_std(second)

    def _bounded_log_std(self, second: Tensor) -> Tensor:
        """Return the log standard deviation for values of the second output."""
        log_std = self.log_std + self.spread * second
        if not self.least:
            return log_std
        return torch.logaddexp(log_std, log_std.new_tensor(log(self.least)))

    def _slope(self, log_std: Tensor) -> Tensor:
        """Return the derivative of ``log sigma`` with respect to the second output."""
        return self.spread * (1.0 - self.least * (-log_std).exp())

    def distribution(self, outputs: Tensor) -> Normal:
        """Return the distribution of the targets given outputs."""
        mean, log_std = self.heads(outputs)
        return Normal(mean, log_std.exp(), validate_args=False)

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> NormalMixture:
        """Return the distribution of new targets for S draws of the outputs, (S, N, O)."""
        mean, log_std = self.heads(outputs)
        limits = torch.finfo(mean.dtype)  # a variance of 0 or infinity has no density
        variance = (2.0 * log_std).exp().clamp(limits.tiny**0.5, limits.max**0.5)
        return NormalMixture(mean, mean.new_zeros(()), variance, log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        mean, log_std = self.heads(outputs)
        z = (y - mean) * (-log_std).exp()
        return -(0.5 * (z * z) + log_std + 0.5 * log(2 * pi)).sum(-1)

    def n_noise(self, n_outputs: int) -> int:  # noqa: ARG002
        """Return 0: expectations are in closed form."""
        return 0

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,  # noqa: ARG002
    ) -> ExpectedLogProb:
        r"""Compute ``-E[log s] - [(y - m_1)^2 + v_1] E[s^-2] / 2 - log(2 pi) / 2`` in closed form.

        Without ``least``, :math:`E[s^{-2}] = \exp(-2 E[\log s] + 2 \mathrm{Var}[\log s])`.
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
        """Integrate over the first output in closed form, and over the second one with 64 nodes."""
        m, m_second = mean.chunk(2, -1)
        v, v_second = variance.chunk(2, -1)
        nodes, weights = (t.to(mean) for t in gauss_hermite(N_NODES))
        sd = v_second.sqrt()
        log_std = self._bounded_log_std(m_second.unsqueeze(-1) + sd.unsqueeze(-1) * nodes)
        precision = (-2.0 * log_std).exp()
        residual = y - m
        square = torch.addcmul(v, residual, residual).unsqueeze(-1)
        slope = self._slope(log_std) * (square * precision - 1.0) * weights
        value = -(0.5 * square * precision + log_std + 0.5 * log(2 * pi)) @ weights
        expected = precision @ weights
        d_mean = torch.cat([residual * expected, slope.sum(-1)], -1)
        d_variance = torch.cat([-0.5 * expected, slope @ nodes / (2.0 * sd)], -1)
        return ExpectedLogProb(value.sum(-1), d_mean, d_variance, mean.new_zeros(len(mean), 0))

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """Return the root of the Fisher information, which is diagonal, (2 T, N, 2 T)."""
        _, log_std = self.heads(outputs)
        diagonal = torch.cat([(-log_std).exp(), 2**0.5 * self._slope(log_std)], -1)
        return diagonal.diag_embed().movedim(-1, 0)

    def data_term(self, y: Tensor, weight: Tensor, n_outputs: int) -> "HeteroscedasticTerm":  # noqa: ARG002
        """Return the log likelihood for fixed targets."""
        return HeteroscedasticTerm(
            y.T.contiguous(), collapse_equal_weights(weight), weight.sum().double(), self.log_std,
            self.spread, self.least,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class HeteroscedasticTerm:
    """A `DataTerm` with a noise level per row.

    Parameters
    ----------
    y : Tensor of shape (T, N)
        Targets.
    weight : Tensor of shape (N,) or (1,)
        Weights of the rows; a single one if all are equal.
    total_weight : Tensor of shape (), float64
        Sum of the weights.
    log_std, spread, least : float
        Parameters of `Heteroscedastic`.
    """

    y: Tensor  # (T, N)
    weight: Tensor  # (N,), or (1,) where all are equal
    total_weight: Tensor  # (); float64
    log_std: float
    spread: float
    least: float = 0.0

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        """Return the log likelihood of each chain, (C,) nats."""
        return self.gradient(outputs, params, torch.empty_like(outputs))[0]

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return value and derivative, in place: four passes over the outputs, O(C T N)."""
        n_targets = len(self.y)
        mean = outputs[:, :n_targets]
        log_std = outputs[:, n_targets:]
        first = out[:, :n_targets]
        second = out[:, n_targets:]
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
        terms = torch.add(second, log_std, alpha=2.0)
        weight = self.weight
        if len(weight) == 1:
            value = terms.sum((1, 2)) * weight
        else:
            value = terms.sum(1) @ weight
        value.mul_(-0.5)
        value.sub_((0.5 * log(2 * pi) * self.total_weight * n_targets).to(value))
        second.sub_(1.0).mul_(slope)
        first.mul_(self.weight)
        return value, params


@dataclass(frozen=True)
class NaturalHeteroscedastic(TargetLikelihood):
    r"""``y ~ N(f_1 / p, 1 / p)`` with the precision ``p = exp f_2``: two outputs per target.

    The outputs (N, 2 T) are :math:`\eta_1 = \mu / \sigma^2` of the T targets, followed by the
    logarithms of their precisions, :math:`\eta_2 = -\exp(f_2) / 2`. These are the natural
    parameters (Immer et al. 2023). The prior that `Heteroscedastic` has on the mean is here one on
    the mean over the variance, so a priori means are larger where there is more noise.

    Notes
    -----
    The log density is concave in the natural parameters, so the Gauss-Newton curvature is the
    Fisher information, a full matrix for every row,

    .. math:: \begin{pmatrix} \sigma^2 & -\mu \\ -\mu & \mu^2 / \sigma^2 + 1/2 \end{pmatrix},

    instead of the diagonal one of mean and log standard deviation. The Laplace approximation thus
    represents the correlation of both outputs. Expectations over normal outputs are in closed form.

    References
    ----------
    A. Immer, E. Palumbo, A. Marx and J. Vogt (2023). Effective Bayesian heteroscedastic regression
    with deep neural networks. NeurIPS.
    """

    kind: ClassVar[Kind] = "heteroscedastic"
    n_outputs_per_target: ClassVar[int] = 2

    def heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations (*B, N, T) from outputs (*B, N, 2 T)."""
        first, second = outputs.chunk(2, -1)
        return first * (-second).exp(), (-0.5 * second).exp()

    def distribution(self, outputs: Tensor) -> Normal:
        """Return the distribution of the targets given outputs."""
        return Normal(*self.heads(outputs), validate_args=False)

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> NormalMixture:
        """Return the distribution of new targets for S draws of the outputs, (S, N, O)."""
        mean, std = self.heads(outputs)
        limits = torch.finfo(mean.dtype)
        variance = std.square().clamp(limits.tiny**0.5, limits.max**0.5)
        return NormalMixture(mean, mean.new_zeros(()), variance, log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        first, second = outputs.chunk(2, -1)
        # The three terms of the square would cancel.
        z = y * (0.5 * second).exp() - first * (-0.5 * second).exp()
        return (-0.5 * z * z + 0.5 * second - 0.5 * log(2 * pi)).sum(-1)

    def n_noise(self, n_outputs: int) -> int:  # noqa: ARG002
        """Return 0: expectations are in closed form."""
        return 0

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,  # noqa: ARG002
    ) -> ExpectedLogProb:
        r"""Compute expectations in closed form.

        With :math:`E[e^{\pm f_2}] = \exp(\pm m_2 + v_2 / 2)` this is the expectation of
        :math:`-\tfrac12 y^2 e^{f_2} + y f_1 - \tfrac12 f_1^2 e^{-f_2} + \tfrac12 f_2
        - \tfrac12 \log 2\pi`.
        """
        m1, m2 = mean.chunk(2, -1)
        v1, v2 = variance.chunk(2, -1)
        inverse = (0.5 * v2 - m2).exp()
        noise_part = y * y * (0.5 * v2 + m2).exp()
        mean_part = (m1 * m1 + v1) * inverse
        value = y * m1 - 0.5 * (noise_part + mean_part) + 0.5 * m2 - 0.5 * log(2 * pi)
        d_second = 0.5 * (1.0 + mean_part - noise_part)
        d_mean = torch.cat([y - m1 * inverse, d_second], -1)
        d_variance = torch.cat([-0.5 * inverse, -0.25 * (noise_part + mean_part)], -1)
        return ExpectedLogProb(value.sum(-1), d_mean, d_variance, mean.new_zeros(len(mean), 0))

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """Return Cholesky factors of the Fisher information, (2 T, N, 2 T).

        The factor of a target is ``(sigma, 0; -mu / sigma, 1 / sqrt 2)``.
        """
        mean, std = self.heads(outputs)
        zero = torch.zeros_like(mean).diag_embed()
        top = torch.cat([std.diag_embed(), zero], -1)
        half = torch.full_like(mean, 0.5**0.5).diag_embed()
        bottom = torch.cat([(-mean / std).diag_embed(), half], -1)
        return torch.cat([top, bottom], -2).movedim(-1, 0)


@dataclass(frozen=True, eq=False)
class StudentT(TargetLikelihood):
    """``(y - f) / noise_scale ~ t(df)``, targets (N, T).

    Parameters
    ----------
    log_noise : Tensor of shape (T,)
        Log of the scale; 0 by default. The standard deviation is larger than the scale by
        sqrt(df / (df - 2)).
    df : "learn" or float, default=4.0
        Degrees of freedom of all targets.
    learn : bool, default=True
        Whether the scale is a free parameter.
    log_tail : Tensor of shape (1,)
        Log of ``4 / df`` if ``df`` is learned; 0 by default. Samplers and ensembles give ``4 / df``
        a half-normal prior (`HalfNormal`). With scale 1, ``df`` is above 2 with probability 0.95,
        above 4 with 0.68, and above 30, where the distribution is nearly normal, with 0.11.
    """

    kind: ClassVar[Kind] = "student-t"

    log_noise: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    df: float | str = 4.0
    learn: bool = True
    log_tail: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    def __post_init__(self) -> None:
        check_vector("log_noise", self.log_noise)
        check_vector("log_tail", self.log_tail)
        check_flag("learn", self.learn)
        is_learned = isinstance(self.df, str) and self.df == "learn"
        if not is_learned and not (is_number(self.df) and float(self.df) > 0.0):
            raise ValueError(f"df must be positive or 'learn', got {short_repr(self.df)}.")

    @property
    def is_discrete(self) -> bool:
        """Whether targets are integers: no."""
        return False

    @property
    def scales_targets(self) -> bool:
        """Whether targets may be centred and scaled: yes."""
        return True

    @property
    def _learns_df(self) -> bool:
        """Whether the degrees of freedom are a free parameter."""
        return self.df == "learn"

    @property
    def degrees_of_freedom(self) -> Tensor:
        """Degrees of freedom, fixed or learned, (..., 1)."""
        return torch.as_tensor(self._df, dtype=torch.float64).to(self.log_tail)

    @property
    def _df(self) -> float | Tensor:
        """Degrees of freedom as a float, or as a tensor if they are learned."""
        if self._learns_df:
            return 4.0 * (-self.log_tail).exp()
        return float(self.df)

    @property
    def _log_constant(self) -> float | Tensor:
        """Log of the normalising constant of the standard t distribution."""
        df = self._df
        if isinstance(df, float):
            return lgamma(0.5 * (df + 1)) - lgamma(0.5 * df) - 0.5 * log(df * pi)
        gammas = torch.lgamma(0.5 * (df + 1)) - torch.lgamma(0.5 * df)
        return gammas - 0.5 * (df.log() + log(pi))

    @property
    def params(self) -> Tensor:
        """Free parameters, (n_params,)."""
        if self.learn:
            noise = self.log_noise
        else:
            noise = self.log_noise[..., :0]
        if not self._learns_df:
            return noise
        noise = noise.expand(*self.log_tail.shape[:-1], noise.shape[-1])
        return torch.cat([noise, self.log_tail], -1)

    @property
    def noise_scale(self) -> Tensor:
        """Scale of the noise, (T,)."""
        return self.log_noise.exp()

    def at(self, params: Tensor) -> "StudentT":
        """Return the likelihood at other values of the parameters."""
        likelihood = self
        if self._learns_df:
            likelihood = replace(self, log_tail=params[..., -1:])
            params = params[..., :-1]
        if self.learn:
            return replace(likelihood, log_noise=params)
        return likelihood

    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of the targets given outputs."""
        scale = self.noise_scale.to(outputs)
        df = self.degrees_of_freedom.to(outputs)
        return torch.distributions.StudentT(df, outputs, scale, validate_args=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        return self._log_prob(y - outputs).sum(-1)

    def _log_prob(self, residual: Tensor) -> Tensor:
        """Return the log density of residuals, elementwise."""
        df = self._df
        z = residual * (-self.log_noise).exp()
        return self._log_constant - self.log_noise - 0.5 * (df + 1) * torch.log1p(z * z / df)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Compute expectations by quadrature over one output, or by autograd."""
        if mean.shape[-1] > 1 or self._learns_df:
            return super().expected_log_prob(mean, variance, y, noise)
        df = self._df
        precision = (-2.0 * self.log_noise).exp()

        def weight(f: Tensor) -> Tensor:
            """Return the weight of each row in an equivalent weighted least-squares fit."""
            return (df + 1) * precision / (df + (y - f) ** 2 * precision)

        return expect_by_quadrature(
            lambda f: (self._log_prob(y - f), weight(f) * (y - f)), mean, variance,
            (lambda f: weight(f) * (y - f) ** 2 - 1.0) if self.learn else None,
        )  # fmt: skip

    def approximate_expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor
    ) -> ExpectedLogProb:
        """Compute a lower bound, the density at ``sqrt((y - m)^2 + v)``.

        It is a bound since the t distribution is a mixture of normals over precisions.
        """
        df = torch.as_tensor(self._df).to(mean)
        precision = (-2.0 * self.log_noise).exp()
        squares = (y - mean).square() + variance
        z = squares * precision / df
        weight = (df + 1) / (df * (1.0 + z)) * precision
        if self.learn:
            slopes = [weight * squares - 1.0]
        else:
            slopes = []
        if self._learns_df:  # derivative with respect to log(4 / df)
            digamma = torch.digamma(0.5 * (df + 1)) - torch.digamma(0.5 * df)
            by_df = 0.5 * (digamma - 1.0 / df - torch.log1p(z) + (df + 1) / df * z / (1.0 + z))
            slopes.append((-df * by_df).sum(-1, keepdim=True))
        if slopes:
            d_params = torch.cat(slopes, -1)
        else:
            d_params = squares[:, :0]
        value = self._log_prob(squares.sqrt()).sum(-1)
        return ExpectedLogProb(value, weight * (y - mean), -0.5 * weight, d_params)

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the expected targets."""
        return outputs  # this is the median if df <= 1

    def variance(self, outputs: Tensor) -> Tensor:
        """Return the variances of the targets, infinite for ``df <= 2``."""
        df = self.degrees_of_freedom
        factor = torch.where(df > 2.0, df / (df - 2.0), torch.inf)
        return ((2.0 * self.log_noise).exp() * factor).to(outputs) * torch.ones_like(outputs)

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (*B, N, T)."""
        z = ((y - outputs) * (-self.log_noise).exp().to(outputs)).double()
        # torch has no incomplete beta function.
        df = self.degrees_of_freedom.double().cpu().numpy()
        value = torch.as_tensor(stdtr(df, z.cpu().numpy()), device=z.device)
        return value.to(outputs)

    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Sample one value per target."""
        df = self.degrees_of_freedom.double().cpu().numpy()
        noise = torch.as_tensor(rng.standard_t(df, size=tuple(outputs.shape)))
        return outputs + self.noise_scale.to(outputs) * noise.to(outputs)
