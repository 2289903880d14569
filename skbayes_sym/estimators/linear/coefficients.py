"""What fitted linear models report and predict, numbers and class labels alike."""

from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array


class LinearFace:
    """What the posterior of a linear model adds to what it predicts."""

    posterior_: Any
    x_scale_: Array
    symmetry_gap_: float
    _offset_: Array
    _gap_std_error_: float

    @property
    def coef_cov_(self) -> Array:
        """Covariance of the coefficients, built on demand from the low-rank factors.

        Raises
        ------
        MemoryError
            Naming the bytes, if it would be too large.
        """
        check_is_fitted(self)
        scale = np.tile(self._coef_unit(), len(self.posterior_.loc))
        return self.posterior_.dense_covariance() * np.outer(scale, scale)

    def _coef_unit(self) -> Array:
        """Turns the posterior's coefficients into those of the data as given, (K,)."""
        return getattr(self, "y_scale_", np.ones(1)) / self.x_scale_

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (N, C) and covariance (N, C, C) of the outputs at scaled inputs, float64."""
        mean, covariance = self.posterior_.output_moments(x.double())
        return mean + torch.as_tensor(self._offset_).to(mean), covariance

    @property
    def symmetry_gap_std_error_(self) -> float:
        """Monte Carlo standard error of ``symmetry_gap_``."""
        return self._gap_std_error_
