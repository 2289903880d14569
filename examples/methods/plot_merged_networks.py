r"""
Merge several networks
======================

Networks that were trained from different starts have their hidden units in different orders, so the
average of their weights is useless. `symmetry_of` finds the units of a module that can be
exchanged, `~skbayes_sym.symmetry.align_modules` brings the units of all networks into the same
order, and `~skbayes_sym.symmetry.merge_modules` averages the networks (Ainsworth et al. 2023). You
don't have to describe the layers.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from skbayes_sym import DeepEnsembleRegressor, remove_symmetries
from skbayes_sym.inspection import SymmetryDisplay
from skbayes_sym.symmetry import align_modules, merge_modules, symmetry_of

# %%
# Four networks for digits
# ------------------------

images, labels = load_digits(return_X_y=True)
parts = train_test_split(images / 16.0, labels, test_size=500, random_state=0)
X, X_test = (torch.as_tensor(part, dtype=torch.float32) for part in parts[:2])
y, y_test = (torch.as_tensor(part) for part in parts[2:])


def network(seed):
    """Trained by Adam from a start and with batches of its own."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )  # fmt: skip
    adam = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    for _ in range(600):
        rows = torch.randint(len(X), (128,))
        adam.zero_grad()
        torch.nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        adam.step()
    return net


networks = [network(seed) for seed in range(4)]
print(symmetry_of(networks[0], X[:2]).report())

# %%
# All four networks get the order of units of the first network. On the straight line between two of
# the others the loss then hardly rises.


def at(first, second, share):
    """Loss of new images between two networks, nats."""
    weights = {
        name: torch.lerp(tensor, second.state_dict()[name], share)
        for name, tensor in first.state_dict().items()
    }
    logits = torch.func.functional_call(first, weights, X_test)
    return float(torch.nn.functional.cross_entropy(logits, y_test))


def accuracy(net):
    return float((net(X_test).argmax(1) == y_test).float().mean())


moved = align_modules(networks, X[:2])
shares = np.linspace(0.0, 1.0, 21)
figure, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for nets, name in ((networks, "as trained"), (moved, "aligned")):
    ax.plot(shares, [at(nets[1], nets[2], float(share)) for share in shares], label=name)
ax.set(xlabel="position between the second (0) and the third (1)", ylabel="loss (nats per image)")
ax.set_title("Loss on the line between two networks")
ax.legend()

# %%
# The average of all four, before and after:

plain = network(0)
plain.load_state_dict({
    name: torch.stack([net.state_dict()[name] for net in networks]).mean(0)
    for name in networks[0].state_dict()
})  # fmt: skip
print("members ", " ".join(f"{accuracy(net):.3f}" for net in networks))
print(f"average {accuracy(plain):.3f}, merged {accuracy(merge_modules(networks, X[:2])):.3f}")

# %%
# Members of an ensemble
# ----------------------
#
# Sixteen members are fitted to the diabetes table, each a module with three tanh units. Colours
# show the position of a unit in the layer. As trained, there are six clusters, three units with
# either sign, and each cluster has all colours. After alignment three clusters remain: all members
# are copies of one mode.

X, y = load_diabetes(return_X_y=True)
net = torch.nn.Sequential(torch.nn.Linear(10, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
members = DeepEnsembleRegressor(network=net, n_members=16, prior=0.3, random_state=0).fit(X, y)
removed = remove_symmetries(
    members.samples_, module=net, example_input=torch.zeros(2, 10), random_state=0
)
SymmetryDisplay.from_draws(
    members.samples_, removed, pair=(2, 8), weight_names=("weight of bmi", "weight of s5")
)
plt.show()
