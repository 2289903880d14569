"""Base class of all estimators: the model, how a fit runs, and how its state is kept."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skbayes_sym.base.coded_numbers import warn_coded_numbers
from skbayes_sym.base.columns import (
    Columns,
    LevelBlock,
    LevelPredictor,
    OpenRows,
    as_table,
    column_medians,
)
from skbayes_sym.base.device import choose_device, gradient_flops, resolve_device
from skbayes_sym.base.extrapolation import (
    ExtrapolatingPredictor,
    ScaledRange,
    TrainingRange,
    encoded_inputs,
    measure_rates,
)
from skbayes_sym.base.input_validation import (
    ENCODE,
    is_finite_array,
    numeric_conversion,
    require_rows,
    warn_reordered_rows,
)
from skbayes_sym.base.messages import logging_to_stderr, name_in_warnings, warn_user
from skbayes_sym.base.model_factory import (
    PriorParameter,
    bind_prior,
    give_each_target_a_scale,
    layer_sizes,
)
from skbayes_sym.base.optimizers import Adam
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.predictor import PositivePredictor, Predictor
from skbayes_sym.base.progress import FLOATS, PREDICT_ROWS, FitProgress
from skbayes_sym.base.requirements import (
    ANY_LIKELIHOOD,
    ANY_NETWORK,
    ANY_PRIOR,
    FitResult,
    Method,
    refuse_parameters,
    require_kind,
)
from skbayes_sym.base.rows import Array, Rows, Scaling, column_scaling, is_standardized
from skbayes_sym.base.scikit_learn import (
    CallbackSupportMixin,
    ReadableSignature,
    class_page_template,
    fit_context,
    num_samples,
    validate_data,
)
from skbayes_sym.base.target_columns import warn_target_columns
from skbayes_sym.base.targets import Targets
from skbayes_sym.base.training import Training, default_batch_size
from skbayes_sym.base.training_columns import TrainingColumns
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.models.networks.modules import ModuleNetwork, has_bounded_outputs
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import HalfNormal, LayerScales, Prior, UnboundPrior
from skbayes_sym.numerics.arguments import is_number, object_array, short_repr
from skbayes_sym.numerics.memory import prior_allocation, require_memory
from skbayes_sym.numerics.progress import reporting_to
from skbayes_sym.numerics.runtime import explain_torch_errors, one_thread
from skbayes_sym.numerics.tables import (
    check_column_names,
    fill_masked,
    non_string_column_names,
    read_table,
)
from skbayes_sym.symmetry.group import SymmetryGroup, Trivial

CachedValue = TypeVar("CachedValue")

_N_TESTED_ROWS = 16  # rows at which the outputs of a module are tested


class BayesianEstimator(CallbackSupportMixin, BaseEstimator):
    """Run fits, and keep state that survives pickling and moving between devices.

    A fit is atomic: its attributes are set together at its end, and an error leaves those of the
    previous fit unchanged.

    `fit` takes rows of ``X``, targets and weights. A subclass defines the model by
    ``_make_model(data) -> Model``, which makes a network by default, the way to fit it by
    ``_make_method() -> Method``, and its predictions by ``predictor(like) -> Predictor``. The
    regressor and classifier mixins validate targets and turn predictions into arrays. The matrix
    factorisation reads and fits its data itself.
    """

    __signature__ = ReadableSignature()

    # Attributes that are computed after training has ended, such as bounds.
    _final_attributes: ClassVar[tuple[str, ...]] = ()
    # Whether parameters of parameters are checked; members of a stack check their own.
    _checks_nested_params: ClassVar[bool] = True
    # Whether inputs may be tables with categorical columns and missing values.
    _accepts_tables: ClassVar[bool] = False
    # Where the "?" in the HTML representation links to.
    _doc_link_module = "skbayes_sym"
    _doc_link_template = property(lambda _: class_page_template())

    device: str
    likelihood: Any
    verbose: Any
    hidden_layer_sizes: Any
    activation: str
    network: Any
    prior: PriorParameter
    # Values for estimators that lack these parameters.
    n_jobs: int | None = None
    warm_start: bool = False
    noise_std: Any = "learn"
    optimizer: Any = None
    random_state: Any = 0
    standardize: bool | str = True

    _likelihoods_by_name: ClassVar[Mapping[str, Likelihood]]
    _unsupported_likelihoods: ClassVar[tuple[type, ...]]

    network_: Network
    x_mean_: Array
    x_scale_: Array
    device_: str
    dtype_: str
    n_iter_: int
    stop_reason_: str
    # Names of the columns, if they are no strings.
    _column_names_in_: list[str] | None = None
    # Encoding of the columns of a table, or None; then the medians.
    columns_in_: Columns | None
    _medians_in_: Array
    # Types and values of the columns, with which those of later rows are compared.
    _training_columns_in_: TrainingColumns
    # Range of the columns of a table; None if predictions beyond it aren't changed.
    _training_range_in_: TrainingRange | None = None
    # Tensors that are derived from the fitted arrays when they are first needed.
    _cache: dict[str, Any] | None = None
    # Values at the time of the fit of parameters that were set since and that predictions use.
    _params_at_fit_: Mapping[str, Any] | None = None

    @contextmanager
    def _fit_environment(self) -> Iterator[None]:
        """Run a fit with one thread, gradients, and the log that ``verbose`` selects.

        Gradients are enabled whatever mode the caller is in: `torch.no_grad` and
        `torch.inference_mode` are for the caller's own tensors.

        If the fit ends before it has a result to keep, the attributes of the previous fit are
        restored.
        """
        previous = {k: v for k, v in vars(self).items() if is_fitted_attribute(k)}
        with (
            name_in_warnings(self),
            one_thread(),
            logging_to_stderr(self.verbose),
            explain_torch_errors(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            try:
                self.__dict__.pop("_params_at_fit_", None)
                yield
            except BaseException as error:
                has_result = self._cache is not previous.get("_cache")
                if not (isinstance(error, KeyboardInterrupt) and has_result):
                    for name in [k for k in vars(self) if is_fitted_attribute(k)]:
                        delattr(self, name)
                    self.__dict__.update(previous)
                raise
        if self.stop_reason_ == "interrupted":
            warn_user(
                f"{type(self).__name__}: fit was interrupted after {self.n_iter_} steps: the model "
                "is usable but not converged (stop_reason_ = 'interrupted').",
                ConvergenceWarning,
            )
            raise KeyboardInterrupt

    def _validate_params(self) -> None:
        """Raise a ValueError for a class in place of its instance, then check as scikit-learn."""
        for name, value in self.get_params(deep=self._checks_nested_params).items():
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

        A fitted model predicts with the likelihood that it was fitted with until it is fitted
        again. Parameters of predictions, such as ``n_predict_samples``, take effect immediately.

        Parameters
        ----------
        **params : dict
            New values by name.

        Returns
        -------
        self : object
            The estimator.
        """
        if self.__sklearn_is_fitted__() and self._params_at_fit_ is None:
            names = ("likelihood", "noise_std")
            self._params_at_fit_ = {name: vars(self)[name] for name in names if name in vars(self)}
        return super().set_params(**params)

    def _param_at_fit(self, name: str) -> Any:
        """Value that a parameter had when the present fit was made."""
        fitted_with = self._params_at_fit_ or {}
        return fitted_with.get(name, getattr(self, name))

    @contextmanager
    def _keep_on_interrupt(self, progress: FitProgress) -> Iterator[None]:
        """Keep the trained model if Ctrl-C interrupts what follows; its bounds are NaN then.

        Reports of progress inside go to the stages of this fit, and not to a fit around it.
        """
        try:
            with reporting_to(None):
                yield
        except KeyboardInterrupt:
            unknown = dict.fromkeys(self._final_attributes, float("nan"))
            self._set_fit({**unknown, **progress.interrupted_attributes()})

    def _set_fit(self, attributes: Mapping[str, Any]) -> None:
        """Replace the attributes of the previous fit; validation has set ``*_in_`` already."""
        columns: Columns | None = fitted_attribute(self, "columns_in_")
        if columns is None:
            dates = ""
        else:
            dates = columns.describe_dates()
        if dates and "summary_" in attributes:
            attributes = {**attributes, "summary_": f"{attributes['summary_']}\n{dates}"}
        for name in [k for k in vars(self) if is_fitted_attribute(k) and not k.endswith("_in_")]:
            # A fit with other parameters may have set attributes that the new fit doesn't have.
            delattr(self, name)
        self.__dict__.update({**attributes, "_cache": {}})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self._accepts_tables:
            tags.input_tags.allow_nan = True
            tags.input_tags.string = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "stop_reason_")

    def forget_training_range(self) -> None:
        """Don't change predictions beyond the range of the training data, as a stack does it."""
        self._training_range_in_ = None

    @property
    def _continues_fit(self) -> bool:
        """Whether a fit starts from the result of the previous one."""
        return self.warm_start and self.__sklearn_is_fitted__()

    def _predictive(self, _X: Any) -> Any:
        """Return the predictive distribution if the model isn't one of rows; else None."""
        return None

    def _predict_device(self) -> torch.device:
        """Device of the fit if this machine has it, else the CPU."""
        device = torch.device(self.device_)
        is_missing = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
        if is_missing:
            return torch.device("cpu")
        return device

    def _cached(self, key: str, make: Callable[[], CachedValue]) -> CachedValue:
        """Return a value derived from the fitted arrays, computed once and never pickled."""
        cache = self.__dict__.setdefault("_cache", {})
        if key not in cache:
            cache[key] = make()
        return cache[key]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_cache", None)
        return state

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
            ``stop_reason_ = "interrupted"``. Bounds that are computed after training may be NaN
            then. Before the first step there is nothing to keep, and the previous fit stays. Any
            other error leaves it unchanged, too.
        """
        return self._fit_rows(X, y, sample_weight)

    def _fit_rows(
        self, X: Any, y: Any, sample_weight: Any, groups: Any = None, **row_parameters: Any
    ) -> Self:
        """Fit the posterior; see `fit`.

        Parameters
        ----------
        X, y, sample_weight, groups : array-like
            Training data as the user passed them. Weights and groups can be None.
        **row_parameters : array-like or None
            ``noise_std`` and ``exposure`` of estimators that support them.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        with self._fit_environment():
            data = self._training_data(X, y, sample_weight, groups, **row_parameters)
            model = self._make_model(data)
            flops = partial(self._flops_per_step, data, model)
            data = replace(data, device=choose_device(self.device, data.device, flops))
            progress = FitProgress(
                data.callback_arguments,
                lambda current_fit: self._fitted_attributes(data, model, current_fit),
            )
            if data.device.type != "cpu":
                # Tensors on a GPU stay in their process.
                progress.n_jobs = None
            method = self._make_method()
            with self._keep_on_interrupt(progress):
                method.requirements.check(model)
                fitted = method.fit(data, model, progress)
                self._set_fit(self._fitted_attributes(data, model, fitted))
        return self

    def _training_data(
        self, X: Any, y: Any, sample_weight: Any, groups: Any = None, **row_parameters: Any
    ) -> Training:
        """Validate what the user passed to ``fit`` and bring it into canonical form.

        Parameters
        ----------
        X, y, sample_weight, groups : array-like
            Training data as the user passed them. Weights and groups can be None.
        **row_parameters : array-like or None
            ``noise_std`` and ``exposure``.

        Returns
        -------
        Training
            Checked, canonical and scaled data.
        """
        device = resolve_device(self.device)

        X = fill_masked(X)
        inputs, targets = self._encode_training_data(X, y)
        if row_parameters.get("exposure") is not None:
            targets = targets.as_counts()

        warn_reordered_rows(X, y=y, sample_weight=sample_weight, groups=groups, **row_parameters)

        # Distinct rows in canonical order, scaled.
        metadata = {"sample_weight": sample_weight, "groups": groups, **row_parameters}
        metadata = {name: value for name, value in metadata.items() if value is not None}
        data = Training.from_arrays(
            inputs,
            targets,
            sample_weight,
            scale_inputs=self._scale_inputs,
            random_state=self.random_state,
            device=device,
            callback_arguments={"estimator": self, "X": X, "y": y, "metadata": metadata or None},
            groups=groups,
            row_parameter=self._check_row_parameters(targets, **row_parameters),
            describe_input=self._describe_input,
        )
        self._training_range_in_ = None
        columns = self.column_encoding()
        if columns is not None:
            self._training_range_in_ = TrainingRange.from_rows(data.rows.X, columns)
        return data

    def _encode_training_data(self, X: Any, y: Any) -> tuple[Array, Targets]:
        """Encode the columns of a table, and validate inputs and targets.

        Sets the attributes that describe the columns: ``columns_in_`` and the types and values by
        which later rows are compared with those of training.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Inputs as the user passed them.
        y : array-like
            Targets or classes.

        Returns
        -------
        inputs : ndarray of shape (n_samples, n_features)
            Encoded inputs.
        targets : Targets
            Validated targets or classes.
        """
        numbers = X
        table = None
        columns = None
        if self._accepts_tables:
            require_rows(X)
            table = as_table(X)
        if table is not None:
            columns = Columns.from_table(table)
            if columns is not None:
                numbers = columns.encode(table)
        inputs, targets = self._validate_training_data(numbers, y)
        warn_target_columns(X, y)
        warn_coded_numbers(X)
        if table is not None:
            # Register the columns of the table instead of the encoded ones.
            validate_data(self, X, skip_check_array=True)
            self._column_names_in_ = non_string_column_names(X)
        if columns is None:
            is_image = getattr(self, "image_shape", None) is not None
            self._training_columns_in_ = TrainingColumns.from_numbers(
                X, inputs, is_table=self._accepts_tables, is_image=is_image
            )
        else:
            self._training_columns_in_ = TrainingColumns.from_encoding(columns, inputs)
        if self._accepts_tables:
            self.columns_in_ = columns
            if columns is None:
                self._medians_in_ = column_medians(inputs)
        return inputs, targets

    def _check_row_parameters(
        self,
        targets: Targets,  # noqa: ARG002 -- an interface
        noise_std: Any = None,  # noqa: ARG002
        exposure: Any = None,  # noqa: ARG002
    ) -> Array | None:
        """Return known parameters of the likelihood, (n_samples, n_targets); None by default."""
        return None

    def _validate_training_data(self, X: Any, y: Any) -> tuple[Array, Targets]:
        """Return numeric inputs and targets, and set ``n_features_in_`` and the like."""
        raise NotImplementedError

    def _make_model(self, data: Training) -> Model:
        """Return network, likelihood, prior and the symmetry group that the method uses."""
        likelihood = self._make_likelihood(data)
        network = self._make_network(data, likelihood.n_outputs(self._count_outputs(data)))
        if isinstance(likelihood, Categorical) and isinstance(network, ModuleNetwork):
            x = data.x_scaling.apply(data.rows.X[:_N_TESTED_ROWS])
            if has_bounded_outputs(network, torch.from_numpy(x).float()):
                warn_user(
                    "the outputs of network lie between -1 and 1 for any weights. They must be "
                    "logits: remove the Softmax, Sigmoid or Tanh behind its last layer.",
                    UserWarning,
                )
        weights = prior_allocation(network.layout.n_params)
        require_memory([data.rows_allocation, weights], data.device)
        prior = self._make_prior(network)
        return Model(network, likelihood, prior, self._symmetry_group(network, prior))

    def _count_outputs(self, data: Training) -> int:
        """Return the number of targets or classes."""
        raise NotImplementedError

    def _make_network(self, data: Training, n_outputs: int) -> Network:
        """Return the network, an MLP by default, after checking its number of outputs."""
        network = self.network
        if isinstance(network, str):
            sizes = layer_sizes(self.hidden_layer_sizes)
            return MLP(data.n_features, sizes, n_outputs, ACTIVATIONS[self.activation])
        unused = ("hidden_layer_sizes", "activation")
        refuse_parameters(self, unused, "network= is given", "network='mlp'")
        if isinstance(network, nn.Module):
            network = ModuleNetwork(network, (data.n_features,))
        ANY_NETWORK.require(network, "network")
        if network.n_outputs != n_outputs:
            raise ValueError(
                f"network has {network.n_outputs} outputs, but the targets and the likelihood "
                f"need {n_outputs}: change its last layer."
            )
        return network  # type: ignore[no-any-return]

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood with its initial parameters, in scaled units."""
        likelihood = self.resolved_likelihood
        if likelihood is self._likelihoods_by_name["auto"]:
            return self._default_likelihood(data)
        if not isinstance(self.noise_std, HalfNormal):
            alternative = "parameters of a likelihood object, such as log_noise of StudentT"
            refuse_parameters(self, ("noise_std",), "likelihood= is given", alternative)
        require_kind(self, likelihood, self._unsupported_likelihoods)
        ANY_LIKELIHOOD.require(likelihood, "likelihood")
        if data.class_labels is None:
            return give_each_target_a_scale(likelihood, data.rows.y.shape[-1])
        return likelihood

    def _default_likelihood(self, _data: Training) -> Likelihood:
        """Return the likelihood that "auto" stands for."""
        return self._likelihoods_by_name["auto"]

    @property
    def resolved_likelihood(self) -> Likelihood:
        """The likelihood that the parameter names, or the object that it is."""
        likelihood = self._param_at_fit("likelihood")
        if not isinstance(likelihood, str):
            return likelihood  # type: ignore[no-any-return]
        if likelihood not in self._likelihoods_by_name:
            known = ", ".join(map(repr, self._likelihoods_by_name))
            raise ValueError(
                f"likelihood={likelihood!r} doesn't go with {type(self).__name__}, which "
                f"takes {known} or an object."
            )
        return self._likelihoods_by_name[likelihood]

    def _learned_prior(self, _network: Network) -> UnboundPrior:
        """Return the prior that "learn" stands for."""
        return LayerScales()

    def _make_prior(self, network: Network) -> Prior:
        """Return the prior of the network's parameters."""
        prior = bind_prior(self.prior, self._learned_prior(network), network)
        ANY_PRIOR.require(prior, "prior")
        return prior

    def _symmetry_group(self, _network: Network, _prior: Prior) -> SymmetryGroup:
        """Return the symmetry group that the method uses, trivial by default."""
        return Trivial()

    def _make_method(self) -> Method:
        """Return the inference method with its parameters."""
        raise NotImplementedError

    def _flops_per_step(self, data: Training, model: Model) -> float:
        """Estimate the floating-point operations of a step, by which "auto" selects the device."""
        if isinstance(self.optimizer, Adam):
            batch_size = self.optimizer.batch_size
        else:
            batch_size = "auto"
        if isinstance(batch_size, str):
            n_rows = default_batch_size(data.n_rows)
        else:
            n_rows = min(int(batch_size), data.n_rows)
        n_networks = self._n_parallel_networks(model.network.layout.n_params)
        return gradient_flops(model.network, n_rows, n_networks)

    def _n_parallel_networks(self, _n_weights: int) -> float:
        """Return the number of networks whose gradients one step computes."""
        return 1.0

    def _fitted_attributes(self, data: Training, model: Model, fitted: FitResult) -> dict[str, Any]:
        """Return all fitted attributes, in the units of the data as given."""
        return {
            **data.attributes(),
            "network_": model.network,
            "n_iter_": fitted.n_iter,
            "stop_reason_": fitted.stop_reason,
            **fitted.attributes(data, model),
        }

    def _scale_inputs(self, rows: Rows) -> Scaling:
        """Return the mean and standard deviation of every column, or 0 and 1."""
        enabled = is_standardized(self.standardize, "X")
        return column_scaling(
            rows.X,
            rows.weight,
            enabled=enabled,
            value_range=rows.x_range,
            describe=self._describe_input,
        )

    def _describe_input(self, position: int) -> str:
        """Return words for an encoded column, for error messages."""
        columns = self.column_encoding()
        if columns is None:
            names: Any = getattr(self, "feature_names_in_", None)
        else:
            names = columns.get_feature_names_out()
        if names is None:
            return f"column {position} of X"
        return f"column {str(names[position])!r} of X"

    def input_blocks(self, X: Array) -> Iterator[Tensor]:
        """Yield scaled inputs in blocks of rows, on the device, in the precision of the fit.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_features)
            Validated inputs in the units of the training data.

        Yields
        ------
        Tensor of shape (n_block, n_features)
            Consecutive rows.
        """
        scaled = Scaling(self.x_mean_, self.x_scale_).apply(X)
        dtype = getattr(torch, self.dtype_)
        for start in range(0, len(scaled), PREDICT_ROWS):
            block = np.ascontiguousarray(scaled[start : start + PREDICT_ROWS])
            yield torch.as_tensor(block).to(self._predict_device(), dtype)

    def predictor(self, like: Tensor) -> Predictor:
        """Return the predictor of the fitted model, in scaled units.

        Parameters
        ----------
        like : Tensor
            Tensor whose device and precision the predictor has.

        Returns
        -------
        Predictor
            The same object at every call, until the model is fitted again.
        """
        raise NotImplementedError

    def _predictor_at(self, block: Any) -> Predictor:
        """Return the predictor at a block of rows; it averages over levels that are unknown."""
        if isinstance(block, LevelBlock):
            return LevelPredictor(self._predictor_at(block.blocks[0]))
        predictor = self.predictor(block)
        training_range = self._training_range_in_
        if training_range is None:
            return predictor

        # Beyond the range of the training data, predictions are continued from its end.
        x = encoded_inputs(block)
        scaled_range = self._cached(
            f"range on {x.device}",
            lambda: ScaledRange.from_range(training_range, self.x_mean_, self.x_scale_, x),
        )
        if not bool(scaled_range.distances(x).any()):
            return predictor
        # Targets are kept positive after the continuation.
        if isinstance(predictor, PositivePredictor):
            base = predictor.base
        else:
            base = predictor
        rates = self._cached(
            f"rates on {x.device}",
            lambda: self._measure_rates(base, training_range, scaled_range, x),
        )
        continued = ExtrapolatingPredictor(base, scaled_range, rates)
        if isinstance(predictor, PositivePredictor):
            return replace(predictor, base=continued)
        return continued

    def _measure_rates(
        self,
        predictor: Predictor,
        training_range: TrainingRange,
        scaled_range: ScaledRange,
        like: Tensor,
    ) -> Tensor | None:
        """Measure how much predictions change along each column; None for classifiers.

        Parameters
        ----------
        predictor : Predictor
            Predictor of the fitted model.
        training_range : TrainingRange
            Range of the columns and some training rows.
        scaled_range : ScaledRange
            The same range, scaled.
        like : Tensor
            Tensor whose device and precision the predictor has.
        """
        if is_classifier(self):
            return None
        rows = Scaling(self.x_mean_, self.x_scale_).apply(training_range.rows)
        mean = self._encoded_mean(predictor)
        return measure_rates(mean, scaled_range, torch.as_tensor(rows).to(like))

    def _encoded_mean(self, predictor: Predictor) -> Callable[[Tensor], Tensor]:
        """Return the mean prediction as a function of encoded and scaled inputs."""
        return predictor.mean

    def _map_blocks(
        self, X: Any, evaluate: Callable[[Tensor, Any], list[Tensor]], y: Array | None = None
    ) -> list[Array]:
        """Evaluate a function of scaled inputs in blocks of rows and join the results.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs as the user gave them.
        evaluate : callable (x, rows) -> list of Tensor
            Function of a block of scaled inputs and its positions among the rows of ``X``, a slice
            or an array. Its results have the rows as their first axis.
        y : ndarray of shape (n_samples, ...), optional
            Targets whose number must be that of the rows.

        Returns
        -------
        list of ndarray
            Joined results in the order of the rows of ``X``.

        Raises
        ------
        ValueError
            If ``y`` has another length than ``X``, or a result is NaN.
        """
        X = self.check_inputs(X)
        if y is not None and len(y) != len(X):
            raise ValueError(f"X has {len(X)} rows and y {len(y)}: they must match.")
        blocks = []
        positions = []
        with prediction_environment():
            for x, rows in self._indexed_blocks(X):
                results = evaluate(x, rows)
                blocks.append([result.cpu().numpy() for result in results])
                positions.append(rows)
        columns = [np.concatenate(column) for column in zip(*blocks, strict=True)]
        if not all(isinstance(rows, slice) for rows in positions):
            # Rows with unknown levels come first: restore the order of the rows.
            order = np.argsort(np.concatenate(positions))
            columns = [column[order] for column in columns]
        return check_no_nan(columns)

    def _indexed_blocks(self, X: Any) -> Iterator[tuple[Any, Any]]:
        """Yield blocks of inputs and their positions among the rows, a slice or an array.

        Rows with unknown levels come first.
        """
        start = 0
        if not isinstance(X, OpenRows):
            for x in self.input_blocks(X):
                yield x, slice(start, start + len(x))
                start += len(x)
            return
        blocks = [self.input_blocks(rows) for rows in X.alternatives]
        for alternatives in zip(*blocks, strict=True):
            block = LevelBlock(alternatives)
            yield block, X.open_index[start : start + len(block)]
            start += len(block)
        for known_block, rows in self._indexed_blocks(X.known):
            yield known_block, X.known_index[rows]

    def check_inputs(self, X: Any) -> Any:
        """Validate inputs of predictions by a fitted model, and encode the columns of a table.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs as the user gave them.

        Returns
        -------
        ndarray or OpenRows
            Numbers; `OpenRows` if some rows have unknown levels.
        """
        check_is_fitted(self)
        if not self._accepts_tables:
            return self._check_numbers(X)
        X = fill_masked(X)
        table = None
        if self.columns_in_ is None:
            if not (isinstance(X, np.ndarray) and X.dtype.kind in "fiub"):
                table = read_table(X)
            if table is None or table.is_numeric:
                numbers = self._check_numbers(X)
                is_missing = np.isnan(numbers)
                if is_missing.any():
                    filled = np.where(is_missing, self._medians_in_, numbers)
                    numbers = filled.astype(numbers.dtype)
                self._warn_beyond_range(numbers)
                return self._join_raw_rows(numbers, X)

        require_rows(X)
        if table is None:
            table = read_table(X)
        if table is not None:
            validate_data(self, X, reset=False, skip_check_array=True)
            check_column_names(self._column_names_in_, X)
        else:
            if object_array(X).ndim == 1:
                raise ValueError(
                    "Expected 2D array, got 1D array instead: X must have rows and columns. Give "
                    "[row] if it is a single row."
                )
            # scikit-learn's checks raise an error that tells what is wrong with X.
            self._check_numbers(X)
            raise ValueError("X must be a table with two axes.")
        if not num_samples(X):
            raise ValueError(
                f"Found array with 0 sample(s) (shape=(0, {len(table.names)})) while a minimum of "
                "1 is required: X has no rows."
            )
        self._warn_changed_types(X)
        columns = self.column_encoding()
        assert columns is not None
        encoding = columns.encode_with_alternatives(table)
        self._warn_beyond_range(encoding.values)
        if not encoding.is_open.any():
            return self._join_raw_rows(encoding.values, X)
        return OpenRows.from_encoding(encoding, X, self._join_raw_rows)

    def _warn_beyond_range(self, encoded: Array) -> None:
        """Warn of columns of encoded rows that are beyond the range of the training data."""
        if self._training_range_in_ is not None:
            self._training_range_in_.warn_beyond(encoded)

    def _check_numbers(self, X: Any) -> Array:
        """Return inputs that hold numbers as an array; NaN is allowed in tables."""
        if self._params_at_fit_ is not None:
            # Parameters were set since the fit, which had validated them.
            self._validate_params()
        X = fill_masked(X)
        require_rows(X)
        checked: Array
        if is_finite_array(X, self.n_features_in_) and not hasattr(self, "feature_names_in_"):
            # scikit-learn's validation takes a tenth of the time of predictions for one row.
            checked = X
        else:
            ensure_all_finite = "allow-nan" if self._accepts_tables else True
            with numeric_conversion("X", ENCODE, X):
                checked = validate_data(
                    self, X, reset=False, dtype=FLOATS, ensure_all_finite=ensure_all_finite
                )
        check_column_names(self._column_names_in_, X)
        self._warn_changed_types(X, checked)
        return checked

    def _warn_changed_types(self, X: Any, numbers: Array | None = None) -> None:
        """Warn of columns whose types differ from those in `fit`, and of those that began to vary.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs of a prediction as the user gave them.
        numbers : ndarray of shape (n_samples, n_features), optional
            The same as numbers. Encoded tables are checked by their encoding.
        """
        names: Any = getattr(self, "feature_names_in_", self._column_names_in_)
        if names is None:
            names = [str(j) for j in range(self.n_features_in_)]
        self._training_columns_in_.warn_changes(names, X, numbers)

    def _join_raw_rows(self, encoded: Array, _X: Any) -> Any:
        """Return the inputs that the model takes; a stack keeps the raw rows beside them."""
        return encoded

    def column_encoding(self) -> Columns | None:
        """Return the encoding of a table's columns, None if the estimator takes numbers only."""
        if not self._accepts_tables:
            return None
        if self.columns_in_ is not None:
            return self.columns_in_
        names = self._column_names_in_
        if names is None:
            positions = [str(j) for j in range(len(self._medians_in_))]
            names = list(getattr(self, "feature_names_in_", positions))
        booleans = self._training_columns_in_.boolean_positions
        assert booleans is not None
        return Columns.from_numbers(names, self._medians_in_, booleans)


