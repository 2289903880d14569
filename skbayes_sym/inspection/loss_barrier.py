"""Barrier of the loss between two networks, before and after alignment."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skbayes_sym.base.device import one_thread
from skbayes_sym.base.rows import Array
from skbayes_sym.inspection._fitted import fitted_model, require
from skbayes_sym.numerics.arguments import check_count
from skbayes_sym.symmetry.modules.merging import align_modules, flatten_module, interpolate_modules


@dataclass(frozen=True, eq=False)
class LossBarrier:
    """The loss on the straight line between two weight vectors.

    ``before``, ``after`` (n_points,): loss as the two are, and after the second was aligned with
    the first; ``distance_before``, ``distance_after``: between the ends, Euclidean.
    """

    share: Array  # (n_points,); of the way, from 0 to 1
    before: Array
    after: Array
    distance_before: float
    distance_after: float

    @property
    def barrier_before(self) -> float:
        """Largest excess over the line between the losses of the ends, nats; 0 if there is none."""
        return self._excess(self.before)

    @property
    def barrier_after(self) -> float:
        """The same after alignment."""
        return self._excess(self.after)

    def _excess(self, loss: Array) -> float:
        straight = (1 - self.share) * loss[0] + self.share * loss[-1]
        return float((loss - straight).max())


def loss_barrier(
    model: BaseEstimator | Callable[[nn.Module], float], a: Any, b: Any, *, n_points: int = 21,
    example_input: Any = None,
) -> LossBarrier:  # fmt: skip
    """The loss on the way between two networks, before and after alignment.

    Of draws the loss is minus the mean log density of the training targets, given one network.
    Where draws of two chains are symmetric copies of one mode, aligning the second with the first
    takes the barrier away (Ainsworth et al. 2023; Rossi et al. 2023). Where it stays, they are
    other functions, or the alignment, a local optimum, missed the right labels.

    Parameters
    ----------
    model : MCMCRegressor, MCMCClassifier or callable
        Fitted, alone or at the end of a pipeline or search; or the loss of a module, a number.
    a, b : (int, int) or torch.nn.Module
        Chain and draw in ``samples_``; or two modules of one architecture, whose symmetry
        `skbayes_sym.symmetry.symmetry_of` finds.
    n_points : int, default=21
        Of the path, at least 3.
    example_input : Tensor or tuple of Tensor, optional
        Arguments of one call of the modules, which need it.

    Returns
    -------
    LossBarrier
        ``barrier_before`` and ``barrier_after`` (nats per row), and the losses along the way.

    Raises
    ------
    TypeError
        If the model has no draws of a network, or modules come without an example input.
    ValueError
        If there is no such draw.

    Notes
    -----
    ``2 n_points`` passes over the training rows, and an assignment problem a layer and sweep.

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
        return _module_barrier(model, a, b, n_points, example_input)
    inner = fitted_model(model).model
    require(inner, ["_reference_posterior", "samples_"], "loss_barrier", "draws of a network")
    places = [_place(name, pair, inner.samples_) for name, pair in {"a": a, "b": b}.items()]
    with one_thread(), torch.no_grad():
        posterior = inner._reference_posterior()
        positions = inner._positions()
        start, end = (positions[place] for place in places)
        n_theta = posterior.network.layout.n_params
        theta, _ = posterior.network.symmetry().align(end[:n_theta], start[:n_theta])
        aligned = torch.cat([theta, end[n_theta:]])
        weight = float(posterior.data.weight.sum())

        def loss(to: Tensor) -> Array:
            share = torch.linspace(0.0, 1.0, n_points, dtype=start.dtype).unsqueeze(1)
            way = start + share * (to - start)
            return -posterior.log_likelihood(way).numpy() / weight

        return LossBarrier(
            np.linspace(0.0, 1.0, n_points), loss(end), loss(aligned),
            float((end - start).norm()), float((aligned - start).norm()),
        )  # fmt: skip


def _module_barrier(
    loss: Callable[[nn.Module], float], a: Any, b: Any, n_points: int, example_input: Any
) -> LossBarrier:
    if not (isinstance(a, nn.Module) and isinstance(b, nn.Module) and callable(loss)):
        raise TypeError(
            "loss_barrier takes an estimator and two draws (chain, draw), or a loss and two "
            "modules."
        )
    if example_input is None:
        raise TypeError("loss_barrier of modules needs example_input, the arguments of one call.")
    shares = np.linspace(0.0, 1.0, n_points)
    _, moved = align_modules([a, b], example_input)

    def along(end: nn.Module) -> Array:
        with torch.no_grad():
            return np.array([float(loss(interpolate_modules(a, end, share))) for share in shares])

    distances = (float((flatten_module(end) - flatten_module(a)).norm()) for end in (b, moved))
    return LossBarrier(shares, along(b), along(moved), *distances)


def _place(name: str, place: Any, samples: Array) -> tuple[int, ...]:
    """A chain and a draw that are there."""
    sizes = samples.shape[:-1]
    is_place = isinstance(place, tuple | list) and len(place) == len(sizes)
    if not is_place or not all(
        isinstance(i, Integral) and -n <= i < n for i, n in zip(place, sizes, strict=True)
    ):
        raise ValueError(
            f"{name} must be the places of a chain and a draw among {sizes} of samples_, got "
            f"{place!r}."
        )
    return tuple(int(i) for i in place)
