"""Jacobians and factors against dense matrices; log-determinants and their derivatives."""

from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from skbayes_sym.laplace import curvature
from skbayes_sym.laplace.curvature import (
    AveragedJacobian,
    Directions,
    Full,
    Kronecker,
    dense_jacobian,
    parameter_layers,
    parameter_positions,
)
from skbayes_sym.laplace.evidence import AveragedNetwork
from skbayes_sym.models import MLP, TANH, Categorical, Gaussian, ModuleNetwork, Rotation2D, resnet
from skbayes_sym.models.augmentations.augmentation import Identity
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.convolutional import wide_resnet


class Problem(NamedTuple):
    model: AveragedNetwork
    theta: Tensor
    hyper: Tensor
    data: Data
    noise: Tensor


def problem(kind="classes", hidden=(4,), n=7, n_samples=3, rotate=True, seed=0):
    """An MLP on the plane with rotated inputs, weights at random and unequal row weights."""
    g = torch.Generator().manual_seed(seed)
    likelihood = (
        Categorical() if kind == "classes" else Gaussian(torch.tensor([-0.4, 0.3]).double())
    )
    n_outputs = 3 if kind == "classes" else 2
    network = MLP(2, hidden, n_outputs, TANH)
    augmentation = Rotation2D() if rotate else Identity()
    model = AveragedNetwork(network, augmentation, likelihood, n_samples if rotate else 1)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    if kind == "classes":
        y = torch.randint(0, 3, (n,), generator=g)
    else:
        y = torch.randn(n, 2, generator=g, dtype=torch.float64)
    weight = 0.5 + torch.rand(n, generator=g, dtype=torch.float64)
    return _with_start(model, Data(x, y, weight), g)


def image_problem(n=3, n_samples=2, seed=0, hidden=False):
    """A convolution with stride and padding, a pooling and a linear layer without bias."""
    g = torch.Generator().manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        *([nn.Linear(3, 3), nn.Softplus()] if hidden else []), nn.Linear(3, 3, bias=False),
    )  # fmt: skip
    network = ModuleNetwork(
        module, (2, 4, 4), {name: (0.0, 0.7) for name, _ in module.named_parameters()}
    )
    model = AveragedNetwork(network, _Shift(), Categorical(), n_samples)
    x = torch.randn(n, 2, 4, 4, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (n,), generator=g)
    return _with_start(model, Data(x, y, torch.ones(n, dtype=torch.float64)), g)


def network_problem(network, n=2, n_samples=2, seed=0):
    """Images of any network, its weights away from where training starts."""
    g = torch.Generator().manual_seed(seed)
    model = AveragedNetwork(network, _Shift(), Categorical(), n_samples)
    x = torch.randn(n, *network.input_shape, generator=g, dtype=torch.float64)
    y = torch.randint(0, network.n_outputs, (n,), generator=g)
    p = _with_start(model, Data(x, y, torch.ones(n, dtype=torch.float64)), g)
    noise = torch.randn(p.theta.shape, generator=g, dtype=torch.float64)
    return p._replace(theta=p.theta + 0.1 * noise)


class _Shift:
    """Adds a random multiple of a fixed image: smooth, so that differences can be checked."""

    half_width = Rotation2D().half_width

    def bind(self, scale, image_shape=None):
        return self

    def transform(self, x, eta, noise):
        pattern = torch.linspace(-1.0, 1.0, x[0].numel(), dtype=x.dtype).reshape(x.shape[1:])
        return x.unsqueeze(1) + (noise * eta)[..., None, None] * pattern


def _with_start(model, data, g):
    theta = model.network.init(1, generator=g)[0]
    hyper = torch.cat(
        [
            torch.full((model.augmentation.half_width.n_params,), 0.6, dtype=torch.float64),
            model.likelihood.params.double(),
            torch.linspace(-1.0, 0.5, len(model.layers), dtype=torch.float64),
        ]
    )
    return Problem(model, theta, hyper, data, model.noise(len(data.x), data.x, g))


def averaged_outputs(p: Problem, theta: Tensor) -> Tensor:
    """The averaged network, written out without recording anything, (N, O)."""
    eta = p.model.hyper.unflatten(p.hyper)["eta"]
    x = p.model.augmentation.transform(p.data.x, eta, p.noise)
    outputs = [p.model.network.forward(theta, x[:, s]) for s in range(p.model.n_samples)]
    return torch.stack(outputs).mean(0)


