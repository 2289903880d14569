"""Every group, network, likelihood and gap estimate in one table: adding one adds its law tests.

A group, likelihood or network is one file in the package and one line here.
"""

from collections.abc import Callable
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.inference.kernels.confined import AlignedKernel
from skbayes_sym.inference.kernels.hmc import HMC
from skbayes_sym.inference.kernels.nuts import NUTS
from skbayes_sym.inference.posteriors import MeanFieldGaussian
from skbayes_sym.models.likelihoods.bernoulli import Bernoulli
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.likelihoods.poisson import Poisson
from skbayes_sym.models.likelihoods.student_t import StudentT
from skbayes_sym.models.networks.activations import ACTIVATIONS, RELU, TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.base import Product, SymmetryGroup, Trivial
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain
from skbayes_sym.symmetry.gaps.components import ComponentGap
from skbayes_sym.symmetry.gaps.permanent_estimates import (
    DoublyStochastic,
    Exact,
    Importance,
    InfoNCE,
    Soules,
)
from skbayes_sym.symmetry.gaps.rotations import AnchoredRotationGap, IsotropicRotationGap
from skbayes_sym.symmetry.gaps.sign_flips import SignFlipGap
from skbayes_sym.symmetry.gaps.units import UnitGap
from skbayes_sym.symmetry.orbits import enumerate_group
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.reference import Places
from skbayes_sym.symmetry.units import Units

NETWORKS: dict[str, MLP] = {
    "linear": MLP(3, (), 2, RELU),
    **{f"one-layer-{name}": MLP(3, (4,), 2, a) for name, a in ACTIVATIONS.items()},
    "two-layers-tanh": MLP(2, (3, 3), 1, TANH),
    "three-layers-relu": MLP(2, (3, 2, 4), 2, RELU),
}


class Factorisation(NamedTuple):
    """R = U V' as the laws want a model: inputs are ignored."""

    layout: ParamLayout = ParamLayout({"U": (3, 2), "V": (4, 2)})
    n_inputs: int = 1

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        rows = theta.unflatten(-1, (7, 2))
        return rows[..., :3, :] @ rows[..., 3:, :].mT


_ROWS = torch.arange(14).reshape(7, 2)


class GroupCase(NamedTuple):
    group: SymmetryGroup
    network: Any  # a model that has the symmetry


# Both layers of the tanh network have both symmetries; this subgroup flips units of one layer only.
_FIRST, _SECOND = NETWORKS["two-layers-tanh"].symmetry().factors
MIXED = Product((Units(_FIRST.index, flip=True), Units(_SECOND.index)))

GROUPS: dict[str, GroupCase] = {
    "trivial": GroupCase(Trivial(), NETWORKS["linear"]),
    "one-unit": GroupCase(MLP(2, (1,), 1, RELU).symmetry(), MLP(2, (1,), 1, RELU)),
    "permutation": GroupCase(
        NETWORKS["one-layer-tanh"].symmetry(signed=False).factors[0], NETWORKS["one-layer-tanh"]
    ),
    "signed": GroupCase(
        NETWORKS["one-layer-tanh"].symmetry(signed=True).factors[0], NETWORKS["one-layer-tanh"]
    ),
    "product-signed": GroupCase(
        NETWORKS["two-layers-tanh"].symmetry(), NETWORKS["two-layers-tanh"]
    ),
    "product-permutation": GroupCase(
        NETWORKS["three-layers-relu"].symmetry(), NETWORKS["three-layers-relu"]
    ),
    "mixed": GroupCase(MIXED, NETWORKS["two-layers-tanh"]),
    "sign-flip": GroupCase(Units(_ROWS.mT, permute=False, flip=True), Factorisation()),
    "orthogonal": GroupCase(Orthogonal(_ROWS), Factorisation()),
}


class Rows(NamedTuple):
    """Independent normal rows, as gaps want them."""

    mean: Tensor  # (n_rows, k)
    cov: Tensor  # (n_rows, k, k)


