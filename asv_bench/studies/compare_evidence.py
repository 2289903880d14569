"""What weighing modes by evidence comes to over seeds: weights, evidences, effective draws.

    python asv_bench/studies/compare_evidence.py [--seeds 10] [--first 0]
                                         [--problems sinusoidal airfoil energy]
                                         [--peers sequential vectorized parallel]

Three tanh units under an N(0, 1) prior, as in `compare_samplers`, whose splits, counted chains,
effective draws and NumPyro arms these are. Our chains start as they do by default, at modes that
Gauss-Newton steps find; NumPyro's as they do by default. Compared is the bulk ESS of the
prediction, median over test rows, over the chains within 15 nats of the best mode that is known,
per CPU-second of the whole fit (of NumPyro without what compiling takes). All arms of a seed take
turns. Printed are a line a seed; at the end the share of fits whose modes kept their weights, the
share with an evidence, and effective draws per CPU-second beside the best of NumPyro's ways in the
same seed: median and worst.
"""

import argparse
import warnings
from typing import NamedTuple

import numpy as np
import torch
from compare_samplers import (
    BEST_WITHIN,
    TARGETS,
    WIDTH,
    Draws,
    Outcome,
    Plan,
    Problem,
    Run,
    effective_draws,
    load_problem,
    look,
    lppd,
    numpyro,
)
from ratios import Ratio, Round, Source
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from timing import cpu_seconds

from skbayes_sym import Chains, MCMCRegressor, ModeWeights

OURS, THEIRS = Plan(64, 300, 200), Plan(16, 300, 200)
PROBLEMS = ("sinusoidal", "airfoil", "energy")
PEERS = ("sequential", "vectorized", "parallel")
# That can be NumPyro's best on one core: over whose trees differ less chains at once are close.
BEST_PEERS = {"sinusoidal": PEERS[:2], "airfoil": PEERS[:1], "energy": PEERS[:1]}
# Mean log posterior of the best mode that any run has found, nats.
BEST = {"sinusoidal": -np.inf, "airfoil": -np.inf, "energy": -np.inf}


class Seed(NamedTuple):
    """What one seed came to."""

    weighed: bool  # whether modes have weights
    known: bool  # whether there is an evidence
    rate: float  # effective draws a CPU-second
    lppd: float
    seconds: float
    peers: dict[str, float]  # their rates
    best: float  # mean log posterior of the best chain, nats

    @property
    def ratio(self) -> float:
        """To the best of the peers; inf where none of their chains reached the best mode."""
        theirs = max(self.peers.values(), default=float("nan"))
        return self.rate / theirs if theirs else float("inf")


def fit(problem: Problem, seed: int) -> tuple[Outcome, bool, bool]:
    """What came, whether modes have weights, and whether there is an evidence."""
    model = MCMCRegressor(
        (WIDTH,), "tanh", prior=1.0, n_chains=OURS.n_chains, sampler=Chains(n_warmup=OURS.n_warmup),
        n_draws=OURS.n_draws, remove_symmetries=ModeWeights("evidence"), random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, seconds = cpu_seconds(lambda: model.fit(problem.x.astype(np.float32), problem.y))
    noise_std = model.noise_std_samples_[..., 0] / float(model.y_scale_[0])
    theta, weights = model.samples_.astype(float), model.chain_weights_
    found = look(Draws(theta, noise_std, weights, seconds, seconds), problem)
    weighed = all(np.isfinite(mode.weight) for mode in model.modes_)
    return found, weighed, bool(np.isfinite(model.log_evidence_))


def prepare_arms(problem: Problem, peers: tuple[str, ...] = PEERS) -> dict[str, Run]:
    """Compile the peers; ours loads libraries."""
    fit(problem._replace(x=problem.x[:50], y=problem.y[:50]), 0)
    return {name: numpyro(THEIRS, name)(problem) for name in peers}


def one_seed(problem: Problem, peers: dict[str, Run], seed: int) -> Seed:
    """Every arm once."""
    ours, weighed, known = fit(problem, seed)
    theirs = {name: look(run(seed), problem) for name, run in peers.items()}
    heights = {name: found.height.max() for name, found in {"ours": ours, **theirs}.items()}
    best = max(BEST[problem.name], *heights.values())

    def rate(found: Outcome) -> float:
        inside = found.height > best - BEST_WITHIN
        return effective_draws(found, inside) / found.draws.cpu_fit

    return Seed(
        weighed, known, rate(ours), lppd(ours, np.full(len(ours.height), True), problem),
        ours.draws.cpu_fit, {name: rate(found) for name, found in theirs.items()}, best,
    )  # fmt: skip


def show(name: str, seeds: list[Seed]) -> None:
    """The last line of a problem."""
    rates, ratios = (np.array([getattr(s, k) for s in seeds]) for k in ("rate", "ratio"))
    worst, target = ratios.min(), TARGETS.get(name, 1.0)
    print(
        f"{name}, {len(seeds)} seeds: weights {np.mean([s.weighed for s in seeds]):.2f}, evidence "
        f"{np.mean([s.known for s in seeds]):.2f}, ESS/s {np.median(rates):.1f}, worst "
        f"{rates.min():.1f}, LPPD {np.mean([s.lppd for s in seeds]):.3f}, "
        f"{np.median([s.seconds for s in seeds]):.1f} CPU s; ours / best NumPyro "
        f"{np.median(ratios):.2f}, worst {worst:.2f} (target >= {target:g} in the worst)"
        + ("" if not worst < target else " MISSED"),
        flush=True,
    )


def _source(name: str) -> Source:
    faster, weighed, known = (
        "effective draws per CPU-second / NumPyro's NUTS", "share of fits with weights of modes",
        "share of fits with an evidence",
    )  # fmt: skip

    def prepare() -> Round:
        problem = load_problem(name)
        peers = prepare_arms(problem, BEST_PEERS[name])

        def measure(seed: int) -> dict[str, float]:
            found = one_seed(problem, peers, seed)
            return {faster: found.ratio, weighed: found.weighed, known: found.known}

        return measure

    ratios = (
        Ratio(faster, TARGETS.get(name, 1.0), at_most=False, by="worst"),
        *(Ratio(share, at_most=False, by="mean") for share in (weighed, known)),
    )
    return Source(name, f"MCMC with three units, {name}", ratios, prepare)


SOURCES = tuple(_source(name) for name in PROBLEMS)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for name in options.problems:
            problem, seeds = load_problem(name), []
            peers = prepare_arms(problem, tuple(options.peers))
            for seed in range(options.first, options.first + options.seeds):
                found = one_seed(problem, peers, seed)
                seeds.append(found)
                theirs = ", ".join(f"{k} {rate:.1f}" for k, rate in found.peers.items())
                print(
                    f"{name} seed {seed}: weights {found.weighed:d}, evidence {found.known:d}, "
                    f"ESS/s {found.rate:.1f}, LPPD {found.lppd:.3f}, {found.seconds:.1f} CPU s, "
                    f"best mode {found.best:.1f}; {theirs}; ratio {found.ratio:.2f}",
                    flush=True,
                )
            show(name, seeds)


if __name__ == "__main__":
    main()
