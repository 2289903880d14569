"""What the two samplers share: how their parameters become chains and particles."""

import copy
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import refuse
from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.method import Fitted, Method
from skbayes_sym.estimators._fit.model import NETWORK_CONSTRAINTS, learned_scales
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import RUN_CONSTRAINTS
from skbayes_sym.estimators._fit.scikit_learn import HasMethods, Interval, StrOptions
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.draws import WeightedDraws
from skbayes_sym.estimators.mcmc.approximate import (
    Approximation,
    a_gaussian_a_chain,
    a_gaussian_a_mode,
    approximate,
)
from skbayes_sym.estimators.mcmc.method import BySize, Sampling
from skbayes_sym.estimators.mcmc.modes import Mode
from skbayes_sym.estimators.mcmc.setting import Chains, Plan, Search
from skbayes_sym.estimators.mcmc.starts import INITS, has_modes_to_find
from skbayes_sym.estimators.mcmc.wide import asks_for_it, usual_scale
from skbayes_sym.estimators.networks import OBJECT_CONSTRAINTS
from skbayes_sym.inference.modes.mixtures import LowRankMixture, MixtureOfLaplace
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.inference.samplers import HMC, NUTS, SMC, Evidence, Kernel
from skbayes_sym.inference.sampling.annealing import Annealing, Approach
from skbayes_sym.inference.sampling.blocks import Block
from skbayes_sym.inference.sampling.chain_count import n_chains_required
from skbayes_sym.models.data import Data
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.base import Network
from skbayes_sym.models.priors import GaussianPrior, Prior
from skbayes_sym.numerics.arguments import seed_of
from skbayes_sym.symmetry.base import NotInvariantError, SymmetryGroup, Trivial, check_invariant
from skbayes_sym.symmetry.units import split_units

# "auto" chains: three modes, the rarest in the reach of 8 % of the starts (Wiese et al. 2023).
_AUTO_MODES, _AUTO_PROBABILITY = (0.57, 0.35, 0.08), 0.99

_SAMPLERS: dict[str, Kernel | SMC] = {"hmc": HMC(), "nuts": NUTS(), "smc": SMC()}

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    **OBJECT_CONSTRAINTS,
    "sampler": [StrOptions({"auto", *_SAMPLERS}), HasMethods("step"), SMC],
    "init": [StrOptions({"auto", *INITS}), Annealing],
    "prior": [StrOptions({"auto"}), *NETWORK_CONSTRAINTS["prior"]],
    "n_chains": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), None],
    "n_warmup": [Interval(Integral, 0, None, closed="left"), None],
    "n_draws": [Interval(Integral, 1, None, closed="left"), None],
    "thinning": [Interval(Integral, 1, None, closed="left")],
    "remove_symmetries": ["boolean"],
    "mode_weights": [StrOptions({"auto", "evidence", "uniform"}), Evidence],
    "evidence_effort": [Interval(Real, 0, None, closed="left")],
    "standardize": ["boolean"],
    "warm_start": ["boolean"],
    "n_jobs": [Integral, None],
    "random_state": ["random_state"],
}

# What a fit knows of the draws it made, and an approximation of them doesn't have.
_OF_THE_CHAINS = ("modes_", "log_evidence_", "log_evidence_std_error_", "diagnostics_", "_blocks_")


