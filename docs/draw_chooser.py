"""Draws the map of the page "Which estimator": ``python docs/draw_chooser.py``."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

OUT = Path(__file__).parent / "_static/chooser.svg"
STEPS = (  # a question, and what to take if the answer is yes
    ("One matrix with missing\nentries, such as ratings?", ["SymVIMatrixFactorization"]),
    (
        "Images, or inputs that may\nbe turned, shifted, scaled?",
        ["LILAClassifier", "LILARegressor"],
    ),
    ("A network that is\nalready a torch module?", ["LaplaceRegressor", "LaplaceClassifier"]),
    (
        "A few hidden units, whose\nexact posterior matters?",
        ["MCMCRegressor", "MCMCClassifier"],
    ),
    (
        "A bound on the evidence,\nor symmetry itself?",
        ["SymmetrizedVIRegressor", "SymmetrizedVIClassifier"],
    ),
    ("A layer of hundreds of\nunits, kept Bayesian?", ["LayerwiseVIRegressor"]),
)
BLUE, ORANGE, INK = "#dcebf7", "#fbe3cf", "#1b2733"
WIDTH, STEP, HEIGHT = 5.2, 0.92, 0.66  # inches


def box(ax, centre, width, text, colour, **words):
    """A rounded box with text."""
    x, y = centre
    ax.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - HEIGHT / 2), width, HEIGHT, facecolor=colour, edgecolor="#5b7083",
            linewidth=0.8, boxstyle="round,pad=0,rounding_size=0.08",
        )
    )  # fmt: skip
    ax.text(x, y, text, ha="center", va="center", color=INK, linespacing=1.15, **words)


def arrow(ax, start, end, word, place):
    """An arrow with a word beside it."""
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#5b7083", "lw": 1.2})
    ax.text(*place, word, color="#5b7083", size=9, ha="center", va="center")


def draw():
    """The whole map, into ``OUT``."""
    n = len(STEPS)
    figure, ax = plt.subplots(figsize=(WIDTH, STEP * n), facecolor="white")
    ax.set(xlim=(0, WIDTH), ylim=(-STEP * (n - 0.5), 0.5 * STEP), aspect="equal")
    ax.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    left, right, wide, narrow = 1.27, 3.97, 2.36, 2.32
    for k, (question, names) in enumerate(STEPS):
        y = -STEP * k
        box(ax, (left, y), wide, question, BLUE, size=10)
        box(ax, (right, y), narrow, "\n".join(names), ORANGE, size=9.6, weight="bold")
        inner = (left + wide / 2, right - narrow / 2)
        arrow(ax, (inner[0], y), (inner[1], y), "yes", (sum(inner) / 2, y + 0.12))
        if k < n - 1:
            end = -STEP * (k + 1) + HEIGHT / 2
            arrow(ax, (left, y - HEIGHT / 2), (left, end), "no", (left + 0.2, y - STEP / 2))
    figure.savefig(OUT, metadata={"Date": None})


if __name__ == "__main__":
    with plt.rc_context({"svg.hashsalt": "chooser"}):  # the same file every time
        draw()
