"""Writing a fitted estimator to one file."""

from importlib.metadata import version
from os import PathLike

from sklearn import __version__ as SKLEARN
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.saving.classes import class_name, state_of
from skbayes_sym.saving.file import FileContent, write_model


def save(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Write a fitted model to one file, without pickle.

    `skbayes_sym.load` reads it, on any machine, and never runs code that a file holds. The format
    is safetensors, with everything that isn't an array as JSON in its header.

    Parameters
    ----------
    estimator : fitted estimator of this package, pipeline or search
        A `~sklearn.pipeline.Pipeline` is kept with all its steps: scalers, encoders, imputers,
        `~sklearn.compose.ColumnTransformer`, projections. Of a search its best estimator is.
    path : str or path-like
        Replaced if it exists, at once: until the new file is on the disk the old one stays, also
        if the disk is full.

    Raises
    ------
    TypeError
        If a step, parameter or attribute holds what such a file can't, a torch module of one's own
        for example: the message names it. `joblib.dump` keeps those.
    ValueError
        If there is something at ``path`` that is no regular file: a pipe, a device.
    ImportError
        Without the package safetensors (extra ``io``).

    Notes
    -----
    Kept are the parameters and what `fit` found; not kept are settings made by `set_callbacks`,
    ``set_output`` and the ``set_*_request`` methods.
    """
    check_is_fitted(estimator)
    while hasattr(estimator, "best_estimator_"):
        estimator = estimator.best_estimator_
    name = class_name(estimator)
    if name is None:
        raise TypeError(
            f"{type(estimator).__name__} is no class of this package or of the steps that load "
            "knows: use joblib.dump(model, path)."
        )
    parameters = estimator.get_params(deep=False)
    write_model(
        path, FileContent(name, version("skbayes-sym"), parameters, state_of(estimator), SKLEARN)
    )
