"""Memory estimates, and errors before an allocation that can't succeed."""

import os
from collections.abc import Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import NamedTuple

import torch

# Limit, use and statistics of a container, of the second and the first version of control groups.
_SECOND = "/sys/fs/cgroup"
_FIRST = "/sys/fs/cgroup/memory"
_GROUPS = (
    (f"{_SECOND}/memory.max", f"{_SECOND}/memory.current", f"{_SECOND}/memory.stat"),
    (
        f"{_FIRST}/memory.limit_in_bytes", f"{_FIRST}/memory.usage_in_bytes",
        f"{_FIRST}/memory.stat",
    ),
)  # fmt: skip

_FREE = ("MemAvailable:", "SwapFree:")  # lines of /proc/meminfo

_HOST = torch.device("cpu")

# Allocations up to this size aren't checked, which would take a fifth of a millisecond.
SMALL_ALLOCATION = 1 << 20


def n_rows_per_block(max_elements: int, elements_per_row: int) -> int:
    """Return how many rows to process at once, at least one, for arrays of a limited size."""
    return max(1, max_elements // max(1, elements_per_row))


class MemoryAllocation(NamedTuple):
    """Arrays that are held at the same time as other allocations, by their sizes.

    Sizes are lower bounds that count what is certainly held (a prior, the optimiser's copies,
    requested draws), so that no fit that would succeed is refused. A refused fit would end in an
    allocation error, or the operating system would kill the process.

    Attributes
    ----------
    description : str
        What is held, for the error message.
    n_bytes : int
        Size in bytes.
    remedy : str
        What users can change if this is the largest allocation, as a sentence.
    on_host : bool
        Whether it is held on the host for any device of the fit.
    """

    description: str
    n_bytes: int
    remedy: str
    on_host: bool = False


def prior_allocation(n_params: int) -> MemoryAllocation:
    """Return the allocation of a double-precision scale per weight."""
    return MemoryAllocation(
        f"the prior of {n_params:,} weights", 8 * n_params, "Lower hidden_layer_sizes."
    )


def draws_allocation(n_draws: int, n_rows: int, n_targets: int) -> MemoryAllocation:
    """Return the allocation of draws (n, N, T) of targets and as much noise.

    Parameters
    ----------
    n_draws, n_rows, n_targets : int
        Numbers of draws, rows and targets.
    """
    return MemoryAllocation(
        f"{n_draws:,} draws of {n_rows:,} rows and {n_targets} targets with their noise",
        16 * n_draws * n_rows * n_targets,
        "Lower n_samples, or ask for fewer rows at once.",
    )


def covariance_allocation(n_rows: int, n_targets: int) -> MemoryAllocation:
    """Return the allocation of the joint covariance of functions at rows: 16 N^2 T bytes.

    It is held in scaled units and in the targets' units.
    """
    return MemoryAllocation(
        f"the covariance of {n_rows:,} rows of {n_targets} targets",
        16 * n_rows**2 * n_targets,
        "Ask for fewer rows, or use return_std=True.",
    )


def require_memory(
    parts: Sequence[MemoryAllocation], device: torch.device, *, task: str = "this fit"
) -> None:
    """Raise MemoryError if allocations exceed the free memory of their device.

    Parameters
    ----------
    parts : sequence of MemoryAllocation
        Arrays that are held at the same time.
    device : torch.device
        Device of the allocations that aren't ``on_host``.
    task : str, default="this fit"
        What takes the memory, for the error message.
    """
    on_device = [part for part in parts if not part.on_host or device.type == "cpu"]
    on_host = [part for part in parts if part not in on_device]
    for memory, allocations in ((device, on_device), (_HOST, on_host)):
        needed = sum(part.n_bytes for part in allocations)
        if needed <= SMALL_ALLOCATION or needed <= (available := available_bytes(memory)):
            continue
        largest = max(allocations, key=lambda part: part.n_bytes)
        needed = min(needed, 10**300)  # larger numbers overflow as floats
        raise MemoryError(
            f"{task} takes at least {needed / 1e9:,.3g} GB, but {available / 1e9:,.3g} GB are free "
            f"on {memory}; {largest.n_bytes:,} bytes are for {largest.description}. "
            f"{largest.remedy}"
        )


def available_bytes(device: torch.device) -> float:
    """Return the free memory of a device in bytes, or infinity if it isn't known.

    On a GPU this is the driver's free memory and the unused part of torch's cache. On Linux it is
    the available memory, including caches and swap, within the container's limit. Elsewhere it is
    the total memory.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + unused)
    return max(0.0, min(_free_on_host(), _free_in_address_space(), *map(_free_in_group, _GROUPS)))


def _free_on_host() -> float:
    """Return the available memory of the host in bytes."""
    try:
        table = Path("/proc/meminfo").read_text(encoding="ascii")
        return 1024.0 * sum(int(table.split(name, 1)[1].split(None, 1)[0]) for name in _FREE)
    except (OSError, LookupError, ValueError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return inf


def _free_in_address_space() -> float:
    """Return the bytes that ``ulimit -v`` leaves."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return inf
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return float(limit - pages * resource.getpagesize())
    except (ImportError, OSError, ValueError, IndexError):
        return inf


def _free_in_group(names: tuple[str, str, str]) -> float:
    """Return the bytes that a container's limit leaves, including its droppable file cache."""
    limit, usage, statistics = names
    maximum = _read_limit(limit)
    if maximum == inf:
        return maximum
    used = _read_number(usage)
    if used == inf:
        return maximum
    try:
        table = Path(statistics).read_text(encoding="ascii")
        used -= float(table.partition("\ninactive_file ")[2].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        pass
    return maximum - used


@cache
def _read_limit(path: str) -> float:
    """Return a container's memory limit in bytes, or infinity."""
    limit = _read_number(path)
    # Without a limit the first version writes its largest number.
    if limit < 2.0**60:
        return limit
    return inf


def _read_number(path: str) -> float:
    """Return the number in a file, or infinity."""
    try:
        return float(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return inf
