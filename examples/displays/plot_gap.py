"""
What symmetry adds to the bound
===============================

`~skbayes_sym.inspection.GapDisplay` compares estimators by their lower bounds on the log evidence.
The line between two marks is what the symmetry adds: mean-field inference loses it by telling apart
what the model doesn't.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

from skbayes_sym import BayesianLinearRegressor, SymmetrizedVIRegressor
from skbayes_sym.inspection import GapDisplay

X, y = load_diabetes(return_X_y=True)

# %%
# Ten tanh units can be exchanged and flipped in 10! 2^10 ways. The mean-field fit
# (``symmetry=None``) switches units off until there is nothing left to lose. Symmetrised, it may
# keep them: its mean-field bound alone is lower, the sum is higher. The symmetries of the linear
# model are the shifts of its weights that no row sees.

network = {"activation": "tanh", "max_iter": 2000, "random_state": 0}
models = {
    "10 units, mean-field": SymmetrizedVIRegressor((10,), symmetry=None, **network),
    "10 units, symmetrised": SymmetrizedVIRegressor((10,), **network),
    "5 units, symmetrised": SymmetrizedVIRegressor((5,), **network),
    "linear": BayesianLinearRegressor(),
}
GapDisplay.from_estimators({name: model.fit(X, y) for name, model in models.items()})
plt.show()
