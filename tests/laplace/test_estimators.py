"""Laplace estimators by Adam: exact where the model is linear, sound where it isn't, online too."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import (
    DeepEnsembleRegressor,
    EvidenceAdam,
    LaplaceClassifier,
    LaplaceRegressor,
    Updates,
)
from skbayes_sym.laplace.evidence import LaplaceEvidence
from skbayes_sym.models import MLP, TANH

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.standard_normal(40)
LINEAR = LaplaceRegressor(
    (), optimizer=EvidenceAdam(curvature="full", updates=Updates(n=10)), noise_std=0.3, prior=1.3,
    tol=None, standardize=False, max_iter=2000, random_state=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def linear():
    return clone(LINEAR).fit(X, Y)


def linear_posterior(X, y):
    """Bayesian linear regression with an intercept, prior sd 1.3 and noise 0.3."""
    design = np.column_stack([X, np.ones(len(X))])
    precision = design.T @ design / 0.09 + np.eye(4) / 1.69
    covariance = np.linalg.inv(precision)
    return design, covariance @ design.T @ y / 0.09, covariance


def test_a_model_without_normal_functions_has_no_covariance():
    reg = DeepEnsembleRegressor((2,), n_members=2, max_iter=5, tol=None).fit(X, Y)
    with pytest.raises(ValueError, match=r"DeepEnsembleRegressor doesn't have.*sample_y"):
        reg.predict(X, return_cov=True)


@pytest.mark.long
def test_noise_and_prior_reach_a_maximum_of_the_evidence():
    reg = LaplaceRegressor(
        (), optimizer=EvidenceAdam(curvature="full"), max_iter=1000, tol=None, random_state=0
    ).fit(X, Y)
    # residual degrees of freedom: sum of squares / (n - gamma), gamma at most 4
    residual = Y - reg.predict(X)
    low, high = (np.sqrt((residual**2).sum() / (len(Y) - g)) for g in (0, 4))
    assert 0.99 * low < reg.noise_std_ < 1.01 * high
    moved = [
        clone(reg).set_params(noise_std=s).fit(X, Y).log_evidence_
        for s in (0.8 * reg.noise_std_, 1.25 * reg.noise_std_)
    ]
    assert max(moved) < reg.log_evidence_


@pytest.mark.long
def test_the_last_layer_alone_has_one_scale():
    A, b = load_iris(return_X_y=True)
    clf = LaplaceClassifier(
        (10,), optimizer=EvidenceAdam(layers="last"), max_iter=300, tol=None, random_state=0
    ).fit(A, b)
    assert clf.prior_scale_.shape == (1,)
    assert clf.score(A, b) > 0.93
    draws = clf.posterior_.sample(3, generator=torch.Generator().manual_seed(0))
    assert (draws[:, :50] == torch.as_tensor(clf.posterior_.loc[:50])).all()


@pytest.mark.long
def test_stopping_by_tol_costs_no_evidence():
    A, b = load_iris(return_X_y=True)
    stopped = LaplaceClassifier((10,), optimizer="adam", max_iter=1000, random_state=0).fit(A, b)
    whole = clone(stopped).set_params(tol=None).fit(A, b)
    assert (stopped.stop_reason_, whole.stop_reason_) == ("tol", "max_iter")
    assert 500 < stopped.n_iter_ < whole.n_iter_ == 1000
    assert stopped.log_evidence_ > whole.log_evidence_ - 1e-3 * len(A)


@pytest.mark.long
def test_without_anything_to_learn_the_log_posterior_stops_training():
    reg = clone(LINEAR).set_params(tol=1e-3).fit(X, Y)
    assert reg.stop_reason_ == "tol"
    assert not len(reg.log_evidence_curve_)
    exact = linear_posterior(X, Y)[1]
    np.testing.assert_allclose(reg.posterior_.loc, exact, atol=0.1)


def test_a_network_object():
    reg = LaplaceRegressor(
        network=MLP(3, (4,), 1, TANH), optimizer="adam", max_iter=20, tol=None, random_state=0
    )
    same = LaplaceRegressor((4,), optimizer="adam", max_iter=20, tol=None, random_state=0)
    assert np.array_equal(reg.fit(X, Y).predict(X), same.fit(X, Y).predict(X))


@pytest.mark.long
def test_collapse_says_what_to_do():
    """Labels that have nothing to do with the inputs."""
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((60, 2)), rng.integers(0, 2, 60)
    clf = LaplaceClassifier(
        (20,), optimizer=EvidenceAdam(updates=Updates(keep_best=False)), random_state=0
    )
    with pytest.warns(ConvergenceWarning, match=r"collapsed onto a constant.*give prior a number"):
        clf.fit(A, b)
    assert np.isfinite(clf.log_evidence_)
    np.testing.assert_allclose(clf.predict_proba(A)[:, 1], b.mean(), atol=0.1)


NOISE = np.random.default_rng(0)
INPUTS = NOISE.standard_normal((300, 3))
TARGETS = np.sin(2.0 * INPUTS[:, 0]) + INPUTS[:, 1] + 0.3 * NOISE.standard_normal(300)
BOTH = {
    LaplaceRegressor(
        (10,), optimizer=EvidenceAdam(batch_size=100, updates=Updates()), random_state=0
    ): TARGETS,
    LaplaceClassifier(
        (10,), optimizer=EvidenceAdam(batch_size=100, updates=Updates()), random_state=0
    ): TARGETS > 0.3,
}
both = pytest.mark.parametrize(("model", "y"), BOTH.items(), ids=lambda a: type(a).__name__)


@pytest.mark.long
@pytest.mark.kept("LaplaceRegressor-*")
@both
def test_fits_are_as_good_as_by_passes_of_their_own(model, y):
    """To a hundredth of a nat per row, the batches' noise included; started 0.2 above it."""
    exact, online = (
        clone(model)
        .set_params(max_iter=180, tol=None, optimizer__updates__gradient=hyper)
        .fit(INPUTS, y)
        for hyper in ("exact", "auto")
    )
    assert online.log_evidence_ == pytest.approx(exact.log_evidence_, abs=0.01 * len(INPUTS))
    np.testing.assert_allclose(online.prior_scale_, exact.prior_scale_, rtol=0.15)
    assert abs(online.log_evidence_curve_[0] - online.log_evidence_) > 0.1 * len(INPUTS)


