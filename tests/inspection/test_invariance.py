"""Half-widths with their units, and images as the network sees them."""

import numpy as np
import pytest

from skbayes_sym import EvidenceAdam, LILAClassifier, LILARegressor, Updates
from skbayes_sym.inspection import InvarianceDisplay
from skbayes_sym.models.augmentations.tabular import ColumnShift, LogScale, Rotation2D

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


FEW = {"max_iter": 4, "optimizer": EvidenceAdam(updates=Updates(n=2)), "random_state": 0}


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return rng.uniform(0, 9, (12, 20)), np.arange(12) % 2


@pytest.fixture(scope="module")
def images_fit(pictures):
    return LILAClassifier((3,), image_shape=(4, 5), **FEW).fit(*pictures)


def test_bars_and_units(images_fit, axes):
    display = InvarianceDisplay.from_estimator(images_fit, ax=axes)
    half_widths = images_fit.invariance_
    assert display.ax_ is axes
    np.testing.assert_array_equal(
        [bar.get_width() for bar in display.bars_], [*half_widths.values()]
    )
    units = dict(zip(display.names, display.units, strict=True))
    assert units == {
        "translation_x": "half-images", "translation_y": "half-images", "rotation": "radians",
        "scale": "log scale", "aspect": "log scale", "shear": "log scale",
    }  # fmt: skip
    assert display.texts_[2].get_text() == f"{half_widths['rotation']:.2f} radians"
    assert display.image_ is None


def test_originals_come_first_and_transforms_have_the_learned_law(images_fit, pictures):
    """A second, far wider law moves the images further; no half-width leaves them alone."""
    X = pictures[0]
    settings = {"n_images": 3, "n_transforms": 2}
    images = InvarianceDisplay.from_estimator(images_fit, X, **settings).images
    assert images.shape == (3, 3, 1, 4, 5)
    np.testing.assert_allclose(images[:, 0].reshape(3, 20), X[:3], rtol=1e-12)

    def moved(eta):
        fit = LILAClassifier(image_shape=(4, 5))
        fit.__dict__.update(images_fit.__dict__, eta_=np.asarray(eta))
        images = InvarianceDisplay.from_estimator(fit, X, **settings).images
        return np.abs(images[:, 1:] - images[:, :1]).max()

    assert moved(np.zeros(6)) < 1e-12
    assert moved(np.full(6, 0.02)) < moved(np.ones(6))
    again = InvarianceDisplay.from_estimator(images_fit, X, **settings).images
    np.testing.assert_array_equal(images, again)


def test_mosaic_holds_every_image(images_fit, pictures):
    display = InvarianceDisplay.from_estimator(images_fit, pictures[0], n_images=2, n_transforms=2)
    mosaic = np.asarray(display.image_.get_array())
    largest = display.images[:, 0].max()
    np.testing.assert_allclose(mosaic[:4, :5], display.images[0, 0, 0] / largest)
    shown = np.clip(display.images[1, 2, 0] / largest, 0, 1)
    np.testing.assert_allclose(mosaic[-4:, -5:], shown)
    assert len(display.axes_) == 2


def test_colour_images():
    images = np.random.default_rng(0).uniform(size=(2, 3, 3, 4, 4))
    display = InvarianceDisplay(["rotation"], np.array([1.0]), ["radians"], images=images).plot()
    mosaic = np.asarray(display.image_.get_array())
    assert mosaic.shape[-1] == 3
    np.testing.assert_allclose(
        mosaic[:4, :4], np.moveaxis(images[0, 0], 0, -1) / images[:, 0].max()
    )


def test_units_of_tables():
    X = np.random.default_rng(0).standard_normal((20, 3))
    families = [Rotation2D(), ColumnShift(columns=(2,)), LogScale(columns=(1, 2), joint=False)]
    reg = LILARegressor((2,), invariances=families, **FEW).fit(X, X[:, 0])
    display = InvarianceDisplay.from_estimator(reg, X)
    assert display.names == ["rotation", "translation_2", "log_scale_1", "log_scale_2"]
    assert display.units == ["radians", "units of x2", "log scale", "log scale"]
    assert display.images is None


def test_a_fit_that_learned_none(pictures):
    lila = LILAClassifier((2,), invariances=None, **FEW).fit(*pictures)
    with pytest.raises(ValueError, match="this LILAClassifier has none"):
        InvarianceDisplay.from_estimator(lila)
    with pytest.raises(ValueError, match="half_widths is empty"):
        InvarianceDisplay([], [], [])
