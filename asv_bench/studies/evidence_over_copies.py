"""Ranking of network widths by reported evidence and by the exact sum over copies.

    python asv_bench/studies/evidence_over_copies.py [--widths 2 3 4 5 6 7 8] [--draws 30]

``LaplaceRegressor((H,), "tanh", optimizer=GaussNewton(4), random_state=0)`` is fitted to five
data sets. ``reported`` is ``log_evidence_`` with its standard error. ``exact`` adds up the same
modes, each with a gap in which all copies are summed. Up to six units the estimator sums all
copies, too. For seven and eight units (645,120 and 10,321,920 copies) it keeps a limited number
of partial assignments, and ``exact`` here keeps all those whose copies are not negligible. The
difference is the reported lower bound's shortfall, up to the standard errors of both sums.
Where copies overlap much, eight units take one to several minutes: lower ``--draws`` or
leave this width out.

Set ``SKBAYES_SYM_DATA`` to the folder that contains ``regression/``; without it two data sets are
left out.
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import GaussNewton, LaplaceRegressor
from skbayes_sym.laplace.posterior import ModeMixture
from skbayes_sym.numerics.random import mean_and_error
from skbayes_sym.symmetry.gaps.monte_carlo_gap import MonteCarloGap

# Eight units have 10,321,920 copies.
COMPLETE = 20_000_000


def simulate_sine() -> tuple[np.ndarray, np.ndarray]:
    """Return the 40 rows of the example."""
    rng = np.random.default_rng(7)
    x = rng.uniform(-2.0, 2.0, (40, 1))
    return x, np.sin(1.5 * x[:, 0]) + 0.3 * rng.standard_normal(40)


def simulate_surface() -> tuple[np.ndarray, np.ndarray]:
    """Return 80 rows of a function of two columns."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2.0, 2.0, (80, 2))
    return x, np.sin(1.5 * x[:, 0]) * x[:, 1] + 0.2 * rng.standard_normal(80)


def simulate_steps() -> tuple[np.ndarray, np.ndarray]:
    """Return 60 rows of a function with two steps."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-3.0, 3.0, (60, 1))
    y = np.tanh(4.0 * (x[:, 0] - 1.0)) + np.tanh(4.0 * (x[:, 0] + 1.0))
    return x, y + 0.2 * rng.standard_normal(60)


def load_rows(name: str, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a random subsample of the rows of a file whose last column is the target."""
    folder = Path(os.environ["SKBAYES_SYM_DATA"]) / "regression"
    table = np.loadtxt(folder / f"{name}.data")
    chosen = np.random.default_rng(0).permutation(len(table))[:n_rows]
    return table[chosen, :-1], table[chosen, -1]


def sum_copies(model: LaplaceRegressor, n_draws: int) -> tuple[float, float]:
    """Sum the evidence of all modes and of their copies, with the standard error, nats."""
    group = model.network_.symmetry()
    gap = MonteCarloGap(group, model.network_.layout.n_params, max_order=COMPLETE)
    generator = torch.Generator().manual_seed(1)
    modes = model.posterior_
    gaps = []
    errors = []
    for loc, factor in zip(modes.loc, modes.factor, strict=True):
        values = gap.values(ModeMixture(loc[None], factor[None]), n_draws, generator=generator)
        mean, error = mean_and_error(values)
        gaps.append(mean)
        errors.append(error)
    log_terms = np.asarray(model.log_evidence_modes_) + np.array(gaps)
    total = np.logaddexp.reduce(log_terms)
    weights = np.exp(log_terms - total)
    return float(total), float(np.linalg.norm(weights * np.array(errors)))


def main() -> None:
    """Print one line per data set and width, and the rankings of each data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=list(range(2, 9)))
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    tables = {"sine": simulate_sine, "surface": simulate_surface, "steps": simulate_steps}
    if "SKBAYES_SYM_DATA" in os.environ:
        tables["yacht"] = lambda: load_rows("yacht", 60)
        tables["energy"] = lambda: load_rows("energy", 100)
    print("data     H  reported  error      exact  error  difference  seconds  side")
    for name, make in tables.items():
        if args.only and name not in args.only:
            continue
        x, y = make()
        reported = []
        exact = []
        for width in args.widths:
            model = LaplaceRegressor(
                (width,), "tanh", optimizer=GaussNewton(4), random_state=0
            ).fit(x, y)
            started = time.perf_counter()
            # Complete sums of up to 46,080 copies are cheap.
            n_draws = args.draws if width > 6 else 20 * args.draws
            total, error = sum_copies(model, n_draws)
            seconds = time.perf_counter() - started
            reported.append(model.log_evidence_)
            exact.append(total)
            print(
                f"{name:8} {width}  {model.log_evidence_:8.2f}"
                f"  {model.log_evidence_std_error_:5.2f}"
                f"   {total:8.2f}  {error:5.2f}  {model.log_evidence_ - total:10.2f}"
                f"  {seconds:7.1f}  {model.log_evidence_side_}",
                flush=True,
            )
        by_reported = [args.widths[i] for i in np.argsort(reported)[::-1]]
        by_exact = [args.widths[i] for i in np.argsort(exact)[::-1]]
        verdict = "same" if by_reported == by_exact else "different"
        print(
            f"{name}: widths by reported {by_reported}, by exact {by_exact}: {verdict}", flush=True
        )


if __name__ == "__main__":
    main()
