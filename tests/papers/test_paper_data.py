"""The data of the papers: what the loader says, and the equations that generators print."""

import gzip
import math
import os

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from paper_data import load_dataset, make_regression2d, make_repeated_datum, make_rings

from skbayes_sym.datasets import make_absolute_value, make_sinusoidal


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, request):
    """Only tests marked as reading real data see the real folder."""
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("SKBAYES_SYM_DATA", raising=False)


@pytest.fixture
def real_data():
    if not os.environ.get("SKBAYES_SYM_DATA"):
        pytest.skip("SKBAYES_SYM_DATA is not set")


def write_regression(home, name, table):
    (home / "regression").mkdir(exist_ok=True)
    np.savetxt(home / "regression" / f"{name}.data", table)


def write_idx(path, values):
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def write_mnist(home, images, labels):
    (home / "mnist10k").mkdir(exist_ok=True)
    for stem, array in (("images-idx3", images), ("labels-idx1", labels)):
        write_idx(home / "mnist10k" / f"{stem}-ubyte.gz", array)


def test_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match=r"airfoil, cifar10, concrete, .*yacht; got 'beer'"):
        load_dataset("beer")


def test_file_in_data_home(tmp_path):
    table = np.arange(21.0).reshape(3, 7)
    write_regression(tmp_path, "yacht", table)
    bunch = load_dataset("yacht", data_home=tmp_path)
    assert_array_equal(bunch.data, table[:, :-1])
    assert_array_equal(bunch.target, table[:, -1])
    assert len(bunch.feature_names) == 6
    assert bunch.name == "yacht"
    assert bunch.source == str(tmp_path / "regression" / "yacht.data")
    assert bunch.source in bunch.DESCR
    X, y = load_dataset("yacht", data_home=str(tmp_path), return_X_y=True)
    assert_array_equal(X, bunch.data)
    assert_array_equal(y, bunch.target)


def test_environment_variable_and_its_precedence(tmp_path, monkeypatch):
    folders = [tmp_path / "variable", tmp_path / "argument"]
    for value, folder in enumerate(folders):
        folder.mkdir()
        write_regression(folder, "izmailov", np.full((4, 2), value))
    monkeypatch.setenv("SKBAYES_SYM_DATA", str(folders[0]))
    assert load_dataset("izmailov").target[0] == 0
    assert load_dataset("izmailov", data_home=folders[1]).target[0] == 1


def test_wrong_number_of_columns(tmp_path):
    write_regression(tmp_path, "airfoil", np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"'airfoil' has 5 inputs, got 2 from .*airfoil\.data"):
        load_dataset("airfoil", data_home=tmp_path)


def test_mnist_files(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28))
    write_mnist(tmp_path, images, np.array([7, 2, 1]))
    X, y = load_dataset("mnist", data_home=tmp_path, return_X_y=True)
    assert_array_equal(X, images.reshape(3, 784).astype(float))
    assert X.dtype == np.float64
    assert_array_equal(y, [7, 2, 1])
    assert np.issubdtype(y.dtype, np.integer)


@pytest.mark.parametrize(("name", "shape"), [("sinusoidal", (150, 1)), ("regression2d", (256, 2))])
def test_synthetic_sets_without_a_file_are_generated(name, shape):
    bunch = load_dataset(name)
    assert bunch.data.shape == shape
    assert "generated" in bunch.source
    both = np.column_stack([bunch.data, bunch.target])
    assert_allclose(both.mean(0), 0, atol=1e-12)
    assert_allclose(both.std(0), 1, atol=1e-12)
    assert_array_equal(bunch.data, load_dataset(name).data)


@pytest.mark.parametrize(("name", "number"), [("airfoil", 44957), ("cifar10", 40927)])
def test_no_file_names_the_remedy(name, number, tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"SKBAYES_SYM_DATA .* OpenML has it as {number}"):
        load_dataset(name, data_home=tmp_path)


