"""Matrix factorisation: cost against entries and components, and of the symmetry."""

import statistics
import time
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import SymVIMatrixFactorization
from skbayes_sym.factorization.coordinate_ascent import CovarianceFamily
from skbayes_sym.factorization.factor_model import FactorModel, FactorProblem
from skbayes_sym.factorization.hyperpriors import FactorPrior
from skbayes_sym.factorization.solvers import VI
from skbayes_sym.factorization.sparse_entries import Coordinates, group_entries
from skbayes_sym.factorization.vi import SeededGap, fit_factors
from skbayes_sym.models import Gaussian
from skbayes_sym.symmetry.gaps.row_gaps import row_gap
from skbayes_sym.symmetry.orthogonal import Orthogonal

from .common import SingleThread

SHAPES = {  # rows, columns, observed entries, components
    "40 x 40": (40, 40, 1_600, 20),
    "300 x 64": (300, 64, 9_600, 10),
    "2,000 x 1,500": (2_000, 1_500, 300_000, 20),
    "6,000 x 4,000": (6_000, 4_000, 1_000_000, 20),
}
SWEEPS = 10
SMALL_SWEEPS = 100


def ratings(n: int, m: int, n_observed: int, k: int) -> sp.csr_array:
    """Low rank plus noise at random places."""
    rng = np.random.default_rng(0)
    rows, columns = np.divmod(rng.choice(n * m, n_observed, replace=False), m)
    u, v = rng.standard_normal((n, k)), rng.standard_normal((m, k))
    values = (u[rows] * v[columns]).sum(axis=1) / np.sqrt(k) + rng.standard_normal(n_observed)
    return sp.csr_array((values, (rows, columns)), shape=(n, m))


def fit_quietly(model: Any, X: Any) -> None:
    """Fit, without the warning that so few sweeps don't converge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X)


class Entries(SingleThread):
    """Ten sweeps and the bounds on 6,000 x 4,000, against the number of observed entries."""

    params = ([125_000, 250_000, 500_000, 1_000_000], [10, 20])
    param_names = ("entries", "components")
    timeout = 300

    def setup(self, n_observed: int, k: int) -> None:
        super().setup()
        self.X = ratings(6_000, 4_000, n_observed, k)
        self.model = SymVIMatrixFactorization(k, max_iter=SWEEPS, random_state=0)

    def time_fit(self, n_observed: int, k: int) -> None:
        fit_quietly(self.model, self.X)

    def peakmem_fit(self, n_observed: int, k: int) -> None:
        self.time_fit(n_observed, k)


class Ratings(SingleThread):
    """The whole fit of a million entries, to convergence: targets minutes and 4 GB."""

    params = (["orthogonal", None],)
    param_names = ("symmetry",)
    timeout = 600
    number = repeat = 1

    def setup(self, symmetry: str | None) -> None:
        super().setup()
        self.X = ratings(*SHAPES["6,000 x 4,000"])
        self.model = SymVIMatrixFactorization(20, solver=VI(symmetry=symmetry), random_state=0)

    def time_fit(self, symmetry: str | None) -> None:
        self.model.fit(self.X)

    def peakmem_fit(self, symmetry: str | None) -> None:
        self.model.fit(self.X)


class Predict(SingleThread):
    """Entries and new rows of a fitted model."""

    def setup(self) -> None:
        super().setup()
        self.X = ratings(*SHAPES["2,000 x 1,500"])
        self.model = SymVIMatrixFactorization(20, max_iter=2, random_state=0)
        fit_quietly(self.model, self.X)
        rng = np.random.default_rng(1)
        self.rows, self.columns = rng.integers(0, 1_500, size=(2, 100_000))

    def time_100k_entries(self) -> None:
        self.model.predict_entries(self.rows, self.columns)

    def time_100k_entries_with_std(self) -> None:
        self.model.predict_entries(self.rows, self.columns, return_std=True)

    def peakmem_100k_entries_with_std(self) -> None:
        self.time_100k_entries_with_std()

    def time_transform(self) -> None:
        self.model.transform(self.X)

    def time_score(self) -> None:
        self.model.score(self.X)


class SymmetrizedSweep(SingleThread):
    """Seconds of a symmetrised sweep over those of a plain one: target at most 1.3."""

    params = (list(SHAPES), ["full", "row"])
    param_names = ("matrix", "covariance")
    timeout = 300

    def setup(self, shape: str, covariance: str) -> None:
        super().setup()
        n, m, n_observed, k = SHAPES[shape]
        table = ratings(n, m, n_observed, k).tocoo()
        rows, columns = (torch.as_tensor(a.astype(np.int64)) for a in (table.row, table.col))
        data = group_entries(rows, columns, torch.as_tensor(table.data), (n, m))
        self.n_sweeps = SMALL_SWEEPS if n_observed < 10_000 else 2 * SWEEPS
        self.problem = FactorProblem(
            data, data,
            FactorModel(Coordinates(k), Gaussian(learn=False), FactorPrior(1.0)),
            self.n_sweeps, tol=-1e12,
        )  # fmt: skip
        self.start = self.problem.initial_state
        self.family = CovarianceFamily(covariance)
        group = Orthogonal(torch.arange((n + m) * k).view(n + m, k))
        gap = row_gap(group, is_isotropic=self.family.is_isotropic)
        self.gap = SeededGap(gap, torch.Generator().manual_seed(0))

    def seconds(self, gap: Any) -> float:
        """CPU seconds of the sweeps."""
        begin = time.process_time()
        with torch.no_grad():
            fit_factors(
                self.problem, self.start, self.family, gap=gap, on_sweep=lambda *told: False
            )
        return time.process_time() - begin

    def track_ratio(self, shape: str, covariance: str) -> float:
        """Median of pairs timed one after the other, so that a busy machine slows both."""
        self.seconds(self.gap), self.seconds(None)  # warm up
        n_pairs = 7 if self.n_sweeps == SMALL_SWEEPS else 3
        pairs = [(self.seconds(self.gap), self.seconds(None)) for _ in range(n_pairs)]
        return statistics.median(symmetrised / plain for symmetrised, plain in pairs)

    track_ratio.unit = "sweeps"  # type: ignore[attr-defined]
