"""A budget of waits: how often a fit has the host stand still until a GPU has answered.

Counted on the pretend device (`pretend_cuda`) by `asv_bench/studies/device_waits.py`, which prints
the table of the docs. Every number is a difference of two fits, so that what a fit does once isn't
in it.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from skbayes_sym.inference.log_density import AutogradPosterior
from skbayes_sym.inference.sampling.kernels.base import DiagonalPreconditioner, initial_state
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.kernels.nuts import NUTS
from skbayes_sym.models.augmentations.affine import Affine
from skbayes_sym.numerics.constants import constant, positions

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


def more(name, few, many):
    """What ``many`` steps ask for beyond ``few``, each."""
    (a, _), (b, _) = (device_waits.count(CASES[name], n) for n in (few, many))
    return a.per(b, many - few)


# Both fits have a hundred blocks: of one step, and of two. What LILA averages over is drawn anew
# with its evidence; the bounds at the end of symmetrised VI depend on where it ends.
A_STEP = {
    "ensemble": 0.0, "ensemble, minibatches": 0.0, "VI, 10 units": 0.02, "VI, 50 units": 0.02,
    "VI, no symmetry": 0.0, "VI, last layer collapsed, both starts": 0.0,
    "VI, inducing points, both starts": 0.0,
    "Laplace, Kronecker": 0.0, "Laplace, full": 0.0, "LILA, rotation": 0.05, "LILA, columns": 0.05,
}  # fmt: skip
UPLOADS = {"ensemble, minibatches": 4.0}  # constants of a batch's density
# Seconds, and another family of transformations.
LONG = {
    "VI, inducing points, both starts", "VI, last layer collapsed, both starts", "LILA, columns",
    "VI, 50 units",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.kept("LILA, rotation", "ensemble, minibatches", "Laplace, Kronecker", "VI, 10 units")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in A_STEP]
)
def test_a_step_does_not_wait(name, cuda):
    step = more(name, 100, 200)
    assert step.launches > 30.0  # or nothing was counted
    assert step.waits <= A_STEP[name]
    assert step.uploads <= UPLOADS.get(name, 0.0) + 0.05  # LILA's constants are made once


A_BLOCK = {
    "ensemble": 1.0, "VI, no symmetry": 1.0, "VI, 10 units": 1.0, "Laplace, Kronecker": 0.0,
    "VI, last layer collapsed, both starts": 2.0,
}  # fmt: skip


@pytest.mark.long
@pytest.mark.kept("VI, last layer collapsed, both starts", "Laplace, Kronecker", "VI, 10 units")
@pytest.mark.parametrize("name", A_BLOCK)
def test_a_block_waits_once(name, cuda):
    device_waits.count(CASES[name], 20)  # makes what stays on a device for the next fits
    assert more(name, 40, 80).waits == pytest.approx(A_BLOCK[name], abs=0.1)


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


@pytest.mark.slow
def test_chains_wait_once_every_tenth_move_or_once_a_doubling(cuda):
    """Hamiltonian ones for draws and what is told, and the lengths of the next ten moves."""
    assert more("MCMC, hmc", 10, 20).waits <= 0.1
    trees = more("MCMC, nuts", 1, 2)
    assert trees.waits <= sum(DOUBLINGS) + 3
    assert trees.launches > 100.0 * trees.waits


@pytest.mark.long
def test_particles_wait_once_a_move(cuda):
    step = more("MCMC, smc", 1, 2)
    n_moves = 56  # of this run: seven temperatures, eight moves each
    assert step.waits <= 4 * n_moves
    assert step.launches > 50.0 * step.waits


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "budget", "uploads"),
    [("factorisation, VI", 17, 0.0), ("factorisation, Gibbs", 17, 3.0)],
)
def test_a_sweep_of_factors(name, budget, uploads, cuda):
    step = more(name, 4, 8)
    assert 0 < step.waits <= budget
    assert step.uploads <= uploads + 0.5  # gamma variables of Gibbs are drawn on the host


@pytest.mark.long
def test_a_gauss_newton_step_waits_once_a_try_and_twice_more(cuda):
    """For the restarts that are left; for a factor of the evidence's matrix, and who has ended."""
    step = more("Laplace, four modes", 20, 40)
    assert 2.5 < step.waits <= 5.0  # less than three tries


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
