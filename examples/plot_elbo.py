"""
Convergence of the training objective
=====================================

The first figure shows the training objective of a variational fit, and the two bounds that are
evaluated at its end. The training ELBO is noisy, because every step uses a few draws. The second
figure shows the log evidence of a Laplace approximation.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from skbayes_sym import LaplaceRegressor, SymmetrizedVIRegressor

X, y = load_diabetes(return_X_y=True)
reg = SymmetrizedVIRegressor((10,), "tanh", random_state=0).fit(X, y)
steps = np.linspace(0, reg.n_iter_, len(reg.elbo_curve_) + 1)[1:]
late = len(steps) // 4  # leave out the steep rise of the first steps
plt.figure(layout="constrained")
plt.plot(steps[late:], reg.elbo_curve_[late:], color="0.55", label="training ELBO")
plt.axhline(reg.elbo_, color="C3", label=f"symmetrised ELBO {reg.elbo_:.1f}")
plt.axhline(reg.elbo_mean_field_, ls="--", label=f"mean-field ELBO {reg.elbo_mean_field_:.1f}")
plt.xlabel("iteration")
plt.ylabel("ELBO (nats)")
plt.title("Variational fit of ten units to the diabetes data")
plt.legend()
plt.show()

# %%
# The log evidence of a Laplace approximation that is trained by Adam. The scales of the prior and
# the noise are learned together with the weights:

laplace = LaplaceRegressor((10,), optimizer="adam", random_state=0).fit(X, y)
plt.figure(layout="constrained")
plt.plot(laplace.log_evidence_curve_, color="0.55")
plt.xlabel("hyperparameter update")
plt.ylabel("log evidence (nats)")
plt.title("Laplace approximation of the same network")
plt.show()
