"""Likelihoods: how outputs of a network become the distribution of a target."""

from dataclasses import dataclass, replace
from math import log, pi
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
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

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of `log_prob` in the outputs, (N, O)."""
        ...

    def hessian_root(self, outputs: Tensor) -> Tensor:
        """Columns r_k of a root of ``-d^2 log p / d outputs^2 = sum_k r_k r_k'``, (O, N, O)."""
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

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (y - outputs) * (-2.0 * self.log_noise).exp()

    def hessian_root(self, outputs: Tensor) -> Tensor:
        root = (-self.log_noise).exp().expand(outputs.shape[-1]).diag()
        return root.unsqueeze(1).expand(-1, outputs.shape[0], -1)


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

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.one_hot(y, outputs.shape[-1]).to(outputs) - outputs.softmax(-1)

    def hessian_root(self, outputs: Tensor) -> Tensor:
        """``diag(sqrt p) - p sqrt(p)'``, whose square is ``diag(p) - p p'``."""
        p = outputs.softmax(-1)
        root = (0.5 * outputs.log_softmax(-1)).exp()
        columns = root.diag_embed() - p.unsqueeze(-1) * root.unsqueeze(-2)
        return columns.movedim(-1, 0)
