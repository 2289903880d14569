"""Objects of ``sampler=`` and ``remove_symmetries=``: the search for modes, and their weights.

`HMC` moves chains, and so does any other `Kernel`
(`skbayes_sym.mcmc.kernels`), which makes a `State` and an `Info`.
"""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.base import BaseEstimator

from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.mcmc.annealing import Annealing
from skbayes_sym.mcmc.kernels import Info, Kernel, State

__all__ = ["Info", "Kernel", "State"]  # a kernel of one's own; the objects are names of skbayes_sym


@dataclass(eq=False, repr=False)
class Chains(BaseEstimator):
    """Markov chains that look for modes, each from its own start.

    Parameters
    ----------
    kernel : {"auto", "hmc"} or Kernel, default="auto"
        What moves them. "hmc" is `HMC` with its defaults: jittered Hamiltonian Monte Carlo, all
        chains as one batch; "auto" the same, with the length that goes with ``init``. Or `HMC` with
        other settings, or a kernel of your own.
    init : {"auto", "prior", "laplace", "ensemble"} or Annealing, default="auto"
        Where chains start. "prior": at draws of the prior. "laplace": at modes found by
        Gauss-Newton steps, at most 16 (4 for classes), with the damped curvature there as the
        metric. Where modes of numbers are weighed by evidence, the search goes on while starts find
        new modes, for as long as the chains take. It needs a fully connected network, normal noise
        or softmax, and normal priors. "ensemble", for networks of hundreds of weights: each chain
        at a member of an ensemble, from where `Annealing`, which has settings, takes it to a wide
        basin. "auto", with ``kernel="auto"``, is "laplace" up to 500 weights where finding modes
        takes seconds, "ensemble" for other fully connected networks beyond 200 weights, and else
        "prior".
    n_warmup : int or None, default=None
        Iterations of each chain that adapt step size and scale. None is 1000, 150 with
        ``init="laplace"`` and 100 with ``init="ensemble"``, whose trajectories have about 60 steps.
    thinning : int, default=1
        Iterations per draw.
    warm_start : bool, default=False
        Whether `fit` goes on where the chains of the previous one stopped, with their step sizes
        and scales; ``n_warmup=0`` leaves these as they are.
    """

    kernel: str | Kernel = "auto"
    _: KW_ONLY
    init: str | Annealing = "auto"
    n_warmup: int | None = None
    thinning: int = 1
    warm_start: bool = False

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [StrOptions({"auto", "hmc"}), HasMethods("step")],
        "init": [StrOptions({"auto", "prior", "laplace", "ensemble"}), Annealing],
        "n_warmup": [Interval(Integral, 0, None, closed="left"), None],
        "thinning": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
    }


@dataclass(eq=False, repr=False)
class ModeWeights(BaseEstimator):
    """Weights of the modes of the posterior modulo its symmetry.

    Parameters
    ----------
    method : {"auto", "evidence", "uniform"}, default="auto"
        "evidence": its posterior mass, by bridge sampling; the chains are then allocated to the
        modes. "uniform": one vote per chain, which weighs modes by how many starts
        fall into their basins (Wiese et al. 2023); the other parameters say nothing to it.
        "evidence" falls back to it, with a `ConvergenceWarning`, where doubts about the evidence
        leave the weights open: but for modes 30 nats below the highest, which count for nothing.
        "auto" is "evidence" with 30 draws a parameter, of all chains together and up to 50 of each;
        "uniform" otherwise, and of annealed chains.
    effort : float, default=1.0
        What weighing modes may cost beyond the chains that were asked for, in units of what those
        cost: further draws of modes, and the new chains in them where exploring ones
        made all draws. 0 weighs the draws that there are.
    """

    method: str = "auto"
    effort: float = 1.0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "method": [StrOptions({"auto", "evidence", "uniform"})],
        "effort": [Interval(Real, 0, None, closed="left")],
    }
