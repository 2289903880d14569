"""Symmetry removal from the draws of any sampler."""

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.model_factory import layer_sizes as as_sizes
from skbayes_sym.base.pipelines import unwrap
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import (
    HasMethods,
    Interval,
    StrOptions,
    check_array,
    validate_params,
)
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.numerics.arguments import draw_seed
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.runtime import one_thread
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.modules.module_symmetry import symmetry_of
from skbayes_sym.symmetry.relabelling import align_to_mean, label_margin, relabel
from skbayes_sym.symmetry.units import SignedPermutation, UnitGroup

_POSITIVE = Interval(Integral, 1, None, closed="left")


@validate_params(
    {
        "draws": ["array-like", HasMethods("get_params")],
        "module": [HasMethods("named_parameters"), None],
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
    draws: Any,
    *,
    module: Any = None,
    example_input: Any = None,
    hidden_layer_sizes: int | Sequence[int] | None = None,
    activation: str | None = None,
    n_features_in: int | None = None,
    n_outputs: int = 1,
    n_starts: int = 4,
    max_sweeps: int = 100,
    random_state: Any = None,
) -> Bunch:
    """Move draws of a network's weights to one representative of each symmetry orbit.

    Hidden units of a layer can be exchanged without changing the function, and with an odd
    activation (tanh, identity) also negated. Samplers visit all these copies. This function applies
    to each draw the group element that makes it most similar to the other draws. The network's
    function stays exactly the same, because weights only change position and sign.

    Parameters
    ----------
    draws : array-like of shape (n_draws, P) or (n_chains, n_draws, P), or fitted estimator
        At least 2 draws of NumPyro, PyMC, Stan or any other sampler. The order of the columns is
        layer by layer: the weights (row-major, out x in), then the biases. Noise scales and other
        parameters that don't belong to the network must be left out. A fitted sampler or ensemble
        of this package, or a pipeline or search around one, provides its draws and its network.
    module : torch.nn.Module, optional
        Network of an array of draws, with any layers. The draws are its ``parameters()``, flattened
        in order, and `symmetry_of` finds the group. The values of its parameters don't matter.
    example_input : Tensor or tuple of Tensor
        Arguments of one call of the module.
    hidden_layer_sizes : int or sequence of int
        Widths of the hidden layers. Draws of a linear model, which has none, stay unchanged. This
        parameter and the next two are required for an array without ``module``, and don't apply
        otherwise.
    activation : {"tanh", "identity", "relu", "sigmoid", "softplus"}
        Activation, which determines whether sign flips are a symmetry.
    n_features_in : int
        Number of inputs of the network.
    n_outputs : int, default=1
        Number of outputs of the network, for an array without ``module``.
    n_starts : int, default=4
        Number of draws that are tried as the first reference. The best result is kept.
    max_sweeps : int, default=100
        Maximum number of sweeps over the draws.
    random_state : int, RandomState instance or None, default=None
        Seed or generator that selects the first references. None uses fresh entropy. NumPy's global
        random state isn't used.

    Returns
    -------
    Bunch
        group : SymmetryGroup
            Symmetry group of the network.
        draws : ndarray of the shape and floating dtype of ``draws``
            Draws on one representative. The units of each layer are in decreasing order of the norm
            of their mean incoming weights and bias. The largest of these is positive.
        permutations : list of int64 ndarrays of shape (..., d)
            One array per hidden layer or set of units, with the leading axes of ``draws``. Unit
            ``i`` of the result is ``signs[i]`` times unit ``permutations[i]`` of the draw.
        signs : list of int8 ndarrays of the same shapes
            +1 or -1; all +1 unless the activation is odd.
        margin : ndarray with the leading axes of ``draws``, or None
            Certainty of each draw's labels in nats: the log density of its units under the
            Gaussians of all draws, minus that under the second-best labels of one layer, minimised
            over layers. ``exp(-margin)`` is the odds of the second-best labels: 0 is undecided and
            3 is 20 to 1. The margin is negative if other labels fit better (only after a
            `ConvergenceWarning`), and inf if there are no others. It is None for modules in which
            units contain other units (attention heads), span two axes of a parameter or have
            several signs. Such draws are moved as close as possible to their mean, and the order of
            the units is that of one draw.

    Raises
    ------
    ValueError
        If ``draws`` has the wrong number of columns, fewer than 2 draws or a value that isn't
        finite, or if another argument is invalid.
    TypeError
        If the description of the network is incomplete.

    Warns
    -----
    ConvergenceWarning
        If labels still changed in the last sweep.

    Notes
    -----
    If units overlap, as in wide layers whose units mostly follow the prior, their labels aren't
    identified. Functions remain valid, but means, variances and plots of single weights don't.
    ``margin`` shows this, although it is optimistic for overlapping units.

    The method is Stephens' relabelling with a diagonal Gaussian for every unit and exact
    assignments. A sweep over n draws takes O(n d^2 p) per layer of d units with p weights, and a
    few assignment problems per draw.

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
    # Find the draws, the symmetry group and the layout of the parameters.
    description = {
        "hidden_layer_sizes": hidden_layer_sizes,
        "activation": activation,
        "n_features_in": n_features_in,
    }
    inapplicable = {**description, "n_outputs": None if n_outputs == 1 else n_outputs}
    if isinstance(draws, BaseEstimator):
        draws, group, layout = _read_fitted_draws(draws)
        _require_absent({**inapplicable, "module": module}, "the fitted estimator's own")
    elif module is not None:
        _require_absent(inapplicable, "the module's own")
        if example_input is None:
            raise TypeError("module needs example_input, the arguments of one call.")
        group = symmetry_of(module, example_input)
        layout = group.layout
    else:
        network = _make_network(description, n_outputs)
        group = network.symmetry()
        layout = network.layout
    values = _check_draws(draws, layout)

    # Align all draws.
    flat = torch.from_numpy(values.reshape(-1, values.shape[-1]).astype(np.float64))
    seed = draw_seed(random_state)
    has_only_units = all(isinstance(factor, UnitGroup) for factor in group.factors)
    align = relabel if has_only_units else align_to_mean
    margin = None
    with one_thread(), torch.no_grad():
        aligned = align(
            flat,
            group,
            n_starts=int(n_starts),
            max_sweeps=int(max_sweeps),
            generator=generator_from(seed),
        )
        if has_only_units:
            margin = label_margin(aligned.theta, group).numpy().reshape(values.shape[:-1])
    if aligned.n_changing:
        warn_user(
            f"{aligned.n_changing} of {len(aligned.theta)} draws still changed their labels "
            f"in the last of max_sweeps={max_sweeps} sweeps: functions are right, labels may not "
            "be. Look at margin; raise max_sweeps if labels matter.",
            ConvergenceWarning,
        )

    return _describe_alignment(group, values, aligned, margin)


def _describe_alignment(
    group: SymmetryGroup, values: Array, aligned: Any, margin: Array | None
) -> Bunch:
    """List the permutation and the signs of each set of units.

    Parameters
    ----------
    group : SymmetryGroup
        Symmetry group of the network.
    values : ndarray of shape (..., P)
        Draws as given.
    aligned : object
        Aligned draws ``theta`` and the group elements ``elements`` that were applied.
    margin : ndarray of shape (...), optional
        Certainty of the labels.

    Returns
    -------
    Bunch
        What `remove_symmetries` returns.
    """
    permutations = []
    signs = []
    leading_axes = values.shape[:-1]
    for permutation, sign in _iterate_permutations(aligned.elements):
        permutations.append(permutation.numpy().reshape(*leading_axes, *permutation.shape[1:]))
        signs.append(sign.numpy().reshape(*leading_axes, *sign.shape[1:]))
    return Bunch(
        group=group,
        draws=aligned.theta.numpy().astype(values.dtype).reshape(values.shape),
        permutations=permutations,
        signs=signs,
        margin=margin,
    )


def _iterate_permutations(element: Any) -> Iterator[SignedPermutation]:
    """Iterate over the signed permutations of a group element, outer units before inner ones."""
    if isinstance(element, SignedPermutation):
        yield element
    else:
        for part in element:
            yield from _iterate_permutations(part)


def _make_network(description: dict[str, Any], n_outputs: int) -> MLP:
    """Network of an array of draws."""
    missing = [name for name, value in description.items() if value is None]
    if missing:
        raise TypeError(
            f"draws are an array, so {', '.join(missing)} must describe their network; or "
            "give module= and example_input=. A fitted estimator has its own network."
        )
    sizes = as_sizes(description["hidden_layer_sizes"])
    activation = ACTIVATIONS[description["activation"]]
    return MLP(int(description["n_features_in"]), sizes, int(n_outputs), activation)


def _require_absent(arguments: dict[str, Any], reason: str) -> None:
    """Raise if an argument that doesn't apply was given."""
    present = [name for name, value in arguments.items() if value is not None]
    if present:
        raise ValueError(f"{present[0]} is {reason}: leave it out.")


def _read_fitted_draws(estimator: BaseEstimator) -> tuple[Array, SymmetryGroup, ParamLayout]:
    """Draws of a fitted sampler or ensemble, their symmetry group and their layout."""
    check_is_fitted(estimator)
    model = unwrap(estimator).model
    if not (hasattr(model, "samples_") and hasattr(model, "network_")):
        raise TypeError(
            f"{type(model).__name__} has no draws of a network's weights (samples_): give a fitted "
            "MCMCRegressor, MCMCClassifier or deep ensemble, or an array of draws."
        )
    return model.samples_, model.network_.symmetry(), model.network_.layout


def _check_draws(draws: Any, layout: ParamLayout) -> Array:
    """Check the draws and convert them to floats of shape (n, P) or (chains, n, P)."""
    if isinstance(draws, torch.Tensor):
        draws = draws.detach().cpu()  # NumPy doesn't convert tensors that require gradients
    values = check_array(
        draws,
        dtype=(np.float64, np.float32),
        ensure_2d=False,
        allow_nd=True,
        ensure_all_finite=False,
        ensure_min_samples=0,
        input_name="draws",
    )
    if values.ndim not in (2, 3):
        raise ValueError(
            "draws must have shape (n_draws, P) or (n_chains, n_draws, P), got shape "
            f"{values.shape}. Reshape it, or stack the draws of all chains along the first axis."
        )
    if values.shape[-1] != layout.n_params:
        parameters = ", ".join(f"{name} {shape}" for name, shape in layout.shapes.items())
        raise ValueError(
            f"draws has {values.shape[-1]} columns, but the network has {layout.n_params} weights "
            f"and biases: {parameters}. Leave out parameters that aren't the network's (noise, "
            "hyperparameters), or correct hidden_layer_sizes, n_features_in or n_outputs."
        )
    n_draws = values.size // values.shape[-1]
    if n_draws < 2:
        raise ValueError(
            f"draws has {n_draws} draws: labels are relative to other draws, so at least 2 are "
            "needed."
        )
    not_finite = np.flatnonzero(~np.isfinite(values).all(axis=-1))
    if len(not_finite):
        raise ValueError(
            f"draws must be finite, but {len(not_finite)} of {n_draws} draws have a NaN or "
            f"infinite value (the first is draw {not_finite[0]}, chains counted through). Leave "
            "diverged draws out."
        )
    return values
