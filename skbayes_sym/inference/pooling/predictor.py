"""Mixtures of the predictive distributions of a pool's parts."""

from collections.abc import Sequence
from math import log
from typing import Any, TypeVar

import torch
from torch import Tensor

from skbayes_sym.models.predictive import CategoricalMixture, NormalMixture

Law = TypeVar("Law", NormalMixture, CategoricalMixture)


def mixture(laws: Sequence[Law], shares: Sequence[float]) -> Law:
    """Mixture of mixtures of one kind in the proportions ``shares``, whose sum doesn't matter."""
    pairs = zip(laws, shares, strict=True)
    log_weights = torch.cat([_log_weights(law) + log(p / sum(shares)) for law, p in pairs])
    every: Sequence[Any] = laws
    whole: Any
    if isinstance(laws[0], CategoricalMixture):
        whole = CategoricalMixture(torch.cat([law.log_probs for law in every]), log_weights)
    else:
        whole = NormalMixture(
            torch.cat([law.loc for law in every]),
            torch.cat([law.variance.expand_as(law.loc) for law in every]),
            torch.cat([law.noise_variance.expand_as(law.loc) for law in every]),
            log_weights,
            torch.cat([_covariance(law) for law in every]),
        )
    return whole  # type: ignore[no-any-return]


def _log_weights(law: NormalMixture | CategoricalMixture) -> Tensor:
    if law.log_weights is not None:
        return law.log_weights
    like = law.loc if isinstance(law, NormalMixture) else law.log_probs
    return like.new_full((len(like),), -log(len(like)))


def _covariance(law: NormalMixture) -> Tensor:
    if law.covariance is not None:
        return law.covariance
    return torch.diag_embed(law.variance.expand_as(law.loc))
