r"""The Laplace evidence from a few rows: a lower bound that every update can afford.

Let :math:`K = \sum_l \Phi_l \Phi_l' / \delta_l` be the tangent kernel of all rows and outputs.
The function :math:`B \mapsto \log\det(I + K_{BB})` is submodular and 0 at the empty set. Its mean
over a random B that holds every index with the same probability p is therefore at least p times its
value at the whole (the Lovasz extension is the convex closure: Lovasz 1983). So with M rows drawn
without replacement and c of the C columns of every row's Hessian root, p = M c / (N C),

.. math:: \log Z_B = \frac NM \sum_{n \in B} w_n \log p(y_n \mid \hat f_n) + \log p(\theta \mid
          \delta) - \tfrac12 \sum_l P_l \log\delta_l - \frac{N C}{2 M c} \log\det(I + K_{BB})

is in expectation a lower bound of the evidence: unbiased in the data's term, rising with M and c,
and the evidence itself at M = N and c = C (Immer et al. 2023, sections 3.2 and 3.3, for blocks of a
partition).

Entry by entry the same holds for `Diagonal`. For `Kronecker`, whose factors are products of sums,
it holds for neither side.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.curvature import Factors, LogDet, Spectrum
from skbayes_sym.inference.laplace.marginal_likelihood import (
    AveragedNetwork,
    Evidence,
    LaplaceEvidence,
    Pass,
)
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.numerics.random import generator_from, spawn_seeds


@dataclass(frozen=True)
class DrawnColumns:
    r"""``n_columns`` of the C columns of a root of :math:`\Lambda`, drawn anew for every row.

    Their share of the curvature is not scaled up: `SubsetEvidence` scales the log-determinant.
    """

    n_columns: int = 1

    def columns(
        self, likelihood: Likelihood, outputs: Tensor, y: Tensor, *, generator: torch.Generator
    ) -> Tensor:
        """Directions (c, N, O), differentiable in ``outputs``."""
        root = likelihood.hessian_root(outputs, y)
        order = torch.rand(root.shape[:2], generator=generator, device=generator.device).argsort(0)
        chosen = order[: self.n_columns].unsqueeze(-1).expand(-1, -1, root.shape[-1])
        return root.gather(0, chosen.to(root.device))


@dataclass(frozen=True, eq=False)
class SubsetSpectrum:
    """The curvature of a subset, its log-determinant beyond the prior's scaled to the whole.

    Parameters
    ----------
    part : Spectrum
        Of the rows drawn.
    sizes : Tensor of shape (L,)
        Number of parameters of every layer.
    row_scale, column_scale : float
        N / M and C / c.
    """

    part: Spectrum
    sizes: Tensor
    row_scale: float
    column_scale: float

    def log_det(self, precision: Tensor) -> LogDet:
        scale, sizes = self.row_scale * self.column_scale, self.sizes.to(precision)
        part = self.part.log_det(precision)
        prior, slope = (sizes * precision.log()).sum(), sizes / precision
        return LogDet(
            prior + scale * (part.value - prior), slope + scale * (part.d_precision - slope)
        )

    def preconditioners(self, precision: Tensor) -> Factors:
        """Of the part; the rows' scale is the gradient's."""
        return [self.column_scale * p for p in self.part.preconditioners(precision)]


@dataclass(frozen=True, eq=False)
class SubsetEvidence:
    """A lower bound of an evidence from rows drawn anew at every look.

    Parameters
    ----------
    whole : LaplaceEvidence
        Its structure is `TangentKernel`, `Full` or `Diagonal`, for which this is a bound; its
        directions are replaced by `DrawnColumns`.
    subset_size : int
        M, at least 1; all rows if there are fewer.
    n_columns : int or None, default=1
        c; None takes all.

    Notes
    -----
    A look costs O(M c S P + (M c)^2 P + (M c)^3), whatever N is.
    """

    whole: LaplaceEvidence
    subset_size: int
    n_columns: int | None = 1

    @property
    def model(self) -> AveragedNetwork:
        return self.whole.model

    @property
    def row_scale(self) -> float:
        """N / M."""
        return len(self.whole.data.x) / self._n_rows

    @property
    def _n_rows(self) -> int:
        return min(self.subset_size, len(self.whole.data.x))

    def rows(self, seed: int) -> Tensor:
        """The rows that ``seed`` draws, (M,), sorted."""
        n, device = len(self.whole.data.x), self.whole.data.x.device
        generator = generator_from(spawn_seeds(seed, 1)[0], device)
        order = torch.randperm(n, generator=generator, device=device)
        return order[: self._n_rows].sort().values

    def part(self, rows: Tensor) -> LaplaceEvidence:
        """The evidence of these rows alone, in one piece."""
        return replace(
            self.whole,
            data=Data(*(t[rows] for t in self.whole.data)),
            directions=DrawnColumns(self.n_columns or self.model.network.n_outputs),
            batch_size=len(rows),
        )

    def one_pass(self, theta: Tensor, hyper: Tensor, seed: int) -> Pass:
        """Unbiased log likelihood of all data, and factors of the rows drawn."""
        sums = self.part(self.rows(seed)).one_pass(theta, hyper, seed)
        return Pass(self.row_scale * sums.log_likelihood, sums.factors)

    def gradient(self, theta: Tensor, hyper: Tensor, seed: int, spectrum: Spectrum) -> Tensor:
        """As `LaplaceEvidence.gradient`, of the bound that the same ``seed`` gives."""
        part = self.part(self.rows(seed))
        return self.row_scale * part.gradient(theta, hyper, seed, spectrum)

    def spectrum(self, factors: Factors) -> SubsetSpectrum:
        """Decomposed factors of the rows drawn."""
        n_outputs = self.model.network.n_outputs
        n_columns = min(self.n_columns or n_outputs, n_outputs)
        # Of the structures that bound, none needs to know the rows' total weight.
        part = self.whole.spectrum(factors)
        return SubsetSpectrum(part, self.model.sizes, self.row_scale, n_outputs / n_columns)

    def evidence(
        self, theta: Tensor, hyper: Tensor, log_likelihood: Tensor, spectrum: Spectrum
    ) -> tuple[Evidence, Tensor]:
        """As `LaplaceEvidence.evidence`."""
        return self.whole.evidence(theta, hyper, log_likelihood, spectrum)
