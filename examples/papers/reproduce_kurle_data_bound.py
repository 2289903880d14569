"""
The data-related bound for networks (Kurle et al. 2022, section 2.2 and appendix F)
====================================================================================

For a normal likelihood with known noise, and a prior under which the output of the network has mean
0 and variance :math:`\\sigma_L^2(x)`, eq. 3 says

.. math:: KL[q \\| p] \\le \\sum_n \\frac{\\sigma_L^2(x_n) + y_n^2}{2 \\sigma_y^2}

for every q whose ELBO is at least the prior's, and so for every optimum. The right-hand side hardly
depends on the width if the prior over functions doesn't. The number of weights grows with the
width, so each of them has to stay near its prior.

.. code-block:: shell

   python examples/papers/reproduce_kurle_data_bound.py           # half a minute
   python examples/papers/reproduce_kurle_data_bound.py --fast    # a test run

Networks with one hidden layer of tanh units on the sinusoidal data, mean-field normal posteriors,
weights of prior variance 2 in the first layer and 1 / width in the second. "ELBO - prior's" is the
ELBO of the optimum less that of the prior: where it is near 0 the network ignores the data.
"""

import argparse

import numpy as np
import torch

from skbayes_sym import SymmetrizedVIRegressor
from skbayes_sym.datasets import make_sinusoidal

WIDTHS = (5, 10, 50, 200, 1000)
NOISE_STD = 0.3  # of targets with standard deviation 0.8
N_PRIOR_DRAWS = 2000


def fit(width, n_steps):
    """Mean-field posterior of one network, whose prior over functions has the same limit."""
    X, y = make_sinusoidal(random_state=0)
    model = SymmetrizedVIRegressor(
        (width,), "tanh", symmetry=None, prior=[2.0**0.5, width**-0.5], noise_std=NOISE_STD,
        standardize="X", max_iter=n_steps, tol=None, random_state=0,
    )  # fmt: skip
    return model.fit(X, y), X, y


def prior_deviations(model):
    """Prior standard deviation of each parameter: first the hidden layer's, then the output's."""
    width = model.hidden_layer_sizes[0]
    return np.repeat(model.prior, [2 * width, width + 1])


def divergence(model):
    """``KL[q || p]`` of the independent normal weights, in nats."""
    prior_std = prior_deviations(model)
    q = model.posterior_
    ratio = (q.scale / prior_std) ** 2
    return float(0.5 * np.sum(ratio + (q.loc / prior_std) ** 2 - 1.0 - np.log(ratio)))


def data_bound(model, X, y):
    """The bound of eq. 3, and the ELBO of the prior, both in nats.

    The variance of the output is an average over draws of the weights from the prior.
    """
    inputs = torch.from_numpy((X - model.x_mean_) / model.x_scale_)
    prior_std = torch.from_numpy(prior_deviations(model))
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(N_PRIOR_DRAWS, len(prior_std), dtype=inputs.dtype, generator=generator)
    outputs = model.network_.forward(draws * prior_std.to(inputs), inputs)[..., 0]
    squares = outputs.square().mean(dim=0).numpy() + y**2
    bound = float(np.sum(squares) / (2.0 * NOISE_STD**2))
    log_normaliser = 0.5 * len(y) * np.log(2.0 * np.pi * NOISE_STD**2)
    return bound, -bound - log_normaliser


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--fast", action="store_true", help="a test run: two widths, 50 steps")
    fast = parser.parse_args().fast
    print("units   weights   KL[q || p]    bound   ELBO - prior's   RMSE / std(y)")
    for width in WIDTHS[:2] if fast else WIDTHS:
        model, X, y = fit(width, 50 if fast else 3000)
        bound, prior_elbo = data_bound(model, X, y)
        error = np.sqrt(np.mean((model.predict(X) - y) ** 2)) / y.std()
        print(
            f"{width:5}{model.network_.layout.n_params:10}{divergence(model):13.1f}{bound:9.1f}"
            f"{model.elbo_ - prior_elbo:17.1f}{error:16.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
