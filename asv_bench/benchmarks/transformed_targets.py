"""Transformed targets: moments and scores next to those of the inner model."""

from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.preprocessing import PowerTransformer, QuantileTransformer

from skbayes_sym import BayesianLinearRegressor, predictive

from .common import SingleThread

TRANSFORMERS: dict[str, Any] = {
    "none": None,
    "box-cox": PowerTransformer("box-cox"),
    "yeo-johnson": PowerTransformer(),
    "quantiles": QuantileTransformer(n_quantiles=200, output_distribution="normal"),
}


def make_data(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of five columns and positive, skewed targets."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, 5))
    return X, np.exp(0.6 * X[:, 0] + 0.3 * rng.standard_normal(n_rows))


class TransformedTargets(SingleThread):
    """Predictions of a linear model of transformed targets."""

    params = ([100, 1_000, 10_000], list(TRANSFORMERS))
    param_names = ("n_rows", "transformer")

    def setup(self, n_rows: int, transformer: str) -> None:
        super().setup()
        training = make_data(200, 0)
        self.X, self.y = make_data(n_rows, 1)
        self.model = TransformedTargetRegressor(
            BayesianLinearRegressor(), transformer=TRANSFORMERS[transformer], check_inverse=False
        )
        self.model.fit(*training)

    def time_mean(self, n_rows: int, transformer: str) -> None:
        predictive(self.model, self.X).mean()

    def time_std(self, n_rows: int, transformer: str) -> None:
        predictive(self.model, self.X).std()

    def time_crps(self, n_rows: int, transformer: str) -> None:
        predictive(self.model, self.X).crps(self.y)
