"""Scripts of the repository: the table of all ratios of speed, and the check before a release."""

import importlib
import json
import re
import runpy
import sys
import tomllib
from datetime import date
from importlib.util import find_spec
from math import exp, log, pi
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import BayesianRidge

from skbayes_sym import PredictiveStackingRegressor, predictive

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


def test_the_guide_has_the_stored_scores_of_the_minibatch_sampler():
    (fit,) = json.loads((BENCH / "minibatch_microcanonical.json").read_text(encoding="utf-8"))
    assert (fit["data"], fit["sampler"]) == ("bike", "microcanonical, 20000 steps")
    assert re.fullmatch(r"[0-9a-f]{7,}", fit["commit"])
    page = (BENCH.parents[1] / "docs/user_guide/sampling.rst").read_text(encoding="utf-8")
    row = re.search(r"\* - bike sharing\n +- SMILE.*\n +- (.*)\n +- (.*)\n +- (.*)\n", page)
    assert row.groups() == (
        f"{fit['nll']:.2f}", str(fit["CPU s"]), f"{fit['R-hat between']:.2f}",
    )  # fmt: skip
    assert f"bike sharing, measured on {fit['date']}" in page


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
    assert sum("is a placeholder" in line for line in found) == 9
    assert not any("run release.py fill" in line for line in found)
    assert any("unreleased" in line for line in found)


def test_addresses_are_filled_into_all_files(tmp_path):
    """With real addresses no placeholder is left anywhere, and the README has all badges."""
    release = runpy.run_path(str(CHECK))
    names = {name for name, _, _ in release["REPEATED"]} | {"README.md", ".ci/addresses.toml"}
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        if name == ".ci/addresses.toml":
            text = text.replace("ends in .invalid", "").replace(".invalid", ".example")
        (tmp_path / name).write_text(text, encoding="utf-8")
    release["fill"](tmp_path)
    for name in names:
        assert ".invalid" not in (tmp_path / name).read_text(encoding="utf-8"), name
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert readme.count("img.shields.io") == 4
    assert "https://skbayes-sym.example/source/actions/workflows/ci.yml/badge.svg" in readme


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


def test_figures_are_kept_with_the_day_and_commit_of_their_measurement(bench, tmp_path):
    keep = importlib.import_module("figures").keep
    path = tmp_path / "figures.json"
    keep("one", "iris", {"model": [1.0, 2.0]}, path)
    keep("two", "wine", {"model": [3.0, 4.0]}, path)
    keep("one", "wine", {"model": [5.0, 7.0]}, path)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert list(kept) == ["one", "two", "measured"]
    assert kept["one"]["model"] == {"iris": [1.5, 0.5], "wine": [6.0, 1.0]}
    today = date.today().isoformat()
    assert [last["date"] for last in kept["measured"].values()] == [today, today]


def test_every_table_of_figures_names_its_measurement():
    kept = json.loads((BENCH / "figures.json").read_text(encoding="utf-8"))
    assert set(kept) - {"measured"} == set(kept["measured"])
    for last in kept["measured"].values():
        assert date.fromisoformat(last["date"]) <= date.today()
        assert re.fullmatch(r"[0-9a-f]{8,}", last["commit"])


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


def stand_in(monkeypatch, name, **contents):
    """Put a module in the place of one that may not be installed."""
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


class PretrainedRegressor(RegressorMixin, BaseEstimator):
    """Normal distribution of all targets, with the methods of TabICL."""

    needs_weights = False

    def __init__(self, random_state=None):
        self.random_state = random_state

    def fit(self, X, y):
        if self.needs_weights:
            raise OSError("cannot reach the hub")
        self.mean_ = np.mean(y)
        self.std_ = np.std(y)
        return self

    def predict(self, X, output_type="mean", alphas=None):
        if output_type == "mean":
            return np.full(len(X), self.mean_)
        return np.tile(norm.ppf(alphas, self.mean_, self.std_), (len(X), 1))


class TabPFNRegressor(PretrainedRegressor):
    """The same, with the methods of TabPFN."""

    def predict(self, X, output_type="mean", quantiles=None):
        predicted = super().predict(X, output_type, quantiles)
        return predicted if output_type == "mean" else list(predicted.T)