class SampledEstimator(WeightedDraws):
    """An estimator that samples its posterior."""

    sampler: str | Kernel | SMC
    init: str | Annealing
    n_chains: int | str | None
    n_warmup: int | None
    n_draws: int | None
    thinning: int
    remove_symmetries: bool
    mode_weights: str | Evidence
    evidence_effort: float
    noise_prior_scale: float = 1.0  # a classifier has none
    warm_start: bool
    n_jobs: int | None
    modes_: list[Mode]
    log_evidence_: float
    log_evidence_std_error_: float
    diagnostics_: Bunch
    posterior_: MixtureOfLaplace | LowRankMixture
    _blocks_: list[Block]
    _training_data_: tuple[Array, Array, Array]

    def _networks_at_once(self, n_weights: int) -> float:
        """Chains, or particles."""
        usual = Plan().n_chains if self.n_chains is None else self.n_chains
        n_chains = usual if isinstance(usual, int) else Plan().n_chains
        return float(max(n_chains, getattr(self.sampler, "n_particles", 0)))

    def _method(self) -> Method:
        if not isinstance(self.init, str):
            return self._sampling("ensemble", self.init)
        if self.init != "auto":
            return self._sampling(self.init)
        if isinstance(self.sampler, str) and self.sampler == "auto":
            return BySize(*map(self._sampling, ("laplace", "prior", "ensemble")))
        return self._sampling("prior")

    def _sampling(self, init: str, approach: Approach | None = None) -> Sampling:
        """The method that starts so."""
        search, usual = self._search(init), INITS[init].plan
        approach = approach or INITS[init].approach
        if approach is not None and self.mode_weights == "auto":
            search = search._replace(particles=None, by_evidence=False)
        n_chains = usual.n_chains if self.n_chains is None else self.n_chains
        if isinstance(n_chains, str):
            n_chains = n_chains_required(_AUTO_MODES, probability=_AUTO_PROBABILITY)
        start = getattr(self, "_blocks_", None) if self.warm_start else None
        chains = Chains(
            n_chains,
            usual.n_warmup if self.n_warmup is None else self.n_warmup,
            usual.n_draws if self.n_draws is None else self.n_draws,
            self.thinning, init, approach, self.n_jobs, start or None,
        )  # fmt: skip
        return Sampling(search, chains, self.remove_symmetries, float(self.noise_prior_scale))

    def _search(self, init: str) -> Search:
        """Who looks for modes; what doesn't apply to them is refused."""
        sampler = self.sampler
        if isinstance(sampler, str):
            sampler = INITS[init].kernel if sampler == "auto" else _SAMPLERS[sampler]
        if isinstance(sampler, type):
            raise ValueError(f"sampler must be an object, not a class: {sampler.__name__}().")
        evidence = self._evidence()
        if hasattr(sampler, "step"):
            if evidence is None:
                why = "every chain has one vote with mode_weights='uniform'"
                refuse(self, ("evidence_effort",), why, "mode_weights='evidence'")
                return Search(sampler, None, False)
            return Search(
                sampler, evidence.particles, True, self.mode_weights != "auto",
                evidence.n_replicates != "auto", float(self.evidence_effort),
            )  # fmt: skip
        return self._search_by_particles(sampler, evidence)

    def _search_by_particles(self, particles: SMC, evidence: Evidence | None) -> Search:
        why = "no chain explores with sampler=SMC(...)"
        refuse(self, ("init", "n_warmup", "warm_start"), why, "sampler='hmc'")
        if evidence is None:
            why = "sampler=SMC(...) with mode_weights='uniform' has only particles, no chains"
            unused = ("n_chains", "n_draws", "thinning", "evidence_effort")
            refuse(self, unused, why, "SMC(n_particles=...)")
        if not isinstance(self.mode_weights, str):
            why = "sampler=SMC(...) has the replicates that Evidence(...) would add"
            refuse(self, ("mode_weights",), why, "mode_weights='evidence'")
        effort = float(self.evidence_effort)
        return Search(None, particles, evidence is not None, effort=effort)

    def _evidence(self) -> Evidence | None:
        """How modes are weighed; None for one vote per chain."""
        if self.mode_weights == "uniform":
            return None
        if self.remove_symmetries:
            return Evidence() if isinstance(self.mode_weights, str) else self.mode_weights
        why = "modes are weighed by draws whose symmetry is removed (remove_symmetries=False)"
        refuse(self, ("mode_weights",), why, "mode_weights='uniform'")
        return None

    def _model(self, data: Training) -> Model:
        return self._as_sampled(super()._model(data), data.n_rows)

    def _as_sampled(self, model: Model, n_rows: int) -> Model:
        """With given scales where ``prior="auto"`` says so: of chains that come from afar."""
        is_open = isinstance(self.prior, str) and self.prior == "auto"
        if not is_open or not self._anneals(model, n_rows):
            return model
        return model._replace(prior=GaussianPrior(usual_scale(model.network)))

    def _anneals(self, model: Model, n_rows: int) -> bool:
        """Whether chains come from afar, as `_method` has it."""
        if isinstance(self.init, str) and self.init != "auto":
            return INITS[self.init].approach is not None
        if not isinstance(self.init, str):
            return True
        by_size = isinstance(self.sampler, str) and self.sampler == "auto"
        return by_size and not has_modes_to_find(model, n_rows) and asks_for_it(model)

    def _prior(self, network: Network) -> Prior:
        """Scales that are learned are integrated out."""
        prior = super()._prior(network)
        scales = learned_scales(prior)
        return prior if scales is None else scales.collapsed()

    def _group(self, network: Network, prior: Prior) -> SymmetryGroup:
        group = network.symmetry()
        try:
            check_invariant(
                group, prior.log_prob, network.layout,
                what="prior",
                remedy="Give all units of a layer the same scale, or use remove_symmetries=False.",
            )  # fmt: skip
        except NotInvariantError:
            if self.remove_symmetries:
                raise
            return Trivial()
        return group

    def _attributes(self, data: Training, model: Model, found: Fitted) -> dict[str, Any]:
        attributes = super()._attributes(data, model, found)
        return {**attributes, "diagnostics_": Bunch(**attributes["diagnostics_"])}

    def approximate(
        self, kind: str = "mixture_of_laplace", n_samples: int = 1000, random_state: Any = 0
    ) -> Self:
        """Condense the draws to an approximation that predicts.

        Parameters
        ----------
        kind : {"mixture_of_laplace", "low_rank"}, default="mixture_of_laplace"
            "mixture_of_laplace": a Gaussian for every mode of the draws, at its maximum and with
            the curvature there (Eschenhagen et al. 2021), weighted as the draws are. "low_rank": a
            Gaussian for every chain, with the mean and covariance of its draws; for networks of
            hundreds of weights.
        n_samples : int, default=1000
            Draws of the approximation that predictions average.
        random_state : int, RandomState instance or None, default=0

        Returns
        -------
        estimator of the same class
            Fitted, with ``posterior_`` (`MixtureOfLaplace` or `LowRankMixture`: ``sample``,
            ``log_prob`` over weights and log noise in scaled units) and ``samples_``
            (1, n_samples, P) drawn from it. What was said of the chains (`modes_`,
            `log_evidence_`, `diagnostics_`) it doesn't have.

        Raises
        ------
        ValueError
            With "mixture_of_laplace", if symmetries were not removed: every copy would be a mode;
            or if the network has others than exchanges and flips of units. With "low_rank", of
            chains of one draw.

        Notes
        -----
        "mixture_of_laplace": 2 D gradients a mode for the curvatures of D parameters, O(D^3).
        "low_rank": O(D) a draw, and its alignment with the one before; a Gaussian has as many
        directions as its chain has draws. On airfoil, four chains of ``(16,) * 4``: RMSE .154 and
        mixture -.70 nats per row, of the draws .153 and -.87, of the same Gaussians' variances
        alone .323 and +.72. With ``remove_symmetries=False``, which leaves a chain's labels as they
        were, .153 and -.77.
        """
        check_is_fitted(self)
        seed = seed_of(random_state)
        posterior = self._reference_posterior()
        with one_thread(), torch.no_grad():
            mixture = self._condensed(kind, posterior)
            found = approximate(posterior, mixture, n_samples, seed)
        return self._approximated(found, posterior)

    def _condensed(
        self, kind: str, posterior: NetworkPosterior
    ) -> MixtureOfLaplace | LowRankMixture:
        """A few Gaussians; what a kind can't be had of is refused."""
        if kind == "low_rank":
            if self.samples_.shape[1] < 2:
                raise ValueError("approximate('low_rank') needs at least 2 draws a chain, got 1.")
            group = self.network_.symmetry() if self.remove_symmetries else Trivial()
            return a_gaussian_a_chain(self._positions(), self.chain_weights_, group)
        if kind != "mixture_of_laplace":
            raise ValueError(f"kind must be 'mixture_of_laplace' or 'low_rank', got {kind!r}.")
        if not self.remove_symmetries:
            raise ValueError(
                "approximate needs draws on one representative of their orbits: fit with "
                "remove_symmetries=True."
            )
        if split_units(self.network_.symmetry())[1]:
            raise ValueError(
                "approximate needs isolated modes, and this network's symmetry has a factor that "
                "isn't made of exchangeable units."
            )
        return a_gaussian_a_mode(posterior, self._positions(), self.chain_weights_)

    def _approximated(self, found: Approximation, posterior: NetworkPosterior) -> Self:
        """A copy whose draws are those of the approximation."""
        other = copy.copy(self)
        for name in (*_OF_THE_CHAINS, "_cache"):
            other.__dict__.pop(name, None)
        other.posterior_ = found.posterior
        other.samples_ = found.theta[None].astype(self.samples_.dtype)
        other.chain_weights_ = np.ones(1)
        offset = 0.0
        other._likelihood_params_ = found.likelihood_params[None]
        if hasattr(self, "noise_std_samples_"):
            other.noise_std_samples_ = found.noise_std[None] * self.y_scale_
        if hasattr(self, "y_scale_"):
            offset = -float(posterior.data.weight.sum() * np.log(self.y_scale_).sum())
        other.log_posterior_samples_ = found.log_posterior[None] + offset
        return other

    def _reference_posterior(self) -> NetworkPosterior:
        """The posterior that was sampled, in float64 on the CPU."""
        x, y, weight = (torch.as_tensor(a) for a in self._training_data_)
        targets = y.double() if y.is_floating_point() else y
        network, likelihood = self.network_, self._fitted_likelihood()
        model = Model(network, likelihood, self._prior(network), Trivial())
        return NetworkPosterior(
            network, likelihood, self._as_sampled(model, len(x)).prior,
            Data(x.double(), targets, weight.double()), float(self.noise_prior_scale),
        )  # fmt: skip

    def _positions(self) -> Tensor:
        """All draws as the sampler had them, (C, S, D)."""
        theta, n_params = (
            torch.as_tensor(self.samples_).double(),
            self._fitted_likelihood().n_params,
        )
        if not n_params:
            return theta
        own = torch.as_tensor(self._likelihood_params()).view(*theta.shape[:-1], n_params)
        return torch.cat([theta, own], dim=-1)
