"""Scales of a cloud of particles: labels first, then variances and covariances.

Raw particles sit in all |G| copies of a mode, so their spread is the distance between copies. One
representative of each orbit has the spread of the mode itself, from one draw a particle.
"""

import torch
from torch import Tensor

from skbayes_sym.inference.sampling.kernels import (
    DensePreconditioner,
    DiagonalPreconditioner,
)
from skbayes_sym.numerics.linalg import cholesky, shrink_to_diagonal
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.relabelling import (
    DiagonalReference,
    Labelling,
    estimate_reference,
    label_objective,
    orbit_mean,
    relabel,
)

_SWEEPS = 20  # of relabelling; prior-like units never settle and needn't


def align_particles(
    position: Tensor,  # (N, D)
    group: SymmetryGroup,
    reference: DiagonalReference | None,  # (D,): where the search begins: that of the last stage
    *,
    n_starts: int,  # fresh starts besides; the labels with the smallest objective win
    generator: torch.Generator,
) -> tuple[Tensor, DiagonalReference]:
    """Move every particle to a representative of its orbit, by Stephens' relabelling.

    Returns ``position`` (N, D), ``reference``: of the aligned particles.
    """
    labelling = Labelling.given(position.detach().cpu().double(), group)
    if not labelling.layers:
        return position, labelling.reference()
    references = [] if reference is None else [reference]
    if n_starts or not references:
        some = labelling.theta[:: max(1, len(labelling.theta) // 256)]
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        stream = torch.Generator().manual_seed(int(seed))  # labels are found on the CPU
        fresh = relabel(
            some, group, n_starts=max(1, n_starts), max_sweeps=_SWEEPS, generator=stream
        )
        references.append(estimate_reference(fresh.theta, labelling.mean_square))
    runs = [labelling.descended(r, _SWEEPS) for r in references]
    if len(labelling.layers) > 1:
        runs += [labelling.forward(r).descended(r, _SWEEPS) for r in references]
    best = min(runs, key=lambda run: label_objective(run.theta, group))
    return best.theta.to(position), best.reference()


def pooled_preconditioner(
    aligned: Tensor,  # (N, D): one representative of each orbit
    group: SymmetryGroup,
) -> DiagonalPreconditioner:
    """Standard deviations pooled over coordinate orbits: no group element changes them."""
    return DiagonalPreconditioner(orbit_mean(_variance(aligned.double()), group).sqrt().to(aligned))


def full_preconditioner(aligned: Tensor) -> DensePreconditioner:
    """Cholesky factor of ``0.98 S + 0.02 diag S``, ``S`` the covariance of aligned particles."""
    x = aligned.double()
    centred = x - x.mean(dim=0)
    covariance = shrink_to_diagonal(centred.mT @ centred, 0.02) / len(x)
    covariance.diagonal().copy_(_variance(x))  # at least its floor
    factor = cholesky(
        covariance,
        what="The covariance of the particles",
        remedy="Standardize the data, or use more particles.",
    )
    return DensePreconditioner(factor.to(aligned))


def _variance(x: Tensor) -> Tensor:
    mean_square, least = x.square().mean(dim=0), 1e-12
    floor = least * mean_square.clamp_min(torch.finfo(x.dtype).tiny / least)
    return torch.maximum(x.var(dim=0, correction=0), floor)
