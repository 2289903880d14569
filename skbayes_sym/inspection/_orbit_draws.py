"""Draws of a network's weights before and after symmetry removal."""

from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inspection._fitted import require
from skbayes_sym.inspection.symmetry_removal import remove_symmetries
from skbayes_sym.numerics.random import generator_from


class OrbitDraws(NamedTuple):
    """Flat weights (n, P) before and after removal, and the chain of each."""

    before: Array
    after: Array
    chains: Array
    before_name: str


def unit_positions(model: Any, layer: int) -> Array:
    """Positions of every unit's weights in the flat vector, (d, p)."""
    need = "a network whose hidden units can be exchanged"
    require(model, ["network_"], "SymmetryDisplay", need)
    require(model.network_, ["symmetry"], "SymmetryDisplay", need)
    factors = model.network_.symmetry().factors
    if not isinstance(layer, Integral) or not 1 <= layer <= len(factors):
        raise ValueError(
            f"layer must lie between 1 and the number of hidden layers, {len(factors)} in this "
            f"{type(model).__name__}, got {layer!r}."
        )
    return factors[layer - 1].index.numpy()


def weight_names(model: Any, n_weights: int, layer: int) -> list[str]:
    """Names of a unit's weights, in their order."""
    sizes = model.network_.sizes
    sources = [f"x{j}" for j in range(sizes[0])]
    if layer > 1:
        sources = [f"unit {j} below" for j in range(sizes[layer - 1])]
    elif hasattr(model, "feature_names_in_"):
        sources = list(model.feature_names_in_)
    target = "output" if layer + 1 == len(sizes) - 1 else "unit above"
    n_out = n_weights - len(sources) - 1
    outgoing = [f"weight to {target} {j}" for j in range(n_out)]
    return [*(f"weight of {source}" for source in sources), "bias", *outgoing]


def weight_position(which: int | str, names: list[str]) -> int:
    """Place of a weight given by position or name."""
    if isinstance(which, str) and which in names:
        return names.index(which)
    if not isinstance(which, Integral) or not 0 <= which < len(names):
        raise ValueError(f"pair takes positions or names of {names}, got {which!r}.")
    return int(which)


def orbit_draws(model: Any, n: int, seed: int) -> OrbitDraws:
    """Draws of the posterior, and what removing or restoring its symmetry makes of them."""
    network = model.network_
    generator = generator_from(seed)
    if not hasattr(model, "samples_"):
        require(model, ["posterior_"], "SymmetryDisplay", "draws or a posterior of the weights")
        theta, chains = model.posterior_.sample(n, generator=generator).double(), np.zeros(n, int)
    else:
        samples = np.asarray(model.samples_, dtype=float)
        flat = samples.reshape(-1, samples.shape[-1])
        per_chain = len(flat) // len(samples)
        weights = getattr(model, "chain_weights_", np.full(len(samples), 1.0 / len(samples)))
        chosen = _evenly(np.repeat(weights / per_chain, per_chain), n)
        theta, chains = torch.from_numpy(flat[chosen]), chosen // per_chain
        if getattr(model, "mode_weights", None) is None:
            moved = remove_symmetries(
                flat[chosen], hidden_layer_sizes=network.hidden_layer_sizes,
                activation=network.activation.name, n_features_in=network.n_inputs,
                n_outputs=network.n_outputs, random_state=seed,
            )  # fmt: skip
            return OrbitDraws(flat[chosen], moved.draws, chains, "as sampled")
    group = network.symmetry()
    copies = group.act(group.sample((len(theta),), generator=generator), theta)
    return OrbitDraws(copies.numpy(), theta.numpy(), chains, "all symmetric copies")


def _evenly(weights: Array, n: int) -> Array:
    """At most ``n`` positions, in proportion to their weights, without noise."""
    n = min(n, len(weights))
    ends = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(ends, (np.arange(n) + 0.5) / n), len(weights) - 1)
