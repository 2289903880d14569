"""Images as MNIST's, Fashion-MNIST's and CIFAR-10's authors publish them."""

import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_CIFAR_PIXELS = 3 * 32 * 32
_CIFAR_FOLDER = "cifar-10-batches-bin"
_CIFAR_FILES = {
    "train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"],
}  # fmt: skip


def _idx_names(stem: str) -> list[str]:
    return [f"{stem}{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]


_IDX_FILES = {"train": _idx_names("train-"), "test": _idx_names("t10k-")}


class Images(NamedTuple):
    """Rows of pixels 0..255, their classes, and where they come from."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    source: str
    n_train: int  # how many come first that are for training


def images_from_folder(name: str, part: str, home: Path) -> Images | None:
    """Training (if ``part`` is "all") and test images; None where a file is missing.

    Raises ValueError if a file isn't what its name says.
    """
    folder, names = home / name, _IDX_FILES
    if name == "cifar10":
        folder, names = home / _CIFAR_FOLDER, _CIFAR_FILES
    elif name == "mnist" and part == "test" and (home / "mnist10k").is_dir():
        folder, names = home / "mnist10k", {"test": _idx_names("")}
    wanted = ("train", "test") if part == "all" else ("test",)
    files = [[folder / file for file in names[p]] for p in wanted]
    if not all(path.is_file() for paths in files for path in paths):
        return None
    if name == "cifar10":
        parts = [_cifar(paths) for paths in files]
    else:
        parts = [(read_idx(X, 3), read_idx(y, 1)) for X, y in files]
    pixels, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    X, n_train = pixels.reshape(len(y), -1).astype(np.float64), len(parts[0][1])
    return Images(X, y.astype(np.int64), str(folder), n_train if part == "all" else 0)


def read_idx(path: Path, n_dims: int) -> NDArray[np.uint8]:
    """Read IDX: bytes 0, 0, 8 (uint8), n_dims; each size as big-endian int32; the data."""
    raw = gzip.decompress(path.read_bytes())
    start = 4 + 4 * n_dims
    sizes = [int.from_bytes(raw[i : i + 4]) for i in range(4, start, 4)]
    if raw[:4] != bytes([0, 0, 8, n_dims]) or len(raw) != start + math.prod(sizes):
        raise ValueError(f"{path} is no complete IDX file of bytes in {n_dims} dimension(s).")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(sizes)


def _cifar(paths: Sequence[Path]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """CIFAR-10's records: a byte for the class, then 3 planes of 32 x 32 bytes."""
    records = []
    for path in paths:
        raw = np.fromfile(path, np.uint8)
        if len(raw) % (1 + _CIFAR_PIXELS):
            raise ValueError(f"{path} is no complete CIFAR-10 file of records of 3073 bytes.")
        records.append(raw.reshape(-1, 1 + _CIFAR_PIXELS))
    table = np.concatenate(records)
    return table[:, 1:], table[:, 0]
