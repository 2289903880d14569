"""Pooled networks: their components, and the plan for a number of rows."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from habits import Watch
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import BayesianRidge
from sklearn.metrics import log_loss

from skbayes_sym import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    DeepEnsembleClassifier,
    GaussNewton,
    LaplaceClassifier,
    LaplaceRegressor,
    predictive,
)
from skbayes_sym.bayesian_mlp import estimators as estimator
from skbayes_sym.bayesian_mlp import fit as pool_module
from skbayes_sym.bayesian_mlp.defaults import PoolDefaults
from skbayes_sym.bayesian_mlp.fit import ComponentWeights
from skbayes_sym.ensemble.fit import MemberRefitter
from skbayes_sym.laplace.defaults import GaussNewtonDefaults
from skbayes_sym.models import Gaussian

X = np.random.default_rng(4).standard_normal((80, 10))
Y = X[:, 0] - X[:, 1] + 0.2 * np.sin(3.0 * X[:, 2]) + 0.3 * X[:, 3:].mean(axis=1) ** 2
Y += 0.2 * np.random.default_rng(5).standard_normal(80)  # bent, hardly; little noise
BENT = np.random.default_rng(1).standard_normal((80, 2))
CURVE = np.sin(3.0 * BENT[:, 0]) + 0.05 * BENT[:, 1]
PETALS, KIND = (
    a[np.random.default_rng(0).permutation(150)[:70]] for a in load_iris(return_X_y=True)
)
REG = BayesianMLPRegressor((4,), n_modes=3, n_members=2, random_state=0)
CLF = BayesianMLPClassifier((4,), n_modes=2, n_members=2, random_state=0)


@pytest.fixture(scope="module")
def fitted():
    """With members, which few rows have where there is hardly any noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "noise_variance_fraction", lambda *_: 0.0)
        return clone(REG).fit(X, Y)


@pytest.mark.long
def test_predictions_are_the_mixture_of_modes_members_and_the_linear_model(fitted):
    x = (X - fitted.x_mean_) / fitted.x_scale_
    forward = fitted.member_network_.forward
    members = forward(torch.as_tensor(fitted.samples_), torch.as_tensor(x))[..., 0].numpy()
    modes = fitted.network_.forward(torch.as_tensor(fitted.posterior_.loc), torch.as_tensor(x))
    *slopes, offset = fitted.linear_posterior_.loc[0]
    share = fitted.linear_weight_
    shares = [share, fitted.modes_weight_, fitted.members_weight_]
    means = [x @ slopes + offset, modes[..., 0].numpy().mean(axis=0), members.mean(axis=0)]
    mixed = np.array(shares) @ np.array(means)
    np.testing.assert_allclose(fitted.predict(X), mixed * fitted.y_scale_[0] + fitted.y_mean_[0])
    assert (len(modes), len(members)) == (3, 2)
    alone = LaplaceRegressor((4,), optimizer=GaussNewton(3), random_state=0)
    np.testing.assert_allclose(fitted.posterior_.loc, alone.fit(X, Y).posterior_.loc)
    assert sum(shares) == pytest.approx(1.0)
    assert 0.0 < share <= 1.0
    table, modes, linear, trial, members, _ = fitted.summary_.split("\n")
    assert table == "80 rows of 10 features"
    assert modes.endswith(
        f": 3 modes of 4 tanh units by the evidence, weight {100 * fitted.modes_weight_:.0f} %"
    )
    assert linear.endswith(f": a linear model by the evidence, weight {100 * share:.0f} %")
    assert trial.endswith(
        f": 2 ensemble members with effective noise, weight {100 * fitted.members_weight_:.0f} %"
    )
    assert members.endswith("skipped because the trial members are all that the mixture can use")


def test_the_linear_model_is_weighted_by_the_evidence():
    by_rows = ComponentWeights(0.2, 0.6, 0.2)
    assert by_rows.with_evidence(-100.0, -20.0) == by_rows
    even = by_rows.with_evidence(-100.0, -100.0)
    assert even == pytest.approx((0.5, 0.375, 0.125))
    assert by_rows.with_evidence(-10.0, -1000.0) == pytest.approx((1.0, 0.0, 0.0))
    assert by_rows.with_evidence(-1e6, 0.0) == by_rows


