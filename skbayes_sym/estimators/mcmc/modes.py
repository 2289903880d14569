"""The modes of a posterior modulo its symmetry, as a fit reports them."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inference.modes.weigh import Weighing


class Mode(NamedTuple):
    """A mode of the posterior modulo its symmetry."""

    weight: float  # posterior mass, of all modes found; nan where it couldn't be decided
    log_evidence: float  # log of its part of p(y | X), all symmetric copies counted, nats
    std_error: float  # of log_evidence, nats
    members: Array  # its chains in samples_
    n_explorers: int  # chains that ended there on their own
    n_particles: int  # of the replicates, likewise
    mean_log_posterior: float  # over its draws, nats


def where_they_ended(weighing: Weighing, n_explorers: int) -> Tensor:
    """The mode in which each explorer spent most of its draws, int64 (n_explorers,)."""
    explored = weighing.pool.chains < n_explorers
    table = torch.zeros(n_explorers, weighing.modes.regions.n_modes)
    visits = weighing.pool.chains[explored], weighing.modes.labels[explored]
    return table.index_put_(visits, torch.ones(()), accumulate=True).argmax(dim=1)


def list_modes(
    weighing: Weighing, n_explorers: int, home: Array | None, offset: float
) -> list[Mode]:
    """The modes, the largest evidence first, and then the highest.

    Parameters
    ----------
    weighing : Weighing
    n_explorers : int
        Chains that explored; they come first in the pool.
    home : ndarray of shape (C,), optional
        The mode of each chain that is kept; by default the explorers are.
    offset : float
        Turns log densities of scaled targets into those of targets as given, nats.
    """
    pool, modes = weighing.pool, weighing.modes
    ended = where_they_ended(weighing, n_explorers).numpy()
    kept = ended if home is None else home
    listed = []
    for k, estimate in enumerate(weighing.estimates):
        own = modes.labels == k
        listed.append(
            Mode(
                float(weighing.weights.weights[k]),
                estimate.log_evidence + offset,
                estimate.standard_error,
                np.flatnonzero(kept == k),
                int((ended == k).sum()),
                int((own & (pool.sources > 0)).sum()),
                float(pool.values[own].mean()) + offset,
            )
        )
    return sorted(listed, key=_rank, reverse=True)


def _rank(mode: Mode) -> tuple[float, float]:
    return float(np.nan_to_num(mode.log_evidence, nan=-np.inf)), mode.mean_log_posterior
