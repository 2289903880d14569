"""Small models that predict what fitted ones do.

Reading order: `rows_to_learn`, `schooling` (losses and training), `taken_units` (of the teacher's
networks), `distilling` (the face).

In: any fitted model. Out: a `Student`, which needs NumPy alone.
"""

from skbayes_sym.distillation.distilling import distill

__all__ = ["distill"]
