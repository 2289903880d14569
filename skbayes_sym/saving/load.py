"""Reading what `save` wrote."""

import warnings
from os import PathLike, fspath
from typing import Any

from sklearn import __version__ as SKLEARN

from skbayes_sym.saving.classes import ESTIMATORS, is_foreign, rebuilt
from skbayes_sym.saving.file import read_model


def load(path: str | PathLike[str]) -> Any:
    """Load a fitted estimator that `save` wrote.

    The file holds numbers and names, no code: loading one from a stranger is safe, unlike a pickle.
    A model that was fitted on a GPU predicts on the CPU where there is none.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    estimator
        Of the class that was saved, with the same parameters, fitted attributes and predictions:
        one of this package, or a pipeline.

    Raises
    ------
    ValueError
        If the file isn't a saved model or no regular file, is damaged (a checksum tells), holds a
        state that no fit leaves, or was written by a version whose models this one doesn't know.
    ImportError
        Without the package safetensors (extra ``io``).

    Examples
    --------
    >>> import os, tempfile
    >>> import skbayes_sym
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = skbayes_sym.BayesianLinearRegressor().fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     skbayes_sym.save(reg, path)
    ...     same = skbayes_sym.load(path)
    >>> bool((same.predict(X) == reg.predict(X)).all())
    True
    """
    saved = read_model(path)
    if saved.class_name not in ESTIMATORS and not is_foreign(saved.class_name):
        raise ValueError(
            f"{fspath(path)!r} holds a {saved.class_name}, which this version of skbayes_sym "
            f"doesn't have; it was written by version {saved.version}."
        )
    if is_foreign(saved.class_name) and saved.sklearn != SKLEARN:
        warnings.warn(
            f"{fspath(path)!r} holds steps of scikit-learn {saved.sklearn}; this is {SKLEARN}: "
            "their state may have another form. Check predictions, or fit again.",
            UserWarning,
            stacklevel=2,
        )
    if saved.class_name in ESTIMATORS and not saved.attributes:
        raise ValueError(f"{fspath(path)!r} has no fitted state.")
    try:
        return rebuilt(saved.class_name, saved.parameters, saved.attributes)
    except ValueError as error:
        raise ValueError(
            f"{fspath(path)!r} has {error}, which this version of skbayes_sym doesn't know; it was "
            f"written by version {saved.version}."
        ) from error
