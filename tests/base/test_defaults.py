"""Networks' defaults on a table in noise say more of new rows than its frequencies do."""

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_diabetes

import skbayes_sym as sk

(X, Y), (CELLS, SICK) = load_diabetes(return_X_y=True), load_breast_cancer(return_X_y=True)
KINDS = {
    "laplace": sk.LaplaceRegressor, "lila": sk.LILARegressor, "vi": sk.SymmetrizedVIRegressor,
    "ensemble": sk.DeepEnsembleRegressor,
}  # fmt: skip
OF_LABELS = [sk.LaplaceClassifier, sk.LILAClassifier, sk.SymmetrizedVIClassifier]

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*there is nothing to learn"),
]


@pytest.mark.kept("laplace-heteroscedastic", "lila-auto", "ensemble-*")
@pytest.mark.parametrize("likelihood", ["auto", "heteroscedastic", "student_t"])
@pytest.mark.parametrize("name", KINDS)
def test_of_numbers(name, likelihood):
    """A normal of mean and spread is a tenth of a nat behind at least, half of it for ensembles."""
    margin = 0.05 if name == "ensemble" else 0.1
    reg = KINDS[name](likelihood=likelihood, random_state=0).fit(X[:200], Y[:200])
    constant = stats.norm(Y[:200].mean(), Y[:200].std()).logpdf(Y[200:]).mean()
    assert reg.log_predictive_density(X[200:], Y[200:]).mean() > constant + margin


@pytest.mark.kept("LILAClassifier")
@pytest.mark.parametrize("kind", OF_LABELS, ids=lambda kind: kind.__name__)
def test_of_labels(kind):
    clf = kind(random_state=0).fit(CELLS[:200], SICK[:200])
    share = np.bincount(SICK[:200]) / 200
    constant = np.log(share[SICK[200:]]).mean()
    assert clf.log_predictive_density(CELLS[200:], SICK[200:]).mean() > constant + 0.4
