"""Inputs of a linear model in the units of its prior, and the space they span."""

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.linear.posterior import LowRankGaussian
from skbayes_sym.inference.linear.sites import LinearData, State


class Design(NamedTuple):
    """Inputs in the units in which the prior is N(0, v I)."""

    prior_unit: Array  # (K,), the given scales; 1 where one scale is learned
    inputs: Tensor  # (n, K), float64
    basis: Tensor | None  # (K, r), orthonormal, if K > n
    features: Tensor  # (n, r)

    @classmethod
    def of(cls, data: Training, prior_unit: Array) -> Self:
        """O(K r^2) where there are more features K than rows, else nothing to compute."""
        unit = torch.as_tensor(prior_unit, device=data.device)
        inputs = data.double_data.x * unit
        if inputs.shape[1] <= inputs.shape[0]:
            return cls(prior_unit, inputs, None, inputs)
        # QR never divides by a singular value: repeated rows and constant columns are welcome.
        basis, triangle = torch.linalg.qr(inputs.T)
        return cls(prior_unit, inputs, basis, triangle.T.contiguous())

    def problem(self, data: Training, n_outputs: int, fit_intercept: bool) -> LinearData:
        """The rows in the space that the inputs span."""
        _, y, weight = data.double_data
        return LinearData(self.features, y, weight, n_outputs, self.inputs.shape[1], fit_intercept)

    def posterior(self, state: State) -> LowRankGaussian:
        """Of the coefficients of scaled inputs and targets, as NumPy arrays."""
        loc = state.loc if self.basis is None else state.loc @ self.basis.T
        return LowRankGaussian(
            np.asarray(loc.cpu().numpy() * self.prior_unit),
            self.prior_unit,
            None if self.basis is None else self.basis.cpu().numpy(),
            state.covariance.cpu().numpy(),
            float(state.prior_variance),
        )
