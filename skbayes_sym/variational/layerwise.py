"""Layerwise variational inference of wide networks: training and scikit-learn estimator."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from math import cos, pi
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.messages import log_info, warn_unless_converged
from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    NOISE_CONSTRAINTS,
    OBJECT_CONSTRAINTS,
    PriorParameter,
    group_scales,
    model_symmetry,
    relative_relevance,
    require_mlp,
    scale_attributes,
)
from skbayes_sym.base.noise_levels import HalfTPrior
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
from skbayes_sym.base.rows import STANDARDIZE, Array, unwrap_single
from skbayes_sym.base.scikit_learn import Interval, StrOptions
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, StopReason
from skbayes_sym.numerics.random import Estimate, generator_from, mean_and_error, spawn_seeds
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.variational.hidden_layers import (
    HiddenPosterior,
    InducingHidden,
    MeanFieldHidden,
)
from skbayes_sym.variational.layerwise_posterior import (
    LayerwiseElbo,
    LayerwiseFamily,
    LayerwisePosterior,
    LayerwisePredictor,
    LayerwisePrior,
)
from skbayes_sym.variational.noise import assign_noise_levels, noise_level_factor


class LayerwiseAscent(NamedTuple):
    """Result of one start.

    Attributes
    ----------
    result : OptimiseResult
        Result of the optimiser.
    objective : float
        ELBO plus log priors of the scales and the noise, by which starts are compared.
    elbo : Estimate
        ELBO in nats, with targets in scaled units.
    """

    result: OptimiseResult
    objective: float
    elbo: Estimate


@dataclass(frozen=True, eq=False)
class LayerwiseFit:
    """Result of layerwise training, final or in the middle of training, in scaled units.

    Attributes
    ----------
    posterior : LayerwisePosterior
        Posterior of the weights.
    noise_std : ndarray of shape (T,)
        Standard deviations of the noise.
    prior : GroupScalePrior
        Prior at the learned scales.
    predict_seed : int
        Seed of the draws that predictions average.
    elbo : Estimate, optional
        ELBO in nats. None before training has ended.
    loss_curve : list of float, optional
        Mean loss per block of steps. None before training has ended.
    n_iter : int
        Number of steps.
    stop_reason : str
        Reason why training stopped.
    """

    posterior: LayerwisePosterior
    noise_std: Array
    prior: GroupScalePrior
    predict_seed: int
    elbo: Estimate | None = None
    loss_curve: list[float] | None = None
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Fitted attributes of the estimator by name."""
        assert data.y_scaling is not None
        noise = self.noise_std * data.y_scaling.scale
        attributes: dict[str, Any] = {
            "posterior_": self.posterior,
            "noise_std_": unwrap_single(noise),
            "_predict_seed_": self.predict_seed,
        }
        if self.prior.is_learned:
            attributes |= scale_attributes(self.prior)
        if self.elbo is not None:
            attributes["_noise_levels_"] = noise_level_factor(
                data, model, self.posterior.sample, self.predict_seed
            )
            attributes["elbo_"] = data.log_jacobian + self.elbo.value
            attributes["elbo_std_error_"] = self.elbo.standard_error
        if self.loss_curve is not None:
            attributes["elbo_curve_"] = data.log_jacobian - np.array(self.loss_curve)
        return attributes


class LayerwiseSeeds(NamedTuple):
    """One seed for each purpose."""

    start: int
    training: int
    predict: int
    bound: int


