r"""
Modes that are different functions
==================================

Once symmetric copies are removed, the modes that remain are different explanations of the data.
This example follows Figures 4 and 2 of Wiese et al. (2023), on data made to have such modes, and
asks what the paper doesn't: how much posterior mass does each mode have?
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from predictive_convergence import consecutive_kl

from skbayes_sym import Chains, MCMCRegressor, ModeWeights
from skbayes_sym.datasets import make_sinusoidal

# %%
# A network that must choose
# --------------------------
#
# Four plateaus, three steps between them. A tanh unit makes one step: one or two units can't follow
# all of them.


def make_plateaus(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """0, 1, 0, 1 on unit intervals, with noise of standard deviation 0.3."""
    x = np.linspace(0, 4, n, endpoint=False)
    y = np.floor(x) % 2 + 0.3 * np.random.default_rng(seed).standard_normal(n)
    return x[:, None].astype(np.float32), y


X, y = make_plateaus(300, seed=0)
SETTINGS = {
    "prior": 3.0, "sampler": Chains(init="prior", n_warmup=300), "n_chains": 64,
    "random_state": 0,
}  # fmt: skip
one, two = (
    MCMCRegressor((width,), remove_symmetries=ModeWeights("evidence"), **SETTINGS).fit(X, y)
    for width in (1, 2)
)

# %%
# Each mode below is a set of functions. *Chains* counts those that ended there, each from its own
# random start: the paper's weight of a mode. *Mass* is the mode's share of the posterior, by bridge
# sampling. One unit has two modes with mass, but not with the mass that the chains suggest. With
# two units most of the chains end where there is none. The evidence also says how much better the
# data speak for two units than for one: 88 nats.

print("units   log p(y), nats     modes: chains of 64 (mass)")
for reg in (one, two):
    modes = ", ".join(f"{m.n_initial_chains} ({m.weight:.2f})" for m in reg.modes_)
    print(
        f"{reg.hidden_layer_sizes[0]:5}   "
        f"{reg.log_evidence_:7.2f} +- {reg.log_evidence_std_error_:.2f}   {modes}"
    )

# %%
# What each mode computes
# -----------------------
#
# The paper's Figure 4, for one unit. In the plane of two weights the modes are two clouds. Each is
# one way to place a single step: at the first rise or at the last. Together, in proportion to their
# mass, they are what the estimator predicts with.

BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe-Ito


def evaluate_functions(reg: MCMCRegressor, draws: np.ndarray) -> np.ndarray:
    """The functions of draws (n, P) at X, in units of y, (n, N)."""
    inputs = torch.from_numpy((X - reg.x_mean_) / reg.x_scale_)
    outputs = reg.network_.forward(torch.from_numpy(draws).to(inputs), inputs)
    return outputs[..., 0].numpy() * reg.y_scale_ + reg.y_mean_


def show_functions(axes: plt.Axes, reg: MCMCRegressor, draws: np.ndarray, colour: str) -> None:
    """Functions over the data."""
    axes.plot(X[:, 0], y, ".", color="0.8", ms=2, zorder=0)
    axes.plot(X[:, 0], evaluate_functions(reg, draws).T, color=colour, lw=0.8, alpha=0.5)
    axes.set(xlabel="x", xlim=(0, 4), ylim=(-0.9, 1.9), xticks=range(5))
    axes.spines[["top", "right"]].set_visible(False)


figure, (plane, *panels) = plt.subplots(1, 4, figsize=(8, 2.5), layout="constrained")
for mode, axes, colour in zip(one.modes_, panels, (BLUE, ORANGE), strict=False):
    draws = one.samples_[mode.chains]
    plane.plot(draws[..., 0], draws[..., 1], ".", color=colour, ms=2, mew=0)
    show_functions(axes, one, draws[:, -1], colour)
    axes.set_title(f"mass {mode.weight:.2f}", color=colour)
    show_functions(panels[-1], one, draws[:, -1], colour)
panels[-1].set_title("together")
panels[0].set_ylabel("y")
for axes in panels[1:]:
    axes.tick_params(labelleft=False)
plane.set(xlabel="input weight", ylabel="bias", title="modes")
plane.spines[["top", "right"]].set_visible(False)

# %%
# One vote per chain
# ------------------
#
# Two units, with the same chains weighed both ways. Many of the functions on the left are refuted
# by the data, by tens of nats, and yet they vote: their share is that of the starts in their
# basins, and more chains don't change it.

X_new, y_new = make_plateaus(300, seed=1)
voting = MCMCRegressor((2,), remove_symmetries=ModeWeights("uniform"), **SETTINGS).fit(X, y)

figure, panels = plt.subplots(1, 2, figsize=(7, 2.7), sharey=True, layout="constrained")
for axes, reg, colour in zip(panels, (voting, two), (ORANGE, BLUE), strict=True):
    show_functions(axes, reg, reg.samples_[:, -1], colour)
    axes.plot(X[:, 0], reg.predict(X), color="black", lw=2, label="their mean")
    density = reg.log_predictive_density(X_new, y_new).mean()
    method = reg.remove_symmetries.method
    axes.set_title(f'"{method}": new data {density:.2f} nats', fontsize=10)
    print(f"two units, {method:8}: log density of new data {density:.2f} nats per row")
panels[0].set_ylabel("y")
panels[0].legend(frameon=False, loc="upper left")

# %%
# A Gaussian for each mode
# ------------------------
#
# The paper's Figure 7. The draws of a mode, weights and log noise together, are replaced by a
# normal distribution with their mean and covariance. The mixture of one for each mode, weighted by
# mass, predicts new data as well as the draws themselves.


def mixture_log_density(reg: MCMCRegressor, n_draws: int = 4000) -> float:
    """Mean log density of new data, in nats, by one normal distribution for each mode."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy((X_new - reg.x_mean_) / reg.x_scale_)
    density = np.zeros(len(X_new))
    for mode in reg.modes_:
        noise = np.log(reg.noise_std_samples_[mode.chains]).reshape(-1, 1)
        weights = reg.samples_[mode.chains].reshape(len(noise), -1)
        joint = np.hstack([weights, noise])
        draws = rng.multivariate_normal(joint.mean(axis=0), np.cov(joint.T), size=n_draws)
        outputs = reg.network_.forward(torch.from_numpy(draws[:, :-1]).to(inputs), inputs)
        mean = outputs[..., 0].numpy() * reg.y_scale_ + reg.y_mean_
        std = np.exp(draws[:, -1:])
        normal = np.exp(-0.5 * ((y_new - mean) / std) ** 2) / (std * np.sqrt(2.0 * np.pi))
        density += mode.weight * normal.mean(axis=0)
    return float(np.log(density).mean())


