"""The README as a package index shows it: without a repository around it links must be absolute."""

import re
from pathlib import Path

# [text](target) and ![text](target), where the target is no address and no place on the page.
_RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|mailto:|#)([^)\s]+)\)")


def relative_targets(text: str) -> list[str]:
    """Files and folders of the repository that a Markdown text links or shows."""
    return [target for _, _, target in _RELATIVE.findall(text)]


def absolute(text: str, source: str) -> str:
    """The text with links into the repository at the address ``source``."""

    def replace(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        return f"{image}[{words}]({source}/{'raw' if image else 'blob'}/HEAD/{target})"

    return _RELATIVE.sub(replace, text)


def long_description(root: Path, source: str) -> str:
    """Of the README in ``root``."""
    return absolute((root / "README.md").read_text(encoding="utf-8"), source)