class GapCase(NamedTuple):
    gap: Any
    posterior: Any  # MeanFieldGaussian or Rows

    @property
    def n_params(self) -> int:
        return _flat_moments(self.posterior)[0].numel()

    def stepped(self, i: int, *, mean: float = 0.0, variance: float = 0.0) -> Any:
        """The posterior with one mean, and one variance, changed by so much."""
        loc, cov = _flat_moments(self.posterior)
        step = torch.zeros_like(loc)
        step[i] = 1.0
        return _like(self.posterior, loc + mean * step, cov + variance * torch.diag(step))


def _flat_moments(posterior: Any) -> tuple[Tensor, Tensor]:
    """Mean (P,) and covariance (P, P) of all weights."""
    if isinstance(posterior, Rows):
        return posterior.mean.flatten(), torch.block_diag(*posterior.cov)
    return torch.as_tensor(posterior.loc), torch.diag(torch.as_tensor(posterior.scale) ** 2)


def _like(posterior: Any, loc: Tensor, cov: Tensor) -> Any:
    """The same kind of posterior with other moments (P,) and (P, P)."""
    if not isinstance(posterior, Rows):
        return MeanFieldGaussian(loc.numpy(), cov.diagonal().sqrt().numpy())
    n, k = posterior.mean.shape
    blocks = cov.view(n, k, n, k).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    return Rows(loc.view(n, k), blocks.contiguous())


def draws_of(posterior: Any, noise: Tensor) -> Tensor:
    """Draws (S, P) from standard normal noise (S, P)."""
    loc, cov = _flat_moments(posterior)
    return loc + noise @ torch.linalg.cholesky(cov).mT


def log_density_ratio(group: SymmetryGroup, posterior: Any, theta: Tensor) -> Tensor:
    """log q - log q_G at theta (S, P), the average over the group taken element by element."""
    loc, cov = _flat_moments(posterior)
    q = torch.distributions.MultivariateNormal(loc, cov)
    if isinstance(group, Orthogonal):
        orbit = group.act(_planar_elements(), theta.unsqueeze(-2))
    else:
        orbit = enumerate_group(group, len(loc)).orbit(theta)
    return q.log_prob(theta) - (q.log_prob(orbit).logsumexp(-1) - log(orbit.shape[-2]))


def _planar_elements(n: int = 180) -> Tensor:
    """A fine uniform grid on O(2)."""
    angle = torch.arange(n, dtype=torch.float64) * (2.0 * torch.pi / n)
    c, s = angle.cos(), angle.sin()
    turns = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    return torch.cat([turns, turns @ torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))])


def moved(case: GapCase, g: Any) -> Any:
    """The law of ``g theta``."""
    loc, cov = _flat_moments(case.posterior)
    matrix = case.gap.group.act(g, torch.eye(len(loc), dtype=torch.float64)).mT
    return _like(case.posterior, matrix @ loc, matrix @ cov @ matrix.mT)


def shifted(case: GapCase, factor: float) -> Any:
    """Means so many times as large."""
    loc, cov = _flat_moments(case.posterior)
    return _like(case.posterior, factor * loc, cov)


def _mean_field(n: int) -> MeanFieldGaussian:
    i = np.arange(n)
    return MeanFieldGaussian(0.8 * np.sin(1.0 + 3 * i + i * i), 0.5 + 0.2 * np.cos(2.0 + 5 * i))


def _rows(kind: str) -> Rows:
    mean = torch.as_tensor(_mean_field(10).loc).view(5, 2)
    variance = torch.as_tensor(_mean_field(10).scale).view(5, 2) ** 2
    if kind == "isotropic":
        variance = variance[:, :1].expand(-1, 2)
    cov = torch.diag_embed(variance)
    if kind == "full":
        cov = cov + 0.1 * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    return Rows(mean, cov)


_UNIT_INDEX, _ROW_INDEX = torch.arange(6).view(3, 2), torch.arange(10).view(5, 2)
_DEEP = MLP(1, (2, 2), 1, TANH)

