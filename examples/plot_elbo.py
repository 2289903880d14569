"""
How the bound rose
==================

`~skbayes_sym.inspection.ELBODisplay` shows the training objective of a variational fit and the two
bounds evaluated at its end. The training ELBO is noisy: every point is a few draws. A Laplace fit
shows its log evidence.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

from skbayes_sym import LaplaceRegressor, SymmetrizedVIRegressor
from skbayes_sym.inspection import ELBODisplay

X, y = load_diabetes(return_X_y=True)
reg = SymmetrizedVIRegressor((10,), "tanh", max_iter=1500, random_state=0).fit(X, y)
ELBODisplay.from_estimator(reg)

# %%
# The evidence of a Laplace approximation by Adam, while prior and noise are learned along with the
# weights:

laplace = LaplaceRegressor((10,), optimizer="adam", random_state=0).fit(X, y)
ELBODisplay.from_estimator(laplace)
plt.show()
