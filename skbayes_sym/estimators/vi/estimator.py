"""Symmetrised variational inference: Gelberg et al. 2024 as scikit-learn estimators."""

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from skbayes_sym.estimators._fit.context import FitContext, Fitted
from skbayes_sym.estimators._fit.memory import require_layerwise, require_variational
from skbayes_sym.estimators._fit.model import (
    declared_group,
    gaussian_prior,
    hidden_layer_sizes,
    network_prior,
    noise_stds,
    symmetry_group,
)
from skbayes_sym.estimators._fit.rows import Array, Scaling, column_scaling
from skbayes_sym.estimators.base import RowEstimator
from skbayes_sym.estimators.layerwise.recipe import conditioned_draws, fit_layerwise, is_layerwise
from skbayes_sym.estimators.predictors import (
    BayesianClassifierMixin,
    BayesianRegressorMixin,
    SampledOutputs,
)
from skbayes_sym.estimators.vi.recipe import (
    CONSTRAINTS,
    INITIAL_NOISE,
    NOISE_RANGE,
    Model,
    draws,
    fit_vi,
)
from skbayes_sym.models.likelihoods.categorical import Categorical, log_class_probabilities
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_moments import output_moments
from skbayes_sym.models.predictive import CategoricalMixture, NormalMixture
from skbayes_sym.symmetry.base import SymmetryGroup, Trivial


