"""
Table 1 of Wiese et al. (2023): sampling, Laplace and deep ensembles
====================================================================

Log pointwise predictive density (LPPD) on test rows for the paper's networks, f1 (one hidden layer
of 3 tanh units) and f2 (three of 16), on its ten data sets. Columns:

- chains: the paper's protocol, one draw from each of many chains, all counting alike. It weighs a
  mode by how many starts fall into its basin, not by its posterior mass;
- evidence: ``ModeWeights("evidence")``. The same chains go on, and new ones are allocated to the
  modes by their evidence. On airfoil one mode in the reach of few chains has all the mass;
- log p(y): the log evidence of the model, nats, and its standard error (nan: can't be trusted, and
  the note under the row says why; the column before is then one vote per chain too);
- LA: a Laplace approximation at one mode, its prior and noise chosen by its evidence, predictions
  linearised (`LaplaceRegressor`). The paper's, of the laplace library, are much worse;
- DE: ten maximum-a-posteriori networks, the paper's deep ensemble;
- the paper's own figures for sampling, LA and DE.

LPPD is the mean over test rows of ``log mean_s p(y | x, theta_s)``, by logsumexp, in units of the
standardised target; "+-" is its standard deviation over test rows, as in the paper (not an error of
the mean). Rows differ from the paper's because the splits do and because

- the data are standardised by the training rows (the paper's by all rows, test rows included);
- no test row is dropped. The paper's code leaves out rows whose density underflows; where there are
  any, a note gives the figure without them. On Wine (scikit-learn's `load_wine`, the class label
  as a number: three values, so hardly any noise) that makes the difference between -301 and
  9.73 (the paper: 9.67).

Before the table the script prints how many chains find three modes, which is where the paper's 1274
chains come from.

Run ``python reproduce_wiese_table1.py`` for f1, with ``--network f2`` for f2, ``--fast`` for a
short trial of one small data set; ``--jobs`` processes share the chains. The environment variable
``SKBAYES_SYM_DATA`` names the folder of the data.
"""

import argparse
import itertools
import math
import sys
import textwrap
import time
import warnings
from typing import NamedTuple

import numpy as np
from paper_data import load_dataset
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

from skbayes_sym import (
    Chains,
    DeepEnsembleRegressor,
    EvidenceAdam,
    LaplaceRegressor,
    MCMCRegressor,
    ModeWeights,
    Updates,
    n_chains_required,
)

NETWORKS = {"f1": (3,), "f2": (16, 16, 16)}
UNDERFLOW = -103.3  # nats: log of the smallest float32, below which the paper's code drops a row
CURVATURES = {"f1": "full", "f2": "kron-exact"}  # the full matrix where it is small


class Paper(NamedTuple):
    """The paper's figures for sampling, LA and DE, mean and deviation over test rows."""

    mcmc: tuple[float, float]
    laplace: tuple[float, float]
    ensemble: tuple[float, float]


PAPER = {
    "f1": {
        "sinusoidal": Paper((-0.53, 0.50), (-0.57, 0.63), (-0.58, 0.63)),
        "izmailov": Paper((0.79, 0.50), (0.53, 0.67), (0.56, 0.57)),
        "regression2d": Paper((0.64, 0.72), (-27.4, 26.3), (-1.46, 0.47)),
        "airfoil": Paper((-0.74, 0.71), (-1.78, 2.25), (-1.62, 0.44)),
        "concrete": Paper((-0.41, 0.77), (-14.5, 14.6), (-1.59, 0.49)),
        "diabetes": Paper((-1.20, 0.69), (-1.46, 0.84), (-1.47, 0.63)),
        "energy": Paper((0.92, 0.44), (-31.7, 23.2), (-1.76, 0.29)),
        "forest_fire": Paper((-1.37, 0.69), (-2.39, 1.67), (-1.60, 0.59)),
        "wine": Paper((9.67, 1.34), (-24.5, 25.2), (-1.15, 0.62)),
        "yacht": Paper((1.90, 1.26), (-5.60, 10.4), (-1.14, 1.08)),
    },
    "f2": {
        "sinusoidal": Paper((-0.59, 0.63), (-2.42, 0.04), (-2.13, 0.19)),
        "izmailov": Paper((0.91, 0.78), (-1.81, 0.09), (-2.02, 0.16)),
        "regression2d": Paper((0.95, 0.57), (-2.33, 0.03), (-2.20, 0.17)),
        "airfoil": Paper((0.92, 0.92), (-3.57, 3.16), (-2.17, 0.26)),
        "concrete": Paper((0.26, 0.95), (-4.36, 6.48), (-2.03, 0.21)),
        "diabetes": Paper((-1.18, 0.78), (-2.61, 0.02), (-2.09, 0.40)),
        "energy": Paper((2.07, 5.67), (-1.39, 0.80), (-1.99, 0.20)),
        "forest_fire": Paper((-1.43, 4.54), (-2.80, 0.05), (-2.20, 0.23)),
        "wine": Paper((8.62, 0.64), (-2.81, 0.02), (-2.08, 0.26)),
        "yacht": Paper((3.31, 1.67), (-2.69, 0.02), (-2.18, 0.26)),
    },
}


def print_chain_bound():
    """Chains that find three modes with probability 0.99: exactly, and the paper's eq. 5."""
    half_normal = np.exp(-0.5 * np.linspace(0, 1.96, 3) ** 2)
    cases = {
        "as printed (.57, .35, .08)": [0.57, 0.35, 0.08],
        "not rounded, as in the paper's code": half_normal / half_normal.sum(),
    }
    print("chains that find three modes with probability 0.99")
    for name, basins in cases.items():
        markov = math.ceil(expected_chains(basins) / 0.01 * (1 - 1e-12))
        print(f"  {name:38}{n_chains_required(basins):4}   by Markov's inequality {markov}")
    print()


