"""Inputs of a linear model in the units of its prior, and the space they span."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.linear.posterior import LowRankGaussian
from skbayes_sym.inference.linear.sites import LinearData
from skbayes_sym.numerics.memory import Part, require_memory

_DOUBLE = 8  # bytes


class Design(NamedTuple):
    """Inputs in the units in which the prior is N(0, v I)."""

    prior_unit: Array  # (K,), the given scales; 1 where one scale is learned
    inputs: Tensor  # (n, K), float64
    basis: Tensor | None  # (K, r), orthonormal, if K > n
    features: Tensor  # (n, r)

    @classmethod
    def of(cls, data: Training, prior_unit: Array) -> Self:
        """O(K r^2) where there are more features K than rows, else nothing to compute."""
        inputs = data.double_data.x
        if (prior_unit != 1.0).any():
            inputs = inputs * torch.as_tensor(prior_unit, device=data.device)
        if inputs.shape[1] <= inputs.shape[0]:
            return cls(prior_unit, inputs, None, inputs)
        # QR never divides by a singular value: repeated rows and constant columns are welcome.
        basis, triangle = torch.linalg.qr(inputs.T)
        return cls(prior_unit, inputs, basis, triangle.T.contiguous())

    def problem(self, data: Training, n_outputs: int, fit_intercept: bool) -> LinearData:
        """The rows in the space that the inputs span."""
        _, y, weight = data.double_data
        return LinearData(self.features, y, weight, n_outputs, self.inputs.shape[1], fit_intercept)

    def posterior(self, loc: Array, covariance: Array, prior_variance: float) -> LowRankGaussian:
        """Of the coefficients of scaled inputs and targets; from that in the row space."""
        basis = None
        if self.basis is not None:
            basis = self.basis.cpu().numpy()
            loc = (torch.as_tensor(loc).to(self.basis) @ self.basis.T).cpu().numpy()
        return LowRankGaussian(
            loc * self.prior_unit, self.prior_unit, basis, covariance, prior_variance
        )


def require_rows_and_covariance(data: Training, n_outputs: int) -> None:
    """Rows, a basis of them, and the covariance in it, float64: 16 (n K + K r) + 16 C^2 r^2."""
    n, n_features = data.n_rows, data.n_features
    r = min(n, n_features)
    require_memory(
        [
            Part(
                f"{n} distinct rows of {n_features} features and a basis of them",
                2 * (n + r * (n_features > n)) * n_features * _DOUBLE,
                "Use fewer of them.",
            ),
            Part(
                f"the covariance of {n_outputs} outputs in {r} dimensions",
                2 * (n_outputs * r) ** 2 * _DOUBLE,
                "Use fewer rows or fewer features (as many dimensions as the smaller of the two), "
                "or one likelihood='bernoulli' per class.",
            ),
        ],
        data.device,
    )
