"""Students: distance to their teachers, predictive distributions, files and ONNX."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from fits import LABELS, NUMBERS, TABLE, X, fitted
from scipy import integrate
from scipy.stats import norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skbayes_sym as sk
from skbayes_sym import distill
from skbayes_sym.base.distributions import NormalPredictive
from skbayes_sym.distillation import fit as distilling
from skbayes_sym.distillation.augmentation import augment_rows
from skbayes_sym.distillation.student_training import (
    StudentConfig,
    choose_target_kind,
    log_normal_mass,
    make_regression_problem,
    normal_levels,
    raise_to_positive,
)
from skbayes_sym.distillation.teacher_features import extract_features
from skbayes_sym.student import Student

QUICK = StudentConfig(
    n_rows=400, first=(16, 60), with_networks=(8, 9), without_networks=(8, 9), batch_size=64
)


@pytest.fixture
def quickly(monkeypatch):
    """Students of few steps."""
    monkeypatch.setattr(distilling, "StudentConfig", lambda: QUICK)


@pytest.fixture(scope="module")
def numbers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distilling, "StudentConfig", lambda: QUICK)
        return distill(fitted("linear-gaussian"), X)


@pytest.mark.long
def test_a_student_of_a_linear_model_has_its_distribution(monkeypatch):
    """The variance is a curve of the inputs. The distance is below 0.01 nats per row."""
    effort = StudentConfig(n_rows=4000, without_networks=(8, 9), batch_size=128)
    monkeypatch.setattr(distilling, "StudentConfig", lambda: effort)
    rng = np.random.default_rng(0)
    table = rng.standard_normal((800, 3)) @ [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.025]]
    (rows, new), y = np.split(table, [300]), 40.0 * (table[:40, 2] - table[:40, 0])
    model = sk.BayesianLinearRegressor().fit(rows[:40], y + 0.1 * rng.standard_normal(40))
    student = distill(model, rows)
    (mean, std), (exact, exact_std) = (m.predict(new, return_std=True) for m in (student, model))
    off = 0.5 * ((mean - exact) / exact_std) ** 2 + np.log(std / exact_std) ** 2
    assert off.mean() < 0.01
    assert abs(student.kl_to_teacher_) < 0.01


def test_the_loss_is_the_cross_entropy_and_narrow_components_do_not_lower_it():
    """It is 0.5 nats for a standard normal. Narrow components would fit fixed levels."""
    distribution = NormalPredictive(np.zeros(50), np.ones(50))
    _, loss, _ = make_regression_problem(distribution.quantile(norm.cdf(normal_levels())), 0, 0)
    scale = float(np.sqrt((np.linspace(-4, 4, 17) ** 2).mean()))  # of all the quantiles

    def mean_of(loc, std, share):
        logits, widths = np.log([share, 1.0 - share, 1e-9]), np.log([std, 1, 1]) - np.log(scale)
        parts = np.concatenate([logits, [loc / scale, 0.0, 0.0], widths])
        outputs = torch.tensor(parts).float().expand(50, 9)
        return float(np.mean([loss(outputs, torch.arange(50)).mean() for _ in range(300)]))

    plain = mean_of(0.0, 1.0, 0.5)
    assert plain == pytest.approx(0.5 - np.log(scale), abs=0.01)
    assert all(mean_of(loc, 1e-4, 0.1) > plain + 0.05 for loc in (0.0, 0.25, 0.5))


def test_density_quantiles_and_moments_belong_to_one_distribution(numbers):
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


def test_the_interval_is_central(numbers):
    interval = numbers.predict_interval(X[:3], 0.8)
    np.testing.assert_allclose(interval, numbers.predict_quantiles(X[:3], [0.1, 0.9]))
    for coverage in (80, 1.0, "80 %"):
        with pytest.raises(ValueError, match=r"^coverage must lie strictly between 0 and 1"):
            numbers.predict_interval(X[:3], coverage)


def test_the_file_is_small_and_can_be_read_without_torch(numbers, tmp_path):
    numbers.save(tmp_path / "student.npz")
    assert (tmp_path / "student.npz").stat().st_size < 100_000
    same = Student.load(tmp_path / "student.npz")
    np.testing.assert_array_equal(same.predict(X), numbers.predict(X))
    assert same.kl_to_teacher_ == numbers.kl_to_teacher_
    code = (
        "import sys\nfrom skbayes_sym.student import Student\n"
        f"print(Student.load({str(tmp_path / 'student.npz')!r}).predict([[0.1, 0.2, 0.3]])[0])\n"
        "assert not {'torch', 'sklearn'} & {*sys.modules}"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(numbers.predict([[0.1, 0.2, 0.3]])[0], rel=1e-6)


@pytest.mark.usefixtures("quickly")
def test_students_take_tables_and_teachers_that_are_pipelines():
    frame = pd.DataFrame(TABLE, columns=["a", "b", "c"]).astype({"a": float, "c": float})
    stack = sk.PredictiveStackingRegressor([("line", "linear")], random_state=0).fit(frame, NUMBERS)
    student = distill(stack, frame)
    encoded = student.encode(frame)
    # Numbers, whether each is missing, three levels, and whether the level is missing or unknown.
    assert encoded.shape == (24, 2 + 2 + 3 + 2)
    np.testing.assert_array_equal(encoded[:, 3], np.isnan(frame["c"]))
    np.testing.assert_array_equal(encoded[:, 4:7].sum(axis=1), 1.0)
    np.testing.assert_array_equal(encoded[:, [2, 7, 8]], 0.0)
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


@pytest.mark.long
def test_networks_of_a_teacher_in_a_pipeline_become_features():
    """Also with categories and missing values. Networks with two hidden layers don't."""
    frame = pd.DataFrame(TABLE, columns=["a", "b", "c"]).astype({"a": float, "c": float})
    pool = sk.BayesianMLPRegressor(3, n_modes=2, n_members=2, random_state=0).fit(
        frame, 2.0 * X[:, 0]
    )
    pool._weights_ = {"linear": 0.2, "modes": 0.5, "members": 0.3}
    turned = make_pipeline(PCA(), sk.LaplaceRegressor(3, "relu", random_state=0)).fit(X, NUMBERS)
    deep = sk.LaplaceRegressor((3, 2), random_state=0).fit(X, NUMBERS)
    for model, rows in ((pool, frame), (turned, X)):
        arrays, learned, _ = augment_rows(rows, 600, np.random.default_rng(0))
        arrays |= extract_features(model, learned, arrays, StudentConfig())
        said = Student(arrays).encode(learned)[:, len(arrays["units"]) :]
        np.testing.assert_allclose(said.std(axis=0), 1.0, rtol=1e-4)
        complete = learned[:600]  # unknown levels are averaged over, which is no network
        r = np.corrcoef(said[:600, 0], model.predict(complete))[0, 1]
        assert r == pytest.approx(1.0, abs=1e-6)
    assert not extract_features(deep, learned, arrays, StudentConfig())


