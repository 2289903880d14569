"""Symmetry removal from draws of any sampler."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Bunch
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from skbayes_sym.estimators._fit.building import fully_connected
from skbayes_sym.estimators._fit.building import layer_sizes as as_sizes
from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.scikit_learn import (
    HasMethods,
    Interval,
    StrOptions,
    validate_params,
)
from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.numerics.arguments import seed_of
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.relabelling import Relabelled, label_margin, relabel

_POSITIVE = Interval(Integral, 1, None, closed="left")


@validate_params(
    {
        "draws": ["array-like", HasMethods("get_params")],
        "hidden_layer_sizes": ["array-like", _POSITIVE, None],
        "activation": [StrOptions(set(ACTIVATIONS)), None],
        "n_features_in": [_POSITIVE, None],
        "n_outputs": [_POSITIVE],
        "n_starts": [_POSITIVE],
        "max_sweeps": [_POSITIVE],
        "random_state": ["random_state"],
    },
    prefer_skip_nested_validation=True,
)
def remove_symmetries(
    draws: Any, *, hidden_layer_sizes: int | Sequence[int] | None = None,
    activation: str | None = None, n_features_in: int | None = None, n_outputs: int = 1,
    n_starts: int = 4, max_sweeps: int = 100, random_state: Any = None,
) -> Bunch:  # fmt: skip
    """Move draws of a network's weights to one representative of each symmetry orbit.

    Hidden units of a layer can be exchanged, behind an odd activation (tanh, identity) also
    negated, without changing the function. Samplers visit all those copies; here every draw is
    acted on by the one group element that makes it most like the others. The function of every
    draw stays the same exactly: weights only change place and sign.

    Parameters
    ----------
    draws : array-like of shape (n_draws, P) or (n_chains, n_draws, P), or fitted estimator
        A fitted sampler or ensemble of this package, or a pipeline or search around one, brings
        its draws and its network. Else weights from NumPyro, PyMC, Stan or any sampler; at least 2
        draws. Flat order: layer by layer, the weights (row-major, out x in), then the biases. Noise
        scales and other parameters that aren't the network's must be left out.
    hidden_layer_sizes : int or sequence of int
        Widths of the hidden layers; empty for a linear model, whose draws stay as they are. This
        and the next two are needed with an array, and only there.
    activation : {"tanh", "identity", "relu", "sigmoid", "softplus"}
        Decides whether signs are a symmetry.
    n_features_in : int
    n_outputs : int, default=1
        Of the network; an array's only, too.
    n_starts : int, default=4
        Draws tried as the first reference, of which the best is kept.
    max_sweeps : int, default=100
        Most sweeps over the draws.
    random_state : int, RandomState instance or None, default=None
        Chooses the starts. None is fresh entropy; NumPy's global state isn't used.

    Returns
    -------
    Bunch
        draws : ndarray, shape and floating dtype of ``draws``
            On one representative: in each layer, units in decreasing order of the norm of their
            mean weights from the inputs (or earlier layers) and bias, the largest of which is made
            positive. The order depends on the orbits alone, so it doesn't matter which copies the
            sampler visited.
        permutations : list of int64 ndarrays of shape (..., d), one a hidden layer
            Leading axes as those of ``draws``.
            Unit ``i`` of the result is ``signs[i]`` times unit ``permutations[i]`` of the draw.
        signs : list of int8 ndarrays of the same shapes
            +1 or -1; all +1 unless the activation is odd.
        margin : ndarray with the leading axes of ``draws``, nats
            How decided the labels of a draw are: the log density of its units under the Gaussians
            of all draws, less that under the best other labels of one layer (second-best
            permutation with its best signs, or one sign flip; the other layers held fixed), at
            its least over layers. ``exp(-margin)`` is the odds of the runner-up, which is exact: 0
            is undecided, 3 is 20 to 1. Negative if other labels fit better (only after a
            `ConvergenceWarning`); inf if there are no others.

    Raises
    ------
    ValueError
        If ``draws`` has the wrong number of columns, fewer than 2 draws or a value that isn't
        finite, or another argument is invalid.

    Warns
    -----
    ConvergenceWarning
        If draws still moved in the last sweep.

    Notes
    -----
    **When labels mean nothing.** Where units overlap, as in wide layers whose units mostly follow
    the prior (16 units for a one-dimensional function, the paper's experiment B), the alignment
    isn't identified: two reasonable criteria then agree on 0 to 3 % of the draws, and "unimodal
    after removal" is partly made by the algorithm, any algorithm. Functions stay right; means,
    variances and plots of single weights don't. Look at ``margin``: labels that are usually right
    and silently wrong are worse than none. It is measured against Gaussians fitted to the labels
    themselves, so it is optimistic for overlapping units, and it says nothing about other optima
    of all draws together.

    The method is Stephens' relabelling with a diagonal Gaussian for every unit, exact assignments
    and a forward first pass (`relabel`). It takes O(n d^2 p) a sweep and layer of d units with p
    weights, and a few assignment problems a draw: `asv_bench/benchmarks/alignment.py` prints the
    seconds.

    References
    ----------
    Stephens (2000), "Dealing with label switching in mixture models", J. R. Stat. Soc. B 62.

    Wiese et al. (2023), "Towards efficient MCMC sampling in Bayesian neural networks by exploiting
    symmetry", section 5 and appendix D.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym.inspection.symmetry_removal import remove_symmetries
    >>> unit_1, unit_2 = np.array([1.0, 0.2, 2.0]), np.array([-3.0, 0.1, 0.5])
    >>> one = np.array([1.0, -3.0, 0.2, 0.1, 2.0, 0.5, 0.7])  # W1, b1, W2, b2
    >>> copy = np.array([3.0, 1.0, -0.1, 0.2, -0.5, 2.0, 0.7])  # exchanged, one of them negated
    >>> same = remove_symmetries(
    ...     [one, copy], hidden_layer_sizes=2, activation="tanh", n_features_in=1, random_state=0
    ... )
    >>> same.draws
    array([[ 3. ,  1. , -0.1,  0.2, -0.5,  2. ,  0.7],
           [ 3. ,  1. , -0.1,  0.2, -0.5,  2. ,  0.7]])
    >>> same.permutations[0], same.signs[0]
    (array([[1, 0],
           [0, 1]]), array([[-1,  1],
           [ 1,  1]], dtype=int8))
    """
    described = {"hidden_layer_sizes": hidden_layer_sizes, "activation": activation,
             "n_features_in": n_features_in}  # fmt: skip
    if isinstance(draws, BaseEstimator):
        described["n_outputs"] = n_outputs if n_outputs != 1 else None
        draws, network = _fitted_draws(draws, described)
    else:
        network = _network(described, n_outputs)
    values = _check_draws(draws, network)
    group = network.symmetry()
    flat = torch.from_numpy(values.reshape(-1, values.shape[-1]).astype(np.float64))
    fresh = np.random.SeedSequence().generate_state(1)[0]
    seed = int(fresh) if random_state is None else seed_of(random_state)
    generator = generator_from(seed)
    with one_thread(), torch.no_grad():
        relabelled = relabel(
            flat, group, n_starts=int(n_starts), max_sweeps=int(max_sweeps), generator=generator
        )
        margin = label_margin(relabelled.theta, group)
    if relabelled.n_changing:
        warn_user(
            f"{relabelled.n_changing} of {len(relabelled.theta)} draws still changed their labels "
            f"in the last of max_sweeps={max_sweeps} sweeps: functions are right, labels may not "
            "be. Look at margin; raise max_sweeps if labels matter.",
            ConvergenceWarning,
        )
    return _bunch(relabelled, margin, values)


def _network(described: dict[str, Any], n_outputs: int) -> MLP:
    missing = [name for name, value in described.items() if value is None]
    if missing:
        raise TypeError(
            f"draws are an array, so {', '.join(missing)} must say what network they are of; a "
            "fitted estimator in its place brings its own."
        )
    sizes = as_sizes(described["hidden_layer_sizes"])
    activation = ACTIVATIONS[described["activation"]]
    return MLP(int(described["n_features_in"]), sizes, int(n_outputs), activation)


def _fitted_draws(estimator: BaseEstimator, described: dict[str, Any]) -> tuple[Array, MLP]:
    """Draws and network of a fitted sampler or ensemble, bare or wrapped."""
    check_is_fitted(estimator)
    model = innermost(estimator).model
    if not {"samples_", "network_"} <= vars(model).keys():
        raise TypeError(
            f"{type(model).__name__} has no draws of a network's weights (samples_): give a fitted "
            "MCMCRegressor, MCMCClassifier or deep ensemble, or an array of draws."
        )
    told = [name for name, value in described.items() if value is not None]
    if told:
        raise ValueError(f"{told[0]} is the fitted estimator's own: leave it out.")
    return model.samples_, fully_connected(model.network_)


def _check_draws(draws: Any, network: MLP) -> Array:
    """Finite floats of shape (n, P) or (chains, n, P), at least two draws."""
    values = check_array(
        draws, dtype=(np.float64, np.float32), ensure_2d=False, allow_nd=True,
        ensure_all_finite=False, ensure_min_samples=0, input_name="draws",
    )  # fmt: skip
    if values.ndim not in (2, 3):
        raise ValueError(
            "draws must have shape (n_draws, P) or (n_chains, n_draws, P), got shape "
            f"{values.shape}. Reshape it, or stack the draws of all chains along the first axis."
        )
    expected = network.layout.n_params
    if values.shape[-1] != expected:
        raise ValueError(
            f"draws has {values.shape[-1]} columns, but a network of sizes {network.sizes} "
            f"(inputs, hidden layers, outputs) has {expected} weights and biases. Leave out "
            "parameters that aren't the network's (noise, hyperparameters), or correct "
            "hidden_layer_sizes, n_features_in or n_outputs."
        )
    n_draws = values.size // values.shape[-1]
    if n_draws < 2:
        raise ValueError(
            f"draws has {n_draws} draws: labels are relative to other draws, so at least 2 are "
            "needed."
        )
    bad = np.flatnonzero(~np.isfinite(values).all(axis=-1))
    if len(bad):
        raise ValueError(
            f"draws must be finite, but {len(bad)} of {n_draws} draws have a NaN or infinite value "
            f"(the first is draw {bad[0]}, chains counted through). Leave diverged draws out."
        )
    return values


def _bunch(relabelled: Relabelled, margin: Tensor, values: Array) -> Bunch:
    shape = values.shape[:-1]

    def shaped(labels: Tensor) -> Array:
        return labels.numpy().reshape(*shape, labels.shape[-1])

    return Bunch(
        draws=relabelled.theta.numpy().astype(values.dtype).reshape(values.shape),
        permutations=[shaped(g.permutation) for g in relabelled.elements],
        signs=[shaped(g.sign) for g in relabelled.elements],
        margin=margin.numpy().reshape(shape),
    )
