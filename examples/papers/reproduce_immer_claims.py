"""
What Immer et al. (2022) claim, on digits, three seeds each
===========================================================

Every claim is settled on scikit-learn's digits (8 x 8 pixels), with the same rows for all methods
of a seed. Printed are means over the seeds with standard errors, of differences where methods are
compared.

``augerino``
    LILA beats Augerino. Its reward is chosen from `REWARDS` by the log density of a fifth of the
    training rows, and the model is then fitted to all of them: the test set plays no part.
``target``
    What the half-width should be: the evidence at half-widths that are held, of data turned by up
    to 90 degrees and scaled by up to a factor of two, and what is learned from the same data.
``upright``
    Digits as they are, 200 and 300: nothing need be learned.

Run ``python examples/papers/reproduce_immer_claims.py`` (a quarter of an hour), with names of
claims for some, or with ``--fast`` for a smoke run.
"""

import argparse

import numpy as np
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import nn

from skbayes_sym import EvidenceAdam, LILAClassifier, Updates
from skbayes_sym.models import Affine, Augerino, Invariances

REWARDS = (0.01, 0.1, 1.0)
# Of `target` and `upright`.
AS_IN_THE_PAPER = {"prior": "learn", "predictive": "sampling", "burn_in": 0.1}
N_TRAIN, N_TEST = 400, 500
VERSIONS = ("turned", "scaled", "turned all round", "upright")
HELD = {
    "scaled": ("scale", (np.log(2), 1.04, 2 * np.log(2), 1.75)),
    "turned": ("rotation", (np.pi / 4, np.pi / 2, np.pi)),
}


def changed(images, version, rng):
    """Every image by its own amount; "upright" ones stay."""
    if version == "upright":
        return images
    found = []
    for image in images:
        if version == "scaled":
            factor = np.exp(rng.uniform(-np.log(2), np.log(2)))
            offset = 3.5 * (1.0 - factor)
            found.append(ndimage.affine_transform(image, np.full(2, factor), offset, order=1))
        else:
            reach = {"turned": 90.0, "turned all round": 180.0}[version]
            angle = rng.uniform(-reach, reach)
            found.append(ndimage.rotate(image, angle, reshape=False, order=1))
    return np.array(found)


