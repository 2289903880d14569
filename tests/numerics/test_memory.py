"""What is free, and the message when it isn't enough."""

import os

import pytest
import torch

from skbayes_sym.numerics import memory
from skbayes_sym.numerics.memory import (
    MemoryAllocation,
    available_bytes,
    n_rows_per_block,
    require_memory,
)
from skbayes_sym.numerics.runtime import explain_torch_errors

CPU = torch.device("cpu")


@pytest.fixture
def free(monkeypatch):
    def set_to(n_bytes):
        monkeypatch.setattr(memory, "available_bytes", lambda device: n_bytes)

    monkeypatch.setattr(memory, "SMALL_ALLOCATION", 0)
    return set_to


PARTS = [
    MemoryAllocation("a few weights", 400, "Lower this."),
    MemoryAllocation("many draws", 600, "Lower that."),
]


def test_what_fits_to_the_byte_passes(free):
    free(1000)
    require_memory(PARTS, CPU)
    free(999)
    with pytest.raises(MemoryError):
        require_memory(PARTS, CPU)


def test_nobody_is_asked_about_what_is_always_there(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 0.0)
    require_memory([MemoryAllocation("few", memory.SMALL_ALLOCATION, "Lower this.")], CPU)
    with pytest.raises(MemoryError):
        require_memory([MemoryAllocation("more", memory.SMALL_ALLOCATION + 1, "Lower this.")], CPU)


def test_what_does_not_fit_names_total_largest_part_and_remedy(free):
    free(999)
    message = (
        r"at least 1e-06 GB, but .* are free on cpu; 600 bytes are for many draws\. Lower that"
    )
    with pytest.raises(MemoryError, match=message):
        require_memory(PARTS, CPU)


def test_sizes_beyond_any_float_are_compared(free):
    free(1e12)
    with pytest.raises(MemoryError, match="Lower this"):
        require_memory([MemoryAllocation("more than there are atoms", 10**90, "Lower this.")], CPU)
    with pytest.raises(MemoryError, match="Lower this"):
        require_memory([MemoryAllocation("more than any float", 10**400, "Lower this.")], CPU)


def test_free_memory_lies_between_none_and_all_there_is():
    if not hasattr(os, "sysconf"):
        pytest.skip("nobody says how much there is")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    swap = 0.0
    if os.path.exists("/proc/meminfo"):
        with open("/proc/meminfo", encoding="ascii") as file:
            swap = sum(1024.0 * int(line.split()[1]) for line in file if "SwapTotal" in line)
    assert 0 < available_bytes(CPU) <= total + swap


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    limits = {
        "none": "max\n", "some": "5000\n", "used": "2000\n",
        "statistics": "anon 700\ninactive_file 300\n",
    }  # fmt: skip
    for name, text in limits.items():
        (tmp_path / name).write_text(text)

    def available(*names):
        monkeypatch.setattr(memory, "_GROUPS", [tuple(str(tmp_path / name) for name in names)])
        return available_bytes(CPU)

    unlimited = available("none", "used", "statistics")
    assert available("absent", "absent", "absent") == pytest.approx(unlimited, rel=0.5)
    assert available("some", "absent", "absent") == 5000 < unlimited
    assert available("some", "used", "absent") == 3000
    assert available("some", "used", "statistics") == 3300  # pages of files can be dropped


def test_the_limit_of_an_address_space_counts():
    resource = pytest.importorskip("resource")
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
        assert 0.5 * (1 << 30) < available_bytes(CPU) <= 1 << 30
        with (
            pytest.raises(MemoryError, match=r"out of memory: .*Use fewer rows"),
            explain_torch_errors(),
        ):
            torch.empty(1 << 32)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes"), explain_torch_errors():
        raise RuntimeError("shapes differ")


def test_gpu_counts_what_torch_keeps_but_does_not_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert available_bytes(torch.device("cuda:0")) == 130


def test_rows_within_a_number_of_numbers():
    assert n_rows_per_block(100, 30) == 3
    assert n_rows_per_block(100, 1000) == 1  # at least one
    assert n_rows_per_block(100, 0) == 100
