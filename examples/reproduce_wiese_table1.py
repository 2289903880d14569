"""
Table 1 of Wiese et al. (2023): sampling, Laplace and deep ensembles
====================================================================

Log pointwise predictive density (LPPD) on test rows for the paper's networks, f1 (one hidden layer
of 3 tanh units) and f2 (three of 16), on nine of its ten data sets. Columns:

- chains: the paper's protocol, one draw from each of many chains, all counting alike. It weighs a
  mode by how many starts fall into its basin, not by its posterior mass;
- evidence: this package's default, chains shared out over the modes by their evidence. On airfoil
  one mode in the reach of few chains has all the mass;
- log p(y): the log evidence of the model, nats, and its standard error (nan: can't be trusted, and
  ``fit`` says why; the column before is then one vote a chain too);
- DE: ten maximum-a-posteriori networks, the paper's deep ensemble;
- the paper's own figures for sampling and DE.

LPPD is the mean over test rows of ``log mean_s p(y | x, theta_s)``, by logsumexp, in units of the
standardised target; "+-" is its standard deviation over test rows, as in the paper (not an error of
the mean). Rows differ from the paper's because the splits do and because

- the data are standardised by the training rows (the paper's by all rows, test rows included);
- no test row is dropped (the paper's code leaves out rows whose density underflows);
- its tenth set, Wine (LPPD 9.67), isn't here: that figure needs a noise of 2.5e-5 standard
  deviations of the target, which no real target has.

Run ``python reproduce_wiese_table1.py`` for f1, with ``--network f2`` for f2, ``--fast`` for a
short trial; ``--jobs`` processes share the chains. The environment variable ``SKBAYES_SYM_DATA``
names the folder of the data.
"""

import argparse
import time
import warnings
from typing import NamedTuple

from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

from skbayes_sym import DeepEnsembleRegressor, MCMCRegressor
from skbayes_sym.datasets import load_dataset

NETWORKS = {"f1": (3,), "f2": (16, 16, 16)}


class Paper(NamedTuple):
    """The paper's figures for sampling and deep ensembles, mean and deviation over test rows."""

    mcmc: tuple[float, float]
    ensemble: tuple[float, float]


PAPER = {
    "f1": {
        "sinusoidal": Paper((-0.53, 0.50), (-0.58, 0.63)),
        "izmailov": Paper((0.79, 0.50), (0.56, 0.57)),
        "regression2d": Paper((0.64, 0.72), (-1.46, 0.47)),
        "airfoil": Paper((-0.74, 0.71), (-1.62, 0.44)),
        "concrete": Paper((-0.41, 0.77), (-1.59, 0.49)),
        "diabetes": Paper((-1.20, 0.69), (-1.47, 0.63)),
        "energy": Paper((0.92, 0.44), (-1.76, 0.29)),
        "forest_fire": Paper((-1.37, 0.69), (-1.60, 0.59)),
        "yacht": Paper((1.90, 1.26), (-1.14, 1.08)),
    },
    "f2": {
        "sinusoidal": Paper((-0.59, 0.63), (-2.13, 0.19)),
        "izmailov": Paper((0.91, 0.78), (-2.02, 0.16)),
        "regression2d": Paper((0.95, 0.57), (-2.20, 0.17)),
        "airfoil": Paper((0.92, 0.92), (-2.17, 0.26)),
        "concrete": Paper((0.26, 0.95), (-2.03, 0.21)),
        "diabetes": Paper((-1.18, 0.78), (-2.09, 0.40)),
        "energy": Paper((2.07, 5.67), (-1.99, 0.20)),
        "forest_fire": Paper((-1.43, 4.54), (-2.20, 0.23)),
        "yacht": Paper((3.31, 1.67), (-2.18, 0.26)),
    },
}


class Fit(NamedTuple):
    """A fitted model and the seconds it took."""

    model: object
    seconds: float
    warned: bool


def load_split(name, seed):
    """Training and test rows, standardised by the training rows."""
    X, y = load_dataset(name, return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=seed)
    mean, scale = y.mean(), y.std()
    return X, (y - mean) / scale, X_test, (y_test - mean) / scale


def timed_fit(model, X, y):
    """Fit, remembering whether there was a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        start = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - start
    return Fit(model, seconds, any(w.category is ConvergenceWarning for w in caught))


def lppd(fit, X, y):
    """Mean over test rows and its deviation, as one cell of the table."""
    density = fit.model.log_predictive_density(X, y)
    return f"{density.mean():6.2f} ({density.std():.2f})" + ("*" if fit.warned else " ")


def run_row(name, options):
    """All methods on one data set."""
    X, y, X_test, y_test = load_split(name, options.split)
    common = {
        "hidden_layer_sizes": NETWORKS[options.network],
        "activation": "tanh",
        "random_state": options.seed,
    }
    sampled = {"n_chains": options.chains, "n_warmup": options.warmup, "n_jobs": options.jobs}
    chains = MCMCRegressor(**common, **sampled, n_draws=1, mode_weights="chains")
    evidence = MCMCRegressor(**common, **sampled, n_draws=options.draws)
    fits = [
        timed_fit(model, X, y)
        for model in (chains, evidence, DeepEnsembleRegressor(**common, n_members=10))
    ]
    log_z = fits[1].model.log_evidence_, fits[1].model.log_evidence_std_error_
    cells = [lppd(fit, X_test, y_test) for fit in fits]
    paper = PAPER[options.network][name]
    printed = [f"{mean:6.2f} ({sd:.2f})" for mean, sd in paper]
    seconds = " ".join(f"{fit.seconds:5.0f}" for fit in fits)
    print(
        f"{name:13}{cells[0]:>16}{cells[1]:>16}{log_z[0]:10.1f} ({log_z[1]:.2f})"
        f"{cells[2]:>17}{printed[0]:>17}{printed[1]:>15}   {seconds}",
        flush=True,
    )


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
    parser.add_argument("--fast", action="store_true", help="one small data set, few iterations")
    options = parser.parse_args()
    if options.fast:
        options.data, options.chains, options.warmup, options.draws = ["sinusoidal"], 16, 150, 20
    print(
        f"{options.network}: {options.chains} chains, {options.warmup} warm-up iterations; "
        "* = fit warned"
    )
    print(
        f"{'':13}{'chains':>14}  {'evidence':>14}  {'log p(y)':>14}   {'DE':>12}  "
        f"{'paper, MCMC':>17}{'paper, DE':>15}   seconds"
    )
    for name in options.data:
        run_row(name, options)


if __name__ == "__main__":
    main()
