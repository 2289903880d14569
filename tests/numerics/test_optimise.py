import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics import optimise
from skbayes_sym.numerics.optimise import DivergenceError, FlatAdam, ParamGroup, minimise


class Quadratic:
    """Sum of (params - target)^2."""

    def __init__(self, start, target):
        self.params, self.target = start.clone(), target
        self.gradient = torch.zeros_like(start)

    def __call__(self, step):
        difference = self.params - self.target
        self.gradient.copy_(2.0 * difference)
        return (difference**2).sum()


def run(objective, *, max_iter=500, block_size=50, on_step=lambda step, info: False, **kwargs):
    groups = kwargs.pop("groups", [ParamGroup(slice(None), 0.05)])
    return minimise(
        objective, groups=groups, max_iter=max_iter, block_size=block_size, on_step=on_step,
        **kwargs,
    )  # fmt: skip


@pytest.fixture
def quadratic():
    target = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    return Quadratic(torch.zeros(3, dtype=torch.float64), target)


def test_reaches_the_minimum_in_place(quadratic):
    result = run(quadratic)
    assert result.params is quadratic.params
    assert_close(result.params, quadratic.target, atol=1e-3, rtol=0)
    assert (result.n_iter, result.stopped, len(result.loss_curve)) == (500, "max_iter", 10)


