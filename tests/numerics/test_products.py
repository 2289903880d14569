"""Both orientations against the textbook products."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics.products import layer_outputs, weight_gradient


@pytest.mark.parametrize("n_rows", [7, 700])
@pytest.mark.parametrize(("n_in", "n_out"), [(2, 9), (9, 2), (40, 3), (40, 1), (1, 1), (5, 5)])
def test_equals_the_textbook_product(n_rows, n_in, n_out, generator):
    h, gradient = (
        torch.randn(n_rows, n, generator=generator, dtype=torch.float64) for n in (n_in, n_out)
    )
    d_weight = torch.empty(n_out, n_in).double()
    weight_gradient(gradient, h, d_weight)
    assert_close(d_weight, torch.einsum("no,ni->oi", gradient, h), rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("n_rows", [1, 7, 150])
@pytest.mark.parametrize(("n_in", "n_out"), [(2, 9), (99, 3), (100, 31), (100, 16), (300, 1)])
def test_a_layer_equals_the_textbook_product(n_rows, n_in, n_out, generator):
    x, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((n_rows, n_in), (n_out, n_in), (n_out,))
    )
    out = torch.full((n_rows, n_out), torch.nan).double()
    assert layer_outputs(x, weight, bias, out) is out
    assert_close(out, torch.einsum("ni,oi->no", x, weight) + bias, rtol=1e-13, atol=1e-12)
