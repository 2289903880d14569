"""Bayesian linear classification: two classes or more."""

from dataclasses import replace
from numbers import Real
from typing import Any, cast

from torch import Tensor

from skbayes_sym.estimators._fit.building import GivenPrior
from skbayes_sym.estimators._fit.compatibility import Fitted
from skbayes_sym.estimators._fit.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.classifier import BayesianClassifierMixin
from skbayes_sym.estimators.linear.coefficients import LINEAR_CONSTRAINTS, LinearEstimator
from skbayes_sym.estimators.linear.site_inference import SiteFit, scale_by_left_out
from skbayes_sym.inference.linear.linear_predictor import LinearPredictor
from skbayes_sym.models.likelihoods.categorical import Bernoulli, Categorical
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Model

LIKELIHOODS: dict[str, Likelihood | None] = {
    "auto": None,  # by the number of classes
    "bernoulli": Bernoulli(),
    "multinomial": Categorical(),
}


class BayesianLinearClassifier(BayesianClassifierMixin, LinearEstimator):
    r"""Bayesian logistic and softmax regression with a posterior of full covariance.

    Optimal Gaussian variational inference: the posterior is the prior times one Gaussian site per
    row in the outputs ``f_n = W x_n + b`` that the row sees (the invariance-abiding product of
    Kurle et al. 2022),

    .. math:: q(W) \propto N(W; 0, s^2 I) \prod_n \exp\left(-\tfrac12 (f_n - a_n)^T N_n^{-1}
              (f_n - a_n)\right),

    of rank one for two classes and of rank C for the softmax of C classes.

    Parameters
    ----------
    likelihood : {"auto", "bernoulli", "multinomial"} or Likelihood, default="auto"
        Distribution of a class given the outputs: "bernoulli" has one output and two classes,
        "multinomial" one output per class (softmax); "auto" takes "bernoulli" for two classes.
        ``Categorical(n_points=4096)`` is "multinomial" with as many quasi-Monte Carlo points.
    prior : "learn", float or ndarray of shape (n_features,), default="learn"
        Prior standard deviation of the coefficients, in standardised units: one number, or one per
        feature. "learn" maximises the ELBO over one for all.
    variance_scale : "loo" or float, default="loo"
        Factor on the variance of the logits in predictions; "loo" takes that of 0, 0.1, 0.3, 1 and
        3 whose predictions of left-out rows are best, approximately; 1 is the posterior's own, and
        what "loo" is where ``likelihood`` is an object of one output.
    fit_intercept : bool, default=True
        Whether there is an intercept: a parameter without prior that maximises the ELBO. The
        columns of ``X`` are centred.
    max_iter : int, default=500
        Largest number of natural gradient updates of the sites.
    tol : float or None, default=1e-6
        An update that moves no output by as many posterior standard deviations, nor a learned log
        scale by as much, is the last. None never stops.
    standardize : bool, default=True
        Whether to scale the columns of ``X`` to unit variance first.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there and a step large enough.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone. It draws the quasi-Monte Carlo
        points; "bernoulli" uses none.
    verbose : int, default=0
        1 logs a summary to stderr.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Posterior mean of the coefficients, of ``X`` as given; one row for "bernoulli".
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    coef_std_ : ndarray of the shape of ``coef_``
        Posterior standard deviation of the coefficients.
    coef_cov_ : ndarray of shape (n_coefficients, n_coefficients)
        Posterior covariance of ``coef_.ravel()``, built on demand; a `MemoryError` names the
        bytes where it is too large.
    elbo_ : float
        Evidence lower bound, nats.
    symmetry_ : Translation
        Translations of a row of coefficients, in units of ``posterior_``, that no row of ``X``
        sees.
    symmetry_gap_std_error_ : float
        Monte Carlo standard error of `symmetry_gap_`.
    elbo_std_error_ : float
        Its quasi-Monte Carlo standard error; 0 for "bernoulli", whose rule is deterministic.
    elbo_mean_field_ : float
        Bound of the best mean-field posterior at the same hyperparameters.
    symmetry_gap_ : float
        `elbo_` - `elbo_mean_field_`: what independence costs, nats.
    site_location_, site_variance_ : ndarray of shapes (n_samples,) and (n_samples,)
        Of every row of ``X``, per unit of sample weight; a variance is infinite where the weight
        is 0 (the location is then NaN). For "multinomial" of shapes (n_samples, n_classes) and
        (n_samples, n_classes, n_classes), pseudo-inverses of the precisions: a site says nothing
        about a shift of all outputs.
    prior_scale_ : float or ndarray
        Learned or given prior standard deviation.
    variance_scale_ : float
        Factor on the variance of the logits in predictions.
    posterior_ : LowRankGaussian
        Posterior of the coefficients of scaled inputs: ``.loc``, ``.variance()``,
        ``.sample(n, generator=...)``, ``.log_prob(w)``.
    elbo_curve_ : ndarray
        ELBO after every update.
    n_iter_ : int
        Updates made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why they ended.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Standardisation of the inputs.
    device_, dtype_ : str
        Where and in which precision the model was fitted.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if ``X`` had string column names.

    See Also
    --------
    BayesianLinearRegressor : The same for numbers and counts.
    invariance_gap : The gap of any fitted variational estimator.

    Notes
    -----
    Solved in the space of dimension ``r = min(n_samples, n_features)``: an update costs
    O(n r^2 C^2 + (C r)^3) for C outputs, after one QR factorisation where there are more features
    than rows. No K x K array is made.

    References
    ----------
    Kurle, Herbrich, Januschowski, Wang & Gasthaus (2022). On the detrimental effect of invariances
    in the likelihood for variational inference. https://arxiv.org/abs/2209.07157

    Khan & Lin (2017). Conjugate-computation variational inference.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from skbayes_sym import BayesianLinearClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> clf = BayesianLinearClassifier().fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, bool(clf.elbo_ > clf.elbo_mean_field_)
    ((2, 2), True)
    """

    _parameter_constraints: dict[str, list[Any]] = {
        **LINEAR_CONSTRAINTS,
        "likelihood": [StrOptions(set(LIKELIHOODS)), HasMethods("log_prob")],
        "variance_scale": [StrOptions({"loo"}), Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        likelihood: str | Likelihood = "auto",
        *,
        prior: GivenPrior = "learn",
        variance_scale: str | float = "loo",
        fit_intercept: bool = True,
        max_iter: int = 500,
        tol: float | None = 1e-6,
        standardize: bool = True,
        device: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.likelihood = likelihood
        self.prior = prior
        self.variance_scale = variance_scale
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.standardize = standardize
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @property
    def _chosen_likelihood(self) -> Likelihood:
        return self._likelihood_of(len(self.classes_))

    def _likelihood_of(self, n_classes: int) -> Likelihood:
        """The likelihood by name or by the number of classes, or the object itself."""
        likelihood = self._given_likelihood
        if not isinstance(likelihood, str):
            return self._check_likelihood(likelihood)
        return LIKELIHOODS[likelihood] or (Bernoulli() if n_classes == 2 else Categorical())

    def _likelihood(self, data: Training) -> Likelihood:
        n_classes = len(data.classes)
        likelihood = self._likelihood_of(n_classes)
        if likelihood.kind == "softmax":
            return likelihood
        if n_classes > 2 or likelihood.n_outputs(n_classes) != 1:
            what = f"two classes, y has {n_classes}" if n_classes > 2 else "an output a class"
            raise ValueError(
                f"likelihood={self.likelihood!r} has {what}. Use likelihood='auto' or "
                "'multinomial'; MCMCClassifier takes any."
            )
        return likelihood

    def _attributes(self, data: Training, model: Model, found: Fitted) -> dict[str, Any]:
        attributes = super()._attributes(data, model, found)
        scale, fit = self.variance_scale, cast(SiteFit, found)
        if isinstance(scale, str):
            # Laws of classes of other kinds aren't those that rows are left out by.
            is_known = fit.bounds is not None and model.likelihood.kind in ("softmax", "bernoulli")
            scale = scale_by_left_out(fit.state, data.double_data) if is_known else 1.0
        return {**attributes, "variance_scale_": float(scale)}

    def _predictor(self, like: Tensor) -> LinearPredictor:
        def make() -> LinearPredictor:
            likelihood, n_classes = self._observation, len(self.classes_)
            is_softmax = likelihood.kind == "softmax"
            rule = likelihood.sites(n_classes, seed=self._predict_seed_) if is_softmax else None
            plain: LinearPredictor = super(BayesianLinearClassifier, self)._predictor(like)
            return replace(plain, variance_scale=self.variance_scale_, rule=rule)

        return self._cached(f"linear labels on {like.device}", make)
