"""What each recipe takes at least, from sizes alone.

Every formula is a lower bound: it counts what is certainly held at the same time (a prior, the
optimiser's copies, the draws that were asked for, a curvature matrix) and leaves out the rest, so
that a fit that would succeed isn't refused. What is refused would end in an allocation error, or in
the operating system's killing the process, minutes or hours later.
"""

from math import prod
from typing import Any

from skbayes_sym.estimators._fit.training import Training
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


def require_laplace(estimator: Any, context: Any, model: Any, batch_size: int) -> None:
    """Adam's copies of P weights, and the curvature of the P' covered ones.

    full        3 P'^2 b + K B P' b      matrix, its sum with the prior's, Cholesky factor
    diag        K B P' b                 derivatives of K outputs at B rows
    Kronecker   2 sum_l (D_l^2 + G_l^2) b      factors of D_l inputs and G_l outputs, and bases
    """
    layout, size = model.network.layout, context.dtype.itemsize
    shapes = [layout.shapes[layer.weight] for layer in model.layers]
    n_covered = sum(prod(s) + s[0] * (layer.bias is not None)
                    for s, layer in zip(shapes, model.layers, strict=True))  # fmt: skip
    squares = sum(s[0] ** 2 + prod(s[1:]) ** 2 for s in shapes)
    jacobian = shapes[-1][0] * batch_size * n_covered * size
    curvatures = {
        "full": (3 * n_covered**2 * size, "Use curvature='auto', or a smaller network."),
        "diag": (0, ""),
    }
    n_bytes, remedy = curvatures.get(
        estimator.curvature,
        (2 * squares * size, "Use curvature='diag', or narrower layers (hidden_layer_sizes)."),
    )
    parts = [
        rows_part(context),
        Part(
            f"{layout.n_params:,} weights", _ADAM * layout.n_params * size,
            "Lower hidden_layer_sizes, or use dtype='float32'.",
        ),
        Part(f"the curvature of {n_covered:,} weights", n_bytes, remedy),
    ]  # fmt: skip
    if estimator.curvature in curvatures:
        what = f"the derivatives of {batch_size} rows by {n_covered:,} weights"
        parts.append(Part(what, jacobian, "Lower batch_size, or use curvature='auto'."))
    require_memory(parts, context.device)
