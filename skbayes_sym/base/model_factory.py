"""Constructor parameters that describe the model, turned into the package's nouns."""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.requirements import FULLY_CONNECTED, NORMAL_PRIOR
from skbayes_sym.base.rows import Array, numeric_conversion
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.base.training import INITIAL_NOISE, LARGEST, Training
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian
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
from skbayes_sym.numerics.arguments import short_repr
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

PriorParameter = str | npt.ArrayLike | UnboundPrior  # "learn", scales of normals, or an object

_SCALES: list[Any] = [
    StrOptions({"learn"}), Interval(Real, 0, None, closed="neither"), "array-like"
]  # fmt: skip
NETWORK_CONSTRAINTS: dict[str, list[Any]] = {
    "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "prior": [*_SCALES, HasMethods("bind")],
}
NOISE_CONSTRAINTS: dict[str, list[Any]] = {"noise_std": _SCALES}


def layer_sizes(units: Any) -> tuple[int, ...]:
    """``hidden_layer_sizes`` as a tuple; an int is one layer, an empty sequence none."""
    sizes = np.atleast_1d(np.asarray(units))
    if sizes.ndim != 1 or (sizes.size and not np.issubdtype(sizes.dtype, np.integer)):
        raise ValueError(f"hidden_layer_sizes must be an int or a sequence of ints, got {units!r}.")
    if np.any(sizes < 1):
        raise ValueError(
            f"hidden_layer_sizes must be positive, got {units!r}; () has no hidden layer."
        )
    return tuple(int(s) for s in sizes)


def scale_array(prior: PriorParameter, **sizes: int) -> Array:
    """``prior`` as an array of one number, or of as many as one of the sizes named."""
    with numeric_conversion("prior"):
        return check_scales(cast(npt.ArrayLike, prior), **sizes)


def check_noise_std(noise_std: Any, n_targets: int) -> Array:
    """A given ``noise_std`` as one positive number per target, (n_targets,)."""
    with numeric_conversion("noise_std"):
        noise = np.asarray(noise_std, dtype=float)
    if noise.shape not in {(), (1,), (n_targets,)} or not np.all(np.isfinite(noise) & (noise > 0)):
        several = f" or a sequence of {n_targets} of them" if n_targets > 1 else ""
        raise ValueError(
            f"noise_std must be 'learn' or a positive number{several}, got {noise_std!r}."
        )
    return np.broadcast_to(noise, (n_targets,))


def gaussian_noise(noise_std: Any, data: Training, previous: Array | None = None) -> Gaussian:
    """Normal noise in scaled units.

    ``noise_std``: in the units of ``y``. ``previous`` (n_targets,): what a learned noise starts
    from, in the units of ``y``; half the target's spread by default.
    """
    assert data.y_scaling is not None
    unit = data.y_scaling.scale
    if not isinstance(noise_std, str | HalfNormal):
        with np.errstate(over="ignore"):
            fixed = check_noise_std(noise_std, len(unit)) / unit
        largest = LARGEST[data.dtype]
        if not ((fixed >= 1.0 / largest) & (fixed <= largest)).all():
            raise ValueError(
                f"noise_std={noise_std!r} is {short_repr(fixed.tolist())} in units of the targets' "
                f"scale, and must lie between {1.0 / largest:g} and {largest:g} there."
            )
        return Gaussian(torch.as_tensor(np.log(fixed)), learn=False)
    start = INITIAL_NOISE * data.target_std if previous is None else previous / unit
    return Gaussian(torch.as_tensor(np.log(start)), learn=True)


def resolve_prior(prior: PriorParameter) -> UnboundPrior | None:
    """``prior`` as an object: normals of given scales, or what was given; None of a word."""
    if isinstance(prior, str):
        return None
    if hasattr(prior, "half_width"):  # an augmentation, which has a `bind` of its own
        raise ValueError(
            f"prior must be 'learn', scales of normals, or an object such as ARD(), got "
            f"{short_repr(prior)}, a transformation of the input: LILARegressor takes it."
        )
    return prior if isinstance(prior, UnboundPrior) else Normal(prior)