class LayerwiseProblem(NamedTuple):
    """Everything about a fit that training doesn't change.

    Attributes
    ----------
    family : LayerwiseFamily
        Variational family.
    prior : LayerwisePrior
        Prior scales, fixed or learned.
    rows : Data
        Training data in float64.
    seeds : LayerwiseSeeds
        Seeds by purpose.
    noise_prior : HalfTPrior or None
        Prior of a learned noise level of few rows.
    """

    family: LayerwiseFamily
    prior: LayerwisePrior
    rows: Data
    seeds: LayerwiseSeeds
    noise_prior: HalfTPrior | None

    def start(self, likelihood: Likelihood, *, at_prior: bool) -> Tensor:
        """Starting point: concentrated, or as wide as the prior."""
        rows = self.rows
        generator = generator_from(self.seeds.start)
        hidden = self.family.hidden.start(rows, at_prior=at_prior, generator=generator)
        log_noise = likelihood.noise_scale.log().to(rows.x)
        if likelihood.n_params:
            spread = torch.ones_like(log_noise)
            if len(rows.y) > 1:
                spread = rows.y.std(0)
            # Most fits end below a tenth of the targets' spread.
            log_noise = torch.where(spread > 0.0, 0.1 * spread, 1.0).log()
        return torch.cat([hidden, log_noise, self.prior.start.to(rows.x)]).clone()

    def evaluate(self, result: OptimiseResult) -> LayerwiseAscent:
        """Evaluate the bound of a start with 128 fresh draws."""
        generator = generator_from(self.seeds.bound, result.params.device)
        variational, hyper = self.prior.split(result.params)
        family = self.family.with_prior_scale(self.prior.layer_scales(hyper))
        # Draws in a block, by the larger of their hidden units at all rows and their weights.
        network = self.family.network
        n_elements = max(len(self.rows.x) * max(network.sizes), network.layout.n_params)
        size = n_rows_per_block(1 << 22, n_elements)
        values: list[Tensor] = []
        for start in range(0, 128, size):
            n_draws = min(size, 128 - start)
            log_evidence, kl = family.elbo_terms(
                variational, self.rows, n_draws, generator=generator
            )
            values.append(log_evidence - kl)
        elbo = mean_and_error(torch.cat(values))
        objective = elbo.value + float(self.prior.scales.log_hyperprior(hyper))
        if self.noise_prior is not None:
            log_noise = self.family.split(variational)[1]
            objective += float(self.noise_prior.log_density(log_noise).sum())
        return LayerwiseAscent(result, objective, elbo)

    def read_fit(
        self, params: Tensor, best: LayerwiseAscent | None = None, stopped: StopReason = "max_iter"
    ) -> LayerwiseFit:
        """Read a vector, in the middle of training (for callbacks) or at its end.

        Parameters
        ----------
        params : Tensor
            Vector of the optimiser.
        best : LayerwiseAscent, optional
            Selected start. None in the middle of training.
        stopped : str
            Reason why training stopped.

        Returns
        -------
        LayerwiseFit
            Fit with arrays in place of tensors.
        """
        variational, hyper = (t.cpu() for t in self.prior.split(params.detach()))
        scales = [scale.numpy() for scale in self.prior.layer_scales(hyper)]
        arrays = [t.cpu().numpy().copy() for t in (variational, *self.rows)]
        posterior = LayerwisePosterior(self.family.with_prior_scale(scales), *arrays)
        noise_std = self.family.split(variational)[1].exp().numpy()
        prior = self.prior.scales
        if prior.is_learned:
            prior = replace(prior, hyper=hyper.clone())
        fit = LayerwiseFit(posterior, noise_std, prior, self.seeds.predict)
        if best is None:
            return fit
        return replace(
            fit,
            elbo=best.elbo,
            loss_curve=best.result.loss_curve,
            n_iter=best.result.n_iter,
            stop_reason=stopped,
        )


RandomState = int | np.random.RandomState | None

_EARLY_STOPS = {"callback", "interrupted"}  # reasons to skip the second start


