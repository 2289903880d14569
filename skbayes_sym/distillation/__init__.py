"""Small models that predict what fitted ones do."""

from skbayes_sym.distillation.distilling import distill

__all__ = ["distill"]
