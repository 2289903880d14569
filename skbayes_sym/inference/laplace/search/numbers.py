r"""Regression as an evidence problem: squared residuals and the noise's precision.

With :math:`A = \sum_t \beta_t J_t' J_t + \mathrm{diag}\,\alpha` the noise's precisions follow

.. math:: \beta_t \leftarrow \frac{N - \gamma_t + 1}{\sum_n w_n r_{nt}^2 + 10^{-4}}

where :math:`\gamma_t` is what the rows of target t determine (MacKay 1992).
"""

from dataclasses import dataclass
from math import log, pi
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.evidence_problem import (
    UPDATE_DAMPING,
    Begun,
    EvidenceProblem,
    SearchHyper,
    SearchRows,
    SearchSchedule,
)
from skbayes_sym.inference.laplace.search.gauss_newton import (
    Expansion,
    RowCurvature,
    RowSpaceSystem,
    System,
    WeightCurvature,
    are_outnumbered,
)
from skbayes_sym.models.networks.mlp_passes import outputs_and_factors, rows_per_block

# The noise's precision at the beginning, in units of the targets' variance.
BELIEVED, DOUBTED = 1.0 / 0.3, 0.3
# Gamma hyperprior of the noise's precision: it only keeps a perfect fit finite.
_NOISE_SHAPE, _NOISE_RATE = 0.5, 5e-5


class ResidualSums(NamedTuple):
    """A pass over the rows: squares, J'r and J'J of every target."""

    squares: Tensor  # (R, T)
    slope: Tensor  # (R, T, P), J'r
    product: Tensor  # (R, T, P, P), J'J; of few rows J itself, (R, T, N, P)

    def of(self, which: Tensor) -> "ResidualSums":
        return ResidualSums(*(t[which] for t in self))

    def expansion(self, hyper: SearchHyper) -> Expansion:
        beta = hyper.noise_precision
        value = 0.5 * (beta * self.squares).sum(1)
        gradient = -torch.einsum("rt,rtp->rp", beta, self.slope)
        if self.product.shape[2] < self.product.shape[3]:
            root = beta.sqrt()[:, :, None, None] * self.product
            return Expansion(value, gradient, RowCurvature(root.flatten(1, 2)))
        product = torch.einsum("rt,rtpq->rpq", beta, self.product)
        return Expansion(value, gradient, WeightCurvature(product))

    def determined(self, hyper: SearchHyper, system: System) -> Tensor:
        """Weights that the rows of each target determine, (R, T); at most N."""
        if isinstance(system, RowSpaceSystem):
            return system.determined.unflatten(1, (self.product.shape[1], -1)).sum(2)
        products = (self.product * system.covariance.unsqueeze(1)).sum((2, 3))
        return hyper.noise_precision * products


