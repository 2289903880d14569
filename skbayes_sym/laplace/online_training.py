"""Alternating training: weights towards their mode, hyperparameters up the Laplace evidence."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.base.log_density import Evaluation
from skbayes_sym.laplace.curvature import Factors, Precision
from skbayes_sym.laplace.evidence import (
    AveragedNetwork,
    BatchTerms,
    DataSums,
    EvidenceParts,
    LaplaceEvidence,
    add_factors,
)
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.network import Recording, WeightLayer
from skbayes_sym.numerics.optimise import DivergenceError, FlatAdam, ParamGroup
from skbayes_sym.numerics.random import spawn_seeds

# Adam's memory is 1 / (1 - beta2) updates. There are tens of updates and not thousands, and the
# first gradients, of a network that fits nothing yet, are the largest. With 0.999 they would shrink
# every later step, and half-widths would stop short of the evidence's maximum.
_HYPER_BETA2 = 0.9

# Largest additional cost of recording, relative to training: see `recorded_steps`.
_RECORDING_BUDGET = 0.45


def recorded_steps(n_between: int, n_epoch: int, layers: Sequence[WeightLayer]) -> int:
    """Number of steps before an update that `OnlineEvidence` records.

    They see the data once, as long as online training costs at most 1.5 times training without
    recording. That is three of four steps of a dense network and one of four of a convolutional
    one, and at least one.

    Parameters
    ----------
    n_between : int
        Steps between two updates.
    n_epoch : int
        Steps that see the data once.
    layers : sequence of WeightLayer

    Returns
    -------
    int
    """
    cost = max(layer.recording_cost for layer in layers)
    return min(n_epoch, max(1, int(n_between * _RECORDING_BUDGET / cost)))


class HyperRates(NamedTuple):
    """Adam's step sizes of the hyperparameters.

    Attributes
    ----------
    half_width : float
    likelihood : float
    log_precision : float
    """

    half_width: float
    likelihood: float
    log_precision: float


class JointDensity:
    r"""Minibatch estimate of the joint log density :math:`\log p(y, \theta \mid \eta, \delta)`.

    It is defined up to constants, and `skbayes_sym.laplace.map.MapObjective` maximises it. A
    position is ``theta``, or ``[theta | eta]`` if eta is trained with the weights (Augerino: Benton
    et al. 2020). Then a reward :math:`N \rho |\eta|` for large half-widths is added to the
    likelihood. Every evaluation uses another batch.

    Parameters
    ----------
    model : AveragedNetwork
    batches : Batches
        Rows of every step. Their generator is also the source of the transformations.
    hyper : Tensor
        Flat vector of hyperparameters, read at every call.
    rest_precision : float
        Prior precision of parameters that no covered layer has.
    reward : float, optional
        The factor rho. By default the evidence determines eta.
    """

    def __init__(
        self,
        model: AveragedNetwork,
        batches: Batches,
        hyper: Tensor,
        *,
        rest_precision: float,
        reward: float | None = None,
    ) -> None:
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
        self._recorder: OnlineEvidence | None = None
        self._is_recorded: Callable[[int], bool] = lambda _step: False
        self._n_evaluations = 0

    @property
    def n_dims(self) -> int:
        """Length of a position."""
        return self._n + (self._model.n_half_widths if self._reward is not None else 0)

    def start(self, theta: Tensor) -> Tensor:
        """Return the position of weights (P,) and of the present half-widths, (1, D)."""
        return torch.cat([theta, self._h["eta"]])[: self.n_dims].unsqueeze(0)

    def record_with(self, recorder: "OnlineEvidence", is_recorded: Callable[[int], bool]) -> None:
        """Let ``recorder`` record the evaluations for which ``is_recorded(number)`` is true."""
        self._recorder = recorder
        self._is_recorded = is_recorded

    def __call__(self, position: Tensor) -> Tensor:
        """Estimate the log density at a position (1, D), (1,) nats."""
        return self.evaluate(position).value

    def evaluate(self, position: Tensor) -> Evaluation:
        """Estimate value and gradient at a position (1, D) from the next batch."""
        x, y, weight = batch = self._batches.next()
        if self._is_recorded(self._n_evaluations):
            recorder = self._recorder
        else:
            recorder = None
        self._n_evaluations += 1
        leaf = position[0].detach().clone().requires_grad_()
        likelihood = self._likelihood.at(self._h["likelihood"])
        noise = self._model.noise(len(x), x, self._batches.generator)
        with torch.enable_grad():
            if self._reward is not None:
                eta = leaf[self._n :]
            else:
                eta = self._h["eta"]
            theta = leaf[: self._n]
            recorded = None
            if recorder is not None:
                recorded = recorder.record(theta, self._hyper, batch, noise)
                averaged = recorded.averaged
            else:
                averaged = self._model.forward(theta, eta, x, noise)
            value = (weight * likelihood.log_prob(averaged, y)).sum()
            if self._reward is not None and eta.numel():
                value = value + self._reward * self._total_weight * eta.norm()
            # The graph of a recorded pass also serves the evidence's gradient.
            retain_graph = recorded is not None
            gradient = torch.autograd.grad(value, leaf, retain_graph=retain_graph)[0]
        if recorder is not None and recorded is not None:
            recorder.gather(recorded, self._batches.generator)
        value = value.detach() + self._add_prior(leaf.detach()[: self._n], gradient)
        return Evaluation(value.unsqueeze(0), gradient.unsqueeze(0))

    def _add_prior(self, theta: Tensor, gradient: Tensor) -> Tensor:
        """Return the log prior of the weights without its normaliser; add to the gradient (D,)."""
        precision = torch.cat([self._h["log_precision"].exp(), self._rest])[self._owner]
        scaled = precision * theta
        gradient[: self._n] -= scaled
        return -0.5 * torch.dot(scaled, theta)


class Recorded(NamedTuple):
    """A training step's pass through the network, with its graph from the hyperparameters on.

    Attributes
    ----------
    recording : Recording
    averaged : Tensor of shape (N, O)
        Averaged outputs.
    hyper : Tensor
        Leaf of the graph.
    batch : Data
    """

    recording: Recording
    averaged: Tensor
    hyper: Tensor
    batch: Data


class OnlineEvidence:
    """Factors and gradient of the evidence, gathered from the training steps themselves.

    The preconditioner is that of the previous update, and the weights move while the factors are
    gathered. The result is biased by what changes between two updates, but it takes one pass
    instead of three. A batch that contains all the data is its own preconditioner, and then there
    is no bias.

    Parameters
    ----------
    evidence : LaplaceEvidence
    needs_gradient : bool, default=True
        Whether anything but the prior's precisions is learned, whose gradient is in closed form.
    """

    def __init__(self, evidence: LaplaceEvidence, *, needs_gradient: bool = True) -> None:
        self._evidence = evidence
        self._needs_gradient = needs_gradient
        self._preconditioners: Factors | None = None
        self._reset()

    def _reset(self) -> None:
        self._factors: Factors = []
        self._log_lik = 0.0
        self._gathered_weight = 0.0
        self._gradient: Tensor | None = None

    def record(self, theta: Tensor, hyper: Tensor, batch: Data, noise: Tensor) -> Recorded:
        """Make and record the forward pass of a step.

        Parameters
        ----------
        theta : Tensor of shape (P,)
        hyper : Tensor
            Flat vector of hyperparameters.
        batch : Data
        noise : Tensor of shape (N, S, k)
            Noise of the transformations.

        Returns
        -------
        Recorded
            Differentiable in the hyperparameters if `gather` takes a gradient.
        """
        model = self._evidence.model
        has_preconditioner = self._preconditioners is not None or self._is_full_batch(batch)
        leaf = hyper.detach().clone()
        leaf = leaf.requires_grad_(self._needs_gradient and has_preconditioner)
        eta = model.hyper.unflatten(leaf)["eta"]
        recording, averaged = model.record(theta, eta, batch.x, noise)
        return Recorded(recording, averaged, leaf, batch)

    def gather(self, recorded: Recorded, generator: torch.Generator) -> None:
        """Add a step's factors, likelihood and gradient, and free its graph."""
        recording, averaged, leaf, batch = recorded
        with torch.enable_grad():
            lik_params = self._evidence.model.hyper.unflatten(leaf)["likelihood"]
            terms = self._evidence.recorded_terms(
                recording, averaged, lik_params, batch, generator, create_graph=leaf.requires_grad
            )
            self._add(terms, leaf, batch)

    def _is_full_batch(self, batch: Data) -> bool:
        return len(batch.x) == len(self._evidence.data.x)

    def _add(self, terms: BatchTerms, hyper: Tensor, batch: Data) -> None:
        structure = self._evidence.structure
        with torch.no_grad():
            factors = structure.factors(terms.jacobian, batch.weight)
        if self._is_full_batch(batch):
            precision = self._evidence.precision(factors, hyper.detach())
            self._preconditioners = precision.preconditioners()
        if self._needs_gradient and self._preconditioners is not None:
            value = self._evidence.surrogate(terms, batch.weight, self._preconditioners)
            gradient = torch.autograd.grad(value, hyper)[0]
            if self._gradient is not None:
                gradient = gradient + self._gradient
            self._gradient = gradient
        self._factors = add_factors(self._factors, factors)
        self._log_lik += float(terms.log_likelihood.detach())
        self._gathered_weight += float(batch.weight.sum())

    def collect(self, hyper: Tensor) -> tuple[DataSums, Precision, Tensor | None]:
        """Return what was gathered since the last call, scaled to all data.

        Parameters
        ----------
        hyper : Tensor
            Flat vector of hyperparameters.

        Returns
        -------
        DataSums
            Log likelihood and factors.
        Precision
            The posterior's precision, which preconditions the next steps.
        Tensor or None
            Gradient in the hyperparameters, if one was taken.
        """
        scale = float(self._evidence.data.weight.double().sum()) / self._gathered_weight
        factors = [scale * f for f in self._factors]
        precision = self._evidence.precision(factors, hyper)
        if self._gradient is None:
            gradient = None
        else:
            gradient = scale * self._gradient
        sums = DataSums(torch.tensor(scale * self._log_lik, dtype=torch.float64), factors)
        self._reset()
        self._preconditioners = precision.preconditioners()
        return sums, precision, gradient


