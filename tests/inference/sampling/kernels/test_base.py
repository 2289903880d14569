"""What kernels share; preconditioners have their laws in test_hmc.py and test_laws.py."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.testing import assert_close

from skbayes_sym.inference.sampling.kernels.kernel import State, where


class Point(NamedTuple):
    state: State
    momentum: Tensor


def test_where_chooses_chain_by_chain_in_nested_tuples(generator):
    def point():
        x = torch.randn(3, 4, generator=generator)
        return Point(State(x, x.sum(1), 2.0 * x), -x)

    new, old = point(), point()
    chosen = where(torch.tensor([True, False, True]), new, old)
    assert isinstance(chosen, Point)
    assert isinstance(chosen.state, State)
    for chain, source in enumerate((new, old, new)):
        assert_close(chosen.momentum[chain], source.momentum[chain], rtol=0, atol=0)
        for ours, theirs in zip(chosen.state, source.state, strict=True):
            assert_close(ours[chain], theirs[chain], rtol=0, atol=0)
