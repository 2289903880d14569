"""Does skops.io withstand the files that `skbayes_sym.load` has to refuse?

    python asv_bench/studies/compare_saving.py

Prints one row per hostile file with the result of both readers: "refused", "loads" if predictions
can be made with it, or "fails later" with the error of `predict`. The first rows are the models of
the test suite that are the same after a round trip, sizes of files and CPU time.
"""

import io
import json
import resource
import signal
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as write_tensors
from timing import cpu_seconds

import skbayes_sym
from skbayes_sym.saving.files import checksum

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from fits import FITS, assert_same_predictions, fitted

NAME = "linear-gaussian"

# Changes of the arrays of a file, whose text isn't changed.
CHANGES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "nan in arrays": lambda a: np.full_like(a, np.nan) if a.dtype.kind == "f" else a,
    "complex arrays": lambda a: a.astype(np.complex64),
    "one axis more": lambda a: a[None],
}


def read_skops(path: Path) -> Any:
    return skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))


def result(load: Callable[[Path], Any], path: Path) -> str:
    """Outcome of reading a file and of predictions by the model."""
    try:
        model = load(path)
    except Exception as error:
        return f"refused ({type(error).__name__})"
    try:
        model.predict(FITS[NAME].X)
    except Exception as error:
        return f"fails later ({type(error).__name__})"
    return "loads"


def change_skops(content: bytes, change: Callable[[np.ndarray], np.ndarray]) -> bytes:
    """Change every array of a skops file."""
    changed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            data = old.read(name)
            if name.endswith(".npy"):
                buffer = io.BytesIO()
                np.save(buffer, change(np.load(io.BytesIO(data))))
                data = buffer.getvalue()
            new.writestr(name, data)
    return changed.getvalue()


def change_own(content: bytes, change: Callable[[np.ndarray], np.ndarray]) -> bytes:
    """Change every array of a file of this package, and the checksum."""
    n_header = int.from_bytes(content[:8], "little")
    text = json.loads(content[8 : 8 + n_header])["__metadata__"]["skbayes_sym"]
    arrays = {name: change(array) for name, array in read_tensors(content).items()}
    metadata = {"skbayes_sym": text, "skbayes_sym_sha256": checksum(text, arrays)}
    return write_tensors(arrays, metadata)


def survives_full_disk(save: Callable[[Any, Path], Any], path: Path) -> bool:
    """Whether the old file is kept if the new one doesn't fit on the disk."""
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        save(fitted(NAME), path)
    except OSError:
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return path.read_bytes() == before


def main() -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    folder = Path(tempfile.mkdtemp())
    rows: dict[str, list[str]] = {}
    writers = {"skops": skops.io.dump, "skbayes_sym": skbayes_sym.save}
    readers = {"skops": read_skops, "skbayes_sym": skbayes_sym.load}
    changers = {"skops": change_skops, "skbayes_sym": change_own}
    for package in writers:
        path = folder / package

        n_same = 0
        for name, case in FITS.items():
            try:
                writers[package](fitted(name), path)
                assert_same_predictions(fitted(name), readers[package](path), case.X)
                n_same += 1
            except (TypeError, RuntimeError, ImportError) as error:
                print(f"{package}: {name}: {error}")
        rows.setdefault("models that are the same", []).append(f"{n_same} of {len(FITS)}")

        _, seconds = cpu_seconds(lambda p=package, path=path: writers[p](fitted(NAME), path))
        content = path.read_bytes()
        rows.setdefault("bytes", []).append(str(len(content)))
        rows.setdefault("ms to save", []).append(f"{1e3 * seconds:.0f}")

        middle = len(content) // 2
        flipped = bytearray(content)
        flipped[middle] ^= 1
        files = {"a flipped bit": bytes(flipped), "half of the file": content[:middle]}
        files |= {how: changers[package](content, change) for how, change in CHANGES.items()}
        for how, hostile in files.items():
            path.write_bytes(hostile)
            rows.setdefault(how, []).append(result(readers[package], path))

        path.write_bytes(content)
        kept = survives_full_disk(writers[package], path)
        rows.setdefault("old file on a full disk", []).append("kept" if kept else "lost")
    print(f"{'':26s}{'skops':>30s}{'skbayes_sym':>30s}")
    for how, values in rows.items():
        print(f"{how:26s}" + "".join(f"{value:>30s}" for value in values))


if __name__ == "__main__":
    main()
