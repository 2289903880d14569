"""Predictive distributions on simulated tables, all models at their defaults.

    python asv_bench/studies/compare_simulated.py [--tables NAME ...] [--draws 2] [--first 50]
                                          [--models NAME ...] [--keep]

The tables of `simulated_tables` are made up after well-known ones: their size, kind of columns,
noise and bends. Draws have the seeds ``first``, ``first + 1``, ...; others chose the constants.
Every model learns from the rows a table has, and is judged on 2,000 more, as `compare_uci` does.
Asked for by name, ``20 units`` after an estimator's is the same without a choice of the width.
"""

import argparse
import warnings

import numpy as np
import torch
from compare_uci import OURS, SLOW, THEIRS, score_member, show
from figures import keep
from simulated_tables import TABLES
from threadpoolctl import threadpool_limits

import skbayes_sym as sk

GIVEN_WIDTH = {
    f"{name}, 20 units": lambda name=name: getattr(sk, name)(20, random_state=0)
    for name in ("BayesianMLPRegressor", "LaplaceRegressor")
}
N_NEW = 2_000
MOST_FOR_PROCESSES = 2_000  # rows; their cost is cubic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--first", type=int, default=50)
    parser.add_argument("--models", nargs="+", default=None)
    parser.add_argument("--keep", action="store_true", help="for README and pages")
    args = parser.parse_args()
    models = {**OURS, **THEIRS, **GIVEN_WIDTH}
    chosen = args.models or [m for m in models if m not in SLOW | GIVEN_WIDTH.keys()]
    for name in args.tables:
        n, draw = TABLES[name]
        found: dict[str, list[dict[str, float]]] = {}
        for model in chosen:
            if model == "GaussianProcess" and n > MOST_FOR_PROCESSES:
                continue
            try:
                estimator = models[model]()
            except ImportError:
                continue
            rows = []
            for seed in range(args.first, args.first + args.draws):
                X, y = draw(np.random.default_rng([seed, n]), n + N_NEW)
                rows.append(score_member(estimator, X, y, np.arange(n), np.arange(n, n + N_NEW)))
            found[model] = rows
        show(f"{name}, {n:,} rows", found)
        if args.keep:
            densities = {m: [r["log density"] for r in rows] for m, rows in found.items()}
            keep("simulated", name, densities)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        torch.set_num_threads(1)
        main()
