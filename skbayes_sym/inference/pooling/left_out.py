r"""Left-out rows of linearised models.

A model that is linear in its weights, with normal noise and prior, predicts a row that is left out
in closed form. With the residual :math:`r_n` and the leverage :math:`h_n = \beta\, j_n' C j_n` of
the fit to all rows (noise precision :math:`\beta`, posterior covariance C),

.. math:: y_n \mid y_{-n} \sim N\big(y_n - r_n / (1 - h_n),\; \beta^{-1} / (1 - h_n)\big)

(Rasmussen & Williams 2006, eqs. 5.10 to 5.12). For a linearised network it is an approximation, and
too favourable: the features themselves have seen the row.
"""

from torch import Tensor

from skbayes_sym.models.predictive import NormalMixture

_MOST_LEVERAGE = 1.0 - 1e-6


def left_out(y: Tensor, fitted: Tensor, leverage: Tensor, noise_variance: Tensor) -> NormalMixture:
    """Distribution of every row given all others, the equal mixture of S models.

    Parameters
    ----------
    y : Tensor of shape (N, T)
    fitted, leverage : Tensor of shape (S, N, T)
        Means and leverages of the fit to all rows; a row of weight w is one of w repetitions.
    noise_variance : Tensor broadcastable to (S, N, T)
    """
    leverage = leverage.clamp(0.0, _MOST_LEVERAGE)
    rest = 1.0 - leverage
    return NormalMixture(y - (y - fitted) / rest, noise_variance * leverage / rest, noise_variance)
