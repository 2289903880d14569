"""The one gradient loop, searches over a few numbers, and whether a curve still rises."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize
from torch import Tensor


class Gain(NamedTuple):
    """How much higher the end of a curve is than what came before."""

    value: float
    standard_error: float  # as if the values were independent; infinite of too short a curve

    def exceeds(self, tol: float) -> bool:
        """Whether the gain is above ``tol`` by more than three standard errors."""
        return self.value > tol + 3.0 * self.standard_error

    def is_below(self, tol: float) -> bool:
        """Whether the gain is below ``tol`` by more than three standard errors."""
        return self.value + 3.0 * self.standard_error < tol


def compute_gain(curve: Sequence[float], window: int) -> Gain:
    """Mean of the last ``window`` values less that of as many before them.

    Of a curve shorter than two windows nothing is known: infinite, with an infinite error.
    """
    if len(curve) < 2 * window:
        return Gain(inf, inf)
    last = curve[-window:]
    before = curve[-2 * window : -window]
    error = np.hypot(np.std(last), np.std(before)) / window**0.5
    return Gain(float(np.mean(last) - np.mean(before)), float(error))


def compute_final_gain(curve: Sequence[float]) -> Gain:
    """`compute_gain` of the last tenth of the curve, of one value at least."""
    return compute_gain(curve, max(1, len(curve) // 10))


def has_stalled(curve: Sequence[float], window: int, tol: float) -> bool:
    """Whether the gain over ``window`` values is known and below ``tol``."""
    return compute_gain(curve, window).value < tol


class AndersonMixing:
    r"""Proposals for the fixed point of a map g (Walker & Ni 2011, type II).

    Of the last few steps :math:`x_i \to g(x_i)` with residuals :math:`f_i = g(x_i) - x_i`,

    .. math:: \sum_i \alpha_i g(x_i), \qquad
        \alpha = \arg\min \Bigl| \sum_i \alpha_i f_i \Bigr|, \quad \sum_i \alpha_i = 1.

    On linear maps it is GMRES. Elsewhere it is a proposal only: the caller asks whether it is
    better.

    ``depth``: steps that are mixed.
    """

    def __init__(self, depth: int = 8) -> None:
        self._depth = depth
        self._history: list[tuple[Tensor, Tensor]] = []  # (residual, target)

    def propose(self, current: Tensor, target: Tensor) -> Tensor | None:
        """After a step from ``current`` to ``target``, both (n,); None after the first."""
        self._history.append((target - current, target))
        del self._history[: -self._depth]
        if len(self._history) < 2:
            return None
        residuals, goals = (torch.stack(t, dim=1) for t in zip(*self._history, strict=True))
        steps = residuals[:, 1:] - residuals[:, :-1]
        # On the host: a GPU has no driver for steps that depend on each other.
        wanted = residuals[:, -1:].cpu()
        mix = torch.linalg.lstsq(steps.cpu(), wanted, driver="gelsd").solution[:, 0].to(goals)
        return goals[:, -1] - (goals[:, 1:] - goals[:, :-1]) @ mix


Step = TypeVar("Step")

# Kingma & Ba 2014, section 2
_BETA1 = 0.9
_BETA2 = 0.999
_EPS = 1e-8


class BufferedLoss(Protocol):
    """A loss over the buffers ``params`` and ``gradient`` it was built on."""

    @property
    def params(self) -> Tensor:
        """Position at which the loss is evaluated, (n,); `minimise` updates it in place."""

    @property
    def gradient(self) -> Tensor:
        """Gradient of the last call, (n,)."""

    def __call__(self, step: int) -> Tensor:
        """The loss (stochastic if need be), after writing its gradient.

        0-d, or (R,) of R starts, whose parameters have nothing to do with one another.
        """


OnStep = Callable[[int, Mapping[str, float]], bool]

# Why a loop ended: after all its steps, because it converged, because ``on_step`` said so, or by a
# `KeyboardInterrupt`.
StopReason = Literal["max_iter", "tol", "callback", "interrupted"]


def combine_stop_reasons(reasons: Sequence[StopReason]) -> StopReason:
    """Gravest of several searches' reasons to stop."""
    order: tuple[StopReason, ...] = ("interrupted", "callback", "max_iter")
    return next((reason for reason in order if reason in reasons), "tol")


class ParamGroup(NamedTuple):
    """A stretch of the parameter vector with its own step size and range."""

    span: slice
    learning_rate: float
    lower: float = -float("inf")
    upper: float = float("inf")


class Loop:
    """Steps that a callback, convergence or a `KeyboardInterrupt` may end early.

    ::

        with loop:
            for step in loop.steps(range(max_iter)):
                ...
                loop.stop_if("callback", on_step(step, info))

    An interrupt ends the ``with`` block where it strikes: what the loop body assigns last is what
    was finished. The caller decides what to keep and raises it again.
    """

    def __init__(self) -> None:
        self.stopped: StopReason = "max_iter"

    def steps(self, steps: Iterable[Step]) -> Iterator[Step]:
        """The steps, until there is a reason to stop."""
        for step in steps:
            yield step
            if self.stopped != "max_iter":
                return

    def stop_if(self, reason: StopReason, condition: bool) -> None:
        """Make this the last step, and ``reason`` why, unless there was one before."""
        if condition and self.stopped == "max_iter":
            self.stopped = reason

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        if kind is not KeyboardInterrupt:
            return False
        self.stopped = "interrupted"
        return True


