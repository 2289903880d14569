"""Check the numbers that README, guide and reproduction pages state against what scripts print.

Tables of comparisons come from one file, which scripts write (``figure_tables.py``): pages are
filled from it as they are built, and ``text`` says where the README differs.

    python docs/check_numbers.py list               which sentence comes from which script
    python docs/check_numbers.py text               that every sentence still stands on its page
    python docs/check_numbers.py [PAGE ...]         run the scripts of these pages (all), compare
    python docs/check_numbers.py minutes [PAGE ...] those that take minutes too

A sentence has ``{}`` where a number stands; ``printed`` are patterns, one a number, whose group is
that number in the script's output. A number agrees if it is the printed one, rounded as the page
has it; figures of random draws are the same on one machine and may differ in the last digit between
machines, for which ``slack`` last digits are let pass.
"""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from figure_tables import in_markdown

ROOT = Path(__file__).resolve().parents[1]
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+))"


class Stated(NamedTuple):
    """A sentence of a page, and where its numbers come from."""

    page: str
    sentence: str
    script: str
    printed: tuple[str, ...]
    slack: float = 0.0  # in units of the last digit
    minutes: bool = False  # whether the script takes minutes


def _of_row(start: str, column: int) -> str:
    """The number in a column of the line that starts like this."""
    return rf"\n{start}" + r"[^\S\n]+\S+" * column + r"[^\S\n]+" + _NUMBER


_MODE_SEEKING = "examples/papers/plot_mode_seeking.py"
_TWO_WEIGHTS = "examples/papers/plot_two_weight_network.py"
_KURLE = "examples/papers/plot_invariance_gap.py"
_MOORE = "examples/papers/reproduce_moore_figures.py --figure"
_BENCHMARKS = "docs/user_guide/benchmarks.rst"
_SPEED = "asv_bench/studies/compare_all.py --budget 0 --rst"
_FULL = r"from a mode\s+full covariance\s+([\d.]+)"
_LOSS = {alpha: rf"{alpha}\s+-\d+\.\d+" for alpha in ("0.05", "0.10", "0.15", "0.20")}


def _speed(block: str, *rows: str) -> tuple[str, ...]:
    """Medians in rows of a block of the table of speed."""
    start = rf'"\*\*{block}[\s\S]*?'
    return tuple(rf'{start}"{re.escape(row)}", \d+, ([\d.]+)' for row in rows)


def _lost(column: int) -> tuple[str, ...]:
    """``log p(y) - ELBO`` of one method for all values of alpha."""
    return tuple(_of_row(row, column) for row in _LOSS.values())


