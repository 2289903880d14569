"""Spectral clustering of aligned draws, as in Wiese et al. 2023, appendix F.2."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.vq import kmeans2
from scipy.sparse import csr_matrix, diags
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from scipy.spatial import cKDTree
from torch import Tensor

_MAX_MODES = 10  # that an eigengap is looked for in
_DENSE = 200  # nodes up to which all eigenvectors at once cost nothing
_MARGIN = 1e-12  # below this two gaps are equal

Floats = npt.NDArray[np.float64]


class SpectralModes(NamedTuple):
    """Clusters, and the spectrum they were read from."""

    labels: Tensor  # int64 (n,), the largest cluster is 0
    eigenvalues: Tensor  # of L_sym, increasing from 0; as many as were looked at


def spectral_modes(
    draws: Tensor,
    n_modes: int | None = None,
    n_neighbors: int = 4,
    *,
    bandwidth: float = 1.0,
    generator: torch.Generator,
) -> SpectralModes:
    """k-means in the first eigenvectors of the normalised Laplacian of a neighbour graph.

        L_sym = I - D^-1/2 A D^-1/2,    A_ij = exp(-dist(a_i, a_j)^2 / (2 bandwidth^2))

    where ``j`` is one of the nearest neighbours of ``i`` or the other way round, D the row sums.
    (Equation 32 prints ``D^-1/2 L D^1/2``, which isn't symmetric, with L undefined.) Rows of the
    eigenvectors are normalised, as Ng, Jordan and Weiss do for this Laplacian.

    Parameters
    ----------
    draws : Tensor of shape (n, D)
        Aligned; distances are Euclidean, in the draws' own units.
    n_modes : int, optional
        Number of clusters; by default the largest eigengap among the first ten decides.
    n_neighbors : int, default=4
        The draw itself not counted.
    bandwidth : float, default=1.0
        The paper's sigma.
    generator : torch.Generator
        Chooses where k-means starts; nothing else is random.

    Returns
    -------
    SpectralModes

    Raises
    ------
    ValueError
        If there are fewer draws than clusters.

    Notes
    -----
    Eigenvectors are found in each connected component by itself: the eigenvalue 0 is as often
    there as the graph has components, and Lanczos iterations miss repeated eigenvalues.
    The eigengap counts components of a sparse graph, which fall apart in many dimensions; modes of
    unlike densities are better told apart by `find_modes`.
    """
    points = draws.detach().cpu().double().numpy()
    if len(points) < (n_modes or 1):
        raise ValueError(f"n_modes={n_modes} clusters need as many draws, got {len(points)}.")
    similarity = _neighbor_graph(points, n_neighbors, bandwidth)
    wanted = n_modes if n_modes is not None else min(_MAX_MODES, len(points) - 1)
    values, vectors = _smallest_of_laplacian(similarity, min(wanted + 1, len(points)))
    if n_modes is None:
        n_modes = _eigengap(values)
    embedding = vectors[:, :n_modes]
    length = np.linalg.norm(embedding, axis=1, keepdims=True)
    embedding = embedding / np.maximum(length, np.finfo(float).tiny)
    labels = _k_means(embedding, n_modes, generator)
    order = np.argsort(-np.bincount(labels, minlength=n_modes), kind="stable")
    place = np.argsort(order, kind="stable")
    return SpectralModes(torch.from_numpy(place[labels]), torch.from_numpy(values))


def _neighbor_graph(points: Floats, n_neighbors: int, bandwidth: float) -> csr_matrix:
    n = len(points)
    k = min(n_neighbors, n - 1)
    if k == 0:
        return csr_matrix((n, n))
    distance, near = cKDTree(points).query(points, k=[*range(1, k + 2)])
    itself = near == np.arange(n)[:, None]
    itself[~itself.any(axis=1), -1] = True  # crowded out by its own duplicates
    rows = np.repeat(np.arange(n), k)
    weight = np.exp(-0.5 * (distance[~itself] / bandwidth) ** 2)
    graph = csr_matrix((weight, (rows, near[~itself])), shape=(n, n))
    return graph.maximum(graph.T).tocsr()


def _smallest_of_laplacian(similarity: csr_matrix, k: int) -> tuple[Floats, Floats]:
    """The k smallest eigenvalues of L_sym and their vectors, (k,) and (n, k)."""
    n = similarity.shape[0]
    similarity.eliminate_zeros()  # draws so far apart that their similarity is 0
    n_parts, part = connected_components(similarity, directed=False)
    values, columns = [], []
    for i in range(n_parts):
        members = np.flatnonzero(part == i)
        found, vectors = _component_spectrum(similarity[members][:, members], k)
        wide = np.zeros((n, len(found)))
        wide[members] = vectors
        values.append(found)
        columns.append(wide)
        if i % k == k - 1:  # no more than 2 k columns of length n at any time
            values, columns = _first(values, columns, k)
    values, columns = _first(values, columns, k)
    return values[0], columns[0]


def _first(
    values: list[Floats], columns: list[Floats], k: int
) -> tuple[list[Floats], list[Floats]]:
    joined, wide = np.concatenate(values), np.concatenate(columns, axis=1)
    order = np.argsort(joined, kind="stable")[:k]
    return [joined[order]], [wide[:, order]]


def _component_spectrum(similarity: csr_matrix, k: int) -> tuple[Floats, Floats]:
    """Smallest eigenvalues of L_sym of one connected graph, increasing."""
    n = similarity.shape[0]
    degree = np.asarray(similarity.sum(axis=1)).ravel()
    scaling = diags(1.0 / np.sqrt(np.where(degree > 0, degree, 1.0)))
    normal = scaling @ similarity @ scaling
    if n == 1:
        return np.zeros(1), np.ones((1, 1))
    if n <= max(_DENSE, k + 1):
        top, vectors = np.linalg.eigh(normal.toarray())
    else:
        top, vectors = eigsh(normal, k=k, which="LA", v0=np.sqrt(degree) + 1.0 / n)
    order = np.argsort(-top, kind="stable")[:k]
    return np.maximum(1.0 - top[order], 0.0), vectors[:, order]


def _eigengap(values: Floats) -> int:
    gaps = np.diff(values)
    return int(np.flatnonzero(gaps >= gaps.max() - _MARGIN)[0]) + 1 if len(gaps) else 1


def _k_means(rows: Floats, k: int, generator: torch.Generator) -> npt.NDArray[np.int64]:
    """Lloyd's iterations from rows that point in directions as different as possible."""
    first = int(torch.randint(len(rows), (1,), generator=generator, device=generator.device))
    chosen = [first]
    alike = rows @ rows[first]
    while len(chosen) < k:
        chosen.append(int(alike.argmin()))
        alike = np.maximum(alike, rows @ rows[chosen[-1]])
    return np.asarray(kmeans2(rows, rows[chosen], minit="matrix", iter=100)[1], dtype=np.int64)
