"""What a likelihood is: how outputs of a network become the distribution of a target."""

from typing import NamedTuple, Protocol

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


class CurvedLikelihood(Likelihood, Protocol):
    """One with the first two derivatives in the outputs."""

    def at(self, params: Tensor) -> "CurvedLikelihood": ...

    def to(self, like: Tensor) -> "CurvedLikelihood": ...

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of `log_prob` in the outputs, (N, O)."""
        ...

    def hessian_root(self, outputs: Tensor) -> Tensor:
        """Columns r_k of a root of ``-d^2 log p / d outputs^2 = sum_k r_k r_k'``, (O, N, O)."""
        ...


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


def collapsed_weight(weight: Tensor) -> Tensor:
    """Equal weights as one: they then multiply a number a chain instead of a row."""
    return weight[:1] if bool((weight == weight[:1]).all()) else weight
