"""Predictions from Laplace approximations of several modes, for every estimator that has them."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.building import fully_connected
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.networks import NetworkEstimator
from skbayes_sym.inference.laplace.labels_predictive import Posteriors
from skbayes_sym.inference.laplace.mode_mixture import LinearisedModes, ModeMixture
from skbayes_sym.inference.laplace.predictors import LabelsPredictor


class PredictsFromModes(NetworkEstimator):
    """An estimator whose ``posterior_`` may be a `ModeMixture`."""

    noise_std_modes_: Array
    y_scale_: Array

    def _modes(self, like: Tensor) -> LinearisedModes:
        """The networks linearised at the modes, on the device of ``like``, made once."""

        def make() -> LinearisedModes:
            posterior: ModeMixture = self.posterior_
            tensors = (t.to(like.device) for t in posterior.tensors)
            return LinearisedModes(fully_connected(self.network_), *tensors)

        return cast(LinearisedModes, self._cached(f"modes on {like.device}", make))

    def _noise_of_modes(self) -> Array:
        """Standard deviations in scaled units, (R, T)."""
        return np.asarray(self.noise_std_modes_ / self.y_scale_)

    def _labels(self, like: Tensor, integral: str, variance_scale: float) -> LabelsPredictor:
        """Labels by all modes, on the device of ``like``."""
        modes = self._modes(like)
        posteriors = Posteriors(modes.loc, torch.cholesky_inverse(modes.factor), modes.weight)
        return LabelsPredictor(modes.network, posteriors, variance_scale, integral)
