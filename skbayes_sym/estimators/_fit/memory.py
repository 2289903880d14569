"""What each recipe takes at least, from sizes alone.

Every formula is a lower bound: it counts what is certainly held at the same time (a prior, the
optimiser's copies, the draws that were asked for, a curvature matrix) and leaves out the rest, so
that a fit that would succeed isn't refused. What is refused would end in an allocation error, or in
the operating system's killing the process, minutes or hours later.
"""

from typing import Any

from skbayes_sym.estimators._fit.training import Training, automatic_batch
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.memory import Part as Part
from skbayes_sym.numerics.memory import require_memory as require_memory

_DOUBLE = 8  # bytes
_ADAM = 4  # copies of what is optimised: values, gradient, two moments


def rows_part(context: Training) -> Part:
    rows = context.rows.X
    return Part(
        f"{rows.shape[0]} distinct rows of {rows.shape[1]} features",
        rows.size * context.dtype.itemsize,
        "Use fewer of them.",
    )


def prior_part(n_params: int) -> Part:
    return Part(
        f"the prior of {n_params:,} weights", n_params * _DOUBLE, "Lower hidden_layer_sizes."
    )


def _rows_a_step(estimator: Any, n_rows: int) -> int:
    if estimator.batch_size == "auto":
        return automatic_batch(n_rows)
    return min(int(estimator.batch_size), n_rows)


def require_variational(estimator: Any, context: Any, network: MLP) -> None:
    """Mean field: means, variances and what Adam keeps of both, P weights; a step's activations.

        8 P + 8 P b + 4 B S W b,        S = n_weight_samples, W units in all layers

    for numbers of b bytes and B rows a step.
    """
    n_rows, size = len(context.rows.X), context.dtype.itemsize
    n_params, units = network.layout.n_params, sum(network.sizes[1:])
    batch = _rows_a_step(estimator, n_rows)
    require_memory(
        [
            rows_part(context),
            prior_part(n_params),
            Part(
                f"means and variances of {n_params:,} weights",
                2 * _ADAM * n_params * size,
                "Lower hidden_layer_sizes, or use dtype='float32'.",
            ),
            Part(
                f"the activations of {batch} rows",
                4 * batch * estimator.n_weight_samples * units * size,
                "Lower batch_size or n_weight_samples.",
            ),
        ],
        context.device,
    )


def require_layerwise(estimator: Any, context: Any, network: MLP) -> None:
    """Draws of the hidden layers' weights, and the last layer's features, in float64.

        8 P + 8 S (P' + B K),       S = max(2, n_weight_samples), K = units below the last layer

    with P' weights below the last layer and B rows a step.
    """
    n_rows, n_draws = len(context.rows.X), max(2, estimator.n_weight_samples)
    batch = n_rows if estimator.last_layer == "collapsed" else _rows_a_step(estimator, n_rows)
    n_params = network.layout.n_params
    hidden = n_params - network.sizes[-1] * (network.sizes[-2] + 1)
    require_memory(
        [
            rows_part(context),
            prior_part(n_params),
            Part(
                f"{n_draws} draws of {hidden:,} weights",
                n_draws * hidden * _DOUBLE,
                "Lower hidden_layer_sizes or n_weight_samples.",
            ),
            Part(
                f"the last layer's features of {batch} rows",
                n_draws * batch * (network.sizes[-2] + 1) * _DOUBLE,
                "Lower n_weight_samples or hidden_layer_sizes, use fewer rows, or "
                "last_layer='variational', which takes a batch_size.",
            ),
        ],
        context.device,
    )
