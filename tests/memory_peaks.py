"""What fits say they will take, beside what they take: resident memory in processes of their own.

    python tests/memory_peaks.py [CASE ...]

prints, for every case, the megabytes asked for before the fit, the megabytes by which the process
grew to its peak, and their ratio.
"""

import json
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from skbayes_sym.estimators.samplers import Chains

Case = tuple[Any, Any, Any]


def _rows(n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, X[:, 0] + rng.standard_normal(n), rng.integers(0, 3, n)


def _cases() -> dict[str, Callable[[], Case]]:
    import skbayes_sym as sk
    from skbayes_sym.estimators.optimizers import EvidenceAdam, GaussNewton, Updates
    from skbayes_sym.inference.solvers import VI, Gibbs
    from skbayes_sym.models import Rotation2D

    steps = {"max_iter": 3, "tol": None, "random_state": 0}

    def rows(n: int, d: int, estimator: Any) -> Case:
        X, y, labels = _rows(n, d)
        return estimator, X, labels if hasattr(estimator, "predict_proba") else y

    def matrix(estimator: Any, n: int = 1500) -> Case:
        return estimator, np.random.default_rng(0).standard_normal((n, n // 10)), None

    chains = {"sampler": Chains(init="prior", n_warmup=2), "mode_weights": None, "prior": 1.0}
    chains |= {"random_state": 0}
    one = EvidenceAdam(updates=Updates(1))
    laplace = {**steps, "optimizer": one}
    lila = {**steps, "optimizer": one, "invariances": [Rotation2D()]}
    vi, layerwise = sk.SymmetrizedVIRegressor, sk.LayerwiseVIRegressor
    return {
        "vi-weights": lambda: rows(100, 50, vi((700, 700), symmetry=None, **steps)),
        "vi-rows": lambda: rows(1000, 20, vi((200,), n_weight_samples=10, **steps)),
        "vi-classes": lambda: rows(
            1000, 20, sk.SymmetrizedVIClassifier((200,), n_weight_samples=10, **steps)
        ),
        "ensemble-weights": lambda: rows(
            100, 100, sk.DeepEnsembleRegressor((500, 500), n_members=20, noise_std=1.0, **steps)
        ),
        "ensemble-rows": lambda: rows(
            2000, 20, sk.DeepEnsembleRegressor((300,), n_members=20, noise_std=1.0, **steps)
        ),
        "mcmc-draws": lambda: rows(
            50, 20, sk.MCMCRegressor((40, 40), n_chains=40, n_draws=150, **chains)
        ),
        "mcmc-rows": lambda: rows(
            2000, 20, sk.MCMCRegressor((50,), n_chains=100, n_draws=2, **chains)
        ),
        "laplace-full": lambda: rows(
            200, 40, sk.LaplaceRegressor((50,), **steps, optimizer=EvidenceAdam(curvature="full"))
        ),
        "laplace-kron": lambda: rows(200, 1500, sk.LaplaceRegressor((1500,), **laplace)),
        "laplace-diag": lambda: rows(
            1000, 40, sk.LaplaceRegressor((200,), **steps, optimizer=EvidenceAdam(curvature="diag"))
        ),
        "laplace-modes": lambda: rows(
            200, 30, sk.LaplaceRegressor((40,), optimizer=GaussNewton(4), **steps)
        ),
        "laplace-classes": lambda: rows(
            200, 30, sk.LaplaceClassifier((40,), optimizer=GaussNewton(3), **steps)
        ),
        "lila": lambda: rows(500, 40, sk.LILARegressor((400,), **lila)),
        "layerwise-collapsed": lambda: rows(
            1500, 20, layerwise((300,), n_weight_samples=8, **steps)
        ),
        "layerwise-inducing": lambda: rows(
            1500, 20, layerwise((200,), last_layer="variational", batch_size=1500,
                                hidden_posterior="global_inducing", n_inducing=100,
                                n_weight_samples=4, **steps)
        ),
        "factors": lambda: matrix(
            sk.SymVIMatrixFactorization(
                60, offsets=False, prior=1.0, solver=VI(symmetry=None), **steps
            )
        ),
        "factors-gibbs": lambda: matrix(
            sk.SymVIMatrixFactorization(20, solver=Gibbs(300), max_iter=600, tol=None), 400
        ),
        "linear": lambda: rows(2000, 1500, sk.BayesianLinearRegressor()),
        "linear-wide": lambda: rows(500, 8000, sk.BayesianLinearRegressor()),
        "linear-student": lambda: rows(
            3000, 700, sk.BayesianLinearRegressor("student-t", max_iter=3)
        ),
        "linear-classes": lambda: rows(
            600, 300, sk.BayesianLinearClassifier(variance_scale=1.0, max_iter=2)
        ),
    }  # fmt: skip


def _sampled() -> dict[str, Callable[[], tuple[Any, int, int]]]:
    """Models to draw targets of, how many (none: to predict), and at how many times 50 rows."""
    import skbayes_sym as sk
    from skbayes_sym.estimators.optimizers import EvidenceAdam, GaussNewton, Updates

    steps = {"max_iter": 3, "tol": None, "random_state": 0}
    chains = {"sampler": Chains(init="prior", n_warmup=2), "mode_weights": "uniform", "prior": 1.0}
    chains |= {"n_draws": 5, "n_chains": 4, "random_state": 0}
    one = EvidenceAdam(updates=Updates(1))
    laplace = {**steps, "optimizer": one}
    vi = sk.SymmetrizedVIRegressor
    return {
        "vi-rows": lambda: (vi((5,), **steps), 2000, 40),
        "vi-draws": lambda: (vi((50,), **steps), 100_000, 1),
        "vi-likelihood": lambda: (vi((5,), likelihood="student_t", **steps), 20_000, 4),
        "layerwise": lambda: (sk.LayerwiseVIRegressor((30,), **steps), 30_000, 1),
        "ensemble": lambda: (
            sk.DeepEnsembleRegressor((50,), noise_std=1.0, n_members=3, **steps),
            100_000,
            1,
        ),
        "predict-members": lambda: (
            sk.DeepEnsembleRegressor((50,), noise_std=1.0, n_members=2000, **steps),
            0,
            3,
        ),
        "mcmc": lambda: (sk.MCMCRegressor((50,), **chains), 100_000, 1),
        "laplace-kron": lambda: (sk.LaplaceRegressor((50,), **laplace), 10_000, 20),
        "laplace-full": lambda: (
            sk.LaplaceRegressor((50,), **steps, optimizer=EvidenceAdam(curvature="full")),
            200_000,
            1,
        ),
        "laplace-modes": lambda: (
            sk.LaplaceRegressor(
                (20,), optimizer=GaussNewton(2), max_iter=3, tol=None, random_state=0
            ),
            200_000,
            1,
        ),
        "bayesian-mlp": lambda: (
            sk.BayesianMLPRegressor((20,), n_modes=2, n_members=2, random_state=0),
            200_000,
            1,
        ),
        "linear": lambda: (sk.BayesianLinearRegressor(), 200_000, 1),
        "linear-student": lambda: (sk.BayesianLinearRegressor("student-t"), 200_000, 1),
    }


def _peak() -> int:
    """Bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(name: str) -> tuple[float, float]:
    """Megabytes asked for, and by which the process grew; in this process, once."""
    import torch

    from skbayes_sym.numerics import memory

    torch.set_num_threads(1)
    asked: list[int] = []
    given = memory.require_memory

    def note(parts: Any, device: Any, **task: str) -> None:
        asked.append(sum(part.n_bytes for part in parts))
        given(parts, device, **task)

    sampled = _sampled().get(name.removeprefix("sample_y-"))
    n_draws, n_times = 0, 1
    if sampled is None:
        estimator, X, y = _cases()[name]()
    else:
        estimator, n_draws, n_times = sampled()
        X, y, _ = _rows(50, 5)
    small = (X[:20, :3] + 0.0, None if y is None else y[:20])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if y is not None:  # libraries and caches that any fit loads
            is_chains = hasattr(estimator, "n_chains")
            few = {"sampler": Chains(n_warmup=2), "n_draws": 2} if is_chains else {"max_iter": 2}
            few = {name: n for name, n in few.items() if hasattr(estimator, name)}
            type(estimator)(random_state=0, **few).fit(*small)
        for module in list(sys.modules.values()):
            if getattr(module, "require_memory", None) is given:
                module.require_memory = note
        before = _peak()
        model = estimator.fit(X, y)
        if sampled is not None:
            model.sample_y(X, 2)
            asked.clear()
            before, rows = _peak(), np.repeat(X, n_times, 0)
            model.sample_y(rows, n_draws) if n_draws else model.predict(rows)
    return max(asked, default=0) / 1e6, (_peak() - before) / 1e6


def main(names: list[str]) -> int:
    """How many are off by more than a factor of two."""
    print(f"{'':22}{'asked, MB':>10}{'peak, MB':>10}{'ratio':>8}")
    wrong = 0
    for name in names or [*_cases(), *(f"sample_y-{name}" for name in _sampled())]:
        done = subprocess.run(
            [sys.executable, __file__, "one", name], capture_output=True, text=True
        )
        if done.returncode:
            print(f"{name:22}{done.stderr.strip().splitlines()[-1]}", flush=True)
            wrong += 1
            continue
        asked, peak = json.loads(done.stdout.splitlines()[-1])
        wrong += not 0.5 <= asked / max(peak, 1e-3) <= 2.0
        print(f"{name:22}{asked:10.1f}{peak:10.1f}{asked / max(peak, 1e-3):8.2f}", flush=True)
    return wrong


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        sys.exit(main(sys.argv[1:]) > 0)
