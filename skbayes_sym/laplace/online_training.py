"""Training by turns: weights towards their mode, hyperparameters up the Laplace evidence."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.base.log_density import Evaluation
from skbayes_sym.laplace.curvature import Factors, Precision
from skbayes_sym.laplace.evidence import (
    AveragedNetwork,
    EvidenceParts,
    LaplaceEvidence,
    Pass,
    Seen,
    add_factors,
)
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.network import Recording, WeightLayer
from skbayes_sym.numerics.optimise import DivergenceError, FlatAdam, ParamGroup
from skbayes_sym.numerics.random import spawn_seeds

# Adam's memory, in 1 / (1 - beta2) updates. There are tens of updates, not thousands, and the first
# gradients, of a network that fits nothing yet, are the largest: remembered (0.999) they would
# shrink every later step, and half-widths would stop short of the evidence's maximum.
_HYPER_BETA2 = 0.9

# What recording may add to training, relative to it: see `recorded_steps`.
_RECORDING_BUDGET = 0.45


def recorded_steps(n_between: int, n_epoch: int, layers: Sequence[WeightLayer]) -> int:
    """How many of the last steps before an update `OnlineEvidence` should record.

    Those that see the data once, as far as recording them keeps online training below 1.5 times the
    cost of training alone: three in four steps of a dense network, one in four of a convolutional
    one; at least one.

    ``n_between``: steps between two updates; ``n_epoch``: steps that see the data once.
    """
    cost = max(layer.recording_cost for layer in layers)
    return min(n_epoch, max(1, int(n_between * _RECORDING_BUDGET / cost)))


class HyperRates(NamedTuple):
    """Adam's step sizes of the hyperparameters."""

    half_width: float
    likelihood: float
    log_precision: float


class JointDensity:
    r"""Log joint of weights and data, :math:`\log p(y, \theta \mid \eta, \delta)`, by batches.

    Up to constants; `skbayes_sym.laplace.map.MapObjective` climbs it. A position is
    ``[theta | eta]`` where eta is trained with the weights (Augerino: Benton et al. 2020), by the
    likelihood and a reward :math:`N \rho |\eta|` for large half-widths, and ``theta`` alone
    otherwise. Every evaluation is another batch's.

    ``batches``: rows of every step; transformations come from their generator, too. ``hyper``:
    hyperparameters, read at every call. ``rest_precision``: prior precision of parameters in no
    Laplace layer. ``reward``: rho; None leaves eta to the evidence.
    """

    def __init__(
        self, model: AveragedNetwork, batches: Batches, hyper: Tensor, *, rest_precision: float,
        reward: float | None = None,
    ) -> None:  # fmt: skip
        self._model = model
        self._hyper = hyper
        self._reward = reward
        self._h = model.hyper.unflatten(hyper)
        self._n = model.network.layout.n_params
        self._batches = batches
        self._likelihood = model.likelihood.to(hyper)
        self._owner = model.owner.to(hyper.device)
        self._rest = hyper.new_tensor([rest_precision])
        self._total_weight = float(batches.data.weight.double().sum())
        self._watch: OnlineEvidence | None = None
        self._is_watched: Callable[[int], bool] = lambda step: False
        self._n_evaluations = 0

    @property
    def n_dims(self) -> int:
        """Length of a position."""
        return self._n + (self._model.n_half_widths if self._reward is not None else 0)

    def start(self, theta: Tensor) -> Tensor:
        """The position of weights (P,) and of the half-widths as they are, (1, D)."""
        return torch.cat([theta, self._h["eta"]])[: self.n_dims].unsqueeze(0)

    def watch_with(self, watch: "OnlineEvidence", is_watched: Callable[[int], bool]) -> None:
        """Let ``watch`` record the evaluations for which ``is_watched(number)``."""
        self._watch = watch
        self._is_watched = is_watched

    def __call__(self, position: Tensor) -> Tensor:
        return self.evaluate(position).value

    def evaluate(self, position: Tensor) -> Evaluation:
        """At one position, (1, D)."""
        x, y, weight = batch = self._batches.next()
        watch = self._watch if self._is_watched(self._n_evaluations) else None
        self._n_evaluations += 1
        leaf = position[0].detach().clone().requires_grad_()
        likelihood = self._likelihood.at(self._h["likelihood"])
        noise = self._model.noise(len(x), x, self._batches.generator)
        with torch.enable_grad():
            eta = leaf[self._n :] if self._reward is not None else self._h["eta"]
            theta = leaf[: self._n]
            recorded = None
            if watch is not None:
                recorded = watch.record(theta, self._hyper, batch, noise)
                averaged = recorded.averaged
            else:
                averaged = self._model.forward(theta, eta, x, noise)
            value = (weight * likelihood.log_prob(averaged, y)).sum()
            if self._reward is not None and eta.numel():
                value = value + self._reward * self._total_weight * eta.norm()
            keep = recorded is not None  # its graph serves the evidence's gradient too
            gradient = torch.autograd.grad(value, leaf, retain_graph=keep)[0]
        if watch is not None and recorded is not None:
            watch.gather(recorded, self._batches.generator)
        value = value.detach() + self._add_prior(leaf.detach()[: self._n], gradient)
        return Evaluation(value.unsqueeze(0), gradient.unsqueeze(0))

    def _add_prior(self, theta: Tensor, gradient: Tensor) -> Tensor:
        """Log prior of the weights, without its normaliser; adds to the gradient (D,)."""
        precision = torch.cat([self._h["log_precision"].exp(), self._rest])[self._owner]
        scaled = precision * theta
        gradient[: self._n] -= scaled
        return -0.5 * torch.dot(scaled, theta)


