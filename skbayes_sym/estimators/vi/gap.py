"""The gap of a fitted network's posterior under its hidden units' symmetry."""

from typing import Any

from sklearn.utils import Bunch, check_random_state

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.model import checked_group, gaussian_prior
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.permanent_estimates import (
    Exact,
    ExactUpTo,
    Importance,
    PermanentEstimate,
)
from skbayes_sym.symmetry.gaps.units import UnitGap

_PERMUTATIONS = 64  # of the estimate of wide layers, at least


def unit_gap_of_fit(estimator: Any, *, n_draws: Any, random_state: Any) -> Bunch:
    """See `skbayes_sym.invariance_gap`; ``symmetry=None`` is asked about all of its group."""
    network = estimator.network_
    prior = gaussian_prior(estimator, network)
    group = checked_group(estimator.symmetry or "auto", network, prior)
    widest = max(network.hidden_layer_sizes, default=0)
    width = 20 if estimator.gap_estimator == "exact" else estimator.exact_max_width
    permanent: PermanentEstimate = Exact()
    if widest > width:
        permanent = ExactUpTo(width, Importance(max(estimator.n_permutations, _PERMUTATIONS)))
    gap = UnitGap(group, permanent)
    number = None if n_draws == "auto" else int(n_draws)
    generator = generator_from(int(check_random_state(random_state).randint(2**31 - 1)))
    with one_thread():
        value, error = gap.estimate(estimator.posterior_, number, generator=generator)
    return Bunch(value=value, standard_error=error, kind="KL at this posterior", side=gap.side)
