"""Training and prediction speed beside other packages: prints every claim with its target.

    python asv_bench/studies/compare_peers.py [--all] [--repeats 9]

CPU time of one thread. All loops of a comparison run in one process, interleaved in random order;
a ratio is the median over rounds of the ratio within a round, because the speed of a shared machine
drifts. Peers are used as their documentation shows (`peer_loops`), with a N(0, 1) prior, the same
batches and one draw of the weights a step; one that isn't installed is shown as "-". Timed with
float32, Adam and, for regression, unit observation noise (ours learns it). The deterministic
network has the Adam of one kernel that ours has, and once more torch's default, which is slower on
a CPU; what was promised beside the default, before ours had one kernel, is held against that.

They do different things a step: only this package, the textbook loop and Flipout draw noise for
every row; the others share one draw of the weights, with up to 100 times the gradient variance.
"""

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks

import numpy as np
import torch
from benchmarks.common import CASES, Case, Run, gap_term, network, random_data, training
from peer_loops import DEFAULT, FUSED, LOOPS, OURS, TEXTBOOK, textbook
from ratios import Ratio, Round, Source
from threadpoolctl import threadpool_limits
from timing import Check, cpu_times, median_ratio

from skbayes_sym import SymmetrizedVIClassifier
from skbayes_sym.symmetry.gaps.unit_gap import Exact, Importance

# Steps of a timed block; 80 batches are an epoch of the MNIST cases, 98 one of T100k.
STEPS = {"M30": 80, "T1k": 100, "M400": 80, "T100k": 98}
WARM_UP = 10

# Least ratio to our step that was promised; a peer's default is 1.
TARGETS = {
    FUSED: {"T1k": 1 / 1.3},
    DEFAULT: {"M30": 1 / 1.0, "T1k": 1 / 1.3, "M400": 1 / 1.7, "T100k": 1 / 1.9},
    TEXTBOOK: {"M30": 3.0, "T1k": 2.4, "M400": 1.8, "T100k": 1.6},
    "scikit-learn MLP": {"M30": 1 / 1.3, "T1k": 1 / 1.3, "M400": 1 / 1.6, "T100k": 1 / 1.6},
}


GATED, NAIVE = "gated / mean-field step, d = 30", "a loop over draws / predict_proba"
UNGATED = {
    "ungated, exact, d = 10 / textbook step": (10, Exact()),
    "ungated, importance, d = 30 / textbook step": (30, Importance()),
}


