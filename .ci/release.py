"""Check that a version can be released: all places agree on it, and no address is a placeholder.

python .ci/release.py 0.2.0    lists what stands in the way
python .ci/release.py fill     writes the addresses of addresses.toml to the files that repeat them
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACEHOLDER = ".invalid"  # a domain that can't exist (RFC 2606)
# Files that repeat an address: its name, and a pattern whose group is the address.
REPEATED = [
    ("pyproject.toml", "homepage", r'(?m)^Homepage = "(.*)"'),
    ("pyproject.toml", "documentation", r'(?m)^Documentation = "(.*)"'),
    ("pyproject.toml", "source", r'(?m)^Source = "(.*)"'),
    ("pyproject.toml", "issues", r'(?m)^Issues = "(.*)"'),
    ("pyproject.toml", "changelog", r'(?m)^Changelog = "(.*)"'),
    ("CITATION.cff", "doi", r"(?m)^doi: (.*)"),
    ("CITATION.cff", "source", r'(?m)^repository-code: "(.*)"'),
    ("conda/recipe.yaml", "homepage", r"(?m)^  homepage: (.*)"),
    ("conda/recipe.yaml", "downloads", r"(?m)^  url: (.*)/skbayes_sym-"),
    ("CODE_OF_CONDUCT.md", "conduct", r"write to (\S+)\. What"),
    ("paper/paper.md", "affiliation", r"Independent \((.*)\)"),
]
_BADGES = r"(?s)(?<=<!-- badges -->\n).*?(?=<!-- end badges -->)"


def addresses(root: Path = ROOT) -> dict[str, str]:
    """Read all addresses, by name."""
    return tomllib.loads((root / ".ci/addresses.toml").read_text(encoding="utf-8"))


def badges(known: dict[str, str]) -> str:
    """Return the README's badges; one whose address is a placeholder is left out."""
    shields = "https://img.shields.io"
    workflow = f"{known['source']}/actions/workflows/ci.yml"
    doi = f"https://doi.org/{known['doi']}"
    lines = [
        f"[![tests]({workflow}/badge.svg)]({workflow})",
        f"[![documentation]({shields}/badge/docs-online-blue)]({known['documentation']})",
        f"[![DOI]({shields}/badge/DOI-{known['doi'].replace('-', '--')}-blue)]({doi})",
        f"![Python 3.11 or newer]({shields}/badge/python-3.11%2B-blue)",
        f"![BSD-3-Clause]({shields}/badge/license-BSD--3--Clause-blue)",
    ]
    return "".join(f"{line}\n" for line in lines if PLACEHOLDER not in line)


def fill(root: Path = ROOT) -> None:
    """Write the addresses to all files that repeat them, and the badges to the README."""
    known = addresses(root)
    for name, key, pattern in REPEATED:
        path = root / name
        text = path.read_text(encoding="utf-8")
        match = re.search(pattern, text)
        assert match is not None, f"{name} has no {key}"
        filled = text[: match.start(1)] + known[key] + text[match.end(1) :]
        path.write_text(filled, encoding="utf-8")
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(re.sub(_BADGES, lambda _: badges(known), text), encoding="utf-8")


def address_problems() -> list[str]:
    """List placeholders, and files that don't repeat the addresses."""
    known = addresses()
    found = []
    for key, address in known.items():
        if PLACEHOLDER in address:
            found.append(f".ci/addresses.toml: {key} = {address} is a placeholder")
    for name, key, pattern in REPEATED:
        match = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"))
        if match is None or match[1] != known[key]:
            found.append(f"{name} hasn't the {key} of .ci/addresses.toml: run release.py fill")
    match = re.search(_BADGES, (ROOT / "README.md").read_text(encoding="utf-8"))
    if match is None or match[0] != badges(known):
        found.append("README.md hasn't the badges of .ci/addresses.toml: run release.py fill")
    return found


def problems(version: str) -> list[str]:
    """List what stands in the way of a release."""
    found = address_problems()
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"{version!r} isn't a version of three numbers")
    patterns = {
        "skbayes_sym/__init__.py": r'__version__ = "([^"]*)"',
        "CITATION.cff": r"(?m)^version: (\S+)",
        "docs/citing.rst": r"version = \{([^}]*)\}",
        "conda/recipe.yaml": r"(?m)^  version: (\S+)",
        "docs/changelog.rst": r"(?m)^(\d+\.\d+\.\d+) \(",
    }
    for path, pattern in patterns.items():
        match = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))
        newest = match[1] if match else "no version"
        if newest != version:
            found.append(f"{path} says {newest}, not {version}")
    changelog = (ROOT / "docs/changelog.rst").read_text(encoding="utf-8")
    if "(unreleased)" in changelog:
        found.append("docs/changelog.rst has no date for what is still unreleased")
    return found


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        fill()
        sys.exit()
    found = problems(sys.argv[1])
    print("\n".join(found) or f"{sys.argv[1]} can be released.")
    sys.exit(bool(found))