class OptimiseResult(NamedTuple):
    """Result of `minimise`."""

    params: Tensor
    n_iter: int
    loss_curves: list[list[float]]  # mean loss of every block of steps, one list a start
    stopped: StopReason

    @property
    def loss_curve(self) -> list[float]:
        """Curve of the only start."""
        return self.loss_curves[0] if self.loss_curves else []


class DivergenceError(ArithmeticError):
    """The loss or a parameter stopped being finite."""


def half_constant_half_linear(progress: float, *, floor: float = 0.02) -> float:
    """Step-size factor: 1 over the first half, then linearly down to ``floor``."""
    return 1.0 if progress < 0.5 else floor + (1.0 - floor) * 2.0 * (1.0 - progress)


def minimise(
    objective: BufferedLoss, *, groups: Sequence[ParamGroup], max_iter: int, block_size: int,
    on_step: OnStep, schedule: Callable[[float], float] = half_constant_half_linear,
    tol: float | None = None, conservative: bool = False,
) -> OptimiseResult:  # fmt: skip
    """Minimise a stochastic loss with Adam (Kingma & Ba 2014, Algorithm 1).

    ``objective``: its ``params`` are the starting point. ``groups``: step size and range of every
    stretch of them. ``block_size``: steps between two calls of ``on_step`` (steps made, ``{"loss":
    lowest mean loss of the block}``), which stops by True; the device is waited for only then.
    ``schedule``: factor of the step sizes as a function of progress in [0, 1).

    ``tol``: once no start's mean loss of the last tenth of ``max_iter`` is lower by at least
    ``tol`` than that of the tenth before, the schedule runs out within another tenth, and the loop
    stops. (Stopping dead leaves parameters as noisy as large steps make them.) ``conservative``:
    that is asked in the second half of the steps only, and of gains below ``tol`` by three standard
    errors.

    Raises DivergenceError if the loss of a block is not finite. A `KeyboardInterrupt` is reported
    as ``stopped="interrupted"``: the caller decides what to keep and raises it again.
    """
    adam = FlatAdam(objective.params, objective.gradient, groups)
    curves: list[list[float]] = []
    n_iter = 0
    loop = Loop()
    progress = _Progress(max_iter)
    window = max(1, max_iter // (10 * block_size))
    with loop:
        for start in loop.steps(range(0, max_iter, block_size)):
            block = min(block_size, max_iter - start)
            total = objective.params.new_zeros(())
            for step in range(start, start + block):
                total = total + objective(step)
                adam.step(schedule(progress.at(step)))
                n_iter = step + 1
            losses = [_finite(loss / block, n_iter) for loss in total.view(-1).tolist()]
            curves = curves or [[] for _ in losses]
            for curve, loss in zip(curves, losses, strict=True):
                curve.append(loss)
            loop.stop_if("callback", on_step(n_iter, {"loss": min(losses)}))
            if tol is not None and not (conservative and n_iter < max_iter / 2):
                gains = [compute_gain([-c for c in curve], window) for curve in curves]
                if all(g.is_below(tol) if conservative else g.value < tol for g in gains):
                    progress.finish_within(n_iter, window * block_size)
            loop.stop_if("tol", progress.has_run_out(n_iter))
    # The loss of a step is that before it: what the last one did has been seen by nobody.
    _finite(float(objective.params.abs().max()), n_iter)
    return OptimiseResult(objective.params, n_iter, curves, loop.stopped)


class _Progress:
    """How far the schedule has come, in [0, 1]; what is left of it can be hastened once."""

    def __init__(self, max_iter: int) -> None:
        self._first = 0
        self._last = max_iter
        self._start = 0.0
        self._is_hastened = False

    def at(self, step: int) -> float:
        share = (step - self._first) / (self._last - self._first)
        return self._start + (1.0 - self._start) * share

    def finish_within(self, step: int, n_steps: int) -> None:
        """Run out within ``n_steps`` from ``step`` on, or when it would have if that is sooner."""
        if not self._is_hastened and step < self._last:
            start = self.at(step)
            self._first, self._last, self._start = step, min(step + n_steps, self._last), start
        self._is_hastened = True

    def has_run_out(self, step: int) -> bool:
        """Whether there is nothing left of a hastened schedule."""
        return self._is_hastened and step >= self._last


def _finite(loss: float, n_iter: int) -> float:
    if loss - loss != 0.0:
        raise DivergenceError(
            f"the loss became {loss} within the {n_iter} steps made so far: lower "
            "learning_rate, standardize the data or give X as float64."
        )
    return loss


ValueAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]


