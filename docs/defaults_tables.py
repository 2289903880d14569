"""The directive ``.. defaults:: module.Class``: the numbers behind "auto" as a table.

A dataclass of defaults says in comments where its numbers come from. The page shows how each
begins,
and leaves out numbers that have none: the source has everything.
"""

import ast
import importlib
import inspect
import re
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList


class Group(NamedTuple):
    """Numbers that share a reason."""

    numbers: list[str]
    why: str


def groups_of(name: str) -> list[Group]:
    """Fields of the dataclass ``module.Class`` with their values, by the comment above them."""
    module, _, class_name = name.rpartition(".")
    effort = getattr(importlib.import_module(module), class_name)
    lines = Path(inspect.getsourcefile(effort) or "").read_text(encoding="utf-8").splitlines()
    source = "\n".join(lines)
    classes = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)}
    effort_class = classes[class_name]
    fields = {n.lineno: n for n in effort_class.body if isinstance(n, ast.AnnAssign)}
    groups, comment, is_open = [Group([], "")], [], False
    for number in range(effort_class.lineno, max(fields) + 1):
        line = lines[number - 1].strip()
        if line.startswith("#"):
            comment.append(line.lstrip("# "))
            is_open = False
        elif number in fields:
            field = fields[number]
            if comment or not is_open:
                groups.append(Group([], " ".join(comment)))
            value = ast.get_source_segment(source, field.value) if field.value else ""
            value = " ".join((value or "").split())  # in one line
            value = re.sub(r"field\(default=(\w+)\(\)\)", r"\1()", value)
            value = re.sub(r"field\( ?default_factory=lambda: ?(.*?),? ?\)$", r"\1", value)
            value = re.sub(r"\{ (.*?),? \}", r"{\1}", value)
            groups[-1].numbers.append(f"``{ast.unparse(field.target)} = {value}``")
            comment, is_open = [], True
        elif not line:
            is_open = is_open and not comment
    return [group for group in groups if group.numbers]


def in_short(text: str) -> str:
    """What is said first, without asides: seven words at least."""
    pieces = re.split(r"(?<=[.:;])\s+", re.sub(r" \([^()]*\)", "", text))
    n_words = list(accumulate(len(piece.split()) for piece in pieces))
    enough = next((i for i, n in enumerate(n_words) if n > 6), len(pieces) - 1)
    return " ".join(pieces[: enough + 1]).rstrip(".:;") + "."


def table(name: str) -> list[str]:
    """The table as reStructuredText; nothing where no number has a reason."""
    found = [(" · ".join(g.numbers), in_short(g.why)) for g in groups_of(name) if g.why]
    if not found:
        return []
    lines = [".. list-table::", "   :header-rows: 1", "   :class: sk-wrap", "   :widths: 45 55", ""]
    for cells in (("Constants", "Meaning"), *found):
        lines += [f"   {' ' if i else '*'} - {cell}".rstrip() for i, cell in enumerate(cells)]
    return lines


class DefaultsTable(Directive):
    """Show the numbers of one dataclass."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        box = nodes.container()
        lines = StringList(table(self.arguments[0]), source=self.arguments[0])
        self.state.nested_parse(lines, self.content_offset, box)
        return box.children
