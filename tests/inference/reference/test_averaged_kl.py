"""The averaged KL: its closed form, and that it is no bound."""

from math import log

import numpy as np
import pytest
import torch
from inference.layerwise.layerwise_problems import (
    SCALE,
    SCALES,
    make_data,
    parts_of,
    train,
)
from repeated_datum import MeanFieldLikelihood, RepeatedDatum

from skbayes_sym.inference.reference.averaged_kl import single_datum_kl
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP


@pytest.mark.parametrize("scale", [SCALE, SCALES], ids=["one scale", "one an input"])
def test_single_datum_kl_is_that_of_the_closed_form_posterior(scale):
    rng = np.random.default_rng(0)
    x, loc, variance = rng.normal(size=4), rng.normal(size=4), rng.gamma(2.0, size=4)
    model = RepeatedDatum(x, np.zeros(1), 1.0, np.broadcast_to(np.asarray(scale) ** 2, 4))
    expected = model.q_mix(MeanFieldLikelihood(loc, variance)).kl(model.prior)
    tensors = (torch.as_tensor(a) for a in (loc[:, None], variance[:, None], x[None]))
    got = single_datum_kl(*tensors, scale)
    assert got.shape == (1, 1)
    assert float(got) == pytest.approx(expected, rel=1e-12)


def test_the_heuristic_charges_less_than_a_bound():
    data = make_data(n=40)
    parts = parts_of("ma", MLP(3, (20,), 1, TANH), scale=0.3)
    params = train(parts, data, log(0.3), 100)
    values = []
    for training in (True, False):
        generator = torch.Generator().manual_seed(0)
        likelihood, kl = parts.terms(params, data, 8, generator=generator, training=training)
        values.append(float((likelihood - kl).mean()))
    assert values[0] > values[1] + 5
