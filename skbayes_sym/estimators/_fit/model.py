"""Constructor parameters that describe the model, turned into the package's nouns."""

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from skbayes_sym.estimators._fit.rows import Array, numbers_due
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior, Normal, checked_scales
from skbayes_sym.symmetry.base import Trivial, check_invariant

NETWORK_CONSTRAINTS: dict[str, list[Any]] = {
    "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "prior_scale": [Interval(Real, 0, None, closed="neither"), "array-like"],
}


def hidden_layer_sizes(estimator: Any) -> tuple[int, ...]:
    """``hidden_layer_sizes`` as a tuple; an int is one layer, an empty sequence none."""
    sizes = np.atleast_1d(np.asarray(estimator.hidden_layer_sizes))
    if sizes.ndim != 1 or (sizes.size and not np.issubdtype(sizes.dtype, np.integer)):
        raise ValueError(
            "hidden_layer_sizes must be an int or a sequence of ints, got "
            f"{estimator.hidden_layer_sizes!r}."
        )
    if np.any(sizes < 1):
        raise ValueError(
            f"hidden_layer_sizes must be positive, got {estimator.hidden_layer_sizes!r}; "
            "() has no hidden layer."
        )
    return tuple(int(s) for s in sizes)


def prior_scales(estimator: Any, **sizes: int) -> Array:
    """``prior_scale`` as an array of one number, or of as many as one of the sizes named."""
    given = estimator.prior_scale
    with numbers_due("prior_scale"):
        np.asarray(given, dtype=float)
    return checked_scales(given, **sizes)


def noise_stds(estimator: Any, n_targets: int) -> Array:
    """A given ``noise_std`` as one positive number a target, (n_targets,)."""
    with numbers_due("noise_std"):
        given = np.asarray(estimator.noise_std, dtype=float)
    if given.shape not in {(), (1,), (n_targets,)} or not np.all(np.isfinite(given) & (given > 0)):
        raise ValueError(
            f"noise_std must be 'learn', a positive number or {n_targets} of them, got "
            f"{estimator.noise_std!r}."
        )
    return np.broadcast_to(given, (n_targets,))


def gaussian_prior(estimator: Any, network: MLP) -> GaussianPrior:
    """``prior_scale`` as one number a parameter: given as a float, per layer or in full."""
    with numbers_due("prior_scale"):
        np.asarray(estimator.prior_scale, dtype=float)
    return Normal(estimator.prior_scale).bind(network.layout)


def symmetry_group(estimator: Any, network: MLP, prior: GaussianPrior) -> Any:
    """The declared symmetry, after checking that the prior has it too."""
    if estimator.symmetry is None:
        return Trivial()
    return checked_group(estimator.symmetry, network, prior)


def checked_group(symmetry: str, network: MLP, prior: GaussianPrior) -> Any:
    """The network's group by name, after checking that the prior has it too."""
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
