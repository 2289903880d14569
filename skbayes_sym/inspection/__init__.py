"""Displays: arrays to keep, and one method that draws them."""

from skbayes_sym.inspection.model_comparison import ModelComparisonDisplay

__all__ = ["ModelComparisonDisplay"]
