"""A pretend CUDA device: find wrong-device bugs on a machine without a GPU.

torch's CPU build has a dispatch key for CUDA with nothing behind it. `pretend_cuda.cpp` (compiled
once, half a minute; then cached) puts a device there. Its tensors are ordinary `torch.Tensor`s
whose device *is* ``cuda:0``, so autograd, `torch.func` and everything else above the kernels behave
as on a GPU; its memory is the host's, and its kernels are the CPU's, behind checks of what a real
GPU would refuse:

- an operator that mixes devices (0-dim CPU tensors pass where CUDA's elementwise kernels take them,
  and CPU indices where `index` does, exactly as in torch);
- a generator of the other device;
- ``.numpy()`` and ``np.asarray`` of a tensor on the device;
- an operator without a CUDA kernel, integer matrix products, `lstsq` drivers of LAPACK.

Random streams are the CPU's, so that a fit on "cuda" must equal the fit on "cpu" (bit for bit, but
for composite operators that CUDA puts together otherwise); where it doesn't, the code computes
something else on a GPU. What it cannot show: speed, CUDA's rounding (TF32 too), its own random
numbers, nondeterministic atomics, memory running out, streams and graphs, several GPUs, gaps of
single CUDA kernels in a dtype. Which operators take 0-dim CPU tensors is read off torch's own table
of them, where a few are let through that CUDA would refuse.

In tests it is the fixture ``cuda`` of ``conftest.py``, which is the real GPU where there is one;
``asv_bench/studies/device_waits.py`` counts with it what a GPU would be made to do.

It needs a C++ compiler, and raises `Unavailable` where there is none or where torch has CUDA of its
own; it was written for torch 2.13 and uses what torch doesn't promise to keep. `load` it before the
first ``backward()`` of the process, which fixes torch's number of device threads. Other processes
(joblib's workers) don't see the device. `test_devices.py` shows what it refuses.
"""

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch


class Unavailable(RuntimeError):
    """No pretend device can be had here."""


@dataclass
class Trace:
    """What the device was asked to do.

    ``kernels`` counts launches (views and allocations are none); ``waits`` the reads that make the
    host wait for the device (values, sizes that depend on data, copies to the host); ``uploads``
    the copies to the device. ``where`` has the caller's line of every wait and upload.
    """

    kernels: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    uploads: Counter = field(default_factory=Counter)
    where: Counter = field(default_factory=Counter)


class Device:
    """Handle of the switched-on device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @contextmanager
    def trace(self, inside: str = "") -> Iterator[Trace]:
        """Count launches, waits and uploads; lines are those of files whose path has ``inside``."""
        seen = Trace()

        def listener(kind: bytes, op: bytes) -> None:
            name = op.decode()
            if kind == b"kernel":
                seen.kernels[name] += 1
                return
            what = seen.uploads if kind == b"h2d" else seen.waits
            what[name] += 1
            seen.where[kind.decode(), name, _caller(inside)] += 1

        held = _LISTENER(listener)
        self._library.pretend_listen(held)
        try:
            yield seen
        finally:
            self._library.pretend_listen(_LISTENER())

    def live_bytes(self) -> int:
        """Bytes of tensors on the device."""
        return self._library.pretend_live_bytes()

    def peak_bytes(self, *, reset: bool = False) -> int:
        """The most bytes there were at once."""
        return self._library.pretend_peak_bytes(reset)


@contextmanager
def pretend_cuda(*, memory: int = 2**33) -> Iterator[Device]:
    """Switch the device on: torch says that CUDA is available, with one device.

    Raises
    ------
    Unavailable
        Without a compiler, or beside a real GPU.
    """
    library = load()
    device = Device(library)
    with ExitStack() as stack:
        for name, value in _torch_cuda(library, device, memory).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        library.pretend_switch(True)
        stack.callback(library.pretend_switch, False)
        yield device


def prepare() -> bool:
    """`load`, or False where the device can't be had: for a ``conftest.py``."""
    try:
        load()
    except Unavailable:
        return False
    return True


@cache
def load() -> ctypes.CDLL:
    """Compile (once) and load the device, switched off.

    Call it before the first `backward` of the process: torch then fixes its device threads.

    Raises
    ------
    Unavailable
        Without a compiler, beside a real GPU, or after a `backward`.
    """
    if torch.version.cuda is not None:
        raise Unavailable("this torch has a real CUDA behind it: use that")
    path = _compiled()
    torch.ops.load_library(str(path))
    library = ctypes.CDLL(str(path))
    library.pretend_live_bytes.restype = ctypes.c_int64
    library.pretend_peak_bytes.restype = ctypes.c_int64
    library.pretend_peak_bytes.argtypes = [ctypes.c_bool]
    library.pretend_switch.argtypes = [ctypes.c_bool]
    library.pretend_seed.argtypes = [ctypes.c_uint64]
    library.pretend_listen.argtypes = [_LISTENER]
    for operator in _host_scalar_operators():
        library.pretend_host_scalars(operator.encode())
    for operator in _operators_without_cuda():
        library.pretend_missing(operator.encode())
    _probe(library)
    return library


