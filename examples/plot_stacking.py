"""
Fit a stack to a table with text
================================

The simulated prices of used cars depend on a curve and a jump, and the table has text and missing
values. The stack accepts the frame without preparation and weights its members by their
predictions of held-out rows. ``summary_`` lists the members and their weights.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skbayes_sym import PredictiveStackingRegressor

rng = np.random.default_rng(0)
n = 400
cars = pd.DataFrame(
    {
        "age": rng.uniform(0, 12, n),
        "fuel": rng.choice(["petrol", "diesel", "electric"], n),
        "owners": rng.choice([1.0, 2.0, 3.0, np.nan], n),
        "garage": rng.choice([True, False], n),
    }
)
level = 30 * np.exp(-cars["age"] / 5) + 4 * (cars["fuel"] == "electric") - 3 * (cars["age"] > 8)
price = level + (0.4 + 0.08 * level) * rng.standard_normal(n)

members = [("linear", "linear"), ("trees", "trees"), ("process", "gaussian_process")]
stack = PredictiveStackingRegressor(members, random_state=0).fit(cars[:300], price[:300])
print(stack.summary_)

# %%
# The left panel shows the held-out density of every member and its weight in the stack. The right
# panel shows predictions for diesels.

names = list(stack.weights_)
scores, errors = np.transpose([stack.leave_one_out_log_density_[name] for name in names])
ages = pd.DataFrame({"age": np.linspace(0, 12, 200), "fuel": "diesel"})
ages = ages.assign(owners=1.0, garage=True)
low, middle, high = stack.predict_quantiles(ages).T

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=[1, 2])
left.errorbar(scores, names, xerr=errors, fmt="o")
for name, score in zip(names, scores, strict=True):
    left.annotate(
        f"{100 * stack.weights_[name]:.0f} %", (score, name), (0, 8), textcoords="offset points"
    )
left.set(xlabel="log density, nats per held-out row", ylim=(-0.5, len(names) - 0.3))
left.set_title("Members (weights as labels)")
right.fill_between(ages["age"], low, high, alpha=0.3, label="90 % interval")
right.plot(ages["age"], middle, label="median")
diesel = cars["fuel"] == "diesel"
right.plot(cars["age"][diesel], price[diesel], ".", ms=3, c="0.4", label="observed")
right.set(xlabel="age, years", ylabel="price, thousands", title="Predicted price of diesels")
right.legend()
figure.tight_layout()
plt.show()
