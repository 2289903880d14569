"""Whether the weights' own scatter has been taken for noise."""

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.inference.mean_field.elbo import GaussianMLP
from skbayes_sym.inference.posteriors import MeanFieldGaussian
from skbayes_sym.numerics.convergence import last_tenth_gain
from skbayes_sym.numerics.optimise import OptimiseResult
from skbayes_sym.numerics.random import generator_from

# Learned noise over the root mean square of the residuals. It is 1.04 to 1.05 with 5 units and 1.13
# to 1.22 with 50 (yacht, diabetes, concrete, a sine): beyond, a third of its variance is scatter.
MOST_EXCESS = 1.2
_MOST_ROWS, _N_DRAWS = 2000, 64


def noise_excess(
    data: Training, model: GaussianMLP, posterior: MeanFieldGaussian, log_noise: Tensor, seed: int
) -> Tensor:
    """Learned noise over the residuals' root mean square, (T,); 1 where nothing is scatter.

    At the optimum the noise's variance is that of the residuals of the mean function plus the mean
    variance of the functions, ``E (y - f)^2``.
    """
    x, y, weight = data.double_data
    chosen = torch.linspace(0, len(x) - 1, min(len(x), _MOST_ROWS)).round().long()
    draws = posterior.sample(_N_DRAWS, generator=generator_from(seed)).to(x)
    functions = model.network.forward(draws, x[chosen])
    # The mean of S draws scatters by a share 1 / S of the functions' variance, which isn't error.
    squares = (y[chosen] - functions.mean(0)).square() - functions.var(0) / _N_DRAWS
    rms = (weight[chosen] @ squares / weight[chosen].sum()).clamp_min(0.0).sqrt()
    return model.likelihood.at(log_noise).noise_scale.to(rms) / rms


def warn_of_collapse(excess: Tensor, result: OptimiseResult, tol: float | None) -> None:
    """Say so, at the end of a fit that has converged; ``tol`` absolute, nats."""
    # A gain too noisy to call the fit unconverged doesn't call it converged: its noise may still be
    # on the way down.
    gain = last_tenth_gain([-loss for loss in result.loss_curve])
    is_settled = tol is not None and (result.stopped == "tol" or gain.value < tol)
    largest = float(excess.max())
    if is_settled and largest > MOST_EXCESS:
        warn_user(
            f"the learned noise is {largest:.2f} times the spread of the residuals: scatter of the "
            "independent weights is taken for noise, a collapse of the mean field. Use fewer "
            "hidden units or a smaller prior, or take LayerwiseVIRegressor, "
            "LaplaceRegressor or BayesianMLPRegressor.",
            UserWarning,
        )
