"""Laplace approximations of several modes: exact where the model is linear, and what is refused."""

from math import pi

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from torch import nn

from skbayes_sym import EvidenceAdam, GaussNewton, LaplaceClassifier, LaplaceRegressor, Updates
from skbayes_sym.laplace.defaults import GaussNewtonDefaults
from skbayes_sym.laplace.posterior import ModeMixture
from skbayes_sym.models.priors import ARD
from skbayes_sym.symmetry.gaps.monte_carlo_gap import MonteCarloGap

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.standard_normal(40)
AS_GIVEN = {"standardize": False, "tol": None, "random_state": 0}
SMALL = LaplaceRegressor((3,), optimizer=GaussNewton(3), random_state=0)
few_steps = pytest.mark.filterwarnings("ignore:.*not converged")
CLASSES = (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * RNG.standard_normal(40) > 0).astype(int)


def linear_posterior(scale, noise):
    """Bayesian linear regression; prior standard deviations (4,) of slopes and intercept."""
    design = np.column_stack([X, np.ones(len(X))])
    covariance = np.linalg.inv(design.T @ design / noise**2 + np.diag(1.0 / scale**2))
    return design, covariance @ design.T @ Y / noise**2, covariance


def log_evidence(design, scale, noise):
    total = design * scale**2 @ design.T + noise**2 * np.eye(len(Y))
    return -0.5 * (Y @ np.linalg.solve(total, Y) + np.linalg.slogdet(2.0 * pi * total)[1])


ADAM = EvidenceAdam(curvature="full", updates=Updates(n=10))


# Adam's last steps are a fiftieth of 0.02: far below the posterior's width of 0.05.
@pytest.mark.long
@pytest.mark.parametrize(
    ("optimizer", "max_iter", "error"), [(GaussNewton(2), 200, 1e-8), (ADAM, 2000, 3e-3)]
)
def test_a_linear_model_is_bayesian_linear_regression(optimizer, max_iter, error):
    model = LaplaceRegressor((), noise_std=0.3, prior=1.3, **AS_GIVEN)
    reg = model.set_params(optimizer=optimizer, max_iter=max_iter).fit(X, Y)
    scale = np.full(4, 1.3)
    design, mean, covariance = linear_posterior(scale, 0.3)
    np.testing.assert_allclose(np.atleast_2d(reg.posterior_.loc), [mean], atol=error)
    assert reg.log_evidence_ == pytest.approx(log_evidence(design, scale, 0.3), abs=error)
    found, joint = reg.predict(X, return_cov=True)
    np.testing.assert_allclose(found, design @ mean, atol=error)
    total = design @ covariance @ design.T + 0.09 * np.eye(len(X))
    np.testing.assert_allclose(joint, total, atol=1e-9)
    std = reg.predict(X, return_std=True)[1]
    np.testing.assert_allclose(std, np.sqrt(np.diag(total)), atol=1e-9)


def test_learned_scales_and_noise_belong_to_the_posterior_of_their_mode():
    """At those of every column, with the noise as found: exact again."""
    reg = LaplaceRegressor((), prior=ARD(), optimizer=GaussNewton(1), **AS_GIVEN).fit(X, Y)
    (scale,), (noise,) = reg.prior_scale_modes_, reg.noise_std_modes_[:, 0]
    design, mean, covariance = linear_posterior(scale, noise)
    np.testing.assert_allclose(reg.posterior_.loc[0], mean, atol=1e-6)
    np.testing.assert_allclose(reg.log_evidence_, log_evidence(design, scale, noise), rtol=1e-9)
    assert reg.log_evidence_curve_[-1] == pytest.approx(reg.log_evidence_, abs=0.01)
    factor = reg.posterior_.factor[0]
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(covariance), rtol=1e-8)
    np.testing.assert_array_equal(reg.relevance_[0], scale[:3])
    assert 0.25 < reg.noise_std_ < 0.35
    assert reg.relevance_[0].argmax() == 1  # whose slope is the largest


@pytest.mark.long
@few_steps
def test_the_joint_covariance_is_that_of_the_mixtures_draws():
    reg = clone(SMALL).fit(X, np.column_stack([np.sin(2.0 * Y), 100.0 * X[:, 0] * X[:, 1]]))
    mean, cov = reg.predict(X[:4], return_cov=True)
    std = reg.predict(X[:4], return_std=True)[1]
    np.testing.assert_allclose(np.diagonal(cov).T, std**2, rtol=1e-9)
    draws = reg.sample_y(X[:4], 6000, random_state=1) - mean[..., None]
    products = np.einsum("nts,mts->nmts", draws, draws)
    error = np.abs(products.mean(-1) - cov)
    assert (error < 5.0 * products.std(-1) / 6000**0.5).all()


