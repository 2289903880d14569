"""Claims of the five papers and what holds of them here, with figures; and all commands at once.

    python examples/papers/claims.py              # claims, verdicts, figures, and how many of each
    python examples/papers/claims.py --run        # first every command behind them: a day on a CPU
    python examples/papers/claims.py --run --fast # by ``--fast`` where a script has it: minutes

Claims and commands are read from the pages in ``docs/reproduction``, cells of tables from
``cells.json`` and ``immer_table1.json``. A table or figure of a paper has a counterpart if a
command makes it and its figures stand there, a cell if it has a figure, at the size stored.
``--run`` records what each command prints in ``runs.json``, with date and commit. A test checks
that each figure in a row of a page, and in a cell, stands in the recorded run of its command. Cells
whose command has no recorded run are counted as such.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from paper_data import current_commit

RUNS = Path(__file__).with_name("runs.json")
ROOT = Path(__file__).resolve().parents[2]
PAPERS = "gelberg", "moore", "kurle", "wiese", "immer"
VERDICTS = "holds", "in part", "doesn't", "can't be checked"


def tables(page: str) -> Iterator[list[list[str]]]:
    """The page's tables, rows of cells, headers included."""
    for block in re.split(r"\.\. list-table::", page)[1:]:
        body = re.split(r"\n\S", block)[0]
        rows = re.split(r"\n   \* - ?", "\n" + body)[1:]
        yield [[" ".join(cell.split()) for cell in re.split(r"\n     - ?", row)] for row in rows]


def verdict(words: str) -> str:
    """One of `VERDICTS`: mixed ones are in part."""
    kinds = [kind for kind in VERDICTS if kind in words.replace("do not", "doesn't")]
    if "mostly" in words or len(kinds) > 1 or re.match(r"holds (if|for|on)\b", words):
        return "in part"
    return kinds[0] if kinds else "in part"


class CellCounts(NamedTuple):
    """Numbers of cells of a table: all, those with a figure, and of these with date and commit."""

    total: int
    filled: int
    dated: int