# Each under its group, and small enough for an average over all elements.
GAPS: dict[str, GapCase] = {
    "units-exact": GapCase(UnitGap(Units(_UNIT_INDEX), Exact()), _mean_field(6)),
    "units-flips": GapCase(
        UnitGap(Units(_UNIT_INDEX, permute=False, flip=True), Exact()), _mean_field(6)
    ),
    "units-signed": GapCase(UnitGap(Units(_UNIT_INDEX, flip=True), Exact()), _mean_field(6)),
    "units-soules": GapCase(UnitGap(Units(_UNIT_INDEX), Soules()), _mean_field(6)),
    "units-importance": GapCase(UnitGap(Units(_UNIT_INDEX), Importance(4)), _mean_field(6)),
    "units-infonce": GapCase(UnitGap(Units(_UNIT_INDEX), InfoNCE(4)), _mean_field(6)),
    "units-upper": GapCase(
        UnitGap(Units(_UNIT_INDEX), DoublyStochastic(), "upper"), _mean_field(6)
    ),
    "layers-lower": GapCase(
        UnitGap(_DEEP.symmetry(), Exact(), n_draws=3), _mean_field(_DEEP.layout.n_params)
    ),
    "layers-upper": GapCase(
        UnitGap(_DEEP.symmetry(), Exact(), "upper"), _mean_field(_DEEP.layout.n_params)
    ),
    "flips": GapCase(SignFlipGap(Units(_ROW_INDEX.mT, permute=False, flip=True)), _rows("diag")),
    "components": GapCase(ComponentGap(Units(_ROW_INDEX.mT, flip=True)), _rows("diag")),
    "rotations-isotropic": GapCase(
        IsotropicRotationGap(Orthogonal(_ROW_INDEX)), _rows("isotropic")
    ),
    "rotations-diag": GapCase(AnchoredRotationGap(Orthogonal(_ROW_INDEX)), _rows("diag")),
    "rotations-full": GapCase(AnchoredRotationGap(Orthogonal(_ROW_INDEX)), _rows("full")),
}
# Iid InfoNCE can't say more than log K of log |G|.
FINITE_GAPS = {
    k: v for k, v in GAPS.items() if v.gap.group.log_order < inf and k != "units-infonce"
}
# Their gradient is that of their value, draw by draw; the others' in expectation.
PATHWISE_GAPS = {k: v for k, v in FINITE_GAPS.items() if k != "units-importance"}


class LikelihoodCase(NamedTuple):
    likelihood: Any
    targets: Callable[[int, torch.Generator], Tensor]  # (n_rows, generator) -> y
    n_outputs: int


def _numbers(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, 2, generator=generator, dtype=torch.float64)


def _classes(n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (n,), generator=generator)


def _one_number(n: int, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def _counts(n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 5, (n, 1), generator=generator).double()


LIKELIHOODS: dict[str, LikelihoodCase] = {
    "gaussian-learned": LikelihoodCase(
        Gaussian(torch.tensor([-0.3, 0.2], dtype=torch.float64)), _numbers, 2
    ),
    "gaussian-fixed": LikelihoodCase(
        Gaussian(torch.tensor([-0.3, 0.2], dtype=torch.float64), learn=False), _numbers, 2
    ),
    "categorical": LikelihoodCase(Categorical(), _classes, 2),
    "bernoulli": LikelihoodCase(Bernoulli(), _classes, 1),
    "poisson": LikelihoodCase(Poisson(), _counts, 1),
    "student-t": LikelihoodCase(
        StudentT(torch.tensor([-0.3], dtype=torch.float64)), _one_number, 1
    ),
}

# Those that many chains evaluate at once, and those with two derivatives in the outputs.
BATCHED_LIKELIHOODS = {k: v for k, v in LIKELIHOODS.items() if hasattr(v.likelihood, "given")}
CURVED_LIKELIHOODS = {k: v for k, v in LIKELIHOODS.items() if hasattr(v.likelihood, "score")}

LOWER_ESTIMATES: dict[str, Any] = {
    "exact": Exact(),
    "importance-1": Importance(1),
    "importance-5": Importance(5),
    "infonce": InfoNCE(5),
    "infonce-iid": InfoNCE(5, replacement=True),
    "soules": Soules(),
}

KERNELS: dict[str, Any] = {
    "hmc": HMC(),
    "aligned": AlignedKernel(
        FundamentalDomain(Trivial(), Places(torch.zeros(1), torch.ones(1)))
    ),  # the whole space
    "nuts": NUTS(skip_finished=False),  # calibration has a data set a chain
}