@pytest.mark.parametrize("name", ["TabICL", "TabPFN"])
def test_pretrained_models_are_a_row_where_their_weights_are(
    bench, monkeypatch, capsys, tmp_path, name
):
    study = importlib.import_module("compare_tables")
    kind = TabPFNRegressor if name == "TabPFN" else PretrainedRegressor
    stand_in(monkeypatch, name.lower(), **{f"{name}Regressor": kind})
    rng = np.random.default_rng(0)
    tables = tmp_path / "tables/regression"
    tables.mkdir(parents=True)
    frame = pd.DataFrame({"word": rng.choice(["a", "b"], 400), "y": rng.normal(3.0, 2.0, 400)})
    frame.to_csv(tables / "simulated.csv.gz", index=False)
    store = tmp_path / "fits.json"
    monkeypatch.setenv("SKBAYES_SYM_DATA", str(tmp_path))
    arguments = ["compare_tables.py", "--splits", "2", "--models", name, "--store", str(store)]
    monkeypatch.setattr(sys, "argv", arguments)

    # Without weights the row is skipped by name, and nothing is stored.
    monkeypatch.setattr(kind, "needs_weights", True)
    monkeypatch.setitem(study.MODELS, name, study._pretrained(name))
    study.main()
    expected = f"{name} is skipped: no weights (OSError: cannot reach the hub)"
    assert capsys.readouterr().out.count(expected) == 1
    assert not store.exists()

    monkeypatch.setattr(kind, "needs_weights", False)
    study.main()
    assert f"{name:18s}  log density" in capsys.readouterr().out
    fits = json.loads(store.read_text(encoding="utf-8"))["simulated"][name]
    entropy = 0.5 + 0.5 * log(2.0 * pi * 4.0)
    for fit in fits.values():
        assert fit["log density"] == pytest.approx(-entropy, abs=0.2)
        assert fit["coverage"] == pytest.approx(0.9, abs=0.1)

    monkeypatch.delitem(sys.modules, name.lower())
    monkeypatch.setattr(study, "PRETRAINED", {name: "not_installed"})
    monkeypatch.setitem(study.MODELS, name, study._pretrained(name))
    store.unlink()
    study.main()
    assert f"{name} is skipped: No module named 'not_installed'" in capsys.readouterr().out


class CatBoostRegressor:
    """The linear part of CatBoost, with variances as `RMSEWithUncertainty` returns them."""

    def __init__(self, loss_function, posterior_sampling, **kwargs):
        assert loss_function == "RMSEWithUncertainty"
        self.posterior_sampling = posterior_sampling

    def fit(self, X, y):
        self.model = BayesianRidge().fit(X, y)
        return self

    def predict(self, X, prediction_type):
        assert prediction_type == "RMSEWithUncertainty"
        noise = np.full(len(X), 1.0 / self.model.alpha_)
        return np.stack([self.model.predict(X), noise], axis=1)

    def virtual_ensembles_predict(self, X, prediction_type, virtual_ensembles_count):
        assert self.posterior_sampling
        assert prediction_type == "TotalUncertainty"
        mean, noise = self.predict(X, "RMSEWithUncertainty").T
        std = self.model.predict(X, return_std=True)[1]
        return np.stack([mean, std**2 - noise, noise], axis=1)


@pytest.mark.parametrize("posterior_sampling", [False, True])
def test_catboost_has_its_own_uncertainty(bench, monkeypatch, posterior_sampling):
    study = importlib.import_module("compare_tables")
    # CatBoost itself underestimates the variance of small tables.
    tolerance = 0.3
    min_log_density = -5.0
    if find_spec("catboost") is None:
        tolerance = 0.15
        min_log_density = -1.5
        stand_in(monkeypatch, "catboost", CatBoostRegressor=CatBoostRegressor)
    name = "CatBoost ensemble" if posterior_sampling else "CatBoost variance"
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.uniform(-1, 1, 400), "word": rng.choice(["u", "v"], 400)})
    y = 2.0 * frame["a"].to_numpy() + 0.5 * rng.normal(size=400)
    assert study.MODELS[name](True, frame) is None
    model = study.MODELS[name](False, frame)
    rows = study.read(name, False, frame)
    assert rows.shape == (400, 3)
    scores = study.score_member(model, rows, y, np.arange(300), np.arange(300, 400))
    assert scores["coverage"] == pytest.approx(0.9, abs=tolerance)
    assert min_log_density < scores["log density"] < -0.5


