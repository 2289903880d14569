import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import joblib
import numpy as np
import pytest
import torch
from mcmc.known_densities import AutogradPosterior, Normal, scaled
from torch.testing import assert_close

from skbayes_sym.base.log_density import Evaluation
from skbayes_sym.mcmc.chains import (
    REPORT_EVERY,
    Sampler,
    retune_chains,
    run_block,
    sample_chains,
    start_blocks,
)
from skbayes_sym.mcmc.kernels import HMC
from skbayes_sym.mcmc.warmup import FixedPreconditioner, PooledDiagonal
from skbayes_sym.symmetry.group import Trivial
from skbayes_sym.symmetry.units import Units

N_SE = 4.5  # P(|z| > 4.5) = 7e-6


def correlated(n_dims, condition):
    """A rotated normal whose standard deviations span ``condition``."""
    g = torch.Generator().manual_seed(5)
    rotation, _ = torch.linalg.qr(torch.randn(n_dims, n_dims, generator=g, dtype=torch.float64))
    sd = torch.logspace(0, -np.log10(condition), n_dims, dtype=torch.float64)
    covariance = (rotation * sd**2) @ rotation.T
    mean = torch.arange(n_dims, dtype=torch.float64)
    return Normal(mean, covariance.inverse()), covariance


def normal_by_autograd(n_dims=3):
    """Closures travel to other processes, where this module can't be imported."""
    return AutogradPosterior(
        n_dims, lambda x: -0.5 * (x * x).sum(1), lambda x: -0.5 * (x[:, 0] - 1) ** 2
    )


def small(n_chains=7, block_size=3, seed=11, density=None, dtype=torch.float64):
    """A sampler, and blocks of it to run."""
    density = density or normal_by_autograd()
    g = torch.Generator().manual_seed(2)
    position = torch.randn(n_chains, density.n_dims, generator=g, dtype=dtype)
    sampler = Sampler(HMC(max_leapfrog=16), density, PooledDiagonal(Trivial()))
    return sampler, start_blocks(position, density, block_size=block_size, seed=seed)


SHORT = {"n_warmup": 30, "n_draws": 25}