def expected_chains(basins):
    """Mean number of chains until all modes were seen: the paper's equation (26)."""
    total = 0.0
    for n in range(1, len(basins) + 1):
        for some in itertools.combinations(basins, n):
            total += (-1) ** (n + 1) / sum(some)
    return total


class Result(NamedTuple):
    """LPPD of one method: mean, deviation over test rows; seconds; what ``fit`` warned of."""

    mean: float
    deviation: float
    seconds: float
    notes: list[str]


def load_split(name, seed):
    """Training and test rows, standardised by the training rows."""
    X, y = load_dataset(name, return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=seed)
    mean, scale = y.mean(), y.std()
    X, X_test = X.astype(np.float32), X_test.astype(np.float32)
    return X, (y - mean) / scale, X_test, (y_test - mean) / scale


def evaluate(model, split):
    """Fit and predict, remembering warnings."""
    X, y, X_test, y_test = split
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        start = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - start
    notes = [str(w.message) for w in caught if w.category is ConvergenceWarning]
    density = model.log_predictive_density(X_test, y_test)
    kept = density[density > UNDERFLOW]
    if len(kept) < len(density):
        notes.append(
            f"{len(density) - len(kept)} of {len(density)} test rows underflow; as in the paper, "
            f"without them: {kept.mean():.2f} ({kept.std():.2f})"
        )
    return Result(density.mean(), density.std(), seconds, notes)


def run_methods(name, options):
    """Results of all methods on one data set, and the log evidence with its error."""
    split = load_split(name, options.split)
    common = {
        "hidden_layer_sizes": NETWORKS[options.network],
        "activation": "tanh",
        "random_state": options.seed,
    }
    results, log_evidence = {}, (np.nan, np.nan)
    if not options.baselines_only:
        sampled = MCMCRegressor(
            **common, sampler=Chains(init="prior", n_warmup=options.warmup), prior=1.0,
            n_chains=options.chains, n_draws=1,
            remove_symmetries=ModeWeights("uniform"), n_jobs=options.jobs,
        )  # fmt: skip
        results["chains"] = evaluate(sampled, split)
        if options.chains_only:
            return results, log_evidence
        sampled.set_params(
            sampler__warm_start=True, sampler__n_warmup=0, n_draws=options.draws,
            remove_symmetries=ModeWeights("evidence"),
        )  # fmt: skip
        results["evidence"] = evaluate(sampled, split)
        log_evidence = sampled.log_evidence_, sampled.log_evidence_std_error_
    laplace = LaplaceRegressor(
        **common,
        **options.fewer,
        optimizer=EvidenceAdam(
            curvature=CURVATURES[options.network], updates=Updates(keep_best=True)
        ),
    )
    ensemble = DeepEnsembleRegressor(
        **common, **options.fewer, prior=1.0, noise_std="learn", n_members=10
    )
    results["LA"] = evaluate(laplace, split)
    results["DE"] = evaluate(ensemble, split)
    return results, log_evidence


def print_row(name, results, log_evidence, paper):
    """One row of the table, and under it what was warned of."""
    cells = []
    for method in ("chains", "evidence", "LA", "DE"):
        cell = ""
        if method in results:
            r = results[method]
            cell = f"{r.mean:6.2f} ({r.deviation:.2f})" + ("*" if r.notes else " ")
        cells.append(cell)
    cells.insert(2, "{:.1f} ({:.2f})".format(*log_evidence) if "evidence" in results else "")
    printed = [f"{mean:6.2f} ({deviation:.2f})" for mean, deviation in paper]
    seconds = " ".join(f"{r.seconds:.0f}" for r in results.values())
    print(
        f"{name:13}" + "".join(f"{c:>16}" for c in cells) + "  |"
        f"{printed[0]:>14}{printed[1]:>16}{printed[2]:>14}  | {seconds}"
    )
    for method, result in results.items():
        for note in result.notes:
            print(textwrap.fill(f"* {method}: {note}", 110, initial_indent="    ",
                                subsequent_indent="      "))  # fmt: skip


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--network", choices=sorted(NETWORKS), default="f1")
    parser.add_argument("--data", nargs="+", default=list(PAPER["f1"]))
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--split", type=int, default=0, help="seed of the split")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fits")
    parser.add_argument("--chains-only", action="store_true", help="the first column alone")
    parser.add_argument("--baselines-only", action="store_true", help="LA and DE alone")
    parser.add_argument("--fast", action="store_true", help="one small data set, few iterations")
    options = parser.parse_args()
    if options.fast:
        options.data, options.chains, options.warmup, options.draws = ["sinusoidal"], 16, 20, 5
    options.fewer = {"max_iter": 20} if options.fast else {}
    print_chain_bound()
    print(
        f"{options.network}: {options.chains} chains, {options.warmup} warm-up iterations, split "
        f"{options.split}; * = fit warned"
    )
    print(
        f"{'':13}{'chains':>13} {'evidence':>16}{'log p(y)':>14}{'LA':>13}{'DE':>16}       |"
        f"{'paper, MCMC':>14}{'LA':>11}{'DE':>14}     | seconds of each"
    )
    for name in options.data:
        print_row(name, *run_methods(name, options), PAPER[options.network][name])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