@pytest.mark.usefixtures("quickly")
def test_rows_are_sampled_for_plain_models_and_required_for_others():
    model = sk.BayesianLinearRegressor().fit(X, NUMBERS)
    assert distill(model).encode(X).shape == X.shape
    with pytest.raises(ValueError, match="distill needs X for this model"):
        distill(make_pipeline(StandardScaler(), sk.BayesianLinearRegressor()).fit(X, NUMBERS))
    with pytest.raises(ValueError, match="one model for each target"):
        distill(fitted("vi-regressor"), X)


@pytest.mark.usefixtures("quickly")
def test_onnx_predicts_the_same_and_stores_what_it_uses(numbers, tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    rows = np.vstack([X, 50.0 * X]).astype(np.float32)
    labels = distill(fitted("ensemble-classifier"), X)
    late = QUICK._replace(first=(1, 1), with_networks=(8, 60))
    monkeypatch.setattr(distilling, "StudentConfig", lambda: late)
    taught = distill(fitted("bayesian-mlp-ard"), X)
    assert "units" in taught._arrays
    for student in (numbers, labels, taught):
        student.to_onnx(str(tmp_path / "student.onnx"))
        graph = onnx.load(tmp_path / "student.onnx").graph
        used = {name for node in graph.node for name in node.input}
        assert {constant.name for constant in graph.initializer} <= used
        session = runtime.InferenceSession(str(tmp_path / "student.onnx"))
        got = session.run(None, {"X": rows})
        classes = student.classes_ is not None
        expected = [student.predict_proba(rows)] if classes else student.components(rows)
        for values, own in zip(got, expected, strict=True):
            np.testing.assert_allclose(values, own, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def table_student():
    """A regressor on a table with a level column, its rows, and its student."""
    rng = np.random.default_rng(0)
    color = rng.choice(["red", "green", "blue"], 200)
    frame = pd.DataFrame({"a": rng.standard_normal(200), "color": color, "c": rng.random(200)})
    frame.loc[::7, "c"] = np.nan
    level = frame["color"].map({"red": 0.0, "green": 3.0, "blue": 5.0})
    y = 30.0 + frame["a"] + level + 0.2 * rng.standard_normal(200)
    teacher = sk.PredictiveStackingRegressor([("line", "linear")], random_state=0).fit(frame, y)
    effort = QUICK._replace(n_rows=1000, first=(32, 600), without_networks=(8, 9), tolerance=np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distilling, "StudentConfig", lambda: effort)
        return teacher, frame, distill(teacher, frame)


@pytest.mark.filterwarnings("ignore:column .* of X holds levels")
def test_missing_and_unknown_values_are_predicted_as_by_the_teacher(table_student):
    """Within half a standard deviation of the noise, 0.5 of 2 between levels."""
    teacher, frame, student = table_student
    for value in (np.nan, None, "purple"):
        rows = frame[:20].assign(color=np.full(20, value, dtype=object))
        expected, std = teacher.predict(rows, return_std=True)
        assert np.abs(student.predict(rows) - expected).max() < 0.5 * std.max(), value
    for name in ("a", "c"):
        rows = frame[:20].assign(**{name: np.nan})
        expected, std = teacher.predict(rows, return_std=True)
        assert np.abs(student.predict(rows) - expected).max() < 0.5 * max(std.max(), 1.0), name


def test_rows_are_refused_as_by_the_teacher(table_student, numbers):
    teacher, frame, student = table_student
    wider = frame.assign(more=1.0)
    integer_names = frame.set_axis([0, 1, 2], axis=1)
    infinite = frame.assign(a=np.inf)
    for wrong in (frame[["color", "a", "c"]], wider, frame[["a"]], infinite):
        for model in (teacher, student):
            with pytest.raises(ValueError, match=r"feature|infinity"):
                model.predict(wrong)
    with pytest.raises(ValueError, match="feature names"):
        student.predict(integer_names)
    with pytest.raises(ValueError, match="4 features, but Student is expecting 3"):
        numbers.predict(np.ones((2, 4)))
    with pytest.raises(ValueError, match="has a missing value"):
        Student(numbers._arrays | {"missing_indicator": np.zeros(3, dtype=bool)}).predict(
            [[0.1, None, 0.3]]
        )
    with pytest.raises(ValueError, match="infinity"):
        numbers.predict([[0.1, np.inf, 0.3]])
    assert numbers.predict([[True, 0.5, 1]]) == numbers.predict([[1.0, 0.5, 1.0]])


@pytest.mark.usefixtures("quickly")
def test_invalid_queries_are_refused(numbers):
    labels = distill(fitted("linear-labels"), X)
    with pytest.raises(AttributeError, match="predict_proba needs the student of a classifier"):
        numbers.predict_proba(X)
    for method in (labels.predict_quantiles, labels.components):
        with pytest.raises(AttributeError, match="needs the student of a regressor"):
            method(X)
    for quantiles in ([2.0], [-1.0], [0.0], [np.nan], ["a"], [], [[0.5]], 0.5):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            numbers.predict_quantiles(X, quantiles)
    for student, y in ((numbers, NUMBERS), (labels, LABELS)):
        with pytest.raises(ValueError, match="must match"):
            student.log_predictive_density(X[:1], y[:5])
        with pytest.raises(ValueError, match="infinity"):
            student.predict(np.full((1, 3), np.inf))
        with pytest.raises(TypeError, match=r"X can't be converted to an array: .*requires grad"):
            student.predict(torch.ones(1, 3, requires_grad=True))


@pytest.mark.usefixtures("quickly")
def test_the_student_of_counts_predicts_counts(tmp_path):
    student = distill(fitted("linear-counts"), X)
    assert student.target_kind_ == "count"
    quantiles = student.predict_quantiles(X, [0.05, 0.95])
    draws = student.sample(X, 50, random_state=0)
    for values in (quantiles, draws):
        np.testing.assert_array_equal(values, np.rint(values))
        assert values.min() >= 0.0
    counts = np.arange(2000.0)
    mass = np.exp(student.log_predictive_density(np.repeat(X[:1], 2000, axis=0), counts))
    assert mass.sum() == pytest.approx(1.0, abs=1e-6)
    assert student.predict(X[:1])[0] == pytest.approx(mass @ counts, rel=1e-3)
    np.testing.assert_array_equal(student.log_predictive_density(X[:2], [-1.0, 0.5]), -np.inf)
    student.save(tmp_path / "counts.npz")
    same = Student.load(tmp_path / "counts.npz")
    np.testing.assert_array_equal(same.predict(X), student.predict(X))


@pytest.mark.long
def test_students_of_counts_and_prices_are_near_their_teachers(monkeypatch):
    """A student of real targets would lose 0.5 and 0.1 nats."""
    effort = StudentConfig(n_rows=4000, without_networks=(8, 9), batch_size=128)
    monkeypatch.setattr(distilling, "StudentConfig", lambda: effort)
    rng = np.random.default_rng(0)
    rows, new = rng.standard_normal((2, 300, 3))
    rate = np.exp(0.5 + 0.7 * rows[:, 0])
    counts = sk.BayesianLinearRegressor("poisson").fit(rows, rng.poisson(rate))
    prices = TransformedTargetRegressor(
        sk.BayesianLinearRegressor(), func=np.log, inverse_func=np.exp
    ).fit(rows, rate * np.exp(0.3 * rng.standard_normal(300)))
    for model, kind in ((counts, "count"), (prices, "positive")):
        student = distill(model, rows)
        teacher = sk.predictive(model, new)
        assert student.target_kind_ == kind
        assert abs(student.kl_to_teacher_) < 0.02
        y = teacher.sample(20, random_state=1)
        lost = [teacher.log_prob(v) - student.log_predictive_density(new, v) for v in y.T]
        assert np.mean(lost) < 0.02
        mean, std = student.predict(new, return_std=True)
        assert np.median(np.abs(mean - teacher.mean()) / teacher.std()) < 0.1
        assert np.median(np.abs(np.log(std / teacher.std()))) < 0.05


@pytest.mark.usefixtures("quickly")
def test_rescaled_counts_are_refused():
    counts = 1.0 + np.arange(24) % 5
    model = TransformedTargetRegressor(
        sk.BayesianLinearRegressor("poisson"), func=twice, inverse_func=half
    ).fit(X, 0.5 * counts)
    with pytest.raises(ValueError, match="distill takes counts 0, 1, 2"):
        distill(model, X)


def half(y):
    return 0.5 * y


def twice(y):
    return 2.0 * y


def test_teachers_of_skewed_positive_targets_have_students_of_logarithms():
    levels = normal_levels()
    skewed = np.exp(np.arange(5.0)[:, None] + levels)
    assert choose_target_kind(skewed) == "positive"
    assert choose_target_kind(100.0 + np.arange(5.0)[:, None] + levels) == "real"
    assert choose_target_kind(skewed - 1.0) == "real"
    slightly = np.where(levels < -3.0, -1.0, skewed)
    assert choose_target_kind(slightly) == "positive"
    raised = raise_to_positive(slightly)
    np.testing.assert_allclose(raised, skewed)  # here the geometric sequence is exact
    np.testing.assert_array_equal(raise_to_positive(skewed), skewed)


def test_log_masses_of_intervals_are_accurate_and_have_finite_gradients():
    """Next to the difference of the distribution function in float64, and far in both tails."""
    upper = torch.tensor([-1.0, 0.3, 1.0, 2.5, 0.101, 51.0, -59.0, 5001.0, -2.0])
    width = torch.tensor([1e4, 1e4, 2.0, 0.5, 1e-3, 1.0, 1.0, 1.0, 5e5])
    upper.requires_grad_()
    log_mass = log_normal_mass(upper, width)
    high, wide = upper.detach().double().numpy(), width.double().numpy()
    expected = np.log(norm.cdf(high[:5]) - norm.cdf(high[:5] - wide[:5]))
    np.testing.assert_allclose(log_mass.detach()[:5], expected, rtol=1e-4)
    # Mills' ratio: the mass of a distant interval is the density at its nearer end over z.
    np.testing.assert_allclose(log_mass.detach()[5], norm.logpdf(50) - np.log(50), rtol=1e-4)
    log_mass.sum().backward()
    assert upper.grad.isfinite().all()
    assert upper.grad[7] == pytest.approx(-5000.0, rel=1e-3)


@pytest.mark.parametrize("name", ["stud", "stud.npz", "stud.v2"])
def test_a_file_is_read_by_the_name_by_which_it_was_saved(numbers, tmp_path, name):
    numbers.save(tmp_path / name)
    same = Student.load(tmp_path / name)
    np.testing.assert_array_equal(same.predict(X), numbers.predict(X))


def test_a_full_disk_leaves_the_old_file(numbers, tmp_path, monkeypatch):
    pytest.importorskip("onnx")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    for write, name in ((numbers.save, "student.npz"), (numbers.to_onnx, "student.onnx")):
        write(tmp_path / name)
        old = (tmp_path / name).read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr("skbayes_sym.numerics.files.os.fsync", full)
            with pytest.raises(OSError, match="No space"):
                write(tmp_path / name)
        assert (tmp_path / name).read_bytes() == old
    assert len(list(tmp_path.iterdir())) == 2


def test_damaged_files_and_bombs_raise_one_error_without_much_memory(numbers, tmp_path):
    file = tmp_path / "student.npz"
    numbers.save(file)
    good = file.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [good[:n] for n in rng.integers(0, len(good) - 1, 15)] + [b"", b"PK", b"text"]
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    damaged.append((tmp_path / "other.npz").read_bytes())
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(ValueError, match="not a student saved by"):
            Student.load(file)
    np.savez_compressed(file, **(numbers._arrays | {"weight1": np.zeros((2500, 2500))}))
    size = file.stat().st_size
    tracemalloc.start()
    with pytest.raises(ValueError, match="not a student saved by"):
        Student.load(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * size + 16e6


@pytest.mark.usefixtures("quickly")
def test_onnx_of_columns_far_from_zero_is_accurate_in_float64_and_warns_in_float32(tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    far = 1e4 + 1e-3 * X
    student = distill(sk.BayesianLinearRegressor().fit(far, NUMBERS), far)
    with pytest.warns(UserWarning, match="float32 rounds it by .* Use double=True"):
        student.to_onnx(tmp_path / "float32.onnx")
    student.to_onnx(tmp_path / "float64.onnx", double=True)
    session = runtime.InferenceSession(str(tmp_path / "float64.onnx"))
    got = session.run(None, {"X": far})
    for values, own in zip(got, student.components(far), strict=True):
        np.testing.assert_allclose(values, own, rtol=1e-3, atol=1e-5)