def test_reported_scores_are_compared_with_new_rows(bench, capsys):
    study = importlib.import_module("compare_tables")
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    y = X["a"].to_numpy() + np.random.default_rng(1).normal(size=60)
    stack = study.MODELS["linear"](False, X)
    scores = study.score_member(stack, X, y, np.arange(40), np.arange(40, 60))
    assert scores["new rows"] == scores["log density"]
    assert scores["left out"] == stack.leave_one_out_log_density_["linear"][0]

    fits = {"0": {"left out": -1.0, "new rows": -1.2}, "1": {"left out": -1.1, "new rows": -1.1}}
    results = {"one": {"stack": fits, "pool": {"0": {}}}, "two": {"stack": fits}}
    study.compare_left_out("settling", results, store=False)
    lines = capsys.readouterr().out.split("\n")
    assert lines[1] == "settling, stack: log density of left-out and of new rows, nats per row"
    assert lines[3].split() == ["one", "-1.050", "-1.150", "0.100", "0.100"]
    assert lines[5].split() == ["average", "0.100", "0.000"]


def test_classes_that_training_lacks_are_not_compared(bench):
    study = importlib.import_module("compare_tables")
    X = pd.DataFrame({"a": np.random.default_rng(0).normal(size=60)})
    y = np.where(X["a"] > 0.0, "high", "low").astype(object)
    y[59] = "new"
    stack = study.MODELS["linear"](True, X)
    scores = study.score_member(stack, X, y, np.arange(40), np.arange(40, 60))
    assert scores["log density"] == pytest.approx((19 * scores["new rows"] + log(1e-15)) / 20)


class DistributionPrediction:
    """Quantiles of ScoringBench."""

    @classmethod
    def from_multi_quantile(cls, q, alphas, mean=None, *, train_range):
        self = cls()
        self.q, self.alphas, self.mean, self.train_range = q, alphas, mean, train_range
        return self


class ProbabilisticWrapper:
    """Base class of entries of ScoringBench."""

    def _set_train_range(self, y):
        self._y_train_range = float(np.nanmin(y)), float(np.nanmax(y))


def test_an_entry_of_scoringbench_is_one_class(monkeypatch):
    stand_in(
        monkeypatch, "scoringbench.univariate.wrappers.base",
        DistributionPrediction=DistributionPrediction, ProbabilisticWrapper=ProbabilisticWrapper,
    )  # fmt: skip
    for package in ("scoringbench", "scoringbench.univariate", "scoringbench.univariate.wrappers"):
        stand_in(monkeypatch, package)
    root = Path(__file__).parents[1]
    wrapper = runpy.run_path(str(root / "examples/scoringbench_wrapper.py"))["PredictiveWrapper"]
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=80), "word": rng.choice(["u", "v"], 80)})
    y = pd.Series(X["a"] + 0.5 * rng.normal(size=80))
    y[3] = np.nan
    stack = PredictiveStackingRegressor([("linear", "linear")], random_state=0)
    entry = wrapper(stack, n_quantiles=199).fit(X[:60], y[:60])
    fitted = stack.fit(X[:60].drop(index=3), y[:60].drop(index=3))
    prediction = entry.predict_distribution(X[60:])
    assert prediction.train_range == (y[:60].min(), y[:60].max())
    np.testing.assert_allclose(prediction.mean, fitted.predict(X[60:]))
    np.testing.assert_allclose(entry.predict(X[60:]), prediction.mean)
    np.testing.assert_allclose(prediction.alphas[[0, 99]], [0.005, 0.5])
    cdf = np.stack([predictive(fitted, X[60:]).cdf(q) for q in prediction.q.T], axis=1)
    np.testing.assert_allclose(cdf, np.tile(prediction.alphas, (20, 1)), atol=1e-6)
