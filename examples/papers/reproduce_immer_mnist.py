"""
Reproduce Immer et al. (2022) on MNIST and CIFAR-10
===================================================

Table 1 (test accuracy on five versions of the data) and Figure 2 (half-widths while training): the
non-invariant model, Augerino with a reward by a fifth of the training rows and with ten times the
paper's, and LILA with its prior learned (the paper's) and at 3.0.

.. code-block:: shell

   python examples/papers/reproduce_immer_mnist.py --fast          # a smoke run
   python examples/papers/reproduce_immer_mnist.py                 # 8000 images, three seeds: hours
   TABLE="--n-train 2000 --epochs 40 --updates 80 --augmentations 4 --learning-rate 0.01"
   python examples/papers/reproduce_immer_mnist.py $TABLE --store  # the table below: half an hour
   python examples/papers/reproduce_immer_mnist.py --network cnn --augmentations 4

At the paper's size, for a GPU (``--device cuda``). The images come from the files that their
authors publish, at ``SKBAYES_SYM_DATA`` (see `paper_data.load_dataset`):

.. code-block:: shell

   FULL="--device cuda --augmentations 31 --basis axis --epochs 1000"
   python examples/papers/reproduce_immer_mnist.py $FULL --part all --hidden 1000
   python examples/papers/reproduce_immer_mnist.py $FULL --part all --network cnn
   python examples/papers/reproduce_immer_mnist.py $FULL --data fashion_mnist --hidden 1000
   python examples/papers/reproduce_immer_mnist.py $FULL --data fashion_mnist --network cnn
   CIFAR="--data cifar10 --epochs 200 --augmentations 20 --batch-size 250"
   python examples/papers/reproduce_immer_mnist.py $FULL $CIFAR --network resnet-8-8
   python examples/papers/reproduce_immer_mnist.py $FULL $CIFAR --network resnet-8-16
   python examples/papers/reproduce_immer_mnist.py $FULL $CIFAR --network wrn-16-4  # Table 2

Without ``--part all`` MNIST is its 10,000 test images, 8,000 to train on and 2,000 to test. Other
differences from the paper: 80 epochs in place of 1000, 8 stratified transformations in place of 31,
200 units in place of 1000, and joint scale and aspect in place of x and y apart.
``reproduce_immer_table1.py`` makes as much of Table 1 as a given time allows. With ``--store`` each
fit goes to ``immer_mnist.json`` with seed, date and commit, and a fit that is there isn't repeated.

Scores of 2000 images and the differences between LILA and Augerino are shown on the page of this
paper, which reads them from ``immer_mnist.json``.

The CNN on 500 images (24 epochs, 4 transformations, the empirical Fisher that was
there then, one seed), non-invariant and LILA:
partial rotation 82.9 and 90.5 %, original images 94.8 and 95.8 %. The ResNet (60 epochs, learning
rate 0.02): original images 90.6 and 94.4 %; at partial rotation it stays underfitted, 30.1 and
31.8 %.
"""

import argparse
import json
from datetime import date
from functools import lru_cache
from pathlib import Path
from time import process_time

import numpy as np
from paper_data import current_commit, load_dataset
from scipy import ndimage

from skbayes_sym import EvidenceAdam, LILAClassifier, Updates
from skbayes_sym.models import Affine, Augerino, Invariances

SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
NETWORKS = ("mlp", "cnn", "resnet-8-8", "resnet-8-16", "wrn-16-4")
TRAIN_SHARE = 0.8  # of MNIST's test images alone
VERSIONS = ("full", "partial", "translated", "scaled", "original")
METHODS = {
    "non-invariant": {"invariances": None},
    "non-invariant, prior learned": {"invariances": None, "prior": "learn"},  # the paper's
    "Augerino": {"rewards": (0.01, 0.03, 0.1, 0.3), "rate": 0.05},
    "Augerino 0.1": {"rewards": (0.1,), "rate": 0.05},
    "maximum likelihood": {"rewards": (0.0,), "rate": 0.05},  # appendix G.1
    "LILA, prior learned": {"prior": "learn"},
    "LILA": {},
}
# Options that a fit depends on.
SETTINGS = ("data", "part", "network", "basis", "n_train", "n_test", "epochs", "updates", "hidden",
            "augmentations", "learning_rate", "curvature", "batch_size")  # fmt: skip
RESULTS = Path(__file__).with_name("immer_mnist.json")
N_SHOWN = 8  # values of a trajectory
COMPARED = ["non-invariant", "Augerino", "Augerino 0.1", "LILA, prior learned", "LILA"]
TRUTH = {
    "full": {"rotation": np.pi},
    "partial": {"rotation": np.pi / 2},
    "translated": {"translation_x": 8.0, "translation_y": 8.0},  # pixels
    "scaled": {"scale": np.log(2)},
    "original": {},
}


def transformed(images, version, rng):
    """One version of images (n, C, H, W), appendix I.1; every one gets its own transformation."""
    return np.stack([_transform(image, version, rng) for image in images])


