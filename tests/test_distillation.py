"""Students: what they keep of a teacher, their own law, files, and ONNX."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from fits import LABELS, NUMBERS, TABLE, X, fitted
from scipy import integrate
from scipy.stats import norm
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skbayes_sym as sk
from skbayes_sym import distill
from skbayes_sym.distillation import distilling
from skbayes_sym.distillation.rows_to_learn import rows_to_learn
from skbayes_sym.distillation.schooling import Schooling, lesson_of_numbers, normal_levels
from skbayes_sym.distillation.taken_units import units_of_networks
from skbayes_sym.estimators.distributions import NormalPredictive
from skbayes_sym.student import Student

QUICK = Schooling(n_rows=400, first=(16, 60), with_networks=(8, 9), without=(8, 9), batch=64)


@pytest.fixture
def quickly(monkeypatch):
    """Students of few steps."""
    monkeypatch.setattr(distilling, "Schooling", lambda: QUICK)


@pytest.fixture(scope="module")
def numbers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distilling, "Schooling", lambda: QUICK)
        return distill(fitted("linear-gaussian"), X)


@pytest.mark.long
def test_a_student_of_a_line_has_its_law(monkeypatch):
    """Normal, with a variance that bends: .01 nats per row, of two columns' small difference."""
    effort = Schooling(n_rows=4000, without=(8, 9), batch=128)
    monkeypatch.setattr(distilling, "Schooling", lambda: effort)
    rng = np.random.default_rng(0)
    table = rng.standard_normal((800, 3)) @ [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.025]]
    (rows, new), y = np.split(table, [300]), 40.0 * (table[:40, 2] - table[:40, 0])
    model = sk.BayesianLinearRegressor().fit(rows[:40], y + 0.1 * rng.standard_normal(40))
    student = distill(model, rows)
    (mean, std), (exact, exact_std) = (m.predict(new, return_std=True) for m in (student, model))
    off = 0.5 * ((mean - exact) / exact_std) ** 2 + np.log(std / exact_std) ** 2
    assert off.mean() < 0.01
    assert abs(student.lost_) < 0.01


def test_what_it_learns_is_the_cross_entropy_and_spikes_gain_nothing():
    """Of a standard normal .5 nats; narrow normals would fit levels that never move."""
    law = NormalPredictive(np.zeros(50), np.ones(50))
    _, loss, _ = lesson_of_numbers(law.quantile(norm.cdf(normal_levels())), 0, 0)
    scale = float(np.sqrt((np.linspace(-4, 4, 17) ** 2).mean()))  # of all the quantiles

    def mean_of(loc, std, share):
        logits, widths = np.log([share, 1.0 - share, 1e-9]), np.log([std, 1, 1]) - np.log(scale)
        parts = np.concatenate([logits, [loc / scale, 0.0, 0.0], widths])
        outputs = torch.tensor(parts).float().expand(50, 9)
        return float(np.mean([loss(outputs, torch.arange(50)).mean() for _ in range(300)]))

    plain = mean_of(0.0, 1.0, 0.5)
    assert plain == pytest.approx(0.5 - np.log(scale), abs=0.01)
    assert all(mean_of(loc, 1e-4, 0.1) > plain + 0.05 for loc in (0.0, 0.25, 0.5))


def test_its_answers_are_of_one_law(numbers):
    weights, loc, _ = numbers.components(X)
    mean, std = numbers.predict(X, return_std=True)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(mean, (weights * loc).sum(axis=1))
    rows = np.repeat(X[:1], 4001, axis=0)
    y = mean[0] + std[0] * np.linspace(-12, 12, 4001)
    density = np.exp(numbers.log_predictive_density(rows, y))
    assert integrate.trapezoid(density, y) == pytest.approx(1.0, abs=1e-6)
    assert integrate.trapezoid(density * y**2, y) - mean[0] ** 2 == pytest.approx(std[0] ** 2)
    low, high = numbers.predict_quantiles(X[:1], [0.05, 0.6])[0]
    inside = (y >= low) & (y <= high)
    assert integrate.trapezoid(density[inside], y[inside]) == pytest.approx(0.55, abs=0.01)
    assert "nats per row worse" in repr(numbers)


