"""Log permanents and assignments: what a symmetrisation gap is made of."""

import torch

from skbayes_sym.numerics.assignment import sample_assignments
from skbayes_sym.numerics.permanent import log_permanent, soules_bound

from .common import DEVICES, SingleThread, require, synchronise

DRAWS = [1, 128]  # of a training step, and of the reported bounds


class _Weights(SingleThread):
    """Log weights (draws, d, d) of overlapping units."""

    param_names = ("width", "draws", "device")

    def setup(self, width: int, draws: int, device: str) -> None:
        require(device)
        super().setup()
        generator = torch.Generator().manual_seed(0)
        log_weights = torch.randn(draws, width, width, generator=generator, dtype=torch.float64)
        self.log_weights = (3.0 * log_weights).to(device).requires_grad_()
        self.generator = torch.Generator(device).manual_seed(0)


class Exact(_Weights):
    """The permanent by dynamic programming, O(d 2^d)."""

    params = ([5, 10, 12], DRAWS, DEVICES)

    def setup(self, width: int, draws: int, device: str) -> None:
        super().setup(width, draws, device)
        self.time_value(width, draws, device)  # the indices are cached

    def time_value(self, width: int, draws: int, device: str) -> None:
        with torch.no_grad():
            log_permanent(self.log_weights)
        synchronise(device)

    def time_gradient(self, width: int, draws: int, device: str) -> None:
        torch.autograd.grad(log_permanent(self.log_weights).sum(), self.log_weights)
        synchronise(device)

    def peakmem_gradient(self, width: int, draws: int, device: str) -> None:
        self.time_gradient(width, draws, device)


class Bounds(_Weights):
    """The gate's bound, O(d^2 log d), and 16 assignments, O(16 d^2)."""

    params = ([10, 30, 100], DRAWS, DEVICES)

    def time_soules(self, width: int, draws: int, device: str) -> None:
        with torch.no_grad():
            soules_bound(self.log_weights, tighten=True)
        synchronise(device)

    def time_sample_assignments(self, width: int, draws: int, device: str) -> None:
        sample_assignments(self.log_weights.detach(), 16, generator=self.generator)
        synchronise(device)
