"""Sampling speed beside NumPyro: effective draws of the prediction per CPU-second.

    python asv_bench/studies/compare_samplers.py [--rounds 3] [--problems sinusoidal airfoil]
    python asv_bench/studies/compare_samplers.py --paper-setting

CPU time of one process pinned to one core; the arms take turns within a round, so that a drifting
machine meets them alike. NumPyro runs the same model (float32, one hidden layer of three tanh
units, N(0, 1) prior on all weights, half-normal(1) on the noise) by NUTS at its default settings in
each of its three ways to run chains, and once more with ``dense_mass=True``. Its compilation
isn't counted, nor what every `MCMC.run` spends on tracing: warm-up and draws of all chains are one
compiled program each (`jax.lax.map`, `jax.vmap` or `jax.pmap` over `MCMC`), made before the first
round. Nothing is compiled for ours; one fit before the first round loads libraries.

Two figures an arm. "fit": everything `fit` does, warm-up, search for modes and evidence included.
"drawing": draws alone, for a user whose draws outlast the warm-up; ours by the difference between
a fit with four times the draws and the fit, a third of it: all that further draws cost.

An effective draw counts towards the answer: bulk ESS of the prediction, median over test points,
over the chains that have reached the best mode seen by any arm (mean log posterior within 15 nats
of it). Chains elsewhere are paid for and count nothing: the posterior has no mass there (airfoil:
e^-97), and with them the test log density (LPPD) is another one. The LPPD printed is that of the
counted chains, so that the ratio is one at equal LPPD; that of all chains stands beside it.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import numpy as np
import torch
from numpy.typing import NDArray
from paper_tables import load_dataset
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from timing import cpu_seconds

from skbayes_sym import Chains, MCMCRegressor, ModeWeights
from skbayes_sym.numerics.diagnostics import bulk_ess

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
WIDTH = 3
TARGETS = {"sinusoidal": 1.5, "airfoil": 3.0}
BEST_WITHIN = 15.0  # nats of mean log posterior
MORE = 4  # times the draws, for what further draws cost


class Problem(NamedTuple):
    """Standardised by the training rows."""

    name: str
    x: Array
    y: Array
    x_test: Array
    y_test: Array


class Plan(NamedTuple):
    """Iterations."""

    n_chains: int
    n_warmup: int
    n_draws: int


class Draws(NamedTuple):
    """What an arm returns."""

    theta: Array  # (chains, draws, P): W1, b1, W2, b2
    noise_std: Array  # (chains, draws)
    weights: Array  # (chains,)
    cpu_fit: float  # CPU seconds of everything
    cpu_drawing: float  # of the draws alone


class Outcome(NamedTuple):
    """One arm in one round."""

    draws: Draws
    predictions: Array  # (chains, draws, test rows)
    height: Array  # (chains,), mean log posterior


Run = Callable[[int], Draws]  # by seed
Arm = Callable[[Problem], Run]  # compiles


def load_problem(name: str) -> Problem:
    """The split of the reference figures."""
    X, y = load_dataset(name, return_X_y=True)
    x, x_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
    mean, scale = x.mean(0), x.std(0)
    y_mean, y_scale = y.mean(), y.std()
    return Problem(
        name, (x - mean) / scale, (y - y_mean) / y_scale, (x_test - mean) / scale,
        (y_test - y_mean) / y_scale,
    )  # fmt: skip


# --- the arms -------------------------------------------------------------------------------------


def ours(plan: Plan) -> Arm:
    """The estimator as it comes."""

    def fit(problem: Problem, seed: int, n_draws: int) -> MCMCRegressor:
        model = MCMCRegressor(
            (WIDTH,), "tanh", sampler=Chains(init="prior", n_warmup=plan.n_warmup), prior=1.0,
            n_chains=plan.n_chains, n_draws=n_draws,
            random_state=seed,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(problem.x.astype(np.float32), problem.y)

    def prepare(problem: Problem) -> Run:
        fit(problem, 10**6, 10)

        def run(seed: int) -> Draws:
            model, once = cpu_seconds(lambda: fit(problem, seed, plan.n_draws))
            _, longer = cpu_seconds(lambda: fit(problem, seed, MORE * plan.n_draws))
            # The estimator scales the targets once more, by their rounding error.
            noise_std = model.noise_std_samples_[..., 0] / float(model.y_scale_[0])
            theta, drawing = model.samples_.astype(float), (longer - once) / (MORE - 1)
            return Draws(theta, noise_std, model.chain_weights_, once, drawing)

        return run

    return prepare


def numpyro(plan: Plan, method: str, dense: bool = False) -> Arm:
    """NUTS at NumPyro's default settings, compiled as a whole."""
    import jax
    from numpyro import distributions as dist
    from numpyro import plate, sample, set_host_device_count
    from numpyro.infer import MCMC, NUTS

    set_host_device_count(plan.n_chains)
    over_chains: dict[str, Callable[..., Any]] = {
        "sequential": lambda f: jax.jit(lambda inputs: jax.lax.map(f, inputs)),
        "vectorized": lambda f: jax.jit(jax.vmap(f)),
        "parallel": jax.pmap,
    }

    def model(x: Any, y: Any) -> None:
        normal = dist.Normal(0.0, 1.0)
        w1 = sample("w1", normal.expand((WIDTH, x.shape[1])).to_event(2))
        b1 = sample("b1", normal.expand((WIDTH,)).to_event(1))
        w2 = sample("w2", normal.expand((1, WIDTH)).to_event(2))
        b2 = sample("b2", normal.expand((1,)).to_event(1))
        sigma = sample("sigma", dist.HalfNormal(1.0))
        mean = jax.numpy.tanh(x @ w1.T + b1) @ w2[0] + b2[0]
        with plate("rows", x.shape[0]):
            sample("y", dist.Normal(mean, sigma), obs=y)

    def make() -> Any:
        return MCMC(
            NUTS(model, dense_mass=dense), num_warmup=plan.n_warmup, num_samples=plan.n_draws,
            progress_bar=False,
        )  # fmt: skip

    def prepare(problem: Problem) -> Run:
        data = problem.x.astype("f4"), problem.y.astype("f4")

        def warm_up(key: Any) -> Any:
            chain = make()
            chain.warmup(key, *data)
            return chain.last_state

        def draw(state: Any) -> Any:
            chain = make()
            chain.post_warmup_state = state
            chain.run(state.rng_key, *data)
            return chain.get_samples()

        def keys(seed: int) -> Any:
            return jax.random.split(jax.random.PRNGKey(seed), plan.n_chains)

        first = over_chains[method](warm_up).lower(keys(0)).compile()
        second = over_chains[method](draw)
        second = second.lower(first(keys(10**6))).compile()

        def run(seed: int) -> Draws:
            warm, start = cpu_seconds(lambda: jax.block_until_ready(first(keys(seed))))
            got, drawing = cpu_seconds(lambda: jax.block_until_ready(second(warm)))
            parts = [np.asarray(got[k], dtype=float) for k in ("w1", "b1", "w2", "b2")]
            flat = [p.reshape(plan.n_chains, plan.n_draws, -1) for p in parts]
            noise_std = np.asarray(got["sigma"], dtype=float)
            theta, weights = np.concatenate(flat, axis=-1), np.ones(plan.n_chains)
            return Draws(theta, noise_std, weights, start + drawing, drawing)

        return run

    return prepare


