"""Whether arrays will fit, before the first of them is made."""

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

_FREE = ("MemAvailable:", "SwapFree:")  # lines of Linux's table

_HOST = torch.device("cpu")

# So few bytes are there wherever Python runs; asking takes a fifth of a millisecond.
SMALL_ALLOCATION = 1 << 20


def n_rows_per_block(most_numbers: int, numbers_per_row: int) -> int:
    """How many rows to work on at once, at least one, that arrays of them stay within a limit."""
    return max(1, most_numbers // max(1, numbers_per_row))


class MemoryAllocation(NamedTuple):
    """Arrays that are held at the same time as the other parts, by their sizes alone.

    A lower bound: what is certainly held is counted (a prior, the optimiser's copies, draws that
    were asked for) and the rest left out, so that a fit that would succeed isn't refused. What is
    refused would end in an allocation error, or in the operating system's killing the process.
    """

    what: str
    n_bytes: int
    remedy: str  # a sentence: what to change if this is the largest part
    on_host: bool = False  # whatever the device of the fit


def prior_allocation(n_params: int) -> MemoryAllocation:
    """A double-precision scale per weight."""
    return MemoryAllocation(
        f"the prior of {n_params:,} weights", 8 * n_params, "Lower hidden_layer_sizes."
    )


def draws_allocation(n_draws: int, n_rows: int, n_targets: int) -> MemoryAllocation:
    """Draws (n, N, T) of targets, and the noise of as many."""
    return MemoryAllocation(
        f"{n_draws:,} draws of {n_rows:,} rows and {n_targets} targets with their noise",
        16 * n_draws * n_rows * n_targets,
        "Lower n_samples, or ask for fewer rows at once.",
    )


def covariance_allocation(n_rows: int, n_targets: int) -> MemoryAllocation:
    """The joint covariance of functions at rows, in scaled units and in the targets': 16 N^2 T."""
    return MemoryAllocation(
        f"the covariance of {n_rows:,} rows of {n_targets} targets",
        16 * n_rows**2 * n_targets,
        "Ask for fewer rows, or use return_std=True.",
    )


def require_memory(
    parts: Sequence[MemoryAllocation], device: torch.device, *, task: str = "this fit"
) -> None:
    """Check that the parts together don't exceed what is free where each will be held.

    ``device``: of the model, for parts that aren't ``on_host``; ``task``: what takes the memory,
    for the message.
    """
    there = [part for part in parts if not part.on_host or device.type == "cpu"]
    here = [part for part in parts if part not in there]
    for place, held in ((device, there), (_HOST, here)):
        needed = sum(part.n_bytes for part in held)
        if needed <= SMALL_ALLOCATION or needed <= (available := available_bytes(place)):
            continue
        largest = max(held, key=lambda part: part.n_bytes)
        needed = min(needed, 10**300)  # more are no floating-point number
        raise MemoryError(
            f"{task} takes at least {needed / 1e9:,.3g} GB, but {available / 1e9:,.3g} GB are free "
            f"on {place}; {largest.n_bytes:,} bytes are for {largest.what}. {largest.remedy}"
        )


def available_bytes(device: torch.device) -> float:
    """Bytes that can still be had on the device; infinity where nobody says.

    On a GPU what the driver has free and torch's own cache doesn't use; on a Linux host what is
    available, caches and swap included, within the container's limit; elsewhere all the memory
    there is.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + unused)
    return max(0.0, min(_free_on_host(), _free_in_address_space(), *map(_free_in_group, _GROUPS)))


def _free_on_host() -> float:
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
    """Bytes that ``ulimit -v`` leaves."""
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
    """Bytes that a container's limit leaves, files that can be dropped from its cache included."""
    limit, usage, statistics = names
    most = _limit(limit)
    if most == inf:
        return most
    used = _number(usage)
    if used == inf:
        return most
    try:
        table = Path(statistics).read_text(encoding="ascii")
        used -= float(table.partition("\ninactive_file ")[2].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        pass
    return most - used


@cache
def _limit(path: str) -> float:
    limit = _number(path)
    return limit if limit < 2.0**60 else inf  # the first version's word for none is its largest


def _number(path: str) -> float:
    try:
        return float(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return inf
