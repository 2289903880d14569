"""Train a small model on the predictions of a fitted one.

* `fit`: the public function `distill`
* `augmentation`: rows to train the student on
* `teacher_features`: hidden units of the teacher's networks as starting values
* `student_training`: losses and training

The result is a `Student`, which needs only NumPy.
"""

from skbayes_sym.distillation.fit import distill

__all__ = ["distill"]
