"""Tables of the reproduction of Immer et al. that are read from files of fits.

``.. immer-cells::`` shows the cells of their Tables 1, 2 and 4 next to ours, from
``examples/papers/immer_table1.json``: one table for each data set, network and size of the fits.
``.. immer-scores::`` shows the scores of each method on MNIST, and ``.. immer-augerino::`` what
LILA gains over Augerino, from ``examples/papers/immer_mnist.json``. The scripts of these tables
write the files.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

CELLS = Path(__file__).resolve().parents[1] / "examples/papers/immer_table1.json"
PAIRS = CELLS.with_name("immer_mnist.json")
N_IMAGES = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}  # of the paper
NAMES = {
    "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "mlp": "MLP",
    "cnn": "CNN", "resnet-8-8": "ResNet (8-8)", "resnet-8-16": "ResNet (8-16)",
    "wrn-16-4": "Wide ResNet (16-4)", "full": "fully rotated", "partial": "partially rotated",
}  # fmt: skip
VERSIONS = "full", "partial", "translated", "scaled", "original"
METHODS = "non-invariant", "Augerino 0.1", "LILA"
SCORED = "non-invariant", "Augerino", "LILA, prior learned", "LILA"


def accuracy(cell: dict[str, Any]) -> str:
    """Test accuracy in %, the paper's in brackets."""
    n_seeds = [fit.get("seeds", 1) for fit in cell["fits"]]
    mean = np.average([fit["accuracy"] for fit in cell["fits"]], weights=n_seeds)
    return f"{mean:.1f} ({cell['paper']:.1f})"


def evidence(cell: dict[str, Any], data: str) -> str:
    """Log evidence in nats per training row, the paper's in brackets; empty if not stored."""
    if any("log evidence" not in fit for fit in cell["fits"]):
        return ""
    mean = np.mean([fit["log evidence"] / fit["images"] for fit in cell["fits"]])
    if "paper log evidence" not in cell:
        return f"{mean:.2f}"
    return f"{mean:.2f} ({cell['paper log evidence'] / N_IMAGES[data]:.2f})"


