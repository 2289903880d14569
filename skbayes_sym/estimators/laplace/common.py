"""Base of the Laplace and LILA estimators: constructor to model and method, and predictions."""

from numbers import Integral, Real
from typing import Any, cast

from torch import Tensor

from skbayes_sym.estimators._fit.building import NETWORK_CONSTRAINTS, gaussian_noise, layer_sizes
from skbayes_sym.estimators._fit.compatibility import refuse
from skbayes_sym.estimators._fit.rows import STANDARDIZE, Array
from skbayes_sym.estimators._fit.run import RUN_CONSTRAINTS
from skbayes_sym.estimators._fit.scikit_learn import Interval, StrOptions
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.classifier import BayesianClassifierMixin
from skbayes_sym.estimators.laplace.architectures import chosen_network, layer_prior, recording
from skbayes_sym.estimators.laplace.predict import Transformations
from skbayes_sym.estimators.networks import OBJECT_CONSTRAINTS, NetworkEstimator
from skbayes_sym.estimators.regressor import BayesianRegressorMixin
from skbayes_sym.inference.laplace.laplace_posterior import LaplacePosterior, LinearisedNetwork
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.inference.laplace.mode_mixture import ModeMixture
from skbayes_sym.inference.laplace.predictors import LinearisedLabels, LinearisedPredictor
from skbayes_sym.inference.predictor import Predictor
from skbayes_sym.models.augmentations.augmentation import Identity, ImageShape
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.models.networks.network import Network, RecordingNetwork
from skbayes_sym.models.priors import Prior
from skbayes_sym.numerics.random import spawn_seeds

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
    ]
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
            augmentation, eta, _ = transformations
            noise = transformations.noise(self._predict_seed_).to(eta)
            model = AveragedNetwork(
                self.network_, augmentation, Categorical(),  # not asked for anything here
                len(noise), len(self.prior_scale_),
            )  # fmt: skip
            posterior = cast(LaplacePosterior, self.posterior_)
            return LinearisedNetwork(model, posterior.tensors(eta), eta, noise)

        name = f"laplace on {like.device}, averaged over {transformations.n}"
        return cast(LinearisedNetwork, self._cached(name, make))

    @property
    def _draws_seed(self) -> int:
        """Seed of draws of the outputs."""
        return spawn_seeds(self._predict_seed_, 2)[1]

    def _transformations(self, like: Tensor) -> Transformations:
        return Transformations(Identity(), like.new_zeros(0))


class LaplaceRegression(BayesianRegressorMixin, LaplaceEstimator):
    """Numbers: normal noise in closed form, other likelihoods by averages over the outputs."""

    noise_std: Any
    noise_std_: Any

    def _default_likelihood(self, data: Training) -> Likelihood:
        return gaussian_noise(self.noise_std, data)

    def _predictor(self, like: Tensor) -> Predictor:
        network = self._linearised(like)
        return LinearisedPredictor(network, self._observation.to(like), self._draws_seed)


class LaplaceClassification(BayesianClassifierMixin, LaplaceEstimator):
    """Classes, by averages over the linearised posterior."""

    predictive: str | int

    def _predictor(self, like: Tensor) -> Predictor:
        return LinearisedLabels(
            self._linearised(like), self._observation.to(like), self._draws_seed,
            self._integral,
            N_PREDICT_DRAWS if isinstance(self.predictive, str) else self.predictive,
            self._outputs_variance_scale(),
        )  # fmt: skip

    @property
    def _integral(self) -> str:
        return self.predictive if isinstance(self.predictive, str) else "sampling"

    def _outputs_variance_scale(self) -> float:
        return 1.0
