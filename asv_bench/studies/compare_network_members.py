"""Candidates for the network member of the stack, by log density and CPU time.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/compare_network_members.py [--rows 300]
        [--splits 2] [--tables NAME ...]

The candidates are the mixture of networks that the stack fits, its modes alone (one batched search,
no ensemble), its ensemble alone, and Gaussian processes with the kernel of an infinitely wide
network of ReLU units: the arc-cosine kernel of order 1 with one or two hidden layers (Cho & Saul
2009, "Kernel methods for deep learning", eqs. 3 and 6 and section 2.3). The Gaussian process of the
stack has a squared-exponential kernel; the same code with this kernel is the control.

Every candidate is mixed with the predictions of a stack without networks. The weight is chosen on
one half of the test rows and scored on the other, both ways round. The gain in nats per row is what
the candidate adds to the stack. Its own log density and its CPU time stand next to it.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from timing import cpu_seconds, mean_and_error
from torch import Tensor

import skbayes_sym as sk

Floats = NDArray[np.float64]
Table = tuple[Floats, Floats]  # inputs and targets
FILES = ("yacht", "energy", "concrete", "airfoil")
TABLES = (
    *FILES, "regression/servo", "regression/fishcatch", "regression/strike", "people/biomass",
    "regression/bodyfat", "regression/elevators", "regression/kin40k", "regression/pol",
    "regression/pwLinear", "regression/stock", "regression/sensory",
)  # fmt: skip
OTHERS = ("linear", "trees", "boosting", "gaussian_process")
N_TEST = 500


def read(name: str) -> Table:
    """Return inputs, with dummies for words and medians for missing values, and targets."""
    folder = Path(os.environ["SKBAYES_SYM_DATA"])
    if name in FILES:
        numbers = np.loadtxt(folder / f"regression/{name}.data")
        return numbers[:, :-1], numbers[:, -1]
    table = pd.read_csv(folder / f"tables/{name}.csv.gz")
    inputs = pd.get_dummies(table.iloc[:, :-1], dtype=float)
    x = inputs.fillna(inputs.median()).fillna(0.0).to_numpy(float)
    return x, table.iloc[:, -1].to_numpy(float)


def arc_cosine(x: Tensor, z: Tensor, bias: Tensor, n_layers: int) -> Tensor:
    """Covariance of the outputs of an infinitely wide ReLU network, (N, M)."""
    xz = x @ z.T + bias
    xx = x.square().sum(1) + bias
    zz = z.square().sum(1) + bias
    for _ in range(n_layers):
        scale = (xx[:, None] * zz).sqrt()
        angle = (xz / scale).clamp(-1.0 + 1e-9, 1.0 - 1e-9).acos()
        # E[relu(u) relu(v)] times 2 keeps the variances.
        xz = scale * (angle.sin() + (torch.pi - angle) * angle.cos()) / torch.pi + bias
        xx = xx + bias
        zz = zz + bias
    return xz


def squared_exponential(x: Tensor, z: Tensor, bias: Tensor, n_layers: int) -> Tensor:
    """Squared-exponential covariance and a linear part, (N, M)."""
    return (-0.5 * torch.cdist(x, z).square()).exp() + bias * (x @ z.T)


class KernelRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process with a learned scale for every column, by the marginal likelihood."""

    def __init__(self, kernel: Callable[..., Tensor] = arc_cosine, n_layers: int = 1) -> None:
        self.kernel = kernel
        self.n_layers = n_layers

    def fit(self, X: Floats, y: Floats) -> "KernelRegressor":
        """Maximise the marginal likelihood with log-normal priors by 100 steps of L-BFGS."""
        self.inputs_ = StandardScaler().fit(X)
        self.mean_ = y.mean()
        self.std_ = y.std()
        self.x_ = torch.as_tensor(self.inputs_.transform(X))
        target = torch.as_tensor((y - self.mean_) / self.std_)
        n_columns = X.shape[1]
        # Log scales of the columns, of the function, of the bias and of the noise.
        start = torch.zeros(n_columns + 3, dtype=torch.float64)
        start[:n_columns] = -0.5 * np.log(n_columns)
        start[-1] = np.log(0.3)
        self.log_scales_ = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [self.log_scales_], max_iter=100, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            factor = self._factor()
            residual = torch.linalg.solve_triangular(factor, target[:, None], upper=False)
            value = 0.5 * residual.square().sum() + factor.diagonal().log().sum()
            value = value + 0.5 * (self.log_scales_ - start).square().sum()
            value.backward()
            return value

        optimizer.step(loss)
        self.log_scales_.requires_grad_(requires_grad=False)
        self.cholesky_ = self._factor()
        self.weights_ = torch.cholesky_solve(target[:, None], self.cholesky_)
        return self

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        scales = self.log_scales_[:-3].exp()
        function = (2.0 * self.log_scales_[-3]).exp()
        bias = (2.0 * self.log_scales_[-2]).exp()
        return function * self.kernel(x * scales, z * scales, bias, self.n_layers)

    def _factor(self) -> Tensor:
        covariance = self._covariance(self.x_, self.x_)
        noise = (2.0 * self.log_scales_[-1]).exp() + 1e-6 * covariance.diagonal().mean()
        return torch.linalg.cholesky(covariance + noise * torch.eye(len(self.x_)).double())

    def predict(self, X: Floats, return_std: bool = False) -> Any:
        """Predict the mean, and the standard deviation of a new target."""
        x = torch.as_tensor(self.inputs_.transform(X))
        cross = self._covariance(x, self.x_)
        mean = self.mean_ + self.std_ * (cross @ self.weights_)[:, 0].numpy()
        if not return_std:
            return mean
        root = torch.linalg.solve_triangular(self.cholesky_, cross.T, upper=False)
        own = torch.stack([self._covariance(row[None], row[None])[0, 0] for row in x])
        noise = (2.0 * self.log_scales_[-1]).exp()
        variance = (own - root.square().sum(0)).clamp_min(0.0) + noise
        return mean, self.std_ * variance.sqrt().numpy()


