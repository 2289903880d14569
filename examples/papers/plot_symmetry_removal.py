r"""
One of 48 copies
================

A hidden layer of :math:`d` tanh units computes the same function when two units change places and
when all weights of a unit change sign. Every mode of a Bayesian network's posterior therefore comes
in :math:`d!\, 2^d` copies. Wiese et al. (2023) sample the posterior as it is, and then move each
draw to one representative of its copies. This example repeats their Figures 1, 3 and 6.
"""

# sphinx_gallery_thumbnail_number = 2

from math import factorial, log10

import matplotlib.pyplot as plt
import numpy as np
import torch
from svm_knn import relabel_svm_knn

from skbayes_sym import Chains, MCMCRegressor, ModeWeights, remove_symmetries
from skbayes_sym.datasets import make_sinusoidal
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP

# %%
# How many copies
# ---------------
#
# A network knows its symmetry group and the logarithm of the group's order, :math:`|G|`. Python's
# integers check it exactly. Activations that aren't odd, such as ReLU, have no signs to change.


def log10_order(n_units: int, activation: str) -> float:
    """log10 |G| of one hidden layer."""
    network = MLP(1, (n_units,), 1, ACTIVATIONS[activation])
    return network.symmetry().log_order / np.log(10)


widths = np.arange(1, 129)
orders = {name: [log10_order(d, name) for d in widths] for name in ("tanh", "relu")}

print("tanh units   log10 |G|   exact |G|")
for d in (1, 3, 16, 128):
    exact = factorial(d) * 2**d
    print(f"{d:10}   {orders['tanh'][d - 1]:9.4f}   {exact if d < 4 else f'{exact:.3g}'}")
    assert abs(orders["tanh"][d - 1] - log10(exact)) < 1e-9

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.plot(widths, orders["tanh"], color="#0072B2", lw=2)
axes.plot(widths, orders["relu"], "--", color="#D55E00", lw=2)
axes.plot(widths[-1], orders["tanh"][-1], "o", color="#0072B2", clip_on=False)
axes.text(122, 254, r"$1.31 \cdot 10^{254}$", ha="right", va="center")
axes.text(84, 175, r"tanh: $d!\,2^d$", color="#0072B2", ha="right")
axes.text(92, 120, r"ReLU: $d!$", color="#D55E00")
axes.set(xlabel="hidden units $d$", ylabel=r"copies of a mode ($\log_{10} |G|$)")
axes.set(xlim=(0, 129), ylim=(0, 270))
axes.spines[["top", "right"]].set_visible(False)

# %%
# Draws as a sampler leaves them
# ------------------------------
#
# Three units, 48 copies. With ``remove_symmetries=False`` the draws stay where the chains are, and
# each chain is in the copy to which its start led it. One draw a chain:

X, y = make_sinusoidal(random_state=0)
X = X.astype(np.float32)
reg = MCMCRegressor(
    (3,), sampler=Chains(init="prior", n_warmup=400), prior=1.0,
    n_chains=512, n_draws=4, random_state=0,
    remove_symmetries=False,
).fit(X, y)  # fmt: skip
before = reg.samples_[:, -1].astype(np.float64)  # (512, 10)

reduced = remove_symmetries(
    before, hidden_layer_sizes=(3,), activation="tanh", n_features_in=1, random_state=0
)
after = reduced.draws

# %%
# Nothing but names has changed: every function is the same to the last digits. The margin tells
# how decided the new names are, as log odds against the runner-up.


def functions(theta: np.ndarray) -> np.ndarray:
    """Outputs at the training rows, in standard deviations of y."""
    inputs = torch.from_numpy((X - reg.x_mean_) / reg.x_scale_)
    return reg.network_.forward(torch.from_numpy(theta), inputs).numpy()


