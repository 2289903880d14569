r"""Moore's objective as printed (2016, appendix A and listing 1), which is no bound.

For isotropic rows the gap is ``E[tr B - F(B)]``, ``B = M'X / c``. What is printed puts the
symmetric part A of B in its place, which raises the gap (F is convex and doesn't know B from B'),
and for F

.. math:: \sum_i \left[\tfrac k2 \log(1 - y_i^2) + s_i y_i\right]
   - \tfrac12 \sum_{i, j} \log(1 - y_i^2 y_j^2), \qquad y_i = \frac{u_i}{\sqrt{u_i^2 + 1} + 1},
   \; u_i = \tfrac{2 s_i}{k},

s the singular values of A: a Laplace approximation (Butler & Wood 2003) whose product should run
over :math:`i \le j`, and which is below F even so. Maximised, the objective exceeds the log
evidence.
"""

from math import log, pi

import torch
from torch import Tensor

from skbayes_sym.factorization.factor_model import FactorState
from skbayes_sym.numerics.optimise import lbfgs, with_gradient
from skbayes_sym.symmetry.gaps.rotations import SecondMoment

_TRAINING_DRAWS, _REPORT_DRAWS, _STEPS = 16, 256, 150


def printed_log_integral(singular_values: Tensor) -> Tensor:
    """What stands for F, (*B, k) -> (*B,)."""
    k, s = singular_values.shape[-1], singular_values
    u = 2.0 * s / k
    y = u / ((u.square() + 1.0).sqrt() + 1.0)
    squares = y.square()
    pairs = torch.log1p(-squares.unsqueeze(-1) * squares.unsqueeze(-2)).sum((-2, -1))
    return (0.5 * k * torch.log1p(-squares) + s * y).sum(-1) - 0.5 * pairs


def printed_gap(inner: Tensor) -> Tensor:
    """``tr A - F(A)`` of draws of B, (*B, k, k) -> (*B,) nats."""
    symmetric = 0.5 * (inner + inner.mT)
    values = torch.linalg.eigvalsh(symmetric)
    return values.sum(-1) - printed_log_integral(values.abs())


def printed_objective(matrix: Tensor, start: FactorState, *, generator: torch.Generator) -> float:
    """The printed "ELBO" of a complete matrix at its maximum, nats; prior scale 1, isotropic rows.

    Parameters
    ----------
    matrix : Tensor of shape (n, m)
    start : FactorState
        Isotropic rows to start from, and the noise.
    generator : torch.Generator
        Of the draws: the maximum is sought on some, the value given by others.

    Returns
    -------
    float
        Above the log evidence, where the corrected bound is below it.
    """
    k, n = start.mean.shape[1], len(matrix)
    variances = start.cov.diagonal(dim1=-2, dim2=-1).mean(-1)
    sides = torch.stack([variances[:n].mean(), variances[n:].mean()]).log()
    shape = (_TRAINING_DRAWS + _REPORT_DRAWS, k, k)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)

    def objective(parameters: Tensor, draws: Tensor) -> Tensor:
        mean = parameters[:-2].view(-1, k)
        variance = parameters[-2:].exp().repeat_interleave(torch.tensor([n, len(mean) - n]))
        bound = _mean_field(matrix, mean, variance, start.noise_variance)
        return (
            bound + printed_gap(SecondMoment.from_rows(mean, variance).sample_inner(draws)).mean()
        )

    few, many = noise.split([_TRAINING_DRAWS, _REPORT_DRAWS])
    first = torch.cat([start.mean.double().flatten(), sides.double()])
    best = lbfgs(with_gradient(lambda p: -objective(p, few)), first, max_iter=_STEPS)
    return float(objective(best, many))


def _mean_field(matrix: Tensor, mean: Tensor, variance: Tensor, noise: float) -> Tensor:
    """ELBO of isotropic rows themselves, prior scale 1."""
    (n, m), k = matrix.shape, mean.shape[1]
    (u, v), (a, b) = mean.split([n, m]), variance.split([n, m])
    squares = (matrix - u @ v.mT / k**0.5).square().sum()
    spread = a.sum() * v.square().sum() + b.sum() * u.square().sum()
    squares = squares + (spread + k * a.sum() * b.sum()) / k
    log_lik = -0.5 * (n * m * log(2.0 * pi * noise) + squares / noise)
    kl = 0.5 * (mean.square().sum() + k * (variance - 1.0 - variance.log()).sum())
    return log_lik - kl
