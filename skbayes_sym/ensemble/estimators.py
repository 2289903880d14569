"""Scikit-learn estimators of deep ensembles: posterior modes from random starts."""

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    NOISE_CONSTRAINTS,
    OBJECT_CONSTRAINTS,
    PriorParameter,
    model_symmetry,
    relative_relevance,
    require_mlp,
)
from skbayes_sym.base.noise_levels import level_weights
from skbayes_sym.base.optimizers import Adam, Optimizer, resolve_adam
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.predictor import DrawsPredictor, Predictor
from skbayes_sym.base.progress import RUN_CONSTRAINTS
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.requirements import refuse_parameters
from skbayes_sym.base.rows import STANDARDIZE, Array
from skbayes_sym.base.scikit_learn import Interval, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.base.weighted_draws import (
    draws_predictor,
    learned_class_prior,
    noise_prior_scale,
    refuse_free_parameters,
    require_noise,
    to_arviz,
)
from skbayes_sym.ensemble.fit import DeepEnsemble, EnsembleFit, MemberRefitter
from skbayes_sym.laplace.class_predictive import RefittedMembers
from skbayes_sym.laplace.map import NoiseNodes, compute_noise_nodes
from skbayes_sym.laplace.predict import RefittedPredictor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian, Heteroscedastic, StudentT
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import HalfNormal, UnboundPrior
from skbayes_sym.symmetry.group import SymmetryGroup

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    **OBJECT_CONSTRAINTS,
    "n_members": [Interval(Integral, 1, None, closed="left")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "optimizer": [StrOptions({"adam"}), Adam],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
}


@dataclass(eq=False, repr=False)
class _DeepEnsemble(BayesianEstimator):
    """Base of both estimators: equally weighted members."""

    hidden_layer_sizes: Any = (50,)
    activation: str = "relu"
    _: KW_ONLY
    n_members: int = 10
    network: str | nn.Module | Network = "mlp"
    likelihood: str | Likelihood = "auto"
    prior: PriorParameter = 1.0
    max_iter: int = 2000
    standardize: bool | str = True
    optimizer: str | Optimizer = "adam"
    tol: float | None = 1e-3
    warm_start: bool = False
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    samples_: ClassVar[Array]
    log_posterior_samples_: ClassVar[Array]
    _likelihood_params_: ClassVar[Array]
    # The modes of an ensemble aren't samples of the posterior.
    draws_the_posterior: ClassVar[bool] = False
    prior_scale_samples_: ClassVar[Array | None] = None  # unless scales are learned
    noise_dof_samples_: ClassVar[Array | None] = None
    _noise_levels_samples_: ClassVar[Array | None] = None
    refitted_members_: ClassVar[RefittedMembers | None] = None

    feature_importances_ = property(relative_relevance)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """Subgroup of the network's symmetry group that leaves the prior invariant."""
        check_is_fitted(self)
        return model_symmetry(self.network_, self._make_prior(self.network_))

    @property
    def chain_weights_(self) -> Array:
        """Weights of the members, all equal."""
        return np.full(len(self.samples_), 1.0 / len(self.samples_))

    def to_arviz(self) -> Any:
        """Export the members for ArviZ, as draws of one chain.

        Returns
        -------
        xarray.DataTree
            Group ``posterior`` with the weights ``W1, b1, ...`` (chain, draw, out, in) and, where
            there is noise, ``noise_std``. The dimensions of an MLP are ``input`` (with the names of
            the columns), ``unit_1, ...`` and ``output``. Group ``sample_stats`` with ``lp``, the
            log posterior density.

        Raises
        ------
        ImportError
            Without the package arviz-base (extra ``arviz``).
        """
        noise_std = fitted_attribute(self, "noise_std_samples_")
        return to_arviz(
            self.network_,
            self.samples_[None],
            self.log_posterior_samples_[None],
            None if noise_std is None else noise_std[None],
            getattr(self, "feature_names_in_", None),
        )

    def _draws_predictor(self, like: Tensor) -> DrawsPredictor:
        """Return the predictor of the members as trained, which are equally weighted."""
        return draws_predictor(self.network_, self.samples_, self.fitted_likelihood, None, like)

    def predictor(self, like: Tensor) -> Predictor:
        """Return the predictor of all members, see `BayesianEstimator.predictor`."""
        return self._cached(f"draws on {like.device}", lambda: self._draws_predictor(like))

    def _n_parallel_networks(self, _n_weights: int) -> float:
        """Number of members, which all take every step."""
        return float(self.n_members)

    def _make_method(self) -> DeepEnsemble:
        """Constructor parameters as a training method."""
        adam = resolve_adam(self.optimizer, Adam)
        if isinstance(adam.learning_rate, str):
            learning_rate = 0.03
        else:
            learning_rate = adam.learning_rate
        return DeepEnsemble(
            self.n_members,
            noise_prior_scale(self.noise_std),
            learning_rate,
            self.max_iter,
            self.tol,
            adam.batch_size,
            start=self._previous_fit() if self._continues_fit else None,
        )

    def _previous_fit(self) -> EnsembleFit:
        """Members of the previous fit, with the log precisions of the prior if learned."""
        scales = self.prior_scale_samples_
        if scales is None:
            log_precision = None
        else:
            log_precision = -2.0 * np.log(scales)
        return EnsembleFit(self.samples_, np.zeros((len(self.samples_), 0)), log_precision)


