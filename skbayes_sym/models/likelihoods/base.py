"""The likelihood: how outputs of a network become the distribution of a target."""

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from skbayes_sym.models.predictive import Predictive

Kind = Literal[
    "normal", "heteroscedastic", "student-t", "counts", "softmax", "bernoulli", "ordinal", "other"
]


class ExpectedLogProb(NamedTuple):
    """E[log p(y | f)] for ``f ~ N(mean, variance)`` with its derivatives, row by row."""

    value: Tensor  # (N,), nats
    d_mean: Tensor  # (N, O)
    d_variance: Tensor  # (N, O)
    d_params: Tensor  # (N, n_params)


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


class Likelihood(Protocol):
    """Conditional density of targets given outputs, with parameters of its own.

    Every method asks only for this. Of one's own one writes `log_prob` and `predictive` (or, for
    real targets and counts, a ``torch.distributions`` law) and inherits the rest from
    `skbayes_sym.models.likelihoods.defaults`.

    ``n_params`` free parameters, logarithms of scales in the unit of the targets, are learned
    beside the network's; `at` returns the likelihood at their values and `params` reads them, so
    the objects themselves never change.
    """

    @property
    def kind(self) -> Kind:
        """The law, for methods that have a faster or exact form for it; "other" for any."""
        ...

    @property
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""
        ...

    @property
    def n_params(self) -> int: ...

    @property
    def params(self) -> Tensor:
        """Values of the free parameters, (n_params,)."""
        ...

    @property
    def noise_scale(self) -> Tensor:
        """Scale of additive noise (O,), the standard deviation if it is normal; else empty."""
        ...

    @property
    def n_outputs_per_target(self) -> int:
        """Outputs that the network has for every target (or class)."""
        ...

    def n_outputs(self, n_targets: int) -> int:
        """Outputs that the network has for so many targets, or classes.

        Raises
        ------
        ValueError
            If the likelihood can't be of so many.
        """
        ...

    @property
    def scales_targets(self) -> bool:
        """Whether targets may be centred and scaled: not so for counts and classes."""
        ...

    def at(self, params: Tensor) -> "Likelihood":
        """At parameters (..., n_params) whose leading axes broadcast with (*B, N) of the outputs.

        So (C, 1, n_params) gives C chains parameters of their own.
        """
        ...

    def to(self, like: Tensor) -> "Likelihood":
        """Move constants to the dtype and device of ``like``."""
        ...

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(*B, N, O) and the N rows' targets -> (*B, N), nats, every constant included."""
        ...

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> Predictive:
        """Law of new targets for S draws of the outputs, (S, N, O), with weights (S,)."""
        ...

    def n_noise(self, n_outputs: int) -> int:
        """Standard normals per row that `expected_log_prob` takes: 0 where it integrates."""
        ...

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Expectation over independent outputs (N, O), exact, by quadrature or by one draw.

        ``noise`` (N, n_noise(O)) makes the draw ``f = mean + sqrt(variance) noise``; likelihoods
        that integrate don't look at it.
        """
        ...

    def bound(self, mean: Tensor, variance: Tensor, y: Tensor) -> ExpectedLogProb:
        """`expected_log_prob` of one output, or something cheaper in its place.

        A lower bound, or a rule of few nodes; ``d_variance`` is what a Gaussian site needs.
        """
        ...

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of `log_prob` in the outputs, (N, O)."""
        ...

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Columns r_k of a root of ``-d^2 log p / d outputs^2 = sum_k r_k r_k'``, (O, N, O)."""
        ...

    def constant_outputs(
        self, y: npt.NDArray[Any], weight: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64] | None:
        """Outputs (O,) that fit the targets best without features; None where unknown."""
        ...

    def given(self, y: Tensor, weight: Tensor, n_outputs: int) -> DataTerm:
        """The log likelihood of targets that stay, as samplers evaluate it."""
        ...


def collapsed_weight(weight: Tensor) -> Tensor:
    """Equal weights as one: they then multiply a number a chain instead of a row.

    On a GPU that isn't worth the wait for the answer.
    """
    if weight.device.type != "cpu":
        return weight
    return weight[:1] if bool((weight == weight[:1]).all()) else weight
