"""Mixtures of Gaussians with full covariances: draws, densities, and a fit to draws."""

from dataclasses import dataclass

import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import log_normal_multivariate
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky, log_det, shrink_to_diagonal
from skbayes_sym.numerics.random import normal_like


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """``sum_k w_k N(loc_k, L_k L_k')``."""

    log_weights: Tensor  # (K,): normalised
    loc: Tensor  # (K, D)
    cholesky: Tensor  # (K, D, D): lower triangular L

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, D)."""
        which = torch.multinomial(
            self.log_weights.exp(), n, replacement=True, generator=generator
        )  # on the generator's device, as the mixture
        noise = normal_like((n, self.loc.shape[1]), generator=generator, like=self.loc)
        draws = torch.empty_like(noise)
        for k in range(len(self.loc)):
            drawn = which == k
            draws[drawn] = self.loc[k] + noise[drawn] @ self.cholesky[k].mT
        return draws

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, D) -> (*B,). O(K D^2) a point."""
        weighted = self.log_components(theta) + self.log_weights.to(theta.device)
        return torch.logsumexp(weighted, dim=-1)

    def log_components(self, theta: Tensor) -> Tensor:
        """Log density of each Gaussian, without its weight, (*B, D) -> (*B, K)."""
        parts = []
        loc_of, factor_of = (t.to(theta.device) for t in (self.loc, self.cholesky))
        identity = torch.eye(loc_of.shape[1], dtype=loc_of.dtype, device=theta.device)
        for loc, factor in zip(loc_of, factor_of, strict=True):
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            z = (theta - loc) @ inverse.mT
            parts.append(log_normal_multivariate(z.square().sum(-1), log_det(factor), len(loc)))
        return torch.stack(parts, dim=-1)


def fit_gaussian_mixture(
    draws: Tensor,  # (n, D): at least 2
    n_components: int = 1,  # at most n / 2
) -> GaussianMixture:
    """Expectation maximisation from equal slices along the first principal axis; deterministic.

    Every covariance is ``0.98 S + 0.02 diag(S)``, S the weighted covariance of the draws, which
    has full rank however few draws there are (if no coordinate is constant).

    Coordinates are scaled by their standard deviations meanwhile, so their units don't matter. The
    slices are a start for one bent or skewed cloud, not a search for distant ones. O(n K D^2) a
    step, at most 100 steps.
    """
    centre, scale = draws.mean(dim=0), draws.std(dim=0, correction=0)
    tiny = torch.finfo(draws.dtype).eps * (1.0 + centre.abs())
    z = (draws - centre) / torch.maximum(scale, tiny)
    _, _, axes = torch.linalg.svd(z, full_matrices=False)
    rank = (z @ axes[0]).argsort().argsort()
    slices = torch.nn.functional.one_hot(rank * n_components // len(z), n_components).to(z)
    mixture, before = _maximise(z, slices), -torch.inf
    for _ in range(100 if n_components > 1 else 0):
        joint = mixture.log_components(z) + mixture.log_weights
        mean_log_prob = float(torch.logsumexp(joint, dim=-1).mean())
        if mean_log_prob - before < 1e-4:
            break
        before = mean_log_prob
        mixture = _maximise(z, joint.softmax(dim=-1))
    unit = torch.maximum(scale, tiny)
    return GaussianMixture(
        mixture.log_weights, centre + unit * mixture.loc, unit.unsqueeze(-1) * mixture.cholesky
    )


def _maximise(z: Tensor, share: Tensor) -> GaussianMixture:
    """Weights, means and shrunk covariances given the components' shares of the draws."""
    size = share.sum(dim=0)
    # A component that loses its draws must not divide by zero; it keeps a wide, weightless shape.
    weight = share / size.clamp_min(1e-300)
    loc = weight.mT @ z
    residual = z - loc.unsqueeze(1)  # (K, n, D)
    covariance = (residual * weight.mT.unsqueeze(-1)).mT @ residual
    # In coordinates of unit scale 1e-12 does nothing but keep point masses invertible.
    shrunk = add_to_diagonal(shrink_to_diagonal(covariance, 0.02), 1e-12)
    factor = cholesky(
        shrunk,
        what="The covariance of a component's draws",
        remedy="Draws that aren't finite, or overflow when squared, must be left out.",
    )
    return GaussianMixture((size / len(z)).log(), loc, factor)