class Recorded(NamedTuple):
    """A training step's pass through the network, with the graph from the hyperparameters on."""

    recording: Recording
    averaged: Tensor  # outputs (N, O)
    hyper: Tensor  # the leaf of that graph
    batch: Data


class OnlineEvidence:
    """The evidence's factors and gradient, gathered from the training steps themselves.

    The preconditioner is the one of the previous update, and the weights move while the factors
    are gathered: biased by what changes between two updates, and one pass instead of three. A
    batch that holds all the data is its own preconditioner: then nothing is biased.

    ``needs_gradient``: whether anything but the prior's precisions is learned; theirs is in closed
    form.
    """

    def __init__(self, evidence: LaplaceEvidence, *, needs_gradient: bool = True) -> None:
        self._evidence = evidence
        self._needs_gradient = needs_gradient
        self._preconditioners: Factors | None = None
        self._reset()

    def _reset(self) -> None:
        self._factors: Factors = []
        self._log_lik = 0.0
        self._seen = 0.0
        self._gradient: Tensor | None = None

    def record(self, theta: Tensor, hyper: Tensor, batch: Data, noise: Tensor) -> Recorded:
        """A step's pass; differentiable in the hyperparameters where a gradient will be taken."""
        model = self._evidence.model
        known = self._preconditioners is not None or self._is_whole(batch)
        learned = self._needs_gradient and known
        leaf = hyper.detach().clone().requires_grad_(learned)
        recording, averaged = model.record(
            theta, model.hyper.unflatten(leaf)["eta"], batch.x, noise
        )  # fmt: skip
        return Recorded(recording, averaged, leaf, batch)

    def gather(self, recorded: Recorded, generator: torch.Generator) -> None:
        """Add a step's factors, likelihood and gradient; frees its graph."""
        recording, averaged, leaf, batch = recorded
        with torch.enable_grad():
            lik_params = self._evidence.model.hyper.unflatten(leaf)["likelihood"]
            seen = self._evidence.seen(
                recording, averaged, lik_params, batch, generator, create_graph=leaf.requires_grad
            )
            self._add(seen, leaf, batch)

    def _is_whole(self, batch: Data) -> bool:
        return len(batch.x) == len(self._evidence.data.x)

    def _add(self, seen: Seen, hyper: Tensor, batch: Data) -> None:
        structure = self._evidence.structure
        with torch.no_grad():
            factors = structure.factors(seen.jacobian, batch.weight)
        if self._is_whole(batch):
            precision = self._evidence.precision(factors, hyper.detach())
            self._preconditioners = precision.preconditioners()
        if self._needs_gradient and self._preconditioners is not None:
            value = self._evidence.surrogate(seen, batch.weight, self._preconditioners)
            gradient = torch.autograd.grad(value, hyper)[0]
            self._gradient = gradient + (0.0 if self._gradient is None else self._gradient)
        self._factors = add_factors(self._factors, factors)
        self._log_lik += float(seen.log_likelihood.detach())
        self._seen += float(batch.weight.sum())

    def collect(self, hyper: Tensor) -> tuple[Pass, Precision, Tensor | None]:
        """Sums since the last call, scaled to all data; they precondition the next steps."""
        scale = float(self._evidence.data.weight.double().sum()) / self._seen
        factors = [scale * f for f in self._factors]
        precision = self._evidence.precision(factors, hyper)
        gradient = None if self._gradient is None else scale * self._gradient
        sums = Pass(torch.tensor(scale * self._log_lik, dtype=torch.float64), factors)
        self._reset()
        self._preconditioners = precision.preconditioners()
        return sums, precision, gradient


