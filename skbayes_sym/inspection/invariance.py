"""Learned invariances: transformations of the input that a model ignores, and their range."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skbayes_sym.base.rows import Array
from skbayes_sym.inspection._drawing import BLUE, Display, hide_frame, split_axes
from skbayes_sym.inspection._fitted import list_feature_names, require_attributes, unwrap_fitted
from skbayes_sym.models.augmentations.augmentation import sample_stratified_noise
from skbayes_sym.numerics.arguments import check_arrays, check_names, draw_seed
from skbayes_sym.numerics.random import generator_from

_IMAGE_UNITS = {"translation_x": "half-images", "translation_y": "half-images"}
_UNITS = {
    **dict.fromkeys(("scale", "scale_x", "scale_y", "aspect", "shear", "log_scale"), "log scale"),
    **dict.fromkeys(("brightness", "contrast"), "log factor"),
    **dict.fromkeys(("rotation", "hue"), "radians"),
    "noise": "of the largest pixel", "blur": "pixels",
}  # fmt: skip


class InvarianceDisplay(Display):
    """Learned half-widths as bars, and examples of transformed images.

    A bar is the half-width of the uniform distribution of one generator, with its unit. Each row of
    images begins with the original. Random transformations follow, over which the network averages.

    Parameters
    ----------
    names : sequence of str of length k
        Names of the generators.
    half_widths : ndarray of shape (k,)
        Half-width of each generator.
    units : sequence of str of length k
        Unit of each half-width.
    images : ndarray of shape (n_images, 1 + n_transforms, C, H, W), optional
        Images, each with the original first.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the plot. With images they contain two panels.
    axes_ : list of matplotlib Axes
        Panel of the bars, and panel of the images if there are any.
    figure_ : matplotlib Figure
        Figure of the plot.
    bars_ : matplotlib BarContainer
        Bars of the half-widths.
    texts_ : list of matplotlib Annotation
        Half-widths with units.
    image_ : matplotlib AxesImage or None
        All images in one, with one row per original.

    See Also
    --------
    skbayes_sym.LILAClassifier : Classifier that learns the half-widths.

    Notes
    -----
    Half-widths in different units aren't directly comparable. A pixel of an image moves on average
    by about 0.8 times a rotation angle or log scale, and by the full translation.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym import LILARegressor
    >>> from skbayes_sym.inspection import InvarianceDisplay
    >>> from skbayes_sym.models.augmentations.tabular import Rotation2D
    >>> X = np.random.default_rng(0).standard_normal((60, 2))
    >>> reg = LILARegressor((10,), invariances=[Rotation2D()], max_iter=300, random_state=0)
    >>> display = InvarianceDisplay.from_estimator(reg.fit(X, np.hypot(X[:, 0], X[:, 1])))
    >>> display.names, display.units
    (['rotation'], ['radians'])
    """

    def __init__(
        self,
        names: Sequence[str],
        half_widths: Array,
        units: Sequence[str],
        *,
        images: Array | None = None,
    ) -> None:
        arrays = check_arrays(
            "InvarianceDisplay",
            {"half_widths": "k", "images": "ntchw?"},
            half_widths=half_widths,
            images=images,
        )
        self.half_widths = arrays["half_widths"]
        if not len(self.half_widths):
            raise ValueError("InvarianceDisplay has nothing to draw: half_widths is empty.")
        self.names = check_names("InvarianceDisplay", "names", names, len(self.half_widths))
        self.units = check_names("InvarianceDisplay", "units", units, len(self.half_widths))
        self.images = arrays.get("images")

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: Any = None,
        *,
        n_images: int = 4,
        n_transforms: int = 4,
        random_state: Any = 0,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Plot the half-widths of a fitted estimator, and transformed images.

        Parameters
        ----------
        estimator : estimator
            Fitted estimator with learned invariances, or a pipeline or search around one.
        X : array-like of shape (n_samples, n_features), optional
            Images, if the model was fitted with ``image_shape``. The first ones are shown.
        n_images : int, default=4
            Number of images.
        n_transforms : int, default=4
            Number of random transformations per image.
        random_state : int, RandomState instance or None, default=0
            Seed or generator of the transformations.
        ax : matplotlib Axes, optional
            Axes to draw into. New axes by default.
        **kwargs : dict
            Arguments of ``Axes.barh`` for the half-widths.

        Returns
        -------
        InvarianceDisplay

        Raises
        ------
        TypeError
            If the estimator doesn't learn invariances.
        ValueError
            If it was fitted without invariances.
        """
        model, prepare = unwrap_fitted(estimator)
        require_attributes(
            model, ["invariance_"], cls.__name__, "an estimator that learns invariances"
        )
        if not model.invariance_:
            raise ValueError(
                f"InvarianceDisplay needs learned half-widths, and this {type(model).__name__} has "
                "none: fit it with an image_shape, or with invariances=[...]."
            )
        images = None
        if X is not None and model.image_shape is not None:
            seed = draw_seed(random_state)
            images = _transform_images(model, np.asarray(prepare(X))[:n_images], n_transforms, seed)
        display = cls(
            list(model.invariance_),
            np.array(list(model.invariance_.values())),
            _list_units(model),
            images=images,
        )
        return display.plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        height = 1.2 + 0.4 * len(self.names)
        if self.images is not None:
            height = max(height, 3.2)
        return 6.0, height

    def _draw(self, style: dict[str, Any]) -> None:
        if self.images is None:
            self.axes_ = [self.ax_]
            self.image_ = None
            relative_width = 1.35  # leaves space for the text at the end of the longest bar
        else:
            self.axes_ = split_axes(self.ax_, (1.0, 1.3))
            self.image_ = self._draw_images(self.axes_[1])
            relative_width = 1.9
        n_bars = len(self.names)
        panel = self.axes_[0]
        rows = np.arange(n_bars)
        self.bars_ = panel.barh(rows, self.half_widths, **{"height": 0.6, "color": BLUE, **style})
        self.texts_ = [
            panel.annotate(
                f"{half_width:.2f} {unit}",
                (half_width, row),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
            for row, half_width, unit in zip(rows, self.half_widths, self.units, strict=True)
        ]
        panel.set_yticks(rows, [name.replace("_", " ") for name in self.names])
        panel.set(
            xlim=(0, relative_width * max(np.max(self.half_widths), 1e-3)),
            ylim=(n_bars - 0.5, -0.5),
            xlabel="half-width",
        )
        hide_frame(panel)

    def _draw_images(self, ax: Any) -> Any:
        """Draw the images into ``ax``."""
        assert self.images is not None
        mosaic = _join_images(self.images)
        image = ax.imshow(mosaic, cmap="gray_r", vmin=0.0, interpolation="nearest")
        width = self.images.shape[-1]
        ax.set_xticks(
            [0.5 * width - 0.5, 1.5 + width + 0.5 * (mosaic.shape[1] - width - 1)],
            ["original", "random transforms"],
        )
        ax.set_yticks([])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        return image


def _list_units(model: Any) -> list[str]:
    """Unit of every half-width, from the generator's name."""
    if model.image_shape is not None:
        return [{**_UNITS, **_IMAGE_UNITS}.get(name, "") for name in model.invariance_]
    columns = list_feature_names(model, np.empty((0, model.n_features_in_)))
    units = []
    for name in model.invariance_:
        # Generators of single columns end with the column's index.
        prefix, _, column = name.rpartition("_")
        if not column.isdigit():
            units.append(_UNITS.get(name, ""))
        elif prefix == "translation":
            units.append(f"units of {columns[int(column)]}")
        else:
            units.append(_UNITS.get(prefix, ""))
    return units


def _transform_images(model: Any, X: Array, n_transforms: int, seed: int) -> Array:
    """Transform images at random by the learned invariances.

    Parameters
    ----------
    model : estimator
        Fitted estimator with learned invariances.
    X : ndarray of shape (n_images, n_features)
        Images.
    n_transforms : int
        Number of transformations per image.
    seed : int
        Seed of the transformations.

    Returns
    -------
    ndarray of shape (n_images, 1 + n_transforms, C, H, W)
        Each image and its transformations, in the units of ``X``.
    """
    x = torch.as_tensor((X - model.x_mean_) / model.x_scale_).double()
    family = model.augmentation_
    noise = sample_stratified_noise(
        len(x), n_transforms, family.half_width.n_noise, generator=generator_from(seed), like=x
    )
    with torch.no_grad():
        transformed = family.transform(x, torch.as_tensor(model.eta_).double(), noise)
    shape = tuple(model.image_shape)
    if len(shape) == 2:
        shape = (1, *shape)  # one channel
    standardised = np.concatenate([x.numpy()[:, None], transformed.numpy()], axis=1)
    rescaled = standardised * model.x_scale_ + model.x_mean_
    return rescaled.reshape(*rescaled.shape[:2], *shape)


def _join_images(images: Array) -> Array:
    """Join all images into one, a gap of one pixel between them and of two after the originals."""
    n_rows, n_columns, channels, height, width = images.shape
    is_coloured = channels == 3
    pixels = np.moveaxis(images, 2, -1)
    if not is_coloured:
        pixels = pixels.mean(axis=-1, keepdims=True)
    starts = [column * (width + 1) + (column > 0) for column in range(n_columns)]
    shape = (n_rows * (height + 1) - 1, starts[-1] + width, pixels.shape[-1])
    largest = max(float(np.max(pixels[:, 0])), 1e-12)
    mosaic = np.full(shape, 1.0 if is_coloured else np.nan)
    for row in range(n_rows):
        top = row * (height + 1)
        for column in range(n_columns):
            left = starts[column]
            scaled = np.clip(pixels[row, column] / largest, 0.0, 1.0)
            mosaic[top : top + height, left : left + width] = scaled
    return mosaic if is_coloured else mosaic[..., 0]
