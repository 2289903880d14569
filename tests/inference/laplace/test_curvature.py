"""Factors against dense matrices; log-determinants and their derivatives against each other."""

import pytest
import torch
from inference.laplace.laplace_problems import averaged_outputs, image_problem, problem
from inference.laplace.test_jacobian import PROBLEMS, every_problem, jacobian_of
from torch.testing import assert_close

from skbayes_sym.inference.laplace.curvature import Full, Kronecker
from skbayes_sym.inference.laplace.jacobian import parameter_positions
from skbayes_sym.models.likelihoods.categorical import Categorical

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


def test_images_use_every_position():
    p = image_problem()
    conv = p.model.layers[0]
    assert conv.patches(p.data.x).shape == (3, 4, 18)
    assert Categorical().hessian_root(averaged_outputs(p, p.theta), p.data.y).shape == (3, 3, 3)
