"""The same determinant by way of the rows: `Full` is its oracle."""

import pytest
import torch
from inference.laplace.laplace_problems import problem
from inference.laplace.test_marginal_likelihood import PROBLEMS, evidence_of
from torch.testing import assert_close

from skbayes_sym.inference.laplace.curvature import Full
from skbayes_sym.inference.laplace.jacobian import LayerProducts
from skbayes_sym.inference.laplace.tangent_kernel import (
    TangentKernel,
    _from_derivatives,
    _from_products,
)


@pytest.mark.parametrize("name", PROBLEMS)
def test_equals_the_full_matrix(name):
    p = PROBLEMS[name]
    layers, layout = p.model.layers, p.model.network.layout
    precision = p.model.hyper.unflatten(p.hyper)["log_precision"].exp()
    seen = {}
    for structure in (TangentKernel(layers, layout), Full(layers, layout)):
        evidence = evidence_of(p)
        generator = torch.Generator().manual_seed(1)
        with torch.enable_grad():
            jacobian = evidence.see(p.theta, p.hyper, p.data, generator).jacobian
        factors = structure.factors(jacobian, p.data.weight)
        seen[type(structure)] = structure.spectrum(factors, 1.0).log_det(precision)
    assert_close(seen[TangentKernel].value, seen[Full].value)
    assert_close(seen[TangentKernel].d_precision, seen[Full].d_precision)


def test_preconditioners_are_derivatives_in_the_kernels():
    p = PROBLEMS["classes"]
    structure = TangentKernel(p.model.layers, p.model.network.layout)
    with torch.enable_grad():
        seen = evidence_of(p).see(p.theta, p.hyper, p.data, torch.Generator().manual_seed(1))
    factors = [f.requires_grad_() for f in structure.factors(seen.jacobian, p.data.weight)]
    precision = torch.tensor([0.4, 2.0], dtype=torch.float64)
    spectrum = structure.spectrum(factors, 1.0)
    by_autograd = torch.autograd.grad(spectrum.log_det(precision).value, factors)
    found = structure.spectrum([f.detach() for f in factors], 1.0).preconditioners(precision)
    for own, expected in zip(found, by_autograd, strict=True):
        assert_close(own, expected)


@pytest.mark.parametrize("n_directions", [1, 3])
def test_both_ways_to_a_kernel_agree(n_directions, generator):
    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    layer = LayerProducts(None, random(5, 2, 7), random(n_directions, 5, 2, 6))
    assert_close(_from_products(layer), _from_derivatives(layer))


@pytest.mark.long
def test_wide_layers_go_by_products():
    """A layer of 60 inputs and 50 units at one sample; the full matrix is the oracle."""
    p = problem("numbers", hidden=(50, 60), n=4, rotate=False)
    layers, layout = p.model.layers, p.model.network.layout
    precision = p.model.hyper.unflatten(p.hyper)["log_precision"].exp()
    found = []
    for structure in (TangentKernel(layers, layout), Full(layers, layout)):
        with torch.enable_grad():
            seen = evidence_of(p).see(p.theta, p.hyper, p.data, torch.Generator().manual_seed(1))
        factors = structure.factors(seen.jacobian, p.data.weight)
        found.append(structure.spectrum(factors, 1.0).log_det(precision).value)
    assert_close(*found)
