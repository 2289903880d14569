"""Comparing and choosing models."""

from skbayes_sym.model_selection._entries import EntryKFold, cross_validate_entries

__all__ = ["EntryKFold", "cross_validate_entries"]
