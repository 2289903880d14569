"""What every fit takes at least, and draws of functions, from sizes alone; methods add parts.

Every formula is a lower bound: it counts what is certainly held at the same time (a prior, the
optimiser's copies, the draws that were asked for, a curvature matrix) and leaves out the rest, so
that a fit that would succeed isn't refused. What is refused would end in an allocation error, or in
the operating system's killing the process, minutes or hours later.
"""

from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.memory import Part

_DOUBLE = 8  # bytes


def rows_part(context: Training) -> Part:
    """The distinct rows of ``X``, in the precision of the fit."""
    rows = context.rows.X
    return Part(
        f"{rows.shape[0]} distinct rows of {rows.shape[1]} features",
        rows.size * context.dtype.itemsize,
        "Use fewer of them.",
    )


def prior_part(n_params: int) -> Part:
    """One double-precision scale per weight."""
    return Part(
        f"the prior of {n_params:,} weights", n_params * _DOUBLE, "Lower hidden_layer_sizes."
    )


def weights_bytes(n_params: int) -> int:
    """Of P weights while they are drawn, 24 P: random numbers, the same scaled, and moved."""
    return 3 * n_params * _DOUBLE


def units_bytes(network: Network, n_rows: int, size: int) -> int:
    """Of a forward pass of one function at B rows, B u b for numbers of b bytes.

    u is the most of a layer's inputs with two copies of its outputs; inputs of the first layer are
    those of all functions.
    """
    widths = network.sizes[1:] if isinstance(network, MLP) else (network.n_outputs,)
    pairs = zip((0, *widths[:-1]), widths, strict=True)
    return n_rows * size * max(n_in + 2 * n_out for n_in, n_out in pairs)


def function_bytes(network: Network, n_rows: int, size: int) -> int:
    """Of one function drawn: its P weights as they are drawn, or they and its units at rows."""
    n_params = network.layout.n_params
    units = units_bytes(network, n_rows, size)
    return max(weights_bytes(n_params), n_params * _DOUBLE + units)


def sampling_parts(shape: tuple[int, int, int], *, each: int, n_copies: int) -> list[Part]:
    """Draws (n, N, T) of targets, and what comes before them or beside them.

    8 n N T bytes, and the larger of n functions of ``each`` so many bytes, while those are found
    at a block of rows, and ``n_copies`` of the draws, while noise is added.
    """
    n_draws, n_rows, n_targets = shape
    remedy = "Lower n_samples, or ask for fewer rows at once."
    values = n_draws * n_rows * n_targets * _DOUBLE
    what = f"{n_draws:,} draws of {n_rows:,} rows and {n_targets} targets"
    if n_draws * each <= n_copies * values:
        return [Part(f"{what} with their noise", (1 + n_copies) * values, remedy, on_host=True)]
    return [
        Part(what, values, remedy, on_host=True),
        Part(f"{n_draws:,} functions at a block of rows", n_draws * each, remedy),
    ]


def covariance_part(n_rows: int, n_targets: int) -> Part:
    """The joint covariance of functions at rows, in scaled units and in the targets': 16 N^2 T."""
    return Part(
        f"the covariance of {n_rows:,} rows of {n_targets} targets",
        2 * n_rows**2 * n_targets * _DOUBLE,
        "Ask for fewer rows, or use return_std=True.",
        on_host=True,
    )
