"""The table of all ratios of speed: what a round hands over, what is kept, and what is missed."""

import importlib
import sys
from pathlib import Path

import pytest

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
