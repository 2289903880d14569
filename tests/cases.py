"""Every group, network, likelihood and gap estimate in one table: adding one adds its law tests.

A group, likelihood or network is one file in the package and one line here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any, NamedTuple

import numpy as np
import torch
from gap_oracle import GapCase, correlated, mean_field, rows
from torch import Tensor

from skbayes_sym.base.posteriors import GaussianRows, MatrixPosterior
from skbayes_sym.laplace.curvature import FullPrecision
from skbayes_sym.laplace.posterior import LaplacePosterior
from skbayes_sym.linear.low_rank import LowRankGaussian
from skbayes_sym.mcmc.bridge import GaussianMixture
from skbayes_sym.mcmc.kernels import HMC
from skbayes_sym.models.augmentations.augmentation import (
    Augmentation,
    Composed,
    Identity,
    RescaledAugmentation,
)
from skbayes_sym.models.augmentations.tabular import ColumnShift, LogScale, Rotation2D
from skbayes_sym.models.likelihoods.categorical import Bernoulli, Categorical
from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.likelihood import Likelihood, TargetLikelihood
from skbayes_sym.models.likelihoods.noise import (
    Gaussian,
    Heteroscedastic,
    NaturalHeteroscedastic,
    StudentT,
)
from skbayes_sym.models.likelihoods.ordinal import Ordinal
from skbayes_sym.models.networks.mlp import ACTIVATIONS, MLP, RELU, TANH
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import BaseNetwork, Network
from skbayes_sym.models.predictive_mixtures import CategoricalMixture
from skbayes_sym.models.priors import GaussianPrior, Normal, Prior, UnboundPrior
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.symmetry.axis_units import AxisUnits, UnitEntries, Wreath
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain
from skbayes_sym.symmetry.gaps.rotations import AnchoredRotationGap, IsotropicRotationGap
from skbayes_sym.symmetry.gaps.row_gaps import AnchoredComponentGap, ComponentGap, SignFlipGap
from skbayes_sym.symmetry.gaps.translations import TranslationGap
from skbayes_sym.symmetry.gaps.unit_gap import Bethe, Exact, Importance, InfoNCE, Soules, UnitGap
from skbayes_sym.symmetry.group import Product, SymmetryGroup, Trivial
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.relabelling import DiagonalReference
from skbayes_sym.symmetry.translation import Translation
from skbayes_sym.symmetry.units import Units, unit_layers

NETWORKS: dict[str, MLP] = {
    "linear": MLP(3, (), 2, RELU),
    **{f"one-layer-{name}": MLP(3, (4,), 2, a) for name, a in ACTIVATIONS.items()},
    "two-layers-tanh": MLP(2, (3, 3), 1, TANH),
    "three-layers-relu": MLP(2, (3, 2, 4), 2, RELU),
}


@dataclass(frozen=True)
class Waves(BaseNetwork):
    """One's own network, ``sum_h a_h sin(w_h x)``, with the symmetry that it has."""

    n_waves: int = 2
    n_outputs: int = 1

    @property
    def layout(self) -> ParamLayout:
        return ParamLayout({"w": (self.n_waves, 3), "a": (self.n_outputs, self.n_waves)})

    def init(self, n: int, *, generator: torch.Generator) -> Tensor:
        shape = (n, self.layout.n_params)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        params = self.layout.unflatten(theta)
        return (x @ params["w"].mT).sin() @ params["a"].mT

    def symmetry(self) -> SymmetryGroup:
        where = self.layout.positions
        return Units(torch.cat([where("w"), where("a").T], 1), flip=True)


@dataclass(frozen=True)
class Line(BaseNetwork):
    """As little as there can be of a network."""

    n_outputs: int = 1

    @property
    def layout(self) -> ParamLayout:
        return ParamLayout({"slope": (3,)})

    def init(self, n: int, *, generator: torch.Generator) -> Tensor:
        return torch.randn(n, 3, generator=generator, dtype=torch.float64)

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        return (theta @ x.T).unsqueeze(-1)


_MODULE = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))

# Those that are no MLP; all take three numbers to one.
OTHER_NETWORKS: dict[str, Network] = {
    "module": ModuleNetwork(_MODULE, (3,)),
    "own-waves": Waves(),
    "own-line": Line(),
}


class Factorisation(NamedTuple):
    """R = U V' as the laws want a model: inputs are ignored."""

    layout: ParamLayout = ParamLayout({"U": (3, 2), "V": (4, 2)})
    n_inputs: int = 1

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        rows = theta.unflatten(-1, (7, 2))
        return rows[..., :3, :] @ rows[..., 3:, :].mT


_ROWS = torch.arange(14).reshape(7, 2)


