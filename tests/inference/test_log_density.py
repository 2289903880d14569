"""Log densities whose derivatives are known, gradients that are wrong, and searches for modes."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.log_density import AutogradPosterior, RoughGradients, gradient_of
from skbayes_sym.inference.map import MapObjective
from skbayes_sym.inference.sampling.kernels import HMC, DiagonalPreconditioner, initial_state


@pytest.mark.parametrize("inference_mode", [False, True])
def test_value_and_gradient_of_a_normal(inference_mode, generator):
    """Prior N(0, 4), one datum y = 1 of N(position, 1), coordinate by coordinate."""
    prior, datum = (torch.distributions.Normal(*law) for law in ((0.0, 2.0), (1.0, 1.0)))
    density = AutogradPosterior(
        2, lambda q: prior.log_prob(q).sum(1), lambda q: datum.log_prob(q).sum(1)
    )
    with torch.inference_mode(inference_mode):
        position = torch.randn(5, 2, generator=generator, dtype=torch.float64)
        value, gradient = density.evaluate(position)
    assert_close(gradient, -position / 4.0 - (position - 1.0), rtol=1e-14, atol=1e-14)
    assert_close(value, density(position), rtol=0, atol=0)
    assert not value.requires_grad
    assert not gradient.requires_grad


def shifted(by):
    return AutogradPosterior(2, lambda q: -0.5 * ((q - by) ** 2).sum(1), lambda q: 0.0 * q.sum(1))


def test_where_only_a_gradient_is_asked_for(generator):
    density = RoughGradients(shifted(0.0), shifted(0.5), torch.float32)
    position = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    value, gradient = density.evaluate(position)
    assert_close(value, shifted(0.0)(position), rtol=0, atol=0)
    assert_close(gradient, (0.5 - position.float()).double(), rtol=0, atol=0)
    assert_close(gradient_of(density)(position), gradient, rtol=0, atol=0)
    assert_close(gradient_of(shifted(0.0))(position), -position, rtol=0, atol=0)


def test_trajectories_are_exact_under_wrong_gradients(generator):
    """Draws stay draws; where the values are wrong as well they don't, and the test sees it."""
    kernel = HMC(max_leapfrog=4)

    def moved(density, n=20_000):
        state = initial_state(torch.randn(n, 2, generator=generator).double(), density)
        for _ in range(4):
            state, info = kernel.step(
                state, density, step_size=torch.full((n,), 0.7).double(), generator=generator,
                preconditioner=DiagonalPreconditioner(torch.ones(2).double()),
            )  # fmt: skip
        features = torch.cat([state.position, state.position**2 - 1], 1)
        z = features.mean(0) / features.std(0) * n**0.5
        return float(z.abs().max()), float(info.acceptance.mean())

    z, acceptance = moved(RoughGradients(shifted(0.0), shifted(0.8), torch.float32))
    assert z < 4.5
    assert 0.3 < acceptance < 0.9
    assert moved(shifted(0.8))[0] > 20


def test_members_of_one_batch_dont_know_each_other():
    """Each search goes where it goes alone."""

    def cube(position):
        return -((position**2 - 1.0) ** 2).sum(-1)

    target = AutogradPosterior(3, lambda p: torch.zeros(len(p)).to(p), cube)
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    together = MapObjective(target, 2, start)
    together(0)
    assert torch.equal(together.position, start)
    alone = [MapObjective(target, 2, s[None]) for s in start]
    for objective in alone:
        objective(0)
    gradients = torch.stack([o.gradient for o in alone])
    assert torch.equal(together.gradient[:10].view(5, 2), gradients[:, :2])
    assert torch.equal(together.gradient[10:].view(5, 1), gradients[:, 2:])


def test_the_objectives_gradient_is_that_of_its_loss():
    target = AutogradPosterior(
        4, lambda p: torch.zeros(len(p)).to(p), lambda p: (p.cumsum(-1).sin()).sum(-1)
    )
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()
    objective = MapObjective(target, 3, start)
    objective(0)

    def loss(params):
        position = torch.cat([params[:9].view(3, 3), params[9:].view(3, 1)], 1)
        return -(target(position) - position[:, 3]).sum()

    expected = torch.autograd.functional.jacobian(loss, objective.params)
    torch.testing.assert_close(objective.gradient, expected)
