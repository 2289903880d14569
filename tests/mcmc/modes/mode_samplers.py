"""Two known modes with their evidence, and a sampler that starts in them."""

from functools import cache

import torch
from mcmc.known_densities import AutogradPosterior
from mcmc.modes.known_modes import TWO, UNITS, D, pooled

from skbayes_sym.mcmc.mode_evidence import estimate_mode_evidence
from skbayes_sym.mcmc.within_mode import ChainSettings, ModeSampler

LIKE = torch.zeros((), dtype=torch.float64)  # dtype and device of the chains
SETTINGS = ChainSettings(n_warmup=100, n_draws=50, thin=2, block_size=16, n_jobs=None)


def posterior_of(target):
    """Posterior with the gradients that the chains need."""
    return AutogradPosterior(D, target, lambda x: 0.0 * x[:, 0])


def sampler_of(target, generator, plan=SETTINGS):
    return ModeSampler(posterior_of(target), UNITS, plan, LIKE, generator)


@cache
def two_modes():
    """Draws of both modes and their evidence; cached, so treat them as constants."""
    generator = torch.Generator().manual_seed(0)
    _, _, pool = pooled(TWO, UNITS, generator)
    return estimate_mode_evidence(TWO, pool, UNITS, generator=generator)
