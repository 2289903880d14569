"""For which comparisons can Laplace's evidence be trusted?

    python asv_bench/studies/evidence_trust.py [--splits 2] [--rows 150]

Fits `LaplaceRegressor` on a few tables, several ways, and asks of each comparison how often the
higher evidence goes with the higher log density of held-out rows, and what following the evidence
costs against the best choice, nats per row. The reported evidence counts all modes and a mode's
copies by exchanges and sign flips of its hidden units; ``best mode`` counts neither.
"""

import argparse
import warnings
from typing import Any

import numpy as np
from paper_tables import load_dataset
from scipy.stats import norm
from sklearn.datasets import load_diabetes, make_friedman1
from threadpoolctl import threadpool_limits

import skbayes_sym as sk
from skbayes_sym import GaussNewton

WIDTHS = (3, 8, 20)


def tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    found = {"diabetes": load_diabetes(return_X_y=True)}
    found["friedman1"] = make_friedman1(600, noise=1.0, random_state=0)
    for name in ("yacht", "energy", "concrete"):
        try:
            data = load_dataset(name)
        except (OSError, ValueError):
            continue
        found[name] = data.data, np.asarray(data.target).reshape(len(data.data), -1)[:, 0]
    return found


def fits(X: Any, y: Any, train: Any, test: Any) -> dict[str, Any]:
    """Evidence, and log density per row of the test set, of every way to fit."""
    ways = {
        f"tanh {w}": sk.LaplaceRegressor((w,), optimizer=GaussNewton(3), random_state=0)
        for w in WIDTHS
    }
    for activation in ("relu", "softplus"):
        ways[f"{activation} 8"] = sk.LaplaceRegressor(
            (8,), activation, optimizer=GaussNewton(3), random_state=0
        )
    ways["linear"] = sk.BayesianLinearRegressor()
    ways["mean field 8"] = sk.SymmetrizedVIRegressor((8,), "tanh", random_state=0)
    found = {}
    for name, way in ways.items():
        model = way.fit(X[train], y[train])
        evidence = getattr(model, "log_evidence_", None)
        evidence = model.elbo_ if evidence is None else evidence
        found[name] = evidence, model.log_predictive_density(X[test], y[test]).mean()
        if hasattr(model, "log_evidence_modes_"):
            found[f"{name}, best mode"] = model.log_evidence_modes_.max(), found[name][1]
        if name == "tanh 8":
            found["restarts"] = restarts(model, X[test], y[test])
    return found


def restarts(model: Any, X: Any, y: Any) -> list[tuple[float, float]]:
    """Of every mode by itself."""
    evidence = model.log_evidence_modes_
    _, loc, scale = sk.predictive(model, X).components()
    loc, scale = (np.asarray(t).reshape(len(evidence), -1) for t in (loc, scale))
    density = norm.logpdf(y, loc, scale).mean(1)
    return list(zip(evidence.tolist(), density.tolist(), strict=True))


def compare(found: list[list[tuple[float, float]]]) -> str:
    """Of several sets of choices, each an evidence and a density."""
    pairs, right, lost = 0, 0, []
    for choices in found:
        evidence, density = np.array(choices).T
        lost.append(density.max() - density[evidence.argmax()])
        for i in range(len(choices)):
            for j in range(i):
                pairs += 1
                right += (evidence[i] > evidence[j]) == (density[i] > density[j])
    return f"{right:3d} of {pairs:3d}{np.mean(lost):16.3f}{np.max(lost):12.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--rows", type=int, default=150)
    args = parser.parse_args()
    everything = []
    for X, y in tables().values():
        for seed in range(args.splits):
            rows = np.random.default_rng(seed).permutation(len(y))
            train, test = rows[: args.rows], rows[args.rows : args.rows + 300]
            everything.append(fits(X, y, train, test))
    choices = {
        "linear against network": ("linear", "tanh 8"),
        "width": tuple(f"tanh {w}" for w in WIDTHS),
        "activation": ("tanh 8", "relu 8", "softplus 8"),
    }
    for label, names in list(choices.items()):
        choices[f"{label}, best mode"] = tuple(
            name if name == "linear" else f"{name}, best mode" for name in names
        )
    choices["methods"] = "tanh 8", "mean field 8"
    comparisons = {k: [[f[n] for n in names] for f in everything] for k, names in choices.items()}
    comparisons["restarts"] = [f["restarts"] for f in everything]
    print(f"{'':34s}{'agrees':>10s}{'costs on average':>16s}{'at most':>12s}")
    for label, found in comparisons.items():
        print(f"{label:34s}{compare(found)}")
    for label in ("width", "width, best mode"):
        picks = [int(np.argmax([e for e, _ in row])) for row in comparisons[label]]
        print(f"chosen by {label}: { {w: picks.count(i) for i, w in enumerate(WIDTHS)} }")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        main()
