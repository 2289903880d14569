"""Who looks for modes: chains, particles, or both; and whether modes are weighed by evidence."""

from typing import NamedTuple

from skbayes_sym.inference.kernels.base import Kernel
from skbayes_sym.inference.samplers import SMC


class Search(NamedTuple):
    """How modes are looked for, and what they count for."""

    kernel: Kernel | None  # moves the chains that explore; None if only particles do
    particles: SMC | None
    by_evidence: bool  # else every chain, or replicate, has one vote
