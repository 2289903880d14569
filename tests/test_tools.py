"""The fuzzer and simulation-based calibration run."""

import pytest
from fuzz import findings
from sbc import CASES, N_REPLICATIONS, p_values, ranks


@pytest.mark.long
def test_a_few_calls():
    assert findings(10) == []


@pytest.mark.long
def test_a_thousand_calls():
    assert findings(1_000) == []


@pytest.mark.slow
def test_ten_thousand_calls():
    assert findings(10_000, seed=1) == []


# Ten minutes of a core for the samplers, seconds for the linear models. Variational posteriors of
# likelihoods that aren't normal are approximations: none of these four shows at 200 replications.
QUICK = {"linear-gaussian"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_ranks_are_uniform(case):
    found = p_values(ranks(case, range(N_REPLICATIONS)))
    assert min(found.values()) > 1e-3, found