@dataclass(frozen=True, eq=False)
class LayerwiseVI:
    """Variational inference with layers conditional on the layers sampled before them.

    Training starts once concentrated and once at the prior, takes ``max_iter`` steps from each, and
    keeps the result with the higher bound.

    Parameters
    ----------
    hidden_posterior : "mean_field", "global_inducing" or int
        Posteriors of the hidden layers. An int is the number of inducing points.
    steps : StepConfig
        Number of steps, step sizes, draws and tolerance.
    """

    requirements: ClassVar[Requirements] = Requirements(
        NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR
    )

    hidden_posterior: str | int
    steps: StepConfig

    def fit(self, data: Training, model: Model, progress: FitProgress) -> LayerwiseFit:
        """Train both starts and return the one with the better bound."""
        batch_size = self.steps.batch_size
        if not isinstance(batch_size, str) and batch_size < data.n_rows:
            raise ValueError(
                f"batch_size={batch_size}, but the last layer is integrated out given all "
                f"{data.n_rows} distinct rows at every step. Use batch_size='auto'."
            )
        prior = LayerwisePrior(require_mlp(model.network), group_scales(model.prior))
        family = self._family(prior, data.n_rows)
        seeds = LayerwiseSeeds(*spawn_seeds(data.seed, len(LayerwiseSeeds._fields)))
        noise_prior = data.noise_prior if model.likelihood.n_params else None
        problem = LayerwiseProblem(family, prior, data.double_data, seeds, noise_prior)
        tol = self.steps.absolute_tol(data.total_weight)
        # The step size falls as half a cosine.
        schedule = Schedule(self.steps.max_iter, tol, lambda t: 0.5 * (1.0 + cos(pi * t)))
        groups = self._param_groups(problem, model, data)

        # Which start ends higher depends on the data, so both are tried.
        ascents: list[LayerwiseAscent] = []
        with torch.no_grad():
            starts = [problem.start(model.likelihood, at_prior=wide) for wide in (False, True)]
            params = starts[0]  # optimised in place
            progress.begin(2 * n_blocks(self.steps.max_iter), lambda: problem.read_fit(params))
            for params in starts:
                objective = LayerwiseElbo(
                    family,
                    prior,
                    problem.rows,
                    params,
                    n_draws=self.steps.n_draws(2),
                    warm_up=int(0.2 * self.steps.max_iter),
                    noise_prior=noise_prior,
                    generator=generator_from(seeds.training, data.device),
                )
                result = progress.minimise(
                    objective,
                    groups,
                    schedule,
                    report=lambda loss: ("training ELBO", data.log_jacobian - loss),
                )
                ascents.append(problem.evaluate(result))
                if result.stopped in _EARLY_STOPS:
                    break

            best = max(ascents, key=lambda ascent: ascent.objective)
            last_stop = ascents[-1].result.stopped
            if last_stop in _EARLY_STOPS:
                stopped = last_stop
            else:
                stopped = best.result.stopped
            fit = problem.read_fit(best.result.params, best, stopped)
        progress.end(fit)

        elbos = (data.log_jacobian + ascent.elbo.value for ascent in ascents)
        elbo_text = ", ".join(f"{elbo:.6g}" for elbo in elbos)
        log_info("ELBO by start: %s; stopped: %s", elbo_text, fit.stop_reason)
        warn_unless_converged(best.result, self.steps.tol, data.total_weight)
        return fit

    def _family(self, prior: LayerwisePrior, n_rows: int) -> LayerwiseFamily:
        """Variational family under the initial prior scales, with at most one point per row."""
        network = prior.network
        hidden_posterior = self.hidden_posterior
        *scales, last_scale = prior.layer_scales(prior.start)
        hidden: HiddenPosterior = MeanFieldHidden(network, tuple(scales))
        if hidden_posterior != "mean_field":
            if isinstance(hidden_posterior, str):
                n_inducing = 100
            else:
                n_inducing = int(hidden_posterior)
            hidden = InducingHidden(network, tuple(scales), min(n_inducing, n_rows))
        return LayerwiseFamily(network, hidden, last_scale)

    def _param_groups(
        self, problem: LayerwiseProblem, model: Model, data: Training
    ) -> list[ParamGroup]:
        """Step sizes and ranges of all parameters; log variances take larger steps."""
        # A tenth of this step size loses some 100 nats on small data.
        rate = self.steps.rate(3e-2)
        family = problem.family
        param_range = (-40.0, 40.0)
        groups = []
        for name, index in family.hidden.layout.slices.items():
            is_variance = name.startswith("log_variance")
            if is_variance:
                factor = self.steps.log_variance_rate
            else:
                factor = 1.0
            groups.append(ParamGroup(index, rate * factor, *param_range))
        n_hidden = family.hidden.layout.n_params
        n_variational = n_hidden + family.network.n_outputs
        if model.likelihood.n_params:
            noise_range = data.log_noise_range
            groups.append(ParamGroup(slice(n_hidden, n_variational), rate, *noise_range))
        if len(problem.prior.start):
            groups.append(ParamGroup(slice(n_variational, None), rate, *param_range))
        return groups


