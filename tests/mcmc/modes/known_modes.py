"""Symmetric mixtures whose modes hold known shares of the whole, and pools of their draws."""

from math import log, pi

import torch

from skbayes_sym.mcmc.bridge import GaussianMixture
from skbayes_sym.mcmc.mode_evidence import pool_draws
from skbayes_sym.symmetry.fundamental_domain import enumerate_group
from skbayes_sym.symmetry.units import Units

F64 = torch.float64
UNITS = Units(torch.tensor([[0], [1]]), flip=True)  # 2! 2^2 = 8 copies; column 2 stays put
D = 3


class Mixture:
    """Gaussians with diagonal covariance, each with a known fraction of exp(``log_total``).

    With a group, every Gaussian is averaged over its copies, so that it still holds its share.
    """

    def __init__(self, means, scales, masses, log_total, group=None):
        self.means, self.scales = (torch.tensor(a, dtype=F64) for a in (means, scales))
        self.log_mass = torch.tensor(masses, dtype=F64).log() + log_total
        self._table = enumerate_group(group, D) if group is not None else None

    def __call__(self, x):
        images = x.unsqueeze(1) if self._table is None else self._table.orbit(x)  # (C, |G|, D)
        gap = (images.unsqueeze(2) - self.means) / self.scales
        normal = -0.5 * gap.square().sum(-1) - self.scales.log().sum(-1) - 0.5 * D * log(2 * pi)
        return torch.logsumexp(normal + self.log_mass, dim=(1, 2)) - log(images.shape[1])

    def sample(self, k, shape, generator):
        noise = torch.randn(*shape, D, generator=generator, dtype=F64)
        return self.means[k] + self.scales[k] * noise


TWO = Mixture([[2.0, 0.5, 0.0], [3.0, 1.5, 6.0]], [[0.2] * 3, [0.1] * 3], [0.3, 0.7], 4.0, UNITS)


def bumps(generator, distance=40.0):
    """Two Gaussians in four dimensions with masses 0.7 and 0.3."""
    loc = torch.randn(2, 4, generator=generator, dtype=F64)
    loc[1] += distance
    root = torch.randn(2, 4, 4, generator=generator, dtype=F64)
    covariance = root @ root.mT + 0.2 * torch.eye(4, dtype=F64)
    weights = torch.tensor([0.7, 0.3], dtype=F64).log()
    return GaussianMixture(weights, loc, torch.linalg.cholesky(covariance))


def scrambled(x, generator):
    """Move every draw to a random copy."""
    return UNITS.act(UNITS.sample(x.shape[:-1], generator=generator), x)


def pooled(target, group, generator, n_chains=(4, 12), n_draws=40, copies=True):
    """Chains that stay in their modes. Their numbers aren't proportional to the masses."""
    draws = torch.cat([target.sample(k, (n, n_draws), generator) for k, n in enumerate(n_chains)])
    if copies:
        draws = scrambled(draws, generator)
    values = target(draws.flatten(0, 1)).reshape(draws.shape[:2])
    return draws, values, pool_draws(draws, values, group, generator=generator)
