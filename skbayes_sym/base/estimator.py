"""Base of every estimator: how a fit runs, how its state is kept, and the fit on rows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.device import choose_device, gradient_flops, one_thread
from skbayes_sym.base.log import logging_to_stderr
from skbayes_sym.base.model_factory import require_scales
from skbayes_sym.base.optimizers import Adam
from skbayes_sym.base.predictor import Predictor
from skbayes_sym.base.progress import FLOATS, PREDICT_ROWS, FitProgress
from skbayes_sym.base.requirements import Fitted, Method
from skbayes_sym.base.rows import (
    ENCODE,
    Array,
    Rows,
    Scaling,
    column_scaling,
    is_standardized,
    numeric_conversion,
    require_rows,
)
from skbayes_sym.base.scikit_learn import (
    CallbackSupportMixin,
    class_page_template,
    fit_context,
    validate_data,
)
from skbayes_sym.base.training import Training, default_batch_size
from skbayes_sym.base.warnings import name_in_warnings, warn_user
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.arguments import is_number, short_repr
from skbayes_sym.numerics.runtime import explain_torch_errors
from skbayes_sym.numerics.tables import check_column_names, fill_masked

Made = TypeVar("Made")


class BayesianEstimator(CallbackSupportMixin, BaseEstimator):
    """How any fit runs, and state that survives pickling and moving between devices.

    A fit is all or nothing: its attributes are set at once, at its end, and an error leaves those
    of the fit before.
    """

    # Figures that are computed once training has ended.
    _final_attributes: ClassVar[tuple[str, ...]] = ()
    _doc_link_module = "skbayes_sym"  # of the "?" in HTML
    _doc_link_template = property(lambda _: class_page_template())

    device: str
    likelihood: Any
    n_jobs: int | None = None  # of estimators without the parameter, like the next
    verbose: Any
    warm_start: bool = False
    device_: str
    dtype_: str
    n_iter_: int
    stop_reason_: str

    @contextmanager
    def _fit_environment(self) -> Iterator[None]:
        """Run with one thread, gradients, and the log that ``verbose`` selects.

        Gradients are enabled whatever mode the caller is in: `torch.no_grad` and
        `torch.inference_mode` are for the caller's own tensors.

        The previous fit is put back if anything ends this one before it has something to keep.
        """
        before = {k: v for k, v in vars(self).items() if is_fitted_attribute(k)}
        with (
            name_in_warnings(self),
            one_thread(),
            logging_to_stderr(self.verbose),
            explain_torch_errors(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            try:
                self.__dict__.pop("_fitted_with_", None)
                yield
            except BaseException as error:
                is_new = vars(self).get("_cache") is not before.get("_cache")
                if not (isinstance(error, KeyboardInterrupt) and is_new):
                    for name in [k for k in vars(self) if is_fitted_attribute(k)]:
                        delattr(self, name)
                    self.__dict__.update(before)
                raise
        if self.stop_reason_ == "interrupted":
            warn_user(
                f"{type(self).__name__}: fit was interrupted after {self.n_iter_} steps: the model "
                "is usable but not converged (stop_reason_ = 'interrupted').",
                ConvergenceWarning,
            )
            raise KeyboardInterrupt

    def _validate_params(self) -> None:
        """Name a class that stands where an object of it belongs, then check as scikit-learn."""
        for name, value in self.get_params().items():
            for item in value if isinstance(value, list | tuple) else [value]:
                if isinstance(item, type):
                    raise ValueError(
                        f"{name}={short_repr(value)} has the class {item.__name__} where an object "
                        f"of it belongs: give {item.__name__}()."
                    )
                if isinstance(item, Integral) and not is_number(int(item)):
                    raise ValueError(
                        f"{name} must lie in the range of floating-point numbers, got an int of "
                        f"{int(item).bit_length():,} bits."
                    )
        super()._validate_params()

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as scikit-learn does.

        A fitted model predicts by the likelihood that it was fitted with until it is fitted again;
        parameters of predictions, such as ``n_predict_samples``, count at once.

        Parameters
        ----------
        **params : dict
            New values by name.

        Returns
        -------
        self : object
            The estimator.
        """
        if self.__sklearn_is_fitted__():
            read = ("likelihood", "noise_std")
            before = {name: vars(self)[name] for name in read if name in vars(self)}
            self.__dict__.setdefault("_fitted_with_", before)
        return super().set_params(**params)

    @property
    def _likelihood_parameter(self) -> Any:
        """The parameter, as it was for the fit that predicts."""
        fitted_with = vars(self).get("_fitted_with_", {})
        return fitted_with.get("likelihood", self.likelihood)

    @contextmanager
    def _keep_on_interrupt(self, progress: FitProgress) -> Iterator[None]:
        """On Ctrl-C in whatever follows training, keep what was trained; its bounds are NaN."""
        try:
            yield
        except KeyboardInterrupt:
            unknown = dict.fromkeys(self._final_attributes, float("nan"))
            self._set_fit({**unknown, **progress.interrupted_attributes()})

    def _set_fit(self, attributes: Mapping[str, Any]) -> None:
        """Swap in a finished fit at once; validation has set the ``*_in_`` names already."""
        for name in [k for k in vars(self) if is_fitted_attribute(k) and not k.endswith("_in_")]:
            delattr(self, name)  # a fit by other parameters may have found what this one doesn't
        self.__dict__.update({**attributes, "_cache": {}})

    def __sklearn_is_fitted__(self) -> bool:
        return "stop_reason_" in vars(self)

    @property
    def _continues_fit(self) -> bool:
        """Whether a fit starts where the one before ended."""
        return self.warm_start and self.__sklearn_is_fitted__()

    def _predictive(self, X: Any) -> Any:
        """The law at ``X`` of a model that is neither of rows' targets nor of their classes."""
        return None

    def _predict_device(self) -> torch.device:
        """The fit's device if it is here, else the CPU (a model may move between machines)."""
        device = torch.device(self.device_)
        gone = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
        return torch.device("cpu") if gone else device

    def _cached(self, key: str, make: Callable[[], Made]) -> Made:
        """Device tensors derived from the fitted arrays; never pickled."""
        cache = self.__dict__.setdefault("_cache", {})
        if key not in cache:
            cache[key] = make()
        return cache[key]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_cache", None)
        return state


