r"""Left-out rows of linearised models.

A model that is linear in its weights, with normal noise and prior, predicts a row that is left out
in closed form. With the residual :math:`r_n` and the leverage :math:`h_n = \beta\, j_n' C j_n` of
the fit to all rows (noise precision :math:`\beta`, posterior covariance C),

.. math:: y_n \mid y_{-n} \sim N\big(y_n - r_n / (1 - h_n),\; \beta^{-1} / (1 - h_n)\big)

(Rasmussen & Williams 2006, eqs. 5.10 to 5.12). For a linearised network it is an approximation, and
too favourable: the features themselves have seen the row.
"""

from torch import Tensor

from skbayes_sym.models.predictive_mixtures import NormalMixture

_MOST_LEVERAGE = 1.0 - 1e-6


def left_out(law: NormalMixture, y: Tensor) -> NormalMixture:
    """Distribution of every row given all others, the mixture of S models.

    ``law``: of every row given all rows, (S, N, T); a row of weight w is one of w repetitions.
    ``y`` (N, T).
    """
    noise = law.noise_variance
    leverage = (law.variance / noise).clamp(0.0, _MOST_LEVERAGE)
    rest = 1.0 - leverage
    return NormalMixture(y - (y - law.loc) / rest, noise * leverage / rest, noise, law.log_weights)
