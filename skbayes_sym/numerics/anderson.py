r"""Anderson mixing: where a fixed-point iteration leads, from its last few steps."""

import torch
from torch import Tensor


class AndersonMixing:
    r"""Proposals for the fixed point of a map g (Walker & Ni 2011, type II).

    Of the last few steps :math:`x_i \to g(x_i)` with residuals :math:`f_i = g(x_i) - x_i`,

    .. math:: \sum_i \alpha_i g(x_i), \qquad
        \alpha = \arg\min \Bigl| \sum_i \alpha_i f_i \Bigr|, \quad \sum_i \alpha_i = 1.

    On linear maps it is GMRES. Elsewhere it is a proposal only: the caller asks whether it is
    better.

    Parameters
    ----------
    depth : int
        Steps that are mixed.
    """

    def __init__(self, depth: int = 8) -> None:
        self._depth = depth
        self._history: list[tuple[Tensor, Tensor]] = []  # (residual, target)

    def propose(self, current: Tensor, target: Tensor) -> Tensor | None:
        """After a step from ``current`` to ``target``, both (n,); None after the first."""
        self._history.append((target - current, target))
        del self._history[: -self._depth]
        if len(self._history) < 2:
            return None
        residuals, goals = (torch.stack(t, dim=1) for t in zip(*self._history, strict=True))
        steps = residuals[:, 1:] - residuals[:, :-1]
        # On the host: a GPU has no driver for steps that depend on each other.
        wanted = residuals[:, -1:].cpu()
        mix = torch.linalg.lstsq(steps.cpu(), wanted, driver="gelsd").solution[:, 0].to(goals)
        return goals[:, -1] - (goals[:, 1:] - goals[:, :-1]) @ mix