def step_times(
    loops: Mapping[str, Run], n_steps: int, n_repeats: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """CPU milliseconds a step, (n_repeats,) for every loop."""
    for run in loops.values():
        run(WARM_UP)
    blocks = {name: lambda run=run: run(n_steps) for name, run in loops.items()}
    return {n: 1e3 * s / n_steps for n, s in cpu_times(blocks, n_repeats, seed).items()}


def compare_steps(cases: Sequence[str], n_repeats: int) -> None:
    """The table: CPU time a step of every loop, relative to our mean-field step."""
    cells: dict[str, list[str]] = {name: [] for name in LOOPS}
    for case_name in cases:
        times = step_times(installed(CASES[case_name]), STEPS[case_name], n_repeats)
        for name in LOOPS:
            if name not in times:
                cells[name].append("-")
                continue
            bound = TARGETS.get(name, {}).get(case_name, 1.0)
            check = Check(median_ratio(times, name, OURS), bound, at_most=False)
            shown = f"{'1':>6}{'':12}" if name == OURS else str(check)
            cells[name].append(f"{np.median(times[name]):6.2f} {shown}")
    print("\nTraining: CPU ms a step, and the ratio to our step (target; ! = missed)")
    print(f"{'':26}" + "".join(f"{name:^27}" for name in cases))
    for name, row in cells.items():
        print(f"{name:26}" + "".join(f"{cell:27}" for cell in row))


def installed(case: Case) -> dict[str, Run]:
    """The loops whose package is there."""
    runs: dict[str, Run] = {}
    for name, make in LOOPS.items():
        try:
            runs[name] = make(case)
        except ImportError as error:
            print(f"{name}: {error}")
    return runs


def of_gap() -> Round:
    """What symmetrising costs, where the gap is saturated and where it isn't."""
    case = CASES["M30"]
    # Steps so short that the narrow posterior of the start, a saturated one, stays.
    narrow = {"learning_rate": 1e-7}
    gated = gap_term(case, Importance())
    closed = {OURS: training(case, **narrow), GATED: training(case, gap=gated, **narrow)}
    opened = {}
    for name, (width, estimate) in UNGATED.items():
        sized = case._replace(hidden=(width,))
        gap = gap_term(sized, estimate, gated=False)
        opened[name] = {name: training(sized, gap=gap, **narrow), TEXTBOOK: textbook(sized)}

    def measure(seed: int) -> dict[str, float]:
        times = step_times(closed, 400, 1, seed)
        found = {GATED: median_ratio(times, GATED, OURS)}
        for name, loops in opened.items():
            found[name] = median_ratio(step_times(loops, 80, 1, seed), name, TEXTBOOK)
        return found

    return measure


def peak_memory(case: Case, n_permutations: int) -> float:
    """Most bytes that one evaluation of the gap and its gradient holds at once."""
    from torch.profiler import ProfilerActivity, profile

    term = gap_term(case, Importance(n_permutations), gated=False)
    net = network(case)
    loc = net.init(1, generator=torch.Generator().manual_seed(0))[0].float()
    log_variance, gradient = torch.full_like(loc, -2.0), torch.zeros(2 * len(loc))
    with torch.no_grad():
        term.add_gradient(loc, log_variance, gradient, 0)  # the first step runs the gate's check
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            term.add_gradient(loc, log_variance, gradient, 1)
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return float(np.max(np.cumsum([e.nbytes() for e in events])))


def compare_memory() -> None:
    """Peak memory of the gap over the number K of assignments and that of parameters P."""
    counts = (16, 256)
    print("\nMemory of the importance gap, d = 30, S = 1: peak MB; one more assignment: O(d^2)")
    heads = [*(f"K = {k}" for k in counts), "kB an assignment", "8 d^2, kB", "8 P, kB"]
    print(f"{'P':>8}" + "".join(f"{head:>18}" for head in heads))
    for n_inputs in (98, 784, 3136):
        case = CASES["M30"]._replace(n_inputs=n_inputs)
        n_params = network(case).layout.n_params
        peaks = [peak_memory(case, k) for k in counts]
        slope = (peaks[1] - peaks[0]) / (counts[1] - counts[0])
        figures = [*(f"{p / 1e6:.2f}" for p in peaks)]
        figures += [f"{b / 1e3:.1f}" for b in (slope, 8 * 30**2, 8 * n_params)]
        print(f"{n_params:8d}" + "".join(f"{figure:>18}" for figure in figures))


def of_prediction() -> Round:
    """Class probabilities of 10,000 rows, averaged over 1,000 draws, beside a loop over draws."""
    case = CASES["M30"]._replace(n_rows=10_000)
    X, y = (t.numpy() for t in random_data(case))
    model = SymmetrizedVIClassifier(
        case.hidden, max_iter=1, n_predict_samples=1_000, symmetry=None, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    x = torch.as_tensor((X - model.x_mean_) / model.x_scale_, dtype=torch.float32)

    @torch.no_grad()
    def naive() -> None:
        generator, total = torch.Generator().manual_seed(0), torch.zeros(())
        for theta in model.posterior_.sample(1_000, generator=generator).float():
            total = total + model.network_.forward(theta, x).softmax(-1)

    model.predict_proba(X[:1])
    blocks = {"ours": lambda: model.predict_proba(X), "naive": naive}

    def measure(seed: int) -> dict[str, float]:
        return {NAIVE: median_ratio(cpu_times(blocks, 1, seed), "naive", "ours")}

    return measure


def _steps(name: str) -> Source:
    """A case's steps: ours beside the deterministic network, others beside ours."""
    behind = (FUSED, DEFAULT, "scikit-learn MLP")

    def named(peer: str) -> str:
        return f"ours / {peer}" if peer in behind else f"{peer} / ours"

    def prepare() -> Round:
        loops = installed(CASES[name])

        def measure(seed: int) -> dict[str, float]:
            times = step_times(loops, STEPS[name], 1, seed)
            ratios = {peer: median_ratio(times, peer, OURS) for peer in loops if peer != OURS}
            return {named(p): 1.0 / r if p in behind else r for p, r in ratios.items()}

        return measure

    ratios = []
    for peer in LOOPS:
        bound = TARGETS.get(peer, {}).get(name)
        if peer in behind:
            ratios.append(Ratio(named(peer), None if bound is None else 1.0 / bound))
        elif peer != OURS:
            ratios.append(Ratio(named(peer), bound, at_most=False))
    return Source(name, f"A step of mean-field VI, {CASES[name].title}", tuple(ratios), prepare)


SOURCES = (
    *(_steps(name) for name in CASES),
    Source(
        "gap", "A step of symmetrised VI, 784-d-10",
        (Ratio(GATED, 1.1), *(Ratio(name, 2.5) for name in UNGATED)), of_gap,
    ),
    Source(
        "prediction", "Prediction, 784-30-10, 1,000 draws of 10,000 rows",
        (Ratio(NAIVE, 4.0, at_most=False),), of_prediction,
    ),
)  # fmt: skip


def show(source: Source, n_rounds: int) -> None:
    """A source by itself."""
    measure = source.prepare()
    rounds = [measure(seed) for seed in range(n_rounds)]
    print(f"\n{source.title} (target; ! = missed)")
    for ratio in source.ratios:
        values = [found[ratio.name] for found in rounds]
        print(f"{ratio.name:44}{Check(ratio.judged(values), ratio.bound, ratio.at_most)}")


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="the large cases M400 and T100k too")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with threadpool_limits(1):  # the BLAS of NumPy has its own threads
        compare_steps(list(CASES) if options.all else ["M30", "T1k"], options.repeats)
        gap, prediction = SOURCES[-2:]
        show(gap, options.repeats)
        compare_memory()
        show(prediction, min(3, options.repeats))


if __name__ == "__main__":
    main()