class SymmetrizedVIRegressor(BayesianRegressorMixin, RowEstimator):
    r"""Bayesian neural network regression by symmetrised variational inference.

    Fits ``q(w) = N(mu, diag(sigma^2))`` to the posterior of an MLP's weights by maximising the
    symmetrised ELBO

    .. math:: E_q[\log p(y \mid w)] - KL[q \,\|\, p] + I(g; w),

    the bound of q averaged over all exchanges (and sign flips) of hidden units (eq. 5 of the
    paper). Mean-field inference alone must choose one of the many equivalent modes and pays for
    each unit it keeps apart; the mutual information I pays that back, so fewer units are pruned.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Of the hidden layers. With an odd one (tanh, identity) the signs of hidden units are
        symmetries too.
    symmetry : {"auto", "permutation", "signed_permutation"} or None, default="auto"
        Group the posterior is averaged over. "auto" takes all that the activation allows; None
        is plain mean-field variational inference.
    last_layer : str, default="variational"
        "collapsed" integrates the last layer exactly, given sampled hidden layers: for wide
        networks, whose mean-field posterior collapses to the prior. Needs all rows at every step.
        "variational" takes the same kind of posterior as for the hidden layers.
        "averaged_kl_heuristic" is Kurle et al.'s average over single data, for comparison only:
        it trains on no bound and overfits (`elbo_` is a valid bound all the same).
    hidden_posterior : {"mean_field", "global_inducing"}, default="mean_field"
        "global_inducing" makes the posterior of a layer's weights of ``n_inducing`` sites at the
        activations sampled below it, so that layers are correlated.
    n_inducing : int, default=100
        Inducing points of "global_inducing", at most one a row.
    gap_estimator : str, default="auto"
        How the symmetry gap is computed in training. "auto": "exact" (a permanent, O(d 2^d)) up
        to ``exact_max_width`` units, "importance" (a lower bound, O(K d^2)) beyond. "infonce" is
        the paper's estimator with permutations drawn without replacement ("infonce-iid": with),
        "soules" a deterministic lower bound.
    n_permutations : int, default=16
        K of "importance" and "infonce".
    exact_max_width : int, default=10
        Widest layer (at most 20) that "auto" sums exactly.
    prior_scale : float, sequence of float or ndarray of shape (P,), default=1.0
        Prior standard deviation of the weights and biases, in standardised units: one number, one
        a layer, or one a parameter. It must not tell the units of a layer apart.
    noise_std : "learn", float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``, one for all targets or
        one each; "learn" maximises the ELBO over it.
    max_iter : int, default=2000
        Optimiser steps.
    batch_size : int or "auto", default="auto"
        Rows a step; "auto" is all of them up to 1000 distinct rows, 200 beyond.
    standardize : bool, default=True
        Whether to centre and scale the columns of ``X`` first.
    normalize_y : bool, default=True
        Whether to centre and scale ``y`` first. Everything reported is in the units of ``y``.
    learning_rate : float or "auto", default="auto"
        Adam's step size for the means: "auto" is 0.01 on full batches and 0.003 on minibatches.
        Constant over the first half of the steps, then falling linearly.
    log_variance_rate : float, default=5.0
        Step size of the log variances relative to ``learning_rate``: they have to travel about 8
        units from a narrow start to the prior.
    n_weight_samples : int, default=1
        Draws averaged a step, of the hidden units and of the weights in the gap.
    n_predict_samples : int, default=200
        Draws of the hidden units that predictions average; the same ones for every row.
    tol : float, default=0.01
        Nats per unit of sample weight. Gains in the training ELBO below it, from one tenth of
        ``max_iter`` to the next, count as converged.
    early_stopping : bool, default=False
        Whether to stop once converged.
    warm_start : bool, default=False
        Whether `fit` starts from the previous posterior.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Arithmetic of training and prediction; "auto" follows ``X``. The bounds are always
        evaluated in float64.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the training ELBO.

    Attributes
    ----------
    elbo_ : float
        Symmetrised evidence lower bound, nats: `elbo_mean_field_` + `symmetry_gap_`. The best
        valid lower bound the model has on log p(y | X) at the learned noise.
    elbo_mean_field_ : float
        Lower bound of the mean-field posterior alone.
    elbo_upper_ : float
        `elbo_mean_field_` plus an upper bound on the gap: the symmetrised ELBO lies between
        `elbo_` and it (up to Monte Carlo error). Equal to `elbo_` where the gap is exact.
    elbo_std_error_ : float
        Monte Carlo standard error of `elbo_`.
    symmetry_gap_ : float
        Mutual information I(g; weights) in nats, or the lower bound on it that was used, between
        0 and log |G|.
    saturation_ : float
        `symmetry_gap_` / log |G|. Above 0.999 the symmetric modes don't overlap and
        symmetrisation is a no-op for training: it adds the constant log |G| to the bound. NaN
        if the group has only one element (``symmetry=None``).
    elbo_curve_ : ndarray
        Training ELBO, averaged over blocks of steps.
    n_iter_ : int
        Steps made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why they ended.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise, in the units of ``y``.
    posterior_ : MeanFieldGaussian or LayerwisePosterior
        Base distribution q over the network's P weights, acting on standardised inputs and
        targets:
        ``posterior_.loc``, ``.scale``, ``.sample(n, generator=...)``, ``.log_prob(theta)``. The
        flat order is layer by layer, W (out x in, row-major), then b. The symmetrised posterior
        is its average over ``network_.symmetry()``; both predict the same.
    symmetry_ : SymmetryGroup
        The model's group of hidden units; all of it where ``symmetry=None``.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Standardisation of the inputs.
    y_mean_, y_scale_ : ndarray of shape (n_targets,)
        Scaling of the targets.
    device_, dtype_ : str
        Where and in which precision the model was fitted.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if ``X`` had string column names.

    See Also
    --------
    SymmetrizedVIClassifier : The same for class labels.

    Notes
    -----
    A step costs about twice a deterministic network's, plus O(d^2 p + d 2^d) for the exact gap of
    a layer of d units with p weights each, unless a certificate says the gap is saturated. For
    several hidden layers the gap is bounded by the chain rule.

    Corrected against the paper: the signs in Theorem 4.3 and in the minibatch ELBO, permutations
    drawn without replacement, sign flips of odd units.

    With ``last_layer="collapsed"`` or ``hidden_posterior="global_inducing"`` the symmetry is that
    of translations no datum sees (Kurle et al. 2022, section 5) instead of permutations: nothing is
    averaged, `symmetry_gap_` is 0, and `posterior_` is a `LayerwisePosterior` with ``.sample``.
    Training starts once concentrated and once at the prior, ``max_iter`` steps each with a KL
    weight that rises over the first fifth, and keeps the higher ELBO; "auto" learning rates are
    0.03, and a step averages at least two draws. The prior scale must be the same for all weights
    of a layer.

    References
    ----------
    Gelberg, van der Ouderaa, van der Wilk & Gal (2024). Variational inference failures under
    model symmetries: permutation invariant posteriors for Bayesian neural networks.

    Kurle, Herbrich, Januschowski, Wang & Gasthaus (2022). On the detrimental effect of invariances
    in the likelihood for variational inference.

    Ober & Aitchison (2021). Global inducing point variational posteriors for Bayesian neural
    networks and deep Gaussian processes.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import SymmetrizedVIRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = SymmetrizedVIRegressor((5,), "tanh", max_iter=500, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, bool(reg.elbo_ >= reg.elbo_mean_field_)
    ((3,), True)
    """

    _parameter_constraints: dict[str, list[Any]] = {
        **CONSTRAINTS,
        "last_layer": [StrOptions({"variational", "collapsed", "averaged_kl_heuristic"})],
        "hidden_posterior": [StrOptions({"mean_field", "global_inducing"})],
        "n_inducing": [Interval(Integral, 1, None, closed="left")],
        "noise_std": [
            StrOptions({"learn"}),
            Interval(Real, 0, None, closed="neither"),
            "array-like",
        ],
        "normalize_y": ["boolean"],
    }

    def __init__(
        self,
        hidden_layer_sizes: Any = (50,),
        activation: str = "relu",
        *,
        symmetry: str | None = "auto",
        last_layer: str = "variational",
        hidden_posterior: str = "mean_field",
        n_inducing: int = 100,
        gap_estimator: str = "auto",
        n_permutations: int = 16,
        exact_max_width: int = 10,
        prior_scale: Any = 1.0,
        noise_std: Any = "learn",
        max_iter: int = 2000,
        batch_size: Any = "auto",
        standardize: bool = True,
        normalize_y: bool = True,
        learning_rate: Any = "auto",
        log_variance_rate: float = 5.0,
        n_weight_samples: int = 1,
        n_predict_samples: int = 200,
        tol: float = 1e-2,
        early_stopping: bool = False,
        warm_start: bool = False,
        device: str = "auto",
        dtype: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.symmetry = symmetry
        self.last_layer = last_layer
        self.hidden_posterior = hidden_posterior
        self.n_inducing = n_inducing
        self.gap_estimator = gap_estimator
        self.n_permutations = n_permutations
        self.exact_max_width = exact_max_width
        self.prior_scale = prior_scale
        self.noise_std = noise_std
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.standardize = standardize
        self.normalize_y = normalize_y
        self.learning_rate = learning_rate
        self.log_variance_rate = log_variance_rate
        self.n_weight_samples = n_weight_samples
        self.n_predict_samples = n_predict_samples
        self.tol = tol
        self.early_stopping = early_stopping
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def _fit_recipe(self, context: FitContext) -> Fitted:
        y, weight = context.rows.y, context.rows.weight
        scaling = column_scaling(y, weight, enabled=self.normalize_y)
        network = MLP(
            context.rows.X.shape[1], hidden_layer_sizes(self), y.shape[1],
            ACTIVATIONS[self.activation],
        )  # fmt: skip
        (require_layerwise if is_layerwise(self) else require_variational)(self, context, network)
        prior = gaussian_prior(self, network)
        group = Trivial() if is_layerwise(self) else symmetry_group(self, network, prior)
        spread = column_scaling(y, weight, enabled=True).scale / scaling.scale
        low, high = np.log(NOISE_RANGE[0] * spread.min()), np.log(NOISE_RANGE[1] * spread.max())
        likelihood = self._likelihood(scaling, spread)
        model = Model(network, group, prior, likelihood, scaling, (low, high))
        return (fit_layerwise if is_layerwise(self) else fit_vi)(self, context, model)

    def _likelihood(self, scaling: Scaling, spread: Array) -> Gaussian:
        """Noise in scaled units; ``spread`` is the standard deviation of the scaled targets."""
        if isinstance(self.noise_std, str):
            start = INITIAL_NOISE * spread
            if self.warm_start and hasattr(self, "posterior_"):
                start = np.atleast_1d(self.noise_std_) / scaling.scale
            return Gaussian(torch.as_tensor(np.log(start)), learn=True)
        scaled = noise_stds(self, len(spread)) / scaling.scale
        return Gaussian(torch.as_tensor(np.log(scaled)), learn=False)

    def _predictive(self, x: Tensor) -> NormalMixture:
        noise_variance = torch.as_tensor(np.atleast_1d(self.noise_std_) / self.y_scale_).to(x) ** 2
        if not self.posterior_.has_independent_weights:
            mean, variance = conditioned_draws(self, x.device).moments(x.double())
            return NormalMixture(mean.to(x), variance.to(x), noise_variance)
        loc, variance, noise = draws(self, x)
        mean, variance = output_moments(self.network_, loc, variance, x, noise[:-1])
        return NormalMixture(mean, variance, noise_variance)

    def _sample_outputs(self, x: Tensor, n: int, generator: torch.Generator) -> SampledOutputs:
        theta = self.posterior_.sample(n, generator=generator).to(x)
        return SampledOutputs(self.network_.forward(theta, x), np.atleast_1d(self.noise_std_))

    @property
    def symmetry_(self) -> SymmetryGroup:
        """The model's group of hidden units; all of it where ``symmetry=None``."""
        prior = network_prior(self.prior_scale, self.network_)
        return declared_group(self.symmetry or "auto", self.network_, prior)


class SymmetrizedVIClassifier(BayesianClassifierMixin, RowEstimator):
    r"""Bayesian neural network classification by symmetrised variational inference.

    Fits ``q(w) = N(mu, diag(sigma^2))`` to the posterior of an MLP's weights with a softmax
    likelihood by maximising the symmetrised ELBO

    .. math:: E_q[\log p(y \mid w)] - KL[q \,\|\, p] + I(g; w),

    the bound of q averaged over all exchanges (and sign flips) of hidden units (eq. 5 of the
    paper).

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Of the hidden layers. With an odd one (tanh, identity) the signs of hidden units are
        symmetries too.
    symmetry : {"auto", "permutation", "signed_permutation"} or None, default="auto"
        Group the posterior is averaged over. "auto" takes all that the activation allows; None
        is plain mean-field variational inference.
    gap_estimator : str, default="auto"
        How the symmetry gap is computed in training. "auto": "exact" (a permanent, O(d 2^d)) up
        to ``exact_max_width`` units, "importance" (a lower bound, O(K d^2)) beyond. "infonce" is
        the paper's estimator with permutations drawn without replacement ("infonce-iid": with),
        "soules" a deterministic lower bound.
    n_permutations : int, default=16
        K of "importance" and "infonce".
    exact_max_width : int, default=10
        Widest layer (at most 20) that "auto" sums exactly.
    prior_scale : float, sequence of float or ndarray of shape (P,), default=1.0
        Prior standard deviation of the weights and biases, in standardised units: one number, one
        a layer, or one a parameter. It must not tell the units of a layer apart.
    max_iter : int, default=2000
        Optimiser steps.
    batch_size : int or "auto", default="auto"
        Rows a step; "auto" is all of them up to 1000 distinct rows, 200 beyond.
    standardize : bool, default=True
        Whether to centre and scale the columns of ``X`` first.
    learning_rate : float or "auto", default="auto"
        Adam's step size for the means: "auto" is 0.01 on full batches and 0.003 on minibatches.
        Constant over the first half of the steps, then falling linearly.
    log_variance_rate : float, default=5.0
        Step size of the log variances relative to ``learning_rate``: they have to travel about 8
        units from a narrow start to the prior.
    n_weight_samples : int, default=1
        Draws averaged a step, of the hidden units and of the weights in the gap.
    n_predict_samples : int, default=200
        Draws of the hidden units that predictions average; the same ones for every row.
    tol : float, default=0.01
        Nats per unit of sample weight. Gains in the training ELBO below it, from one tenth of
        ``max_iter`` to the next, count as converged.
    early_stopping : bool, default=False
        Whether to stop once converged.
    warm_start : bool, default=False
        Whether `fit` starts from the previous posterior.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Arithmetic of training and prediction; "auto" follows ``X``. The bounds are always
        evaluated in float64.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the training ELBO.

    Attributes
    ----------
    elbo_ : float
        Symmetrised evidence lower bound, nats: `elbo_mean_field_` + `symmetry_gap_`. The best
        valid lower bound the model has on log p(y | X).
    elbo_mean_field_ : float
        Lower bound of the mean-field posterior alone.
    elbo_upper_ : float
        `elbo_mean_field_` plus an upper bound on the gap: the symmetrised ELBO lies between
        `elbo_` and it (up to Monte Carlo error). Equal to `elbo_` where the gap is exact.
    elbo_std_error_ : float
        Monte Carlo standard error of `elbo_`.
    symmetry_gap_ : float
        Mutual information I(g; weights) in nats, or the lower bound on it that was used, between
        0 and log |G|.
    saturation_ : float
        `symmetry_gap_` / log |G|. Above 0.999 the symmetric modes don't overlap and
        symmetrisation is a no-op for training: it adds the constant log |G| to the bound. NaN
        if the group has only one element (``symmetry=None``).
    elbo_curve_ : ndarray
        Training ELBO, averaged over blocks of steps.
    n_iter_ : int
        Steps made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why they ended.
    posterior_ : MeanFieldGaussian
        Base distribution q over the network's P weights, acting on standardised inputs:
        ``posterior_.loc``, ``.scale``, ``.sample(n, generator=...)``, ``.log_prob(theta)``. The
        flat order is layer by layer, W (out x in, row-major), then b. The symmetrised posterior
        is its average over ``network_.symmetry()``; both predict the same.
    symmetry_ : SymmetryGroup
        The model's group of hidden units; all of it where ``symmetry=None``.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
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
    SymmetrizedVIRegressor : The same for numbers.

    Notes
    -----
    A step costs about twice a deterministic network's, plus O(d^2 p + d 2^d) for the exact gap of
    a layer of d units with p weights each, unless a certificate says the gap is saturated. For
    several hidden layers the gap is bounded by the chain rule.

    Corrected against the paper: the signs in Theorem 4.3 and in the minibatch ELBO, permutations
    drawn without replacement, sign flips of odd units.

    References
    ----------
    Gelberg, van der Ouderaa, van der Wilk & Gal (2024). Variational inference failures under
    model symmetries: permutation invariant posteriors for Bayesian neural networks.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_sym import SymmetrizedVIClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = SymmetrizedVIClassifier((5,), max_iter=500, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.predict_uncertainty(X[:2]).epistemic.shape
    ((2, 3), (2,))
    """

    _parameter_constraints: dict[str, list[Any]] = {**CONSTRAINTS}

    def __init__(
        self,
        hidden_layer_sizes: Any = (50,),
        activation: str = "relu",
        *,
        symmetry: str | None = "auto",
        gap_estimator: str = "auto",
        n_permutations: int = 16,
        exact_max_width: int = 10,
        prior_scale: Any = 1.0,
        max_iter: int = 2000,
        batch_size: Any = "auto",
        standardize: bool = True,
        learning_rate: Any = "auto",
        log_variance_rate: float = 5.0,
        n_weight_samples: int = 1,
        n_predict_samples: int = 200,
        tol: float = 1e-2,
        early_stopping: bool = False,
        warm_start: bool = False,
        device: str = "auto",
        dtype: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.symmetry = symmetry
        self.gap_estimator = gap_estimator
        self.n_permutations = n_permutations
        self.exact_max_width = exact_max_width
        self.prior_scale = prior_scale
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.log_variance_rate = log_variance_rate
        self.n_weight_samples = n_weight_samples
        self.n_predict_samples = n_predict_samples
        self.tol = tol
        self.early_stopping = early_stopping
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def _fit_recipe(self, context: FitContext) -> Fitted:
        network = MLP(
            context.rows.X.shape[1], hidden_layer_sizes(self), len(self.classes_),
            ACTIVATIONS[self.activation],
        )  # fmt: skip
        require_variational(self, context, network)
        prior = gaussian_prior(self, network)
        model = Model(network, symmetry_group(self, network, prior), prior, Categorical())
        return fit_vi(self, context, model)

    def _predictive(self, x: Tensor) -> CategoricalMixture:
        loc, variance, noise = draws(self, x)
        mean, variance = output_moments(self.network_, loc, variance, x, noise[:-1])
        outputs = mean.addcmul_(variance.sqrt_(), noise[-1])
        return CategoricalMixture(log_class_probabilities(outputs))

    @property
    def symmetry_(self) -> SymmetryGroup:
        """The model's group of hidden units; all of it where ``symmetry=None``."""
        prior = network_prior(self.prior_scale, self.network_)
        return declared_group(self.symmetry or "auto", self.network_, prior)
