"""Laplace approximation with evidence-tuned hyperparameters, as scikit-learn estimators."""

from typing import Any

import torch
from sklearn.utils._param_validation import HasMethods, StrOptions

from skbayes_sym.estimators.laplace.base import (
    CLASSIFIER_CONSTRAINTS,
    CONSTRAINTS,
    REGRESSOR_CONSTRAINTS,
    LaplaceClassification,
    LaplaceRegression,
)
from skbayes_sym.models.likelihoods.base import Likelihood

_OWN_CONSTRAINTS: dict[str, list[Any]] = {
    **CONSTRAINTS,
    "network": [StrOptions({"mlp"}), torch.nn.Module, HasMethods("forward")],
    "layers": [StrOptions({"all", "last"})],
}


class LaplaceRegressor(LaplaceRegression):
    r"""Bayesian neural network regression by a Laplace approximation.

    Finds a mode of the posterior, approximates the posterior there by a normal distribution whose
    precision is the generalised Gauss-Newton matrix plus the prior's, and maximises the evidence

    .. math:: \log p(y \mid \theta^*) + \log p(\theta^*)
              - \tfrac12 \log \left| \tfrac{1}{2\pi} (H + \Delta) \right|

    over the prior precision of every layer and the noise while training. Predictions are those of
    the network linearised at the mode.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is made of ``hidden_layer_sizes`` and ``activation``. A module of Linear and Conv2d
        layers and elementwise activations is taken as an architecture: it is copied, and its
        weights are drawn anew at their own scale.
    likelihood : "auto" or Likelihood, default="auto"
        Distribution of a target given the network's outputs; "auto" is normal noise, as
        ``noise_std`` says.
    curvature : str, default="auto"
        "kron-exact" (what "auto" is here), "kron-sketch" (random signs in place of a sum over
        outputs), "kron-ef" (empirical Fisher), "diag" or "full" (small networks).
    layers : {"all", "last"}, default="all"
        What the posterior covers. "last" keeps the other layers at the mode, and their prior as
        it starts.
    prior_scale : "learn", float or sequence of float, default="learn"
        Prior standard deviation of the weights and biases, in standardised units: one number or
        one per layer. "learn" maximises the evidence over it, layer by layer, from 3.0.
    noise_std : "learn", float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``; one number or one per
        target. "learn" estimates it.
    max_iter : int, default=1000
        Largest number of optimiser steps.
    batch_size : int or "auto", default="auto"
        Rows per step; "auto" is all of them up to 1000 distinct rows, 200 beyond. Memory is that of
        one batch.
    standardize : bool, default=True
        Whether to centre and scale the columns of ``X`` first.
    normalize_y : bool, default=True
        Whether to centre and scale ``y`` first. Everything reported is in the units of ``y``.
    learning_rate : float, default=0.02
        Adam's step size for the weights: constant over the first half of the steps, then falling
        linearly.
    hyper_learning_rate : float, default=0.3
        Likewise for the logarithms of prior precision and noise.
    n_hyper_updates : int, default=100
        Times the hyperparameters move, evenly over the steps.
    burn_in : float, default=0.1
        Share of them that is left out at the start.
    keep_best : bool, default=True
        Whether to return to the point of highest evidence on the way, if that is higher than at
        the end.
    tol : float or None, default=0.001
        Training stops when the log evidence (the log posterior, where nothing is learned by the
        evidence) gains less than this many nats per unit of sample weight from one tenth of
        ``max_iter`` to the next. None never stops.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Arithmetic of training and prediction; "auto" follows ``X``.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the progress.

    Attributes
    ----------
    log_evidence_ : float
        Laplace approximation of log p(y | X) at the hyperparameters found, nats: an estimate, no
        bound.
    log_evidence_curve_ : ndarray of shape (n_updates,)
        The same at every update.
    prior_scale_ : ndarray of shape (n_layers,)
        Prior standard deviation of every covered layer's weights and biases.
    posterior_ : LaplacePosterior
        Normal distribution over the network's P weights, acting on standardised inputs and
        targets:
        ``posterior_.loc``, ``.sample(n, generator=...)``, ``.log_prob(theta)``.
    network_ : MLP or ModuleNetwork
        Architecture, with ``forward(theta, x)``.
    n_iter_ : int
        Steps made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why training ended.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise, in the units of ``y``; of another likelihood its scale, if
        it has one.
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
    LILARegressor : The same with learned invariances.

    Notes
    -----
    A step costs as much as a deterministic network's, an update about as much as one look at the
    data, and two more where there is noise to learn.

    References
    ----------
    MacKay (1992). A practical Bayesian framework for backpropagation networks.

    Immer, Bauer, Fortuin, Raetsch & Khan (2021). Scalable marginal likelihood estimation for model
    selection in deep learning.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import LaplaceRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = LaplaceRegressor((5,), max_iter=300, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, bool((std > reg.noise_std_).all())
    ((3,), True)
    """

    _parameter_constraints: dict[str, list[Any]] = {
        **_OWN_CONSTRAINTS,
        **REGRESSOR_CONSTRAINTS,
    }

    def __init__(
        self,
        hidden_layer_sizes: Any = (50,),
        activation: str = "tanh",
        *,
        network: Any = "mlp",
        likelihood: str | Likelihood = "auto",
        curvature: str = "auto",
        layers: str = "all",
        prior_scale: Any = "learn",
        noise_std: Any = "learn",
        max_iter: int = 1000,
        batch_size: Any = "auto",
        standardize: bool = True,
        normalize_y: bool = True,
        learning_rate: float = 0.02,
        hyper_learning_rate: float = 0.3,
        n_hyper_updates: int = 100,
        burn_in: float = 0.1,
        keep_best: bool = True,
        tol: float | None = 1e-3,
        device: str = "auto",
        dtype: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.network = network
        self.likelihood = likelihood
        self.curvature = curvature
        self.layers = layers
        self.prior_scale = prior_scale
        self.noise_std = noise_std
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.standardize = standardize
        self.normalize_y = normalize_y
        self.learning_rate = learning_rate
        self.hyper_learning_rate = hyper_learning_rate
        self.n_hyper_updates = n_hyper_updates
        self.burn_in = burn_in
        self.keep_best = keep_best
        self.tol = tol
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose


class LaplaceClassifier(LaplaceClassification):
    r"""Bayesian neural network classification by a Laplace approximation.

    Finds a mode of the posterior, approximates the posterior there by a normal distribution whose
    precision is the generalised Gauss-Newton matrix plus the prior's, and maximises the evidence

    .. math:: \log p(y \mid \theta^*) + \log p(\theta^*)
              - \tfrac12 \log \left| \tfrac{1}{2\pi} (H + \Delta) \right|

    over the prior precision of every layer while training. Predictions are those of the network
    linearised at the mode.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="tanh"
        Activation of the hidden layers.
    network : "mlp", torch.nn.Module or Network, default="mlp"
        "mlp" is made of ``hidden_layer_sizes`` and ``activation``. A module of Linear and Conv2d
        layers and elementwise activations is taken as an architecture: it is copied, and its
        weights are drawn anew at their own scale.
    likelihood : "auto" or Likelihood, default="auto"
        Distribution of a target given the network's outputs; "auto" is the softmax of one output
        per class.
    curvature : str, default="auto"
        "kron-exact" (what "auto" is here), "kron-sketch" (random signs in place of a sum over
        outputs), "kron-ef" (empirical Fisher), "diag" or "full" (small networks).
    layers : {"all", "last"}, default="all"
        What the posterior covers. "last" keeps the other layers at the mode, and their prior as
        it starts.
    prior_scale : "learn", float or sequence of float, default="learn"
        Prior standard deviation of the weights and biases, in standardised units: one number or
        one per layer. "learn" maximises the evidence over it, layer by layer, from 3.0.
    predictive : {"sampling", "probit", "plugin"}, default="sampling"
        How class probabilities are averaged over the linearised posterior: by
        ``n_predict_samples`` draws, by the probit approximation, or not at all.
    n_predict_samples : int, default=200
        Draws of "sampling"; the same ones for every row.
    max_iter : int, default=1000
        Largest number of optimiser steps.
    batch_size : int or "auto", default="auto"
        Rows per step; "auto" is all of them up to 1000 distinct rows, 200 beyond. Memory is that of
        one batch.
    standardize : bool, default=True
        Whether to centre and scale the columns of ``X`` first.
    learning_rate : float, default=0.02
        Adam's step size for the weights: constant over the first half of the steps, then falling
        linearly.
    hyper_learning_rate : float, default=0.3
        Likewise for the logarithms of prior precision.
    n_hyper_updates : int, default=100
        Times the hyperparameters move, evenly over the steps.
    burn_in : float, default=0.1
        Share of them that is left out at the start.
    keep_best : bool, default=True
        Whether to return to the point of highest evidence on the way, if that is higher than at
        the end.
    tol : float or None, default=0.001
        Training stops when the log evidence (the log posterior, where nothing is learned by the
        evidence) gains less than this many nats per unit of sample weight from one tenth of
        ``max_iter`` to the next. None never stops.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Arithmetic of training and prediction; "auto" follows ``X``.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the progress.

    Attributes
    ----------
    log_evidence_ : float
        Laplace approximation of log p(y | X) at the hyperparameters found, nats: an estimate, no
        bound.
    log_evidence_curve_ : ndarray of shape (n_updates,)
        The same at every update.
    prior_scale_ : ndarray of shape (n_layers,)
        Prior standard deviation of every covered layer's weights and biases.
    posterior_ : LaplacePosterior
        Normal distribution over the network's P weights, acting on standardised inputs:
        ``posterior_.loc``, ``.sample(n, generator=...)``, ``.log_prob(theta)``.
    network_ : MLP or ModuleNetwork
        Architecture, with ``forward(theta, x)``.
    n_iter_ : int
        Steps made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why training ended.
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
    LILAClassifier : The same with learned invariances.

    Notes
    -----
    A step costs as much as a deterministic network's, an update about as much as C looks at the
    data for C classes, and the predictive covariance O(C D^2 + C G^2) a row and layer of D inputs
    and G units.

    References
    ----------
    MacKay (1992). The evidence framework applied to classification networks.

    Immer, Bauer, Fortuin, Raetsch & Khan (2021). Scalable marginal likelihood estimation for model
    selection in deep learning.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_sym import LaplaceClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LaplaceClassifier((5,), max_iter=300, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.prior_scale_.shape
    ((2, 3), (2,))
    """

    _parameter_constraints: dict[str, list[Any]] = {
        **_OWN_CONSTRAINTS,
        **CLASSIFIER_CONSTRAINTS,
    }

    def __init__(
        self,
        hidden_layer_sizes: Any = (50,),
        activation: str = "tanh",
        *,
        network: Any = "mlp",
        likelihood: str | Likelihood = "auto",
        curvature: str = "auto",
        layers: str = "all",
        prior_scale: Any = "learn",
        predictive: str = "sampling",
        n_predict_samples: int = 200,
        max_iter: int = 1000,
        batch_size: Any = "auto",
        standardize: bool = True,
        learning_rate: float = 0.02,
        hyper_learning_rate: float = 0.3,
        n_hyper_updates: int = 100,
        burn_in: float = 0.1,
        keep_best: bool = True,
        tol: float | None = 1e-3,
        device: str = "auto",
        dtype: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.network = network
        self.likelihood = likelihood
        self.curvature = curvature
        self.layers = layers
        self.prior_scale = prior_scale
        self.predictive = predictive
        self.n_predict_samples = n_predict_samples
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.hyper_learning_rate = hyper_learning_rate
        self.n_hyper_updates = n_hyper_updates
        self.burn_in = burn_in
        self.keep_best = keep_best
        self.tol = tol
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
