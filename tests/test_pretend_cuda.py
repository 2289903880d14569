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
    "in place": lambda x: x.clone().add_(HERE),
    "product": lambda x: x @ HERE,
    "cat": lambda x: torch.cat([x, torch.ones(1, 4)]),
    "stack of scalars": lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(3, 4)),
    "gather": lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "solve": lambda x: torch.linalg.solve(x[:, :3], torch.ones(3)),
    "out": lambda x: torch.add(x, x, out=torch.empty(3, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_mix_devices_are_refused(name, x):
    with pytest.raises(RuntimeError, match=MIXED):
        REFUSED[name](x)


def test_indices_of_the_device_do_not_index_the_host(x):
    with pytest.raises(RuntimeError, match="indices should be"):
        HERE[torch.tensor([0], device="cuda")]


def test_a_generator_of_the_other_device_is_refused(x):
    with pytest.raises(RuntimeError, match=r"generator|same device"):
        torch.randn(3, generator=torch.Generator("cuda"))
    with pytest.raises(RuntimeError, match="'cuda' device type for generator"):
        torch.randn(3, device="cuda", generator=torch.Generator())


@pytest.mark.parametrize("ask", [lambda x: x.numpy(), np.asarray])
def test_numpy_does_not_see_the_device(ask, x):
    with pytest.raises(TypeError, match="convert cuda:0 device type tensor to numpy"):
        ask(x)


def test_kernels_that_cuda_lacks_are_refused(x):
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        x.long() @ x.long().mT
    with pytest.raises(RuntimeError, match="driver"):
        torch.linalg.lstsq(x, x, driver="gelsd")


def test_what_a_gpu_takes(x):
    for allowed in (x + torch.tensor(1.0), x * 2, x[torch.tensor([0])]):
        assert allowed.is_cuda
    assert torch.where(x > 3.0, x, torch.tensor(0.0)).is_cuda
    x[0] = HERE  # a copy
    assert x[0].tolist() == [1.0] * 4
    assert x.cpu().numpy().shape == (3, 4)
    assert torch.as_tensor(HERE.numpy(), device="cuda").is_cuda
    assert torch.linalg.cholesky(torch.eye(3, device="cuda")).is_cuda


def test_above_the_kernels_everything_is_torch_own(x):
    assert type(x) is torch.Tensor
    assert str(x.device) == "cuda:0"
    w = torch.ones(4, device="cuda", requires_grad=True)
    (x @ w).square().sum().backward()
    assert w.grad.is_cuda
    per_row = torch.func.vmap(torch.func.grad(lambda row: (row * row).sum()))(x)
    assert torch.equal(per_row, 2.0 * x)


def test_streams_are_the_host_s_but_not_their_states(x):
    g, twin = torch.Generator("cuda").manual_seed(0), torch.Generator().manual_seed(0)
    drawn = torch.randn(5, device="cuda", generator=g)
    assert torch.equal(drawn.cpu(), torch.randn(5, generator=twin))
    state = g.get_state()
    after = torch.randn(5, device="cuda", generator=g)
    g.set_state(state)
    assert torch.equal(torch.randn(5, device="cuda", generator=g), after)
    with pytest.raises(RuntimeError, match="wrong size"):
        g.set_state(twin.get_state())
    with pytest.raises(RuntimeError, match=r"size|invalid|state"):
        twin.set_state(g.get_state())


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


def test_it_goes_with_its_context(cuda):
    from pretend_cuda import pretend_cuda

    assert torch.cuda.is_available()
    with pretend_cuda():
        pass
    with pytest.raises((RuntimeError, AssertionError), match="CUDA"):
        torch.Generator("cuda")