@pytest.mark.long
def test_the_linear_model_has_no_weight_for_a_curve():
    curved = clone(REG).set_params(hidden_layer_sizes=(8,)).fit(BENT, CURVE)
    assert curved.linear_weight_ < 0.1
    assert curved.log_predictive_density(BENT, CURVE).mean() > 0.0


@pytest.mark.long
def test_the_linear_model_has_most_weight_for_a_noisy_line():
    """Networks can only have a lower density if the linear model is right."""
    rng = np.random.default_rng(2)
    x, new = rng.standard_normal((2, 60, 5))
    slopes = np.array([1.0, -1.0, 0.5, 0.0, 0.0])
    y, y_new = (a @ slopes + 2.0 * rng.standard_normal(60) for a in (x, new))
    pool = clone(REG).fit(x, y)
    alone = LaplaceRegressor(
        (), activation="identity", optimizer=GaussNewton(1), random_state=0
    ).fit(x, y)
    assert pool.linear_weight_ > 0.5
    density = pool.log_predictive_density(new, y_new).mean()
    assert density > alone.log_predictive_density(new, y_new).mean() - 0.1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_two_members_decide_whether_more_are_trained(monkeypatch):
    """More are trained if the first two gain enough beside two modes."""
    quick = replace(PoolDefaults(), member_steps=5)
    for gain, n in ((-np.inf, 3), (np.inf, 2)):
        effort = replace(quick, min_trial_gain=gain)
        monkeypatch.setattr(
            BayesianMLPRegressor,
            "_make_method",
            lambda self, e=effort: pool_module.RegressionPool(3, 3, defaults=e),
        )
        few = BayesianMLPRegressor((2,), n_modes=3, n_members=3, random_state=0)
        assert len(few.fit(BENT[:30], np.tanh(2.0 * BENT[:30, 0])).samples_) == n


@pytest.mark.long
def test_small_samples_have_members_only_with_little_noise(monkeypatch):
    """The threshold of the noise is higher for large samples."""
    effort = replace(
        PoolDefaults(), modes=GaussNewtonDefaults(small_sample_rows=30), member_steps=2
    )
    method = pool_module.RegressionPool(1, 1, defaults=effort)
    monkeypatch.setattr(BayesianMLPRegressor, "_make_method", lambda self: method)
    for share, n_rows, is_there in ((0.009, 30, 1), (0.1, 30, 0), (0.1, 31, 1), (0.21, 31, 0)):
        monkeypatch.setattr(pool_module, "noise_variance_fraction", lambda *_, share=share: share)
        reg = BayesianMLPRegressor((2,), random_state=0).fit(BENT[:n_rows], CURVE[:n_rows])
        assert hasattr(reg, "samples_") == is_there


@pytest.mark.long
def test_several_targets_are_sampled_with_their_moments():
    both = clone(REG).fit(BENT, np.column_stack([CURVE, BENT[:, 1]]))
    assert both.predict(BENT).shape == (80, 2)
    assert both.noise_std_.shape == (2,)
    draws = both.sample_y(BENT[:3], 2000, random_state=0)
    mean, std = both.predict(BENT[:3], return_std=True)
    assert np.abs((draws.mean(axis=-1) - mean) / (std / 2000**0.5)).max() < 4.5


@pytest.mark.long
def test_noisy_targets_have_no_members():
    rng = np.random.default_rng(0)
    noisy = clone(REG).fit(BENT, CURVE + rng.standard_normal(80))
    assert not hasattr(noisy, "samples_")
    assert noisy.members_weight_ == 0.0
    assert "members with effective noise" not in noisy.summary_
    assert "of the variance of the targets is noise" in noisy.summary_
    assert noisy.linear_weight_ + noisy.modes_weight_ == pytest.approx(1.0)
    assert noisy.sample_y(BENT[:2], 5, random_state=0).shape == (2, 5)


