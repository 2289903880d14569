"""Evidence of ten relu networks before and after hidden units are balanced.

    python asv_bench/studies/rescaled_units.py [--problems 10] [--first 0]

The networks are those of ``evidence_and_symmetry.py --activation relu``: two or three units under
an N(0, 1) prior and a known noise. ``LaplaceRegressor`` stops after 12 steps or at its default, and
reports the evidence of its iterate as it is or of the balanced iterate. ``orbit integral`` replaces
the normal's straight line along each unit's rescaling curve by the integral over the curve, at the
balanced default modes. ``rescaled`` is the standard deviation of the log evidence of the best mode
over 50 random rescalings by exp(N(0, 0.5^2)) per unit, all of which are the same function; after
balancing it is zero. The chains' evidence is the reference. Results are written to
``rescaled_units.json``.
"""

import argparse
import json
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_and_symmetry import Problem, table
from timing import current_commit

from skbayes_sym import LaplaceRegressor, MCMCRegressor
from skbayes_sym.laplace import mode_finding
from skbayes_sym.laplace.balancing import balance_weights
from skbayes_sym.models.networks.mlp import MLP

RESULTS = Path(__file__).with_suffix(".json")
EARLY_STEPS = 12
COLUMNS = ("early", "early, balanced", "default", "default, balanced", "orbit integral")


def keep_weights(network: MLP, theta: torch.Tensor, precision: torch.Tensor) -> torch.Tensor:
    """Return the weights as the optimiser left them."""
    del network, precision
    return theta


def fit_laplace(
    x: np.ndarray, y: np.ndarray, arguments: dict[str, Any], balance: Callable[..., torch.Tensor]
) -> LaplaceRegressor:
    """Fit with another function in place of `balance_weights`."""
    mode_finding.balance_weights = balance
    try:
        return LaplaceRegressor(**arguments).fit(x, y)
    finally:
        mode_finding.balance_weights = balance_weights


def rescaling_deviation(problem: Problem, theta: torch.Tensor, noise: float) -> float:
    """Standard deviation of the log evidence of one mode over random rescalings of its units."""
    rng = np.random.default_rng(0)
    network = problem.network
    values = []
    for _ in range(50):
        moved = theta.clone()
        (weight, bias), (outgoing, _) = network.layers(moved)
        scale = torch.as_tensor(np.exp(0.5 * rng.standard_normal(len(bias))))
        weight *= scale.unsqueeze(-1)
        bias *= scale
        outgoing /= scale
        jacobian = torch.func.jacrev(problem.outputs)(moved)
        precision = jacobian.T @ jacobian / noise**2 + torch.eye(problem.p, dtype=torch.float64)
        values.append(float(problem.log_joint(moved) - 0.5 * torch.logdet(precision)))
    return float(np.std(values))


def evaluate(seed: int) -> dict[str, Any]:
    """Return all evidences of one problem, in nats."""
    x, y, noise, units = table(seed)
    common = {
        "hidden_layer_sizes": (units,), "activation": "relu", "noise_std": noise, "prior": 1.0,
        "standardize": False, "random_state": seed,
    }  # fmt: skip
    early = common | {"max_iter": EARLY_STEPS}
    chains = MCMCRegressor(**common).fit(x, y)
    default = fit_laplace(x, y, common, balance_weights)
    problem = Problem(x, y, noise, default)
    modes = [torch.tensor(theta) for theta in default.posterior_.loc]
    precisions = [torch.tensor(factor @ factor.T) for factor in default.posterior_.factor]
    best = int(np.argmax(default.log_evidence_modes_))
    return {
        "seed": seed,
        "rows": len(x),
        "units": units,
        "chains": chains.log_evidence_,
        "chains_std_error": chains.log_evidence_std_error_,
        "early": fit_laplace(x, y, early, keep_weights).log_evidence_,
        "early, balanced": fit_laplace(x, y, early, balance_weights).log_evidence_,
        "default": fit_laplace(x, y, common, keep_weights).log_evidence_,
        "default, balanced": default.log_evidence_,
        "orbit integral": problem.with_copies(modes, precisions),
        "rescaled": rescaling_deviation(problem, modes[best], noise),
    }


def main() -> None:
    """Print one line per network and the errors against the chains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for seed in range(args.first, args.first + args.problems):
        values = evaluate(seed)
        # The chains of a problem may determine no evidence.
        known = {k: None if np.isnan(v) else round(float(v), 3) for k, v in values.items()}
        rows.append(known)
        print(rows[-1], flush=True)
    header = {"date": datetime.now(UTC).date().isoformat(), "commit": current_commit()}
    lines = ",\n".join(json.dumps(row) for row in rows)
    RESULTS.write_text(json.dumps(header)[:-1] + ', "networks": [\n' + lines + "\n]}\n")
    compared = [row for row in rows if row["chains"] is not None]
    print(f"{len(compared)} of {len(rows)} networks have an evidence of chains")
    for column in COLUMNS:
        error = np.array([row[column] - row["chains"] for row in compared])
        print(
            f"{column:20} mean {error.mean():6.2f}  root mean square "
            f"{np.sqrt(np.mean(error**2)):5.2f}  largest {np.abs(error).max():5.2f}"
        )
    moved = np.array([row["early"] - row["early, balanced"] for row in rows])
    print(f"early less balanced: largest {np.abs(moved).max():.2f}")
    print(f"rescaled: mean standard deviation {np.mean([row['rescaled'] for row in rows]):.2f}")


if __name__ == "__main__":
    main()
