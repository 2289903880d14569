"""Models: networks, likelihoods and priors, all immutable and without weights.

Reading order: `predictive_mixtures` (predictive distributions of new targets), `crps` (their
score), `positive_targets` and `log_targets` (the same for positive targets), `rounded_targets`
(counts), `copula` (several targets), `normal_logits` (expectations of the softmax under normal
logits, and leave-one-out losses), `likelihoods` (distributions of targets given outputs), `priors`,
`networks` (functions of inputs and flat weights), `augmentations` (random transformations of
inputs), `model` (network, likelihood, prior and group together, training data on the device, and
minibatches).

In: groups of `skbayes_sym.symmetry`, which networks declare. Out: log densities in nats and their
derivatives. A new likelihood inherits from `TargetLikelihood` or `ClassLikelihood`, a new network
from `BaseNetwork`, and a new prior from `Prior`.
"""

from typing import TYPE_CHECKING

from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.lazy_imports import lazy_names

if TYPE_CHECKING:
    from skbayes_sym.models.augmentations.augmentation import (
        Augerino,
        Augmentation,
        Composed,
        HalfWidth,
        Invariances,
        ModuleAugmentation,
    )
    from skbayes_sym.models.augmentations.images import (
        Affine,
        Blur,
        Brightness,
        Contrast,
        Hue,
        PixelNoise,
    )
    from skbayes_sym.models.augmentations.tabular import ColumnShift, LogScale, Rotation2D
    from skbayes_sym.models.likelihoods.categorical import Bernoulli, Categorical
    from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
    from skbayes_sym.models.likelihoods.likelihood import (
        ClassLikelihood,
        Likelihood,
        TargetLikelihood,
    )
    from skbayes_sym.models.likelihoods.noise import (
        Gaussian,
        Heteroscedastic,
        NaturalHeteroscedastic,
        StudentT,
    )
    from skbayes_sym.models.likelihoods.ordinal import Ordinal
    from skbayes_sym.models.likelihoods.registry import register_likelihood
    from skbayes_sym.models.model import Model
    from skbayes_sym.models.networks.convolutional import cnn, resnet
    from skbayes_sym.models.networks.mlp import (
        ACTIVATIONS,
        IDENTITY,
        MLP,
        RELU,
        SIGMOID,
        SOFTPLUS,
        TANH,
        Activation,
    )
    from skbayes_sym.models.networks.modules import ModuleNetwork, UnsupportedModuleError
    from skbayes_sym.models.networks.network import BaseNetwork, Network
    from skbayes_sym.models.predictive_mixtures import (
        CategoricalMixture,
        NormalMixture,
        TargetMixture,
    )
    from skbayes_sym.models.priors import ARD, GaussianPrior, HalfNormal, LayerScales, Normal, Prior

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
    "ClassLikelihood",
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
    "register_likelihood",
    "resnet",
]  # fmt: skip

_MODULES = {
    "augmentations.augmentation": (
        "Augerino",
        "Augmentation",
        "Composed",
        "HalfWidth",
        "Invariances",
        "ModuleAugmentation",
    ),
    "augmentations.images": ("Affine", "Blur", "Brightness", "Contrast", "Hue", "PixelNoise"),
    "augmentations.tabular": ("ColumnShift", "LogScale", "Rotation2D"),
    "likelihoods.categorical": ("Bernoulli", "Categorical"),
    "likelihoods.counts": ("NegativeBinomial", "Poisson"),
    "likelihoods.likelihood": ("ClassLikelihood", "Likelihood", "TargetLikelihood"),
    "likelihoods.noise": ("Gaussian", "Heteroscedastic", "NaturalHeteroscedastic", "StudentT"),
    "likelihoods.ordinal": ("Ordinal",),
    "likelihoods.registry": ("register_likelihood",),
    "model": ("Model",),
    "networks.convolutional": ("cnn", "resnet"),
    "networks.mlp": (
        "ACTIVATIONS",
        "IDENTITY",
        "MLP",
        "RELU",
        "SIGMOID",
        "SOFTPLUS",
        "TANH",
        "Activation",
    ),
    "networks.modules": ("ModuleNetwork", "UnsupportedModuleError"),
    "networks.network": ("BaseNetwork", "Network"),
    "predictive_mixtures": ("CategoricalMixture", "NormalMixture", "TargetMixture"),
    "priors": ("ARD", "GaussianPrior", "HalfNormal", "LayerScales", "Normal", "Prior"),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
