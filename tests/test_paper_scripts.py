"""Scripts of the papers: commands at full size on stand-ins, ratings as they are laid out."""

import json
import os
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from papers.test_paper_data import write_images

# Commands behind figures of the pages that were last run before runs were recorded: they take from
# five minutes to hours.
PAPERS = "python examples/papers"
NOT_RECORDED = {
    f"{PAPERS}/plot_width_collapse.py",
    f"{PAPERS}/reproduce_gelberg_mnist.py",
    f"{PAPERS}/reproduce_gelberg_small_data.py",
    f"{PAPERS}/reproduce_immer_augerino.py",
    f"{PAPERS}/reproduce_wiese_table1.py",
    f"{PAPERS}/reproduce_wiese_table1.py --network f2 --chains 64 --chains-only",
}
MNIST = Path(__file__).parents[1] / "examples/papers/reproduce_immer_mnist.py"
TEXT = MNIST.read_text(encoding="utf-8")
FULL, CIFAR = (re.search(rf'{name}="(.*)"', TEXT)[1] for name in ("FULL", "CIFAR"))
COMMANDS = [
    line.replace("$CIFAR", CIFAR).split()
    for line in re.findall(r"mnist\.py \$FULL ([^#\n]*)", TEXT)
]
SMALL = ["--epochs", "1", "--augmentations", "2", "--seeds", "1", "--versions", "partial"]
# The others take seconds, and the Wide ResNet, with its 2.7 million weights, a minute.
QUICK = {"fashion_mnist", "--hidden"}


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, id=f"{c[1]}-{c[-1]}", marks=[] if set(c) >= QUICK else [pytest.mark.slow])
        for c in COMMANDS
    ],
)
def test_runs_at_full_size(command, tmp_path, monkeypatch, capsys):
    name = command[command.index("--data") + 1] if "--data" in command else "mnist"
    write_images(tmp_path, name, 20, 10)
    monkeypatch.setitem(os.environ, "SKBAYES_SYM_DATA", str(tmp_path))
    device = ["--device", "cuda" if torch.cuda.is_available() else "cpu"]
    methods = ["--methods", "non-invariant", "LILA"]
    argv = [str(MNIST), *FULL.split(), *command, *SMALL, *device, *methods]
    monkeypatch.setattr(sys, "argv", argv)
    runpy.run_path(str(MNIST), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"LILA +seed 0: accuracy \d", printed)
    assert "20 images, 1 seeds" in printed


def test_every_network_and_set_has_a_command():
    words = {word for command in COMMANDS for word in command}
    assert {"cnn", "resnet-8-16", "wrn-16-4", "fashion_mnist", "cifar10"} <= words
    assert "--device cuda" in FULL


RATINGS = Path(__file__).parents[1] / "examples/papers/reproduce_ratings.py"

# Line endings, headers, half stars, identifiers far apart, timestamps, a byte that is no UTF-8.
LAYOUTS = {
    "u.data": ("{user}\t{film}\t{stars:.0f}\t{time}\n", b"", 1.0),
    "ratings.dat": ("{user}::{film}::{stars:g}::{time}\n", b"", 0.5),
    "ratings.csv": (
        "{user},{film},{stars:.1f},{time}\r\n",
        b"\xef\xbb\xbfuserId,movieId,rating,timestamp\r\n",
        0.5,
    ),
}