def test_its_file_is_small_and_opens_without_torch(numbers, tmp_path):
    numbers.save(tmp_path / "student.npz")
    assert (tmp_path / "student.npz").stat().st_size < 100_000
    same = Student.load(tmp_path / "student.npz")
    np.testing.assert_array_equal(same.predict(X), numbers.predict(X))
    assert same.lost_ == numbers.lost_
    code = (
        "import sys\nfrom skbayes_sym.student import Student\n"
        f"print(Student.load({str(tmp_path / 'student.npz')!r}).predict([[0.1, 0.2, 0.3]])[0])\n"
        "assert not {'torch', 'sklearn'} & {*sys.modules}"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(numbers.predict([[0.1, 0.2, 0.3]])[0], rel=1e-6)


@pytest.mark.usefixtures("quickly")
def test_tables_are_read_as_they_are_and_pipelines_whole():
    frame = pd.DataFrame(TABLE, columns=["a", "b", "c"]).astype({"a": float, "c": float})
    stack = sk.PredictiveStackingRegressor([("line", "linear")], random_state=0).fit(frame, NUMBERS)
    student = distill(stack, frame)
    encoded = student.encode(frame)
    assert encoded.shape == (24, 2 + 1 + 3)  # numbers, one that is missing at times, three words
    np.testing.assert_array_equal(encoded[:, 2], np.isnan(frame["c"]))
    np.testing.assert_array_equal(encoded[:, 3:].sum(axis=1), 1.0)
    nullable = frame.astype({"c": "Float64"})  # gaps are pandas' NA
    assert nullable["c"].isna().any()
    np.testing.assert_array_equal(student.predict(nullable), student.predict(frame))
    np.testing.assert_array_equal(distill(stack, nullable).predict(frame), student.predict(frame))
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [1.0]}
    ).fit(X, LABELS)
    labels = distill(search, X)
    assert set(labels.predict(X)) <= set(LABELS)
    proba = labels.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    chosen = proba[np.arange(24), np.searchsorted(labels.classes_, LABELS)]
    np.testing.assert_allclose(labels.log_predictive_density(X, LABELS), np.log(chosen))


def test_a_teachers_networks_are_read_through_its_pipeline():
    """Their mean, of tanh, relu and a line, from words and gaps; not of two hidden layers."""
    frame = pd.DataFrame(TABLE, columns=["a", "b", "c"]).astype({"a": float, "c": float})
    pool = sk.BayesianMLPRegressor(3, n_modes=2, n_members=2, random_state=0).fit(frame, X[:, 0])
    pool._weights_ = {"linear": 0.2, "modes": 0.5, "members": 0.3}
    turned = make_pipeline(PCA(), sk.LaplaceRegressor(3, "relu", random_state=0)).fit(X, NUMBERS)
    deep = sk.LaplaceRegressor((3, 2), random_state=0).fit(X, NUMBERS)
    for model, rows in ((pool, frame), (turned, X)):
        arrays, learned, _ = rows_to_learn(rows, 600, np.random.default_rng(0))
        arrays |= units_of_networks(model, learned, arrays, Schooling())
        said = Student(arrays).encode(learned)[:, len(arrays["units"]) :]
        np.testing.assert_allclose(said.std(axis=0), 1.0, rtol=1e-4)
        r = np.corrcoef(said[:, 0], model.predict(learned))[0, 1]
        assert r == pytest.approx(1.0, abs=1e-6)
    assert not units_of_networks(deep, learned, arrays, Schooling())


@pytest.mark.usefixtures("quickly")
def test_without_rows_a_bare_model_makes_them_and_others_say_what_they_need():
    model = sk.BayesianLinearRegressor().fit(X, NUMBERS)
    assert distill(model).encode(X).shape == X.shape
    with pytest.raises(ValueError, match="distill needs X, rows like those to predict"):
        distill(make_pipeline(StandardScaler(), sk.BayesianLinearRegressor()).fit(X, NUMBERS))
    with pytest.raises(ValueError, match="takes no counts"):
        distill(fitted("linear-counts"), X)
    with pytest.raises(ValueError, match="one model for each"):
        distill(fitted("vi-regressor"), X)


@pytest.mark.usefixtures("quickly")
def test_onnx_says_the_same(numbers, tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    rows = np.vstack([X, 50.0 * X]).astype(np.float32)
    labels = distill(fitted("ensemble-classifier"), X)
    late = QUICK._replace(first=(1, 1), with_networks=(8, 60))
    monkeypatch.setattr(distilling, "Schooling", lambda: late)
    taught = distill(fitted("bayesian-mlp-ard"), X)
    assert "units" in taught._arrays
    for student in (numbers, labels, taught):
        student.to_onnx(str(tmp_path / "student.onnx"))
        session = runtime.InferenceSession(str(tmp_path / "student.onnx"))
        got = session.run(None, {"X": rows})
        classes = student.classes_ is not None
        expected = [student.predict_proba(rows)] if classes else student.components(rows)
        for values, own in zip(got, expected, strict=True):
            np.testing.assert_allclose(values, own, rtol=1e-3, atol=1e-5)
