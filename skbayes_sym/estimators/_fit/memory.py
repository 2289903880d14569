"""What every fit takes at least, from sizes alone; methods add their own parts.

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
    """One double-precision scale per weight."""
    return Part(
        f"the prior of {n_params:,} weights", n_params * _DOUBLE, "Lower hidden_layer_sizes."
    )
