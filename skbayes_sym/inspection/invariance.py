"""The input transformations that a model has learned to ignore, and how far."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skbayes_sym.base.rows import Array
from skbayes_sym.inspection._drawing import BLUE, Display, no_box, split_axes
from skbayes_sym.inspection._fitted import feature_names, fitted_model, require
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
    """Learned half-widths as bars, and what they do to images.

    A bar is the half-width of the uniform law of one generator, its unit written at its end. Under
    "original" each row of images begins as it is in the data; its random transforms follow, those
    that the network averages over.

    Parameters
    ----------
    names : sequence of str of length k
    half_widths : ndarray of shape (k,)
    units : sequence of str of length k
    images : ndarray of shape (n_images, 1 + n_transforms, C, H, W), optional
        The original first.

    Attributes
    ----------
    ax_ : matplotlib Axes
        The axes given, or new ones; with images the frame of two panels.
    axes_ : list of matplotlib Axes
        Bars, and images if there are any.
    figure_ : matplotlib Figure
    bars_ : matplotlib BarContainer
    texts_ : list of matplotlib Annotation
        Half-widths with units.
    image_ : matplotlib AxesImage or None
        All images in one, a row each.

    See Also
    --------
    skbayes_sym.LILAClassifier : Learns half-widths.

    Notes
    -----
    Half-widths in different units have different reach. A pixel of an image moves by about 0.8 of a
    rotation or log scale, and by all of a translation.

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
        self, names: Sequence[str], half_widths: Array, units: Sequence[str], *,
        images: Array | None = None,
    ) -> None:  # fmt: skip
        arrays = check_arrays(
            "InvarianceDisplay", {"half_widths": "k", "images": "ntchw?"}, half_widths=half_widths,
            images=images,
        )  # fmt: skip
        self.half_widths = arrays["half_widths"]
        if not len(self.half_widths):
            raise ValueError("InvarianceDisplay has nothing to draw: half_widths is empty.")
        self.names = check_names("InvarianceDisplay", "names", names, len(self.half_widths))
        self.units = check_names("InvarianceDisplay", "units", units, len(self.half_widths))
        self.images = arrays.get("images")

    @classmethod
    def from_estimator(
        cls, estimator: BaseEstimator, X: Any = None, *, n_images: int = 4, n_transforms: int = 4,
        random_state: Any = 0, ax: Any = None, **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Read the half-widths off a fit, transform images and plot.

        Parameters
        ----------
        estimator : estimator
            Fitted, with learned invariances, or a pipeline or search around it.
        X : array-like of shape (n_samples, n_features), optional
            Images, of which the first are shown, if the model was fitted with ``image_shape``.
        n_images, n_transforms : int, default=4
        random_state : int, RandomState instance or None, default=0
            Source of the transforms.
        ax : matplotlib Axes, optional
            New ones by default.
        **kwargs : dict
            For the half-widths' ``Axes.barh``.

        Raises
        ------
        TypeError
            If it learns no invariances.
        ValueError
            If it was told to learn none.
        """
        model, prepare = fitted_model(estimator)
        require(model, ["invariance_"], cls.__name__, "an estimator that learns invariances")
        if not model.invariance_:
            raise ValueError(
                f"InvarianceDisplay needs learned half-widths, and this {type(model).__name__} has "
                "none: fit it with an image_shape, or with invariances=[...]."
            )
        images = None
        if X is not None and model.image_shape is not None:
            seed = draw_seed(random_state)
            images = _transformed(model, np.asarray(prepare(X))[:n_images], n_transforms, seed)
        display = cls(
            list(model.invariance_), np.array(list(model.invariance_.values())),
            _units(model), images=images,
        )  # fmt: skip
        return display.plot(ax=ax, **kwargs)

    def _size(self) -> tuple[float, float]:
        return 6.0, max(1.2 + 0.4 * len(self.names), 0.0 if self.images is None else 3.2)

    def _draw(self, style: dict[str, Any]) -> None:
        n = len(self.names)
        self.axes_ = [self.ax_] if self.images is None else split_axes(self.ax_, (1.0, 1.3))
        self.image_ = None if self.images is None else self._draw_images(self.axes_[1])
        bars = self.axes_[0]
        rows = np.arange(n)
        self.bars_ = bars.barh(rows, self.half_widths, **{"height": 0.6, "color": BLUE, **style})
        self.texts_ = [
            bars.annotate(
                f"{half_width:.2f} {unit}", (half_width, row), (4, 0), textcoords="offset points",
                va="center", fontsize="small",
            )
            for row, half_width, unit in zip(rows, self.half_widths, self.units, strict=True)
        ]  # fmt: skip
        bars.set_yticks(rows, [name.replace("_", " ") for name in self.names])
        room = 1.35 if self.images is None else 1.9  # for the text at the longest bar's end
        bars.set(
            xlim=(0, room * max(np.max(self.half_widths), 1e-3)), ylim=(n - 0.5, -0.5),
            xlabel="half-width",
        )  # fmt: skip
        no_box(bars)

    def _draw_images(self, ax: Any) -> Any:
        assert self.images is not None
        mosaic = _mosaic(self.images)
        drawn = ax.imshow(mosaic, cmap="gray_r", vmin=0.0, interpolation="nearest")
        width = self.images.shape[-1]
        ax.set_xticks(
            [0.5 * width - 0.5, 1.5 + width + 0.5 * (mosaic.shape[1] - width - 1)],
            ["original", "random transforms"],
        )
        ax.set_yticks([])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        return drawn


def _units(model: Any) -> list[str]:
    """Unit of every half-width, by the generator's name."""
    named: Mapping[str, str] = _UNITS
    if model.image_shape is not None:
        return [{**named, **_IMAGE_UNITS}.get(name, "") for name in model.invariance_]
    columns = feature_names(model, np.empty((0, model.n_features_in_)))
    units = []
    for name in model.invariance_:
        kind, _, column = name.rpartition("_")
        if kind == "translation" and column.isdigit():
            units.append(f"units of {columns[int(column)]}")
        else:
            units.append(named.get(kind if column.isdigit() else name, ""))
    return units


def _transformed(model: Any, X: Array, n: int, seed: int) -> Array:
    """Images and their random transforms, in the units of ``X``, (images, 1 + n, C, H, W)."""
    x = torch.as_tensor((X - model.x_mean_) / model.x_scale_).double()
    family = model.augmentation_
    noise = sample_stratified_noise(
        len(x), n, family.half_width.n_noise, generator=generator_from(seed), like=x
    )
    with torch.no_grad():
        moved = family.transform(x, torch.as_tensor(model.eta_).double(), noise)
    shape = tuple(model.image_shape)
    rows = np.concatenate([x.numpy()[:, None], moved.numpy()], axis=1)
    rescale = rows * model.x_scale_ + model.x_mean_
    return rescale.reshape(*rows.shape[:2], *((1, *shape) if len(shape) == 2 else shape))


def _mosaic(images: Array) -> Array:
    """Grey or coloured image of all, a pixel of nothing between two and two after the first."""
    n_rows, n_columns, channels, height, width = images.shape
    pixels = np.moveaxis(images, 2, -1) if channels == 3 else images.mean(axis=2)[..., None]
    starts = [column * (width + 1) + (column > 0) for column in range(n_columns)]
    shape = (n_rows * (height + 1) - 1, starts[-1] + width, pixels.shape[-1])
    largest = max(float(np.max(pixels[:, 0])), 1e-12)
    mosaic = np.full(shape, np.nan if channels != 3 else 1.0)
    for row in range(n_rows):
        for column in range(n_columns):
            window = (slice(row * (height + 1), row * (height + 1) + height),
                      slice(starts[column], starts[column] + width))  # fmt: skip
            mosaic[window] = np.clip(pixels[row, column] / largest, 0.0, 1.0)
    return mosaic if channels == 3 else mosaic[..., 0]
