"""Draws the thumbnails of the scripts that the gallery doesn't run.

    python docs/draw_thumbnails.py

The figures are those that the scripts print, as the pages of the papers quote them.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

OUT = Path(__file__).parent / "_static/thumbnails"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "0.65"


def bars(ax, names, series, title):
    """Groups of bars, one colour a series."""
    width = 0.8 / len(series)
    for k, ((label, values), colour) in enumerate(zip(series.items(), (GREY, BLUE), strict=False)):
        place = np.arange(len(names)) + width * (k - (len(series) - 1) / 2)
        ax.bar(place, values, width, color=colour, label=label)
    ax.set_xticks(np.arange(len(names)), names)
    ax.set_title(title)
    if len(series) > 1:
        ax.legend(frameon=False)


def points(ax, names, values, colours):
    """One point a name, where bars would have to start at zero."""
    ax.scatter(names, values, c=colours, s=260)
    ax.margins(0.15)


def gelberg_mnist(ax):
    gains = {"paper": (0.04, 0.0, 0.07, 0.12), "here": (0.0, 0.0, 0.0, 0.0)}
    bars(ax, ["5", "10", "20", "30"], gains, "MNIST: points gained\nby hidden units")


def gelberg_small_data(ax):
    ax.bar(["diabetes", "energy", "concrete"], (0.04, 0.07, 0.06), color=BLUE)
    ax.set_title("gain of test log density\n(nats per row)")


def gelberg_two_weights(ax):
    error = {"MFVI": (0.044, 0.008, 0.038, 0.076), "SGM": (0.080, 0.020, 0.014, 0.026)}
    bars(ax, [".05", ".1", ".15", ".2"], error, "test error by alpha,\na hundred steps")


def immer_augerino(ax):
    learned = {
        "LILA": (61, 70, 62),
        ".01": (78, 86, 72),
        ".1": (980, 964, 976),
        "1": (897, 899, 899),
    }
    for k, (name, degrees) in enumerate(learned.items()):
        ax.plot([k] * 3, degrees, "o", color=BLUE if name == "LILA" else ORANGE, ms=9)
    ax.axhline(60, color="black", ls=":", lw=1.5)
    ax.set_yscale("log")
    ax.set_xticks(range(4), learned)
    ax.set_title("learned rotation (degrees)\nAugerino by its reward")


def immer_curvature(ax):
    names = ["exact", "sketch", "EF", "diagonal"]
    points(ax, names, (0.923, 0.924, 0.926, 0.741), [BLUE, BLUE, BLUE, GREY])
    ax.set_title("accuracy by curvature")


def immer_mnist(ax):
    versions = ["full", "part", "shift", "scale", "none"]
    accuracy = {"plain": (60.4, 72.9, 47.2, 79.2, 89.1), "LILA": (86.5, 85.7, 81.5, 87.3, 89.8)}
    bars(ax, versions, accuracy, "MNIST, 1000 images: % right")
    ax.set_ylim(30, 112)


def immer_claims(ax):
    points(ax, ["plain", "Augerino", "LILA"], (-0.942, -0.994, -0.632), [GREY, GREY, BLUE])
    ax.set_title("turned digits:\nlog density (nats per row)")


def immer_table1(ax):
    accuracy = {
        "plain": (85.3, 88.6, 83.8, 92.2, 94.8),
        "LILA": (90.9, 91.9, 90.6, 94.5, 95.5),
    }
    names = ["all round", "turned", "shifted", "scaled", "original"]
    bars(ax, names, accuracy, "MNIST, 8000 images: % right")
    ax.tick_params("x", labelsize=10)
    ax.set_ylim(80, 102)


def moore_figures(ax):
    names = ["Gibbs", "SymVI", "MAP", "MFVI"]
    points(ax, names, (0.8881, 0.8946, 0.9146, 0.9735), [GREY, BLUE, GREY, GREY])
    ax.set_title("RMSE of 80 matrices")


def ratings(ax):
    names = ["mean", "offsets", "factors"]
    points(ax, names, (-1.4589, -1.3053, -1.2745), [GREY, GREY, BLUE])
    ax.set_title("log density of a star")


def wiese_baselines(ax):
    names = ["sine", "airfoil", "concrete", "yacht"]
    density = {"as described": (-1.43, -1.39, -1.33, -1.20), "trained": (-0.46, -0.77, -0.43, 1.51)}
    bars(ax, names, density, "deep ensembles, LPPD")
    ax.axhline(0, color="black", lw=0.8)


def wiese_table1(ax):
    density = {"paper": (-0.74, -0.41, 1.90), "here": (-0.60, -0.41, 2.14)}
    bars(ax, ["airfoil", "concrete", "yacht"], density, "LPPD of test rows")
    ax.axhline(0, color="black", lw=0.8)


DRAWINGS = (
    gelberg_mnist, gelberg_small_data, gelberg_two_weights, immer_augerino, immer_curvature,
    immer_mnist, immer_claims, immer_table1, moore_figures, ratings, wiese_baselines, wiese_table1,
)  # fmt: skip

if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    plt.rc("font", size=15)
    for drawing in DRAWINGS:
        figure, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
        drawing(axes)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(
            OUT / f"reproduce_{drawing.__name__}.png", dpi=80, metadata={"Software": None}
        )
