"""Cross-validation of one architecture by rows that modes haven't seen."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.mode_mixture import LinearisedModes
from skbayes_sym.inference.laplace.search.beginnings import alternating
from skbayes_sym.inference.laplace.search.mode_search import EvidenceSearch, OnSearch, Search
from skbayes_sym.inference.laplace.search.numbers import NumbersEvidence
from skbayes_sym.models.predictive_mixtures import NormalMixture

_LEAST_GAIN = 0.5  # standard errors
MODES_A_FOLD = 2  # one begun believing the targets, one doubting them


class HeldOutFold(NamedTuple):
    """Every row by the modes that haven't seen it, as an equal mixture."""

    log_density: Tensor  # (N,), nats
    mean: Tensor  # (N, T)


class Validated(NamedTuple):
    """Result of a cross-validation."""

    search: Search
    rows: HeldOutFold | None  # None where it was stopped


def folds(n_rows: int, n_folds: int, *, generator: torch.Generator) -> Tensor:
    """Which of ``n_folds`` parts of nearly equal size every row belongs to, int64 (n_rows,)."""
    order = torch.randperm(n_rows, generator=generator, device=generator.device)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(n_rows, device=order.device) % n_folds
    return fold


def cross_validated(
    how: EvidenceSearch,
    problem: NumbersEvidence,
    theta: Tensor,
    fold: Tensor,
    on_step: OnSearch | None = None,
) -> Validated:
    """Modes that leave out a fold each, and what these say of its rows.

    Two of the starting points (2 K, P) leave out each of the K folds that ``fold`` (N,) numbers.
    All modes are one batch, in which the rows of a mode's own fold have no weight: O(K) searches of
    two modes each.
    """
    held = torch.arange(len(theta), device=theta.device) // MODES_A_FOLD
    problem = replace(problem, share=(fold != held.unsqueeze(1)).to(theta))
    search = how.search(problem, theta, alternating(len(theta), theta), on_step)
    if search.has_ended:
        return Validated(search, None)
    modes, (x, y, _) = search.modes, problem.data
    log_density, mean = y.new_empty(len(y)), torch.empty_like(y)
    for k in range(len(theta) // MODES_A_FOLD):
        rows, of_fold = (fold == k).nonzero().flatten(), held == k
        theta, factor = modes.theta[of_fold], modes.factor[of_fold]
        equal = theta.new_full((len(theta),), 1.0 / len(theta))
        networks = LinearisedModes(problem.network, theta, factor, equal)
        outputs, covariance = networks.outputs(x[rows])
        noise = modes.noise_precision[of_fold].reciprocal().unsqueeze(1)
        law = NormalMixture(outputs, covariance.diagonal(dim1=-2, dim2=-1), noise)
        log_density[rows] = law.log_prob(y[rows])
        mean[rows] = outputs.mean(0)
    return Validated(search, HeldOutFold(log_density, mean))


def is_better(log_density: Tensor, other: Tensor, weight: Tensor) -> bool:
    """Whether log densities (N,) of rows held out are higher by over half a standard error.

    The simpler model stands unless that is so (Breiman, Friedman, Olshen & Stone 1984, section
    3.4.3, with one standard error).
    """
    total, gain = weight.sum(), log_density - other
    mean = weight @ gain / total
    error = (weight @ (gain - mean).square()).sqrt() / total
    return bool(mean > _LEAST_GAIN * error)


def unexplained_share(mean: Tensor, y: Tensor, weight: Tensor) -> float:
    """Share of the targets' variance that predictions (N, T) of rows held out leave."""
    total = weight.sum()
    spread = weight @ (y - weight @ y / total).square()
    unexplained = weight @ (y - mean).square()
    return float((unexplained / torch.where(spread > 0.0, spread, 1.0)).mean())
