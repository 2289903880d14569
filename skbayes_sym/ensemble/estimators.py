"""Deep ensembles: modes of the posterior from random starts, as scikit-learn estimators."""

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor, nn

from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    NOISE_CONSTRAINTS,
    GivenPrior,
    fully_connected,
)
from skbayes_sym.base.network_estimator import OBJECT_CONSTRAINTS
from skbayes_sym.base.noise_levels import level_weights
from skbayes_sym.base.optimizers import Adam, Optimizer, as_adam
from skbayes_sym.base.predictor import DrawsPredictor, Predictor
from skbayes_sym.base.progress import RUN_CONSTRAINTS
from skbayes_sym.base.requirements import refuse
from skbayes_sym.base.rows import STANDARDIZE, Array
from skbayes_sym.base.scikit_learn import Interval, StrOptions
from skbayes_sym.base.weighted_draws import DrawsClassifier, DrawsRegressor, WeightedDraws
from skbayes_sym.ensemble.fit import DeepEnsemble, EnsembleFit, MemberRefitter
from skbayes_sym.laplace.class_predictive import RefittedMembers
from skbayes_sym.laplace.map import NoiseNodes, noise_nodes
from skbayes_sym.laplace.predict import RefittedPredictor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian, Heteroscedastic, StudentT
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import HalfNormal, LayerScales, UnboundPrior

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
class _DeepEnsemble(WeightedDraws):
    """Members that count alike, of numbers or of labels."""

    hidden_layer_sizes: Any = (50,)
    activation: str = "relu"
    _: KW_ONLY
    n_members: int = 10
    network: str | nn.Module | Network = "mlp"
    likelihood: str | Likelihood = "auto"
    prior: GivenPrior = 1.0
    max_iter: int = 2000
    standardize: bool | str = True
    optimizer: str | Optimizer = "adam"
    tol: float | None = 1e-3
    warm_start: bool = False
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    draws_the_posterior: ClassVar[bool] = False
    prior_scale_samples_: ClassVar[Array | None] = None  # none learned
    noise_dof_samples_: ClassVar[Array | None] = None
    _noise_levels_samples_: ClassVar[Array | None] = None
    refitted_members_: ClassVar[RefittedMembers | None] = None

    @property
    def chain_weights_(self) -> Array:  # type: ignore[override]
        """Weights of the members, which count alike."""
        return np.full(len(self.samples_), 1.0 / len(self.samples_))

    def _draw_weights(self) -> None:
        return None

    def _networks_at_once(self, n_weights: int) -> float:
        """The members."""
        return float(self.n_members)

    def _method(self) -> DeepEnsemble:
        adam = as_adam(self.optimizer, Adam)
        return DeepEnsemble(
            self.n_members,
            self._noise_prior_scale,
            0.03 if isinstance(adam.learning_rate, str) else adam.learning_rate,
            self.max_iter,
            self.tol,
            adam.batch_size,
            start=self._previous() if self._goes_on else None,
        )

    def _previous(self) -> EnsembleFit:
        """The members of the fit before, with the prior's log precisions that they learned."""
        scales = self.prior_scale_samples_
        log_precision = None if scales is None else -2.0 * np.log(scales)
        return EnsembleFit(self.samples_, np.zeros((len(self.samples_), 0)), log_precision)


