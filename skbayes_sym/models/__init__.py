"""Models: networks, likelihoods and priors; immutable, without weights of their own.

Reading order: `predictive_mixtures` (mixtures that answer every question about new targets; `crps`
of them), `likelihoods` (outputs to targets), `priors`, `learned_scales` (priors that learn theirs),
`networks` (inputs and flat weights to outputs), `augmentations` (random transformations of inputs),
`model` (the four nouns together, rows on the device, and minibatches).

In: groups of `skbayes_sym.symmetry`, which networks declare. Out: log densities in nats and their
derivatives. One's own likelihood inherits from `TargetLikelihood` or `Likelihood`, one's own
network from `BaseNetwork`, one's own prior from `Prior`.
"""

from skbayes_sym.models.augmentations.affine import Affine
from skbayes_sym.models.augmentations.augmentation import Augmentation, Composed
from skbayes_sym.models.augmentations.half_width import HalfWidth
from skbayes_sym.models.augmentations.invariances import Augerino, Invariances
from skbayes_sym.models.augmentations.module import ModuleAugmentation
from skbayes_sym.models.augmentations.pixels import Blur, Brightness, Contrast, Hue, PixelNoise
from skbayes_sym.models.augmentations.tabular import ColumnShift, LogScale, Rotation2D
from skbayes_sym.models.learned_scales import ARD, LayerScales
from skbayes_sym.models.likelihoods.categorical import Bernoulli, Categorical
from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.heteroscedastic import Heteroscedastic, NaturalHeteroscedastic
from skbayes_sym.models.likelihoods.likelihood import LabelLikelihood, Likelihood, TargetLikelihood
from skbayes_sym.models.likelihoods.normal_noise import Gaussian
from skbayes_sym.models.likelihoods.ordinal import Ordinal
from skbayes_sym.models.likelihoods.student_t import StudentT
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.activations import (
    ACTIVATIONS,
    IDENTITY,
    RELU,
    SIGMOID,
    SOFTPLUS,
    TANH,
    Activation,
)
from skbayes_sym.models.networks.convolutional import cnn, resnet
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.modules import ModuleNetwork, UnsupportedModuleError
from skbayes_sym.models.networks.network import BaseNetwork, Network
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture, TargetMixture
from skbayes_sym.models.priors import GaussianPrior, HalfNormal, Normal, Prior
from skbayes_sym.numerics.layout import ParamLayout

__all__ = [
    "ACTIVATIONS",
    "ARD",
    "IDENTITY",
    "MLP",
    "RELU",
    "SIGMOID",
    "SOFTPLUS",
    "TANH",
    "Activation",
    "Affine",
    "Augerino",
    "Augmentation",
    "BaseNetwork",
    "Bernoulli",
    "Blur",
    "Brightness",
    "Categorical",
    "CategoricalMixture",
    "ColumnShift",
    "Composed",
    "Contrast",
    "Gaussian",
    "GaussianPrior",
    "HalfNormal",
    "HalfWidth",
    "Heteroscedastic",
    "Hue",
    "Invariances",
    "LabelLikelihood",
    "LayerScales",
    "Likelihood",
    "LogScale",
    "Model",
    "ModuleAugmentation",
    "ModuleNetwork",
    "NaturalHeteroscedastic",
    "NegativeBinomial",
    "Network",
    "Normal",
    "NormalMixture",
    "Ordinal",
    "ParamLayout",
    "PixelNoise",
    "Poisson",
    "Prior",
    "Rotation2D",
    "StudentT",
    "TargetLikelihood",
    "TargetMixture",
    "UnsupportedModuleError",
    "cnn",
    "resnet",
]