class Gate(NamedTuple):
    """``sum_i c_i (a_i'x) (b_i'x)``: two signs a unit."""

    layout: ParamLayout = ParamLayout({"a": (3, 2), "b": (3, 2), "c": (3,)})
    n_inputs: int = 2

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        params = self.layout.unflatten(theta)
        gate = (x @ params["a"].mT) * (x @ params["b"].mT)
        return gate @ params["c"].unsqueeze(-1)


_GATE_UNITS = AxisUnits(
    (
        UnitEntries(0, (3, 2), (2, 1), ((True,), (False,))),
        UnitEntries(6, (3, 2), (2, 1), ((False,), (True,))),
        UnitEntries(12, (3,), (1,), ((True,), (True,))),
    ),
    n_units=3,
    n_signs=2,
)


class Recurrent(NamedTuple):
    """Two steps of a recurrent layer: its weights have the units on both axes."""

    layout: ParamLayout = ParamLayout({"w": (3, 2), "u": (3, 3), "c": (3,)})
    n_inputs: int = 2

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        params = self.layout.unflatten(theta)
        drive = x @ params["w"].mT
        return (drive + drive.tanh() @ params["u"].mT).tanh() @ params["c"].unsqueeze(-1)


_BOTH = ((True, True),)
_RECURRENT_UNITS = AxisUnits(
    (
        UnitEntries(0, (3, 2), (2, 1), ((True,),)),
        UnitEntries(6, (3, 3), (3, 1), _BOTH, is_pair=True),
        UnitEntries(15, (3,), (1,), ((True,),)),
    ),
    n_units=3,
    n_signs=1,
)


class Heads(NamedTuple):
    """``sum_h c_h tanh(sum_k v_hk tanh(w_hk'x))``: units inside units."""

    layout: ParamLayout = ParamLayout({"w": (2, 2, 2), "v": (2, 2), "c": (2,)})
    n_inputs: int = 2

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        params = self.layout.unflatten(theta)
        inner = torch.einsum("...hki,ni->...nhk", params["w"], x).tanh()
        outer = torch.einsum("...hk,...nhk->...nh", params["v"], inner).tanh()
        return outer @ params["c"].unsqueeze(-1)


_HEADS = Wreath(
    (
        AxisUnits(
            (
                UnitEntries(0, (2, 2, 2), (4, 2, 1), ((False,),)),
                UnitEntries(8, (2, 2), (2, 1), ((True,),)),
                UnitEntries(12, (2,), (1,), ((True,),)),
            ),
            n_units=2,
            n_signs=1,
        ),
        AxisUnits(
            (
                UnitEntries(0, (2, 2, 2), (4, 2, 1), ((True,),)),
                UnitEntries(8, (2, 2), (2, 1), ((True,),)),
            ),
            n_units=2,
            n_signs=1,
            outer_shape=(2,),
        ),
    ),
    ((), (0,)),
)


class GroupCase(NamedTuple):
    group: SymmetryGroup
    network: Any  # a model that has the symmetry


def mixed(network: MLP) -> Product:
    """The subgroup that flips units of the first of two layers only."""
    first, second = unit_layers(network.symmetry())
    return Product((first, Units(second.index)))


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
    "mixed": GroupCase(mixed(NETWORKS["two-layers-tanh"]), NETWORKS["two-layers-tanh"]),
    "sign-flip": GroupCase(Units(_ROWS.mT, permute=False, flip=True), Factorisation()),
    "orthogonal": GroupCase(Orthogonal(_ROWS), Factorisation()),
    "two-signs": GroupCase(_GATE_UNITS, Gate()),
    "pairs": GroupCase(_RECURRENT_UNITS, Recurrent()),
    "sets": GroupCase(_HEADS.parts[1], Heads()),
    "wreath": GroupCase(_HEADS, Heads()),
}


_UNIT_INDEX, _ROW_INDEX = torch.arange(6).view(3, 2), torch.arange(10).view(5, 2)
_DEEP = MLP(1, (2, 2), 1, TANH)

