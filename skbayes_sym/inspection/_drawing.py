"""Axes and colours of the Displays. matplotlib is imported on demand."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from skbayes_sym.numerics.arguments import short_repr

# Okabe & Ito (2008): told apart by all eyes.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
COLOURS = (BLUE, VERMILLION, "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#F0E442")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
GREY = "0.55"


class Display:
    """Arrays to keep, and ``plot(ax=None)`` to look at them."""

    ax_: Any
    figure_: Any

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw it.

        ``ax``: new ones by default; several panels divide the place it has. ``**kwargs``: for the
        curve, points or bars, as in ``from_estimator``. Raises ImportError without matplotlib.
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
        """Width and height of a new figure, inches; 600 pixels wide at 100 dots an inch."""
        return 6.0, 3.8

    def _draw(self, style: dict[str, Any]) -> None:
        raise NotImplementedError


def split_axes(ax: Any, widths: Sequence[float]) -> list[Any]:
    """Panels of these relative widths within the frame of ``ax``, which is no longer drawn."""
    ax.set_axis_off()
    gap = 0.1  # between two of them, as a share of the whole width
    scale = (1.0 - gap * (len(widths) - 1)) / sum(widths)
    lefts = np.cumsum([0.0, *(scale * width + gap for width in widths[:-1])])
    return [
        ax.inset_axes((left_edge, 0.0, scale * width, 1.0))
        for left_edge, width in zip(lefts, widths, strict=True)
    ]


def no_box(ax: Any) -> None:
    """Leave out the lines above and to the right, which measure nothing."""
    ax.spines[["top", "right"]].set_visible(False)
