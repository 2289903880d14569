"""Changes of scale, for priors with heavy tails.

A prior that learns its scales has the tails of a Student-t distribution: where the data don't mind,
the weights of a group are a hundred times larger in one draw than in the next. Trajectories are too
short to go there and back. A change of scale goes there at once:

    theta_k -> exp(r e_k) theta_k,    r ~ N(0, 1.5^2),    e_k in {-1, 0, 1},

accepted with probability ``min(1, exp(r sum_k e_k) p(theta') / p(theta))``, whose first factor is
the Jacobian (Liu and Sabatti 2000, Biometrika 87). The directions ``e`` are the density's own.
"""

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.sampling.kernels.kernel import State, initial_state
from skbayes_sym.numerics.random import standard_normal
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain


def rescale(
    state: State,
    log_density: LogDensity,
    directions: Tensor,  # (K, D): one is chosen for each chain and change, all alike
    *,
    generator: torch.Generator,
    domain: FundamentalDomain | None = None,  # changes that leave it are rejected
) -> State:
    """Change every chain's scales four times; four values and a gradient."""
    position, value, _ = state
    n_chains, device = len(value), generator.device
    for _ in range(4):
        chosen = torch.randint(len(directions), (n_chains,), generator=generator, device=device)
        size = 1.5 * standard_normal((n_chains, 1), generator=generator, like=position)
        log_scale = size * directions[chosen.to(directions.device)]
        proposal = position * log_scale.exp()
        proposed = log_density(proposal)
        gain = proposed.double() - value.double() + log_scale.double().sum(1)
        uniform = torch.rand(n_chains, generator=generator, device=device, dtype=torch.float64)
        accepted = uniform.to(gain.device).log() < gain  # False for nan
        if domain is not None:
            accepted &= domain.contains(proposal)
        position = torch.where(accepted.unsqueeze(1), proposal, position)
        value = torch.where(accepted, proposed, value)
    return initial_state(position, log_density)
