"""A gate that never lies: the gap is skipped only where it is settled."""

import numpy as np
import pytest
import torch

from skbayes_sym.inference.mean_field.gated import GatedGap
from skbayes_sym.models.networks.activations import RELU
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.permanent_estimates import DoublyStochastic, Exact, Soules
from skbayes_sym.symmetry.gaps.unit_gap import UnitGap


class TestGate:
    network = MLP(2, (4,), 1, RELU)

    def run(self, loc, scale, n_steps, change=None, block=10):
        gap = GatedGap(
            UnitGap(self.network.symmetry(), Exact()),
            UnitGap(self.network.symmetry(), Soules()),
            generator=generator_from(0),
        )
        log_variance = torch.full_like(loc, 2 * np.log(scale))
        gradient, norms = torch.zeros(2 * len(loc), dtype=torch.float64), []
        for step in range(n_steps):
            if change is not None and step == change[0]:
                log_variance.fill_(2 * np.log(change[1]))
            gradient.zero_()
            gap.add_gradient(loc, log_variance, gradient, step)
            norms.append(float(gradient.norm()))
            if (step + 1) % block == 0:
                gap.told(step + 1, gap.questions(loc, log_variance, step + 1).tolist())
        return gap, np.array(norms)

    @pytest.fixture
    def loc(self, generator):
        return torch.randn(self.network.layout.n_params, generator=generator, dtype=torch.float64)

    def test_closed_when_saturated(self, loc):
        gap, norms = self.run(loc, 1e-3, 400)
        assert gap.n_skipped == 400
        assert not norms.any()

    def test_open_when_units_overlap(self, loc):
        gap, norms = self.run(loc, 1.0, 60)
        assert gap.n_skipped == 0
        assert (norms > 0).all()

    def test_never_latches(self, loc):
        """Units that come to overlap open it again, within the longest period."""
        gap, norms = self.run(loc, 1e-3, 600, change=(300, 1.0))
        assert not norms[:300].any()
        assert norms[400:].all()
        assert gap.n_skipped <= 400

    @pytest.mark.parametrize(
        ("block", "at"), [(10, [0, 50, 150, 250, 350]), (30, [0, 60, 180, 300]), (401, [0])]
    )
    def test_checks_back_off(self, block, at, loc, monkeypatch):
        """At the first end of a block that isn't sooner than the period says."""
        checked = []
        original = GatedGap.told

        def spy(self, step, answers):
            checked.extend(step for _ in answers)
            original(self, step, answers)

        monkeypatch.setattr(GatedGap, "told", spy)
        self.run(loc, 1e-3, 400, block=block)
        assert checked == at

    def test_a_check_at_the_end_of_a_block_doesn_t_wait(self, loc, cuda):
        """Its answer comes with the block's loss; the first of all is waited for."""
        there, generator = loc.to("cuda"), generator_from(0, torch.device("cuda"))
        group = self.network.symmetry()
        gap = GatedGap(UnitGap(group, Soules()), UnitGap(group, Soules()), generator=generator)
        gradient = torch.zeros(2 * len(loc), dtype=torch.float64, device="cuda")
        narrow = torch.full_like(there, 2 * np.log(1e-3))
        with cuda.trace() as seen:
            gap.add_gradient(there, narrow, gradient, 0)
        assert sum(seen.waits.values()) == 1
        with cuda.trace() as seen:
            question = gap.questions(there, narrow, 60)
            gap.add_gradient(there, narrow, gradient, 60)
        assert len(question) == 1
        assert not seen.waits
        assert float(question) == pytest.approx(group.log_order)

    def test_what_is_skipped_is_negligible(self, loc):
        """At the certified saturation the exact gap's own gradient is below the tolerance."""
        leaf = loc.clone().requires_grad_()
        noise = torch.randn(50, len(loc), generator=generator_from(1), dtype=torch.float64)
        values = UnitGap(self.network.symmetry(), Exact()).values(
            leaf, torch.full_like(loc, 0.05), noise, generator=generator_from(0)
        )
        gap, _ = self.run(loc, 0.05, 1)
        (slope,) = torch.autograd.grad(values.mean(), leaf)
        assert gap.n_skipped == 1
        assert float(slope.norm()) < 1e-2 / 0.05  # tol nats per posterior sd

    def test_without_a_certificate_nothing_is_skipped(self, loc):
        gap = GatedGap(UnitGap(self.network.symmetry(), Exact()), generator=generator_from(0))
        gradient = torch.zeros(2 * len(loc), dtype=torch.float64)
        for step in range(3):
            value = gap.add_gradient(loc, torch.full_like(loc, -14.0), gradient, step)
            assert float(value) == pytest.approx(self.network.symmetry().log_order)
        assert gap.n_skipped == 0

    def test_refuses_an_upper_bound(self):
        with pytest.raises(ValueError, match="lower bound"):
            GatedGap(
                UnitGap(self.network.symmetry(), DoublyStochastic(), "upper"),
                generator=generator_from(0),
            )
