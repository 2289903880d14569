"""Choices in variational inference that the guide's tables are about.

    python asv_bench/studies/compare_vi.py CHOICE [--sets NAME ...] [--splits N]

with one of these for CHOICE:

``priors``: `LayerwiseVIRegressor` with one prior scale for all weights, with scales that are
learned, and with one per column besides. ``scales``: the same of `SymmetrizedVIRegressor`.

For every set and variant, means over splits (those of `compare_uci`; 90/10 ones of seeds 0, 1, ...
of diabetes): the ELBO of the training rows in nats, the log density of a test row in nats (both of
y as given), the root mean squared error over the training targets' standard deviation, CPU seconds
of one thread for fit and predictions; and the difference of the log density to the first variant
with the standard error of its mean.
"""

import argparse
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from compare_uci import splits
from paper_tables import load_dataset
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from threadpoolctl import threadpool_limits
from timing import cpu_seconds, mean_and_error

from skbayes_sym import LayerwiseVIRegressor, SymmetrizedVIRegressor, predictive
from skbayes_sym.models import ARD

SETS = ("diabetes", "yacht", "energy", "concrete")


def priors(kind: type) -> Mapping[str, Any]:
    settings: Mapping[str, Mapping[str, Any]] = {
        "1.0": {"prior": 1.0}, "learn": {"prior": "learn"}, "ARD()": {"prior": ARD()}
    }  # fmt: skip
    return {name: kind(random_state=0, **one) for name, one in settings.items()}


PARTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "priors": lambda: priors(LayerwiseVIRegressor),
    "scales": lambda: priors(SymmetrizedVIRegressor),
}


class Figures(NamedTuple):
    """Of one fit."""

    elbo: float
    log_density: float
    rmse: float
    seconds: float


def score_member(model: Any, X: Any, y: Any, train: Any, test: Any) -> Figures:
    """Fit to the training rows, and ask about the others."""

    def work() -> tuple[float, float, float]:
        fitted = clone(model).fit(X[train], y[train])
        distribution = predictive(fitted, X[test])
        error = np.sqrt(np.mean((distribution.mean() - y[test]) ** 2)) / y[train].std()
        return fitted.elbo_, float(np.mean(distribution.log_prob(y[test]))), float(error)

    (elbo, log_density, rmse), seconds = cpu_seconds(work)
    return Figures(elbo, log_density, rmse, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    args = parser.parse_args()
    print(f"{'':28s}{'ELBO':>9s}{'log density':>13s}{'RMSE':>8s}{'CPU s':>8s}{'gain':>10s}")
    for name in args.sets:
        data = load_diabetes() if name == "diabetes" else load_dataset(name)
        X, y = data.data, data.target
        pairs = list(splits(name, len(y), args.first + args.splits))[args.first :]
        base: list[Figures] = []
        for variant, model in PARTS[args.part]().items():
            found = [score_member(model, X, y, *pair) for pair in pairs]
            base = base or found
            gains = [a.log_density - b.log_density for a, b in zip(found, base, strict=True)]
            elbo, density, rmse, seconds = np.mean(found, axis=0)
            gain, error = mean_and_error(gains)
            print(
                f"{name:10s}{variant:18s}{elbo:9.0f}{density:13.3f}{rmse:8.3f}{seconds:8.1f}"
                f"{gain:+10.3f} ({error:.3f})", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        main()