SHAPES = {
    "airfoil": (1503, 5), "concrete": (1030, 8), "diabetes": (442, 10), "energy": (768, 8),
    "forest_fire": (517, 12), "izmailov": (400, 1), "mnist": (10_000, 784),
    "regression2d": (256, 2), "sinusoidal": (150, 1), "yacht": (308, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_real_files(real_data, name):
    bunch = load_dataset(name)
    assert bunch.source.startswith(os.path.expanduser(os.environ["SKBAYES_SYM_DATA"]))
    assert bunch.data.shape == SHAPES[name]
    assert len(bunch.feature_names) == SHAPES[name][1]
    assert np.isfinite(bunch.data).all()


def write_images(home, name, n_train, n_test, seed=0):
    """A stand-in of the same shape: every class a pattern of its own, in noise."""
    rng = np.random.default_rng(seed)
    shape = (3, 32, 32) if name == "cifar10" else (28, 28)
    y = rng.permutation(np.arange(n_train + n_test) % 10)
    patterns = 200.0 * rng.random((10, *shape)) ** 4
    X = np.clip(patterns[y] + 40.0 * rng.random((len(y), *shape)), 0, 255).astype(np.uint8)
    parts = {"train": (X[:n_train], y[:n_train]), "test": (X[n_train:], y[n_train:])}
    folder = home / ("cifar-10-batches-bin" if name == "cifar10" else name)
    folder.mkdir(parents=True)
    for part, (images, labels) in parts.items():
        if name == "cifar10":
            records = np.column_stack([labels, images.reshape(len(labels), -1)]).astype(np.uint8)
            batches = np.array_split(records, 5) if part == "train" else [records]
            for i, batch in enumerate(batches, 1):
                stem = f"data_batch_{i}" if part == "train" else "test_batch"
                (folder / f"{stem}.bin").write_bytes(batch.tobytes())
        else:
            stem = "train" if part == "train" else "t10k"
            write_idx(folder / f"{stem}-images-idx3-ubyte.gz", images)
            write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", labels)
    return X.reshape(len(y), -1), y


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_training_images_come_first(name, tmp_path):
    X, y = write_images(tmp_path, name, 12, 5)
    whole = load_dataset(name, part="all", data_home=tmp_path)
    assert_array_equal(whole.data, X)
    assert_array_equal(whole.target, y)
    assert whole.n_train == 12
    assert str(tmp_path) in whole.source
    test = load_dataset(name, part="test", data_home=tmp_path)
    assert_array_equal(test.data, X[12:])
    assert test.n_train == 0
    default = load_dataset(name, data_home=tmp_path)
    assert len(default.data) == (5 if name == "mnist" else 17)


N = 20_000  # sd of a sample sd is noise / sqrt(2 N) = noise / 200: 2.5 % is 5 standard errors

SD_RTOL = 5 / math.sqrt(2 * N)

GENERATORS = {
    "sinusoidal": (make_sinusoidal, (150, 1)),
    "regression2d": (make_regression2d, (256, 2)),
    "absolute": (lambda **k: make_absolute_value(alpha=2.0, spaced=False, **k), (100, 1)),
    "rings": (make_rings, (200, 2)),
    "repeated": (lambda **k: make_repeated_datum(6, n_features=3, noise=1.0, **k), (6, 3)),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_repeat_with_a_seed_and_leave_the_global_rng_alone(name):
    make, shape = GENERATORS[name]
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    X, y = make(random_state=3)
    again, other = make(random_state=np.random.RandomState(3)), make(random_state=4)
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert X.shape == shape
    assert X.dtype == np.float64
    assert len(y) == shape[0]
    assert_array_equal(X, again[0])
    assert_array_equal(y, again[1])
    assert not (np.array_equal(X, other[0]) and np.array_equal(y, other[1]))


def test_sinusoidal_noise_and_range():
    X, y = make_sinusoidal(N, noise=0.5, random_state=0)
    assert X.min() >= 0
    assert X.max() <= 8
    assert_allclose(np.std(y - np.sin(X[:, 0])), 0.5, rtol=SD_RTOL)


@pytest.mark.parametrize("formula", ["file", "paper"])
def test_regression2d_has_both_formulas(formula):
    X, y = make_regression2d(N, noise=0.2, formula=formula, random_state=0)
    a, b = X.T
    mean = a * (np.sin(a) + np.cos(b)) if formula == "file" else a * np.sin(a) + np.cos(b)
    assert_allclose(np.std(y - mean), 0.2, rtol=SD_RTOL)
    assert np.abs(X).max() <= 2


@pytest.mark.parametrize("spaced", [True, False])
def test_absolute_value_is_two_relus(spaced):
    X, y = make_absolute_value(50, alpha=1.5, spaced=spaced, random_state=0)
    x = X[:, 0]
    assert_allclose(y, np.maximum(1.5 * x, 0) + np.maximum(-1.5 * x, 0))
    assert np.abs(x).max() <= 10
    if spaced:
        assert_allclose(np.diff(x), 0.4)
        assert_allclose(x, -x[::-1], atol=1e-14)


def test_rings_have_the_sizes_and_radii_of_the_paper():
    X, y = make_rings(200, noise=0.0, random_state=0)
    radius = np.hypot(*X.T)
    for label, r, count in ((0, 0.5, 100), (1, 1.0, 66), (1, 0.0, 34)):
        assert np.sum((y == label) & np.isclose(radius, r)) == count
    degrees = np.degrees(np.arctan2(X[:, 1], X[:, 0]))[radius > 0.1]
    assert degrees.min() >= 0
    assert degrees.max() <= 120
    assert y[:20].min() == 0  # shuffled
    assert y[:20].max() == 1


def test_repeated_datum_is_the_figure_of_the_paper():
    X, y = make_repeated_datum(10, n_features=5)
    assert_array_equal(X, np.full((10, 5), 0.2))
    assert_array_equal(y, np.ones(10))
    assert_allclose(5 * np.sum(X[0] ** 2), 1.0)  # variance of X w under w ~ N(0, K I)
