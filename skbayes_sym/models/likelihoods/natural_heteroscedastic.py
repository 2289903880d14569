"""Normal noise that changes with the input, by the normal law's natural parameters."""

from dataclasses import dataclass
from math import log, pi
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Normal

from skbayes_sym.models.likelihoods.base import ExpectedLogProb, Kind
from skbayes_sym.models.likelihoods.defaults import TargetLikelihood
from skbayes_sym.models.predictive import NormalMixture


@dataclass(frozen=True)
class NaturalHeteroscedastic(TargetLikelihood):
    r"""``y ~ N(f_1 / p, 1 / p)`` with the precision ``p = exp f_2``, two heads a target.

    The outputs (N, 2 T) are the T targets' :math:`\eta_1 = \mu / \sigma^2`, then the logarithms of
    their precisions, :math:`\eta_2 = -\exp(f_2) / 2`: the natural parameters (Immer et al. 2023).
    What `Heteroscedastic` believes of the mean is believed of the mean over the variance here, so
    means are larger where there is more noise.

    Notes
    -----
    The log density is concave in the natural parameters, so the Gauss-Newton curvature through
    them is the Fisher information, a full matrix of every row,

    .. math:: \begin{pmatrix} \sigma^2 & -\mu \\ -\mu & \mu^2 / \sigma^2 + 1/2 \end{pmatrix},

    in place of the diagonal one of mean and log standard deviation: the Laplace approximation knows
    that the two heads are correlated. Expectations over normal outputs are in closed form.

    References
    ----------
    A. Immer, E. Palumbo, A. Marx and J. Vogt (2023). Effective Bayesian heteroscedastic regression
    with deep neural networks. NeurIPS.
    """

    kind: ClassVar[Kind] = "heteroscedastic"

    @property
    def n_outputs_per_target(self) -> int:
        return 2

    def heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations (*B, N, T) of outputs (*B, N, 2 T)."""
        first, second = outputs.chunk(2, -1)
        return first * (-second).exp(), (-0.5 * second).exp()

    def distribution(self, outputs: Tensor) -> Normal:
        return Normal(*self.heads(outputs), validate_args=False)

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> NormalMixture:
        mean, std = self.heads(outputs)
        return NormalMixture(mean, mean.new_zeros(()), std.square(), log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        first, second = outputs.chunk(2, -1)
        # As a square: the sum of its three parts cancels.
        z = y * (0.5 * second).exp() - first * (-0.5 * second).exp()
        return (-0.5 * z * z + 0.5 * second - 0.5 * log(2 * pi)).sum(-1)

    def n_noise(self, n_outputs: int) -> int:
        return 0

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        r"""Closed form.

        With :math:`E[e^{\pm f_2}] = \exp(\pm m_2 + v_2 / 2)` the expectation of
        :math:`-\tfrac12 y^2 e^{f_2} + y f_1 - \tfrac12 f_1^2 e^{-f_2} + \tfrac12 f_2
        - \tfrac12 \log 2\pi`.
        """
        (m1, m2), (v1, v2) = (t.chunk(2, -1) for t in (mean, variance))
        inverse = (0.5 * v2 - m2).exp()
        noise_part, mean_part = y * y * (0.5 * v2 + m2).exp(), (m1 * m1 + v1) * inverse
        value = y * m1 - 0.5 * (noise_part + mean_part) + 0.5 * m2 - 0.5 * log(2 * pi)
        d_second = 0.5 * (1.0 + mean_part - noise_part)
        d_mean = torch.cat([y - m1 * inverse, d_second], -1)
        d_variance = torch.cat([-0.5 * inverse, -0.25 * (noise_part + mean_part)], -1)
        return ExpectedLogProb(value.sum(-1), d_mean, d_variance, mean.new_zeros(len(mean), 0))

    def score(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, std = self.heads(outputs)
        residual = y - mean
        return torch.cat([residual, 0.5 - 0.5 * residual * (y + mean) / std.square()], -1)

    def fisher(self, outputs: Tensor) -> Tensor:
        """Fisher information of the outputs, (*B, N, 2 T, 2 T): one full 2 x 2 block a target."""
        root = self._fisher_root(outputs)
        return root @ root.mT

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Of the Fisher information, (2 T, N, 2 T)."""
        return self._fisher_root(outputs).movedim(-1, 0)

    def _fisher_root(self, outputs: Tensor) -> Tensor:
        """Its Cholesky factors, ``(sigma, 0; -mu / sigma, 1 / sqrt 2)`` by target."""
        mean, std = self.heads(outputs)
        zero = torch.zeros_like(mean).diag_embed()
        top = torch.cat([std.diag_embed(), zero], -1)
        half = torch.full_like(mean, 0.5**0.5).diag_embed()
        return torch.cat([top, torch.cat([(-mean / std).diag_embed(), half], -1)], -2)
