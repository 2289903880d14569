"""Bayesian linear models for regression, counts and classification."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from math import prod
from numbers import Integral, Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base import row_parameters
from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.model_factory import (
    PriorParameter,
    gaussian_noise,
    give_each_target_a_scale,
    require_mlp,
    scale_array,
)
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.progress import RUN_CONSTRAINTS
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.requirements import (
    ONE_OUTPUT_LIKELIHOOD,
    FitResult,
    Requirement,
    refuse_parameters,
    require_kind,
)
from skbayes_sym.base.rows import STANDARDIZE, Array, Rows, Scaling, column_scaling, is_standardized
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.base.targets import RegressionTargets, Targets
from skbayes_sym.base.training import Training
from skbayes_sym.linear.fit import LinearFit, SiteInference, fit_variance_scale, is_conjugate
from skbayes_sym.linear.predict import LinearPredictor
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.registry import (
    SupportedLikelihoods,
    is_class_likelihood,
    is_target_likelihood,
)
from skbayes_sym.models.likelihoods.row_parameters import extend_likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import IDENTITY, MLP
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.numerics.arguments import check_not_masked
from skbayes_sym.symmetry.group import Trivial
from skbayes_sym.symmetry.translation import Translation

REGRESSION_LIKELIHOODS = SupportedLikelihoods(
    lambda likelihood: is_target_likelihood(likelihood) and ONE_OUTPUT_LIKELIHOOD.is_met(likelihood)
)
CLASSIFICATION_LIKELIHOODS = SupportedLikelihoods(
    lambda likelihood: is_class_likelihood(likelihood) and ONE_OUTPUT_LIKELIHOOD.is_met(likelihood),
    # For two classes "auto" is Bernoulli().
    {"auto": Categorical()},
)


_LINEAR_CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    "prior": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither"), "array-like"],
    "fit_intercept": ["boolean"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "standardize": ["boolean"],
    "random_state": ["random_state"],
}


@dataclass(eq=False, repr=False)
class LinearEstimator(BayesianEstimator):
    """Linear model with a normal prior of its coefficients."""

    likelihood: str | Likelihood = "auto"
    _: KW_ONLY
    prior: PriorParameter = "learn"
    fit_intercept: bool = True
    max_iter: int = 500
    tol: float | None = 1e-6
    standardize: bool | str = True
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    # Noise levels that represent their posterior, for normal noise and few rows.
    _noise_levels_: ClassVar[Array | None] = None
    y_scale_: ClassVar[Array]

    _final_attributes = (
        "elbo_",
        "elbo_mean_field_",
        "elbo_std_error_",
        "symmetry_gap_",
        "_gap_std_error_",
    )

    def _make_model(self, data: Training) -> Model:
        """Return the linear model: a network without hidden layers."""
        likelihood = self._make_likelihood(data)
        # A softmax has one output per class. Several targets are fitted one by one.
        if likelihood.kind == "softmax":
            n_outputs = self._count_outputs(data)
        else:
            n_outputs = 1
        network = MLP(data.n_features, (), n_outputs, IDENTITY)
        return Model(network, likelihood, self._make_prior(network), Trivial())

    def _make_prior(self, network: Network) -> GaussianPrior:
        """Return the prior of the coefficients, with scale 1 if it is learned.

        Intercepts have an infinite scale, that is no prior.
        """
        scale = self._check_prior_scale(require_mlp(network).n_inputs)
        layout = network.layout
        scales = np.full(layout.n_params, np.inf)
        coefficient_scales = scales[layout.slices["W1"]].reshape(layout.shapes["W1"])
        coefficient_scales[:] = 1.0 if scale is None else scale
        return GaussianPrior(torch.as_tensor(scales))

    def _check_prior_scale(self, n_features: int) -> Array | None:
        """Return the given prior scale, None if it is learned."""
        if isinstance(self.prior, str):
            return None
        scale_array(self.prior, features=n_features)
        return np.asarray(self.prior, float)

    def _flops_per_step(self, data: Training, model: Model) -> float:
        """Estimate the floating-point operations of the normal equations in the row space."""
        size = model.network.n_outputs * min(data.n_rows, data.n_features)
        return 2.0 * data.n_rows * size**2

    @property
    def _learns_noise(self) -> bool:
        """Whether the noise level is learned; classes have none."""
        return False

    def _make_method(self) -> SiteInference:
        """Return the inference method with its parameters."""
        return SiteInference(
            prior_scale=self._check_prior_scale(self.n_features_in_),
            learns_noise=self._learns_noise,
            fit_intercept=self.fit_intercept,
            max_iter=self.max_iter,
            tol=self.tol,
        )

    def _fitted_attributes(self, data: Training, model: Model, fitted: FitResult) -> dict[str, Any]:
        """Return fitted attributes, with coefficients in place of a network."""
        attributes = super()._fitted_attributes(data, model, fitted)
        del attributes["network_"]
        return attributes

    def _scale_inputs(self, rows: Rows) -> Scaling:
        """Return the scaling of the inputs, which are centred only if there is an intercept."""
        full = column_scaling(
            rows.X,
            rows.weight,
            enabled=True,
            value_range=rows.x_range,
            describe=self._describe_input,
        )
        n = rows.X.shape[1]
        return Scaling(
            full.mean if self.fit_intercept else np.zeros(n),
            full.scale if is_standardized(self.standardize, "X") else np.ones(n),
        )

    def _check_likelihood(self, likelihood: Likelihood) -> Likelihood:
        """Return a user's likelihood, or raise if sites or predictions can't use it."""
        require_kind(self, likelihood, self._unsupported_likelihoods)
        ONE_OUTPUT_LIKELIHOOD.require(likelihood, "likelihood")
        return likelihood

    @property
    def coef_cov_(self) -> Array:
        """Covariance of the coefficients, built on demand from the low-rank factors."""
        check_is_fitted(self)
        n_rows = len(self.posterior_.loc)
        target_scale = np.broadcast_to(fitted_attribute(self, "y_scale_", 1.0), n_rows)
        # Units of the coefficients of the data as given.
        unit = np.outer(target_scale, 1.0 / self.x_scale_).ravel()
        return self.posterior_.dense_covariance() * np.outer(unit, unit)

    def predictor(self, like: Tensor) -> LinearPredictor:
        """Return the predictor of the fitted model, see `BayesianEstimator.predictor`."""

        def tensor(values: Array) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float64, device=like.device)

        def make() -> LinearPredictor:
            levels = self._noise_levels_
            return LinearPredictor(
                self.posterior_,
                tensor(self._offset_),
                self.fitted_likelihood.to(like),
                levels=None if levels is None else tensor(levels / self.y_scale_),
            )

        return self._cached(f"linear on {like.device}", make)

    @property
    def symmetry_(self) -> Translation:
        """Translations of a row of coefficients that don't change the output of any row."""
        check_is_fitted(self)
        basis = self.posterior_.basis
        scale = self.posterior_.scale
        if basis is None:
            row_space = np.eye(len(scale))
        else:
            row_space = basis / scale[:, None]
        return Translation(torch.as_tensor(row_space.T))

    @property
    def symmetry_gap_std_error_(self) -> float:
        """Monte Carlo standard error of ``symmetry_gap_``."""
        return self._gap_std_error_


