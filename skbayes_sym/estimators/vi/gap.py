"""The gap of a fitted network's posterior under its hidden units' symmetry."""

from typing import Any

from sklearn.utils import Bunch, check_random_state

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.model import declared_group, network_prior
from skbayes_sym.estimators.vi.gaps import permanent_estimate, reported
from skbayes_sym.inference.mean_field.bounds import estimate_gap
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.units import gap_lower

# "auto" draws: a near-saturated gap is skewed, so many of narrow layers; 16 to 1000.
_ENTRIES = 1 << 20  # of the units' matrices, all draws together


def unit_gap_of_fit(estimator: Any, *, n_draws: Any, random_state: Any) -> Bunch:
    """See `skbayes_sym.invariance_gap`; ``symmetry=None`` is asked about all of its group."""
    network = estimator.network_
    prior = network_prior(estimator.prior_scale, network)
    group = declared_group(estimator.symmetry or "auto", network, prior)
    widest = max(network.hidden_layer_sizes, default=0)
    below = reported(permanent_estimate(estimator.gap, widest)).lower
    if n_draws == "auto":
        n_draws = max(16, min(1000, _ENTRIES // max(widest, 1) ** 2))
    value, error = 0.0, 0.0
    if group.factors:
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        with one_thread():
            value, error = estimate_gap(
                gap_lower, group, estimator.posterior_,
                below, n_draws=n_draws, generator=generator_from(seed),
            )  # fmt: skip
    # One layer's sum over the group is a permanent; several layers' is bounded by the chain rule.
    is_exact = len(group.factors) < 2 and widest <= below.max_width
    return Bunch(
        value=value,
        standard_error=error,
        kind="KL at this posterior",
        side="exact" if is_exact else "lower",
    )
