"""Predictions from Laplace approximations of several modes, for every estimator that has them."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.model import fully_connected
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.networks import NetworkEstimator
from skbayes_sym.inference.laplace.labels_predictive import (
    Posteriors,
    labels_mixture,
    moderated_mixture,
)
from skbayes_sym.inference.laplace.mode_mixture import LinearisedModes, ModeMixture
from skbayes_sym.models.predictive import CategoricalMixture


class PredictsFromModes(NetworkEstimator):
    """An estimator whose ``posterior_`` may be a `ModeMixture`."""

    noise_std_modes_: Array
    y_scale_: Array

    def _modes(self, like: Tensor) -> LinearisedModes:
        """The networks linearised at the modes, on the device of ``like``, made once."""

        def make() -> LinearisedModes:
            posterior: ModeMixture = self.posterior_
            loc, factor = (t.to(like.device) for t in posterior.tensors)
            return LinearisedModes(fully_connected(self.network_), loc, factor)

        return cast(LinearisedModes, self._cached(f"modes on {like.device}", make))

    def _noise_of_modes(self) -> Array:
        """Standard deviations in scaled units, (R, T)."""
        return np.asarray(self.noise_std_modes_ / self.y_scale_)

    def _classes(
        self, x: Tensor, predictive: str | int, variance_scale: float
    ) -> CategoricalMixture:
        """Class probabilities of rows (N, D), every mode counted alike."""

        def make() -> Posteriors:
            modes = self._modes(x)
            return Posteriors(modes.loc, torch.cholesky_inverse(modes.factor))

        posteriors = self._cached(f"covariances on {x.device}", make)
        mixture = moderated_mixture if predictive == "probit" else labels_mixture
        scale = 0.0 if predictive == "plugin" else variance_scale
        found = mixture(fully_connected(self.network_), posteriors, x.double(), scale)
        weights = None if found.log_weights is None else found.log_weights.to(x)
        return CategoricalMixture(found.log_probs.to(x), weights)
