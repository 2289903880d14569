"""Base of the stacking estimators: members by name, their fits and their weights."""

import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import joblib
import numpy as np
import torch
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils import Bunch, indexable
from torch import Tensor

from skbayes_sym.base.columns import OpenRows
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.messages import format_digits
from skbayes_sym.base.predictive import is_regression_model
from skbayes_sym.base.predictor import PositivePredictor, Predictor
from skbayes_sym.base.progress import N_JOBS, RUN_CONSTRAINTS, FitProgress
from skbayes_sym.base.rows import Array, Scaling
from skbayes_sym.base.scikit_learn import (
    BaseComposition,
    Interval,
    fit_context,
    safe_indexing,
)
from skbayes_sym.base.stacking_weights import PooledPredictor
from skbayes_sym.base.training import Training, describe_outliers
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.positive_targets import choose_mass_below
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.tables import fill_masked
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.fit import StackFit, fit_stack, mix_log_densities
from skbayes_sym.stacking.fitted_members import make_pipeline_member
from skbayes_sym.stacking.folds import (
    make_folds,
    require_known_classes,
    require_whole_groups,
    split_original_rows,
)
from skbayes_sym.stacking.group_columns import describe_group_columns
from skbayes_sym.stacking.members import (
    COUNT_MEMBERS,
    LOG_MEMBERS,
    MEMBERS,
    Member,
    Networks,
    UserEstimator,
)
from skbayes_sym.stacking.members.gaussian_process import GaussianProcessDefaults
from skbayes_sym.stacking.scoring import CountMemberError, are_counts, mean_score
from skbayes_sym.stacking.task import RowBlock, ScoredMember, StackTask


def describe_members(members: Mapping[str, Member]) -> dict[str, str]:
    """Describe each member by its class and parameters, so that two fits can be compared.

    Parameters
    ----------
    members : mapping of str to Member
        Members by name.

    Returns
    -------
    dict of str to str
        Two members have equal strings if `sklearn.base.clone` makes equal estimators of them.
    """
    descriptions = {}
    for name, member in members.items():
        if not isinstance(member, UserEstimator):
            descriptions[name] = type(member).__name__
            continue
        estimator = clone(member.estimator)
        try:
            params = joblib.hash(estimator.get_params(deep=True))
        except (pickle.PicklingError, AttributeError, TypeError):  # a lambda, for example
            params = repr(estimator)
        estimator_class = type(estimator)
        class_name = f"{estimator_class.__module__}.{estimator_class.__qualname__}"
        descriptions[name] = f"{class_name} {params}"
    return descriptions