def cells(paper: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Cells of each of a paper's tables of figures; ``"here"`` if there is a figure of ours."""
    folder = Path(__file__).parent
    stored = json.loads((folder / "cells.json").read_text(encoding="utf-8")).get(paper, {})
    if paper == "immer":
        accuracies = json.loads((folder / "immer_table1.json").read_text(encoding="utf-8"))["cells"]
        for key, cell in accuracies.items():
            name = "Table 2" if "wrn" in key else "Tables 1 and 4, accuracy"
            stored.setdefault(name, {})[key] = {"here": cell["fits"]} if cell["fits"] else {}
            if "paper log evidence" in cell:
                fits = [fit for fit in cell["fits"] if "log evidence" in fit]
                evidences = stored.setdefault("Table 4, log evidence", {})
                evidences[key] = {"here": fits} if fits else {}
    return stored


def is_dated(cell: dict[str, Any], recorded: dict[str, dict[str, Any]]) -> bool:
    """Whether a cell's figure has date and commit: its own, or those of its command's run."""
    if "command" in cell:
        return cell["command"] in recorded
    return any("date" in fit and "commit" in fit for fit in cell["here"])


def count_cells(
    table: dict[str, dict[str, Any]], recorded: dict[str, dict[str, Any]]
) -> CellCounts:
    """Count the cells of one table."""
    filled = [cell for cell in table.values() if "here" in cell]
    return CellCounts(len(table), len(filled), sum(is_dated(cell, recorded) for cell in filled))


def commands(rows: list[list[str]]) -> list[str]:
    """The commands in these rows, each once."""
    found = re.findall(r"``(python examples/papers/[^`]*)``", " ".join(row[1] for row in rows))
    return list(dict.fromkeys(" ".join(command.split()) for command in found))


def runs() -> dict[str, dict[str, Any]]:
    """The recorded runs: date, commit, seconds and printed lines of each command."""
    return json.loads(RUNS.read_text(encoding="utf-8"))


def unsupported_figures(cell: str, run: dict[str, Any]) -> list[str]:
    """The decimal figures in a cell that no printed figure of the run rounds to.

    Signs are ignored, since pages state differences in either direction, and a printed fraction
    also supports a percentage.
    """
    text = "\n".join(run["output"])
    printed = [abs(float(found)) for found in re.findall(r"\d+\.?\d*(?:e-?\d+)?", text)]
    unsupported = []
    for figure in re.findall(r"\d[\d,]*\.\d+", cell):
        value = float(figure.replace(",", ""))
        half_a_digit = 0.5 * 10.0 ** -len(figure.partition(".")[2])
        candidates = [scale * number for number in printed for scale in (1.0, 100.0)]
        if not any(abs(one - value) <= half_a_digit * (1.0 + 1e-6) for one in candidates):
            unsupported.append(figure)
    return unsupported


def run(command: str, *, fast: bool) -> None:
    """Run a command, print what it prints, and record it unless it was a test run."""
    script = command.split()[1]
    words = [sys.executable, *shlex.split(command)[1:]]
    if fast and "--fast" in (ROOT / script).read_text(encoding="utf-8"):
        words.append("--fast")
    print(f"\n$ {' '.join(['python', *words[1:]])}", flush=True)
    begin = time.perf_counter()
    found = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    seconds = round(time.perf_counter() - begin)
    failed = "" if found.returncode == 0 else f", failed: {found.returncode}"
    print(f"{found.stdout}[{seconds} s{failed}]")
    if not fast and not failed:
        stored = runs()
        stored[command] = {
            "date": str(date.today()),
            "commit": current_commit(),
            "seconds": seconds,
            "output": found.stdout.splitlines(),
        }
        RUNS.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--papers", nargs="+", choices=PAPERS, default=PAPERS)
    chosen = parser.parse_args()
    recorded = runs()
    total: Counter[str] = Counter()
    for paper in chosen.papers:
        page = (ROOT / f"docs/reproduction/{paper}.rst").read_text(encoding="utf-8")
        claims, *others = tables(page)
        shown = [row for table in others if table[0][1] == "Command" for row in table[1:]]
        for command in commands(shown):
            if chosen.run:
                run(command, fast=chosen.fast)
        title = re.search(r"^(.+)\n=+$", page, re.MULTILINE)
        print(f"\n{title[1] if title else paper}")
        for claim, here, by in claims[1:]:
            total[verdict(here)] += 1
            print(f"  {verdict(here):16s} {claim}\n{'':19s}{here}; {by}")
        papers = [row for row in shown if not row[0].startswith("not in the paper")]
        made = [row for row in papers if row[1] and row[3] not in {"", "not run"}]
        print(f"  {len(made)} of {len(papers)} tables and figures have a counterpart; not: "
              f"{', '.join(row[0] for row in papers if row not in made) or 'none'}")  # fmt: skip
        for command in commands(shown):
            one = recorded.get(command)
            when = f"{one['date']}, commit {one['commit']}, {one['seconds']} s" if one else "no run"
            print(f"  {when}: {command}")
        counted = cells(paper)
        for name, table in counted.items():
            counts = count_cells(table, recorded)
            total.update(cells=counts.total, ours=counts.filled, dated=counts.dated)
            print(f"  {name}: {counts.filled} of {counts.total} cells")
            if counts.dated < counts.filled:
                unknown = counts.filled - counts.dated
                print(f"    {unknown} of these from before dates and commits were recorded")
        if not counted:
            print("  no table of figures")
    verdicts = ", ".join(f"{total[kind]} {kind}" for kind in VERDICTS)
    print(f"\n{total['ours']} of {total['cells']} cells of tables have a figure")
    print(f"{total['dated']} of these figures have a recorded date and commit")
    print(f"{sum(total[kind] for kind in VERDICTS)} claims: {verdicts}")


if __name__ == "__main__":
    main()
