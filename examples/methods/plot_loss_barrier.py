r"""
Loss between two draws of a network
===================================

The chains of a deep network end in different modes. Are these modes the same function with the
hidden units in another order, or different functions? `loss_barrier` computes the loss on the
straight line between two draws, before and after the units of the second draw are matched with the
units of the first (Ainsworth et al. 2023, Rossi et al. 2023).

This takes about ten seconds of one core.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import Annealing, Chains, MCMCRegressor, loss_barrier

warnings.simplefilter("ignore", ConvergenceWarning)  # chains in modes of their own: see below

# %%
# Four chains of two layers of sixteen units
# ------------------------------------------

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (200, 2))
f = np.sin(2 * X[:, 0]) * np.cos(X[:, 1])
y = f + 0.1 * rng.standard_normal(200)
model = MCMCRegressor(
    (16, 16), "tanh", n_chains=4, n_draws=50,
    sampler=Chains(init=Annealing(n_hot=1500, n_settle=375), n_warmup=50), random_state=0,
    remove_symmetries=False,
).fit(X, y)  # fmt: skip

# %%
# Between chains, and within one
# ------------------------------

chains = loss_barrier(model, (0, -1), (1, -1))
within = loss_barrier(model, (0, 0), (0, -1))
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
titles = ("Between two chains", "Within one chain")
for ax, found, title in zip(axes, (chains, within), titles, strict=True):
    ax.plot(found.fraction, found.loss_before, label="as drawn")
    ax.plot(found.fraction, found.loss_after, label="aligned")
    ax.set(xlabel="position on the line (0 to 1)", ylabel="loss (nats per row)")
    ax.legend()
    ax.set(title=title)
    print(
        f"{title:18}  distance {found.distance_before:5.1f}, aligned {found.distance_after:5.1f}"
        f"   barrier {found.barrier_before:6.2f}, aligned {found.barrier_after:6.2f} nats per row"
    )
axes[1].set(ylabel="")

# %%
# Matching removes more than half of the barrier between two chains. The rest shows that they are
# different functions, or that the matching, which is a local optimum, missed the right order. The
# weights of aligned chains look similar in either case, so judge chains by their functions
# (``diagnostics_.function_rhat``). Within a chain the draws are as far apart, but the barrier is a
# tenth, and the units already have the same order, so matching gains nothing.
plt.show()
