"""Bayesian stacking of predictive distributions, as scikit-learn estimators."""

import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ClassVar, Self

import joblib
import numpy as np
import torch
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils import Bunch, indexable
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.columns import OpenRows
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.messages import name_target_in_warnings, warn_user
from skbayes_sym.base.predictive import is_regression_model
from skbayes_sym.base.predictor import PositivePredictor, Predictor
from skbayes_sym.base.progress import N_JOBS, RUN_CONSTRAINTS, FitProgress
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.row_parameters import check_exposure
from skbayes_sym.base.rows import Array, Scaling
from skbayes_sym.base.scikit_learn import (
    BaseComposition,
    Interval,
    StrOptions,
    fit_context,
    safe_indexing,
)
from skbayes_sym.base.stacking_weights import PooledPredictor
from skbayes_sym.base.targets import Targets
from skbayes_sym.base.training import Training, describe_outliers
from skbayes_sym.models.copula import fit_correlation
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.positive_targets import choose_mass_below
from skbayes_sym.numerics.arguments import draw_seed
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.progress import reporting_to
from skbayes_sym.numerics.tables import fill_masked
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.fit import StackFit, fit_stack, mix_log_densities
from skbayes_sym.stacking.fitted_members import make_pipeline_member
from skbayes_sym.stacking.folds import make_folds, require_whole_groups, split_original_rows
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
from skbayes_sym.stacking.several_targets import (
    CopulaPredictive,
    TargetStacks,
    describe_correlation,
    left_out_cdf,
    read_targets,
)
from skbayes_sym.stacking.task import (
    RowBlock,
    ScoredMember,
    StackTask,
)


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
            return make_folds(
                n_folds, targets, data.seed, data.rows.groups, is_classification=is_classification
            )
        first_index = data.first_original_rows()
        folds = split_original_rows(
            self.cv, X, y, groups, first_index, is_classification=is_classification
        )
        require_whole_groups(self.cv, folds, data.rows.groups)
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
        table = f"{data.n_rows:,} distinct rows of {self.n_features_in_} columns"
        if data.class_labels is not None:
            table += f", {len(data.class_labels)} classes"

        def describe(stage: str) -> str:
            if stage in stack.members:
                mean, error = scores[stage]
                score = f"{mean:.3g} +- {error:.1g} nats per held-out row"
                return f"weight {100 * stack.weights[stage]:.0f} %, {score}"
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


