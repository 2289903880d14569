"""
Do intervals have the stated coverage?
======================================

For every coverage, `~skbayes_sym.inspection.IntervalCalibrationDisplay` shows the fraction of
held-out targets that lie in their predictive intervals. Within the grey band the difference can be
due to chance.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from skbayes_sym import BayesianLinearRegressor
from skbayes_sym.inspection import IntervalCalibrationDisplay

X, y = load_diabetes(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)

# %%
# The noise of the first model is learned. The other two have a fixed noise that is too small and
# too large. If the noise is too small, intervals are too short and the curve lies below the
# diagonal.

display = None
for name, noise_std in {"learned noise": "learn", "noise 30": 30.0, "noise 90": 90.0}.items():
    model = BayesianLinearRegressor(noise_std=noise_std).fit(X_train, y_train)
    display = IntervalCalibrationDisplay.from_estimator(
        model, X_test, y_test, name=name, ax=None if display is None else display.ax_
    )
display.ax_.set_title("Coverage of intervals for 177 new patients")
plt.show()
