r"""Calibrate scores of classes on held-out rows.

Scores s are logarithms of probabilities, or a regression of one-hot labels. They become

.. math:: p_k(x) = (1 - \epsilon)\, \mathrm{softmax}_k(b\, s(x)) + \epsilon f_k

with an inverse temperature b (Guo et al. 2017) and a weight :math:`\epsilon` of the class
frequencies f.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.optimise import lbfgs, with_gradient


@dataclass(frozen=True, eq=False)
class Calibration:
    r"""Map from scores to class probabilities.

    Attributes
    ----------
    log_slope : float
        Logarithm of the inverse temperature b.
    frequency_weight : float
        Weight :math:`\epsilon` of the class frequencies.
    frequency : ndarray of shape (K,)
        Class frequencies.
    """

    log_slope: float
    frequency_weight: float
    frequency: npt.NDArray[np.float64]

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return the log probabilities (N, K) of scores (N, K)."""
        logit = np.log(self.frequency_weight) - np.log1p(-self.frequency_weight)
        position = scores.new_tensor([self.log_slope, logit])
        return _log_probs(position, scores, torch.as_tensor(self.frequency).to(scores))


def _log_probs(position: Tensor, scores: Tensor, frequency: Tensor) -> Tensor:
    """Return log probabilities, given log b and the logit of the frequencies' weight."""
    softmax = (position[0].exp() * scores).log_softmax(-1)
    log_softmax_weight = -torch.nn.functional.softplus(position[1])
    log_frequency_weight = -torch.nn.functional.softplus(-position[1])
    return torch.logaddexp(log_softmax_weight + softmax, log_frequency_weight + frequency.log())


def fit_calibration(scores: Tensor, y: Tensor, weight: Tensor) -> Calibration:
    """Fit the calibration that maximises the log score of held-out rows.

    Parameters
    ----------
    scores : Tensor of shape (N, K)
        Scores of each row by a model that wasn't fitted to the row.
    y : Tensor of shape (N,)
        Class indices.
    weight : Tensor of shape (N,)
        Sample weights.

    Returns
    -------
    Calibration
        With half a row of each class added to the class frequencies.
    """
    n_classes = scores.shape[1]
    counts = torch.bincount(y, weight, minlength=n_classes).to(scores) + 0.5
    frequency = counts / counts.sum()
    rows = torch.arange(len(y))
    # Normal priors of log b and of the logit of the weight, and their bounds.
    mean = scores.new_tensor([0.0, -4.0])
    std = scores.new_tensor([1.0, 2.0])
    bounds = [(-3.0, 4.0), (-9.0, 0.0)]

    def loss(position: Tensor) -> Tensor:
        log_probs = _log_probs(position, scores, frequency)[rows, y]
        return 0.5 * ((position - mean) / std).square().sum() - weight @ log_probs

    log_slope, logit = lbfgs(with_gradient(loss), mean, max_iter=100, bounds=bounds).tolist()
    frequency_weight = float(1.0 / (1.0 + np.exp(-logit)))
    return Calibration(log_slope, frequency_weight, frequency.cpu().numpy())
