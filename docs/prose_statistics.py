"""Print how often words and marks that tire readers occur in the pages, per 1,000 words.

    python docs/prose_statistics.py [PAGE ...]

Code, tables, formulas, comments, headings, targets of links and references don't count. Without
arguments all pages of the guide, the README and the first pages are read.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/*.rst", "docs/user_guide/*.rst", "docs/reproduction/*.rst")
# Directives whose whole block is prose; the blocks of others are left out.
PROSE_DIRECTIVES = ("note", "warning", "container", "figure", "glossary")
PATTERNS = {
    "semicolons": r";",
    "numbers": r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?!\w)|(?<![\w.])\.\d+",
    "no leading zero": r"(?<![\w.])[-+]?\.\d+",
    "those, ones": r"\b(?:those|ones|that of)\b",
    "noun what": r"\bwhat\b",
    "contractions": r"\w'(?:s|t|re|ll|ve|d)\b",
}


def read_prose(path: Path) -> str:
    """Return the sentences of a page, without code, tables, formulas and markup."""
    text = path.read_text(encoding="utf-8").partition("\nReferences\n===")[0]
    if path.suffix == ".md":
        text = re.sub(r"(?s)```.*?```|<!--.*?-->", "", text)
        text = re.sub(r"(?m)^\|.*$", "", text)
        return re.sub(r"\]\([^)]*\)|`[^`]*`", " ", text)

    lines: list[str] = []
    skipped_indent: int | None = None  # indentation of the directive whose block is skipped
    in_table = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if skipped_indent is not None and (not line.strip() or indent > skipped_indent):
            continue
        skipped_indent = None
        directive = re.match(r"\s*\.\. ([\w:-]+)::", line)
        if directive:
            if directive[1] not in PROSE_DIRECTIVES:
                skipped_indent = indent
            continue
        if re.match(r"\s*\.\. ", line):  # comments and targets
            skipped_indent = indent
            continue
        if re.match(r"\s*=+(\s+=+)+\s*$", line):  # a table, up to the next empty line
            in_table = True
        if in_table or re.match(r"\s*[|+]", line) or re.match(r"\s*:\w+:", line):
            if in_table and not line.strip():
                in_table = False
            continue
        if re.match(r"([=~-])\1{3,}\s*$", line):  # the title above it, and an overline
            if lines and lines[-1].strip():
                lines.pop()
            continue
        lines.append(line)
        if line.endswith("::"):
            skipped_indent = indent
    prose = "\n".join(lines)
    prose = re.sub(r":math:`[^`]*`", " ", prose)
    prose = re.sub(r"``[^`]*``", " ", prose)
    prose = re.sub(r"arXiv:[\d.]+", "arXiv", prose)
    return re.sub(r"<[^>`]*>`_*", " ", prose)


def rates(prose: str) -> dict[str, float]:
    """Return the number of words, and of each pattern per 1,000 words."""
    n_words = len(re.findall(r"[A-Za-z][\w'-]*", prose))
    found = {
        name: 1000 * len(re.findall(pattern, prose)) / max(1, n_words)
        for name, pattern in PATTERNS.items()
    }
    return {"words": n_words, **found}


def main() -> None:
    names = sys.argv[1:]
    paths = [Path(name) for name in names] or [p for glob in PAGES for p in ROOT.glob(glob)]
    print(f"{'':36}" + "".join(f"{name:>17}" for name in ("words", *PATTERNS)))
    texts = {str(path.resolve().relative_to(ROOT)): read_prose(path) for path in sorted(paths)}
    for name, prose in {**texts, "all pages": "\n".join(texts.values())}.items():
        values = rates(prose)
        print(f"{name:36}" + "".join(f"{value:17.1f}" for value in values.values()))


if __name__ == "__main__":
    main()
