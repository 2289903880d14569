"""Draw ``_static/benchmarks.svg``, density and time next to other packages; the build runs it.

python docs/draw_benchmarks.py
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

DOCS = Path(__file__).parent
FIGURES = DOCS.parent / "asv_bench/studies/figures.json"
OUT = DOCS / "_static/benchmarks.svg"
NAMES = {
    "stack": "default stack", "pool": "BayesianMLP", "linear": "linear", "forest": "trees",
    "boosting": "boosting", "process": "Gaussian process", "LightGBM": "LightGBM",
    "CatBoost": "CatBoost",
}  # fmt: skip
PEERS = ("LightGBM", "CatBoost")
LABELS_ON_THE_LEFT = ("stack", "process")
TITLES = {"numbers": "Ten regression tables", "classes": "Six classification tables"}
BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "0.45"


def read_points(kind: str) -> dict[str, tuple[float, float, float]]:
    """CPU seconds, density relative to the stack and its standard error, by model."""
    rows = json.loads(FIGURES.read_text(encoding="utf-8"))["ahead"]
    return {name: (rows[name][f"{kind}, CPU s"][0], *rows[name][kind]) for name in NAMES}


def draw_panel(ax: Any, kind: str) -> None:
    """Draw one point with a standard error for each model."""
    for name, (seconds, density, error) in read_points(kind).items():
        colour = GREY
        marker = "o"
        if name == "stack":
            colour = BLUE
            marker = "s"
        elif name in PEERS:
            colour = VERMILLION
            marker = "D"
        ax.errorbar(seconds, density, error, fmt=marker, color=colour, ms=6, capsize=2, lw=1)
        # Labels keep clear of their neighbours.
        offset = (6, -12) if name in ("forest", "CatBoost") else (6, 4)
        side = "left"
        if name in LABELS_ON_THE_LEFT:
            offset = (-6, 4)
            side = "right"
        label = ax.annotate(
            NAMES[name],
            (seconds, density),
            offset,
            textcoords="offset points",
            ha=side,
            color=colour,
            size=10,
        )
        label.set_path_effects([withStroke(linewidth=3, foreground="white")])
    ax.axhline(0, color="0.8", lw=1, zorder=0)
    ax.set(title=TITLES[kind], xscale="log")
    ax.margins(x=0.28)
    ax.spines[["top", "right"]].set_visible(False)


def draw(path: Path = OUT) -> None:
    """Draw the panels below one another, so that a phone shows their labels, into a file."""
    figure = Figure(figsize=(5, 7.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for ax, kind in zip(panels, TITLES, strict=True):
        draw_panel(ax, kind)
        ax.set_ylabel("log density minus that of\nthe stack, nats per held-out row")
    panels[-1].set_xlabel("CPU seconds of a fit with its predictions")
    last = json.loads(FIGURES.read_text(encoding="utf-8"))["measured"]["ahead"]
    note = f"last measured on {last['date']}, commit {last['commit']}"
    figure.supxlabel(note, x=0.99, ha="right", size=8, color=GREY)
    figure.savefig(path)


if __name__ == "__main__":
    draw()
