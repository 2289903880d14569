"""How chains of a large network come to a place worth sampling: from afar, and hot at first.

A chain started at a good optimum stays in its narrow basin. One that starts at a poor one and moves
with steps so long that their energy error is large finds a wide basin as the steps get shorter:
annealing, whose temperature is the energy error. Preconditioned from the start it would find worse
ones (`asv_bench/studies/compare_bde.py` prints what comes of it).

The moves are microcanonical: the velocity keeps its length and only turns. In the coordinates z of
a preconditioner ``position = L z`` a chain moves with unit velocity u,

    dz/dt = u,   du/dt = (1 - u u') L' gradient / (D - 1),

and its density stays ``exp(log density)`` times the uniform law of directions (Robnik et al. 2023,
"Microcanonical Hamiltonian Monte Carlo", eq. 7). What a discrete step gets wrong is its energy
error, in nats: a bias, which step sizes bound. These are in units of sqrt(D), as in `HMC`.

The preconditioner is, of every layer, the Kronecker product that its curvature nearly is. With
``h`` the inputs of a layer (and a 1 for its biases) and ``g`` the derivatives of the outputs by
what it puts out, multiplied by a root of the likelihood's curvature, the layer's block of the
generalised Gauss-Newton matrix is the sum over rows of ``(g g') x (h h')``. Martens & Grosse (2015,
"Optimizing neural networks with Kronecker-factored approximate curvature", eq. 1) replace it by

    G x A,   G = sum over rows of g g',   A = mean over rows of h h'.

With ``A = U diag(a) U'`` and ``G = V diag(g) V'`` its inverse root is, for a prior of precision p,

    Z -> V [(g_i a_j + p)^(-1/2) Z_ij] U',

exact for linear networks with normal noise; a layer's parameters are one matrix ``[W | b]``
(out, in + 1). Every chain has its own factors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import cos, log, pi, sqrt
from typing import NamedTuple, cast

import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity, NetworkPosterior, make_gradient
from skbayes_sym.mcmc.kernels import Info, State, initial_state, where
from skbayes_sym.mcmc.warmup import PreconditionerAdaptation, RunningMoments, Window
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.arguments import check_count, check_range
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner, Preconditioner
from skbayes_sym.numerics.random import standard_normal

# The minimal-norm integrator of two gradients a step (McLachlan 1995, "On the numerical integration
# of ordinary differential equations by symmetric composition methods"; Omelyan et al. 2002).
_MCLACHLAN = 0.1931833275037836

Tell = Callable[[State, Info], None]  # of every move


class Motion(NamedTuple):
    """Places and directions of C chains."""

    state: State
    velocity: Tensor  # (C, D), of length 1, in preconditioned coordinates

    @classmethod
    def start(
        cls, position: Tensor, log_density: LogDensity, generator: torch.Generator
    ) -> "Motion":
        """Chains at ``position`` (C, D), each going its own way."""
        return cls(initial_state(position, log_density), directions(position, generator))


def directions(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform directions of the shape of ``like`` (C, D)."""
    return _unit(standard_normal(like.shape, generator=generator, like=like))


def refresh(velocity: Tensor, amount: Tensor, generator: torch.Generator) -> Tensor:
    """Turn velocities a little: add normal noise of scale ``amount`` (C,), back to length 1.

    Leaves the uniform law of directions as it is.
    """
    noise = standard_normal(velocity.shape, generator=generator, like=velocity)
    return _unit(torch.addcmul(velocity, noise, amount.unsqueeze(1)))


def _unit(vectors: Tensor) -> Tensor:
    """Scale to length 1, in place."""
    return vectors.div_(vectors.norm(dim=1, keepdim=True))


