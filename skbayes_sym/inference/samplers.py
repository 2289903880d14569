"""Objects of ``sampler=``, ``init=`` and ``mode_weights=``: who looks for modes, their weights.

`HMC` and `NUTS` move chains, and so does any other `Kernel`
(`skbayes_sym.inference.sampling.kernels.base`), which makes a `State` and an `Info`.
"""

from dataclasses import dataclass
from numbers import Integral

from skbayes_sym.inference.sampling.annealing import Annealing
from skbayes_sym.inference.sampling.kernels.base import Info, Kernel, State
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.kernels.nuts import NUTS

__all__ = ["HMC", "NUTS", "SMC", "Annealing", "Evidence", "Info", "Kernel", "State"]


_MOST_REPLICATES = 4  # of "auto"


@dataclass(frozen=True)
class SMC:
    """Independent replicates of sequential Monte Carlo.

    Particles are carried from the prior to the posterior by tempering the likelihood. As
    ``sampler=`` they alone look for modes.

    Parameters
    ----------
    n_particles : int, default=256
        Of each replicate, at least 2.
    n_replicates : int, default=4
        Runs that know nothing of each other.
    """

    n_particles: int = 256
    n_replicates: int = 4

    def __post_init__(self) -> None:
        _require_at_least(2, self, "n_particles")
        _require_at_least(1, self, "n_replicates")


@dataclass(frozen=True)
class Evidence:
    """Modes count for their posterior mass, found by bridge sampling.

    Beside the chains a few replicates of sequential Monte Carlo (`SMC`) look for modes.

    Parameters
    ----------
    n_replicates : int or "auto", default="auto"
        0 leaves it to the chains. "auto": up to 4, as many as ``evidence_effort`` allows.
    n_particles : int, default=256
        Of each replicate, at least 2.
    """

    n_replicates: int | str = "auto"
    n_particles: int = 256

    def __post_init__(self) -> None:
        if self.n_replicates != "auto":
            _require_at_least(0, self, "n_replicates")
        _require_at_least(2, self, "n_particles")

    @property
    def particles(self) -> SMC | None:
        """The replicates, if there are any."""
        if isinstance(self.n_replicates, str):
            return SMC(self.n_particles, _MOST_REPLICATES)
        return SMC(self.n_particles, self.n_replicates) if self.n_replicates else None


def _require_at_least(least: int, settings: object, name: str) -> None:
    value = getattr(settings, name)
    if not isinstance(value, Integral) or value < least:
        kind = type(settings).__name__
        raise ValueError(f"{kind}: {name} must be an int of at least {least}, got {value!r}.")