class RowEstimator(BayesianEstimator):
    """An estimator of rows of ``X``, targets and weights.

    A concrete one says what is believed, ``_make_model(data) -> Model``, and how it is fitted,
    ``_make_method() -> Method``; and what predicts, ``predictor(like) -> Predictor``. Its face
    (`regressor`, `classifier`) checks and scales targets and turns predictions into arrays.
    """

    # Of estimators without the parameter.
    noise_std: Any = "learn"
    optimizer: Any = None
    random_state: Any = 0
    _ensure_all_finite: ClassVar[bool | str] = True  # questions, as `validate_data` has it
    x_mean_: Array
    x_scale_: Array
    standardize: bool | str

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
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
            ``stop_reason_ = "interrupted"``; bounds that follow training may be NaN then. Before
            the first step there is nothing to keep: the previous fit stays. Any other error leaves
            it untouched.
        """
        X = fill_masked(X)
        with self._fit_environment():
            data = Training.open(self, X, y, sample_weight)
            model = self._make_model(data)
            flops = partial(self._flops_per_step, data, model)
            data = replace(data, device=choose_device(self.device, data.device, flops))
            progress = FitProgress(
                data.callback_arguments,
                lambda current_fit: self._fitted_attributes(data, model, current_fit),
            )
            if data.device.type != "cpu":
                progress.n_jobs = None  # a GPU's tensors stay with its process
            method = self._make_method()
            with self._keep_on_interrupt(progress):
                method.requirements.check(model)
                if data.labels is None:
                    require_scales(self._likelihood_parameter, data.rows.y.shape[-1])
                fitted = method.fit(data, model, progress)
                self._set_fit(self._fitted_attributes(data, model, fitted))
        return self

    def _make_model(self, data: Training) -> Model:
        """Network, likelihood, prior and their symmetry."""
        raise NotImplementedError

    def _make_method(self) -> Method:
        """How it is fitted: the constructor's parameters as one value."""
        raise NotImplementedError

    def _flops_per_step(self, data: Training, model: Model) -> float:
        """Floating-point operations of a step, about: what ``device="auto"`` judges by."""
        optimizer = self.optimizer
        n = data.n_rows
        asked = optimizer.batch_size if isinstance(optimizer, Adam) else "auto"
        n_rows = default_batch_size(n) if isinstance(asked, str) else min(int(asked), n)
        return gradient_flops(
            model.network, n_rows, self._n_parallel_networks(model.network.layout.n_params)
        )

    def _n_parallel_networks(self, n_weights: int) -> float:
        """Number of networks whose gradients a step takes."""
        return 1.0

    def _fitted_attributes(self, data: Training, model: Model, fitted: Fitted) -> dict[str, Any]:
        return {
            **data.attributes(),
            "network_": model.network,
            "n_iter_": fitted.n_iter,
            "stop_reason_": fitted.stop_reason,
            **fitted.attributes(data, model),
        }

    def _scale_inputs(self, rows: Rows) -> Scaling:
        enabled = is_standardized(self.standardize, "X")
        return column_scaling(rows.X, rows.weight, enabled=enabled, value_range=rows.x_range)

    def input_blocks(self, X: Array) -> Iterator[Tensor]:
        """Scaled inputs in blocks of rows, on the device, in the precision of the fit."""
        scaled = Scaling(self.x_mean_, self.x_scale_).apply(X)
        for start in range(0, len(scaled), PREDICT_ROWS):
            block = np.ascontiguousarray(scaled[start : start + PREDICT_ROWS])
            yield torch.as_tensor(block).to(self._predict_device(), vars(torch)[self.dtype_])

    def predictor(self, like: Tensor) -> Predictor:
        """Predictor on the device and in the precision of ``like``; made once."""
        raise NotImplementedError

    def _map_blocks(
        self, X: Any, ask: Callable[[Tensor, slice], list[Tensor]], y: Array | None = None
    ) -> list[Array]:
        """Answers of ``ask(x, rows)`` for scaled inputs, joined over blocks of rows."""
        X = self._check_inputs(X)
        if y is not None and len(y) != len(X):
            raise ValueError(f"X has {len(X)} rows and y {len(y)}: they must match.")
        blocks = []
        places = []
        with prediction_environment():
            for x, rows in self._indexed_blocks(X):
                answers = ask(x, rows)
                blocks.append([t.cpu().numpy() for t in answers])
                places.append(rows)
        columns = [np.concatenate(column) for column in zip(*blocks, strict=True)]
        if not all(isinstance(rows, slice) for rows in places):
            # Blocks weren't in the order of the rows.
            order = np.argsort(np.concatenate(places))
            columns = [column[order] for column in columns]
        return check_no_nan(columns)

    def _indexed_blocks(self, X: Any) -> Iterator[tuple[Any, Any]]:
        """Blocks of inputs and their positions among the rows, a slice or an array."""
        start = 0
        for x in self.input_blocks(X):
            yield x, slice(start, start + len(x))
            start += len(x)

    def _check_inputs(self, X: Any) -> Array:
        """Inputs of a question to a fitted model."""
        check_is_fitted(self)
        if "_fitted_with_" in vars(self):
            self._validate_params()
        X = fill_masked(X)
        require_rows(X)
        with numeric_conversion("X", ENCODE, X):
            checked: Array = validate_data(
                self, X, reset=False, dtype=FLOATS, ensure_all_finite=self._ensure_all_finite
            )
        check_column_names(vars(self).get("_column_names_in_"), X)
        return checked

    def _check_columns(self, X: Any) -> None:
        """Refuse a table with other columns than in `fit`."""
        validate_data(self, X, reset=False, skip_check_array=True)
        check_column_names(vars(self).get("_column_names_in_"), X)


