"""The last sweeps, mixed: what they measure by, and what they refuse."""

from math import inf

import pytest
import torch
from inference.factorization.factorization_problems import (
    FAMILIES,
    fit,
    incomplete,
    problem_of,
    swept,
)
from torch.testing import assert_close

from skbayes_sym.inference.factorization.factor_model import FactorState
from skbayes_sym.inference.factorization.gap_looks import GapStream
from skbayes_sym.inference.factorization.mixed_sweeps import PERIOD, MixedSweeps, Reached, _Metric
from skbayes_sym.models.likelihoods.normal_noise import Gaussian
from skbayes_sym.numerics.gaussian import kl_elementwise
from skbayes_sym.symmetry.gaps.gap import GapGradient
from skbayes_sym.symmetry.gaps.row_gaps import row_gap
from skbayes_sym.symmetry.orthogonal import Orthogonal

N, K = 6, 3


class NoGap:
    """Of no value anywhere."""

    def settled_model(self, posterior, *, generator):
        return self

    def at(self, posterior):
        return torch.zeros(())

    def gradients(self, posterior):
        return GapGradient(*(torch.zeros(()),) * 3)


def state(generator, pinned=0):
    mean = torch.randn(N, K, generator=generator, dtype=torch.float64)
    variance = 0.5 + torch.rand(N, K, generator=generator, dtype=torch.float64)
    variance[:, K - pinned :] = 0.0
    return FactorState(mean, torch.diag_embed(variance), Gaussian())


def toward(goal, rates, elbos):
    """A sweep that goes part of the way to the means ``goal`` and is told how good that is."""

    def sweep(posterior, data, added):
        posterior.mean.lerp_(goal, rates)
        off = float((posterior.mean - goal).square().sum())
        return Reached(posterior, data, elbos.pop(0) if elbos else -off)

    return sweep


def test_distances_are_those_of_divergences(generator):
    """Between neighbours: KL to second order."""
    here = state(generator)
    metric, h = _Metric(here), 1e-4
    away = torch.randn(2 * N * K, generator=generator, dtype=torch.float64)
    there = metric.state(metric.flat(here) + h * away, here)
    before, after = (s.cov.diagonal(dim1=-2, dim2=-1).log() for s in (here, there))
    found = kl_elementwise(there.mean - here.mean, after, before).sum()
    assert_close(found, 0.5 * h**2 * away.square().sum(), rtol=1e-2, atol=0)


def test_flat_and_back(generator):
    here = state(generator, pinned=1)
    metric = _Metric(here)
    there = metric.state(metric.flat(here), here)
    assert_close(there.mean, here.mean)
    assert_close(there.cov, here.cov)
    assert float(there.cov[:, K - 1].abs().max()) == 0.0


def test_mixing_is_many_times_as_fast(generator):
    """Axes that close 2 to 50 per cent a sweep."""
    here, goal = state(generator), torch.zeros(N, K, dtype=torch.float64)
    rates = torch.linspace(0.02, 0.5, K, dtype=torch.float64)
    at, plain = Reached(here, None, -inf), here.mean.clone()
    mixed = MixedSweeps(NoGap(), 0, K, 1e-9)
    for _ in range(2 * K):
        at = mixed.step(at, toward(goal, rates, []))
        plain.lerp_(goal, rates)
    assert float(at.posterior.mean.abs().max()) < 1e-6 < 0.1 < float(plain.abs().max())


def test_what_leads_astray_is_refused(generator):
    """And the next sweep is a plain one from where it was."""
    at, goal = Reached(state(generator), None, -9.0), torch.zeros(N, K, dtype=torch.float64)
    mixed, sweep = MixedSweeps(NoGap(), 0, K, 1e-9), toward(goal, 0.5, [-3.0, -2.0, -2.5])
    for _ in range(2):
        at = mixed.step(at, sweep)
    before = at.posterior.mean.clone()
    assert mixed.step(at, sweep) is at
    assert_close(at.posterior.mean, before, rtol=0, atol=0)
    assert mixed.bound == -2.0
    assert_close(mixed.step(at, sweep).posterior.mean, 0.5 * before)


@pytest.mark.parametrize(
    ("tol", "gain", "is_over"), [(1.0, 9e-6, True), (1.0, 1.1e-5, False), (1e-6, 9e-6, False)]
)
def test_they_end_with_a_period_that_gains_little(tol, gain, is_over, generator):
    at, goal = Reached(state(generator), None, -9.0), torch.zeros(N, K, dtype=torch.float64)
    elbos = [-9.0 + gain * i / PERIOD for i in range(1, PERIOD + 1)]
    mixed, sweep = MixedSweeps(NoGap(), 0, K, tol), toward(goal, 0.5, elbos)
    for i in range(PERIOD):
        assert not mixed.is_over, i
        at = mixed.step(at, sweep)
    assert mixed.is_over == is_over


@pytest.mark.long
@pytest.mark.parametrize("how", ["callback", "interrupted"])
def test_they_can_be_stopped(how, generator):
    """Between two of them, with the posterior of the last."""
    data, family = incomplete(generator), FAMILIES["isotropic"]
    group = Orthogonal(torch.arange(23 * 3).view(23, 3))
    gap = row_gap(group, is_isotropic=True)
    whole = fit(data, 3, family, GapStream(gap, torch.Generator().manual_seed(0)), tol=0.05)
    assert whole.stopped == "tol"
    last = whole.n_iter - 3  # among the mixed ones, of which there are ten at least
    seen = []

    def on_sweep(posterior, elbo):
        seen.append(posterior.mean.clone())
        if len(seen) == last and how == "interrupted":
            raise KeyboardInterrupt
        return len(seen) == last

    stream = GapStream(gap, torch.Generator().manual_seed(0))
    found = swept(problem_of(data, 3, tol=0.05), family, stream, on_sweep=on_sweep)
    assert (found.stopped, found.n_iter) == (how, last)
    assert_close(found.posterior.mean, seen[-1], rtol=0, atol=0)
    assert found.curve == whole.curve[:last]
