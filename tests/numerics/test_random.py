"""Mean and standard error of draws."""

from math import factorial, isnan

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics.random import (
    float64_normal,
    generator_from,
    mean_and_error,
    normal_like,
    numpy_generator,
    random_orthogonal,
    random_permutations,
    replicate_generator,
    resume_generator,
    sample_host_uniforms,
    spawn_seeds,
    standard_normal,
)


def test_same_seed_same_stream_and_global_state_untouched():
    before = torch.get_rng_state()
    like = torch.zeros(0)
    draws = [standard_normal((5,), generator=generator_from(7), like=like) for _ in range(2)]
    assert torch.equal(*draws)
    assert torch.equal(before, torch.get_rng_state())


def test_spawned_seeds_differ_and_repeat():
    seeds = spawn_seeds(3, 50)
    assert len(set(seeds)) == 50
    assert seeds == spawn_seeds(3, 50)
    assert not set(seeds) & set(spawn_seeds(4, 50))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_rotations_and_reflections_are_uniform(generator, k):
    """Moments of the Haar measure; the signs that LAPACK chooses would be all alike."""
    n = 4000
    q = random_orthogonal((n,), k, generator=generator)
    assert_close(q @ q.mT, torch.eye(k, dtype=q.dtype).expand(n, k, k))
    error = 4.0 / (n * k) ** 0.5
    assert q.mean(0).abs().max() < error
    assert (q.square().mean(0) - 1.0 / k).abs().max() < error
    assert abs(float(torch.linalg.det(q).mean())) < 4.0 / n**0.5
    # The square of the trace has the mean 1.
    assert abs(float(q.diagonal(dim1=1, dim2=2).sum(1).square().mean()) - 1.0) < 8.0 / n**0.5


def test_permutations_are_uniform(generator):
    n, d = 12_000, 3
    drawn = random_permutations((n,), d, generator=generator)
    counts = drawn.unique(dim=0, return_counts=True)[1].double()
    expected = n / factorial(d)
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert len(counts) == factorial(d)
    assert chi2 < 20.5  # 99.9 % point of chi-squared with 5 degrees of freedom


def test_copies_are_the_same_stream_and_leave_the_first_where_it_is(generator):
    streams = replicate_generator(generator)
    first = [torch.rand(3, generator=next(streams)) for _ in range(3)]
    assert torch.equal(first[0], first[1])
    assert torch.equal(first[0], first[2])
    assert not torch.equal(first[0], torch.rand(3, generator=generator))


def test_numpy_generators_are_led_by_torch():
    draws = [numpy_generator(torch.Generator().manual_seed(s)).random() for s in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_float64_normal_is_that_of_its_dtype(generator):
    like = torch.zeros((), dtype=torch.float64)
    state = generator.get_state()
    drawn = float64_normal((4, 3), generator=generator)
    generator.set_state(state)
    assert torch.equal(drawn, normal_like((4, 3), generator=generator, like=like))


@pytest.mark.parametrize("draw", [standard_normal, normal_like])
def test_noise_is_drawn_where_the_generator_is(draw, cuda):
    here, there = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64).cuda()
    expected = draw((5,), generator=generator_from(0), like=here)
    moved = draw((5,), generator=generator_from(0), like=there)
    assert moved.is_cuda
    assert torch.equal(moved.cpu(), expected)
    assert draw((5,), generator=generator_from(0, "cuda"), like=there).is_cuda


def test_of_known_numbers():
    found = mean_and_error(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert found.value == 3.0
    assert found.standard_error == pytest.approx((14 / 3 / 4) ** 0.5, rel=1e-15)


def test_the_error_is_that_of_the_mean(generator):
    """The means of many sets of draws spread as each set says."""
    draws = torch.randn(2000, 25, generator=generator)
    found = [mean_and_error(row) for row in draws]
    spread = torch.tensor([f.value for f in found]).std()
    claimed = torch.tensor([f.standard_error**2 for f in found]).mean().sqrt()
    assert float(claimed) == pytest.approx(0.2, rel=0.02)  # 1 / sqrt(25)
    assert float(spread) == pytest.approx(0.2, rel=0.08)  # 5 standard errors of a deviation


def test_is_in_double_precision():
    found = mean_and_error(torch.full((1 << 20,), 0.1, dtype=torch.float32))
    assert found.value == pytest.approx(float(torch.tensor(0.1)), rel=1e-14)


def test_one_draw_knows_no_error():
    found = mean_and_error(torch.tensor([2.0]))
    assert found.value == 2.0
    assert isnan(found.standard_error)


def test_a_stream_goes_on_and_a_state_of_another_device_leads_one(generator):
    state = generator.get_state()
    again = torch.rand(3, generator=resume_generator(state), dtype=torch.float64).tolist()
    assert sample_host_uniforms(3, generator) == again
    states = [torch.tensor(bytes_of, dtype=torch.uint8) for bytes_of in ([1, 2], [1, 2], [1, 3])]
    a, b, c = (float(torch.rand(1, generator=resume_generator(led))) for led in states)
    assert a == b != c


def test_states_stored_on_a_gpu_are_resumed(generator, cuda):
    state = generator.get_state()
    resumed = resume_generator(state.cuda())
    assert torch.equal(torch.rand(3, generator=resumed), torch.rand(3, generator=generator))
