"""
Table 1 of Immer et al. (2022) as far as a CPU goes
===================================================

MNIST with the paper's perceptron (1000 units) and CNN, 8,000 images of the 10,000 at hand, in as
much time as is given, printed beside the paper's accuracies (60,000 images, 1000 epochs, a GPU):

.. code-block:: shell

   python examples/papers/reproduce_immer_table1.py --minutes 60 --results table1.json

The perceptron comes first, on all five versions of the data, then the CNN on two, then Augerino
(reward 0.1), seed by seed. No fit is begun that wouldn't end in time, going by the last one of its
kind. What is in ``--results`` isn't fitted again, so that a later call with more minutes goes on.
Times are CPU minutes, of all calls together.

Without invariances a row is one image; with them it is 4 transformed ones (the paper: 31), and the
half-widths follow lower bounds of the evidence from 200 rows. Fashion-MNIST, CIFAR-10 and the
paper's numbers of images and epochs are commands of ``reproduce_immer_mnist.py``.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from reproduce_immer_mnist import VERSIONS, fit, load

# Test accuracy, %: Table 4 of the paper, in the order of `VERSIONS`.
PAPER = {
    ("mlp", "non-invariant"): (93.82, 95.83, 94.15, 97.07, 98.20),
    ("mlp", "Augerino 0.1"): (97.83, 96.35, 94.47, 97.45, 98.45),
    ("mlp", "LILA"): (97.74, 97.81, 97.28, 98.33, 98.98),
    ("cnn", "non-invariant"): (95.97, 97.51, 96.54, 98.37, 99.09),
    ("cnn", "Augerino 0.1"): (99.04, 98.91, 97.79, 98.77, 98.26),
    ("cnn", "LILA"): (98.83, 98.92, 98.69, 99.01, 99.42),
}
CNN_VERSIONS = ("partial", "original")
PAPER_METHODS = {"Augerino 0.1": "Augerino (theirs: 0.01)"}


def plan(n_seeds):
    """Cells in the order in which they are fitted: (network, method, version, seed)."""
    for seed in range(n_seeds):
        for methods in (("non-invariant", "LILA"), ("Augerino 0.1",)):
            for network, versions in (("mlp", VERSIONS), ("cnn", CNN_VERSIONS)):
                for version in versions:
                    for method in methods:
                        yield network, method, version, seed


def settings(network, args):
    """What a fit of ``reproduce_immer_mnist`` asks for."""
    return SimpleNamespace(
        data="mnist", part="test", network=network, n_train=args.n_train, n_test=args.n_test,
        hidden=args.hidden, basis="similarity", augmentations=4, learning_rate=0.005,
        curvature="auto", epochs=args.epochs, updates=60,
        batch_size=None, device="cpu",
    )  # fmt: skip


def run(cell, args):
    """One cell: accuracy, seconds and half-widths."""
    network, method, version, seed = cell
    given = settings(network, args)
    X, y, X_test, y_test = load(given, version, seed)
    model, seconds = fit(method, X, y, seed, given)
    return {
        "accuracy": 100.0 * model.score(X_test, y_test),
        "seconds": seconds,
        "half_widths": {k: round(v, 3) for k, v in model.invariance_.items()},
    }


def seconds_of_its_kind(cell, found):
    """CPU seconds of the last fit of the same network and method; 0 if there was none."""
    same = [r["seconds"] for key, r in found.items() if key.split(", ")[:2] == list(cell[:2])]
    return same[-1] if same else 0.0


def report(found, args):
    """The table, with numbers of seeds, beside the paper's."""
    print(f"\ntest accuracy (%), {args.n_train} images, {args.epochs} epochs, {args.hidden} units")
    print(f"{'':24s}" + "".join(f"{version:>25s}" for version in VERSIONS))
    for (network, method), theirs in PAPER.items():
        cells = []
        for version, paper in zip(VERSIONS, theirs, strict=True):
            key = f"{network}, {method}, {version}, "
            own = np.array([r["accuracy"] for k, r in found.items() if k.startswith(key)])
            error = f" ± {own.std(ddof=1) / len(own) ** 0.5:.1f}" if len(own) > 1 else ""
            shown = f"{own.mean():.1f}{error} ({len(own)})" if len(own) else "not run"
            cells.append(f"{shown:>14s} | {paper:5.2f}")
        print(f"{network} {method:20s}" + "".join(f"{c:>25s}" for c in cells))
    print("here (seeds) | the paper")


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--fast", action="store_true", help="a smoke run")
    parser.add_argument("--minutes", type=float, default=60.0, help="of CPU time, all calls")
    parser.add_argument("--results", type=Path, default=None, help="a JSON file to go on from")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    args.n_train, args.n_test = None, None
    if args.fast:
        args.n_train, args.n_test, args.epochs, args.hidden, args.minutes = 60, 60, 1, 20, 0.02
    known = args.results is not None and args.results.exists()
    found = json.loads(args.results.read_text()) if known else {}
    for cell in plan(args.seeds):
        key = ", ".join(map(str, cell))
        spent = sum(r["seconds"] for r in found.values())
        if key in found:
            continue
        if spent + seconds_of_its_kind(cell, found) > 60.0 * args.minutes:
            break
        found[key] = run(cell, args)
        wide = {k: v for k, v in found[key]["half_widths"].items() if v >= 0.1}
        print(f"{key}: {found[key]['accuracy']:.2f} %, {wide}, {found[key]['seconds']:.0f} CPU-s")
        if args.results is not None:
            args.results.write_text(json.dumps(found, indent=1))
    args.n_train = args.n_train or 8000
    report(found, args)


if __name__ == "__main__":
    main()
