"""The check before a release finds what must not be released."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / ".ci/release.py"

pytestmark = pytest.mark.skipif(not CHECK.exists(), reason="needs a clone of the repository")


LONG_DESCRIPTION = CHECK.with_name("long_description.py")
ROOT = CHECK.parents[1]


def problems(version):
    return runpy.run_path(str(CHECK))["problems"](version)


def test_placeholders_can_not_be_released():
    found = problems("0.1.0")
    assert sum("is a placeholder" in line for line in found) == 5
    assert sum("holds a placeholder" in line for line in found) == 4
    assert any("unreleased" in line for line in found)


def test_versions_must_agree():
    found = problems("9.9.9")
    assert "skbayes_sym/__init__.py says 0.1.0, not 9.9.9" in found
    assert "CITATION.cff says 0.1.0, not 9.9.9" in found


def test_the_recipe_has_the_lower_bounds_of_the_package():
    bound = r"([\w-]+) ?>= ?([\d.]+)"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = dict(re.fullmatch(bound, line).groups() for line in project["dependencies"])
    run = (ROOT / "conda/recipe.yaml").read_text().split("  run:")[1].split("tests:")[0]
    recipe = dict(re.findall(bound, run))
    assert recipe == {"pytorch" if k == "torch" else k: v for k, v in asked.items()}


def test_a_version_has_three_numbers():
    assert any("three numbers" in line for line in problems("1.0"))


def test_the_long_description_has_no_link_into_a_repository_around_it():
    found = runpy.run_path(str(LONG_DESCRIPTION))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = found["relative_targets"](readme)
    assert "docs/_static/quickstart.png" in targets
    assert [t for t in targets if not (ROOT / t).exists()] == []
    text = found["long_description"](ROOT, "https://host/us")
    assert found["relative_targets"](text) == []
    assert "(https://host/us/raw/HEAD/docs/_static/quickstart.png)" in text
    assert "(https://host/us/blob/HEAD/LICENSE)" in text


def test_citations_agree():
    """The papers' identifiers are the same wherever they are given."""
    cited = {
        page: set(re.findall(r"\d{4}\.\d{5}|Moore2016", (ROOT / page).read_text(encoding="utf-8")))
        for page in ("README.md", "CITATION.cff", "docs/citing.rst")
    }
    assert len(cited["README.md"]) == 5
    assert cited["README.md"] == cited["CITATION.cff"] == cited["docs/citing.rst"]
