"""Which of two default priors a classifier's modes are of: the evidence of the first start says."""

from functools import cache, partial

import numpy as np
import pytest
from sklearn.datasets import load_iris

from skbayes_sym import BayesianMLPClassifier, GaussNewton, LaplaceClassifier
from skbayes_sym.estimators.laplace import evidence_method as modes
from skbayes_sym.estimators.laplace.evidence_method import FLAT, STEEP


def noisy_labels(n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 8))
    return X, 0.6 * (X[:, 0] - X[:, 1]) + rng.logistic(size=n) > 0


@pytest.fixture(scope="module")
def fits():
    X, y = noisy_labels()
    return {
        prior: LaplaceClassifier(10, optimizer=GaussNewton(2), prior=prior, random_state=0).fit(
            X, y
        )
        for prior in ("learn", STEEP, FLAT)
    }


@pytest.mark.long
def test_noisy_labels_take_the_flat_prior(fits):
    np.testing.assert_array_equal(fits["learn"].posterior_.loc, fits[FLAT].posterior_.loc)
    assert fits["learn"].log_evidence_ > fits[STEEP].log_evidence_ + 3.0


def test_what_leaves_noise_alone_predicts_better(fits, monkeypatch):
    """Than modes of the steep prior that believe all labels."""
    believing = partial(modes.search_labels, tries=False)
    monkeypatch.setattr(modes, "search_labels", lambda *args, tries: believing(*args))
    plain = LaplaceClassifier(10, optimizer=GaussNewton(2), prior=STEEP, random_state=0).fit(
        *noisy_labels()
    )
    X, y = noisy_labels(1000, seed=1)
    loss = [-fit.log_predictive_density(X, y).mean() for fit in (fits["learn"], plain)]
    assert loss[0] < loss[1] - 0.005


@cache
def steep_iris():
    steep = LaplaceClassifier(10, optimizer=GaussNewton(2), prior=STEEP, random_state=0)
    return steep.fit(*load_iris(return_X_y=True)).log_evidence_


@pytest.mark.long
@pytest.mark.kept("own0")
@pytest.mark.parametrize(
    "own",
    [
        LaplaceClassifier(10, optimizer=GaussNewton(2)),
        BayesianMLPClassifier(10, n_modes=2, n_members=1),
    ],
)
def test_separated_classes_keep_the_steep_one(own):
    own.set_params(random_state=0).fit(*load_iris(return_X_y=True))
    np.testing.assert_allclose(own.log_evidence_, steep_iris(), atol=1.0)
