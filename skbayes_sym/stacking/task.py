"""Training data as members of a stack receive them, and what a fitted member returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import safe_indexing
from skbayes_sym.models.model import Data
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.arguments import select_optional
from skbayes_sym.stacking.defaults import StackDefaults


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows in both forms that members read.

    Parameters
    ----------
    x : Tensor of shape (N, D)
        Encoded and standardised inputs.
    original : array-like or data frame of N rows
        The same rows in the form in which the user passed them.
    """

    x: Tensor
    original: Any

    def __len__(self) -> int:
        return len(self.x)

    @property
    def device(self) -> torch.device:
        """Device of predictions."""
        return self.x.device

    def take(self, index: Array) -> "RowBlock":
        """Select rows by their indices."""
        return RowBlock(self.x[torch.as_tensor(index)], safe_indexing(self.original, index))


@dataclass(frozen=True, eq=False)
class StackTask:
    """Distinct training rows with everything that members need for a fit.

    Parameters
    ----------
    rows : RowBlock
        Inputs of N distinct rows.
    y : Tensor of shape (N, 1) or (N,)
        Scaled targets, or class codes.
    weight : Tensor of shape (N,)
        Sample weights.
    targets : ndarray of shape (N,)
        Targets or class labels in the units of the user.
    folds : sequence of (ndarray, ndarray)
        Training and test indices of the cross-validation folds. No row is in two test sets. Rows
        that are in none aren't scored.
    seed : int
        Seed of all random numbers.
    target_scaling : tuple of (float, float), default=(0.0, 1.0)
        Mean and standard deviation by which the targets were standardised.
    classes : ndarray of shape (n_classes,), optional
        Class labels. None for regression.
    device : str, default="auto"
        Device on which networks are trained.
    n_jobs : int, optional
        Number of processes in which networks are trained.
    deadline : float, default=inf
        Time of `time.monotonic` after which no member is started.
    defaults : StackDefaults
        Constants of the default members.
    n_rows_full_fit : int, default=0
        Number of rows of the last full fit if this fit is a warm start, otherwise 0.
    is_count : bool, default=False
        Whether members are scored by their probabilities of counts instead of densities.
    groups : ndarray of int of shape (N,), optional
        Groups of rows that are left out together. They are numbered from 0, and no fold splits one.
    group_columns : str, default=""
        Description of columns that look like groups, for the summary.
    noise_std : Tensor of shape (N,), optional
        Known standard deviations of the errors of the targets, scaled.
    exposure : Tensor of shape (N,), optional
        Known exposures, by which the means of counts are multiplied.
    """

    rows: RowBlock
    y: Tensor
    weight: Tensor
    targets: Array
    folds: Sequence[tuple[Array, Array]]
    seed: int
    target_scaling: tuple[float, float] = (0.0, 1.0)
    classes: Array | None = None
    device: str = "auto"
    n_jobs: int | None = None
    deadline: float = float("inf")
    defaults: StackDefaults = field(default=StackDefaults())
    n_rows_full_fit: int = 0
    is_count: bool = False
    groups: Array | None = None
    group_columns: str = ""
    noise_std: Tensor | None = None
    exposure: Tensor | None = None

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def left_out_index(self) -> Array:
        """Indices of the rows that a fold leaves out, in increasing order."""
        return np.sort(np.concatenate([test for _, test in self.folds]))

    @property
    def data(self) -> Data:
        """Encoded rows, scaled targets or class codes, and weights as tensors."""
        return Data(self.rows.x, self.y, self.weight)

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for regression."""
        if self.classes is None:
            return 0
        return len(self.classes)

    @property
    def exposures(self) -> Tensor:
        """Exposures of the rows, (N,); ones by default."""
        if self.exposure is None:
            return torch.ones(len(self), dtype=torch.float64)
        return self.exposure

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """`data` as NumPy arrays with one-dimensional targets."""
        x, y, weight = (tensor.numpy() for tensor in self.data)
        return x, y.reshape(-1), weight

    def take(self, index: Array) -> "StackTask":
        """Select rows by their indices; the subset has neither folds nor groups."""
        subset = torch.as_tensor(index)
        return replace(
            self,
            rows=self.rows.take(index),
            y=self.y[subset],
            weight=self.weight[subset],
            targets=self.targets[index],
            folds=(),
            groups=None,
            noise_std=select_optional(self.noise_std, subset),
            exposure=select_optional(self.exposure, subset),
        )


class HeldOutScores(NamedTuple):
    """Scores of held-out rows by a member whose distributions are used as they are."""

    log_density: Tensor  # (n,), nats
    cdf: Tensor  # distribution function at the targets, (n,)


@dataclass(frozen=True, eq=False)
class MemberFit:
    """A fitted member in the units of the stack.

    Parameters
    ----------
    predictor : Predictor
        Predictions of the member.
    leave_one_out : NormalMixture, Tensor or HeldOutScores, optional
        Held-out predictions of the training rows: distributions of shape (S, N, 1) for regression,
        scores (N, K) for classification, log densities (N,), which are nan for unknown rows, or
        these with distribution functions at the targets. If it is None, the stack refits the
        member for each fold. With ``used_folds`` rows that no fold leaves out can have any value,
        and scores can be of the other rows alone.
    is_calibrated : bool, default=False
        Whether the predictive distributions are used as they are. Others get a noise model
        (regression) or a calibration (classification).
    is_point_prediction : bool, default=False
        Whether the predictor has no noise of its own and its distributions have unit noise.
    optimism : float, default=0.0
        Nats per row by which the held-out log densities are expected to be too high.
    approximate : NormalMixture, optional
        Approximate leave-one-out predictions (1, N, 1), which have seen the rows, of members that
        are scored by folds.
    used_folds : bool, default=False
        Whether `leave_one_out` is the result of cross-validation with the folds of the task.
    """

    predictor: Any
    leave_one_out: NormalMixture | Tensor | HeldOutScores | None = None
    is_calibrated: bool = False
    is_point_prediction: bool = False
    optimism: float = 0.0
    approximate: NormalMixture | None = None
    used_folds: bool = False


class ScoredMember(NamedTuple):
    """Fitted member with its leave-one-out scores."""

    predictor: Any
    log_density: Array  # of the training rows, (N,), nats
    # Leave-one-out distribution function at the targets, (N,), in the middle of the jumps of
    # counts. None for classes, and for members that only have leave-one-out densities.
    cdf: Array | None = None
    approximate: NormalMixture | None = None  # leave-one-out predictions, as in `MemberFit`
