"""The figures that README and pages show: one file, which the comparisons write (``--keep``).

``figures.json`` has ``{table: {model: {data: [mean, standard error]}}}``. A run replaces the
figures that it has measured and leaves the others. The entry "measured" holds the date and the
commit of the last measurement of each table. ``docs/figure_tables.py`` makes tables of the file.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping
from datetime import date
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
    # Last, so that tables come first in the file.
    measured = kept.pop("measured", {})
    measured[table] = {"date": date.today().isoformat(), "commit": current_commit()}
    kept["measured"] = measured
    lines = []
    for name, models in kept.items():
        rows = [f"  {json.dumps(model)}: {json.dumps(row)}" for model, row in models.items()]
        lines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def current_commit() -> str:
    """Short name of the commit of this checkout, empty outside of a repository."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        found = subprocess.run(command, cwd=FIGURES.parent, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return found.stdout.strip()