NUMBERS = [
    Stated(_BENCHMARKS, "1,000 x 1,000 - {}; {}; {}", _SPEED,
           _speed("BayesianLinearReg", "1,000 x 10", "100,000 x 10", "1,000 x 1,000")),
    Stated(_BENCHMARKS, "``LogisticRegressionCV``, 1,000 x 10; 100,000 x 10 - {}; {}", _SPEED,
           _speed("BayesianLinearCl", "1,000 x 10", "100,000 x 10")),
    Stated(_BENCHMARKS, "``MLPRegressor``, 10-50-1; 784-400-10 - {}; {}", _SPEED,
           _speed("A step of mean-field VI, 10-50-1", "ours / scikit-learn MLP")
           + _speed("A step of mean-field VI, 784-400-10", "ours / scikit-learn MLP")),
    Stated(_BENCHMARKS, "10-50-1; 50-100-100-1 - {}; {}", _SPEED,
           _speed("A step of mean-field VI, 10-50-1", "pyro AutoNormal / ours")
           + _speed("A step of mean-field VI, 50-100-100-1", "pyro AutoNormal / ours")),
    Stated(_BENCHMARKS, "sinusoidal; airfoil; energy - {}; {}; {}", _SPEED,
           tuple(_speed(f"MCMC with three units, {name}",
                        "effective draws per CPU-second / NumPyro's NUTS")[0]
                 for name in ("sinusoidal", "airfoil", "energy"))),
    Stated("docs/reproduction/gelberg.rst", "holds, at {} standard deviations", _MODE_SEEKING,
           (_FULL,)),
    Stated("docs/reproduction/gelberg.rst",
           "at one mode from {} on, and a local one exists from {} on. For mean-field Gaussians "
           "whose modes don't lie on an axis, the values are {} (two dimensions) to {} (a hundred)",
           _MODE_SEEKING,
           (_FULL, r"appears at ([\d.]+) sigma", r"D = 2\s+([\d.]+)", r"D = 100\s+([\d.]+)")),
    Stated("docs/reproduction/gelberg.rst", "{} :math:`\\sigma`", _MODE_SEEKING, (_FULL,)),
    Stated("docs/reproduction/gelberg.rst",
           "{}, {}, {}, {} nats (MFVI), {}, {}, {}, {} (K = 2), {}, {}, {}, {} (exact)",
           _TWO_WEIGHTS, (*_lost(0), *_lost(1), *_lost(2))),
    Stated("docs/reproduction/gelberg.rst",
           "{}, {}, {}, {} and {}, {}, {}, {}; exact posterior {}, {}, {}, {}", _TWO_WEIGHTS,
           tuple(rf"Bayes mean[\s\S]*\n{row}" + r"\s+\S+" * column + r"\s+([\d.]+)"
                 for column in (0, 1, 3) for row in _LOSS)),
    Stated("docs/reproduction/kurle.rst",
           "{} :math:`(K - 1)` nats. From :math:`K = {}` on it exceeds the data-related bound of "
           "{}. At :math:`\\theta_0^*` it is at most {} (:math:`K = 10`), and {} at "
           ":math:`K = 1000`", _KURLE,
           (_of_row(r"\s+2", 0), r"exceeded from K = (\d+)", r"data-related bound ([\d.]+)",
            _of_row(r"\s+10", 1), _of_row(r"\s+1000", 1))),
    Stated("docs/reproduction/kurle.rst", "stays bounded ({} at :math:`K = 1000`)", _KURLE,
           (_of_row(r"\s+1000", 2),)),
    Stated("docs/reproduction/kurle.rst",
           "log evidence is {}, and :math:`q_{mix}` reaches it for every :math:`K`. The ELBO of "
           "the best :math:`q_0` is {}, {}, {} for :math:`K` = 2, 10, 1000. The variance of its "
           "output is {} at",
           _KURLE,
           tuple(rf"eq\. 19 as printed[\s\S]*?\n\s*{k}" + r"\s+\S+" * column + r"\s+" + _NUMBER
                 for k, column in ((2, 0), (2, 1), (10, 1), (1000, 1), (1000, 3)))),
    Stated("docs/reproduction/kurle.rst", "it would shrink to {}, with an ELBO of {}.", _KURLE,
           (r"\n1000\s+.*\s([\d.]+)  ELBO", r"\n1000\s+.*ELBO (\S+)")),
    Stated("docs/reproduction/moore.rst",
           "The mean-field posterior is at ({}, {}). SymVI is at ±({}, {}), and its bound is {} "
           "nats higher.", f"{_MOORE} 1",
           (r"mean-field at \(([\d.]+)", r"mean-field at \(.*, ([\d.]+)\)", r"\+-\(([\d.]+)",
            r"\+-\(.*, ([\d.]+)\)", r"bound ([\d.]+) nats")),
    Stated("docs/reproduction/moore.rst",
           "The radius is {}. The axes of the second moments are as {} : 1 after averaging over "
           "the group, and as {} : 1 for the base posterior. The gap is {} nats.", f"{_MOORE} 2",
           (r"radius ([\d.]+)", r"smaller axis ([\d.]+)", r"([\d.]+) of larger; gap",
            r"gap ([\d.]+) nats"), slack=1.0),
    Stated("docs/reproduction/moore.rst",
           "exact {}, {}, {}, {}; SymVI {}, {}, {}, {}; MAP {}, {}, {}, {}; MFVI {}, {}, {}, {}.",
           f"{_MOORE} 3",
           tuple(_of_row(rf"\s+{r}", column) for column in (0, 3, 1, 2) for r in (0.5, 1, 2, 4)),
           minutes=True),
    Stated("docs/reproduction/moore.rst",
           "As printed, it exceeds the log evidence on {} of {} matrices, by {} nats on average.",
           f"{_MOORE} 0",
           (r"evidence on (\d+) of", r"evidence on \d+ of (\d+)", r"by ([\d.]+) nats"),
           slack=1.0, minutes=True),
    Stated("docs/reproduction/moore.rst",
           "The RMSE is {} (SymVI; {} with full covariances), {} (MAP) and {} (MFVI).",
           f"{_MOORE} 4",
           (r"\n\s+SymVI\s+([\d.]+)", r"full\s+([\d.]+)", r"\n\s+MAP\s+([\d.]+)",
            r"\n\s+MFVI\s+([\d.]+)"), minutes=True),
    Stated("docs/reproduction/wiese.rst",
           "as described: DE {} to {} on all ten sets, LA {} to {}. Trained for longer: "
           "DE {} on sinusoidal, {} on izmailov, {} airfoil, {} concrete, {} yacht",
           "examples/papers/reproduce_wiese_baselines.py",
           (_of_row("wine", 2), _of_row("forest_fire", 2), _of_row("diabetes", 0),
            _of_row("forest_fire", 0), *(_of_row(name, 6) for name in (
                "sinusoidal", "izmailov", "airfoil", "concrete", "yacht"))), slack=1.0),
    Stated("docs/reproduction/wiese.rst",
           "{} chains exactly; {} by the paper's eq. 5",
           "examples/papers/reproduce_wiese_table1.py --fast",
           (r"as printed \(\.57, \.35, \.08\)\s+(\d+)",
            r"as printed \(\.57, \.35, \.08\).*Markov's inequality (\d+)"), minutes=True),
]  # fmt: skip


