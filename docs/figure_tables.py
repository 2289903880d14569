"""Tables of ``asv_bench/studies/figures.json``: a directive for pages, Markdown for the README.

    .. figures:: uci
       :columns: concrete energy
       :rows: BayesianMLPRegressor NGBoost
       :digits: 2

       The caption.

``python docs/figure_tables.py`` fills the README's tables, each between ``<!-- figures: uci
columns="..." -->`` and ``<!-- end -->``; ``docs/check_numbers.py text`` says whether they are.
"""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "asv_bench/studies/figures.json"
_IN_MARKDOWN = re.compile(r"<!-- figures: (.*?) -->\n(.*?)<!-- end -->", re.DOTALL)
NAMES = {
    "GaussianProcess": "Gaussian process", "process": "Gaussian process of the stack",
    "stack": "`PredictiveStacking...`", "pool": "`BayesianMLP...`", "forest": "trees of the stack",
    "boosting": "boosting of the stack", "linear": "linear model of the stack",
    "LightGBM": "LightGBM, fitted noise", "CatBoost": "CatBoost, fitted noise",
    "friedman1": "Friedman 1, 200 rows", "friedman2": "Friedman 2, 200", "suburbs": "suburbs, 450",
    "friedman3": "Friedman 3, 200", "cars": "cars, 350", "fires": "fires, 465",
    "pwLinear": "pwLinear", "numbers": "regression", "numbers, best": "regression, best table",
    "classes": "classification", "classes, best": "classification, best table",
    "growing": "growing noise, 600", "1000x10": "1,000 x 10", "10000x20": "10,000 x 20",
    "50000x20": "50,000 x 20", "100x8": "100 x 8", "100x50": "100 x 50", "1000x8": "1,000 x 8",
    "1000x50": "1,000 x 50", "10000x8": "10,000 x 8", "10000x50": "10,000 x 50",
}  # fmt: skip


class Table(NamedTuple):
    """Heads of the columns, and rows of cells."""

    columns: list[str]
    rows: list[list[str]]


def cell(value: list[float] | None, digits: str) -> str:
    """Format a mean and its standard error, as in -0.33 (0.02), or two digits of a mean for "g"."""
    if value is None:
        return ""
    if digits == "g":
        return f"{value[0]:.2g}" if value[0] < 100 else f"{value[0]:.0f}"
    numbers = [f"{number:.{digits}f}" for number in value]
    return numbers[0] if len(numbers) == 1 else f"{numbers[0]} ({numbers[1]})"


def table(key: str, columns: str = "", rows: str = "", digits: str = "2", flip: str = "") -> Table:
    """A table of the figures; models are rows, or columns with ``flip``."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))[key]
    models = shlex.split(rows) or list(figures)
    data = shlex.split(columns) or list(dict.fromkeys(d for m in models for d in figures[m]))
    cells = [[cell(figures[m].get(d), digits) for d in data] for m in models]
    if flip:
        cells, models, data = [list(c) for c in zip(*cells, strict=True)], data, models
    named = [[_named(m, key), *row] for m, row in zip(models, cells, strict=True)]
    return Table(["", *(_named(d, key) for d in data)], named)


def measured(key: str) -> str:
    """When a table was last measured, for its caption."""
    last = json.loads(FIGURES.read_text(encoding="utf-8"))["measured"][key]
    return f"(last measured on {last['date']}, commit {last['commit']})"


def _named(name: str, key: str) -> str:
    """A name as a reader sees it; those of classes are code."""
    if name == "HistGradientBoosting" and key != "classes":
        return "Boosting, one normal noise"
    plain = name in NAMES or not name.isidentifier() or name.islower()
    return NAMES.get(name, name) if plain else f"`{name}`"


def markdown(found: Table) -> str:
    """The table for the README."""
    lines = [found.columns, ["---"] * len(found.columns), *found.rows]
    return "".join("".join(f"| {cell}".rstrip() + " " for cell in line) + "|\n" for line in lines)


def in_markdown(text: str) -> list[tuple[str, str]]:
    """Tables in a Markdown text as they stand, and as the figures have them."""
    pairs = []
    for words, body in _IN_MARKDOWN.findall(text):
        key, *options = shlex.split(words)
        pairs.append((body, markdown(table(key, **dict(o.split("=", 1) for o in options)))))
    return pairs


class FigureTable(Directive):
    """Show figures as a table."""

    required_arguments = 1
    has_content = True
    option_spec = dict.fromkeys(("columns", "rows", "digits", "flip"), str)

    def run(self) -> list[nodes.Node]:
        key = self.arguments[0]
        found = table(key, **self.options)
        caption = f"{' '.join(self.content)} {measured(key)}"
        lines = [f".. list-table:: {caption}", "   :header-rows: 1", "   :stub-columns: 1",
                 "   :class: sk-wrap", ""]  # fmt: skip
        for row in (found.columns, *found.rows):
            lines += [f"   {' ' if i else '*'} - {text}".rstrip() for i, text in enumerate(row)]
        box = nodes.container()
        self.state.nested_parse(StringList(lines, source=key), self.content_offset, box)
        return box.children


if __name__ == "__main__":
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    tables = iter(in_markdown(text))
    text = _IN_MARKDOWN.sub(
        lambda match: f"<!-- figures: {match[1]} -->\n{next(tables)[1]}<!-- end -->", text
    )
    readme.write_text(text, encoding="utf-8")
