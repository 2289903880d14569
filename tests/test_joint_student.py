"""Students of several targets: shapes, joint distributions, files and refusals."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import PredictiveStackingRegressor, distill
from skbayes_sym.distillation import fit as distilling
from skbayes_sym.distillation.student_training import StudentConfig
from skbayes_sym.joint_student import JointStudent
from skbayes_sym.student import Student

QUICK = StudentConfig(
    n_rows=400, first=(16, 100), with_networks=(8, 9), without_networks=(8, 9), batch_size=64
)
MEMBERS = [("line", "linear"), ("ridge", Ridge())]


def make_table(n_rows, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3))
    noise = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.6], [0.6, 1.0]], n_rows)
    return X, np.column_stack([X[:, 0] + X[:, 1], X[:, 2]]) + 0.7 * noise * [1.0, 3.0]


X, Y = make_table(150, 0)


@pytest.fixture(scope="module")
def stack():
    table = pd.DataFrame(Y, columns=["sand", "water"])
    return make_pipeline(
        StandardScaler(), PredictiveStackingRegressor(MEMBERS, random_state=0)
    ).fit(X, table)


@pytest.fixture(scope="module")
def student(stack):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distilling, "StudentConfig", lambda: QUICK)
        return distill(stack, X)


def normals(correlation):
    """Students that are standard normal wherever they are evaluated."""
    arrays = {
        "numeric": np.array([0]), "categorical": np.array([], int), "mean": np.zeros(1),
        "scale": np.ones(1), "is_boolean": np.zeros(1, bool),
        "missing_indicator": np.zeros(1, bool),
        "takes_missing": np.zeros(0, bool), "takes_unknown": np.zeros(0, bool),
        "weight0": np.zeros((1, 2)), "bias0": np.zeros(2), "weight1": np.zeros((2, 2)),
        "bias1": np.zeros(2), "weight2": np.zeros((2, 3)), "bias2": np.zeros(3),
        "weight3": np.zeros((1, 3)), "y_mean": np.zeros(()), "y_scale": np.ones(()),
    }  # fmt: skip
    students = {name: Student(arrays) for name in ("a", "b", "c")}
    return JointStudent(students, correlation)


def test_normal_targets_have_the_multivariate_normal_density_and_its_draws():
    correlation = np.array([[1.0, 0.5, -0.2], [0.5, 1.0, 0.1], [-0.2, 0.1, 1.0]])
    joint = normals(correlation)
    rng = np.random.default_rng(0)
    y = rng.normal(size=(20, 3))
    exact = multivariate_normal(np.zeros(3), correlation).logpdf(y)
    np.testing.assert_allclose(joint.log_predictive_density(np.zeros((20, 1)), y), exact)
    draws = joint.sample(np.zeros((4, 1)), 5000, random_state=1)
    assert draws.shape == (4, 3, 5000)
    np.testing.assert_allclose(
        np.corrcoef(draws.transpose(1, 0, 2).reshape(3, -1)), correlation, atol=0.03
    )


def test_a_student_of_a_stack_has_its_shapes_and_names(stack, student):
    assert list(student.students_) == ["sand", "water"]
    np.testing.assert_array_equal(student.correlation_, stack[-1].target_correlation_)
    assert student.correlation_[0, 1] > 0.3
    mean, std = student.predict(X, return_std=True)
    for got, own in zip((mean, std), stack.predict(X, return_std=True), strict=True):
        assert got.shape == own.shape
    assert np.corrcoef(mean[:, 0], stack.predict(X)[:, 0])[0, 1] > 0.9
    np.testing.assert_array_equal(student.predict(X), mean)
    assert student.predict_quantiles(X, [0.1, 0.5, 0.9]).shape == (150, 2, 3)
    np.testing.assert_allclose(
        student.predict_interval(X, 0.8), student.predict_quantiles(X, [0.1, 0.9])
    )
    assert student.log_predictive_density(X, Y).shape == (150,)
    pairs = zip(student.students_.values(), Y.T, strict=True)
    independent = sum(part.log_predictive_density(X, y) for part, y in pairs)
    assert student.log_predictive_density(X, Y).mean() > independent.mean() + 0.05
    assert "students of 2 targets (sand, water)" in repr(student)


def test_files_are_read_without_torch_and_damaged_ones_refused(student, tmp_path):
    file = tmp_path / "joint.npz"
    student.save(file)
    same = JointStudent.load(file)
    np.testing.assert_array_equal(
        same.log_predictive_density(X, Y), student.log_predictive_density(X, Y)
    )
    code = (
        "import sys\nfrom skbayes_sym.joint_student import JointStudent\n"
        f"print(JointStudent.load({str(file)!r}).sample([[0.1, 0.2, 0.3]], 2).shape)\n"
        "assert not {'torch', 'sklearn'} & {*sys.modules}"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "(1, 2, 2)"
    with pytest.raises(ValueError, match=r"JointStudent\.load"):
        Student.load(file)
    single = tmp_path / "single.npz"
    student.students_["sand"].save(single)
    with pytest.raises(ValueError, match=r"JointStudent\.save"):
        JointStudent.load(single)
    content = dict(np.load(file))
    for change in ({"correlation": np.eye(3)}, {"correlation": np.full((2, 2), 2.0)}):
        np.savez(tmp_path / "bad.npz", **(content | change))
        with pytest.raises(ValueError, match="is not a student saved"):
            JointStudent.load(tmp_path / "bad.npz")


def test_targets_of_another_shape_are_refused(student):
    with pytest.raises(ValueError, match="a column for each of 2 targets"):
        student.log_predictive_density(X, Y[:, 0])
    with pytest.raises(ValueError, match="contains NaN"):
        student.log_predictive_density(X[:1], [[np.nan, 0.0]])
    with pytest.raises(ValueError, match="must match"):
        student.log_predictive_density(X[:2], Y)
