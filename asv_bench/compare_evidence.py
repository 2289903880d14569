"""What weighing modes by evidence comes to over seeds: weights, evidences, effective draws.

    python asv_bench/compare_evidence.py [--seeds 10] [--problems sinusoidal airfoil energy]
                                         [--inits prior laplace]

Three tanh units under an N(0, 1) prior, as in `compare_samplers`, whose splits, counted chains and
effective draws these are: bulk ESS of the prediction, median over test rows, over the chains within
15 nats of the best mode that any seed found. Printed are the share of fits whose modes kept their
weights, the share with an evidence, and effective draws per CPU-second of the whole fit, median and
worst over the seeds.
"""

import argparse
import warnings

import numpy as np
import torch
from compare_samplers import (
    BEST_WITHIN,
    WIDTH,
    Draws,
    Outcome,
    Problem,
    cpu_seconds,
    effective_draws,
    load_problem,
    look,
    lppd,
)
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from skbayes_sym import MCMCRegressor


def one_fit(problem: Problem, init: str, seed: int) -> tuple[Outcome, bool, bool]:
    """What came, whether modes have weights, and whether there is an evidence."""
    model = MCMCRegressor(
        (WIDTH,), "tanh", init=init, prior_scale=1.0, n_chains=64, n_warmup=300, n_draws=200,
        mode_weights="evidence", dtype="float32", random_state=seed,
    )  # fmt: skip
    _, seconds = cpu_seconds(lambda: model.fit(problem.x, problem.y))
    noise_std = model.noise_std_samples_[..., 0] / float(model.y_scale_[0])
    theta, weights = model.samples_.astype(float), model.chain_weights_
    found = look(Draws(theta, noise_std, weights, seconds, seconds), problem)
    weighed = any(np.isfinite(mode.weight) for mode in model.modes_)
    return found, weighed, bool(np.isfinite(model.log_evidence_))


def compare(problem: Problem, init: str, n_seeds: int) -> None:
    """One line of the table."""
    fits = [one_fit(problem, init, seed) for seed in range(n_seeds)]
    best = max(found.height.max() for found, _, _ in fits)
    rates, densities = [], []
    for found, _, _ in fits:
        inside = found.height > best - BEST_WITHIN
        rates.append(effective_draws(found, inside) / found.draws.cpu_fit)
        densities.append(lppd(found, np.ones_like(inside), problem))
    _, weighed, known = zip(*fits, strict=True)
    seconds = np.median([found.draws.cpu_fit for found, _, _ in fits])
    print(
        f"{problem.name:12}{init:9}{n_seeds:6}{np.mean(weighed):9.2f}{np.mean(known):10.2f}"
        f"{np.median(rates):9.1f}{np.min(rates):9.1f}{np.mean(densities):9.3f}{seconds:9.1f}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--problems", nargs="+", default=["sinusoidal", "airfoil", "energy"])
    parser.add_argument("--inits", nargs="+", default=["prior", "laplace"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = ("seeds", "weights", "evidence", "ESS/s", "worst", "LPPD", "CPU s")
    widths = (6, 9, 10, 9, 9, 9, 9)
    titles = "".join(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True))
    print(f"{'problem':12}{'init':9}{titles}")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name in options.problems:
            for init in options.inits:
                compare(load_problem(name), init, options.seeds)


if __name__ == "__main__":
    main()
