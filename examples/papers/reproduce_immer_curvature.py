"""
Which curvature learns invariances? Immer et al. (2022), Figure 6
=================================================================

The paper learns the extent of rotations from 5,000 FashionMNIST images, each turned by up to 90
degrees, with four approximations of the curvature: Kronecker-factored and diagonal, each from the
Gauss-Newton matrix (GGN) and from the empirical Fisher (EF). Kronecker factors find the rotation;
diagonals score worse, and the diagonal EF learns wrong invariances.

Here: 700 of scikit-learn's digits turned by up to 90 degrees, and Kronecker factors from all
classes ("kron-exact") and from random signs over classes ("kron-sketch", the default). Diagonals
(.74 and .66 of accuracy, no rotation) and the empirical Fisher (.93 and 96 degrees, but none with a
burn-in) were compared here, too, before they went from the package.

Printed for each, mean over the seeds with standard errors: the learned rotation (truth: 90
degrees), the largest other extent, the test accuracy, and CPU seconds. The log evidence is printed
too, but structures can't be compared by it: each has its own determinant. Expect 91 degrees and an
accuracy of .92 from both.

Run ``python examples/papers/reproduce_immer_curvature.py``, or with ``--fast`` for a smoke run.
"""

import argparse
from time import process_time

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skbayes_sym import EvidenceAdam, LILAClassifier, Updates
from skbayes_sym.models import Invariances

CURVATURES = ("kron-exact", "kron-sketch")


def turned(X, rng):
    """Every digit by its own angle, up to 90 degrees to either side."""
    angles = rng.uniform(-90.0, 90.0, len(X))
    images = X.reshape(-1, 8, 8)
    pairs = zip(images, angles, strict=True)
    return np.stack([ndimage.rotate(i, a, reshape=False, order=1).ravel() for i, a in pairs])


def load(n_train, seed):
    """Training and test digits, pixels in [0, 1]."""
    X, y = load_digits(return_X_y=True)
    X = turned(X / 16.0, np.random.default_rng(seed)).astype(np.float32)
    return train_test_split(X, y, train_size=n_train, random_state=seed, stratify=y)


def fit(curvature, n_train, seed, n=100, **fewer):
    """(rotation in degrees, largest other extent, test accuracy, log evidence, CPU seconds)."""
    X, X_test, y, y_test = load(n_train, seed)
    model = LILAClassifier(
        (100,),
        image_shape=(8, 8),
        optimizer=EvidenceAdam(0.05, 100, curvature, updates=Updates(n)),
        invariances=Invariances(learning_rate=0.2),
        prior="learn",
        tol=None,
        random_state=seed,
        **fewer,
    )
    start = process_time()
    model.fit(X, y)
    seconds = process_time() - start
    half_widths = dict(model.invariance_)
    rotation = np.rad2deg(half_widths.pop("rotation"))
    other = max(half_widths.values())
    return rotation, other, model.score(X_test, y_test), model.log_evidence_, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--fast", action="store_true", help="one seed, 200 digits, 20 steps")
    parser.add_argument("--curvatures", nargs="+", default=CURVATURES, choices=CURVATURES)
    args = parser.parse_args()
    n_train, n_seeds = (200, 1) if args.fast else (700, 3)
    fewer = {"max_iter": 20, "n": 4} if args.fast else {}
    print(f"{n_train} digits, {n_seeds} seeds")
    print("             rotation (deg)  largest other       accuracy     log evidence  CPU-s")
    for curvature in args.curvatures:
        figures = np.array([fit(curvature, n_train, seed, **fewer) for seed in range(n_seeds)])
        mean = figures.mean(axis=0)
        error = figures.std(axis=0, ddof=1) / n_seeds**0.5 if n_seeds > 1 else np.full(5, np.nan)
        print(
            f"{curvature:12s}{mean[0]:7.0f} ± {error[0]:4.1f}{mean[1]:9.2f} ± {error[1]:.2f}"
            f"{mean[2]:9.3f} ± {error[2]:.3f}{mean[3]:9.0f} ± {error[3]:.0f}{mean[4]:7.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
