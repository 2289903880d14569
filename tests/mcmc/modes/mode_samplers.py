"""Two known modes, weighed, and a sampler that starts in them."""

from functools import cache

import torch
from mcmc.known_densities import AutogradPosterior
from mcmc.modes.known_modes import TWO, UNITS, D, pooled

from skbayes_sym.mcmc.mode_evidence import estimate_mode_evidence
from skbayes_sym.mcmc.within_mode import ChainSettings, ModeSampler

LIKE = torch.zeros((), dtype=torch.float64)  # what chains run with
SETTINGS = ChainSettings(n_warmup=100, n_draws=50, thin=2, block_size=16, n_jobs=None)


def posterior_of(target):
    """With gradients, as chains want it."""
    return AutogradPosterior(D, target, lambda x: 0.0 * x[:, 0])


def sampler_of(target, generator, plan=SETTINGS):
    return ModeSampler(posterior_of(target), UNITS, plan, LIKE, generator)


@cache
def two_modes():
    """Draws of both, and what they estimate_mode_evidence; read only."""
    generator = torch.Generator().manual_seed(0)
    _, _, pool = pooled(TWO, UNITS, generator)
    return estimate_mode_evidence(TWO, pool, UNITS, generator=generator)