by_draws = one.log_predictive_density(X_new, y_new).mean()
by_normals = mixture_log_density(one)
print(f"one unit: new data {by_draws:.3f} nats per row, by two normal distributions "
      f"{by_normals:.3f}")  # fmt: skip

# %%
# How many draws a prediction needs
# ---------------------------------
#
# The paper's Figure 2. Sixteen units have :math:`16!\,2^{16} = 1.4 \cdot 10^{18}` copies of every
# mode, and no sampler will see them all. None needs to: predictions don't depend on the copy. The
# divergence between the predictive distributions of :math:`g - 1` and :math:`g` draws, one per
# chain, falls like :math:`1 / g^2`. Darker is likelier.

X_sine, y_sine = make_sinusoidal(random_state=0)
wide = MCMCRegressor(
    (16,), sampler=Chains(init="prior", n_warmup=100), prior=1.0,
    n_chains=256, n_draws=4, remove_symmetries=ModeWeights("uniform"),
    random_state=0,
).fit(X_sine.astype(np.float32), y_sine)  # fmt: skip

inputs = torch.linspace(-3, 3, 61)  # standardised, the paper's grid
targets = torch.linspace(-3, 3, 121)
mean = wide.network_.forward(torch.from_numpy(wide.samples_[:, 0]), inputs[:, None])
noise = torch.from_numpy((wide.noise_std_samples_[:, 0] / wide.y_scale_).astype("float32"))
log_density = torch.distributions.Normal(mean, noise[:, None]).log_prob(targets)  # (256, 61, 121)
divergence = consecutive_kl(log_density, targets)

figure, panels = plt.subplots(1, 4, figsize=(8, 2.5), width_ratios=(1, 1, 1, 1.3),
                              layout="constrained")  # fmt: skip
for axes, n in zip(panels, (1, 16, 256), strict=False):
    predictive = log_density[:n].exp().mean(0).mT
    axes.pcolormesh(inputs, targets, predictive, cmap="Blues", vmin=0, vmax=1, rasterized=True)
    axes.set(title=f"{n} draw{'s' * (n > 1)}", xlabel="x (std)", xticks=(-2, 0, 2))
panels[0].set_ylabel("y (std)")
for axes in panels[1:3]:
    axes.tick_params(labelleft=False)
draws = np.arange(2, 257)
scaled = np.asarray(divergence) * draws**2
print(f"divergence from g - 1 to g draws: {scaled.mean():.1f} / g^2 nats")
panels[3].loglog(draws, divergence, color=BLUE, lw=0.8)
panels[3].loglog(draws, 0.3 / draws**2.0, "--", color="0.3", lw=1.2)
panels[3].text(14, 2e-2, r"$\propto g^{-2}$", color="0.3")
panels[3].set(xlabel="draws $g$", ylabel="KL to $g - 1$ draws (nats)")
panels[3].spines[["top", "right"]].set_visible(False)

plt.show()
