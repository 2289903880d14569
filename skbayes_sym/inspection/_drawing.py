"""Base class, axes and colours of the displays. matplotlib is imported on demand."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from skbayes_sym.numerics.arguments import short_repr

# Palette of Okabe & Ito (2008), which colour-blind readers can distinguish.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
COLOURS = (BLUE, VERMILLION, "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#F0E442")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
GREY = "0.55"


class Display:
    """Base class of displays, which hold the plotted arrays and draw them with ``plot``."""

    ax_: Any
    figure_: Any

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw into. If the display has several panels, they share the area of these axes.
            New axes by default.
        **kwargs : dict
            Arguments of the matplotlib function that draws the curve, points or bars, as in
            ``from_estimator``.

        Returns
        -------
        Display
            The display itself.

        Raises
        ------
        TypeError
            If ``ax`` isn't a matplotlib Axes.
        ImportError
            If matplotlib isn't installed.
        """
        if ax is not None and not hasattr(ax, "figure"):
            raise TypeError(f"ax must be matplotlib Axes or None, got {short_repr(ax)}.")
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__}.plot needs matplotlib: pip install matplotlib."
            ) from error
        if ax is None:
            _, ax = pyplot.subplots(figsize=self._size(), layout="constrained")
        self.ax_ = ax
        self.figure_ = ax.figure
        self._draw(kwargs)
        return self

    def _size(self) -> tuple[float, float]:
        """Width and height of a new figure in inches; 600 pixels wide at 100 dots per inch."""
        return 6.0, 3.8

    def _draw(self, style: dict[str, Any]) -> None:
        """Draw into ``ax_``."""
        raise NotImplementedError


def split_axes(ax: Any, widths: Sequence[float]) -> list[Any]:
    """Divide ``ax``, which becomes invisible, into panels of the given relative widths."""
    ax.set_axis_off()
    gap = 0.1  # between two panels, relative to the total width
    scale = (1.0 - gap * (len(widths) - 1)) / sum(widths)
    offsets = np.cumsum([0.0, *(scale * width + gap for width in widths[:-1])])
    return [
        ax.inset_axes((offset, 0.0, scale * width, 1.0))
        for offset, width in zip(offsets, widths, strict=True)
    ]


def hide_frame(ax: Any) -> None:
    """Hide the upper and right lines of the frame."""
    ax.spines[["top", "right"]].set_visible(False)


def label_log_axis(axis: Any) -> None:
    """Label the ticks of a logarithmic axis in decimals, so few that they don't overlap."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    if not 0.0 < low < high < np.inf:
        return  # without finite values there are no decades
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    axis.set_major_locator(MaxNLocator(nbins=3))
    # The first of these that has two ticks in the range; equal steps if none has.
    for multiples in ([1.0], [1.0, 3.0], [1.0, 2.0, 5.0]):
        ticks = np.outer(decades, multiples).ravel()
        ticks = ticks[(low <= ticks) & (ticks <= high)]
        if len(ticks) > 1:
            axis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // 4)]))
            break
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
