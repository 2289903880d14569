"""Hyperparameters from the training steps themselves: the same fit at a cost without the rows."""

import numpy as np
import pytest
from sklearn.base import clone

from skbayes_sym import EvidenceAdam, LaplaceClassifier, LaplaceRegressor, Updates
from skbayes_sym.inference.laplace.marginal_likelihood import LaplaceEvidence

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 3))
Y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * RNG.standard_normal(300)
BOTH = {
    LaplaceRegressor(
        (10,), optimizer=EvidenceAdam(batch_size=100, updates=Updates()), random_state=0
    ): Y,
    LaplaceClassifier(
        (10,), optimizer=EvidenceAdam(batch_size=100, updates=Updates()), random_state=0
    ): Y > 0.3,
}
every = pytest.mark.parametrize(("model", "y"), BOTH.items(), ids=lambda a: type(a).__name__)


@pytest.mark.long
@pytest.mark.kept("LaplaceRegressor-*")
@every
def test_fits_are_as_good_as_by_passes_of_their_own(model, y):
    """To a hundredth of a nat per row, the batches' noise included; started 0.2 above it."""
    exact, online = (
        clone(model)
        .set_params(max_iter=180, tol=None, optimizer__updates__gradient=hyper)
        .fit(X, y)
        for hyper in ("exact", "auto")
    )
    assert online.log_evidence_ == pytest.approx(exact.log_evidence_, abs=0.01 * len(X))
    np.testing.assert_allclose(online.prior_scale_, exact.prior_scale_, rtol=0.15)
    assert abs(online.log_evidence_curve_[0] - online.log_evidence_) > 0.1 * len(X)


@every
def test_all_rows_are_seen_at_the_end_alone(model, y, monkeypatch):
    """Two looks of an update of its own, or one where precisions alone are learned; none online."""
    passes, once = [], LaplaceEvidence.one_pass
    monkeypatch.setattr(LaplaceEvidence, "one_pass", lambda *args: passes.append(1) or once(*args))
    counts = {}
    for hyper in ("exact", "online", "auto"):
        passes.clear()
        few = {"optimizer__updates__n": 10, "optimizer__updates__gradient": hyper}
        clone(model).set_params(max_iter=20, tol=None, **few).fit(X, y)
        counts[hyper] = len(passes)
    assert counts["online"] == counts["auto"] == counts["exact"] - 9  # a tenth is burn-in


@every
def test_a_batch_of_all_rows_makes_passes_of_its_own(model, y):
    settings = {
        "optimizer__batch_size": "auto",
        "optimizer__updates__n": 10,
        "max_iter": 40,
        "tol": None,
    }
    exact, automatic = (
        clone(model).set_params(optimizer__updates__gradient=hyper, **settings).fit(X, y)
        for hyper in ("exact", "auto")
    )
    np.testing.assert_array_equal(automatic.posterior_.loc, exact.posterior_.loc)
    assert automatic.log_evidence_ == exact.log_evidence_


@pytest.mark.long
def test_noise_of_the_curve_does_not_end_a_fit():
    """A gain below tol counts once it is below by more than the curve's own scatter."""
    model = clone(next(iter(BOTH))).set_params(max_iter=200, tol=1e-9)
    assert model.fit(X, Y).stop_reason_ == "max_iter"
    assert clone(model).set_params(tol=10.0).fit(X, Y).stop_reason_ == "tol"