@pytest.mark.long
def test_larger_samples_have_fewer_modes(monkeypatch):
    def allow(**most):
        effort = PoolDefaults(modes=GaussNewtonDefaults(**most))
        monkeypatch.setattr(
            estimator, "RegressionPool", partial(pool_module.RegressionPool, defaults=effort)
        )

    monkeypatch.setattr(pool_module, "noise_variance_fraction", lambda *_: 0.0)
    allow(target_work=1.0)
    few = clone(REG).set_params(n_modes=5).fit(X, Y)
    assert few.posterior_.n_modes == len(few.samples_) + 1 == 3
    assert (few.modes_weight_, few.members_weight_) == pytest.approx((0.6, 0.4))
    allow(target_work=1.0, max_work=1.0)
    none = clone(REG).set_params(n_members=1).fit(X, Y)
    assert not hasattr(none, "posterior_")
    assert "skipped because 3 modes would take too long" in none.summary_
    assert len(none.samples_) == 1
    assert np.isfinite(none.predict_interval(X)).all()


@pytest.mark.long
def test_a_stopped_mode_search_is_reported_as_stopped():
    """A callback stops the trial of two modes."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1700, 2))
    reg = BayesianMLPRegressor(n_members=1, random_state=0).set_callbacks(Watch(1))
    assert "2 modes" in reg.fit(x, x[:, 0]).summary_
    assert "weights: not reached before" in re.sub(r" \(.*?\)", "", reg.summary_)


def in_growing_noise(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (n, 2))
    f = np.sin(x[:, 0]) + 0.5 * x[:, 1]
    return x, f + 0.3 * np.exp(f) * rng.standard_normal(n)


@pytest.fixture(scope="module")
def shaped():
    return BayesianMLPRegressor((6,), n_modes=2, n_members=1, random_state=0).fit(
        *in_growing_noise(300, 0)
    )


@pytest.mark.long
def test_noise_that_grows_with_the_mean_is_recovered(shaped):
    """The slope is right, and the density better than with constant noise."""
    x, y = in_growing_noise(400, 1)
    f = np.sin(x[:, 0]) + 0.5 * x[:, 1]
    noise = np.sqrt(shaped.predict_uncertainty(x).aleatoric)
    slope = np.polyfit(f, np.log(noise), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.2)
    rows, y_rows = in_growing_noise(300, 0)
    aleatoric = shaped.predict_uncertainty(rows).aleatoric
    assert shaped.noise_std_ == pytest.approx(np.sqrt(aleatoric.mean()), rel=0.05)
    one = clone(shaped).set_params(likelihood=Gaussian()).fit(rows, y_rows)
    assert one.noise_shape_ is None
    gain = shaped.log_predictive_density(x, y) - one.log_predictive_density(x, y)
    assert gain.mean() > 0.1
    assert "times as wide per standard deviation of the predicted mean" in shaped.summary_


def test_samples_with_shaped_noise_have_the_predicted_distribution(shaped):
    """Each row by the probability integral transform of its own draws, 0.5 and 1/12."""
    x, _ = in_growing_noise(5, 3)
    draws = shaped.sample_y(x, 3000, random_state=0)
    u = predictive(shaped, np.repeat(x, 3000, axis=0)).cdf(draws.ravel()).reshape(5, 3000)
    np.testing.assert_allclose(u.mean(axis=1), 0.5, atol=4.5 * (1.0 / 12 / 3000) ** 0.5)
    np.testing.assert_allclose(u.var(axis=1), 1.0 / 12.0, rtol=0.1)
    mean, std = shaped.predict(x, return_std=True)
    assert std[mean.argmax()] > 2.0 * std[mean.argmin()]
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.15)


@pytest.mark.long
def test_wide_tables_are_predicted_no_worse_than_by_ridge():
    """Modes fit such rows without error. Their evidence gives them no weight."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((440, 60))
    y = x[:, :5].sum(axis=1) + rng.standard_normal(440)
    found = BayesianMLPRegressor(n_modes=2, n_members=1, random_state=0).fit(x[:40], y[:40])
    ridge = BayesianRidge().fit(x[:40], y[:40])
    distribution = stats.norm(*ridge.predict(x[40:], return_std=True))
    density = predictive(found, x[40:]).log_prob(y[40:]).mean()
    assert found.linear_weight_ > 0.5
    assert density > distribution.logpdf(y[40:]).mean() - 0.1


