"""Weights before and after their symmetry is removed."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import check_array
from skbayes_sym.inspection._drawing import COLOURS, Display, no_box, split_axes
from skbayes_sym.inspection._fitted import fitted_model, require
from skbayes_sym.inspection.symmetry_removal import remove_symmetries
from skbayes_sym.numerics.arguments import check_arrays, check_count, check_names, draw_seed
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import UnitGroup

_MOST_NAMED = len(COLOURS)  # labels with a colour and a line in the legend each


class SymmetryDisplay(Display):
    """Two weights of every hidden unit, before and after symmetry removal.

    Each draw is one point a unit. Before, exchanges (and sign flips) of units have mixed the
    colours: every cloud has them all. Afterwards every unit has its place, as far as the posterior
    tells units apart at all; where clouds overlap, single weights mean nothing.

    Parameters
    ----------
    before, after : ndarray of shape (n_draws, n_units, 2)
        The two weights, acting on standardised inputs.
    labels : ndarray of int of shape (n_draws, n_units)
        What is coloured.
    label_names : sequence of str
    weight_names : tuple of str of length 2
    before_name : str, default="before"
    after_name : str, default="after"

    Attributes
    ----------
    ax_ : matplotlib Axes
        The axes given, or new ones; the frame of the two panels.
    axes_ : list of two matplotlib Axes
        Before and after, with the same limits.
    figure_ : matplotlib Figure
    points_ : list of two matplotlib PathCollection

    See Also
    --------
    skbayes_sym.remove_symmetries : Draws of any sampler on one representative.

    Examples
    --------
    >>> from skbayes_sym import SymmetrizedVIRegressor
    >>> from skbayes_sym.datasets import make_sinusoidal
    >>> from skbayes_sym.inspection import SymmetryDisplay
    >>> X, y = make_sinusoidal(60, random_state=0)
    >>> reg = SymmetrizedVIRegressor((3,), "tanh", max_iter=500, tol=None, random_state=0).fit(X, y)
    >>> display = SymmetryDisplay.from_estimator(reg, n_draws=100)
    >>> display.before.shape, display.weight_names
    ((100, 3, 2), ('weight of x0', 'bias'))
    """

    def __init__(
        self, before: Array, after: Array, labels: Array, *, label_names: Sequence[str],
        weight_names: tuple[str, str], before_name: str = "before", after_name: str = "after",
    ) -> None:  # fmt: skip
        arrays = check_arrays(
            "SymmetryDisplay", {"before": "nd2", "after": "nd2", "labels": "nd"}, before=before,
            after=after, labels=labels,
        )  # fmt: skip
        self.before = arrays["before"]
        self.after = arrays["after"]
        self.labels = arrays["labels"]
        self.label_names = label_names
        self.weight_names = tuple(check_names("SymmetryDisplay", "weight_names", weight_names, 2))
        self.before_name = before_name
        self.after_name = after_name

    @classmethod
    def from_estimator(
        cls, estimator: BaseEstimator, *, pair: tuple[int | str, int | str] | None = None,
        layer: int = 1, color_by: str = "unit", n_draws: int = 1000, random_state: Any = 0,
        ax: Any = None, **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Draw weights, act on them with the symmetry and plot.

        What is missing of the two is made. Draws whose symmetry was removed, and those of a
        variational posterior, get a random copy each: the law of the symmetrised posterior. Draws
        as a sampler left them are moved by `remove_symmetries`.

        Parameters
        ----------
        estimator : estimator
            Fitted network with draws or a posterior of its weights, or a pipeline or search around
            one.
        pair : tuple of two int or str, optional
            Weights of a unit: its incoming weights, bias and outgoing weights, in this order or by
            name ("weight of x0", "bias", "weight to output 0"). By default the first incoming
            weight and the bias.
        layer : int, default=1
            Hidden layer, counted from 1.
        color_by : {"unit", "mode"}, default="unit"
            The unit's place in the layer, or the mode that the draw's chain is in (``modes_``).
        n_draws : int, default=1000
            Of samples, evenly by weight.
        random_state : int, RandomState instance or None, default=0
            Source of draws and copies.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For both ``Axes.scatter``.

        Raises
        ------
        TypeError
            If it has no network with hidden units that can be exchanged.
        ValueError
            If there is no such layer or weight, or no modes to colour.
        """
        model = fitted_model(estimator).model
        need = "a network whose hidden units can be exchanged"
        require(model, ["network_"], cls.__name__, need)
        require(model.network_, ["symmetry"], cls.__name__, need)
        units = _unit_index(model.network_.symmetry(), layer)  # (d, p), in the flat weights
        names = _weight_names(model, units.shape[1], layer)
        check_count("n_draws", n_draws)
        columns = _weight_positions((0, "bias") if pair is None else pair, names)
        seed = draw_seed(random_state)
        draws = _orbit_draws(model, n_draws, seed)
        labels, label_names = _labels(model, draws.chains, len(units), color_by)
        pairs = units[:, columns]  # (d, 2) positions in the flat weights
        return cls(
            draws.before[:, pairs], draws.after[:, pairs], labels, label_names=label_names,
            weight_names=(names[columns[0]], names[columns[1]]),
            before_name=draws.before_name, after_name="one representative",
        ).plot(ax=ax, **kwargs)  # fmt: skip

    @classmethod
    def from_draws(
        cls, draws: Any, removed: Bunch, *, pair: tuple[int, int] = (0, 1), layer: int = 1,
        weight_names: tuple[str, str] | None = None, n_draws: int = 1000, ax: Any = None,
        **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Plot the draws of any sampler and what `skbayes_sym.remove_symmetries` made of them.

        Parameters
        ----------
        draws : array-like of shape (n_draws, P) or (n_chains, n_draws, P)
        removed : Bunch
            ``remove_symmetries(draws, ...)``.
        pair : tuple of two int, default=(0, 1)
            Weights of a unit, in the order of ``removed.group.factors[layer - 1].index``.
        layer : int, default=1
            Hidden layer, or set of units of a module, counted from 1.
        weight_names : tuple of str of length 2, optional
            Labels of the axes.
        n_draws, ax, **kwargs : object
            As for `from_estimator`.

        Raises
        ------
        TypeError
            If ``removed`` isn't such a Bunch, or units of this layer lie inside others or on two
            axes of a parameter.
        ValueError
            If there is no such layer or weight, or ``draws`` aren't those that were moved.
        """
        if not isinstance(removed, Bunch) or not {"draws", "group"} <= removed.keys():
            raise TypeError(f"removed must be what remove_symmetries returned, got {removed!r}.")
        draws = check_array(draws, ensure_2d=False, allow_nd=True, input_name="draws")
        if draws.shape != removed.draws.shape:
            raise ValueError(
                f"draws have shape {draws.shape}, those that were moved {removed.draws.shape}: "
                "give the draws that remove_symmetries was given."
            )
        check_count("n_draws", n_draws)
        index = _unit_index(removed.group, layer)
        names = [f"weight {k} of the unit" for k in range(index.shape[1])]
        columns = _weight_positions(pair, names)
        before, after = (t.reshape(-1, t.shape[-1]) for t in (draws, removed.draws))
        chosen = _evenly(np.ones(len(before)), n_draws)
        pairs = index[:, columns]
        labels, label_names = _labels(None, chosen, len(index), "unit")
        return cls(
            before[chosen][:, pairs], after[chosen][:, pairs], labels, label_names=label_names,
            weight_names=weight_names or (names[columns[0]], names[columns[1]]),
            before_name="as sampled", after_name="one representative",
        ).plot(ax=ax, **kwargs)  # fmt: skip

    def _size(self) -> tuple[float, float]:
        return (6.0, 3.4)

    def _draw(self, style: dict[str, Any]) -> None:
        self.axes_ = split_axes(self.ax_, (1.0, 1.0))
        colours = _colours(len(self.label_names))
        # In random order: otherwise the last label would lie on the others.
        order = np.random.RandomState(0).permutation(self.labels.size)
        style = {"s": 7, "lw": 0, "alpha": 0.8, "c": colours[self.labels.ravel()[order]], **style}
        self.points_ = []
        panels = ((self.before, self.before_name), (self.after, self.after_name))
        for panel, (points, title) in zip(self.axes_, panels, strict=True):
            flat = points.reshape(-1, 2)[order]
            self.points_.append(panel.scatter(flat[:, 0], flat[:, 1], **style))
            panel.set_title(title, fontsize="medium")
            panel.set_xlabel(f"{self.weight_names[0]}\n(standardised units)", fontsize="small")
            no_box(panel)
        self.axes_[0].set_ylabel(f"{self.weight_names[1]}\n(standardised units)", fontsize="small")
        reach = 1.05 * np.abs(np.stack([self.before, self.after])).max(axis=(0, 1, 2))
        for panel in self.axes_:
            panel.set(xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]))
        self.axes_[1].set_yticklabels([])
        self._legend(colours)

    def _legend(self, colours: Array) -> None:
        if not 1 < len(self.label_names) <= _MOST_NAMED:
            return
        for name, colour in zip(self.label_names, colours, strict=True):
            self.axes_[1].plot([], [], "o", color=colour, ms=5, label=name)
        self.axes_[1].legend(
            loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small",
            handletextpad=0.1,
        )  # fmt: skip


def _labels(model: Any, chains: Array, n_units: int, color_by: str) -> tuple[Array, list[str]]:
    if not isinstance(color_by, str) or color_by not in {"unit", "mode"}:
        raise ValueError(f"color_by must be 'unit' or 'mode', got {color_by!r}.")
    if color_by == "unit":
        labels = np.broadcast_to(np.arange(n_units), (len(chains), n_units))
        return labels, [f"unit {i}" for i in range(n_units)]
    modes = fitted_attribute(model, "modes_")
    if not modes:
        raise ValueError(
            f"SymmetryDisplay has no modes of this {type(model).__name__} to colour: use "
            "color_by='unit', or an MCMC estimator with remove_symmetries=ModeWeights('evidence')."
        )
    of_chain = np.zeros(len(model.samples_), dtype=int)
    for k, mode in enumerate(modes):
        of_chain[mode.chains] = k
    labels = np.repeat(of_chain[chains][:, None], n_units, axis=1)
    return labels, [f"mode {k}, mass {mode.weight:.2f}" for k, mode in enumerate(modes)]


def _colours(n: int) -> Array:
    """Colours, one a label, (n, 3) or (n, 4)."""
    from matplotlib import colormaps, colors

    if n <= _MOST_NAMED:
        return np.array([colors.to_rgb(colour) for colour in COLOURS[:n]])
    return colormaps["viridis"](np.linspace(0, 1, n))


class _OrbitDraws(NamedTuple):
    """Flat weights (n, P) before and after removal, and the chain of each."""

    before: Array
    after: Array
    chains: Array
    before_name: str


def _unit_index(group: SymmetryGroup, layer: int) -> Array:
    factors = group.factors
    if not isinstance(layer, Integral) or not 1 <= layer <= len(factors):
        raise ValueError(
            f"layer must lie between 1 and the number of hidden layers, {len(factors)} here, "
            f"got {layer!r}."
        )
    if not isinstance(factors[layer - 1], UnitGroup):
        raise TypeError(f"the units of layer {layer} have no table of weights to choose two from.")
    return cast(UnitGroup, factors[layer - 1]).index.numpy()


def _weight_names(model: Any, n_weights: int, layer: int) -> list[str]:
    """Names of a unit's weights, in their order."""
    sizes = model.network_.sizes
    sources = [f"x{j}" for j in range(sizes[0])]
    if layer > 1:
        sources = [f"unit {j} below" for j in range(sizes[layer - 1])]
    elif (names := fitted_attribute(model, "feature_names_in_")) is not None:
        sources = list(names)
    target = "output" if layer + 1 == len(sizes) - 1 else "unit above"
    n_out = n_weights - len(sources) - 1
    outgoing = [f"weight to {target} {j}" for j in range(n_out)]
    return [*(f"weight of {source}" for source in sources), "bias", *outgoing]


def _weight_positions(pair: Any, names: list[str]) -> list[int]:
    """Places of two weights given by positions or names."""
    chosen: list[Any] = list(pair) if isinstance(pair, tuple | list) else []
    chosen = [names.index(k) if isinstance(k, str) and k in names else k for k in chosen]
    if (
        len(chosen) != 2
        or not all(isinstance(k, Integral) for k in chosen)
        or not all(0 <= k < len(names) for k in chosen)
    ):
        raise ValueError(f"pair takes two positions or names of {names}, got {pair!r}.")
    return [int(k) for k in chosen]


def _orbit_draws(model: Any, n: int, seed: int) -> _OrbitDraws:
    """Draws of the posterior, and what removing or restoring its symmetry makes of them."""
    network = model.network_
    generator = generator_from(seed)
    if "samples_" not in vars(model):
        require(model, ["posterior_"], "SymmetryDisplay", "draws or a posterior of the weights")
        theta = model.posterior_.sample(n, generator=generator).double()
        chains = np.zeros(n, int)
    else:
        samples = np.asarray(model.samples_, dtype=float)
        flat = samples.reshape(-1, samples.shape[-1])
        per_chain = len(flat) // len(samples)
        equal = np.full(len(samples), 1.0 / len(samples))
        weights = fitted_attribute(model, "chain_weights_", equal)
        chosen = _evenly(np.repeat(weights / per_chain, per_chain), n)
        theta = torch.from_numpy(flat[chosen])
        chains = chosen // per_chain
        if not model.get_params(deep=False).get("remove_symmetries"):
            moved = remove_symmetries(
                flat[chosen], hidden_layer_sizes=network.hidden_layer_sizes,
                activation=network.activation.name, n_features_in=network.n_inputs,
                n_outputs=network.n_outputs, random_state=seed,
            )  # fmt: skip
            return _OrbitDraws(flat[chosen], moved.draws, chains, "as sampled")
    group = network.symmetry()
    copies = group.act(group.sample((len(theta),), generator=generator), theta)
    return _OrbitDraws(copies.numpy(), theta.numpy(), chains, "all symmetric copies")


def _evenly(weights: Array, n: int) -> Array:
    """At most ``n`` positions, in proportion to their weights, without noise."""
    n = min(n, len(weights))
    ends = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(ends, (np.arange(n) + 0.5) / n), len(weights) - 1)