def _transform(image, version, rng):
    if version in {"full", "partial"}:
        reach = 180.0 if version == "full" else 90.0
        angle = rng.uniform(-reach, reach)
        return ndimage.rotate(image, angle, axes=(2, 1), reshape=False, order=1)
    if version == "translated":
        return ndimage.shift(image, (0.0, *rng.uniform(-8.0, 8.0, 2)), order=1)
    if version == "scaled":
        factor = np.array([1.0, *2 * [np.exp(rng.uniform(-np.log(2), np.log(2)))]])
        middle = (np.array(image.shape) - 1) / 2
        return ndimage.affine_transform(image, factor, middle * (1.0 - factor), order=1)
    return image


def truth(version, name):
    """Half-widths that made a version, in the units of ``invariance_``: shifts in half-images."""
    half = SHAPES[name][2] / 2
    is_shift = {key: key.startswith("translation") for key in TRUTH[version]}
    return {key: value / half if is_shift[key] else value for key, value in TRUTH[version].items()}


@lru_cache
def scaled_images(name, part):
    """Images (n, C, H, W), labels and the number for training.

    Grey ones are in [0, 1], channels of CIFAR-10 standardised.
    """
    found = load_dataset(name, part=part)
    images = found.data.astype(np.float32).reshape(-1, *SHAPES[name])
    n_train = found.n_train or round(TRAIN_SHARE * len(images))
    if SHAPES[name][0] == 1:
        return images / images.max(), found.target, n_train
    axes = (0, 2, 3)
    mean, std = (f(images[:n_train], axis=axes, keepdims=True) for f in (np.mean, np.std))
    return (images - mean) / std, found.target, n_train


def load(args, version, seed):
    """Training and test data, float32 rows; where shifts and turns uncover nothing, 0."""
    images, y, n_all = scaled_images(args.data, args.part)
    rng = np.random.default_rng(seed)
    order = np.arange(len(images))
    if args.part == "test":  # one set, shuffled before it is divided
        order = np.random.default_rng(0).permutation(len(images))
    train, test = (
        order[:n_all][rng.permutation(n_all)[: args.n_train]],
        order[n_all:][: args.n_test],
    )
    parts = [
        transformed(images[rows], version, rng).reshape(len(rows), -1) for rows in (train, test)
    ]
    return parts[0], y[train], parts[1], y[test]


def density(model, X, y):
    """Mean log density of labels, nats."""
    return float(model.log_predictive_density(X, y).mean())


