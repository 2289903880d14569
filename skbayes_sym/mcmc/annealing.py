"""Annealing: how chains of a large network reach a wide basin, and its preconditioner.

A chain that starts at a good optimum stays in the narrow basin around it. A chain that starts at a
poor one, and moves with steps so long that their energy error is large, finds a wide basin as the
steps become shorter. This is annealing, with the energy error as the temperature. If the chain is
preconditioned from the start it finds worse basins (`asv_bench/studies/compare_bde.py` prints the
comparison).

The moves are microcanonical: the velocity keeps its length and only changes direction. In the
coordinates z of a preconditioner ``position = L z`` a chain moves with unit velocity u,

    dz/dt = u,   du/dt = (1 - u u') L' gradient / (D - 1),

and its stationary density is ``exp(log density)`` times the uniform distribution of directions
(Robnik et al. 2023, "Microcanonical Hamiltonian Monte Carlo", eq. 7). The energy error of a
discrete step, in nats, causes a bias, which the step size bounds. Step sizes are in units of
sqrt(D), as in `HMC`.

The preconditioner of each layer is a Kronecker product that approximates its curvature. Let ``h``
be the inputs of a layer (and a 1 for its biases), and ``g`` the derivatives of the outputs with
respect to its preactivations, multiplied by a root of the likelihood's curvature. The layer's block
of the generalised Gauss-Newton matrix is the sum over rows of ``(g g') x (h h')``. Martens & Grosse
(2015, "Optimizing neural networks with Kronecker-factored approximate curvature", eq. 1)
approximate it by

    G x A,   G = sum over rows of g g',   A = mean over rows of h h'.

With ``A = U diag(a) U'`` and ``G = V diag(g) V'`` its inverse root is, for a prior of precision p,

    Z -> V [(g_i a_j + p)^(-1/2) Z_ij] U'.

This is exact for linear networks with normal noise. The parameters of a layer are one matrix
``[W | b]`` (out, in + 1). Every chain has its own factors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import cos, log, pi, prod, sqrt
from typing import NamedTuple, cast

import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity, NetworkPosterior, make_gradient
from skbayes_sym.mcmc.kernels import Info, State, initial_state, select_chains
from skbayes_sym.mcmc.warmup import PreconditionerAdaptation, RunningMoments, Window
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.arguments import check_count, check_range
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner, Preconditioner
from skbayes_sym.numerics.random import standard_normal

# Coefficient of the minimal-norm integrator with two gradients per step (McLachlan 1995, "On the
# numerical integration of ordinary differential equations by symmetric composition methods";
# Omelyan et al. 2002).
_MCLACHLAN = 0.1931833275037836

OnMove = Callable[[State, Info], None]  # called after every move


class MicrocanonicalState(NamedTuple):
    """Positions and directions of C chains.

    Parameters
    ----------
    state : State
        Positions, log densities and gradients.
    velocity : Tensor of shape (C, D)
        Directions in preconditioned coordinates, of length 1.
    """

    state: State
    velocity: Tensor

    @classmethod
    def start(
        cls, position: Tensor, log_density: LogDensity, generator: torch.Generator
    ) -> "MicrocanonicalState":
        """Start chains at ``position`` (C, D) in random directions."""
        velocity = sample_directions(position, generator)
        return cls(initial_state(position, log_density), velocity)


def sample_directions(like: Tensor, generator: torch.Generator) -> Tensor:
    """Sample uniform directions of the shape of ``like`` (C, D)."""
    return _normalise(standard_normal(like.shape, generator=generator, like=like))


def refresh_velocity(velocity: Tensor, scale: Tensor, generator: torch.Generator) -> Tensor:
    """Add normal noise to the velocities and normalise them.

    This leaves the uniform distribution of directions invariant.

    Parameters
    ----------
    velocity : Tensor of shape (C, D)
        Unit velocities.
    scale : Tensor of shape (C,)
        Standard deviation of the noise.
    generator : torch.Generator
        Random stream of the noise.

    Returns
    -------
    Tensor of shape (C, D)
    """
    noise = standard_normal(velocity.shape, generator=generator, like=velocity)
    return _normalise(torch.addcmul(velocity, noise, scale.unsqueeze(1)))


def _normalise(vectors: Tensor) -> Tensor:
    """Scale vectors (C, D) to length 1, in place."""
    return vectors.div_(vectors.norm(dim=1, keepdim=True))


def update_velocity(velocity: Tensor, gradient: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    r"""Turn the velocity under a constant gradient for some time, solved exactly.

    Parameters
    ----------
    velocity : Tensor of shape (C, D)
        Unit velocities.
    gradient : Tensor of shape (C, D)
        Gradient of the log density in preconditioned coordinates.
    time : Tensor of shape (C,)
        Time of each chain.

    Returns
    -------
    velocity : Tensor of shape (C, D)
        Velocities after that time.
    gain : Tensor of shape (C,), float64
        Gain of kinetic energy in nats.

    Notes
    -----
    With ``e`` the direction of the gradient and ``d = time |gradient| / (D - 1)``,

    .. math:: u \to \frac{u + e (\sinh d + e'u (\cosh d - 1))}{\cosh d + e'u \sinh d}

    (Robnik et al. 2023, eq. 16), with a gain of ``(D - 1) log(cosh d + e'u sinh d)`` nats.
    """
    n_free = velocity.shape[1] - 1
    norm = gradient.norm(dim=1).clamp_min(torch.finfo(gradient.dtype).tiny)
    cosine = (velocity * gradient).sum(1) / norm
    delta = time * norm / max(n_free, 1)
    # Numerator and denominator are divided by e^delta, which may overflow.
    decay = torch.exp(-delta)
    along_gradient = (1 - decay) * (1 + decay + cosine * (1 - decay)) / norm
    along_velocity = (2 * decay).unsqueeze(1) * velocity
    turned = along_velocity.addcmul_(gradient, along_gradient.unsqueeze(1))
    cosine64 = cosine.double()
    delta64 = delta.double()
    log_norm = torch.log1p(cosine64 + (1 - cosine64) * (-2 * delta64).exp())
    gain = delta64 - log(2.0) + log_norm
    return _normalise(turned), n_free * gain


def mclachlan_step(
    start: MicrocanonicalState,
    log_density: LogDensity,
    step_size: Tensor,
    preconditioner: Preconditioner,
) -> tuple[MicrocanonicalState, Tensor]:
    """Make one step: three updates of the velocity, two of the position, with two gradients.

    Parameters
    ----------
    start : MicrocanonicalState
        Start of the step, left unchanged.
    log_density : LogDensity
        Target of the chains.
    step_size : Tensor of shape (C,)
        Step sizes in units of sqrt(D), in the dtype of the positions.
    preconditioner : Preconditioner
        Coordinates in which the chains move.

    Returns
    -------
    end : MicrocanonicalState
        End of the step.
    energy_error : Tensor of shape (C,), float64
        In nats, of order ``step_size ** 3``.

    Notes
    -----
    The step is reversible: with the velocity reversed it leads from the end back to the start.
    """
    (position, start_value, gradient), velocity = start
    time = step_size * sqrt(position.shape[1])
    half_time = (0.5 * time).unsqueeze(1)
    outer_time = _MCLACHLAN * time
    velocity, first = update_velocity(velocity, preconditioner.to_gradient(gradient), outer_time)
    position = torch.addcmul(position, half_time, preconditioner.to_position(velocity))
    middle = preconditioner.to_gradient(make_gradient(log_density)(position))
    velocity, second = update_velocity(velocity, middle, (1 - 2 * _MCLACHLAN) * time)
    position = torch.addcmul(position, half_time, preconditioner.to_position(velocity))
    state = initial_state(position, log_density)
    end_gradient = preconditioner.to_gradient(state.gradient)
    velocity, third = update_velocity(velocity, end_gradient, outer_time)
    gain = state.value.double() - start_value.double()
    return MicrocanonicalState(state, velocity), first + second + third - gain


def microcanonical_move(
    start: MicrocanonicalState,
    log_density: LogDensity,
    *,
    step_size: Tensor,
    preconditioner: Preconditioner,
    generator: torch.Generator,
) -> tuple[MicrocanonicalState, Info]:
    """Move every chain by one step and partially refresh its velocity; nothing is rejected.

    Parameters
    ----------
    start : MicrocanonicalState
        Start of the move.
    log_density : LogDensity
        Target of the chains.
    step_size : Tensor of shape (C,)
        Step sizes in units of sqrt(D).
    preconditioner : Preconditioner
        Coordinates in which the chains move.
    generator : torch.Generator
        Random stream of the refreshment.

    Returns
    -------
    end : MicrocanonicalState
        End of the move. A chain whose end isn't finite returns to its start and turns round.
    info : Info
        Statistics of the move.

    Notes
    -----
    The stationary distribution deviates from the target by the energy error of a step, which step
    sizes bound. At an error of variance v per dimension, the relative error of the stationary
    variances is of order sqrt(v) (Robnik et al. 2023, section 4; 1 % at v = 1e-4 on normals of 10
    dimensions). The velocity decorrelates over a distance of sqrt(D).
    """
    end, error = mclachlan_step(start, log_density, step_size, preconditioner)
    # A sum isn't finite if any of its terms isn't.
    sums = end.state.position.sum(1) + end.state.gradient.sum(1) + end.velocity.sum(1)
    is_finite = error.isfinite() & sums.isfinite()
    if not bool(is_finite.all()):
        end = select_chains(is_finite, end, start._replace(velocity=-start.velocity))
    scale = (torch.expm1(2.0 * step_size) / start.velocity.shape[1]).sqrt()
    end = end._replace(velocity=refresh_velocity(end.velocity, scale, generator))
    n_gradients = torch.full_like(is_finite, 2, dtype=torch.int64)
    return end, Info(is_finite.double(), is_finite, ~is_finite, n_gradients, error)


class EnergyErrorAdaptation(NamedTuple):
    """Adaptation of each chain's step size to a target variance of the energy error.

    The error of a step of size e has the variance ``c e^6 D``. The estimate of c averages about the
    last hundred steps. Steps with about the target error have the largest weight, and much shorter
    steps have none (Robnik et al. 2023, section 5; the code of blackjax).

    Parameters
    ----------
    step_size : Tensor of shape (C,)
        Step size of the next move.
    max_step_size : Tensor of shape (C,)
        Upper bound of the step size. It is reduced when a step isn't finite.
    errors : Tensor of shape (C,), float64
        Weighted sum of c / target.
    weights : Tensor of shape (C,), float64
        Sum of the weights.
    """

    step_size: Tensor
    max_step_size: Tensor
    errors: Tensor
    weights: Tensor

    @classmethod
    def start(cls, step_size: Tensor) -> "EnergyErrorAdaptation":
        """Start at ``step_size`` (C,) without an estimate of c."""
        zeros = torch.zeros_like(step_size, dtype=torch.float64)
        return cls(step_size, torch.full_like(step_size, torch.inf), zeros, zeros)

    def update(self, info: Info, target: float) -> "EnergyErrorAdaptation":
        """Update the step sizes after a move.

        Parameters
        ----------
        info : Info
            Statistics of the move, which was made with `step_size`.
        target : float
            Target variance of the energy error in nats squared.

        Returns
        -------
        EnergyErrorAdaptation
        """
        is_finite = info.accepted
        size = self.step_size.double()
        assert info.energy_error is not None
        error = torch.where(is_finite, info.energy_error, 0.0)
        ratio = error.square() / target + 1e-8  # so that no error is 0
        # The average covers about a hundred steps (Robnik et al. 2023: 50 to 100). Errors of steps
        # of another size have less weight: a Gaussian of log size with standard deviation 1.5.
        weight = torch.exp(-0.5 * (ratio.log() / (6 * 1.5)).square())
        decay = 99 / 101
        # Errors below a thousandth of the target are uninformative. Until one is larger, the step
        # size grows.
        learns = is_finite & ((self.weights > 0) | (ratio > 1e-3))
        errors = torch.where(learns, decay * self.errors + weight * ratio / size**6, self.errors)
        weights = torch.where(learns, decay * self.weights + weight, self.weights)
        max_step_size = torch.where(is_finite, self.max_step_size, 0.8 * self.step_size)
        optimum = torch.where(weights > 0, (errors / weights).pow(-1 / 6), 1.5 * size)
        step_size = torch.minimum(optimum.to(self.step_size), max_step_size)
        return EnergyErrorAdaptation(step_size, max_step_size, errors, weights)


class BurnInResult(NamedTuple):
    """State of the chains after a burn-in.

    Parameters
    ----------
    state : State
        Positions, log densities and gradients.
    preconditioner : Preconditioner
        Coordinates in which to continue.
    step_size : Tensor of shape (C,)
        Step size in these coordinates.
    """

    state: State
    preconditioner: Preconditioner
    step_size: Tensor


@dataclass(frozen=True)
class Annealing:
    """Burn-in by Adam, then microcanonical steps of decreasing energy error.

    The last steps are made in the coordinates of the curvature.

    Parameters
    ----------
    n_adam : int, default=600
        Steps of Adam that maximise the log density from the starting point.
    n_hot : int, default=6000
        Steps of two gradients each in the original coordinates.
    energy_error : (float, float), default=(1.5, 0.1)
        Variance of a step's energy error per dimension in nats squared, of the first and of the
        last hot step. It decreases geometrically in between and stays at the last value afterwards.
    n_settle : int, default=1000
        Steps of two gradients each in the coordinates of the preconditioner.

    Notes
    -----
    A chain takes ``n_adam + 2 (n_hot + n_settle)`` gradients.
    """

    n_adam: int = 600
    n_hot: int = 6000
    energy_error: tuple[float, float] = (1.5, 0.1)
    n_settle: int = 1000

    def __post_init__(self) -> None:
        check_count("n_adam", self.n_adam, 0)
        check_count("n_hot", self.n_hot, 0)
        check_range("energy_error", self.energy_error)
        check_count("n_settle", self.n_settle, 0)

    @property
    def n_steps(self) -> int:
        """Total number of steps."""
        return self.n_adam + self.n_hot + self.n_settle

    def run(
        self,
        state: State,
        log_density: LogDensity,
        adaptation: PreconditionerAdaptation,
        *,
        generator: torch.Generator,
        on_move: OnMove,
    ) -> BurnInResult:
        """Anneal the chains.

        Parameters
        ----------
        state : State
            Starting points.
        log_density : LogDensity
            Target of the chains.
        adaptation : PreconditionerAdaptation
            Its `fit` gives the preconditioner at the current position.
        generator : torch.Generator
            Random stream of the chains.
        on_move : callable (State, Info) -> None
            Called after every step.

        Returns
        -------
        BurnInResult
        """

        def make_steps(start: BurnInResult, targets: list[float]) -> BurnInResult:
            """Make one microcanonical step per target variance of the energy error."""
            current = MicrocanonicalState.start(start.state.position, log_density, generator)
            sizes = EnergyErrorAdaptation.start(start.step_size)
            for target in targets:
                current, info = microcanonical_move(
                    current,
                    log_density,
                    step_size=sizes.step_size,
                    preconditioner=start.preconditioner,
                    generator=generator,
                )
                sizes = sizes.update(info, target * current.velocity.shape[1])
                on_move(current.state, info)
            return BurnInResult(current.state, start.preconditioner, sizes.step_size)

        # Maximise, then make hot steps in the original coordinates.
        hot, cold = self.energy_error
        targets = [hot * (cold / hot) ** (t / max(1, self.n_hot)) for t in range(self.n_hot)]
        identity = DiagonalPreconditioner(torch.ones_like(state.position))
        maximised = run_adam(state, log_density, self.n_adam, on_move)
        initial_size = torch.full_like(state.value, 3e-4)
        result = make_steps(BurnInResult(maximised, identity, initial_size), targets)
        if not self.n_settle:
            return result

        # Settle in the coordinates of the curvature, which is evaluated anew at the beginning and
        # after 17 % and 43 % of the steps. The step size is reduced by a fifth then.
        step_size = torch.full_like(state.value, 0.03)
        begin = 0
        for end in [round(fraction * self.n_settle) for fraction in (0.17, 0.43, 1.0)]:
            position = result.state.position
            preconditioner = adaptation.fit(
                result.preconditioner, RunningMoments.empty(position), position
            )
            start = BurnInResult(result.state, preconditioner, step_size)
            result = make_steps(start, [cold] * (end - begin))
            step_size = 0.8 * result.step_size
            begin = end
        return result


@dataclass(frozen=True, eq=False)
class SurrogateAnnealing:
    """Annealing under another posterior, whose final positions start chains under the target.

    Priors with learned scales need it. The maximisation would shrink deep layers to zero, where
    their density is highest, and the scales of hundreds of weights take long to grow again. In
    float32 annealing is also cheaper, and it needn't be exact.

    Parameters
    ----------
    annealing : Annealing
        Settings of the annealing.
    posterior : NetworkPosterior
        Posterior under which it runs, in any precision.
    """

    annealing: Annealing
    posterior: NetworkPosterior

    @property
    def n_steps(self) -> int:
        """Total number of steps."""
        return self.annealing.n_steps

    def run(
        self,
        state: State,
        log_density: LogDensity,
        adaptation: PreconditionerAdaptation,
        *,
        generator: torch.Generator,
        on_move: OnMove,
    ) -> BurnInResult:
        """Anneal the chains under the other posterior.

        Parameters
        ----------
        state : State
            Starting points.
        log_density : LogDensity
            Target of the chains afterwards.
        adaptation : PreconditionerAdaptation
            Its `fit` gives the preconditioner under the target.
        generator : torch.Generator
            Random stream of the chains.
        on_move : callable (State, Info) -> None
            Called after every step.

        Returns
        -------
        BurnInResult
        """
        start = initial_state(state.position.to(self.posterior.data.x), self.posterior)
        result = self.annealing.run(
            start,
            self.posterior,
            KroneckerAdaptation(self.posterior),
            generator=generator,
            on_move=on_move,
        )
        position = result.state.position.to(state.position)
        identity = DiagonalPreconditioner(torch.ones_like(position))
        return BurnInResult(
            initial_state(position, log_density),
            adaptation.fit(identity, RunningMoments.empty(position), position),
            result.step_size.to(position),
        )


BurnIn = Annealing | SurrogateAnnealing


def run_adam(state: State, log_density: LogDensity, n_steps: int, on_move: OnMove) -> State:
    """Maximise the log density by Adam, for each chain separately.

    Parameters
    ----------
    state : State
        Starting points.
    log_density : LogDensity
        Log density to maximise.
    n_steps : int
        Number of steps of one gradient each.
    on_move : callable (State, Info) -> None
        Called after every step.

    Returns
    -------
    State

    Notes
    -----
    Adam (Kingma & Ba 2015) with its default constants. The learning rate rises to 0.01 over 50
    steps and falls to a hundredth of it along half a cosine.
    """
    position = state.position
    mean = torch.zeros_like(state.position)
    square = torch.zeros_like(state.position)
    acceptance = torch.ones_like(state.value, dtype=torch.float64)
    beta1 = 0.9
    beta2 = 0.999
    for step in range(1, n_steps + 1):
        mean = mean.lerp(state.gradient, 1 - beta1)
        square = (beta2 * square).addcmul(state.gradient, state.gradient, value=1 - beta2)
        unbiased_mean = mean / (1 - beta1**step)
        unbiased_square = square / (1 - beta2**step)
        decay = 0.5 * (1 + cos(pi * step / n_steps))
        rate = (1e-4 + (1e-2 - 1e-4) * decay) * min(1.0, step / 50)
        position = position + rate * (unbiased_mean / (unbiased_square.sqrt() + 1e-8))
        state = initial_state(position, log_density)
        is_finite = state.value.isfinite()
        n_gradients = torch.ones_like(is_finite, dtype=torch.int64)
        on_move(state, Info(acceptance, is_finite, ~is_finite, n_gradients))
    return state


class LayerCurvature(NamedTuple):
    """Kronecker factors of a layer's curvature, for C chains.

    Parameters
    ----------
    input_factor : Tensor of shape (C, in + 1, in + 1)
        A: mean over rows of the outer products of the inputs.
    output_factor : Tensor of shape (C, out, out)
        G: sum over rows of the outer products of the scaled derivatives.
    """

    input_factor: Tensor
    output_factor: Tensor


class WideLayerCurvature(NamedTuple):
    """Kronecker factors of a first layer with more inputs than rows, for C chains.

    Parameters
    ----------
    input_root : Tensor of shape (N, in + 1)
        B, with A = B'B as in `LayerCurvature`. It is the same for all chains.
    output_factor : Tensor of shape (C, out, out)
        G: sum over rows of the outer products of the scaled derivatives.
    """

    input_root: Tensor
    output_factor: Tensor


class _InverseRoot(NamedTuple):
    """Inverse root of a layer's curvature, ``Z -> left (scale o Z) right'``.

    Parameters
    ----------
    left : Tensor of shape (C, out, out)
        Eigenvectors of G.
    scale : Tensor of shape (C, out, in + 1)
        Inverse roots of the eigenvalues.
    right : Tensor of shape (C, in + 1, in + 1)
        Eigenvectors of A.
    """

    left: Tensor
    scale: Tensor
    right: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and of inputs with the bias."""
        return self.left.shape[1], self.right.shape[1]

    def apply(self, z: Tensor) -> Tensor:
        """Apply the root to (C, out, in + 1)."""
        return torch.bmm(torch.bmm(self.left, self.scale * z), self.right.mT)

    def apply_transposed(self, gradient: Tensor) -> Tensor:
        """Apply the transposed root to (C, out, in + 1)."""
        return torch.bmm(torch.bmm(self.left.mT, gradient), self.right).mul_(self.scale)


class _WideInverseRoot(NamedTuple):
    """Inverse root for fewer rows than inputs, whose other directions have the prior's scale s.

    It maps ``Z -> left (s Z + (excess o Z right) right')``.

    Parameters
    ----------
    left : Tensor of shape (C, out, out)
        Eigenvectors of G.
    excess : Tensor of shape (C, out, N)
        Inverse roots of the eigenvalues, minus s.
    right : Tensor of shape (in + 1, N)
        Eigenvectors of A whose eigenvalues aren't zero.
    prior_scale : Tensor of shape ()
        The scale s.
    """

    left: Tensor
    excess: Tensor
    right: Tensor
    prior_scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and of inputs with the bias."""
        return self.left.shape[1], len(self.right)

    def apply(self, z: Tensor) -> Tensor:
        """Apply the root to (C, out, in + 1)."""
        return torch.bmm(self.left, self._scale_inputs(z))

    def apply_transposed(self, gradient: Tensor) -> Tensor:
        """Apply the transposed root to (C, out, in + 1)."""
        return self._scale_inputs(torch.bmm(self.left.mT, gradient))

    def _scale_inputs(self, z: Tensor) -> Tensor:
        """Apply the symmetric factor, which acts on the inputs of each output."""
        return self.prior_scale * z + (self.excess * (z @ self.right)) @ self.right.mT


@dataclass(frozen=True, eq=False)
class KroneckerPreconditioner:
    """`Preconditioner` by the Kronecker-factored curvature of an MLP.

    Parameters
    ----------
    layers : tuple of LayerCurvature or WideLayerCurvature
        Factors, from the first layer to the last.
    precision : Tensor of shape (n_layers,)
        Mean prior precision of each layer.
    likelihood_scale : Tensor of shape (C, n_params)
        Scales of the likelihood's parameters.

    Notes
    -----
    The coordinates are layer by layer ``[W | b]`` (out, in + 1), then the likelihood's parameters.
    A map takes two products of a layer's size, ``2 P (out + in)`` multiplications, which is small
    compared to a gradient's ``6 N P``. The factors take about 2 P numbers per chain. For a first
    layer with fewer rows than inputs, the inputs' factor has N rows, and all chains share it.
    """

    layers: tuple[LayerCurvature | WideLayerCurvature, ...]
    precision: Tensor
    likelihood_scale: Tensor

    @cached_property
    def _roots(self) -> list[_InverseRoot | _WideInverseRoot]:
        """Inverse root of each layer."""
        return [
            _compute_inverse_root(curvature, precision)
            for curvature, precision in zip(self.layers, self.precision.double(), strict=True)
        ]

    @cached_property
    def _sizes(self) -> list[int]:
        """Number of parameters of each layer and of the likelihood."""
        return [*(prod(root.shape) for root in self._roots), self.likelihood_scale.shape[1]]

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor]:
        """Index of each coordinate in a position, (D,), and the inverse permutation."""
        indices = []
        start = 0
        for root in self._roots:
            n_out = root.shape[0]
            n_in = root.shape[1] - 1
            weight = start + torch.arange(n_out * n_in).view(n_out, n_in)
            bias = start + n_out * n_in + torch.arange(n_out)
            indices.append(torch.cat([weight, bias.unsqueeze(1)], 1).flatten())
            start += n_out * (n_in + 1)
        indices.append(start + torch.arange(self.likelihood_scale.shape[1]))
        order = torch.cat(indices).to(self.likelihood_scale.device)
        return order, order.argsort()

    def to_position(self, z: Tensor) -> Tensor:
        """Map coordinates (C, D) to positions."""
        *layers, likelihood_params = z.split(self._sizes, 1)
        scaled = [
            root.apply(layer.view(-1, *root.shape)).flatten(1)
            for layer, root in zip(layers, self._roots, strict=True)
        ]
        ordered = torch.cat([*scaled, self.likelihood_scale * likelihood_params], 1)
        return ordered.index_select(1, self._order[1])

    def to_gradient(self, gradient: Tensor) -> Tensor:
        """Map gradients at positions (C, D) to gradients in the coordinates."""
        ordered = gradient.index_select(1, self._order[0])
        *layers, likelihood_params = ordered.split(self._sizes, 1)
        scaled = [
            root.apply_transposed(layer.view(-1, *root.shape)).flatten(1)
            for layer, root in zip(layers, self._roots, strict=True)
        ]
        return torch.cat([*scaled, self.likelihood_scale * likelihood_params], 1)


def _compute_inverse_root(
    curvature: LayerCurvature | WideLayerCurvature, precision: Tensor
) -> _InverseRoot | _WideInverseRoot:
    """Compute the inverse root of a layer's curvature plus the prior precision."""
    output_eigenvalues, left = torch.linalg.eigh(curvature.output_factor.double())
    outer = output_eigenvalues.clamp_min(0).unsqueeze(2)
    like = curvature.output_factor
    left = left.to(like)
    if isinstance(curvature, WideLayerCurvature):
        root = torch.linalg.svd(curvature.input_root.double(), full_matrices=False)
        prior_scale = precision.rsqrt()
        excess = (outer * root.S.square() + precision).rsqrt() - prior_scale
        return _WideInverseRoot(left, excess.to(like), root.Vh.mT.to(like), prior_scale.to(like))
    input_eigenvalues, right = torch.linalg.eigh(curvature.input_factor.double())
    scale = (outer * input_eigenvalues.clamp_min(0).unsqueeze(1) + precision).rsqrt()
    return _InverseRoot(left, scale.to(like), right.to(like))


def compute_layer_curvature(
    posterior: NetworkPosterior, position: Tensor
) -> tuple[LayerCurvature | WideLayerCurvature, ...]:
    """Compute the Kronecker factors of every layer.

    Parameters
    ----------
    posterior : NetworkPosterior
        Posterior of an MLP.
    position : Tensor of shape (C, D)
        Positions of C chains.

    Returns
    -------
    tuple of LayerCurvature or WideLayerCurvature
        From the first layer to the last. A first layer of more inputs than rows is wide.

    Notes
    -----
    Each chain takes one forward pass and one backward pass per output: ``(2 + 4 O) N P``
    multiplications.
    """
    chains = [_compute_chain_curvature(posterior, chain_position) for chain_position in position]
    layers: list[LayerCurvature | WideLayerCurvature] = []
    for layer in zip(*chains, strict=True):
        output_factor = torch.stack([curvature.output_factor for curvature in layer])
        if isinstance(layer[0], WideLayerCurvature):
            layers.append(WideLayerCurvature(layer[0].input_root, output_factor))
        else:
            input_factor = torch.stack([curvature.input_factor for curvature in layer])
            layers.append(LayerCurvature(input_factor, output_factor))
    return tuple(layers)


def _compute_chain_curvature(
    posterior: NetworkPosterior, position: Tensor
) -> list[LayerCurvature | WideLayerCurvature]:
    """Compute the factors of every layer at one position (D,), without the chain axis."""
    network = cast(MLP, posterior.network)
    x, y, weight = posterior.data
    n_theta = network.layout.n_params
    layers = network.layers(position[:n_theta])

    # Forward pass.
    inputs = [x]
    for w, b in layers[:-1]:
        inputs.append(network.activation.function(torch.addmm(b, inputs[-1], w.mT)))
    outputs = torch.addmm(layers[-1][1], inputs[-1], layers[-1][0].mT)

    # Backward pass from the root of the likelihood's curvature.
    likelihood = posterior.likelihood.to(x).at(position[n_theta:])
    root = likelihood.hessian_root(outputs, y) * weight.sqrt().unsqueeze(1)
    factors: list[LayerCurvature | WideLayerCurvature] = []
    for i in range(len(layers) - 1, -1, -1):
        with_one = torch.cat([inputs[i], inputs[i].new_ones(len(x), 1)], 1)
        input_root = with_one * (weight / weight.sum()).sqrt().unsqueeze(1)
        derivatives = root.flatten(0, 1)
        output_factor = derivatives.mT @ derivatives
        if i == 0 and len(x) < with_one.shape[1]:
            factors.append(WideLayerCurvature(input_root, output_factor))
        else:
            factors.append(LayerCurvature(input_root.mT @ input_root, output_factor))
        if i:
            by_output = (root @ layers[i][0]).unbind(0)
            root = torch.stack([network.activation.backward_(g, inputs[i]) for g in by_output])
    return factors[::-1]


def _average(
    previous: LayerCurvature | WideLayerCurvature, current: LayerCurvature | WideLayerCurvature
) -> LayerCurvature | WideLayerCurvature:
    """Average two curvatures of a layer, the current one with weight 0.6."""
    output_factor = previous.output_factor.lerp(current.output_factor, 0.6)
    if isinstance(previous, LayerCurvature) and isinstance(current, LayerCurvature):
        return LayerCurvature(previous.input_factor.lerp(current.input_factor, 0.6), output_factor)
    # The inputs of a first layer are those of the network.
    return current._replace(output_factor=output_factor)


def likelihood_scales(log_density: LogDensity, position: Tensor, n_params: int) -> Tensor:
    """Scales of the likelihood's parameters, from their diagonal curvature.

    Parameters
    ----------
    log_density : LogDensity
        Log density whose gradient is differenced.
    position : Tensor of shape (C, D)
        Positions, with the likelihood's parameters last.
    n_params : int
        Number of these parameters.

    Returns
    -------
    Tensor of shape (C, n_params)
        At most 1, the scale that a curvature of 1 gives, about that of the prior of a log scale.
    """
    step = 1e-2
    scales = position.new_ones(len(position), n_params)
    for k in range(n_params):
        offset = torch.zeros_like(position)
        offset[:, k - n_params] = step
        above = log_density.evaluate(position + offset).gradient
        below = log_density.evaluate(position - offset).gradient
        curvature = (below - above)[:, k - n_params] / (2 * step)
        scales[:, k] = curvature.clamp_min(1.0).rsqrt()
    return scales


@dataclass(frozen=True, eq=False)
class KroneckerAdaptation:
    """`PreconditionerAdaptation` that computes the curvature at the chains' positions.

    Parameters
    ----------
    posterior : NetworkPosterior
        Posterior of an MLP, whose likelihood has a `hessian_root`.
    """

    posterior: NetworkPosterior

    def windows(self, n_warmup: int) -> list[Window]:
        """Two windows that end with an update of the curvature, and one for step sizes."""
        first = int(0.2 * n_warmup)
        second = int(0.3 * n_warmup)
        if not n_warmup:
            return []
        if first < 10:  # too short to tune a step size
            return [Window(n_warmup, False)]
        last = n_warmup - first - second
        return [Window(first, True), Window(second, True), Window(last, False)]

    def fit(
        self, preconditioner: Preconditioner, _moments: RunningMoments, position: Tensor, /
    ) -> KroneckerPreconditioner:
        """Compute the curvature at ``position`` and average it with the previous one.

        Parameters
        ----------
        preconditioner : Preconditioner
            Previous preconditioner. The new curvature has weight 0.6 if the previous one was
            Kronecker-factored too, and weight 1 otherwise.
        position : Tensor of shape (C, D)
            Positions of the chains.

        Returns
        -------
        KroneckerPreconditioner
        """
        network = cast(MLP, self.posterior.network)
        layers = compute_layer_curvature(self.posterior, position)
        if isinstance(preconditioner, KroneckerPreconditioner):
            pairs = zip(preconditioner.layers, layers, strict=True)
            layers = tuple(_average(previous, current) for previous, current in pairs)
        gaussian = self.posterior.prior.gaussian()
        precision = torch.ones(network.n_layers, dtype=torch.float64)
        if gaussian is not None:
            by_layer = network.layers(gaussian.precision.double().cpu())
            precision = torch.stack([torch.cat([w.flatten(), b]).mean() for w, b in by_layer])
        n_params = self.posterior.likelihood.n_params
        scales = likelihood_scales(self.posterior, position, n_params)
        return KroneckerPreconditioner(layers, precision.to(position), scales)
