"""Posteriors under their groups, and their gaps element by element."""

from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.linear.low_rank import LowRankGaussian
from skbayes_sym.symmetry import Orthogonal, SymmetryGroup
from skbayes_sym.symmetry.fundamental_domain import enumerate_group
from skbayes_sym.symmetry.units import UnitGroup


class Rows(NamedTuple):
    """Independent normal rows, as gaps want them."""

    mean: Tensor  # (n_rows, k)
    cov: Tensor  # (n_rows, k, k)


class GapCase(NamedTuple):
    gap: Any
    posterior: Any  # MeanFieldGaussian, Rows or LowRankGaussian

    @property
    def n_params(self) -> int:
        return _flat_moments(self.posterior)[0].numel()

    def stepped(self, i: int, *, mean: float = 0.0, variance: float = 0.0) -> Any:
        """The posterior with one mean, and one variance, changed by so much."""
        loc, cov = _flat_moments(self.posterior)
        step = torch.zeros_like(loc)
        step[i] = 1.0
        return _like(self.posterior, loc + mean * step, cov + variance * torch.diag(step))


def _flat_moments(posterior: Any) -> tuple[Tensor, Tensor]:
    """Mean (P,) and covariance (P, P) of all weights."""
    if isinstance(posterior, Rows):
        return posterior.mean.flatten(), torch.block_diag(*posterior.cov)
    if isinstance(posterior, LowRankGaussian):
        return torch.as_tensor(posterior.loc[0]), torch.as_tensor(posterior.dense_covariance())
    return torch.as_tensor(posterior.loc), torch.diag(torch.as_tensor(posterior.scale) ** 2)


def _like(posterior: Any, loc: Tensor, cov: Tensor) -> Any:
    """The same kind of posterior with other moments (P,) and (P, P)."""
    if isinstance(posterior, LowRankGaussian):
        return LowRankGaussian(loc[None].numpy(), np.ones(len(loc)), None, cov.numpy(), 1.0)
    if not isinstance(posterior, Rows):
        return MeanFieldGaussian(loc.numpy(), cov.diagonal().sqrt().numpy())
    n, k = posterior.mean.shape
    blocks = cov.view(n, k, n, k).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    return Rows(loc.view(n, k), blocks.contiguous())


def draws_of(posterior: Any, noise: Tensor) -> Tensor:
    """Draws (S, P) from standard normal noise (S, P)."""
    loc, cov = _flat_moments(posterior)
    return loc + noise @ torch.linalg.cholesky(cov).mT


def log_density_ratio(group: SymmetryGroup, posterior: Any, theta: Tensor) -> Tensor:
    """log q - log q_G at theta (S, P), the average over the group taken element by element."""
    loc, cov = _flat_moments(posterior)
    q = torch.distributions.MultivariateNormal(loc, cov)
    if isinstance(group, Orthogonal):
        orbit = group.act(planar_elements(), theta.unsqueeze(-2))
    elif all(isinstance(factor, UnitGroup) for factor in group.factors):
        orbit = enumerate_group(group, len(loc)).orbit(theta)
    else:
        orbit = (theta @ elements(group, len(loc))).movedim(0, -2)
    return q.log_prob(theta) - (q.log_prob(orbit).logsumexp(-1) - log(orbit.shape[-2]))


def elements(group: SymmetryGroup, n_params: int) -> Tensor:
    """All elements as matrices (|G|, P, P), from the right: what the generators generate."""
    eye = torch.eye(n_params, dtype=torch.float64)
    moves = [group.act(g, eye) for _, g in group.generators()]
    known, new = {eye.numpy().tobytes(): eye}, [eye]
    while new:
        products = (m @ move + 0.0 for m in new for move in moves)  # -0. + 0. is 0.
        found = {m.numpy().tobytes(): m for m in products}
        new = [m for key, m in found.items() if key not in known]
        known |= found
    return torch.stack(list(known.values()))


def planar_elements(n: int = 180) -> Tensor:
    """A fine uniform grid on O(2)."""
    angle = torch.arange(n, dtype=torch.float64) * (2.0 * torch.pi / n)
    c, s = angle.cos(), angle.sin()
    turns = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    return torch.cat([turns, turns @ torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))])


def moved(case: GapCase, g: Any) -> Any:
    """The law of ``g theta``; g is affine."""
    loc, cov = _flat_moments(case.posterior)
    shift = case.gap.group.act(g, torch.zeros_like(loc))
    matrix = (case.gap.group.act(g, torch.eye(len(loc), dtype=torch.float64)) - shift).mT
    return _like(case.posterior, matrix @ loc + shift, matrix @ cov @ matrix.mT)


def shifted(case: GapCase, factor: float) -> Any:
    """Means so many times as large."""
    loc, cov = _flat_moments(case.posterior)
    return _like(case.posterior, factor * loc, cov)


def mean_field(n: int) -> MeanFieldGaussian:
    """Overlapping modes, no two parameters alike."""
    i = np.arange(n)
    return MeanFieldGaussian(0.8 * np.sin(1.0 + 3 * i + i * i), 0.5 + 0.2 * np.cos(2.0 + 5 * i))


def rows(kind: str) -> Rows:
    """Five rows of two components; ``kind`` of their covariances."""
    mean = torch.as_tensor(mean_field(10).loc).view(5, 2)
    variance = torch.as_tensor(mean_field(10).scale).view(5, 2) ** 2
    if kind == "isotropic":
        variance = variance[:, :1].expand(-1, 2)
    cov = torch.diag_embed(variance)
    if kind == "full":
        cov = cov + 0.1 * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    return Rows(mean, cov)


def correlated(n: int) -> LowRankGaussian:
    """One row of weights that aren't independent, as a regression on few rows leaves them."""
    ends = mean_field(n)
    basis = np.linalg.qr(np.sin(1.0 + np.arange(2 * n).reshape(n, 2) ** 2))[0]
    inside = np.array([[0.6, 0.2], [0.2, 0.3]])
    return LowRankGaussian(ends.loc[None], ends.scale, basis, inside, 0.9)
