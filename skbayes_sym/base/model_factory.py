"""Build network, likelihood, prior and symmetry group from constructor parameters."""

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skbayes_sym.base.input_validation import numeric_conversion
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.requirements import FULLY_CONNECTED, NORMAL_PRIOR
from skbayes_sym.base.rows import STANDARDIZE, Array
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.base.training import INITIAL_NOISE, LARGEST, Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood, check_parameter
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.likelihoods.registry import REGRESSION_LIKELIHOODS, SupportedLikelihoods
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import (
    GaussianPrior,
    GroupScalePrior,
    HalfNormal,
    Normal,
    Prior,
    UnboundPrior,
    check_scales,
)
from skbayes_sym.numerics.arguments import object_array, short_repr
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.group import (
    NotInvariantError,
    Product,
    SymmetryGroup,
    Trivial,
    check_invariant,
    invariant_subgroup,
)
from skbayes_sym.symmetry.units import Units, unit_layers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
else:

    class ArrayLike:
        """What `numpy.asarray` accepts; NumPy's own type prints as a union of private types."""


# The parameter ``prior``: "learn", standard deviations of normals, or an object.
PriorParameter = str | ArrayLike | UnboundPrior

_SCALES: list[Any] = [
    StrOptions({"learn"}),
    Interval(Real, 0, None, closed="neither"),
    "array-like",
]
NETWORK_CONSTRAINTS: dict[str, list[Any]] = {
    "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "prior": [*_SCALES, HasMethods("bind")],
}
_NAMED_LIKELIHOODS = SupportedLikelihoods(
    lambda _likelihood: True, {"auto": REGRESSION_LIKELIHOODS["gaussian"]}
)
# Constraints on parameters that take objects, for estimators that have them.
OBJECT_CONSTRAINTS: dict[str, list[Any]] = {
    "network": [StrOptions({"mlp"}), nn.Module, HasMethods("forward")],
    "likelihood": [StrOptions(_NAMED_LIKELIHOODS.keys()), HasMethods("log_prob")],
}
NOISE_CONSTRAINTS: dict[str, list[Any]] = {"noise_std": _SCALES}
# Constraints of regressors with known or learned noise.
REGRESSOR_CONSTRAINTS: dict[str, list[Any]] = {
    "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither"), "array-like"],
    "standardize": STANDARDIZE,
}


def layer_sizes(units: Any) -> tuple[int, ...]:
    """Return ``hidden_layer_sizes`` as a tuple.

    Parameters
    ----------
    units : int or sequence of int
        An int is one layer, and an empty sequence is no hidden layer.

    Returns
    -------
    tuple of int
        Number of units in every hidden layer.

    Raises
    ------
    ValueError
        If ``units`` isn't made of positive ints.
    """
    sizes = np.atleast_1d(object_array(units))
    if sizes.ndim != 1 or (sizes.size and not np.issubdtype(sizes.dtype, np.integer)):
        raise ValueError(
            f"hidden_layer_sizes must be an int or a sequence of ints, got {short_repr(units)}."
        )
    if np.any(sizes < 1):
        raise ValueError(
            f"hidden_layer_sizes must be positive, got {units!r}; () has no hidden layer."
        )
    return tuple(int(size) for size in sizes)


def scale_array(prior: PriorParameter, **sizes: int) -> Array:
    """Return prior scales as an array.

    Parameters
    ----------
    prior : array-like
        One standard deviation, or several.
    **sizes : int
        Allowed numbers of standard deviations, by what they count, such as ``features``.

    Returns
    -------
    ndarray of shape () or (size,)
    """
    with numeric_conversion("prior"):
        return check_scales(cast(npt.ArrayLike, prior), **sizes)


def check_noise_std(noise_std: Any, n_targets: int) -> Array:
    """Return a fixed noise level as one positive number per target.

    Parameters
    ----------
    noise_std : float or array-like of shape (n_targets,)
        Standard deviation of the noise in the units of ``y``.
    n_targets : int
        Number of targets.

    Returns
    -------
    ndarray of shape (n_targets,)

    Raises
    ------
    ValueError
        If the noise level isn't positive and finite, or has another shape.
    """
    with numeric_conversion("noise_std"):
        noise = np.asarray(noise_std, dtype=float)
    if noise.shape not in {(), (1,), (n_targets,)} or not np.all(np.isfinite(noise) & (noise > 0)):
        if n_targets > 1:
            sequence = f" or a sequence of {n_targets} of them"
        else:
            sequence = ""
        raise ValueError(
            f"noise_std must be 'learn' or a positive number{sequence}, got {noise_std!r}."
        )
    return np.broadcast_to(noise, (n_targets,))