@dataclass(eq=False, repr=False)
class DeepEnsembleRegressor(DrawsRegressor, _DeepEnsemble):
    r"""Deep ensemble for regression: posterior modes of a network from random starts.

    Each member minimises the negative log posterior of its weights and of its noise

    .. math:: \frac{1}{2 \sigma^2} \sum_i (f_\theta(x_i) - y_i)^2 + n \log \sigma
              + \frac{\theta^\top \theta}{2 s^2} + \frac{\sigma^2}{2 s_\sigma^2}

    (eq. 27 of Wiese et al., with their half-normal prior of :math:`\sigma` kept); the ensemble
    predicts by the equal mixture of its members' normals. A baseline for the samplers.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Activation of the hidden layers.
    n_members : int, default=10
        Networks trained, each from a random start of its own.
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
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number, one per layer or one per parameter; or an object. "learn" is
        ``LayerScales()``: one scale per layer's weights and one per layer's biases, every
        member's own, by the evidence. ``ARD()`` learns one per column of ``X`` besides:
        `relevance_`.
    max_iter : int, default=2000
        Maximum number of optimiser steps.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    optimizer : "adam" or Adam, default="adam"
        Step size ("auto" is 0.03) and rows per step ("auto": all of up to 2000 distinct rows, 500
        beyond, at 0.3 times the step size).
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
        Standard deviation of the observation noise in the units of ``y``; one number or one per
        target. "learn" estimates it, each member from its own residuals, under a half-normal prior
        of scale 1, in scaled target units; `HalfNormal` has another. "effective" corrects this, of
        "student_t" and "heteroscedastic" too, for the degrees of freedom that a member's weights
        use up; for "mlp", and for any network whose prior scales are learned.

    Attributes
    ----------
    samples_ : ndarray of shape (n_members, P)
        Weights of the members, acting on standardised data. The flat order is layer by layer, W
        (out x in, row-major), then b.
    chain_weights_ : ndarray of shape (n_members,)
        What each member counts for: all alike.
    noise_std_samples_ : ndarray of shape (n_members, n_targets)
        Standard deviation of each member's noise (or its scale), in the units of ``y``; only where
        the likelihood has noise.
    noise_dof_samples_ : ndarray of shape (n_members, n_targets)
        Degrees of freedom that each member's weights leave to the noise: predictions follow
        Student's t with as many, four at least. None without effective noise.
    prior_scale_ : ndarray of shape (n_groups,)
        Geometric mean of `prior_scale_samples_` over the members.
    prior_scale_samples_ : ndarray of shape (n_members, n_groups)
        Prior standard deviations of every member, where scales are learned.
    relevance_ : ndarray of shape (n_members, n_features)
        Prior scale of the weights of each column of ``X``; only under ``ARD()``.
    log_posterior_samples_ : ndarray of shape (n_members,)
        Log joint density of targets (as given), weights and noise (as scaled) of every member,
        nats.
    log_posterior_curve_ : ndarray
        Its mean over the members in training, averaged over blocks of steps.
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
    DeepEnsembleClassifier : The same for class labels.
    SymmetrizedVIRegressor : A posterior instead of its modes.

    Notes
    -----
    All members are trained as one batch, O(n_members * n_samples * P) per step. They are modes
    found from random starts and count alike, however much of the posterior they stand for. With
    more weights than rows a mode may fit them exactly: its noise is kept above 1e-3 standard
    deviations of the targets.

    Learned scales move eighteen times in ``max_iter`` steps, to the maximum of Laplace's evidence
    under their Gamma hyperprior (MacKay 1992, eq. 21 and 22); in between they stay. That takes O(N
    K P m + m^3) a member, m the smaller of N K and P for K outputs.

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

    def _method(self) -> DeepEnsemble:
        wanted = isinstance(self.noise_std, str) and self.noise_std == "effective"
        learns = wanted and self._has_default_noise
        chosen = self._chosen_likelihood
        is_other = isinstance(chosen, Heteroscedastic) or (
            isinstance(chosen, StudentT) and chosen.learn
        )
        corrects = wanted and (learns or is_other) and isinstance(self.network, str)
        return replace(super()._method(), has_effective_noise=corrects, learns_noise=learns)

    def _nodes(self) -> NoiseNodes | None:
        """Standard deviations of every member's noise, in the units of ``y``, and their weights."""
        noise_dof = self.noise_dof_samples_
        levels = self._noise_levels_samples_
        if levels is not None:  # few rows
            return NoiseNodes(torch.as_tensor(levels), level_weights())
        if noise_dof is None:
            return None
        nodes = noise_nodes(noise_dof)
        noise_std = torch.as_tensor(self.noise_std_samples_).unsqueeze(1)
        return nodes._replace(std=noise_std * nodes.std)

    def log_likelihood_samples(self, X: Any, y: Any) -> Array:
        values = super().log_likelihood_samples(X, y)
        nodes = self._nodes()
        if nodes is None:
            return values
        by_node = values.reshape(len(self.samples_), len(nodes.weight), -1)
        return np.asarray(logsumexp(by_node, axis=1, b=nodes.weight.numpy()[:, None]))

    def _draws_predictor(self, like: Tensor) -> DrawsPredictor:
        members = super()._draws_predictor(like)
        nodes = self._nodes()
        if nodes is None:
            return members
        n_members = len(nodes.std)
        log_noise = (nodes.std / torch.as_tensor(self.y_scale_)).log().flatten(0, 1).unsqueeze(1)
        weights = (nodes.weight / n_members).repeat(n_members)
        return DrawsPredictor(
            self.network_, members.theta, Gaussian(log_noise.to(like)), weights.log().to(like),
            n_states=len(nodes.weight),
        )  # fmt: skip

    def _previous(self) -> EnsembleFit:
        log_noise = self._likelihood_params_
        if self._has_default_noise:
            noise_std = vars(self).get("noise_std_samples_", np.ones((len(self.samples_), 0)))
            log_noise = np.log(noise_std / self.y_scale_)
        return replace(super()._previous(), log_noise=log_noise)


