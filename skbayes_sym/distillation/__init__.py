"""Train a small model on the predictions of a fitted one.

* `fit`: the public function `distill`
* `augmentation`: rows to train the student on, and the encoding of their columns
* `teacher_features`: hidden units of the teacher's networks as features of the student
* `student_training`: sizes, losses and training

The result is a `Student`, which needs only NumPy and SciPy.
"""

from skbayes_sym.distillation.fit import distill

__all__ = ["distill"]
