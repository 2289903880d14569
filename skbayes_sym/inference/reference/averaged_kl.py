r"""The paper's averaged invariance gap, for comparison: an objective that is no bound.

Kurle et al. (2022), eqs. 23 and 25 average the posteriors of single data, where Bayes' rule
multiplies their sites. The nearest thing to their proposal that can be trained is to predict with
the mean-field posterior ``q_0`` of the last layer but to charge for it the KL of the
invariance-abiding posterior of *one* row, averaged over the data,

    E_{q_0}[log p(y | W)] - mean_n KL[q_mix^(n) || p].

That counts one row's worth of KL however many there are, so it under-regularises: on small data
it often predicts well, and where it matters it overfits. The bound reported after training is that
of ``q_0``, with its own KL.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import torch
from torch import Tensor

from skbayes_sym.inference.layerwise.base import (
    Conditional,
    LayerInputs,
    Scale,
    as_tensor,
    per_input,
)
from skbayes_sym.models.model import Data
from skbayes_sym.numerics.gaussian import kl_elementwise, log_normal
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import float64_normal, normal_like

_FIRST_VARIANCE = 1e-2  # of a site, in units of the prior's


def single_datum_kl(loc: Tensor, variance: Tensor, x: Tensor, prior_scale: Scale) -> Tensor:
    """``KL[q_mix || p]`` of the rank-one site that one row makes of ``N(loc, variance)``.

    Parameters
    ----------
    loc, variance : Tensor of shape (D, T)
        Of the mean-field likelihood (``examples/papers/repeated_datum.py``).
    x : Tensor of shape (*B, N, D)
        The row's features.
    prior_scale : float or Tensor of shape (D,)

    Returns
    -------
    Tensor of shape (*B, N, T), nats
        ``1/2 [-r - log(1 - r) + (x' m)^2 x' S x / (x' (V + S) x)^2]`` with
        ``r = x' S x / (x' (V + S) x)`` and S the prior covariance.
    """
    prior = ((x * as_tensor(prior_scale, x)) ** 2).sum(-1, keepdim=True)
    total = prior + x**2 @ variance
    share = prior / total
    explained = (x @ loc) ** 2 * prior / total**2
    return 0.5 * (explained - share - torch.log1p(-share))


@dataclass(frozen=True, eq=False)
class AveragedKlLast:
    """Mean-field last layer trained on the averaged heuristic.

    Parameters
    ----------
    prior_scale : float or Tensor of shape (H + 1,)
        As of `CollapsedLast`.
    n_features : int
        H + 1.
    n_outputs : int
    """

    prior_scale: Scale
    n_features: int
    n_outputs: int

    @property
    def trains_on_elbo(self) -> bool:
        return False

    @cached_property
    def layout(self) -> ParamLayout:
        shape = (self.n_features, self.n_outputs)
        return ParamLayout({"loc": shape, "log_variance": shape})

    def under(self, prior_scale: Scale) -> "AveragedKlLast":
        return replace(self, prior_scale=prior_scale)

    def start(self, data: Data, *, generator: torch.Generator) -> Tensor:
        shape = self.layout.shapes["loc"]
        loc = float64_normal(shape, generator=generator).to(data.x)
        scale = per_input(self.prior_scale, loc)
        log_variance = log(_FIRST_VARIANCE) + 2.0 * scale.log()
        start = {"loc": scale * loc, "log_variance": log_variance.expand(shape)}
        return self.layout.flatten(start)

    def _posterior(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of ``q_0``, prior times mean-field likelihood, (D, T)."""
        p = self.layout.unflatten(params)
        precision = p["log_variance"].neg().exp()
        variance = 1.0 / (precision + per_input(self.prior_scale, precision) ** -2)
        return variance * precision * p["loc"], variance

    def _expected(self, inputs: LayerInputs) -> Tensor:
        mean, variance = self._posterior(inputs.params)
        features, data = inputs.features, inputs.data
        squares = (data.y - features @ mean) ** 2 + features**2 @ variance
        return data.weight @ log_normal(squares, inputs.log_noise).sum(-1).mT

    def objective(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        p, weight = self.layout.unflatten(inputs.params), inputs.data.weight
        kl = single_datum_kl(p["loc"], p["log_variance"].exp(), inputs.features, self.prior_scale)
        return self._expected(inputs), weight / weight.sum() @ kl.sum(-1).mT

    def elbo(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        mean, variance = self._posterior(inputs.params)
        prior_log_variance = 2.0 * per_input(self.prior_scale, mean).log()
        kl = kl_elementwise(mean, variance.log(), prior_log_variance).sum()
        likelihood = self._expected(inputs)
        return likelihood, kl.expand_as(likelihood)

    def condition(self, inputs: LayerInputs) -> Conditional:
        mean, variance = self._posterior(inputs.params)
        scale = as_tensor(self.prior_scale, mean)
        root = torch.diag_embed(variance.sqrt().T / scale)
        n = len(inputs.features)
        return Conditional(mean.expand(n, -1, -1), root.expand(n, -1, -1, -1), scale, False)

    def sample(self, inputs: LayerInputs, *, generator: torch.Generator) -> Tensor:
        mean, variance = self._posterior(inputs.params)
        shape = (len(inputs.features), *mean.shape)
        noise = normal_like(shape, generator=generator, like=mean)
        return mean + variance.sqrt() * noise
