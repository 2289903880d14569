"""Torch-only numerics: no model, no data."""