# Each under its group, and small enough for an average over all elements.
GAPS: dict[str, GapCase] = {
    "units-exact": GapCase(UnitGap(Units(_UNIT_INDEX), Exact()), mean_field(6)),
    "units-flips": GapCase(
        UnitGap(Units(_UNIT_INDEX, permute=False, flip=True), Exact()), mean_field(6)
    ),
    "units-signed": GapCase(UnitGap(Units(_UNIT_INDEX, flip=True), Exact()), mean_field(6)),
    "units-soules": GapCase(UnitGap(Units(_UNIT_INDEX), Soules()), mean_field(6)),
    "units-importance": GapCase(UnitGap(Units(_UNIT_INDEX), Importance(4)), mean_field(6)),
    "units-infonce": GapCase(UnitGap(Units(_UNIT_INDEX), InfoNCE(4)), mean_field(6)),
    "units-upper": GapCase(UnitGap(Units(_UNIT_INDEX), Bethe(), "upper"), mean_field(6)),
    "layers-lower": GapCase(
        UnitGap(_DEEP.symmetry(), Exact(), n_draws=3), mean_field(_DEEP.layout.n_params)
    ),
    "layers-upper": GapCase(
        UnitGap(_DEEP.symmetry(), Exact(), "upper"), mean_field(_DEEP.layout.n_params)
    ),
    "two-signs": GapCase(UnitGap(_GATE_UNITS, Exact()), mean_field(Gate().layout.n_params)),
    "pairs-lower": GapCase(UnitGap(_RECURRENT_UNITS, Exact()), mean_field(18)),
    "places-lower": GapCase(UnitGap(_HEADS.parts[1], Exact()), mean_field(14)),
    "heads-exact": GapCase(UnitGap(_HEADS, Exact()), mean_field(14)),
    "heads-soules": GapCase(UnitGap(_HEADS, Importance(4)), mean_field(14)),
    "flips": GapCase(SignFlipGap(Units(_ROW_INDEX.mT, permute=False, flip=True)), rows("diag")),
    "components": GapCase(ComponentGap(Units(_ROW_INDEX.mT, flip=True)), rows("diag")),
    "anchored-components": GapCase(
        AnchoredComponentGap(Units(_ROW_INDEX.mT, flip=True)), rows("full")
    ),
    "anchored-flips": GapCase(
        AnchoredComponentGap(Units(_ROW_INDEX.mT, permute=False, flip=True)), rows("full")
    ),
    "rotations-isotropic": GapCase(IsotropicRotationGap(Orthogonal(_ROW_INDEX)), rows("isotropic")),
    "rotations-diag": GapCase(AnchoredRotationGap(Orthogonal(_ROW_INDEX)), rows("diag")),
    "rotations-full": GapCase(AnchoredRotationGap(Orthogonal(_ROW_INDEX)), rows("full")),
    "translations": GapCase(
        TranslationGap(Translation(torch.ones(1, 4, dtype=torch.float64))), correlated(4)
    ),
}
COMPACT_GAPS = {k: v for k, v in GAPS.items() if v.gap.group.is_compact}
# Iid InfoNCE can't say more than log K of log |G|.
FINITE_GAPS = {
    k: v for k, v in GAPS.items() if v.gap.group.log_order < inf and k != "units-infonce"
}
# Their gradient is that of their value, draw by draw; the others' in expectation.
PATHWISE_GAPS = {
    k: v for k, v in GAPS.items()
    if k == "translations"
    or (k in FINITE_GAPS and k not in {"units-importance", "anchored-components", "anchored-flips"})
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LaplaceNoise(TargetLikelihood):
    """One's own law of real targets: a distribution, and what is learned of it."""

    log_scale: Tensor

    @property
    def params(self) -> Tensor:
        return self.log_scale

    def at(self, params: Tensor) -> "LaplaceNoise":
        return LaplaceNoise(params)

    def distribution(self, outputs: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Laplace(outputs, self.log_scale.exp(), validate_args=False)


@dataclass(frozen=True, eq=False)
class Softmax(Likelihood):
    """One's own law of classes: `log_prob` and `predictive`, as little as there can be."""

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        index = y.expand(outputs.shape[:-1]).unsqueeze(-1)
        return outputs.log_softmax(-1).gather(-1, index).squeeze(-1)

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        return CategoricalMixture(outputs.log_softmax(-1), log_weights)


@dataclass(frozen=True)
class LaplacePrior(Prior):
    """One's own prior: `log_prob` and `sample`, of as many parameters as there are."""

    width: float = 0.5
    n_params: int = 0

    def bind(self, layout: ParamLayout) -> "LaplacePrior":
        return replace(self, n_params=layout.n_params)

    def log_prob(self, theta: Tensor) -> Tensor:
        return (-theta.abs() / self.width - log(2.0 * self.width)).sum(-1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        shape, device = (n, self.n_params), generator.device
        exponential = torch.empty(shape, dtype=torch.float64, device=device)
        signs = 2 * torch.randint(0, 2, shape, generator=generator, device=device) - 1
        return self.width * signs * exponential.exponential_(generator=generator)


PRIORS: dict[str, UnboundPrior] = {
    "gaussian": GaussianPrior(torch.tensor([0.5, 2.0], dtype=torch.float64)),
    "normal": Normal(0.7),
    "normal-by-layer": Normal([0.5, 1.5]),
    "own-laplace": LaplacePrior(),
}


# Of rows of three numbers.
AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Identity(), "rotation": Rotation2D(columns=(2, 0), centre=(0.3, -1.0)),
    "translation": ColumnShift(), "translation-of-one": ColumnShift(columns=(1,)),
    "log-scale": LogScale(), "log-scales": LogScale(columns=(0, 2), joint=False),
    "composed": Composed((Rotation2D(), ColumnShift(columns=(2,)), Rotation2D((1, 2)))),
    "in-units": RescaledAugmentation(Rotation2D(), (1.0, 0.0, 2.0), (1.5, 2.0, 1.0)),
}  # fmt: skip


class LikelihoodCase(NamedTuple):
    likelihood: Likelihood
    targets: Callable[[int, torch.Generator], Tensor]  # (n_rows, generator) -> y
    n_outputs: int
    kind: str = "real"  # "counts", "classes"
    curvature: str = "observed"  # or "expected", where that isn't positive definite

    @property
    def n_targets(self) -> int:
        """Real numbers or counts a row."""
        return self.n_outputs // self.likelihood.n_outputs_per_target


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
    "heteroscedastic": LikelihoodCase(
        Heteroscedastic(-0.3, 0.5), _numbers, 4, curvature="expected"
    ),
    "heteroscedastic-least": LikelihoodCase(
        Heteroscedastic(-0.3, 0.5, least=0.2), _numbers, 4, curvature="expected"
    ),
    "natural-heteroscedastic": LikelihoodCase(
        NaturalHeteroscedastic(), _numbers, 4, curvature="expected"
    ),
    "categorical": LikelihoodCase(Categorical(), _classes, 2, "classes"),
    "bernoulli": LikelihoodCase(Bernoulli(), _classes, 1, "classes"),
    "ordinal": LikelihoodCase(
        Ordinal(torch.tensor([-0.4], dtype=torch.float64)), _classes, 1, "classes"
    ),
    "poisson": LikelihoodCase(Poisson(), _counts, 1, "counts"),
    "student-t": LikelihoodCase(
        StudentT(torch.tensor([-0.3], dtype=torch.float64)), _one_number, 1
    ),
    "student-t-learned": LikelihoodCase(
        StudentT(
            torch.tensor([-0.3], dtype=torch.float64),
            df="learn",
            log_tail=torch.tensor([-0.2], dtype=torch.float64),
        ),
        _one_number,
        1,
    ),
    "negative-binomial": LikelihoodCase(
        NegativeBinomial(torch.tensor([-0.7], dtype=torch.float64)), _counts, 1, "counts"
    ),
    "own-laplace": LikelihoodCase(
        LaplaceNoise(torch.tensor([-0.3], dtype=torch.float64)), _one_number, 1
    ),
    "own-softmax": LikelihoodCase(Softmax(), _classes, 2, "classes"),
}

KERNELS: dict[str, Any] = {
    "hmc": HMC(),
    "aligned": HMC(
        domain=FundamentalDomain(Trivial(), DiagonalReference(torch.zeros(1), torch.ones(1)))
    ),  # the whole space
}

_SPREAD = torch.tensor([[0.8, 0.0], [0.3, 0.5]], dtype=torch.float64)
_MIXTURE = GaussianMixture(
    torch.tensor([0.3, 0.7], dtype=torch.float64).log(),
    torch.tensor([[0.0, 1.0], [0.8, -0.3]], dtype=torch.float64),
    torch.stack([_SPREAD, 0.7 * _SPREAD]),
)

# Laws of few weights, so that their densities can be integrated.
POSTERIORS = {
    "mean-field": mean_field(3),
    "matrix": MatrixPosterior(
        *(GaussianRows(r.mean[s].numpy(), r.cov[s].numpy())
          for r in [rows("full")] for s in (slice(0, 1), slice(1, 2)))
    ),
    "low-rank": LowRankGaussian(
        np.array([[0.3, -0.2, 0.5]]), np.array([1.0, 0.5, 2.0]),
        np.array([[0.6, 0.0], [0.8, 0.0], [0.0, 1.0]]), (_SPREAD @ _SPREAD.mT).numpy(), 0.6,
    ),
    "low-rank-complete": LowRankGaussian(
        np.array([[0.3], [-0.2]]), np.array([0.5]), None, (_SPREAD @ _SPREAD.mT).numpy(), 0.6
    ),
    "laplace": LaplacePosterior(
        np.array([0.4, -0.6]), FullPrecision((2.0 * _SPREAD).numpy(), (), ParamLayout({"w": (2,)})),
        np.array([0, 1]),
    ),
    "gaussian-mixture": _MIXTURE,
}  # fmt: skip