CANDIDATES: dict[str, Callable[[int], Any]] = {
    "mixture": lambda seed: sk.BayesianMLPRegressor(random_state=seed),
    "modes": lambda seed: sk.BayesianMLPRegressor(n_members=0, random_state=seed),
    "ensemble": lambda seed: sk.DeepEnsembleRegressor(random_state=seed),
    "arc-cosine, 1 layer": lambda _: KernelRegressor(arc_cosine, 1),
    "arc-cosine, 2 layers": lambda _: KernelRegressor(arc_cosine, 2),
    "squared exponential": lambda _: KernelRegressor(squared_exponential),
}


def mixing_gain(base: Floats, candidate: Floats) -> float:
    """Gain in nats per row of a mixture whose weight is chosen on the other half of the rows."""
    weights = np.linspace(0.0, 1.0, 101)[:, None]
    with np.errstate(divide="ignore"):
        mixed = np.logaddexp(np.log1p(-weights) + base, np.log(weights) + candidate)
    half = np.arange(len(base)) % 2 == 0
    gains = []
    for chosen, scored in ((half, ~half), (~half, half)):
        best = int(mixed[:, chosen].mean(1).argmax())
        gains.append((mixed[best] - base)[scored].mean())
    return float(np.mean(gains))


def log_density(model: Any, train: Table, test: Table) -> Floats:
    """Fit a model, and return the log densities of the test rows."""
    return sk.predictive(model.fit(*train), test[0]).log_prob(test[1])


def compare_on_table(name: str, n_rows: int, n_splits: int) -> dict[str, Floats]:
    """Return gain, log density and CPU seconds of each candidate, means over splits, (3,)."""
    x, y = read(name)
    n_train = min(n_rows, int(0.7 * len(y)))
    figures: dict[str, list[list[float]]] = {candidate: [] for candidate in CANDIDATES}
    base_densities = []
    for seed in range(n_splits):
        order = np.random.default_rng(seed).permutation(len(y))
        rows = order[:n_train]
        train = (x[rows], y[rows])
        rows = order[n_train : n_train + N_TEST]
        test = (x[rows], y[rows])
        others = [(member, member) for member in OTHERS]
        stack = sk.PredictiveStackingRegressor(others, random_state=seed)
        base = log_density(stack, train, test)
        base_densities.append(base.mean())
        for candidate, make in CANDIDATES.items():
            density, seconds = cpu_seconds(partial(log_density, make(seed), train, test))
            figures[candidate].append([mixing_gain(base, density), density.mean(), seconds])
    base_density = np.mean(base_densities)
    print(f"\n{name}, {n_train} rows: stack without networks {base_density:.3f}", flush=True)
    return {candidate: np.mean(values, axis=0) for candidate, values in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--tables", nargs="+", default=TABLES)
    args = parser.parse_args()
    found = []
    for table in args.tables:
        found.append(compare_on_table(table, args.rows, args.splits))
        for name, (gain, density, seconds) in found[-1].items():
            print(f"  {name:22s} gain {gain:7.3f}  own {density:8.3f}  {seconds:6.1f} CPU s")
    print(f"\n{len(found)} tables")
    for name in CANDIDATES:
        gains = np.array([figures[name][0] for figures in found])
        mean, error = mean_and_error(gains)
        seconds = np.mean([figures[name][2] for figures in found])
        print(
            f"  {name:22s} gain {mean:6.3f} ({error:.3f}), {gains.min():6.3f} to "
            f"{gains.max():6.3f}  {seconds:6.1f} CPU s  {1000 * mean / seconds:6.2f} per 1,000 s"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        torch.set_num_threads(1)
        main()
