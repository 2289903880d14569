"""
What a CPU can't do: the papers' tables at full size, on a GPU
==============================================================

.. code-block:: shell

   python examples/papers/on_a_gpu.py --hours 8       # as many cells as fit into eight hours
   python examples/papers/on_a_gpu.py --list          # the order, without a fit
   python examples/papers/on_a_gpu.py --fast          # a test run on this machine's CPU

Three kinds of fits, those that take the least time first:

- Tables 1, 2 and 4 of Immer et al. (2022) with all images, 1000 epochs (CIFAR-10: 200) and 31
  transformations of each image (20). They go to ``immer_table1.json``, which
  ``reproduce_immer_table1.py`` prints.
- The convolutional network of ``reproduce_gelberg_cnn.py``, mean-field and symmetrised, on all
  images of MNIST.
- Fully connected networks of 100 to 1000 units on all images of MNIST, mean-field and symmetrised:
  Table 1 of Gelberg et al. (2024) beyond its 30 units.

The last two go to ``gpu_fits.json``. Each fit is stored when it ends, with seed, date and commit. A
second call, after an interruption or on another day, goes on with the fits that are missing. The
images are the files that their authors publish, in the folder that the environment variable
``SKBAYES_SYM_DATA`` names; fits of data that aren't there are listed and skipped. The order follows
CPU times of training steps, measured on one core, and no fit begins that wouldn't end in time,
going by the ratio of the times of earlier fits to their CPU times.
"""

import argparse
import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from paper_data import current_commit
from reproduce_gelberg_cnn import METHODS as BOUNDS
from reproduce_gelberg_cnn import Images, make_model
from reproduce_immer_mnist import scaled_images
from reproduce_immer_table1 import METHODS, SIZES, hours, run

FOLDER = Path(__file__).parent
WIDTHS = (100, 300, 1000)
EPOCHS = 50
CNN_MS = 0.1  # CPU milliseconds for an image and a step
UNIT_MS = 2e-4  # the same for each unit of a fully connected network


class Job(NamedTuple):
    """One fit: where its result goes, what it takes, and how to get it."""

    file: str
    name: str
    cpu_hours: float
    fit: Callable[[str], dict[str, Any]]  # of a device


def immer_jobs(seeds: int, *, fast: bool) -> list[Job]:
    """Cells of Tables 1, 2 and 4 that have no fit at full size."""
    stored = json.loads((FOLDER / "immer_table1.json").read_text(encoding="utf-8"))
    timed = stored["ms an image and step"]
    jobs = []
    for name in stored["cells"]:
        data, network, method, version = name.split(", ")
        if method not in METHODS:
            continue
        cpu_hours = hours(data, timed.get(network, {}).get(method))
        for seed in range(seeds):
            args = SimpleNamespace(
                data=data, network=network, hidden=1000, n_train=None, n_test=None,
                epochs=SIZES[data][1],
            )  # fmt: skip
            if fast:
                args.n_train, args.n_test, args.epochs, args.hidden = 60, 60, 1, 10

            def fit(device, method=method, version=version, seed=seed, args=args):
                return run(method, version, seed, SimpleNamespace(**vars(args), device=device))

            jobs.append(Job("immer_table1.json", f"{name}, seed {seed}", cpu_hours, fit))
    return jobs


def variational_jobs(seeds: int, *, fast: bool) -> list[Job]:
    """Mean-field and symmetrised fits of a convolutional and of wide dense networks on MNIST."""
    jobs = []
    n_steps = 5 if fast else EPOCHS * 600
    for network in ("cnn", *WIDTHS):
        step_ms = CNN_MS if network == "cnn" else UNIT_MS * network
        cpu_hours = 1e-3 * step_ms * 100 * n_steps / 3600
        for bound, symmetry in BOUNDS.items():
            for seed in range(seeds):

                def fit(device, network=network, symmetry=symmetry, seed=seed):
                    return fit_bound(network, symmetry, seed, n_steps, device, fast=fast)

                name = network if network == "cnn" else f"{network} units"
                jobs.append(Job("gpu_fits.json", f"{name}, {bound}, seed {seed}", cpu_hours, fit))
    return jobs


