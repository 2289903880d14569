"""Check a built site without a network: links, anchors, pictures, formulas; count its words.

    python docs/check_pages.py [docs/_build/html]

Every internal link must lead to a file that is there, and to an anchor that is in it; every picture
and stylesheet must be there; every page with a formula must load MathJax from the site itself, and
no text outside of formulas and code may look like TeX. Addresses elsewhere are listed, not visited.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_TEX = re.compile(r"\\(?:\(|\[|frac|sum|log|sigma|theta|mathrm|text)\b|\\[(\[]|:math:|:doc:|:ref:")
_SOURCE = {"href": ("a", "link"), "src": ("img", "script")}
_UNREAD = ("script", "style", "pre", "code")  # whose text is nobody's prose


@dataclass
class Page:
    """What a page holds and asks for."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    has_formula: bool = False
    raw_tex: list[str] = field(default_factory=list)
    n_words: int = 0  # of the article, code and tables included


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page, self._open, self._in_article = Page(), [], False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_article |= tag == "article"
        self.page.n_words -= self._in_article and tag == "wbr"  # inside a word
        given = {name: value or "" for name, value in attrs}
        self.page.ids.update(given[name] for name in ("id", "name") if name in given)
        for attribute, tags in _SOURCE.items():
            if tag in tags and given.get(attribute):
                kind = self.page.scripts if tag == "script" else self.page.links
                kind.append(given[attribute])
        is_formula = "math" in given.get("class", "").split()
        self.page.has_formula |= is_formula
        if tag not in ("img", "br", "hr", "meta", "link", "input", "source", "wbr", "col"):
            self._open.append((tag, is_formula or tag in _UNREAD))

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"
        while self._open and any(tag == name for name, _ in self._open):
            if self._open.pop()[0] == tag:
                break

    def handle_data(self, data: str) -> None:
        if self._in_article and (not self._open or self._open[-1][0] not in ("script", "style")):
            self.page.n_words += len(re.findall(r"\S*\w\S*", data))
        if not any(unread for _, unread in self._open) and _TEX.search(data):
            self.page.raw_tex.append(" ".join(data.split())[:80])


@cache
def read(path: Path) -> Page:
    """A page, parsed once."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def _broken(link: str, path: Path, root: Path) -> str | None:
    """What is wrong with a link, in words."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or link.startswith("#!"):
        return None
    target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return f"{link}: no such file"
    if not target.is_relative_to(root):
        return f"{link}: outside of the site"
    fragment = unquote(parts.fragment)
    if fragment and target.suffix == ".html" and fragment not in read(target).ids:
        return f"{link}: no such anchor"
    return None


def problems_of(path: Path, root: Path) -> list[str]:
    """What is wrong with one page."""
    page = read(path)
    links = dict.fromkeys([*page.links, *page.scripts])
    found = [text for link in links if (text := _broken(link, path, root))]
    if page.has_formula:
        maths = [script for script in page.scripts if "mathjax" in script.lower()]
        if not maths:
            found.append("formulas, and no MathJax")
        found += [f"{s}: MathJax from elsewhere" for s in maths if urlsplit(s).netloc]
    return found + [f"raw TeX or reST: {text}" for text in page.raw_tex]


def check(root: Path) -> tuple[list[str], int, set[str]]:
    """Problems of a site, the number of links looked at, and the hosts of the others."""
    root = root.resolve()
    pages = sorted(p for p in root.rglob("*.html") if "_static" not in p.parts)
    found = [f"{p.relative_to(root)}: {text}" for p in pages for text in problems_of(p, root)]
    links = [link for p in pages for link in (*read(p).links, *read(p).scripts)]
    hosts = {host for link in links if (host := urlsplit(link).netloc)}
    return found, len(links), hosts


def words(root: Path) -> Counter[str]:
    """Words of the pages in every folder of a site."""
    counts: Counter[str] = Counter()
    for path in root.rglob("*.html"):
        folder = path.relative_to(root).parts[0]
        if folder not in ("_static", "_modules"):
            counts[folder if path.parent != root else "."] += read(path).n_words
    return counts


if __name__ == "__main__":
    default = Path(__file__).parent / "_build/html"
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    found, n_links, hosts = check(root)
    print("\n".join(found))
    print(f"{n_links} links, {len(found)} problems; not visited: {', '.join(sorted(hosts))}")
    counts = words(root)
    print(f"{sum(counts.values()):,} words:", ", ".join(f"{k} {n:,}" for k, n in counts.items()))
    sys.exit(bool(found) or not n_links)
