"""Markov chains: kernels that move a batch of chains, adaptation, and the loops around them."""
