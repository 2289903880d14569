"""Symmetry removal by a separating plane and neighbours' votes, as its inventors published it.

Wiese et al. 2023, Algorithms 1 to 4, for comparison: `relabelling` finds the same labels faster
where units are well separated, and better ones where they aren't.
"""

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from scipy.spatial import cKDTree
from torch import Tensor

from skbayes_sym.numerics.optimise import ParamGroup, minimise
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.relabelling import Relabelled, in_canonical_order
from skbayes_sym.symmetry.units import (
    SignedPermutation,
    gather_units,
    nonzero_sign,
    unit_layers,
)

_COST = 1.0  # C of equation (6), which the paper leaves open
_PLANE_STEPS, _PLANE_RATE = 300, 0.05  # Adam steps, in units of the start's plane
_QUERY = 4096  # units whose neighbours are looked up at once


def relabel_svm_knn(
    theta: Tensor,
    group: SymmetryGroup,
    *,
    n_starts: int,
    n_neighbors: int,
    max_sweeps: int,
    generator: torch.Generator,
) -> Relabelled:
    """The paper's Algorithm 4: last layer first, flip units to one side of a plane, then vote.

    Parameters
    ----------
    theta : Tensor of shape (n, P), float64
    group : Units or a Product of them
        One factor a hidden layer. Where signs are no symmetry, Algorithm 1 is left out.
    n_starts : int
        Restarts of the plane (K_beta).
    n_neighbors : int
        The paper's k, the unit itself included; at most all units of all draws.
    max_sweeps : int
        The paper's I: votes on every layer, which end early when one changes nothing.
    generator : torch.Generator
        Chooses the planes' starts.

    Returns
    -------
    Relabelled
        In canonical order, as from `relabel`; ``n_changing`` is the largest over layers.

    Notes
    -----
    Algorithm 3 permutes an index set S it doesn't define and drops k: here all draws are
    classified with the old labels, then all are permuted. Its number of sweeps, layers and draws
    (all printed "l" in section 5) are I, K - 2 and G. O(n d k) time and memory a layer and sweep
    after the neighbours' search, which is slow beyond 20 entries a unit.
    """
    aligned, n_changing = theta, 0
    elements: list[SignedPermutation] = []
    for layer in reversed(unit_layers(group)):
        units = gather_units(aligned, layer.index)
        sign = torch.ones(units.shape[:2], dtype=torch.int8)
        if layer.flips:
            beta = separating_plane(units.flatten(0, 1), n_starts, generator)
            sign = nonzero_sign(units @ beta)
        order = torch.arange(layer.n_units).repeat(len(units), 1)
        if layer.permutes:
            labels, changed = vote(units * sign.unsqueeze(-1), n_neighbors, max_sweeps)
            order, n_changing = labels.argsort(dim=-1), max(n_changing, changed)
        g = SignedPermutation(order, sign.gather(-1, order))
        aligned = layer.act(g, aligned)
        elements.insert(0, g)
    return in_canonical_order(theta, aligned, tuple(elements), group, n_changing)


def separating_plane(points: Tensor, n_starts: int, generator: torch.Generator) -> Tensor:
    """Algorithm 1: the best of several planes through 0 that avoid the points.

    Minimises equation (6),

        L(beta) = beta.beta / 2 + C sum_m max(0, 1 - |beta.phi_m|),

    where ``|.|``, printed as a norm, is the absolute value of a number; ``-beta`` is as good as
    ``beta``, and ``beta = 0`` costs C a point. C = 1; Adam on all starts at once.

    Parameters
    ----------
    points : Tensor of shape (N, p), float64
    n_starts : int
    generator : torch.Generator

    Returns
    -------
    beta : Tensor of shape (p,)
    """
    scale = points.square().mean().sqrt().clamp_min(torch.finfo(points.dtype).tiny)
    loss = _PlaneLoss(points / scale, scale, n_starts, generator)
    result = minimise(
        loss,
        groups=[ParamGroup(slice(None), _PLANE_RATE)],
        max_iter=_PLANE_STEPS,
        block_size=_PLANE_STEPS,
        on_step=lambda step, info: False,
    )
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    return loss.best() / scale


