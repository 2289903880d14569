"""Symmetry removal from draws of any sampler."""

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.base.device import one_thread
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
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP
from skbayes_sym.numerics.arguments import draw_seed
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import generator_from
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
    draws: Any, *, module: Any = None, example_input: Any = None,
    hidden_layer_sizes: int | Sequence[int] | None = None, activation: str | None = None,
    n_features_in: int | None = None, n_outputs: int = 1, n_starts: int = 4,
    max_sweeps: int = 100, random_state: Any = None,
) -> Bunch:  # fmt: skip
    """Move draws of a network's weights to one representative of each symmetry orbit.

    Hidden units of a layer can be exchanged, behind an odd activation (tanh, identity) also
    negated, without changing the function, and samplers visit all those copies. Here the one group
    element that makes a draw most like the others acts on it. Its function stays the same exactly:
    weights only change place and sign.

    Parameters
    ----------
    draws : array-like of shape (n_draws, P) or (n_chains, n_draws, P), or fitted estimator
        A fitted sampler or ensemble of this package, or a pipeline or search around one, brings
        its draws and its network. Else weights from NumPyro, PyMC, Stan or any sampler; at least 2
        draws. Flat order: layer by layer, the weights (row-major, out x in), then the biases. Noise
        scales and other parameters that aren't the network's must be left out.
    module : torch.nn.Module, optional
        Network of an array of draws, whatever its layers: the draws are ``parameters()``, flattened
        in order, and `symmetry_of` finds the group. Its own values don't matter.
    example_input : Tensor or tuple of Tensor
        Arguments of one call of the module.
    hidden_layer_sizes : int or sequence of int
        Widths of the hidden layers; empty for a linear model, whose draws stay as they are. This
        and the next two are needed with an array where no module is given, and only there.
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
        group : SymmetryGroup
            What acted on the draws.
        draws : ndarray, shape and floating dtype of ``draws``
            On one representative: in each layer, units in decreasing order of the norm of their
            mean weights from the inputs (or earlier layers) and bias, the largest of which is made
            positive.
        permutations : list of int64 ndarrays of shape (..., d), one a hidden layer or set of units
            Leading axes as those of ``draws``.
            Unit ``i`` of the result is ``signs[i]`` times unit ``permutations[i]`` of the draw.
        signs : list of int8 ndarrays of the same shapes
            +1 or -1; all +1 unless the activation is odd.
        margin : ndarray with the leading axes of ``draws``, nats
            How decided the labels of a draw are: the log density of its units under the Gaussians
            of all draws, less that under the best other labels of one layer, at its least over
            layers. ``exp(-margin)`` is the odds of the runner-up: 0 is undecided, 3 is 20 to 1.
            Negative if other labels fit better (only after a `ConvergenceWarning`); inf if there
            are no others. None where units of a module lie
            inside others (heads of attention), on two axes of a parameter or have several signs:
            those draws are moved nearest to their mean, and the order is that of one of them.

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
    the prior, the alignment isn't identified. Functions stay right; means, variances and plots of
    single weights don't. Look at ``margin``, which is optimistic for overlapping units.

    The method is Stephens' relabelling with a diagonal Gaussian for every unit and exact
    assignments. It takes O(n d^2 p) a sweep and layer of d units with p weights, and a few
    assignment problems a draw.

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
    told = described | {"n_outputs": n_outputs if n_outputs != 1 else None}
    if isinstance(draws, BaseEstimator):
        draws, group, layout = _fitted_draws(draws, told | {"module": module})
    elif module is not None:
        _leave_out(told, "the module's own")
        if example_input is None:
            raise TypeError("module needs example_input, the arguments of one call.")
        group = symmetry_of(module, example_input)
        layout = group.layout
    else:
        network = _network(described, n_outputs)
        group = network.symmetry()
        layout = network.layout
    values = _check_draws(draws, layout)
    flat = torch.from_numpy(values.reshape(-1, values.shape[-1]).astype(np.float64))
    seed = draw_seed(random_state)
    of_units = all(isinstance(factor, UnitGroup) for factor in group.factors)
    with one_thread(), torch.no_grad():
        moved = (relabel if of_units else align_to_mean)(
            flat, group, n_starts=int(n_starts), max_sweeps=int(max_sweeps),
            generator=generator_from(seed),
        )  # fmt: skip
        margin = label_margin(moved.theta, group) if of_units else None
    if moved.n_changing:
        warn_user(
            f"{moved.n_changing} of {len(moved.theta)} draws still changed their labels "
            f"in the last of max_sweeps={max_sweeps} sweeps: functions are right, labels may not "
            "be. Look at margin; raise max_sweeps if labels matter.",
            ConvergenceWarning,
        )
    shape = values.shape[:-1]
    labels = list(_unit_labels(moved.elements))
    permutations, signs = ([g[k].numpy().reshape(*shape, *g[k].shape[1:]) for g in labels]
                           for k in range(2))  # fmt: skip
    return Bunch(
        group=group, draws=moved.theta.numpy().astype(values.dtype).reshape(values.shape),
        permutations=permutations, signs=signs,
        margin=None if margin is None else margin.numpy().reshape(shape),
    )  # fmt: skip


def _unit_labels(element: Any) -> Iterator[SignedPermutation]:
    """The sets of units of an element, those inside others after them."""
    if isinstance(element, SignedPermutation):
        yield element
    else:
        for part in element:
            yield from _unit_labels(part)


def _network(described: dict[str, Any], n_outputs: int) -> MLP:
    missing = [name for name, value in described.items() if value is None]
    if missing:
        raise TypeError(
            f"draws are an array, so {', '.join(missing)} must say what network they are of; or "
            "give module= and example_input=. A fitted estimator brings its own network."
        )
    sizes = as_sizes(described["hidden_layer_sizes"])
    activation = ACTIVATIONS[described["activation"]]
    return MLP(int(described["n_features_in"]), sizes, int(n_outputs), activation)


def _leave_out(described: dict[str, Any], why: str) -> None:
    told = [name for name, value in described.items() if value is not None]
    if told:
        raise ValueError(f"{told[0]} is {why}: leave it out.")


def _fitted_draws(
    estimator: BaseEstimator, described: dict[str, Any]
) -> tuple[Array, SymmetryGroup, ParamLayout]:
    """Draws of a fitted sampler or ensemble, bare or wrapped, their group and parameters."""
    check_is_fitted(estimator)
    model = unwrap(estimator).model
    if not {"samples_", "network_"} <= vars(model).keys():
        raise TypeError(
            f"{type(model).__name__} has no draws of a network's weights (samples_): give a fitted "
            "MCMCRegressor, MCMCClassifier or deep ensemble, or an array of draws."
        )
    _leave_out(described, "the fitted estimator's own")
    return model.samples_, model.network_.symmetry(), model.network_.layout


def _check_draws(draws: Any, layout: ParamLayout) -> Array:
    """Finite floats of shape (n, P) or (chains, n, P), at least two draws."""
    if isinstance(draws, torch.Tensor):
        draws = draws.detach().cpu()  # NumPy takes no tensor that requires a gradient
    values = check_array(
        draws, dtype=(np.float64, np.float32), ensure_2d=False, allow_nd=True,
        ensure_all_finite=False, ensure_min_samples=0, input_name="draws",
    )  # fmt: skip
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
    bad = np.flatnonzero(~np.isfinite(values).all(axis=-1))
    if len(bad):
        raise ValueError(
            f"draws must be finite, but {len(bad)} of {n_draws} draws have a NaN or infinite value "
            f"(the first is draw {bad[0]}, chains counted through). Leave diverged draws out."
        )
    return values
