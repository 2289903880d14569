"""What a fit asks of a GPU, counted on a machine without one: launches, waits and uploads a step.

    python asv_bench/studies/device_waits.py [names ...] [--lines] [--rst]

A launch starts a kernel (some microseconds on a GPU, whatever it computes); a wait has the host
stand still until the device has answered; an upload is a copy to the device. All are counted by the
pretend device of ``tests/pretend_cuda.py``: nothing here has been measured on a GPU.

Every figure is a difference of two fits, so that what a fit does once isn't in it: "a step" of two
fits whose steps make equally many blocks, "a block" of two fits that have one step a block (and so
less the waits of a step). ``--lines`` prints the lines that wait; ``--rst`` the README's table.
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[2] / "tests"))

import numpy as np
import pretend_cuda
from numpy.typing import NDArray

import skbayes_sym as sk
from skbayes_sym import Adam, Chains, EvidenceAdam, GaussNewton, ModeWeights, Updates
from skbayes_sym.factorization.solvers import Gibbs
from skbayes_sym.models import Affine, ColumnShift, Invariances, LogScale, Rotation2D

Array = NDArray[Any]

_rng = np.random.default_rng(0)
X = _rng.standard_normal((200, 5))
NUMBERS = np.sin(X[:, 0]) + 0.1 * _rng.standard_normal(200)
LABELS = (NUMBERS > 0).astype(int)
COUNTS = _rng.poisson(np.exp(NUMBERS)).astype(float)
IMAGES = _rng.random((6, 144))
FIGURES = np.arange(6) % 3
MATRIX = np.where(_rng.random((60, 40)) < 0.7, _rng.standard_normal((60, 40)), np.nan)

_STEPS = {"tol": None, "random_state": 0}
_SWEEPS = {"n_components": 3, "tol": 1e-300, "random_state": 0}
_CHAINS = {
    "prior": 1.0, "n_chains": 8,
    "remove_symmetries": ModeWeights("uniform"), "random_state": 0,
}  # fmt: skip
OPTIMISED = (50, 100, 300)  # steps, in 50, 100 and 100 blocks


class Case(NamedTuple):
    """An estimator of so many steps, what it is fitted to, and three numbers of steps."""

    make: Callable[[int], Any]
    X: Array
    y: Array | None
    n_steps: tuple[int, int, int]
    unit: str = "step"


def _optimised() -> Iterator[tuple[str, Case]]:
    def case(kind: Any, y: Array, **options: Any) -> Case:
        return Case(lambda n: kind(max_iter=n, **_STEPS, **options), X, y, OPTIMISED)

    ensemble, vi, layerwise = (
        sk.DeepEnsembleRegressor, sk.SymmetrizedVIRegressor, sk.LayerwiseVIRegressor,
    )  # fmt: skip
    yield "ensemble", case(ensemble, NUMBERS)
    yield "ensemble, minibatches", case(ensemble, NUMBERS, optimizer=Adam(batch_size=50))
    yield "VI, 10 units", case(vi, NUMBERS, hidden_layer_sizes=(10,))
    yield "VI, 50 units", case(vi, NUMBERS)
    yield "VI, no symmetry", case(vi, NUMBERS, symmetry=None)
    yield "VI, normal hidden layers, both starts", case(layerwise, NUMBERS)
    inducing = {"hidden_posterior": "global_inducing"}
    yield "VI, inducing points, both starts", case(layerwise, NUMBERS, **inducing)
    ten = Updates(10)
    adam = {"optimizer": EvidenceAdam(updates=ten)}
    yield "Laplace, Kronecker", case(sk.LaplaceRegressor, NUMBERS, **adam)
    yield (
        "Laplace, full",
        case(sk.LaplaceClassifier, LABELS, optimizer=EvidenceAdam(curvature="full", updates=ten)),
    )
    few = adam
    turns = Invariances([Rotation2D()], 4)
    yield "LILA, rotation", case(sk.LILAClassifier, LABELS, **few, invariances=turns)
    columns = Invariances([ColumnShift(), LogScale()], 4)
    yield "LILA, columns", case(sk.LILAClassifier, LABELS, **few, invariances=columns)


def _others() -> Iterator[tuple[str, Case]]:
    images = {"image_shape": (12, 12), "network": "cnn", **_STEPS}
    images["optimizer"] = EvidenceAdam(updates=Updates(1))
    affine = Invariances(Affine(), 1)
    yield "LILA, convolutions", Case(
        lambda n: sk.LILAClassifier(max_iter=n, invariances=affine, **images),
        IMAGES, FIGURES, (8, 10, 12),
    )  # fmt: skip
    yield (
        "Laplace, four modes",
        Case(
            lambda n: sk.LaplaceRegressor(
                (20,), noise_std=0.5, optimizer=GaussNewton(4), max_iter=n, **_STEPS
            ),
            X,
            NUMBERS,
            (20, 30, 50),
            "Gauss-Newton step",
        ),
    )
    chains = Chains("hmc", init="prior", n_warmup=20)
    yield "MCMC, hmc", Case(
        lambda n: sk.MCMCRegressor((10,), sampler=chains, n_draws=n, **_CHAINS),
        X, NUMBERS, (5, 10, 30), "move",
    )  # fmt: skip
    factors = sk.SymVIMatrixFactorization
    yield (
        "factorisation, VI",
        Case(lambda n: factors(max_iter=n, **_SWEEPS), MATRIX, None, (4, 8, 16), "sweep"),
    )
    yield "factorisation, Gibbs", Case(
        lambda n: factors(max_iter=n, **_SWEEPS | {"tol": None}, solver=Gibbs(3)),
        MATRIX, None, (4, 8, 16), "sweep",
    )  # fmt: skip
    yield "linear, counts", Case(
        lambda n: sk.BayesianLinearRegressor("poisson", max_iter=n, tol=1e-300),
        X, COUNTS, (4, 8, 16), "update",
    )  # fmt: skip


CASES: dict[str, Case] = dict([*_optimised(), *_others()])


class Asked(NamedTuple):
    """Of a fit, or a step of it."""

    launches: float
    waits: float
    uploads: float

    def per(self, other: "Asked", n: int) -> "Asked":
        """What ``n`` more of something cost ``other``."""
        return Asked(*((b - a) / n for a, b in zip(self, other, strict=True)))


def count(case: Case, n_steps: int) -> tuple[Asked, Counter[Any]]:
    """What a fit of so many steps asks for, and which lines had it wait or upload."""
    with pretend_cuda.pretend_cuda() as gpu, gpu.trace("/skbayes_sym/") as seen:
        case.make(n_steps).set_params(device="cuda").fit(case.X, case.y)
    totals = (sum(c.values()) for c in (seen.kernels, seen.waits, seen.uploads))
    return Asked(*totals), seen.where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--rst", action="store_true")
    options = parser.parse_args()
    pretend_cuda.load()
    warnings.simplefilter("ignore")  # too few steps to converge, on purpose
    row = '   "{}", "{}", {:.0f}, {:.2f}, {:.2f}, {:.2f}' if options.rst else (
        "{:28s} a {:9s} {:8.0f} launches {:8.2f} waits {:7.2f} uploads; a block {:5.2f} waits"
    )  # fmt: skip
    for name in options.names or CASES:
        case = CASES[name]
        first, second, third = (count(case, n) for n in case.n_steps)
        step = second[0].per(third[0], case.n_steps[2] - case.n_steps[1])
        block = first[0].per(second[0], case.n_steps[1] - case.n_steps[0])
        in_blocks = block.waits - step.waits if case.unit == "step" else 0.0
        print(row.format(name, case.unit, *step, in_blocks), flush=True)
        if options.lines:
            more = third[1].copy()
            more.subtract(second[1])
            for (kind, operator, line), n in more.most_common(12):
                if n > 0:
                    place = line.rsplit("/skbayes_sym/", 1)[-1]
                    print(f"    {n / (case.n_steps[2] - case.n_steps[1]):8.2f} "
                          f"{kind:4s} {operator:22s} {place}")  # fmt: skip


if __name__ == "__main__":
    main()
