"""
Transformations a model has learned to ignore
=============================================

`~skbayes_sym.inspection.InvarianceDisplay` shows the learned extent of every transformation, and
images as the network averages over them. The digits here were turned by up to 90 degrees
(1.57 radians) to either side; nobody tells the model. Seven hundred digits tell it; two hundred
are too few.
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
InvarianceDisplay.from_estimator(lila, X)
plt.show()