class HyperAscent:
    """Adam on the hyperparameters, which maximises the evidence.

    Parameters
    ----------
    evidence : LaplaceEvidence
    hyper : Tensor
        Flat vector of hyperparameters, changed in place.
    rates : HyperRates
        Step sizes. Hyperparameters with a rate of 0 are fixed.
    seed : int
        Source of the noise of every update.
    online : OnlineEvidence, optional
        Source of the sums over data. By default every update makes its own passes.
    """

    def __init__(
        self,
        evidence: LaplaceEvidence,
        hyper: Tensor,
        rates: HyperRates,
        seed: int,
        online: OnlineEvidence | None = None,
    ) -> None:
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
        """Make one step.

        Parameters
        ----------
        theta : Tensor of shape (P,)
            Weights.
        factor : float
            Factor on all step sizes.

        Returns
        -------
        EvidenceParts
            Evidence before the step, with the noise drawn here or gathered online.

        Raises
        ------
        DivergenceError
            If a hyperparameter stops being finite.
        """
        seed = spawn_seeds(self._seed, self._n_updates + 1)[-1]
        self._n_updates += 1
        gradient: Tensor | None
        if self._online is not None:
            sums, precision, gradient = self._online.collect(self._hyper)
        else:
            sums = self._evidence.compute_data_sums(theta, self._hyper, seed)
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