@dataclass(eq=False, repr=False)
class PredictiveStackingRegressor(BayesianRegressorMixin, BaseStacking):
    r"""Regression by a stack of predictive distributions, with nothing to tune.

    The predictive distribution is a mixture of the predictive distributions of several models. The
    weights maximise the leave-one-out log score under a Dirichlet prior (Yao, Vehtari, Simpson &
    Gelman 2018, eq. 8),

    .. math:: \max_{w \in \Delta} \sum_n \log \sum_k w_k\, p_k(y_n \mid x_n, y_{-n})
              + \sum_k e^{s_k - \max_j s_j} \log w_k ,

    with the mean log score :math:`s_k` of a member. The prior of a member that is several nats per
    row behind the best one is negligible.

    By default the models are a Bayesian linear model, extremely randomised trees, gradient
    boosting, a Gaussian process and `BayesianMLPRegressor`. Tables are accepted as they are read,
    with text, dates and missing values.

    ``y`` can have several columns. Each target then has a stack of its own, and a normal copula of
    their leave-one-out ranks makes `predictive` and `sample_y` joint.

    Parameters
    ----------
    estimators : list of (str, estimator or str), default=None
        Members and their names: all estimators that `predictive` understands, and regressors that
        predict points, whose noise is estimated from held-out residuals. They are cloned and fitted
        to ``X`` in the form in which it is passed. The default members are "linear", "trees",
        "boosting", "gaussian_process" and "networks", which can also be used in a list. "drop"
        omits a member. ``set_params(name__parameter=value)`` sets a parameter of a member.
    cv : int, splitter or iterable, default=None
        Folds by which all members are scored. Splitters of groups, such as `GroupKFold`, use the
        ``groups`` of `fit`. Forward folds of rows in time order, such as `TimeSeriesSplit`, are
        accepted too, as a splitter or as pairs of training and left-out rows. Rows that no fold
        leaves out aren't scored: noise and weights depend on the left-out rows alone, at least ten
        or half of all. By default members are scored by leave-one-out in closed form, out-of-bag
        predictions or approximate leave-one-out if they have these, and by five-fold
        cross-validation otherwise. With ``groups`` whole groups are left out instead.
    n_jobs : int or None, default=None
        Number of joblib processes. The result doesn't depend on it. Members are fitted in parallel,
        then parts of networks, unless ``max_seconds`` is set.
    max_seconds : float, default=None
        Time after which no further member is started and networks stop training. A warning and
        ``summary_`` name the members that are missing for this reason. Fits with a time limit
        aren't reproducible to the last bit.
    warm_start : bool, default=False
        Whether `fit` starts from the result of the previous call.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers, and of members whose own ``random_state`` is None.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    outliers : {"exclude", "keep"}, default="exclude"
        Whether the fit leaves out rows whose targets are gross errors, with a warning: at most 5 %
        of the rows, beyond a gap to all other targets, not explained by ``X``, and with residuals
        too large for the tail of the others. Predictions are then of targets without gross errors.
        "keep" uses all rows.

    Attributes
    ----------
    weights_ : dict of str to float
        Stacking weights of the members. Their sum is 1, and weights below 0.001 are set to 0. With
        several targets, a dict of these by the name of the target.
    estimators_ : dict of str to object
        Fitted members, whose ``predict`` reads ``X`` and returns targets in the units of ``y``.
        Default members are pipelines: the encoding of the columns, then a
        `~sklearn.compose.TransformedTargetRegressor` whose ``regressor_`` is scikit-learn's forest
        or boosting, the linear model or the mixture of networks. The Gaussian process is a stack of
        this single member.
        With several targets, the fitted stack of each target by its name: that of the column of a
        data frame, or "0", "1" and so on.
    named_estimators_ : Bunch
        The same members as attributes.
    leave_one_out_log_density_ : dict of str to (float, float)
        Mean leave-one-out log density of each member and its standard error. Both are in nats per
        row, and in the units of ``y``. With several targets, a dict of these by target.
    stack_log_density_ : (float, float)
        Mean leave-one-out log density of the stack and its standard error, in nats per row. With
        several targets, a dict of these by target.
    leave_one_out_cdf_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        Probability of values up to the target by the stack without the row, or its group. Uniform
        if the predictions are calibrated. NaN for rows that weren't fitted or weren't left out.
        Networks have only leave-one-out densities, and the other members stand for them. NaN if
        there are no others.
    target_correlation_ : ndarray of shape (n_targets, n_targets)
        Correlation matrix of the normal scores of several targets. Exists only for several.
    n_iter_ : int
        Number of fitted members.
    stop_reason_ : {"tol", "max_seconds", "callback", "interrupted"}
        Reason why fitting stopped; "tol" if every member was fitted or skipped as planned.
    outliers_ : ndarray of shape (n_outliers,)
        Rows of ``X`` that the fit left out because their targets are gross errors. Exists only with
        ``outliers="exclude"``, and not after fits with exposures.
    x_mean_, x_scale_ : ndarray of shape (n_columns,)
        Mean and standard deviation by which the inputs were standardised, after encoding.
    summary_ : str
        Plan of the fit, with the result of each stage or the reason why it was skipped.
    columns_in_ : Columns or None
        Encoding of text, categories, dates and missing values. None if the data had none of these.
    y_mean_, y_scale_ : ndarray of shape (n_targets,)
        Mean and standard deviation by which the targets were standardised.
    device_, dtype_ : str
        Device and floating-point precision of the fit.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all column names of ``X`` are strings.

    See Also
    --------
    PredictiveStackingClassifier : Stack for classification.
    BayesianMLPRegressor : Mixture of networks, one of the members.
    compare_models : Several models on the same folds.

    Notes
    -----
    The posterior of the Gaussian process takes O(min(n, 2000)^3) operations, and each step of its
    hyperparameters O(min(n, 500)^3). Trees take O(n log n). Networks take most of the time.
    They are fitted last, and only if a probe raises the held-out score of the stack by more than
    two standard errors. The probe consists of networks of 8 or 20 units that are fitted without the
    rows that score them, and takes no longer than the other members.
    Tables with so many columns that a probe would take longer get no networks.

    The noise of the default members is fitted to leave-one-out residuals. It is a mixture of two
    normals whose width changes with the predicted mean. The trees add the spread of the targets in
    their leaves. No predicted standard deviation is below the rounding of ``y``.

    If all targets are positive, the predicted probability of values up to zero is at most
    1 / (n + 2), the probability by Laplace's rule of succession, and from seven rows on at most
    0.005. Where it would be larger, densities on each side of zero are multiplied by a constant.
    From seven rows on, a linear model, trees and a Gaussian process of the logarithm ("log_linear",
    "log_trees", "log_gaussian_process") join the default members then, if they raise the
    leave-one-out score of the stack by 0.005 nats per row.

    Categorical columns (text, and any categorical dtype) with up to 30 levels are one-hot encoded.
    With more, the 30 most frequent levels are, and the rank of the level is an additional column. A
    missing number is replaced by the median, with an indicator if 2 % are missing. Predictions for
    a level that `fit` hasn't seen are averaged over the known levels, with a warning.

    Dates, as text or ``datetime64``, are encoded as days and as those of month, weekday and hour of
    which the training data span at least two cycles. After the last training date predictions are
    continued as a random walk with drift (Hyndman & Athanasopoulos 2021). With the distance h in
    units of the range of the dates, a rate c that is measured along the fitted function f, and
    standard normal z,

    .. math:: y = f(x, 1) + h\, (f(x, 1) - f(x, 0)) + \sqrt{c\, h\, (1 + h)}\, z + \varepsilon .

    Predictions also get wider, with a warning, where a number is beyond the range of its column by
    more than the length of the range.

    Several targets are drawn as ``y[t] = F[t]^-1(Phi(z[t]))``, with the distribution F[t] of each
    target and normal z. Their correlations are those of the normal scores of leave-one-out ranks
    (Genest, Ghoudi & Rivest 1995), shrunk by the rule of Schäfer & Strimmer (2005).

    With ``warm_start`` a fit omits members whose weight was less than 0.05, and networks of a
    regressor continue from their modes. Members are fitted if they are new, have other parameters
    than in the last fit, or failed then. All members are fitted again once the table has 1.5 times
    the rows of the last full fit.

    References
    ----------
    Yao, Vehtari, Simpson & Gelman (2018). Using stacking to average Bayesian predictive
    distributions.

    Rasmussen & Williams (2006). Gaussian processes for machine learning, chapter 5.

    Geurts, Ernst & Wehenkel (2006). Extremely randomized trees.

    Hyndman & Athanasopoulos (2021). Forecasting: principles and practice, section 5.2.

    Genest, Ghoudi & Rivest (1995). A semiparametric estimation procedure of dependence parameters
    in multivariate families of distributions.

    Schäfer & Strimmer (2005). A shrinkage approach to large-scale covariance matrix estimation and
    implications for functional genomics.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import PredictiveStackingRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> members = [("line", "linear"), ("trees", "trees")]
    >>> reg = PredictiveStackingRegressor(members, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, round(sum(reg.weights_.values()), 6), sorted(reg.weights_)
    ((3,), 1.0, ['line', 'trees'])
    """

    _: KW_ONLY
    outliers: str = "exclude"

    # Fitted stacks of several targets by name; empty for a single target.
    _stacks_: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseStacking._parameter_constraints,  # noqa: SLF001  # of its own base class
        "outliers": [StrOptions({"exclude", "keep"})],
    }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def fitted_likelihood(self) -> Likelihood:
        """Likelihood of predictions."""
        return self.resolved_likelihood

    @fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        groups: Any = None,
        noise_std: Any = None,
        exposure: Any = None,
    ) -> Self:
        """Fit all members, and their weights by leave-one-out or cross-validation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs, or a data frame with text, booleans and missing values.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets, for example a data frame.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative multiplicities: a weight of 2 is equivalent to repeating the row.
        groups : array-like of shape (n_samples,), optional
            Groups of rows that share more than the columns of ``X``, such as the visits of a
            patient, of any dtype. Give them if predictions are for new groups: whole groups are
            then left out wherever members are judged by left-out rows, so that predictions have the
            width of the differences between groups. Groups of one row each have no effect. In
            pipelines and searches, ``set_fit_request(groups=True)`` requests them.
        noise_std : array-like of shape (n_samples,), optional
            Known standard deviations of the errors of ``y``, in its units, for one target. The
            members "linear" and "gaussian_process" add them in quadrature to their learned noise.
            Other default members are left out with a warning, and other members of ``estimators``
            are refused. Predictions are for targets without known errors: `predictive` adds them.
        exposure : array-like of shape (n_samples,), optional
            Positive exposures of the counts ``y``, such as lengths of time or numbers at risk, for
            one target. Members predict rates: "count_linear", a linear model of the logarithm of
            the rate, and "count_boosting" replace the default members, with a warning. Members of
            ``estimators`` must predict counts and take ``exposure``, such as
            ``LaplaceRegressor(likelihood="negative_binomial")``. Predictions are per unit of
            exposure, and `predictive` multiplies them. Gross errors aren't looked for.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If no member could be fitted. The message contains the error of each member. Also if a
            group is missing, if there is only one group, or if ``cv`` divides a group; if a known
            error is negative or missing, or comes with ``cv`` or several targets; and if an
            exposure isn't positive, a target isn't a count, or there are several targets.
        """
        return self._fit_stack(X, y, sample_weight, groups, noise_std=noise_std, exposure=exposure)

    def _require_counts(self, method: str) -> None:
        """Raise a ValueError if a method gets exposures, and not all members predict counts."""
        if not self.predicts_counts:
            raise ValueError(
                f"{method}(exposure=...) multiplies the mean of counts, but the members of this "
                "stack predict real targets. Fit it with exposures of counts."
            )

    def _check_row_parameters(
        self, targets: Targets, noise_std: Any = None, exposure: Any = None
    ) -> Array | None:
        """Return known errors or exposures, (n_samples, 1); None if there are none."""
        if exposure is None:
            return super()._check_row_parameters(targets, noise_std)
        values = targets.values
        is_count = (values >= 0.0) & (values == np.floor(values))
        if not is_count.all():
            row = int(np.flatnonzero(~is_count)[0])
            raise ValueError(
                f"fit(exposure=...) takes counts, but y is {values[row, 0]:g} in row {row}. Give "
                "whole numbers from 0 on, not rates, which the fit computes itself."
            )
        if not values.any():
            raise ValueError(
                "fit(exposure=...) needs at least one positive count: the rate would be 0."
            )
        return check_exposure(exposure, values.shape)

    def _select_for_row_parameters(
        self, members: dict[str, Member], **row_parameters: Any
    ) -> dict[str, Member]:
        """Select the members that take known errors or exposures, and warn about the others."""
        if all(values is not None for values in row_parameters.values()):
            raise ValueError(
                "fit takes noise_std for real targets or exposure for counts, got both."
            )
        if row_parameters.get("noise_std") is not None:
            if self.cv is not None:
                raise ValueError(
                    f"fit(noise_std=...) needs the closed forms of leave-one-out: use cv=None, got "
                    f"cv={self.cv!r}."
                )
            argument = "noise_std"
            others = [name for name, member in members.items() if not member.takes_known_errors]
            takes = "Known errors per row are for the members 'linear' and 'gaussian_process'"
        elif row_parameters.get("exposure") is not None:
            if self.estimators is None:
                members = members | {name: make() for name, make in COUNT_MEMBERS.items()}
            argument = "exposure"
            others = [name for name, member in members.items() if not member.takes_exposure]
            takes = (
                "Exposures are for the members 'count_linear' and 'count_boosting', and for "
                "estimators of counts such as LaplaceRegressor(likelihood='negative_binomial')"
            )
        else:
            return members
        names = ", ".join(map(repr, others))
        if others and self.estimators is not None:
            raise ValueError(f"the members {names} take no {argument}. {takes}.")
        if others:
            warn_user(f"{takes}: the others are left out ({names}).", UserWarning)
        return {name: member for name, member in members.items() if name not in others}

    def _fit_stack(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, **row_parameters: Any
    ) -> Self:
        """Fit one stack, or one for each of several targets; see `fit`.

        Parameters
        ----------
        X, y, sample_weight, groups : array-like
            Training data as the user passed them. Weights and groups can be None.
        **row_parameters : array-like or None
            ``noise_std`` and ``exposure``.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        targets = read_targets(y)
        if targets is None:
            return super()._fit_stack(X, y, sample_weight, groups, **row_parameters)
        for name, values in row_parameters.items():
            if values is not None:
                raise ValueError(
                    f"fit({name}=...) of {type(self).__name__} takes one target, got "
                    f"{len(targets[1])}: fit one stack per target."
                )
        with self._fit_environment():
            stacks = self._fit_targets(X, *targets, sample_weight, groups)
            cdf = np.column_stack(
                [
                    left_out_cdf(stack, X, column)
                    for stack, column in zip(stacks.values(), targets[0].T, strict=True)
                ]
            )
            self._set_fit(self._joint_attributes(stacks, cdf, sample_weight))
        return self

    def _fit_targets(
        self, X: Any, y: Array, names: list[str], sample_weight: Any, groups: Any
    ) -> dict[str, Self]:
        """Fit one stack for each of several targets.

        Parameters
        ----------
        X, sample_weight, groups : array-like
            Training data as the user passed them. Weights and groups can be None.
        y : ndarray of shape (n_samples, n_targets)
            Targets.
        names : list of str
            Names of the targets.

        Returns
        -------
        dict of str to PredictiveStackingRegressor
            Fitted stacks by name.
        """
        params = self.get_params(deep=False)
        if isinstance(self.cv, Iterator):
            params["cv"] = list(self.cv)
        seeds = np.random.SeedSequence(draw_seed(self.random_state)).generate_state(len(names))
        previous = self._stacks_ if self._continues_fit else {}
        start = time.monotonic()
        metadata = {"sample_weight": sample_weight, "groups": groups}
        arguments = {"estimator": self, "X": X, "y": y, "metadata": metadata}
        progress = FitProgress(arguments, lambda fitted: fitted)
        progress.begin(StackDefaults().progress_blocks)
        stacks = {}
        for t, name in enumerate(names):
            stack = type(self)()
            if name in previous:
                stack = copy(previous[name])
            stack.set_params(**{**params, "random_state": int(seeds[t])})
            if self.max_seconds is not None:
                # The targets that are left share the time that is left.
                rest = self.max_seconds - (time.monotonic() - start)
                stack.max_seconds = max(rest / (len(names) - t), 1e-3)
            receiver = progress.stage_receiver(1.0 / len(names))
            with name_target_in_warnings(name), reporting_to(receiver):
                stacks[name] = stack.fit(X, y[:, t], sample_weight, groups)
        progress.end()
        return stacks

    def _joint_attributes(
        self, stacks: dict[str, Self], cdf: Array, sample_weight: Any
    ) -> dict[str, Any]:
        """Attributes of an estimator of several targets, which is fitted by one stack each.

        Parameters
        ----------
        stacks : dict of str to PredictiveStackingRegressor
            Fitted stack of each target.
        cdf : ndarray of shape (n_samples, n_targets)
            Leave-one-out distribution functions at the targets.
        sample_weight : array-like of shape (n_samples,) or None
            Weights of the rows.

        Returns
        -------
        dict of str to object
            Attributes by name.
        """
        first = next(iter(stacks.values()))
        weight = np.ones(len(cdf))
        if sample_weight is not None:
            weight = np.broadcast_to(np.asarray(sample_weight, dtype=float), len(cdf))
        correlation = fit_correlation(cdf, weight)
        reasons = {stack.stop_reason_ for stack in stacks.values()}
        if reasons == {"tol"}:
            stop_reason = "tol"
        else:
            stop_reason = (reasons - {"tol"}).pop()
        summaries = [f"target {name}: {stack.summary_}" for name, stack in stacks.items()]
        # The columns are those of every stack.
        attributes = {k: value for k, value in vars(first).items() if k.endswith("_in_")}
        for name in [k for k in vars(self) if k.endswith("_in_") and k not in attributes]:
            delattr(self, name)
        if self.outliers == "exclude":
            outliers = [stack.outliers_ for stack in stacks.values()]
            attributes["outliers_"] = np.unique(np.concatenate(outliers))
        return attributes | {
            "x_mean_": first.x_mean_,
            "x_scale_": first.x_scale_,
            "y_mean_": np.concatenate([stack.y_mean_ for stack in stacks.values()]),
            "y_scale_": np.concatenate([stack.y_scale_ for stack in stacks.values()]),
            "_y_ndim_": 2,
            "device_": first.device_,
            "dtype_": first.dtype_,
            "n_iter_": sum(stack.n_iter_ for stack in stacks.values()),
            "stop_reason_": stop_reason,
            "weights_": {name: stack.weights_ for name, stack in stacks.items()},
            "leave_one_out_log_density_": {
                name: stack.leave_one_out_log_density_ for name, stack in stacks.items()
            },
            "stack_log_density_": {
                name: stack.stack_log_density_ for name, stack in stacks.items()
            },
            "leave_one_out_cdf_": cdf,
            "target_correlation_": correlation,
            "summary_": "\n\n".join([*summaries, describe_correlation(correlation, list(stacks))]),
            "_n_rows_full_fit_": 0,
            "_member_params_": {},
            "_max_mass_below_": None,
            "_predictors_": {},
            "_stacks_": stacks,
        }

    @property
    def has_normal_components(self) -> bool:
        """Whether all members with a positive weight are mixtures of normals.

        Distributions of positive targets aren't, and neither are those of several targets.
        """
        return (
            not self._stacks_
            and self._max_mass_below_ is None
            and all(
                predictor.is_normal
                for name, predictor in self._predictors_.items()
                if self.weights_[name]
            )
        )

    @property
    def predicts_counts(self) -> bool:
        """Whether all members predict counts, of all targets."""
        if self._stacks_:
            return all(stack.predicts_counts for stack in self._stacks_.values())
        return all(predictor.is_discrete for predictor in self._predictors_.values())

    def _full_input(self, rows: Any) -> Any:
        return rows

    def _left_out_attributes(
        self, data: Training, task: StackTask, stack: StackFit
    ) -> dict[str, Any]:
        """Leave-one-out distribution function of the stack at the targets."""
        weighted = [name for name, weight in stack.weights.items() if weight]
        total = np.zeros(len(task))
        known_weight = np.zeros(len(task))
        for name in weighted:
            cdf = stack.members[name].cdf
            if cdf is not None:
                total += stack.weights[name] * cdf
                known_weight += stack.weights[name]
        # Networks only have leave-one-out densities. The other members stand for them.
        is_known = known_weight > 0.0
        cdf = np.where(is_known, total / np.where(is_known, known_weight, 1.0), np.nan)
        return {"leave_one_out_cdf_": np.append(cdf, np.nan)[data.inverse_index]}

    @property
    def estimators_(self) -> dict[str, Any]:
        """Fitted members by name, or the fitted stack of each of several targets."""
        return dict(self._stacks_) or super().estimators_

    @property
    def _target_stacks(self) -> TargetStacks | None:
        """Stacks of several targets as one model; None for a single target."""
        if not self._stacks_:
            return None
        return TargetStacks(list(self._stacks_.values()), self.target_correlation_)

    def _predictive(self, X: Any) -> Any:
        if not self._stacks_:
            return None
        return CopulaPredictive(self, X, self._stacks_, self.target_correlation_)

    def evaluate_functional(
        self, X: Any, functional: Callable[..., list[Tensor]], y: Array | None = None
    ) -> list[Array]:
        """Evaluate a functional of the predictive distributions, in blocks of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        functional : callable
            Takes the predictive distribution of a block of rows, in target units, and if ``y`` is
            given the targets of the block. Returns tensors with the rows as their first axis.
        y : ndarray of shape (n_samples, n_targets), optional
            Observed targets.

        Returns
        -------
        list of ndarray
            Results of the functional, joined over blocks.
        """
        targets = self._target_stacks
        if targets is None:
            return super().evaluate_functional(X, functional, y)
        return targets.evaluate(X, functional, y)

    def _predict_mean(self, X: Any) -> Array:
        targets = self._target_stacks
        if targets is None:
            return super()._predict_mean(X)
        return targets.mean(X)

    def _mean_and_covariance(self, X: Any) -> tuple[Array, Array]:
        if self._stacks_:
            raise ValueError(
                "return_cov=True takes a model of one target. Use that of one target, "
                "estimators_[name].predict(X, return_cov=True), or the covariance of sample_y."
            )
        return super()._mean_and_covariance(X)

    def mixture_components(self, X: Any) -> tuple[Array, Array, Array]:
        """Return the components of predictive distributions that are mixtures.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        weights : ndarray of shape (n_components,)
            Weights of the components, the same for all rows.
        means, stds : ndarray of shape (n_components, n_samples)
            Means and standard deviations of the components, in the units of ``y``.

        Raises
        ------
        TypeError
            If there are several targets, whose joint distribution is no mixture of normals.
        """
        if self._stacks_:
            raise TypeError(
                "the joint distribution of several targets has no components. Use those of one "
                "target, estimators_[name].mixture_components(X)."
            )
        return super().mixture_components(X)

    def sample_f(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw functions, without observation noise. Those of several targets are independent.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int, default=1
            Number of functions, at least one.
        random_state : int, RandomState instance or None, default=0
            Seed or generator of the functions.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_targets, n_samples)
            Values of the functions in the units of ``y``.
        """
        targets = self._target_stacks
        if targets is None:
            return super().sample_f(X, n_samples, random_state)
        return targets.sample_functions(X, n_samples, self._target_seeds(random_state))

    def _target_seeds(self, random_state: Any) -> list[int]:
        """Seeds of the draws of several targets."""
        sequence = np.random.SeedSequence(draw_seed(random_state))
        return [int(seed) for seed in sequence.generate_state(len(self._stacks_))]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Sample functions and add observation noise. Samples are counts if members predict counts.

        Several targets are drawn from their joint distribution.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int, default=1
            Number of samples.
        random_state : int, RandomState instance or None, default=0
            Seed or generator of the samples.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_targets, n_samples)
            Sampled targets, in the units of ``y``.
        """
        targets = self._target_stacks
        if targets is not None:
            return targets.sample(X, n_samples, self._target_seeds(random_state))
        draws = super().sample_y(X, n_samples, random_state)
        # Counts in the stack's units are off by rounding.
        return np.rint(draws) if self.predicts_counts else draws


class PredictiveStackingClassifier(BayesianClassifierMixin, BaseStacking):
    r"""Classification by a stack of predictive distributions, with nothing to tune.

    The class probabilities are a mixture of the probabilities of several models. The weights
    maximise the leave-one-out log probability under a Dirichlet prior (Yao, Vehtari, Simpson &
    Gelman 2018, eq. 8). By default the models are a Bayesian linear model, extremely randomised
    trees, gradient boosting, a Gaussian process and `BayesianMLPClassifier`. Tables are accepted as
    they are read, with text, dates and missing values.

    Parameters
    ----------
    estimators : list of (str, estimator or str), default=None
        Members and their names: classifiers with ``predict_proba``. They are cloned and fitted to
        ``X`` in the form in which it is passed. The default members are "linear", "trees",
        "boosting", "gaussian_process" and "networks", which can also be used in a list. "drop"
        omits a member. ``set_params(name__parameter=value)`` sets a parameter of a member.
    cv : int, splitter or iterable, default=None
        Folds by which all members are scored. Splitters of groups, such as `GroupKFold`, use the
        ``groups`` of `fit`. Forward folds of rows in time order, such as `TimeSeriesSplit`, are
        accepted too, as a splitter or as pairs of training and left-out rows. Rows that no fold
        leaves out aren't scored: noise and weights depend on the left-out rows alone, at least ten
        or half of all. By default members are scored by leave-one-out in closed form, out-of-bag
        predictions or approximate leave-one-out if they have these, and by five-fold
        cross-validation otherwise. With ``groups`` whole groups are left out instead.
    n_jobs : int or None, default=None
        Number of joblib processes. The result doesn't depend on it. Members are fitted in parallel,
        then parts of networks, unless ``max_seconds`` is set.
    max_seconds : float, default=None
        Time after which no further member is started and networks stop training. A warning and
        ``summary_`` name the members that are missing for this reason. Fits with a time limit
        aren't reproducible to the last bit.
    warm_start : bool, default=False
        Whether `fit` starts from the result of the previous call.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers, and of members whose own ``random_state`` is None.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.

    Attributes
    ----------
    leave_one_out_log_density_ : dict of str to (float, float)
        Mean leave-one-out log density of each member and its standard error. Both are in nats per
        row.
    stack_log_density_ : (float, float)
        Mean leave-one-out log density of the stack and its standard error, in nats per row.
    weights_ : dict of str to float
        Stacking weights of the members. Their sum is 1, and weights below 0.001 are set to 0.
    estimators_ : dict of str to object
        Fitted members, whose ``predict`` reads ``X`` and returns labels. Default members are
        pipelines: the encoding of the columns, then scikit-learn's forest or boosting, the linear
        model or the mixture of networks. Their probabilities aren't calibrated on held-out rows.
        The Gaussian process is a stack of this single member.
    named_estimators_ : Bunch
        The same members as attributes.
    n_iter_ : int
        Number of fitted members.
    stop_reason_ : {"tol", "max_seconds", "callback", "interrupted"}
        Reason why fitting stopped; "tol" if every member was fitted or skipped as planned.
    x_mean_, x_scale_ : ndarray of shape (n_columns,)
        Mean and standard deviation by which the inputs were standardised, after encoding.
    summary_ : str
        Plan of the fit, with the result of each stage or the reason why it was skipped.
    columns_in_ : Columns or None
        Encoding of text, categories, dates and missing values. None if the data had none of these.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    device_, dtype_ : str
        Device and floating-point precision of the fit.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all column names of ``X`` are strings.

    See Also
    --------
    PredictiveStackingRegressor : Stack for regression.
    BayesianMLPClassifier : Mixture of networks, one of the members.

    Notes
    -----
    Networks are fitted only if a probe, one mode that is fitted without the first fold, raises the
    score of the stack on this fold by more than two standard errors. Their approximate
    leave-one-out scores are lowered by their mean excess over the probe on this fold.

    The scores of all members except the networks are calibrated on held-out rows by a temperature
    and a share of the class frequencies. The Gaussian process regresses on one-hot labels with one
    kernel for all classes, whose length scales are kept close to each other.

    Costs, text, dates and missing values are as in `PredictiveStackingRegressor`. Probabilities
    after the last training date are averages of those at dates up to the same distance before it.

    References
    ----------
    Yao, Vehtari, Simpson & Gelman (2018). Using stacking to average Bayesian predictive
    distributions.

    Guo, Pleiss, Sun & Weinberger (2017). On calibration of modern neural networks.

    Geurts, Ernst & Wehenkel (2006). Extremely randomized trees.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_sym import PredictiveStackingClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> members = [("trees", "trees"), ("smooth", "gaussian_process")]
    >>> clf = PredictiveStackingClassifier(members, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """
