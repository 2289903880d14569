r"""The last sweeps over a matrix with missing entries: each begins where the last few lead.

Sweeps over a complete matrix begin at their optimum's singular vectors. With entries missing there
is nothing of the kind, and sweeps converge linearly, by 2 to 20 % of what is left each: ten of them
gain less than ``tol`` long before the optimum. Mixing their steps takes a fraction of them.

For isotropic rows the gap is a function of k numbers, so that a model of it, made of many draws now
and then, stands for it in between. The bound at the end of a sweep is then known without noise, and
a sweep that mixing led astray is made again without.
"""

from collections.abc import Callable
from math import inf, sqrt
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.factor_model import FactorState
from skbayes_sym.inference.factorization.incidence import Entries
from skbayes_sym.numerics.convergence import AndersonMixing
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.gap import GapGradient, RowPosterior

# Sweeps by one model of the gap; they end with one that gains less than so many nats.
PERIOD, _ENOUGH = 10, 1e-5


class GapModel(Protocol):
    """A function that stands for a gap around the posterior that it was made at, nats."""

    def at(self, posterior: RowPosterior) -> Tensor: ...

    def gradients(self, posterior: RowPosterior) -> GapGradient: ...


@runtime_checkable
class ModelledGap(Protocol):
    """A gap that has such a model."""

    def settled_model(self, posterior: RowPosterior, *, generator: torch.Generator) -> GapModel:
        """Make a model of draws enough to fit a posterior to."""


class Reached(NamedTuple):
    """The state at the end of a sweep."""

    posterior: FactorState
    data: Entries  # as the likelihood's sites see them there
    elbo: float  # mean-field, nats


# A sweep from there, in place, with the gap's gradient.
SweepFrom = Callable[[FactorState, Entries, GapGradient], Reached]


class MixedSweeps:
    """Sweeps of rows with diagonal covariances, mixed.

    ``seed``: of its draws, the same for all models. ``tol``: nats: sweeps end once ten of them gain
    less than this, or than 1e-5. Near a saddle ten gain .001 for hundreds of sweeps, and .1 to .3
    beyond it. ``bound``: where the last accepted sweep ended, by the model of the moment;
    ``is_over``: whether there is no more to gain.
    """

    def __init__(self, gap: ModelledGap, seed: int, n_components: int, tol: float) -> None:
        self._gap, self._seed, self._k = gap, seed, n_components
        self._enough, self._n_sweeps, self._begun_at = min(tol, _ENOUGH), 0, -inf
        self._model: GapModel | None = None
        self._metric: _Metric | None = None
        self._mixing, self._mixed = AndersonMixing(), list[FactorState]()
        self.bound, self.is_over = -inf, False

    def step(self, reached: Reached, sweep: SweepFrom) -> Reached:
        """Sweep once more; ``reached`` comes back as it is if mixing led astray."""
        model, metric = self._renewed(reached)
        is_mixed = bool(self._mixed)
        begin = self._mixed.pop() if is_mixed else _copy(reached.posterior)
        was, added = metric.flat(begin), model.gradients(begin.factors(self._k))
        ended = sweep(begin, reached.data, added)
        bound = ended.elbo + float(model.at(ended.posterior.factors(self._k)))
        self._n_sweeps += 1
        if is_mixed and not bound >= self.bound:
            self._mixing = AndersonMixing()
            ended = reached
        else:
            self.bound = bound
            proposed = self._mixing.propose(was, metric.flat(ended.posterior))
            if proposed is not None and bool(proposed.isfinite().all()):
                self._mixed.append(metric.state(proposed, ended.posterior))
        if self._n_sweeps % PERIOD == 0:
            self.is_over = self.bound - self._begun_at < self._enough
        return ended

    def _renewed(self, reached: Reached) -> tuple[GapModel, "_Metric"]:
        """The model and the metric, made at the first sweep; the model again every period."""
        if self._metric is None:
            self._metric = _Metric(reached.posterior)
        if self._model is None or self._n_sweeps % PERIOD == 0:
            posterior = reached.posterior.factors(self._k)
            generator = generator_from(self._seed, posterior.mean.device)
            self._model = self._gap.settled_model(posterior, generator=generator)
            self.bound = self._begun_at = reached.elbo + float(self._model.at(posterior))
        return self._model, self._metric


def _copy(posterior: FactorState) -> FactorState:
    return posterior._replace(mean=posterior.mean.clone(), cov=posterior.cov.clone())


class _Metric:
    """Posteriors as flat vectors whose squared distance is twice the KL between neighbours."""

    def __init__(self, posterior: FactorState) -> None:
        variance = posterior.cov.diagonal(dim1=-2, dim2=-1)
        self._is_free = variance > 0.0  # what is pinned has none
        self._scale = variance.where(self._is_free, 1.0).sqrt()

    def flat(self, posterior: FactorState) -> Tensor:
        variance = posterior.cov.diagonal(dim1=-2, dim2=-1).where(self._is_free, 1.0)
        parts = posterior.mean / self._scale, variance.log() / sqrt(2.0)
        return torch.cat([part.flatten() for part in parts])

    def state(self, flat: Tensor, like: FactorState) -> FactorState:
        """The posterior of a flat vector, with the rest of another."""
        mean, log_variance = flat.view(2, *like.mean.shape)
        variance = (sqrt(2.0) * log_variance).exp() * self._is_free
        return like._replace(mean=mean * self._scale, cov=torch.diag_embed(variance))
