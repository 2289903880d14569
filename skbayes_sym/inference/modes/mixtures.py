"""Mixtures of Gaussians with full covariances: draws, densities, and a fit to draws."""

from dataclasses import dataclass

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.map import find_maximum
from skbayes_sym.numerics.gaussian import log_normal_multivariate
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky, log_det, shrink_to_diagonal
from skbayes_sym.numerics.random import normal_like

_DIAGONAL_SHARE = 0.02  # of a fitted covariance: keeps it well conditioned
_EM_STEPS = 100
_EM_TOL = 1e-4  # nats per draw


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """``sum_k w_k N(loc_k, L_k L_k')``."""

    log_weights: Tensor  # (K,): normalised
    loc: Tensor  # (K, D)
    cholesky: Tensor  # (K, D, D): lower triangular L

    @property
    def n_components(self) -> int:
        """Number K."""
        return len(self.loc)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, D)."""
        which = torch.multinomial(
            self.log_weights.exp(), n, replacement=True, generator=generator
        )  # on the generator's device, as the mixture
        noise = normal_like((n, self.loc.shape[1]), generator=generator, like=self.loc)
        draws = torch.empty_like(noise)
        for k in range(self.n_components):
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
    share = _slices(z, n_components)
    mixture, before = _maximise(z, share), -torch.inf
    for _ in range(_EM_STEPS if n_components > 1 else 0):
        joint = mixture.log_components(z) + mixture.log_weights
        mean_log_prob = float(torch.logsumexp(joint, dim=-1).mean())
        if mean_log_prob - before < _EM_TOL:
            break
        before = mean_log_prob
        mixture = _maximise(z, joint.softmax(dim=-1))
    unit = torch.maximum(scale, tiny)
    return GaussianMixture(
        mixture.log_weights, centre + unit * mixture.loc, unit.unsqueeze(-1) * mixture.cholesky
    )


def _slices(z: Tensor, n_components: int) -> Tensor:
    """Hard shares (n, K): equally many draws each, in order along the longest axis."""
    _, _, axes = torch.linalg.svd(z, full_matrices=False)
    rank = (z @ axes[0]).argsort().argsort()
    return torch.nn.functional.one_hot(rank * n_components // len(z), n_components).to(z)


def _maximise(z: Tensor, share: Tensor) -> GaussianMixture:
    """Weights, means and shrunk covariances given the components' shares of the draws."""
    size = share.sum(dim=0)
    # A component that loses its draws must not divide by zero; it keeps a wide, weightless shape.
    weight = share / size.clamp_min(1e-300)
    loc = weight.mT @ z
    residual = z - loc.unsqueeze(1)  # (K, n, D)
    covariance = (residual * weight.mT.unsqueeze(-1)).mT @ residual
    # In coordinates of unit scale 1e-12 does nothing but keep point masses invertible.
    shrunk = add_to_diagonal(shrink_to_diagonal(covariance, _DIAGONAL_SHARE), 1e-12)
    factor = cholesky(
        shrunk,
        what="The covariance of a component's draws",
        remedy="Draws that aren't finite, or overflow when squared, must be left out.",
    )
    return GaussianMixture((size / len(z)).log(), loc, factor)


# Of every variance, what is given to the coordinate alone. With none there would be no density;
# with 0.01 four chains of [16] * 4 on airfoil lose 0.14 nats per row, from 0.001 on nothing.
_ALONE = 0.001


@dataclass(frozen=True, eq=False)
class LowRankMixture:
    """``sum_k w_k N(loc_k, F_k F_k' + diag(v_k))``; a `Posterior`."""

    log_weights: Tensor  # (K,): normalised
    loc: Tensor  # (K, D)
    factor: Tensor  # (K, D, R)
    variance: Tensor  # (K, D): positive

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, D)."""
        which = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        z = normal_like((n, self.factor.shape[2]), generator=generator, like=self.loc)
        draws = normal_like((n, self.loc.shape[1]), generator=generator, like=self.loc)
        draws.mul_(self.variance.sqrt()[which]).add_(self.loc[which])
        for k in range(len(self.loc)):
            drawn = which == k
            draws[drawn] += z[drawn] @ self.factor[k].mT
        return draws

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, D) -> (*B,). O(K D R) a point, by Woodbury's identity."""
        log_weights, *laws = (
            t.to(theta.device) for t in (self.log_weights, self.loc, self.factor, self.variance)
        )
        parts = [
            _log_normal(theta - loc, factor, variance)
            for loc, factor, variance in zip(*laws, strict=True)
        ]
        return torch.logsumexp(torch.stack(parts, -1) + log_weights, -1)


def _log_normal(residual: Tensor, factor: Tensor, variance: Tensor) -> Tensor:
    """``log N(residual; 0, F F' + diag(v))`` in nats, (*B, D) -> (*B,)."""
    root = variance.rsqrt()
    scaled = factor * root.unsqueeze(1)
    one = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    inner = scaled.mT @ scaled + one
    lower = cholesky(inner, what="The covariance of a chain's draws", remedy="Use finite draws.")
    z = residual * root
    along = torch.linalg.solve_triangular(lower, (z @ scaled).unsqueeze(-1), upper=False)
    square = z.square().sum(-1) - along.square().sum((-2, -1))
    return log_normal_multivariate(square, log_det(lower) - 2.0 * root.log().sum(), len(variance))


