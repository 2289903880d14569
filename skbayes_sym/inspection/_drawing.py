"""Axes and colours of the Displays. matplotlib is imported on demand."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from skbayes_sym.numerics.arguments import shown

# Okabe & Ito (2008): told apart by all eyes.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, PURPLE, SKY, YELLOW = "#E69F00", "#CC79A7", "#56B4E9", "#F0E442"
COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, YELLOW)
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
GREY = "0.55"

_SERIES = "series"  # marks the curves that are counted

_SIZE = (6.0, 3.8)  # inches; 600 pixels wide at 100 dots an inch
_INSTALL = "pip install matplotlib"


class Display:
    """Arrays to keep, and ``plot(ax=None)`` to look at them."""

    ax_: Any
    figure_: Any

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw it.

        ``ax``: new ones by default; several panels divide the place it has. ``**kwargs``: for the
        curve, points or bars, as in ``from_estimator``. Raises ImportError without matplotlib.
        """
        self.ax_, self.figure_ = open_axes(ax, self, self._size())
        self._draw(kwargs)
        return self

    def _size(self) -> tuple[float, float]:
        """Width and height of a new figure, inches."""
        return _SIZE

    def _draw(self, style: dict[str, Any]) -> None:
        raise NotImplementedError


def open_axes(ax: Any, display: Any, size: tuple[float, float] = _SIZE) -> tuple[Any, Any]:
    """The axes to draw on and their figure: those given, or new ones.

    Raises ImportError without matplotlib, saying how to install it. Raises TypeError if ``ax`` is
    none.
    """
    if ax is not None and not hasattr(ax, "figure"):
        raise TypeError(f"ax must be matplotlib Axes or None, got {shown(ax)}.")
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"{type(display).__name__}.plot needs matplotlib: {_INSTALL}.") from error
    if ax is None:
        _, ax = pyplot.subplots(figsize=size, layout="constrained")
    return ax, ax.figure


def split_axes(ax: Any, widths: Sequence[float], *, gap: float = 0.1) -> list[Any]:
    """Panels side by side within the frame of ``ax``, which itself is no longer drawn.

    ``widths``: relative widths of the panels; ``gap``: between two of them, as a share of the whole
    width.
    """
    ax.set_axis_off()
    scale = (1.0 - gap * (len(widths) - 1)) / sum(widths)
    lefts = np.cumsum([0.0, *(scale * width + gap for width in widths[:-1])])
    return [
        ax.inset_axes((left, 0.0, scale * width, 1.0))
        for left, width in zip(lefts, widths, strict=True)
    ]


def no_box(ax: Any) -> None:
    """Leave out the lines above and to the right, which measure nothing."""
    ax.spines[["top", "right"]].set_visible(False)


def has_label(ax: Any, label: str) -> bool:
    """Whether something with this label stands in the axes already, from an earlier plot."""
    return label in ax.get_legend_handles_labels()[1]


def next_series(ax: Any) -> dict[str, Any]:
    """Colour and marker of the next curve where displays share their axes."""
    n = sum(line.get_gid() == _SERIES for line in ax.get_lines())
    return {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)], "gid": _SERIES}


def legend_on_top(ax: Any, n_columns: int, *, share: float = 0.1, **kwargs: Any) -> None:
    """A legend that covers no data and no title: in one line, for which the axis is lengthened.

    ``ax``: its vertical limits must be those of the data; ``share``: of the axis that the legend
    takes; ``**kwargs``: for ``Axes.legend``.
    """
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, top + share / (1.0 - share) * (top - bottom))
    ax.legend(
        loc="upper left", ncols=n_columns, frameon=False, fontsize="small", columnspacing=1.2,
        handletextpad=0.5, borderaxespad=0.2, **kwargs,
    )  # fmt: skip


def tint(colour: str, share: float) -> tuple[float, ...]:
    """A colour thinned with white: 1 is the colour, 0 is white. Opaque, as a legend shows it."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(1.0 - share * (1.0 - part) for part in parts)
