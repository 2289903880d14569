"""Layerwise variational inference of wide networks as a scikit-learn estimator."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor

from skbayes_sym.estimators._fit.building import (
    NETWORK_CONSTRAINTS,
    NOISE_CONSTRAINTS,
    GivenPrior,
    gaussian_noise,
)
from skbayes_sym.estimators._fit.rows import STANDARDIZE, Array
from skbayes_sym.estimators._fit.run import RUN_CONSTRAINTS, STEP_CONSTRAINTS, Steps
from skbayes_sym.estimators._fit.scikit_learn import Interval, StrOptions
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.words import in_full
from skbayes_sym.estimators.layerwise.layerwise_training import LayerwiseVI
from skbayes_sym.estimators.networks import OBJECT_CONSTRAINTS, NetworkEstimator
from skbayes_sym.estimators.optimizers import Optimizer, VariationalAdam, as_adam
from skbayes_sym.estimators.regressor import BayesianRegressorMixin
from skbayes_sym.inference.gaussian_vi.layerwise_posterior import (
    LayerwisePosterior,
    LayerwisePredictor,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.random import generator_from

RandomState = int | np.random.RandomState | None

_N_DRAWS = 2  # of the hidden layers a step: each conditions the last one


@in_full
class LayerwiseVIRegressor(BayesianRegressorMixin, NetworkEstimator):
    r"""Regression by wide Bayesian neural networks whose layers depend on each other.

    Mean-field posteriors of wide networks collapse to the prior. Here a layer's posterior is
    conditional on the layers sampled below it,

    .. math:: q(W_1, \ldots, W_L) = q(W_1) \, q(W_2 \mid W_1) \cdots q(W_L \mid W_1, \ldots,
              W_{L-1}),

    with the last layer integrated out exactly, given the sampled ones, so that it abides by the
    translations that the data can't see (section 5 of Kurle et al., in the conditional form that is
    a bound). Every step uses all rows.

    Parameters
    ----------
    hidden_layer_sizes, activation : as in every network
    hidden_posterior : {"mean_field", "global_inducing"} or int, default="mean_field"
        "global_inducing" makes the posterior of a layer's weights of 100 sites (an int is another
        number) at the activations sampled below it, so that layers are correlated.
    prior : "learn", float, sequence of float or Prior, default="learn"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number, one per layer or one per parameter, the same for all units of a layer; or an
        object. "learn" is ``LayerScales()``, one learned scale per layer's weights and per layer's
        biases; ``ARD()`` learns one per column of ``X`` besides: `relevance_`.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs; "auto" is normal noise, as
        ``noise_std`` says. The formulas of the last layer know no other.
    noise_std : as in every regressor
    max_iter : int, default=2000
        Largest number of optimiser steps, from each of two starts.
    standardize : as in every regressor
    optimizer : "adam" or Adam, default="adam"
        `~skbayes_sym.estimators.optimizers.VariationalAdam` says the step size, rows and draws per
        step, and where training starts.
    n_predict_samples : int, default=200
        Draws of the hidden layers that predictions average; the same ones for every row.
    tol : float or None, default=0.001
        Training stops when the training ELBO gains less than this many nats per row from one tenth
        of ``max_iter`` to the next. None never stops.
    device, random_state, verbose : as in every estimator

    Attributes
    ----------
    elbo_ : float
        Evidence lower bound, nats, by fresh draws at the better of the two starts: on log p(y | X)
        at the noise and the prior's scales found.
    elbo_std_error_ : float
        Monte Carlo standard error of `elbo_`.
    elbo_curve_ : ndarray
        Training ELBO, averaged over blocks of steps.
    n_iter_ : int
        Steps made, from the start that was kept.
    relevance_ : ndarray of shape (n_features,)
        Scale of the weights from every column of ``X``; only under ``ARD()``.
    feature_importances_ : ndarray of shape (n_features,)
        Means of these scales, as shares of 1.
    posterior_ : LayerwisePosterior
        Posterior of the network's P weights, acting on standardised data:
        ``posterior_.sample(n, generator=...)``. The flat order is layer by layer, W (out x in,
        row-major), then b.
    noise_std_ : as in every regressor
    prior_scale_, prior_groups_, network_, symmetry_ : as in every network
    stop_reason_, x_mean_, x_scale_, y_mean_, y_scale_, device_, dtype_ : as in every estimator
    n_features_in_, feature_names_in_ : as in every estimator

    See Also
    --------
    SymmetrizedVIRegressor : Independent weights, averaged over exchanges of units.
    BayesianLinearRegressor : The exact last layer without hidden ones.

    Notes
    -----
    Training starts once concentrated and once at the prior, with a KL weight that rises over the
    first fifth of the steps, and keeps the higher ELBO. The hyperprior of learned scales, a Gamma
    law of precisions, takes part in training and in the choice of the start, not in `elbo_`. A step
    costs O(S N r^2), r = min(N, H + 1) for H units below the last layer and S =
    ``n_weight_samples``; training is in float64. Nothing is averaged over exchanges of units: the
    sampled layers below tell them apart.

    References
    ----------
    Kurle, Herbrich, Januschowski, Wang & Gasthaus (2022). On the detrimental effect of invariances
    in the likelihood for variational inference. https://arxiv.org/abs/2209.07157

    Ober & Aitchison (2021). Global inducing point variational posteriors for Bayesian neural
    networks and deep Gaussian processes.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import LayerwiseVIRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = LayerwiseVIRegressor((30,), "tanh", max_iter=50, tol=None, random_state=0)
    >>> mean, std = reg.fit(X, y).predict(X[:3], return_std=True)
    >>> mean.shape, bool((std > reg.noise_std_).all())
    ((3,), True)
    """

    hidden_posterior: str | int
    noise_std: str | float | Sequence[float]
    max_iter: int
    n_predict_samples: int
    tol: float | None
    _closing = ("elbo_", "elbo_std_error_")

    posterior_: LayerwisePosterior
    noise_std_: float | Array
    _predict_seed_: int

    _parameter_constraints: dict[str, list[Any]] = {
        **RUN_CONSTRAINTS,
        **NETWORK_CONSTRAINTS,
        **NOISE_CONSTRAINTS,
        **STEP_CONSTRAINTS,
        "hidden_posterior": [
            StrOptions({"mean_field", "global_inducing"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "likelihood": OBJECT_CONSTRAINTS["likelihood"],
        "standardize": STANDARDIZE,
    }

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        activation: str = "relu",
        *,
        hidden_posterior: str | int = "mean_field",
        prior: GivenPrior = "learn",
        likelihood: str | Likelihood = "auto",
        noise_std: str | float | Sequence[float] = "learn",
        max_iter: int = 2000,
        standardize: bool | str = True,
        optimizer: str | Optimizer = "adam",
        n_predict_samples: int = 200,
        tol: float | None = 1e-3,
        device: str = "auto",
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.hidden_posterior = hidden_posterior
        self.prior = prior
        self.likelihood = likelihood
        self.noise_std = noise_std
        self.max_iter = max_iter
        self.standardize = standardize
        self.optimizer = optimizer
        self.n_predict_samples = n_predict_samples
        self.tol = tol
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _default_likelihood(self, data: Training) -> Likelihood:
        return gaussian_noise(self.noise_std, data)

    def _networks_at_once(self, n_weights: int) -> float:
        """Draws of a step."""
        given = as_adam(self.optimizer, VariationalAdam).n_weight_samples
        return _N_DRAWS if isinstance(given, str) else float(given)

    def _learned_params(self) -> Array:
        return np.log(np.atleast_1d(self.noise_std_ / self.y_scale_))

    def _method(self) -> LayerwiseVI:
        adam = as_adam(self.optimizer, VariationalAdam)
        for name, value in {"init": adam.init, "n_starts": adam.n_starts}.items():
            if value != "auto":
                raise ValueError(f"{name}={value!r} is not for LayerwiseVIRegressor.")
        steps = Steps.of(adam, self.max_iter, self.tol, n_draws=_N_DRAWS)
        return LayerwiseVI(self.hidden_posterior, steps)

    def _predictor(self, like: Tensor) -> LayerwisePredictor:
        """Predictor made of draws of the hidden layers and the last layer given them."""
        n = self.n_predict_samples

        def make() -> LayerwisePredictor:
            # Drawn on the CPU whatever the device, so that predictions agree across them.
            generator, likelihood = generator_from(self._predict_seed_), self._observation.to(like)
            return self.posterior_.predictor(n, likelihood, generator=generator)

        return self._cached(f"{n} draws on {like.device}", make)