PROBLEMS = {
    "classes": problem("classes"),
    "numbers": problem("numbers", hidden=(3, 2)),
    "plain": problem("classes", rotate=False),
    "images": image_problem(),
    "images-hidden": image_problem(hidden=True),
    "residual": network_problem(resnet((2, 4, 4), 3, 2)),
    "wide-residual": network_problem(wide_resnet((2, 4, 4), 3, 10, 1)),
}
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def jacobian_of(p, directions):
    h = p.model.hyper.unflatten(p.hyper)
    recording, averaged = p.model.record(p.theta, h["eta"], p.data.x, p.noise)
    return AveragedJacobian(recording, p.model.layers, p.model.n_samples, averaged, directions)


@every_problem
def test_jacobian_is_that_of_the_averaged_network(name, generator):
    p = PROBLEMS[name]
    n_outputs = averaged_outputs(p, p.theta).shape[-1]
    directions = torch.randn(4, len(p.data.x), n_outputs, generator=generator, dtype=torch.float64)
    expected = torch.func.jacrev(lambda t: averaged_outputs(p, t))(p.theta)
    expected = torch.einsum("kno,nop->knp", directions, expected)
    layout = p.model.network.layout
    at = parameter_positions(p.model.layers, layout)
    assert_close(dense_jacobian(jacobian_of(p, directions), layout), expected[..., at])


@pytest.mark.parametrize("n_last", [1, 2, 3])
@pytest.mark.parametrize("name", ["numbers", "plain", "images-hidden"])
def test_averages_without_backward_passes_are_those_with_them(name, n_last):
    """Values and second derivatives of the closed form at the end, against the general path."""
    p = PROBLEMS[name]
    layers = p.model.layers[-n_last:]

    def averages_and_slopes(with_head):
        leaf = p.hyper.clone().requires_grad_()
        eta = p.model.hyper.unflatten(leaf)["eta"]
        recording, averaged = p.model.record(p.theta, eta, p.data.x, p.noise)
        assert recording.head is not None
        recording = recording if with_head else recording._replace(head=None)
        directions = averaged.sin() * torch.arange(1, 5).double()[:, None, None]
        jacobian = AveragedJacobian(
            recording, layers, p.model.n_samples, averaged, directions, True
        )
        flat = torch.cat([t.flatten() for layer in jacobian.averages for t in layer[1:]])
        towards = torch.linspace(-1.0, 1.0, len(flat), dtype=torch.float64)
        slope = torch.autograd.grad(towards @ flat, leaf)[0] if p.noise.numel() else flat[:0]
        return flat.detach(), slope

    for found, expected in zip(*map(averages_and_slopes, (True, False)), strict=True):
        assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_last_layer_alone():
    p = problem("classes", hidden=(4, 3))
    model = p.model.__class__(p.model.network, p.model.augmentation, p.model.likelihood, 3, 1)
    layout = model.network.layout
    h = p.model.hyper.unflatten(p.hyper)
    recording, averaged = model.record(p.theta, h["eta"], p.data.x, p.noise)
    directions = Categorical().hessian_root(averaged.detach(), p.data.y)
    jacobian = AveragedJacobian(recording, model.layers, 3, averaged, directions)
    every = dense_jacobian(jacobian_of(p, directions), layout)
    assert_close(
        dense_jacobian(jacobian, layout), every[..., parameter_positions(model.layers, layout)]
    )
    assert torch.equal(
        parameter_positions(model.layers, layout), torch.arange(layout.slices["W3"].start, 39)
    )
    assert set(parameter_layers(model.layers, layout).tolist()) == {0}
    assert model.sizes.tolist() == [12]


def test_the_sketch_is_unbiased(generator):
    outputs = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    y = torch.zeros(2, dtype=torch.int64)
    lik = Categorical()
    root = lik.hessian_root(outputs, y)
    n_draws = 4000
    columns = Directions("sketch", n_draws).columns(lik, outputs, y, generator=generator)
    squares = n_draws * torch.einsum("kno,knp->knop", columns, columns)
    error = squares.mean(0) - torch.einsum("kno,knp->nop", root, root)
    standard_error = squares.std(0) / n_draws**0.5
    assert (error.abs() < 5.0 * standard_error + 1e-12).all()
    # and each direction is the root times signs over sqrt(n_draws), not only on average
    assert columns.shape == (n_draws, 2, 4)
    signs = torch.tensor(list(product((-1.0, 1.0), repeat=4)), dtype=torch.float64)
    for row in range(2):
        away = torch.cdist(n_draws**0.5 * columns[:, row], signs @ root[:, row])  # (n_draws, 16)
        assert float(away.min(1).values.max()) < 1e-7
        assert len(away.argmin(1).unique()) >= 8  # s and -s differ, others may tie


