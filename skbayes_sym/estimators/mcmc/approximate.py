"""Draws condensed to a few Gaussians."""

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inference.modes.find import find_modes
from skbayes_sym.inference.modes.mixtures import (
    LowRankMixture,
    MixtureOfLaplace,
    fit_low_rank_mixture,
    fit_mixture_of_laplace,
)
from skbayes_sym.inference.modes.weigh import LEAST_WEIGHT
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.symmetry.base import Trivial
from skbayes_sym.symmetry.units import split_units


def condensed(
    kind: str, posterior: NetworkPosterior, position: Tensor, chain_weights: Array, aligned: bool
) -> MixtureOfLaplace | LowRankMixture:
    """A few Gaussians for draws (C, S, D) of ``posterior``; what a kind can't be had of is refused.

    "low_rank" has one a chain, of its draws, each moved to the copy nearest the draw before: labels
    that were chosen draw by draw (``aligned``) are undone by that, since a chain moves by less than
    its units are apart. Towards one draw of the chain they wouldn't be. "mixture_of_laplace" has
    one for every mode that the draws have weight in, at its best draw.
    """
    group = posterior.network.symmetry()
    n_chains, n_draws, _ = position.shape
    if kind == "low_rank":
        if n_draws < 2:
            raise ValueError("approximate('low_rank') needs at least 2 draws a chain, got 1.")
        along = [position[:, 0]]
        for draw in position.unbind(1)[1:]:
            along.append((group if aligned else Trivial()).align(draw, along[-1])[0])
        return fit_low_rank_mixture(torch.stack(along, 1), torch.as_tensor(chain_weights).log())
    if kind != "mixture_of_laplace":
        raise ValueError(f"kind must be 'mixture_of_laplace' or 'low_rank', got {kind!r}.")
    if not aligned:
        raise ValueError(
            "approximate needs draws on one representative of their orbits: remove_symmetries=True."
        )
    if split_units(group)[1]:
        raise ValueError(
            "approximate needs isolated modes, and this network's symmetry has a factor that "
            "isn't made of exchangeable units."
        )
    flat = position.flatten(0, 1)
    values, chains = posterior(flat), torch.arange(n_chains).repeat_interleave(n_draws)
    labels = find_modes(flat, values, chains, group).labels
    share = torch.as_tensor(np.repeat(chain_weights / n_draws, n_draws))
    weights = torch.zeros(int(labels.max()) + 1, dtype=torch.float64).index_add_(0, labels, share)
    used = (weights >= LEAST_WEIGHT).nonzero().flatten().tolist()
    best = [values.masked_fill(labels != k, -torch.inf).argmax() for k in used]
    return fit_mixture_of_laplace(posterior, flat[torch.stack(best)], weights[used].log())
