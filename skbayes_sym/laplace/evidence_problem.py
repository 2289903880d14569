r"""Regression and classification as a search for modes sees them: data terms, evidence and updates.

Laplace's estimate of the evidence at a mode, for precisions :math:`\alpha_g` of the prior's groups
and :math:`A = \sum_n w_n J_n' \Lambda_n J_n + \mathrm{diag}\,\alpha`, is

.. math:: \log p(y \mid \theta) - \tfrac12 \sum_k \alpha_{g(k)} \theta_k^2
          + \tfrac12 \sum_g n_g \log \alpha_g - \tfrac12 \log |A|.

A search maximises it together with the hyperprior :math:`\log p(\log \alpha)`. After a step the
precisions follow, with geometric damping,

.. math:: \gamma_g = n_g - \alpha_g \operatorname{tr}_g A^{-1}, \quad
          \alpha_g \leftarrow \frac{\gamma_g + 2a}{|\theta_g|^2 + 2 a s_g^2}

(MacKay 1992, "A practical Bayesian framework for backpropagation networks", eqs. 16 to 21; "The
evidence framework applied to classification networks").

The likelihood of a class is taken at one value of the logits, or averaged over normal logits, see
`skbayes_sym.models.normal_logits`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log, pi
from typing import ClassVar, NamedTuple, Self

import torch
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
from skbayes_sym.models.normal_logits import LinearisedOutputs, SoftmaxExpectations, symmetric_root
from skbayes_sym.models.priors import GroupScalePrior


class Hyperparameters(NamedTuple):
    """Hyperparameters of R restarts.

    Attributes
    ----------
    log_precision : Tensor of shape (R, G)
        Log precisions of the prior's groups.
    noise_precision : Tensor of shape (R, T)
        Precisions of the noise of T targets. Classification has no noise, T = 0.
    """

    log_precision: Tensor
    noise_precision: Tensor

    def select(self, index: Tensor) -> "Hyperparameters":
        """Select restarts."""
        return Hyperparameters(*(t[index] for t in self))


@dataclass(frozen=True)
class SearchSchedule:
    """When the search of one kind of problem updates hyperparameters, and when it ends.

    Attributes
    ----------
    tol : float
        A restart counts as settled if its log evidence changes by less than this, in nats.
    tol_is_per_row : bool
        Whether ``tol`` is in nats per unit of weight.
    lag : int
        Number of updates between the values that are compared.
    n_consecutive : int
        How often in a row the change must be below ``tol``.
    min_updates : int
        Number of updates before the first comparison.
    first_best_step : int
        Step from which on the best iterate is kept. Far from a mode Laplace's approximation
        overestimates the evidence.
    patience : int
        Number of updates without a new best after which a restart ends.
    conservative : bool
        See `gauss_newton.step`.
    large_n_params : float, default=inf
        Number of weights beyond which only one step in ``check_interval`` has an update, because an
        update costs as much as a step.
    first_hyper_step : int, default=8
        Step from which on scales and noise move. Before it only the weights do.
    hyper_damping : float, default=0.7
        Fraction of the logarithmic step of a hyperparameter that is made.
    copy_distance : float, default=0.1
        Squared distance below which two restarts are on their way to copies of one mode.
    n_copy_checks : int, default=3
        Number of checks in a row that must find a restart close to another, which moves too.
    check_interval : int, default=3
        Steps between two updates of a large network, and between two checks for copies.
    steep_rise : float, default=0.01
        Extra steps are made while the evidence rises by more than this per step, in nats per unit
        of weight. It does as long as a network is still finding out that there is hardly any noise.
        Where it rises less, further steps only let the scales drift, and predictions get worse as
        often as better.
    rise_window : int, default=10
        Number of steps over which the rise is measured.
    """

    tol: float
    tol_is_per_row: bool
    lag: int
    n_consecutive: int
    min_updates: int
    first_best_step: int
    patience: int
    conservative: bool
    large_n_params: float = inf
    first_hyper_step: int = 8
    hyper_damping: float = 0.7
    copy_distance: float = 0.1
    n_copy_checks: int = 3
    check_interval: int = 3
    steep_rise: float = 0.01
    rise_window: int = 10


@dataclass(frozen=True, eq=False)
class EvidenceProblem:
    """Base class of a network, data, and a prior whose scales the evidence sets.

    Attributes
    ----------
    network : MLP
    data : Data
        Float64. A weight of 2 means that the row counts twice.
    prior : GroupScalePrior
    weight_factor : Tensor of shape (R, N), optional
        Factor on the weight of every row, for each of R restarts. By default all are 1.
    """

    schedule: ClassVar[SearchSchedule]
    remedy: ClassVar[str]

    network: MLP
    data: Data
    prior: GroupScalePrior
    weight_factor: Tensor | None = None

    def select(self, index: Tensor) -> Self:
        """Return the problem of the restarts of an index."""
        if self.weight_factor is None:
            return self
        return replace(self, weight_factor=self.weight_factor[index])

    @cached_property
    def weight(self) -> Tensor:
        """Weights of the rows, (R, N). R is 1 if they are the same for all restarts."""
        weight = self.data.weight.unsqueeze(0)
        if self.weight_factor is None:
            return weight
        return weight * self.weight_factor

    @cached_property
    def total_weight(self) -> Tensor:
        """Sum of the rows' weights, (R,)."""
        return self.weight.sum(1)

    @property
    def keeps_best(self) -> bool:
        """Whether to keep the best iterate: scales may run away while the evidence falls."""
        return self.prior.is_learned

    def initialize(self, high_noise: Tensor) -> tuple[Self, Hyperparameters]:
        """Return the initial problem and hyperparameters.

        Parameters
        ----------
        high_noise : Tensor of shape (R,), bool
            Which restarts start with the assumption that most of the targets' variation is noise.

        Returns
        -------
        EvidenceProblem
            Problem to solve as long as scales and noise are fixed.
        Hyperparameters
            Initial scales and noise.
        """
        raise NotImplementedError

    def expansion(self, theta: Tensor) -> "DataExpansion":
        """Expand the negative log likelihood to second order around weights (R, P)."""
        raise NotImplementedError

    def misfit(self, theta: Tensor, hyper: Hyperparameters) -> Tensor:
        """Return the negative log likelihood at weights (R, P), up to a constant: (R,) nats."""
        raise NotImplementedError

    def function_distances(self, theta: Tensor, hyper: Hyperparameters) -> Tensor:
        """Squared distances (R, R) of restarts' functions at the rows, in the first one's noise."""
        raise NotImplementedError

    def log_normaliser(self, _hyper: Hyperparameters) -> Tensor | float:
        """Constant of the log likelihood that `misfit` leaves out, (R,) nats."""
        return 0.0

    def system(self, curvature: Curvature, hyper: Hyperparameters) -> System:
        """Return the posterior's precision A.

        Raises
        ------
        NotPositiveDefiniteError
            If it has no Cholesky factor.
        """
        system = curvature.system(hyper.log_precision.exp()[:, self.prior.group])
        require_factor(system, self.remedy)
        return system

    def evaluate(
        self, theta: Tensor, expansion: "DataExpansion", hyper: Hyperparameters
    ) -> tuple[Tensor, System]:
        """Evaluate Laplace's estimate of the evidence, without symmetric copies.

        Parameters
        ----------
        theta : Tensor of shape (R, P)
        expansion : DataExpansion
            Expansion at ``theta``.
        hyper : Hyperparameters

        Returns
        -------
        Tensor of shape (R,)
            Log evidence, nats.
        System
            The posterior's precision A.
        """
        prior = self.prior
        log_precision = hyper.log_precision
        at_hyper = expansion.at(hyper)
        system = self.system(at_hyper.curvature, hyper)
        n = prior.sizes.to(theta)
        squares = prior.sum_by_group(theta.square())
        log_prior = 0.5 * (n * log_precision - log_precision.exp() * squares).sum(1)
        log_likelihood = self.log_normaliser(hyper) - at_hyper.value
        return log_likelihood + log_prior - 0.5 * system.log_det, system

    def update(
        self, theta: Tensor, expansion: "DataExpansion", hyper: Hyperparameters, system: System
    ) -> Hyperparameters:
        """Make MacKay's step of the hyperparameters.

        Parameters
        ----------
        theta : Tensor of shape (R, P)
        expansion : DataExpansion
            Expansion at ``theta``.
        hyper : Hyperparameters
            Present values.
        system : System
            The posterior's precision A at ``theta`` and ``hyper``.

        Returns
        -------
        Hyperparameters
        """
        del expansion  # used where the noise is learned
        if not self.prior.is_learned:
            return hyper
        log_precision = self.prior.evidence_step(
            theta, system.variance, hyper.log_precision, self.schedule.hyper_damping
        )
        return hyper._replace(log_precision=log_precision)


