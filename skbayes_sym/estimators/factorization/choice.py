"""How many components: those that predict held-out entries best.

The bound prefers too few, with and without the symmetry: 4 on a ratings table where 10 predict
best.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators.factorization.matrix_training import MatrixTraining
from skbayes_sym.inference.factorization.covariance import FullCovariance
from skbayes_sym.inference.factorization.entry_predictor import EntryRows, FactorPredictor
from skbayes_sym.inference.factorization.entry_sites import as_targets
from skbayes_sym.inference.factorization.factor_model import FactorModel, FactorProblem
from skbayes_sym.inference.factorization.hyperpriors import RowLaw
from skbayes_sym.inference.factorization.vi import fit_factors


@dataclass(frozen=True)
class ComponentsEffort:
    """Numbers of components that "auto" tries, and how hard."""

    candidates: tuple[int, ...] = (2, 5, 10, 20)  # until one is worse than the one before
    share: float = 0.1  # of the entries, held out to judge by
    most_held_out: int = 50_000
    sweeps: int = 60  # plain ones, of each candidate
    tol: float = 1e-3  # nats an entry at which they end
    fewest: int = 50  # entries to choose by; with fewer the largest candidate up to ten is taken


def choose_components(
    data: MatrixTraining, model_of: Callable[[int], FactorModel], effort: ComponentsEffort
) -> int:
    """The candidate with the highest mean log density of held-out entries.

    At most the smaller side. Each costs some 30 to 60 plain sweeps.
    """
    smaller, n = min(data.shape), len(data.observed.values)
    candidates = [k for k in effort.candidates if k < smaller] or [smaller]
    if smaller <= effort.candidates[-1]:
        candidates = sorted({*candidates, smaller})
    if n < effort.fewest or len(candidates) == 1:
        return min(candidates[-1], 10)
    n_held = min(int(effort.share * n), effort.most_held_out)
    held = np.zeros(n, dtype=bool)
    held[np.random.default_rng(data.seed).choice(n, n_held, replace=False)] = True
    seen, unseen = data.observed.part(~held), data.observed.part(held)
    entries, tol = seen.tensors(data.device, data.dtype), effort.tol * len(seen.values)
    best, highest = candidates[0], -np.inf
    for k in candidates:
        model, n_rows = model_of(k), data.shape[0]
        problem = FactorProblem(entries, entries, model, effort.sweeps, tol, data.seed)
        with one_thread(), torch.no_grad():
            state = fit_factors(
                problem, problem.start, FullCovariance(), gap=None,
                on_sweep=lambda posterior, elbo: False,
            ).posterior  # fmt: skip
            mean, cov = state.mean.double().cpu(), state.cov.double().cpu()
            rows, columns = (
                EntryRows(mean[s], cov[s]) for s in (slice(n_rows), slice(n_rows, None))
            )
            no_law = RowLaw(mean[:0], mean[:0])
            predictor = FactorPredictor(
                rows, columns, model.network, no_law, state.likelihood, model.shift
            )
            x = torch.as_tensor(np.stack([unseen.rows, unseen.columns], 1).astype(np.int64))
            y = as_targets(state.likelihood, torch.as_tensor(unseen.values).double())
            density = float(predictor.log_density(x, y).mean())
        if density < highest:
            break
        best, highest = k, density
    return best
