"""
Which columns matter?
=====================

With ``prior=ARD()`` a fit learns one prior scale for the weights from every column of ``X``, shared
by all hidden units. `~skbayes_sym.inspection.RelevanceDisplay` draws them with their spread over
restarts.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_friedman1

from skbayes_sym import LaplaceRegressor
from skbayes_sym.inspection import RelevanceDisplay
from skbayes_sym.models import ARD

# %%
# Friedman's function of ten columns,
# :math:`10 \sin(\pi x_0 x_1) + 20 (x_2 - 1/2)^2 + 10 x_3 + 5 x_4`, depends on the first five,
# and bends along the first three.

X, y = make_friedman1(250, noise=1.0, random_state=0)
reg = LaplaceRegressor((10,), prior=ARD(), n_restarts=6, random_state=0).fit(X, y)
RelevanceDisplay.from_estimator(reg)
plt.show()

# %%
# The three along which the function bends stand apart. The two that act linearly don't: small
# weights are enough for them, and a larger weight behind the hidden units. So a large scale says
# that a column is used, and a small one not that it is useless; what predictions would lose without
# a column is `sklearn.inspection.permutation_importance`'s to say.
