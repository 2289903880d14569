"""What goes wrong with files: full disks, flipped bits, hostile headers, no files at all."""

import json
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from files import rewrite
from fits import FITS, assert_same_predictions, fitted
from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline

from skbayes_sym import load, save
from skbayes_sym.numerics.files import replace_file

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model"
    save(fitted("linear-gaussian"), path)
    return path


@pytest.mark.parametrize("n_bytes", [0, 100])
def test_a_full_disk_keeps_the_old_file(saved, n_bytes):
    before, limits = saved.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            save(fitted("vi-regressor"), saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_end_at_any_moment_keeps_the_old_file(saved, monkeypatch, call, error):
    before = saved.read_bytes()

    def fail(*args):
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(error):
        save(fitted("vi-regressor"), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_links_and_permissions_stay(saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved)
    saved.chmod(0o640)
    save(fitted("vi-regressor"), link)
    assert link.is_symlink()
    assert saved.stat().st_mode & 0o777 == 0o640
    assert_same_predictions(fitted("vi-regressor"), load(saved), FITS["vi-regressor"].X)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero", "/dev/full"):
        with pytest.raises(ValueError, match="is not a regular file"):
            load(path)
        with pytest.raises(ValueError, match="is not a regular file"):
            replace_file(path, b"")
    for question in (load, lambda path: replace_file(path, b"")):
        with pytest.raises(IsADirectoryError):
            question(tmp_path)
    with pytest.raises(ValueError, match="is not a model"):
        load("/proc/self/mem")


@pytest.mark.parametrize("name", ["vi-regressor", "linear-labels", "ensemble-regressor"])
def test_no_flipped_bit_goes_unseen(name, tmp_path):
    path, model, rng = tmp_path / "model", fitted(name), np.random.default_rng(0)
    save(model, path)
    whole, n_refused = path.read_bytes(), 0
    for place in rng.choice(8 * len(whole), 150, replace=False):
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            restored = load(path)
        except ValueError:
            n_refused += 1
        else:  # a letter of the checksum's own name, at most
            assert_same_predictions(model, restored, FITS[name].X)
    assert n_refused >= 140


def _parameters(**changed):
    return lambda h: h["parameters"].update(changed)


def _attributes(**changed):
    return lambda h: h["attributes"].update(changed)


def _without(name):
    return lambda h: h["attributes"].pop(name) and None


HOSTILE = {
    "parameter of another type": _parameters(max_iter="x"),
    "parameter out of range": _parameters(max_iter=-3),
    "no posterior": _without("posterior_"),
    "nothing fitted": lambda h: h["attributes"].clear(),
    "no features": _without("n_features_in_"),
    "no scaling": _without("x_mean_"),
    "scaling is nothing": _attributes(x_mean_=None),
    "posterior is a number": _attributes(posterior_=3.0),
    "posterior is text": _attributes(posterior_="mean_field"),
    "another number of features": _attributes(n_features_in_=7),
    "device elsewhere": _attributes(device_="meta"),
    "device is a path": _attributes(device_="../x"),
    "dtype is a function": _attributes(dtype_="load"),
    "targets of two lengths": _attributes(
        y_scale_={"kind": "array", "name": "x_scale_", "is_fortran": False}
    ),
    "strings of a gigabyte": _attributes(
        feature_names_in_={
            "kind": "strings", "dtype": "<U100000000", "shape": [3], "items": ["a", "b", "c"],
        }
    ),
    "an array named often": _attributes(
        elbo_curve_={
            "kind": "list", "items": [{"kind": "array", "name": "x_mean_", "is_fortran": False}] * 9
        }
    ),
    "a network of a gigabyte": _attributes(
        network_={
            "kind": "network", "name": "cnn", "input_shape": [1, 6, 6], "n_outputs": 10**9
        }
    ),
    "another kind of posterior": _attributes(
        posterior_={"kind": "object", "name": "Normal", "fields": {"scale": 1.0}}
    ),
    "scales in words": _attributes(y_scale_=["a"], classes_="ab"),
    "objects too wide": _attributes(
        classes_={"kind": "strings", "dtype": "<U500000", "shape": [2], "items": ["a", "b"]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("name", ["linear-gaussian", "vi-classifier"])
def test_a_state_that_no_fit_leaves_is_refused_before_anything_is_built(case, name, tmp_path):
    if case == "targets of two lengths" and name == "vi-classifier":
        pytest.skip("classes have no scaling")
    path = tmp_path / "model"
    save(fitted(name), path)
    rewrite(path, HOSTILE[case])
    with pytest.raises(ValueError, match=r"model' (is not a model|has )"):
        load(path)


KILLED = """
import os, signal, sys
from skbayes_sym import load, save
os.{call} = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
save(load(sys.argv[1]), sys.argv[1])
"""


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("call", ["fsync", pytest.param("replace", marks=pytest.mark.slow)])
def test_a_process_that_is_killed_in_save_leaves_the_old_file(saved, call):
    """And what it had written of the new one, beside it under another name."""
    before = saved.read_bytes()
    ended = subprocess.run([sys.executable, "-c", KILLED.format(call=call), str(saved)])
    assert ended.returncode == -signal.SIGKILL
    assert saved.read_bytes() == before
    assert load(saved).n_features_in_ == 3
    assert [path.name.startswith(".model.") for path in set(saved.parent.iterdir()) - {saved}]


@pytest.mark.parametrize(("name", "value"), [("max_iter", -3), ("tol", "x")])
def test_what_load_would_refuse_is_refused_by_save(name, value, saved):
    before = saved.read_bytes()
    model = clone(FITS["vi-regressor"].estimator).fit(*FITS["vi-regressor"][1:])
    with pytest.raises(ValueError, match=rf"can't be saved, .*impossible.*'{name}'"):
        save(model.set_params(**{name: value}), saved)
    assert saved.read_bytes() == before
    model.set_params(max_iter=30, tol=1e-3)
    model.posterior_ = model.posterior_.loc
    with pytest.raises(ValueError, match=r"can't be saved, .*can't predict"):
        save(make_pipeline(model), saved)


def test_a_place_on_the_writer_s_disk_is_left_out(tmp_path):
    pipe = Pipeline([("model", fitted("linear-gaussian"))], memory=str(tmp_path / "cache"))
    save(pipe, tmp_path / "model")
    assert load(tmp_path / "model").memory is None


def test_numbers_that_numpy_does_not_have_are_refused(saved):
    head = {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    text = json.dumps(head).encode()
    saved.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(ValueError, match="is not a model"):
        load(saved)
