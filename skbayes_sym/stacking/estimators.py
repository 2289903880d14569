"""Bayesian stacking of predictive distributions, as scikit-learn estimators."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import indexable
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.columns import TabularInputMixin
from skbayes_sym.base.estimator import RowEstimator
from skbayes_sym.base.predictive import is_regression_model, predicts_counts
from skbayes_sym.base.progress import N_JOBS, PREDICT_ROWS, RUN_CONSTRAINTS, FitProgress
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import Array, Scaling
from skbayes_sym.base.scikit_learn import (
    Interval,
    check_cv,
    fit_context,
    num_samples,
    safe_indexing,
)
from skbayes_sym.base.stacking_weights import PooledPredictor
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.numerics.tables import fill_masked
from skbayes_sym.stacking.gaussian_process import GaussianProcessDefaults
from skbayes_sym.stacking.members import (
    KINDS,
    Member,
    Networks,
    StackTask,
    UserEstimator,
    member_settings,
)
from skbayes_sym.stacking.predictors import RowBlock
from skbayes_sym.stacking.weights import (
    CountsFoundError,
    StackFit,
    fit_stack,
    is_of_counts,
    mean_score,
)


@dataclass(eq=False, repr=False)
class Stack(RowEstimator):
    """A fitted stack: its parts by name, and what they count for."""

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **RUN_CONSTRAINTS,
        "estimators": [list, None],
        "cv": ["cv_object"],
        "n_jobs": N_JOBS,
        "warm_start": ["boolean"],
        "max_seconds": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
    }

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit all members, and their weights by the rows that each of them leaves out.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs, or a data frame with words, booleans and missing values.
        y : array-like of shape (n_samples,)
            Targets, or class labels.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative multiplicities: a weight of 2 is the row given twice, exactly.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If no member could be fitted: what each of them said.
        """
        X = fill_masked(X)
        with self._fit_environment():
            members = self._members()
            data = Training.open(self, X, y, sample_weight)
            task = self._task(data, X, y)
            if task.n_searched:
                members = self._counting(members)
            n = min(data.n_rows, GaussianProcessDefaults().most_rows)
            process = MemoryAllocation(
                f"a Gaussian process of {n:,} rows", 5 * n**2 * 8, "Use fewer of them."
            )
            require_memory([data.rows_allocation, process], data.device)
            progress = FitProgress(
                data.callback_arguments, lambda stack: self._stacked(data, task, stack)
            )
            with self._keep_on_interrupt(progress):
                by_folds = self.cv is not None
                try:
                    stack = fit_stack(
                        members, task, progress, by_folds=by_folds, n_jobs=self.n_jobs
                    )
                except CountsFoundError:  # what only its fit has shown
                    task = replace(task, is_counts=True)
                    stack = fit_stack(
                        members, task, progress, by_folds=by_folds, n_jobs=self.n_jobs
                    )
                self._set_fit(self._stacked(data, task, stack))
        return self

    def _counting(self, members: dict[str, Member]) -> dict[str, Member]:
        """Members that counted in the last fit, and those that it didn't have.

        A member that the last fit left out for lack of weight stays out. One that is new, was
        changed, failed or got no time is fitted. Networks of a regressor go on from their modes.
        """
        least = StackTask.effort.least_again
        settings = member_settings(members)
        known = {name for name in members if self._member_settings_.get(name, "") == settings[name]}
        counted = {name for name in known if self.weights_.get(name, 0.0) > least}
        kept = {
            name: member for name, member in members.items()
            if name in counted or name not in known
        }  # fmt: skip
        for name, member in kept.items():
            if name in counted and isinstance(member, Networks) and not is_classifier(self):
                kept[name] = Networks(self.estimators_[name])
        return kept or members

    def _members(self) -> dict[str, Member]:
        """Members by name; those that are names themselves are of the default list."""
        if self.estimators is None:
            return {name: kind() for name, kind in KINDS.items()}
        if not self.estimators:
            raise ValueError("estimators must name at least one (name, estimator), got [].")
        members: dict[str, Member] = {}
        for pair in self.estimators:
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
                raise ValueError(f"estimators must hold pairs (name, estimator), got {pair!r}.")
            name, estimator = pair
            if name in members:
                raise ValueError(f"estimators must have names of their own, got {name!r} twice.")
            if isinstance(estimator, str):
                if estimator not in KINDS:
                    known = ", ".join(map(repr, KINDS))
                    raise ValueError(
                        f"estimators: {name!r} is {estimator!r}, which is no member of the default "
                        f"list: take one of {known}, or an estimator."
                    )
                members[name] = KINDS[estimator]()
                continue
            is_right = is_classifier if is_classifier(self) else is_regression_model
            try:
                is_known = not isinstance(estimator, type) and is_right(estimator)
            except AttributeError:  # no estimator at all
                is_known = False
            if not is_known:
                kind = "classifier" if is_classifier(self) else "regressor"
                raise ValueError(f"estimators: {name!r} must be a {kind}, got {estimator!r}.")
            members[name] = UserEstimator(estimator)
        return members

    def _task(self, data: Training, X: Any, y: Any) -> StackTask:
        """Distinct rows, encoded and as they were given, and the folds."""
        labels = data.labels
        scaling = data.y_scaling
        effort = StackTask.effort
        present = np.flatnonzero(data.inverse_index >= 0)
        first = np.empty(data.n_rows, dtype=int)
        first[data.inverse_index[present[::-1]]] = present[::-1]
        rows, targets, weight = (
            torch.as_tensor(np.ascontiguousarray(a)) for a in data._scaled(data.rows.X)
        )
        if labels is None:  # the same trees whatever the units of y, and their rounding
            targets = targets.round(decimals=12)
        values = data.rows.y[:, 0] if labels is None else labels[data.rows.y]
        cv = self.cv
        seed = data.seed
        if cv is None or isinstance(cv, Integral):
            n_folds = effort.folds if cv is None else int(cv)
            folds = self._folds(values, n_folds, seed)
        else:
            folds = self._original_row_folds(X, y, first)
        deadline = float("inf")
        if self.max_seconds is not None:
            deadline = time.monotonic() + self.max_seconds
        n_searched = self._n_searched_ if self._continues_fit else 0
        if len(weight) >= effort.growth * n_searched:
            n_searched = 0
        given = [pair[1] for pair in self.estimators or () if not isinstance(pair[1], str)]
        is_counts = labels is None and any(map(predicts_counts, given)) and is_of_counts(values)
        return StackTask(
            RowBlock(rows.double(), safe_indexing(*indexable(X), first)),
            targets, weight, values, folds, seed,
            of_y=(0.0, 1.0) if scaling is None else (
                float(scaling.mean[0]), float(scaling.scale[0])
            ),
            classes=labels, device=self.device, deadline=deadline, effort=effort,
            n_jobs=self.n_jobs, n_searched=n_searched, is_counts=is_counts,
        )  # fmt: skip

    def _folds(self, targets: Array, n_folds: int, seed: int) -> list[tuple[Array, Array]]:
        """Training and left-out rows of shuffled folds, stratified by class where that goes."""
        n = len(targets)
        kind = KFold
        if n < 2:
            return [(np.arange(n), np.arange(n))]
        n_folds = min(n_folds, n)
        if is_classifier(self):
            _, counts = np.unique(targets, return_counts=True)
            if counts.min() >= n_folds:
                kind = StratifiedKFold
        splitter = kind(n_folds, shuffle=True, random_state=seed % 2**32)
        with filters_lock:
            return list(splitter.split(targets, targets))

    def _original_row_folds(self, X: Any, y: Any, first: Array) -> list[tuple[Array, Array]]:
        """Training and left-out distinct rows, where ``cv`` splits the rows as they were given."""
        fold = np.full(num_samples(X), -1)
        n_tests = np.zeros(num_samples(X), dtype=int)
        try:
            with filters_lock:
                splits = list(check_cv(self.cv, y, classifier=is_classifier(self)).split(X, y))
            for k, (_, test) in enumerate(splits):
                fold[test] = k
                n_tests[test] += 1
        except (TypeError, IndexError, ValueError) as error:
            raise ValueError(
                f"cv={self.cv!r} splits no rows ({error}) Give an int, a splitter such as KFold, "
                "or pairs of training and left-out rows, as split(X, y, groups) makes them."
            ) from error
        wrong = first[n_tests[first] != 1]
        if len(wrong):
            row = wrong.min()
            raise ValueError(
                f"cv must leave out every row once, but row {row} is left out {n_tests[row]} "
                "times: use KFold, for example."
            )
        places = [fold[first] == k for k in range(len(splits))]
        return [(np.flatnonzero(~here), np.flatnonzero(here)) for here in places if here.any()]

    def _considered(self, task: StackTask, stack: StackFit) -> dict[str, str]:
        """Settings of the members that a warm start needn't fit to find out about them."""
        old = self._member_settings_ if task.n_searched else {}
        settings = member_settings(self._members())
        return {
            name: setting for name, setting in settings.items()
            if name in stack.considered or old.get(name) == setting
        }  # fmt: skip

    def _stacked(self, data: Training, task: StackTask, stack: StackFit) -> dict[str, Any]:
        """Fitted attributes."""
        # Probabilities of counts have no unit.
        unit = 0.0 if task.is_counts else float(np.log(task.of_y[1]))
        scores = {}
        for name, member in stack.members.items():
            mean, error = mean_score(member.log_density, task)
            scores[name] = (mean - unit, error)
        what = f"{data.n_rows:,} distinct rows of {self.n_features_in_} columns"
        told = [
            f"{name} {stack.weights[name]:.0%} ({scores[name][0]:.3g} nats per row left out)"
            for name in sorted(stack.weights, key=lambda name: -stack.weights[name])
        ]
        return {
            **data.attributes(),
            "device_": "cpu" if self.device == "auto" else str(data.device),
            "dtype_": "float64",
            "n_iter_": stack.n_iter,
            "stop_reason_": stack.stop_reason,
            "weights_": dict(stack.weights),
            "_n_searched_": task.n_searched or len(task),
            "_member_settings_": self._considered(task, stack),
            "leave_one_out_log_density_": scores,
            "summary_": f"{what}: " + "; ".join([", ".join(told), *stack.reasons]),
            "_parts_": {name: member.part for name, member in stack.members.items()},
        }

    @property
    def estimators_(self) -> dict[str, Any]:
        """Fitted members by name: estimators, or what predicts where there is none."""
        return {name: part.inner for name, part in self._parts_.items()}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_parts_")

    @property
    def resolved_likelihood(self) -> Likelihood:
        return self._likelihoods_by_name["auto"]

    def _predict_device(self) -> torch.device:
        return torch.device("cpu")

    def input_blocks(self, X: Any) -> Iterator[Any]:
        for start in range(0, len(X), PREDICT_ROWS):
            yield X.take(np.arange(start, min(start + PREDICT_ROWS, len(X))))

    def predictor(self, like: Tensor) -> PooledPredictor:
        """The parts as one predictor."""
        return PooledPredictor(self._parts_, self.weights_)


