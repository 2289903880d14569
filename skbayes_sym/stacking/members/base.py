"""Interface of the models that a stack can contain."""

from typing import ClassVar

from skbayes_sym.stacking.task import MemberFit, StackTask


class Member:
    """Model that a stack can contain.

    Attributes
    ----------
    reads_original_rows : bool
        Whether the fitted predictor receives rows as the user passed them. Other predictors receive
        encoded and standardised rows.
    """

    reads_original_rows: ClassVar[bool] = False

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        raise NotImplementedError