def assert_same(a, b):
    for x, y in ((a.draws, b.draws), (a.log_density, b.log_density), (a.n_draws, b.n_draws)):
        np.testing.assert_array_equal(x, y)
    for x, y in zip((*a.warmup, *a.sampling), (*b.warmup, *b.sampling), strict=True):
        assert_close(x, y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.long
@pytest.mark.kept("torch.float64")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_recovers_a_correlated_ill_conditioned_normal(dtype):
    """Chains are independent: the spread of their averages gives the standard errors."""
    target, covariance = correlated(6, condition=30)
    n_chains = 200
    g = torch.Generator().manual_seed(0)
    position = 3 * torch.randn(n_chains, 6, generator=g, dtype=dtype)
    blocks = start_blocks(position, target, block_size=100, seed=1)
    sampler = Sampler(HMC(), target, PooledDiagonal(Trivial()))
    result = sample_chains(sampler, blocks, n_warmup=300, n_draws=40)
    assert result.draws.dtype == np.dtype(str(dtype).removeprefix("torch."))
    away = result.draws.astype(float) - target.mean.numpy()
    products = np.einsum("csi,csj->csij", away, away)
    for per_chain, truth in ((away.mean(1), np.zeros(6)), (products.mean(1), covariance.numpy())):
        se = per_chain.std(0, ddof=1) / np.sqrt(n_chains)
        assert np.all(np.abs(per_chain.mean(0) - truth) < N_SE * se)
    assert result.complete
    assert not result.stuck.any()
    assert result.sampling.n_divergent.sum() == 0


@pytest.mark.parametrize("n_dims", [5, 11, 50])
def test_warm_up_reaches_the_target_acceptance(n_dims):
    sampler, blocks = small(64, 64, density=correlated(n_dims, condition=10)[0])
    sampler = replace(sampler, kernel=HMC())
    result = sample_chains(sampler, blocks, n_warmup=300, n_draws=60)
    assert abs(float(result.sampling.mean_acceptance.mean()) - 0.8) < 0.1


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_same_draws_whatever_runs_them(backend):
    sampler, blocks = small()
    alone = sample_chains(sampler, blocks, **SHORT, thin=2)
    with joblib.parallel_config(backend=backend):
        assert_same(sample_chains(sampler, blocks, **SHORT, thin=2, n_jobs=2), alone)


@pytest.mark.long
def test_blocks_do_not_know_each_other():
    """The draws of a block depend on neither the order nor the other blocks."""
    sampler, blocks = small(9)
    together = sample_chains(sampler, blocks, **SHORT)
    backwards = sample_chains(sampler, blocks[::-1], **SHORT)
    np.testing.assert_array_equal(backwards.draws[:3], together.draws[6:])
    np.testing.assert_array_equal(backwards.draws[6:], together.draws[:3])
    on_its_own = run_block(sampler, blocks[1], **SHORT)
    np.testing.assert_array_equal(on_its_own.draws, together.draws[3:6])
    assert np.abs(together.draws[:3] - together.draws[3:6]).min() > 0  # streams differ


@pytest.mark.long
@pytest.mark.kept("2")
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_going_on_is_one_long_run(n_jobs):
    sampler, blocks = small()
    with joblib.parallel_config(backend="threading"):
        whole = sample_chains(sampler, blocks, **SHORT, n_jobs=n_jobs)
        first = sample_chains(sampler, blocks, n_warmup=30, n_draws=12, n_jobs=n_jobs)
        rest = sample_chains(sampler, first.blocks, n_warmup=0, n_draws=13, n_jobs=n_jobs)
    np.testing.assert_array_equal(np.concatenate([first.draws, rest.draws], 1), whole.draws)
    assert_close(first.sampling.n_gradients + rest.sampling.n_gradients, whole.sampling.n_gradients)
    assert int(rest.warmup.n_gradients.sum()) == 0


def test_counts():
    sampler, blocks = small()
    result = sample_chains(sampler, blocks, **SHORT)
    assert result.warmup.n_moves.tolist() == [30] * 7
    assert result.sampling.n_moves.tolist() == [25] * 7
    assert bool((result.sampling.n_gradients >= 25).all())
    assert bool((result.warmup.n_gradients > 30).all())
    moved = (np.diff(result.draws, axis=1) != 0).any(-1).sum(1)
    extra = result.sampling.n_accepted.numpy() - moved  # the first move of the draws is not seen
    assert set(extra.tolist()) <= {0, 1}


@pytest.mark.long
def test_warm_up_learns_each_coordinates_scale():
    """Standard deviations over two orders of magnitude are learned from a unit scale."""
    scale = torch.logspace(-1, 1, 6, dtype=torch.float64)
    sampler, blocks = small(20, 10, density=scaled(scale))
    result = sample_chains(replace(sampler, kernel=HMC()), blocks, n_warmup=300, n_draws=20)
    for block in result.blocks:
        ratio = (block.preconditioner.scale / scale).log()
        # The last window's 100 draws: 1 / sqrt(200) if independent, taken twice as they are not.
        assert float(ratio.abs().max()) < N_SE * 2 * 200**-0.5
    assert float(result.sampling.n_gradients.double().mean()) / 20 < 6


class Interrupting:
    """A density that is interrupted at its n-th call."""

    def __init__(self, density, n):
        self.density, self.n_dims, self.left = density, density.n_dims, n

    def evaluate(self, position):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.density.evaluate(position)


@pytest.mark.long
def test_interrupt_keeps_the_draws():
    """All chains have about as many draws, the same as without the interrupt."""
    sampler, blocks = small()
    whole = sample_chains(sampler, blocks, n_warmup=30, n_draws=60)
    calls = Interrupting(sampler.log_density, -1)
    sample_chains(replace(sampler, log_density=calls), blocks, n_warmup=30, n_draws=60)
    n_calls = -1 - calls.left
    cut = replace(sampler, log_density=Interrupting(sampler.log_density, n_calls * 3 // 4))
    result = sample_chains(cut, blocks, n_warmup=30, n_draws=60)
    assert result.stopped == "interrupted"
    assert not result.complete
    assert 0 < result.n_draws.min() <= result.n_draws.max() <= result.n_draws.min() + 10 < 60
    for chain, n in enumerate(result.n_draws):
        np.testing.assert_array_equal(result.draws[chain, :n], whole.draws[chain, :n])
        assert np.isnan(result.draws[chain, n:]).all()
        assert np.isnan(result.log_density[chain, n:]).all()
    # What was cut goes on.
    more = sample_chains(sampler, result.blocks, n_warmup=0, n_draws=5)
    assert more.complete


def test_interrupt_during_warm_up_leaves_no_draws():
    sampler, blocks = small()
    cut = replace(sampler, log_density=Interrupting(sampler.log_density, 40))
    result = sample_chains(cut, blocks, **SHORT)
    assert result.stopped == "interrupted"
    assert result.n_draws.tolist() == [0] * 7
    assert not result.stuck.any()


@pytest.mark.long
def test_interrupt_side_by_side_keeps_finished_blocks():
    sampler, blocks = small(12)
    whole = sample_chains(sampler, blocks, **SHORT)
    seen = []

    def interrupt(step, info):
        seen.append(step)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return False

    with joblib.parallel_config(backend="threading"):
        result = sample_chains(sampler, blocks, **SHORT, n_jobs=2, on_step=interrupt)
    assert result.stopped == "interrupted"
    assert sorted(result.n_draws.tolist()) == [0] * 6 + [25] * 6
    done = result.n_draws == 25
    np.testing.assert_array_equal(result.draws[done], whole.draws[done])


@pytest.mark.long
def test_on_step_counts_moves_and_stops():
    sampler, blocks = small()
    steps = []

    def watch(step, info):
        assert set(info) == {"log_density", "acceptance", "n_divergent"}
        steps.append(step)
        return False

    watched = sample_chains(sampler, blocks, n_warmup=30, n_draws=20, thin=2, on_step=watch)
    assert_same(watched, sample_chains(sampler, blocks, n_warmup=30, n_draws=20, thin=2))
    assert steps == list(range(REPORT_EVERY, 3 * (30 + 40) + 1, REPORT_EVERY))
    stopped = sample_chains(
        sampler, blocks, n_warmup=30, n_draws=20, on_step=lambda step, info: step >= 110
    )
    assert stopped.stopped == "callback"
    assert stopped.n_draws.tolist() == [10] * 6 + [0]
    with joblib.parallel_config(backend="threading"):
        stopped = sample_chains(
            sampler, blocks, **SHORT, n_jobs=2, on_step=lambda step, info: step >= 110
        )
    assert stopped.stopped == "callback"
    assert (stopped.n_draws > 0).sum() in (4, 6)  # two blocks of 55 moves


def test_start_that_is_not_finite_is_named():
    density = AutogradPosterior(1, lambda x: x[:, 0].log(), lambda x: 0 * x[:, 0])
    position = torch.ones(9, 1)
    position[[2, 7]] = -1.0
    with pytest.raises(ValueError, match=r"2 of 9 chains \(number 2, 7\)"):
        start_blocks(position, density, block_size=4, seed=0)


def test_stuck_and_lost_chains_are_reported():
    """One chain is trapped; the others sample as if it weren't there."""

    class Island:
        n_dims = 2

        def evaluate(self, x):
            far = x[:, 0] > 50
            inside = torch.where(far & (x[:, 0] != 100), -torch.inf, -0.5 * (x * x).sum(1))
            return Evaluation(inside, torch.where(far.unsqueeze(1), 0.0, -x))

    position = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).double()
    position[5] = torch.tensor([100.0, 0.0])
    blocks = start_blocks(position, Island(), block_size=40, seed=0)
    sampler = Sampler(HMC(), Island(), PooledDiagonal(Units(torch.tensor([[0], [1]]))))
    result = sample_chains(sampler, blocks, n_warmup=0, n_draws=60)
    assert result.stuck.tolist() == [chain == 5 for chain in range(40)]
    assert np.isfinite(result.draws).all()
    assert int(result.sampling.n_divergent[5]) == 60
    per_chain = (np.delete(result.draws[:, 20:], 5, axis=0) ** 2).mean(1)
    se = per_chain.std(0, ddof=1) / np.sqrt(39)
    assert np.all(np.abs(per_chain.mean(0) - 1) < N_SE * se)


@contextmanager
def dask_cluster():
    """Two worker processes of one thread on this machine."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield cluster, client


def kill_a_busy_worker(cluster, client, finished):
    """Kill one of two workers in the middle of a block; its pid."""
    while not finished.wait(0.05):
        busy = [address for address, keys in client.processing().items() if keys]
        if len(busy) == 2:
            finished.wait(0.2)  # well into a block
            victim = next(w for w in cluster.workers.values() if w.worker_address == busy[0])
            os.kill(victim.pid, signal.SIGKILL)
            return victim.pid
    return None


@pytest.mark.slow  # starts processes and waits for them
def test_same_draws_from_a_dask_cluster_that_loses_a_worker():
    sampler, blocks = small(24, 3)
    long = {"n_warmup": 500, "n_draws": 25}
    alone = sample_chains(sampler, blocks, **long)
    finished = threading.Event()
    with dask_cluster() as (cluster, client), ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_a_busy_worker, cluster, client, finished)
        with joblib.parallel_config(backend="dask"):
            result = sample_chains(sampler, blocks, **long)
        finished.set()
        assert killed.result() is not None
    assert result.complete
    assert_same(result, alone)


@dataclass(frozen=True)
class Narrowing:
    """A standard normal, but a hundred times as narrow where the last coordinate is above 5."""

    n_dims: int = 4

    def __call__(self, position):
        return self.evaluate(position).value

    def evaluate(self, position):
        curvature = torch.where(position[:, -1:] > 5, 1e4, 1.0)
        gradient = -curvature * position
        gradient[:, -1] = 0.0  # stays on its side
        return Evaluation(0.5 * (gradient * position).sum(1), gradient)


def run(high, n_draws=8):
    """Six chains in three blocks, tuned for the wide part; ``high`` are in the narrow one."""
    position = 0.01 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    position[high, -1] = 100.0
    density = Narrowing()
    sampler = Sampler(HMC(max_leapfrog=8), density, FixedPreconditioner())
    blocks = start_blocks(position, density, block_size=2, seed=1, step_size=0.3)
    return sampler, sample_chains(sampler, blocks, n_warmup=0, n_draws=n_draws)


def test_only_blocks_that_need_it_draw_again():
    sampler, found = run([3])
    again = retune_chains(sampler, found, min_acceptance=0.65, n_warmup=30)
    assert float(found.sampling.mean_acceptance[3]) < 0.2
    assert float(again.sampling.mean_acceptance.min()) > 0.65
    for chain in (0, 1, 4, 5):
        np.testing.assert_array_equal(again.draws[chain], found.draws[chain])
    assert not np.array_equal(again.draws[2], found.draws[2])
    # thrown away: eight moves, and what the further warm-up made
    assert again.warmup.n_moves.tolist() == [0, 0, 38, 38, 0, 0]
    assert again.sampling.n_moves.tolist() == [8] * 6
    total = again.warmup.n_gradients + again.sampling.n_gradients
    assert bool((total[2:4] > found.sampling.n_gradients[2:4]).all())
    assert float(again.blocks[1].step_size[1]) < 0.1 < float(again.blocks[0].step_size[0])


def test_each_round_aims_at_half_the_rejections(monkeypatch):
    sampler, found = run([3])
    aims = []

    def spy(sampler, *arguments, **settings):
        aims.append(sampler.target_acceptance)
        return sample_chains(sampler, *arguments, **settings)

    monkeypatch.setattr("skbayes_sym.mcmc.chains.sample_chains", spy)
    retune_chains(sampler, found, min_acceptance=1.1, n_warmup=4)  # never enough
    np.testing.assert_allclose(aims, [0.9, 0.95, 0.975])


def test_log_density_belongs_to_the_draws():
    sampler, blocks = small()
    result = sample_chains(sampler, blocks, **SHORT)
    at = torch.as_tensor(result.draws).flatten(0, 1)
    expected = sampler.log_density.evaluate(at).value.reshape(7, 25)
    assert_close(torch.as_tensor(result.log_density), expected, rtol=0, atol=1e-12)


@pytest.mark.long
def test_thinning_keeps_every_third():
    sampler, blocks = small()
    every = sample_chains(sampler, blocks, n_warmup=30, n_draws=24)
    third = sample_chains(sampler, blocks, n_warmup=30, n_draws=8, thin=3)
    np.testing.assert_array_equal(third.draws, every.draws[:, 2::3])
    assert_close(third.sampling.n_moves, torch.full((7,), 24))
