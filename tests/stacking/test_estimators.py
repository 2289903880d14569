"""Stacks: their members, weights and left-out rows against others' arithmetic, and what fails."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import _NotAnArray

from skbayes_sym import (
    BayesianLinearRegressor,
    BayesianMLPRegressor,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
    predictive,
)
from skbayes_sym.base.plan import PlannedStage, TableSize, execute
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.fit import fit_and_score, fit_weights, marginal_gain
from skbayes_sym.stacking.members import MEMBERS, Networks
from skbayes_sym.stacking.members.boosting import Boosting
from skbayes_sym.stacking.members.networks import (
    NetworkProbe,
    ProbeResult,
    choose_probe_width,
    correct_optimism,
    fit_estimator,
)
from skbayes_sym.stacking.scoring import rounding_std, score_member
from skbayes_sym.stacking.task import MemberFit, RowBlock, ScoredMember, StackTask

X, Y = (a[:120] for a in load_diabetes(return_X_y=True))
FLOWERS, SPECIES = (
    a[np.random.default_rng(0).permutation(150)[:90]] for a in load_iris(return_X_y=True)
)
CHEAP = [
    ("line", "linear"),
    ("trees", "trees"),
    ("boosted", "boosting"),
    ("smooth", "gaussian_process"),
]
REG = PredictiveStackingRegressor(CHEAP, random_state=0)
CLF = PredictiveStackingClassifier(CHEAP, random_state=0)


@pytest.fixture(scope="module")
def reg():
    return clone(REG).fit(X, Y)


@pytest.fixture(scope="module")
def clf():
    return clone(CLF).fit(FLOWERS, SPECIES)


def task_of(x, y, classes=None, **settings):
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    folds = list(KFold(5, shuffle=True, random_state=0).split(x))
    targets = y.numpy().ravel() if classes is None else classes[y.numpy()]
    y = y.reshape(-1, 1) if classes is None else y
    weight = torch.ones(len(x), dtype=torch.float64)
    return StackTask(
        RowBlock(x, x.numpy()), y, weight, targets, folds, 0, classes=classes, **settings
    )


SCALED = (X - X.mean(0)) / X.std(0), (Y - Y.mean()) / Y.std()
NUMBERS, LABELS = task_of(*SCALED), task_of(FLOWERS, SPECIES, np.arange(3))


@pytest.mark.long
def test_the_law_is_the_mixture_of_the_members_by_their_weights():
    centred = Y - Y.mean()  # positive targets have a mixture that is restricted
    reg = clone(REG).fit(X, centred)
    densities = []
    for name in reg.weights_:
        alone = clone(REG).fit(X, centred)
        alone.weights_ = {k: float(k == name) for k in reg.weights_}
        densities.append(alone.log_predictive_density(X[:9], centred[:9]))
    weights = np.log(list(reg.weights_.values()))
    expected = np.logaddexp.reduce(weights[:, None] + densities, axis=0)
    np.testing.assert_allclose(reg.log_predictive_density(X[:9], centred[:9]), expected)
    assert sum(reg.weights_.values()) == pytest.approx(1.0)
    assert "normal components" in repr(predictive(reg, X[:9]))


@pytest.mark.parametrize("kind", ["linear", "gaussian_process"])
def test_closed_forms_are_near_refits(kind):
    """Their scales are those of all rows, so that they promise a little more."""
    closed = score_member(MEMBERS[kind](), NUMBERS, by_folds=False).log_density
    folds = score_member(MEMBERS[kind](), NUMBERS, by_folds=True).log_density
    assert abs(closed.mean() - folds.mean()) < 0.2
    assert np.corrcoef(closed, folds)[0, 1] > 0.7


def member_scores(kind, weight):
    """Mean leave-one-out log density of a member in closed form, and by folds of distinct rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 10))
    y = x[:, 0] + rng.standard_normal(40)
    weights = torch.full((40,), weight, dtype=torch.float64)
    task = replace(task_of(x, (y - y.mean()) / y.std()), weight=weights)
    return [
        float(score_member(MEMBERS[kind](), task, by_folds=by_folds).log_density.mean())
        for by_folds in (False, True)
    ]


