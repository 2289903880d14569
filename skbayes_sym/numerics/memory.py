"""Whether arrays will fit, before the first of them is made."""

import os
from collections.abc import Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import NamedTuple

import torch

# Limits of a container, of the second and the first version of control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def rows_within(most_numbers: int, numbers_per_row: int) -> int:
    """How many rows to work on at once, at least one, that arrays of them stay within a limit."""
    return max(1, most_numbers // max(1, numbers_per_row))


class Part(NamedTuple):
    """Arrays that are held at the same time as the other parts."""

    what: str
    n_bytes: int
    remedy: str  # a sentence: what to change if this is the largest part


def require_memory(parts: Sequence[Part], device: torch.device) -> None:
    """Check that the parts together don't exceed what is free on the device.

    Raises
    ------
    MemoryError
        Naming the total, the bytes of the largest part, and what to change.
    """
    needed, available = sum(part.n_bytes for part in parts), available_bytes(device)
    if needed <= available:
        return
    largest = max(parts, key=lambda part: part.n_bytes)
    raise MemoryError(
        f"this fit takes at least {needed / 1e9:,.3g} GB, but {available / 1e9:,.3g} GB are free "
        f"on {device}; {largest.n_bytes:,} bytes are for {largest.what}. {largest.remedy}"
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
    return min(_free_on_host(), *(_limit(path) for path in _LIMITS))


def _free_on_host() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        table = {line.split(":")[0]: int(line.split()[1]) for line in lines if line}
        return 1024.0 * (table["MemAvailable"] + table["SwapFree"])
    except (OSError, LookupError, ValueError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return inf


@cache
def _limit(path: str) -> float:
    try:
        return float(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return inf
