"""
Tables 1 and 2 of Immer et al. (2022), cell by cell, as far as a CPU goes
=========================================================================

.. code-block:: shell

   python examples/papers/reproduce_immer_table1.py                 # every cell, from the file
   python examples/papers/reproduce_immer_table1.py --minutes 10    # fits some more first
   python examples/papers/reproduce_immer_table1.py --minutes 90 --data cifar10 --network resnet-8-8

A cell is the test accuracy and the log evidence of one network, method and version of the data. The
paper's figures, of 60,000 images (CIFAR-10: 50,000), 1000 epochs (200) and a GPU, are printed next
to ours (its Table 4, which has the columns of Table 1, the evidences, and the smaller ResNet). Log
evidences are in nats per training row, since they grow with the number of rows. A cell that was
fitted states the size of its fits, and every cell the CPU hours that the paper's size would take
here, by the time of some training steps. All fits are in ``immer_table1.json``, with seed, date and
commit.

``--minutes`` of CPU time are spent on cells of ``--data`` and ``--network`` at ``--n-train``
images and ``--epochs``, one seed after the other. Fits of the cell at other sizes are kept. No fit
is begun that wouldn't end in time, going by the last one of its kind. ``--again`` also fits what is
stored, and replaces it, for example after LILA has changed. With invariances a row is
4 transformed ones (the paper: 31, or 20), 2 of a ResNet. The prior is learned, as in the paper;
Augerino's reward is 0.1 and its prior 3.0.
"""

import argparse
import json
from collections import Counter
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from paper_data import current_commit
from reproduce_immer_mnist import NETWORKS, VERSIONS, density, fit, load

RESULTS = Path(__file__).with_name("immer_table1.json")
# Names in the table, and in `reproduce_immer_mnist.METHODS`.
METHODS = {"non-invariant": "non-invariant, prior learned", "Augerino 0.1": "Augerino 0.1",
           "LILA": "LILA, prior learned"}  # fmt: skip
# Images, epochs and transformations of the paper.
SIZES = {"mnist": (60_000, 1000, 31), "fashion_mnist": (60_000, 1000, 31),
         "cifar10": (50_000, 200, 20)}  # fmt: skip


def settings(args):
    """What a fit of ``reproduce_immer_mnist`` asks for."""
    is_resnet = args.network.startswith(("resnet", "wrn"))
    is_full_size = args.n_train is None and args.epochs == SIZES[args.data][1]
    n_samples = SIZES[args.data][2] if is_full_size else 2 if is_resnet else 4
    return SimpleNamespace(
        data=args.data, part="all" if is_full_size or args.data != "mnist" else "test",
        network=args.network, n_train=args.n_train, n_test=args.n_test, hidden=args.hidden,
        basis="axis" if is_full_size else "similarity", augmentations=n_samples,
        learning_rate=0.02 if is_resnet else 0.01, curvature="auto", epochs=args.epochs,
        updates=args.epochs if is_full_size else 60, batch_size=None, device=args.device,
    )  # fmt: skip


def size_of(args):
    """The size of a fit in words."""
    n_train = args.n_train or "all"
    size = f"{n_train} images, {args.epochs} epochs"
    return f"{size}, {args.hidden} units" if args.network == "mlp" else size


def run(method, version, seed, args):
    """One fit: accuracy, log density, log evidence, seconds and half-widths."""
    given = settings(args)
    X, y, X_test, y_test = load(given, version, seed)
    model, seconds = fit(METHODS[method], X, y, seed, given)
    half_widths = {key: round(value, 2) for key, value in model.invariance_.items() if value >= 0.1}
    return {
        "how": size_of(args), "seed": seed, "images": len(X),
        "accuracy": round(100.0 * model.score(X_test, y_test), 2),
        "log density": round(density(model, X_test, y_test), 3),
        "log evidence": round(model.log_evidence_), "CPU s": round(seconds),
        "half-widths": half_widths, "date": str(date.today()), "commit": current_commit(),
    }  # fmt: skip