@pytest.mark.parametrize(
    "kind",
    ["linear", "gaussian_process", "trees", pytest.param("networks", marks=pytest.mark.long)],
)
def test_no_member_sees_a_twin_of_the_row_that_it_leaves_out(kind):
    """Folds leave out all of ten repetitions; closed forms exceed them no more than for one."""
    once, once_by_folds = member_scores(kind, 1.0)
    closed, folds = member_scores(kind, 10.0)
    assert closed - folds < once - once_by_folds + 0.1


@pytest.mark.parametrize(("kind", "sklearn_kind"), [
    ("trees", ExtraTreesRegressor), ("boosting", HistGradientBoostingRegressor),
])  # fmt: skip
def test_trees_as_arrays_predict_numbers_as_scikit_learn_does(kind, sklearn_kind, monkeypatch):
    fits = []
    original = sklearn_kind.fit
    monkeypatch.setattr(sklearn_kind, "fit", lambda s, *a: fits.append(s) or original(s, *a))
    fit = MEMBERS[kind]().fit(NUMBERS)
    new = NUMBERS.rows.x[:20] + 0.3
    expected = fits[-1].predict(new.numpy())
    np.testing.assert_allclose(fit.predictor.mean(new)[:, 0].numpy(), expected)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(("kind", "sklearn_kind"), [
    ("trees", ExtraTreesClassifier), ("boosting", HistGradientBoostingClassifier),
])  # fmt: skip
def test_trees_as_arrays_predict_labels_as_scikit_learn_does(
    kind, sklearn_kind, n_classes, monkeypatch
):
    fits = []
    original = sklearn_kind.fit
    monkeypatch.setattr(sklearn_kind, "fit", lambda s, *a: fits.append(s) or original(s, *a))
    task = task_of(FLOWERS, np.minimum(SPECIES, n_classes - 1), np.arange(n_classes))
    fit = MEMBERS[kind]().fit(task)
    scores = fit.predictor.mean(task.rows.x + 0.2)
    expected = fits[-1].predict_proba(task.rows.x.numpy() + 0.2)
    atol = 2.0 / StackDefaults().n_trees if kind == "trees" else 1e-12
    np.testing.assert_allclose(scores.softmax(1).numpy(), expected, atol=atol)


def test_many_columns_share_the_bins_of_boosting():
    for n_columns, bins in ((30, 255), (128, 64), (900, 32)):
        settings = Boosting().choose_settings(TableSize(60, n_columns), StackDefaults())
        assert settings["max_bins"] == bins


def test_leaves_hold_means_and_mean_squares():
    """Left-out rows of a forest are those of the trees that haven't seen them."""
    fit = MEMBERS["trees"]().fit(NUMBERS)
    distribution = fit.predictor.distribution(NUMBERS.rows.x)
    assert float(distribution.noise_variance.min()) >= fit.predictor.variance * (1.0 - 1e-9)
    residual = (distribution.mean() - NUMBERS.y).square().mean()
    without = (fit.leave_one_out.mean() - NUMBERS.y).square().mean()
    assert float(without) > 2.0 * float(residual)
    fraction = StackDefaults().leaf_variance_fraction
    assert fit.predictor.variance == pytest.approx(fraction * float(without), rel=1e-6)


def test_no_width_is_below_the_rounding_of_the_targets():
    y = np.round(3.0 * X[:, 2] * 10.0) / 10.0
    found = clone(REG).set_params(estimators=[("smooth", "gaussian_process")]).fit(X, y)
    _, std = found.predict(X, return_std=True)
    assert std.min() >= 0.1 / 12.0**0.5 * (1.0 - 1e-6)
    assert rounding_std(task_of(X, np.arange(120.0))) == pytest.approx(1.0 / 12.0**0.5)


