"""
Modes: mass against votes
=========================

`~skbayes_sym.inspection.ModesDisplay` shows what a sampler found. A mode's posterior mass comes
from bridge sampling. The share of chains that ended there only says how many starts its basin
attracts.
"""

import matplotlib.pyplot as plt
import numpy as np

from skbayes_sym import Chains, MCMCRegressor, ModeWeights
from skbayes_sym.inspection import ModesDisplay, SymmetryDisplay

# %%
# Four plateaus, three steps between them, and one tanh unit, which can make one step: the first
# rise or the last.

x = np.linspace(0, 4, 300, endpoint=False)
y = np.floor(x) % 2 + 0.3 * np.random.default_rng(0).standard_normal(300)
settings = {
    "prior": 3.0, "sampler": Chains(init="prior", n_warmup=300), "n_chains": 64,
    "remove_symmetries": ModeWeights("evidence"), "random_state": 0,
}  # fmt: skip
reg = MCMCRegressor((1,), **settings)
ModesDisplay.from_estimator(reg.fit(x[:, None].astype(np.float32), y))

# %%
# The same modes in the plane of the unit's weight and bias. Each has two copies, since the unit can
# change its sign.

SymmetryDisplay.from_estimator(reg, color_by="mode")
plt.show()
