"""The pretend CUDA device refuses what a GPU refuses, and computes what the CPU computes."""

import numpy as np
import pytest
import torch

# A real GPU passes most of these tests too, but has random numbers and kernels of its own.
pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")

MIXED = "same device|multi-device"
HERE = torch.ones(4)


@pytest.fixture
def x(cuda):
    return torch.arange(12.0, device="cuda").view(3, 4)


REFUSED = {
    "sum": lambda x: x + HERE,
    "product": lambda x: x @ HERE,
    "cat": lambda x: torch.cat([x, torch.ones(1, 4)]),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(3, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_mix_devices_are_refused(name, x):
    with pytest.raises(RuntimeError, match=MIXED):
        REFUSED[name](x)


def test_a_generator_of_the_other_device_is_refused(x):
    with pytest.raises(RuntimeError, match=r"generator|same device"):
        torch.randn(3, generator=torch.Generator("cuda"))
    with pytest.raises(RuntimeError, match="'cuda' device type for generator"):
        torch.randn(3, device="cuda", generator=torch.Generator())


def test_numpy_does_not_see_the_device_and_some_kernels_are_not_there(x):
    for ask in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="convert cuda:0 device type tensor to numpy"):
            ask()
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        x.long() @ x.long().mT


def test_what_a_gpu_takes(x):
    for allowed in (x + torch.tensor(1.0), x * 2, x[torch.tensor([0])]):
        assert allowed.is_cuda
    w = torch.ones(4, device="cuda", requires_grad=True)
    (x @ w).square().sum().backward()
    assert w.grad.is_cuda
    per_row = torch.func.vmap(torch.func.grad(lambda row: (row * row).sum()))(x)
    assert torch.equal(per_row, 2.0 * x)


def test_streams_are_the_host_s(x):
    g, twin = torch.Generator("cuda").manual_seed(0), torch.Generator().manual_seed(0)
    drawn = torch.randn(5, device="cuda", generator=g)
    assert torch.equal(drawn.cpu(), torch.randn(5, generator=twin))


def test_launches_waits_and_bytes_are_counted(x, cuda):
    with cuda.trace("test_pretend_cuda") as seen:
        (x + 1.0).sum().item()
        x[x > 0]
        torch.tensor([1.0], device="cuda")
    assert seen.kernels["add_out"] == 1
    assert seen.waits == {"_local_scalar_dense": 1, "nonzero": 1}
    assert sum(seen.uploads.values()) == 1
    assert {where.rsplit(":", 1)[0] for _, _, where in seen.where} == {__file__}
    before = cuda.live_bytes()
    block = torch.empty(1000, device="cuda")
    assert cuda.live_bytes() == before + block.nbytes