# --- what they are worth --------------------------------------------------------------------------


def forward(theta: Array, x: Array) -> Array:
    """Outputs of the network, (..., rows)."""
    n_in = x.shape[1]
    w1 = theta[..., : WIDTH * n_in].reshape(*theta.shape[:-1], WIDTH, n_in)
    b1, w2, b2 = np.split(theta[..., WIDTH * n_in :], [WIDTH, 2 * WIDTH], axis=-1)
    hidden = np.tanh(w1 @ x.T + b1[..., None])
    return np.einsum("...h,...hn->...n", w2, hidden) + b2


def log_posterior(draws: Draws, problem: Problem) -> Array:
    """Unnormalised, of the weights and the noise itself, (chains, draws) nats."""
    sigma, found = draws.noise_std, []
    for theta in draws.theta:  # chain by chain: memory
        found.append(((problem.y - forward(theta, problem.x)) ** 2).sum(-1))
    log_lik = -0.5 * np.array(found) / sigma**2 - len(problem.y) * np.log(sigma)
    return log_lik - 0.5 * (draws.theta**2).sum(-1) - 0.5 * sigma**2


def look(draws: Draws, problem: Problem) -> Outcome:
    """What came."""
    height = log_posterior(draws, problem).mean(axis=1)
    return Outcome(draws, forward(draws.theta, problem.x_test), height)


def lppd(outcome: Outcome, chains: Mask, problem: Problem) -> float:
    """Mean log predictive density of the test rows, standardised units."""
    if not chains.any():
        return float("nan")
    f, sigma = outcome.predictions[chains], outcome.draws.noise_std[chains][..., None]
    log_p = -0.5 * ((problem.y_test - f) / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
    weights = outcome.draws.weights[chains][:, None, None]
    mixed = logsumexp(log_p, axis=(0, 1), b=weights / weights.sum() / log_p.shape[1])
    return float(mixed.mean())


def effective_draws(outcome: Outcome, chains: Mask) -> float:
    """Bulk ESS of the prediction over these chains, median over test rows."""
    if not chains.any():
        return 0.0
    weights = outcome.draws.weights[chains]
    return float(np.median(bulk_ess(outcome.predictions[chains], weights)))


def compare(problem: Problem, arms: dict[str, Arm], n_rounds: int) -> None:
    """Run all arms in turn and print the table."""
    runs = {name: arm(problem) for name, arm in arms.items()}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in arms}
    for seed in range(n_rounds):
        for name, run in runs.items():
            outcomes[name].append(look(run(seed), problem))
    best = max(o.height.max() for found in outcomes.values() for o in found)
    print(f"\n{problem.name}, {len(problem.y)} training rows (medians over {n_rounds} rounds)")
    heads = (
        "chains", "in mode", "LPPD there", "LPPD all", "ESS", "fit CPU s", "drawing", "ESS/s fit",
        "drawing",
    )  # fmt: skip
    print(f"{'':24}" + "".join(f"{h:>11}" for h in heads) + "   ESS/s fit, drawing by round")
    rates = {}
    for name, found in outcomes.items():
        rates[name] = _print_row(name, found, best, problem)
    for phase, label in enumerate(("fit", "drawing")):
        _print_ratio(problem.name, label, {name: rate[:, phase] for name, rate in rates.items()})


