"""Benchmarks of skbayes_sym: `asv run` in the folder above."""
