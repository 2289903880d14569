"""Loss barrier between two residual networks, before and after their channels are aligned.

    python asv_bench/studies/merge_resnet.py [--epochs 4] [--width 32] [--save FILE]

Two networks with batch norms are trained on images of Fashion-MNIST (``$SKBAYES_SYM_DATA``, halved
in resolution) from different initial weights. The script prints the largest rise of the test loss
on the straight line between them, and the accuracy half-way: as trained, aligned by
`align_modules`, and aligned with the running moments of the batch norms computed again. ``--save``
writes the figure of the documentation. A few minutes of CPU.
"""

import argparse
import copy
import gzip
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from count_symmetries import Head, basic_block, conv_norm
from torch import Tensor, nn

from skbayes_sym import loss_barrier
from skbayes_sym.symmetry import align_modules, symmetry_of
from skbayes_sym.symmetry.modules.merging import interpolate_modules


def read_images(part: str) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, 14, 14) between 0 and 1 and labels (N,) of "train" or "t10k"."""
    folder = Path(os.environ["SKBAYES_SYM_DATA"]) / "fashion_mnist"
    pixels = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
    images = torch.tensor(np.frombuffer(pixels, np.uint8).reshape(-1, 1, 28, 28) / 255.0)
    return F.avg_pool2d(images.float(), 2), torch.tensor(np.frombuffer(labels, np.uint8)).long()


def train(seed: int, width: int, n_epochs: int, images: Tensor, labels: Tensor) -> nn.Module:
    """Return a trained residual network of two blocks, in eval mode.

    Parameters
    ----------
    seed : int
        Seed of the initial weights and of the order of the images.
    width : int
        Channels of the first stage.
    n_epochs : int
        Passes over the images.
    images, labels : Tensor
        Training data.
    """
    torch.manual_seed(seed)
    head = Head(2 * width)
    head.out = nn.Linear(2 * width, 10)
    network = nn.Sequential(
        conv_norm(1, width, 3), nn.ReLU(), basic_block(width, 2 * width, 2),
        basic_block(2 * width, 2 * width, 1), head,
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters())
    n_steps = n_epochs * (len(images) // 100)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=n_steps)
    for _ in range(n_epochs):
        for rows in torch.randperm(len(images)).split(100)[: len(images) // 100]:
            optimizer.zero_grad()
            F.cross_entropy(network(images[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def recompute_moments(network: nn.Module, images: Tensor) -> nn.Module:
    """Return a copy whose batch norms have the moments of these images."""
    network = copy.deepcopy(network)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # the average over all batches
    with torch.no_grad():
        for batch in images.split(500):
            network.train()(batch)
    return network.eval()


def main() -> None:
    """Train, align, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    images, labels = read_images("train")
    test_images, test_labels = read_images("t10k")
    networks = [train(seed, arguments.width, arguments.epochs, images, labels) for seed in (0, 1)]
    print(symmetry_of(networks[0], images[:2], buffers=True))

    def loss(network: nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(network(test_images), test_labels))

    def loss_with_new_moments(network: nn.Module) -> float:
        return loss(recompute_moments(network, images[:1000]))

    def accuracy(network: nn.Module) -> float:
        with torch.no_grad():
            return float((network(test_images).argmax(1) == test_labels).float().mean())

    first, second = networks
    plain = loss_barrier(loss, first, second, example_input=images[:2], n_points=11)
    renewed = loss_barrier(
        loss_with_new_moments, first, second, example_input=images[:2], n_points=11
    )
    _, aligned = align_modules(networks, images[:2])
    middle = {
        "as trained": interpolate_modules(first, second, 0.5),
        "aligned": interpolate_modules(first, aligned, 0.5),
    }
    middle |= {
        f"{name}, new moments": recompute_moments(network, images[:1000])
        for name, network in list(middle.items())
    }
    print(f"accuracy of the two: {accuracy(first):.3f} {accuracy(second):.3f}")
    print(f"distance {plain.distance_before:.1f}, aligned {plain.distance_after:.1f}")
    barriers = (
        plain.barrier_before, plain.barrier_after, renewed.barrier_before, renewed.barrier_after,
    )  # fmt: skip
    for (name, network), barrier in zip(middle.items(), barriers, strict=True):
        print(f"{name:24} barrier {barrier:.2f} nats  accuracy half-way {accuracy(network):.3f}")
    if arguments.save is not None:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), sharey=True, layout="constrained")
        titles = ("averaged moments", "moments computed again")
        for ax, barrier, title in zip(axes, (plain, renewed), titles, strict=True):
            ax.plot(barrier.fraction, barrier.loss_before, "o-", ms=3, label="as trained")
            ax.plot(barrier.fraction, barrier.loss_after, "s-", ms=3, label="aligned")
            ax.set(xlabel="weight of the second network", title=title, ylim=(0.0, None))
        axes[0].set(ylabel="test loss (nats per image)")
        axes[0].legend()
        figure.savefig(arguments.save, dpi=110)


if __name__ == "__main__":
    main()