def kick(velocity: Tensor, slope: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    r"""Let a constant slope (C, D) turn the velocity (C, D) for a time (C,), solved exactly.

    With ``e`` the direction of the slope and ``d = time |slope| / (D - 1)``,

    .. math:: u \to \frac{u + e (\sinh d + e'u (\cosh d - 1))}{\cosh d + e'u \sinh d}

    (Robnik et al. 2023, eq. 16), which gains ``(D - 1) log(cosh d + e'u sinh d)`` nats: the second
    value, (C,), float64.
    """
    n_free = velocity.shape[1] - 1
    size = slope.norm(dim=1).clamp_min(torch.finfo(slope.dtype).tiny)
    cosine = (velocity * slope).sum(1) / size
    reach = time * size / max(n_free, 1)
    fall = torch.exp(-reach)  # everything is divided by e^reach, which may be huge
    forward = (1 - fall) * (1 + fall + cosine * (1 - fall)) / size
    turned = ((2 * fall).unsqueeze(1) * velocity).addcmul_(slope, forward.unsqueeze(1))
    c = cosine.double()
    r = reach.double()
    gain = r - log(2.0) + torch.log1p(c + (1 - c) * (-2 * r).exp())
    return _unit(turned), n_free * gain


def mclachlan(
    motion: Motion, log_density: LogDensity, step_size: Tensor, preconditioner: Preconditioner
) -> tuple[Motion, Tensor]:
    """Make one step of length ``step_size`` (C,): three kicks, two half moves, two gradients.

    ``motion`` is left as it is. The second value is the energy error in nats, (C,), float64, of
    order ``step_size ** 3``. Reversible: from the end, with the velocity turned round, it leads
    back.
    """
    (position, before, gradient), velocity = motion
    time = step_size * sqrt(position.shape[1])
    half = (0.5 * time).unsqueeze(1)
    velocity, first = kick(velocity, preconditioner.to_gradient(gradient), _MCLACHLAN * time)
    position = torch.addcmul(position, half, preconditioner.to_position(velocity))
    middle = preconditioner.to_gradient(make_gradient(log_density)(position))
    velocity, second = kick(velocity, middle, (1 - 2 * _MCLACHLAN) * time)
    position = torch.addcmul(position, half, preconditioner.to_position(velocity))
    state = initial_state(position, log_density)
    velocity, third = kick(velocity, preconditioner.to_gradient(state.gradient), _MCLACHLAN * time)
    gained = state.value.double() - before.double()
    return Motion(state, velocity), first + second + third - gained


def microcanonical_move(
    motion: Motion, log_density: LogDensity, *, step_size: Tensor, preconditioner: Preconditioner,
    generator: torch.Generator,
) -> tuple[Motion, Info]:  # fmt: skip
    """Move every chain by a step, then refresh its velocity a little; nothing is rejected.

    Its law is that of the target but for the energy error of a step, which step sizes bound: at an
    error of variance v per dimension, the variances of its law are off by a share of order sqrt(v)
    (Robnik et al. 2023, section 4; 1 % at 1e-4 on normals of 10 dimensions). A velocity is
    forgotten after a distance of sqrt(D). A step that leaves the numbers is taken back, the chain
    turned.
    """
    end, error = mclachlan(motion, log_density, step_size, preconditioner)
    sums = end.state.position.sum(1) + end.state.gradient.sum(1) + end.velocity.sum(1)
    finite = error.isfinite() & sums.isfinite()  # a sum is not, where a coordinate isn't
    if not bool(finite.all()):
        end = where(finite, end, motion._replace(velocity=-motion.velocity))
    charged = torch.full_like(finite, 2, dtype=torch.int64)
    amount = (torch.expm1(2.0 * step_size) / motion.velocity.shape[1]).sqrt()
    end = end._replace(velocity=refresh(end.velocity, amount, generator))
    return end, Info(finite.double(), finite, ~finite, charged, error)


class EnergyErrorAdaptation(NamedTuple):
    """Step sizes, each chain its own, on their way to a variance of the energy error.

    The error of a step of size e has the variance ``c e^6 D``: c is averaged over the last hundred
    steps, those of about the right error counting most, those far too short not at all (Robnik et
    al. 2023, section 5; the code of blackjax).
    """

    step_size: Tensor  # (C,)
    longest: Tensor  # (C,), what steps are kept below: one that size left the numbers
    errors: Tensor  # (C,), float64, weighted sum of c / target
    weights: Tensor  # (C,), float64

    @classmethod
    def start(cls, step_size: Tensor) -> "EnergyErrorAdaptation":
        """Begin at ``step_size`` (C,), knowing nothing."""
        nothing = torch.zeros_like(step_size, dtype=torch.float64)
        return cls(step_size, torch.full_like(step_size, torch.inf), nothing, nothing)

    def update(self, info: Info, target: float) -> "EnergyErrorAdaptation":
        """Take in a move made with `step_size`; ``target`` is the variance, nats squared."""
        finite = info.accepted
        size = self.step_size.double()
        assert info.energy_error is not None
        error = torch.where(finite, info.energy_error, 0.0)
        ratio = error.square() / target + 1e-8  # so that no error is 0
        # Of about a hundred steps (Robnik et al. 2023: 50 to 100); errors that came with others
        # than the present size count less, by a spread of 1.5 of log sizes.
        weight = torch.exp(-0.5 * (ratio.log() / (6 * 1.5)).square())
        decay = 99 / 101
        # An error below a thousandth of the target says little: until one is above, steps grow.
        learns = finite & ((self.weights > 0) | (ratio > 1e-3))
        errors = torch.where(learns, decay * self.errors + weight * ratio / size**6, self.errors)
        weights = torch.where(learns, decay * self.weights + weight, self.weights)
        longest = torch.where(finite, self.longest, 0.8 * self.step_size)
        wanted = torch.where(weights > 0, (errors / weights).pow(-1 / 6), 1.5 * size)
        step_size = torch.minimum(wanted.to(self.step_size), longest)
        return EnergyErrorAdaptation(step_size, longest, errors, weights)


class Place(NamedTuple):
    """End of an approach."""

    state: State
    preconditioner: Preconditioner
    step_size: Tensor  # (C,)


@dataclass(frozen=True)
class Annealing:
    """Adam for a little, microcanonical steps of falling energy error, then in the curvature's
    coordinates.

    Parameters
    ----------
    n_adam : int, default=600
        Steps up the log density, from wherever the chains are put.
    n_hot : int, default=6000
        Steps of two gradients, in the coordinates as they are.
    energy_error : (float, float), default=(1.5, 0.1)
        Variance of a step's energy error per dimension, nats squared: of the first and the last hot
        step, falling geometrically; the last one's from then on.
    n_settle : int, default=1000
        Steps of two gradients in the coordinates of the adaptation's preconditioner.

    Notes
    -----
    ``n_adam + 2 (n_hot + n_settle)`` gradients a chain.
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
        return self.n_adam + self.n_hot + self.n_settle

    def run(
        self, state: State, log_density: LogDensity, adaptation: PreconditionerAdaptation, *,
        generator: torch.Generator, tell: Tell,
    ) -> Place:  # fmt: skip

        def walk(place: Place, targets: list[float]) -> Place:
            """Make a microcanonical step for each target of the energy error."""
            motion = Motion.start(place.state.position, log_density, generator)
            sizes = EnergyErrorAdaptation.start(place.step_size)
            for target in targets:
                motion, info = microcanonical_move(
                    motion, log_density, step_size=sizes.step_size,
                    preconditioner=place.preconditioner, generator=generator,
                )  # fmt: skip
                sizes = sizes.update(info, target * motion.velocity.shape[1])
                tell(motion.state, info)
            return Place(motion.state, place.preconditioner, sizes.step_size)

        hot, cold = self.energy_error
        falling = [hot * (cold / hot) ** (t / max(1, self.n_hot)) for t in range(self.n_hot)]
        identity = DiagonalPreconditioner(torch.ones_like(state.position))
        start = climb(state, log_density, self.n_adam, tell)
        place = walk(Place(start, identity, torch.full_like(state.value, 3e-4)), falling)
        # The curvature is taken afresh after shares of the steps in its coordinates, and steps are
        # a fifth shorter then.
        size = torch.full_like(state.value, 0.03)
        begin = 0
        ends = [round(share * self.n_settle) for share in (0.17, 0.43, 1.0)]
        for end in ends if self.n_settle else ():
            position = place.state.position
            scaling = adaptation.fit(
                place.preconditioner, RunningMoments.empty(position), position=position
            )
            place = walk(Place(place.state, scaling, size), [cold] * (end - begin))
            size = 0.8 * place.step_size
            begin = end
        return place


@dataclass(frozen=True, eq=False)
class AnnealedApproach:
    """Annealing under another density, to a place to begin at under one's own.

    Priors whose scales are learned need it: the climb shrinks deep layers to nothing, where their
    density is highest, and scales of hundreds of weights take long to grow again. In float32 it is
    also cheaper, and nothing in an approach is exact.
    """

    annealing: Annealing
    posterior: NetworkPosterior  # in any precision

    @property
    def n_steps(self) -> int:
        return self.annealing.n_steps

    def run(
        self, state: State, log_density: LogDensity, adaptation: PreconditionerAdaptation, *,
        generator: torch.Generator, tell: Tell,
    ) -> Place:  # fmt: skip
        began = initial_state(state.position.to(self.posterior.data.x), self.posterior)
        place = self.annealing.run(
            began, self.posterior, KroneckerAdaptation(self.posterior), generator=generator,
            tell=tell,
        )  # fmt: skip
        position = place.state.position.to(state.position)
        identity = DiagonalPreconditioner(torch.ones_like(position))
        return Place(
            initial_state(position, log_density),
            adaptation.fit(identity, RunningMoments.empty(position), position=position),
            place.step_size.to(position),
        )


Approach = Annealing | AnnealedApproach  # moves that chains make before they warm up


def climb(state: State, log_density: LogDensity, n_steps: int, tell: Tell) -> State:
    """Make ``n_steps`` of Adam up the log density, every chain for itself; none ends lost.

    Adam (Kingma & Ba 2015) with its own constants. The learning rate rises over 50 steps to .01 and
    falls to a hundredth of it as a half cosine.
    """
    position = state.position
    (mean, square) = (torch.zeros_like(state.position) for _ in range(2))
    no_summary = torch.ones_like(state.value, dtype=torch.float64)
    betas = (0.9, 0.999)
    for step in range(1, n_steps + 1):
        mean = mean.lerp(state.gradient, 1 - betas[0])
        square = (betas[1] * square).addcmul(state.gradient, state.gradient, value=1 - betas[1])
        unbiased = [m / (1 - b**step) for m, b in zip((mean, square), betas, strict=True)]
        fall = 0.5 * (1 + cos(pi * step / n_steps))
        rate = (1e-4 + (1e-2 - 1e-4) * fall) * min(1.0, step / 50)
        position = position + rate * (unbiased[0] / (unbiased[1].sqrt() + 1e-8))
        state = initial_state(position, log_density)
        finite = state.value.isfinite()
        tell(state, Info(no_summary, finite, ~finite, torch.ones_like(finite, dtype=torch.int64)))
    return state


class LayerCurvature(NamedTuple):
    """The two factors of a layer, of C chains."""

    inputs: Tensor  # (C, in + 1, in + 1), mean over rows
    slopes: Tensor  # (C, out, out), sum over rows


class _Root(NamedTuple):
    """A layer's inverse root: ``Z -> left (scale o Z) right'``."""

    left: Tensor  # (C, out, out)
    scale: Tensor  # (C, out, in + 1)
    right: Tensor  # (C, in + 1, in + 1)


@dataclass(frozen=True, eq=False)
class KroneckerPreconditioner:
    """A `Preconditioner` of `NetworkPosterior` positions of an MLP.

    Its coordinates are layer by layer ``[W | b]`` (out, in + 1), then the likelihood's parameters.
    Two products of a layer's size a map, ``2 P (out + in)`` multiplications, small beside a
    gradient's ``6 N P``; memory of the factors, about 2 P a chain.
    """

    layers: tuple[LayerCurvature, ...]  # first to last
    precision: Tensor  # (n_layers,): of the prior, a layer's mean
    own: Tensor  # (C, n_params): scales of the likelihood's own parameters

    @cached_property
    def _roots(self) -> list[_Root]:
        return [_root(c, p) for c, p in zip(self.layers, self.precision.double(), strict=True)]

    @cached_property
    def _sizes(self) -> list[int]:
        """Numbers of a layer, and of the likelihood's parameters."""
        return [*(root.scale[0].numel() for root in self._roots), self.own.shape[1]]

    @cached_property
    def _scale(self) -> Tensor:
        """Scales of all coordinates, (C, D)."""
        return torch.cat([*(root.scale.flatten(1) for root in self._roots), self.own], 1)

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor]:
        """Places of the coordinates in a position, and the other way round, (D,)."""
        parts = []
        start = 0
        for root in self._roots:
            n_out = root.scale.shape[1]
            n_in = root.scale.shape[2] - 1
            weight = start + torch.arange(n_out * n_in).view(n_out, n_in)
            bias = start + n_out * n_in + torch.arange(n_out)
            parts.append(torch.cat([weight, bias.unsqueeze(1)], 1).flatten())
            start += n_out * (n_in + 1)
        parts.append(start + torch.arange(self.own.shape[1]))
        order = torch.cat(parts).to(self.own.device)
        return order, order.argsort()

    def to_position(self, z: Tensor) -> Tensor:
        return self._rotated(self._scale * z, back=False).index_select(1, self._order[1])

    def to_gradient(self, gradient: Tensor) -> Tensor:
        return self._rotated(gradient.index_select(1, self._order[0]), back=True).mul_(self._scale)

    def _rotated(self, z: Tensor, *, back: bool) -> Tensor:
        """``left Z right'`` of every layer, or ``left' Z right``."""
        *layers, params = z.split(self._sizes, 1)
        pieces = []
        for part, (left_axes, scale, right) in zip(layers, self._roots, strict=True):
            left_axes, right = (left_axes.mT, right) if back else (left_axes, right.mT)
            pieces.append(torch.bmm(torch.bmm(left_axes, part.view(scale.shape)), right).flatten(1))
        return torch.cat([*pieces, params], 1)


