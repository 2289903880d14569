"""Bayesian neural networks with nothing to tune."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    OBJECT_CONSTRAINTS,
    REGRESSOR_CONSTRAINTS,
    PriorParameter,
    bind_prior,
    layer_sizes,
    model_symmetry,
    relative_relevance,
    require_mlp,
    resolve_prior,
)
from skbayes_sym.base.noise_levels import level_weights
from skbayes_sym.base.noise_shape import NoiseShape, ShapedPredictor
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.predictor import DrawsPredictor, Predictor
from skbayes_sym.base.progress import N_JOBS, RUN_CONSTRAINTS
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.requirements import refuse_parameters
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import Interval, StrOptions, fit_context
from skbayes_sym.base.stacking_weights import PooledPredictor
from skbayes_sym.base.training import Training
from skbayes_sym.bayesian_mlp.fit import ClassificationPool, RegressionPool
from skbayes_sym.bayesian_mlp.groups import GroupedRegressionPool
from skbayes_sym.laplace.class_predictive import RefittedMembers
from skbayes_sym.laplace.defaults import GaussNewtonDefaults
from skbayes_sym.laplace.gauss_newton_classification import STRONG_HYPERPRIOR, WEAK_HYPERPRIOR
from skbayes_sym.laplace.mode_finding import InitialModes
from skbayes_sym.laplace.posterior import LinearisedModes, ModeMixture
from skbayes_sym.laplace.predict import (
    ClassModesPredictor,
    ModesPredictor,
    RefittedPredictor,
)
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import IDENTITY, MLP, TANH
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import ARD, LayerScales, UnboundPrior
from skbayes_sym.symmetry.group import SymmetryGroup, Trivial


class NetworkMixture(BayesianEstimator):
    """Base of the mixtures of networks: components that predict, and their weights."""

    n_modes: int
    network_: MLP
    posterior_: ModeMixture
    multiplicity_modes_: Array | None = None
    samples_: Array
    member_network_: MLP
    linear_posterior_: ModeMixture
    noise_shape_: NoiseShape | None = None
    refitted_members_: RefittedMembers | None = None
    _weights_: dict[str, float]  # of the components with a positive weight

    _accepts_tables: ClassVar[bool] = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **RUN_CONSTRAINTS,
        "hidden_layer_sizes": [StrOptions({"auto"}), *NETWORK_CONSTRAINTS["hidden_layer_sizes"]],
        "prior": NETWORK_CONSTRAINTS["prior"],
        "n_modes": [Interval(Integral, 0, None, closed="left")],
        "n_members": [Interval(Integral, 0, None, closed="left")],
        "standardize": ["boolean"],
        "compute_evidence": ["boolean"],
        "random_state": ["random_state"],
        "likelihood": OBJECT_CONSTRAINTS["likelihood"],
        "n_jobs": N_JOBS,
    }

    feature_importances_ = property(relative_relevance)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """Subgroup of the network's symmetry group that leaves the prior invariant."""
        check_is_fitted(self)
        return model_symmetry(self.network_, self._make_prior(self.network_))

    def _n_parallel_networks(self, n_weights: int) -> float:
        """Number of gradients per step: all modes, with one gradient per weight for the curvature.

        Without modes, members are trained one after the other.
        """
        return float(max(1, self.n_modes * n_weights))

    def _choose_width(self, data: Training, n_outputs: int) -> int:
        """Choose the number of hidden units for ``hidden_layer_sizes="auto"``."""
        raise NotImplementedError

    def _make_model(self, data: Training) -> Model:
        if self.n_modes == 0:
            reason = "n_modes=0 leaves the members, which have a width and a prior of their own"
            refuse_parameters(self, ("hidden_layer_sizes", "prior"), reason, "n_modes=4")
        likelihood = self._make_likelihood(data)
        n_outputs = self._count_outputs(data)
        widths = self.hidden_layer_sizes
        if isinstance(widths, str):
            widths = self._choose_width(data, n_outputs)
        network = MLP(data.n_features, layer_sizes(widths), n_outputs, TANH)
        prior = bind_prior(self.prior, self._learned_prior(network), network)
        return Model(network, likelihood, prior, Trivial())

    def _make_predictor(self, name: str, like: Tensor) -> Predictor:
        """Make the predictor of a component: "modes", "members" or "linear"."""
        raise NotImplementedError

    def _linearise(self, name: str, like: Tensor) -> LinearisedModes:
        """Linearise the networks at the modes, or return the linear model."""
        network = self.network_
        if name == "linear":
            network = MLP(network.n_inputs, (), network.n_outputs, IDENTITY)
            posterior = self.linear_posterior_
        else:
            posterior = self.posterior_
        return LinearisedModes(network, *(tensor.to(like.device) for tensor in posterior.tensors))

    def predictor(self, like: Tensor) -> Predictor:
        """Mixture of the components on the device of ``like``; made once."""

        def make() -> Predictor:
            parts = {name: self._make_predictor(name, like) for name in self._weights_}
            pool = PooledPredictor(parts, self._weights_)
            if self.noise_shape_ is None:
                return pool
            return ShapedPredictor(pool, self.noise_shape_)

        return self._cached(f"pool on {like.device}", make)


