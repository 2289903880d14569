r"""Effects of an entry's context, such as the hour or the device: one more step in closed form.

Columns C (N, c) of the entries, centred and of unit scale, add :math:`c_e^\top w` to their outputs,
:math:`w \sim N(0, I / \lambda)`. Given q of the factors, whose outputs have the means f, the best
:math:`q(w) = N(m, S)` is a Bayesian linear regression of what they leave over, and :math:`\lambda`
a step of expectation maximisation (Bishop 2006, eqs. 3.50, 3.51 and 9.63):

.. math:: S^{-1} = \lambda I + C^\top W C / s^2, \qquad m = S C^\top W (r - f) / s^2, \qquad
    \lambda = c / (|m|^2 + \operatorname{tr} S),

with weights W of the entries and their noise s. Rows are updated from r - C m.
"""

from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.factorization.sparse_entries import CSREntries, Entries
from skbayes_sym.numerics.gaussian import kl_from_standard
from skbayes_sym.numerics.linalg import cholesky, log_det

_MOST_PRECISION = 1e8  # of effects that explain nothing


class ContextPosterior(NamedTuple):
    """Gaussian of the effects w, and the precision of their prior; float64."""

    mean: Tensor  # (c,)
    cov: Tensor  # (c, c)
    precision: float = 1.0

    @classmethod
    def narrow(cls, context: Tensor) -> "ContextPosterior":
        """The law that sweeps begin with, of the columns of ``context`` (N, c)."""
        zero = context.new_zeros(context.shape[1], dtype=torch.float64)
        return cls(zero, (zero + 0.01).diag())

    @classmethod
    def of(cls, mean: Any, cov: Any) -> "ContextPosterior":
        """Law of these moments, on the host, for predictions."""
        return cls(torch.as_tensor(mean, device="cpu"), torch.as_tensor(cov, device="cpu"))

    def moments(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of what contexts (N, c) add to outputs, (N,) each."""
        mean, cov = (part.to(context) for part in self[:2])
        return context @ mean, ((context @ cov) * context).sum(-1)

    def drawn(self, context: Tensor, n: int, rng: np.random.Generator) -> Tensor:
        """Draws of what contexts (N, c) add to outputs, (n, N)."""
        noise = torch.as_tensor(rng.standard_normal((n, len(self.mean))))
        return (self.mean + noise @ _root(self.cov).mT) @ context.mT

    def kl(self) -> float:
        """Divergence from the prior, nats."""
        n = len(self.mean)
        log_dets = log_det(_root(self.cov))
        trace, squares = (self.precision * x for x in (self.cov.trace(), self.mean.square().sum()))
        return float(kl_from_standard(trace, squares, log_dets + n * log(self.precision), n))

    def regressed(
        self, data: CSREntries, off: Tensor, noise: float
    ) -> tuple["ContextPosterior", float]:
        """The best law given what factors and the mean of this one leave over, ``off`` (N,), and
        what it adds to the expected weighted squares of ``off``; O(N c^2).

        ``noise``: variance of entries of weight one.
        """
        context = data.context
        weight = data.weight
        assert context is not None
        weighted = context if weight is None else context * weight.unsqueeze(-1)
        gram = (weighted.mT @ context).double()
        cross = (weighted.mT @ off).double()
        precision = gram / noise
        precision.diagonal().add_(self.precision)
        cov = torch.cholesky_inverse(_root(precision))
        mean = cov @ (cross + gram @ self.mean) / noise
        moved = mean - self.mean
        squares = float(mean.square().sum() + cov.trace())
        added = (cov * gram).sum() + moved @ (gram @ moved - 2.0 * cross)
        learned = min(len(mean) / max(squares, 1e-300), _MOST_PRECISION)
        return ContextPosterior(mean, cov, learned), float(added)


def subtract_context(data: Entries, row_prior: ContextPosterior | None) -> Entries:
    """Entries less the mean effects of their context."""
    by_row = data.by_row
    if row_prior is None or by_row.context is None:
        return data
    return data.with_values(by_row.value - row_prior.moments(by_row.context)[0], by_row.weight)


def _root(matrix: Tensor) -> Tensor:
    return cholesky(
        matrix,
        name="The precision of effects of the context",
        remedy="Leave out columns that repeat others.",
    )