moves = np.unique(np.hstack([reduced.permutations[0], reduced.signs[0]]), axis=0)
print(f"group elements that were needed     {len(moves)} of 48")
print(
    f"largest change of a function        {np.abs(functions(after) - functions(before)).max():.0e}"
)
print(f"draws with odds of 20 to 1 or more  {100 * np.mean(reduced.margin > 3):.1f} %")

# %%
# The subspace of the units
# -------------------------
#
# The paper's Figure 3. Each draw is three points, one a hidden unit, coloured by the unit's place
# in the layer. Before, the place says nothing: there are six clouds (three units, two signs), and
# every colour is in each. Afterwards each unit has a cloud to itself.

COLOURS = ("#0072B2", "#E69F00", "#009E73")  # Okabe-Ito

figure, panels = plt.subplots(
    2, 2, figsize=(7, 5), sharex=True, sharey="row", height_ratios=(2, 1), layout="constrained"
)
bins = np.linspace(-4, 4, 61)
for column, theta, title in zip(panels.T, (before, after), ("before", "after"), strict=True):
    weight, bias = theta[:, 0:3], theta[:, 3:6]
    shuffled = np.random.RandomState(0).permutation(weight.size)
    marks = np.tile(COLOURS, len(theta))[shuffled]
    column[0].scatter(weight.ravel()[shuffled], bias.ravel()[shuffled], c=marks, s=5, lw=0)
    for i, colour in enumerate(COLOURS):
        column[1].hist(weight[:, i], bins, color=colour, histtype="step", lw=1.5)
        column[0].plot([], [], "o", color=colour, ms=5, label=f"unit {i + 1}")
    column[0].set(title=f"{title} removal", xlim=(-4, 4))
    column[1].set_xlabel("input weight (standardised units)")
    for axes in column:
        axes.spines[["top", "right"]].set_visible(False)
panels[0, 0].set_ylabel("bias")
panels[1, 0].set_ylabel("draws")
panels[0, 1].legend(frameon=False, loc="upper left", handletextpad=0.1)

# %%
# The paper's own algorithm
# -------------------------
#
# So far `remove_symmetries` has compared all draws of a unit with a Gaussian. The paper first
# halves the subspace by a plane (a support vector machine; its step b), so that every unit has one
# sign, and then lets nearest neighbours vote (step c). With three units the two agree. The lower
# row is the paper's experiment B, sixteen units for a function of one input (its data set comes as
# a file, so the sine again): most units do nothing and lie on top of each other. The votes have not
# settled after a hundred rounds, no draw gets the same labels by both algorithms, and what looks
# like sixteen clusters has the colours that the algorithm gave it.

from scipy.optimize import linear_sum_assignment

wide = MCMCRegressor(
    (16,), sampler=Chains(init="prior", n_warmup=100), prior=1.0,
    n_chains=128, n_draws=1, random_state=0,
    remove_symmetries=False,
).fit(X, y)  # fmt: skip


