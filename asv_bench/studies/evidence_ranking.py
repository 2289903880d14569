"""Compare criteria that choose the width and activation of a network.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/evidence_ranking.py [--samples 3]
                                                                         [--only NAME ...]
    python asv_bench/studies/evidence_ranking.py --print

Samples of 100 rows of ten data sets train networks of 2, 3, 5, 8 and 20 tanh or relu units.
Criteria see training rows alone:

* ``evidence``: ``log_evidence_`` of `LaplaceRegressor` over three restarts, with symmetric copies;
* ``best mode``: the highest evidence of a mode, without copies;
* ``curvature``: ``evidence`` with the whole second derivative in place of the Gauss-Newton matrix
  where it is positive definite;
* ``leave-one-out``: approximate leave-one-out log density of the same fit;
* ``cross-validation``: log density of three held-out folds, with one restart each, which is as many
  restarts as the fit that the other criteria judge.

In the first sample of each data set ``nine restarts`` is the evidence of nine restarts, and
``chains`` that of `MCMCRegressor` for 2 and 3 tanh units, if it is defined. Three data sets also
have chains of 5 units, with 300 draws instead of 50 and three times the budget for the evidence.

Each is compared with the mean log density of up to 400 other rows by networks of three restarts.
The rank correlation is over the ten networks of a sample. The regret is the held-out density
of the best network less that of the network with the highest criterion, in nats per row. Results
are stored in ``evidence_ranking.json`` after every sample. The constants of `LaplaceRegressor`
were chosen on other tables.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.model_selection import KFold
from timing import current_commit

from skbayes_sym import GaussNewton, LaplaceRegressor, MCMCRegressor, ModeWeights, predictive
from skbayes_sym.base.stacking_weights import leave_one_out
from skbayes_sym.models.predictive_mixtures import NormalMixture

RESULTS = Path(__file__).with_suffix(".json")
WIDTHS = (2, 3, 5, 8, 20)
ACTIVATIONS = ("tanh", "relu")
N_TRAIN = 100
N_TEST = 400
N_RESTARTS = 3
N_FOLDS = 3
OUTLYING = ("bodyfat",)  # three rows with gross errors decide the mean held-out density
LONG_CHAINS = ("sine", "linear", "ridge")
CRITERIA = ("evidence", "best mode", "curvature", "leave-one-out", "cross-validation")

Rows = tuple[np.ndarray, np.ndarray]


def simulate(
    function: Callable[[np.ndarray], np.ndarray], n_columns: int, noise: float, seed: int
) -> Rows:
    """Draw rows of a function with normal noise, in units of the function's deviation."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (N_TRAIN + N_TEST, n_columns))
    mean = function(x)
    return x, mean + noise * mean.std() * rng.standard_normal(len(x))


def load_table(name: str, seed: int) -> Rows:
    """Return the numeric columns of complete rows in random order; the last is the target."""
    import pandas as pd

    path = Path(os.environ["SKBAYES_SYM_DATA"]) / "tables" / "regression" / f"{name}.csv.gz"
    values = pd.read_csv(path).select_dtypes("number").dropna().to_numpy(float)
    order = np.random.default_rng(seed).permutation(len(values))[: N_TRAIN + N_TEST]
    return values[order, :-1], values[order, -1]


DATA: dict[str, Callable[[int], Rows]] = {
    "sine": lambda seed: simulate(lambda x: np.sin(1.5 * x[:, 0]), 1, 0.3, seed),
    "surface": lambda seed: simulate(lambda x: np.sin(1.5 * x[:, 0]) * x[:, 1], 2, 0.2, seed),
    "bodyfat": lambda seed: load_table("bodyfat", seed),
    "steps": lambda seed: simulate(
        lambda x: np.sign(x[:, 0] - 1) + np.sign(x[:, 0] + 1), 1, 0.2, seed
    ),
    "stock": lambda seed: load_table("stock", seed),
    "ridge": lambda seed: simulate(lambda x: np.abs(x @ [0.6, -0.4, 0.2]), 3, 0.5, seed),
    "pwLinear": lambda seed: load_table("pwLinear", seed),
    "linear": lambda seed: simulate(lambda x: x @ [1.0, 0.5, 0.0, 0.0], 4, 0.7, seed),
    "sensory": lambda seed: load_table("sensory", seed),
    "skillcraft": lambda seed: load_table("skillcraft", seed),
}


def mean_leave_one_out(model: LaplaceRegressor, x: np.ndarray, y: np.ndarray) -> float:
    """Approximate leave-one-out log density of the training rows, nats per row."""
    shape = (model.n_modes_, len(y), 1)
    weights, loc, scale = (np.asarray(part) for part in predictive(model, x).components())
    noise = np.broadcast_to(np.reshape(model.noise_std_modes_, (model.n_modes_, -1, 1)), shape)
    noise_variance = torch.tensor(noise**2)
    variance = torch.as_tensor(scale.reshape(shape) ** 2) - noise_variance
    log_weights = torch.as_tensor(weights.reshape(-1)).log()
    mixture = NormalMixture(
        torch.as_tensor(loc.reshape(shape)), variance.clamp_min(0.0), noise_variance, log_weights
    )
    targets = torch.as_tensor(y)[:, None]
    held_out = leave_one_out(mixture, targets, torch.ones(len(y), dtype=torch.float64))
    return float(held_out.log_prob(targets).mean())