@dataclass(frozen=True, eq=False)
class NumbersEvidence(EvidenceProblem):
    """Targets (N, T) in normal noise."""

    # Of more weights than rows scales run away while the evidence falls: the best is kept.
    schedule: ClassVar[SearchSchedule] = SearchSchedule(
        tol=5e-6, tol_is_per_row=True, lag=3, times=3, fewest=6, best_start=20, most_without=15,
        is_wary=False, is_batch=True,
    )  # fmt: skip
    remedy: ClassVar[str] = "Standardise X and y, or use fewer hidden units."

    noise_precision: Tensor | None = None  # (T,), of a noise that isn't learned

    @property
    def is_outnumbered(self) -> bool:
        """Whether there are more weights than numbers to learn from."""
        return are_outnumbered(self.data.y.numel(), self.network.layout.n_params)

    @property
    def keeps_best(self) -> bool:
        return self.prior.is_learned and self.is_outnumbered

    def begin(self, doubted: Tensor) -> Begun:
        y, n = self.data.y, len(doubted)
        noise = self.noise_precision
        if noise is None:
            spread = y.var(0, correction=0)
            spread = torch.where(spread > 0.0, spread, 1.0)  # of a constant target any will do
            noise = torch.where(doubted, DOUBTED, BELIEVED).to(y).unsqueeze(1) / spread
        log_precision = self.prior.hyper.to(y).expand(n, -1)
        return Begun(self, SearchHyper(log_precision, noise.to(y).expand(n, y.shape[1])))

    def squares(self, theta: Tensor) -> Tensor:
        """Weighted squared residuals of every target, (r, P) -> (r, T)."""
        residual = self.data.y - self.network.forward(theta, self.data.x)
        return (self.weight.unsqueeze(1) @ residual.square_()).squeeze(1)

    def misfit(self, theta: Tensor, hyper: SearchHyper) -> Tensor:
        return 0.5 * (hyper.noise_precision * self.squares(theta)).sum(1)

    def function_distances(self, theta: Tensor, hyper: SearchHyper) -> Tensor:
        outputs = self.network.forward(theta, self.data.x) * self.data.weight.sqrt().unsqueeze(1)
        each = outputs.movedim(2, 0).contiguous()
        apart = torch.cdist(each, each, compute_mode="donot_use_mm_for_euclid_dist").square()
        return torch.einsum("rt,trs->rs", hyper.noise_precision, apart)

    def log_normaliser(self, hyper: SearchHyper) -> Tensor:
        log_noise = hyper.noise_precision.log() - log(2.0 * pi)
        return 0.5 * (self.total_weight.unsqueeze(1) * log_noise).sum(1)

    def expansion(self, theta: Tensor) -> ResidualSums:
        """The sums of every target; O(R N T P^2 / 4), or O(R N T P) of few rows."""
        (x, y, _), (n_restarts, p) = self.data, theta.shape
        n_targets = y.shape[1]
        squares = theta.new_zeros(n_restarts, n_targets)
        slope = theta.new_zeros(n_restarts, n_targets, p)
        few, packed = self.has_few_rows, theta.new_zeros(1, 1, 1)
        size = len(x) if few else rows_per_block(self.network, n_restarts)
        for rows in torch.arange(len(x), device=x.device).split(size):
            outputs, jacobian = outputs_and_factors(self.network, theta, x[rows])
            weight = self.weight[:, rows]
            residual = y[rows] - outputs
            weighted = residual * weight.unsqueeze(2)
            squares += (weighted * residual).sum(1)
            each = [jacobian.of_output(t) for t in range(n_targets)]
            for t, of_target in enumerate(each):
                slope[:, t] += of_target.transposed(weighted[..., t : t + 1])
            if few:
                product = weight.sqrt()[:, None, :, None] * jacobian.dense().transpose(1, 2)
            else:
                sums = [one.packed(weight[:, None, None]) for one in each]
                packed = packed + torch.stack(sums, 1)
        if not few:
            product = jacobian.gauss_newton(packed.flatten(0, 1))
            product = product.unflatten(0, (n_restarts, n_targets))
        return ResidualSums(squares, slope, product)

    def update(
        self, theta: Tensor, rows: SearchRows, hyper: SearchHyper, system: System
    ) -> SearchHyper:
        updated = super().update(theta, rows, hyper, system)
        if self.noise_precision is not None:
            return updated
        assert isinstance(rows, ResidualSums)
        # What each target's rows determine adds up to what the groups have of it.
        if self.data.y.shape[1] == 1:
            held = (hyper.log_precision.exp()[:, self.prior.group] * system.variance).sum(1)
            taken = (theta.shape[1] - held).unsqueeze(1)
        else:
            taken = rows.determined(hyper, system)
        undetermined = self.total_weight.unsqueeze(1) - taken
        goal = (undetermined.clamp_min(0.0) + 2.0 * _NOISE_SHAPE) / (
            rows.squares + 2.0 * _NOISE_RATE
        )
        noise = torch.lerp(hyper.noise_precision.log(), goal.log(), UPDATE_DAMPING).exp()
        return updated._replace(noise_precision=noise)
