"""Networks of hundreds of weights and more: ``init="ensemble"``.

Every chain starts as a member of a deep ensemble does, is annealed to a wide basin
(`skbayes_sym.inference.sampling.annealing`) and samples it in the coordinates of its curvature
(`skbayes_sym.inference.sampling.kronecker`). From the last tuned step size on the chains are exact;
they don't leave their basins, so that every chain is a posterior of its own and all have one vote.
"""

from math import prod, sqrt

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import (
    ANY_PRIOR,
    CURVED_LIKELIHOOD,
    FULLY_CONNECTED,
    Needs,
)
from skbayes_sym.estimators.mcmc.setting import Plan, Setting
from skbayes_sym.inference.log_density import LogDensity, RoughGradients
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.inference.sampling.annealing import Annealing, Approach, Detour
from skbayes_sym.inference.sampling.blocks import Block
from skbayes_sym.inference.sampling.chains import start_blocks
from skbayes_sym.inference.sampling.kernels.base import Kernel
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.kronecker import KroneckerAdaptation
from skbayes_sym.inference.sampling.warmup import PreconditionerAdaptation
from skbayes_sym.models.data import Data
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.priors import GaussianPrior, Prior
from skbayes_sym.numerics.random import generator_from

NEEDS = Needs(CURVED_LIKELIHOOD, FULLY_CONNECTED, ANY_PRIOR)

# Weights beyond which chains from the prior don't arrive at what the data say.
_MANY_WEIGHTS = 200

# Chains of a block: of four already a gradient is arithmetic, and blocks are what processes share.
_BLOCK = 4

# Step sizes are about 0.1 in the coordinates of the curvature, so about 60 steps a trajectory; 40
# to 80 where they are shorter.
KERNEL = HMC(path_length=6.0, jitter=(0.7, 1.3), max_leapfrog=80)
APPROACH = Annealing()

# Spread of what a hidden unit gets from n inputs of size 1, at most: 16 units of scale 1.
_WIDEST = 4.0

# Chains come to places narrower than those their steps were tuned in: on concrete data to some
# where steps tuned for .8 are accepted at .3 to .6. So steps are shorter, and below .65 a chain
# warms up again.
TARGET_ACCEPTANCE = 0.9
LEAST_ACCEPTED = 0.65  # of a chain's proposals, while it draws
NO_EVIDENCE = (
    "annealed chains are in modes of their own, with fewer draws in each than a bridge needs, so "
    "every chain has one vote; mode_weights='evidence' tries all the same"
)
# Twelve: the squared error of an average of M is about b + v / M, with v .5 to .7 of b on airfoil:
# eight leave 6 to 9 % to chance, twelve 4 to 6 %.
PLAN = Plan(n_chains=12, n_warmup=100, n_draws=50)


def adaptation(setting: Setting) -> PreconditionerAdaptation:
    """What warm-up does to the metric."""
    return KroneckerAdaptation(setting.posterior)


def from_afar(setting: Setting, approach: Approach) -> Approach:
    """The approach in float32, under given scales where scales are learned."""
    prior: Prior = setting.model.prior
    if prior.learned is not None:
        prior = GaussianPrior(usual_scale(setting.model.network))
    elif setting.data.data.x.dtype == torch.float32:
        return approach
    posterior = _in_float32(setting, prior)
    return Detour(approach, posterior, KroneckerAdaptation(posterior), torch.float32)


def density_for(setting: Setting, kernel: Kernel) -> LogDensity:
    """The posterior; with gradients in float32 if the kernel is exact under any.

    They cost half as much, and trajectories so short don't tell them apart.
    """
    anneals, exact = setting.chains.approach is not None, setting.posterior
    if not (anneals and getattr(kernel, "any_gradient", False)):
        return exact
    if exact.data.x.dtype == torch.float32:
        return exact
    return RoughGradients(exact, _in_float32(setting, setting.model.prior), torch.float32)


def _in_float32(setting: Setting, prior: Prior) -> NetworkPosterior:
    own = setting.posterior
    data = Data(*(t.float() if t.is_floating_point() else t for t in own.data))
    return NetworkPosterior(own.network, own.likelihood, prior, data, own.noise_prior_scale)


def usual_scale(network: Network) -> Tensor:
    """Prior standard deviations (P,) that chains come near under: 1, less in wide layers.

    Those of the published protocol for 16 units; beyond, weights of n inputs have ``4 / sqrt(n)``,
    so that units don't all saturate.
    """
    parts = []
    for shape in network.layout.shapes.values():
        fan_in = prod(shape[1:])  # 1 for biases
        parts.append(torch.full((prod(shape),), min(1.0, _WIDEST / sqrt(fan_in))))
    return torch.cat(parts).double()


def asks_for_it(model: Model) -> bool:
    """Whether a model has the weights and the members that annealed chains need."""
    fits = NEEDS.likelihood.is_met(model.likelihood) and NEEDS.network.is_met(model.network)
    return fits and model.network.layout.n_params > _MANY_WEIGHTS


def ensemble_blocks(setting: Setting) -> list[Block]:
    """Chains at the starts of an ensemble's members; learned noise at the targets' spread."""
    posterior, generator = setting.posterior, generator_from(setting.seeds.start)
    theta = setting.model.network.init(setting.chains.n_chains, generator=generator)
    own = setting.model.likelihood.params.to(theta).expand(len(theta), -1)
    like = posterior.data.x
    position = torch.cat([theta, own], 1)
    size = _BLOCK if like.device.type == "cpu" else len(theta)
    return start_blocks(position.to(like), posterior, block_size=size, seed=setting.seeds.chains)
