"""Every ratio of speed that README and pages name, in one table, with its promise.

    python asv_bench/studies/compare_all.py --budget MINUTES --store FILE [--only NAME ...] [--rst]

CPU time of one thread. A source is a comparison's own measuring function (``SOURCES`` of the files
beside this one); its arms take turns within a round. Rounds are made while the budget lasts, of
the source that has the fewest first; a round that would take longer than what is left isn't begun.
``--store`` keeps the rounds of earlier calls, so that a table can be measured in parts, and
``--budget 0`` prints what is there; without it those of the README's table are kept and printed
(``rounds.json`` beside this file). Peers that aren't installed are "-".

Printed are the number of rounds, the median, the worst round and the promise. A round is a seed
where a ratio depends on one, and promises about seeds are of the worst one. The exit code is 1
where a promise isn't kept. ``--rst`` prints the table of the README, and nothing else.
"""

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import closing_bounds
import compare_evidence
import compare_fits
import compare_linear
import compare_peers
import compare_updates
import costs
import default_costs
import scaling
import torch
from ratios import Ratio, Round, Source
from threadpoolctl import threadpool_limits
from timing import cpu_seconds

SOURCES: tuple[Source, ...] = (
    *compare_linear.SOURCES, *compare_peers.SOURCES, *compare_fits.SOURCES,
    *closing_bounds.SOURCES, *compare_evidence.SOURCES, *compare_updates.SOURCES, *costs.SOURCES,
    *default_costs.SOURCES, *scaling.SOURCES,
)  # fmt: skip

ROUNDS = Path(__file__).with_name("rounds.json")

Figures = dict[str, list[float]]  # of a source, by ratio


class Store:
    """Figures of all rounds, kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rounds: dict[str, int] = {}
        self.figures: dict[str, Figures] = {}
        self.minutes: dict[str, float] = {}
        if path is not None and path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.rounds, self.figures, self.minutes = (
                kept[k] for k in ("rounds", "figures", "minutes")
            )

    def add(self, source: str, found: dict[str, float], minutes: float) -> None:
        """A round's figures."""
        self.rounds[source] = self.rounds.get(source, 0) + 1
        self.minutes[source] = minutes
        for name, value in found.items():
            self.figures.setdefault(source, {}).setdefault(name, []).append(value)
        if self._path is not None:
            kept = {"rounds": self.rounds, "figures": self.figures, "minutes": self.minutes}
            self._path.write_text(json.dumps(kept, indent=1), encoding="utf-8")


def measure(sources: list[Source], budget: float, store: Store) -> None:
    """Rounds of the source that has fewest while CPU minutes are left."""
    ready: dict[str, Round] = {}
    begin = time.process_time()
    waiting = list(sources)
    while waiting:
        left = budget - (time.process_time() - begin) / 60.0
        waiting = [s for s in waiting if store.minutes.get(s.name, 0.0) < left]
        if left <= 0.0 or not waiting:
            return
        source = min(waiting, key=lambda s: store.rounds.get(s.name, 0))
        try:
            if source.name not in ready:
                ready[source.name] = source.prepare()
            found, seconds = cpu_seconds(
                lambda s=source: ready[s.name](store.rounds.get(s.name, 0))
            )
        except ImportError as error:
            print(f"{source.name}: {error}", file=sys.stderr)
            waiting.remove(source)
            continue
        store.add(source.name, found, seconds / 60.0)
        figures = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
        print(f"{source.name}: {figures} ({seconds:.0f} CPU s)", file=sys.stderr, flush=True)


def promise(ratio: Ratio) -> str:
    """As the table has it."""
    if ratio.bound is None:
        return ""
    by = "" if ratio.by == "median" else f", {ratio.by}"
    return f"{'at most' if ratio.at_most else 'at least'} {ratio.bound:g}{by}"


def row(ratio: Ratio, values: list[float]) -> tuple[str, ...]:
    """Cells of a line."""
    if not values:
        return (ratio.name, "0", "-", "-", promise(ratio), "")
    middle = ratio.judged(values) if ratio.by == "mean" else Ratio("").judged(values)
    verdict = "" if ratio.met(values) else "MISSED"
    return (
        ratio.name, str(len(values)), f"{middle:.2f}", f"{ratio.worst(values):.2f}",
        promise(ratio), verdict,
    )  # fmt: skip


def show(sources: list[Source], store: Store) -> None:
    """The table, for reading."""
    print(f"{'':64}{'rounds':>7}{'median':>9}{'worst':>9}   promise")
    for source in sources:
        print(source.title)
        for ratio in source.ratios:
            name, n, middle, worst, promised, verdict = row(ratio, of(ratio, source, store))
            print(f"  {name:62}{n:>7}{middle:>9}{worst:>9}   {promised} {verdict}".rstrip())


def show_rst(sources: list[Source], store: Store) -> None:
    """The table, for the README: what has been measured."""
    for source in (s for s in sources if s.name in store.figures):
        print(f'   "**{source.title}**", "", "", "", ""')
        for ratio in source.ratios:
            name, n, middle, worst, promised, verdict = row(ratio, of(ratio, source, store))
            said = f"{promised} (missed)" if verdict else promised
            print(f'   "{_literal(name)}", {n}, {middle}, {worst}, "{said}"')


def _literal(name: str) -> str:
    """Quotes as the cell of a table has them."""
    return name.replace('"', '""')


def of(ratio: Ratio, source: Source, store: Store) -> list[float]:
    """Its figures so far."""
    return store.figures.get(source.name, {}).get(ratio.name, [])


def missed(sources: list[Source], store: Store) -> list[str]:
    """Ratios that were measured and don't keep their promise."""
    return [
        f"{source.name}: {ratio.name}"
        for source in sources
        for ratio in source.ratios
        if of(ratio, source, store) and not ratio.met(of(ratio, source, store))
    ]


def main() -> int:
    """Number of promises that aren't kept."""
    names = [source.name for source in SOURCES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, required=True, help="CPU minutes")
    parser.add_argument("--store", type=Path, default=ROUNDS, help="JSON file of the rounds so far")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--rst", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources = [source for source in SOURCES if source.name in options.only]
    store = Store(options.store)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure(sources, options.budget, store)
    if options.rst:
        show_rst(sources, store)
        return 0
    show(sources, store)
    lost = missed(sources, store)
    print(f"{len(lost)} promises missed" + "".join(f"\n  {name}" for name in lost))
    return len(lost)


if __name__ == "__main__":
    sys.exit(main() > 0)
