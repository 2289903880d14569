"""
What images may be invariant to
===============================

Every family that ``invariances=`` takes for images, from one end of its law to the other: the
coefficient is drawn from a uniform law around 0, whose half-width LILA learns. In the middle is
the picture as it is. Units are those of ``invariance_``: half-images, radians, logarithms, pixels
(blur) and the largest pixel (noise).

Affine moves pixels; the others change what is in them. `Hue` needs three channels, the rest take
grey images as well. A list of families, ``invariances=[Affine(), Brightness(), Blur()]``, applies
one after the other, each with a half-width of its own.
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
fig, axes = plt.subplots(len(AT), len(ROWS), figsize=(12, 5.6), layout="constrained")
for column, (family, generator, half_width) in zip(axes.T, ROWS, strict=True):
    name = family.half_width.names[generator].replace("_", " ")
    column[0].set_title(f"{name}\n±{half_width:g}", fontsize=8)
    for ax, at in zip(column, AT, strict=True):
        pixels = transformed(family, generator, half_width, at)
        ax.imshow(np.clip(np.moveaxis(pixels.numpy(), 0, -1), 0.0, 1.0))
        ax.set(xticks=[], yticks=[])
for ax, at in zip(axes[:, 0], AT, strict=True):
    ax.set_ylabel(f"{at:+g}" if at else "0", fontsize=8)
plt.show()