def warn_infinite_rows(values: Array, rows: Any = slice(0, None)) -> bool:
    """Say which is the first row that is infinite, and whether there is one.

    ``rows``: positions of the values among the rows of a question, a slice or an array.
    """
    wrong = np.isinf(values).reshape(len(values), -1).any(axis=1)
    if wrong.any():
        place = int(wrong.argmax())
        row = rows.start + place if isinstance(rows, slice) else rows[place]
        warn_user(
            f"the prediction for row {row} of X is infinite: too far from "
            "the training data for this arithmetic. Check the row, or give X as float64.",
            UserWarning,
        )
    return bool(wrong.any())


def check_no_nan(columns: list[Array]) -> list[Array]:
    """Refuse what isn't a number."""
    for values in columns:
        wrong = np.isnan(values).reshape(len(values), -1).any(axis=1)
        if wrong.any():
            raise ValueError(
                f"the prediction for row {int(wrong.argmax())} of X is not a number: too far from "
                "the training data for this arithmetic, or of a fit with extreme parameters. "
                "Check the row, or give X as float64."
            )
    return columns


@contextmanager
def prediction_environment() -> Iterator[None]:
    """Run with one thread, no gradients, and errors of memory and of decompositions in words.

    What predictions keep for later must not be inference tensors, even if the caller's are.
    """
    with one_thread(), torch.inference_mode(False), torch.no_grad(), explain_torch_errors():
        yield


def is_fitted_attribute(name: str) -> bool:
    """Whether an attribute of this name is set by `fit`."""
    return (name.endswith("_") and not name.startswith("__")) or name == "_cache"
