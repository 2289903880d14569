"""Reading what `save` wrote."""

from os import PathLike, fspath
from typing import Any

from skbayes_sym.estimators.base import is_fitted_name
from skbayes_sym.estimators.ensemble.estimator import DeepEnsembleClassifier, DeepEnsembleRegressor
from skbayes_sym.estimators.factorization.estimator import SymVIMatrixFactorization
from skbayes_sym.estimators.laplace.estimator import LaplaceClassifier, LaplaceRegressor
from skbayes_sym.estimators.laplace.lila import LILAClassifier, LILARegressor
from skbayes_sym.estimators.linear.classifier import BayesianLinearClassifier
from skbayes_sym.estimators.linear.regressor import BayesianLinearRegressor
from skbayes_sym.estimators.mcmc.estimator import MCMCClassifier, MCMCRegressor
from skbayes_sym.estimators.vi.estimator import SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.saving.file import read_model

ESTIMATORS: dict[str, type] = {
    estimator.__name__: estimator
    for estimator in (
        BayesianLinearClassifier, BayesianLinearRegressor, DeepEnsembleClassifier,
        DeepEnsembleRegressor, LaplaceClassifier, LaplaceRegressor, LILAClassifier,
        LILARegressor, MCMCClassifier, MCMCRegressor, SymmetrizedVIClassifier,
        SymmetrizedVIRegressor, SymVIMatrixFactorization,
    )
}  # fmt: skip


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
        Of the class that was saved, with the same parameters, fitted attributes and predictions.

    Raises
    ------
    ValueError
        If the file isn't a saved model, is damaged, or was written by a version whose models this
        one doesn't know.
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
    if saved.class_name not in ESTIMATORS:
        raise ValueError(
            f"{fspath(path)!r} holds a {saved.class_name}, which this version of skbayes_sym "
            f"doesn't have; it was written by version {saved.version}."
        )
    kind: Any = ESTIMATORS[saved.class_name]
    unknown = sorted(set(saved.parameters) - set(kind._get_param_names()))
    unknown += [name for name in saved.attributes if not is_fitted_name(name)]
    if unknown:
        raise ValueError(
            f"{fspath(path)!r} has {', '.join(unknown)} for {saved.class_name}, which this version "
            f"of skbayes_sym doesn't know; it was written by version {saved.version}."
        )
    estimator = kind(**saved.parameters)
    estimator.__dict__.update(saved.attributes)
    return estimator
