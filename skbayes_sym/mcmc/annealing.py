"""Annealing: how chains of a large network reach a wide basin.

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
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, log, pi, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity, NetworkPosterior, make_gradient
from skbayes_sym.mcmc.kernels import Info, State, initial_state, select_chains
from skbayes_sym.mcmc.kronecker import KroneckerAdaptation
from skbayes_sym.mcmc.warmup import PreconditionerAdaptation, RunningMoments
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
        """Start chains at ``position`` (C, D) in random directions.

        Parameters
        ----------
        position : Tensor of shape (C, D)
            Positions of the chains.
        log_density : LogDensity
            Unnormalised log posterior.
        generator : torch.Generator
            Source of random numbers.
        """
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
