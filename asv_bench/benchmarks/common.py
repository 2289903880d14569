"""Shapes, data and training steps shared by the benchmarks and by `compare_peers`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.mlp import MLP, RELU
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.numerics.optimise import ParamGroup, minimise
from skbayes_sym.symmetry.gaps.unit_gap import PermanentEstimate, Soules, UnitGap
from skbayes_sym.variational.elbo import GatedGap, GaussianNetwork, SymmetrizedElbo, pack

DEVICES = ["cpu", "cuda"]
INITIAL_LOG_VARIANCE = -8.0  # standard deviation 0.018, as the estimators start
_BLOCK = 20  # steps between two looks at the loss, as in a fit of 2,000

# Makes so many optimiser steps.
Run = Callable[[int], None]


class Case(NamedTuple):
    """Sizes of a training problem."""

    n_inputs: int
    hidden: tuple[int, ...]
    n_outputs: int
    n_rows: int
    batch_size: int
    is_classification: bool

    @property
    def title(self) -> str:
        """Sizes in words."""
        sizes = "-".join(str(n) for n in (self.n_inputs, *self.hidden, self.n_outputs))
        return f"{sizes}, {self.batch_size:,} of {self.n_rows:,} rows"


CASES = {
    "M30": Case(784, (30,), 10, 8_000, 100, True),
    "T1k": Case(10, (50,), 1, 1_000, 1_000, False),
    "M400": Case(784, (400,), 10, 8_000, 100, True),
    "T100k": Case(50, (100, 100), 1, 100_000, 1_024, False),
}


def random_data(case: Case, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Float32 inputs and targets of the case's shape: speed doesn't depend on what they say."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.n_rows, case.n_inputs, generator=generator)
    if case.is_classification:
        y = torch.randint(0, case.n_outputs, (case.n_rows,), generator=generator)
    else:
        y = torch.randn(case.n_rows, case.n_outputs, generator=generator)
    return x.to(device), y.to(device)


def network(case: Case) -> MLP:
    """The case's ReLU network."""
    return MLP(case.n_inputs, case.hidden, case.n_outputs, RELU)


def training(
    case: Case,
    *,
    device: str = "cpu",
    gap: GatedGap | None = None,
    log_variance: float = INITIAL_LOG_VARIANCE,
    learning_rate: float = 1e-3,
) -> Run:
    """Training as the estimators do it, float32; every call goes on where the last one ended."""
    net, generator = network(case), torch.Generator(device).manual_seed(0)
    x, y = random_data(case, device)
    likelihood: Likelihood = Categorical()
    if not case.is_classification:
        likelihood = Gaussian(torch.zeros(case.n_outputs, device=device))
    loc = net.init(1, generator=torch.Generator().manual_seed(0))[0].to(device, torch.float32)
    n = len(loc)
    prior = GaussianPrior(torch.ones(n, device=device))
    data = Data(x, y, torch.ones(case.n_rows, device=device))
    objective = SymmetrizedElbo(
        GaussianNetwork(net, likelihood, prior, net.symmetry()),
        Batches(data, case.batch_size, generator),
        pack(loc, torch.full_like(loc, log_variance), likelihood),
        n_draws=1,
        gap=gap,
    )
    groups = [
        ParamGroup(slice(0, n), learning_rate),
        ParamGroup(slice(n, 2 * n), 5.0 * learning_rate, -30.0, 10.0),
        ParamGroup(slice(2 * n, None), learning_rate, -10.0, 10.0),
    ]
    continued = _Continued(objective)

    def run(n_steps: int) -> None:
        with torch.no_grad():
            minimise(
                continued,
                groups=groups,
                max_iter=n_steps,
                block_size=_BLOCK,
                on_step=lambda step, info: False,
            )

    return run


class _Continued:
    """An objective that counts its steps over several calls of `minimise`."""

    def __init__(self, objective: SymmetrizedElbo) -> None:
        self._objective, self._n_steps = objective, 0
        self.params, self.gradient = objective.params, objective.gradient

    def __call__(self, step: int) -> Tensor:
        self._n_steps += 1
        return self._objective(self._n_steps - 1)


def gap_term(
    case: Case, estimate: PermanentEstimate, *, device: str = "cpu", gated: bool = True
) -> GatedGap:
    """The case's symmetrisation gap; ``gated=False`` never finds it saturated."""
    generator = torch.Generator(device).manual_seed(1)
    tol = {} if gated else {"tol": -float("inf")}
    group = network(case).symmetry()
    certificate = UnitGap(group, Soules(tighten=False))
    return GatedGap(UnitGap(group, estimate), certificate, generator=generator, **tol)


def require(device: str) -> None:
    """Skip a benchmark (as asv wants to be told) where its device is missing."""
    if device == "cuda" and not torch.cuda.is_available():
        raise NotImplementedError("no CUDA device")


def synchronise(device: str) -> None:
    """Wait for the device, inside the timed body: launching a kernel is not running it."""
    if device == "cuda":
        torch.cuda.synchronize()


class SingleThread:
    """Base of the benchmarks: one CPU thread, as the estimators use."""

    def setup(self, *args: Any) -> None:
        torch.set_num_threads(1)
