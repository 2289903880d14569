"""
A learned invariance that helps a table
=======================================

The table has two columns, the position of a point in a photograph of a dahlia (scikit-learn's
sample image), and the target is its brightness. A flower looks much the same after a rotation about
its middle. LILA learns this from 100 points, and predicts other points better than the same network
without the rotation. The position of the middle is given.

For three draws of the 100 points the script prints the log density of 2,000 other points in nats
per row, for the same network without and with the learned rotation, the difference, and the
half-width (pi is full invariance). The gain is 0.107 ± 0.054. With 400 points the learned rotation
lowers the density by 0.190 ± 0.017. The log evidence prefers the rotation there, too (43 against 3
in the first draw), so it isn't always right.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from skbayes_sym import LILARegressor
from skbayes_sym.models import Rotation2D

N_SEEDS = 3
SIDE, MIDDLE = 320, 163
red = load_sample_image("flower.jpg")[40:360, 150:470, 0] / 255.0
rows, columns = np.mgrid[:SIDE, :SIDE]
places = np.column_stack([columns.ravel(), rows.ravel()]) - float(MIDDLE)  # pixels from the middle
brightness = red.ravel()


def fits(n, seed):
    """Both models of ``n`` points, and their log densities of 2,000 others."""
    order = np.random.default_rng(seed).permutation(len(places))
    train, test = order[:n], order[n : n + 2000]
    models = [
        LILARegressor(
            (20,), invariances=invariances, tol=None, random_state=seed
        ).fit(places[train], brightness[train])
        for invariances in (None, [Rotation2D(columns=(0, 1))])
    ]  # fmt: skip
    scores = [m.log_predictive_density(places[test], brightness[test]).mean() for m in models]
    return models, scores, train


print("points  seed  without     with    gain  half-width")
for n in (100, 400):
    gains = []
    for seed in range(N_SEEDS):
        models, (plain, turned), _ = fits(n, seed)
        gains.append(turned - plain)
        angle = models[1].invariance_["rotation"]
        print(f"{n:6d}{seed:6d}{plain:9.3f}{turned:9.3f}{gains[-1]:8.3f}{angle:10.2f}")
    error = np.std(gains, ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
    print(f"{n:6d}   all{np.mean(gains):26.3f} ± {error:.3f} nats per row")

# %%
# The flower, 100 points of it, and the predictions of both models
# ----------------------------------------------------------------

models, _, train = fits(100, 0)
grid = places.reshape(SIDE, SIDE, 2)[::5, ::5].reshape(-1, 2)
fig, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
shown = {"cmap": "magma", "vmin": 0.0, "vmax": 1.0}
ends = (-MIDDLE, SIDE - MIDDLE, SIDE - MIDDLE, -MIDDLE)
axes[0].imshow(red, extent=ends, **shown)
axes[0].set_title("The flower")
axes[1].scatter(*places[train].T, c=brightness[train], s=14, **shown)
axes[1].set(title="100 rows of the table", xlim=ends[:2], ylim=ends[2:], aspect="equal")
titles = ("Without rotation", "Learned rotation")
for ax, model, title in zip(axes[2:], models, titles, strict=True):
    mean = model.predict(grid).reshape(SIDE // 5, SIDE // 5)
    ax.imshow(mean, extent=ends, **shown)
    ax.set_title(title)
for ax in axes:
    ax.set(xticks=[], yticks=[])
plt.show()