def cross_validate(x: np.ndarray, y: np.ndarray, width: int, activation: str) -> float:
    """Mean held-out log density of folds with one restart each, nats per row."""
    density = np.empty(len(y))
    for train, test in KFold(N_FOLDS, shuffle=True, random_state=0).split(x):
        model = make_model(width, activation, 1).fit(x[train], y[train])
        density[test] = model.log_predictive_density(x[test], y[test])
    return float(density.mean())


def make_model(width: int, activation: str, n_restarts: int) -> LaplaceRegressor:
    """Return an estimator that isn't fitted."""
    optimizer = GaussNewton(n_restarts)
    return LaplaceRegressor((width,), activation, optimizer=optimizer, random_state=0)


def correct_curvature(model: LaplaceRegressor, x: np.ndarray, y: np.ndarray) -> float:
    """Return the evidence with the whole second derivative instead of the Gauss-Newton matrix.

    With residuals r and noise s it is ``H = G + sum_n r_n f_n'' / s^2``, r = f - y. A mode where
    ``H`` isn't positive definite keeps the Gauss-Newton matrix G. The gaps of the copies stay.
    """
    rows = torch.as_tensor((x - model.x_mean_) / model.x_scale_)
    targets = torch.as_tensor((y - model.y_mean_) / model.y_scale_).reshape(-1, 1)
    modes = np.array(model.log_evidence_modes_)
    corrected = modes.copy()
    for k, (loc, factor) in enumerate(
        zip(model.posterior_.loc, model.posterior_.factor, strict=True)
    ):
        theta = torch.as_tensor(loc)
        noise_variance = (model.noise_std_modes_[k] / model.y_scale_) ** 2
        weight = (model.network_.forward(theta, rows) - targets) / float(noise_variance.item())
        residual_term = torch.func.hessian(
            lambda t, weight=weight: (weight * model.network_.forward(t, rows)).sum()
        )(theta)
        gauss_newton = torch.as_tensor(factor @ factor.T)
        eigenvalues = torch.linalg.eigvalsh(gauss_newton + residual_term)
        if eigenvalues.min() > 0.0:
            log_det = 2.0 * np.log(np.diagonal(factor)).sum()
            corrected[k] -= 0.5 * (float(eigenvalues.log().sum()) - log_det)
    change = np.logaddexp.reduce(corrected) - np.logaddexp.reduce(modes)
    return float(model.log_evidence_ + change)


def make_chains(width: int) -> MCMCRegressor:
    """Return chains of tanh networks, longer ones for more than three units."""
    if width <= 3:
        return MCMCRegressor((width,), random_state=0)
    weights = ModeWeights("evidence", budget=3.0)
    return MCMCRegressor((width,), n_draws=300, remove_symmetries=weights, random_state=0)


def evaluate(
    x: np.ndarray, y: np.ndarray, *, is_first: bool, has_long_chains: bool
) -> list[dict[str, Any]]:
    """Return criteria and held-out density of all networks."""
    train = slice(N_TRAIN)
    test = slice(N_TRAIN, None)
    networks = []
    for width, activation in product(WIDTHS, ACTIVATIONS):
        started = time.process_time()
        model = make_model(width, activation, N_RESTARTS).fit(x[train], y[train])
        fit_seconds = time.process_time() - started
        started = time.process_time()
        held_out = cross_validate(x[train], y[train], width, activation)
        validation_seconds = time.process_time() - started
        values = {
            "evidence": model.log_evidence_,
            "best mode": float(model.log_evidence_modes_.max()),
            "curvature": correct_curvature(model, x[train], y[train]),
            "leave-one-out": mean_leave_one_out(model, x[train], y[train]),
            "cross-validation": held_out,
            "held-out": float(model.log_predictive_density(x[test], y[test]).mean()),
        }
        if is_first:
            longer = make_model(width, activation, 3 * N_RESTARTS).fit(x[train], y[train])
            values["nine restarts"] = longer.log_evidence_
        if is_first and activation == "tanh" and (width <= 3 or (width == 5 and has_long_chains)):
            started = time.process_time()
            chains = make_chains(width).fit(x[train], y[train])
            values["chain_seconds"] = time.process_time() - started
            if np.isfinite(chains.log_evidence_):
                values["chains"] = chains.log_evidence_
                values["chain_std_error"] = chains.log_evidence_std_error_
        networks.append(
            {"width": width, "activation": activation}
            | {name: round(float(value), 4) for name, value in values.items()}
            | {"fit_seconds": round(fit_seconds, 2)}
            | {"validation_seconds": round(validation_seconds, 2)}
        )
    return networks


