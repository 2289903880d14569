"""Invariances of tables by the Laplace evidence: exchanged columns, turned signs, a common scale.

    python asv_bench/studies/invariances_of_tables.py [--seeds 2] [--cases exchange iris]

Two of the three have two elements, so that there is no half-width to follow: the network is
averaged over both, and the evidence is compared with that of the network as it is (MacKay's
comparison of models). The common scale is `LogScale`, whose half-width is learned. Printed per
seed, symmetric minus plain: log evidence and log density of new rows in nats per row, and whether
the evidence chose what predicts better.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_iris
from torch import Tensor, nn

from skbayes_sym import LILAClassifier, LILARegressor
from skbayes_sym.models import Invariances, LogScale


class TwoElements(nn.Module):
    """The identity, or a change of columns, with probability 1/2 each."""

    n_noise = 1

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.eta = change, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, eps: Tensor) -> Tensor:
        return torch.where(eps[:, :1] * self.eta > 0, self.change(x), x)


def exchange(first: list[int], second: list[int]) -> TwoElements:
    """Columns ``first`` in the places of ``second``, and the other way round."""

    def change(x: Tensor) -> Tensor:
        order = np.arange(x.shape[1])
        order[first], order[second] = second, first
        return x[:, torch.as_tensor(order, device=x.device)]

    return TwoElements(change)


def sign_flip(columns: list[int]) -> TwoElements:
    """All of ``columns`` times -1."""

    def change(x: Tensor) -> Tensor:
        signs = torch.ones_like(x[0])
        signs[columns] = -1.0
        return signs * x

    return TwoElements(change)


class Case(NamedTuple):
    """Rows, targets, how many train, and what they may be invariant to."""

    X: Any
    y: Any
    n_train: int
    families: list[Any]


def toy(kind: str, rng: np.random.Generator) -> Case:
    """Four columns; the target has the invariance, or (a negative control) has not."""
    X = rng.standard_normal((1060, 4))
    noise = 0.1 * rng.standard_normal(len(X))
    between = np.tanh(X[:, 0] - X[:, 1])
    y = {
        "exchange": between + np.tanh(X[:, 2] - X[:, 3]),  # of (0, 1) and (2, 3)
        "no exchange": between - np.tanh(X[:, 2] - X[:, 3]),
        "signs": X[:, 0] * X[:, 1] + X[:, 2],  # of the pair (0, 1)
        "scale": np.sin(2 * np.arctan2(X[:, 0], X[:, 1])),  # of all columns
    }[kind]
    families = {"signs": [sign_flip([0, 1])], "scale": [LogScale()]}
    return Case(X, y + noise, 60, families.get(kind, [exchange([0, 1], [2, 3])]))


def table(name: str, rng: np.random.Generator) -> Case:
    """Real rows, few of them to train on."""
    if name == "iris":  # lengths in cm: does the size of a flower matter?
        X, y = load_iris(return_X_y=True)
        case = Case(X, y, 30, [LogScale()])
    else:  # lengths of grains; all signs of an arm's angles; signs of columns of noise
        kind, n, family = {
            "wheat-seeds": ("classification", 40, LogScale(columns=(0, 1, 3, 4, 6))),
            "kin40k": ("regression", 200, sign_flip(list(range(8)))),
            "pwLinear": ("regression", 60, sign_flip([7, 8, 9])),
        }[name]
        data = pd.read_csv(Path(os.environ["SKBAYES_SYM_DATA"], "tables", kind, f"{name}.csv.gz"))
        case = Case(data.drop(columns="target").to_numpy(), data["target"], n, [family])
    order = rng.permutation(len(case.X))[: case.n_train + 1000]
    return case._replace(X=np.asarray(case.X)[order], y=np.asarray(case.y)[order])


TOYS = "exchange", "no exchange", "signs", "scale"
TABLES = "iris", "wheat-seeds", "kin40k", "pwLinear"


def compare(name: str, seed: int, max_iter: int) -> tuple[float, float, dict[str, float]]:
    """Evidence and test density, symmetric minus plain, nats per row, and the half-widths."""
    rng = np.random.default_rng(seed)
    X, y, n, families = toy(name, rng) if name in TOYS else table(name, rng)
    kind = LILAClassifier if np.asarray(y).dtype.kind in "iOU" else LILARegressor
    is_learned = isinstance(families[0], LogScale)
    held = Invariances(families, 8 if is_learned else 2,
                       learning_rate="auto" if is_learned else 1e-12)  # fmt: skip
    plain, symmetric = (
        kind((20,), invariances=given, max_iter=max_iter, random_state=seed).fit(X[:n], y[:n])
        for given in (None, held)
    )
    evidence = (symmetric.log_evidence_ - plain.log_evidence_) / n
    density = [m.log_predictive_density(X[n:], y[n:]).mean() for m in (symmetric, plain)]
    return evidence, float(density[0] - density[1]), symmetric.invariance_ if is_learned else {}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--cases", nargs="+", default=[*TOYS, *TABLES], choices=[*TOYS, *TABLES])
    parser.add_argument("--max-iter", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':14}{'evidence':>10}{'density':>10}  the evidence chose")
    for name in options.cases:
        for seed in range(options.seeds):
            evidence, density, widths = compare(name, seed, options.max_iter)
            verdict = "well" if (evidence > 0) == (density > 0) else "badly"
            shown = ", ".join(f"{key} {value:.2f}" for key, value in widths.items())
            print(f"{name:14}{evidence:+10.3f}{density:+10.3f}  {verdict}  {shown}", flush=True)


if __name__ == "__main__":
    main()
