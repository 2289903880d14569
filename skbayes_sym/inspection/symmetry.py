"""Plot of network weights before and after symmetry removal."""

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
from skbayes_sym.inspection._drawing import COLOURS, Display, hide_frame, split_axes
from skbayes_sym.inspection._fitted import require_attributes, unwrap_fitted
from skbayes_sym.inspection.symmetry_removal import remove_symmetries
from skbayes_sym.numerics.arguments import check_arrays, check_count, check_names, draw_seed
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import UnitGroup

_MAX_LEGEND_ITEMS = len(COLOURS)  # up to this many labels have their own colour and legend entry


class SymmetryDisplay(Display):
    """Two weights of every hidden unit, before and after symmetry removal.

    Each draw has one point per unit. Before symmetry removal, exchanges (and sign flips) of units
    mix the colours in every cluster. Afterwards every unit has one cluster, if the posterior
    distinguishes the units at all. Where clusters overlap, single weights have no meaning.

    Parameters
    ----------
    before, after : ndarray of shape (n_draws, n_units, 2)
        The two weights for standardised inputs.
    labels : ndarray of int of shape (n_draws, n_units)
        Label that determines the colour of each point.
    label_names : sequence of str
        Names of the labels.
    weight_names : tuple of str of length 2
        Names of the two weights.
    before_name : str, default="before"
        Title of the first panel.
    after_name : str, default="after"
        Title of the second panel.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the plot, which contain the two panels.
    axes_ : list of two matplotlib Axes
        Panels before and after symmetry removal, with the same limits.
    figure_ : matplotlib Figure
        Figure of the plot.
    points_ : list of two matplotlib PathCollection
        Points of the panels.

    See Also
    --------
    skbayes_sym.remove_symmetries : Symmetry removal for the draws of any sampler.

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
        self,
        before: Array,
        after: Array,
        labels: Array,
        *,
        label_names: Sequence[str],
        weight_names: tuple[str, str],
        before_name: str = "before",
        after_name: str = "after",
    ) -> None:
        arrays = check_arrays(
            "SymmetryDisplay",
            {"before": "nd2", "after": "nd2", "labels": "nd"},
            before=before,
            after=after,
            labels=labels,
        )
        self.before = arrays["before"]
        self.after = arrays["after"]
        self.labels = arrays["labels"]
        self.label_names = label_names
        self.weight_names = tuple(check_names("SymmetryDisplay", "weight_names", weight_names, 2))
        self.before_name = before_name
        self.after_name = after_name

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        *,
        pair: tuple[int | str, int | str] | None = None,
        layer: int = 1,
        color_by: str = "unit",
        n_draws: int = 1000,
        random_state: Any = 0,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Plot weights of a fitted estimator before and after symmetry removal.

        Draws whose symmetry was removed by the estimator, and draws of a variational posterior, are
        moved to a random copy for the first panel, as draws of the symmetrised posterior. Other
        draws of a sampler are moved by `remove_symmetries` for the second panel.

        Parameters
        ----------
        estimator : estimator
            Fitted network with draws or a posterior of its weights, or a pipeline or search around
            one.
        pair : tuple of two int or str, optional
            Two weights of a unit: indices into its incoming weights, bias and outgoing weights in
            this order, or names ("weight of x0", "bias", "weight to output 0"). By default the
            first incoming weight and the bias.
        layer : int, default=1
            Hidden layer, counted from 1.
        color_by : {"unit", "mode"}, default="unit"
            Colour the points by the index of the unit, or by the mode of the draw's chain
            (``modes_``).
        n_draws : int, default=1000
            Number of draws, in proportion to the weights of the chains.
        random_state : int, RandomState instance or None, default=0
            Seed or generator of the draws and copies.
        ax : matplotlib Axes, optional
            Axes to draw into. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.scatter`` for both panels.

        Returns
        -------
        SymmetryDisplay

        Raises
        ------
        TypeError
            If the estimator has no network with exchangeable hidden units.
        ValueError
            If there is no such layer or weight, or there are no modes.
        """
        model = unwrap_fitted(estimator).model
        description = "a network whose hidden units can be exchanged"
        require_attributes(model, ["network_"], cls.__name__, description)
        require_attributes(model.network_, ["symmetry"], cls.__name__, description)
        units = _unit_index(model.network_.symmetry(), layer)
        names = _weight_names(model, units.shape[1], layer)
        check_count("n_draws", n_draws)
        columns = _weight_positions((0, "bias") if pair is None else pair, names)
        seed = draw_seed(random_state)
        draws = _sample_orbits(model, n_draws, seed)
        labels, label_names = _make_labels(model, draws.chains, len(units), color_by)
        index = units[:, columns]
        display = cls(
            draws.before[:, index],
            draws.after[:, index],
            labels,
            label_names=label_names,
            weight_names=(names[columns[0]], names[columns[1]]),
            before_name=draws.before_name,
            after_name="one representative",
        )
        return display.plot(ax=ax, **kwargs)

    @classmethod
    def from_draws(
        cls,
        draws: Any,
        removed: Bunch,
        *,
        pair: tuple[int, int] = (0, 1),
        layer: int = 1,
        weight_names: tuple[str, str] | None = None,
        n_draws: int = 1000,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Plot draws of any sampler before and after `skbayes_sym.remove_symmetries`.

        Parameters
        ----------
        draws : array-like of shape (n_draws, P) or (n_chains, n_draws, P)
            Draws before symmetry removal.
        removed : Bunch
            Result of ``remove_symmetries(draws, ...)``.
        pair : tuple of two int, default=(0, 1)
            Two weights of a unit: indices into ``removed.group.factors[layer - 1].index``.
        layer : int, default=1
            Hidden layer, or set of units of a module, counted from 1.
        weight_names : tuple of str of length 2, optional
            Labels of the axes.
        n_draws : int, default=1000
            Number of draws in the plot.
        ax : matplotlib Axes, optional
            Axes to draw into. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.scatter`` for both panels.

        Returns
        -------
        SymmetryDisplay

        Raises
        ------
        TypeError
            If ``removed`` isn't a result of `remove_symmetries`, or if units of this layer contain
            or are contained in others, or span two axes of a parameter.
        ValueError
            If there is no such layer or weight, or the shapes of the draws differ.
        """
        if not isinstance(removed, Bunch) or not {"draws", "group"} <= removed.keys():
            raise TypeError(f"removed must be the result of remove_symmetries, got {removed!r}.")
        draws = check_array(draws, ensure_2d=False, allow_nd=True, input_name="draws")
        if draws.shape != removed.draws.shape:
            raise ValueError(
                f"draws have shape {draws.shape}, but the draws in removed have shape "
                f"{removed.draws.shape}: pass the draws that were passed to remove_symmetries."
            )
        check_count("n_draws", n_draws)
        index = _unit_index(removed.group, layer)
        names = [f"weight {k} of the unit" for k in range(index.shape[1])]
        columns = _weight_positions(pair, names)
        before = draws.reshape(-1, draws.shape[-1])
        after = removed.draws.reshape(-1, draws.shape[-1])
        subsample = _select_evenly(np.ones(len(before)), n_draws)
        pairs = index[:, columns]
        labels, label_names = _make_labels(None, subsample, len(index), "unit")
        display = cls(
            before[subsample][:, pairs],
            after[subsample][:, pairs],
            labels,
            label_names=label_names,
            weight_names=weight_names or (names[columns[0]], names[columns[1]]),
            before_name="as sampled",
            after_name="one representative",
        )
        return display.plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        return (6.0, 3.4)

    def _draw(self, style: dict[str, Any]) -> None:
        self.axes_ = split_axes(self.ax_, (1.0, 1.0))
        colours = _select_colours(len(self.label_names))
        # Draw in random order, because otherwise the last label would cover the others.
        order = np.random.RandomState(0).permutation(self.labels.size)
        style = {"s": 7, "lw": 0, "alpha": 0.8, "c": colours[self.labels.ravel()[order]], **style}
        self.points_ = []
        panels = ((self.before, self.before_name), (self.after, self.after_name))
        for panel, (points, title) in zip(self.axes_, panels, strict=True):
            flat = points.reshape(-1, 2)[order]
            self.points_.append(panel.scatter(flat[:, 0], flat[:, 1], **style))
            panel.set_title(title, fontsize="medium")
            panel.set_xlabel(f"{self.weight_names[0]}\n(standardised units)", fontsize="small")
            hide_frame(panel)
        self.axes_[0].set_ylabel(f"{self.weight_names[1]}\n(standardised units)", fontsize="small")
        limits = 1.05 * np.abs(np.stack([self.before, self.after])).max(axis=(0, 1, 2))
        for panel in self.axes_:
            panel.set(xlim=(-limits[0], limits[0]), ylim=(-limits[1], limits[1]))
        self.axes_[1].set_yticklabels([])
        self._draw_legend(colours)

    def _draw_legend(self, colours: Array) -> None:
        """Draw the legend, unless there are too many labels."""
        if not 1 < len(self.label_names) <= _MAX_LEGEND_ITEMS:
            return
        for name, colour in zip(self.label_names, colours, strict=True):
            self.axes_[1].plot([], [], "o", color=colour, ms=5, label=name)
        self.axes_[1].legend(
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            frameon=False,
            fontsize="small",
            handletextpad=0.1,
        )


def _make_labels(model: Any, chains: Array, n_units: int, color_by: str) -> tuple[Array, list[str]]:
    """Labels that determine the colours.

    Parameters
    ----------
    model : estimator
        Fitted estimator, for its modes.
    chains : ndarray of shape (n_draws,)
        Chain of each draw.
    n_units : int
        Number of units.
    color_by : {"unit", "mode"}
        What the colours show.

    Returns
    -------
    labels : ndarray of int of shape (n_draws, n_units)
        Label of each point.
    names : list of str
        Names of the labels.
    """
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
    chain_modes = np.zeros(len(model.samples_), dtype=int)
    for k, mode in enumerate(modes):
        chain_modes[mode.chains] = k
    labels = np.repeat(chain_modes[chains][:, None], n_units, axis=1)
    return labels, [f"mode {k}, mass {mode.weight:.2f}" for k, mode in enumerate(modes)]


def _select_colours(n_labels: int) -> Array:
    """Select one colour per label, (n_labels, 3) or (n_labels, 4)."""
    from matplotlib import colormaps, colors

    if n_labels <= _MAX_LEGEND_ITEMS:
        return np.array([colors.to_rgb(colour) for colour in COLOURS[:n_labels]])
    return colormaps["viridis"](np.linspace(0, 1, n_labels))


class _OrbitDraws(NamedTuple):
    """Draws before and after symmetry removal.

    Parameters
    ----------
    before : ndarray of shape (n_draws, P)
        Weights before symmetry removal.
    after : ndarray of shape (n_draws, P)
        Weights on one representative of their orbits.
    chains : ndarray of shape (n_draws,)
        Chain of each draw.
    before_name : str
        Title of the first panel.
    """

    before: Array
    after: Array
    chains: Array
    before_name: str


def _unit_index(group: SymmetryGroup, layer: int) -> Array:
    """Index of every unit's weights in the flat parameters, (n_units, n_weights)."""
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
    """Names of a unit's incoming weights, bias and outgoing weights."""
    sizes = model.network_.sizes
    sources = [f"x{j}" for j in range(sizes[0])]
    if layer > 1:
        sources = [f"unit {j} below" for j in range(sizes[layer - 1])]
    else:
        feature_names = fitted_attribute(model, "feature_names_in_")
        if feature_names is not None:
            sources = list(feature_names)
    is_last_hidden = layer + 1 == len(sizes) - 1
    target = "output" if is_last_hidden else "unit above"
    n_out = n_weights - len(sources) - 1
    outgoing = [f"weight to {target} {j}" for j in range(n_out)]
    return [*(f"weight of {source}" for source in sources), "bias", *outgoing]


def _weight_positions(pair: Any, names: list[str]) -> list[int]:
    """Indices of two weights given by index or name."""
    index: list[Any]
    if isinstance(pair, tuple | list):
        index = list(pair)
    else:
        index = []
    index = [names.index(k) if isinstance(k, str) and k in names else k for k in index]
    if (
        len(index) != 2
        or not all(isinstance(k, Integral) for k in index)
        or not all(0 <= k < len(names) for k in index)
    ):
        raise ValueError(f"pair takes two positions or names of {names}, got {pair!r}.")
    return [int(k) for k in index]


def _sample_orbits(model: Any, n_draws: int, seed: int) -> _OrbitDraws:
    """Draw from the posterior, and remove or restore the symmetry of the draws."""
    network = model.network_
    generator = generator_from(seed)
    if not hasattr(model, "samples_"):
        require_attributes(
            model, ["posterior_"], "SymmetryDisplay", "draws or a posterior of the weights"
        )
        theta = model.posterior_.sample(n_draws, generator=generator).double()
        chains = np.zeros(n_draws, int)
    else:
        samples = np.asarray(model.samples_, dtype=float)
        flat = samples.reshape(-1, samples.shape[-1])
        n_per_chain = len(flat) // len(samples)
        equal_weights = np.full(len(samples), 1.0 / len(samples))
        weights = fitted_attribute(model, "chain_weights_", equal_weights)
        subsample = _select_evenly(np.repeat(weights / n_per_chain, n_per_chain), n_draws)
        theta = torch.from_numpy(flat[subsample])
        chains = subsample // n_per_chain
        if not model.get_params(deep=False).get("remove_symmetries"):
            removed = remove_symmetries(
                flat[subsample],
                hidden_layer_sizes=network.hidden_layer_sizes,
                activation=network.activation.name,
                n_features_in=network.n_inputs,
                n_outputs=network.n_outputs,
                random_state=seed,
            )
            return _OrbitDraws(flat[subsample], removed.draws, chains, "as sampled")
    group = network.symmetry()
    copies = group.act(group.sample((len(theta),), generator=generator), theta)
    return _OrbitDraws(copies.numpy(), theta.numpy(), chains, "all symmetric copies")


def _select_evenly(weights: Array, n: int) -> Array:
    """Select at most ``n`` indices in proportion to their weights; deterministic."""
    n = min(n, len(weights))
    cumulative = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(cumulative, (np.arange(n) + 0.5) / n), len(weights) - 1)
