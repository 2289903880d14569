"""The data of the papers: sets that they benchmark on, from a folder, and toys drawn anew."""

import gzip
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_wine
from sklearn.utils import Bunch, check_random_state

from skbayes_sym.datasets import make_sinusoidal

Floats, Ints = NDArray[np.float64], NDArray[np.int64]

# X, y, where they come from, and how many rows come first that are for training
_Loaded = tuple[Floats, Floats | Ints, str, int]

_REMEDY = "Point data_home or the environment variable SKBAYES_SYM_DATA to a folder that has it."

_INPUTS = {
    "airfoil": "frequency angle_of_attack chord_length free_stream_velocity displacement_thickness",
    "cifar10": " ".join(f"{c}{i}" for c in ("red", "green", "blue") for i in range(1, 1025)),
    "concrete": "cement slag fly_ash water superplasticizer coarse_aggregate fine_aggregate age",
    "diabetes": "age sex bmi bp s1 s2 s3 s4 s5 s6",
    "energy": "compactness surface wall_area roof_area height orientation glazing glazing_layout",
    "fashion_mnist": " ".join(f"pixel{i}" for i in range(1, 785)),
    "forest_fire": "X Y month day FFMC DMC DC ISI temp RH wind rain",
    "izmailov": "x",
    "mnist": " ".join(f"pixel{i}" for i in range(1, 785)),
    "regression2d": "x1 x2",
    "sinusoidal": "x",
    "wine": "alcohol malic_acid ash alcalinity magnesium phenols flavanoids nonflavanoids "
    "proanthocyanins color hue od280 proline",
    "yacht": "buoyancy_position prismatic length_displacement beam_draught length_beam froude",
}
_DESCRIPTIONS = {
    "airfoil": "Scaled sound pressure (dB) of NACA 0012 airfoil sections (UCI).",
    "cifar10": "CIFAR-10's 60,000 images: 3 planes (red, green, blue) of 32 x 32 pixels, 0 to 255.",
    "concrete": "Compressive strength (MPa) of concrete (UCI; Yeh, 1998).",
    "diabetes": "Disease progression; the file and load_diabetes(scaled=True) agree to 1.3e-5.",
    "energy": "Heating load (kWh/m^2) of simulated buildings (UCI; Tsanas & Xifara, 2012).",
    "fashion_mnist": "Fashion-MNIST's 70,000 images: 28 x 28 pixels, row by row, 0 to 255.",
    "forest_fire": "log(1 + burned hectares); day 1 is Monday (UCI; Cortez & Morais, 2007).",
    "izmailov": "Izmailov et al. (2020), standardised; comes as a file only.",
    "mnist": "MNIST's 70,000 images, or the last 10,000 of them: 28 x 28 pixels, rows, 0 to 255.",
    "regression2d": "make_regression2d(), standardised; Wiese et al. (2023), App. E.1.",
    "sinusoidal": "make_sinusoidal(), standardised; Wiese et al. (2023), App. E.1.",
    "wine": "Cultivar (0, 1, 2) of 178 wines, as a number (UCI); Wiese et al. (2023), Table 1.",
    "yacht": "Residuary resistance per unit weight of displacement of sailing yachts (UCI).",
}


# Numbers of the sets at OpenML, as other public code has them.
_AT_OPENML = {
    "airfoil": 44957, "cifar10": 40927, "concrete": 44959, "energy": 44960,
    "fashion_mnist": 40996, "forest_fire": 44962, "mnist": 554, "yacht": 42370,
}  # fmt: skip
_IMAGES = ("cifar10", "fashion_mnist", "mnist")