class ResidualSums(NamedTuple):
    """Sums over rows of squared residuals r, J'r and J'J for every target.

    Attributes
    ----------
    squares : Tensor of shape (R, T)
        Weighted sums of squared residuals.
    slope : Tensor of shape (R, T, P)
        J'r.
    product : Tensor of shape (R, T, P, P) or (R, T, N, P)
        J'J. For few rows the weighted J itself.
    """

    squares: Tensor
    slope: Tensor
    product: Tensor

    def select(self, index: Tensor) -> "ResidualSums":
        """Select restarts."""
        return ResidualSums(*(t[index] for t in self))

    def at(self, hyper: Hyperparameters) -> Expansion:
        """Return the expansion of the negative log likelihood for given noise precisions."""
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

    def effective_parameters(self, hyper: Hyperparameters, system: System) -> Tensor:
        """Effective number of parameters that each target determines, (R, T), at most N."""
        if isinstance(system, RowSpaceSystem):
            return system.leverages.unflatten(1, (self.product.shape[1], -1)).sum(2)
        products = (self.product * system.covariance.unsqueeze(1)).sum((2, 3))
        return hyper.noise_precision * products


DataExpansion = ResidualSums | Expansion  # of the negative log likelihood at R weight vectors


@dataclass(frozen=True, eq=False)
class GaussianEvidence(EvidenceProblem):
    r"""Targets (N, T) with normal noise.

    Attributes
    ----------
    noise_precision : Tensor of shape (T,), optional
        Precision of a known noise. By default the noise is learned.

    Notes
    -----
    The noise's precisions follow the effective number of parameters of each target (MacKay 1992),

    .. math:: \beta_t \leftarrow \frac{N - \gamma_t + 1}{\sum_n w_n r_{nt}^2 + 10^{-4}} .

    With more weights than rows scales run away while the evidence falls, and the best iterate is
    kept.
    """

    schedule: ClassVar[SearchSchedule] = SearchSchedule(
        tol=5e-6,
        tol_is_per_row=True,
        lag=3,
        n_consecutive=3,
        min_updates=6,
        first_best_step=20,
        patience=15,
        conservative=False,
    )
    remedy: ClassVar[str] = "Standardise X and y, or use fewer hidden units."

    noise_precision: Tensor | None = None

    @property
    def keeps_best(self) -> bool:
        """Whether to keep the best iterate: with learned scales and fewer targets than weights."""
        return self.prior.is_learned and self.data.y.numel() < self.network.layout.n_params

    def initialize(self, high_noise: Tensor) -> tuple[Self, Hyperparameters]:
        """Return the problem, and initial noise of 3.3 or 0.3 times the targets' variance.

        Parameters
        ----------
        high_noise : Tensor of shape (R,), bool
            Which restarts start with the larger noise.

        Returns
        -------
        GaussianEvidence
            The problem itself.
        Hyperparameters
            Initial scales and noise. A noise that isn't learned is the known one.
        """
        y = self.data.y
        n = len(high_noise)
        noise = self.noise_precision
        if noise is None:
            variance = y.var(0, correction=0)
            variance = torch.where(variance > 0.0, variance, 1.0)  # arbitrary for constant targets
            low_precision = y.new_tensor(0.3)
            high_precision = y.new_tensor(1.0 / 0.3)
            noise = torch.where(high_noise, low_precision, high_precision).unsqueeze(1) / variance
        log_precision = self.prior.hyper.to(y).expand(n, -1)
        return self, Hyperparameters(log_precision, noise.to(y).expand(n, y.shape[1]))

    def squares(self, theta: Tensor) -> Tensor:
        """Weighted squared residuals of every target, (r, P) -> (r, T)."""
        residual = self.data.y - self.network.forward(theta, self.data.x)
        return (self.weight.unsqueeze(1) @ residual.square_()).squeeze(1)

    def misfit(self, theta: Tensor, hyper: Hyperparameters) -> Tensor:
        """Return half the weighted squared residuals at weights (R, P), (R,) nats."""
        return 0.5 * (hyper.noise_precision * self.squares(theta)).sum(1)

    def function_distances(self, theta: Tensor, hyper: Hyperparameters) -> Tensor:
        """Squared distances (R, R) of restarts' functions at the rows, in the first one's noise."""
        outputs = self.network.forward(theta, self.data.x) * self.data.weight.sqrt().unsqueeze(1)
        by_target = outputs.movedim(2, 0).contiguous()
        distance = torch.cdist(
            by_target, by_target, compute_mode="donot_use_mm_for_euclid_dist"
        ).square()
        return torch.einsum("rt,trs->rs", hyper.noise_precision, distance)

    def log_normaliser(self, hyper: Hyperparameters) -> Tensor:
        """Log normaliser of the noise's density, summed over rows and targets, (R,) nats."""
        log_noise = hyper.noise_precision.log() - log(2.0 * pi)
        return 0.5 * (self.total_weight.unsqueeze(1) * log_noise).sum(1)

    def expansion(self, theta: Tensor) -> ResidualSums:
        """Return the sums of every target at weights (R, P).

        O(R N T P^2 / 4), or O(R N T P) for few rows.
        """
        (x, y, _) = self.data
        (n_restarts, p) = theta.shape
        n_targets = y.shape[1]
        squares = theta.new_zeros(n_restarts, n_targets)
        slope = theta.new_zeros(n_restarts, n_targets, p)
        uses_row_space = is_row_space_smaller(y.numel(), p)
        packed = theta.new_zeros(1, 1, 1)
        is_small = n_restarts * y.numel() * p <= 1 << 19  # J stays in the cache
        takes_all_rows = uses_row_space or is_small
        if takes_all_rows:
            size = len(x)
        else:
            size = jacobian_block_size(self.network, n_restarts)
        for rows in torch.arange(len(x), device=x.device).split(size):
            outputs, jacobian = outputs_and_factors(self.network, theta, x[rows])
            weight = self.weight[:, rows]
            residual = y[rows] - outputs
            weighted = residual * weight.unsqueeze(2)
            squares += (weighted * residual).sum(1)
            by_target = [jacobian.select_output(t) for t in range(n_targets)]
            for t, target_jacobian in enumerate(by_target):
                slope[:, t] += target_jacobian.transposed(weighted[..., t : t + 1])
            if takes_all_rows:
                product = weight.sqrt()[:, None, :, None] * jacobian.dense().transpose(1, 2)
            else:
                sums = [jacobian_t.packed(weight[..., None, None]) for jacobian_t in by_target]
                packed = packed + torch.stack(sums, 1)
        if is_small and not uses_row_space:
            product = product.mT @ product
        elif not uses_row_space:
            product = jacobian.gauss_newton(packed.flatten(0, 1))
            product = product.unflatten(0, (n_restarts, n_targets))
        return ResidualSums(squares, slope, product)

    def update(
        self, theta: Tensor, expansion: "DataExpansion", hyper: Hyperparameters, system: System
    ) -> Hyperparameters:
        """Make MacKay's step of the scales and of the noise.

        Parameters
        ----------
        theta : Tensor of shape (R, P)
        expansion : ResidualSums
            Sums at ``theta``.
        hyper : Hyperparameters
            Present values.
        system : System
            The posterior's precision A at ``theta`` and ``hyper``.

        Returns
        -------
        Hyperparameters
        """
        updated = super().update(theta, expansion, hyper, system)
        if self.noise_precision is not None:
            return updated
        assert isinstance(expansion, ResidualSums)
        if self.data.y.shape[1] == 1:
            # The effective parameters of one target are those of all groups together.
            precision = hyper.log_precision.exp()[:, self.prior.group]
            from_prior = (precision * system.variance).sum(1)
            n_effective = (theta.shape[1] - from_prior).unsqueeze(1)
        else:
            n_effective = expansion.effective_parameters(hyper, system)
        dof = self.total_weight.unsqueeze(1) - n_effective
        # A gamma hyperprior of shape 0.5 and rate 5e-5, which only keeps a perfect fit finite.
        target = (dof.clamp_min(0.0) + 1.0) / (expansion.squares + 1e-4)
        log_noise = torch.lerp(
            hyper.noise_precision.log(), target.log(), self.schedule.hyper_damping
        )
        return updated._replace(noise_precision=log_noise.exp())


