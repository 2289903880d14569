"""What the reported bounds on the gap cost beside the fit they close, by width.

Prints CPU seconds of a fit and the share of its closing bounds, of a posterior whose modes lie
apart (few steps: saturated) and of one that was trained until they overlap; then the time of both
bounds at standard normal units over draws and width squared. Target: a fifth of the fit at most.

    python asv_bench/studies/closing_bounds.py [--widths 50 100 ...] [--steps 20 2000] [--wide]

``--wide``: instead, a fit of 600 units over the same one with ``symmetry=None``, of 200 rows and 5
columns, relu and tanh; best of three. Target: 3 at most.
"""

import argparse
from collections.abc import Callable
from time import process_time
from typing import Any
from unittest.mock import patch
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from ratios import Ratio, Round, Source

from skbayes_sym import SymmetrizedVIRegressor, VariationalAdam
from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.models.networks.mlp import MLP, RELU
from skbayes_sym.symmetry.gaps.unit_gap import Bethe, Importance, UnitGap
from skbayes_sym.variational import fit as method

TARGET = 0.2
N_ROWS, N_FEATURES = 500, 8
N_DRAWS = 16
BOTH = "auto", None  # symmetrised and plain
WIDTHS, STEPS = (50, 100, 200, 400), (20, 2000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--wide", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.wide:
        print("activation  steps   fit, CPU s   plain   ratio")
        for steps in options.steps:
            for activation in ("relu", "tanh"):
                fit, plain = (min(wide(activation, steps, s) for _ in range(3)) for s in BOTH)
                print(
                    f"{activation:10s} {steps:6d} {fit:12.2f} {plain:7.2f} {fit / plain:7.2f}",
                    flush=True,
                )
        return
    print("width  steps  saturation   fit, CPU s   closing, CPU s   share")
    for width in options.widths:
        for steps in options.steps:
            seconds, closing, saturation = fitted(width, steps)
            over = "" if closing <= TARGET * seconds else f"   over the target of {TARGET}"
            print(
                f"{width:5d} {steps:6d} {saturation:11.4f} {seconds:12.2f} {closing:16.3f} "
                f"{closing / seconds:7.2f}{over}",
                flush=True,
            )
    print("width   both bounds, unsaturated, ns / (draw * width^2)")
    for width in options.widths:
        print(f"{width:5d} {1e9 * unsaturated(width) / N_DRAWS / width**2:10.0f}", flush=True)


class Timed:
    """A function, and the CPU seconds spent in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.seconds = function, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = process_time()
        found = self._function(*args, **kwargs)
        self.seconds += process_time() - start
        return found


def wide(activation: str, steps: int, symmetry: str | None) -> float:
    """CPU seconds of a fit of 600 units by one start."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=200)
    model = SymmetrizedVIRegressor(
        (600,), activation, symmetry=symmetry, max_iter=steps, tol=None, random_state=0,
        optimizer=VariationalAdam(init="random", n_starts=1),
    )  # fmt: skip
    with catch_warnings():
        simplefilter("ignore")
        start = process_time()
        model.fit(X, y)
    return process_time() - start


def fitted(width: int, steps: int, seed: int = 0) -> tuple[float, float, float]:
    """CPU seconds of a fit and of its closing bounds, and its saturation."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_ROWS, N_FEATURES))
    y = np.sin(X).sum(1) + 0.3 * rng.normal(size=N_ROWS)
    closing = Timed(method._evaluate_bounds)
    with catch_warnings(), patch.object(method, "_evaluate_bounds", closing):
        simplefilter("ignore")
        start = process_time()
        model = SymmetrizedVIRegressor((width,), max_iter=steps, tol=None, random_state=seed)
        model.fit(X, y)
    return process_time() - start, closing.seconds, model.saturation_


def unsaturated(width: int) -> float:
    """CPU seconds of both bounds on the gap of units that overlap, `N_DRAWS` draws."""
    network = MLP(N_FEATURES, (width,), 1, RELU)
    generator = torch.Generator().manual_seed(0)
    loc = 0.2 * torch.randn(network.layout.n_params, generator=generator, dtype=torch.float64)
    posterior = MeanFieldGaussian(loc.numpy(), np.ones(len(loc)))
    group = network.symmetry()
    start = process_time()
    UnitGap(group, Importance(64)).estimate(posterior, N_DRAWS, generator=generator)
    above = UnitGap(group, Bethe(), bound="upper")
    above.estimate(posterior, N_DRAWS, generator=generator)
    return process_time() - start


def _prepare() -> Round:
    def measure(seed: int) -> dict[str, float]:
        found = {}
        for width in WIDTHS:
            for steps in STEPS:
                seconds, closing, _ = fitted(width, steps, seed)
                found[_named(width, steps)] = closing / seconds
        return found

    return measure


def _named(width: int, steps: int) -> str:
    return f"{width} units, {steps:,} steps"


SOURCES = (
    Source(
        "closing",
        "Symmetrised VI, closing bounds on the gap / the fit",
        tuple(Ratio(_named(w, s), TARGET) for w in WIDTHS for s in STEPS),
        _prepare,
    ),
)


if __name__ == "__main__":
    main()
