r"""Probabilities of classes from any scores, by left-out rows.

.. math:: p_k(x) = (1 - \epsilon)\, \mathrm{softmax}_k(b\, s(x)) + \epsilon f_k

with the scores s (logarithms of probabilities, or means of a regression of one-hot labels), an
inverse temperature b (Guo et al. 2017) and a share of the class frequencies f, which keeps any
class from being impossible.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.optimise import by_autograd, lbfgs

# Normal priors of log b and of the logit of the share, and where they may lie.
_MEAN, _STD = (0.0, -4.0), (1.0, 2.0)
_BOUNDS = [(-3.0, 4.0), (-9.0, 0.0)]
_MAX_ITER = 100


@dataclass(frozen=True, eq=False)
class Calibration:
    """``log_slope`` is log b; ``share`` is epsilon; ``frequency`` (K,): of the classes."""

    log_slope: float
    share: float
    frequency: npt.NDArray[np.float64]

    def log_probs(self, scores: Tensor) -> Tensor:
        """Log probabilities (N, K) of scores (N, K)."""
        position = scores.new_tensor([self.log_slope, np.log(self.share) - np.log1p(-self.share)])
        return _log_probs(position, scores, torch.as_tensor(self.frequency).to(scores))


def _log_probs(position: Tensor, scores: Tensor, frequency: Tensor) -> Tensor:
    softmax = (position[0].exp() * scores).log_softmax(-1)
    kept, mixed = -torch.nn.functional.softplus(torch.stack([position[1], -position[1]]))
    return torch.logaddexp(kept + softmax, mixed + frequency.log())


def fit_calibration(scores: Tensor, y: Tensor, weight: Tensor) -> Calibration:
    """The calibration that left-out rows like best.

    ``scores`` (N, K): of every row without itself; ``y`` (N,): codes of the classes; ``weight``
    (N,). Half a row of every class is added to the frequencies.
    """
    n_classes = scores.shape[1]
    counts = torch.bincount(y, weight, minlength=n_classes).to(scores) + 0.5
    frequency, rows = counts / counts.sum(), torch.arange(len(y))
    mean, std = scores.new_tensor(_MEAN), scores.new_tensor(_STD)

    def loss(position: Tensor) -> Tensor:
        log_probs = _log_probs(position, scores, frequency)[rows, y]
        return 0.5 * ((position - mean) / std).square().sum() - weight @ log_probs

    log_slope, logit = lbfgs(by_autograd(loss), mean, max_iter=_MAX_ITER, bounds=_BOUNDS).tolist()
    share = float(1.0 / (1.0 + np.exp(-logit)))
    return Calibration(log_slope, share, frequency.cpu().numpy())
