"""Independent SMC runs depend on their seeds alone, and can be stopped."""

import pytest
from inference.sampling.known_evidence import linear_problem
from thin import some
from torch.testing import assert_close

from skbayes_sym.inference.sampling.smc import SMCSettings, run_replicates
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.base import Trivial


@pytest.mark.processes
def test_replicates_do_not_depend_on_the_number_of_jobs():
    posterior, _ = linear_problem()
    arguments = (posterior, Trivial(), SMCSettings(n_particles=64, n_moves=2))
    told = []
    one = run_replicates(
        *arguments,
        seeds=spawn_seeds(7, 3),
        on_step=lambda k, info: told.append((k, info)) and False,
    )
    two = run_replicates(*arguments, seeds=spawn_seeds(7, 3), n_jobs=2)
    assert one.stopped == two.stopped == "max_iter"
    for ours, theirs in zip(one.runs, two.runs, strict=True):
        assert_close(ours.particles, theirs.particles, rtol=0, atol=0)
        assert ours.log_evidence == theirs.log_evidence
    assert len({run.log_evidence for run in one.runs}) == 3
    assert [k for k, _ in told] == [1, 2, 3]
    assert told[0][1]["log_evidence"] == one.runs[0].log_evidence


@some("n_jobs", [1, 2], keep={1})
def test_replicates_can_be_stopped(n_jobs):
    posterior, _ = linear_problem()
    arguments = (posterior, Trivial(), SMCSettings(n_particles=32, n_moves=1))
    found = run_replicates(
        *arguments, seeds=spawn_seeds(7, 4), n_jobs=n_jobs, on_step=lambda k, info: k == 2
    )
    assert len(found.runs) == 2
    assert found.stopped == "callback"
