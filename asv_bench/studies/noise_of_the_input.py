"""Laplace with noise that depends on the input, beside one noise, on tables.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/noise_of_the_input.py [--half judging]
                                                                           [--split 1]

Columns of numbers of ``FOLDER/tables/regression/*.csv.gz``, at most 500 rows to train and ten tanh
units. Printed are log densities of new rows in nats per row: of `LaplaceRegressor`'s one noise, and
the gains of "heteroscedastic" and of natural parameters.
Constants were set on the other half of the tables.
"""

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from skbayes_sym import LaplaceRegressor
from skbayes_sym.models import NaturalHeteroscedastic

LIKELIHOODS: dict[str, Any] = {
    "one": "auto", "word": "heteroscedastic", "natural": NaturalHeteroscedastic()
}  # fmt: skip


def densities(path: Path, split: int) -> list[float] | None:
    """Mean log densities of new rows; None of a table with too few."""
    table = pd.read_csv(path).select_dtypes("number").dropna()
    table = table.sample(min(len(table), 1200), random_state=0)
    if len(table) < 150:
        return None
    X, y = table.iloc[:, :-1].to_numpy(float), table.iloc[:, -1].to_numpy(float)
    train, new, y_train, y_new = train_test_split(X, y, test_size=0.4, random_state=split)
    models = [
        LaplaceRegressor((10,), likelihood=likelihood, random_state=0)
        for likelihood in LIKELIHOODS.values()
    ]
    return [
        float(m.fit(train[:500], y_train[:500]).log_predictive_density(new, y_new).mean())
        for m in models
    ]


def main() -> None:
    """Print a line a table, and medians and means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=("settling", "judging"), default="judging")
    parser.add_argument("--split", type=int, default=1)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = Path(os.environ["SKBAYES_SYM_DATA"]) / "tables" / "regression"
    gains = []
    print(f"{'':16}{'one noise':>12}{'word':>10}{'natural':>10}")
    for path in sorted(folder.glob("*.csv.gz"))[int(asked.half == "judging") :: 2]:
        values = densities(path, asked.split)
        if values is None:
            continue
        gains.append([value - values[0] for value in values[1:]])
        told = "".join(f"{gain:+10.3f}" for gain in gains[-1])
        print(f"{path.name.split('.')[0]:16}{values[0]:12.3f}{told}", flush=True)
    for name, summary in (("median", np.median), ("mean", np.mean)):
        print(f"{name:28}" + "".join(f"{v:+10.3f}" for v in summary(gains, axis=0)))


if __name__ == "__main__":
    main()
