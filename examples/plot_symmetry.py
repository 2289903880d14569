"""
Weights without symmetric copies
================================

`~skbayes_sym.inspection.SymmetryDisplay` shows two weights of every hidden unit, before and after
the network's symmetry is removed from the draws. Three tanh units can be exchanged and flipped in
3! 2^3 = 48 ways.
"""

import matplotlib.pyplot as plt

from skbayes_sym import Chains, MCMCRegressor, SymmetrizedVIRegressor
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.inspection import SymmetryDisplay

X, y = make_sinusoidal(random_state=0)
X = X.astype("float32")
reg = MCMCRegressor(
    (3,), sampler=Chains(init="prior", n_warmup=300), prior=1.0,
    n_chains=256, n_draws=4, remove_symmetries=False,
    random_state=0,
).fit(X, y)  # fmt: skip
SymmetryDisplay.from_estimator(reg)

# %%
# A variational posterior consists of one copy by construction. ``elbo_`` is the bound of its
# average over the group, on the left. A unit that was switched off could be recognised in this
# figure: its outgoing weight, on the vertical axis, would be 0, and its incoming weight would
# follow the prior.

vi = SymmetrizedVIRegressor((3,), "tanh", random_state=0).fit(X, y)
SymmetryDisplay.from_estimator(vi, pair=("weight of x0", "weight to output 0"))
plt.show()
