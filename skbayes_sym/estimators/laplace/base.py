"""What the Laplace and LILA estimators share: constructor to model and method, and predictions."""

from numbers import Integral, Real
from typing import Any, cast

from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import refuse
from skbayes_sym.estimators._fit.model import NETWORK_CONSTRAINTS, gaussian_noise, layer_sizes
from skbayes_sym.estimators._fit.rows import STANDARDIZE, Array
from skbayes_sym.estimators._fit.run import RUN_CONSTRAINTS
from skbayes_sym.estimators._fit.scikit_learn import Interval, StrOptions
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.classifier import BayesianClassifierMixin
from skbayes_sym.estimators.laplace.curvature import CURVATURES
from skbayes_sym.estimators.laplace.method import Laplace, Online, Rates, Updates
from skbayes_sym.estimators.laplace.networks import chosen_network, layer_prior, recording
from skbayes_sym.estimators.laplace.predict import Transformations, linearised, predict_seeds
from skbayes_sym.estimators.networks import OBJECT_CONSTRAINTS, NetworkEstimator
from skbayes_sym.estimators.regressor import BayesianRegressorMixin
from skbayes_sym.inference.laplace.mode_mixture import ModeMixture
from skbayes_sym.inference.laplace.posterior import LaplacePosterior, LinearisedNetwork
from skbayes_sym.inference.laplace.predictors import LinearisedLabels, LinearisedPredictor
from skbayes_sym.inference.predictor import Predictor
from skbayes_sym.models.augmentations.base import Identity, ImageShape
from skbayes_sym.models.augmentations.invariances import OBJECTIVES
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.recording import RecordingNetwork
from skbayes_sym.models.priors import Prior

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    "likelihood": OBJECT_CONSTRAINTS["likelihood"],
    "curvature": [StrOptions(set(CURVATURES))],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "hyper_learning_rate": [Interval(Real, 0, None, closed="neither")],
    "hyper": [StrOptions({"auto", "online", "exact"})],
    "n_hyper_updates": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "burn_in": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="left")],
    "keep_best": ["boolean"],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "random_state": ["random_state"],
}
REGRESSOR_CONSTRAINTS: dict[str, list[Any]] = {
    "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither"), "array-like"],
    "standardize": STANDARDIZE,
}
CLASSIFIER_CONSTRAINTS: dict[str, list[Any]] = {
    "predictive": [StrOptions({"sampling", "probit", "plugin"})],
    "n_predict_samples": [Interval(Integral, 1, None, closed="left")],
}


_ONLINE: dict[str, Online] = {"auto": "batches", "online": "always", "exact": "never"}


class LaplaceEstimator(NetworkEstimator):
    """A network with a normal posterior around its mode."""

    curvature: str
    layers: str = "all"
    batch_size: int | str
    learning_rate: float
    hyper_learning_rate: float
    hyper: str
    n_hyper_updates: int | str
    burn_in: float | str
    keep_best: bool

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

    def _adam(self, max_iter: int, tol: float | None) -> Laplace:
        return Laplace(
            curvature=self.curvature,
            n_last=1 if self.layers == "last" else None,
            learn_prior=isinstance(self.prior, str),
            objective=OBJECTIVES["evidence"],
            invariances=None,
            rates=Rates(self.learning_rate, self.hyper_learning_rate),
            updates=Updates(
                self.n_hyper_updates, self.burn_in, self.keep_best, _ONLINE[self.hyper]
            ),
            max_iter=max_iter,
            batch_size=self.batch_size,
            tol=tol,
        )

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

    def _predictor(self, like: Tensor) -> Predictor:
        network, seed = self._linearised(like), self._predict_seeds()[1]
        return LinearisedPredictor(network, self._observation.to(like), seed)


class LaplaceClassification(BayesianClassifierMixin, LaplaceEstimator):
    """Classes, by averages over the linearised posterior."""

    predictive: str
    n_predict_samples: int

    def _predictor(self, like: Tensor) -> Predictor:
        return LinearisedLabels(
            self._linearised(like), self._observation.to(like), self._predict_seeds()[1],
            self.predictive, self.n_predict_samples,
        )  # fmt: skip
