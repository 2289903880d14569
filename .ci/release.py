"""Whether a version can be released: no placeholder left, and every place says the same version.

python .ci/release.py 0.2.0
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACEHOLDER = ".invalid"  # a domain that can't exist (RFC 2606)


def problems(version: str) -> list[str]:
    """What stands in the way, in words."""
    found = []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, url in project["urls"].items():
        if PLACEHOLDER in url:
            found.append(f"pyproject.toml: [project.urls] {name} = {url} is a placeholder")
    for path in ("CITATION.cff", "conda/recipe.yaml", "CODE_OF_CONDUCT.md", "paper/paper.md"):
        if PLACEHOLDER in (ROOT / path).read_text():
            found.append(f"{path} holds a placeholder (search for {PLACEHOLDER})")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"{version!r} isn't a version of three numbers")
    said = {
        "skbayes_sym/__init__.py": r'__version__ = "([^"]*)"',
        "CITATION.cff": r"(?m)^version: (\S+)",
        "docs/citing.rst": r"version = \{([^}]*)\}",
        "conda/recipe.yaml": r"(?m)^  version: (\S+)",
        "docs/changelog.rst": r"(?m)^(\d+\.\d+\.\d+) \(",
    }
    for path, pattern in said.items():
        match = re.search(pattern, (ROOT / path).read_text())
        newest = match[1] if match else "no version"
        if newest != version:
            found.append(f"{path} says {newest}, not {version}")
    changelog = (ROOT / "docs/changelog.rst").read_text()
    if "(unreleased)" in changelog:
        found.append("docs/changelog.rst has no date for what is still unreleased")
    return found


if __name__ == "__main__":
    found = problems(sys.argv[1])
    print("\n".join(found) or f"{sys.argv[1]} can be released.")
    sys.exit(bool(found))
