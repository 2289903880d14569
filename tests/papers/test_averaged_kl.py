"""The KL of one row's posterior: its closed form."""

import numpy as np
import pytest
import torch
from averaged_kl import single_datum_kl
from repeated_datum import MeanFieldLikelihood, RepeatedDatum


@pytest.mark.parametrize("scale", [np.array(0.7), np.array([0.5, 1.0, 1.5, 2.0])])
def test_single_datum_kl_is_that_of_the_closed_form_posterior(scale):
    rng = np.random.default_rng(0)
    x, loc, variance = rng.normal(size=4), rng.normal(size=4), rng.gamma(2.0, size=4)
    model = RepeatedDatum(x, np.zeros(1), 1.0, np.broadcast_to(scale**2, 4))
    expected = model.q_mix(MeanFieldLikelihood(loc, variance)).kl(model.prior)
    tensors = (torch.as_tensor(a) for a in (loc[:, None], variance[:, None], x[None]))
    got = single_datum_kl(*tensors, torch.as_tensor(scale))
    assert got.shape == (1, 1)
    assert float(got) == pytest.approx(expected, rel=1e-12)