def warn_infinite_rows(values: Array, rows: Any = slice(0, None)) -> bool:
    """Warn of the first row with an infinite prediction, and return whether there is one.

    Parameters
    ----------
    values : ndarray of shape (n, ...)
        Predictions.
    rows : slice or ndarray of shape (n,)
        Positions of the predictions among the rows of ``X``.

    Returns
    -------
    bool
    """
    is_infinite = np.isinf(values).reshape(len(values), -1).any(axis=1)
    if is_infinite.any():
        position = int(is_infinite.argmax())
        if isinstance(rows, slice):
            row = rows.start + position
        else:
            row = rows[position]
        warn_user(
            f"the prediction for row {row} of X is infinite: too far from "
            "the training data for this arithmetic. Check the row, or give X as float64.",
            UserWarning,
        )
    return bool(is_infinite.any())


def check_no_nan(columns: list[Array]) -> list[Array]:
    """Return predictions, or raise a ValueError that names the first row with NaN."""
    for values in columns:
        is_nan = np.isnan(values).reshape(len(values), -1).any(axis=1)
        if is_nan.any():
            raise ValueError(
                f"the prediction for row {int(is_nan.argmax())} of X is not a number: too far from "
                "the training data for this arithmetic, or of a fit with extreme parameters. "
                "Check the row, or give X as float64."
            )
    return columns


@contextmanager
def prediction_environment() -> Iterator[None]:
    """Predict with one thread and without gradients, and explain torch's errors.

    Inference mode is switched off even if the caller is in it, because tensors that predictions
    cache must not be inference tensors.
    """
    with one_thread(), torch.inference_mode(False), torch.no_grad(), explain_torch_errors():
        yield


def is_fitted_attribute(name: str) -> bool:
    """Whether an attribute of this name is set by `fit`."""
    return (name.endswith("_") and not name.startswith("__")) or name == "_cache"
