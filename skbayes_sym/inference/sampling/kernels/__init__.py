"""Markov moves of many chains as one batch: what chains and particles share.

Reading order: `kernel` (State, Info, the protocols Preconditioner and Kernel), `hmc` (leapfrog and
accept, anywhere or within one copy of a symmetric posterior), `rescaling` (changes of scale under
heavy tails), `particle_alignment` (a cloud's scales once its symmetry is removed).

In: a `LogDensity` and the state of C chains. Out: their next state, and what the move did. Kernels
keep no state; everything adaptive is an argument.
"""