def _print_row(name: str, found: list[Outcome], best: float, problem: Problem) -> Array:
    """One arm's line; effective draws a CPU-second, (rounds, 2)."""
    inside = [o.height > best - BEST_WITHIN for o in found]
    ess = [effective_draws(o, c) for o, c in zip(found, inside, strict=True)]
    seconds = np.array([(o.draws.cpu_fit, o.draws.cpu_drawing) for o in found])
    rate = np.array(ess)[:, None] / seconds
    row = (
        len(found[0].height),
        np.mean([c.sum() for c in inside]),
        np.nanmean([lppd(o, c, problem) for o, c in zip(found, inside, strict=True)]),
        np.mean([lppd(o, np.ones_like(c), problem) for o, c in zip(found, inside, strict=True)]),
        np.median(ess),
        *np.median(seconds, axis=0),
        *np.median(rate, axis=0),
    )
    by_round = "; ".join(", ".join(f"{r:.0f}" for r in column) for column in rate.T)
    print(f"{name:24}" + "".join(f"{v:11.4g}" for v in row) + "   " + by_round, flush=True)
    return rate


def _print_ratio(problem: str, phase: str, rates: dict[str, Array]) -> None:
    peers = [name for name in rates if name != "ours" and "dense" not in name]
    best = np.max([rates[name] for name in peers], axis=0)  # the best of each round
    ratios = rates["ours"] / np.maximum(best, 1e-9)
    target, ratio = TARGETS.get(problem, 1.0), float(np.median(ratios))
    print(
        f"{phase}: ours / best NumPyro at its default mass: {ratio:.2f} "
        f"[{ratios.min():.2f}, {ratios.max():.2f}] (target >= {target:g})"
        + ("" if ratio >= target else " MISSED")
    )


def paper_setting(n_jobs: int) -> None:
    """Wall seconds for as many chains as Wiese et al. (2023) ran, on sinusoidal data."""
    problem = load_problem("sinusoidal")
    model = MCMCRegressor(
        (WIDTH,), "tanh", sampler=Chains(init="prior", n_warmup=1000), prior=1.0,
        n_chains=1274, n_draws=1, remove_symmetries=ModeWeights("uniform"),
        n_jobs=n_jobs, random_state=0,
    )  # fmt: skip
    start = time.perf_counter()
    model.fit(problem.x.astype(np.float32), problem.y)
    seconds = time.perf_counter() - start
    score = float(model.log_predictive_density(problem.x_test, problem.y_test).mean())
    gradients = float(model.diagnostics_.n_gradients.mean())
    print(
        f"1274 chains x (1000 + 1) on {n_jobs} processes: {seconds:.0f} s wall (target < 360 on "
        f"two cores), {gradients:.3g} gradients a chain, LPPD {score:.4f}"
    )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--problems", nargs="+", default=["sinusoidal", "airfoil"])
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--peer-chains", type=int, default=16)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--core", type=int, help="to run on; the last one by default")
    parser.add_argument("--paper-setting", action="store_true", help="1274 chains, timed")
    parser.add_argument("--jobs", type=int, default=2, help="processes of --paper-setting")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.paper_setting:
        paper_setting(options.jobs)
        return
    if hasattr(os, "sched_setaffinity"):
        core = max(os.sched_getaffinity(0)) if options.core is None else options.core
        os.sched_setaffinity(0, {core})
    peer = Plan(options.peer_chains, options.warmup, options.draws)
    arms = {"ours": ours(Plan(options.chains, options.warmup, options.draws))}
    for method in ("sequential", "vectorized", "parallel"):
        arms[f"NumPyro {method}"] = numpyro(peer, method)
    arms["NumPyro seq., dense"] = numpyro(peer, "sequential", dense=True)
    print(
        f"ours {options.chains}, NumPyro {options.peer_chains} chains x "
        f"({options.warmup} warm-up + {options.draws} draws)"
    )
    with threadpool_limits(1):
        for name in options.problems:
            compare(load_problem(name), arms, options.rounds)


if __name__ == "__main__":
    main()
