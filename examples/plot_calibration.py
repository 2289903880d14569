"""
Do intervals hold what they promise?
====================================

`~skbayes_sym.inspection.IntervalCalibrationDisplay` counts, on rows that the fit didn't see, how
many observations lie in their predictive intervals, for every coverage. Within the grey band the
difference may be chance.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from skbayes_sym import BayesianLinearRegressor
from skbayes_sym.inspection import IntervalCalibrationDisplay

X, y = load_diabetes(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)

# %%
# The noise is learned, or claimed to be too small or too large. Too small, and the curve runs below
# the diagonal: intervals are too short.

display = None
for name, noise_std in {"noise learned": "learn", "30": 30.0, "90": 90.0}.items():
    model = BayesianLinearRegressor(noise_std=noise_std).fit(X_train, y_train)
    display = IntervalCalibrationDisplay.from_estimator(
        model, X_test, y_test, name=name, ax=None if display is None else display.ax_
    )
plt.show()