class Fails(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        raise ArithmeticError("out of luck")


def test_members_of_anyone_are_pooled_and_one_that_fails_is_named():
    members = [
        ("ridge", make_pipeline(StandardScaler(), BayesianRidge())),
        ("process", GaussianProcessRegressor(alpha=0.5, normalize_y=True)),
        ("points", LinearRegression()),
        ("ours", BayesianLinearRegressor()),
        ("unlucky", Fails()),
    ]
    stack = PredictiveStackingRegressor(members, random_state=0)
    with pytest.warns(FitFailedWarning, match="'unlucky' failed .*: ArithmeticError: out of luck"):
        stack.fit(X, Y)
    assert list(stack.weights_) == ["ridge", "process", "points", "ours"]
    assert isinstance(stack.estimators_["points"], LinearRegression)
    assert "unlucky: failed (ArithmeticError: out of luck)" in stack.summary_
    with pytest.warns(FitFailedWarning), pytest.raises(ValueError, match=r"no member .* unlucky: "):
        clone(stack).set_params(estimators=[("unlucky", Fails())]).fit(X, Y)


def test_a_single_member_of_normals_is_that_member_and_folds_leave_its_rows_out():
    ridge = BayesianRidge()
    centred = Y - Y.mean()
    stack = PredictiveStackingRegressor([("ridge", ridge)], cv=KFold(4)).fit(X, centred)
    mean, std = ridge.fit(X, centred).predict(X, return_std=True)
    log_density = stack.log_predictive_density(X, centred)
    np.testing.assert_allclose(log_density, norm(mean, std).logpdf(centred))
    expected = []
    for train, test in KFold(4).split(X):
        mean, std = clone(ridge).fit(X[train], centred[train]).predict(X[test], return_std=True)
        expected.append(norm(mean, std).logpdf(centred[test]).sum())
    score, error = stack.leave_one_out_log_density_["ridge"]
    assert score == pytest.approx(sum(expected) / 120)
    assert 0.0 < error < 0.2
    assert stack.stack_log_density_ == (score, error)


def test_the_score_of_a_stack_is_that_of_the_mixture():
    first, others = (
        make_pipeline(make_column_transformer(("passthrough", columns)), BayesianRidge())
        for columns in (slice(0, 1), slice(1, None))
    )
    members = [("first", first), ("others", others)]
    stack = PredictiveStackingRegressor(members, cv=KFold(4)).fit(X, Y)
    density = np.empty(120)
    for train, test in KFold(4).split(X):
        parts = []
        for name, ridge in members:
            mean, std = clone(ridge).fit(X[train], Y[train]).predict(X[test], return_std=True)
            parts.append(stack.weights_[name] * norm(mean, std).pdf(Y[test]))
        density[test] = np.sum(parts, axis=0)
    assert all(stack.weights_.values())
    score, error = stack.stack_log_density_
    assert score == pytest.approx(np.log(density).mean(), abs=1e-3)
    assert error == pytest.approx(np.log(density).std(ddof=1) / 120**0.5, rel=1e-2)
    several = PredictiveStackingRegressor(members, cv=KFold(4)).fit(X, np.column_stack([Y, Y]))
    assert several.stack_log_density_["1"] == pytest.approx((score, error))


def test_labels_are_mixed_and_calibrated(clf):
    proba = clf.predict_proba(FLOWERS)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    assert clf.score(FLOWERS, SPECIES) > 0.9
    names = np.array(["setosa", "versicolor", "virginica"])[SPECIES]
    members = [("logit", LogisticRegression(max_iter=500)), ("trees", ExtraTreesClassifier(50))]
    theirs = PredictiveStackingClassifier(members, random_state=0).fit(FLOWERS, names)
    assert set(theirs.predict(FLOWERS)) == set(names)
    score, _ = theirs.leave_one_out_log_density_["logit"]
    assert -0.3 < score < 0.0


def test_a_class_that_a_fold_has_not_seen_is_hardly_possible():
    labels = np.array(["rare", *["common"] * 19])
    clf = PredictiveStackingClassifier([("boosted", "boosting")], random_state=0)
    assert clf.fit(FLOWERS[:20], labels).predict_proba(FLOWERS[:20])[:, 1].max() < 0.5
    is_odd = np.arange(len(SPECIES)) % 2 == 1
    # The first fold hasn't seen the first species, and numbers the others differently.
    left_out = [SPECIES == 0, (SPECIES > 0) & is_odd, (SPECIES > 0) & ~is_odd]
    folds = [(np.flatnonzero(~test), np.flatnonzero(test)) for test in left_out]
    clf = PredictiveStackingClassifier([("line", "linear")], cv=folds, random_state=0)
    assert clf.fit(FLOWERS, SPECIES).leave_one_out_log_density_["line"][0] < np.log(1e-4)


@pytest.mark.long
def test_two_processes_give_the_same_bits_inside_and_outside(reg):
    """Members at once, and a search over stacks."""
    two = clone(REG).set_params(n_jobs=2).fit(X, Y)
    np.testing.assert_array_equal(two.predict(X), reg.predict(X))
    grid = {"estimators": [[("a", "linear")], [("a", "linear"), ("b", "gaussian_process")]]}
    searches = [
        GridSearchCV(PredictiveStackingRegressor(random_state=0), grid, cv=2, n_jobs=n).fit(X, Y)
        for n in (None, 2)
    ]
    np.testing.assert_array_equal(*(s.cv_results_["mean_test_score"] for s in searches))


@pytest.mark.parametrize(("n_jobs", "max_seconds"), [(1, None), (2, None), (2, 1e3)])
def test_the_longest_fits_begin_first_in_parallel(n_jobs, max_seconds, monkeypatch, reg):
    """Unless time may run out; the probe of networks is one of them. Results don't depend on it."""
    begun = []

    def run_in_order(jobs, _n_jobs, **_hints):
        for job in jobs:
            begun.append(job)
            yield job()

    monkeypatch.setattr("skbayes_sym.stacking.fit.run_parallel", run_in_order)
    members = [*CHEAP, ("networks", "networks")]
    stack = clone(REG).set_params(estimators=members, n_jobs=n_jobs, max_seconds=max_seconds)
    monkeypatch.setattr(NetworkProbe, "fit", lambda _, task: MEMBERS["linear"]().fit(task))
    stack.fit(X, Y)
    names = [job.args[3]["member"] if job.func is fit_and_score else "probe" for job in begun]
    if n_jobs == 2 and max_seconds is None:
        # Trees are fitted by one thread at a time.
        assert names == ["smooth", "boosted", "probe", "trees", "line"]
    else:
        assert names == ["line", "trees", "boosted", "smooth", "probe"]
    assert list(stack.weights_) == [name for name, _ in CHEAP]
    np.testing.assert_array_equal(stack.predict(X), reg.predict(X))


@pytest.mark.long
def test_weights_are_repetitions_bit_for_bit():
    weight = np.arange(120) % 3
    one = clone(REG).fit(X, Y, sample_weight=weight)
    two = clone(REG).fit(np.repeat(X, weight, axis=0), np.repeat(Y, weight))
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    points = PredictiveStackingRegressor([("p", LinearRegression()), ("r", BayesianRidge())])
    assert points.fit(X, Y, sample_weight=weight).score(X, Y) > 0.3


@pytest.mark.long
def test_groups_stay_together_and_folds_that_repeat_rows_are_refused():
    groups = np.arange(120) // 6
    splits = list(GroupKFold(5).split(X, Y, groups))
    stack = clone(REG).set_params(cv=splits, estimators=CHEAP[:2]).fit(X, Y)
    assert stack.score(X, Y) > 0.3
    with pytest.raises(ValueError, match="row 0 is left out by 2 folds"):
        clone(stack).set_params(cv=[(np.r_[1:120], [0]), *splits]).fit(X, Y)
    few = PredefinedSplit(np.r_[np.full(111, -1), np.arange(9) % 3])
    for cv, n in ((few, 9), ([], 0), ([(np.arange(100), np.arange(100, 105))], 5)):
        with pytest.raises(ValueError, match=f"leaves out {n} distinct rows .* at least 10"):
            clone(stack).set_params(cv=cv).fit(X, Y)


@pytest.mark.long
@pytest.mark.parametrize("kind", [PredictiveStackingRegressor, BayesianMLPRegressor])
def test_a_gap_where_training_had_none_is_the_median(kind):
    few = {"n_modes": 1, "n_members": 1} if kind is BayesianMLPRegressor else {"estimators": CHEAP}
    model, rows = kind(**few, random_state=0).fit(X, Y), X[:3].copy()
    rows[1, :2] = np.nan
    filled = np.where(np.isnan(rows), np.median(X, axis=0), rows)
    np.testing.assert_array_equal(model.predict(rows), model.predict(filled))


def test_rows_that_only_convert_to_an_array_are_read():
    line, rows = [("line", "linear")], _NotAnArray(X)
    plain, other = (PredictiveStackingRegressor(line, random_state=0).fit(r, Y) for r in (X, rows))
    np.testing.assert_array_equal(other.predict(rows), plain.predict(X))


def test_a_member_far_behind_has_no_weight():
    """All rows agree, so that slopes say what beginning with less than a row costs a member."""
    behind = {"best": 0.0, "near": -1.0, "far": -7.0}
    members = {name: ScoredMember(None, gap + np.arange(8.0)) for name, gap in behind.items()}
    p = fit_weights(members, task_of(X[:8], Y[:8])).weights
    assert p["far"] == 0.0
    ratio, mixed = np.exp(-1.0), p["best"] + np.exp(-1.0) * p["near"]
    total = 8.0 + 1.0 + ratio + np.exp(-7.0)
    assert 8.0 * ratio / mixed + ratio / p["near"] == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize(("gain", "is_fitted"), [(0.03, True), (0.01, False), (-0.03, False)])
def test_networks_are_fitted_if_the_stack_gains_two_standard_errors(gain, is_fitted):
    probe, networks = Networks().plan("n", TableSize(100, 10), StackDefaults())
    actions = {
        "fit_other": lambda _: ScoredMember(None, np.zeros(100)),
        "probe_networks": lambda _, member, width: ProbeResult(np.zeros(width), gain, 0.01),
        "fit_networks": lambda _, member, probe: (member, probe),
    }
    execution = execute([PlannedStage("other", "fit_other"), probe, networks], actions)
    assert (execution.results.get("n") == ("n", probe.name)) is is_fitted
    assert (execution.skipped.get("n") == networks.rules[0].reason) is not is_fitted


@pytest.mark.parametrize("kind", [PredictiveStackingRegressor, PredictiveStackingClassifier])
@pytest.mark.parametrize("score", [-9.0, 9.0])
def test_a_probe_decides_about_networks(score, kind, monkeypatch):
    """The held-out scores of the probe are those of the networks."""
    rows = (X, Y) if kind is PredictiveStackingRegressor else (FLOWERS, SPECIES)

    def fit(_, task):
        density = torch.full((len(task),), score, dtype=torch.float64)
        return MemberFit(None, density, is_calibrated=True)

    monkeypatch.setattr(NetworkProbe, "fit", fit)
    monkeypatch.setattr(Networks, "_fit_model", lambda _, task, **__: _Narrow(task))
    members = [("trees", "trees"), ("networks", "networks")]
    stack = kind(members, random_state=0).fit(*rows)
    assert ("networks" in stack.weights_) is (score > 0.0)
    is_skipped = re.search(r"^networks .*: skipped because the stack", stack.summary_, re.M)
    assert bool(is_skipped) is (score < 0.0)
    if score > 0.0 and kind is PredictiveStackingClassifier:
        assert stack.leave_one_out_log_density_["networks"][1] == pytest.approx(0.0, abs=1e-9)


class _Narrow:
    """Fitted networks whose leave-one-out densities promise too much."""

    def __init__(self, task):
        self.leave_one_out_log_density = np.full(len(task), 20.0)

    def forget_training_range(self):
        """Do nothing: these networks don't predict."""


def test_leave_one_out_densities_are_lowered_by_their_mean_excess():
    """Where the probe held rows out, its densities count."""
    held_out = np.array([1.0, np.nan, -3.0, np.nan])
    corrected = correct_optimism(np.array([2.0, 5.0, 1.0, 0.0]), held_out, np.ones(4))
    np.testing.assert_allclose(corrected, [1.0, 2.5, -3.0, -2.5])
    pessimistic = correct_optimism(np.zeros(4), np.array([1.0, np.nan, 1.0, np.nan]), np.ones(4))
    np.testing.assert_allclose(pessimistic, [1.0, 0.0, 1.0, 0.0])


def test_a_copy_of_a_member_gains_nothing_and_noise_loses():
    """The weights are optimised on other rows than those that compare them."""
    rng = np.random.default_rng(0)
    task = task_of(X, Y)
    density = rng.normal(size=len(task))
    members = {"a": ScoredMember(None, density)}
    gain, error = marginal_gain(members, density, task)
    assert gain == pytest.approx(0.0, abs=1e-12)
    assert error == pytest.approx(0.0, abs=1e-12)
    gain, error = marginal_gain(members, density + 1.0 + 0.1 * rng.normal(size=len(task)), task)
    assert gain == pytest.approx(1.0, abs=0.1)
    assert 0.0 < error < 0.1
    gain, _ = marginal_gain(members, density - 0.3 + rng.normal(size=len(task)), task)
    assert gain < 0.1
    assert marginal_gain(members, np.full(len(task), np.nan), task) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "n_classes", "width"),
    [(100, 10, 0, 20), (1000, 8, 0, 20), (10_000, 10, 0, 8), (1000, 400, 0, 0), (240, 8, 2, 8)],
)
def test_probes_have_a_weight_per_row_and_cost_no_more_than_other_members(
    n_rows, n_columns, n_classes, width
):
    size = TableSize(n_rows, n_columns, n_classes=n_classes)
    assert choose_probe_width(size, StackDefaults()) == width
    stages = Networks().plan("n", size, StackDefaults())
    assert len(stages) == (2 if width else 1)


