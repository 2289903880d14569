"""Objects for the ``sampler`` and ``remove_symmetries`` parameters.

`Chains` configures the Markov chains and `ModeWeights` the weights of the modes they find. The
chains are moved by `HMC` or any other `Kernel` (`skbayes_sym.mcmc.kernels`), which returns a
`State` and an `Info`.
"""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.base import BaseEstimator

from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.mcmc.annealing import Annealing
from skbayes_sym.mcmc.kernels import Info, Kernel, State

__all__ = ["Info", "Kernel", "State"]  # for custom kernels; the classes below are in skbayes_sym


class _ParameterObject(BaseEstimator):
    """Object with validated parameters, used as a parameter of an estimator."""

    def validate(self) -> None:
        """Raise if a parameter is invalid."""
        self._validate_params()


@dataclass(eq=False, repr=False)
class Chains(_ParameterObject):
    """Markov chains with independent starting points.

    Parameters
    ----------
    kernel : {"auto", "hmc"} or Kernel, default="auto"
        Markov kernel. "hmc" is `HMC` with its default parameters: jittered Hamiltonian Monte Carlo
        of all chains as one batch. "auto" is the same with the trajectory length that suits
        ``init``. Alternatively an `HMC` object or a custom kernel.
    init : {"auto", "prior", "laplace", "ensemble"} or Annealing, default="auto"
        How chains start.

        * "prior": at draws of the prior.
        * "laplace": at modes found by Gauss-Newton steps, at most 16 (4 for classification), with
          the inverse of the damped curvature as the metric. In regression with modes weighted by
          evidence, the search continues as long as it finds new modes, for at most the time that
          the chains take. It needs a fully connected network, normal noise or softmax, and normal
          priors.
        * "ensemble", for networks of hundreds of weights: at random initialisations, as the members
          of a deep ensemble. `Annealing` then moves each chain to a wide basin. An `Annealing`
          object sets its parameters.
        * "auto" with ``kernel="auto"`` is "laplace" up to 500 weights if finding the modes takes
          seconds, "ensemble" for other fully connected networks beyond 200 weights, and "prior"
          otherwise. With another kernel it is "prior".
    n_warmup : int or None, default=None
        Warm-up moves of each chain, which adapt step size and scale. None is 1000, 150 with
        ``init="laplace"`` and 100 with ``init="ensemble"``, whose trajectories have about 60 steps.
    thinning : int, default=1
        Moves per draw.
    warm_start : bool, default=False
        Whether `fit` continues the chains of the previous fit, with their step sizes and scales.
        ``n_warmup=0`` leaves these unchanged.
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
class ModeWeights(_ParameterObject):
    """Weights of the modes of the posterior modulo its symmetry.

    Parameters
    ----------
    method : {"auto", "evidence", "uniform"}, default="auto"
        How modes are weighted.

        * "evidence": by their posterior mass, which bridge sampling estimates. Chains are then
          allocated to the modes in proportion. If the uncertainty of the evidence leaves the
          weights open, a `ConvergenceWarning` is issued and chains are weighted equally, except
          that modes 30 nats below the highest have weight 0.
        * "uniform": all chains have equal weights, so that a mode's weight is the fraction of
          starting points in its basin (Wiese et al. 2023). ``budget`` is ignored.
        * "auto": "evidence" if there are at least 30 draws per parameter, over all chains together
          and with up to 50 of each; "uniform" otherwise, and for annealed chains.
    budget : float, default=1.0
        Additional computation for the evidence, relative to that of the requested chains: further
        draws of modes, and the new chains in the modes if the initial chains made all their draws.
        With 0 the evidence is estimated from the existing draws.
    """

    method: str = "auto"
    budget: float = 1.0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "method": [StrOptions({"auto", "evidence", "uniform"})],
        "budget": [Interval(Real, 0, None, closed="left")],
    }