def gaussian_noise(noise_std: Any, data: Training, previous: Array | None = None) -> Gaussian:
    """Return normal noise in scaled units.

    Parameters
    ----------
    noise_std : "learn", HalfNormal, float or array-like of shape (n_targets,)
        The user's parameter; numbers are in the units of ``y``.
    data : Training
        Training data, which have the scale of the targets.
    previous : ndarray of shape (n_targets,), optional
        Initial value of a learned noise level, in the units of ``y``. By default it is half the
        standard deviation of the targets.

    Returns
    -------
    Gaussian

    Raises
    ------
    ValueError
        If a fixed noise level leaves the range of the precision in scaled units.
    """
    assert data.y_scaling is not None
    unit = data.y_scaling.scale
    if isinstance(noise_std, str | HalfNormal):
        if previous is None:
            initial = INITIAL_NOISE * data.target_std
        else:
            initial = previous / unit
        return Gaussian(torch.as_tensor(np.log(initial)), learn=True)
    with np.errstate(over="ignore"):
        fixed = check_noise_std(noise_std, len(unit)) / unit
    largest = LARGEST[data.dtype]
    if not ((fixed >= 1.0 / largest) & (fixed <= largest)).all():
        raise ValueError(
            f"noise_std={noise_std!r} is {short_repr(fixed.tolist())} in units of the targets' "
            f"scale, and must lie between {1.0 / largest:g} and {largest:g} there."
        )
    return Gaussian(torch.as_tensor(np.log(fixed)), learn=False)


def resolve_prior(prior: PriorParameter) -> UnboundPrior | None:
    """Return a prior that isn't bound to a network yet.

    Parameters
    ----------
    prior : str, array-like or UnboundPrior
        The user's parameter.

    Returns
    -------
    UnboundPrior or None
        Normals with the given standard deviations, or the user's object. None for a string such as
        "learn".

    Raises
    ------
    ValueError
        If the parameter is an augmentation, which has a ``bind`` of its own.
    """
    if isinstance(prior, str):
        return None
    if hasattr(prior, "half_width"):
        raise ValueError(
            f"prior must be 'learn', scales of normals, or an object such as ARD(), got "
            f"{short_repr(prior)}, a transformation of the input: LILARegressor takes it."
        )
    if isinstance(prior, UnboundPrior):
        return prior
    return Normal(prior)


def bind_prior(prior: PriorParameter, learned: UnboundPrior, network: Network) -> Prior:
    """Return the prior of a network's parameters.

    Parameters
    ----------
    prior : str, array-like or UnboundPrior
        The user's parameter.
    learned : UnboundPrior
        Prior that "learn" stands for.
    network : Network
        Network whose parameters have the prior.

    Returns
    -------
    Prior
    """
    with numeric_conversion("prior"):
        return (resolve_prior(prior) or learned).bind(network.layout)


def give_each_target_a_scale(likelihood: Likelihood, n_targets: int) -> Likelihood:
    """Check the shapes of a likelihood's scales, and repeat a single one for each target.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood of a regression, whose scales, if it has any, are one or one per target.
    n_targets : int
        Number of targets.

    Returns
    -------
    Likelihood
        The likelihood with one scale per target, as initial values if they are learned.

    Raises
    ------
    ValueError
        If its noise, dispersion or tail parameter has another shape or isn't finite.
    """
    lengths = {"log_noise": {1, n_targets}, "log_dispersion": {1, n_targets}, "log_tail": {1}}
    for name, allowed in lengths.items():
        scales = getattr(likelihood, name, None)
        if scales is None:
            continue
        check_parameter(likelihood, name, allowed, f"{n_targets} target(s)")
        if max(allowed) > len(scales):
            repeated = scales.expand(n_targets).clone()
            likelihood = replace(likelihood, **{name: repeated})  # type: ignore[type-var]
    return likelihood


def require_mlp(network: Network) -> MLP:
    """Return the network as an MLP, for methods that work layer by layer; else raise."""
    FULLY_CONNECTED.require(network, "network")
    return cast(MLP, network)


def require_normal_prior(prior: Prior) -> GaussianPrior:
    """Return the prior as zero-mean normals, for methods whose formulas need these; else raise."""
    NORMAL_PRIOR.require(prior, "prior")
    return cast(GaussianPrior, prior.gaussian())


def require_normal_or_learned_prior(prior: Prior) -> GaussianPrior | GroupScalePrior:
    """Return the prior as zero-mean normals with fixed or learned scales; else raise."""
    return learned_scales(prior) or require_normal_prior(prior)


def learned_scales(prior: Prior) -> GroupScalePrior | None:
    """Return the prior if its scales are learned, else None."""
    if prior.gaussian() is not None:
        return prior.learned_scales
    return None


