"""Base of the two linear estimators: parameters, coefficients and outputs."""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.estimator import RowEstimator
from skbayes_sym.base.model_factory import PriorParameter, scale_array
from skbayes_sym.base.progress import RUN_CONSTRAINTS
from skbayes_sym.base.requirements import ONE_OUTPUT_LIKELIHOOD, FitResult, require_kind
from skbayes_sym.base.rows import Array, Rows, Scaling, column_scaling, is_standardized
from skbayes_sym.base.scikit_learn import Interval, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.linear.fit import SiteInference
from skbayes_sym.linear.predict import LinearPredictor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import IDENTITY, MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.symmetry.group import Trivial
from skbayes_sym.symmetry.translation import Translation

LINEAR_CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    "prior": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither"), "array-like"],
    "fit_intercept": ["boolean"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "standardize": ["boolean"],
    "random_state": ["random_state"],
}


@dataclass(eq=False, repr=False)
class LinearEstimator(RowEstimator):
    """A linear model with a normal prior of its coefficients."""

    likelihood: str | Likelihood = "auto"
    _: KW_ONLY
    prior: PriorParameter = "learn"
    fit_intercept: bool = True
    max_iter: int = 500
    tol: float | None = 1e-6
    standardize: bool | str = True
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    # Of normal noise and few rows.
    _noise_levels_: ClassVar[Array | None] = None

    _final_attributes = (
        "elbo_", "elbo_mean_field_", "elbo_std_error_", "symmetry_gap_", "_gap_std_error_"
    )  # fmt: skip

    def _make_model(self, data: Training) -> Model:
        likelihood = self._make_likelihood(data)
        # Outputs that are correlated are one per class.
        n_outputs = self._count_outputs(data) if likelihood.kind == "softmax" else 1
        network = MLP(data.n_features, (), n_outputs, IDENTITY)
        return Model(network, likelihood, self._make_prior(network), Trivial())

    def _make_likelihood(self, data: Training) -> Likelihood:
        """At its starting parameters, in scaled units."""
        raise NotImplementedError

    def _count_outputs(self, data: Training) -> int:
        raise NotImplementedError

    def _make_prior(self, network: MLP) -> GaussianPrior:
        """Prior of the coefficients; a learned scale is its unit. Intercepts have none."""
        scale = self._check_prior_scale(network.n_inputs)
        layout = network.layout
        scales = np.full(layout.n_params, np.inf)
        rows = scales[layout.slices["W1"]].reshape(layout.shapes["W1"])
        rows[:] = 1.0 if scale is None else scale
        return GaussianPrior(torch.as_tensor(scales))

    def _check_prior_scale(self, n_features: int) -> Array | None:
        """``prior`` as checked, None if it is learned."""
        if isinstance(self.prior, str):
            return None
        scale_array(self.prior, features=n_features)
        return np.asarray(self.prior, float)

    def _flops_per_step(self, data: Training, model: Model) -> float:
        """Floating-point operations of the normal equations in the smaller dimension."""
        size = model.network.n_outputs * min(data.n_rows, data.n_features)
        return 2.0 * data.n_rows * size**2

    def _make_method(self) -> SiteInference:
        return SiteInference(
            self._check_prior_scale(self.n_features_in_),
            isinstance(self.noise_std, str),
            self.fit_intercept,
            self.max_iter,
            self.tol,
        )

    def _fitted_attributes(self, data: Training, model: Model, fitted: FitResult) -> dict[str, Any]:
        """Fitted attributes, with coefficients in place of a network."""
        attributes = super()._fitted_attributes(data, model, fitted)
        del attributes["network_"]
        return attributes

    def _scale_inputs(self, rows: Rows) -> Scaling:
        """Centred where there is an intercept to make up for it."""
        full = column_scaling(rows.X, rows.weight, enabled=True, value_range=rows.x_range)
        n = rows.X.shape[1]
        return Scaling(
            full.mean if self.fit_intercept else np.zeros(n),
            full.scale if is_standardized(self.standardize, "X") else np.ones(n),
        )

    def _check_likelihood(self, likelihood: Likelihood) -> Likelihood:
        """An object of the user's own has what sites and predictions ask for."""
        require_kind(self, likelihood, self._unsupported_likelihoods)
        ONE_OUTPUT_LIKELIHOOD.require(likelihood, "likelihood")
        return likelihood

    @property
    def coef_cov_(self) -> Array:
        """Covariance of the coefficients, built on demand from the low-rank factors."""
        check_is_fitted(self)
        rows = np.broadcast_to(vars(self).get("y_scale_", 1.0), len(self.posterior_.loc))
        scale = np.outer(rows, 1.0 / self.x_scale_).ravel()  # of the data as given
        return self.posterior_.dense_covariance() * np.outer(scale, scale)

    def predictor(self, like: Tensor) -> LinearPredictor:
        def make() -> LinearPredictor:
            def tensor(values: Array) -> Tensor:
                return torch.as_tensor(values, dtype=torch.float64, device=like.device)

            levels = self._noise_levels_
            return LinearPredictor(
                self.posterior_,
                tensor(self._offset_),
                self.fitted_likelihood.to(like),
                levels=None if levels is None else tensor(levels / vars(self)["y_scale_"]),
            )

        return self._cached(f"linear on {like.device}", make)

    @property
    def symmetry_(self) -> Translation:
        """Translations of a row of ``posterior_``'s coefficients that no training row sees."""
        check_is_fitted(self)
        basis = self.posterior_.basis
        scale = self.posterior_.scale
        seen = np.eye(len(scale)) if basis is None else basis / scale[:, None]
        return Translation(torch.as_tensor(seen.T))

    @property
    def symmetry_gap_std_error_(self) -> float:
        """Monte Carlo standard error of ``symmetry_gap_``."""
        return self._gap_std_error_
