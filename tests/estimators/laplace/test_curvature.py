"""The empirical Fisher matrix: the sum of squared scores, and a warning once it has vanished."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine

from skbayes_sym import EvidenceAdam, LaplaceClassifier, LILAClassifier, Updates
from skbayes_sym.models import ColumnShift, Invariances


def test_its_diagonal_is_that_of_squared_scores():
    X, y = load_iris(return_X_y=True)
    clf = LaplaceClassifier(
        (4,), optimizer=EvidenceAdam(curvature="diag-ef"), prior=0.7, max_iter=30, tol=None,
        random_state=0,
    )  # fmt: skip
    clf.fit(X[::5], y[::5])
    x = torch.as_tensor((X[::5] - clf.x_mean_) / clf.x_scale_)

    def log_prob(theta, row, label):
        return clf.network_.forward(theta, row.unsqueeze(0)).log_softmax(-1)[0, label]

    theta = torch.as_tensor(clf.posterior_.loc)
    scores = torch.stack(
        [torch.func.grad(log_prob)(theta, a, int(b)) for a, b in zip(x, y[::5], strict=True)]
    )
    expected = scores.square().sum(0) + 0.7**-2
    np.testing.assert_allclose(clf.posterior_.precision.values, expected, rtol=1e-8)


@pytest.mark.long
def test_an_empirical_fisher_that_has_vanished_warns():
    """Many steps on few rows of clear classes: labels are fitted, and squared scores are none."""
    X, y = load_wine(return_X_y=True)
    settings = {
        "max_iter": 400, "prior": 10.0, "tol": None,
        "random_state": 0,
        "invariances": Invariances([ColumnShift(columns=(0,))], 2),
    }  # fmt: skip
    fitting = LILAClassifier(
        (20,), optimizer=EvidenceAdam(curvature="kron-ef", updates=Updates(8, 0.1)), **settings
    )
    with pytest.warns(UserWarning, match=r"Fisher matrix has vanished: its trace is .*kron-sketch"):
        fitting.fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(fitting).set_params(optimizer__curvature="kron-sketch").fit(X, y)
        fitting.set_params(max_iter=8, optimizer__updates__n=1).fit(X, y)  # nothing is fitted yet


@pytest.mark.parametrize(
    ("curvature", "max_iter", "n"),
    [("kron-ef", 4000, 500), ("diag-ef", 400, 100), ("auto", 4000, 100)],
)
def test_the_half_widths_are_heard_before_it_vanishes(curvature, max_iter, n):
    """Updates by default: one in 8 steps of an empirical Fisher, 100 of others."""
    model = LILAClassifier(
        optimizer=EvidenceAdam(curvature=curvature, updates=Updates()),
        max_iter=max_iter,
        invariances=[ColumnShift()],
    )
    model.n_features_in_ = 3
    method = model._method()
    assert method._n_updates == n
    assert method._pace(1.0).n_blocks == n
    assert method._pace(1.0).burn_in == (10 if curvature == "auto" else 0)
    model.set_params(optimizer__updates__n=40)
    assert model._method()._n_updates == 40
