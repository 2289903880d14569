"""
Components that inference keeps
===============================

`~skbayes_sym.inspection.SingularValueDisplay` shows the singular values of a factorisation's
posterior mean. Here 20 components, most below the noise: mean-field inference and MAP switch off
what the posterior, by Gibbs sampling, still has.
"""

import matplotlib.pyplot as plt
import numpy as np

from skbayes_sym import SymVIMatrixFactorization
from skbayes_sym.inspection import SingularValueDisplay

rng = np.random.default_rng(0)
signal = rng.standard_normal((40, 20)) @ rng.standard_normal((20, 40)) / np.sqrt(20)
X = signal + 2.0 * rng.standard_normal((40, 40))

solvers = {
    "MAP": {"solver": "map", "max_iter": 3000, "tol": 1e-8},
    "mean-field": {"solver": "mean_field"},
    "symmetrised": {},
    "Gibbs": {"solver": "gibbs", "max_iter": 600},
}
known = {
    "center": False, "scale": False, "noise_std": 2.0, "offsets": False, "prior_scale": 1.0,
    "random_state": 0,
}  # fmt: skip
display = None
for name, settings in solvers.items():
    model = SymVIMatrixFactorization(20, **known).set_params(**settings).fit(X)
    display = SingularValueDisplay.from_estimator(
        model, X, name=name, ax=None if display is None else display.ax_
    )
plt.show()
