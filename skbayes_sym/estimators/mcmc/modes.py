"""The modes of a posterior modulo its symmetry, as a fit reports them."""

from typing import NamedTuple

import numpy as np
import torch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inference.multimodal.weights import Weighing


class Mode(NamedTuple):
    """A mode of the posterior modulo its symmetry."""

    weight: float  # posterior mass, of all modes found; nan where they couldn't be decided
    log_evidence: float  # log of its part of p(y | X), all symmetric copies counted, nats
    std_error: float  # of log_evidence, nats
    members: Array  # its chains in samples_
    n_explorers: int  # chains that ended there on their own
    n_particles: int  # of the replicates, likewise
    mean_log_posterior: float  # over its draws, nats


def list_modes(
    weighing: Weighing, n_explorers: int, home: Array | None, offset: float, decided: bool
) -> list[Mode]:
    """The modes, heaviest first.

    Parameters
    ----------
    weighing : Weighing
    n_explorers : int
        Chains that explored; they come first in the pool.
    home : ndarray of shape (C,), optional
        The mode of each chain that is kept; by default the explorers are.
    offset : float
        Turns log densities of scaled targets into those of targets as given, nats.
    decided : bool
        Whether their weights are.
    """
    pool, modes = weighing.pool, weighing.modes
    explored = pool.chains < n_explorers
    table = torch.zeros(n_explorers, modes.regions.n_modes)
    table.index_put_(
        (pool.chains[explored], modes.labels[explored]), torch.ones(()), accumulate=True
    )
    ended = table.argmax(dim=1).numpy()  # where each explorer spent most of its draws
    kept = ended if home is None else home
    listed = []
    for k, estimate in enumerate(weighing.estimates):
        own = modes.labels == k
        listed.append(
            Mode(
                float(weighing.weights.weights[k]) if decided else float("nan"),
                estimate.log_evidence + offset,
                estimate.standard_error,
                np.flatnonzero(kept == k),
                int((ended == k).sum()),
                int((own & (pool.sources > 0)).sum()),
                float(pool.values[own].mean()) + offset,
            )
        )
    return sorted(listed, key=lambda m: np.nan_to_num(m.log_evidence, nan=-np.inf), reverse=True)
