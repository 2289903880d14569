"""Conditionals that can't be had."""

import pytest
from inference.factorization.factorization_problems import fit, incomplete

from skbayes_sym.inference.factorization.covariance import FullCovariance
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError


def test_singular_precisions_name_a_remedy(generator):
    """Fewer entries than components and next to no noise, in single precision."""
    data = incomplete(generator)
    single = data._replace(
        by_row=data.by_row._replace(value=data.by_row.value.float()),
        by_column=data.by_column._replace(value=data.by_column.value.float()),
    )
    with pytest.raises(NotPositiveDefiniteError, match=r"noise_std.*float64"):
        fit(single, 9, FullCovariance(), None, noise=1e-12)
