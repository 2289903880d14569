"""Cost of a hyperparameter update beside an epoch of Augerino, and its memory.

``python asv_bench/studies/compare_updates.py`` prints the table of ratios in one run.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.laplace.curvature import Directions, Kronecker
from skbayes_sym.laplace.evidence import AveragedNetwork, LaplaceEvidence
from skbayes_sym.laplace.map import MapObjective
from skbayes_sym.laplace.online_training import (
    HyperAscent,
    HyperRates,
    JointDensity,
    OnlineEvidence,
    recorded_steps,
)
from skbayes_sym.models.augmentations.images import Affine
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.numerics.optimise import FlatAdam, ParamGroup
from skbayes_sym.numerics.random import generator_from

SHAPES = {"mlp": (1, 28, 28), "cnn": (1, 28, 28)}
COLOURED = (3, 32, 32)  # of the residual networks
DIRECTIONS = {
    "exact": Directions("exact"),
    "sketch": Directions("sketch"),
    "ef": Directions("fisher"),
}
RATES = HyperRates(half_width=0.05, likelihood=0.0, log_precision=0.05)


class Case(NamedTuple):
    """Sizes of a training problem on images of 10 classes."""

    network: str
    n_rows: int
    n_samples: int
    batch_size: int


CASES = {
    "mlp": Case("mlp", 1000, 31, 250),
    "cnn": Case("cnn", 64, 16, 64),
    "cnn-batches": Case("cnn", 256, 16, 32),
    "mlp-8000": Case("mlp", 8000, 8, 250),
}
# Small, for all rows beside an eighth of them.
NETWORKS = {
    "mlp-256": Case("mlp", 256, 4, 64),
    "cnn-256": Case("cnn", 256, 4, 64),
    "resnet-8-8": Case("resnet-8-8", 256, 4, 64),
    "resnet-8-16": Case("resnet-8-16", 64, 2, 32),
    "wrn-16-4": Case("wrn-16-4", 16, 2, 8),
}


class Problem:
    """Model, float32 data and starting points of a case."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.case = case
        generator = torch.Generator().manual_seed(0)
        shape = SHAPES.get(case.network, COLOURED)
        x = torch.rand(case.n_rows, prod(shape), generator=generator)
        y = torch.randint(0, 10, (case.n_rows,), generator=generator)
        self.data = Data(*(t.to(device) for t in (x, y, torch.ones(case.n_rows))))
        is_mlp = case.network == "mlp"
        network = MLP(784, (1000,), 10, TANH) if is_mlp else ARCHITECTURES[case.network](shape, 10)
        self.model = AveragedNetwork(
            network, Affine("axis", image_shape=shape), Categorical(), case.n_samples
        )
        self.theta = network.init(1, generator=generator_from(0))[0].to(self.data.x)
        precision = torch.zeros(len(network.weight_layers), dtype=torch.float64)
        start = torch.cat([self.model.augmentation.half_width.start(), precision])
        self.hyper = start.to(self.data.x)

    def density(self, reward: float | None = None) -> JointDensity:
        """What training climbs; with a reward, Augerino's."""
        generator = generator_from(0, self.data.x.device)
        batches = Batches(self.data, self.case.batch_size, generator)
        return JointDensity(self.model, batches, self.hyper, rest_precision=1.0, reward=reward)

    def objective(self, density: JointDensity) -> MapObjective:
        """Its negative, from the start."""
        return MapObjective(density, density.n_dims, density.start(self.theta))

    def evidence(self, directions: str) -> LaplaceEvidence:
        structure = Kronecker(self.model.layers, self.model.network.layout)
        return LaplaceEvidence(
            self.model, self.data, structure, DIRECTIONS[directions], self.case.batch_size
        )

    @property
    def n_steps(self) -> int:
        """Steps an epoch."""
        return -(-self.case.n_rows // self.case.batch_size)

    def epoch(self, objective: MapObjective) -> None:
        """One pass of optimiser steps."""
        adam = FlatAdam(
            objective.params, objective.gradient, [ParamGroup(slice(0, None), 1e-3)]
        )  # fmt: skip
        for step in range(self.n_steps):
            objective(step)
            adam.step(1.0)


def augerino_epoch(problem: Problem) -> Callable[[], None]:
    """An epoch of training weights and half-widths together."""
    objective = problem.objective(problem.density(reward=0.01))
    return lambda: problem.epoch(objective)


def exact_update(problem: Problem, directions: str) -> Callable[[], None]:
    """Both passes, the decompositions and the step."""
    ascent = HyperAscent(problem.evidence(directions), problem.hyper.clone(), RATES, 0)
    return lambda: _without_graph(lambda: ascent.update(problem.theta, 1.0))


def online_epoch(
    problem: Problem, directions: str, n_recorded: int | None = None
) -> Callable[[], None]:
    """An epoch of training that gathers an update on the way, and that update.

    From as many of its steps as the estimators record, by default.
    """
    evidence = problem.evidence(directions)
    online = OnlineEvidence(evidence)
    ascent = HyperAscent(evidence, problem.hyper, RATES, 0, online)
    density = problem.density()
    objective = problem.objective(density)
    n = problem.n_steps
    layers = evidence.model.network.weight_layers
    start = n - (recorded_steps(n, n, layers) if n_recorded is None else n_recorded)
    density.record_with(online, lambda n: n % problem.n_steps >= start)

    def run() -> None:
        problem.epoch(objective)
        ascent.update(objective.params, 1.0)

    return lambda: _without_graph(run)


def _without_graph(run: Callable[[], object]) -> None:
    with torch.no_grad():
        run()


def _wait(like: Tensor) -> None:
    if like.is_cuda:
        torch.cuda.synchronize()


class Update:
    """Seconds of what LILA's training is made of."""

    params = (list(CASES), ["augerino", *DIRECTIONS, "online-sketch"], ["cpu", "cuda"])
    param_names = ("case", "what", "device")
    timeout = 600

    def setup(self, case: str, what: str, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise NotImplementedError
        torch.set_num_threads(1)
        self.problem = Problem(CASES[case], device)
        if what == "augerino":
            self.run = augerino_epoch(self.problem)
        elif what == "online-sketch":
            self.run = online_epoch(self.problem, "sketch")
        else:
            self.run = exact_update(self.problem, what)
        self.run()

    def time_update(self, case: str, what: str, device: str) -> None:
        self.run()
        _wait(self.problem.theta)

    def peakmem_update(self, case: str, what: str, device: str) -> None:
        self.run()