def bind_prior(prior: PriorParameter, learned: UnboundPrior, network: Network) -> Prior:
    """The prior of a network's parameters; ``learned`` where a word asks for it."""
    with numeric_conversion("prior"):
        return (resolve_prior(prior) or learned).bind(network.layout)


def require_scales(distribution: Likelihood | str, n_targets: int) -> None:
    """Check that a likelihood of targets has one scale, or one per target.

    Parameters
    ----------
    distribution : Likelihood or str
        As the user gave it.
    n_targets : int

    Raises
    ------
    ValueError
        If its noise or dispersion has another length.
    """
    for name in ("log_noise", "log_dispersion"):
        scales = getattr(distribution, name, None)
        if scales is not None and scales.shape[-1] not in (1, n_targets):
            raise ValueError(
                f"likelihood={type(distribution).__name__}({name}=...) has {scales.shape[-1]} "
                f"scales, but y has {n_targets} target(s): give one, or one per target."
            )


def require_mlp(network: Network) -> MLP:
    """The network, for methods that propagate moments or weights from layer to layer."""
    FULLY_CONNECTED.require(network, "network")
    return cast(MLP, network)


def require_normal_prior(prior: Prior) -> GaussianPrior:
    """The prior, for methods whose formulas need zero-mean normals."""
    NORMAL_PRIOR.require(prior, "prior")
    return cast(GaussianPrior, prior.gaussian())


def require_normal_or_learned_prior(prior: Prior) -> GaussianPrior | GroupScalePrior:
    """The prior, for methods whose formulas need zero-mean normals, of scales given or learned."""
    return learned_scales(prior) or require_normal_prior(prior)


def learned_scales(prior: Prior) -> GroupScalePrior | None:
    """The prior, if its scales are learned."""
    return prior.learned_scales if prior.gaussian() is not None else None


def scale_attributes(
    prior: GroupScalePrior,
    log_precision: Tensor | None = None,
    name: str = "",
    weights: Array | None = None,
) -> dict[str, Array]:
    """Learned standard deviations of the weights: of groups, and of input columns.

    Of several weight vectors, ``log_precision`` (M, G), they are under ``name``: ``prior_scale_``
    is then their geometric mean by ``weights`` (M,), and ``relevance_`` keeps every one's.
    """
    hyper = prior.hyper if log_precision is None else log_precision
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
    """The prior as scales by group; one that learns nothing keeps its own."""
    return prior.learned_scales or GroupScalePrior.fixed(require_normal_prior(prior).scale)


def resolve_symmetry(
    symmetry: str | SymmetryGroup | None, network: Network, prior: Prior
) -> SymmetryGroup:
    """The network's group by name or one's own, after checking that the prior has it too.

    Of a module, whose units have no layers to name, a name means the part that the prior keeps.
    """
    if symmetry is None:
        return Trivial()
    group: SymmetryGroup
    if not isinstance(symmetry, str):
        group = symmetry
        _check_user_group(group, network)
    elif not isinstance(network, MLP):
        group = invariant_subgroup(network.symmetry(), prior.log_prob, network.layout)
        keeps = _KINDS.get(symmetry)
        return Product(group.factors).restrict(keeps) if keeps else group
    elif symmetry == "sign_flip":
        layers = unit_layers(network.symmetry(signed=True))
        flips = tuple(Units(layer.index, permute=False, flip=True) for layer in layers)
        group = Product(flips) if flips else Trivial()
    else:
        signed = {"auto": None, "permutation": False, "signed_permutation": True}
        group = network.symmetry(signed=signed[symmetry])
    check_invariant(
        group, prior.log_prob, network.layout, name="prior",
        remedy="Give all units of a layer the same scale, or use symmetry=None.",
    )  # fmt: skip
    return group


# The part of a unit's moves that a name means.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "permutation": lambda part: part.permute,
    "sign_flip": lambda part: not part.permute,
}


def _check_user_group(group: SymmetryGroup, network: Network) -> None:
    """Raise unless the network computes the same at ``theta`` and at ``g.theta``."""
    generator = generator_from(0)
    theta = torch.randn(network.layout.n_params, generator=generator, dtype=torch.float64)
    shape = network.input_shape if isinstance(network, MLP | ModuleNetwork) else (1,)
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
                "is no symmetry of these hidden_layer_sizes and this activation."
            )
