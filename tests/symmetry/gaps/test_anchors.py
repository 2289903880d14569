"""Anchors of the bound on a rotation gap."""

import torch
from gap_oracle import Rows
from torch.testing import assert_close

from skbayes_sym.symmetry.gaps.anchors import anchor_features, learn_mixing, plain_anchors
from skbayes_sym.symmetry.gaps.langevin import anchored_inner, langevin_gap


def test_learned_anchors_are_better_than_given_ones(generator):
    """On the draws that the mixing is learned from."""
    mean = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    wide = torch.randn(12, 2, 4, generator=generator, dtype=torch.float64)
    cov = 0.2 * wide @ wide.mT
    root = torch.linalg.cholesky(cov)
    noise = torch.randn(500, 12, 2, 1, generator=generator, dtype=torch.float64)
    features = anchor_features(Rows(mean, cov), root)
    inner = anchored_inner(features, mean + (root @ noise).squeeze(-1))
    learned = float(langevin_gap(learn_mixing(inner) @ inner).mean())
    for given in ([1.0, 0.0], [0.0, 1.0], [0.5, 0.5]):
        mixing = torch.cat([w * torch.eye(2, dtype=torch.float64) for w in given], 1)
        assert learned > float(langevin_gap(mixing @ inner).mean())


def test_both_kinds_agree_for_isotropic_rows(generator):
    mean = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    variance = torch.rand(6, generator=generator, dtype=torch.float64) + 0.1
    cov = variance[:, None, None] * torch.eye(3, dtype=torch.float64)
    rows = Rows(mean, cov)
    first, second = anchor_features(rows, torch.linalg.cholesky(cov)).split(3, dim=1)
    assert_close(first, plain_anchors(rows))
    assert_close(second, mean / variance[:, None])
