"""Layerwise variational inference of wide networks as a scikit-learn estimator."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from math import cos, pi
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.log import log_info
from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    NOISE_CONSTRAINTS,
    PriorParameter,
    group_scales,
    require_mlp,
    scale_attributes,
)
from skbayes_sym.base.network_estimator import OBJECT_CONSTRAINTS, NetworkEstimator
from skbayes_sym.base.optimizers import Optimizer, VariationalAdam, resolve_adam
from skbayes_sym.base.progress import (
    RUN_CONSTRAINTS,
    STEP_CONSTRAINTS,
    FitProgress,
    Schedule,
    StepConfig,
    n_blocks,
)
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.requirements import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED_PRIOR,
    Requirements,
)
from skbayes_sym.base.rows import STANDARDIZE, Array
from skbayes_sym.base.scikit_learn import Interval, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.base.warnings import warn_unless_converged
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, StopReason
from skbayes_sym.numerics.random import Estimate, generator_from, mean_and_error, spawn_seeds
from skbayes_sym.variational.hidden_layers import (
    HiddenPosterior,
    InducingHidden,
    MeanFieldHidden,
)
from skbayes_sym.variational.layerwise_posterior import (
    Layerwise,
    LayerwiseElbo,
    LayerwisePosterior,
    LayerwisePredictor,
    LayerwisePrior,
)


class Climb(NamedTuple):
    """Result of one start."""

    result: OptimiseResult
    reached: float  # the ELBO and the hyperprior
    elbo: Estimate  # scaled units


@dataclass(frozen=True, eq=False)
class LayerwiseFit:
    """Result of layerwise training, final or so far, in scaled units."""

    posterior: LayerwisePosterior
    noise_std: Array  # (T,)
    prior: GroupScalePrior  # at the scales found
    predict_seed: int
    elbo: Estimate | None = None  # once training has ended
    loss_curve: list[float] | None = None
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        noise = self.noise_std * data.y_scaling.scale
        attributes: dict[str, Any] = {
            "posterior_": self.posterior,
            "noise_std_": float(noise[0]) if len(noise) == 1 else noise,
            "_predict_seed_": self.predict_seed,
        }
        if self.prior.is_learned:
            attributes |= scale_attributes(self.prior)
        if self.elbo is not None:
            attributes["elbo_"] = data.log_jacobian + self.elbo.value
            attributes["elbo_std_error_"] = self.elbo.standard_error
        if self.loss_curve is not None:
            attributes["elbo_curve_"] = data.log_jacobian - np.array(self.loss_curve)
        return attributes


class LayerwiseSeeds(NamedTuple):
    """Seeds, one for each purpose."""

    start: int
    training: int
    predict: int
    bound: int


class Setting(NamedTuple):
    """Constants of a fit: forms of posterior and prior, rows in float64, seeds."""

    posterior: Layerwise
    prior: LayerwisePrior
    rows: Data
    seeds: LayerwiseSeeds

    def start(self, likelihood: Likelihood, *, at_prior: bool) -> Tensor:
        """Starting point: concentrated, or as wide as the prior."""
        posterior = self.posterior
        rows = self.rows
        generator = generator_from(self.seeds.start)
        hidden = posterior.hidden.start(rows, at_prior=at_prior, generator=generator)
        log_noise = likelihood.noise_scale.log().to(rows.x)
        if likelihood.n_params:
            spread = rows.y.std(0) if len(rows.y) > 1 else torch.ones_like(log_noise)
            # Most fits end below a tenth.
            log_noise = torch.where(spread > 0.0, 0.1 * spread, 1.0).log()
        return torch.cat([hidden, log_noise, self.prior.start.to(rows.x)]).clone()

    def climb(self, result: OptimiseResult) -> Climb:
        """Bound that a start has reached, by 128 fresh draws."""
        generator = generator_from(self.seeds.bound, result.params.device)
        variational, hyper = self.prior.split(result.params)
        posterior = self.posterior.under(self.prior.layer_scales(hyper))
        widest = max(self.posterior.network.sizes)
        size = n_rows_per_block(1 << 22, len(self.rows.x) * widest)  # draws of a block, by features
        values: list[Tensor] = []
        for start in range(0, 128, size):
            n_draws = min(size, 128 - start)
            likelihood, kl = posterior.terms(variational, self.rows, n_draws, generator=generator)
            values.append(likelihood - kl)
        elbo = mean_and_error(torch.cat(values))
        return Climb(result, elbo.value + float(self.prior.scales.log_hyperprior(hyper)), elbo)

    def found(
        self, params: Tensor, best: Climb | None = None, stopped: StopReason = "max_iter"
    ) -> LayerwiseFit:
        """Result as arrays, in the middle of training (for callbacks) or at its end."""
        variational, hyper = (t.cpu() for t in self.prior.split(params.detach()))
        scales = [scale.numpy() for scale in self.prior.layer_scales(hyper)]
        arrays = [t.cpu().numpy().copy() for t in (variational, *self.rows)]
        kept = LayerwisePosterior(self.posterior.under(scales), *arrays)
        noise_std = self.posterior.split(variational)[1].exp().numpy()
        prior = self.prior.scales
        prior = replace(prior, hyper=hyper.clone()) if prior.is_learned else prior
        fitted = LayerwiseFit(kept, noise_std, prior, self.seeds.predict)
        if best is None:
            return fitted
        result = best.result
        return replace(
            fitted, elbo=best.elbo, loss_curve=result.loss_curve, n_iter=result.n_iter,
            stop_reason=stopped,
        )  # fmt: skip


RandomState = int | np.random.RandomState | None

_ENDS_THE_FIT = {"callback", "interrupted"}  # the other start isn't tried then


@dataclass(frozen=True, eq=False)
class LayerwiseVI:
    """Layers conditional on the ones sampled before (see `skbayes_sym.variational`).

    Training starts once concentrated and once at the prior, ``max_iter`` steps each, and keeps
    the higher bound.
    """

    requirements: ClassVar[Requirements] = Requirements(
        NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR
    )

    hidden_posterior: str | int  # "mean_field", "global_inducing", or how many inducing points
    steps: StepConfig

    def fit(self, data: Training, model: Model, progress: FitProgress) -> LayerwiseFit:
        asked = self.steps.batch_size
        if not isinstance(asked, str) and asked < data.n_rows:
            raise ValueError(
                f"batch_size={asked}, but the last layer is integrated out given all "
                f"{data.n_rows} distinct rows at every step. Use batch_size='auto'."
            )
        prior = LayerwisePrior(require_mlp(model.network), group_scales(model.prior))
        posterior = self._posterior(prior, data.n_rows)
        seeds = LayerwiseSeeds(*spawn_seeds(data.seed, len(LayerwiseSeeds._fields)))
        setting = Setting(posterior, prior, data.double_data, seeds)
        climbs: list[Climb] = []
        tol = self.steps.absolute_tol(data.total_weight)
        with torch.no_grad():
            starts = [setting.start(model.likelihood, at_prior=wide) for wide in (False, True)]
            params = starts[0]  # optimised in place
            progress.begin(2 * n_blocks(self.steps.max_iter), lambda: setting.found(params))
            for params in starts:
                objective = LayerwiseElbo(
                    posterior, prior, setting.rows, params, n_draws=self.steps.n_draws(2),
                    warm_up=int(0.2 * self.steps.max_iter),
                    generator=generator_from(seeds.training, data.device),
                )  # fmt: skip
                groups = self._groups(setting, model, data)
                # The rate falls as half a cosine.
                schedule = Schedule(self.steps.max_iter, tol, lambda t: 0.5 * (1.0 + cos(pi * t)))
                result = progress.minimise(
                    objective, groups, schedule,
                    report=lambda loss: ("training ELBO", data.log_jacobian - loss),
                )  # fmt: skip
                climbs.append(setting.climb(result))
                if climbs[-1].result.stopped in _ENDS_THE_FIT:
                    break
            best = max(climbs, key=lambda climb: climb.reached)
            last = climbs[-1].result.stopped
            stopped = last if last in _ENDS_THE_FIT else best.result.stopped
            fitted = setting.found(best.result.params, best, stopped)
        progress.end(fitted)
        elbos = (data.log_jacobian + climb.elbo.value for climb in climbs)
        by_start = ", ".join(f"{elbo:.6g}" for elbo in elbos)
        log_info("ELBO by start: %s; stopped: %s", by_start, fitted.stop_reason)
        warn_unless_converged(best.result, self.steps.tol, data.total_weight)
        return fitted

    def _posterior(self, prior: LayerwisePrior, n_rows: int) -> Layerwise:
        """The posterior of a network's layers, with at most one inducing point per row.

        Under the scales at which a prior that learns them starts.
        """
        network = prior.network
        hidden_posterior = self.hidden_posterior
        *scales, last_scale = prior.layer_scales(prior.start)
        hidden: HiddenPosterior = MeanFieldHidden(network, tuple(scales))
        if hidden_posterior != "mean_field":
            m = min(100 if isinstance(hidden_posterior, str) else hidden_posterior, n_rows)
            hidden = InducingHidden(network, tuple(scales), m)
        return Layerwise(network, hidden, last_scale)

    def _groups(self, setting: Setting, model: Model, data: Training) -> list[ParamGroup]:
        """Groups, one a named parameter: variances have further to travel than the others."""
        # A tenth of the rate loses some 100 nats on small data.
        rate = self.steps.rate(3e-2)
        posterior = setting.posterior
        wide = (-40.0, 40.0)
        groups = []
        for name, where in posterior.hidden.layout.slices.items():
            is_variance = name.startswith("log_variance")
            factor = self.steps.log_variance_rate if is_variance else 1.0
            groups.append(ParamGroup(where, rate * factor, *wide))
        start = posterior.hidden.layout.n_params
        after = start + posterior.network.n_outputs
        if model.likelihood.n_params:
            groups.append(ParamGroup(slice(start, after), rate, *data.log_noise_range))
        if len(setting.prior.start):
            groups.append(ParamGroup(slice(after, None), rate, *wide))
        return groups


@dataclass(eq=False, repr=False)
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
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Activation of the hidden layers.
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
    noise_std : "learn", float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``: one number, or one per
        target. "learn" estimates it.
    max_iter : int, default=2000
        Maximum number of optimiser steps, for each of two starts.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    optimizer : "adam" or Adam, default="adam"
        `~skbayes_sym.base.optimizers.VariationalAdam` says the step size, rows and draws per
        step, and where training starts.
    n_predict_samples : int, default=200
        Draws of the hidden layers that predictions average; the same ones for every row.
    tol : float or None, default=0.001
        Training stops when the training ELBO gains less than this many nats per row from one tenth
        of ``max_iter`` to the next. None never stops.
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
    elbo_ : float
        Evidence lower bound, nats, by fresh draws at the better of the two starts: on log p(y | X)
        at the noise and the prior's scales found.
    elbo_std_error_ : float
        Monte Carlo standard error of `elbo_`.
    elbo_curve_ : ndarray
        Training ELBO, averaged over blocks of steps.
    n_iter_ : int
        Number of steps, for the selected start.
    relevance_ : ndarray of shape (n_features,)
        Prior scale of the weights of each column of ``X``; only under ``ARD()``.
    posterior_ : LayerwisePosterior
        Posterior of the network's P weights, acting on standardised data:
        ``posterior_.sample(n, generator=...)``. The flat order is layer by layer, W (out x in,
        row-major), then b.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise in the units of ``y``, or the scale parameter of another
        likelihood, if it has one.
    feature_importances_ : ndarray of shape (n_features,)
        Mean of `relevance_` over modes, scaled to a sum of 1.
    prior_scale_ : ndarray of shape (n_groups,)
        Learned prior standard deviation of each group of weights.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups of weights that share a prior scale.
    network_ : MLP
        Architecture, with ``forward(theta, x)`` and ``symmetry()``.
    symmetry_ : SymmetryGroup
        Subgroup of the network's symmetry group that leaves the prior invariant.
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

    hidden_layer_sizes: int | Sequence[int] = (50,)
    activation: str = "relu"
    _: KW_ONLY
    hidden_posterior: str | int = "mean_field"
    prior: PriorParameter = "learn"
    likelihood: str | Likelihood = "auto"
    noise_std: str | float | Sequence[float] = "learn"
    max_iter: int = 2000
    standardize: bool | str = True
    optimizer: str | Optimizer = "adam"
    n_predict_samples: int = 200
    tol: float | None = 1e-3
    device: str = "auto"
    random_state: RandomState = None
    verbose: int = 0

    _final_attributes = ("elbo_", "elbo_std_error_")

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
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

    def _n_parallel_networks(self, n_weights: int) -> float:
        """Draws of a step."""
        n_weight_samples = resolve_adam(self.optimizer, VariationalAdam).n_weight_samples
        return 2.0 if isinstance(n_weight_samples, str) else float(n_weight_samples)

    def _make_method(self) -> LayerwiseVI:
        adam = resolve_adam(self.optimizer, VariationalAdam)
        refused = {"init": "auto", "n_starts": "auto", "warm_start": False}
        for name, default in refused.items():
            if (value := adam.get_params()[name]) != default:
                raise ValueError(f"{name}={value!r} is not for LayerwiseVIRegressor.")
        steps = StepConfig.from_optimizer(adam, self.max_iter, self.tol)
        return LayerwiseVI(self.hidden_posterior, steps)

    def predictor(self, like: Tensor) -> LayerwisePredictor:
        """Predictor made of draws of the hidden layers and the last layer given them."""
        n = self.n_predict_samples

        def make() -> LayerwisePredictor:
            # Drawn on the CPU whatever the device, so that predictions agree across them.
            generator = generator_from(self._predict_seed_)
            likelihood = self.fitted_likelihood.to(like)
            return self.posterior_.predictor(n, likelihood, generator=generator)

        return self._cached(f"{n} draws on {like.device}", make)
