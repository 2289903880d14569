"""
How the bound rose
==================

The training objective of a variational fit and the two bounds evaluated at its end. The training
ELBO is noisy: every point is a few draws. A Laplace fit has its log evidence.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from skbayes_sym import LaplaceRegressor, SymmetrizedVIRegressor

X, y = load_diabetes(return_X_y=True)
reg = SymmetrizedVIRegressor((10,), "tanh", random_state=0).fit(X, y)
steps = np.linspace(0, reg.n_iter_, len(reg.elbo_curve_) + 1)[1:]
late = len(steps) // 4  # the depths before tell nothing
plt.plot(steps[late:], reg.elbo_curve_[late:], color="0.55", label="training ELBO")
plt.axhline(reg.elbo_, color="C3", label=f"symmetrised {reg.elbo_:.1f}")
plt.axhline(reg.elbo_mean_field_, ls="--", label=f"mean-field {reg.elbo_mean_field_:.1f}")
plt.xlabel("iteration")
plt.ylabel("nats")
plt.legend()
plt.show()

# %%
# The evidence of a Laplace approximation by Adam, while prior and noise are learned along with the
# weights:

laplace = LaplaceRegressor((10,), optimizer="adam", random_state=0).fit(X, y)
plt.plot(laplace.log_evidence_curve_, color="0.55")
plt.xlabel("hyperparameter update")
plt.ylabel("log evidence (nats)")
plt.show()
