"""Memory of fits and of draws of functions, from sizes alone; methods add parts.

Every formula is a lower bound: it counts what is certainly held at the same time (a prior, the
optimiser's copies, the draws that were asked for, a curvature matrix) and leaves out the rest, so
that a fit that would succeed isn't refused. What is refused would end in an allocation error, or in
the operating system's killing the process, minutes or hours later.
"""

from skbayes_sym.estimators._fit.training import Training
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
    """Bytes of a double-precision scale per weight."""
    return Part(
        f"the prior of {n_params:,} weights", n_params * _DOUBLE, "Lower hidden_layer_sizes."
    )


def draws_part(n_draws: int, n_rows: int, n_targets: int) -> Part:
    """Draws (n, N, T) of targets, and the noise of as many."""
    return Part(
        f"{n_draws:,} draws of {n_rows:,} rows and {n_targets} targets with their noise",
        2 * n_draws * n_rows * n_targets * _DOUBLE,
        "Lower n_samples, or ask for fewer rows at once.",
    )


def covariance_part(n_rows: int, n_targets: int) -> Part:
    """The joint covariance of functions at rows, in scaled units and in the targets': 16 N^2 T."""
    return Part(
        f"the covariance of {n_rows:,} rows of {n_targets} targets",
        2 * n_rows**2 * n_targets * _DOUBLE,
        "Ask for fewer rows, or use return_std=True.",
    )