def _on_page(stated: Stated) -> list[str] | None:
    """The numbers as the page has them, or None if the sentence isn't there."""
    text = " ".join((ROOT / stated.page).read_text(encoding="utf-8").split())
    pieces = (re.escape(piece) for piece in stated.sentence.split("{}"))
    found = re.search(_NUMBER.join(pieces), text)
    return None if found is None else list(found.groups())


@cache
def _output(script: str) -> str:
    settings = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *script.split()], cwd=ROOT, env=settings, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{script} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def _agrees(stated: str, printed: str, slack: float) -> bool:
    digits = len(stated.partition(".")[2])
    return abs(float(stated) - float(printed)) <= (0.5 + slack) * 10.0**-digits + 1e-12


def compare(stated: Stated) -> list[str]:
    """What is wrong with a sentence, number by number."""
    numbers = _on_page(stated)
    if numbers is None:
        return [f"{stated.page} doesn't say {stated.sentence!r}"]
    wrong, output = [], _output(stated.script)
    for number, pattern in zip(numbers, stated.printed, strict=True):
        found = re.search(pattern, output)
        printed = None if found is None else found.group(1)
        if printed is None or not _agrees(number, printed, stated.slack):
            wrong.append(f"{stated.page} says {number}, {stated.script} prints {printed}")
    return wrong


def main(words: list[str]) -> int:
    """Number of disagreements."""
    minutes, pages = "minutes" in words, [word for word in words if word != "minutes"]
    if pages == ["list"]:
        for one in NUMBERS:
            print(f"{one.page}: {one.sentence}\n    python {one.script}")
        return 0
    if pages == ["text"]:
        wrong = [f"{one.page} doesn't say {one.sentence!r}"
                 for one in NUMBERS if _on_page(one) is None]  # fmt: skip
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        wrong += [f"README.md has a table that isn't\n{filled}"
                  for body, filled in in_markdown(readme) if body != filled]  # fmt: skip
        print("\n".join(wrong))
        return len(wrong)
    chosen = [one for one in NUMBERS if not pages or one.page in pages]
    chosen = [one for one in chosen if minutes or not one.minutes]
    wrong = [line for one in chosen for line in compare(one)]
    n_numbers = sum(len(one.printed) for one in chosen)
    print(
        "\n".join([*wrong, f"{n_numbers} numbers in {len(chosen)} sentences: {len(wrong)} wrong"])
    )
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
