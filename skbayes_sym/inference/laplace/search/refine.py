r"""Gaussian variational inference of a linearised classification network.

At a mode of separated classes the softmax is flat, so that Laplace's approximation gives logits
the prior's variance. Here value, slope and curvature are expectations under the logits' own law
:math:`N(f_n, S_n)`, :math:`S_n = J_n C J_n'` (Opper & Archambeau 2009; Khan & Rue 2023): the
damped Gauss-Newton step at fixed S, then :math:`C = (\sum_n w_n J_n' E[\Lambda_n] J_n +
\mathrm{diag}\,\alpha)^{-1}`, and S moves towards :math:`J C J'`. The prior's scales stay.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.evidence_problem import SearchHyper
from skbayes_sym.inference.laplace.search.gauss_newton import (
    INITIAL_DAMPING,
    System,
    WeightSystem,
    step,
)
from skbayes_sym.inference.laplace.search.labels import LabelsEvidence, symmetric_root
from skbayes_sym.inference.laplace.search.mode_search import Modes, mapped
from skbayes_sym.numerics.linalg import log_det

_N_STEPS = 6
_FIRST_SHARE = 0.5  # of Laplace's covariance of the logits, which is too wide
_RATE = 0.6  # of the covariance's move


class RefinedModes(NamedTuple):
    """R normal laws of the weights."""

    theta: Tensor  # (R, P)
    hyper: Tensor  # (R, G), log precisions of the prior's groups
    factor: Tensor  # (R, P, P), Cholesky factor of the precision
    root: Tensor  # (R, N, K, K), of the logits' covariances that the curvature is averaged over
    bound: Tensor  # (R,), nats: see `gaussian_bound`

    @property
    def covariance(self) -> Tensor:
        """Covariance of the weights, (R, P, P); O(R P^3)."""
        return torch.cholesky_inverse(self.factor)


def refine(problem: LabelsEvidence, modes: Modes, n_steps: int = _N_STEPS) -> RefinedModes:
    """Variational steps from every mode.

    Each costs what two steps of the search cost and one pass for ``J C J'``.
    """
    laws = []
    for r in range(len(modes.theta)):
        mode = mapped(lambda t, r=r: t[r : r + 1], modes)
        laws.append(_refined(problem, mode, n_steps))
    theta, factor, root, bound = (torch.stack(t) for t in zip(*laws, strict=True))
    return RefinedModes(theta, modes.hyper, factor, root, bound)


def _refined(
    problem: LabelsEvidence, mode: Modes, n_steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    theta, hyper = mode.theta, SearchHyper(mode.hyper, mode.noise_precision)
    precision = mode.hyper.exp()[:, problem.prior.group]
    damping = theta.new_full((1,), INITIAL_DAMPING)
    system: System = WeightSystem(mode.factor, torch.zeros_like(mode.n_iter))
    spread = _FIRST_SHARE * problem.logits(theta[0], system.covariance[0]).covariance
    for i in range(n_steps):
        if i:
            present = problem.logits(theta[0], system.covariance[0]).covariance
            spread = torch.lerp(spread, present, _RATE)
        problem = replace(problem, root=symmetric_root(spread))
        theta, damping, _ = step(
            partial(_misfit, problem), theta, problem.expansion(theta), precision, damping
        )  # fmt: skip
        system = problem.system(problem.expansion(theta).curvature, hyper)
    factor, root = system.cholesky()[0], problem.root
    assert root is not None  # there was a step
    return theta[0], factor, root, gaussian_bound(problem, theta[0], mode.hyper[0], factor)


def _misfit(problem: LabelsEvidence, theta: Tensor, _: Tensor) -> Tensor:
    return problem.misfit(theta)


def gaussian_bound(problem: LabelsEvidence, theta: Tensor, hyper: Tensor, factor: Tensor) -> Tensor:
    r"""A lower bound on the linearised network's log evidence, 0-d, nats.

    .. math:: -E\,\mathrm{nll} - \tfrac12 \sum_k \alpha_{g(k)} (\theta_k^2 + C_{kk})
              + \tfrac12 \sum_g n_g \log \alpha_g + \tfrac12 \log |C| + P / 2

    Valid for any ``theta`` (P,) and Cholesky factor (P, P) of :math:`C^{-1}`: up to quadrature (32
    nodes, two classes) or 64 quasi-Monte Carlo points. Of a linear model it bounds the evidence;
    of a network that of its linearisation at ``theta`` only.
    """
    prior, covariance = problem.prior, torch.cholesky_inverse(factor)
    root = symmetric_root(problem.logits(theta, covariance).covariance)
    second_moment = theta.square() + covariance.diagonal()
    log_prior = 0.5 * (prior.sizes.to(theta) * hyper - hyper.exp() * prior.sums(second_moment))
    entropy = 0.5 * (len(theta) - log_det(factor))  # without the constant, as the prior's
    misfit = replace(problem, root=root).misfit(theta.unsqueeze(0))[0]
    return log_prior.sum() + entropy - misfit
