"""Draw ``_static/cheat_sheet.svg``, one page with the calls that one needs; the build runs it.

python docs/draw_cheat_sheet.py
"""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

OUT = Path(__file__).parent / "_static/cheat_sheet.svg"
# Column and top of each box in lines, its title, and lines of code with their meaning.
BOXES: list[tuple[int, int, str, list[tuple[str, str]]]] = [
    (0, 0, "Fit", [
        ("reg = PredictiveStackingRegressor()", "numeric targets"),
        ("clf = PredictiveStackingClassifier()", "classes"),
        ("reg.fit(X, y)", "X as read_csv returns it"),
        ("reg.fit(X, y, groups=patient)", "to predict new groups"),
        ("reg.fit(X, y, sample_weight=w)", "repetitions of rows"),
        ("print(reg.summary_)", "members and weights"),
    ]),
    (0, 9, "Predict", [
        ("reg.predict(X_new)", "means"),
        ("reg.predict_interval(X_new, 0.9)", "90 % intervals"),
        ("clf.predict_proba(X_new)", "class probabilities"),
        ("future = predictive(reg, X_new)", "any model or pipeline"),
        ("future.quantile([0.1, 0.9])", "quantiles"),
        ("future.sf(limit)", "P(y > limit)"),
        ("future.sample(100)", "draws of new targets"),
    ]),
    (0, 19, "Choose another estimator", [
        ("BayesianMLPRegressor()", "networks alone"),
        ("BayesianLinearRegressor()", "linear effects"),
        ("LaplaceRegressor(network=module)", "a torch module"),
        ("MCMCRegressor((3,))", "exact posterior, few units"),
        ("LILAClassifier()", "images, invariances"),
        ("SymVIMatrixFactorization()", "ratings, missing entries"),
    ]),
    (1, 0, "Evaluate", [
        ("reg.log_predictive_density(X, y)", "nats per row, higher is better"),
        ("future.crps(y)", "units of y, lower is better"),
        ("compare_models(models, X, y, cv=5)", "paired differences"),
        ('get_scorer("log_density")', "for searches"),
        ("IntervalCalibrationDisplay", "coverage of intervals"),
        ("ClassCalibrationDisplay", "class probabilities"),
    ]),
    (1, 9, "Understand", [
        ("PredictiveDisplay, feature=...", "prediction over a column"),
        ("StackWeightsDisplay", "members of a stack"),
        ("reg.predict_uncertainty(X_new)", "noise or lack of data"),
        ("permutation_importance(reg, X, y)", "scikit-learn's"),
        ("symmetry_of(module, example)", "symmetries of a network"),
        ("invariance_gap(model)", "loss by ignoring them"),
    ]),
    (1, 19, "Keep and use", [
        ('save(reg, "model.safetensors")', "a file without code"),
        ('reg = load("model.safetensors")', "the same predictions"),
        ("student = distill(reg, X)", "a small model without torch"),
        ('student.save("student.npz")', "needs NumPy and SciPy"),
        ("make_pipeline(..., reg)", "works in pipelines"),
        ("GridSearchCV(reg, grid)", "and in searches"),
    ]),
]  # fmt: skip
LINE = 0.27  # inches
WIDTH = 4.85
N_LINES = 28
BLUE, PALE, INK = "#0b4f6c", "#eef4f8", "#1b2733"


def draw_box(ax: Any, left: float, top: float, title: str, lines: list[tuple[str, str]]) -> None:
    """Draw a box with a title and its lines."""
    height = (len(lines) + 1.6) * LINE
    style = "round,pad=0,rounding_size=0.08"
    box = FancyBboxPatch(
        (left, top - height), WIDTH, height, boxstyle=style, facecolor=PALE, edgecolor=BLUE, lw=0.8
    )
    ax.add_patch(box)
    ax.text(left + 0.15, top - 0.75 * LINE, title, color=BLUE, size=12, weight="bold", va="center")
    for number, (code, meaning) in enumerate(lines):
        y = top - (number + 1.8) * LINE
        ax.text(left + 0.15, y, code, color=INK, size=8.6, family="monospace", va="center")
        ax.text(left + 2.85, y, meaning, color="0.35", size=8.8, va="center")


def draw(path: Path = OUT) -> None:
    """Draw all boxes into a file."""
    width = 2 * WIDTH + 0.6
    height = N_LINES * LINE + 0.6
    figure = Figure(figsize=(width, height), facecolor="white")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.axis("off")
    title = "skbayes_sym: predictive distributions for tables"
    ax.text(0.2, height - 0.28, title, color=INK, size=15, weight="bold", va="center")
    for column, line, name, lines in BOXES:
        draw_box(ax, 0.2 + column * (WIDTH + 0.2), height - 0.6 - line * LINE, name, lines)
    figure.savefig(path)


if __name__ == "__main__":
    draw()
