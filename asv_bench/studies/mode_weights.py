"""Do weights by evidence beat equal weights of the modes of Laplace's approximation?

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/mode_weights.py [--kind regression]
        [--tables NAME ...] [--splits 2]

`LaplaceRegressor((20,), "tanh")`, or `LaplaceClassifier` of four restarts, at their defaults on
``FOLDER/tables/KIND``: words are one-hot, gaps the column's median, at most 1,000 rows to train,
500 others to test. Their modes are mixed with equal weights; with weights in proportion to their
evidences; to the evidences' powers of 1 / sqrt(n), for a wrong model; and the best alone. Printed
are nats per row against equal weights, a table's mean over splits, for the half of the tables that
sets constants and the half that doesn't.
"""

import argparse
import os
import warnings
from copy import copy
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import log_softmax, logsumexp
from scipy.stats import norm
from sklearn.model_selection import train_test_split

import skbayes_sym as sk

MOST_COLUMNS, MOST_ROWS, MOST_NEW = 60, 1000, 500
WAYS = "evidence", "tempered", "best"
Densities = tuple[np.ndarray, np.ndarray]  # of R modes (R,), and of rows (R, N), nats


def table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of a table whose last column is the target."""
    rows = pd.read_csv(path)
    rows = rows[rows.iloc[:, -1].notna()]
    X = pd.get_dummies(rows.iloc[:, :-1], dtype=float)
    X = X.fillna(X.median()).to_numpy(float)
    return X[:, X.std(0) > 0], rows.iloc[:, -1].to_numpy()


def densities(X: np.ndarray, y: np.ndarray, new: np.ndarray, y_new: np.ndarray) -> Densities:
    """Log evidences of the modes of a fit, and each one's log densities of new rows."""
    if y.dtype.kind == "f":
        reg = sk.LaplaceRegressor((20,), "tanh", random_state=0).fit(X, y)
        _, loc, scale = sk.predictive(reg, new).components()
        loc, scale = (np.asarray(t).reshape(reg.n_modes_, -1) for t in (loc, scale))
        return reg.log_evidence_modes_, norm.logpdf(y_new, loc, scale)
    four = sk.GaussNewton(n_restarts=4)
    clf = sk.LaplaceClassifier((20,), "tanh", optimizer=four, random_state=0).fit(X, y)
    hit, by_mode = y_new[:, None] == clf.classes_, []
    for i in range(clf.n_modes_):
        one = copy(clf)
        parts = (t[i : i + 1] for t in (clf.posterior_.loc, clf.posterior_.factor))
        one.posterior_ = type(clf.posterior_)(*parts, np.ones(1))
        vars(one)["_cache"] = {}
        by_mode.append(np.log((one.predict_proba(new) * hit).sum(1).clip(1e-15)))
    return clf.log_evidence_modes_, np.array(by_mode)


def gains(X: np.ndarray, y: np.ndarray, split: int) -> list[float] | None:
    """Mean log densities less those of equal weights; None of one mode alone."""
    n = min(MOST_ROWS, int(0.8 * len(y)))
    known, new, y_known, y_new = train_test_split(X, y, random_state=split, train_size=n)
    evidence, by_mode = densities(known, y_known, new[:MOST_NEW], y_new[:MOST_NEW])
    if len(evidence) < 2:
        return None
    alone = np.where(np.arange(len(evidence)) == evidence.argmax(), 0.0, -np.inf)
    weights = [np.zeros(len(evidence)), evidence, evidence / np.sqrt(n), alone]
    equal, *others = (
        logsumexp(by_mode + log_softmax(w)[:, None], axis=0).mean() for w in weights
    )  # fmt: skip
    return [other - equal for other in others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("regression", "classification"), default="regression")
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--splits", type=int, default=2)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, list[np.ndarray]] = {"settling": [], "judging": []}
    folder = Path(os.environ["SKBAYES_SYM_DATA"]) / "tables" / chosen.kind
    for i, path in enumerate(sorted(folder.glob("*.csv.gz"))):
        name = path.name.removesuffix(".csv.gz")
        X, y = table(path)
        y = y.astype(float if chosen.kind == "regression" else str)
        if (chosen.tables and name not in chosen.tables) or X.shape[1] > MOST_COLUMNS:
            continue
        of_splits = [g for s in range(chosen.splits) if (g := gains(X, y, s)) is not None]
        if of_splits:
            mean = np.mean(of_splits, axis=0)
            found["judging" if i % 2 else "settling"].append(mean)
            print(f"{name:16s}" + "".join(f"{g:10.3f}" for g in mean), flush=True)
    for half, means in found.items():
        for way, values in zip(WAYS, np.transpose(means) if means else (), strict=False):
            error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
            print(f"{half}: {way:9s} {values.mean():7.3f} +- {error:.3f} on {len(values)} tables, "
                  f"better on {(values > 0).sum()}")  # fmt: skip


if __name__ == "__main__":
    main()