@dataclass(eq=False, repr=False)
class BayesianLinearRegressor(BayesianRegressorMixin, LinearEstimator):
    r"""Bayesian linear regression with an exact posterior, or the best Gaussian one.

    The likelihood of a row doesn't change if the weights move orthogonally to its input. The
    posterior of this model respects that invariance (the product form of Kurle et al. 2022),

    .. math:: q(w) \propto N(w; 0, s^2 I) \prod_n \exp\left(-\frac{(x_n^T w + b - a_n)^2}
              {2 \nu_n}\right),

    with a location ``a_n`` and a variance ``nu_n`` for each row. It is the best Gaussian with full
    covariance: for a Gaussian likelihood the exact posterior (that of
    `sklearn.linear_model.BayesianRidge` at the same hyperparameters), for the others optimal
    Gaussian variational inference.

    Parameters
    ----------
    likelihood : {"gaussian", "student_t", "poisson"} or Likelihood, default="gaussian"
        Distribution of a target given the output ``f = x'w + b``: its mean, its centre with heavy
        tails, or the log of its rate. Objects have settings of their own, such as
        ``StudentT(df=3)``; one's own law inherits from `skbayes_sym.models.TargetLikelihood`.
    prior : "learn", float or ndarray of shape (n_features,), default="learn"
        Prior standard deviation of the coefficients, in standardised units: one number, or one per
        feature. "learn" maximises the ELBO over one for all. Up to a total weight of 30, logits and
        log rates have a half-Cauchy prior of scale 2, since the ELBO of separable classes rises
        with their scale.
    fit_intercept : bool, default=True
        Whether there is an intercept: a parameter without prior that maximises the ELBO. The
        columns of ``X`` are centred.
    max_iter : int, default=500
        Largest number of natural gradient updates of the sites.
    tol : float or None, default=1e-6
        An update that moves no output by as many posterior standard deviations, nor a learned log
        scale by as much, is the last. None never stops.
    standardize : bool or {"X", "y"}, default=True
        Whether to scale the columns of ``X`` to unit variance, and to centre and scale ``y``
        first; "X" and "y" do one of them. Everything reported is in the units of ``y``. Counts,
        and targets of a likelihood without a scale to learn, are taken as they are.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
        These fits don't use any.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    noise_std : "learn" or float, default="learn"
        Standard deviation of the observation noise in the units of ``y`` (the scale of heavier
        tails). "learn" estimates it. A number raises an error if the likelihood has no noise level.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Posterior mean of the coefficients, in the units of ``X`` and ``y``. Several targets (only
        for "gaussian") are fitted one by one. All attributes have an axis for them if ``y`` has
        one.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept.
    coef_std_ : ndarray of the shape of ``coef_``
        Posterior standard deviation of the coefficients.
    coef_cov_ : ndarray of shape (n_coefficients, n_coefficients)
        Posterior covariance of ``coef_.ravel()``, built on demand. A `MemoryError` states the
        number of bytes if it is too large.
    elbo_ : float
        Evidence lower bound of all targets in nats; for "gaussian" the log evidence itself.
    symmetry_ : Translation
        Translations of a row of coefficients, in the units of ``posterior_``, that change the
        output at no row of ``X``.
    symmetry_gap_std_error_ : float
        Monte Carlo standard error of `symmetry_gap_`.
    elbo_std_error_ : float
        Monte Carlo standard error of `elbo_`: 0, because it is exact.
    elbo_mean_field_ : float
        Bound of the best mean-field posterior at the same hyperparameters.
    symmetry_gap_ : float
        `elbo_` - `elbo_mean_field_` in nats: the loss by assuming independent coefficients.
    log_evidence_ : float
        ``log p(y | X)`` at the hyperparameters, nats; only for "gaussian".
    log_evidence_std_error_ : float
        Standard error of `log_evidence_`: 0, because it has a closed form.
    log_evidence_side_ : {"exact"}
        Whether `log_evidence_` is a bound: it is the value itself.
    site_location_, site_variance_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        ``a_n`` and ``nu_n`` of every row of ``X``, in the units of the outputs, per unit of sample
        weight. A variance is infinite if the weight is 0. It is negative for an outlier in a
        "student_t" fit, which increases the posterior variance.
    prior_scale_, noise_std_ : float or ndarray
        Learned or given scales (no `noise_std_` for "poisson").
    likelihood_ : Likelihood
        The likelihood with its fitted parameters, in standardised units.
    posterior_ : LowRankGaussian
        Posterior of the coefficients of scaled data: ``.loc``, ``.variance()``,
        ``.sample(n, generator=...)``, ``.log_prob(w)``.
    elbo_curve_ : ndarray
        ELBO after every update.
    n_iter_ : int
        Updates made: 1 for "gaussian" with given scales.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Reason why training stopped.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Mean and standard deviation by which the inputs were standardised.
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
    BayesianLinearClassifier : The same for class labels.
    invariance_gap : The gap of any fitted variational estimator.
    sklearn.linear_model.BayesianRidge : The Gaussian case, without the diagnostics.

    Notes
    -----
    Everything is solved in the space of dimension ``r = min(n_samples, n_features)``: an update
    costs O(n r^2 + r^3). No K x K array of K features is allocated. A Gaussian likelihood needs
    one step, so that ``max_iter`` and ``tol`` have no effect.

    References
    ----------
    Kurle, Herbrich, Januschowski, Wang & Gasthaus (2022). On the detrimental effect of invariances
    in the likelihood for variational inference. Section 4, corrected: the product of the sites
    instead of their average (eq. 23). https://arxiv.org/abs/2209.07157

    Khan & Lin (2017). Conjugate-computation variational inference.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = BayesianLinearRegressor().fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, round(reg.log_evidence_), round(reg.symmetry_gap_, 1)
    ((3,), -2406, 2.9)
    """

    likelihood: str | Likelihood = "gaussian"
    _: KW_ONLY
    noise_std: str | float = "learn"

    _likelihoods_by_name: ClassVar[Mapping[str, Likelihood]] = REGRESSION_LIKELIHOODS
    _likelihood_requirement: ClassVar[Requirement] = ONE_OUTPUT_LIKELIHOOD
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_LINEAR_CONSTRAINTS,
        "likelihood": [StrOptions(REGRESSION_LIKELIHOODS.keys()), HasMethods("log_prob")],
        "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither")],
        "standardize": STANDARDIZE,
    }

    fit = row_parameters.fit

    @property
    def _learns_noise(self) -> bool:
        """Whether the noise level is learned, and not fixed by a parameter or the likelihood."""
        return isinstance(self.noise_std, str) and self.resolved_likelihood.n_params > 0

    @property
    def resolved_likelihood(self) -> Likelihood:
        """The likelihood that the parameter names, or the object that it is."""
        likelihood: Any = self._param_at_fit("likelihood")
        if isinstance(likelihood, str):
            # `fit` raises an error for unknown names.
            likelihood = REGRESSION_LIKELIHOODS.get(likelihood, likelihood)
        return likelihood  # type: ignore[no-any-return]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        likelihood: Any = self.resolved_likelihood
        tags.target_tags.multi_output = isinstance(likelihood, Likelihood) and is_conjugate(
            likelihood
        )
        return tags

    def _validate_training_data(self, X: Any, y: Any) -> tuple[Array, RegressionTargets]:
        """Check that the likelihood fits the parameters and the number of targets."""
        likelihood = self.resolved_likelihood
        check_not_masked("y", y)
        shape = np.asarray(y).shape
        if not isinstance(self.likelihood, str):
            n_targets = prod(shape[1:])
            give_each_target_a_scale(likelihood, n_targets)
            self._check_likelihood(likelihood)
        if not likelihood.n_params:
            reason = f"likelihood={self.likelihood!r} has no scale of noise to set"
            refuse_parameters(self, ["noise_std"], reason, "likelihood='gaussian' or 'student_t'")
        if not is_conjugate(likelihood) and len(shape) == 2 and shape[1] > 1:
            raise ValueError(
                f"likelihood={self.likelihood!r} takes one target, got y of shape {shape}. Use "
                "likelihood='gaussian', or one model a target by MultiOutputRegressor."
            )
        return super()._validate_training_data(X, y)

    def _check_row_parameters(
        self, targets: Targets, noise_std: Any = None, exposure: Any = None
    ) -> Array | None:
        """Return known errors or exposures of one target, see `BayesianRegressorMixin`."""
        n_targets = targets.values.shape[1]
        if noise_std is not None and n_targets > 1:
            raise ValueError(
                f"fit(noise_std=...) of {type(self).__name__} takes one target, got {n_targets}: "
                "fit one model per target."
            )
        return super()._check_row_parameters(targets, noise_std, exposure)

    @property
    def _standardizes_targets(self) -> bool:
        """Whether targets are standardised; a likelihood without a free scale has their unit."""
        return super()._standardizes_targets and self.resolved_likelihood.n_params > 0

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood with its initial parameters, in scaled units."""
        likelihood = self.resolved_likelihood
        if likelihood.is_discrete and self.fit_intercept and not data.rows.y.any():
            raise ValueError(
                f"likelihood={self.likelihood!r} needs at least one positive count in y: without "
                "any, the best intercept is minus infinity. Use fit_intercept=False."
            )
        likelihood = give_each_target_a_scale(likelihood, data.rows.y.shape[-1])
        if data.rows.row_parameter is not None and likelihood.is_discrete:
            return extend_likelihood(likelihood)
        if not likelihood.n_params:
            return likelihood
        return likelihood.at(gaussian_noise(self.noise_std, data).log_noise)


@dataclass(eq=False, repr=False)
class BayesianLinearClassifier(BayesianClassifierMixin, LinearEstimator):
    r"""Bayesian logistic and softmax regression with a posterior of full covariance.

    The posterior is the optimal Gaussian of variational inference: the prior times one Gaussian
    site per row in its outputs ``f_n = W x_n + b`` (the invariance-abiding product of Kurle et al.
    2022),

    .. math:: q(W) \propto N(W; 0, s^2 I) \prod_n \exp\left(-\tfrac12 (f_n - a_n)^T N_n^{-1}
              (f_n - a_n)\right),

    of rank one for two classes and of rank C for the softmax of C classes.

    Parameters
    ----------
    likelihood : {"auto", "bernoulli", "categorical"} or Likelihood, default="auto"
        Distribution of a class given the outputs: "bernoulli" has one output and two classes,
        "categorical" one output per class (softmax); "auto" takes "bernoulli" for two classes.
        ``Categorical(n_points=4096)`` is "categorical" with as many quasi-Monte Carlo points.
    prior : "learn", float or ndarray of shape (n_features,), default="learn"
        Prior standard deviation of the coefficients, in standardised units: one number, or one per
        feature. "learn" maximises the ELBO over one for all. Up to a total weight of 30, logits and
        log rates have a half-Cauchy prior of scale 2, since the ELBO of separable classes rises
        with their scale.
    fit_intercept : bool, default=True
        Whether there is an intercept: a parameter without prior that maximises the ELBO. The
        columns of ``X`` are centred.
    max_iter : int, default=500
        Largest number of natural gradient updates of the sites.
    tol : float or None, default=1e-06
        An update that moves no output by as many posterior standard deviations, nor a learned log
        scale by as much, is the last. None never stops.
    standardize : bool, default=True
        Whether to scale the columns of ``X`` to unit variance first.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
        It draws the quasi-Monte Carlo points; "bernoulli" uses none.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    variance_scale : "loo" or float, default="loo"
        Factor on the variance of the logits in predictions. 1 is the variance of the posterior.
        "loo" selects one of 0.1, 0.3, 1 and 3 by an approximate leave-one-out score, and 1 if
        ``likelihood`` is an object with one output.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Posterior mean of the coefficients, of ``X`` as given; one row for "bernoulli".
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    elbo_ : float
        Evidence lower bound, nats.
    elbo_std_error_ : float
        Quasi-Monte Carlo standard error of `elbo_`; 0 for "bernoulli", whose quadrature is
        deterministic.
    site_location_, site_variance_ : ndarray of shapes (n_samples,) and (n_samples,)
        Location and variance of the site of every row of ``X``, per unit of sample weight. If the
        weight is 0, the variance is infinite and the location NaN. For "categorical" the shapes are
        (n_samples, n_classes) and (n_samples, n_classes, n_classes). The variances are then
        pseudo-inverses of the precisions: a site has no
        information on a shift of all outputs.
    prior_scale_ : float or ndarray
        Learned or given prior standard deviation.
    variance_scale_ : float
        Factor on the variance of the logits in predictions.
    coef_std_ : ndarray of the shape of ``coef_``
        Posterior standard deviation of the coefficients.
    coef_cov_ : ndarray of shape (n_coefficients, n_coefficients)
        Posterior covariance of ``coef_.ravel()``, built on demand. A `MemoryError` states the
        number of bytes if it is too large.
    symmetry_ : Translation
        Translations of a row of coefficients, in the units of ``posterior_``, that change the
        output at no row of ``X``.
    symmetry_gap_std_error_ : float
        Monte Carlo standard error of `symmetry_gap_`.
    elbo_mean_field_ : float
        Bound of the best mean-field posterior at the same hyperparameters.
    symmetry_gap_ : float
        `elbo_` - `elbo_mean_field_` in nats: the loss by assuming independent coefficients.
    posterior_ : LowRankGaussian
        Posterior of the coefficients of scaled data: ``.loc``, ``.variance()``,
        ``.sample(n, generator=...)``, ``.log_prob(w)``.
    elbo_curve_ : ndarray
        ELBO after every update.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    n_iter_ : int
        Number of steps.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Reason why training stopped.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Mean and standard deviation by which the inputs were standardised.
    device_, dtype_ : str
        Device and floating-point precision of the fit.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all column names of ``X`` are strings.

    See Also
    --------
    BayesianLinearRegressor : The same for numbers and counts.
    invariance_gap : The gap of any fitted variational estimator.

    Notes
    -----
    Solved in the space of dimension ``r = min(n_samples, n_features)``: an update costs
    O(n r^2 C^2 + (C r)^3) for C outputs, after one QR factorisation where there are more features
    than rows. No K x K array is allocated. For references see
    `BayesianLinearRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from skbayes_sym import BayesianLinearClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> clf = BayesianLinearClassifier().fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, bool(clf.elbo_ > clf.elbo_mean_field_)
    ((2, 2), True)
    """

    likelihood: str | Likelihood = "auto"
    _: KW_ONLY
    variance_scale: str | float = "loo"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_LINEAR_CONSTRAINTS,
        "likelihood": [
            StrOptions({"auto"}),
            StrOptions(CLASSIFICATION_LIKELIHOODS.keys()),
            HasMethods("log_prob"),
        ],
        "variance_scale": [StrOptions({"loo"}), Interval(Real, 0, None, closed="left")],
    }

    @property
    def resolved_likelihood(self) -> Likelihood:
        """The likelihood that the parameter selects for the classes of the fit."""
        return self._likelihood_for_classes(len(self.classes_))

    def _likelihood_for_classes(self, n_classes: int) -> Likelihood:
        """Return the likelihood by its name and the number of classes, or the user's object."""
        likelihood = self._param_at_fit("likelihood")
        if not isinstance(likelihood, str):
            return self._check_likelihood(likelihood)
        if likelihood == "auto":
            if n_classes == 2:
                likelihood = "bernoulli"
            else:
                likelihood = "categorical"
        return CLASSIFICATION_LIKELIHOODS[likelihood]

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood, after checking that it has the right number of outputs."""
        n_classes = len(data.classes)
        likelihood = self._likelihood_for_classes(n_classes)
        if likelihood.kind == "softmax":
            return likelihood
        if n_classes > 2 or likelihood.n_outputs(n_classes) != 1:
            support = "one output per class"
            if n_classes > 2:
                support = f"two classes, y has {n_classes}"
            raise ValueError(
                f"likelihood={self.likelihood!r} has {support}. Use likelihood='auto' or "
                "'categorical'; MCMCClassifier takes any."
            )
        return likelihood

    def _fitted_attributes(self, data: Training, model: Model, fitted: FitResult) -> dict[str, Any]:
        """Return fitted attributes, with the factor on the variance of the logits."""
        attributes = super()._fitted_attributes(data, model, fitted)
        scale = self.variance_scale
        if isinstance(scale, str):
            # Leave-one-out predictions are known for these two likelihoods, after the last update.
            state = cast(LinearFit, fitted).state
            has_leave_one_out = model.likelihood.kind in ("softmax", "bernoulli")
            scale = 1.0
            if state is not None and has_leave_one_out and "elbo_" in attributes:
                scale = fit_variance_scale(state, data.double_data)
        return {**attributes, "variance_scale_": float(scale)}

    def predictor(self, like: Tensor) -> LinearPredictor:
        """Return the predictor of the fitted model, see `BayesianEstimator.predictor`."""

        def make() -> LinearPredictor:
            likelihood = self.fitted_likelihood
            rule = None
            if likelihood.kind == "softmax":
                n_classes = len(self.classes_)
                rule = likelihood.site_likelihood(n_classes, seed=self._predict_seed_)
            unscaled: LinearPredictor = super(BayesianLinearClassifier, self).predictor(like)
            return replace(unscaled, variance_scale=self.variance_scale_, rule=rule)

        return self._cached(f"linear labels on {like.device}", make)
