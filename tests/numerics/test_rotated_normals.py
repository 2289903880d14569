"""Normals made of others: each set has the law of numbers drawn anew, and sets don't correlate."""

import pytest
import torch

from skbayes_sym.numerics.rotated_normals import RotatedNormals

F32 = torch.float32
SHAPES = [(64, 40), (64, 3), (64, 1)]  # 2,816 numbers
N = 64 * 44
PERIOD = 16  # sets of one draw


def noise(seed=0, shapes=SHAPES, dtype=F32):
    return RotatedNormals(shapes, torch.empty(0, dtype=dtype), torch.Generator().manual_seed(seed))


def flat(views):
    return torch.cat([view.flatten() for view in views]).clone()


def many(n_draws):
    """Sets of many draws, (n_draws, 16, N)."""
    source = noise()
    return torch.stack([flat(source.next()) for _ in range(n_draws * PERIOD)]).view(-1, PERIOD, N)


def test_shapes_and_the_same_numbers_from_the_same_generator():
    one, two, other = noise(), noise(), noise(1)
    for _ in range(PERIOD + 2):
        mine = one.next()
        assert [tuple(view.shape) for view in mine] == SHAPES
        assert torch.equal(flat(mine), flat(two.next()))
        assert not torch.equal(flat(mine), flat(other.next()))


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (100, 10)])
def test_few_numbers_are_drawn(shape):
    source, generator = noise(7, [shape]), torch.Generator().manual_seed(7)
    for _ in range(PERIOD + 2):
        drawn = torch.empty(shape).normal_(generator=generator)
        assert torch.equal(source.next()[0], drawn)


def test_the_first_set_of_a_draw_is_drawn_and_others_keep_its_length():
    source = noise()
    first = flat(source.next())
    assert torch.equal(first, torch.empty(N).normal_(generator=torch.Generator().manual_seed(0)))
    lengths = [float(first.double().norm())]
    lengths += [float(flat(source.next()).double().norm()) for _ in range(PERIOD)]
    assert lengths[:-1] == pytest.approx([lengths[0]] * PERIOD, rel=1e-6)
    assert abs(lengths[-1] / lengths[0] - 1.0) > 1e-6  # drawn anew


def test_neighbours_and_numbers_far_apart_are_mixed_in_turn():
    sets = many(1)[0].double()
    near, far = (sets.unflatten(-1, shape).square().sum(axis)
                 for shape, axis in (((-1, 16), -1), ((16, -1), -2)))  # fmt: skip
    for k in range(1, PERIOD):
        kept, changed = (near, far) if k % 2 else (far, near)
        assert torch.allclose(kept[k], kept[k - 1], rtol=1e-5)
        assert float((changed[k] - changed[k - 1]).abs().mean()) > 1.0


def test_every_set_is_standard_normal():
    sets = many(60)
    n = 60 * N
    for power, moment, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (4, 3.0, 96.0)):
        means = sets.double().pow(power).mean(dim=(0, 2))
        assert float((means - moment).abs().max()) < 4.5 * (variance / n) ** 0.5
    # Of different numbers of one set, too: neighbours, and ones a sixteenth of the set apart.
    for apart in (1, 3, N // 16):
        product = (sets[..., apart:] * sets[..., :-apart]).double()
        assert float(product.mean(dim=(0, 2)).abs().max()) < 4.5 / n**0.5


@pytest.mark.parametrize("apart", [1, 2, 5])
def test_sets_of_a_draw_are_uncorrelated(apart):
    """Every number with every one of the 16 that made it, and squares by at most a sixteenth."""
    sets = many(60)
    later, earlier = sets[:, apart:].double(), sets[:, :-apart].double()
    n_signs = 60 * (PERIOD - apart) / 2  # draws of them, for neighbours and for numbers far apart
    for group in ((-1, 16), (16, -1)):
        a, b = (s.unflatten(-1, group) for s in (later, earlier))
        pairs = "tkgi,tkgj->ij" if group[0] == -1 else "tkig,tkjg->ij"
        table = torch.einsum(pairs, a, b) / (later.numel() / 16)
        assert float(table.abs().max()) < 5.0 * 0.25 / n_signs**0.5  # with fixed signs 0.12
    a, b = later.square() - 1.0, earlier.square() - 1.0
    correlation = float((a * b).mean() / 2.0)
    assert abs(correlation) < 1 / 16 + 4.5 / later.numel() ** 0.5


def test_a_set_stays_until_the_one_after_the_next():
    source = noise()
    for _ in range(PERIOD + 2):
        views = source.next()
        before = flat(views)
        source.next()
        if source._n_made % PERIOD != 1:  # drawn over the first of two
            assert torch.equal(flat(views), before)


def test_float64_has_the_same_numbers():
    single, double = noise(), noise(dtype=torch.float64)
    for _ in range(PERIOD + 2):
        a, b = flat(single.next()), flat(double.next())
        assert b.dtype == torch.float64
        assert torch.equal(a.double(), b)


def test_a_number_of_numbers_that_is_no_multiple_of_sixteen():
    source = noise(shapes=[(2051, 1)])
    sets = torch.stack([flat(source.next()) for _ in range(20 * PERIOD)])
    assert sets.shape == (20 * PERIOD, 2051)
    assert abs(float(sets.var()) - 1.0) < 0.01
