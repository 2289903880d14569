"""Posteriors have the truth's rank as often as chance does (see sbc.py); slow."""

import pytest
from sbc import CASES, N_REPLICATIONS, p_values, ranks

# Ten minutes of a core for the samplers, seconds for the linear models. Variational posteriors of
# likelihoods that aren't normal are approximations: none of these four shows at 200 replications.
QUICK = {"linear-gaussian"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_ranks_are_uniform(case):
    found = p_values(ranks(case, range(N_REPLICATIONS)))
    assert min(found.values()) > 1e-3, found
