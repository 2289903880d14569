r"""Where sweeps over a complete matrix begin: at its singular vectors.

With every entry seen, one noise and one prior scale, the optimum of isotropic rows keeps singular
vectors of R (Nakajima et al. 2013, without the symmetry). From a random start sweeps find them as
a power iteration does, by a factor of :math:`\sigma_k / \sigma_{k+1}` each, and often stop on the
way, a vector of the next singular value still in one's place.
"""

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.problem import FactorProblem, FactorState

_MOST_ROWS = 500  # of the shorter side: a decomposition costs no more than some sweeps


def sweeps_start(problem: FactorProblem) -> FactorState:
    """Its own start, with means along the singular vectors of a complete matrix.

    Means of both sides are equally large and their product is the best one of its rank, but none is
    smaller than the prior's scale: a component of zeros would stay one. Components beyond the
    matrix's rank begin at random. O(n m min(n, m)).
    """
    start, (n, m), k = problem.start, problem.shape, problem.model.n_components
    if not _is_spectral(problem):
        return start
    left, values, right = _decomposed(problem.data.by_row.value.view(n, m).double())
    kept = min(k, len(values))
    size = (values[:kept] * k**0.5).sqrt().clamp(min=float(problem.model.prior_scale))
    mean = start.mean.clone()
    mean[:n, :kept], mean[n:, :kept] = left[:, :kept] * size, right[:, :kept] * size
    return start._replace(mean=mean)


def _is_spectral(problem: FactorProblem) -> bool:
    """Whether the optimum keeps singular vectors, and they are cheap."""
    model = problem.model
    is_plain = model.likelihood.is_normal and not (model.learns_scales or any(model.offsets))
    has_features = any(given is not None for given in model.features)
    is_small = min(problem.shape) <= _MOST_ROWS
    return (
        problem.warm is None and problem.is_complete and is_plain and not has_features and is_small
    )


def _decomposed(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular vectors (n, r), values, largest first, and vectors (m, r)."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return left, values, right.mT
