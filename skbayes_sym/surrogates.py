"""A fitted regressor as a model of BoTorch: an ensemble of functions drawn from its posterior."""

from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators.predictive import predictive
from skbayes_sym.numerics.arguments import check_count, check_number, seed_of


class _Functions(torch.autograd.Function):
    """Draws at rows, differentiable in the rows by central differences."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, draw: Callable[[Tensor], Tensor], step: float) -> Tensor:
        """Draws (S, N, T) at rows (N, d)."""
        ctx.save_for_backward(rows)
        ctx.draw, ctx.step = draw, step
        return draw(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Pull gradients (S, N, T) back to the rows: draws of a row depend on that row alone."""
        (rows,) = ctx.saved_tensors
        n, d = rows.shape
        steps = ctx.step * torch.eye(d).to(rows).unsqueeze(1)  # (d, 1, d)
        ends = torch.cat([rows + steps, rows - steps]).reshape(-1, d)
        above, below = ctx.draw(ends).unflatten(1, (2, d, n)).unbind(1)  # (S, d, N, T) each
        slopes = (above - below) / (2.0 * ctx.step)
        return torch.einsum("sjnt,snt->nj", slopes, gradients[0]), None, None


def botorch_model(
    model: Any, n_draws: int = 128, *, step: float = 1e-4, random_state: Any = 0
) -> Any:
    """A fitted regressor for BoTorch's acquisition functions.

    Its posterior is an ensemble of functions: draws are joint over the points of a batch and the
    same for all points, without observation noise.

    Parameters
    ----------
    model : fitted estimator
        Regressor of this package, or a pipeline or search around one.
    n_draws : int, default=128
        Functions drawn.
    step : float, default=1e-4
        Of the differences that gradients by the inputs are, in the units of ``X``; smooth models
        have them to some 1e-7.
    random_state : int, RandomState instance or None, default=0

    Returns
    -------
    botorch.models.ensemble.EnsembleModel

    Raises
    ------
    ImportError
        Without BoTorch: ``pip install skbayes-sym[botorch]``.
    """
    try:
        from botorch.models.ensemble import EnsembleModel
    except ImportError as error:
        raise ImportError("botorch_model needs BoTorch: pip install botorch.") from error
    n_draws = check_count("n_draws", n_draws)
    seed = random_state if isinstance(random_state, Integral) else seed_of(random_state) % 2**32
    check_number("step", step, np.finfo(float).eps)

    def draw(rows: Tensor) -> Tensor:
        values = predictive(model, rows.detach().cpu().numpy()).functions(n_draws, seed)
        return torch.as_tensor(values.reshape(len(rows), -1, n_draws)).to(rows).movedim(2, 0)

    class FunctionDraws(EnsembleModel):  # type: ignore[misc]
        """Functions drawn from a fitted regressor."""

        def forward(self, X: Tensor) -> Tensor:
            """Functions (..., S, q, T) at points (..., q, d)."""
            values = _Functions.apply(X.flatten(0, -2), draw, step)
            return values.unflatten(1, X.shape[:-1]).movedim(0, -3)

    surrogate, d = FunctionDraws(), model.n_features_in_
    surrogate._num_outputs = int(np.prod(np.shape(model.predict(np.zeros((1, d))))))
    return surrogate