@both
def test_all_rows_are_seen_at_the_end_alone(model, y, monkeypatch):
    """Two looks of an update of its own, or one where precisions alone are learned; none online."""
    passes, once = [], LaplaceEvidence.compute_data_sums
    monkeypatch.setattr(
        LaplaceEvidence, "compute_data_sums", lambda *args: passes.append(1) or once(*args)
    )
    counts = {}
    for hyper in ("exact", "online", "auto"):
        passes.clear()
        few = {"optimizer__updates__n": 10, "optimizer__updates__gradient": hyper}
        clone(model).set_params(max_iter=20, tol=None, **few).fit(INPUTS, y)
        counts[hyper] = len(passes)
    assert counts["online"] == counts["auto"] == counts["exact"] - 9  # a tenth is burn-in


@both
def test_a_batch_of_all_rows_makes_passes_of_its_own(model, y):
    settings = {
        "optimizer__batch_size": "auto", "optimizer__updates__n": 10, "max_iter": 40, "tol": None,
    }  # fmt: skip
    exact, automatic = (
        clone(model).set_params(optimizer__updates__gradient=hyper, **settings).fit(INPUTS, y)
        for hyper in ("exact", "auto")
    )
    np.testing.assert_array_equal(automatic.posterior_.loc, exact.posterior_.loc)
    assert automatic.log_evidence_ == exact.log_evidence_


@pytest.mark.long
def test_noise_of_the_curve_does_not_end_a_fit():
    """A gain below tol counts once it is below by more than the curve's own scatter."""
    model = clone(next(iter(BOTH))).set_params(max_iter=200, tol=1e-9)
    assert model.fit(INPUTS, TARGETS).stop_reason_ == "max_iter"
    assert clone(model).set_params(tol=10.0).fit(INPUTS, TARGETS).stop_reason_ == "tol"