def current_commit() -> str:
    """Short name of the commit that this checkout is at, or "unknown"."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    folder = Path(__file__).parent
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def load_dataset(
    name: str,
    *,
    part: str | None = None,
    data_home: str | os.PathLike[str] | None = None,
    return_X_y: bool = False,
) -> Bunch | tuple[Floats, Floats | Ints]:
    """Load one of the sets that the papers report on, from a folder.

    The folder is `data_home`, else the environment variable ``SKBAYES_SYM_DATA``. It holds
    ``regression/NAME.data`` (whitespace separated, the target last), and images as their authors
    publish them: ``{mnist,fashion_mnist}/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz``,
    ``cifar-10-batches-bin/{data_batch_1,...,data_batch_5,test_batch}.bin``; of MNIST's test images
    alone ``mnist10k/{images-idx3,labels-idx1}-ubyte.gz``. Without a file "diabetes" and "wine" come
    from scikit-learn, "sinusoidal" and "regression2d" are drawn with seed 0 (the same law, other
    points); ``source`` says which it was. Of the others the error says where they are.

    Parameters
    ----------
    name : str
        airfoil, cifar10, concrete, diabetes, energy, fashion_mnist, forest_fire, izmailov (a file
        only), mnist, regression2d, sinusoidal, wine or yacht.
    part : {"all", "test"}, optional
        Of images: training and test images, in this order, or the test images alone; by default
        "test" of MNIST and "all" of the others.
    data_home : path, default=None
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    dataset : Bunch
        ``data`` (n, p) float64, ``target`` (n,), ``feature_names``, ``DESCR``, ``name``,
        ``source``. Images: pixels 0..255, integer labels, and ``n_train``, how many come first that
        are for training; CIFAR-10 fills 1.5 GB.

    Raises
    ------
    ValueError : unknown name, a part of what has none, or a file that isn't what it is called.
    FileNotFoundError : no file.
    """
    if not isinstance(name, str) or name not in _INPUTS:
        raise ValueError(f"name must be one of {', '.join(_INPUTS)}; got {name!r}.")
    if part is not None and name not in _IMAGES:
        raise ValueError(f"part={part!r} does not apply to {name!r}: only images have parts.")
    if part not in (None, "all", "test"):
        raise ValueError(f"part must be 'all' or 'test', got {part!r}.")
    part = part or ("test" if name == "mnist" else "all")
    inputs = _INPUTS[name].split()
    home = data_home if data_home is not None else os.environ.get("SKBAYES_SYM_DATA") or None
    folder = None if home is None else Path(home).expanduser()
    loaded = None
    if folder is not None and name in _IMAGES:
        loaded = images_from_folder(name, part, folder)
    elif folder is not None and (path := folder / "regression" / f"{name}.data").is_file():
        table = np.loadtxt(path, ndmin=2)
        loaded = table[:, :-1], table[:, -1], str(path), 0
    X, y, source, n_train = loaded or _from_elsewhere(name)
    if X.shape[1] != len(inputs):
        raise ValueError(f"{name!r} has {len(inputs)} inputs, got {X.shape[1]} from {source}.")
    if return_X_y:
        return X, y
    text = f"{name}: {_DESCRIPTIONS[name]}\n{len(X)} samples. Source: {source}"
    dataset = Bunch(data=X, target=y, feature_names=inputs, DESCR=text, name=name, source=source)
    if name in _IMAGES:
        dataset.n_train = n_train
    return dataset


def _from_elsewhere(name: str) -> _Loaded:
    if name == "diabetes":
        return *load_diabetes(return_X_y=True), "sklearn.datasets.load_diabetes", 0
    if name == "wine":
        X, y = load_wine(return_X_y=True)
        return X, y.astype(np.float64), "sklearn.datasets.load_wine", 0
    if name not in ("sinusoidal", "regression2d"):
        where = f" OpenML has it as {_AT_OPENML[name]}." if name in _AT_OPENML else ""
        raise FileNotFoundError(f"No file of {name!r} was found. {_REMEDY}{where}")
    X, y = (make_sinusoidal if name == "sinusoidal" else make_regression2d)(random_state=0)
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std(), "generated with seed 0", 0


_IDX = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")


def images_from_folder(name: str, part: str, home: Path) -> _Loaded | None:
    """Training (if ``part`` is "all") and test images; None where a file is missing.

    Raises ValueError if a file isn't what its name says.
    """
    folder = home / name
    stems = {"train": "train", "test": "t10k"}
    names = {p: [f"{stem}-{end}" for end in _IDX] for p, stem in stems.items()}
    if name == "cifar10":
        folder = home / "cifar-10-batches-bin"
        names = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    elif name == "mnist" and part == "test" and (home / "mnist10k").is_dir():
        folder, names = home / "mnist10k", {"test": list(_IDX)}
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
    return X, y.astype(np.int64), str(folder), n_train if part == "all" else 0


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
        if len(raw) % 3073:
            raise ValueError(f"{path} is no complete CIFAR-10 file of records of 3073 bytes.")
        records.append(raw.reshape(-1, 3073))
    table = np.concatenate(records)
    return table[:, 1:], table[:, 0]


def make_regression2d(
    n_samples: int = 256,
    *,
    noise: float = 0.1,
    formula: Literal["file", "paper"] = "file",
    random_state: Any = None,
) -> tuple[Floats, Floats]:
    """Draw y = f(x) + noise * e with x ~ U(-2, 2)^2 and e ~ N(0, 1), not standardised.

    Wiese et al. (2023), App. E.1 (D_R). Their print and their data file disagree:

    - ``formula="file"``: f(x) = x1 (sin(x1) + cos(x2)), what the published file was made with;
    - ``formula="paper"``: f(x) = x1 sin(x1) + cos(x2), as printed.

    Returns
    -------
    X : (n_samples, 2), y : (n_samples,)
    """
    rng = check_random_state(random_state)
    X = rng.uniform(-2.0, 2.0, size=(n_samples, 2))
    factor = X[:, 0] if formula == "file" else 1.0
    mean = X[:, 0] * np.sin(X[:, 0]) + factor * np.cos(X[:, 1])
    return X, mean + rng.normal(scale=noise, size=n_samples)


def make_rings(
    n_samples: int = 200, *, angle: float = 120.0, noise: float = 0.06, random_state: Any = None
) -> tuple[Floats, NDArray[np.int64]]:
    """Draw two arcs and a blob, in two classes: partly invariant to rotation about the origin.

    A point on the arc of radius r is (cos t (r + noise e1), sin t (r + noise e2)), with t
    uniform over [0, angle] degrees and e1, e2 ~ N(0, 1) independent. Class 0: half of the
    points, r = 0.5. Class 1: two thirds of the rest at r = 1, the others N(0, noise^2 I).

    Immer, van der Ouderaa et al. (2022), App. J.1, print only "a soft +-60 degree rotational
    invariance"; the numbers are their code's, whose arc is +-60 degrees about 60 degrees, not 0.

    Returns
    -------
    X : (n_samples, 2), y : (n_samples,) in {0, 1}, shuffled.
    """
    rng = check_random_state(random_state)
    n_zero = n_samples // 2
    n_outer = int((n_samples - n_zero) / 1.5)
    sizes = [n_zero, n_outer, n_samples - n_zero - n_outer]
    radius = np.repeat([0.5, 1.0, 0.0], sizes)[:, None] + noise * rng.normal(size=(n_samples, 2))
    t = rng.uniform(0.0, math.radians(angle), size=n_samples)
    direction = np.column_stack([np.cos(t), np.sin(t)])
    direction[n_zero + n_outer :] = 1.0  # the blob lies on no arc
    order = rng.permutation(n_samples)
    return (direction * radius)[order], np.repeat([0, 1, 1], sizes)[order]


def make_repeated_datum(
    n_samples: int = 1, *, n_features: int = 10, noise: float = 0.0, random_state: Any = None
) -> tuple[Floats, Floats]:
    """Repeat one input of a linear model with too many weights: X_nk = 1/K, y_n = 1 + noise e_n.

    Kurle et al. (2022), section 4: y = 1'w / K + e, which K - 1 translations of w leave as it
    is; the 1/K is a part of X here. Fig. 1: all y = 1 (``noise=0``), a model with noise variance
    1 / (2 pi e) and prior N(0, K I), under which the variance of 1'w / K is 1 for every K.

    Returns
    -------
    X : (n_samples, n_features), y : (n_samples,)
    """
    rng = check_random_state(random_state)
    X = np.full((n_samples, n_features), 1.0 / n_features)
    return X, 1.0 + rng.normal(scale=noise, size=n_samples)