def test_memory_of_past_gradients_is_torch_adams_too():
    gradients = torch.tensor([100.0, 1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    reference = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    adam = torch.optim.Adam([reference], lr=0.1, betas=(0.9, 0.5))
    params, gradient = torch.zeros(2, 1, dtype=torch.float64)
    ours = FlatAdam(params, gradient, [ParamGroup(slice(0, 1), 0.1)], beta2=0.5)
    for g in gradients:
        reference.grad = g.reshape(1).clone()
        adam.step()
        gradient.fill_(g)
        ours.step(1.0)
    assert_close(params, reference.detach(), rtol=1e-12, atol=1e-14)


def test_fallback_without_the_fused_kernel_is_the_same(quadratic, monkeypatch):
    fused = run(quadratic).params.clone()
    monkeypatch.delattr(torch, "_fused_adam_")
    plain = run(Quadratic(torch.zeros(3, dtype=torch.float64), quadratic.target)).params
    assert_close(fused, plain, rtol=1e-10, atol=1e-12)


def test_an_error_of_the_fused_kernel_is_not_hidden(quadratic, monkeypatch):
    """Which kernel to use is decided once; what fails later is an error, not another kernel."""
    fused, n_calls = torch._fused_adam_, 0

    def fails_later(*args, **options):
        nonlocal n_calls
        n_calls += 1
        if n_calls > 3:
            raise RuntimeError("out of memory")
        fused(*args, **options)

    monkeypatch.setattr(torch, "_fused_adam_", fails_later)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(quadratic)


def test_groups_have_their_own_step_and_range(quadratic):
    groups = [ParamGroup(slice(0, 1), 0.05), ParamGroup(slice(1, 3), 0.05, -0.25, 0.25)]
    run(quadratic, groups=groups)
    expected = torch.tensor([1.0, -0.25, 0.25], dtype=torch.float64)
    assert_close(quadratic.params, expected, atol=1e-3, rtol=0)


def test_callback_stops_and_hears_the_loss(quadratic):
    heard = []

    def on_step(step, info):
        heard.append((step, info["loss"]))
        return step >= 100

    result = run(quadratic, on_step=on_step)
    assert (result.stopped, result.n_iter) == ("callback", 100)
    assert [s for s, _ in heard] == [50, 100]
    assert heard[1][1] < heard[0][1]


def test_stops_when_the_loss_stalls(quadratic):
    result = run(quadratic, max_iter=4000, tol=1e-6)
    assert result.stopped == "tol"
    assert result.n_iter < 4000
    assert_close(result.params, quadratic.target, atol=1e-3, rtol=0)


def test_a_stalled_schedule_runs_out_within_a_tenth(quadratic):
    seen = []

    def schedule(progress):
        seen.append(progress)
        return 1.0 if progress < 0.5 else 0.02

    result = run(quadratic, max_iter=4000, tol=1e-6, schedule=schedule)
    steps = np.diff(seen)
    slow = np.isclose(steps, 1 / 4000)
    n_fast = int((~slow).sum())
    assert slow[:-n_fast].all()  # all at once, at the end
    assert n_fast == pytest.approx(400, abs=1)
    assert (result.stopped, len(seen)) == ("tol", result.n_iter)
    assert 1.0 - seen[-1] < 2 * steps[-1]


def test_interrupt_is_reported_between_steps(quadratic):
    class Interrupted(Quadratic):
        def __call__(self, step):
            if step == 70:
                raise KeyboardInterrupt
            return super().__call__(step)

    result = run(Interrupted(torch.zeros(3, dtype=torch.float64), quadratic.target))
    assert (result.stopped, result.n_iter) == ("interrupted", 70)


def test_divergence_names_remedies(quadratic):
    quadratic.target = torch.full((3,), float("inf"), dtype=torch.float64)
    with pytest.raises(DivergenceError, match=r"within the 50 steps.*learning_rate"):
        run(quadratic)


def test_last_block_may_be_shorter(quadratic):
    result = run(quadratic, max_iter=120)
    assert (result.n_iter, len(result.loss_curve)) == (120, 3)


def test_schedule_is_constant_then_linear():
    factors = [optimise.half_constant_half_linear(p) for p in (0.0, 0.49, 0.75, 0.999)]
    assert factors[:2] == [1.0, 1.0]
    assert factors[2] == pytest.approx(0.51)
    assert factors[3] == pytest.approx(0.02, abs=2e-3)


def rosenbrock(x):
    return (1.0 - x[0]) ** 2 + 100.0 * (x[1] - x[0] ** 2) ** 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lbfgs_finds_the_valley(dtype):
    start = torch.tensor([-1.2, 1.0], dtype=dtype)
    found = optimise.lbfgs(optimise.with_gradient(rosenbrock), start, max_iter=200, gtol=1e-8)
    assert found.dtype == dtype
    # The curvature along the valley is 0.4: float32's 6e-8 of a loss leaves 5e-4.
    atol = 1e-5 if dtype == torch.float64 else 2e-2
    assert_close(found, torch.ones(2, dtype=dtype), atol=atol, rtol=0)


def test_lbfgs_keeps_to_bounds():
    start = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    bounds = [(-2.0, 0.5), (-2.0, 2.0)]
    loss = optimise.with_gradient(rosenbrock)
    found = optimise.lbfgs(loss, start, max_iter=200, bounds=bounds, gtol=1e-8)
    assert_close(found, torch.tensor([0.5, 0.25], dtype=torch.float64), atol=1e-5, rtol=0)


def test_lbfgs_turns_back_where_the_loss_is_no_number():
    """Convex on the positive half, and a first step (of length 1) out of it."""
    start, visited = torch.tensor([0.5], dtype=torch.float64), []

    def loss(x):
        visited.append(x.item())
        return (100.0 * x - x.log()).sum()

    found = optimise.lbfgs(optimise.with_gradient(loss), start, max_iter=100)
    assert min(visited) < 0.0
    assert float(found) == pytest.approx(0.01, rel=1e-4)
    nowhere = optimise.with_gradient(lambda x: (x * float("nan")).sum())
    assert torch.equal(optimise.lbfgs(nowhere, start, max_iter=100), start)


def test_a_loop_knows_why_it_ended():
    for stop, reason, made in ((None, "max_iter", 5), (2, "callback", 3)):
        done = []
        with optimise.Loop() as loop:
            for i in loop.steps(range(5)):
                done.append(i)
                loop.stop_if("callback", i == stop)
                loop.stop_if("tol", i == stop)  # the first reason counts
        assert (loop.stopped, len(done)) == (reason, made)


def test_a_loop_reports_an_interrupt_and_passes_errors_on():
    with optimise.Loop() as loop:
        raise KeyboardInterrupt
    assert loop.stopped == "interrupted"
    with pytest.raises(ZeroDivisionError), optimise.Loop():
        raise ZeroDivisionError