@dataclass(eq=False, repr=False)
class LayerwiseVIRegressor(BayesianRegressorMixin, BayesianEstimator):
    r"""Bayesian neural network regression with posteriors that are conditional layer by layer.

    Mean-field posteriors of wide networks collapse to the prior. Here the posterior of a layer is
    conditional on the sampled layers below it,

    .. math:: q(W_1, \ldots, W_L) = q(W_1) \, q(W_2 \mid W_1) \cdots q(W_L \mid W_1, \ldots,
              W_{L-1}),

    and the last layer is integrated out exactly given the sampled ones. Its posterior is therefore
    invariant to translations in the null space of the features (section 5 of Kurle et al., in the
    conditional form, which is a bound). Every step uses all rows.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(50,)
        Widths of the hidden layers; ``()`` is a linear model.
    activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}, default="relu"
        Activation of the hidden layers.
    hidden_posterior : {"mean_field", "global_inducing"} or int, default="mean_field"
        "mean_field" has independent normal weights in the hidden layers. "global_inducing" has a
        site of the posterior at each of 100 inducing points, which are propagated through the
        sampled layers below, so that layers are correlated. An int sets the number of points.
    prior : "learn", float, sequence of float or Prior, default="learn"
        Prior of the weights and biases, in standardised units. A number is the standard deviation
        of independent normals. A sequence has one number per layer or per parameter. The prior must
        be the same for all units of a layer. "learn" is ``LayerScales()``, which learns one scale
        for each layer's weights and one for each layer's biases. ``ARD()`` also learns one per
        column of ``X``, see `relevance_`.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs. "auto" is normal noise with standard
        deviation ``noise_std``. Other likelihoods aren't supported, because the last layer is
        integrated out in closed form.
    noise_std : "learn", float or sequence of float, default="learn"
        Standard deviation of the observation noise in the units of ``y``: one number, or one per
        target. "learn" estimates it. Predictions from up to 30 rows then average over its optimal
        variational factor under the half-t prior of `~skbayes_sym.base.noise_levels`.
    max_iter : int, default=2000
        Maximum number of optimiser steps for each of the two starts.
    standardize : bool or {"X", "y"}, default=True
        Whether to standardise the columns of ``X`` and ``y`` before the fit. "X" and "y"
        standardise only one of them. Predictions and densities are in the units of ``y`` in any
        case.
    optimizer : "adam" or Adam, default="adam"
        Adam with the default settings, or an object, such as
        `~skbayes_sym.base.optimizers.VariationalAdam`, which sets the step size and the number of
        draws per step.
    n_predict_samples : int, default=200
        Number of draws of the hidden layers that predictions average. All rows share the draws.
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
        Evidence lower bound of the selected start in nats, by fresh draws. It bounds log p(y | X)
        at the learned noise and prior scales.
    elbo_std_error_ : float
        Monte Carlo standard error of `elbo_`.
    elbo_curve_ : ndarray
        Training ELBO, averaged over blocks of steps.
    n_iter_ : int
        Number of steps of the selected start.
    relevance_ : ndarray of shape (n_features,)
        Prior scale of the weights of each column of ``X``. Exists only with ``ARD()``.
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
    SymmetrizedVIRegressor : Mean-field posterior, averaged over exchanges of hidden units.
    BayesianLinearRegressor : The exact posterior of a linear model, which is the last layer alone.

    Notes
    -----
    Training starts once concentrated and once at the prior. The weight of the KL rises over the
    first fifth of the steps. The start with the higher ELBO is kept. The hyperprior of learned
    scales, a Gamma distribution of precisions, contributes to training and to the choice of the
    start but not to `elbo_`. So does, with up to 30 rows, the half-t prior of the noise level,
    because the ELBO of a network that interpolates them doesn't keep the noise from 0. A step costs
    O(S N r^2), where S is ``n_weight_samples`` and r = min(N, H + 1) for H units below the last
    layer. Training is in float64. The posterior isn't averaged over exchanges of units, because the
    sampled layers below distinguish them.

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
    network = "mlp"

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

    feature_importances_ = property(relative_relevance)

    _noise_levels_: ClassVar[Array | None] = None

    def _fitted_noise_std(self) -> Array:
        """Noise level in the units of ``y``, (T,), or of every draw (S, 1, T) for few rows."""
        levels = self._noise_levels_
        if levels is None:
            return super()._fitted_noise_std()
        return assign_noise_levels(levels, self.n_predict_samples)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """Subgroup of the network's symmetry group that leaves the prior invariant."""
        check_is_fitted(self)
        return model_symmetry(self.network_, self._make_prior(self.network_))

    def _n_parallel_networks(self, _n_weights: int) -> float:
        """Number of draws per step."""
        n_weight_samples = resolve_adam(self.optimizer, VariationalAdam).n_weight_samples
        if isinstance(n_weight_samples, str):
            return 2.0
        return float(n_weight_samples)

    def _make_method(self) -> LayerwiseVI:
        """Constructor parameters as a training method."""
        adam = resolve_adam(self.optimizer, VariationalAdam)
        refused = {"init": "auto", "n_starts": "auto", "warm_start": False}
        for name, default in refused.items():
            if (value := adam.get_params()[name]) != default:
                raise ValueError(f"{name}={value!r} is not for LayerwiseVIRegressor.")
        steps = StepConfig.from_optimizer(adam, self.max_iter, self.tol)
        return LayerwiseVI(self.hidden_posterior, steps)

    def predictor(self, like: Tensor) -> LayerwisePredictor:
        """Predictor that averages over draws of the hidden layers."""
        n = self.n_predict_samples

        def make_predictor() -> LayerwisePredictor:
            # Weights are drawn on the CPU, so that predictions agree across devices.
            generator = generator_from(self._predict_seed_)
            likelihood = self.fitted_likelihood.to(like)
            return self.posterior_.predictor(n, likelihood, generator=generator)

        return self._cached(f"{n} draws on {like.device}", make_predictor)