def _probe(library: ctypes.CDLL) -> None:
    """Whether gradients can be had on the device."""
    with mock.patch.object(torch.cuda, "_lazy_init"):
        library.pretend_switch(True)
        try:
            torch.ones(1, device="cuda", requires_grad=True).sum().backward()
        except RuntimeError as error:
            raise Unavailable(
                "torch has started its threads without the device: load it before the first "
                "backward() of the process"
            ) from error
        finally:
            library.pretend_switch(False)


_SOURCE = Path(__file__).with_suffix(".cpp")
_LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)


def _caller(inside: str) -> str:
    """The innermost Python line outside torch and this file."""
    frame = sys._getframe()  # of a device thread there is no more than this one
    while frame is not None:
        name = frame.f_code.co_filename
        if inside in name and "/torch/" not in name and name != __file__ and name.endswith(".py"):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _torch_cuda(library: ctypes.CDLL, device: Device, memory: int) -> dict:
    """What `torch.cuda` says while the device is on."""

    def seed_all(seed: int) -> None:
        library.pretend_seed(seed % 2**64)

    def nowhere(*_: object, **__: object) -> None:
        raise NotImplementedError("the pretend device has no streams and no graphs")

    def properties(*_: object) -> SimpleNamespace:
        return SimpleNamespace(
            name="pretend", major=9, minor=0, total_memory=memory, multi_processor_count=1
        )

    return {
        "_lazy_init": lambda: None, "is_available": lambda: True, "is_initialized": lambda: True,
        "device_count": lambda: 1, "current_device": lambda: 0, "set_device": lambda _: None,
        "synchronize": lambda *_: None, "empty_cache": lambda: None, "manual_seed": seed_all,
        "manual_seed_all": seed_all,
        "mem_get_info": lambda *_: (memory - device.live_bytes(), memory),
        "memory_allocated": lambda *_: device.live_bytes(),
        "memory_reserved": lambda *_: device.live_bytes(),
        "max_memory_allocated": lambda *_: device.peak_bytes(),
        "reset_peak_memory_stats": lambda *_: device.peak_bytes(reset=True),
        "get_device_properties": properties, "get_device_name": lambda *_: "pretend",
        "get_device_capability": lambda *_: (9, 0), "Stream": nowhere, "CUDAGraph": nowhere,
    }  # fmt: skip


@cache
def _declared() -> dict[str, str]:
    """torch's own table of operators, as shipped with it: name -> what is said of it."""
    import torchgen

    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    blocks = path.read_text(encoding="utf-8").split("\n- func: ")[1:]
    return {re.match(r"[\w.]+", b).group().replace(".", "_"): b for b in blocks}


def _host_scalar_operators() -> list[str]:
    """Those that check devices themselves: elementwise ones, which take 0-dim CPU tensors.

    Matrix products are never among them.
    """
    declared = _declared()

    def loose(name: str) -> bool:
        block = declared[name]
        owner = re.search(r"structured_delegate: ([\w.]+)", block)
        return "device_check: NoCheck" in block or bool(
            owner and loose(owner.group(1).replace(".", "_"))
        )

    return [name for name in declared if loose(name)]


def _operators_without_cuda() -> list[str]:
    """Those that have a CPU kernel and no CUDA kernel."""
    out = []
    for name, block in _declared().items():
        dispatch = re.search(r"\n  dispatch:\n((?:    .*\n?)+)", block)
        keys = re.findall(r"^    ([\w, ]+):", dispatch.group(1), re.M) if dispatch else []
        keys = {k.strip() for group in keys for k in group.split(",")}
        if "CPU" in keys and not keys & {"CUDA"} and not any("Composite" in k for k in keys):
            out.append(name)
    return out


def _compiled() -> Path:
    """The shared library, from the cache if it is there."""
    root = Path(torch.__file__).parent
    text = f"{torch.__version__}{sys.platform}{root}{_SOURCE.read_text(encoding='utf-8')}"
    key = hashlib.sha256(text.encode()).hexdigest()
    cached = Path(tempfile.gettempdir()) / f"pretend_cuda_{os.getuid()}"
    path = cached / f"{key[:16]}.so"
    if path.exists():
        return path
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        raise Unavailable("the pretend device has to be compiled, and there is no C++ compiler")
    cached.mkdir(mode=0o700, exist_ok=True)
    with (cached / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cached) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes one compiles
        if path.exists():
            return path
        made = Path(folder) / "device.so"
        include, lib = root / "include", root / "lib"
        command = [
            compiler, "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{include}",
            f"-I{include}/torch/csrc/api/include", str(_SOURCE), "-o", str(made), f"-L{lib}",
            "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"the pretend device does not compile here:\n{done.stderr[-2000:]}")
        os.replace(made, path)
    return path
