"""What every estimator shares: one `fit` around a recipe, and tensors in and out of it."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, _fit_context
from sklearn.callback import CallbackSupportMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from skbayes_sym.estimators._fit.callbacks import FitTask
from skbayes_sym.estimators._fit.context import FLOATS, PREDICT_ROWS, FitContext, logger
from skbayes_sym.estimators._fit.device import one_thread, resolve_device, resolve_dtype
from skbayes_sym.estimators._fit.rows import (
    ENCODE,
    Array,
    Rows,
    Scaling,
    canonical_rows,
    column_scaling,
    numbers_due,
)
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.saving.file import SavedModel, write_model


class BayesianEstimator(CallbackSupportMixin, BaseEstimator):
    """Template of `fit`, and state that survives pickling and moving between devices.

    A concrete estimator brings ``_fit_recipe(context) -> Fitted`` and ``_predictive(x)``; its face
    (`_faces`) brings ``_check_targets``, ``_encode_targets`` and everything that predicts.
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the posterior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets (regressors) or class labels (classifiers).
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative multiplicities: a weight of 2 is the row given twice, exactly.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        KeyboardInterrupt
            If interrupted, after keeping the model reached so far with
            ``stop_reason_ = "interrupted"``. Any other error leaves the previous fit untouched.
        """
        return self._run_fit(lambda: self._open_fit(X, y, sample_weight))

    def _run_fit(self, open_fit: Callable[[], Any]) -> Any:
        """Check the input, follow the recipe, swap the result in; all or nothing."""
        with _unchanged_on_error(self), one_thread(), _logging_to_stderr(self.verbose):
            fitted = self._fit_recipe(open_fit())
            _replace_fit(self, {**fitted.attributes, "stop_reason_": fitted.stop_reason})
        if fitted.stop_reason == "interrupted":
            warn_user(
                f"fit was interrupted after {self.n_iter_} steps: the model is usable but not "
                "converged (stop_reason_ = 'interrupted').",
                ConvergenceWarning,
            )
            raise KeyboardInterrupt
        return self

    def _open_fit(self, X: Any, y: Any, sample_weight: Any) -> FitContext:
        """Validate everything before the first array is allocated for the fit."""
        device = resolve_device(self.device)
        X_checked, y_checked = self._check_targets(X, y)
        weight = _check_sample_weight(
            sample_weight, X_checked, dtype=np.float64, ensure_non_negative=True
        )
        present = weight > 0  # a row of zero weight is a row that isn't there
        y_present = self._encode_targets(y_checked[present])
        origin = np.full(len(weight), -1)
        rows, origin[present] = canonical_rows(X_checked[present], y_present, weight[present])
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        return FitContext(
            rows=rows,
            origin=origin,
            x_scaling=self._scale_inputs(rows),
            # An estimator without a random_state has nothing random about it.
            seed=int(check_random_state(getattr(self, "random_state", 0)).randint(2**31 - 1)),
            device=device,
            dtype=resolve_dtype(self.dtype, X_checked),
            begin=lambda n_blocks: FitTask(self, X, y, metadata, n_blocks),
        )

    def _scale_inputs(self, rows: Rows) -> Scaling:
        return column_scaling(rows.X, rows.weight, enabled=self.standardize)

    def _input_blocks(self, X: Array) -> Iterator[Tensor]:
        """Scaled inputs in blocks of rows, on the device, in the precision of the fit."""
        scaled = Scaling(self.x_mean_, self.x_scale_).apply(X)
        for start in range(0, len(scaled), PREDICT_ROWS):
            block = np.ascontiguousarray(scaled[start : start + PREDICT_ROWS])
            yield torch.as_tensor(block).to(self._predict_device(), getattr(torch, self.dtype_))

    def _predict_device(self) -> torch.device:
        """The fit's device if it is here, else the CPU (a model may move between machines)."""
        device = torch.device(self.device_)
        gone = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
        return torch.device("cpu") if gone else device

    def _cached(self, key: str, make: Callable[[], Any]) -> Any:
        """Device tensors derived from the fitted arrays; never pickled."""
        cache = self.__dict__.setdefault("_cache", {})
        if key not in cache:
            cache[key] = make()
        return cache[key]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_cache", None)
        return state

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to one file, without pickle.

        `skbayes_sym.load` reads it, on any machine, and never runs code that a file holds. The
        format is safetensors, with everything that isn't an array as JSON in its header.

        Parameters
        ----------
        path : str or path-like
            Overwritten if it exists.

        Raises
        ------
        TypeError
            If a parameter or attribute holds what such a file can't, a torch module of one's own
            for example: the message names it. `joblib.dump` keeps those.
        ImportError
            Without the package safetensors (extra ``io``).

        Notes
        -----
        Kept are the parameters and what `fit` found; not kept are settings made by `set_callbacks`,
        ``set_output`` and the ``set_*_request`` methods.
        """
        from skbayes_sym import __version__  # the package imports this module first

        check_is_fitted(self)
        kind = type(self)
        if not kind.__module__.startswith("skbayes_sym."):
            raise TypeError(
                f"{kind.__name__} is a class of your own, which load wouldn't find: use "
                "joblib.dump(model, path)."
            )
        attributes = {k: v for k, v in self.__getstate__().items() if is_fitted_name(k)}
        parameters = self.get_params(deep=False)
        write_model(path, SavedModel(kind.__name__, __version__, parameters, attributes))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "posterior_")

    def _check_inputs(self, X: Any) -> Array:
        """Inputs of a question to a fitted model."""
        check_is_fitted(self)
        with numbers_due("X", ENCODE):
            return validate_data(self, X, reset=False, dtype=FLOATS)


def is_fitted_name(name: str) -> bool:
    """Whether an attribute of this name is set by `fit`."""
    return (name.endswith("_") and not name.startswith("__")) or name == "_cache"


def _replace_fit(estimator: Any, attributes: Mapping[str, Any]) -> None:
    """Swap in a finished fit at once; `_open_fit` has set the ``*_in_`` names already."""
    estimator.__dict__.pop("_cache", None)
    estimator.__dict__.update(attributes)


@contextmanager
def _unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Put the previous fit back if anything, a second Ctrl-C included, ends this one early."""
    before = {k: v for k, v in vars(estimator).items() if is_fitted_name(k)}
    try:
        yield
    except BaseException:
        for name in [k for k in vars(estimator) if is_fitted_name(k)]:
            delattr(estimator, name)
        vars(estimator).update(before)
        raise


@contextmanager
def _logging_to_stderr(verbose: int) -> Iterator[None]:
    """Show the package's log for the time of one fit."""
    if not verbose:
        yield
        return
    handler, level = logging.StreamHandler(sys.stderr), logger.level
    handler.setFormatter(logging.Formatter("[skbayes_sym] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
