"""Bayesian stacking of predictive distributions, as scikit-learn estimators."""

import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.messages import name_target_in_warnings, warn_user
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.row_parameters import check_exposure
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import StrOptions, fit_context
from skbayes_sym.base.targets import Targets
from skbayes_sym.base.training import Training
from skbayes_sym.models.copula import fit_correlation
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.arguments import draw_seed
from skbayes_sym.numerics.progress import reporting_to
from skbayes_sym.stacking.base import BaseStacking
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.fit import StackFit
from skbayes_sym.stacking.members import COUNT_MEMBERS, Member
from skbayes_sym.stacking.several_targets import (
    CopulaPredictive,
    TargetStacks,
    describe_correlation,
    left_out_cdf,
    read_targets,
)
from skbayes_sym.stacking.task import StackTask


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
    missing number is replaced by the median, with an indicator if 2 % are missing. If five rows or
    more have a level that no other row has, such as a name, an indicator tells which rows have a
    level that isn't one-hot encoded, or one that `fit` hasn't seen. In other columns, predictions
    for a level that `fit` hasn't seen are averaged over the known levels, with a warning.

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
