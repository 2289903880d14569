r"""Where sweeps over a complete matrix begin: at its singular vectors.

With every entry seen, one noise and one prior scale, the optimum of isotropic rows keeps singular
vectors of R (Nakajima et al. 2013, without the symmetry). From a random start sweeps find them as
a power iteration does, by a factor of :math:`\sigma_k / \sigma_{k+1}` each, and often stop on the
way, a vector of the next singular value still in one's place.
"""

import torch

from skbayes_sym.inference.factorization.entry_sites import is_normal
from skbayes_sym.inference.factorization.factor_model import FactorProblem, FactorState

_MOST_ROWS = 500  # of the shorter side: a decomposition costs no more than some sweeps


def sweeps_start(problem: FactorProblem) -> FactorState:
    """Its own start, with means along the singular vectors of a complete matrix.

    Means of both sides are equally large and their product is the best one of its rank, but none is
    smaller than the prior's scale: a component of zeros would stay one. Components beyond the
    matrix's rank begin at random. O(n m min(n, m)).
    """
    start, (n, m), model = problem.start, problem.shape, problem.model
    k = model.n_components
    is_plain = is_normal(model.likelihood) and model.network.n_coordinates == k
    has_features = any(given is not None for given in model.prior.features)
    if (
        problem.warm is not None or not problem.is_complete or not is_plain or has_features
        or isinstance(model.prior.scale, str) or min(n, m) > _MOST_ROWS
    ):  # fmt: skip
        return start
    matrix = problem.data.by_row.value.view(n, m).double()
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    kept = min(k, len(values))
    size = (values[:kept] * k**0.5).sqrt().clamp(min=float(model.prior.scale))
    mean = start.mean.clone()
    mean[:n, :kept], mean[n:, :kept] = left[:, :kept] * size, right.mT[:, :kept] * size
    return start._replace(mean=mean)