def lbfgs(
    loss: ValueAndGradient, start: Tensor, *, max_iter: int,
    bounds: Sequence[tuple[float, float]] | None = None, ftol: float = 2.2e-9, gtol: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Minimise a smooth loss of a few numbers by L-BFGS-B (Byrd et al. 1995).

    ``loss``: position (n,) -> value and gradient (n,); see `with_gradient`. Where either isn't
    finite the line search turns back. ``start`` (n,): gives dtype and device of positions; the
    search itself is in float64. ``ftol``, ``gtol``: relative decrease of the value, and largest
    entry of the gradient, that end the search. Returns (n,), never worse than ``start``: the start
    itself where the search fails.
    """

    worst = -float("inf")

    def with_arrays(x: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        nonlocal worst
        value, gradient = loss(torch.from_numpy(x.copy()).to(start))
        if not bool(value.isfinite() & gradient.isfinite().all()):
            # Twice as bad as anything seen: of much worse the line search would take no step.
            return worst + 1.0 + abs(worst), np.zeros_like(x)
        worst = max(worst, float(value))
        return float(value), gradient.double().cpu().numpy()

    first = start.detach().double().cpu().numpy()
    value, _ = with_arrays(first)
    if worst == -float("inf"):
        return start
    options = {"maxiter": max_iter, "ftol": ftol, "gtol": gtol}
    result = optimize.minimize(
        with_arrays, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return torch.from_numpy(result.x).to(start) if result.fun <= value else start


def with_gradient(loss: Callable[[Tensor], Tensor]) -> ValueAndGradient:
    """A differentiable 0-d loss together with its gradient."""

    def evaluate(position: Tensor) -> tuple[Tensor, Tensor]:
        leaf = position.detach().requires_grad_()
        with torch.enable_grad():
            value = loss(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        return value.detach(), gradient

    return evaluate


def find_root(f: Callable[[float], float], low: float, high: float) -> float:
    """Find where a function of one number changes sign between two ends, to 1e-10 (Brent 1973)."""
    return float(optimize.brentq(f, low, high, xtol=1e-10))


def minimise_scalar(f: Callable[[float], float], low: float, high: float) -> float:
    """Find where a function with one valley is lowest between two ends, to 1e-8 (Brent 1973)."""
    result = optimize.minimize_scalar(
        f, bounds=(low, high), method="bounded", options={"xatol": 1e-8}
    )
    return float(result.x)


class _Stretches(NamedTuple):
    """Stretches of one step size, as the fused kernel takes them; Adam's two moments come last."""

    p: list[Tensor]
    grad: list[Tensor]
    m: list[Tensor]
    v: list[Tensor]


class FlatAdam:
    """Adam on stretches of one flat vector: one call of a fused kernel for equal step sizes.

    ``beta2`` decides how long it remembers the sizes of past gradients, 1 / (1 - beta2) steps.
    """

    def __init__(
        self, params: Tensor, gradient: Tensor, groups: Sequence[ParamGroup], *,
        beta2: float = _BETA2,
    ) -> None:  # fmt: skip
        self._beta2, groups = beta2, [g for g in groups if params[g.span].numel()]
        vectors = params, gradient, torch.zeros_like(params), torch.zeros_like(params)
        self._by_rate = {
            rate: _Stretches(
                *([t[g.span] for g in groups if g.learning_rate == rate] for t in vectors)
            )
            for rate in dict.fromkeys(g.learning_rate for g in groups)
        }
        self._confined = [
            (params[g.span], g.lower, g.upper) for g in groups if g.lower > -inf or g.upper < inf
        ]
        self._t = params.new_zeros((), dtype=torch.float32)  # steps made
        self._update = _fused_adam if _has_fused_adam(params) else _adam

    def step(self, factor: float) -> None:
        self._t.add_(1)
        for rate, stretches in self._by_rate.items():
            self._update(stretches, self._t, rate * factor, self._beta2)
        for p, lower, upper in self._confined:
            p.clamp_(lower, upper)


def _adam(s: _Stretches, n_steps: Tensor, lr: float, beta2: float) -> None:
    bias1, bias2 = (1 - beta ** float(n_steps) for beta in (_BETA1, beta2))
    for p, grad, m, v in zip(*s, strict=True):
        m.lerp_(grad, 1 - _BETA1)
        v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        p.addcdiv_(m, (v / bias2).sqrt_().add_(_EPS), value=-lr / bias1)


def _fused_adam(s: _Stretches, n_steps: Tensor, lr: float, beta2: float) -> None:
    torch._fused_adam_(
        *s, [], [n_steps] * len(s.p), lr=lr, beta1=_BETA1, beta2=beta2, weight_decay=0.0,
        eps=_EPS, amsgrad=False, maximize=False,
    )  # fmt: skip


def _has_fused_adam(like: Tensor) -> bool:
    """Whether torch's fused kernel, which is private, takes such tensors; tried on one number.

    Without it the same update runs operation by operation.
    """
    number = (like.new_zeros(1) for _ in range(4))
    one = like.new_ones((), dtype=torch.float32)
    try:
        _fused_adam(_Stretches(*([zero] for zero in number)), one, 0.0, _BETA2)
    except (AttributeError, TypeError, RuntimeError, NotImplementedError):
        return False
    return True
