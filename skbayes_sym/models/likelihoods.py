"""Likelihoods: how outputs of a network become the distribution of a target."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log, pi
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class ExpectedLogProb(NamedTuple):
    """E[log p(y | f)] for ``f ~ N(mean, variance)`` with its derivatives, one row a datum."""

    value: Tensor  # (N,), nats
    d_mean: Tensor  # (N, O)
    d_variance: Tensor  # (N, O)
    d_params: Tensor  # (N, n_params)


class Likelihood(Protocol):
    """Conditional density of targets given outputs, with parameters of its own.

    ``n_params`` free parameters are learned beside the network's; `at` returns the likelihood at
    their values and `params` reads them, so the objects themselves never change.
    """

    @property
    def n_params(self) -> int: ...

    @property
    def params(self) -> Tensor: ...

    @property
    def noise_std(self) -> Tensor:
        """Standard deviation of additive noise (O,); empty where there is no such thing."""
        ...

    @property
    def needs_noise(self) -> bool:
        """Whether `expected_log_prob` samples the outputs (False: closed form)."""
        ...

    def at(self, params: Tensor) -> "Likelihood": ...

    def to(self, like: Tensor) -> "Likelihood":
        """With constants of the dtype and on the device of ``like``."""
        ...

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(*B, N, O) -> (*B, N), nats."""
        ...

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None
    ) -> ExpectedLogProb: ...


class BatchedLikelihood(Likelihood, Protocol):
    """One that many chains can evaluate at once, each with parameters of its own."""

    def at(self, params: Tensor) -> "BatchedLikelihood": ...

    def to(self, like: Tensor) -> "BatchedLikelihood": ...

    def given(self, y: Tensor, weight: Tensor, n_outputs: int) -> "DataTerm":
        """The log likelihood of targets that stay, as samplers evaluate it."""
        ...


class DataTerm(Protocol):
    """``sum_n weight_n log p(y_n | f_cn, params_c)`` of C chains, for targets prepared once.

    Outputs come as (C, O, N) and may be overwritten; ``params`` is (C, n_params).
    """

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        """(C,), nats."""
        ...

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """The value (C,) and its derivative (C, n_params); that by the outputs goes to ``out``."""
        ...


@dataclass(frozen=True, eq=False)
class Gaussian:
    """``y ~ N(f, noise_std^2)``, independent over outputs.

    Parameters
    ----------
    log_noise : Tensor of shape (O,)
        Log standard deviation of the noise of every output.
    learn : bool
        Whether it is a free parameter (type-II maximum likelihood: the ELBO then bounds the
        evidence at the learned value).
    """

    log_noise: Tensor
    learn: bool = True
    needs_noise: bool = False

    @property
    def n_params(self) -> int:
        return self.log_noise.numel() if self.learn else 0

    @property
    def params(self) -> Tensor:
        return self.log_noise if self.learn else self.log_noise[:0]

    def at(self, params: Tensor) -> "Gaussian":
        return replace(self, log_noise=params) if self.learn else self

    def to(self, like: Tensor) -> "Gaussian":
        return replace(self, log_noise=self.log_noise.to(like))

    @property
    def noise_std(self) -> Tensor:
        return self.log_noise.exp()

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        z = (y - outputs) * (-self.log_noise).exp()
        return -(0.5 * (z * z) + self.log_noise + 0.5 * log(2 * pi)).sum(-1)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> ExpectedLogProb:
        """Closed form: ``-[(y - m)^2 + v] / 2 s^2 - log s - log(2 pi)/2``."""
        precision = (-2.0 * self.log_noise).exp()
        residual = y - mean
        scaled = torch.addcmul(variance, residual, residual) * precision
        value = -0.5 * scaled.sum(-1) - (self.log_noise + 0.5 * log(2 * pi)).sum()
        d_variance = (-0.5 * precision).expand_as(mean)
        d_params = scaled - 1.0 if self.learn else scaled[:, :0]
        return ExpectedLogProb(value, residual * precision, d_variance, d_params)

    def given(self, y: Tensor, weight: Tensor, n_outputs: int) -> "GaussianTerm":
        fixed = None if self.learn else self.log_noise
        return GaussianTerm(y.T.contiguous(), _collapsed(weight), float(weight.sum()), fixed)


