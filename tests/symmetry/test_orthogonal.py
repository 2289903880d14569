"""Procrustes alignment, and generators."""

import torch
from torch.testing import assert_close

from skbayes_sym.symmetry.orthogonal import Orthogonal


def test_generators_and_other_entries(generator):
    """Entries outside of the rows stay; generators are elements, one a reflection."""
    group = Orthogonal(torch.tensor([[0, 2, 4], [1, 3, 5]]))
    theta = torch.randn(8, generator=generator, dtype=torch.float64)
    names = []
    for name, g in group.generators():
        names.append(name)
        assert_close(g @ g.mT, group.identity(), rtol=0, atol=1e-15)
        assert_close(group.act(g, theta)[6:], theta[6:], rtol=0, atol=0)
    assert len(names) == len(set(names)) == 3
    assert group.log_order == float("inf")