def linearised_logits(
    network: MLP, theta: Tensor, covariance: Tensor, x: Tensor
) -> LinearisedOutputs:
    """Return logits of the network linearised at a mode, with covariances ``J C J'``.

    Parameters
    ----------
    network : MLP
    theta : Tensor of shape (P,)
        The mode.
    covariance : Tensor of shape (P, P)
        Covariance C of the weights.
    x : Tensor of shape (N, n_inputs)
        Rows.

    Returns
    -------
    LinearisedOutputs

    Notes
    -----
    O(N P^2 / 4) for any number of classes.
    """
    parts = []
    packed = pack(covariance.unsqueeze(0), network.sizes)
    for rows in x.split(jacobian_block_size(network)):
        outputs, jacobian = outputs_and_factors(network, theta.unsqueeze(0), rows)
        parts.append((outputs[0], jacobian.covariance(packed)[0]))
    return LinearisedOutputs(*(torch.cat(part) for part in zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class CategoricalEvidence(EvidenceProblem):
    """Classes (N,) int64, with one output of the network for two classes or one for each class.

    Attributes
    ----------
    root : Tensor of shape (N, K, K), optional
        Root of the logits' covariances. With it the negative log likelihood and its derivatives are
        expectations under normal logits.

    Notes
    -----
    On separable classes and under a weak hyperprior the scales run away while the evidence falls:
    use `LayerScales(8.0, 64.0)`.
    """

    schedule: ClassVar[SearchSchedule] = SearchSchedule(
        tol=0.1,
        tol_is_per_row=False,
        lag=2,
        n_consecutive=2,
        min_updates=5,
        first_best_step=16,
        patience=8,
        conservative=True,
        large_n_params=1000,
    )
    remedy: ClassVar[str] = "Standardise X, or use fewer hidden units."

    root: Tensor | None = None

    def initialize(self, high_noise: Tensor) -> tuple[Self, Hyperparameters]:
        """Return the problem of the first steps, and initial scales.

        Parameters
        ----------
        high_noise : Tensor of shape (R,), bool
            Which restarts start with 0.03 times the rows' weights, so that the prior dominates.

        Returns
        -------
        CategoricalEvidence
            Problem with these weights.
        Hyperparameters
            Initial scales.
        """
        problem = self
        x = self.data.x
        if bool(high_noise.any()):
            low = x.new_tensor(0.03)
            factor = torch.where(high_noise, low, x.new_tensor(1.0)).unsqueeze(1)
            if self.weight_factor is not None:
                factor = factor * self.weight_factor
            problem = replace(self, weight_factor=factor)
        log_precision = self.prior.hyper.to(x).expand(len(high_noise), -1)
        return problem, Hyperparameters(log_precision, log_precision[:, :0])

    def misfit(self, theta: Tensor, _hyper: Hyperparameters | None = None) -> Tensor:
        """Return the negative log likelihood at weights (R, P), (R,) nats."""
        value = theta.new_zeros(len(theta))
        for r, theta_r in enumerate(theta):
            for (x, y, weight), root in self._blocks(r):
                expectations = SoftmaxExpectations(self.network.forward(theta_r, x), root)
                value[r] += weight @ expectations.value(y)
        return value

    def function_distances(self, theta: Tensor, _hyper: Hyperparameters) -> Tensor:
        """Twice the squared Hellinger distances of restarts' predictions at the rows, (R, R)."""
        predictions = [
            SoftmaxExpectations(self.network.forward(theta_r, self.data.x)) for theta_r in theta
        ]
        log_p = torch.stack([one.log_probabilities()[..., 0] for one in predictions])
        roots = 2.0 * ((log_p + self.data.weight.log().unsqueeze(1)) / 2.0).exp().flatten(1)
        return torch.cdist(roots, roots, compute_mode="donot_use_mm_for_euclid_dist").square()

    def expansion(self, theta: Tensor) -> Expansion:
        """Expand the negative log likelihood to second order around weights (R, P).

        O(R N P^2), or O(R N K P) for few rows.
        """
        n_derivatives = len(self.data.x) * self.network.n_outputs
        uses_row_space = is_row_space_smaller(n_derivatives, theta.shape[1])
        parts = []
        for r, theta_r in enumerate(theta):
            value = theta_r.new_zeros(())
            gradient = theta_r.new_zeros(len(theta_r))
            packed = theta_r.new_zeros(1, 1)
            roots = []
            for (x, y, weight), root in self._blocks(r):
                outputs, jacobian = outputs_and_factors(self.network, theta_r.unsqueeze(0), x)
                terms = SoftmaxExpectations(outputs[0], root).derivatives(y)
                value += weight @ terms.value
                gradient += jacobian.transposed((terms.slope * weight[:, None]).unsqueeze(0))[0]
                weighted = terms.curvature * weight[:, None, None]
                if uses_row_space:
                    roots.append((symmetric_root(weighted) @ jacobian.dense()[0]).flatten(0, 1))
                else:
                    packed = packed + jacobian.packed(weighted.unsqueeze(0))
            if uses_row_space:
                product = torch.cat(roots)
            else:
                product = jacobian.gauss_newton(packed)[0]
            parts.append((value, gradient, product))
        values, gradients, products = (torch.stack(t) for t in zip(*parts, strict=True))
        curvature: Curvature = RowCurvature(products)
        if not uses_row_space:
            curvature = WeightCurvature(products, torch.ones_like(values))
        return Expansion(values, gradients, curvature)

    def logits(self, theta: Tensor, covariance: Tensor) -> LinearisedOutputs:
        """Return the training rows' logits at a mode (P,), given the weights' covariance (P, P)."""
        return linearised_logits(self.network, theta, covariance, self.data.x)

    def _blocks(self, r: int) -> Iterator[tuple[Data, Tensor | None]]:
        """Iterate over blocks of rows, weighted as in restart ``r``, and roots of their logits."""
        data = self.data._replace(weight=self.weight[r if len(self.weight) > 1 else 0])
        size = jacobian_block_size(self.network)
        for start in range(0, len(data.x), size):
            rows = slice(start, start + size)
            root = None
            if self.root is not None:
                root = self.root[rows]
            yield Data(*(t[rows] for t in data)), root