class StackTables(TabularInputMixin):
    """Rows of a question to a stack, encoded and as they were given."""

    standardize: bool | str = True
    x_mean_: Array
    x_scale_: Array

    def _join_raw_rows(self, encoded: Array, X: Any) -> RowBlock:
        scaled = Scaling(self.x_mean_, self.x_scale_).apply(encoded)
        return RowBlock(torch.as_tensor(scaled, dtype=torch.float64), *indexable(X))


class PredictiveStackingRegressor(StackTables, BayesianRegressorMixin, Stack):
    r"""Regression by a stack of predictive distributions, with nothing to tune.

    A new target's distribution is the mixture of several models' with the weights that maximise the
    log score of left-out rows under a Dirichlet prior (Yao, Vehtari, Simpson & Gelman 2018, eq. 8),

    .. math:: \max_{w \in \Delta} \sum_n \log \sum_k w_k\, p_k(y_n \mid x_n, y_{-n})
              + \sum_k e^{s_k - \max_j s_j} \log w_k ,

    with a member's mean log score :math:`s_k`: one that is nats per row behind counts for nothing
    beforehand.

    By default the models are a Bayesian linear model, extremely randomised trees, gradient
    boosting, a Gaussian process and `BayesianMLPRegressor`, on any table as it is read.

    Parameters
    ----------
    estimators : list of (str, estimator or str), default=None
        Members and their names: anything that `predictive` understands, and regressors of points,
        whose left-out residuals give them noise. They are cloned and fitted to ``X`` as it is
        given. "linear", "forest", "boosting", "process" and "networks" stand for the members of
        the default list, which are all of these.
    cv : int, splitter or iterable, default=None
        Folds of every member's left-out rows; those of groups as a list of pairs,
        ``list(GroupKFold().split(X, y, groups))``. By default members leave rows out in closed
        form, out of bag or by approximation where they can, by five folds else.
    n_jobs : int or None, default=None
        Number of joblib processes: members at once, then parts of networks, unless
        ``max_seconds`` is given. The numbers don't depend on it.
    max_seconds : float, default=None
        Time from which no other member is begun, and networks stop where they are. A warning and
        ``summary_`` name the members that got no time. With it a fit can't be repeated to the bit.
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
    weights_ : dict of str to float
        Weights of the members, which add up to 1; below .001 they are 0.
    estimators_ : dict of str to object
        Fitted members.
    leave_one_out_log_density_ : dict of str to (float, float)
        Mean log density of the rows that a member left out, nats per row, and its standard error;
        in the units of ``y``.
    n_iter_ : int
        Members fitted.
    stop_reason_ : {"tol", "max_seconds", "callback", "interrupted"}
        Why no other was fitted; "tol": there was none.
    x_mean_, x_scale_ : ndarray of shape (n_columns,)
        Mean and standard deviation by which the inputs were standardised, after encoding.
    summary_ : str
        What was fitted to these data, in one line.
    columns_in_ : Columns or None
        Encoding of text, categories and missing values. None if the data had none of these.
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
    PredictiveStackingClassifier : The same for class labels.
    BayesianMLPRegressor : The pool of networks alone.
    compare_models : Several models on the same folds.

    Notes
    -----
    The process costs O(min(n, 2000)^3) and its scales O(min(n, 500)^3) a step, trees
    O(n log n); networks take most of the time and are fitted last. Where two modes of them stay .1
    nat per row behind the best other member, they are left out: then they add nothing. Networks of
    more weights than half the rows are judged by a refit without a fold.

    Members of the default list get noise from left-out rows: two normals whose width changes with
    the predicted level, of the forest over the spread of the targets in its leaves. No width is
    below the rounding of ``y``.

    Categorical columns (text, and any categorical dtype) with up to 30 levels are one-hot encoded.
    With more, the 30 most frequent levels are, and the rank of the level is an additional column. A
    missing number is replaced by the median, with an indicator if 2 % are missing. Predictions for
    a level that `fit` hasn't seen are averaged over the known levels, with a warning.

    With ``warm_start`` a fit leaves out members whose weight was less than 0.05, and networks of a
    regressor begin at their modes. Members that are new, have other parameters than in the last fit
    or failed then are fitted. With half as many rows again as the last full fit had, all members
    are fitted anew.

    References
    ----------
    Yao, Vehtari, Simpson & Gelman (2018). Using stacking to average Bayesian predictive
    distributions.

    Rasmussen & Williams (2006). Gaussian processes for machine learning, chapter 5.

    Geurts, Ernst & Wehenkel (2006). Extremely randomized trees.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import PredictiveStackingRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> members = [("line", "linear"), ("trees", "forest")]
    >>> reg = PredictiveStackingRegressor(members, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, round(sum(reg.weights_.values()), 6), sorted(reg.weights_)
    ((3,), 1.0, ['line', 'trees'])
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = False
        return tags

    @property
    def fitted_likelihood(self) -> Likelihood:
        return self.resolved_likelihood

    @property
    def has_normal_components(self) -> bool:
        return all(part.is_normal for name, part in self._parts_.items() if self.weights_[name])

    @property
    def predicts_counts(self) -> bool:
        return all(part.is_discrete for part in self._parts_.values())

    def _full_input(self, rows: Any) -> Any:
        return rows

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw whole functions and add observation noise; counts where members predict counts.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples)
        """
        draws = super().sample_y(X, n_samples, random_state)
        # Counts in the stack's units are off by rounding.
        return np.rint(draws) if self.predicts_counts else draws


