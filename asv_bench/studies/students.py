"""What `distill` loses of a pool of networks, and what it saves, on ten tables.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/students.py [NAME ...]

The teacher is `BayesianMLPRegressor` at its defaults, of half the rows (at most 500); the student
learns from the same rows. Printed are the teacher's mean log density of the other rows (at most
500) and how much of it the student loses, in nats per row; microseconds of CPU for mean and std of
one of 2,000 rows (the least of five calls), and their ratio; kilobytes of the student's file.
"""

import argparse
import io
import os
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from mode_weights import table
from paper_tables import load_dataset
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from timing import cpu_seconds

from skbayes_sym import BayesianMLPRegressor, distill

NAMES = (
    "airfoil", "concrete", "diabetes", "energy", "forest_fire", "yacht", "bodyfat", "elevators",
    "pwLinear", "servo",
)  # fmt: skip
N_TIMED = 2000


def read(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of a table."""
    path = Path(os.environ["SKBAYES_SYM_DATA"]) / f"tables/regression/{name}.csv.gz"
    if name == "diabetes":
        return load_diabetes(return_X_y=True)
    return table(path) if path.exists() else load_dataset(name, return_X_y=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    warnings.simplefilter("ignore")
    print(f"{'':12s}{'teacher':>9}{'lost':>8}{'its us':>9}{'us':>9}{'ratio':>7}{'kB':>6}")
    for name in parser.parse_args().names:
        X, y = read(name)
        n = min(500, len(y) // 2)
        X, new, y, y_new = train_test_split(X, y, train_size=n, test_size=n, random_state=0)
        model = BayesianMLPRegressor(random_state=0).fit(X, y)
        student = distill(model, X)
        density = [float(np.mean(m.log_predictive_density(new, y_new))) for m in (model, student)]
        many = new[np.arange(N_TIMED) % len(new)]
        per_row = [
            min(cpu_seconds(partial(m.predict, many, return_std=True))[1] for _ in range(5))
            for m in (model, student)
        ]
        per_row = [1e6 / N_TIMED * seconds for seconds in per_row]
        file = io.BytesIO()
        student.save(file)
        print(
            f"{name:12s}{density[0]:9.3f}{density[0] - density[1]:8.3f}{per_row[0]:9.1f}"
            f"{per_row[1]:9.2f}{per_row[0] / per_row[1]:7.1f}{len(file.getvalue()) / 1000:6.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
