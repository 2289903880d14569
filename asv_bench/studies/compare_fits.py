"""A whole fit of mean-field VI beside NumPyro's SVI, compilation included: CPU seconds.

    python asv_bench/studies/compare_fits.py [--rounds 3]

NumPyro fits the same network by `AutoNormal` and `SVI.run`, float32, its plate drawing the batches
of the larger table: one compiled loop, made anew in every round. Ours is the estimator, validation
and all, without its stopping rule. The two take turns within a round.
"""

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
sys.path.append(str(Path(__file__).parents[1]))  # benchmarks

import torch
from benchmarks.common import CASES, Case, network, random_data
from ratios import Ratio, Round, Source
from threadpoolctl import threadpool_limits
from timing import cpu_times, median_ratio

from skbayes_sym import Adam, SymmetrizedVIRegressor

FITS = {"T1k": (2_000, 10_000), "T100k": (1_000, 3_000)}  # steps
LEARNING_RATE = 1e-3


def ours(case: Case, n_steps: int) -> None:
    """A fit of the estimator."""
    X, y = (t.numpy() for t in random_data(case))
    SymmetrizedVIRegressor(
        case.hidden, "relu", symmetry=None, max_iter=n_steps, tol=None, random_state=0,
        optimizer=Adam(batch_size=case.batch_size, learning_rate=LEARNING_RATE),
    ).fit(X, y.ravel())  # fmt: skip


def numpyro(case: Case, n_steps: int) -> None:
    """The same network, compiled as a whole."""
    import jax
    from numpyro import distributions as dist
    from numpyro import optim, plate, sample
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    x, y = (jax.numpy.asarray(t.numpy()) for t in random_data(case))
    sizes = network(case).sizes
    batch = None if case.batch_size >= case.n_rows else case.batch_size

    def model(x: Any, y: Any) -> None:
        layers = []
        for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
            normal = dist.Normal(0.0, 1.0)
            weight = sample(f"w{i}", normal.expand((n_in, n_out)).to_event(2))
            layers.append((weight, sample(f"b{i}", normal.expand((n_out,)).to_event(1))))
        with plate("rows", len(x), subsample_size=batch) as rows:
            hidden = x if batch is None else x[rows]
            for weight, bias in layers[:-1]:
                hidden = jax.nn.relu(hidden @ weight + bias)
            outputs = hidden @ layers[-1][0] + layers[-1][1]
            distribution = dist.Normal(outputs, 1.0).to_event(1)
            sample("y", distribution, obs=y if batch is None else y[rows])

    guide = AutoNormal(model, init_scale=0.02)
    svi = SVI(model, guide, optim.Adam(LEARNING_RATE), Trace_ELBO())
    found = svi.run(jax.random.PRNGKey(0), n_steps, x, y, progress_bar=False)
    jax.block_until_ready(found.params)


def _named(case: str, n_steps: int) -> str:
    return f"{CASES[case].title}, {n_steps:,} steps"


def _prepare() -> Round:
    import numpyro as _  # noqa: F401 - before anything is measured

    for name in FITS:  # libraries
        ours(CASES[name], 2)

    def measure(seed: int) -> dict[str, float]:
        found = {}
        for name, lengths in FITS.items():
            for n_steps in lengths:
                blocks = {
                    fit.__name__: lambda f=fit, c=CASES[name], n=n_steps: f(c, n)
                    for fit in (ours, numpyro)
                }
                times = cpu_times(blocks, 1, seed)
                found[_named(name, n_steps)] = median_ratio(times, "ours", "numpyro")
        return found

    return measure


SOURCES = (
    Source(
        "fits", "A whole fit of mean-field VI / NumPyro's SVI, compilation included",
        tuple(Ratio(_named(case, n), 1.0) for case, ns in FITS.items() for n in ns), _prepare,
    ),
)  # fmt: skip


def main() -> None:
    """Print ratios, a line a round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        measure = _prepare()
        for seed in range(options.rounds):
            found = measure(seed)
            print("; ".join(f"{name}: {ratio:.2f}" for name, ratio in found.items()), flush=True)


if __name__ == "__main__":
    main()
