"""What the Laplace and LILA estimators share: constructor to model and method, and predictions."""

from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import refuse
from skbayes_sym.estimators._fit.memory import weights_bytes
from skbayes_sym.estimators._fit.model import NETWORK_CONSTRAINTS, gaussian_noise, layer_sizes
from skbayes_sym.estimators._fit.rows import STANDARDIZE, Array
from skbayes_sym.estimators._fit.run import RUN_CONSTRAINTS
from skbayes_sym.estimators._fit.scikit_learn import Interval, StrOptions
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.networks import chosen_network, layer_prior, recording
from skbayes_sym.estimators.laplace.predict import (
    N_OUTPUT_DRAWS,
    Transformations,
    linearised,
    moderated,
    output_draws,
    output_nodes,
    predict_seeds,
)
from skbayes_sym.estimators.networks import OBJECT_CONSTRAINTS, NetworkEstimator
from skbayes_sym.estimators.predictors import (
    BayesianClassifierMixin,
    BayesianRegressorMixin,
    SampledOutputs,
    noise_stream,
)
from skbayes_sym.inference.laplace.mode_mixture import ModeMixture
from skbayes_sym.inference.laplace.posterior import LaplacePosterior, LinearisedNetwork
from skbayes_sym.inference.laplace.precision import KroneckerPrecision
from skbayes_sym.models.augmentations.base import Identity, ImageShape
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.recording import RecordingNetwork
from skbayes_sym.models.predictive import NormalMixture, Predictive, TargetPredictive
from skbayes_sym.models.priors import Prior
from skbayes_sym.numerics.random import generator_from

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    "likelihood": OBJECT_CONSTRAINTS["likelihood"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "random_state": ["random_state"],
}
REGRESSOR_CONSTRAINTS: dict[str, list[Any]] = {
    "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither"), "array-like"],
    "standardize": STANDARDIZE,
}
CLASSIFIER_CONSTRAINTS: dict[str, list[Any]] = {
    "predictive": [
        StrOptions({"sampling", "probit", "plugin"}),
        Interval(Integral, 1, None, closed="left"),
    ],
}


N_PREDICT_DRAWS = 200  # predictive="sampling"


class LaplaceEstimator(NetworkEstimator):
    """A network with a normal posterior around its mode."""

    optimizer: Any

    _closing = ("log_evidence_",)

    network_: RecordingNetwork
    posterior_: LaplacePosterior | ModeMixture
    prior_scale_: Array
    log_evidence_: float
    log_evidence_curve_: Array
    _predict_seed_: int

    def _network(self, data: Training, n_outputs: int) -> RecordingNetwork:
        shape = self._image_shape(data.n_features)
        if isinstance(self.network, str) and self.network == "mlp":
            sizes = self._sizes(data, n_outputs)
            return MLP(data.n_features, sizes, n_outputs, ACTIVATIONS[self.activation])
        names = ("hidden_layer_sizes", "activation")
        refuse(self, names, "network brings its own layers", "network='mlp'")
        return chosen_network(self.network, data.n_features, shape, n_outputs)

    def _sizes(self, data: Training, n_outputs: int) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return layer_sizes(self.hidden_layer_sizes)

    def _prior(self, network: Network) -> Prior:
        return layer_prior(self.prior, recording(network))

    def _image_shape(self, n_features: int) -> ImageShape | None:
        return None

    def _linearised(self, like: Tensor) -> LinearisedNetwork:
        """The fitted model on the device of ``like``, made once."""

        transformations = self._transformations(like)

        def make() -> LinearisedNetwork:
            n_layers, seed = len(self.prior_scale_), self._predict_seeds()[0]
            posterior = cast(LaplacePosterior, self.posterior_)
            return linearised(self.network_, posterior, n_layers, transformations, seed)

        name = f"laplace on {like.device}, averaged over {transformations.n}"
        return cast(LinearisedNetwork, self._cached(name, make))

    def _predict_seeds(self) -> tuple[int, int]:
        return predict_seeds(self._predict_seed_)

    def _transformations(self, like: Tensor) -> Transformations:
        return Transformations(Identity(), like.new_zeros(0))