def fit_bound(
    network: str | int, symmetry: str | None, seed: int, n_steps: int, device: str, *, fast: bool
) -> dict[str, Any]:
    """One variational fit to MNIST.

    Parameters
    ----------
    network : "cnn" or int
        The convolutional network, or the number of units of a dense one.
    symmetry : str or None
        Parameter of the estimator; None is mean-field.
    seed : int
        Seed of the fit.
    n_steps : int
        Number of steps with 100 images each.
    device : str
        Device of the fit.
    fast : bool
        Whether to use 200 test images alone, for a test run.

    Returns
    -------
    dict
        Accuracy, log density, bounds, seconds, date and commit.
    """
    images, labels, n_train = scaled_images("mnist", "test" if fast else "all")
    X = images.reshape(len(images), -1)
    train, test = slice(0, n_train), slice(n_train, None)
    if fast:
        train, test = slice(0, 200), slice(200, 400)
    shape = {"network": Images()} if network == "cnn" else {"hidden_layer_sizes": (network,)}
    start = time.perf_counter()
    model = make_model(shape, symmetry, n_steps, learning_rate=0.001, seed=seed, device=device).fit(
        X[train], labels[train]
    )
    return {
        "accuracy": round(100.0 * model.score(X[test], labels[test]), 3),
        "log density": round(float(model.log_predictive_density(X[test], labels[test]).mean()), 4),
        "elbo": round(model.elbo_, 1),
        "symmetry gap": round(model.symmetry_gap_, 3),
        "seconds": round(time.perf_counter() - start),
        "date": str(date.today()),
        "commit": current_commit(),
    }


def is_done(job: Job, stored: dict[str, Any]) -> bool:
    """Whether the results have this fit, at the paper's size."""
    if job.file == "gpu_fits.json":
        return job.name in stored
    cell, _, seed = job.name.rpartition(", seed ")
    data = cell.split(", ")[0]
    fits = stored["cells"][cell]["fits"]
    return any(
        one.get("seed") == int(seed) and f"all images, {SIZES[data][1]} epochs" in one["how"]
        for one in fits
    )


def store(job: Job, result: dict[str, Any], path: Path) -> None:
    """Add a result to its file; fits at full size replace those of fewer images."""
    stored = read(path)
    if job.file == "gpu_fits.json":
        stored[job.name] = result
    else:
        cell = stored["cells"][job.name.rpartition(", seed ")[0]]
        cell["fits"] = [*(one for one in cell["fits"] if one["how"] == result["how"]), result]
    path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """A file of results, or an empty one."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--fast", action="store_true", help="a test run, which keeps nothing")
    parser.add_argument("--list", action="store_true", help="print the order of the fits alone")
    parser.add_argument("--hours", type=float, default=8.0, help="of this machine")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default=None, help="cuda where there is one")
    args = parser.parse_args()
    device = args.device or ("cuda" if torch.cuda.is_available() and not args.fast else "cpu")

    jobs = [*immer_jobs(args.seeds, fast=args.fast), *variational_jobs(args.seeds, fast=args.fast)]
    jobs.sort(key=lambda job: job.cpu_hours if np.isfinite(job.cpu_hours) else np.inf)
    missing = [job for job in jobs if not is_done(job, read(FOLDER / job.file))]
    print(f"{len(jobs) - len(missing)} of {len(jobs)} fits are stored; the others on {device}:")
    if args.fast:
        kinds = {job.file: job for job in missing[::-1] if "mlp" in job.name or "cnn" in job.name}
        missing = list(kinds.values())

    begin, speed_up, n_done = time.perf_counter(), [], 0
    for job in missing:
        took = f"{job.cpu_hours:8.2f} CPU hours"
        if args.list:
            print(f"  {took}  {job.name}")
            continue
        ratio = np.median(speed_up) if speed_up else 0.0  # GPU hours for a CPU hour
        if (time.perf_counter() - begin) / 3600 + ratio * job.cpu_hours > args.hours:
            continue
        start = time.perf_counter()
        try:
            result = job.fit(device)
        except (FileNotFoundError, ValueError) as error:
            print(f"  skipped {job.name}: {error}", flush=True)
            continue
        spent = (time.perf_counter() - start) / 3600
        speed_up.append(spent / job.cpu_hours)
        n_done += 1
        print(f"  {job.name}: {result}", flush=True)
        if not args.fast:
            store(job, result, FOLDER / job.file)
    if n_done:
        minutes = (time.perf_counter() - begin) / 60
        print(f"{n_done} fits, {n_done / minutes:.2f} cells per minute")


if __name__ == "__main__":
    main()