STRUCTURES = {"kronecker": Kronecker, "full": Full}
every_structure = pytest.mark.parametrize("kind", STRUCTURES)
# A matrix of the wide network's 77 thousand weights is 47 GB.
every_dense_problem = pytest.mark.parametrize("name", [n for n in PROBLEMS if n != "wide-residual"])


def exact_root(p):
    """Root of the likelihood's curvature at the averaged outputs."""
    likelihood = p.model.likelihood.at(p.model.hyper.unflatten(p.hyper)["likelihood"])
    return likelihood.hessian_root(averaged_outputs(p, p.theta), p.data.y)


def structure_of(p, kind):
    return STRUCTURES[kind](p.model.layers, p.model.network.layout)


def factors_of(p, kind):
    return structure_of(p, kind).factors(jacobian_of(p, exact_root(p)), p.data.weight)


def prior_of(p):
    return torch.linspace(0.3, 2.0, len(p.model.layers), dtype=torch.float64)


def precision_of(p, kind, prior=None):
    prior = prior_of(p) if prior is None else prior
    return structure_of(p, kind).precision(factors_of(p, kind), float(p.data.weight.sum()), prior)


def integrated_out(p):
    """Places of the layers' parameters: not those of scalars, which are only fitted."""
    return parameter_positions(p.model.layers, p.model.network.layout)


def dense_ggn(p):
    """sum_n w_n J' Lambda J with the Jacobian of the averaged network, by autograd."""
    jac = torch.func.jacrev(lambda t: averaged_outputs(p, t))(p.theta)[..., integrated_out(p)]
    root = exact_root(p)
    hessian = torch.einsum("kno,knp->nop", root, root)
    return torch.einsum("n,nop,noi,npj->ij", p.data.weight, hessian, jac, jac)


@every_dense_problem
def test_full_is_the_dense_ggn(name):
    p = PROBLEMS[name]
    assert_close(factors_of(p, "full")[0], dense_ggn(p))


def kronecker_factors(p):
    """G and A / N of the note, row by row, of every layer."""
    h = p.model.hyper.unflatten(p.hyper)
    total = p.data.weight.sum()
    root = exact_root(p)
    pairs = []
    for i, layer in enumerate(p.model.layers):
        a_sum = g_sum = 0.0
        for n in range(len(p.data.x)):
            row = p.model.augmentation.transform(
                p.data.x[n : n + 1], h["eta"], p.noise[n : n + 1]
            )[0]  # fmt: skip
            recording = p.model.network.record(p.theta, row)
            mean_input = layer.patches(recording.inputs[i].mean(0, keepdim=True))[0]  # (T, D)
            a_sum = a_sum + p.data.weight[n] * mean_input.T @ mean_input / len(mean_input)
            for r in root[:, n]:
                scalar = recording.outputs.mean(0) @ r
                g = torch.autograd.grad(
                    scalar, recording.preactivations[i], retain_graph=True
                )[0]  # fmt: skip
                g = layer.positions(g).sum(0)  # over the samples, (T, G)
                g_sum = g_sum + p.data.weight[n] * g.T @ g
        pairs.append((g_sum.detach(), (a_sum / total).detach()))
    return pairs


def blocks_of(p, pairs):
    """The approximation of the note: G x A / N for weights and G for biases."""
    blocks = {}
    for layer, (g, a) in zip(p.model.layers, pairs, strict=True):
        blocks[layer.weight] = torch.kron(g, a)
        if layer.bias is not None:
            blocks[layer.bias] = g
    return blocks


@every_problem
def test_kronecker_factors_row_by_row(name):
    p = PROBLEMS[name]
    for found, expected in zip(factors_found(p), kronecker_factors(p), strict=True):
        assert_close(found, expected)


