"""
Transformations to which a model has become invariant
=====================================================

`~skbayes_sym.inspection.InvarianceDisplay` shows the learned half-width of every transformation,
and the transformed images over which the network averages. The digits were rotated by up to 90
degrees (1.57 radians) in either direction. The model learns this from 700 images. From 200 images
it doesn't.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits

from skbayes_sym import LILAClassifier
from skbayes_sym.inspection import InvarianceDisplay

images, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
chosen = rng.permutation(len(images))[:700]
angles = rng.uniform(-90, 90, len(chosen))
X = np.array(
    [
        ndimage.rotate(image.reshape(8, 8), angle, reshape=False, order=1).ravel()
        for image, angle in zip(images[chosen], angles, strict=True)
    ]
)
lila = LILAClassifier((100,), image_shape=(8, 8), random_state=0).fit(X, y[chosen])
display = InvarianceDisplay.from_estimator(lila, X)
display.figure_.suptitle("Learned half-widths, and digits with random transformations")
plt.show()
