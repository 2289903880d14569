"""Writing a fitted estimator to one file."""

from importlib.metadata import version
from os import PathLike

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.estimators.base import is_fitted_name
from skbayes_sym.saving.file import SavedModel, write_model


def save(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Write a fitted estimator to one file, without pickle.

    `skbayes_sym.load` reads it, on any machine, and never runs code that a file holds. The format
    is safetensors, with everything that isn't an array as JSON in its header.

    Parameters
    ----------
    estimator : fitted estimator of this package
    path : str or path-like
        Overwritten if it exists.

    Raises
    ------
    TypeError
        If a parameter or attribute holds what such a file can't, a torch module of one's own for
        example: the message names it. `joblib.dump` keeps those.
    ImportError
        Without the package safetensors (extra ``io``).

    Notes
    -----
    Kept are the parameters and what `fit` found; not kept are settings made by `set_callbacks`,
    ``set_output`` and the ``set_*_request`` methods.
    """
    check_is_fitted(estimator)
    kind = type(estimator)
    if not kind.__module__.startswith("skbayes_sym."):
        raise TypeError(
            f"{kind.__name__} is a class of your own, which load wouldn't find: use "
            "joblib.dump(model, path)."
        )
    attributes = {k: v for k, v in estimator.__getstate__().items() if is_fitted_name(k)}
    parameters = estimator.get_params(deep=False)
    write_model(path, SavedModel(kind.__name__, version("skbayes-sym"), parameters, attributes))