@pytest.mark.filterwarnings("ignore:.*X has one distinct row")
def test_a_single_row_has_a_finite_density():
    """Members have no weight, because they have no noise."""
    reg = clone(REG).fit(X[:1], Y[:1])
    assert reg.members_weight_ == 0.0
    assert reg.noise_std_samples_.max() == 0.0
    assert predictive(reg, X[:1]).std()[0] > 0.5 * abs(Y[0])
    assert np.isfinite(reg.log_predictive_density(X[:1], Y[:1])[0])


@pytest.mark.long
def test_predictions_from_four_rows_are_wide():
    """Four of three columns, which a linear model explains: it lost 3,214 nats per row."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, new = rng.standard_normal((4, 3)), rng.standard_normal((100, 3))
        reg = clone(REG).fit(x, np.sin(2.0 * x[:, 0]) + x[:, 2] ** 2)
        density = predictive(reg, new).log_prob(np.sin(2.0 * new[:, 0]) + new[:, 2] ** 2)
        found.append(density.mean())
    assert min(found) > -4.0


@pytest.mark.long
def test_a_fixed_noise_level_is_used():
    """Nothing learns it; the modes are those of `LaplaceRegressor`, which is given it, too."""
    reg = clone(REG).set_params(noise_std=0.05).fit(BENT[:30], CURVE[:30])
    np.testing.assert_allclose(reg.predict_uncertainty(BENT).aleatoric, 0.05**2, rtol=1e-6)
    assert reg.noise_std_ == pytest.approx(0.05)
    assert reg.noise_shape_ is None
    modes = LaplaceRegressor((4,), optimizer=GaussNewton(3), noise_std=0.05, random_state=0)
    expected = modes.fit(BENT[:30], CURVE[:30]).posterior_.loc
    np.testing.assert_allclose(reg.posterior_.loc, expected[: len(reg.posterior_.loc)])
    with pytest.raises(ValueError, match=r"noise_std=0.1 does not apply: likelihood= is given"):
        clone(REG).set_params(likelihood=Gaussian(), noise_std=0.1).fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    return clone(CLF).fit(PETALS, KIND)


@pytest.mark.long
@pytest.mark.kept("3")
@pytest.mark.parametrize("n_classes", [2, 3])
def test_components_are_mixed_by_their_weights(n_classes, classifier):
    y = np.minimum(KIND, n_classes - 1)
    pool = classifier if n_classes == 3 else clone(CLF).fit(PETALS, y)
    modes = LaplaceClassifier((4,), optimizer=GaussNewton(2), random_state=0)
    members = DeepEnsembleClassifier(n_members=2, correction="gaussian", random_state=0)
    linear = LaplaceClassifier((), optimizer=GaussNewton(1), random_state=0)
    kinds = [kind.fit(PETALS, y).predict_proba(PETALS) for kind in (modes, members, linear)]
    shares = [pool.modes_weight_, pool.members_weight_, pool.linear_weight_]
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares[:2]) > 0.01
    expected = np.einsum("k,kij->ij", shares, kinds)
    np.testing.assert_allclose(pool.predict_proba(PETALS), expected, atol=1e-6)
    assert pool.variance_scale_ == modes.variance_scale_
    assert pool.member_variance_scale_ == members.variance_scale_
    assert pool.log_evidence_ == modes.log_evidence_


def test_the_summary_names_stages_and_reasons(classifier):
    n = len(np.unique(PETALS, axis=0))
    table, modes, linear, members, weights = classifier.summary_.split("\n")
    assert table == f"{n} rows of 4 features, 3 classes"
    assert modes.endswith(
        f": 2 modes of 4 tanh units by the evidence, variance scale {classifier.variance_scale_:g} "
        f"by leave-one-out, weight {100 * classifier.modes_weight_:.0f} %"
    )
    assert linear.endswith(f", weight {100 * classifier.linear_weight_:.0f} %")
    assert members.endswith(
        f": 2 refitted ensemble members, variance scale {classifier.member_variance_scale_:g}, "
        f"weight {100 * classifier.members_weight_:.0f} %"
    )
    assert weights == "weights: by leave-one-out"
    assert classifier.score(PETALS, KIND) > 0.9


@pytest.mark.long
def test_overlapping_classes_are_predicted_without_overconfidence():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 6))
    y = (x[:, 0] + 1.5 * rng.standard_normal(300) > 0.0).astype(int)
    clf = BayesianMLPClassifier(n_modes=2, n_members=3, random_state=0).fit(x[:120], y[:120])
    loss = -clf.log_predictive_density(x[120:], y[120:]).mean()
    share = y[:120].mean()
    assert loss < -np.where(y[120:], np.log(share), np.log1p(-share)).mean() - 0.02


def noisy_line(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6))
    return x, (x[:, 0] - x[:, 1] + rng.logistic(size=n) > 0.0).astype(int)


@pytest.mark.long
def test_linear_classes_give_the_linear_model_the_weight():
    pool = BayesianMLPClassifier(n_modes=2, n_members=3, random_state=0).fit(*noisy_line(250, 0))
    assert pool.linear_weight_ > 0.5
    assert pool.members_weight_ < 0.01
    linear = LaplaceClassifier((), optimizer=GaussNewton(1), random_state=0)
    linear.fit(*noisy_line(250, 0))
    x, y = noisy_line(1000, 1)
    losses = [-clf.log_predictive_density(x, y).mean() for clf in (pool, linear)]
    assert losses[0] < losses[1] + 0.005


@pytest.mark.long
def test_members_without_refits_are_left_out_for_overlapping_classes(monkeypatch):
    refitter = MemberRefitter("loo", is_optional=True, max_work=1.0)
    pool = partial(pool_module.ClassificationPool, defaults=PoolDefaults(refitter=refitter))
    monkeypatch.setattr(estimator, "ClassificationPool", pool)
    clf = BayesianMLPClassifier((4,), n_modes=1, n_members=2, random_state=0)
    found = clf.fit(*noisy_line(100, 0))
    assert not hasattr(found, "samples_")
    assert found.members_weight_ == 0.0
    assert "skipped because refitting members would take too long" in found.summary_
    separated = clf.fit(PETALS, KIND)
    assert separated.members_weight_ == separated.modes_weight_ == 0.5


@pytest.mark.long
def test_slow_stages_are_skipped(monkeypatch):
    monkeypatch.setattr(
        GaussNewtonDefaults, "affordable_classification_modes", lambda *_: (0, False)
    )
    refitter = MemberRefitter("loo", is_optional=True, max_work=1.0)
    pool = partial(pool_module.ClassificationPool, defaults=PoolDefaults(refitter=refitter))
    monkeypatch.setattr(estimator, "ClassificationPool", pool)
    found = clone(CLF).fit(PETALS, KIND)
    assert not hasattr(found, "posterior_")
    assert found.refitted_members_ is None
    assert "skipped because 2 modes would take too long" in found.summary_
    assert "2 ensemble members as trained, weight 100 %" in found.summary_
    assert "skipped because members as trained have no leave-one-out" in found.summary_
    assert found.predict_proba(PETALS).shape == (70, 3)
    assert np.all(found.predict_uncertainty(PETALS).epistemic > 0.0)


@pytest.mark.long
def test_classes_of_wide_tables_are_predicted_better_than_by_chance():
    """Members fit any labels of such tables."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((450, 60))
    y = 1.2 * x[:, :5].sum(axis=1) + rng.logistic(size=450) > 0.0
    found = BayesianMLPClassifier(n_modes=2, random_state=0).fit(x[:50], y[:50])
    assert found.members_weight_ == 0.0
    assert "there are fewer than 3 rows per column" in found.summary_
    assert log_loss(y[50:], found.predict_proba(x[50:])) < np.log(2.0)


@pytest.mark.long
def test_without_modes_the_pool_is_the_ensemble():
    settings = {"n_members": 2, "random_state": 0}
    alone = BayesianMLPClassifier(n_modes=0, **settings).fit(PETALS, KIND)
    members = DeepEnsembleClassifier(correction="gaussian", **settings).fit(PETALS, KIND)
    np.testing.assert_array_equal(alone.predict_proba(PETALS), members.predict_proba(PETALS))
    members = BayesianMLPRegressor(n_modes=0, **settings).fit(X, Y)
    assert len(members.samples_) == 2
    assert members.linear_weight_ > 0.0
    assert np.isfinite(members.predict(X[:3])).all()
    with pytest.raises(ValueError, match=r"hidden_layer_sizes=.* does not apply: n_modes=0"):
        BayesianMLPRegressor((4,), n_modes=0).fit(X, Y)
