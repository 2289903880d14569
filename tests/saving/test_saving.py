"""Files without pickle: the same model comes back, and what isn't one is refused."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from files import rewrite
from fits import FITS, SMALL, THREE, X, assert_predicts_as, fitted
from habits import hurried
from sklearn.exceptions import NotFittedError

import skbayes_sym
import skbayes_sym as sk
from skbayes_sym import SymVIMatrixFactorization, load, save
from skbayes_sym.base.estimator import is_fitted_attribute
from skbayes_sym.models import Categorical
from skbayes_sym.saving.files import FORMAT
from skbayes_sym.saving.values import Decoder, Encoder, estimator_classes, saved_classes

safetensors = pytest.importorskip("safetensors.numpy")

# Too few steps to converge on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

every_fit = pytest.mark.parametrize("name", FITS)
FIRST = {next(k for k, c in FITS.items() if c.estimator is e) for e in SMALL.values()}  # of a class


def test_every_estimator_of_the_package_is_in_the_tables():
    public = {n for n in skbayes_sym.__all__ if hasattr(getattr(skbayes_sym, n), "fit")}
    known = {name for name, kind in estimator_classes().items() if hasattr(kind, "fit")}
    assert public == known == {type(c.estimator).__name__ for c in FITS.values()}
    assert len(saved_classes()) == len(set(saved_classes().values()))


def fitted_state(model):
    """Parameters and fitted attributes, as far as they can be compared."""
    state = {
        **model.get_params(deep=False),
        **{k: v for k, v in vars(model).items() if is_fitted_attribute(k)},
    }
    encoder = Encoder()
    encoded = {k: encoder.encode(v, k) for k, v in state.items() if k != "_cache"}
    return json.dumps(encoded), encoder.arrays


@every_fit
def test_the_same_model_comes_back(name, tmp_path):
    path, model = tmp_path / "model.safetensors", fitted(name)
    sk.save(model, path)
    restored = sk.load(path)
    assert type(restored) is type(model)
    assert_predicts_as(name, restored)
    (encoded, arrays), (again, same) = fitted_state(model), fitted_state(restored)
    assert encoded == again
    assert arrays.keys() == same.keys()
    for key, values in arrays.items():
        assert values.dtype == same[key].dtype
        np.testing.assert_array_equal(values, same[key], err_msg=key)
    if name in FIRST:
        hurried(restored).fit(FITS[name].X, FITS[name].y)  # and learns again


VALUES = {
    "none": None, "bool": True, "int": 3, "big": 10**30, "float": 0.1, "nan": float("nan"),
    "inf": float("-inf"), "string": "ä\n", "number": np.float32(0.1), "integer": np.int64(-3),
    "empty": np.empty((0, 3)), "scalar array": np.array(2.5), "bools": np.array([True, False]),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "view": np.arange(9.0)[::2],
    "strings": np.array([["a", "bcd"]]), "objects": np.array(["a", "bcd"], dtype=object),
    "nested": [(1, [2.0, "x"]), {"a": None, 3: np.arange(3)}], "tensor": torch.arange(3.0),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_survive(name):
    value = VALUES[name]
    encoder = Encoder()
    encoded = json.loads(json.dumps(encoder.encode(value, "x"), allow_nan=False))
    back = Decoder(encoder.arrays, 100).decode(encoded)
    assert type(back) is type(value)
    if isinstance(value, np.ndarray):
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert back.flags.f_contiguous == (value.flags.f_contiguous or value.ndim < 2)
        assert back.flags.writeable
    if name == "tensor":
        back, value = back.numpy(), value.numpy()
    np.testing.assert_equal(back, value)


def test_equal_names_dont_overwrite_each_other():
    encoder = Encoder()
    value = {"a.b": np.arange(2), "a": {"b": np.arange(3)}}
    encoded = encoder.encode(value, "x")
    back = Decoder(encoder.arrays, 100).decode(encoded)
    assert (len(back["a.b"]), len(back["a"]["b"])) == (2, 3)


def test_names_labels_and_generators_survive(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    labels = pd.Series(np.array(["x", "y", "z"])[THREE])
    rng = np.random.RandomState(3)
    model = sk.BayesianLinearClassifier(Categorical(n_points=64), random_state=rng)
    sk.save(model.fit(frame, labels), tmp_path / "model")
    restored = sk.load(tmp_path / "model")
    assert list(restored.feature_names_in_) == ["a", "b", "c"]
    assert restored.predict(frame).tolist() == model.predict(frame).tolist()
    assert restored.random_state.randint(100) == rng.randint(100)


class Shift(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.eta = torch.nn.Parameter(torch.tensor([0.1]))

    def forward(self, x, eps):
        return x + self.eta * eps


class Mine(sk.BayesianLinearRegressor):
    pass


CLASSES = X[:, 0] > 0
FAST = {"max_iter": 2, "optimizer": sk.EvidenceAdam(updates=sk.Updates(2)), "random_state": 0}
MIXED = np.array([1, "two"], dtype=object)[CLASSES.astype(int)]
REFUSED = {
    "network": (sk.LaplaceClassifier(network=torch.nn.Linear(3, 2), **FAST), CLASSES, "network"),
    "augmentation": (
        sk.LILARegressor((2,), invariances=[Shift()], **FAST),
        X[:, 0],
        r"invariances\.0",
    ),
    "class": (Mine(), X[:, 0] + X[:, 1] ** 2, "Mine is neither a class of this package"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_cannot_hold_is_named_and_nothing_is_written(case, tmp_path):
    estimator, y, message = REFUSED[case]
    with pytest.raises(TypeError, match=message + r".*joblib\.dump"):
        sk.save(estimator.fit(X, y), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_tensors_on_a_device_and_odd_arrays_are_refused():
    for value in (torch.empty(2, device="meta"), np.array([1j]), MIXED, np.datetime64("2020")):
        with pytest.raises(TypeError, match="x can't be saved"):
            Encoder().encode(value, "x")


def test_unfitted(tmp_path):
    with pytest.raises(NotFittedError):
        sk.save(sk.DeepEnsembleRegressor(), tmp_path / "model")


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model"
    sk.save(fitted("linear-gaussian"), path)
    return path


def test_a_truncated_file_is_refused_wherever_it_ends(saved):
    whole = saved.read_bytes()
    for n in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:n])
        with pytest.raises(ValueError, match=r"model' is not a model saved .* damaged"):
            sk.load(saved)


def test_other_files_are_refused(tmp_path):
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError):
        sk.load(other)
    other.write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match="is not a model"):
        sk.load(other)
    safetensors.save_file({"a": np.zeros(3)}, other)
    with pytest.raises(ValueError, match="is not a model"):
        sk.load(other)
    for text in ("not json", "[1]", "{}", "[" * 100_000):
        safetensors.save_file({"a": np.zeros(3)}, other, {"skbayes_sym": text})
        with pytest.raises(ValueError, match="is not a model"):
            sk.load(other)


def test_another_format_class_or_parameter_is_refused(saved):
    rewrite(saved, lambda h: h.update(format=FORMAT + 1, version="7.1.0"))
    with pytest.raises(ValueError, match=rf"format {FORMAT + 1}, written by skbayes_sym 7\.1\.0"):
        sk.load(saved)
    sk.save(fitted("linear-gaussian"), saved)
    rewrite(saved, lambda h: h.update({"class": "QuantumRegressor"}))
    with pytest.raises(ValueError, match="holds a QuantumRegressor, which this version"):
        sk.load(saved)
    sk.save(fitted("linear-gaussian"), saved)
    rewrite(saved, lambda h: h["parameters"].update(temperature=1.0))
    with pytest.raises(ValueError, match="has temperature for BayesianLinearRegressor"):
        sk.load(saved)


def test_a_header_can_only_name_what_the_tables_have(saved):
    evil = [
        {"kind": "object", "name": "Popen", "fields": {"args": "ls"}},
        {"kind": "eval", "value": "1"},
        {"kind": "object", "name": "MLP", "fields": {"nonsense": 1}},
        {"kind": "array", "name": "nowhere", "is_fortran": False},
        {"kind": "strings", "dtype": "|V4", "shape": [1], "items": ["a"]}, ["a"], {},
    ]  # fmt: skip
    for value in evil:
        sk.save(fitted("linear-gaussian"), saved)
        rewrite(saved, lambda h, value=value: h["attributes"].update(coef_=value))
        with pytest.raises(ValueError, match="is not a model"):
            sk.load(saved)
    sk.save(fitted("linear-gaussian"), saved)
    rewrite(saved, lambda h: h["attributes"].update(predict="anything"))
    with pytest.raises(ValueError, match="has predict for"):
        sk.load(saved)


def test_without_safetensors_the_message_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install safetensors"):
        sk.save(fitted("linear-gaussian"), tmp_path / "model")
    with pytest.raises(ImportError, match=r"pip install safetensors"):
        sk.load(tmp_path / "model")


LABELS = {
    "words": lambda codes: np.array([f"u{i}" for i in codes]),
    "integers": lambda codes: 100 - codes,
    "fractions": lambda codes: codes + 0.5,
    "mixed": lambda codes: pd.Series([int(i) if i % 2 else f"w{i}" for i in codes], dtype=object),
}


@pytest.mark.parametrize("labels", LABELS)
def test_factorisations_of_any_labels_are_saved(tmp_path, labels):
    rng = np.random.default_rng(0)
    rows, columns = np.divmod(rng.permutation(120)[:80], 10)
    entries = (LABELS[labels](rows), LABELS[labels](columns), rng.normal(size=80))
    model = SymVIMatrixFactorization(2, max_iter=2, tol=None, random_state=0).fit(entries)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.row_labels_, model.row_labels_)
    for ask in ("predict", "score"):
        np.testing.assert_array_equal(getattr(loaded, ask)(entries), getattr(model, ask)(entries))
    found, again = (m.recommend(n=4) for m in (model, loaded))
    np.testing.assert_array_equal(found.columns, again.columns)
    np.testing.assert_array_equal(found.values, again.values)
