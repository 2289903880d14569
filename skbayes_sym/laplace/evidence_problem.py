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

Labels count at a point, or on average under normal logits. With K = C logits a softmax, symmetric
in the classes; with K = 1 a logistic of two classes, which is the softmax whose first logit is
zero. Per row, with :math:`p` the classes' probabilities and :math:`e_y` the label,

.. math:: -\log p_y, \qquad p - e_y, \qquad \Lambda = \mathrm{diag}\,p - p p'.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log, pi
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.laplace.gauss_newton import (
    Curvature,
    Expansion,
    RowCurvature,
    RowSpaceSystem,
    System,
    WeightCurvature,
    is_row_space_smaller,
    require_factor,
)
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import jacobian_block_size, outputs_and_factors, pack
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.gaussian import gauss_hermite, sobol_normal
from skbayes_sym.numerics.runtime import cache_tensors


class SearchHyper(NamedTuple):
    """Hyperparameters of R restarts."""

    log_precision: Tensor  # (R, G), of the prior's groups
    noise_precision: Tensor  # (R, T); labels have no noise, T = 0

    def of(self, which: Tensor) -> "SearchHyper":
        return SearchHyper(*(t[which] for t in self))


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
    many_params: float = inf  # weights beyond which one step in three has an update, as dear as it
    hyper_start: int = 8  # iterations before scales and noise move: the weights first
    damping: float = 0.7  # share of the logarithmic step of a hyperparameter
    near: float = 0.1  # squared distance of two restarts on their way to copies of one mode
    looks: int = 3  # in a row that show a restart near another that moves, too
    seldom: int = 3  # steps an update where weights are many, or a look for copies
    # Nats per unit of weight that the evidence rises by at every one of so many steps while a
    # network still finds out that there is hardly any noise. Others have made up their minds: from
    # there on scales drift and predictions get worse as often as better.
    steep: float = 0.01
    over: int = 10


@dataclass(frozen=True, eq=False)
class EvidenceProblem:
    """A network, data and a prior whose scales the evidence sets: base of numbers and labels."""

    schedule: ClassVar[SearchSchedule]
    remedy: ClassVar[str]

    network: MLP
    data: Data  # float64; a weight of 2 is the row twice
    prior: GroupScalePrior
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
    def keeps_best(self) -> bool:
        """Whether scales may run away while the evidence falls: the last iterate isn't the one."""
        return self.prior.is_learned

    def begin(self, doubted: Tensor) -> tuple[Self, SearchHyper]:
        """The problem while scales and noise stay, of targets that are believed or doubted (R,)."""
        raise NotImplementedError

    def expansion(self, theta: Tensor) -> "SearchRows":
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

    def evaluated(
        self, theta: Tensor, rows: "SearchRows", hyper: SearchHyper
    ) -> tuple[Tensor, System]:
        """Laplace's estimates (R,) at ``theta`` (R, P), of no copies, and precisions A."""
        prior = self.prior
        log_precision = hyper.log_precision
        expansion = rows.expansion(hyper)
        system = self.system(expansion.curvature, hyper)
        n = prior.sizes.to(theta)
        squares = prior.sum_by_group(theta.square())
        log_prior = 0.5 * (n * log_precision - log_precision.exp() * squares).sum(1)
        log_likelihood = self.log_normaliser(hyper) - expansion.value
        return log_likelihood + log_prior - 0.5 * system.log_det, system

    def update(
        self, theta: Tensor, rows: "SearchRows", hyper: SearchHyper, system: System
    ) -> SearchHyper:
        """MacKay's step of the hyperparameters."""
        if not self.prior.is_learned:
            return hyper
        step = self.prior.evidence_step
        damping = self.schedule.damping
        return hyper._replace(
            log_precision=step(theta, system.variance, hyper.log_precision, damping)
        )


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
        product = self.product[:, 0]
        unit = beta[:, 0]
        if beta.shape[1] > 1:
            product = torch.einsum("rt,rtpq->rpq", beta, self.product)
            unit = torch.ones_like(unit)
        return Expansion(value, gradient, WeightCurvature(product, unit))

    def determined(self, hyper: SearchHyper, system: System) -> Tensor:
        """Weights that the rows of each target determine, (R, T); at most N."""
        if isinstance(system, RowSpaceSystem):
            return system.determined.unflatten(1, (self.product.shape[1], -1)).sum(2)
        products = (self.product * system.covariance.unsqueeze(1)).sum((2, 3))
        return hyper.noise_precision * products