def load(version, seed, n_train=N_TRAIN):
    """Training and test rows, float32."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))[: n_train + N_TEST]
    images = changed(X[rows].reshape(-1, 8, 8) / 16.0, version, rng)
    X, y = images.reshape(len(rows), -1).astype(np.float32), y[rows]
    return X[:n_train], y[:n_train], X[n_train:], y[n_train:]


def fit(X, y, seed, n=100, objective="evidence", burn_in=0.02, **settings):
    """A network of 100 units, 1000 steps, 100 updates unless it says otherwise.

    In a burn-in of a tenth these steps fit all labels, before a half-width has moved.
    """
    updates = Updates(n, burn_in, objective=objective)
    given = {"invariances": Invariances(learning_rate=0.2), "max_iter": 1000, **settings}
    model = LILAClassifier(
        (100,), image_shape=(8, 8), optimizer=EvidenceAdam(0.05, 100, updates=updates),
        tol=None, random_state=seed, **given,
    )  # fmt: skip
    return model.fit(X, y)


def density(model, X, y):
    """Mean log predictive density, nats per row."""
    return model.log_predictive_density(X, y).mean()


def chosen_augerino(X, y, seed, **fewer):
    """Augerino with the reward that a fifth of the training rows prefer, and the reward."""
    held_out = len(X) // 5
    rate = {"invariances": Invariances(learning_rate=0.05), **fewer}
    scores = {
        reward: density(
            fit(X[held_out:], y[held_out:], seed, objective=Augerino(reward), **rate),
            X[:held_out], y[:held_out],
        )
        for reward in REWARDS
    }  # fmt: skip
    best = max(scores, key=scores.get)
    return fit(X, y, seed, objective=Augerino(best), **rate), best


def cell(values):
    """Mean and standard error."""
    values = np.asarray(values, dtype=float)
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{values.mean():.3f} ± {error:.3f}"


def augerino(seeds, fewer):
    """LILA against Augerino."""
    for version in VERSIONS[:1] if fewer else VERSIONS:
        rows, rewards = {name: [] for name in ("none", "Augerino", "LILA")}, []
        for seed in seeds:
            X, y, *test = load(version, seed)
            best, reward = chosen_augerino(X, y, seed, **fewer)
            rewards.append(reward)
            models = {
                "none": fit(X, y, seed, **{**fewer, "invariances": None}),
                "Augerino": best,
                "LILA": fit(X, y, seed, **fewer),
            }
            for name, model in models.items():
                rows[name].append((density(model, *test), model.score(*test)))
        table = {name: np.array(found) for name, found in rows.items()}
        print(f"augerino, {version}: rewards {rewards}")
        for name, found in table.items():
            print(f"  {name:10s} density {cell(found[:, 0])}, accuracy {cell(found[:, 1])}")
        ahead = table["LILA"] - table["Augerino"]
        print(f"  LILA ahead by {cell(ahead[:, 0])} nats per row, {cell(ahead[:, 1])}", flush=True)


class Held(nn.Module):
    """One generator of `Affine`, at a half-width that is given."""

    n_noise = 1

    def __init__(self, generator, half_width):
        super().__init__()
        self.family = Affine(image_shape=(1, 8, 8))
        self.place = self.family.half_width.names.index(generator)
        self.eta = nn.Parameter(torch.tensor([float(half_width)]))

    def forward(self, x, eps):
        ones = torch.ones(6, dtype=x.dtype)
        unit = self.family.half_width.mixing(ones)[self.place, self.place]
        noise = torch.zeros(len(x), 1, 6, dtype=x.dtype)
        noise[:, 0, self.place] = eps[:, 0] * self.eta / unit
        return self.family.transform(x, ones, noise)[:, 0]


def target(seeds, fewer):
    """Evidence over half-widths that are held."""
    for version, (generator, half_widths) in list(HELD.items())[: 1 if fewer else None]:
        data = {seed: load(version, seed) for seed in seeds}
        held = {h: Invariances(Held(generator, h), learning_rate=1e-12) for h in half_widths}
        for name, invariances in {**held, "learned": Invariances(learning_rate=0.2)}.items():
            models = [
                fit(
                    *data[seed][:2],
                    seed,
                    **{**fewer, **AS_IN_THE_PAPER, "invariances": invariances},
                )
                for seed in seeds
            ]
            evidence = [model.log_evidence_ for model in models]
            scores = [density(m, *data[s][2:]) for m, s in zip(models, seeds, strict=True)]
            if name == "learned":
                name = " ".join(f"{model.invariance_[generator]:.2f}" for model in models)
                name = f"learned: {name}"
            else:
                name = f"{name:.2f}"
            error = np.std(evidence, ddof=1) / len(evidence) ** 0.5 if len(evidence) > 1 else np.nan
            print(
                f"target, {version}, {generator} {name}: evidence {np.mean(evidence):.0f} ± "
                f"{error:.0f}, test density {cell(scores)}",
                flush=True,
            )


def upright(seeds, fewer):
    """Digits as they are."""
    for n_train in (200,) if fewer else (200, 300):
        found = []
        for seed in seeds:
            X, y, *test = load("upright", seed, n_train)
            plain = fit(X, y, seed, **{**fewer, **AS_IN_THE_PAPER, "invariances": None})
            lila = fit(X, y, seed, **fewer, **AS_IN_THE_PAPER)
            shown = ", ".join(f"{k} {v:.2f}" for k, v in lila.invariance_.items() if v >= 0.05)
            print(f"upright, {n_train} digits, seed {seed}: {shown or 'nothing'} learned")
            found.append(
                (
                    density(lila, *test) - density(plain, *test),
                    lila.score(*test) - plain.score(*test),
                    lila.log_evidence_ - plain.log_evidence_,
                )
            )
        gain, accuracy, evidence = np.array(found).T
        print(
            f"upright, {n_train} digits: LILA ahead of none by {cell(gain)} nats per row, "
            f"{cell(accuracy)} of accuracy, {evidence.mean():.0f} nats of evidence",
            flush=True,
        )


CLAIMS = {"augerino": augerino, "target": target, "upright": upright}


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("claims", nargs="*", help="augerino, target, upright; all")
    parser.add_argument("--fast", action="store_true", help="one seed, 10 steps")
    args = parser.parse_args()
    fewer = {"max_iter": 10, "n": 2} if args.fast else {}
    for name in args.claims or CLAIMS:
        CLAIMS[name](range(1 if args.fast else 3), fewer)


if __name__ == "__main__":
    main()
