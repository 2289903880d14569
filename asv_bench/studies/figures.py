"""The figures that README and pages show: one file, which the comparisons write (``--keep``).

``figures.json`` has ``{table: {model: {data: [mean, standard error]}}}``; a run replaces the
figures of what it has measured and leaves the others. ``docs/figure_tables.py`` makes tables of it.
"""

import json
from collections.abc import Iterable, Mapping
from math import isnan
from pathlib import Path
from typing import Any

from timing import mean_and_error

FIGURES = Path(__file__).with_name("figures.json")


def keep(table: str, data: str, found: Mapping[str, Iterable[Any]], path: Path = FIGURES) -> None:
    """Store means over runs, with their standard errors, of every model on one data set."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for model, values in found.items():
        mean, error = mean_and_error(list(values))
        row = kept.setdefault(table, {}).setdefault(model, {})
        row[data] = [round(mean, 4)] if isnan(error) else [round(mean, 4), round(error, 4)]
    lines = []
    for name, models in kept.items():
        rows = [f"  {json.dumps(model)}: {json.dumps(row)}" for model, row in models.items()]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
