"""Many searches for a mode as one flat vector."""

import torch

from skbayes_sym.inference.log_density import AutogradPosterior
from skbayes_sym.inference.map import MapObjective


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
