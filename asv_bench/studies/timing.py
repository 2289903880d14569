"""CPU seconds and their ratios, as all comparisons take them.

Arms of a comparison run in one process and take turns in random order within a round; a ratio is
the median over rounds of the ratio within a round, because the speed of a shared machine drifts.
"""

import random
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def cpu_seconds(work: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the CPU time it took, all threads of this process together."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def cpu_times(
    blocks: Mapping[str, Callable[[], Any]], n_rounds: int, seed: int = 0
) -> dict[str, Floats]:
    """CPU seconds of every block in every round, (n_rounds,) each, in random order."""
    order = random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(n_rounds):
        for name in order.sample(list(blocks), len(blocks)):
            seconds[name].append(cpu_seconds(blocks[name])[1])
    return {name: np.array(s) for name, s in seconds.items()}


def median_ratio(times: Mapping[str, Floats], name: str, base: str) -> float:
    """Median over rounds of the ratio within a round."""
    return float(np.median(times[name] / times[base]))


def fresh(work: Callable[..., Any], *args: Any) -> Any:
    """What a process of its own returns: for peaks of memory, and what has to come first."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *args).result()


def current_commit() -> str:
    """Short name of the commit that this checkout is at, or "unknown"."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    folder = Path(__file__).parent
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


class Check(NamedTuple):
    """A measured ratio and what was promised for it."""

    ratio: float
    bound: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """Whether the promise is kept; NaN keeps none."""
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{self.ratio:6.2f} ({sign} {self.bound:4.2f}) {' ' if self.met else '!'}"


def mean_and_error(values: Any) -> tuple[float, float]:
    """Mean and its standard error; NaN for that of one value."""
    values = np.asarray(values, dtype=float)
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return float(values.mean()), float(error)
