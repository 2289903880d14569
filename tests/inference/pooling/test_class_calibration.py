"""Calibrated probabilities: what they undo, and what they keep."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.pooling import Calibration, fit_calibration


def test_a_temperature_is_found_and_undone(generator):
    scores = 1.5 * torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial(scores.softmax(1), 1, generator=generator)[:, 0]
    calibration = fit_calibration(4.0 * scores, y, torch.ones(4000).double())
    assert np.exp(calibration.log_slope) == pytest.approx(0.25, rel=0.1)
    assert calibration.share < 0.05
    probs = calibration.log_probs(4.0 * scores).exp()
    assert_close(probs.sum(1), torch.ones(4000).double())


def test_scores_that_say_nothing_become_frequencies(generator):
    scores = torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    y = (torch.rand(2000, generator=generator) < 0.1).long()
    calibration = fit_calibration(scores, y, torch.ones(2000).double())
    log_probs = calibration.log_probs(scores)[torch.arange(2000), y]
    share = float(y.double().mean())
    entropy = share * np.log(share) + (1.0 - share) * np.log1p(-share)
    assert float(log_probs.mean()) > entropy - 0.2
    assert float(log_probs.min()) > float(fit_raw(scores)[torch.arange(2000), y].min())


def fit_raw(scores):
    return scores.log_softmax(-1)


def test_it_is_the_mixture_that_it_says():
    calibration = Calibration(np.log(2.0), 0.1, np.array([0.25, 0.75]))
    scores = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    softmax = torch.softmax(2.0 * scores, 1)
    assert_close(
        calibration.log_probs(scores).exp(), 0.9 * softmax + 0.1 * torch.tensor([0.25, 0.75])
    )


def test_weights_are_repetitions(generator):
    scores = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (50,), generator=generator)
    two = fit_calibration(scores.repeat(2, 1), y.repeat(2), torch.ones(100).double())
    # Half a row of every class is added to the frequencies either way.
    one = fit_calibration(scores, y, 2.0 * torch.ones(50).double())
    assert one.log_slope == pytest.approx(two.log_slope, abs=1e-4)
    assert one.share == pytest.approx(two.share, abs=1e-4)