def _root(curvature: LayerCurvature, precision: Tensor) -> _Root:
    (inputs, right), (slopes, outer) = (
        torch.linalg.eigh(factor.double()) for factor in (curvature.inputs, curvature.slopes)
    )
    products = slopes.clamp_min(0).unsqueeze(2) * inputs.clamp_min(0).unsqueeze(1)
    like = curvature.inputs
    return _Root(outer.to(like), (products + precision).rsqrt().to(like), right.to(like))


def curvature_at(posterior: NetworkPosterior, position: Tensor) -> tuple[LayerCurvature, ...]:
    """The factors of every layer at C positions (C, D).

    One forward pass and a backward pass an output, chain by chain: ``(2 + 4 O) N P``
    multiplications each.
    """
    chains = [_chain_curvature(posterior, place) for place in position]
    return tuple(
        LayerCurvature(*(torch.stack(factors) for factors in zip(*layer, strict=True)))
        for layer in zip(*chains, strict=True)
    )


def _chain_curvature(posterior: NetworkPosterior, position: Tensor) -> list[LayerCurvature]:
    network = cast(MLP, posterior.network)
    (x, y, weight) = posterior.data
    n_theta = network.layout.n_params
    layers = network.layers(position[:n_theta])
    inputs = [x]
    for w, b in layers[:-1]:
        inputs.append(network.activation.function(torch.addmm(b, inputs[-1], w.mT)))
    outputs = torch.addmm(layers[-1][1], inputs[-1], layers[-1][0].mT)
    likelihood = posterior.likelihood.to(x).at(position[n_theta:])
    root = likelihood.hessian_root(outputs, y) * weight.sqrt().unsqueeze(1)
    factors = []
    for i in range(len(layers) - 1, -1, -1):
        with_one = torch.cat([inputs[i], inputs[i].new_ones(len(x), 1)], 1)
        mean = with_one.mT @ (with_one * (weight / weight.sum()).unsqueeze(1))
        flat = root.flatten(0, 1)
        factors.append(LayerCurvature(mean, flat.mT @ flat))
        if i:
            below = (root @ layers[i][0]).unbind(0)
            root = torch.stack([network.activation.backward_(g, inputs[i]) for g in below])
    return factors[::-1]


