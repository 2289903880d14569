import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics.layout import ParamLayout

LAYOUT = ParamLayout({"W1": (2, 3), "b1": (2,), "scale": (), "W2": (1, 2)})


@pytest.mark.parametrize("batch", [(), (4,), (2, 5)])
def test_flatten_inverts_unflatten(batch, generator):
    theta = torch.randn(*batch, LAYOUT.n_params, generator=generator)
    params = LAYOUT.unflatten(theta)
    assert {k: v.shape for k, v in params.items()} == {
        k: (*batch, *s) for k, s in LAYOUT.shapes.items()
    }
    assert_close(LAYOUT.flatten(params), theta, rtol=0, atol=0)


def test_unflatten_gives_views():
    theta = torch.zeros(LAYOUT.n_params)
    LAYOUT.unflatten(theta)["W2"].fill_(1.0)
    assert_close(theta[LAYOUT.slices["W2"]], torch.ones(2))


def test_positions_and_names_agree():
    theta = torch.arange(LAYOUT.n_params)
    for name, array in LAYOUT.unflatten(theta).items():
        assert torch.equal(LAYOUT.positions(name), array)


def test_wrong_length_is_named():
    with pytest.raises(ValueError, match=r"10 parameters.*expects 11"):
        LAYOUT.unflatten(torch.zeros(10))
