"""Images from files as their authors publish them, written here in these formats."""

import gzip

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skbayes_sym.datasets import load_dataset


def write_idx(path, values):
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


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


def test_a_cut_file_of_cifar10_is_named(tmp_path):
    write_images(tmp_path, "cifar10", 12, 5)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin is no complete CIFAR-10 file"):
        load_dataset("cifar10", data_home=tmp_path)


def test_parts_are_of_images(tmp_path):
    with pytest.raises(ValueError, match="part='all' does not apply to 'yacht'"):
        load_dataset("yacht", part="all")
    with pytest.raises(ValueError, match="part must be 'all' or 'test', got 'train'"):
        load_dataset("mnist", part="train")