@pytest.mark.long
def test_networks_find_a_ridge_and_leave_noise_alone():
    """A function of one direction, which neither trees nor kernels of all columns find."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((100, 8))
    y = np.tanh(2.0 * rows @ np.full(8, 0.35)) + 0.05 * rng.standard_normal(100)
    stack = PredictiveStackingRegressor(random_state=0).fit(rows, y)
    assert stack.weights_["networks"] > 0.5
    stack.fit(rows, rng.standard_normal(100))
    assert "networks" not in stack.weights_


def test_boosting_that_divides_no_leaf_makes_one_round():
    """Nineteen rows, where a leaf has ten: the mean, as of all rounds."""
    task = task_of(SCALED[0][:19], SCALED[1][:19])
    settings = Boosting().choose_settings(TableSize(19, 10, total_weight=19.0), StackDefaults())
    fit = Boosting(**settings).fit(task)
    assert fit.predictor.estimator.n_iter_ == 1
    mean = np.array([SCALED[1][:19][train].mean() for train, test in task.folds for _ in test])
    where = np.concatenate([test for _, test in task.folds])
    np.testing.assert_allclose(fit.leave_one_out.loc[0, where, 0], mean)
    # Rows count, however small their weight is.
    light = Boosting().choose_settings(TableSize(120, 10, total_weight=1.2), StackDefaults())
    assert light["max_rounds"] == StackDefaults().max_rounds


def test_no_member_is_begun_when_time_is_up():
    stack = clone(REG).set_params(max_seconds=1e-9)
    with pytest.warns(ConvergenceWarning, match="left no time for trees, boosted, smooth"):
        stack.fit(X, Y)
    assert list(stack.weights_) == ["line"]
    assert stack.stop_reason_ == "max_seconds"
    assert re.search(r"^trees .*: not reached before", stack.summary_, re.M)


def test_a_warm_start_fits_members_that_are_new_or_changed():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = 3.0 * x[:, 0] + 0.1 * rng.normal(size=40)

    def fitted_names(reg):
        known = {id(part) for part in vars(reg).get("_predictors_", {}).values()}
        reg.fit(x, y)
        return {name for name, part in reg._predictors_.items() if id(part) not in known}

    ridge = Ridge(alpha=1.0)
    line = ("line", ridge)
    far = ("far", Ridge(alpha=1e3))
    reg = PredictiveStackingRegressor([line, far], random_state=0, warm_start=True)
    assert fitted_names(reg) == {"line", "far"}
    assert reg.weights_["far"] < StackDefaults().min_refit_weight
    assert fitted_names(reg) == {"line"}
    # A member that stays out, and one more.
    reg.set_params(estimators=[line, far, ("more", Ridge(alpha=2.0))])
    assert fitted_names(reg) == {"line", "far", "more"} - {"far"}
    # The name of one that stayed out, with a model of other parameters.
    reg.set_params(estimators=[line, ("far", Ridge(alpha=2e3))])
    assert fitted_names(reg) == {"line", "far"}
    # The name of one that counted, with another model; it's compared by parameters.
    reg.set_params(estimators=[("line", Ridge(alpha=1.0)), ("far", "linear")])
    assert fitted_names(reg) == {"line", "far"}
    # One that was removed is gone.
    reg.set_params(estimators=[line])
    assert fitted_names(reg) == {"line"}
    assert set(reg.weights_) == {"line"}


def test_networks_end_with_the_block_in_which_the_deadline_passes():
    """Networks are fitted by another estimator, which stops on any version of scikit-learn."""
    late = replace(NUMBERS, deadline=0.0)
    pool = fit_estimator(BayesianMLPRegressor(2, n_modes=2), late)
    assert pool.stop_reason_ == "callback"
    with pytest.raises(TimeoutError, match="max_seconds"):
        NetworkProbe(3).fit(late)


@pytest.mark.long
def test_a_warm_start_fits_again_what_counted_until_there_are_half_as_many_rows_again():
    members = [("line", "linear"), ("trees", "trees"), ("smooth", "gaussian_process")]
    reg = PredictiveStackingRegressor(members, random_state=0, warm_start=True)
    x = np.random.default_rng(0).uniform(-3.0, 3.0, (46, 2))
    y = np.sin(2.0 * x[:, 0]) + x[:, 1] ** 2
    first = reg.fit(x[:30], y[:30]).weights_
    counted = {name for name, weight in first.items() if weight > StackDefaults().min_refit_weight}
    assert set(first) == {"line", "trees", "smooth"} > counted
    assert set(reg.fit(x[:31], y[:31]).weights_) == counted
    assert set(reg.fit(x[:44], y[:44]).weights_) == counted
    assert set(reg.fit(x[:45], y[:45]).weights_) == set(first)
    cold = clone(reg).set_params(warm_start=False)
    assert set(cold.fit(x[:30], y[:30]).fit(x[:31], y[:31]).weights_) == set(first)


@pytest.mark.long
def test_networks_of_a_warm_start_go_on_from_their_modes():
    """The same rows: evidences are those of the first fit at least, and no width is asked."""
    reg = PredictiveStackingRegressor([("n", "networks")], random_state=0, warm_start=True)
    x = np.random.default_rng(1).uniform(-2.0, 2.0, (40, 2))
    y = np.sin(2.0 * x[:, 0]) + 0.1 * np.random.default_rng(2).normal(size=40)
    first = reg.fit(x, y).estimators_["n"].steps[-1][1].regressor_
    evidence, width = first.log_evidence_modes_.max(), first.network_.hidden_layer_sizes
    reg.fit(x, y)
    again = reg.estimators_["n"].steps[-1][1].regressor_
    assert first.log_evidence_modes_.max() == evidence
    assert again.network_.hidden_layer_sizes == width
    assert "widths_" in vars(first)
    assert "widths_" not in vars(again)
    assert again.log_evidence_modes_.max() > evidence - 0.5
    wider = np.column_stack([x, x[:, 0] ** 2])
    saved = pickle.loads(pickle.dumps(reg)).fit(x, y).predict(x)
    np.testing.assert_array_equal(saved, reg.fit(x, y).predict(x))
    other = clone(reg).fit(wider, y).predict(wider)
    np.testing.assert_array_equal(reg.fit(wider, y).predict(wider), other)


def test_probes_predict_rows_that_they_have_not_seen():
    """Targets are noise, which twice as many weights as rows could fit."""
    rng = np.random.default_rng(0)
    task = task_of(rng.standard_normal((60, 12)), rng.standard_normal(60))
    probe = score_member(NetworkProbe(8), task, by_folds=False)
    assert probe.log_density.mean() < norm.logpdf(task.y.numpy()).mean() + 0.1
    flowers = score_member(NetworkProbe(3), LABELS, by_folds=False)
    np.testing.assert_array_equal(
        np.flatnonzero(~np.isnan(flowers.log_density)), LABELS.folds[0][1]
    )


@pytest.mark.parametrize(("large_table_rows", "n_modes"), [(29, 2), (30, 10)])
def test_large_tables_have_few_modes_of_networks(large_table_rows, n_modes, monkeypatch):
    rng = np.random.default_rng(0)
    defaults = StackDefaults(large_table_rows=large_table_rows)
    task = task_of(rng.standard_normal((30, 2)), rng.standard_normal(30), defaults=defaults)
    module = "skbayes_sym.stacking.members.networks.fit_estimator"
    monkeypatch.setattr(module, lambda model, _: model)
    assert Networks()._fit_model(task).n_modes == n_modes


@pytest.mark.parametrize("n_rows", [60, 120])
def test_probes_measure_the_optimism_of_leave_one_out(n_rows, monkeypatch):
    """On noise the probe finds nothing; a network that is sure of itself is corrected."""
    rng = np.random.default_rng(1)
    task = task_of(rng.standard_normal((n_rows, 4)), rng.standard_normal(n_rows))
    probe = score_member(NetworkProbe(8), task, by_folds=False)
    result = ProbeResult(probe.log_density, approximate=probe.approximate)
    assert -0.2 < result.excess(task) < 1.0
    monkeypatch.setattr(Networks, "_fit_model", lambda _, task, **__: _Narrow(task))
    for excess, score in ((0.25, 19.75), (-0.25, 20.0)):
        monkeypatch.setattr(ProbeResult, "excess", lambda *_, excess=excess: excess)
        networks = score_member(Networks(probe=result), task, by_folds=False)
        np.testing.assert_allclose(networks.log_density, score)


@pytest.mark.long
def test_probes_see_a_smooth_function_of_few_rows():
    """Twenty units find a ridge of 150 rows, and predict rows of folds that refits haven't seen."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 4))
    y = np.tanh(2.0 * x @ [0.8, -0.6, 0.5, 0.3]) + 0.05 * rng.standard_normal(300)
    task = task_of(x[:150], y[:150])
    members = {"trees": score_member(MEMBERS["trees"](), task, by_folds=False)}
    probe = score_member(NetworkProbe(20), task, by_folds=False)
    gain, error = marginal_gain(members, probe.log_density, task)
    assert gain > 2.0 * error > 0.0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["linear", "trees"])
def test_the_shape_of_the_noise_leaves_rows_out_too(kind):
    """Within three standard errors of new rows; linear models promised .08 nats per row more."""
    excess = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((540, 3))
        y = x[:, 0] + np.sin(2.0 * x[:, 1]) + 0.6 * rng.standard_normal(540)
        reg = PredictiveStackingRegressor([(kind, kind)], random_state=0).fit(x[:40], y[:40])
        promised, _ = reg.leave_one_out_log_density_[kind]
        excess.append(promised - reg.log_predictive_density(x[40:], y[40:]).mean())
    assert np.mean(excess) < 2.0 * np.std(excess) / 12.0**0.5