@dataclass(eq=False, repr=False)
class DeepEnsembleClassifier(DrawsClassifier, _DeepEnsemble):
    r"""Deep ensemble for classification: posterior modes of a network from random starts.

    Each member minimises the negative log posterior of its weights

    .. math:: -\sum_i \log \operatorname{softmax}(f_\theta(x_i))_{y_i}
              + \frac{\theta^\top \theta}{2 s^2};

    which is far too sure of itself where classes overlap. So each member's linearised network is
    then refitted by Gaussian variational inference under the same prior, and the ensemble predicts
    by the mean of the members' probabilities, averaged over the logits' normal laws.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Activation of the hidden layers.
    n_members : int, default=10
        Networks trained, each from a random start of its own.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is a multilayer perceptron with ``hidden_layer_sizes`` and ``activation``. A torch
        module of Linear and Conv2d layers and elementwise activations defines the architecture. The
        module is copied and its weights are initialised again.
    likelihood : str or Likelihood, default="auto"
        Distribution of a class given the network's outputs. "auto" is ``Categorical()``, the
        softmax of one output per class. "bernoulli" is the logistic function of a single output,
        for two classes.
    prior : "learn", float, sequence of float or Prior, default=1.0
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number, one per layer or one per parameter; or an object. "learn" is
        ``LayerScales()``: one scale per layer's weights and one per layer's biases, every
        member's own, by the evidence. ``ARD()`` learns one per column of ``X`` besides:
        `relevance_`.
        Of labels these objects are ``LayerScales(8.0, 64.0)`` and ``ARD(8.0, 64.0)``.
    max_iter : int, default=2000
        Maximum number of optimiser steps.
    standardize : bool, default=True
        Whether to standardise the columns of ``X`` before the fit.
    optimizer : "adam" or Adam, default="adam"
        Step size ("auto" is 0.03) and rows per step ("auto": all of up to 2000 distinct rows, 500
        beyond, at 0.3 times the step size).
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
        Whether members are refitted: "gaussian" for all of a "mlp" with the softmax of
        ``likelihood="auto"`` and a normal prior; "auto" where that is so and takes some seconds (up
        to 700 rows times classes, with ten members of many weights); None leaves them as trained.
        A number is "gaussian" with that factor on the variance of the logits, which leave-one-out
        densities choose otherwise: 0 predicts with the refitted means alone.

    Attributes
    ----------
    refitted_members_ : RefittedMembers
        Normal laws of the weights of the linearised members: ``.theta``, ``.loc`` (n_members, P),
        covariance ``diag(scale)^2 - root root'``; None where they are as trained.
    variance_scale_ : float
        Factor by which predictions multiply the variance of the logits.
    samples_ : ndarray of shape (n_members, P)
        Weights of the members, acting on standardised data. The flat order is layer by layer, W
        (out x in, row-major), then b.
    chain_weights_ : ndarray of shape (n_members,)
        What each member counts for: all alike.
    prior_scale_ : ndarray of shape (n_groups,)
        Geometric mean of `prior_scale_samples_` over the members.
    prior_scale_samples_ : ndarray of shape (n_members, n_groups)
        Prior standard deviations of every member, where scales are learned.
    relevance_ : ndarray of shape (n_members, n_features)
        Prior scale of the weights of each column of ``X``; only under ``ARD()``.
    log_posterior_samples_ : ndarray of shape (n_members,)
        Log joint density of targets (as given), weights and noise (as scaled) of every member,
        nats.
    log_posterior_curve_ : ndarray
        Its mean over the members in training, averaged over blocks of steps.
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
    DeepEnsembleRegressor : The same for numbers.
    SymmetrizedVIClassifier : A posterior instead of its modes.

    Notes
    -----
    Members are trained and learn scales as in `DeepEnsembleRegressor`, which names the papers. The
    refit takes O(N K P m + 30 N K m^2) a member, where m is the smaller of N K and P, and K the
    number of logits: 1 for two classes. `predict_uncertainty` counts the refitted logits' variance
    as epistemic; `log_likelihood_samples` is that of the weights as trained.

    References
    ----------
    Khan, Immer, Abedi & Korzepa (2019). Approximate inference turns deep networks into Gaussian
    processes.

    Opper & Archambeau (2009). The variational Gaussian approximation revisited, for the refit.

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

    def _learned_scales(self, network: Network) -> UnboundPrior:
        """Weaker hyperpriors don't hold the scales of separable classes; without units they do."""
        return LayerScales(8.0, 64.0) if network.symmetry().factors else LayerScales()

    def _method(self) -> DeepEnsemble:
        method = super()._method()
        correction = self.correction
        why = ""
        if correction is None:
            return method
        if not isinstance(self.network, str):
            why = "only members of network='mlp' are refitted"
        elif self._chosen_likelihood is not self._named_likelihoods["auto"]:
            why = "only members with the softmax of likelihood='auto' are refitted"
        if why:
            refuse(self, ("correction",), why, "correction=None")
            return method
        scale = "loo" if isinstance(correction, str) else correction
        return replace(method, refitter=MemberRefitter(scale, is_optional=correction == "auto"))

    def _predictor(self, like: Tensor) -> Predictor:
        members = self.refitted_members_
        if members is None:
            return super()._predictor(like)
        network = fully_connected(self.network_)
        scale = self.variance_scale_
        return self._cached(
            f"refitted members on {like.device}",
            lambda: RefittedPredictor(network, members.tensors(like.device), scale),
        )
