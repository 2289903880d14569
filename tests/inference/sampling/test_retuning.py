from dataclasses import dataclass

import joblib
import numpy as np
import torch

from skbayes_sym.inference.log_density import Evaluation
from skbayes_sym.inference.sampling.blocks import Sampler
from skbayes_sym.inference.sampling.chains import retuned, sample_chains, start_blocks
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.warmup import FixedPreconditioner


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
    """Six chains in three blocks, steps right for the wide side; those of ``high`` are narrow."""
    position = 0.01 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    position[high, -1] = 100.0
    density = Narrowing()
    sampler = Sampler(HMC(max_leapfrog=8), density, FixedPreconditioner())
    blocks = start_blocks(position, density, block_size=2, seed=1, step_size=0.3)
    return sampler, sample_chains(sampler, blocks, n_warmup=0, n_draws=n_draws)


def test_nothing_happens_where_all_accept():
    sampler, found = run([])
    assert float(found.sampling.mean_acceptance.min()) > 0.65
    assert retuned(sampler, found, least_acceptance=0.65, n_warmup=20) is found


def test_only_blocks_that_need_it_draw_again():
    sampler, found = run([3])
    again = retuned(sampler, found, least_acceptance=0.65, n_warmup=30)
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


def test_it_is_the_same_wherever_blocks_run():
    sampler, found = run([0, 3])
    with joblib.parallel_config(backend="threading"):
        one, two = (
            retuned(sampler, found, least_acceptance=0.65, n_warmup=30, n_jobs=n_jobs)
            for n_jobs in (1, 2)
        )
    np.testing.assert_array_equal(one.draws, two.draws)


def test_a_stop_keeps_what_was_drawn():
    sampler, found = run([3])
    stopped = retuned(
        sampler, found, least_acceptance=0.65, n_warmup=30, on_step=lambda step, info: True
    )
    assert stopped.stopped == "callback"
    np.testing.assert_array_equal(stopped.draws, found.draws)
    assert retuned(sampler, stopped, least_acceptance=0.65, n_warmup=30) is stopped


def test_each_round_aims_at_half_the_rejections(monkeypatch):
    sampler, found = run([3])
    aims = []

    def spy(sampler, *arguments, **settings):
        aims.append(sampler.target_acceptance)
        return sample_chains(sampler, *arguments, **settings)

    monkeypatch.setattr("skbayes_sym.inference.sampling.chains.sample_chains", spy)
    retuned(sampler, found, least_acceptance=1.1, n_warmup=4)  # never enough
    np.testing.assert_allclose(aims, [0.9, 0.95, 0.975])