def agreement(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Draws, and units, that get the same labels by two permutations, named alike if possible."""
    first, second = a.argsort(axis=-1), b.argsort(axis=-1)
    d = first.shape[1]
    together = np.zeros((d, d))
    np.add.at(together, (first.ravel(), second.ravel()), 1)
    same = linear_sum_assignment(-together)[1][first] == second
    return same.all(axis=1).mean(), same.mean()


figure, panels = plt.subplots(2, 3, figsize=(7.4, 4.6), layout="constrained")
print("units   draws that get the same labels by both algorithms   units")
for line, draws in zip(panels, (before, wide.samples_[:, -1].astype(np.float64)), strict=True):
    d = (draws.shape[1] - 1) // 3
    theirs = relabel_svm_knn(
        torch.from_numpy(draws), MLP(1, (d,), 1, ACTIVATIONS["tanh"]).symmetry(),
        n_starts=4, n_neighbors=1024, max_sweeps=100, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    place, voted = theirs.elements[0].permutation.numpy(), theirs.theta.numpy()
    ours = remove_symmetries(
        draws, hidden_layer_sizes=(d,), activation="tanh", n_features_in=1, random_state=0
    )
    share, of_units = agreement(ours.permutations[0], place)
    print(f"{d:5}   {100 * share:46.0f} %   {100 * of_units:3.0f} %")
    weight, bias = voted[:, :d], voted[:, d : 2 * d]
    steps = {
        "(a) as sampled": (
            draws[:, :d],
            draws[:, d : 2 * d],
            np.tile(np.arange(d), (len(draws), 1)),
        ),
        "(b) one sign": (weight, bias, place),
        "(c) neighbours": (weight, bias, np.tile(np.arange(d), (len(draws), 1))),
    }
    for axes, (title, (w, b, unit)) in zip(line, steps.items(), strict=True):
        mixed = np.random.RandomState(0).permutation(w.size)
        colours = np.array(COLOURS)[unit] if d == 3 else plt.get_cmap("tab20")(unit / 19)
        marks = colours.reshape(w.size, -1).squeeze()[mixed]
        axes.scatter(w.ravel()[mixed], b.ravel()[mixed], c=marks, s=4, lw=0)
        axes.set(title=f"{title}, {d} units", xlim=(-4, 4), xlabel="input weight")
        axes.spines[["top", "right"]].set_visible(False)
    line[0].set_ylabel("bias")

# %%
# Sixteen units as a posterior of functions
# -----------------------------------------
#
# That labels can't be decided doesn't mean that the posterior has many modes. Functions don't
# depend on labels. If chains from different starts give the same distribution of functions, R-hat
# of the outputs is near 1, and the posterior of functions has one mode as far as the chains can
# tell. This holds for sixteen units as for three.

print("units   R-hat of outputs: median, largest   of weights: before, after removal")
for d in (3, 16):
    several = MCMCRegressor(
        (d,), sampler=Chains(init="prior", n_warmup=300), prior=1.0, n_chains=16, n_draws=100,
        remove_symmetries=ModeWeights("uniform"), random_state=0,
    ).fit(X, y)  # fmt: skip
    found = several.diagnostics_
    print(
        f"{d:5}   {np.median(found.function_rhat):26.2f}, {found.function_rhat.max():.2f}"
        f"   {np.max(found.parameter_rhat_before):20.2f}, {np.max(found.parameter_rhat):.2f}"
    )

# %%
# The whole posterior
# -------------------
#
# The paper's Figure 6: all pairs of the ten weights, the draws below the diagonal as they were
# (orange), above it as they are now (blue). Symmetric and of many modes, against one mode:
# the two predict alike, but only of the second one can say what a weight is.

NAMES = [rf"${w}_{i}$" for w in ("w", "b", "v") for i in (1, 2, 3)] + ["$c$"]
n_weights = len(NAMES)
BEFORE, AFTER = "#D55E00", "#0072B2"
figure, panels = plt.subplots(n_weights, n_weights, figsize=(7, 7.2))
figure.subplots_adjust(0.01, 0.01, 0.99, 0.955, wspace=0.06, hspace=0.06)
figure.text(0.01, 0.97, "below the diagonal: as sampled", color=BEFORE)
figure.text(0.99, 0.97, "above: after removal", color=AFTER, ha="right")
reach = 1.05 * np.abs(before).max(axis=0)
for i, j in np.ndindex(n_weights, n_weights):
    axes = panels[i, j]
    axes.set(xticks=[], yticks=[], xlim=(-reach[j], reach[j]), ylim=(-reach[i], reach[i]))
    axes.spines[:].set_color("0.8")
    if i == j:
        axes.text(0.5, 0.5, NAMES[i], transform=axes.transAxes, ha="center", va="center", size=13)
    else:
        theta, colour = (before, BEFORE) if i > j else (after, AFTER)
        axes.plot(theta[:, j], theta[:, i], ".", color=colour, ms=1.5, mew=0)

plt.show()
