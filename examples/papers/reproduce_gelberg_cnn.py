"""
Symmetrised variational inference of a convolutional network
============================================================

Gelberg et al. (2024) symmetrise fully connected networks. The channels of a convolutional network
can be permuted, too: `symmetry_of` finds the group in a trace of the module, and
`SymmetrizedVIClassifier` takes the module and the group.

.. code-block:: shell

   python examples/papers/reproduce_gelberg_cnn.py           # MNIST, three seeds: minutes
   python examples/papers/reproduce_gelberg_cnn.py --fast    # a test run

Printed for mean-field VI and for the symmetrised bound: accuracy and log density of test images,
the bound of the posterior found, and the share of the gap that is reached. With 1 the copies of
the posterior don't overlap, the gap is constant, and so both methods have the same gradient.
"""

import argparse

import numpy as np
import torch
from paper_data import load_dataset
from torch import nn

from skbayes_sym import SymmetrizedVIClassifier
from skbayes_sym.base.optimizers import VariationalAdam
from skbayes_sym.symmetry import symmetry_of

CHANNELS = (4, 8)
METHODS = {"mean-field": None, "symmetrised": "auto"}


class Images(nn.Module):
    """Two convolutions with ReLU and pooling, and a dense layer, for 28 x 28 pixels."""

    def __init__(self):
        super().__init__()
        first, second = CHANNELS
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, first, 5, stride=2), nn.ReLU(),
            nn.Conv2d(first, second, 5, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(second * 16, 10),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


def split_images(n_train, n_test, seed):
    """Pixels between 0 and 1 and labels, for training and for the test."""
    found = load_dataset("mnist", part="test")
    order = np.random.default_rng(seed).permutation(len(found.data))
    images = found.data[order].astype(np.float32).reshape(len(order), -1) / 255.0
    labels = found.target[order]
    train, test = slice(n_train), slice(n_train, n_train + n_test)
    return images[train], labels[train], images[test], labels[test]


def make_model(network, symmetry, n_steps, *, learning_rate, seed, device):
    """Estimator of batches of 100 images; ``network`` holds its parameters that set the network."""
    return SymmetrizedVIClassifier(
        **network, symmetry=symmetry, standardize=False, max_iter=n_steps, tol=None,
        optimizer=VariationalAdam(batch_size=100, learning_rate=learning_rate), device=device,
        random_state=seed,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--fast", action="store_true", help="a test run: 100 images, 10 steps")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    n_train, n_steps, n_seeds = (100, 10, 1) if args.fast else (8000, 2000, 3)

    group = symmetry_of(Images(), (torch.zeros(2, 784),))
    n_copies = np.exp(group.log_order)
    print(f"channels {CHANNELS}: {n_copies:,.0f} copies of a posterior, log {group.log_order:.2f}")
    print("method        seed   accuracy   log density       bound   share of the gap")
    for method, symmetry in METHODS.items():
        for seed in range(n_seeds):
            X, y, X_test, y_test = split_images(n_train, n_train // 4, seed)
            model = make_model(
                {"network": Images()}, symmetry, n_steps, learning_rate=0.003, seed=seed,
                device=args.device,
            ).fit(X, y)  # fmt: skip
            density = model.log_predictive_density(X_test, y_test).mean()
            share = model.symmetry_gap_ / group.log_order if symmetry else float("nan")
            print(
                f"{method:12s}{seed:6}{100 * model.score(X_test, y_test):11.2f}{density:14.3f}"
                f"{model.elbo_:12.0f}{share:19.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