class LaplaceRegression(BayesianRegressorMixin, LaplaceEstimator):
    """Numbers: normal noise in closed form, other likelihoods by averages over the outputs."""

    noise_std: Any
    noise_std_: Any

    def _default_likelihood(self, data: Training) -> Likelihood:
        return gaussian_noise(self.noise_std, data)

    def _learned_likelihood(self, like: Tensor) -> Likelihood:
        """The one that was given, in scaled units."""
        given = cast(Likelihood, self._given_likelihood)
        return given.at(torch.as_tensor(self._likelihood_params_)).to(like)

    def _predictive(self, x: Tensor) -> TargetPredictive:
        law = self._linearised(x).outputs(x)
        if self._given_likelihood is None:  # one normal a row
            variance = law.covariance.diagonal(dim1=-2, dim2=-1)
            noise = torch.as_tensor(self.noise_std_ / self.y_scale_).to(x)
            return NormalMixture(
                law.mean.unsqueeze(0), variance.unsqueeze(0), noise.square(),
                covariance=law.covariance.unsqueeze(0),
            )  # fmt: skip
        if law.mean.shape[-1] == 1:
            outputs, weights = output_nodes(law)
        else:
            outputs, weights = output_draws(law, N_OUTPUT_DRAWS, self._predict_seeds()[1]), None
        mixture = self._learned_likelihood(x).predictive(outputs, weights)
        return cast(TargetPredictive, mixture)

    def _output_covariance(self, x: Tensor) -> Tensor:
        if self._given_likelihood is not None:
            return super()._output_covariance(x)
        return self._linearised(x).covariance(x)

    def _function_bytes(self, n_rows: int) -> int:
        if isinstance(getattr(self.posterior_, "precision", None), KroneckerPrecision):
            return 0  # one draw's weights at a time
        return weights_bytes(self.network_.layout.n_params)

    def _sample_outputs(self, x: Tensor, n: int, generator: torch.Generator) -> SampledOutputs:
        functions = self._linearised(x).functions(x, n, generator=generator)
        return SampledOutputs(functions, np.atleast_1d(self.noise_std_))

    def _sample_targets(self, blocks: list[Tensor], n: int, seed: int) -> Array:
        if self._given_likelihood is None:
            return super()._sample_targets(blocks, n, seed)
        network = self._linearised(blocks[0])
        parts = [network.functions(x, n, generator=generator_from(seed)) for x in blocks]
        outputs, rng = torch.cat(parts, 1), noise_stream(seed)
        likelihood = self._learned_likelihood(outputs)
        unit = [torch.as_tensor(a).to(outputs) for a in (self.y_mean_, self.y_scale_)]
        laws = (cast(TargetPredictive, likelihood.predictive(f.unsqueeze(0))) for f in outputs)
        draws = [law.in_units(*unit).sample(1, rng).cpu().double().numpy() for law in laws]
        return np.concatenate(draws)


class LaplaceClassification(BayesianClassifierMixin, LaplaceEstimator):
    """Classes, by averages over the linearised posterior."""

    predictive: str | int
    _variance_scale: float = 1.0  # of the outputs

    def _predictive(self, x: Tensor) -> Predictive:
        network, scale = self._linearised(x), self._variance_scale
        if self.predictive == "plugin" or scale == 0.0:
            logits = network.mean(x).unsqueeze(0)
        else:
            law = network.outputs(x)
            law = law._replace(covariance=scale * law.covariance)
            if self.predictive == "probit":
                logits = moderated(law).unsqueeze(0)
            else:
                n = N_PREDICT_DRAWS if isinstance(self.predictive, str) else self.predictive
                logits = output_draws(law, n, self._predict_seeds()[1])
        likelihood = self._given_likelihood or Categorical()
        return likelihood.to(x).predictive(logits)
