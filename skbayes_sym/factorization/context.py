r"""Linear effects of an entry's context, such as the hour or the device, with a closed-form update.

Columns C (N, c) of the entries, centred and of unit scale, add :math:`c_e^\top w` to their outputs,
with :math:`w \sim N(0, I / \lambda)`. Let f be the means of the outputs under q of the factors. The
optimal :math:`q(w) = N(m, S)` is a Bayesian linear regression of the residuals r - f, and
:math:`\lambda` is updated by a step of expectation maximisation (Bishop 2006, eqs. 3.50, 3.51 and
9.63):

.. math:: S^{-1} = \lambda I + C^\top W C / s^2, \qquad m = S C^\top W (r - f) / s^2, \qquad
    \lambda = c / (|m|^2 + \operatorname{tr} S),

with weights W of the entries and their noise s. The rows are updated from r - C m.
"""

from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.factorization.sparse_entries import CSREntries, Entries
from skbayes_sym.numerics.gaussian import kl_from_standard
from skbayes_sym.numerics.linalg import cholesky, log_det

# Largest prior precision, which effects that explain nothing reach.
_MAX_PRECISION = 1e8


class ContextPosterior(NamedTuple):
    """Gaussian posterior of the effects w, float64.

    Attributes
    ----------
    mean : Tensor of shape (c,)
        Means of the effects.
    cov : Tensor of shape (c, c)
        Covariance of the effects.
    precision : float
        Precision of their prior.
    """

    mean: Tensor
    cov: Tensor
    precision: float = 1.0

    @classmethod
    def initial(cls, context: Tensor) -> "ContextPosterior":
        """Return the initial posterior of the columns of ``context`` (N, c)."""
        zero = context.new_zeros(context.shape[1], dtype=torch.float64)
        return cls(zero, (zero + 0.01).diag())

    @classmethod
    def from_moments(cls, mean: Any, cov: Any) -> "ContextPosterior":
        """Return the posterior of given moments on the CPU, for predictions."""
        return cls(torch.as_tensor(mean, device="cpu"), torch.as_tensor(cov, device="cpu"))

    def moments(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the contribution of contexts (N, c) to outputs, (N,) each."""
        mean = self.mean.to(context)
        cov = self.cov.to(context)
        return context @ mean, ((context @ cov) * context).sum(-1)

    def sample(self, context: Tensor, n: int, rng: np.random.Generator) -> Tensor:
        """Draw the contribution of contexts (N, c) to outputs n times, (n, N)."""
        noise = torch.as_tensor(rng.standard_normal((n, len(self.mean))))
        return (self.mean + noise @ _make_cholesky(self.cov).mT) @ context.mT

    def kl(self) -> float:
        """Divergence from the prior, nats."""
        n_effects = len(self.mean)
        log_dets = log_det(_make_cholesky(self.cov))
        trace = self.precision * self.cov.trace()
        squares = self.precision * self.mean.square().sum()
        log_ratio = log_dets + n_effects * log(self.precision)
        return float(kl_from_standard(trace, squares, log_ratio, n_effects))

    def update(
        self, data: CSREntries, residual: Tensor, noise: float
    ) -> tuple["ContextPosterior", float]:
        """Regress the residuals of the entries on their context; O(N c^2).

        Parameters
        ----------
        data : CSREntries
            Entries with their context and weights.
        residual : Tensor of shape (N,)
            Residuals of the factors and of the mean of this posterior.
        noise : float
            Noise variance of an entry of weight 1.

        Returns
        -------
        posterior : ContextPosterior
            Optimal posterior, with the updated prior precision.
        squared_error : float
            Change of the expected weighted sum of squared residuals.
        """
        context = data.context
        weight = data.weight
        assert context is not None
        weighted = context
        if weight is not None:
            weighted = context * weight.unsqueeze(-1)
        gram = (weighted.mT @ context).double()
        cross = (weighted.mT @ residual).double()
        precision = gram / noise
        precision.diagonal().add_(self.precision)
        cov = torch.cholesky_inverse(_make_cholesky(precision))
        mean = cov @ (cross + gram @ self.mean) / noise
        moved = mean - self.mean
        squared_error = (cov * gram).sum() + moved @ (gram @ moved - 2.0 * cross)
        squares = float(mean.square().sum() + cov.trace())
        prior_precision = min(len(mean) / max(squares, 1e-300), _MAX_PRECISION)
        return ContextPosterior(mean, cov, prior_precision), float(squared_error)


def subtract_context(data: Entries, posterior: ContextPosterior | None) -> Entries:
    """Subtract the mean effects of the context from the entries."""
    by_row = data.by_row
    if posterior is None or by_row.context is None:
        return data
    effects, _ = posterior.moments(by_row.context)
    return data.with_values(by_row.value - effects, by_row.weight)


def _make_cholesky(matrix: Tensor) -> Tensor:
    """Cholesky factor of a covariance or a precision of effects."""
    return cholesky(
        matrix,
        name="The precision of effects of the context",
        remedy="Leave out columns that repeat others.",
    )
