r"""Modes of a regression network with scales and noise set by the evidence, many at once.

MacKay's evidence framework (1992, "A practical Bayesian framework for backpropagation networks",
eqs. 16 to 21) around Levenberg-Marquardt: after every step the precisions :math:`\alpha_g` of the
prior's groups and :math:`\beta_t` of the noise follow

.. math:: \gamma_g = n_g - \alpha_g \operatorname{tr}_g A^{-1}, \quad
          \alpha_g \leftarrow \frac{\gamma_g + 2a}{|\theta_g|^2 + 2 a s_g^2}, \quad
          \beta_t \leftarrow \frac{N - \gamma_t + 1}{\sum_n w_n r_{nt}^2 + 10^{-4}},

damped geometrically, with :math:`A = \sum_t \beta_t J_t' J_t + \mathrm{diag}\,\alpha`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, log, nan, pi
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.gauss_newton import INITIAL_DAMPING, Expansion, step
from skbayes_sym.inference.laplace.search.systems import (
    Curvature,
    RowCurvature,
    RowSystem,
    System,
    WeightCurvature,
    are_few,
    are_outnumbered,
    require_factor,
)
from skbayes_sym.models.data import Data
from skbayes_sym.models.learned_scales import ScalesByGroup
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_jacobian import outputs_and_jacobian
from skbayes_sym.numerics.optimise import Loop, Stopped

_HYPER_START = 8  # iterations before scales and noise move: the weights first
_DAMPING = 0.7  # share of the logarithmic step of a hyperparameter
_INITIAL_NOISE_PRECISION = 1.0 / 0.3  # of standardised targets
# Gamma hyperprior of the noise's precision: it only keeps a perfect fit finite.
_NOISE_SHAPE, _NOISE_RATE = 0.5, 5e-5
_NUMBERS = 1 << 20  # of a block of Jacobians: 8 MB, which caches hold
_SETTLED, _PATIENCE = 3, 3  # updates compared, and how often in a row they must agree
# Nats per unit of weight that the evidence rises by at every one of so many steps while a network
# still finds out that there is hardly any noise. Others have made up their minds: from there on
# scales drift and predictions get worse as often as better.
_STEEP, _OVER = 0.01, 10
# Of more weights than rows: steps before the best is kept, since the evidence away from a mode says
# too much, and steps without a new best that end a restart.
_BEST_START, _MOST_WITHOUT = 20, 15

_REMEDY = "Standardise X and y, or use fewer hidden units."


class Modes(NamedTuple):
    """R modes with their hyperparameters, all in the scale of the data."""

    theta: Tensor  # (R, P)
    hyper: Tensor  # (R, G), log precisions of the prior's groups
    noise_precision: Tensor  # (R, T)
    factor: Tensor  # (R, P, P), Cholesky factor of the posterior's precision A
    log_evidence: Tensor  # (R,), Laplace's estimate, nats, of one mode
    n_iter: Tensor  # int64 (R,)


OnModes = Callable[[int, Callable[[], Modes]], bool]


class Search(NamedTuple):
    """What a search ended with."""

    modes: Modes
    curves: list[Tensor]  # log evidences (R,) after every step; nan of restarts that have ended
    stopped: Stopped

    def curve(self, mode: int) -> Tensor:
        """Log evidence of one mode after every step, on the host."""
        return torch.stack(self.curves)[:, mode].cpu() if self.curves else torch.zeros(0)


@dataclass(frozen=True, eq=False)
class NumbersEvidence:
    """Sums over rows that steps and updates need.

    Parameters
    ----------
    network : MLP
    data : Data
        Float64, targets (N, T).
    prior : ScalesByGroup
    seen : Tensor of shape (R, N), optional
        Which rows every restart learns from; all of them by default.
    """

    network: MLP
    data: Data
    prior: ScalesByGroup
    seen: Tensor | None = None

    def of(self, which: Tensor) -> "NumbersEvidence":
        """That of some restarts."""
        return self if self.seen is None else replace(self, seen=self.seen[which])

    @cached_property
    def weight(self) -> Tensor:
        """Of every row, (R, N); R is 1 where all restarts see the same."""
        weight = self.data.weight.unsqueeze(0)
        return weight if self.seen is None else weight * self.seen

    @cached_property
    def total_weight(self) -> Tensor:
        """Number of rows, counted with their weights, (R,)."""
        return self.weight.sum(1)

    @property
    def is_outnumbered(self) -> bool:
        """Whether there are more weights than numbers to learn from."""
        return are_outnumbered(self.data.y.numel(), self.network.layout.n_params)

    def squares(self, theta: Tensor) -> Tensor:
        """Weighted squared residuals of every target, (r, P) -> (r, T)."""
        residual = self.data.y - self.network.forward(theta, self.data.x)
        return (self.weight.unsqueeze(1) @ residual.square_()).squeeze(1)

    def sums(self, theta: Tensor) -> "Sums":
        """Squares, J'r and J'J of every target; O(R N T P^2), or O(R N T P) of few rows."""
        (x, y, _), (n_restarts, p) = self.data, theta.shape
        n_targets = y.shape[1]
        size = max(1, _NUMBERS // (n_restarts * n_targets * p))
        squares = theta.new_zeros(n_restarts, n_targets)
        slope = theta.new_zeros(n_restarts, n_targets, p)
        few = are_few(len(x) * n_targets, p)
        product = theta.new_zeros(n_restarts, n_targets, len(x) if few else p, p)
        for rows in torch.arange(len(x), device=x.device).split(size):
            outputs, jacobian = outputs_and_jacobian(self.network, theta, x[rows])
            root = self.weight[:, rows].sqrt().unsqueeze(2)
            residual = (y[rows] - outputs) * root
            weighted = (jacobian * root.unsqueeze(3)).transpose(1, 2)  # (R, T, n, P)
            squares += residual.square().sum(1)
            slope += torch.einsum("rnt,rtnp->rtp", residual, weighted)
            if few:
                product[:, :, rows] = weighted
            else:
                product += weighted.mT @ weighted
        return Sums(squares, slope, product)


class Sums(NamedTuple):
    """What one pass over the rows leaves."""

    squares: Tensor  # (R, T)
    slope: Tensor  # (R, T, P), J'r
    product: Tensor  # (R, T, P, P), J'J; of few rows J itself, (R, T, N, P)

    def expansion(self, noise_precision: Tensor) -> Expansion:
        """The negative log likelihood, up to its constant."""
        value = 0.5 * (noise_precision * self.squares).sum(1)
        gradient = -torch.einsum("rt,rtp->rp", noise_precision, self.slope)
        return Expansion(value, gradient, self._curvature(noise_precision))

    def determined(self, noise_precision: Tensor, system: System) -> Tensor:
        """What the rows of each target determine of the weights, (R, T); at most N."""
        if isinstance(system, RowSystem):
            return system.determined.unflatten(1, (self.product.shape[1], -1)).sum(2)
        return noise_precision * (self.product * system.covariance.unsqueeze(1)).sum((2, 3))

    def _curvature(self, noise_precision: Tensor) -> Curvature:
        n_rows, n_params = self.product.shape[2:]
        if n_rows < n_params:
            root = noise_precision.sqrt()[:, :, None, None] * self.product
            return RowCurvature(root.flatten(1, 2))
        return WeightCurvature(torch.einsum("rt,rtpq->rpq", noise_precision, self.product))


class Hyper(NamedTuple):
    """Hyperparameters of R restarts."""

    log_precision: Tensor  # (R, G), of the prior's groups
    noise_precision: Tensor  # (R, T)


class Updated(NamedTuple):
    """What the evidence says at one point."""

    log_evidence: Tensor  # (R,), at the hyperparameters it was asked at
    hyper: Hyper  # where the update leads
    system: System  # A


class _State(NamedTuple):
    """Restarts that are still moving."""

    theta: Tensor
    log_precision: Tensor
    noise_precision: Tensor
    damping: Tensor
    n_iter: Tensor
    log_evidence: Tensor
    squares: Tensor
    slope: Tensor
    product: Tensor
    # Where the evidence was highest, and the updates since then.
    best_evidence: Tensor  # -inf until it counts
    best_theta: Tensor
    best_log_precision: Tensor
    best_noise_precision: Tensor
    n_without: Tensor

    def with_best(self, theta: Tensor, hyper: Hyper, log_evidence: Tensor) -> "_State":
        """Told the evidence at weights and hyperparameters of all."""
        higher = log_evidence > self.best_evidence
        by_row = higher.unsqueeze(1)
        return self._replace(
            best_evidence=torch.where(higher, log_evidence, self.best_evidence),
            best_theta=torch.where(by_row, theta, self.best_theta),
            best_log_precision=torch.where(by_row, hyper.log_precision, self.best_log_precision),
            best_noise_precision=torch.where(
                by_row, hyper.noise_precision, self.best_noise_precision
            ),
            n_without=torch.where(higher, 0, self.n_without + 1),
        )

    @property
    def sums(self) -> Sums:
        return Sums(self.squares, self.slope, self.product)

    @property
    def hyper(self) -> Hyper:
        return Hyper(self.log_precision, self.noise_precision)

    def of(self, which: Tensor) -> "_State":
        return _State(*(t[which] for t in self))

    def put(self, which: Tensor, moved: "_State") -> "_State":
        """The same with the restarts ``which`` replaced."""
        if len(which) == len(self.theta):
            return moved
        return _State(*(t.index_copy(0, which, m) for t, m in zip(self, moved, strict=True)))


@dataclass(frozen=True, eq=False)
class EvidenceModes:
    """How modes are searched for.

    Parameters
    ----------
    max_iter : int
        Largest number of Gauss-Newton steps.
    tol : float or None
        A restart ends when its log evidence moves by less than this many nats per unit of weight,
        over three updates and three times in a row. None never stops.
    learn_noise, learn_prior : bool
        Whether the evidence moves the noise, and the scales of the prior.
    max_more : int, default=0
        Further steps of restarts whose evidence still rises steeply.
    """

    max_iter: int = 100
    tol: float | None = 5e-6
    learn_noise: bool = True
    learn_prior: bool = True
    max_more: int = 0

    def search(
        self,
        problem: NumbersEvidence,
        theta: Tensor,
        noise_precision: Tensor | None = None,
        on_step: OnModes | None = None,
    ) -> Search:
        """Modes from starting points ``theta`` (R, P).

        The last iterate is kept, not the one of highest evidence: away from a mode Laplace's
        approximation says too much. But of more weights than rows, whose scales run away while the
        evidence falls, that one is. Restarts that have settled leave the batch.

        Parameters
        ----------
        problem : NumbersEvidence
        theta : Tensor of shape (R, P)
        noise_precision : Tensor of shape (T,) or (R, T), optional
            Where it starts, or stays.
        on_step : callable (step, modes) -> bool, optional
            Told the number of steps and a function that gives the modes as they are; True stops.
        """
        state = _start(problem, theta, noise_precision)
        curves: list[Tensor] = []
        ended = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        alive = torch.arange(len(theta), device=theta.device)
        loop = Loop()
        with loop:
            for iteration in loop.steps(range(self.max_iter + self.max_more)):
                moved = self._iterate(problem.of(alive), state.of(alive), iteration)
                state = state.put(alive, moved)
                curves.append(torch.where(ended, torch.nan, state.log_evidence))
                ended = ended | self._settled(curves, problem.total_weight)
                if self.tol is not None:
                    ended = ended | (state.n_without >= _MOST_WITHOUT)
                settled = ended
                if iteration + 1 >= self.max_iter:
                    ended = ended | ~self._rises(curves, problem.total_weight)
                left, n_settled = _left(ended, settled)
                loop.stop_if("tol", n_settled == len(theta))
                if on_step is not None:
                    so_far = partial(self._modes, problem, state)
                    loop.stop_if("callback", on_step(iteration + 1, so_far))
                if not left:
                    break
                alive = torch.tensor(left, device=theta.device)
        return Search(self._modes(problem, state), curves, loop.stopped)

    def _modes(self, problem: NumbersEvidence, state: _State) -> Modes:
        """Evidence and curvature where the search is, or was best."""
        fixed = replace(self, learn_noise=False, learn_prior=False)
        theta, sums, hyper = state.theta, state.sums, state.hyper
        if bool((state.best_evidence > -inf).all()):
            theta = state.best_theta
            sums = problem.sums(theta)
            hyper = Hyper(state.best_log_precision, state.best_noise_precision)
        final = fixed.update(problem, theta, sums, hyper)
        value = final.log_evidence
        return Modes(theta, *hyper, final.system.cholesky(), value, state.n_iter)

    def update(self, problem: NumbersEvidence, theta: Tensor, sums: Sums, hyper: Hyper) -> Updated:
        """Laplace's evidence of every restart and MacKay's step of its hyperparameters.

        O(P^3), or O((N T)^2 P) of few rows.
        """
        prior, weight = problem.prior, problem.total_weight.unsqueeze(1)
        curvature = sums.expansion(hyper.noise_precision).curvature
        system = curvature.system(hyper.log_precision.exp()[:, prior.group])
        require_factor(system, _REMEDY)
        alpha, n = hyper.log_precision.exp(), prior.sizes.to(theta)
        squares = prior.squares(theta)
        log_precision = hyper.log_precision
        if self.learn_prior:
            log_precision = prior.evidence_step(theta, system.variance, log_precision, _DAMPING)
        noise = hyper.noise_precision
        if self.learn_noise:
            # What each target's rows determine; it adds up to what the groups have of it.
            used = sums.determined(noise, system)
            left = (weight - used).clamp_min(0.0) + 2.0 * _NOISE_SHAPE
            goal = left / (sums.squares + 2.0 * _NOISE_RATE)
            noise = torch.lerp(noise.log(), goal.log(), _DAMPING).exp()
        beta = hyper.noise_precision
        log_lik = 0.5 * (weight * (beta.log() - log(2.0 * pi)) - beta * sums.squares).sum(1)
        log_prior = 0.5 * (n * hyper.log_precision - alpha * squares).sum(1)
        value = log_lik + log_prior - 0.5 * system.log_det
        value = value + prior.log_hyperprior(hyper.log_precision)
        return Updated(value, Hyper(log_precision, noise), system)

    def _iterate(self, problem: NumbersEvidence, state: _State, iteration: int) -> _State:
        def misfit(theta: Tensor, which: Tensor) -> Tensor:
            squares = problem.of(which).squares(theta)
            return 0.5 * (state.noise_precision[which] * squares).sum(1)

        expansion = state.sums.expansion(state.noise_precision)
        precision = state.log_precision.exp()[:, problem.prior.group]
        taken = step(misfit, state.theta, expansion, precision, state.damping)
        sums = problem.sums(taken.theta)
        state = state._replace(
            theta=taken.theta, damping=taken.damping, n_iter=state.n_iter + 1, **sums._asdict()
        )
        if iteration < _HYPER_START:
            return state
        found = self.update(problem, taken.theta, sums, state.hyper)
        if iteration >= _BEST_START and self.learn_prior and problem.is_outnumbered:
            state = state.with_best(taken.theta, state.hyper, found.log_evidence)
        return state._replace(
            log_evidence=found.log_evidence,
            log_precision=found.hyper.log_precision,
            noise_precision=found.hyper.noise_precision,
        )

    def _settled(self, curves: list[Tensor], weight: Tensor) -> Tensor:
        """Which restarts have stopped moving, bool (R,)."""
        recent = curves[-(_SETTLED + _PATIENCE) :]
        if self.tol is None or len(recent) < _SETTLED + _PATIENCE:
            return torch.zeros_like(curves[-1], dtype=torch.bool)
        values = torch.stack(recent)
        change = (values[_SETTLED:] - values[:-_SETTLED]).abs()
        return (change < self.tol * weight).all(0)  # False where nan: before updates, or ended

    def _rises(self, curves: list[Tensor], weight: Tensor) -> Tensor:
        """Which restarts are far from having moved where they go, bool (R,)."""
        if len(curves) <= _OVER:
            return torch.zeros_like(curves[-1], dtype=torch.bool)
        return curves[-1] - curves[-1 - _OVER] > _OVER * _STEEP * weight  # False where nan


def _left(ended: Tensor, settled: Tensor) -> tuple[list[int], int]:
    """Restarts that go on, and how many are settled; a GPU is waited for once."""
    has_ended, is_settled = torch.stack([ended, settled]).tolist()
    return [i for i, over in enumerate(has_ended) if not over], sum(is_settled)


def _start(problem: NumbersEvidence, theta: Tensor, noise_precision: Tensor | None) -> _State:
    n, n_targets = len(theta), problem.data.y.shape[1]
    spread = problem.data.y.var(0, correction=0)
    spread = torch.where(spread > 0.0, spread, 1.0)  # of a constant target any start will do
    beta = _INITIAL_NOISE_PRECISION / spread if noise_precision is None else noise_precision
    log_precision = problem.prior.hyper.to(theta).expand(n, -1)
    beta = beta.to(theta).expand(n, n_targets)
    none = torch.zeros(n, dtype=torch.int64, device=theta.device)
    return _State(
        theta,
        log_precision,
        beta,
        theta.new_full((n,), INITIAL_DAMPING),
        none,
        theta.new_full((n,), nan),
        *problem.sums(theta),
        theta.new_full((n,), -inf),
        theta,
        log_precision,
        beta,
        none,
    )
