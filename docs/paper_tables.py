"""The directive ``.. immer-cells::``: cells of Immer et al.'s Tables 1, 2 and 4 next to ours.

The figures are read from ``examples/papers/immer_table1.json``, which the script of these tables
writes. There is one table for each data set, network and size of the fits.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

CELLS = Path(__file__).resolve().parents[1] / "examples/papers/immer_table1.json"
N_IMAGES = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}  # of the paper
NAMES = {
    "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "mlp": "MLP",
    "cnn": "CNN", "resnet-8-8": "ResNet (8-8)", "resnet-8-16": "ResNet (8-16)",
    "wrn-16-4": "Wide ResNet (16-4)", "full": "fully rotated", "partial": "partially rotated",
}  # fmt: skip
VERSIONS = "full", "partial", "translated", "scaled", "original"
METHODS = "non-invariant", "Augerino 0.1", "LILA"


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
        when = f", measured on {max(dates)}" if dates else ""
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
        lines = [f".. list-table:: {NAMES[data]}, {NAMES[network]}: {words}{when}",
                 "   :header-rows: 1", "   :class: sk-wrap", ""]  # fmt: skip
        for row in rows:
            lines += [f"   {' ' if i else '*'} - {text}".rstrip() for i, text in enumerate(row)]
        found.append([*lines, ""])
    return found


class ImmerCells(Directive):
    """Show the cells that have a figure."""

    def run(self) -> list[nodes.Node]:
        box = nodes.container()
        lines = StringList([line for table in tables() for line in table], source=str(CELLS))
        self.state.nested_parse(lines, self.content_offset, box)
        return box.children