@dataclass(frozen=True, eq=False)
class GaussianTerm:
    """A `DataTerm` with one noise a chain and output.

    Parameters
    ----------
    y : Tensor of shape (O, N)
    weight : Tensor of shape (N,), or (1,) where all are equal
    total_weight : float
    fixed : Tensor of shape (O,), optional
        Log standard deviation of the noise; by default it is what ``params`` holds.
    """

    y: Tensor
    weight: Tensor
    total_weight: float
    fixed: Tensor | None = None

    @cached_property
    def _constant(self) -> Tensor:
        return self.y.new_tensor(-0.5 * log(2 * pi) * self.total_weight * len(self.y))

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        return self.gradient(outputs, params, torch.empty_like(outputs))[0]

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        log_noise = params if self.fixed is None else self.fixed.expand(len(params), -1)
        precision = (-2.0 * log_noise).exp_().unsqueeze(2)
        residual = torch.sub(self.y, outputs, out=outputs)
        torch.mul(residual, precision * self.weight, out=out)
        squares = residual.mul_(out).sum(2)  # (C, O)
        minus_twice = torch.add(squares, log_noise, alpha=2.0 * self.total_weight).sum(1)
        value = torch.add(self._constant, minus_twice, alpha=-0.5)
        d_params = squares.sub_(self.total_weight) if self.fixed is None else params
        return value, d_params


def log_class_probabilities(outputs: Tensor) -> Tensor:
    """Log softmax over the last axis, (*B, N, C).

    With the classes moved inwards torch's CPU kernel runs over the rows instead of over a few
    classes at a time: up to ten times as fast.
    """
    return outputs.mT.contiguous().log_softmax(-2).mT


@dataclass(frozen=True, eq=False)
class Categorical:
    """``p(y = k | f) = softmax(f)_k``; targets are class indices (int64)."""

    n_params: int = 0
    needs_noise: bool = True

    @property
    def params(self) -> Tensor:
        return torch.zeros(0, dtype=torch.float64)

    def to(self, like: Tensor) -> "Categorical":
        return self

    @property
    def noise_std(self) -> Tensor:
        return torch.zeros(0, dtype=torch.float64)

    def at(self, params: Tensor) -> "Categorical":
        return self

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_p = log_class_probabilities(outputs)
        index = y.expand(log_p.shape[:-1]).unsqueeze(-1)
        return log_p.gather(-1, index).squeeze(-1)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None
    ) -> ExpectedLogProb:
        """One reparametrised draw a row: ``f = m + sqrt(v) noise`` (unbiased)."""
        if noise is None:
            raise ValueError("Categorical.expected_log_prob needs noise of the outputs' shape.")
        sd = variance.sqrt()
        log_p = log_class_probabilities(torch.addcmul(mean, sd, noise))
        index = y.unsqueeze(-1)
        value = log_p.gather(-1, index).squeeze(-1)
        d_outputs = log_p.exp().neg_()
        d_outputs.scatter_add_(-1, index, torch.ones_like(index, dtype=mean.dtype))
        d_variance = (d_outputs * noise).div_(sd).mul_(0.5)
        return ExpectedLogProb(value, d_outputs, d_variance, mean.new_zeros(len(mean), 0))

    def given(self, y: Tensor, weight: Tensor, n_outputs: int) -> "CategoricalTerm":
        one_hot = torch.nn.functional.one_hot(y, n_outputs).T
        return CategoricalTerm((one_hot * weight).contiguous(), _collapsed(weight))


@dataclass(frozen=True, eq=False)
class CategoricalTerm:
    """A `DataTerm` of classes.

    Parameters
    ----------
    target : Tensor of shape (O, N)
        One-hot classes times weights.
    weight : Tensor of shape (N,), or (1,) where all are equal
    """

    target: Tensor
    weight: Tensor

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        return outputs.log_softmax(1).flatten(1) @ self.target.flatten()

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(outputs, 1, out=out)
        value = log_p.flatten(1) @ self.target.flatten()
        torch.addcmul(self.target, log_p.exp_(), self.weight, value=-1.0, out=out)
        return value, params


def _collapsed(weight: Tensor) -> Tensor:
    """Equal weights as one: they then multiply a number a chain instead of a row."""
    return weight[:1] if bool((weight == weight[:1]).all()) else weight