@every_dense_problem
@every_structure
def test_log_det_is_the_dense_one(name, kind):
    p = PROBLEMS[name]
    layout = p.model.network.layout
    if kind == "kronecker":
        blocks = blocks_of(p, kronecker_factors(p))
        dense = torch.block_diag(*(blocks[n] for n in layout.shapes if n in blocks))
    else:
        dense = factors_of(p, kind)[0]
    owner = p.model.owner[integrated_out(p)]
    expected = torch.linalg.slogdet(dense + prior_of(p)[owner].diag())[1]
    assert_close(precision_of(p, kind).log_det(), expected)


@every_structure
@pytest.mark.parametrize("name", ["numbers", "images"])
def test_log_det_slope_by_finite_differences(name, kind):
    p = PROBLEMS[name]
    prior, slope = prior_of(p), precision_of(p, kind).slopes()
    for i, step in enumerate(1e-5 * torch.eye(len(prior), dtype=torch.float64)):
        above, below = (precision_of(p, kind, prior + s).log_det() for s in (step, -step))
        # Central differences: curvature of order 1e-10, rounding of order 1e-11.
        assert_close(slope[i], (above - below) / 2e-5, rtol=1e-6, atol=1e-6)


@every_structure
@pytest.mark.parametrize("name", ["numbers", "images"])
def test_preconditioners_are_the_derivative_in_the_factors(name, kind, generator):
    p = PROBLEMS[name]
    structure, prior = structure_of(p, kind), prior_of(p)
    factors, total = factors_of(p, kind), float(p.data.weight.sum())
    # Positive definite, so that clamping eigenvalues at 0 is out of play.
    factors = [f + (0.1 if f.ndim == 1 else 0.1 * torch.eye(len(f)).double()) for f in factors]
    found = structure.precision(factors, total, prior).preconditioners()
    for i, f in enumerate(factors):
        towards = torch.randn(f.shape, generator=generator, dtype=torch.float64)
        towards = towards + towards.mT if f.ndim == 2 else towards
        ends = [
            structure.precision([*factors[:i], f + s * towards, *factors[i + 1 :]], total, prior)
            for s in (1e-6, -1e-6)
        ]
        slope = (ends[0].log_det() - ends[1].log_det()) / 2e-6
        assert_close((found[i] * towards).sum(), slope, rtol=1e-6, atol=1e-6)


def factors_found(p):
    """The same of the package's own decompositions."""
    return [
        (
            found.output_basis * found.output_values @ found.output_basis.T,
            found.input_basis * found.input_values @ found.input_basis.T,
        )
        for found in precision_of(p, "kronecker").spectra
    ]


def test_kronecker_is_exact_for_a_linear_gaussian_model():
    p = problem("numbers", hidden=(), n=9)
    w = p.model.network.layout.slices["W1"]
    assert_close(blocks_of(p, factors_found(p))["W1"], dense_ggn(p)[w, w])


def test_kronecker_is_exact_for_a_linear_softmax_model_of_one_row_only():
    for n, exact in ((1, True), (12, False)):
        p = problem("classes", hidden=(), n=n)
        w = p.model.network.layout.slices["W1"]
        dense, block = dense_ggn(p)[w, w], blocks_of(p, factors_found(p))["W1"]
        error = float((dense - block).norm() / dense.norm())
        assert (error < 1e-12) == exact, error


def test_weights_are_repetitions():
    p = problem("classes", n=4)
    weight = torch.tensor([1.0, 2.0, 3.0, 1.0], dtype=torch.float64)
    rows = torch.repeat_interleave(torch.arange(4), weight.long())
    once = p._replace(data=p.data._replace(weight=weight))
    data = p.data._replace(
        x=p.data.x[rows], y=p.data.y[rows], weight=torch.ones(7, dtype=torch.float64)
    )
    repeated = p._replace(data=data, noise=p.noise[rows])
    for kind in STRUCTURES:
        for a, b in zip(factors_of(once, kind), factors_of(repeated, kind), strict=True):
            assert_close(a, b)


def test_float32_factors_have_no_negative_eigenvalues():
    p = problem("classes", hidden=(30,), n=5)
    jacobian = jacobian_of(p, exact_root(p))
    kronecker, small = structure_of(p, "kronecker"), torch.full((2,), 1e-4, dtype=torch.float64)
    single = [f.float() for f in kronecker.factors(jacobian, p.data.weight)]
    precision = kronecker.precision(single, float(p.data.weight.sum()), small)
    assert all((spectrum.output_values >= 0).all() for spectrum in precision.spectra)
    assert torch.isfinite(precision.log_det())


