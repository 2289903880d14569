"""Noise and bands of symmetrised VI on few rows, where both truths are known.

    python asv_bench/studies/vi_calibration.py [--rows N] [--seeds N]

Ten tanh units at the defaults of `SymmetrizedVIRegressor`, on a sine and on Friedman's function of
five columns. Learned noise over the true one; shares of 500 test rows in which the 90 % band of the
function holds it, and the 90 % interval of a new target holds one: means and standard errors over
seeds.
"""

import argparse
import warnings

import numpy as np
import torch
from sklearn.datasets import make_friedman1
from timing import mean_and_error

from skbayes_sym import SymmetrizedVIRegressor, predictive

TEST_ROWS, DRAWS = 500, 400


def sine(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Rows, the function there, and the noise's standard deviation."""
    x = np.random.default_rng(seed).uniform(-4.0, 4.0, (n, 1))
    return x, np.sin(x[:, 0]), 0.3


def friedman(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The same of Friedman's five columns."""
    x, f = make_friedman1(n, n_features=5, noise=0.0, random_state=seed)
    return x, f, 1.0


def figures(name: str, n: int, seed: int) -> tuple[float, float, float]:
    """Noise over the true one, and the two shares."""
    x, f, noise = PROBLEMS[name](n + TEST_ROWS, seed)
    y = f + noise * np.random.default_rng(1000 + seed).standard_normal(len(f))
    model = SymmetrizedVIRegressor((10,), "tanh", random_state=seed).fit(x[:n], y[:n])
    draws = predictive(model, x[n:]).functions(DRAWS, random_state=0)
    low, high = np.quantile(draws.reshape(DRAWS, -1), (0.05, 0.95), axis=0)
    band = np.mean((low <= f[n:]) & (f[n:] <= high))
    low, high = predictive(model, x[n:]).interval(0.9).T
    return model.noise_std_ / noise, band, np.mean((low <= y[n:]) & (y[n:] <= high))


PROBLEMS = {"sine": sine, "friedman": friedman}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{args.rows} rows{'noise':>16s}{'band':>16s}{'interval':>16s}")
    for name in PROBLEMS:
        columns = zip(*(figures(name, args.rows, s) for s in range(args.seeds)), strict=True)
        told = (mean_and_error(column) for column in columns)
        print(f"{name:8s}" + "".join(f"{mean:9.3f} ({error:.3f})" for mean, error in told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
