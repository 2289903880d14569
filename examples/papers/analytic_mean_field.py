r"""The global mean-field optimum of a fully observed factorisation (Nakajima et al. 2013).

With ``a = u / k^{1/4}`` and ``b = v / k^{1/4}`` the model is R = A B' + noise with prior variance
``c^2 = prior_scale^2 / sqrt k`` on both sides. The optimum keeps the singular vectors of R and
treats its singular values g one by one: it keeps a component or switches it off.
"""

from math import exp, log, pi, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.factorization.factor_model import FactorModel, FactorState
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.numerics.optimise import minimise_scalar


class _Components(NamedTuple):
    """Scalar posteriors: |a_h|, |b_h| and the variance of every entry of a_h and of b_h."""

    left: Tensor  # (k,)
    right: Tensor  # (k,)
    left_variance: Tensor  # (k,)
    right_variance: Tensor  # (k,)


def shrunk_singular_values(
    g: Tensor, shape: tuple[int, int], noise: float, prior_variance: float
) -> Tensor:
    r"""Singular values of the mean-field optimum's product of means, (k,).

    .. math:: \max\left(0,\; g \left[1 - \frac{s^2}{2 g^2}
        \left(n + m + \sqrt{(n - m)^2 + 4 g^2 / c^4}\right)\right]\right)

    Parameters
    ----------
    g : Tensor of shape (k,)
        Largest singular values of R.
    shape : (n, m)
    noise : float
        Variance s^2 of the noise.
    prior_variance : float
        ``c^2`` of the entries of A and B, R = A B' + noise.
    """
    n, m = shape
    g = g.clamp(min=torch.finfo(g.dtype).tiny ** 0.25)
    root = ((n - m) ** 2 + 4.0 * g * g / prior_variance**2).sqrt()
    return (g - 0.5 * noise / g * (n + m + root)).clamp(min=0.0)


def analytic_mean_field(matrix: Tensor, model: FactorModel) -> FactorState:
    """The optimum itself, no iteration; one SVD of the matrix.

    Parameters
    ----------
    matrix : Tensor of shape (n, m)
        All entries observed.
    model : FactorModel
        Its noise, if it is learned, maximises the ELBO.

    Returns
    -------
    FactorState
        With diagonal covariances, the same for all rows of a side.
    """
    u, g, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    k, prior_scale, likelihood = model.n_components, model.prior.scale, model.likelihood
    noise_variance = float(likelihood.noise_scale[0]) ** 2
    if isinstance(prior_scale, str):
        raise ValueError(f"the closed form needs a number for prior, got {prior_scale!r}.")
    shape = matrix.shape[0], matrix.shape[1]
    prior_variance = prior_scale**2 / sqrt(k)
    total = float(matrix.double().square().sum())
    if likelihood.n_params:

        def loss(log_noise: float) -> float:
            noise = exp(log_noise)
            parts = _components(g[:k], shape, noise, prior_variance)
            return -_elbo(parts, g[:k], total, shape, noise, prior_variance)

        noise_variance = exp(
            minimise_scalar(loss, *(log(variance) for variance in model.noise_range))
        )
    parts = _components(g[:k], shape, noise_variance, prior_variance)
    quarter = k**0.25
    mean = quarter * torch.cat([u[:, :k] * parts.left, vt[:k].mT * parts.right])
    variances = torch.cat(
        [parts.left_variance.expand(shape[0], k), parts.right_variance.expand(shape[1], k)]
    )
    cov = torch.diag_embed(sqrt(k) * variances)
    learned = Gaussian(torch.tensor([0.5 * log(noise_variance)], dtype=torch.float64))
    return FactorState(mean.to(matrix), cov.to(matrix), learned)


def _components(
    g: Tensor, shape: tuple[int, int], noise: float, prior_variance: float
) -> _Components:
    """Split each shrunken value over the two sides, with the variances that belong to it."""
    n, m = shape
    product = shrunk_singular_values(g, shape, noise, prior_variance)
    kept = product > 0.0
    safe = g.where(kept, 1.0)
    # delta = |a| / |b|: a_h is stationary where var_a = s^2 delta / g and var_b = s^2 / (delta g).
    delta = prior_variance * (g - product - m * noise / safe) / noise
    delta = delta.where(kept, 1.0)
    # Switched off: var_a (m var_b + t) = s^2 and var_b (n var_a + t) = s^2, t = s^2 / c^2.
    t = noise / prior_variance
    b = n * noise + t * t - m * noise
    off_right = (sqrt(b * b + 4.0 * t * m * noise * t) - b) / (2.0 * t * m)
    off_left = noise / (m * off_right + t)
    return _Components(
        (product * delta).sqrt(),
        (product / delta).sqrt(),
        (noise * delta / safe).where(kept, off_left),
        (noise / (delta * safe)).where(kept, off_right),
    )


def _elbo(
    parts: _Components,
    g: Tensor,
    total: float,
    shape: tuple[int, int],
    noise: float,
    prior_variance: float,
) -> float:
    """Mean-field ELBO of the components, nats."""
    n, m = shape
    left, right, left_variance, right_variance = parts
    second_left = left**2 + n * left_variance
    second_right = right**2 + m * right_variance
    error = (
        total - 2.0 * float((g * left * right).sum()) + float((second_left * second_right).sum())
    )
    kl = 0.5 * (
        second_left / prior_variance
        - n * (left_variance / prior_variance).log()
        + second_right / prior_variance
        - m * (right_variance / prior_variance).log()
        - (n + m)
    )
    # sum_h E[a_h a_h'] E[b_h b_h'] is the square of every component; means of different ones are
    # orthogonal, so nothing is left between them.
    return -0.5 * (n * m * log(2.0 * pi * noise) + error / noise) - float(kl.sum())