def likelihood_scales(log_density: LogDensity, position: Tensor, n_params: int) -> Tensor:
    """Scales of the likelihood's own parameters, the last ``n_params`` of every position.

    From the curvature of each alone, by differences of its gradient; at least 1, about what the
    prior of a log scale has.
    """
    nudged = 1e-2
    scales = position.new_ones(len(position), n_params)
    for k in range(n_params):
        nudge = torch.zeros_like(position)
        nudge[:, k - n_params] = nudged
        ends = [log_density.evaluate(position + s * nudge).gradient for s in (1, -1)]
        curvature = (ends[1] - ends[0])[:, k - n_params] / (2 * nudged)
        scales[:, k] = curvature.clamp_min(1.0).rsqrt()
    return scales


@dataclass(frozen=True, eq=False)
class KroneckerAdaptation:
    """Warm-up that takes the curvature where the chains are; a `PreconditionerAdaptation`."""

    posterior: NetworkPosterior  # of an MLP; its likelihood has a `hessian_root`

    def windows(self, n_warmup: int) -> list[Window]:
        """Two that end with a look at the curvature, and half of the moves for step sizes."""
        first = int(0.2 * n_warmup)
        second = int(0.3 * n_warmup)
        if first < 10:  # what a step size needs to settle
            return [Window(n_warmup, False)] if n_warmup else []
        last = n_warmup - first - second
        return [Window(first, True), Window(second, True), Window(last, False)]

    def fit(
        self, preconditioner: Preconditioner, moments: RunningMoments, *, position: Tensor
    ) -> KroneckerPreconditioner:
        """Take the curvature at ``position``, averaged with what ``preconditioner`` knew."""
        network = cast(MLP, self.posterior.network)
        layers = curvature_at(self.posterior, position)
        if isinstance(preconditioner, KroneckerPreconditioner):  # the new place counts more
            layers = tuple(
                LayerCurvature(*(old.lerp(new, 0.6) for old, new in zip(*pair, strict=True)))
                for pair in zip(preconditioner.layers, layers, strict=True)
            )
        gaussian = self.posterior.prior.gaussian()
        precision = torch.ones(network.n_layers, dtype=torch.float64)
        if gaussian is not None:
            parts = network.layers(gaussian.precision.double().cpu())
            precision = torch.stack([torch.cat([w.flatten(), b]).mean() for w, b in parts])
        scales = likelihood_scales(self.posterior, position, self.posterior.likelihood.n_params)
        return KroneckerPreconditioner(layers, precision.to(position), scales)