def by_size(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """A cell for each size of its fits."""
    sizes = dict.fromkeys(fit["how"] for fit in cell["fits"])
    return [cell | {"fits": [fit for fit in cell["fits"] if fit["how"] == one]} for one in sizes]


def size(cell: dict[str, Any]) -> str:
    """Size of the fits of a cell, all of one size, in words."""
    words = cell["fits"][0]["how"].removesuffix("; prior learned")
    n_seeds = sum(fit.get("seeds", 1) for fit in cell["fits"])
    return f"{words}, {n_seeds} {'seeds' if n_seeds > 1 else 'seed'}"


def tables() -> list[list[str]]:
    """The tables as lines of reStructuredText."""
    groups: dict[tuple[str, str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for key, cell in json.loads(CELLS.read_text(encoding="utf-8"))["cells"].items():
        data, network, method, version = key.split(", ")
        for part in by_size(cell) if method in METHODS else []:
            group = groups.setdefault((data, network, size(part)), {})
            group[method, version] = part

    found = []
    for (data, network, words), group in groups.items():
        versions = [v for v in VERSIONS if any(v == version for _, version in group)]
        dates = [fit["date"] for cell in group.values() for fit in cell["fits"] if "date" in fit]
        when = f", measured on {max(dates)}" if dates else ", seeds and date not recorded"
        rows = [["", "Method", *(NAMES.get(v, v) for v in versions)]]
        for method in METHODS:
            cells = [group.get((method, v)) for v in versions]
            if any(cells):
                rows.append(["accuracy, %", method, *(accuracy(c) if c else "" for c in cells)])
        for method in METHODS:
            cells = [group.get((method, v)) for v in versions]
            texts = [evidence(c, data) if c else "" for c in cells]
            if method != "Augerino 0.1" and any(texts):
                rows.append(["log evidence, nats per row", method, *texts])
        found.append(list_table(f"{NAMES[data]}, {NAMES[network]}: {words}{when}", rows))
    return found


def gains(fits: list[dict[str, Any]], version: str, score: str) -> np.ndarray:
    """LILA's score minus Augerino's, one value for each seed that both have."""
    scores: dict[str, dict[int, float]] = {"LILA": {}, "Augerino": {}}
    for fit in fits:
        if fit["version"] == version and fit["method"] in scores:
            scores[fit["method"]][fit["seed"]] = fit[score]
    seeds = sorted(set(scores["LILA"]) & set(scores["Augerino"]))
    return np.array([scores["LILA"][seed] - scores["Augerino"][seed] for seed in seeds])


def mean_and_error(values: np.ndarray, digits: int) -> str:
    """Mean and its standard error."""
    error = values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():.{digits}f} ± {error:.{digits}f}"


def measured(group: dict[str, Any], fits: list[dict[str, Any]], n_seeds: int) -> str:
    """Data, network, size and date of fits in words."""
    settings = group["settings"]
    network = NAMES[settings["network"]]
    if settings["network"] == "mlp":
        network += f" of {settings['hidden']} units"
    return (
        f"{NAMES[settings['data']]}, {network}, {settings['n_train']:,} images, "
        f"{settings['epochs']} epochs, {n_seeds} seeds; Augerino's reward by a fifth of the "
        f"training rows; measured on {max(fit['date'] for fit in fits)}"
    )


def comparison() -> list[list[str]]:
    """LILA against Augerino as lines of reStructuredText, a table for each size of the fits."""
    found = []
    for group in json.loads(PAIRS.read_text(encoding="utf-8")):
        fits = [fit for fit in group["fits"] if fit["method"] in {"LILA", "Augerino"}]
        versions = [v for v in VERSIONS if len(gains(fits, v, "accuracy")) > 1]
        if not versions:
            continue
        rows = [["Version", "Accuracy, %", "Log density, nats per row"]]
        for version in versions:
            accuracy = mean_and_error(gains(fits, version, "accuracy"), 1)
            log_density = mean_and_error(gains(fits, version, "log density"), 3)
            rows.append([NAMES.get(version, version), accuracy, log_density])
        n_seeds = len(gains(fits, versions[0], "accuracy"))
        title = f"LILA minus Augerino, paired by seed. {measured(group, fits, n_seeds)}"
        found.append(list_table(title, rows))
    return found


def scores() -> list[list[str]]:
    """Accuracy and log density of each method, a table for each size of the fits."""
    found = []
    for group in json.loads(PAIRS.read_text(encoding="utf-8")):
        fits = group["fits"]
        versions = [v for v in VERSIONS if any(fit["version"] == v for fit in fits)]
        rows = [["", *(NAMES.get(version, version) for version in versions)]]
        n_seeds = 0
        for method in SCORED:
            cells = [
                [fit for fit in fits if (fit["method"], fit["version"]) == (method, version)]
                for version in versions
            ]
            if all(len(cell) > 1 for cell in cells):
                n_seeds = max(len(cell) for cell in cells)
                rows.append([method, *(accuracy_and_density(cell) for cell in cells)])
        if len(rows) > 1:
            title = "Test accuracy in % (± standard error) and log density per test row in nats. "
            found.append(list_table(title + measured(group, fits, n_seeds), rows))
    return found


def accuracy_and_density(fits: list[dict[str, Any]]) -> str:
    """Mean accuracy with its standard error, and mean log density."""
    accuracies = np.array([fit["accuracy"] for fit in fits])
    log_density = np.mean([fit["log density"] for fit in fits])
    return f"{mean_and_error(accuracies, 1)}; {log_density:.3f}"


def list_table(title: str, rows: list[list[str]]) -> list[str]:
    """A table with one header row, as lines of reStructuredText."""
    lines = [f".. list-table:: {title}", "   :header-rows: 1", "   :class: sk-wrap", ""]
    for row in rows:
        lines += [f"   {' ' if i else '*'} - {text}".rstrip() for i, text in enumerate(row)]
    return [*lines, ""]


class _Tables(Directive):
    """Show tables that are read from a file of fits."""

    source: Path

    def tables(self) -> list[list[str]]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        box = nodes.container()
        text = [line for table in self.tables() for line in table]
        lines = StringList(text, source=str(self.source))
        self.state.nested_parse(lines, self.content_offset, box)
        return box.children


class ImmerCells(_Tables):
    """Show the cells that have a figure."""

    source = CELLS

    def tables(self) -> list[list[str]]:
        return tables()


class ImmerAugerino(_Tables):
    """Show what LILA gains over Augerino."""

    source = PAIRS

    def tables(self) -> list[list[str]]:
        return comparison()


class ImmerScores(_Tables):
    """Show the scores of each method on versions of MNIST."""

    source = PAIRS

    def tables(self) -> list[list[str]]:
        return scores()
