"""A budget of waits: how often a fit has the host stand still until a GPU has answered.

Counted on the pretend device (`pretend_cuda`) by `asv_bench/studies/device_waits.py`, which prints
the README's table. Every number is a difference of two fits, so that what a fit does once isn't in
it.
"""

import importlib.util
import sys
from math import inf
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from skbayes_sym.inference.log_density import AutogradPosterior
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.kernels.kernel import DiagonalPreconditioner, initial_state
from skbayes_sym.inference.sampling.kernels.nuts import NUTS
from skbayes_sym.models.augmentations.affine import Affine
from skbayes_sym.numerics.machine import constant, positions

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is not None, reason="a real GPU doesn't count"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

_path = Path(__file__).parents[1] / "asv_bench/studies/device_waits.py"
_spec = importlib.util.spec_from_file_location("device_waits", _path)
device_waits = importlib.util.module_from_spec(_spec)
sys.modules["device_waits"] = device_waits
_spec.loader.exec_module(device_waits)
CASES = device_waits.CASES


class Budget(NamedTuple):
    """Two numbers of steps, and how often one of them may wait and upload."""

    few: int
    many: int
    waits: float
    uploads: float = 0.05


# Both fits of those trained by steps have a hundred blocks: of one step, and of two. LILA draws
# what it averages over with its evidence, and makes its constants once; the bounds at the end of
# symmetrised VI depend on where it ends. Minibatches upload the constants of a batch's density.
BUDGETS = {
    "ensemble, minibatches": Budget(100, 200, 0.0, 4.05),
    "VI, 10 units": Budget(100, 200, 0.02),
    "Laplace, Kronecker": Budget(100, 200, 0.0),
    "LILA, rotation": Budget(100, 200, 0.05),
    "VI, last layer collapsed, both starts": Budget(100, 200, 0.0),
    "VI, inducing points, both starts": Budget(100, 200, 0.0),
    "MCMC, hmc": Budget(10, 20, 0.1, inf),  # draws, and lengths of the next ten moves
    "MCMC, smc": Budget(1, 2, 4 * 56, inf),  # a replicate of seven temperatures, eight moves each
    "factorisation, VI": Budget(4, 8, 17, 0.5),
    "factorisation, Gibbs": Budget(4, 8, 17, 3.5),  # gamma variables are drawn on the host
    # For the restarts that are left; for a factor of the evidence's matrix, and who has ended.
    "Laplace, four modes": Budget(20, 40, 5.0, inf),
}
SECONDS = {"VI, inducing points, both starts", "VI, last layer collapsed, both starts", "MCMC, hmc"}


def more(name, few, many):
    """What ``many`` steps ask for beyond ``few``, each."""
    (a, _), (b, _) = (device_waits.count(CASES[name], n) for n in (few, many))
    return a.per(b, many - few)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SECONDS else n for n in BUDGETS]
)
def test_a_step_keeps_its_budget(name, cuda):
    few, many, waits, uploads = BUDGETS[name]
    step = more(name, few, many)
    assert step.launches > 30.0  # or nothing was counted
    assert step.launches > 10.0 * step.waits
    assert step.waits <= waits
    assert step.uploads <= uploads


@pytest.mark.long
@pytest.mark.parametrize(("name", "waits"), [("Laplace, Kronecker", 0.0), ("VI, 10 units", 1.0)])
def test_a_block_waits_once(name, waits, cuda):
    device_waits.count(CASES[name], 20)  # makes what stays on a device for the next fits
    assert more(name, 40, 80).waits == pytest.approx(waits, abs=0.1)


# A tree asks after leaves 1, 2, 4, ... of each doubling, and once at its end.
DOUBLINGS = [depth + 2 for depth in range(10)]


@pytest.mark.parametrize(("kernel", "budget"), [(HMC(), 1), (NUTS(5), sum(DOUBLINGS[:5]))])
def test_a_move_waits_for_its_length(kernel, budget, cuda):
    device = torch.device("cuda")
    target = AutogradPosterior(3, lambda at: -0.5 * at.square().sum(1), lambda at: 0.0 * at[:, 0])
    state = initial_state(torch.ones(4, 3, dtype=torch.float64, device=device), target)
    with cuda.trace() as seen:
        kernel.step(
            state, target, step_size=torch.full_like(state.value, 0.05),
            preconditioner=DiagonalPreconditioner(torch.ones_like(state.position)),
            generator=torch.Generator(device).manual_seed(0),
        )  # fmt: skip
    assert 0 < sum(seen.waits.values()) <= budget
    assert sum(seen.kernels.values()) > 20 * sum(seen.waits.values())


def test_constants_are_made_once(cuda):
    device = torch.device("cuda")
    with cuda.trace() as seen:
        made = [constant((1.25, -7.5), torch.float64, device) for _ in range(3)]
        where = [positions((5, 3, 11), made[0]) for _ in range(3)]
    assert sum(seen.uploads.values()) == 2
    assert made[0] is made[2]
    assert where[0].tolist() == [5, 3, 11]
    with torch.inference_mode():
        constant((3.0,), torch.float64, device)
    x = torch.ones(1, dtype=torch.float64, device=device, requires_grad=True)
    (x * constant((3.0,), torch.float64, device)).backward()
    assert x.grad.tolist() == [3.0]


def test_an_image_s_grid_is_made_once(cuda):
    family = Affine().bind((), (1, 6, 6))
    x, noise = torch.rand(2, 36, device="cuda"), torch.rand(2, 3, 6, device="cuda")
    eta = family.half_width.start().to(x)
    family.transform(x, eta, noise)
    with cuda.trace() as seen:
        family.transform(x, eta, noise)
    assert not seen.uploads