@dataclass(eq=False, repr=False)
class BayesianMLPRegressor(BayesianRegressorMixin, NetworkMixture):
    r"""Bayesian neural network regression with nothing to tune.

    The predictive distribution is a mixture of three components:

    * Modes of a small tanh network, each with its Laplace approximation. Prior scales and noise
      maximise the evidence (MacKay 1992).
    * Members of a deep ensemble of relu networks. Their noise is corrected for the number of
      parameters that the data determine.
    * A Bayesian linear model, whose weight is chosen by leave-one-out (stacking).

    Parameters
    ----------
    hidden_layer_sizes : "auto", int or sequence of int, default="auto"
        Widths of the hidden layers of the modes' network; ``()`` is a linear model. "auto"
        chooses 3, 8 or 20 units by five-fold cross-validation (`width_scores_`). Large tables get
        20 units. With more than 1,000 distinct rows and little noise they get 40 units if there are
        four rows per weight, and with more than 10,000 rows and any noise if there are twenty. With
        very many columns there are 10 or 5 units.
    prior : "learn", float, sequence of float or Prior, default="learn"
        Prior of the weights and biases, in standardised units: a prior object, or the standard
        deviation of normals, as one number or one per layer. "learn" chooses by cross-validation
        between ``LayerScales()``, with one learned scale per layer, and ``ARD()``, with one per
        column of ``X`` (`relevance_`). It is ``ARD()`` with more than 1,000 rows and little noise,
        and with more than 10,000 rows.
    n_modes : int, default=10
        Number of restarts of the small network. There are fewer, or none, if they would take too
        long.
    n_members : int, default=10
        Largest number of members of the ensemble; 0 trains none. There are at most as many members
        as modes. There are two if these gain little by leave-one-out. There are none if the noise
        is more than 20 % of the variance of the targets, or more than 1 % with up to 500 rows.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs. "auto" is normal noise whose width
        can depend on the predicted mean and which can have wide tails, if leave-one-out prefers
        this (`noise_shape_`). ``Gaussian()`` is the same noise for all rows.
    noise_std : "learn", float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``; one number or one per
        target. "learn" estimates it; a number is the same for all rows.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    outliers : {"exclude", "keep"}, default="exclude"
        Whether the fit leaves out rows whose targets are gross errors, with a warning: at most 5 %
        of the rows, beyond a gap to all other targets, not explained by ``X``, and with residuals
        too large for the tail of the others. Predictions are then of targets without gross errors.
        "keep" uses all rows.
    compute_evidence : bool, default=True
        Whether to sum the evidence over the modes and their symmetric copies (`log_evidence_`,
        `log_evidence_std_error_` and `log_evidence_side_`). With twenty units this takes about a
        second, which is most of the time of a fit to a hundred rows. Predictions don't need it.
    n_jobs : int or None, default=None
        Number of joblib processes. The result doesn't depend on it. Restarts of large networks and
        of classifiers run in parallel, and so do refitted members. Starting the processes takes
        about three seconds. Callbacks are called only when a parallel task ends.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.

    Attributes
    ----------
    posterior_ : ModeMixture
        Laplace approximations of the modes: ``.loc`` (n_modes, P), ``.sample(n, generator=...)``,
        ``.log_prob(theta)``. Exists only if modes were fitted.
    log_evidence_ : float
        Laplace approximation of log p(y | X), nats: an estimate, no bound. It sums over the modes
        and their copies by symmetry, as far as these don't overlap. Exists only with
        ``compute_evidence``.
    prior_scale_ : ndarray of shape (n_groups,)
        Learned prior standard deviation of every group of weights, geometric mean over the modes.
    samples_ : ndarray of shape (n_members, P')
        Weights of the ensemble's members. Exists only if members were trained.
    noise_std_samples_ : ndarray of shape (n_members, n_targets)
        Standard deviation of each member's noise, in the units of ``y``.
    member_network_ : MLP
        The members' architecture.
    linear_weight_, modes_weight_, members_weight_ : float
        Mixture weights of the linear model, of all modes and of all members. Their sum is 1.
    linear_posterior_ : ModeMixture
        Posterior of the linear model's coefficients, in standardised units. Exists only if the
        linear model has a positive weight.
    noise_std_linear_ : ndarray of shape (1, n_targets)
        Standard deviation of the linear model's noise, in the units of ``y``. Exists only if the
        linear model has a positive weight.
    noise_std_ : float or ndarray of shape (n_targets,)
        Root of the mean noise variance of the mixture, in the units of ``y``.
    noise_shape_ : NoiseShape
        Noise model: the ``slope`` of the logarithm of the noise per standard deviation of the
        predicted means, the share ``wide_weight`` of rows with wider noise, and the ratio
        ``wide_ratio`` of the variances. None if leave-one-out prefers constant noise.
    network_ : MLP
        The modes' architecture, with ``forward(theta, x)`` and ``symmetry()``.
    log_evidence_std_error_ : float
        Monte Carlo standard error of `log_evidence_`, in nats. It stems from the sum over symmetric
        copies, which is averaged over draws from the posterior. It is 0 if no copies are summed,
        and nan if the model averages over input transformations.
    log_evidence_side_ : {"exact", "lower"}
        Whether `log_evidence_` equals, in expectation, the Laplace approximation summed over all
        modes that were found and all their symmetric copies, or is a lower bound of it. "exact" for
        up to 50,000 copies (six units in a layer). "lower" for more copies, and if a single mode is
        used without copies. The Laplace approximation itself isn't a bound of the evidence.
    n_modes_ : int
        Number of distinct modes, where symmetric copies count as one. This attribute and the arrays
        over modes exist after optimisation by Gauss-Newton steps.
    multiplicity_modes_ : ndarray of shape (n_modes,)
        Number of restarts that ended in each mode or a symmetric copy of it. Modes are weighted in
        proportion to it.
    log_evidence_modes_ : ndarray of shape (n_modes,)
        Laplace approximation of log p(y | X) for each mode, in nats. Its error is often larger than
        the differences between modes, so that modes aren't weighted by it.
    log_evidence_curve_ : ndarray of shape (n_updates,)
        Log evidence of the mode with the largest evidence, after each update of the
        hyperparameters.
    prior_scale_modes_ : ndarray of shape (n_modes, n_groups)
        Learned prior standard deviations of each mode. Exists only if the prior learns scales.
    relevance_ : ndarray of shape (n_modes, n_features)
        Prior scale of the weights of each column of ``X``. Exists only with ``prior=ARD()``.
    noise_std_modes_ : ndarray of shape (n_modes, n_targets)
        Standard deviation of each mode's noise, in the units of ``y``.
    widths_ : ndarray of shape (n_widths,)
        Numbers of hidden units that were cross-validated. Exists only if "auto" chose the width by
        cross-validation.
    width_scores_ : ndarray of shape (n_widths,)
        Mean held-out log density for each of `widths_`, in nats per row and in the units of ``y``.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
    summary_ : str
        Plan of the fit, with the result of each stage or the reason why it was skipped.
    columns_in_ : Columns or None
        Encoding of text, categories, dates and missing values. None if the data had none of these.
    outliers_ : ndarray of shape (n_outliers,)
        Rows of ``X`` that the fit left out because their targets are gross errors. Exists only with
        ``outliers="exclude"``.
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
    LaplaceRegressor : Laplace approximation of modes only, for any network.
    DeepEnsembleRegressor : Deep ensemble only.
    MCMCRegressor : Samples of the posterior.

    Notes
    -----
    The modes take 50 to 300 steps of O(n_modes (n_samples P^2 + P^3)) operations. The members take
    at most 2,000 steps of O(n_members min(n_samples, 2000) P'). A fit to a thousand rows takes
    seconds.

    The weight of the linear model is its stacking weight next to the networks (Yao et al. 2018,
    eq. 8). The leave-one-out predictions have a closed form, so that no component is refitted.
    Modes, or members, get no weight if they gain less than 0.85 of what the others gain over the
    linear model. The noise model maximises the leave-one-out log density. It is kept if the
    Bayesian information criterion prefers it to constant noise, and doesn't change the mean.

    Dates, and rows beyond the range of the training data, are treated as in
    `PredictiveStackingRegressor`.

    References
    ----------
    MacKay (1992). A practical Bayesian framework for backpropagation networks.

    Yao, Vehtari, Simpson & Gelman (2018). Using stacking to average Bayesian predictive
    distributions.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianMLPRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = BayesianMLPRegressor(n_modes=2, n_members=1, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, reg.predict_interval(X[:3], 0.9).shape
    ((3,), (3, 2))
    """

    hidden_layer_sizes: str | int | Sequence[int] = "auto"
    _: KW_ONLY
    prior: PriorParameter = "learn"
    n_modes: int = 10
    n_members: int = 10
    likelihood: str | Likelihood = "auto"
    noise_std: Any = "learn"
    standardize: bool | str = True
    outliers: str = "exclude"
    compute_evidence: bool = True
    n_jobs: int | None = None
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **NetworkMixture._parameter_constraints,  # noqa: SLF001  # of its own base class
        **REGRESSOR_CONSTRAINTS,
        "outliers": [StrOptions({"exclude", "keep"})],
    }

    _noise_levels_modes_: ClassVar[Array | None] = None
    _noise_levels_linear_: ClassVar[Array | None] = None
    _noise_levels_members_: ClassVar[Array | None] = None

    def _choose_width(self, data: Training, n_outputs: int) -> int:
        return GaussNewtonDefaults().choose_regression_width(
            data.n_rows, data.n_features, n_outputs
        )

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit the posterior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative multiplicities: a weight of 2 is the row given twice, exactly.
        groups : array-like of shape (n_samples,), optional
            Groups of rows that share more than the columns of ``X``, such as the visits of a
            patient, of any dtype. Give them if predictions are for new groups: the noise is then
            fitted to predictions for groups that refits of the mixture haven't seen. Groups of one
            row each have no effect.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        KeyboardInterrupt
            If interrupted, after keeping the model reached so far with
            ``stop_reason_ = "interrupted"``.
        ValueError
            If a group is missing, or if there is only one group.
        """
        return self._fit_rows(X, y, sample_weight, groups)

    def _make_method(self) -> GroupedRegressionPool:
        return GroupedRegressionPool(self._make_pool(), self)

    def _make_pool(self) -> RegressionPool:
        initial_modes = None
        if self._continues_fit:
            initial_modes = self._previous_modes()
        return RegressionPool(
            self.n_modes,
            self.n_members,
            selects_width=isinstance(self.hidden_layer_sizes, str),
            unbound_prior=resolve_prior(self.prior),
            fits_noise_shape=self._has_default_noise and isinstance(self.noise_std, str),
            initial_modes=initial_modes,
            computes_evidence=self.compute_evidence,
        )

    def _previous_modes(self) -> InitialModes | None:
        """Modes of the last fit, from which a warm start continues."""
        prior_scale = fitted_attribute(self, "prior_scale_modes_", None)
        if prior_scale is None:
            return None
        log_precision = -2.0 * np.log(prior_scale)
        noise_precision = (self.noise_std_modes_ / self.y_scale_) ** -2.0
        if fitted_attribute(self, "relevance_", None) is None:
            prior = LayerScales()
        else:
            prior = ARD()
        state = (self.posterior_.loc, log_precision, noise_precision)
        return InitialModes(self.network_, prior, *map(torch.as_tensor, state))

    def _make_predictor(self, name: str, like: Tensor) -> ModesPredictor | DrawsPredictor:
        if name == "members":
            return self._make_members_predictor(like)
        if name == "linear":
            noise_std = self.noise_std_linear_
            levels = self._noise_levels_linear_
        else:
            noise_std = self.noise_std_modes_
            levels = self._noise_levels_modes_
        scaled_levels = None
        if levels is not None:
            scaled_levels = torch.as_tensor(levels / self.y_scale_).to(like)
        noise = self._noise_distribution(noise_std, like)
        return ModesPredictor(self._linearise(name, like), noise, scaled_levels)

    def _make_members_predictor(self, like: Tensor) -> DrawsPredictor:
        """Make the predictor of the ensemble members, with quadrature nodes of their noise."""
        theta = torch.as_tensor(self.samples_).to(like)
        levels = self._noise_levels_members_
        if levels is None:
            noise = self._noise_distribution(self.noise_std_samples_, like)
            return DrawsPredictor(self.member_network_, theta, noise)
        noise = self._noise_distribution(levels.reshape(-1, levels.shape[-1]), like)
        weights = (level_weights() / len(theta)).repeat(len(theta)).log().to(like)
        return DrawsPredictor(self.member_network_, theta, noise, weights, n_states=levels.shape[1])

    def _noise_distribution(self, noise_std: Array, like: Tensor) -> Gaussian:
        """Normal noise of each network, from standard deviations (R, T) in target units."""
        return Gaussian(torch.as_tensor(noise_std / self.y_scale_).log().unsqueeze(1).to(like))


@dataclass(eq=False, repr=False)
class BayesianMLPClassifier(BayesianClassifierMixin, NetworkMixture):
    r"""Bayesian neural network classification with nothing to tune.

    The class probabilities are a mixture of three components:

    * Modes of a small tanh network. Their prior scales maximise the evidence, and their Laplace
      approximations are refined by Gaussian variational inference (MacKay 1992; Opper & Archambeau
      2009).
    * Members of a deep ensemble of relu networks. Each is refitted as a linearised network if the
      number of rows times the number of classes allows it.
    * A Bayesian linear model.

    Approximate leave-one-out chooses the weights of the components and a factor on the variance of
    their logits.

    Parameters
    ----------
    hidden_layer_sizes : "auto", int or sequence of int, default="auto"
        Widths of the hidden layers of the modes' network; ``()`` is a linear model. "auto" is 20
        units, or 10 or 5 if there are so many columns that 20 would take too long.
    prior : "learn", float, sequence of float or Prior, default="learn"
        Prior of the weights and biases, in standardised units: a prior object, or the standard
        deviation of normals, as one number or one per layer. "learn" is ``LayerScales(8.0, 64.0)``,
        with one learned scale per layer, or ``LayerScales(8.0, 4.0)`` if labels are noisy and its
        evidence is higher. ``ARD(8.0, 64.0)`` learns one scale per column of ``X`` (`relevance_`).
    n_modes : int, default=4
        Number of restarts of the small network. There are fewer, or none, if they would take too
        long.
    n_members : int, default=10
        Number of members of the ensemble; 0 trains none. There are none if there are fewer than
        three rows per column, or if they can't be refitted in time while classes overlap.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs. "auto" is the softmax of the classes,
        the only likelihood that is supported.
    standardize : bool, default=True
        Whether to standardise the columns of ``X`` before the fit.
    compute_evidence : bool, default=True
        Whether to sum the evidence over the modes and their symmetric copies (`log_evidence_`,
        `log_evidence_std_error_` and `log_evidence_side_`). With twenty units this takes about a
        second, which is most of the time of a fit to a hundred rows. Predictions don't need it.
    n_jobs : int or None, default=None
        Number of joblib processes. The result doesn't depend on it. Restarts of large networks and
        of classifiers run in parallel, and so do refitted members. Starting the processes takes
        about three seconds. Callbacks are called only when a parallel task ends.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.

    Attributes
    ----------
    linear_variance_scale_ : float
        Factor on the variance of the linear model's logits in predictions.
    posterior_ : ModeMixture
        Refined normal distributions of the modes: ``.loc`` (n_modes, P),
        ``.sample(n, generator=...)``, ``.log_prob(theta)``. Exists only if modes were fitted.
    samples_ : ndarray of shape (n_members, P')
        Weights of the ensemble's members, as trained.
    refitted_members_ : RefittedMembers
        Normal distributions of the weights of the linearised members, with expansion point
        ``.theta`` and mean ``.loc``, (n_members, P), and covariance ``diag(scale)^2 - root root'``.
        None if the members are as trained.
    member_variance_scale_ : float
        Factor on the variance of the refitted members' logits in predictions.
    network_ : MLP
        The modes' architecture, with ``forward(theta, x)`` and ``symmetry()``; one logit for two
        classes.
    linear_weight_, modes_weight_, members_weight_ : float
        Mixture weights of the linear model, of all modes and of all members. Their sum is 1.
    linear_posterior_ : ModeMixture
        Posterior of the linear model's coefficients, in standardised units. Exists only if the
        linear model has a positive weight.
    log_evidence_ : float
        Laplace approximation of log p(y | X), nats: an estimate, no bound. It sums over the modes
        and their copies by symmetry, as far as these don't overlap. Exists only with
        ``compute_evidence``.
    prior_scale_ : ndarray of shape (n_groups,)
        Learned prior standard deviation of every group of weights, geometric mean over the modes.
    member_network_ : MLP
        The members' architecture.
    variance_scale_ : float
        Factor on the variance of the logits in predictions. Exists only if modes were fitted.
    n_modes_ : int
        Number of distinct modes, where symmetric copies count as one. This attribute and the arrays
        over modes exist after optimisation by Gauss-Newton steps.
    multiplicity_modes_ : ndarray of shape (n_modes,)
        Number of restarts that ended in each mode or a symmetric copy of it. Modes are weighted in
        proportion to it.
    log_evidence_std_error_ : float
        Monte Carlo standard error of `log_evidence_`, in nats. It stems from the sum over symmetric
        copies, which is averaged over draws from the posterior. It is 0 if no copies are summed,
        and nan if the model averages over input transformations.
    log_evidence_side_ : {"exact", "lower"}
        Whether `log_evidence_` equals, in expectation, the Laplace approximation summed over all
        modes that were found and all their symmetric copies, or is a lower bound of it. "exact" for
        up to 50,000 copies (six units in a layer). "lower" for more copies, and if a single mode is
        used without copies. The Laplace approximation itself isn't a bound of the evidence.
    log_evidence_modes_ : ndarray of shape (n_modes,)
        Laplace approximation of log p(y | X) for each mode, in nats. Its error is often larger than
        the differences between modes, so that modes aren't weighted by it.
    log_evidence_curve_ : ndarray of shape (n_updates,)
        Log evidence of the mode with the largest evidence, after each update of the
        hyperparameters.
    prior_scale_modes_ : ndarray of shape (n_modes, n_groups)
        Learned prior standard deviations of each mode. Exists only if the prior learns scales.
    relevance_ : ndarray of shape (n_modes, n_features)
        Prior scale of the weights of each column of ``X``. Exists only with ``prior=ARD()``.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
    summary_ : str
        Plan of the fit, with the result of each stage or the reason why it was skipped.
    columns_in_ : Columns or None
        Encoding of text, categories, dates and missing values. None if the data had none of these.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    n_iter_ : int
        Number of steps.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Reason why training stopped.
    x_mean_ : ndarray of shape (n_features,)
        Mean and standard deviation by which the inputs were standardised.
    x_scale_ : ndarray of shape (n_features,)
        Mean and standard deviation by which the inputs were standardised.
    device_, dtype_ : str
        Device and floating-point precision of the fit.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all column names of ``X`` are strings.

    See Also
    --------
    BayesianMLPRegressor : Mixture of networks for regression.
    LaplaceClassifier : Laplace approximation of modes only, for any network.
    DeepEnsembleClassifier : Deep ensemble only.

    Notes
    -----
    The modes take some tens of steps of O(n_modes (n_samples P^2 + P^3)) operations. The members
    take at most 2,000 steps of O(n_members min(n_samples, 2000) P'), and
    O(n_members (n_samples n_classes)^3) once if they are refitted. A fit to some hundred rows takes
    seconds. With more than a thousand weights it takes half a minute.

    The weights of modes and members maximise their leave-one-out score under a prior. With few rows
    each is near one half, and with many rows one of them can be 0. The weight of the linear model
    is its stacking weight next to both (Yao et al. 2018).

    Dates, and rows beyond the range of the training data, are treated as in
    `PredictiveStackingClassifier`.

    References
    ----------
    MacKay (1992). The evidence framework applied to classification networks.

    Opper & Archambeau (2009). The variational Gaussian approximation revisited.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_sym import BayesianMLPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = BayesianMLPClassifier(n_modes=2, n_members=1, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.posterior_.n_modes
    ((2, 3), 2)
    """

    hidden_layer_sizes: str | int | Sequence[int] = "auto"
    _: KW_ONLY
    prior: PriorParameter = "learn"
    n_modes: int = 4
    n_members: int = 10
    likelihood: str | Likelihood = "auto"
    standardize: bool = True
    compute_evidence: bool = True
    n_jobs: int | None = None
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    def _count_outputs(self, data: Training) -> int:
        """Number of logits: one for two classes."""
        if len(data.classes) == 2:
            return 1
        return len(data.classes)

    def _learned_prior(self, network: Network) -> UnboundPrior:
        # A linear model has a single mode, whose prior scales don't diverge.
        if not require_mlp(network).hidden_layer_sizes:
            return LayerScales()
        return STRONG_HYPERPRIOR

    def _choose_width(self, data: Training, n_outputs: int) -> int:
        n_rows = data.n_rows
        n_inputs = data.n_features
        return GaussNewtonDefaults().choose_classification_width(
            n_rows, n_inputs, n_outputs, self.n_modes
        )

    def _make_method(self) -> ClassificationPool:
        alternative_prior = None
        if isinstance(self.prior, str):
            alternative_prior = WEAK_HYPERPRIOR
        return ClassificationPool(
            self.n_modes,
            self.n_members,
            alternative_prior,
            computes_evidence=self.compute_evidence,
        )

    def _make_predictor(self, name: str, like: Tensor) -> Predictor:
        if name == "members":
            if self.refitted_members_ is None:
                theta = torch.as_tensor(self.samples_).to(like)
                return DrawsPredictor(self.member_network_, theta, Categorical())
            distributions = self.refitted_members_.tensors(like.device)
            return RefittedPredictor(
                self.member_network_, distributions, self.member_variance_scale_
            )
        modes = self._linearise(name, like)
        if name == "linear":
            scale = self.linear_variance_scale_
        else:
            scale = self.variance_scale_
        return ClassModesPredictor(modes, scale)