SearchRows = ResidualSums | Expansion  # a pass over the rows at R weight vectors


@dataclass(frozen=True, eq=False)
class GaussianEvidence(EvidenceProblem):
    r"""Targets (N, T) in normal noise.

    The noise's precisions follow, with what the rows of target t determine (MacKay 1992),

    .. math:: \beta_t \leftarrow \frac{N - \gamma_t + 1}{\sum_n w_n r_{nt}^2 + 10^{-4}} .
    """

    # Of more weights than rows scales run away while the evidence falls: the best is kept.
    schedule: ClassVar[SearchSchedule] = SearchSchedule(
        tol=5e-6, tol_is_per_row=True, lag=3, times=3, fewest=6, best_start=20, most_without=15,
        is_wary=False,
    )  # fmt: skip
    remedy: ClassVar[str] = "Standardise X and y, or use fewer hidden units."

    noise_precision: Tensor | None = None  # (T,), of a noise that isn't learned

    @property
    def keeps_best(self) -> bool:
        return self.prior.is_learned and self.data.y.numel() < self.network.layout.n_params

    def begin(self, doubted: Tensor) -> tuple[Self, SearchHyper]:
        y = self.data.y
        n = len(doubted)
        noise = self.noise_precision
        if noise is None:
            spread = y.var(0, correction=0)
            spread = torch.where(spread > 0.0, spread, 1.0)  # of a constant target any will do
            # Precisions at the beginning, in units of the targets' variance.
            noise = (
                torch.where(doubted, y.new_tensor(0.3), y.new_tensor(1.0 / 0.3)).unsqueeze(1)
                / spread
            )
        log_precision = self.prior.hyper.to(y).expand(n, -1)
        return self, SearchHyper(log_precision, noise.to(y).expand(n, y.shape[1]))

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
        (x, y, _) = self.data
        (n_restarts, p) = theta.shape
        n_targets = y.shape[1]
        squares = theta.new_zeros(n_restarts, n_targets)
        slope = theta.new_zeros(n_restarts, n_targets, p)
        few = is_row_space_smaller(y.numel(), p)
        packed = theta.new_zeros(1, 1, 1)
        is_small = n_restarts * y.numel() * p <= 1 << 19  # J stays in cache
        size = len(x) if few or is_small else jacobian_block_size(self.network, n_restarts)
        for rows in torch.arange(len(x), device=x.device).split(size):
            outputs, jacobian = outputs_and_factors(self.network, theta, x[rows])
            weight = self.weight[:, rows]
            residual = y[rows] - outputs
            weighted = residual * weight.unsqueeze(2)
            squares += (weighted * residual).sum(1)
            each = [jacobian.select_output(t) for t in range(n_targets)]
            for t, select_target in enumerate(each):
                slope[:, t] += select_target.transposed(weighted[..., t : t + 1])
            if few or is_small:
                product = weight.sqrt()[:, None, :, None] * jacobian.dense().transpose(1, 2)
            else:
                sums = [one.packed(weight[..., None, None]) for one in each]
                packed = packed + torch.stack(sums, 1)
        if is_small and not few:
            product = product.mT @ product
        elif not few:
            product = jacobian.gauss_newton(packed.flatten(0, 1))
            product = product.unflatten(0, (n_restarts, n_targets))
        return ResidualSums(squares, slope, product)

    def update(
        self, theta: Tensor, rows: "SearchRows", hyper: SearchHyper, system: System
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
        # A gamma hyperprior of shape .5 and rate 5e-5 only keeps a perfect fit finite.
        goal = (undetermined.clamp_min(0.0) + 1.0) / (rows.squares + 1e-4)
        noise = torch.lerp(hyper.noise_precision.log(), goal.log(), self.schedule.damping).exp()
        return updated._replace(noise_precision=noise)


class NormalPoints(NamedTuple):
    """Points of N(0, I), the same for every row."""

    points: Tensor  # (S, K)
    weights: Tensor  # (S,), of sum one


def points_for_prediction(n_outputs: int) -> NormalPoints:
    """The `normal_points` of predictions: more of several logits than a fit takes."""
    return normal_points(n_outputs, 256)


@cache_tensors
def normal_points(n_outputs: int, n_points: int = 64) -> NormalPoints:
    """Gauss-Hermite nodes of one logit, Sobol points and their mirror image of several."""
    if n_outputs == 1:
        nodes, weights = gauss_hermite(32)
        return NormalPoints(nodes.unsqueeze(1), weights)
    points = sobol_normal(n_points, n_outputs, seed=0)  # always: equal modes predict equally
    return NormalPoints(points, points.new_full((len(points),), 1.0 / len(points)))


def symmetric_root(matrix: Tensor) -> Tensor:
    """The symmetric root of positive semidefinite matrices, (*B, K, K).

    It is unique, and exchanging classes exchanges its rows and columns.
    """
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT


class LogitDerivatives(NamedTuple):
    """The negative log likelihood of every row with its derivatives by the logits."""

    value: Tensor  # (N,), nats
    slope: Tensor  # (N, K)
    curvature: Tensor  # (N, K, K)


@dataclass(frozen=True, eq=False)
class ClassTerms:
    """Averages over logits ``outputs + root z`` at the points z."""

    outputs: Tensor  # (N, K)
    root: Tensor | None = None  # (N, K, K), of the logits' covariance; None is zero
    rule: NormalPoints | None = None  # by default `normal_points`

    @property
    def weights(self) -> Tensor:
        """Weights of the points, (S,)."""
        return self.outputs.new_ones(1) if self.root is None else self._rule.weights

    @property
    def _rule(self) -> NormalPoints:
        rule = self.rule or normal_points(self.outputs.shape[1])
        return NormalPoints(*(t.to(self.outputs) for t in rule))

    def log_probabilities(self) -> Tensor:
        """Log probabilities of the C classes at every point, (N, C, S)."""
        logits = self.outputs.unsqueeze(-1)
        if self.root is not None:
            logits = logits + self.root @ self._rule.points.T
        if self.outputs.shape[1] == 1:
            logits = F.pad(logits, (0, 0, 1, 0))
        return logits.log_softmax(1)

    def value(self, y: Tensor) -> Tensor:
        """``E[-log p_y]``, (N,) nats."""
        return -(_chosen(self.log_probabilities(), y) @ self.weights)

    def log_likelihood(self, y: Tensor) -> Tensor:
        """``log E[p_y]``, (N,) nats."""
        return (_chosen(self.log_probabilities(), y) + self.weights.log()).logsumexp(-1)

    def terms(self, y: Tensor) -> LogitDerivatives:
        """Expectations of value, slope and curvature."""
        log_p = self.log_probabilities()
        weights = self.weights
        n_outputs = self.outputs.shape[1]
        value = -(_chosen(log_p, y) @ weights)
        p = log_p.exp_()[:, -n_outputs:]
        mean = p @ weights
        curvature = mean.diag_embed() - (p * weights) @ p.mT
        label = F.one_hot(y, log_p.shape[1])[:, -n_outputs:]
        return LogitDerivatives(value, mean - label, curvature)


def _chosen(log_p: Tensor, y: Tensor) -> Tensor:
    """Log probabilities of the labels at every point, (N, S)."""
    return log_p[torch.arange(len(y), device=y.device), y]


class LinearisedOutputs(NamedTuple):
    """Law of a network's outputs at every row, linearised in weights with a normal posterior."""

    mean: Tensor  # (N, K)
    covariance: Tensor  # (N, K, K), of the function, without observation noise


def linearised_logits(
    network: MLP, theta: Tensor, covariance: Tensor, x: Tensor
) -> LinearisedOutputs:
    """Logits at the mode ``theta`` (P,) and ``J C J'``, C (P, P) the weights' covariance.

    O(N P^2 / 4) however many classes there are.
    """
    parts = []
    packed = pack(covariance.unsqueeze(0), network.sizes)
    for rows in x.split(jacobian_block_size(network)):
        outputs, jacobian = outputs_and_factors(network, theta.unsqueeze(0), rows)
        parts.append((outputs[0], jacobian.covariance(packed)[0]))
    return LinearisedOutputs(*(torch.cat(part) for part in zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class CategoricalEvidence(EvidenceProblem):
    """Class indices (N,) int64, of a network with one output for two classes or one a class.

    Under a ``root`` of the logits' covariances the negative log likelihood and its derivatives are
    expectations under normal logits. On separable classes the scales run away under a weak
    hyperprior, the evidence falling while they do: take `LayerScales(8.0, 64.0)`.
    """

    schedule: ClassVar[SearchSchedule] = SearchSchedule(
        tol=0.1, tol_is_per_row=False, lag=2, times=2, fewest=5, best_start=16, most_without=8,
        is_wary=True, many_params=1000,
    )  # fmt: skip
    remedy: ClassVar[str] = "Standardise X, or use fewer hidden units."

    root: Tensor | None = None  # (N, K, K)

    def begin(self, doubted: Tensor) -> tuple[Self, SearchHyper]:
        problem = self
        theta = self.data.x
        if bool(doubted.any()):
            # Labels that are doubted have this share of their weight in the first steps.
            share = torch.where(doubted, theta.new_tensor(0.03), theta.new_tensor(1.0)).unsqueeze(1)
            problem = replace(self, share=share if self.share is None else share * self.share)
        log_precision = self.prior.hyper.to(theta).expand(len(doubted), -1)
        return problem, SearchHyper(log_precision, log_precision[:, :0])

    def misfit(self, theta: Tensor, hyper: SearchHyper | None = None) -> Tensor:
        value = theta.new_zeros(len(theta))
        for r, one in enumerate(theta):
            for (x, y, weight), root in self._blocks(r):
                terms = ClassTerms(self.network.forward(one, x), root)
                value[r] += weight @ terms.value(y)
        return value

    def function_distances(self, theta: Tensor, hyper: SearchHyper) -> Tensor:
        logs = [ClassTerms(self.network.forward(one, self.data.x)) for one in theta]
        log_p = torch.stack([terms.log_probabilities()[..., 0] for terms in logs])
        roots = 2.0 * ((log_p + self.data.weight.log().unsqueeze(1)) / 2.0).exp().flatten(1)
        return torch.cdist(roots, roots, compute_mode="donot_use_mm_for_euclid_dist").square()

    def expansion(self, theta: Tensor) -> Expansion:
        """The negative log likelihood to second order; O(R N P^2), or O(R N K P) of few rows."""
        few = is_row_space_smaller(len(self.data.x) * self.network.n_outputs, theta.shape[1])
        parts = []
        for r, one in enumerate(theta):
            value = one.new_zeros(())
            gradient = one.new_zeros(len(one))
            packed = one.new_zeros(1, 1)
            roots = []
            for (x, y, weight), root in self._blocks(r):
                outputs, jacobian = outputs_and_factors(self.network, one.unsqueeze(0), x)
                terms = ClassTerms(outputs[0], root).terms(y)
                value += weight @ terms.value
                gradient += jacobian.transposed((terms.slope * weight[:, None]).unsqueeze(0))[0]
                weighted = terms.curvature * weight[:, None, None]
                if few:
                    roots.append((symmetric_root(weighted) @ jacobian.dense()[0]).flatten(0, 1))
                else:
                    packed = packed + jacobian.packed(weighted.unsqueeze(0))
            product = torch.cat(roots) if few else jacobian.gauss_newton(packed)[0]
            parts.append((value, gradient, product))
        values, gradients, products = (torch.stack(t) for t in zip(*parts, strict=True))
        curvature: Curvature = RowCurvature(products)
        if not few:
            curvature = WeightCurvature(products, torch.ones_like(values))
        return Expansion(values, gradients, curvature)

    def logits(self, theta: Tensor, covariance: Tensor) -> LinearisedOutputs:
        """Logits of the training rows at ``theta`` (P,), the weights' covariance (P, P)."""
        return linearised_logits(self.network, theta, covariance, self.data.x)

    def _blocks(self, r: int) -> Iterator[tuple[Data, Tensor | None]]:
        """Rows as one restart weighs them, and the roots of their logits' covariances."""
        data = self.data._replace(weight=self.weight[r if len(self.weight) > 1 else 0])
        size = jacobian_block_size(self.network)
        for start in range(0, len(data.x), size):
            rows = slice(start, start + size)
            yield Data(*(t[rows] for t in data)), None if self.root is None else self.root[rows]