def test_eigenvalues_where_lapack_gives_up(monkeypatch):
    p = problem("classes", hidden=(4,), n=6)
    expected = precision_of(p, "kronecker").log_det()

    def give_up(matrix):
        raise torch.linalg.LinAlgError("failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", give_up)
    assert_close(precision_of(p, "kronecker").log_det(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_alive", [0, 2, 6])
def test_dead_units_are_eigenvectors_of_their_own(n_alive, generator):
    """Most rows of a factor are zero where most units are dead."""
    p = problem("classes", hidden=(300,), n=5)
    alive = torch.randperm(300, generator=generator)[:n_alive]
    root = torch.zeros(300, 9, dtype=torch.float64)
    root[alive] = torch.randn(n_alive, 9, generator=generator, dtype=torch.float64)
    factors = factors_of(p, "kronecker")
    factors[1] = factors[2] = root @ root.T
    first, second = structure_of(p, "kronecker").precision(factors, 1.0, prior_of(p)).spectra
    for basis, values in (first[2:4], second[:2]):
        assert_close(basis @ basis.T, torch.eye(300, dtype=torch.float64))
        assert_close(basis * values @ basis.T, root @ root.T)
        assert int((values > 1e-9).sum()) == n_alive


# KFAC-reduce with fisher_type="type-2" and separate biases, by curvlinops 3.0.1, of
# `problem("classes", hidden=(4,), n=6)` with unit weights: the operator times linspace(-1, 1).
CURVLINOPS_PRODUCT = [
    -7.5173845947, -2.8549343995, -0.74625694429, -0.28324221505, -1.4802638922, -0.56216740617,
    0.83768926162, 0.31818034105, -2.2974982118, -0.22764815716, -0.45239589531, 0.25613099722,
    0.0074861995607, 0.16833919614, -0.29026185307, -0.32346719482, -0.00089972809683,
    -0.020231828358, 0.034885089895, 0.038875870356, -0.0065864714639, -0.14810736779,
    0.25537676318, 0.28459132446, -0.13931290565, 0.016743306727, 0.12256959892,
]  # fmt: skip


def test_factors_are_those_of_an_independent_library():
    """Eq. 15 is KFAC-reduce of the averaged network with the samples as the shared axis."""
    p = problem("classes", hidden=(4,), n=6)
    p = p._replace(data=p.data._replace(weight=torch.ones(6, dtype=torch.float64)))
    blocks = blocks_of(p, factors_found(p))
    dense = torch.block_diag(*(blocks[n] for n in p.model.network.layout.shapes))
    towards = torch.linspace(-1.0, 1.0, len(dense), dtype=torch.float64)
    expected = torch.tensor(CURVLINOPS_PRODUCT, dtype=torch.float64)
    assert_close(dense @ towards, expected, rtol=1e-9, atol=1e-11)


def test_factors_of_few_rows_are_decomposed_by_their_root(generator):
    """Eigenvalues, eigenvectors and the composed function against LAPACK's, at rank 5 of 600."""
    vectors = torch.randn(5, 600, generator=generator, dtype=torch.float64)
    vectors[:, 7] = 0.0
    matrix = vectors.mT @ vectors
    basis, values = curvature._decompose(matrix)
    expected = torch.linalg.eigvalsh(matrix).clamp_min(0.0)
    assert int((values != 0.0).sum()) == 5
    assert_close(values.sort().values, expected, rtol=0.0, atol=1e-10)
    identity = torch.eye(600, dtype=torch.float64)
    assert_close(basis.mT @ basis, identity, rtol=0.0, atol=1e-12)
    assert_close((basis * values) @ basis.mT, matrix, rtol=0.0, atol=1e-10)
    inverse = curvature._compose(basis, 1.0 / (1.0 + values), values)
    assert_close(inverse, torch.linalg.inv(identity + matrix), rtol=0.0, atol=1e-10)


def test_factors_of_many_rows_have_no_root_of_low_rank(generator):
    vectors = torch.randn(300, 600, generator=generator, dtype=torch.float64)
    assert curvature._low_rank_root(vectors.mT @ vectors) is None
    assert curvature._low_rank_root(vectors[:100, :500].mT @ vectors[:100, :500]) is None
