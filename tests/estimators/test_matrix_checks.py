"""scikit-learn's own checks of the matrix factorisation, with no expected failure."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skbayes_sym import SymVIMatrixFactorization

# Too few sweeps to converge on purpose, and matrices with nothing in a row: fitted some 50 times.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*no observed entry"),
]
ESTIMATORS = [
    SymVIMatrixFactorization(2, max_iter=30, random_state=0),
    SymVIMatrixFactorization(1, covariance="diag", max_iter=30, random_state=0),
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks={}.get, xfail_strict=True)
def test_sklearn_checks(estimator, check):
    check(estimator)
