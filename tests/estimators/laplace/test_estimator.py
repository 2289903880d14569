"""Laplace estimators: exact where the model is linear, and sound where it isn't."""

from math import pi

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from skbayes_sym import (
    DeepEnsembleRegressor,
    EvidenceAdam,
    LaplaceClassifier,
    LaplaceRegressor,
    Updates,
)
from skbayes_sym.models import MLP, TANH, Poisson, StudentT

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.standard_normal(40)
LINEAR = LaplaceRegressor(
    (),
    optimizer=EvidenceAdam(curvature="full", updates=Updates(n=10)),
    noise_std=0.3,
    prior=1.3,
    tol=None,
    standardize=False,
    max_iter=2000,
    random_state=0,
)


@pytest.fixture(scope="module")
def linear():
    return clone(LINEAR).fit(X, Y)


def linear_posterior(X, y):
    """Bayesian linear regression with an intercept, prior sd 1.3 and noise 0.3."""
    design = np.column_stack([X, np.ones(len(X))])
    precision = design.T @ design / 0.09 + np.eye(4) / 1.69
    covariance = np.linalg.inv(precision)
    return design, covariance @ design.T @ y / 0.09, covariance


@pytest.mark.long
def test_linear_gaussian_posterior_evidence_and_predictive_are_exact(linear):
    reg = linear
    design, mean, covariance = linear_posterior(X, Y)
    # Adam's last steps are a fiftieth of 0.02: far below the posterior's width of 0.05.
    np.testing.assert_allclose(reg.posterior_.loc, mean, atol=1e-3)
    total = design @ design.T * 1.69 + 0.09 * np.eye(len(X))
    quadratic = Y @ np.linalg.solve(total, Y)
    expected = -0.5 * (quadratic + np.linalg.slogdet(2 * pi * total)[1])
    assert reg.log_evidence_ == pytest.approx(expected, abs=1e-3)
    found, std = reg.predict(X, return_std=True)
    np.testing.assert_allclose(found, design @ mean, atol=3e-3)
    variance = np.einsum("ni,ij,nj->n", design, covariance, design)
    np.testing.assert_allclose(std, np.sqrt(variance + 0.09), rtol=1e-6)
    _, joint = reg.predict(X, return_cov=True)
    expected = design @ covariance @ design.T + 0.09 * np.eye(len(X))
    np.testing.assert_allclose(joint, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.long
@pytest.mark.kept("auto", "full")
@pytest.mark.parametrize("curvature", ["auto", "diag", "full"])
def test_joint_covariance_is_that_of_functions_and_noise(curvature):
    b = np.column_stack([Y, 100.0 * X[:, 0] * X[:, 1]])
    reg = LaplaceRegressor(
        (4,), optimizer=EvidenceAdam(curvature=curvature), max_iter=50, tol=9.0, random_state=0
    )
    reg.fit(X, b)
    mean, cov = reg.predict(X[:5], return_cov=True)
    assert cov.shape == (5, 5, 2)
    np.testing.assert_array_equal(mean, reg.predict(X[:5]))
    _, std = reg.predict(X[:5], return_std=True)
    np.testing.assert_allclose(np.diagonal(cov).T, std**2, rtol=1e-6)
    draws = reg.sample_y(X[:5], 2000, random_state=1) - mean[..., None]  # (rows, targets, draws)
    products = np.einsum("nts,mts->nmts", draws, draws)
    error = np.abs(products.mean(-1) - cov)
    assert (error < 5.0 * products.std(-1) / 2000**0.5).all()
    with pytest.raises(ValueError, match="return_std and return_cov"):
        reg.predict(X, return_std=True, return_cov=True)


def test_a_model_without_normal_functions_has_no_covariance():
    reg = DeepEnsembleRegressor((2,), n_members=2, max_iter=5, tol=None).fit(X, Y)
    with pytest.raises(ValueError, match=r"DeepEnsembleRegressor doesn't have.*sample_y"):
        reg.predict(X, return_cov=True)


@pytest.mark.long
def test_noise_and_prior_reach_a_maximum_of_the_evidence():
    reg = LaplaceRegressor(
        (), optimizer=EvidenceAdam(curvature="full"), max_iter=300, tol=None, random_state=0
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
@pytest.mark.filterwarnings("ignore:the empirical Fisher matrix has vanished")
@pytest.mark.parametrize("curvature", ["auto", "kron-sketch", "kron-ef", "diag", "full"])
def test_every_curvature_predicts_well(curvature):
    A, b = load_wine(return_X_y=True)
    train, test = np.random.default_rng(0).permutation(178)[:120], slice(None)
    clf = LaplaceClassifier(
        (10,), optimizer=EvidenceAdam(curvature=curvature), max_iter=80, tol=None, random_state=0
    ).fit(A[train], b[train])
    assert clf.score(A[test], b[test]) > 0.93
    assert clf.prior_scale_.shape == (2,)
    # The empirical Fisher vanishes at a good fit, which makes its posterior far too wide.
    assert clf.log_predictive_density(A, b).mean() > (-0.8 if curvature == "kron-ef" else -0.4)


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
def test_predictives_of_a_classifier():
    A, b = load_iris(return_X_y=True)
    clf = LaplaceClassifier(
        (5,), optimizer="adam", max_iter=300, tol=None, predictive=2000, random_state=0
    ).fit(A, b)
    sampled = clf.predict_proba(A)
    probit = clf.set_params(predictive="probit").predict_proba(A)
    plugin = clf.set_params(predictive="plugin").predict_proba(A)
    for p in (sampled, probit, plugin):
        np.testing.assert_allclose(p.sum(1), 1.0)
    # Averaging makes predictions less certain, and the two averages agree.
    assert sampled.max(1).mean() < plugin.max(1).mean()
    assert np.abs(sampled - probit).mean() < 0.05
    split = clf.set_params(predictive=2000).predict_uncertainty(A)
    assert (split.epistemic > 0).all()


@pytest.mark.long
def test_uncertainty_grows_away_from_the_data():
    x = np.linspace(-1, 1, 40)[:, None]
    noise = 0.1 * np.random.default_rng(0).standard_normal(40)
    reg = LaplaceRegressor((20,), optimizer="adam", max_iter=250, tol=None, random_state=0).fit(
        x, np.sin(3 * x[:, 0]) + noise
    )
    _, std = reg.predict(np.array([[0.0], [2.0], [4.0]]), return_std=True)
    assert 2.0 * std[0] < std[1:].min()  # tanh units saturate: it needn't grow for ever


@pytest.mark.long
def test_several_targets_have_their_own_noise_and_unit():
    b = np.column_stack([Y, 100.0 * np.random.default_rng(1).standard_normal(40)])
    reg = LaplaceRegressor((5,), optimizer="adam", max_iter=500, random_state=0).fit(X, b)
    assert reg.noise_std_.shape == (2,)
    assert reg.noise_std_[0] < 1.0
    assert 60.0 < reg.noise_std_[1] < 140.0
    assert reg.predict(X).shape == (40, 2)


@pytest.mark.long
def test_any_module_of_linear_layers():
    A, b = load_iris(return_X_y=True)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    clf = LaplaceClassifier(network=module, random_state=0, max_iter=400).fit(A, b)
    assert clf.score(A, b) > 0.93
    assert clf.prior_scale_.shape == (3,)


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


@pytest.mark.long
def test_counts_by_a_poisson_likelihood():
    """The mode of a linear model satisfies the score equations; targets are whole numbers."""
    counts = np.random.default_rng(1).poisson(np.exp(0.5 + 0.8 * X[:, 0])).astype(float)
    reg = LaplaceRegressor(
        (), likelihood=Poisson(), prior=100.0, standardize=False, max_iter=800, tol=None,
        random_state=0,
    ).fit(X, counts)  # fmt: skip
    design = np.column_stack([X, np.ones(len(X))])
    rate = np.exp(design @ reg.posterior_.loc)
    np.testing.assert_allclose(design.T @ (counts - rate), 0.0, atol=0.3)
    assert (reg.predict_interval(X) % 1.0 == 0.0).all()
    assert (reg.sample_y(X, 3) % 1.0 == 0.0).all()
    # Law of total variance: at least that of the counts given their rate.
    mean, std = reg.predict(X, return_std=True)
    assert (std**2 > 0.99 * mean).all()
    assert not hasattr(reg, "noise_std_")
    with pytest.raises(ValueError, match="return_cov=True needs a normal posterior"):
        reg.predict(X, return_cov=True)


@pytest.mark.long
def test_outliers_by_a_student_t_likelihood():
    b = Y.copy()
    b[:3] += 20.0
    params = {"hidden_layer_sizes": (), "optimizer": "adam", "max_iter": 200, "tol": None,
              "random_state": 0}  # fmt: skip
    robust = LaplaceRegressor(likelihood=StudentT(df=2.0), **params).fit(X, b)
    normal = LaplaceRegressor(**params).fit(X, b)
    assert robust.noise_std_ < 0.5 < 2.0 < normal.noise_std_
    truth = X @ [1.0, -2.0, 0.5]
    assert np.abs(robust.predict(X) - truth).mean() < 0.5 * np.abs(normal.predict(X) - truth).mean()
    draws = robust.sample_y(X[:2], 2000, random_state=0)
    middle = np.median(draws, axis=1)
    np.testing.assert_allclose(middle, robust.predict_quantiles(X[:2], [0.5])[:, 0], atol=0.1)


def test_a_network_object():
    reg = LaplaceRegressor(
        network=MLP(3, (4,), 1, TANH), optimizer="adam", max_iter=20, tol=None, random_state=0
    )
    same = LaplaceRegressor((4,), optimizer="adam", max_iter=20, tol=None, random_state=0)
    assert np.array_equal(reg.fit(X, Y).predict(X), same.fit(X, Y).predict(X))


class NoLayers:
    """Has a forward pass, and shows nothing of it."""

    def forward(self, theta, x):
        return x[:, :1]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"noise_std": [1.0, 2.0]}, "noise_std"),
        ({"network": NoLayers()}, "network=.*has no layout.*Linear and Conv2d"),
        ({"network": nn.Linear(3, 1), "hidden_layer_sizes": (7,)}, r"hidden_layer_sizes=\(7,\)"),
        ({"network": MLP(5, (2,), 1, TANH)}, r"inputs of shape \(5,\), but X has 3 columns"),
        ({"likelihood": StudentT(), "noise_std": 0.3}, "noise_std=0.3 does not apply"),
    ],
)
def test_objects_that_dont_fit_are_named(params, message):
    with pytest.raises((TypeError, ValueError), match=message):
        LaplaceRegressor(max_iter=10, **params).fit(X, Y)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"network": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))}, "couples the rows"),
        ({"network": nn.Sequential(nn.Linear(4, 3), nn.Dropout())}, "random"),
        ({"network": nn.Linear(4, 2)}, "must give 3 outputs"),
        ({"network": nn.Linear(7, 3)}, r"doesn't take inputs of shape \(4,\)"),
        ({"prior": [1.0, 2.0, 3.0]}, "prior.*2 layers"),
        ({"prior": [1.0, np.inf]}, "prior"),
        ({"optimizer": EvidenceAdam(curvature="kfac")}, "curvature"),
        ({"optimizer": EvidenceAdam(layers="first")}, "layers"),
        ({"predictive": "mc"}, "predictive"),
        ({"optimizer": EvidenceAdam(updates=Updates(burn_in=1.0))}, "burn_in"),
        ({"optimizer": EvidenceAdam(updates=Updates(0))}, "'n'"),
    ],
)
def test_bad_parameters_are_named(params, message):
    A, b = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(max_iter=10, **params).fit(A, b)


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
