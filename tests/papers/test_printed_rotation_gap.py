"""Moore's objective as printed: its parts, and that it exceeds the evidence."""

import pytest
import torch
from inference.factorization.factorization_problems import complete, fit, noisy_matrices
from inference.factorization.test_vi import LOG_EVIDENCE
from printed_rotation_gap import printed_gap, printed_log_integral, printed_objective

from skbayes_sym.inference.factorization.sides import CovarianceFamily
from skbayes_sym.inference.factorization.vi import GapStream
from skbayes_sym.symmetry.gaps.rotations import langevin_gap
from skbayes_sym.symmetry.gaps.row_gaps import row_gap
from skbayes_sym.symmetry.orthogonal import Orthogonal


def test_one_component_is_the_papers_scalar_formula():
    """k = 1, where both products are the same: the calibrated Laplace approximation of log cosh."""
    s = torch.tensor([[0.3], [2.0], [9.0]], dtype=torch.float64)
    y = (torch.sqrt(1.0 + 4.0 * s**2) - 1.0) / (2.0 * s)
    expected = 0.5 * torch.log(1.0 - y**2) + s * y - 0.5 * torch.log(1.0 - y**4)
    torch.testing.assert_close(printed_log_integral(s), expected.squeeze(-1))


@pytest.mark.parametrize(("level", "expected"), [(1.0, 13.4), (5.0, 63.6), (20.0, 187.8)])
def test_the_printed_gap_is_too_large(level, expected, generator):
    """``B = l + sqrt(l) Z``, k = 20, against another implementation; the gap is 8.8, 44, 133."""
    noise = torch.randn(400, 20, 20, generator=generator, dtype=torch.float64)
    inner = level * torch.eye(20) + level**0.5 * noise
    values = printed_gap(inner)
    assert float(values.mean()) == pytest.approx(expected, abs=0.1 + 5 * float(values.std()) / 20)
    assert float(values.mean()) > 1.3 * float(langevin_gap(inner).mean())


@pytest.mark.long
@pytest.mark.parametrize("i", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_maximised_it_exceeds_the_log_evidence(i, generator):
    group, family = Orthogonal(torch.arange(1600).view(80, 20)), CovarianceFamily("isotropic")
    stream = GapStream(row_gap(group, is_isotropic=True), generator)
    matrix = noisy_matrices()[i]
    state = fit(complete(matrix), 20, family, stream, noise=4.0, max_iter=60, tol=0.1).posterior
    assert printed_objective(matrix, state, generator=generator) > LOG_EVIDENCE[i] + 1.5