def scale_attributes(
    prior: GroupScalePrior,
    log_precision: Tensor | None = None,
    name: str = "",
    weights: Array | None = None,
) -> dict[str, Array]:
    """Return learned prior standard deviations as fitted attributes.

    Parameters
    ----------
    prior : GroupScalePrior
        Prior with G groups of weights.
    log_precision : Tensor of shape (M, G), optional
        Log precisions for each of M weight vectors; those of the prior by default.
    name : str
        Attribute that receives the standard deviations of all weight vectors.
    weights : ndarray of shape (M,), optional
        Weights of the weight vectors in the mean; equal by default.

    Returns
    -------
    dict
        ``prior_scale_`` (G,) is the standard deviation of every group, for several weight vectors
        its geometric mean. ``prior_groups_`` has the names of the groups. ``relevance_`` has the
        standard deviations of the weights of input columns, if every column has its own.
    """
    if log_precision is None:
        hyper = prior.hyper
    else:
        hyper = log_precision
    scale = (-0.5 * hyper).exp().double().cpu().numpy()
    mean = scale
    if log_precision is not None:
        mean = np.exp(np.average(np.log(scale), axis=0, weights=weights))
    attributes = {"prior_scale_": mean, "prior_groups_": np.array(prior.names)}
    if name:
        attributes[name] = scale
    if prior.columns:
        attributes["relevance_"] = scale[..., prior.columns]
    return attributes


def group_scales(prior: Prior) -> GroupScalePrior:
    """Return the prior as scales by group; fixed scales stay fixed."""
    return prior.learned_scales or GroupScalePrior.fixed(require_normal_prior(prior).scale)


def relative_relevance(model: BaseEstimator) -> Array:
    """Relative prior scale of the weights of every column, if each column has its own.

    The scales are averaged over fits and divided by their sum over columns, (n_features,).
    """
    scale = fitted_attribute(model, "relevance_")
    if scale is None:
        raise AttributeError("feature_importances_ needs prior=ARD(), a scale for every column")
    mean = np.asarray(scale).reshape(-1, np.shape(scale)[-1]).mean(axis=0)
    return np.asarray(mean / mean.sum())


def model_symmetry(network: Network, prior: Prior) -> SymmetryGroup:
    """Return the subgroup of the network's symmetry group that leaves the prior invariant."""
    return invariant_subgroup(network.symmetry(), prior.log_prob, network.layout)


# Which factors of a module's group a name of the parameter ``symmetry`` selects.
_NAMED_FACTORS: dict[str, Callable[[Any], bool]] = {
    "permutation": lambda factor: factor.permute,
    "sign_flip": lambda factor: not factor.permute,
}


def resolve_symmetry(
    symmetry: str | SymmetryGroup | None, network: Network, prior: Prior
) -> SymmetryGroup:
    """Return the symmetry group of a network, after checking that the prior has it, too.

    Parameters
    ----------
    symmetry : str, SymmetryGroup or None
        The user's parameter. A name selects a subgroup of the network's group. For a module, whose
        units have no named layers, it selects from the subgroup that leaves the prior invariant.
    network : Network
        Network of the model.
    prior : Prior
        Prior of the network's parameters.

    Returns
    -------
    SymmetryGroup

    Raises
    ------
    NotInvariantError
        If the group changes the network's outputs or the prior.
    """
    if symmetry is None:
        return Trivial()
    group: SymmetryGroup
    if not isinstance(symmetry, str):
        group = symmetry
        _check_user_group(group, network)
    elif not isinstance(network, MLP):
        group = model_symmetry(network, prior)
        is_selected = _NAMED_FACTORS.get(symmetry)
        if is_selected:
            return Product(group.factors).restrict(is_selected)
        return group
    elif symmetry == "sign_flip":
        layers = unit_layers(network.symmetry(signed=True))
        flips = tuple(Units(layer.index, permute=False, flip=True) for layer in layers)
        group = Product(flips) if flips else Trivial()
    else:
        signed = {"auto": None, "permutation": False, "signed_permutation": True}
        group = network.symmetry(signed=signed[symmetry])
    check_invariant(
        group,
        prior.log_prob,
        network.layout,
        name="prior",
        remedy="Give all units of a layer the same scale, or use symmetry=None.",
    )
    return group


def _check_user_group(group: SymmetryGroup, network: Network) -> None:
    """Raise an error unless the network has the same outputs at ``theta`` and at ``g.theta``."""
    generator = generator_from(0)
    theta = torch.randn(network.layout.n_params, generator=generator, dtype=torch.float64)
    if isinstance(network, MLP | ModuleNetwork):
        shape = network.input_shape
    else:
        shape = (1,)
    x = torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    before = network.forward(theta, x)
    for name, g in group.generators():
        try:
            after = network.forward(group.act(g, theta), x)
        except (IndexError, RuntimeError) as error:
            raise ValueError(
                f"symmetry={type(group).__name__} doesn't act on this network's {len(theta)} "
                f"parameters: {error}. `network_.symmetry()` of a fitted model shows how they lie."
            ) from error
        if not torch.allclose(after, before, rtol=1e-9, atol=1e-9):
            raise NotInvariantError(
                f"symmetry={type(group).__name__} changes what the network computes ({name}): it "
                "isn't a symmetry of a network with these hidden_layer_sizes and activation."
            )
