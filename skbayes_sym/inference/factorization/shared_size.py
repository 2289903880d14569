r"""How the size of the factors is shared between rows and columns: draws, and one of its orbit.

Entries tell of :math:`u_i^\top v_j` alone, so :math:`u_i \to A u_i, v_j \to A^{-\top} v_j` leaves
their density as it is; where priors are learned, only what Wisharts know beforehand says how large
either side is, and rows drawn given columns move along that ridge by small steps. For
:math:`A = Q\,\mathrm{diag}(c)\,Q^\top` with a basis Q that is drawn first, the priors follow with
:math:`B_U \to B_U A, \Lambda_U \to A^{-1} \Lambda_U A^{-1}` and the inverse for columns. Under the
invariant measure :math:`\prod_p dc_p / c_p` (Liu & Sabatti 2000, theorem 1) all powers of c cancel
but those of the Wisharts: with :math:`s_p = c_p^2`,

.. math:: p(s_p \mid \ldots) \propto s_p^{(\nu_V - \nu_U) / 2 - 1}
   \exp\bigl(-\tfrac12 (w_U t_{U,p} / s_p + w_V t_{V,p} s_p)\bigr), \qquad
   t_p = q_p^\top \Lambda q_p,

a generalised inverse Gaussian for each direction p, drawn exactly. Offsets stay.

`balancing` picks one A for every draw, so that moments of several draws are of factors of one size.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import geninvgauss, ortho_group
from torch import Tensor

from skbayes_sym.inference.factorization.hyperpriors import RowLaw, SidePrior
from skbayes_sym.numerics.random import numpy_generator

_TRIES = 20


class Shared(NamedTuple):
    """Multipliers of both sides' factors, (k, k) float64: ``U @ a`` and ``V @ inverse``."""

    a: Tensor
    inverse: Tensor


def draw_shared(
    priors: tuple[SidePrior, SidePrior],
    laws: tuple[RowLaw, RowLaw],
    told: tuple[Tensor, Tensor],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Shared | None:
    """Draw A given factors and priors; None where a side's scales are given.

    A draw is made anew, or after twenty of them left out, under which a side's precision would have
    a condition number beyond ``eps ** -0.5``, before or after a whole row was seen: such rows
    can't be drawn. That is Gibbs sampling of the posterior where it is kept to the other places.

    ``told``: what a row of U that is seen whole is told by V, ``V' V / (k noise variance)``, and
    the other way round; ``dtype``: that rows are drawn in. Returns: symmetric matrices.
    """
    k = len(told[0])
    dofs = [prior.factor_dof(k) for prior in priors]
    if dofs[0] is None or dofs[1] is None:
        return None
    like, rng = laws[0].precision, numpy_generator(generator)
    prior = torch.stack([law.precision[:k, :k] for law in laws])
    # A GPU waits once.
    known = torch.cat([prior, prior + torch.stack(told).to(prior)]).cpu().numpy()
    basis = (
        ortho_group.rvs(k, random_state=rng) if k > 1 and _are_rotatable(priors, k) else np.eye(k)
    )
    row, column = (
        prior.scatter * ((precision @ basis) * basis).sum(0)
        for prior, precision in zip(priors, known[:2], strict=True)
    )
    most = torch.finfo(dtype).eps ** -0.5
    for _ in range(_TRIES):
        drawn = geninvgauss.rvs(0.5 * (dofs[1] - dofs[0]), np.sqrt(row * column), random_state=rng)
        c = np.sqrt(np.sqrt(row / column) * drawn)
        a, inverse = (basis * c) @ basis.T, (basis / c) @ basis.T
        turned = np.concatenate([inverse @ known[::2] @ inverse, a @ known[1::2] @ a])
        if np.linalg.cond(turned).max() < most:
            return Shared(*torch.as_tensor(np.stack([a, inverse])).to(like))
    return None


def balancing(priors: tuple[SidePrior, SidePrior], rows: Tensor, columns: Tensor) -> Shared | None:
    """The A that makes factors (n, k) and (m, k) equally large in every direction.

    With second moments ``G_U`` and ``G_V``, to which the prior adds what it knows, ``A A`` is the
    geometric mean of ``G_U^-1`` and ``G_V``; coordinate by coordinate where they can't be turned.
    None where a side's scales are given.
    """
    k = rows.shape[1]
    if any(prior.factor_dof(k) is None for prior in priors):
        return None
    first, second = (
        (prior.scatter * _identity(factors) + factors.mT @ factors) / (len(factors) + 1.0)
        for prior, factors in zip(priors, (rows.double(), columns.double()), strict=True)
    )
    if not _are_rotatable(priors, k):
        c = (second.diagonal() / first.diagonal()) ** 0.25
        return Shared(c.diag(), c.reciprocal().diag())
    root, back = _power(first, 0.5), _power(first, -0.5)
    mean = back @ _power(root @ second @ root, 0.5) @ back
    return Shared(_power(mean, 0.5), _power(mean, -0.5))


def _identity(factors: Tensor) -> Tensor:
    return torch.eye(factors.shape[1], dtype=factors.dtype, device=factors.device)


def _are_rotatable(priors: tuple[SidePrior, SidePrior], k: int) -> bool:
    return all(prior.is_rotatable(k) for prior in priors)


def _power(matrix: Tensor, power: float) -> Tensor:
    """Power of a symmetric positive definite matrix."""
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
    least = values[-1] * torch.finfo(values.dtype).eps
    return (vectors * values.clamp(min=least) ** power) @ vectors.mT


def moved(law: RowLaw, a: Tensor, inverse: Tensor) -> RowLaw:
    """The prior of rows whose factors are multiplied by symmetric ``a`` (k, k)."""
    k, precision, coefficients = len(a), law.precision.clone(), law.coefficients.clone()
    precision[:k] = inverse @ precision[:k]
    precision[:, :k] = precision[:, :k] @ inverse
    coefficients[:, :k] = coefficients[:, :k] @ a
    return law._replace(precision=precision, coefficients=coefficients)
