"""Loss barrier between two networks, before and after alignment of their weights."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skbayes_sym.base.rows import Array
from skbayes_sym.inspection._fitted import require_attributes, unwrap_fitted
from skbayes_sym.numerics.arguments import check_count
from skbayes_sym.numerics.runtime import one_thread
from skbayes_sym.symmetry.modules.merging import align_modules, flatten_module, interpolate_modules


@dataclass(frozen=True, eq=False)
class LossBarrier:
    """Loss on the straight line between two weight vectors, before and after alignment.

    Parameters
    ----------
    fraction : ndarray of shape (n_points,)
        Position on the line, from 0 at the first vector to 1 at the second.
    loss_before : ndarray of shape (n_points,)
        Loss on the line between the original vectors.
    loss_after : ndarray of shape (n_points,)
        Loss on the line after the second vector was aligned with the first.
    distance_before : float
        Euclidean distance of the original vectors.
    distance_after : float
        Euclidean distance after alignment.
    """

    fraction: Array
    loss_before: Array
    loss_after: Array
    distance_before: float
    distance_after: float

    @property
    def barrier_before(self) -> float:
        """Largest excess of the loss over the interpolation of its end values, at least 0."""
        return self._max_excess(self.loss_before)

    @property
    def barrier_after(self) -> float:
        """Largest excess of the loss after alignment."""
        return self._max_excess(self.loss_after)

    def _max_excess(self, loss: Array) -> float:
        """Largest excess of ``loss`` over the linear interpolation of its end values."""
        interpolated = (1 - self.fraction) * loss[0] + self.fraction * loss[-1]
        return float((loss - interpolated).max())


def loss_barrier(
    model: BaseEstimator | Callable[[nn.Module], float],
    a: Any,
    b: Any,
    *,
    n_points: int = 21,
    example_input: Any = None,
) -> LossBarrier:
    """Compute the loss on the line between two networks, before and after alignment.

    For draws of a posterior, the loss is minus the mean log density of the training targets given
    one network. If draws of two chains are symmetric copies of one mode, aligning the second with
    the first removes the barrier (Ainsworth et al. 2023; Rossi et al. 2023). If a barrier remains,
    the networks are different functions, or the alignment, a local optimum, missed the best
    order of units. For modules with batch norm, compute the moments again in the function that
    returns the loss (:ref:`torch_modules`).

    Parameters
    ----------
    model : MCMCRegressor, MCMCClassifier or callable
        Fitted estimator, alone or at the end of a pipeline or search. Or a function that returns
        the loss of a module.
    a, b : (int, int) or torch.nn.Module
        Index of a chain and a draw in ``samples_``. Or two modules of one architecture, whose
        symmetry `skbayes_sym.symmetry.symmetry_of` finds.
    n_points : int, default=21
        Number of points on the line, at least 3.
    example_input : Tensor or tuple of Tensor, optional
        Arguments of one call of the modules; needed for modules.

    Returns
    -------
    LossBarrier
        ``barrier_before`` and ``barrier_after`` (in nats per row for draws), and the losses on the
        line.

    Raises
    ------
    TypeError
        If the model has no draws of a network, or ``example_input`` is missing for modules.
    ValueError
        If there is no such draw.

    Notes
    -----
    The cost is ``2 n_points`` passes over the training rows, and one assignment problem per layer
    and sweep of the alignment.

    Examples
    --------
    >>> from skbayes_sym import MCMCRegressor, loss_barrier
    >>> from skbayes_sym.datasets import make_sinusoidal
    >>> from skbayes_sym import Chains
    >>> X, y = make_sinusoidal(60, random_state=0)
    >>> reg = MCMCRegressor((2,), sampler=Chains(n_warmup=100), n_chains=2, remove_symmetries=False,
    ...                     random_state=0).fit(X, y)
    >>> barrier = loss_barrier(reg, (0, -1), (1, -1))
    >>> barrier.distance_after <= barrier.distance_before
    True
    """
    check_count("n_points", n_points, 3)
    if not isinstance(model, BaseEstimator):
        return _compare_modules(model, a, b, n_points, example_input)
    model = unwrap_fitted(model).model
    require_attributes(
        model, ["posterior_density", "samples_"], "loss_barrier", "draws of a network"
    )
    start_index = _check_draw_index("a", a, model.samples_)
    end_index = _check_draw_index("b", b, model.samples_)
    with one_thread(), torch.no_grad():
        # Align the network weights of the second draw with the first.
        posterior = model.posterior_density()
        positions = model.draw_positions()
        start = positions[start_index]
        end = positions[end_index]
        n_theta = posterior.network.layout.n_params
        theta, _ = posterior.network.symmetry().align(end[:n_theta], start[:n_theta])
        aligned = torch.cat([theta, end[n_theta:]])

        # Evaluate the loss on both lines.
        total_weight = float(posterior.data.weight.sum())

        def loss_to(end: Tensor) -> Array:
            fraction = torch.linspace(0.0, 1.0, n_points, dtype=start.dtype).unsqueeze(1)
            line = start + fraction * (end - start)
            return -posterior.log_likelihood(line).numpy() / total_weight

        return LossBarrier(
            np.linspace(0.0, 1.0, n_points),
            loss_to(end),
            loss_to(aligned),
            float((end - start).norm()),
            float((aligned - start).norm()),
        )


def _compare_modules(
    loss: Callable[[nn.Module], float], a: Any, b: Any, n_points: int, example_input: Any
) -> LossBarrier:
    """Compute the loss on the line between two modules.

    Parameters
    ----------
    loss : callable (nn.Module) -> float
        Loss of a module.
    a, b : torch.nn.Module
        Modules of one architecture.
    n_points : int
        Number of points on the line.
    example_input : Tensor or tuple of Tensor
        Arguments of one call of the modules.

    Returns
    -------
    LossBarrier
    """
    if not (isinstance(a, nn.Module) and isinstance(b, nn.Module) and callable(loss)):
        raise TypeError(
            "loss_barrier takes an estimator and two draws (chain, draw), or a loss and two "
            "modules."
        )
    if example_input is None:
        raise TypeError("loss_barrier of modules needs example_input, the arguments of one call.")
    fractions = np.linspace(0.0, 1.0, n_points)
    _, aligned = align_modules([a, b], example_input)

    def loss_to(end: nn.Module) -> Array:
        with torch.no_grad():
            losses = [float(loss(interpolate_modules(a, end, fraction))) for fraction in fractions]
        return np.array(losses)

    def distance_to(end: nn.Module) -> float:
        return float((flatten_module(end) - flatten_module(a)).norm())

    return LossBarrier(
        fractions, loss_to(b), loss_to(aligned), distance_to(b), distance_to(aligned)
    )


def _check_draw_index(name: str, index: Any, samples: Array) -> tuple[int, ...]:
    """Check the index of a chain and a draw in ``samples``."""
    sizes = samples.shape[:-1]
    is_index = isinstance(index, tuple | list) and len(index) == len(sizes)
    if not is_index or not all(
        isinstance(i, Integral) and -n <= i < n for i, n in zip(index, sizes, strict=True)
    ):
        raise ValueError(
            f"{name} must be the indices of a chain and a draw among the {sizes} of samples_, got "
            f"{index!r}."
        )
    return tuple(int(i) for i in index)