def written(folder, name, n=400):
    """Ratings of 20 users and 25 films, and the file that has them."""
    line, header, step = LAYOUTS[name]
    rng = np.random.default_rng(0)
    place = rng.choice(500, n, replace=False)
    users, films = 1 + 7 * (place // 25), 100_000 - 31 * (place % 25)
    stars = np.clip(step * np.round((3 + rng.normal(size=n)) / step), step, 5.0)
    body = "".join(
        line.format(user=user, film=film, stars=star, time=978_300_760 + i)
        for i, (user, film, star) in enumerate(zip(users, films, stars, strict=True))
    )
    (folder / name).write_bytes(header + body.encode())
    return users, films, stars


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_was_written_is_read(name, tmp_path):
    users, films, stars = written(tmp_path, name)
    data = runpy.run_path(str(RATINGS))["read"](tmp_path)
    assert data.name == f"{name}, random fold 1"
    np.testing.assert_array_equal(data.users, users)
    np.testing.assert_array_equal(data.films, films)
    np.testing.assert_array_equal(data.stars, stars)
    assert 0.1 < data.is_test.mean() < 0.3


def test_bytes_that_are_no_text_of_ours_do_no_harm(tmp_path):
    (tmp_path / "ratings.csv").write_bytes(b"user\xe9,film,rating,time\n3,7,4.5,0\n\n")
    data = runpy.run_path(str(RATINGS))["read"](tmp_path)
    assert (data.users[0], data.films[0], data.stars[0], len(data.stars)) == (3, 7, 4.5, 1)


def test_the_predefined_fold_is_kept(tmp_path):
    for part, n in (("base", 300), ("test", 60)):
        written(tmp_path, "u.data", n)
        (tmp_path / "u.data").rename(tmp_path / f"u1.{part}")
    data = runpy.run_path(str(RATINGS))["read"](tmp_path)
    assert data.name == "MovieLens-100k, fold 1"
    assert (len(data.stars), int(data.is_test.sum())) == (360, 60)
    assert data.is_test[300:].all()


def test_no_file_is_no_data(tmp_path):
    assert runpy.run_path(str(RATINGS))["read"](tmp_path) is None


def test_half_stars_have_probabilities_that_add_up():
    nearest_star = runpy.run_path(str(RATINGS))["nearest_star"]
    labels = np.arange(0.5, 5.5, 0.5)
    mass = np.exp(nearest_star(np.full(10, 2.2), np.full(10, 1.3), labels, labels))
    assert mass.sum() == pytest.approx(1.0)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("asked", [["learned (default)"], pytest.param([], marks=pytest.mark.slow)])
def test_through_to_the_table(asked, tmp_path, monkeypatch, capsys):
    """With the lines that are wanted; with all of them the rows of a new user follow."""
    written(tmp_path, "ratings.csv")
    given = ["--fast", "--data-home", str(tmp_path), *(["--models", *asked] if asked else [])]
    monkeypatch.setattr(sys, "argv", [str(RATINGS), *given])
    runpy.run_path(str(RATINGS), run_name="__main__")
    first, second, header, *lines = capsys.readouterr().out.splitlines()
    assert first == "ratings.csv, random fold 1: 400 ratings of 25 films by 20 users"
    assert second.endswith("of known users and films")
    assert header.split() == ["RMSE", "log", "density", "90", "%", "cover", "CPU", "s"]
    table = {line[:27].strip(): line[27:].split() for line in lines[:9]}
    rmse, density, coverage, _ = map(float, table["learned (default)"])
    assert 0.7 < rmse < 1.5
    assert -4.0 < density < -1.5  # of one of ten labels
    assert 0.8 < coverage <= 1.0
    assert any("a new user with" in line for line in lines) == (not asked)


def test_every_claim_has_a_verdict_and_every_command_a_script(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    script = runpy.run_path(str(MNIST.with_name("claims.py")), run_name="__main__")
    printed = capsys.readouterr().out
    counts = re.findall(r"(\d+) (holds|in part|doesn't|can't be checked)", printed.splitlines()[-1])
    lines = re.findall(r"^  (holds|in part|doesn't|can't be checked) ", printed, re.MULTILINE)
    assert {kind: int(n) for n, kind in counts} == {k: lines.count(k) for _, k in counts}
    assert len(lines) > 30
    tables = re.findall(r": (\d+) of (\d+) cells$", printed, re.MULTILINE)
    ours, cells = (sum(map(int, column)) for column in zip(*tables, strict=True))
    assert 16 + 8 + 16 + 60 + 94 + 60 == cells > ours  # Gelberg's three, Wiese's, Immer's
    assert f"{ours} of {cells} cells of tables have a figure" in printed
    for paper in script["PAPERS"]:
        page = script["ROOT"] / f"docs/reproduction/{paper}.rst"
        for table in script["tables"](page.read_text(encoding="utf-8")):
            assert len({len(row) for row in table}) == 1, table
            for command in script["commands"](table):
                assert (script["ROOT"] / command.split()[1]).is_file(), command


def test_figures_of_pages_stand_in_recorded_runs():
    """Those of rows whose command has a recorded run; the others are named here."""
    script = runpy.run_path(str(MNIST.with_name("claims.py")))
    recorded = script["runs"]()
    unsupported, without_run = {}, set()
    for paper in script["PAPERS"]:
        page = (script["ROOT"] / f"docs/reproduction/{paper}.rst").read_text(encoding="utf-8")
        for header, *rows in script["tables"](page):
            for row in rows if header[1] == "Command" else ():
                for command in script["commands"]([row]):
                    run = recorded.get(command)
                    if run is None:
                        without_run.add(command)
                    elif figures := script["unsupported_figures"](row[3], run):
                        unsupported[paper, row[0]] = figures
    assert not unsupported
    assert without_run == NOT_RECORDED
    for command, run in recorded.items():
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"]), command
        assert re.fullmatch(r"[0-9a-f]{7,}", run["commit"]), command


def test_cells_of_tables_stand_in_recorded_runs():
    """Those whose command has a recorded run; the others' commands have none on a page either."""
    script = runpy.run_path(str(MNIST.with_name("claims.py")))
    recorded = script["runs"]()
    n_checked = 0
    for paper in ("gelberg", "wiese"):
        for name, table in script["cells"](paper).items():
            for key, cell in table.items():
                assert (script["ROOT"] / cell["command"].split()[1]).is_file()
                if cell["command"] in recorded:
                    run = recorded[cell["command"]]
                    n_checked += 1
                    assert not script["unsupported_figures"](str(cell["here"]), run), (name, key)
    assert n_checked > 40


def test_a_cell_without_date_or_recorded_run_is_counted():
    script = runpy.run_path(str(MNIST.with_name("claims.py")))
    table = {
        "empty": {},
        "recorded": {"here": 1.0, "command": "python examples/papers/a.py"},
        "not recorded": {"here": 1.0, "command": "python examples/papers/b.py"},
        "dated": {"here": [{"date": "2026-01-01", "commit": "0123abc"}]},
        "mean": {"here": [{"seeds": 3}]},
    }
    counts = script["count_cells"](table, {"python examples/papers/a.py": {}})
    assert counts == (5, 4, 2)


def test_channels_of_the_small_network_are_exchangeable():
    """Four and eight channels: 4! 8! copies, found in a trace of the module."""
    script = runpy.run_path(str(MNIST.with_name("reproduce_gelberg_cnn.py")))
    group = script["symmetry_of"](script["Images"](), (torch.zeros(2, 784),))
    assert np.exp(group.log_order) == pytest.approx(967_680)


def test_a_figure_that_no_run_printed_is_found():
    script = runpy.run_path(str(MNIST.with_name("claims.py")))
    run = {"output": ["RMSE 0.8939 (-0.0206)", "accuracy 0.9146"]}
    find = script["unsupported_figures"]
    assert find("0.894 and 0.0206, 91.5 %, 80 matrices", run) == []
    assert find("0.8938, 0.021, 91.4 %", run) == ["0.8938", "91.4"]


def one_fit(seed, commit):
    return {"how": "60 images, 1 epochs", "seed": seed, "accuracy": 50.0, "commit": commit,
            "log evidence": -100, "CPU s": 1}  # fmt: skip


@pytest.mark.parametrize("again", [False, True])
def test_cells_of_table_1_are_fitted_once_or_again(again, monkeypatch):
    """A repeated fit replaces the stored one of its size and seed, and nothing else."""
    monkeypatch.syspath_prepend(str(MNIST.parent))
    script = runpy.run_path(str(MNIST.with_name("reproduce_immer_table1.py")))
    new = {"cells": 0}

    def fake(method, version, seed, args):
        new["cells"] += 1
        return one_fit(seed, "new")

    monkeypatch.setitem(script["spend"].__globals__, "run", fake)
    larger = {"how": "900 images, 1 epochs", "seed": 0, "accuracy": 60.0, "commit": "old"}
    cell = {"paper": 90.0, "fits": [larger, one_fit(0, "unknown")]}
    cells = {"mnist, cnn, LILA, full": cell, "mnist, cnn, LILA, partial": {"paper": 90, "fits": []}}
    args = SimpleNamespace(
        data="mnist", network="cnn", n_train=60, epochs=1, seeds=2, minutes=1.0, again=again,
        methods=["LILA"], versions=["full"],
    )  # fmt: skip
    script["spend"](cells, args, lambda: None)
    assert new["cells"] == 1 + again
    first = one_fit(0, "new" if again else "unknown")
    assert cell["fits"] == [larger, first, one_fit(1, "new")]
    assert cells["mnist, cnn, LILA, partial"]["fits"] == []


def test_fits_to_mnist_are_stored_and_not_repeated(tmp_path, monkeypatch, capsys):
    """Stored fits are printed; other settings and ``--again`` have new ones."""
    monkeypatch.syspath_prepend(str(MNIST.parent))
    script = runpy.run_path(str(MNIST))
    fitted = []

    def fake(version, method, seed, args):
        fitted.append((version, method, seed, args.epochs))
        accuracy = 90.0 + 2.0 * seed + (method == "LILA")
        return {
            "version": version, "method": method, "seed": seed, "images": 60,
            "accuracy": accuracy, "log density": -0.5, "log evidence": -100, "reward": None,
            "half-widths": {"rotation": 1.5}, "curves": {"rotation": [0.05, 1.5]}, "CPU s": 1,
            "date": "2026-01-01", "commit": "0123abc",
        }  # fmt: skip

    monkeypatch.setitem(script["main"].__globals__, "run", fake)
    path = tmp_path / "fits.json"
    argv = [str(MNIST), "--n-train", "60", "--epochs", "2", "--seeds", "2", "--versions", "partial",
            "--methods", "Augerino", "LILA", "--results", str(path)]  # fmt: skip

    def call(*more):
        fitted.clear()
        monkeypatch.setattr(sys, "argv", [*argv, *more])
        script["main"]()
        return capsys.readouterr().out

    first = call("--store")
    assert len(fitted) == 4
    assert re.search(r"LILA minus Augerino +1\.000 ± 0\.000", first)
    assert call("--store") == first
    assert not fitted
    call("--store", "--epochs", "3", "--seeds", "1")
    assert fitted == [("partial", method, 0, 3) for method in ("Augerino", "LILA")]
    call("--store", "--again")
    call()
    assert len(fitted) == 4  # without --store nothing is read
    groups = json.loads(path.read_text())
    assert [len(group["fits"]) for group in groups] == [4, 2]


def test_stored_fits_have_scores_date_and_commit():
    """Those of single seeds; means over seeds are from before single fits were stored."""
    table_1 = json.loads(MNIST.with_name("immer_table1.json").read_text(encoding="utf-8"))
    groups = json.loads(MNIST.with_name("immer_mnist.json").read_text(encoding="utf-8"))
    fits = [fit for cell in table_1["cells"].values() for fit in cell["fits"] if "seed" in fit]
    pairs = [fit for group in groups for fit in group["fits"]]
    assert len(fits) > 50
    assert len(pairs) > 25
    for fit in [*fits, *pairs]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", fit["date"]), fit
        assert re.fullmatch(r"[0-9a-f]{7,}", fit["commit"]), fit
        assert np.isfinite([fit["accuracy"], fit["log density"], fit["log evidence"]]).all(), fit


def test_lila_and_augerino_are_compared_seed_by_seed(tmp_path, monkeypatch):
    """The table of the page has the mean of paired differences, of seeds that both have."""
    pytest.importorskip("docutils")
    script = runpy.run_path(str(MNIST.parents[2] / "docs/paper_tables.py"))
    fits = [
        {"version": "full", "method": method, "seed": seed, "accuracy": 80.0 + seed + gain,
         "log density": -0.5 + 0.1 * gain, "date": f"2026-01-0{seed + 1}"}
        for method, seeds, gain in (("Augerino", range(3), 0.0), ("LILA", range(2), 1.0))
        for seed in seeds
    ]  # fmt: skip
    settings = {"data": "mnist", "network": "mlp", "n_train": 2000, "epochs": 40, "hidden": 9}
    path = tmp_path / "immer_mnist.json"
    path.write_text(json.dumps([{"settings": settings, "fits": fits}]))
    monkeypatch.setitem(script["comparison"].__globals__, "PAIRS", path)
    (table,) = script["comparison"]()
    assert "MNIST, MLP of 9 units, 2,000 images, 40 epochs, 2 seeds; " in table[0]
    assert [line.strip(" *-") for line in table[-4:-1]] == [
        "fully rotated", "1.0 ± 0.0", "0.100 ± 0.000",
    ]  # fmt: skip
    (table,) = script["scores"]()
    assert [line.strip(" *-") for line in table[-5:-1]] == [
        "Augerino", "81.0 ± 0.6; -0.500", "LILA", "81.5 ± 0.5; -0.400",
    ]  # fmt: skip


def test_fits_on_a_gpu_are_stored_and_not_repeated(tmp_path, monkeypatch):
    """A fit at full size replaces smaller ones, and isn't begun again."""
    monkeypatch.syspath_prepend(str(MNIST.parent))
    script = runpy.run_path(str(MNIST.with_name("on_a_gpu.py")))
    cell = "mnist, mlp, LILA, full"
    small = {"how": "60 images, 1 epochs, 10 units", "seed": 0, "accuracy": 50.0}
    path = tmp_path / "immer_table1.json"
    path.write_text(json.dumps({"cells": {cell: {"paper": 97.74, "fits": [small]}}}))
    job, other = (
        script["Job"](path.name, f"{cell}, seed {seed}", 1.0, lambda device: {}) for seed in (0, 1)
    )
    assert not script["is_done"](job, script["read"](path))
    full = {"how": "all images, 1000 epochs, 1000 units", "seed": 0, "accuracy": 97.5}
    script["store"](job, full, path)
    assert script["read"](path)["cells"][cell]["fits"] == [full]
    assert script["is_done"](job, script["read"](path))
    assert not script["is_done"](other, script["read"](path))

    wide = script["Job"]("gpu_fits.json", "100 units, mean-field, seed 0", 1.0, lambda device: {})
    assert not script["is_done"](wide, script["read"](tmp_path / "gpu_fits.json"))
    script["store"](wide, {"accuracy": 95.0}, tmp_path / "gpu_fits.json")
    assert script["is_done"](wide, script["read"](tmp_path / "gpu_fits.json"))