def fit(method, X, y, seed, args):
    """One model, with the CPU seconds of all that it took.

    Of several rewards Augerino takes the one with the highest log density of a fifth of the rows.
    """
    start, settings = process_time(), dict(METHODS[method])
    rewards = settings.pop("rewards", (None,))
    if len(rewards) > 1:
        order = np.random.default_rng(0).permutation(len(X))
        held, rest = order[: len(X) // 5], order[len(X) // 5 :]
        models = [
            unfitted(settings, r, len(rest), seed, args).fit(X[rest], y[rest]) for r in rewards
        ]
        scores = [density(model, X[held], y[held]) for model in models]
        rewards = (rewards[int(np.argmax(scores))],)
    model = unfitted(settings, rewards[0], len(X), seed, args).fit(X, y)
    return model, process_time() - start


def unfitted(settings, reward, n, seed, args):
    """The model of ``n`` rows."""
    epochs = args.epochs
    batch = min(n, args.batch_size or min(250, max(50, n // 20)))
    layers = {"hidden_layer_sizes": (args.hidden,)} if args.network == "mlp" else {}
    own = dict(settings)
    invariances = Invariances(Affine(args.basis), args.augmentations, own.pop("rate", "auto"))
    return LILAClassifier(
        **layers,
        image_shape=SHAPES[args.data],
        network=args.network,
        optimizer=EvidenceAdam(
            batch_size=batch,
            curvature=args.curvature,
            learning_rate=args.learning_rate,
            updates=Updates(
                n=args.updates or epochs,
                keep_best=False,  # it would double the cost of the final evidence
                objective="evidence" if reward is None else Augerino(reward=reward),
            ),
        ),
        max_iter=epochs * -(-n // batch),
        tol=None,
        random_state=seed,
        device=args.device,
        **{"invariances": invariances, **own},
    )


def run(version, method, seed, args):
    """One fit: scores, half-widths, seconds and, for Figure 2, half-widths along training."""
    X, y, X_test, y_test = load(args, version, seed)
    model, seconds = fit(method, X, y, seed, args)
    curves = {}
    for name in truth(version, args.data):
        if name in model.invariance_curve_:
            curve = model.invariance_curve_[name]
            steps = np.linspace(0, len(curve) - 1, N_SHOWN).astype(int)
            curves[name] = [round(float(curve[step]), 2) for step in steps]
    half_widths = {key: round(value, 2) for key, value in model.invariance_.items() if value >= 0.1}
    objective = model.optimizer.updates.objective
    reward = objective.reward if isinstance(objective, Augerino) else None
    return {
        "version": version, "method": method, "seed": seed, "images": len(X),
        "accuracy": round(100.0 * model.score(X_test, y_test), 2),
        "log density": round(density(model, X_test, y_test), 4),
        "log evidence": round(model.log_evidence_), "reward": reward,
        "half-widths": half_widths, "curves": curves, "CPU s": round(seconds),
        "date": str(date.today()), "commit": current_commit(),
    }  # fmt: skip


def show(found, data):
    """Print a fit, and the half-widths of the true generators along training (Figure 2)."""
    reward = "" if found["reward"] is None else f"reward {found['reward']}, "
    half_widths = ", ".join(f"{key} {value:.2f}" for key, value in found["half-widths"].items())
    print(
        f"{found['version']:10s} {found['method']:19s} seed {found['seed']}: accuracy "
        f"{found['accuracy']:.2f} %, log density {found['log density']:.3f}, log evidence "
        f"{found['log evidence']}, {reward}{half_widths or '-'}, {found['CPU s']} CPU-s",
        flush=True,
    )
    true = truth(found["version"], data)
    for name, curve in found["curves"].items():
        print(f"      {name} (truth {true[name]:.2f}):", *(f"{value:.2f}" for value in curve))


def fits_of(stored, args):
    """The stored fits with these settings, a list that belongs to ``stored``."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    for group in stored:
        if group["settings"] == settings:
            return group["fits"]
    stored.append({"settings": settings, "fits": []})
    return stored[-1]["fits"]


def mean_and_error(values):
    """Mean and standard error in words."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{values.mean():9.3f} ± {error:5.3f}"


def parse_args():
    parser = argparse.ArgumentParser(description="Immer et al. (2022), Table 1 and Figure 2")
    parser.add_argument("--fast", action="store_true", help="a smoke run: 100 images, 2 epochs")
    parser.add_argument("--n-train", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=None, help="80")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--versions", nargs="+", default=VERSIONS, choices=VERSIONS)
    parser.add_argument("--methods", nargs="+", default=COMPARED, choices=list(METHODS))
    parser.add_argument("--data", default="mnist", choices=list(SHAPES))
    parser.add_argument("--part", default=None, choices=("test", "all"), help="MNIST: test")
    parser.add_argument("--network", default="mlp", choices=NETWORKS)
    parser.add_argument("--basis", default="similarity", choices=("similarity", "axis"))
    parser.add_argument("--augmentations", type=int, default=8, help="transformations per row")
    parser.add_argument("--learning-rate", type=float, default=0.005, help="0.02 for a resnet")
    parser.add_argument("--curvature", default="auto", help="as `EvidenceAdam` has it")
    parser.add_argument("--hidden", type=int, default=200, help="units of the mlp; paper: 1000")
    parser.add_argument("--batch-size", type=int, default=None, help="a twentieth, 50 to 250")
    parser.add_argument("--updates", type=int, default=None, help="of half-widths: one an epoch")
    parser.add_argument("--device", default="cpu", help="cuda, cuda:1, ...")
    parser.add_argument("--store", action="store_true", help="keep fits, skip those that are kept")
    parser.add_argument("--again", action="store_true", help="repeat fits that are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where --store keeps them")
    args = parser.parse_args()
    args.part = args.part or ("test" if args.data == "mnist" else "all")
    args.n_train = args.n_train or (100 if args.fast else None)
    args.n_test = 100 if args.fast else None
    args.epochs = args.epochs or (2 if args.fast else 80)
    args.seeds = args.seeds or (1 if args.fast else 3)
    args.store = args.store and not args.fast
    return args


def main():
    args = parse_args()
    stored = []
    if args.store and args.results.is_file():
        stored = json.loads(args.results.read_text(encoding="utf-8"))
    fits = fits_of(stored, args)
    table = {}
    for version in args.versions:
        for method in args.methods:
            scores = []
            for seed in range(args.seeds):
                same = [
                    one
                    for one in fits
                    if (one["version"], one["method"], one["seed"]) == (version, method, seed)
                ]
                if not same or args.again:
                    found = run(version, method, seed, args)
                    fits[:] = [*(one for one in fits if one not in same), found]
                    if args.store:
                        text = json.dumps(stored, indent=1) + "\n"
                        args.results.write_text(text, encoding="utf-8")
                else:
                    found = same[0]
                show(found, args.data)
                scores.append((found["accuracy"], found["log density"]))
            table[version, method] = np.array(scores)
    print(f"\n{args.data}, {args.network}, {found['images']} images, {args.seeds} seeds")
    for column, name in enumerate(("test accuracy (%)", "log density of a test row (nats)")):
        print(f"\n{name}\n" + " " * 20 + "".join(f"{v:>17s}" for v in args.versions))
        for method in args.methods:
            cells = [mean_and_error(table[v, method][:, column]) for v in args.versions]
            print(f"{method:20s}" + "".join(cells))
        if {"LILA", "Augerino"} <= set(args.methods):
            gains = [table[v, "LILA"] - table[v, "Augerino"] for v in args.versions]
            cells = [mean_and_error(gain[:, column]) for gain in gains]
            print(f"{'LILA minus Augerino':20s}" + "".join(cells))


if __name__ == "__main__":
    main()