class PredictiveStackingClassifier(StackTables, BayesianClassifierMixin, Stack):
    r"""Classification by a stack of predictive distributions, with nothing to tune.

    A row's class probabilities are the mixture of several models' with the weights that maximise
    the log probability of left-out rows under a Dirichlet prior (Yao, Vehtari, Simpson & Gelman
    2018, eq. 8). By default the models are a Bayesian linear model, extremely randomised trees,
    gradient boosting, a Gaussian process and `BayesianMLPClassifier`, on any table as it is read.

    Parameters
    ----------
    estimators : list of (str, estimator or str), default=None
        Members and their names: classifiers with ``predict_proba``. They are cloned and fitted to
        ``X`` as it is given. "linear", "forest", "boosting", "process" and "networks" stand for the
        members of the default list, which are all of these.
    cv : int, splitter or iterable, default=None
        Folds of every member's left-out rows; those of groups as a list of pairs,
        ``list(GroupKFold().split(X, y, groups))``. By default members leave rows out in closed
        form, out of bag or by approximation where they can, by five folds else.
    n_jobs : int or None, default=None
        Number of joblib processes: members at once, then parts of networks, unless
        ``max_seconds`` is given. The numbers don't depend on it.
    max_seconds : float, default=None
        Time from which no other member is begun, and networks stop where they are. A warning and
        ``summary_`` name the members that got no time. With it a fit can't be repeated to the bit.
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
        Mean log density of the rows that a member left out, nats per row, and its standard error.
    weights_ : dict of str to float
        Weights of the members, which add up to 1; below .001 they are 0.
    estimators_ : dict of str to object
        Fitted members.
    n_iter_ : int
        Members fitted.
    stop_reason_ : {"tol", "max_seconds", "callback", "interrupted"}
        Why no other was fitted; "tol": there was none.
    x_mean_, x_scale_ : ndarray of shape (n_columns,)
        Mean and standard deviation by which the inputs were standardised, after encoding.
    summary_ : str
        What was fitted to these data, in one line.
    columns_in_ : Columns or None
        Encoding of text, categories and missing values. None if the data had none of these.
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
    PredictiveStackingRegressor : The same for numbers.
    BayesianMLPClassifier : The pool of networks alone.

    Notes
    -----
    Networks of more weights than half the rows begin with a refit without a fold, and are left out
    where it is .1 nat per row, and more than its error, behind the best other member.

    Every member's scores are calibrated by left-out rows, the networks' aside: a temperature, and a
    share of the class frequencies. The Gaussian process is a regression of one-hot labels with one
    kernel for all classes, whose length scales are kept close to each other.

    Costs, words and missing values are as in `PredictiveStackingRegressor`.

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
    >>> members = [("trees", "forest"), ("smooth", "process")]
    >>> clf = PredictiveStackingClassifier(members, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """
