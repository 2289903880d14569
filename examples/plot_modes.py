"""
Posterior mass of modes
=======================

A sampler finds several modes. Bridge sampling estimates the posterior mass of each mode. The
fraction of chains that end in a mode only shows how many starting points its basin attracts.
"""

import matplotlib.pyplot as plt
import numpy as np

from skbayes_sym import Chains, MCMCRegressor, ModeWeights
from skbayes_sym.inspection import SymmetryDisplay

# %%
# The function has four plateaus with three steps between them. The network has one tanh unit, which
# can make one step: the first rise or the last.

x = np.linspace(0, 4, 300, endpoint=False)
y = np.floor(x) % 2 + 0.3 * np.random.default_rng(0).standard_normal(300)
settings = {
    "prior": 3.0, "sampler": Chains(init="prior", n_warmup=300), "n_chains": 64,
    "remove_symmetries": ModeWeights("evidence"), "random_state": 0,
}  # fmt: skip
reg = MCMCRegressor((1,), **settings).fit(x[:, None].astype(np.float32), y)
modes = reg.modes_
names = [f"mode {k}: {mode.n_initial_chains} chains" for k, mode in enumerate(modes)]
n_chains = sum(mode.n_initial_chains for mode in modes)
figure, (shares, evidences) = plt.subplots(
    1, 2, sharey=True, figsize=(8, 2.5), layout="constrained"
)
shares.barh(names, [mode.weight for mode in modes], alpha=0.6, label="posterior mass")
shares.plot(
    [mode.n_initial_chains / n_chains for mode in modes], names, "o", label="fraction of chains"
)
shares.set_xlabel("fraction")
figure.suptitle("Modes of a network with one unit")
shares.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
shares.invert_yaxis()  # the heaviest on top
evidences.errorbar(
    [mode.log_evidence for mode in modes], names, fmt="o", capsize=3,
    xerr=[2 * mode.std_error for mode in modes],
)  # fmt: skip
evidences.set_xlabel("log evidence (nats)")
evidences.locator_params("x", nbins=4)

# %%
# The same modes in the plane of the weight and the bias of the unit. Each mode has two copies,
# because the unit can change its sign.

SymmetryDisplay.from_estimator(reg, color_by="mode")
plt.show()
