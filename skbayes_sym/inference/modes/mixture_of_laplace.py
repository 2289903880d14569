"""A mixture of Laplace approximations: one Gaussian a mode, weighted by evidence."""

from dataclasses import dataclass

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.map import find_maximum
from skbayes_sym.inference.modes.gaussian_mixture import GaussianMixture
from skbayes_sym.numerics.gaussian import log_normal_multivariate
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky, log_det

_STEP = 1e-5  # of finite differences, relative to 1 + |coordinate|
_LEAST_CURVATURE = 1e-6  # relative to the largest: flatter or rising directions are damped
_REMEDY = "Give log densities that are finite and smooth around the starts."


@dataclass(frozen=True, eq=False)
class MixtureOfLaplace:
    """``sum_k w_k N(MAP_k, H_k^-1)`` over the modes of a posterior; a posterior that predicts.

    Parameters
    ----------
    mixture : GaussianMixture
    log_evidence : Tensor of shape (K,)
        Laplace's approximation at each mode, of one copy: add log |G| for all copies. Neither a
        lower nor an upper bound.
    jitter : Tensor of shape (K,)
        Added to the diagonal of each H_k; 0 where it was positive definite.
    """

    mixture: GaussianMixture
    log_evidence: Tensor
    jitter: Tensor

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, D)."""
        return self.mixture.sample(n, generator=generator)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Log density in nats, (*B, D) -> (*B,)."""
        return self.mixture.log_prob(torch.as_tensor(theta).to(self.mixture.loc))


def fit_mixture_of_laplace(
    log_density: LogDensity, starts: Tensor, log_weights: Tensor | None = None
) -> MixtureOfLaplace:
    """Climb to the maximum near each start, and put a Gaussian of the curvature there.

    Parameters
    ----------
    log_density : LogDensity
        Nats; evaluated in float64.
    starts : Tensor of shape (K, D)
        One a mode: its best draw.
    log_weights : Tensor of shape (K,), optional
        Log evidence of the modes, up to a constant; not known (nan) counts as none. By default
        Laplace's own, ``log p(MAP) + D/2 log 2 pi - 1/2 log det H``.

    Returns
    -------
    MixtureOfLaplace
        Modes whose maxima coincide aren't merged.

    Notes
    -----
    K searches of a few hundred gradients and K times 2 D gradients for the curvatures, O(K D^3).

    References
    ----------
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


def curvature(log_density: LogDensity, at: Tensor) -> Tensor:
    """``-Hessian`` at ``at`` (D,) by central differences of the gradient, (D, D), symmetric.

    Relative error about 1e-9 in float64, 2 D gradients in one call.
    """
    step = _STEP * (1.0 + at.abs())
    shift = torch.diag(step)
    ends = torch.cat([at + shift, at - shift])
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