class _PlaneLoss:
    """Equation (6) a point, summed over starts, for planes in units of the points' scale."""

    def __init__(
        self, points: Tensor, scale: Tensor, n_starts: int, generator: torch.Generator
    ) -> None:
        self.points, self.ridge = points, float(scale) ** -2 / (_COST * len(points))
        directions = torch.randn(n_starts, points.shape[1], generator=generator, dtype=points.dtype)
        self.shape = directions.shape
        self.params = (directions / directions.norm(dim=1, keepdim=True)).flatten()
        self.gradient = torch.zeros_like(self.params)

    def __call__(self, step: int) -> Tensor:
        beta = self.params.view(self.shape)
        side = self.points @ beta.mT
        pushed = side.sign() * (side.abs() < 1.0)
        hinge = pushed.mT @ self.points / len(self.points)
        torch.sub(self.ridge * beta, hinge, out=self.gradient.view(self.shape))
        return self._losses(side).sum()

    def _losses(self, side: Tensor) -> Tensor:
        beta = self.params.view(self.shape)
        return 0.5 * self.ridge * beta.square().sum(1) + (1.0 - side.abs()).clamp_min(0.0).mean(0)

    def best(self) -> Tensor:
        """The start that ended lowest."""
        beta = self.params.view(self.shape)
        return beta[self._losses(self.points @ beta.mT).argmin()]


def vote(units: Tensor, n_neighbors: int, max_sweeps: int) -> tuple[Tensor, int]:
    """Algorithm 3: units take the labels that their neighbours in all draws have.

    Parameters
    ----------
    units : Tensor of shape (n, d, p)
        Labelled by their position at first.
    n_neighbors, max_sweeps : int

    Returns
    -------
    labels : int64 Tensor of shape (n, d)
        The place of every unit, a permutation in each draw.
    n_changing : int
        Draws that the last sweep changed.
    """
    n, d, _ = units.shape
    labels = np.tile(np.arange(d), (n, 1))
    weights, n_changing = _similar(units.flatten(0, 1).numpy(), min(n_neighbors, n * d)), n
    for _ in range(max_sweeps):
        ballots = np.eye(d)[labels.ravel()]
        votes = weights @ ballots
        found = greedy_labels((votes / votes.sum(1, keepdims=True)).reshape(n, d, d))
        n_changing = int((found != labels).any(axis=1).sum())
        labels = found
        if n_changing == 0:
            break
    return torch.from_numpy(labels), n_changing


def greedy_labels(probability: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Algorithm 2: the most probable pair of unit and label first, then the rest in order.

    ``c <- argmax_c p_j(c = c*)`` in print is vacuous, c* being given, and labels only are crossed
    out; meant is ``(j, c*) = argmax p_j(c)`` over units and labels not yet used.

    Parameters
    ----------
    probability : ndarray of shape (n, d, d)
        ``probability[g, j, c]`` of label ``c`` for unit ``j`` of draw ``g``.

    Returns
    -------
    labels : ndarray of shape (n, d)
    """
    n, d, _ = probability.shape
    left, rows = probability.copy(), np.arange(n)
    labels = np.empty((n, d), dtype=np.int64)
    for _ in range(d):
        j, c = np.divmod(left.reshape(n, -1).argmax(axis=1), d)
        labels[rows, j] = c
        left[rows, j, :] = -1.0
        left[rows, :, c] = -1.0
    return labels


def _similar(points: npt.NDArray[np.float64], k: int) -> csr_matrix:
    """``exp(-|a - b|^2 / 2)`` (appendix D, sigma = 1) to the k nearest points, (N, N) sparse."""
    tree, n = cKDTree(points), len(points)
    near, weight = np.empty((n, k), dtype=np.int32), np.empty((n, k), dtype=np.float32)
    for start in range(0, n, _QUERY):
        distance, found = tree.query(points[start : start + _QUERY], k=[*range(1, k + 1)])
        near[start : start + _QUERY] = found
        weight[start : start + _QUERY] = np.exp(-0.5 * distance**2)
    bounds = np.arange(0, n * k + 1, k)
    return csr_matrix((weight.ravel(), near.ravel(), bounds), shape=(n, n))
