"""Both orientations against the textbook product."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics.products import affine, weight_gradient


@pytest.mark.parametrize(("n_in", "n_out"), [(2, 9), (9, 2), (40, 3), (40, 1), (1, 1), (5, 5)])
def test_equals_the_textbook_product(n_in, n_out, generator):
    h, weight, bias, gradient = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in [(7, n_in), (n_out, n_in), (n_out,), (7, n_out)]
    )
    out, d_weight = torch.empty(7, n_out).double(), torch.empty(n_out, n_in).double()
    affine(bias, h, weight, out)
    weight_gradient(gradient, h, d_weight)
    assert_close(out, torch.einsum("ni,oi->no", h, weight) + bias, rtol=1e-13, atol=1e-13)
    assert_close(d_weight, torch.einsum("no,ni->oi", gradient, h), rtol=1e-13, atol=1e-13)