def load_results() -> dict[str, Any]:
    """Return the stored results, or an empty table."""
    if RESULTS.exists():
        stored: dict[str, Any] = json.loads(RESULTS.read_text())
        return stored
    date = datetime.now(UTC).date().isoformat()
    return {"date": date, "commit": current_commit(), "networks": []}


def run(names: list[str], n_samples: int) -> None:
    """Evaluate the samples that have no stored results."""
    results = load_results()
    done = {(network["seed"], network["data"]) for network in results["networks"]}
    for k, name in product(range(n_samples), names):
        seed = 2000 + k
        if (seed, name) in done:
            continue
        has_long_chains = name in LONG_CHAINS
        rows = DATA[name](seed)
        for network in evaluate(*rows, is_first=k == 0, has_long_chains=has_long_chains):
            results["networks"].append({"data": name, "seed": seed, **network})
        header = {key: value for key, value in results.items() if key != "networks"}
        lines = ",\n".join(json.dumps(network) for network in results["networks"])
        RESULTS.write_text(json.dumps(header)[:-1] + ', "networks": [\n' + lines + "\n]}\n")


def print_tables() -> None:
    """Print rank correlations and regrets of every criterion, and what the criteria choose."""
    import pandas as pd

    networks = pd.DataFrame(load_results()["networks"])
    rows = []
    for (seed, name, activation), group in networks.groupby(["seed", "data", "activation"]):
        rows += compare(group, {"choice": f"width, {activation}", "data": name, "seed": seed})
    for (seed, name), group in networks.groupby(["seed", "data"]):
        rows += compare(group, {"choice": "both", "data": name, "seed": seed})
    table = pd.DataFrame(rows)
    regret = table.pivot_table(index=["choice", "data"], columns="criterion", values="regret")
    print("regret, mean over samples\n", regret.round(3).to_string())

    # Samples of one data set aren't independent, so that standard errors are those over data sets.
    table = table[~table["data"].isin(OUTLYING)]
    for choice, part in table.groupby("choice"):
        means = part.groupby(["criterion", "data"])[["correlation", "regret"]].mean()
        by_criterion = means.groupby("criterion")
        summary = by_criterion.mean().join(by_criterion.sem(), rsuffix="_se")
        summary["largest"] = part.groupby("criterion")["regret"].max()
        widths = part.groupby(["criterion", "width"]).size().unstack(fill_value=0)
        print(f"\n{choice}, without {OUTLYING}\n", summary.join(widths).round(3).to_string())
        by_data = means["regret"].unstack("criterion")
        for other in ("evidence", "leave-one-out", "cross-validation"):
            difference = by_data[other] - by_data["best mode"]
            print(f"{other} less best mode: {difference.mean():.3f} +- {difference.sem():.3f}")

    # Causes of disagreement: what copies, curvature, missed modes and chains change.
    for name, first, second in (
        ("copies", "evidence", "best mode"),
        ("curvature", "curvature", "evidence"),
        ("restarts", "nine restarts", "evidence"),
        ("chains", "chains", "evidence"),
    ):
        change = (networks[first] - networks[second]).groupby(
            [networks["activation"], networks["width"]]
        )
        print(f"\n{name}\n", change.agg(["mean", "std", "count"]).round(1).to_string())
    print(networks[["fit_seconds", "validation_seconds"]].sum())
    known = networks.dropna(subset=["chains"])
    print(known[["data", "width", "evidence", "chains", "held-out"]].to_string())
    print("seconds of chains\n", networks.groupby("width")["chain_seconds"].mean())


def compare(group: Any, labels: dict[str, Any]) -> list[dict[str, Any]]:
    """Rank correlation and regret of every criterion on some networks of one sample.

    Parameters
    ----------
    group : DataFrame
        The networks.
    labels : dict
        Further columns of the result.

    Returns
    -------
    list of dict
        A row for each criterion, for each width without a choice, and for the best network.
    """
    held_out = group["held-out"].to_numpy()
    widths = group["width"].to_numpy()
    rows = []
    for criterion in (*CRITERIA, "nine restarts"):
        values = group[criterion].to_numpy()
        if np.isfinite(values).all():
            chosen = values.argmax()
            scores = {
                "correlation": float(spearmanr(values, held_out).statistic),
                "regret": float(held_out.max() - held_out[chosen]),
                "width": widths[chosen],
            }
            rows.append(labels | {"criterion": criterion} | scores)
    for width in WIDTHS:
        regret = float(held_out.max() - held_out[widths == width].mean())
        rows.append(labels | {"criterion": f"{width} units", "regret": regret, "width": width})
    best = {"criterion": "held-out", "regret": 0.0, "width": widths[held_out.argmax()]}
    return [*rows, labels | best]


def main() -> None:
    """Evaluate, or print tables of the stored results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--print", action="store_true", help="only print the stored results")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.print:
        run(args.only, args.samples)
    print_tables()


if __name__ == "__main__":
    main()