class HyperAscent:
    """Adam on the hyperparameters, up the evidence.

    ``hyper``: the flat vector, changed in place; ``rates``: a rate of 0 leaves its hyperparameters
    alone; ``seed``: every update draws its own noise from it; ``online``: where to get the sums
    from, instead of passes of its own.
    """

    def __init__(
        self, evidence: LaplaceEvidence, hyper: Tensor, rates: HyperRates, seed: int,
        online: OnlineEvidence | None = None,
    ) -> None:  # fmt: skip
        self._evidence = evidence
        self._hyper = hyper
        self._seed = seed
        self._n_updates = 0
        self._online = online
        slices = evidence.model.hyper.slices
        self._precisions = slices["log_precision"]
        self._loss_gradient = torch.zeros_like(hyper)
        groups = [
            ParamGroup(slices["eta"], rates.half_width),
            ParamGroup(slices["likelihood"], rates.likelihood),
            ParamGroup(slices["log_precision"], rates.log_precision),
        ]
        self._adam = FlatAdam(hyper, self._loss_gradient, groups, beta2=_HYPER_BETA2)
        self._needs_gradient = bool(
            (rates.half_width > 0 and slices["eta"].stop > slices["eta"].start)
            or (rates.likelihood > 0 and slices["likelihood"].stop > slices["likelihood"].start)
        )

    def update(self, theta: Tensor, factor: float) -> EvidenceParts:
        """Make one step of every rate times ``factor``; return the evidence before it.

        The evidence is that of the noise drawn here (or, online, gathered on the way).
        """
        seed = spawn_seeds(self._seed, self._n_updates + 1)[-1]
        self._n_updates += 1
        gradient: Tensor | None
        if self._online is not None:
            sums, precision, gradient = self._online.collect(self._hyper)
        else:
            sums = self._evidence.one_pass(theta, self._hyper, seed)
            precision = self._evidence.precision(sums.factors, self._hyper)
            gradient = None
            if self._needs_gradient:
                gradient = self._evidence.gradient(theta, self._hyper, seed, precision)
        terms, slope = self._evidence.evidence(theta, self._hyper, sums.log_likelihood, precision)
        self._loss_gradient.zero_()
        if gradient is not None:
            self._loss_gradient -= gradient
        self._loss_gradient[self._precisions] = -slope.to(self._loss_gradient)
        self._adam.step(factor)
        if not bool(torch.isfinite(self._hyper).all()):
            raise DivergenceError(
                "a hyperparameter stopped being finite: lower Updates.learning_rate or "
                "Invariances.learning_rate, standardize the data or give X as float64."
            )
        return terms