def test_evidences_are_reported_and_dont_weigh():
    reg = clone(SMALL).fit(X, np.sin(2.0 * Y))
    assert reg.log_evidence_modes_.max() == pytest.approx(reg.log_evidence_curve_[-1], abs=1.0)
    gap = MonteCarloGap(reg.symmetry_, reg.posterior_.loc.shape[1])
    normals = [ModeMixture(*(t[None] for t in mode)) for mode in
               zip(reg.posterior_.loc, reg.posterior_.factor, strict=True)]  # fmt: skip
    gaps = [gap.estimate(q, generator=torch.Generator().manual_seed(5)) for q in normals]
    each = reg.log_evidence_modes_ + [g.value for g in gaps]
    error = 5.0 * max(g.standard_error for g in gaps)
    assert abs(reg.log_evidence_ - np.logaddexp.reduce(each)) < 2.0 * error + 1e-9
    assert min(g.value for g in gaps) > 1.0
    each = reg._modes(torch.zeros(0)).outputs(torch.as_tensor((X - reg.x_mean_) / reg.x_scale_))[0]
    mean = each.mean(0)[:, 0].numpy() * reg.y_scale_ + reg.y_mean_
    np.testing.assert_allclose(reg.predict(X), mean)
    assert reg.noise_std_ == pytest.approx(np.sqrt((reg.noise_std_modes_**2).mean()))


@few_steps
def test_another_fit_leaves_nothing_of_the_one_before():
    reg = LaplaceRegressor(
        (3,), prior=ARD(), optimizer=GaussNewton(1), max_iter=12, random_state=0
    ).fit(X, Y)
    assert reg.relevance_.shape == (1, 3)
    reg.set_params(prior="learn").fit(X, Y)
    assert not hasattr(reg, "relevance_")
    reg.set_params(optimizer="adam", tol=None).fit(X, Y)
    assert not hasattr(reg, "log_evidence_modes_")


@pytest.mark.parametrize(
    "params", [{"likelihood": "student_t"}, {"network": nn.Linear(3, 1)}, {"optimizer": "adam"}]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_only_adam_has_is_trained_by_adam(params):
    assert LaplaceRegressor(max_iter=10, **params).fit(X, Y).optimizer_ == "adam"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_would_take_long_is_trained_by_adam(monkeypatch):
    monkeypatch.setattr(LaplaceRegressor, "_defaults", GaussNewtonDefaults(max_work=1e5))
    reg = LaplaceRegressor((3,), max_iter=20, random_state=0)
    assert clone(reg).fit(X, Y).optimizer_ == "adam"
    asked = clone(reg).set_params(optimizer=GaussNewton(1))
    assert asked.fit(X, Y).optimizer_ == "gauss-newton"


def test_a_grid_over_restarts_survives_a_table_that_takes_long(monkeypatch):
    """What "auto" would train by Adam; `optimizer_` says what was taken."""
    monkeypatch.setattr(LaplaceRegressor, "_defaults", GaussNewtonDefaults(max_work=1e5))
    reg = LaplaceRegressor((3,), optimizer=GaussNewton(), max_iter=10, tol=None, random_state=0)
    grid = {"optimizer__n_restarts": [1, 2]}
    search = GridSearchCV(reg, grid, cv=2, error_score="raise").fit(X, Y)
    best = search.best_estimator_
    assert best.optimizer_ == "gauss-newton"
    assert best.multiplicity_modes_.sum() == search.best_params_["optimizer__n_restarts"]
    assert clone(reg).set_params(optimizer="auto").fit(X, Y).optimizer_ == "adam"


def test_class_probabilities_are_averaged_as_asked():
    A, b = load_iris(return_X_y=True)
    A, b = A[::2], np.array(["a", "b", "c"])[b[::2]]
    clf = LaplaceClassifier((4,), optimizer=GaussNewton(2), variance_scale=1.0, random_state=0).fit(
        A, b
    )
    assert (clf.optimizer_, clf.variance_scale_) == ("gauss-newton", 1.0)
    assert clf.posterior_.n_modes == 2
    assert clf.score(A, b) > 0.9
    sampled = clf.predict_proba(A)
    plugin = clf.set_params(predictive="plugin").predict_proba(A)
    for p in (sampled, plugin):
        np.testing.assert_allclose(p.sum(1), 1.0)
    assert sampled.max(1).mean() < plugin.max(1).mean()
    logits = clf.network_.forward(*map(torch.as_tensor, (
        clf.posterior_.loc, (A - clf.x_mean_) / clf.x_scale_)))  # fmt: skip
    np.testing.assert_allclose(plugin, logits.softmax(-1).mean(0).numpy(), atol=1e-12)
    online = clone(clf).set_params(optimizer="adam", predictive="sampling", max_iter=50, tol=None)
    assert (online.fit(A, b).predict_uncertainty(A).epistemic > 0).all()


@pytest.mark.long
def test_two_classes_have_one_output_and_left_out_rows_choose_the_scale():
    clf = LaplaceClassifier((3,), optimizer=GaussNewton(2), random_state=0).fit(X, CLASSES)
    assert clf.network_.n_outputs == 1
    assert clf.variance_scale_ in {0.0, 0.1, 0.3, 1.0, 3.0}
    full = clone(clf).set_params(variance_scale=1.0).fit(X, CLASSES)
    assert (full.predict_uncertainty(X).epistemic > 0).all()