@dataclass(eq=False, repr=False)
class BaseStacking(BayesianEstimator, BaseComposition):
    """Base of the stacks: members by name, and their weights."""

    estimators: list[tuple[str, Any]] | None = None
    _: KW_ONLY
    cv: Any = None
    n_jobs: int | None = None
    max_seconds: float | None = None
    warm_start: bool = False
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    _likelihoods_by_name: ClassVar[Mapping[str, Likelihood]]

    _checks_nested_params: ClassVar[bool] = False
    _accepts_tables: ClassVar[bool] = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **RUN_CONSTRAINTS,
        "estimators": [list, None],
        "cv": ["cv_object"],
        "n_jobs": N_JOBS,
        "warm_start": ["boolean"],
        "max_seconds": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
    }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Get parameters of the stack, and by default also of its members.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include the members by their names, and their parameters as
            ``name__parameter``.

        Returns
        -------
        dict of str to object
            Parameters by name.
        """
        return self._get_params("estimators", deep=deep)  # type: ignore[no-any-return]

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the stack or of its members, or replace members.

        Parameters
        ----------
        **params : dict
            New values by name. ``name__parameter`` sets a parameter of the member ``name``, and
            ``name`` replaces the member. The value "drop" omits it.

        Returns
        -------
        self : object
            The estimator.
        """
        self._set_params("estimators", **params)
        return self

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit all members, and their weights by leave-one-out or cross-validation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs, or a data frame with text, booleans and missing values.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets, or class labels. Regressors take several targets, for example a data frame.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative multiplicities: a weight of 2 is equivalent to repeating the row.
        groups : array-like of shape (n_samples,), optional
            Groups of rows that share more than the columns of ``X``, such as the visits of a
            patient, of any dtype. Give them if predictions are for new groups: whole groups are
            then left out wherever members are judged by left-out rows, so that predictions have the
            width of the differences between groups. Groups of one row each have no effect. In
            pipelines and searches, ``set_fit_request(groups=True)`` requests them.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If no member could be fitted. The message contains the error of each member. Also if a
            group is missing, if there is only one group, or if ``cv`` divides a group.
        """
        return self._fit_stack(X, y, sample_weight, groups)

    def _fit_stack(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, **row_parameters: Any
    ) -> Self:
        """Fit all members, and their weights; see `fit`.

        Parameters
        ----------
        X, y, sample_weight, groups : array-like
            Training data as the user passed them. Weights and groups can be None.
        **row_parameters : array-like or None
            ``noise_std`` and ``exposure`` of regressors.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        X = fill_masked(X)
        with self._fit_environment():
            # Distinct rows in both forms, and the folds that all members share.
            members = self._select_for_row_parameters(self._make_members(), **row_parameters)
            data = self._training_data(X, y, sample_weight, groups, **row_parameters)
            has_exposure = row_parameters.get("exposure") is not None
            task = self._make_task(data, members, X, y, groups, has_exposure=has_exposure)
            if self.estimators is None and data.rows.row_parameter is None:
                # The default members take more than ten times as long as this check.
                task = replace(task, group_columns=describe_group_columns(task))
            if task.n_rows_full_fit:
                members = self._select_for_warm_start(members)
            is_positive = self._choose_mass_below(data, task) is not None
            if self.estimators is None and is_positive and np.ptp(task.arrays[1]) > 0.0:
                members |= {name: make_member() for name, make_member in LOG_MEMBERS.items()}

            # The covariance of the Gaussian process is the largest array.
            n = min(data.n_rows, GaussianProcessDefaults().max_rows)
            process = MemoryAllocation(
                f"a Gaussian process of {n:,} rows", 5 * n**2 * 8, "Use fewer of them."
            )
            require_memory([data.rows_allocation, process], data.device)

            progress = FitProgress(
                data.callback_arguments, lambda stack: self._stack_attributes(data, task, stack)
            )
            with self._keep_on_interrupt(progress):
                by_folds = self.cv is not None
                try:
                    stack = fit_stack(
                        members, task, progress, by_folds=by_folds, n_jobs=self.n_jobs
                    )
                except CountMemberError:
                    # Only the fit of a member shows that it predicts counts. Then all members are
                    # scored by probabilities of counts.
                    task = replace(task, is_count=True)
                    stack = fit_stack(
                        members, task, progress, by_folds=by_folds, n_jobs=self.n_jobs
                    )
                self._set_fit(self._stack_attributes(data, task, stack))
        return self

    def _select_for_row_parameters(
        self, members: dict[str, Member], **_row_parameters: Any
    ) -> dict[str, Member]:
        """Select the members that take known errors or exposures; all if there are none."""
        return members

    def _select_for_warm_start(self, members: dict[str, Member]) -> dict[str, Member]:
        """Select members that had weight in the last fit, and members that are new.

        A member whose weight was too small in the last fit stays out. One that is new, was changed,
        failed or got no time is fitted. Networks of a regressor continue from their modes.
        """
        min_weight = StackDefaults().min_refit_weight
        params = describe_members(members)
        known = {name for name in members if self._member_params_.get(name, "") == params[name]}
        weighted = {name for name in known if self.weights_.get(name, 0.0) > min_weight}
        selected = {}
        for name, member in members.items():
            if name in weighted or name not in known:
                selected[name] = member
            if name in weighted and isinstance(member, Networks) and not is_classifier(self):
                selected[name] = Networks(self._predictors_[name].inner)
        return selected or members

    def _make_members(self) -> dict[str, Member]:
        """Unfitted members by name; strings are names of default members."""
        if self.estimators is None:
            return {name: make_member() for name, make_member in MEMBERS.items()}
        if not self.estimators:
            raise ValueError("estimators must name at least one (name, estimator), got [].")
        members: dict[str, Member] = {}
        for pair in self.estimators:
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
                raise ValueError(
                    "estimators must hold pairs (name, estimator) such as ('trees', 'trees') or "
                    f"('ridge', Ridge()), got {pair!r}."
                )
            name, estimator = pair
            if name in members:
                raise ValueError(f"estimators must have names of their own, got {name!r} twice.")
            if isinstance(estimator, str) and estimator == "drop":
                continue
            if not isinstance(estimator, str):
                self._require_estimator(name, estimator)
                members[name] = UserEstimator(estimator)
            elif estimator in MEMBERS:
                members[name] = MEMBERS[estimator]()
            elif estimator in LOG_MEMBERS and not is_classifier(self):
                members[name] = LOG_MEMBERS[estimator]()
            elif estimator in COUNT_MEMBERS and not is_classifier(self):
                members[name] = COUNT_MEMBERS[estimator]()
            else:
                known = ", ".join(map(repr, MEMBERS))
                raise ValueError(
                    f"estimators: {name!r} is {estimator!r}, which is no member of the default "
                    f"list: take one of {known}, or an estimator."
                )
        if not members:
            raise ValueError("estimators must keep at least one member, but all are 'drop'.")
        return members

    def _require_estimator(self, name: str, candidate: Any) -> None:
        """Raise an error unless a member is an estimator of the same type as the stack."""
        if is_classifier(self):
            expected = "classifier"
            has_type = is_classifier
        else:
            expected = "regressor"
            has_type = is_regression_model
        try:
            is_valid = not isinstance(candidate, type) and has_type(candidate)
        except AttributeError:  # not an estimator at all
            is_valid = False
        if not is_valid:
            raise ValueError(f"estimators: {name!r} must be a {expected}, got {candidate!r}.")

    def _make_task(
        self,
        data: Training,
        members: Mapping[str, Member],
        X: Any,
        y: Any,
        groups: Any,
        *,
        has_exposure: bool,
    ) -> StackTask:
        """Collect the distinct rows in both forms, and the folds.

        Parameters
        ----------
        data : Training
            Distinct rows.
        members : mapping of str to Member
            Unfitted members by name.
        X, y, groups : array-like
            Training data as the user passed them.
        has_exposure : bool
            Whether the known parameters of the rows are exposures.

        Returns
        -------
        StackTask
            Data that all members share.
        """
        rows, targets, weight = (
            torch.as_tensor(np.ascontiguousarray(array)) for array in data.scaled()
        )
        noise_std = None
        exposure = None
        if data.rows.row_parameter is not None:
            # Known errors are a further column of the scaled targets.
            if has_exposure:
                exposure = torch.as_tensor(data.rows.row_parameter[:, 0])
            else:
                noise_std = targets[:, 1].clone()
            targets = targets[:, :1].clone()
        classes = data.class_labels
        if classes is None:
            # Trees must not depend on the units of y, nor on their rounding errors.
            targets = targets.round(decimals=12)
            original_targets = data.rows.y[:, 0]
        else:
            original_targets = classes[data.rows.y]

        deadline = float("inf")
        if self.max_seconds is not None:
            deadline = time.monotonic() + self.max_seconds

        target_scaling = (0.0, 1.0)
        if data.y_scaling is not None:
            target_scaling = (float(data.y_scaling.mean[0]), float(data.y_scaling.scale[0]))
        has_count_member = classes is None and any(m.predicts_counts for m in members.values())
        return StackTask(
            RowBlock(rows.double(), safe_indexing(*indexable(X), data.first_original_rows())),
            targets,
            weight,
            original_targets,
            self._split(data, X, y, groups, original_targets),
            data.seed,
            target_scaling=target_scaling,
            classes=classes,
            device=self.device,
            deadline=deadline,
            defaults=StackDefaults(),
            n_jobs=self.n_jobs,
            n_rows_full_fit=self._count_rows_of_full_fit(len(weight)),
            is_count=has_count_member and are_counts(original_targets),
            groups=data.rows.groups,
            noise_std=noise_std,
            exposure=exposure,
        )

    def _split(
        self, data: Training, X: Any, y: Any, groups: Any, targets: Array
    ) -> list[tuple[Array, Array]]:
        """Return the folds of distinct rows that all members share.

        Parameters
        ----------
        data : Training
            Distinct rows.
        X, y, groups : array-like
            Training data as the user passed them.
        targets : ndarray of shape (N,)
            Targets or class labels of the distinct rows.

        Returns
        -------
        list of (ndarray, ndarray)
            Training and test indices.
        """
        is_classification = data.class_labels is not None
        if self.cv is None or isinstance(self.cv, Integral):
            n_folds = StackDefaults().n_folds
            if self.cv is not None:
                n_folds = int(self.cv)
            folds = make_folds(
                n_folds, targets, data.seed, data.rows.groups, is_classification=is_classification
            )
        else:
            first_index = data.first_original_rows()
            folds = split_original_rows(
                self.cv, X, y, groups, first_index, is_classification=is_classification
            )
            require_whole_groups(self.cv, folds, data.rows.groups)
        if is_classification and len(np.unique(targets)) > 1:
            require_known_classes(folds, targets)
        return folds

    def _count_rows_of_full_fit(self, n_rows: int) -> int:
        """Return the number of rows of the last full fit, or 0 if this fit isn't a warm start.

        A warm start fits all members again once there are many more rows.
        """
        if not self._continues_fit:
            return 0
        n_rows_full_fit: int = self._n_rows_full_fit_
        if n_rows >= StackDefaults().full_refit_growth * n_rows_full_fit:
            return 0
        return n_rows_full_fit

    def _describe_known_members(self, task: StackTask, stack: StackFit) -> dict[str, str]:
        """Parameters of the members whose result for these rows is known."""
        if task.n_rows_full_fit:
            previous = self._member_params_
        else:
            previous = {}
        params = describe_members(self._make_members())
        return {
            name: description
            for name, description in params.items()
            if name in stack.known or previous.get(name) == description
        }

    def _stack_attributes(self, data: Training, task: StackTask, stack: StackFit) -> dict[str, Any]:
        """Attributes of the fitted estimator."""
        # Densities are converted to the units of y. Probabilities of counts have no units.
        if task.is_count:
            log_scale = 0.0
        else:
            log_scale = float(np.log(task.target_scaling[1]))
        scores = {}
        for name, member in stack.members.items():
            mean, error = mean_score(member.log_density, task)
            scores[name] = (mean - log_scale, error)
        mean, error = mean_score(mix_log_densities(stack), task)
        return {
            **data.attributes(),
            "device_": "cpu" if self.device == "auto" else str(data.device),
            "dtype_": "float64",
            "n_iter_": stack.n_iter,
            "stop_reason_": stack.stop_reason,
            "weights_": dict(stack.weights),
            "_n_rows_full_fit_": task.n_rows_full_fit or len(task),
            "_member_params_": self._describe_known_members(task, stack),
            "leave_one_out_log_density_": scores,
            "stack_log_density_": (mean - log_scale, error),
            "summary_": self._summarize(data, stack, scores) + task.group_columns,
            "_max_mass_below_": self._choose_mass_below(data, task),
            "_predictors_": {name: member.predictor for name, member in stack.members.items()},
            **self._left_out_attributes(data, task, stack),
        }

    def _left_out_attributes(
        self, _data: Training, _task: StackTask, _stack: StackFit
    ) -> dict[str, Any]:
        """Attributes that describe leave-one-out predictions of the rows."""
        return {}

    def _summarize(
        self, data: Training, stack: StackFit, scores: Mapping[str, tuple[float, float]]
    ) -> str:
        """Describe the table, and each stage of the plan with its result."""
        table = f"{data.description} of {self.n_features_in_} columns"
        if data.class_labels is not None:
            table += f", {len(data.class_labels)} classes"

        def describe(stage: str) -> str:
            if stage in stack.members:
                mean, error = scores[stage]
                weight = f"weight {100 * stack.weights[stage]:.0f} %"
                score = f"{format_digits(mean, 3)} +- {format_digits(error, 1)}"
                return f"{weight}, {score} nats per held-out row"
            if stage == "weights":
                return "maximise the held-out log density of the mixture"
            result = stack.execution.results[stage]
            if isinstance(result, ScoredMember):
                return "left out, since the logarithm of the targets doesn't raise the score"
            return str(result)

        table += describe_outliers(data.outliers)
        return f"{table}\n{stack.execution.format(stack.plan, describe)}"

    @property
    def estimators_(self) -> dict[str, Any]:
        """Fitted members by name, which read ``X`` and predict in the units of ``y``."""
        return {name: self._fitted_member(name) for name in self._predictors_}

    def _fitted_member(self, name: str) -> Any:
        """Estimator of the user, a pipeline, or a stack of this member if it isn't an estimator."""
        predictor = self._predictors_[name]
        if not isinstance(predictor.inner, BaseEstimator):
            return self._select_member(name)
        if predictor.reads_original_rows:
            return predictor.inner
        return make_pipeline_member(self._without_members(), predictor.inner)

    def _without_members(self) -> Self:
        """Fitted stack that encodes columns but has no members."""
        stack = copy(self)
        stack.__dict__.pop("_cache", None)
        stack._predictors_ = {}
        return stack

    @property
    def named_estimators_(self) -> Bunch:
        """Fitted members as attributes."""
        return Bunch(**self.estimators_)

    def _select_member(self, name: str) -> Self:
        """Fitted stack of a single member."""
        stack = copy(self)
        stack.__dict__.pop("_cache", None)
        stack.estimators = [(name, self._member_spec(name))]
        stack.weights_ = {name: 1.0}
        stack._predictors_ = {name: self._predictors_[name]}
        stack.leave_one_out_log_density_ = {name: self.leave_one_out_log_density_[name]}
        stack.stack_log_density_ = self.leave_one_out_log_density_[name]
        return stack

    def _member_spec(self, name: str) -> Any:
        """Value of ``estimators`` for a member; default members have their own names."""
        return dict(self.estimators or ()).get(name, name)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictors_")

    @property
    def resolved_likelihood(self) -> Likelihood:
        """Likelihood of estimators that accept none: that of the default."""
        return self._likelihoods_by_name["auto"]

    def encode_rows(self, X: Any) -> Array:
        """Encode and standardise rows, with the average over known levels for unknown ones."""
        rows = self.check_inputs(X)
        if not isinstance(rows, OpenRows):
            return rows.x.numpy()  # type: ignore[no-any-return]
        encoded = np.empty((len(rows), len(self.x_mean_)))
        encoded[rows.known_index] = rows.known.x
        encoded[rows.open_index] = np.mean([block.x.numpy() for block in rows.alternatives], axis=0)
        return encoded

    def _join_raw_rows(self, encoded: Array, X: Any) -> RowBlock:
        """Return the rows encoded, and as the user passes them."""
        scaled = Scaling(self.x_mean_, self.x_scale_).apply(encoded)
        return RowBlock(torch.as_tensor(scaled, dtype=torch.float64), *indexable(X))

    def _predict_device(self) -> torch.device:
        return torch.device("cpu")

    def input_blocks(self, X: Any) -> Iterator[Any]:
        """Iterate over blocks of rows in both forms."""
        n_rows = StackDefaults.max_block_rows
        if 0 < len(X) <= n_rows:
            yield X  # without a copy
            return
        for start in range(0, len(X), n_rows):
            yield X.take(np.arange(start, min(start + n_rows, len(X))))

    def _choose_mass_below(self, data: Training, task: StackTask) -> float | None:
        """Largest predicted probability of values up to 0; None if it isn't limited."""
        if data.y_scaling is None or task.is_count or data.rows.y.min() <= 0.0:
            return None
        if task.noise_std is not None:
            # Measurements can be negative even if no training target is.
            return None
        return choose_mass_below(data.total_weight)

    def predictor(self, _like: Tensor) -> Predictor:
        """Mixture of the members, which predict on the CPU."""
        pool = PooledPredictor(self._predictors_, self.weights_)
        if self._max_mass_below_ is None:
            return pool
        origin = -float(self.y_mean_[0] / self.y_scale_[0])
        return PositivePredictor(pool, origin, self._max_mass_below_)

    def _encoded_mean(self, predictor: Any) -> Callable[[Tensor], Tensor]:
        """Mean prediction as a function of encoded inputs, without members that read ``X``."""
        weights = {
            name: weight
            for name, weight in predictor.weights.items()
            if weight and not predictor.parts[name].reads_original_rows
        }

        def mean(x: Tensor) -> Tensor:
            rows = RowBlock(x, x)
            means = [weight * predictor.parts[name].mean(rows) for name, weight in weights.items()]
            return torch.stack([x.new_zeros(len(x), 1), *means]).sum(0)

        return mean