def spend(cells, args, keep):
    """Fit cells of one network until the minutes are over, and ``keep()`` each."""
    spent, last = 0.0, {}
    for seed in range(args.seeds):
        for key, cell in cells.items():
            data, network, method, version = key.split(", ")
            others = [one for one in cell["fits"]
                      if (one["how"], one.get("seed")) != (size_of(args), seed)]  # fmt: skip
            is_done = len(others) < len(cell["fits"]) and not args.again
            if (data, network) != (args.data, args.network) or is_done:
                continue
            if method not in args.methods or version not in args.versions:
                continue
            if spent + last.get(method, 0.0) > 60.0 * args.minutes:
                continue
            found = run(method, version, seed, args)
            # Means over seeds of this size, from before single fits were stored, are replaced.
            kept = [one for one in others if one["how"] != size_of(args) or "seed" in one]
            cell["fits"] = [*kept, found]
            last[method] = found["CPU s"]
            spent += last[method]
            print(f"{key}, seed {seed}: {found}", flush=True)
            keep()


def hours(data, timed):
    """CPU hours of one cell at the paper's size, by the time of steps; nan if none was timed."""
    n_images, epochs, n_samples = SIZES[data]
    if timed is None:
        return np.nan
    samples = n_samples / timed["transformations"] if timed["transformations"] > 1 else 1.0
    return 1e-3 * timed["ms"] * samples * n_images * epochs / 3600


def describe(fits):
    """Mean accuracy and log evidence of fits of one size, in words."""
    n = sum(one.get("seeds", 1) for one in fits)
    accuracy = sum(one.get("seeds", 1) * one["accuracy"] for one in fits) / n
    evidence = np.mean([one.get("log evidence", np.nan) / one.get("images", 1) for one in fits])
    return f"{accuracy:.1f}, {evidence:.2f} ({n} seed{'s' if n > 1 else ''}; {fits[0]['how']})"


def report(stored):
    """Every cell; how many there are, fitted and timed."""
    counts, title = Counter(), None
    for key, cell in stored["cells"].items():
        data, network, method, version = key.split(", ")
        if title != (data, network):
            title = data, network
            print(f"\n{data}, {network}")
        took = hours(data, stored["ms an image and step"].get(network, {}).get(method))
        full_size = f"{took:,.0f} CPU hours" if np.isfinite(took) else "not timed"
        fits = cell["fits"]
        counts["fitted" if fits else "timed" if np.isfinite(took) else "neither"] += 1
        here = f"full size: {full_size}"
        for size in dict.fromkeys(one["how"] for one in fits):
            here = f"{describe([one for one in fits if one['how'] == size])}; {here}"
        published = cell.get("paper log evidence", np.nan) / SIZES[data][0]
        print(f"  {method:14} {version:11}{cell['paper']:6.2f}, {published:5.2f} | {here}")
    print("\nthe paper | here: test accuracy in %, log evidence in nats per training row")
    print(f"{counts.total()} cells: {counts['fitted']} fitted at a smaller size, "
          f"{counts['timed']} timed, {counts['neither']} neither")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--fast", action="store_true", help="a smoke run, which keeps nothing")
    parser.add_argument("--minutes", type=float, default=0.0, help="of CPU time, for more cells")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--data", default="mnist", choices=list(SIZES))
    parser.add_argument("--network", default="mlp", choices=NETWORKS)
    parser.add_argument("--n-train", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--again", action="store_true", help="also what is stored, replacing it")
    parser.add_argument("--versions", nargs="+", default=VERSIONS, choices=VERSIONS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.n_test = None
    stored = json.loads(args.results.read_text(encoding="utf-8"))

    def keep():
        if not args.fast:
            args.results.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")

    if args.fast:
        args.seeds, args.minutes, args.network = 1, 0.02, "cnn"
        args.n_train, args.n_test, args.epochs = 60, 60, 1
    if args.minutes:
        spend(stored["cells"], args, keep)
    report(stored)


if __name__ == "__main__":
    main()
