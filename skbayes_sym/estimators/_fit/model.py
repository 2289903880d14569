"""Constructor parameters that describe the model, turned into the package's nouns."""

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions

from skbayes_sym.estimators._fit.rows import Array, numbers_due
from skbayes_sym.estimators._fit.training import INITIAL_NOISE, Training
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior, Normal, checked_scales
from skbayes_sym.symmetry.base import Trivial, check_invariant

NETWORK_CONSTRAINTS: dict[str, list[Any]] = {
    "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "prior_scale": [Interval(Real, 0, None, closed="neither"), "array-like"],
}
NOISE_CONSTRAINTS: dict[str, list[Any]] = {
    "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither"), "array-like"],
}


def layer_sizes(given: Any) -> tuple[int, ...]:
    """``hidden_layer_sizes`` as a tuple; an int is one layer, an empty sequence none."""
    sizes = np.atleast_1d(np.asarray(given))
    if sizes.ndim != 1 or (sizes.size and not np.issubdtype(sizes.dtype, np.integer)):
        raise ValueError(f"hidden_layer_sizes must be an int or a sequence of ints, got {given!r}.")
    if np.any(sizes < 1):
        raise ValueError(
            f"hidden_layer_sizes must be positive, got {given!r}; () has no hidden layer."
        )
    return tuple(int(s) for s in sizes)


def scale_array(prior_scale: Any, **sizes: int) -> Array:
    """``prior_scale`` as an array of one number, or of as many as one of the sizes named."""
    with numbers_due("prior_scale"):
        return checked_scales(prior_scale, **sizes)


def given_noise(noise_std: Any, n_targets: int) -> Array:
    """A given ``noise_std`` as one positive number per target, (n_targets,)."""
    with numbers_due("noise_std"):
        given = np.asarray(noise_std, dtype=float)
    if given.shape not in {(), (1,), (n_targets,)} or not np.all(np.isfinite(given) & (given > 0)):
        several = f" or a sequence of {n_targets}" if n_targets > 1 else ""
        raise ValueError(
            f"noise_std must be 'learn', a positive number{several}, got {noise_std!r}."
        )
    return np.broadcast_to(given, (n_targets,))


def gaussian_noise(noise_std: Any, data: Training, previous: Array | None = None) -> Gaussian:
    """Normal noise in scaled units.

    Parameters
    ----------
    noise_std : "learn", float or sequence of float
        In the units of ``y``.
    data : Training
    previous : ndarray of shape (n_targets,), optional
        What a learned noise starts from, in the units of ``y``; half the target's spread by
        default.
    """
    assert data.y_scaling is not None
    unit = data.y_scaling.scale
    if not isinstance(noise_std, str):
        fixed = given_noise(noise_std, len(unit)) / unit
        return Gaussian(torch.as_tensor(np.log(fixed)), learn=False)
    start = INITIAL_NOISE * data.target_spread if previous is None else previous / unit
    return Gaussian(torch.as_tensor(np.log(start)), learn=True)


def network_prior(prior_scale: Any, network: Network) -> GaussianPrior:
    """``prior_scale`` as one number per parameter: given as a float, per layer or in full."""
    with numbers_due("prior_scale"):
        return Normal(prior_scale).bind(network.layout)


def declared_group(symmetry: str | None, network: MLP, prior: GaussianPrior) -> Any:
    """The network's group by name, after checking that the prior has it too."""
    if symmetry is None:
        return Trivial()
    signed = {"auto": None, "permutation": False, "signed_permutation": True}
    group = network.symmetry(signed=signed[symmetry])
    check_invariant(
        group,
        prior.log_prob,
        network.layout,
        what="prior_scale",
        remedy="Give all units of a layer the same scale, or use symmetry=None.",
    )
    return group


# What recipes that are not methods yet still ask for.


def hidden_layer_sizes(estimator: Any) -> tuple[int, ...]:
    return layer_sizes(estimator.hidden_layer_sizes)


def prior_scales(estimator: Any, **sizes: int) -> Array:
    return scale_array(estimator.prior_scale, **sizes)


def noise_stds(estimator: Any, n_targets: int) -> Array:
    return given_noise(estimator.noise_std, n_targets)


def gaussian_prior(estimator: Any, network: MLP) -> GaussianPrior:
    return network_prior(estimator.prior_scale, network)


def symmetry_group(estimator: Any, network: MLP, prior: GaussianPrior) -> Any:
    return declared_group(estimator.symmetry, network, prior)


checked_group = declared_group
