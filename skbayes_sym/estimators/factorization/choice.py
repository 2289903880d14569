"""How many components: those that predict held-out entries best.

The bound prefers too few, with and without the symmetry: 4 on a ratings table where 10 predict
best.
"""

from collections.abc import Callable

import numpy as np
import torch

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators.factorization.training import MatrixTraining
from skbayes_sym.inference.factorization.covariance import FullCovariance
from skbayes_sym.inference.factorization.likelihoods import Seen
from skbayes_sym.inference.factorization.predictive import entry_means, entry_variances
from skbayes_sym.inference.factorization.problem import Factorisation, FactorProblem
from skbayes_sym.inference.factorization.vi import fit_factors

CANDIDATES = (2, 5, 10, 20)
_SHARE, _MOST_HELD_OUT = 0.1, 50_000  # of the entries
_SWEEPS, _TOL = 60, 1e-3  # and nats an entry
_FEWEST = 50  # entries to choose by


def choose_components(data: MatrixTraining, model_of: Callable[[int], Factorisation]) -> int:
    """The candidate with the highest mean log density of held-out entries.

    From few to many, until one is worse than the one before; at most the smaller side. Each costs
    some 30 to 60 plain sweeps.

    Parameters
    ----------
    data : MatrixTraining
    model_of : callable (n_components) -> Factorisation
    """
    smaller, n = min(data.shape), len(data.observed.values)
    candidates = [k for k in CANDIDATES if k < smaller] or [smaller]
    if smaller <= CANDIDATES[-1]:
        candidates = sorted({*candidates, smaller})
    if n < _FEWEST or len(candidates) == 1:
        return min(candidates[-1], 10)
    n_held = min(int(_SHARE * n), _MOST_HELD_OUT)
    held = np.zeros(n, dtype=bool)
    held[np.random.default_rng(data.seed).choice(n, n_held, replace=False)] = True
    best, highest = candidates[0], -np.inf
    for k in candidates:
        density = _held_out_density(data, model_of(k), held)
        if density < highest:
            break
        best, highest = k, density
    return best


def _held_out_density(data: MatrixTraining, model: Factorisation, held: np.ndarray) -> float:
    """Mean log density of entries that weren't fitted, scaled units, nats."""
    seen, unseen = data.observed.part(~held), data.observed.part(held)
    entries = seen.tensors(data.device, data.dtype)
    tol = _TOL * len(seen.values)
    problem = FactorProblem(entries, entries, model, None, _SWEEPS, tol, data.seed)
    with one_thread(), torch.no_grad():
        start = problem.start
        fitted = fit_factors(
            problem, start, FullCovariance(), gap=None, on_step=lambda s, told: False
        )
        state, n = fitted.posterior, data.shape[0]
        i, j = (torch.as_tensor(a, device=data.device) for a in (unseen.rows, unseen.columns))
        u, v = (state.mean[:n], state.cov[:n]), (state.mean[n:], state.cov[n:])
        values = torch.as_tensor(unseen.values, device=data.device).to(u[0])
        mean = entry_means(u[0], v[0], i, j, model.n_components)
        at = Seen(values, None, mean, entry_variances(u, v, i, j, model.n_components))
        return float(model.likelihood.predictive_log_density(at, state.noise).mean())
