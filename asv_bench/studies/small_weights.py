"""What members of small weight add to the density of a stack, by the least weight that is kept.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/small_weights.py [--rows 300] [--half settling]
        [--tables N]

The tables and their halves are those of `compare_tables`. Weights below the least one are set to 0,
as `StackDefaults.min_weight` does.
"""

import argparse
import os
import warnings
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from compare_tables import LEAST, MOST_NEW, SEEN
from sklearn.model_selection import train_test_split

import skbayes_sym as sk
from skbayes_sym.stacking import estimators
from skbayes_sym.stacking.defaults import StackDefaults

LEAST_WEIGHTS = (0.001, 0.003, 0.01, 0.02, 0.05)


@dataclass(frozen=True)
class FreeWeights(StackDefaults):
    """Defaults that keep all weights."""

    min_weight: float = 0.0


def log_density(stack: Any, X: pd.DataFrame, y: np.ndarray, labels: bool) -> float:
    """Mean log density or log probability of test rows, in nats."""
    if not labels:
        return float(sk.predictive(stack, X).log_prob(y).mean())
    is_class = y[:, None] == stack.classes_
    probability = (stack.predict_proba(X) * is_class).sum(axis=1)
    return float(np.log(probability.clip(LEAST)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--half", choices=("settling", "judging"), default="settling")
    parser.add_argument("--tables", type=int, default=100)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    vars(estimators)["StackDefaults"] = FreeWeights

    folder = Path(os.environ["SKBAYES_SYM_DATA"]) / "tables"
    changes = []
    print(f"{'':20s}" + "".join(f"{least:10.3f}" for least in LEAST_WEIGHTS) + "  weights")
    for kind in ("regression", "classification"):
        paths = sorted(folder.glob(f"{kind}/*.csv.gz"))
        names = [path.name.removesuffix(".csv.gz") for path in paths]
        halves = [("settling", "judging")[i % 2 and n not in SEEN] for i, n in enumerate(names)]
        chosen = [
            (n, p) for n, p, h in zip(names, paths, halves, strict=True) if h == arguments.half
        ]
        for name, path in chosen[: arguments.tables]:
            table = pd.read_csv(path)
            X = table.iloc[:, :-1]
            y = table.iloc[:, -1].to_numpy()
            labels = kind == "classification"
            train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0)
            train = train[: arguments.rows]
            test = test[:MOST_NEW]
            model_class = (
                sk.PredictiveStackingClassifier if labels else sk.PredictiveStackingRegressor
            )
            stack = model_class(random_state=0).fit(X.iloc[train], y[train])
            full = log_density(stack, X.iloc[test], y[test], labels)
            row = []
            for least in LEAST_WEIGHTS:
                kept = {n: w if w >= least else 0.0 for n, w in stack.weights_.items()}
                total = sum(kept.values())
                reduced = copy(stack)
                reduced.weights_ = {n: w / total for n, w in kept.items()}
                row.append(log_density(reduced, X.iloc[test], y[test], labels) - full)
            changes.append(row)
            weights = " ".join(f"{w:.3f}" for w in stack.weights_.values())
            print(f"{name:20s}" + "".join(f"{c:10.5f}" for c in row) + f"  {weights}", flush=True)
    print(f"{'mean':20s}" + "".join(f"{c:10.5f}" for c in np.mean(changes, axis=0)))
    print(f"{'worst':20s}" + "".join(f"{c:10.5f}" for c in np.min(changes, axis=0)))


if __name__ == "__main__":
    main()
