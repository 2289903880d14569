"""Interface of the models that a stack can contain."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from skbayes_sym.base.plan import PlannedStage, TableSize
from skbayes_sym.base.rows import Array
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.task import MemberFit, StackTask


class Member:
    """Model that a stack can contain.

    A member is a dataclass if it has settings. The plan of the stack sets its fields.

    Attributes
    ----------
    reads_original_rows : bool
        Whether the fitted predictor receives rows as the user passed them. Other predictors receive
        encoded and standardised rows.
    is_expensive : bool
        Whether the member is planned after all others and fitted on its own, not in parallel.
    relative_cost : float
        Expected time of the fit relative to other members. Members that are fitted in parallel
        begin in order of decreasing costs.
    has_exclusive_fit : bool
        Whether scikit-learn fits its trees, of which `filters_lock` admits one at a time.
    takes_known_errors : bool
        Whether the member takes known errors of the targets. It then returns leave-one-out log
        densities that include them.
    takes_exposure : bool
        Whether the member takes exposures of counts.
    predicts_counts : bool
        Whether the member predicts counts, so that all members are scored by probabilities.
    """

    reads_original_rows: ClassVar[bool] = False
    is_expensive: ClassVar[bool] = False
    relative_cost: ClassVar[float] = 1.0
    has_exclusive_fit: ClassVar[bool] = False
    takes_known_errors: ClassVar[bool] = False
    takes_exposure: ClassVar[bool] = False
    predicts_counts: ClassVar[bool] = False

    def choose_settings(self, _size: TableSize, _defaults: StackDefaults) -> dict[str, Any]:
        """Choose values of the fields by the size of the table."""
        return {}

    def plan(self, name: str, size: TableSize, defaults: StackDefaults) -> list[PlannedStage]:
        """Plan the stages in which the member is fitted.

        Parameters
        ----------
        name : str
            Name of the member, and of the stage in which it is fitted.
        size : TableSize
            Size of the training data.
        defaults : StackDefaults
            Constants of the stack.

        Returns
        -------
        list of PlannedStage
            By default a single stage.
        """
        settings = {"member": name, **self.choose_settings(size, defaults)}
        return [PlannedStage(name, "fit_member", settings)]

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        raise NotImplementedError

    def choose_folds(self, task: StackTask) -> Sequence[tuple[Array, Array]]:
        """Choose the folds of refits if the user has given none."""
        return task.folds

    def fit_fold(self, task: StackTask, _fit: MemberFit) -> Any:
        """Fit the model to the training rows of a fold and return its predictor.

        Parameters
        ----------
        task : StackTask
            Training rows of the fold.
        _fit : MemberFit
            Fit to all rows, whose size expensive members can take over.

        Returns
        -------
        Predictor
            Predictor of the same kind as that of the fit to all rows.
        """
        return self.fit(task).predictor


def require_classes(task: StackTask) -> None:
    """Raise a ValueError if the training rows of a fold are all of one class."""
    classes = np.unique(task.targets)
    if len(classes) < 2:
        raise ValueError(
            f"the training rows of a fold are all of class {classes.tolist()[0]!r}. Use folds or "
            "groups with several classes, as by StratifiedKFold or StratifiedGroupKFold."
        )
