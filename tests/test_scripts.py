"""Scripts of the repository: the table of all ratios of speed, and the check before a release."""

import importlib
import re
import runpy
import sys
import tomllib
from math import exp, log
from pathlib import Path

import pytest
from scipy.integrate import quad

BENCH = Path(__file__).parents[1] / "asv_bench/studies"


@pytest.fixture(scope="module")
def bench():
    """The scripts' folder, as it is on the path of one that runs."""
    sys.path.insert(0, str(BENCH))
    try:
        yield importlib.import_module("compare_all")
    finally:
        sys.path.remove(str(BENCH))


def source(bench, *ratios, measure=None):
    return bench.Source("one", "One", ratios, lambda: measure)


def test_sources_and_their_ratios_have_names_of_their_own(bench):
    names = [s.name for s in bench.SOURCES]
    assert len(names) == len(set(names)) > 15
    for each in bench.SOURCES:
        assert len({r.name for r in each.ratios}) == len(each.ratios)


def test_rounds_are_kept_and_go_on_where_they_ended(bench, tmp_path):
    path, seeds = tmp_path / "rounds.json", []

    def measure(seed):
        seeds.append(seed)
        if len(seeds) % 3 == 0:
            raise ImportError("no more")
        return {"r": float(seed)}

    for expected in ([0, 1, 2], [0, 1, 2, 2, 3, 4]):
        one = source(bench, bench.Ratio("r"), measure=measure)
        bench.measure([one], 1.0, bench.Store(path))
        assert seeds == expected
    assert bench.Store(path).figures == {"one": {"r": [0.0, 1.0, 2.0, 3.0]}}


def test_missed_promises_end_with_an_error(bench, tmp_path, monkeypatch, capsys):
    """And a peer that isn't there is neither kept nor missed."""
    ratios = bench.Ratio("fast", 2.0), bench.Ratio("absent", 2.0)
    monkeypatch.setattr(bench, "SOURCES", (source(bench, *ratios),))
    path = tmp_path / "rounds.json"
    monkeypatch.setattr(sys, "argv", ["compare_all.py", "--budget", "0", "--store", str(path)])
    for value, n_missed in ((1.5, 0), (2.3, 0), (9.0, 1)):  # medians 1.5, 1.9 and 2.3
        bench.Store(path).add("one", {"fast": value}, 0.1)
        assert bench.main() == n_missed
    assert "MISSED" in capsys.readouterr().out


def test_the_docs_have_the_table_of_the_rounds_that_are_kept(bench, capsys):
    bench.show_rst(list(bench.SOURCES), bench.Store(bench.ROUNDS))
    page = BENCH.parents[1] / "asv_bench/README.rst"
    assert capsys.readouterr().out in page.read_text(encoding="utf-8")


CHECK = Path(__file__).parents[1] / ".ci/release.py"

pytestmark = pytest.mark.skipif(not CHECK.exists(), reason="needs a clone of the repository")


LONG_DESCRIPTION = CHECK.with_name("long_description.py")
ROOT = CHECK.parents[1]


def problems(version):
    return runpy.run_path(str(CHECK))["problems"](version)


@pytest.mark.parametrize(("a", "b", "m"), [(1.0, 1.0, 1), (0.3, 7.0, 5), (40.0, 2.0, -3)])
def test_the_orbit_of_a_relu_unit_is_integrated_whole(bench, a, b, m):
    """Beside quadrature over log s."""
    orbit = importlib.import_module("evidence_and_symmetry").rescaling_orbit

    def along(t):
        return exp(m * t - 0.5 * (a * exp(2 * t) + b * exp(-2 * t)))

    value = quad(along, -6.0, 6.0, epsabs=0.0, epsrel=1e-10, limit=200)[0]
    assert orbit(a, b, m) == pytest.approx(log(value), abs=1e-8)


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