@dataclass(eq=False, repr=False)
class DeepEnsembleRegressor(BayesianRegressorMixin, _DeepEnsemble):
    r"""Deep ensemble for regression: posterior modes of a network from random starts.

    Each member minimises the negative log posterior of its weights and of its noise

    .. math:: \frac{1}{2 \sigma^2} \sum_i (f_\theta(x_i) - y_i)^2 + n \log \sigma
              + \frac{\theta^\top \theta}{2 s^2} + \frac{\sigma^2}{2 s_\sigma^2}

    (eq. 27 of Wiese et al., including their half-normal prior of :math:`\sigma`). The predictive
    distribution is the equally weighted mixture of the members' normal distributions. The ensemble
    is a baseline for the MCMC samplers.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Activation of the hidden layers.
    n_members : int, default=10
        Number of networks, each trained from a different random start.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs. "auto" is normal noise with standard
        deviation ``noise_std``. "heteroscedastic" is normal noise that depends on the input,
        "student_t" has heavy tails, and "poisson" and "negative_binomial" are for counts. These
        names stand for the objects in `skbayes_sym.models` with their default parameters.
    prior : "learn", float, sequence of float or Prior, default=1.0
        Prior of the weights and biases, in standardised units. A number is the standard deviation
        of independent normals. A sequence has one number per layer or per parameter. "learn" is
        ``LayerScales()``: each member learns one scale for each layer's weights and one for each
        layer's biases by maximising the evidence. ``ARD()`` also learns one per column of ``X``,
        see `relevance_`.
    max_iter : int, default=2000
        Maximum number of optimiser steps.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    optimizer : "adam" or Adam, default="adam"
        Step size and rows per step. The step size "auto" is 0.03. The batch size "auto" takes all
        of up to 2000 distinct rows. Larger data sets are trained on 500 rows per step, with 0.3
        times the step size.
    tol : float or None, default=0.001
        Training stops when the members' mean log posterior gains less than this many nats per row
        from one tenth of ``max_iter`` to the next. None never stops.
    warm_start : bool, default=False
        Whether `fit` starts from the result of the previous call.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    noise_std : "effective", "learn", HalfNormal, float or sequence of float, default="effective"
        Standard deviation of the observation noise in the units of ``y``, one number or one per
        target. "learn" estimates it for each member from its residuals, under a half-normal prior
        of scale 1 in scaled target units; `HalfNormal` sets another scale. "effective" also
        corrects the estimate for the degrees of freedom that a member's weights use up. The
        correction applies to ``network="mlp"`` and to any network whose prior scales are learned,
        and to the likelihoods "auto", "student_t" and "heteroscedastic".

    Attributes
    ----------
    samples_ : ndarray of shape (n_members, P)
        Weights of the members, acting on standardised data. The flat order is layer by layer, W
        (out x in, row-major), then b.
    chain_weights_ : ndarray of shape (n_members,)
        Weights of the members, all equal.
    noise_std_samples_ : ndarray of shape (n_members, n_targets)
        Standard deviation (or scale) of each member's noise, in the units of ``y``. Exists only if
        the likelihood has noise.
    noise_dof_samples_ : ndarray of shape (n_members, n_targets)
        Degrees of freedom that each member's weights leave to the noise. Predictions follow
        Student's t distributions with as many degrees of freedom, but at least four. None without
        effective noise.
    prior_scale_ : ndarray of shape (n_groups,)
        Geometric mean of `prior_scale_samples_` over the members.
    prior_scale_samples_ : ndarray of shape (n_members, n_groups)
        Prior standard deviations of every member, if scales are learned.
    relevance_ : ndarray of shape (n_members, n_features)
        Prior scale of the weights of each column of ``X``. Exists only with ``ARD()``.
    log_posterior_samples_ : ndarray of shape (n_members,)
        Log joint density of targets, weights and noise for every member, in nats. Targets are in
        their original units, weights and noise in scaled units.
    log_posterior_curve_ : ndarray
        Mean log posterior of the members during training, averaged over blocks of steps.
    likelihood_ : Likelihood
        The likelihood with its fitted parameters, in standardised units. If the parameters were
        sampled, their first axis is that of the draws. Doesn't exist for ``likelihood="auto"``.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
    n_iter_ : int
        Number of steps.
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
    DeepEnsembleClassifier : Deep ensemble for classification.
    SymmetrizedVIRegressor : Approximates the posterior instead of finding its modes.

    Notes
    -----
    All members are trained as one batch. A step costs O(n_members * n_samples * P). The members are
    equally weighted, whatever posterior mass their modes have. With more weights than rows a mode
    can fit the targets exactly. The noise is therefore kept above 1e-3 standard deviations of the
    targets.

    Learned scales are updated eighteen times in ``max_iter`` steps, to the maximum of Laplace's
    evidence under their Gamma hyperprior (MacKay 1992, eq. 21 and 22). An update costs
    O(N K P m + m^3) per member, where K is the number of outputs and m the smaller of N K and P.

    References
    ----------
    Lakshminarayanan, Pritzel & Blundell (2017). Simple and scalable predictive uncertainty
    estimation using deep ensembles.

    MacKay (1992). A practical Bayesian framework for backpropagation networks.

    Wiese et al. (2023). Towards efficient MCMC sampling in Bayesian neural networks by exploiting
    symmetry, appendix E.3. https://arxiv.org/abs/2304.02902

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import DeepEnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = DeepEnsembleRegressor((3,), "tanh", n_members=5, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, reg.samples_.shape
    ((3,), (5, 37))
    """

    _: KW_ONLY
    noise_std: Any = "effective"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        **NOISE_CONSTRAINTS,
        "noise_std": [StrOptions({"effective"}), HalfNormal, *NOISE_CONSTRAINTS["noise_std"]],
        "standardize": STANDARDIZE,
    }

    def _make_method(self) -> DeepEnsemble:
        """Training method, with effective noise for the likelihoods that allow it."""
        method = super()._make_method()
        if not isinstance(self.noise_std, str) or self.noise_std != "effective":
            return method
        likelihood = self.resolved_likelihood
        is_normal = isinstance(likelihood, Gaussian) and likelihood.learn
        learns_noise = self._has_default_noise or is_normal
        is_student = isinstance(likelihood, StudentT) and likelihood.learn
        has_noise = learns_noise or is_student or isinstance(likelihood, Heteroscedastic)
        corrects_noise = has_noise and isinstance(self.network, str)
        return replace(method, has_effective_noise=corrects_noise, learns_noise=learns_noise)

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood with its initial parameters, in scaled units."""
        return require_noise(super()._make_likelihood(data), self.noise_std)

    def _fitted_likelihood_params(self) -> Array:
        """Parameters of the likelihood for every member, (M, 1, n_params)."""
        return self._likelihood_params_[:, None]

    def _fitted_noise_std(self) -> Array:
        """Noise level of every member in the units of ``y``, (M, 1, n_targets)."""
        return self.noise_std_samples_[:, None]

    def _noise_quadrature(self) -> NoiseNodes | None:
        """Quadrature of each member's distribution of the noise, in the units of ``y``."""
        levels = self._noise_levels_samples_
        if levels is not None:  # in small samples the spread of the targets informs the noise, too
            return NoiseNodes(torch.as_tensor(levels), level_weights())
        if self.noise_dof_samples_ is None:
            return None
        nodes = compute_noise_nodes(self.noise_dof_samples_)
        noise_std = torch.as_tensor(self.noise_std_samples_).unsqueeze(1)
        return nodes._replace(std=noise_std * nodes.std)

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Log density of observed targets given every member, as PSIS-LOO needs it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.

        Returns
        -------
        ndarray of shape (n_members, n_samples)
            Log densities in nats, in the units of ``y``, joint over the targets of a row. The
            distribution of a member's noise is integrated out.
        """
        values = self._log_density_by_draw(X, y)
        nodes = self._noise_quadrature()
        if nodes is None:
            return values
        by_node = values.reshape(len(self.samples_), len(nodes.weight), -1)
        return np.asarray(logsumexp(by_node, axis=1, b=nodes.weight.numpy()[:, None]))

    def _draws_predictor(self, like: Tensor) -> DrawsPredictor:
        """Predictor with one draw for each member and node of its noise."""
        members = super()._draws_predictor(like)
        nodes = self._noise_quadrature()
        if nodes is None:
            return members
        n_members = len(nodes.std)
        log_noise = (nodes.std / torch.as_tensor(self.y_scale_)).log().flatten(0, 1).unsqueeze(1)
        weights = (nodes.weight / n_members).repeat(n_members)
        return DrawsPredictor(
            self.network_,
            members.theta,
            Gaussian(log_noise.to(like)),
            weights.log().to(like),
            n_states=len(nodes.weight),
        )

    def _previous_fit(self) -> EnsembleFit:
        """Members of the previous fit, with their noise in the scaled units of this fit."""
        log_noise = self._likelihood_params_
        if self._has_default_noise:
            noise_std = getattr(self, "noise_std_samples_", np.ones((len(self.samples_), 0)))
            log_noise = np.log(noise_std / self.y_scale_)
        return replace(super()._previous_fit(), log_noise=log_noise)


@dataclass(eq=False, repr=False)
class DeepEnsembleClassifier(BayesianClassifierMixin, _DeepEnsemble):
    r"""Deep ensemble for classification: posterior modes of a network from random starts.

    Each member minimises the negative log posterior of its weights

    .. math:: -\sum_i \log \operatorname{softmax}(f_\theta(x_i))_{y_i}
              + \frac{\theta^\top \theta}{2 s^2} .

    Such modes are far too confident where classes overlap. Each member's linearised network is
    therefore refitted by Gaussian variational inference under the same prior. The ensemble predicts
    the mean of the members' probabilities, averaged over the normal distributions of the logits.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Activation of the hidden layers.
    n_members : int, default=10
        Number of networks, each trained from a different random start.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again.
    likelihood : str or Likelihood, default="auto"
        Distribution of a class given the network's outputs. "auto" is ``Categorical()``, the
        softmax of one output per class. "bernoulli" is the logistic function of a single output,
        for two classes.
    prior : "learn", float, sequence of float or Prior, default=1.0
        Prior of the weights and biases, in standardised units. A number is the standard deviation
        of independent normals. A sequence has one number per layer or per parameter. "learn" is
        ``LayerScales(8.0, 64.0)``: each member learns one scale for each layer's weights and one
        for each layer's biases by maximising the evidence. ``ARD(8.0, 64.0)`` also learns one per
        column of ``X``, see `relevance_`.
    max_iter : int, default=2000
        Maximum number of optimiser steps.
    standardize : bool, default=True
        Whether to standardise the columns of ``X`` before the fit.
    optimizer : "adam" or Adam, default="adam"
        Step size and rows per step. The step size "auto" is 0.03. The batch size "auto" takes all
        of up to 2000 distinct rows. Larger data sets are trained on 500 rows per step, with 0.3
        times the step size.
    tol : float or None, default=0.001
        Training stops when the members' mean log posterior gains less than this many nats per row
        from one tenth of ``max_iter`` to the next. None never stops.
    warm_start : bool, default=False
        Whether `fit` starts from the result of the previous call.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.
    correction : {"auto", "gaussian"}, float or None, default="auto"
        Whether members are refitted, which needs ``network="mlp"``, ``likelihood="auto"`` and a
        normal prior. "gaussian" always refits. "auto" refits if this takes at most some seconds (up
        to 700 rows times classes for ten members with many weights) and 0.4 GB for the covariances
        of all members (up to 80,000 weights at 60 rows of two classes). None leaves the members as
        trained. Predictions multiply the variance of the logits by a factor that leave-one-out
        densities choose. A number is "gaussian" with this factor; 0 predicts with the refitted
        means only.

    Attributes
    ----------
    refitted_members_ : RefittedMembers
        Normal distributions of the weights of the linearised members, with expansion point
        ``.theta`` and mean ``.loc``, (n_members, P), and covariance ``diag(scale)^2 - root root'``.
        None if the members are as trained.
    variance_scale_ : float
        Factor on the variance of the logits in predictions.
    samples_ : ndarray of shape (n_members, P)
        Weights of the members, acting on standardised data. The flat order is layer by layer, W
        (out x in, row-major), then b.
    chain_weights_ : ndarray of shape (n_members,)
        Weights of the members, all equal.
    prior_scale_ : ndarray of shape (n_groups,)
        Geometric mean of `prior_scale_samples_` over the members.
    prior_scale_samples_ : ndarray of shape (n_members, n_groups)
        Prior standard deviations of every member, if scales are learned.
    relevance_ : ndarray of shape (n_members, n_features)
        Prior scale of the weights of each column of ``X``. Exists only with ``ARD()``.
    log_posterior_samples_ : ndarray of shape (n_members,)
        Log joint density of targets, weights and noise for every member, in nats. Targets are in
        their original units, weights and noise in scaled units.
    log_posterior_curve_ : ndarray
        Mean log posterior of the members during training, averaged over blocks of steps.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
    n_iter_ : int
        Number of steps.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Reason why training stopped.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
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
    DeepEnsembleRegressor : Deep ensemble for regression.
    SymmetrizedVIClassifier : Approximates the posterior instead of finding its modes.

    Notes
    -----
    Members are trained and learn scales as in `DeepEnsembleRegressor`, which cites the papers. The
    refit costs O(N K P m + 30 N K m^2) per member, where K is the number of logits (1 for two
    classes) and m the smaller of N K and P. In `predict_uncertainty` the variance of the refitted
    logits is epistemic. `log_likelihood_samples` evaluates the weights as trained.

    References
    ----------
    Khan, Immer, Abedi & Korzepa (2019). Approximate inference turns deep networks into Gaussian
    processes.

    Opper & Archambeau (2009). The variational Gaussian approximation revisited (for the refit).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_sym import DeepEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = DeepEnsembleClassifier((3,), "tanh", n_members=5, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.samples_.shape
    ((2, 3), (5, 27))
    """

    _: KW_ONLY
    correction: str | float | None = "auto"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        "correction": [
            StrOptions({"auto", "gaussian"}),
            Interval(Real, 0, None, closed="left"),
            None,
        ],
    }

    def _make_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood, which must not have free parameters."""
        return refuse_free_parameters(super()._make_likelihood(data))

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        """Compute the log probability of observed classes given every member, as for PSIS-LOO.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Observed classes.

        Returns
        -------
        ndarray of shape (n_members, n_samples)
            Log probability in nats by the members as trained; -inf for a class that wasn't in the
            training data.
        """
        return self._log_probability_by_draw(
            X, y, lambda x: self._draws_predictor(x).distribution(x)
        )

    def _learned_prior(self, network: Network) -> UnboundPrior:
        """Return the prior of "learn"."""
        return learned_class_prior(network)

    def _make_method(self) -> DeepEnsemble:
        """Training method, with a refit of the members if the model allows it."""
        method = super()._make_method()
        correction = self.correction
        if correction is None:
            return method

        # An explicit correction that doesn't apply is an error; the default is skipped.
        reason = ""
        if not isinstance(self.network, str):
            reason = "only members of network='mlp' are refitted"
        elif self.resolved_likelihood is not self._likelihoods_by_name["auto"]:
            reason = "only members with the softmax of likelihood='auto' are refitted"
        if reason:
            refuse_parameters(self, ("correction",), reason, "correction=None")
            return method

        scale = "loo" if isinstance(correction, str) else correction
        return replace(method, refitter=MemberRefitter(scale, is_optional=correction == "auto"))

    def predictor(self, like: Tensor) -> Predictor:
        """Predictor of the refitted members, or of the members as trained."""
        members = self.refitted_members_
        if members is None:
            return super().predictor(like)
        network = require_mlp(self.network_)
        scale = self.variance_scale_
        return self._cached(
            f"refitted members on {like.device}",
            lambda: RefittedPredictor(network, members.tensors(like.device), scale),
        )
