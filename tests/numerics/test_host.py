"""Several tensors of a device reach the host in one copy, bit for bit."""

import torch

from skbayes_sym.numerics.host import to_host

_MIXED = (
    torch.tensor([True, False, True]),
    torch.randn(2, 3, generator=torch.Generator().manual_seed(0)),
    torch.tensor([[-1.0, torch.nan]], dtype=torch.float64),
    torch.arange(6).reshape(2, 3).T,  # not contiguous
    torch.zeros(0, 3),
    torch.tensor(7.5, dtype=torch.float64),
)


def test_one_wait_for_all(cuda):
    there = [tensor.to("cuda") for tensor in _MIXED]
    with cuda.trace() as seen:
        here = to_host(there)
    assert sum(seen.waits.values()) == 1
    for tensor, found in zip(_MIXED, here, strict=True):
        assert (found.device.type, found.dtype, found.shape) == ("cpu", tensor.dtype, tensor.shape)
        torch.testing.assert_close(found, tensor, rtol=0.0, atol=0.0, equal_nan=True)


def test_what_is_on_the_host_stays_as_it_is():
    assert all(a is b for a, b in zip(to_host(_MIXED), _MIXED, strict=True))
    assert to_host([]) == []
