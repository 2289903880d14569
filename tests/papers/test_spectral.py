"""Spectral clustering: the Laplacian written out, components, the paper's settings."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from spectral import spectral_modes
from torch.testing import assert_close

from skbayes_sym.numerics.random import generator_from


def blobs(sizes, n_dims, generator, spread=4.0, scale=0.3):
    centres = spread * torch.randn(len(sizes), n_dims, generator=generator, dtype=torch.float64)
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    noise = torch.randn(len(truth), n_dims, generator=generator, dtype=torch.float64)
    order = torch.randperm(len(truth), generator=generator)
    return (centres[truth] + scale * noise)[order], truth[order]


def partition(labels, truth):
    pairs = torch.stack([labels, truth], dim=1).unique(dim=0)
    return len(pairs) == len(labels.unique()) == len(truth.unique())


@pytest.mark.parametrize("n", [60, 500], ids=["dense", "lanczos"])
def test_spectrum_of_the_normalised_laplacian(n, generator):
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    square = cdist(x, x) ** 2
    near = np.argsort(square, axis=1)[:, 1:6]
    adjacent = np.zeros((n, n), dtype=bool)
    adjacent[np.arange(n)[:, None], near] = True
    a = np.where(adjacent | adjacent.T, np.exp(-square / (2 * 0.7**2)), 0.0)
    root = np.diag(a.sum(1) ** -0.5)
    expected = np.linalg.eigvalsh(np.eye(n) - root @ a @ root)[:5]
    found = spectral_modes(x, 4, 5, bandwidth=0.7, generator=generator).eigenvalues
    assert_close(found.numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sizes", [[70, 50, 30], [900, 300, 60]], ids=str)
@pytest.mark.parametrize("n_modes", [3, None])
def test_blobs_are_found(sizes, n_modes, generator):
    """The graph falls apart: 0 is a repeated eigenvalue."""
    x, truth = blobs(sizes, 3, generator)
    found = spectral_modes(x, n_modes, 10, generator=generator)
    assert partition(found.labels, truth)
    assert torch.bincount(found.labels).tolist() == sizes
    assert_close(found.eigenvalues[:3], torch.zeros(3).double(), rtol=0, atol=1e-9)
    assert float(found.eigenvalues[3]) > 1e-3
    again = spectral_modes(x, n_modes, 10, generator=generator_from(3))
    assert torch.equal(again.labels, found.labels)


def test_touching_modes_with_the_papers_neighbours(generator):
    x, truth = blobs([300, 300], 8, generator, spread=0.0)
    x[truth == 1, 0] += 1.8  # six standard deviations
    found = spectral_modes(x, 2, generator=generator)
    assert partition(found.labels, truth)


def test_a_ring_around_a_blob(generator):
    angle = 2 * torch.pi * torch.rand(300, generator=generator, dtype=torch.float64)
    ring = 3.0 * torch.stack([angle.cos(), angle.sin()], dim=1)
    x = torch.cat([ring, 0.3 * torch.randn(100, 2, generator=generator, dtype=torch.float64)])
    found = spectral_modes(x, 2, 10, generator=generator)
    assert partition(found.labels, (torch.arange(400) >= 300).long())


def test_few_draws_and_duplicates(generator):
    x = torch.randn(1, 3, generator=generator)
    assert spectral_modes(x, generator=generator).labels.tolist() == [0]
    same = torch.cat([torch.zeros(10, 2), torch.ones(12, 2)])
    found = spectral_modes(same, 2, generator=generator)
    assert partition(found.labels, (torch.arange(22) >= 10).long())
    with pytest.raises(ValueError, match="n_modes=3"):
        spectral_modes(x.repeat(2, 1), 3, generator=generator)
