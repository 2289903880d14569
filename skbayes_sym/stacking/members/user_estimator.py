"""Estimator of the user as a member of a stack."""

from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from skbayes_sym.base.predictive import predicts_counts
from skbayes_sym.base.sample_weights import fit_with_weights, weight_support
from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.predictors import UserPredictor
from skbayes_sym.stacking.task import MemberFit, StackTask


@dataclass(frozen=True, eq=False)
class UserEstimator(Member):
    """Any estimator, cloned and fitted to the rows as the user passed them.

    Its held-out predictions are those of refits without each fold.

    Parameters
    ----------
    estimator : estimator
        Unfitted estimator.
    """

    reads_original_rows: ClassVar[bool] = True
    relative_cost: ClassVar[float] = 4.0

    estimator: Any

    @property
    def takes_exposure(self) -> bool:  # type: ignore[override]
        """Whether the estimator predicts counts, and its ``fit`` takes their exposures."""
        return (
            predicts_counts(self.estimator)
            and "exposure" in signature(self.estimator.fit).parameters
        )

    @property
    def predicts_counts(self) -> bool:  # type: ignore[override]
        """Whether the estimator predicts counts."""
        return predicts_counts(self.estimator)

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        # Unset random states get the seed of the stack.
        random_states = {
            name: task.seed % 2**32
            for name, value in self.estimator.get_params(deep=True).items()
            if value is None and name.rpartition("__")[2] == "random_state"
        }
        model = clone(self.estimator).set_params(**random_states)

        # Whole weights are equivalent to repeated rows, for estimators without sample_weight.
        weight = task.weight.numpy()
        X = task.rows.original
        y = task.targets
        is_whole = bool((weight == weight.round()).all())
        support = weight_support(model)
        if task.exposure is not None:
            model.fit(X, y, weight, exposure=task.exposure.numpy())
        elif (weight == 1.0).all():
            model.fit(X, y)
        elif support == "all" or (support == "some" and not is_whole):
            fit_with_weights(model, X, y, weight)
        elif is_whole:
            repeated = np.repeat(np.arange(len(weight)), weight.astype(int))
            model.fit(task.rows.take(repeated).original, y[repeated])
        else:
            raise TypeError(
                "its fit, or that of a model in it, takes no sample_weight, and the weights aren't "
                "whole numbers."
            )

        predictor = UserPredictor(model, *task.target_scaling, task.classes)
        is_point_prediction = predictor.is_point_prediction
        return MemberFit(
            predictor,
            is_calibrated=not task.n_classes and not is_point_prediction,
            is_point_prediction=is_point_prediction,
        )
