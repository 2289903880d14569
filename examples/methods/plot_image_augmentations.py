"""
Transformations of images
=========================

The figure shows every family of transformations that ``invariances=`` accepts for images. The
coefficient of a transformation has a uniform distribution around 0, whose half-width LILA learns.
Each column shows the image from one end of this distribution to the other, with the original image
in the middle. The units are the units of ``invariance_``: half-images, radians, logarithms, pixels
(blur) and the largest pixel value (noise).

`Affine` moves pixels, and the other families change their values. `Hue` needs three channels. The
other families also accept grey images. A list such as ``invariances=[Affine(), Brightness(),
Blur()]`` applies one family after the other, each with its own half-widths.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_sample_image

from skbayes_sym.models import Affine, Blur, Brightness, Contrast, Hue, PixelNoise

flower = load_sample_image("flower.jpg")[40:360:4, 150:470:4] / 255.0  # (80, 80, 3)
image = torch.as_tensor(np.moveaxis(flower, -1, 0)[None].copy())
shape = tuple(image.shape[1:])


def transformed(family, generator, half_width, at):
    """The picture at ``at`` times the half-width of one generator."""
    distribution = family.half_width
    eta = torch.zeros(distribution.n_params, dtype=torch.float64)
    unit = distribution.mixing(torch.full_like(eta, 1e-6)).diagonal()[generator] / 1e-6
    eta[generator] = half_width / unit
    noise = torch.zeros(1, 1, distribution.n_noise, dtype=torch.float64)
    noise[..., generator] = at
    if distribution.n_noise > distribution.n_params:  # a number per pixel
        noise = at * (2.0 * torch.rand(noise.shape, generator=generator_of_noise).double() - 1.0)
    return family.transform(image, eta, noise)[0, 0]


generator_of_noise = torch.Generator().manual_seed(0)
affine = Affine(image_shape=shape)
ROWS = [
    *((affine, i, half_width) for i, half_width in enumerate((0.5, 0.5, 1.0, 0.6, 0.5, 0.5))),
    (Brightness(shape), 0, 0.8),
    (Contrast(shape), 0, 1.2),
    (Hue(shape), 0, 2.5),
    (PixelNoise(shape), 0, 0.5),
    (Blur(shape), 0, 2.5),
]
AT = (-1.0, -0.5, 0.0, 0.5, 1.0)
fig, axes = plt.subplots(len(AT), len(ROWS), figsize=(9, 4.6), layout="constrained")
for column, (family, generator, half_width) in zip(axes.T, ROWS, strict=True):
    name = family.half_width.names[generator].replace("_", "\n")
    column[0].set_title(f"{name}\n±{half_width:g}", fontsize=8)
    for ax, at in zip(column, AT, strict=True):
        pixels = transformed(family, generator, half_width, at)
        ax.imshow(np.clip(np.moveaxis(pixels.numpy(), 0, -1), 0.0, 1.0))
        ax.set(xticks=[], yticks=[])
for ax, at in zip(axes[:, 0], AT, strict=True):
    ax.set_ylabel(f"{at:+g}" if at else "0", fontsize=8)
fig.supylabel("coefficient / half-width", fontsize=9)
fig.suptitle("One transformation per column, with its half-width")
plt.show()