def fit_low_rank_mixture(
    draws: Tensor,  # (C, S, D): at least 2 a chain, all of one chain near one copy of a mode
    log_weights: Tensor,  # (C,): of the chains; needn't be normalised
) -> LowRankMixture:
    """A Gaussian for every chain: its draws' mean, and ``0.999 S + 0.001 diag(S)`` of their
    covariance S.

    Rank S, without any decomposition: the factor's columns are the draws less their mean. O(C S D)
    time and memory.

    Maddox et al. (2019), "A simple baseline for Bayesian uncertainty in deep learning", section
    3.3, who give half of the variance to the diagonal.
    """
    loc = draws.mean(1)
    residual = (draws - loc.unsqueeze(1)) / (draws.shape[1] - 1) ** 0.5
    total = residual.square().sum(1)
    tiny = torch.finfo(draws.dtype).eps * (1.0 + loc.abs())
    return LowRankMixture(
        log_weights.log_softmax(0), loc, (1.0 - _ALONE) ** 0.5 * residual.mT.contiguous(),
        (_ALONE * total).clamp_min(tiny.square()),
    )  # fmt: skip


_STEP = 1e-5  # of finite differences, relative to 1 + |coordinate|
_LEAST_CURVATURE = 1e-6  # relative to the largest: flatter or rising directions are damped
_REMEDY = "Give log densities that are finite and smooth around the starts."


@dataclass(frozen=True, eq=False)
class MixtureOfLaplace:
    """``sum_k w_k N(MAP_k, H_k^-1)`` over the modes of a posterior; a posterior that predicts."""

    mixture: GaussianMixture
    # (K,): laplace's approximation at each mode, of one copy: add log |G| for all copies. Neither a
    # lower nor an upper bound.
    log_evidence: Tensor
    jitter: Tensor  # (K,): added to the diagonal of each H_k; 0 where it was positive definite

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, D)."""
        return self.mixture.sample(n, generator=generator)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Log density in nats, (*B, D) -> (*B,)."""
        return self.mixture.log_prob(torch.as_tensor(theta).to(self.mixture.loc))


def fit_mixture_of_laplace(
    log_density: LogDensity,  # nats; evaluated in float64
    starts: Tensor,  # (K, D): one a mode: its best draw
    # (K,): log evidence of the modes, up to a constant; not known (nan) counts as none. By default
    # Laplace's own, ``log p(MAP) + D/2 log 2 pi - 1/2 log det H``.
    log_weights: Tensor | None = None,
) -> MixtureOfLaplace:
    """Climb to the maximum near each start, and put a Gaussian of the curvature there.

    Modes whose maxima coincide aren't merged.

    K searches of a few hundred gradients and K times 2 D gradients for the curvatures, O(K D^3).

    Eschenhagen et al. (2021), "Mixtures of Laplace approximations for improved post-hoc
    uncertainty in deep learning". Wiese et al. (2023), appendix G.2.
    """
    peaks = torch.stack([find_maximum(log_density, start) for start in starts.double()])
    factors, jitters = zip(*[_cholesky(curvature(log_density, p)) for p in peaks], strict=True)
    jitter = torch.tensor(jitters, dtype=torch.float64)
    factor = torch.stack(factors)  # R R' = H
    height = log_density(peaks).detach().double()
    at_peak = log_normal_multivariate(torch.zeros_like(height), -log_det(factor), peaks.shape[1])
    evidence = height - at_peak
    weights = evidence if log_weights is None else log_weights.double()
    weights = weights.nan_to_num(nan=-torch.inf, neginf=-torch.inf).log_softmax(0)
    root = cholesky(torch.cholesky_inverse(factor), what="The inverse curvature", remedy=_REMEDY)
    return MixtureOfLaplace(GaussianMixture(weights, peaks, root), evidence, jitter)


def curvature(log_density: LogDensity, peak: Tensor) -> Tensor:
    """``-Hessian`` at a peak (D,) by central differences of the gradient, (D, D), symmetric.

    Relative error about 1e-9 in float64, 2 D gradients in one call.
    """
    step = _STEP * (1.0 + peak.abs())
    shift = torch.diag(step)
    ends = torch.cat([peak + shift, peak - shift])
    gradient = log_density.evaluate(ends).gradient.double()
    up, down = gradient.chunk(2)
    hessian = (down - up) / (2.0 * step).unsqueeze(-1)
    return 0.5 * (hessian + hessian.mT)


def _cholesky(hessian: Tensor) -> tuple[Tensor, float]:
    """Cholesky factor of ``H + jitter I`` with the least jitter that lifts all eigenvalues enough.

    Enough is 1e-6 of the largest. A maximum has no negative curvature, but flat directions (a
    unit that is switched off) come out slightly negative.
    """
    eigenvalues = torch.linalg.eigvalsh(hessian)
    least = _LEAST_CURVATURE * float(eigenvalues[-1].clamp_min(torch.finfo(hessian.dtype).tiny))
    jitter = max(0.0, least - float(eigenvalues[0]))
    lifted = add_to_diagonal(hessian.clone(), jitter)
    return cholesky(lifted, what="The curvature at a mode", remedy=_REMEDY), jitter
