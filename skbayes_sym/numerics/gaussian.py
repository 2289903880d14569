"""Kullback-Leibler divergences and log densities of normal distributions, nats.

Two kernels keep a copy of their own: `skbayes_sym.inference.mean_field.elbo` fuses the KL with
its gradient into buffers, and `skbayes_sym.symmetry.permutation` the log density with matrix
products over all pairs of units.
"""

from math import log, pi

from torch import Tensor

LOG_2PI = log(2.0 * pi)


def kl_elementwise(loc: Tensor, log_variance: Tensor, prior_log_variance: Tensor) -> Tensor:
    """``KL[N(loc, exp log_variance) || N(0, exp prior_log_variance)]`` of every entry.

    Shapes broadcast; sum over the entries of independent ones.
    """
    log_ratio = log_variance - prior_log_variance
    squares = loc.square() * (-prior_log_variance).exp()
    return 0.5 * (log_ratio.exp() + squares - 1.0 - log_ratio)


def kl_from_standard(trace: Tensor, squares: Tensor, log_det: Tensor, n: int) -> Tensor:
    """``KL[N(m, S) || N(0, I)] = (tr S + |m|^2 - n - log det S) / 2`` in n dimensions, (*B,)."""
    return 0.5 * (trace + squares - n - log_det)


def log_normal(squares: Tensor, log_scale: Tensor) -> Tensor:
    """Log density of a normal at squared distances ``squares`` from its mean, elementwise.

    Linear in ``squares``: of expected squares it is the expected log density.
    """
    return -0.5 * (squares * (-2.0 * log_scale).exp() + LOG_2PI) - log_scale


def log_normal_multivariate(squares: Tensor, log_det: Tensor, n: int) -> Tensor:
    """``log N(x; m, S)`` in n dimensions, ``squares = (x - m)' S^-1 (x - m)``, (*B,)."""
    return -0.5 * (squares + log_det + n * LOG_2PI)
