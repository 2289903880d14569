"""
Which columns make a prediction uncertain
=========================================

`AttributionDisplay` explains the predicted mean and the width of the predictive interval, side by
side. A column can matter for one and not for the other.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skbayes_sym import DeepEnsembleRegressor
from skbayes_sym.inspection import AttributionDisplay

# %%
# Simulated deliveries
# --------------------
# The time depends on the distance and the weight. Its standard deviation is 1 hour for the carrier
# Ada, 2 for Bolt and 6 for Cargo. The hour of the order has no effect.

rng = np.random.default_rng(0)
n_rows = 400
X = pd.DataFrame({
    "distance (km)": rng.uniform(5, 300, n_rows).round(),
    "weight (kg)": rng.gamma(2.0, 4.0, n_rows).round(1),
    "carrier": rng.choice(["Ada", "Bolt", "Cargo"], n_rows, p=[0.5, 0.3, 0.2]),
    "hour": rng.integers(8, 20, n_rows),
})  # fmt: skip
std = X["carrier"].map({"Ada": 1.0, "Bolt": 2.0, "Cargo": 6.0})
y = 4 + 0.1 * X["distance (km)"] + 0.3 * X["weight (kg)"] + std * rng.normal(size=n_rows)

encode = make_column_transformer(
    (OneHotEncoder(sparse_output=False), ["carrier"]), remainder=StandardScaler()
)
ensemble = DeepEnsembleRegressor((10,), likelihood="heteroscedastic", random_state=0)
model = make_pipeline(encode, ensemble).fit(X, y)

# %%
# Many rows
# ---------
# There is one point for each of 100 rows. Long distances make the predicted time longer but hardly
# change the interval, and the carrier does the opposite. The text column has no colours, since its
# values have no order.

display = AttributionDisplay.from_estimator(model, X[:100], X, y_name="hours")
plt.show()

by_carrier = pd.Series(display.width[:, 2]).groupby(X["carrier"][:100]).mean()
print("Mean contribution to the width, hours:")
print(by_carrier.round(1).to_string())

# %%
# A single row
# ------------
# Contributions sum to the difference between this prediction and the average over the background
# rows. The background consists of 50 evenly spaced training rows. Black lines are Monte Carlo
# standard errors. More permutations make them smaller, and with enough of them the values are
# exact.

cargo = X[X["carrier"] == "Cargo"][:1]
row = AttributionDisplay.from_estimator(model, cargo, X, y_name="hours")
plt.show()

exact = AttributionDisplay.from_estimator(model, cargo, X, n_permutations=6, y_name="hours")
print("largest standard error:", row.width_error.max().round(2), "hours,", exact.width_error.max())
print("sum of contributions:", exact.width.sum().round(2), "hours")
