r"""Models as a search for modes sees them: sums over rows, the evidence, MacKay's update.

Laplace's estimate of the evidence at a mode, precisions :math:`\alpha_g` of the prior's groups and
:math:`A = \sum_n w_n J_n' \Lambda_n J_n + \mathrm{diag}\,\alpha`, is

.. math:: \log p(y \mid \theta) - \tfrac12 \sum_k \alpha_{g(k)} \theta_k^2
          + \tfrac12 \sum_g n_g \log \alpha_g - \tfrac12 \log |A|.

A search climbs it together with the hyperprior :math:`\log p(\log \alpha)`: after a step the
precisions follow, damped geometrically,

.. math:: \gamma_g = n_g - \alpha_g \operatorname{tr}_g A^{-1}, \quad
          \alpha_g \leftarrow \frac{\gamma_g + 2a}{|\theta_g|^2 + 2 a s_g^2}

(MacKay 1992, "A practical Bayesian framework for backpropagation networks", eqs. 16 to 21; "The
evidence framework applied to classification networks").
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import ClassVar, NamedTuple, Protocol, Self

from torch import Tensor

from skbayes_sym.inference.laplace.search.gauss_newton import (
    Curvature,
    Expansion,
    System,
    are_few,
    require_factor,
)
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import ScalesByGroup

UPDATE_DAMPING = 0.7  # share of the logarithmic step of a hyperparameter


class SearchHyper(NamedTuple):
    """Hyperparameters of R restarts."""

    log_precision: Tensor  # (R, G), of the prior's groups
    noise_precision: Tensor  # (R, T); labels have no noise, T = 0

    def of(self, which: Tensor) -> "SearchHyper":
        return SearchHyper(*(t[which] for t in self))


class SearchRows(Protocol):
    """A pass over the rows at R weight vectors."""

    def of(self, which: Tensor) -> Self:
        """Rows of some restarts."""

    def expansion(self, hyper: SearchHyper) -> Expansion:
        """The negative log likelihood, up to a constant, at a noise."""


class Begun(NamedTuple):
    """A search before its first step."""

    problem: "EvidenceProblem"  # while scales and noise stay
    hyper: SearchHyper


@dataclass(frozen=True)
class SearchSchedule:
    """How the search of one kind of problem goes on and ends."""

    tol: float  # nats of log evidence below which a restart counts as settled
    tol_is_per_row: bool  # nats per unit of weight
    lag: int  # updates that are compared,
    times: int  # how often in a row they must agree,
    fewest: int  # and updates before
    best_start: int  # steps before the best is kept: far from a mode the evidence says too much
    most_without: int  # updates without a new best that end a restart
    is_wary: bool  # see `gauss_newton.step`
    is_batch: bool  # restarts are one batch, or one follows the other
    many_params: float = inf  # weights beyond which one step in three has an update, as dear as it


@dataclass(frozen=True, eq=False)
class EvidenceProblem:
    """A network, data and a prior whose scales the evidence sets: base of numbers and labels."""

    schedule: ClassVar[SearchSchedule]
    remedy: ClassVar[str]

    network: MLP
    data: Data  # float64; a weight of 2 is the row twice
    prior: ScalesByGroup
    share: Tensor | None = None  # (R, N), of every row's weight that each restart learns from

    def of(self, which: Tensor) -> Self:
        """The problem of some restarts."""
        return self if self.share is None else replace(self, share=self.share[which])

    @cached_property
    def weight(self) -> Tensor:
        """Weights of the rows, (R, N); R is 1 where all restarts see the same."""
        weight = self.data.weight.unsqueeze(0)
        return weight if self.share is None else weight * self.share

    @cached_property
    def total_weight(self) -> Tensor:
        """Number of rows, counted with their weights, (R,)."""
        return self.weight.sum(1)

    @property
    def has_few_rows(self) -> bool:
        """Whether systems are solved in the space of the rows."""
        n_derivatives = len(self.data.x) * self.network.n_outputs
        return are_few(n_derivatives, self.network.layout.n_params)

    @property
    def keeps_best(self) -> bool:
        """Whether scales may run away while the evidence falls: the last iterate isn't the one."""
        return self.prior.is_learned

    def begin(self, doubted: Tensor) -> Begun:
        """Begin restarts (R,) whose targets are believed, or doubted."""
        raise NotImplementedError

    def expansion(self, theta: Tensor) -> SearchRows:
        """The negative log likelihood to second order at ``theta`` (R, P)."""
        raise NotImplementedError

    def misfit(self, theta: Tensor, hyper: SearchHyper) -> Tensor:
        """The negative log likelihood at ``theta`` (R, P), up to a constant: (R,) nats."""
        raise NotImplementedError

    def function_distances(self, theta: Tensor, hyper: SearchHyper) -> Tensor:
        """Squared distances of restarts' functions at the rows, (R, R), in the first's noise."""
        raise NotImplementedError

    def log_normaliser(self, hyper: SearchHyper) -> Tensor | float:
        """The constant that `misfit` leaves out, (R,) nats."""
        return 0.0

    def system(self, curvature: Curvature, hyper: SearchHyper) -> System:
        """The posterior's precision A."""
        system = curvature.system(hyper.log_precision.exp()[:, self.prior.group])
        require_factor(system, self.remedy)
        return system

    def log_evidence(
        self, theta: Tensor, misfit: Tensor, hyper: SearchHyper, system: System
    ) -> Tensor:
        """Laplace's estimate at modes (R, P) of misfits (R,), none of their copies: (R,) nats."""
        prior, log_precision = self.prior, hyper.log_precision
        n, squares = prior.sizes.to(theta), prior.squares(theta)
        log_prior = 0.5 * (n * log_precision - log_precision.exp() * squares).sum(1)
        return self.log_normaliser(hyper) - misfit + log_prior - 0.5 * system.log_det

    def log_hyperprior(self, hyper: SearchHyper) -> Tensor:
        """Log density of the log precisions, (R,) nats."""
        return self.prior.log_hyperprior(hyper.log_precision)

    def update(
        self, theta: Tensor, rows: SearchRows, hyper: SearchHyper, system: System
    ) -> SearchHyper:
        """MacKay's step of the hyperparameters."""
        if not self.prior.is_learned:
            return hyper
        step = self.prior.evidence_step
        return hyper._replace(
            log_precision=step(theta, system.variance, hyper.log_precision, UPDATE_DAMPING)
        )


def evaluated(
    problem: EvidenceProblem, theta: Tensor, rows: SearchRows, hyper: SearchHyper
) -> tuple[Tensor, System]:
    """Log evidences (R,) and the posterior's precisions at ``theta`` (R, P)."""
    expansion = rows.expansion(hyper)
    system = problem.system(expansion.curvature, hyper)
    return problem.log_evidence(theta, expansion.value, hyper, system), system
