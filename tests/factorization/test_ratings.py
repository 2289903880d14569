"""Offsets, learned priors, labels, ordinal entries, side information and new rows."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from cases import LaplaceNoise
from scipy.stats import norm
from sklearn.base import clone

from skbayes_sym import SymVIMatrixFactorization, invariance_gap, load, predictive, save
from skbayes_sym.factorization.solvers import VI
from skbayes_sym.model_selection import cross_validate_entries
from skbayes_sym.models import Heteroscedastic, NegativeBinomial, StudentT, TargetLikelihood
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units

MODEL = SymVIMatrixFactorization(2, random_state=0, tol=3e-3)


def ratings(n=60, m=40, seed=0, noise=0.4, seen=0.4, offsets=1.0):
    """A matrix with holes, offsets that matter, and its signal."""
    rng = np.random.default_rng(seed)
    signal = 3.0 + 0.7 * rng.normal(size=(n, 2)) @ rng.normal(size=(2, m))
    signal += offsets * (rng.normal(size=(n, 1)) + 0.8 * rng.normal(size=m))
    X = signal + noise * rng.normal(size=(n, m))
    return np.where(rng.random(X.shape) < seen, X, np.nan), signal


X, SIGNAL = ratings()
HOLES = np.isnan(X)
ROWS, COLUMNS = np.nonzero(~HOLES)


@pytest.fixture(scope="module")
def fitted():
    return clone(MODEL).fit(X)


def error(model, where=HOLES):
    mean = model.predict_entries(*np.nonzero(where))
    return np.sqrt(np.mean((mean - SIGNAL[where]) ** 2))


@pytest.mark.long
def test_offsets_and_learned_scales_predict_better(fitted):
    found = {
        name: error(clone(MODEL).set_params(**settings).fit(X))
        for name, settings in {
            "none": {"offsets": False, "prior": 1.0},
            "offsets": {"prior": 1.0},
            "one side": {"offsets": "rows", "prior": 1.0},
            "ard": {"prior": "ard"},
        }.items()
    }
    assert error(fitted) < 0.9 * found["none"]
    assert found["ard"] < 0.9 * found["none"]
    assert found["offsets"] < found["one side"] < found["none"]


def test_offsets_are_recovered():
    """Where there is nothing else; rows and columns up to a constant that either may hold."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=80), rng.normal(size=50)
    noisy = a[:, None] + b + 0.3 * rng.normal(size=(80, 50))
    model = clone(MODEL).set_params(n_components=1).fit(noisy)
    for given, got in ((a, model.row_offsets_), (b, model.column_offsets_)):
        assert np.corrcoef(given, got)[0, 1] > 0.99
        slope = np.polyfit(given - given.mean(), got, 1)[0]
        assert slope == pytest.approx(1.0, abs=0.05)
    assert model.noise_std_ == pytest.approx(0.3, abs=0.02)


@pytest.mark.long
def test_the_group_is_the_priors():
    for prior, kind in (("learn", Orthogonal), (0.8, Orthogonal), ("ard", Units)):
        model = clone(MODEL).set_params(prior=prior).fit(X)
        assert isinstance(model.symmetry_, kind)
        gap = invariance_gap(model)
        slack = 4.0 * np.hypot(gap.standard_error, model.elbo_std_error_) + 0.2
        assert gap.value == pytest.approx(model.symmetry_gap_, abs=slack)
        plain = clone(model).set_params(solver=VI(symmetry=None)).fit(X)
        assert isinstance(plain.symmetry_, kind)
        assert model.elbo_ > plain.elbo_ + 0.5
    assert model.symmetry_gap_ <= np.log(8.0) + 1e-9  # 2! 2^2 signed permutations
    with pytest.raises(ValueError, match=r"'orthogonal' is no symmetry of prior='ard'"):
        clone(MODEL).set_params(prior="ard", solver=VI(symmetry="orthogonal")).fit(X)


def test_many_components_are_only_flipped_where_scales_differ():
    model = clone(MODEL).set_params(n_components=16, prior="ard", max_iter=3, tol=None)
    assert not model.fit(X).symmetry_.permutes


def test_learned_scales_say_how_large_factors_are():
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(200, 2)) * [2.0, 0.5], rng.normal(size=(150, 2))
    strong = u @ v.T + 0.1 * rng.normal(size=(200, 150))
    model = clone(MODEL).fit(strong)
    product = model.prior_scale_.prod(axis=0) * model.scale_ / 2**0.5
    np.testing.assert_allclose(np.sort(product), [0.5, 2.0], rtol=0.15)


def listed(**more):
    names = np.array([f"u{i:02d}" for i in range(60)])
    return pd.DataFrame(
        {"value": X[ROWS, COLUMNS], "row": names[ROWS], "column": 100 + COLUMNS, **more}
    )


@pytest.mark.long
def test_lists_of_entries_are_the_matrix(fitted):
    frame = listed()
    shuffled = frame.sample(frac=1.0, random_state=0)
    as_tuple = (frame["row"], frame["column"], frame["value"])
    for given in (frame, shuffled, as_tuple):
        model = clone(MODEL).fit(given)
        assert np.array_equal(model.components_, fitted.components_)
        assert model.elbo_ == fitted.elbo_
        assert list(model.row_labels_[:2]) == ["u00", "u01"]
        mean, std = model.predict_entries(["u03", "u59"], [105, 139], return_std=True)
        expected = fitted.predict_entries([3, 59], [5, 39], return_std=True)
        np.testing.assert_array_equal([mean, std], expected)
    np.testing.assert_array_equal(model.transform(X), fitted.transform(X))
    with pytest.raises(ValueError, match=r"rows are int64 such as 3, but labels in fit were <U3"):
        model.predict_entries([3], [105])


@pytest.mark.long
def test_frames_answer_by_label(fitted):
    frame = pd.DataFrame(
        X, index=[f"u{i}" for i in range(60)], columns=[f"m{j}" for j in range(40)]
    )
    model = clone(MODEL).fit(frame)
    np.testing.assert_array_equal(
        model.predict_entries(["u3"], ["m7"]), fitted.predict_entries([3], [7])
    )
    model = clone(MODEL).fit(pd.DataFrame(X))  # only numbered: positions
    assert not hasattr(model, "row_labels_")


@pytest.mark.long
@pytest.mark.kept("gaussian", "student_t")
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "ordinal"])
def test_weights_are_repetitions(likelihood):
    """The same entries listed twice, or counted twice."""
    values = np.round(X[ROWS, COLUMNS])
    weights = np.where(np.arange(len(values)) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(len(values)), weights.astype(int))
    model = clone(MODEL).set_params(likelihood=likelihood, max_iter=30, tol=None)
    weighted = clone(model).fit((ROWS, COLUMNS, values, weights))
    repeated = clone(model).fit((ROWS[twice], COLUMNS[twice], values[twice]))
    np.testing.assert_allclose(weighted.reconstruct(), repeated.reconstruct(), atol=1e-6)
    assert weighted.elbo_ == pytest.approx(
        repeated.elbo_, abs=4.0 * weighted.elbo_std_error_ + 1e-4
    )


CSV = pd.DataFrame(
    {"timestamp": np.arange(len(ROWS)), "rating": X[ROWS, COLUMNS], "movieId": COLUMNS + 100,
     "userId": ROWS + 1, "movie_title": "a film"}
)  # fmt: skip
OTHER_NAMES = CSV.set_axis(["t", "mark", "where", "who", "title"], axis=1)


def test_a_frame_is_a_list_as_it_was_read(fitted):
    """Whatever the order of its columns; others are left alone; or by the names that are given."""
    for frame, columns in ((CSV, "auto"), (OTHER_NAMES, ("who", "where", "mark"))):
        model = clone(MODEL).set_params(columns=columns).fit(frame)
        np.testing.assert_array_equal(model.components_, fitted.components_)
        some = frame.iloc[:20]
        expected = fitted.predict_entries(ROWS[:20], COLUMNS[:20], return_std=True)
        np.testing.assert_array_equal(model.predict(some, return_std=True), expected)
        unvalued = some.drop(columns=[some.columns[1]])
        np.testing.assert_array_equal(model.predict_entries(unvalued), expected[0])
        assert not hasattr(fitted, "predict")  # it would have to be of rows
        density = predictive(fitted, (ROWS[:20], COLUMNS[:20])).log_prob(X[ROWS, COLUMNS][:20])
        assert model.score(some) == pytest.approx(density.mean())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([0], [1]), "2 parts"),
        (([0, 1], [1], [2.0]), "one length"),
        (([0], [1], ["a"]), "values of a list of .* must be numbers.*pandas.to_numeric.*words"),
        (([0], [1], [2.0], [-1.0]), "weights must be finite and at least 0"),
        (([0, 0], [1, 2], [2.0, np.inf]), "values contains infinity, the first at position 1"),
        (([[0]], [1], [2.0]), "must be 1D"),
        (([], [], []), "at least one entry"),
        ((["a", None, "b"], [1, 1, 1], [2.0, 3.0, 3.0]), "rows is missing in 1 .*position 1"),
        (([1, 1], [2.0, np.nan], [2.0, 3.0]), "columns is missing in 1 entries"),
        (OTHER_NAMES, r"X has columns \['t', 'mark'.*columns=\('where', 'who', 'mark'\)"),
        (OTHER_NAMES[["who", "where", "mark"]], "name its rows, columns and values"),
        (CSV.assign(item_id=1), r"\['movieId', 'item_id'\] of X may all be the columns"),
        (sp.coo_array(([5.0, 5.0], ([1, 1], [2, 2])), shape=(4, 4)), "X stores 1 entries more"),
    ],
)  # fmt: skip
def test_bad_lists_of_entries(given, message):
    with pytest.raises(ValueError, match=message):
        clone(MODEL).fit(given)


def test_columns_that_are_not_there_and_entries_listed_again():
    with pytest.raises(ValueError, match=r"columns=\('who', .* lists \['who'\], but X has"):
        clone(MODEL).set_params(columns=("who", "movieId", "rating")).fit(CSV)
    again = pd.concat([CSV, CSV[:3].assign(rating=9.0), CSV[5:9]])
    with pytest.warns(UserWarning, match=r"3 entries are listed again.*keep='last'"):
        model = clone(MODEL).set_params(max_iter=1, tol=None).fit(again)
    assert model.n_observed_ == len(CSV) + 7
    elsewhere = again.assign(hour=np.arange(len(again)))
    model.set_params(context="hour").fit(elsewhere)  # no warning
    with pytest.warns(UserWarning, match=r"1 entries are .*columns, \*context\]"):
        model.fit(pd.concat([elsewhere, elsewhere[:1].assign(rating=8.0)]))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_values_of_entries_in_another_order_are_warned_about():
    distribution = predictive(clone(MODEL).set_params(max_iter=1).fit(CSV), CSV)
    with pytest.warns(UserWarning, match="same row labels in different orders"):
        distribution.log_prob(CSV["rating"][::-1])
    with pytest.warns(UserWarning, match="same row labels in different orders"):
        distribution[:3].log_prob(CSV["rating"][:3][::-1])


def test_ordinal_labels_that_are_none():
    with pytest.raises(ValueError, match="has 500, which lies 495 from others"):
        clone(MODEL).set_params(likelihood="ordinal").fit(([0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 1],
                                                           [1, 2, 3, 4, 5, 500]))  # fmt: skip
    with pytest.raises(ValueError, match=r"at most 100 labels, got \d+"):
        clone(MODEL).set_params(likelihood="ordinal").fit(X)
    ordinal = clone(MODEL).set_params(likelihood="ordinal", max_iter=1, tol=None)
    for labels in ([1.0, -1.0, 1.0, -1.0], [1.0, -1.0, 0.3, -0.3]):
        huge = 1.7e308 * np.array(labels)  # distances, or twenty of them, have no number
        assert ordinal.fit(([0, 0, 1, 1], [0, 1, 0, 1], huge)).n_observed_ == 4


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # few draws
@pytest.mark.parametrize("settings", [{}, {"solver": "gibbs", "max_iter": 60}])
def test_users_and_items_that_nobody_knows_have_wider_intervals(settings):
    """About the error that is made at rows that were left out as a whole."""
    rows, columns, noise = ROWS, COLUMNS, 0.4
    kept = (rows >= 8) & (columns >= 5)
    model = clone(MODEL).set_params(**settings)
    model.fit((rows[kept], columns[kept], X[rows, columns][kept]))
    _, known = model.predict_entries([20, 21], [7, 8], return_std=True)
    _, std = model.predict_entries([0, 20, 3], [7, 2, 2], return_std=True)
    assert (std > 1.5 * known.max()).all()
    i, j = np.nonzero(np.ones((8, 35)))
    off = model.predict_entries(i, j + 5) - SIGNAL[i, j + 5]
    _, std = model.predict_entries(i, j + 5, return_std=True)
    assert 0.6 < np.sqrt(np.mean(off**2) / np.mean(std**2 - noise**2)) < 1.6
    draws = predictive(model, ([0, 0, 1], [7, 7, 7])).functions(4000).T
    np.testing.assert_array_equal(draws[:, 0], draws[:, 1])
    assert abs(np.corrcoef(draws[:, 1:].T)[0, 1]) < 0.5  # two unknown users are two


def test_what_is_recommended_is_the_best_that_is_left(fitted):
    """Against all entries, sorted; without what was seen; by label; for new and unknown rows."""
    found = fitted.recommend([3, 7], 4)
    whole = fitted.reconstruct() * np.where(HOLES, 1.0, np.nan)
    for row, columns, values in zip([3, 7], *found, strict=True):
        best = np.argsort(-np.nan_to_num(whole[row], nan=-9.0))[:4]
        np.testing.assert_array_equal(columns, best)
        np.testing.assert_allclose(values, fitted.predict_entries([row] * 4, best))
    everything = fitted.recommend([3], 40, exclude_seen=False)
    assert sorted(everything.columns[0]) == list(range(40))
    left = fitted.recommend(n=40)
    assert left.columns.shape == (60, 40)
    np.testing.assert_array_equal(left.lengths, HOLES.sum(axis=1))
    chance = fitted.recommend([3, 7], 40, by="probability_best", exclude_seen=False, n_draws=4000,
                              random_state=0)  # fmt: skip
    np.testing.assert_allclose(chance.values.sum(axis=1), 1.0)
    draws = predictive(fitted, ([3] * 40, range(40))).functions(4000, random_state=1).T
    expected = (np.bincount(draws.argmax(axis=1), minlength=40) / 4000)[chance.columns[0]]
    p = 0.5 * (chance.values[0] + expected)
    assert (np.abs(chance.values[0] - expected) <= 5.0 * np.sqrt(2.0 * p * (1.0 - p) / 4000)).all()
    firsts = [fitted.recommend([3], 1, by="thompson", random_state=i).columns[0, 0]
              for i in range(20)]  # fmt: skip
    assert len(set(firsts)) > 1
    named = clone(MODEL).fit(CSV).with_new_rows(([9999, 9999], [100, 101], [5, 1]))
    found = named.recommend([4, 9999, 12345], 5)
    assert not set(found.columns[0]) & set(CSV.movieId[CSV.userId == 4])
    assert not set(found.columns[1]) & {100, 101}
    average = named.predict_entries([12345] * 40, 100 + np.arange(40))
    assert found.columns[2, 0] == 100 + average.argmax()
    with pytest.raises(ValueError, match="by must be 'mean', 'probability_best' or"):
        fitted.recommend([3], by="luck")


def test_similar_columns_have_what_rows_like_in_common():
    rng = np.random.default_rng(0)
    v = rng.normal(size=(20, 2))
    v[1] = 1.5 * v[0]
    signal = rng.normal(size=(80, 2)) @ v.T
    table = signal + 0.2 * rng.normal(size=(80, 20))
    model = clone(MODEL).set_params(standardize="center").fit(table)
    columns, mean, interval = model.similar_columns(0, 5, random_state=0)
    assert columns[0] == 1
    truth = np.corrcoef(signal.T)[0, columns]
    np.testing.assert_allclose(mean, truth, atol=0.15)
    assert (interval[:, 0] < mean).all()
    assert (mean < interval[:, 1]).all()
    # One draw is its own interval: nine tenths of such draws lie inside. The mean width of five
    # intervals from 200 draws is known to about 5 %.
    draws = np.empty((100, 20))
    for seed, draw in enumerate(draws):
        order, value, _ = model.similar_columns(0, 19, n_draws=1, random_state=seed)
        draw[order] = value
    ends = np.quantile(draws[:, columns], [0.05, 0.95], axis=0)
    width = np.diff(interval, axis=1).mean() / np.diff(ends, axis=0).mean()
    assert 0.75 < width < 1.35


@pytest.mark.long
@pytest.mark.kept("student_t", "ordinal")
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson", "ordinal"])
def test_the_law_of_entries_is_that_of_its_draws(likelihood):
    """Moments, intervals, cdf, CRPS and parts of the variance, in the units of the matrix."""
    rows, columns, values = ROWS[:300], COLUMNS[:300], X[ROWS, COLUMNS][:300]
    if likelihood in ("poisson", "ordinal"):
        values = np.clip(np.round(values), 1.0, 5.0)
    model = clone(MODEL).set_params(likelihood=likelihood, max_iter=5, tol=None)
    model.fit((rows, columns, values))
    row_prior, y = predictive(model, (rows[:4], columns[:4])), values[:4]
    draws = row_prior.sample(20_000, random_state=0)
    np.testing.assert_allclose(
        row_prior.mean(), draws.mean(1), atol=5.0 * row_prior.std().max() / 20_000**0.5
    )
    np.testing.assert_allclose(row_prior.std(), draws.std(1), rtol=0.05)
    np.testing.assert_allclose(row_prior.cdf(y), (draws <= y[:, None]).mean(1), atol=0.02)
    inside = (row_prior.interval(0.8).T[0] <= draws.T) & (row_prior.interval(0.8).T[1] >= draws.T)
    assert (inside.mean(0) > 0.78).all()
    assert likelihood in ("poisson", "ordinal") or (inside.mean(0) < 0.82).all()
    apart = np.abs(draws[:, ::2] - draws[:, 1::2]).mean(1)
    energy = np.abs(draws - y[:, None]).mean(1) - 0.5 * apart
    np.testing.assert_allclose(row_prior.crps(y), energy, atol=0.03 * row_prior.std().max())
    parts = row_prior.uncertainty()
    np.testing.assert_allclose(parts.total, row_prior.std() ** 2)
    np.testing.assert_allclose(parts.epistemic, row_prior.functions(4000).var(1), rtol=0.2)
    weights, loc, scale = row_prior.components()
    np.testing.assert_allclose(weights @ loc, row_prior.mean())
    np.testing.assert_allclose(
        weights @ (scale**2 + loc**2) - row_prior.mean() ** 2, row_prior.var()
    )
    assert repr(row_prior).endswith("distribution of 4 entries>")


def test_questions_that_name_no_entry(fitted):
    for rows in (None, X, pd.DataFrame(X)):
        with pytest.raises(ValueError, match="give rows and columns, or a list of entries"):
            fitted.predict_entries(rows, None)


def test_new_rows_are_known_as_well_as_their_entries_allow(fitted):
    """Fewer entries, wider; and 90 % intervals of unseen entries hold 90 %."""
    new, signal = X[:30], SIGNAL[:30]
    model = clone(MODEL).fit(X[30:])
    hidden = np.isnan(new)
    i, j = np.nonzero(hidden)
    nothing = np.full((1, 40), np.nan)
    wider = model.with_new_rows(np.vstack([new, nothing]))
    mean, std = wider.predict_entries(30 + i, j, return_std=True)
    off = mean - signal[hidden]
    assert np.sqrt(np.mean(off**2)) < 0.5 * signal[hidden].std()
    inner = np.sqrt(std**2 - model.noise_std_**2)
    assert 0.8 < np.mean(np.abs(off) < 1.645 * inner) < 0.97
    _, widest = wider.predict_entries([60] * 40, range(40), return_std=True)
    _, narrow = wider.predict_entries([30] * 40, range(40), return_std=True)
    assert (widest > narrow).all()
    factors, spread = model.transform(np.vstack([new[:1], nothing]), return_std=True)
    assert (spread[0] < spread[1]).all()
    assert factors.shape == spread.shape == (2, 2)
    np.testing.assert_array_equal(  # what is there stays
        wider.predict_entries(range(30), range(30)), model.predict_entries(range(30), range(30))
    )
    assert len(model.posterior_.rows.mean) == 30


def test_new_columns_are_predicted_from_the_entries_they_have():
    """As lists by number and by label, whose unknown rows are told of."""
    model, new = clone(MODEL).fit(X[:, 5:]), X[:, :5]
    i, j = np.nonzero(~np.isnan(new))
    hidden = np.nonzero(np.isnan(new))
    wider = model.with_new_columns((i, j, new[i, j]))
    mean, std = wider.predict_entries(hidden[0], 35 + hidden[1], return_std=True)
    off = mean - SIGNAL[:, :5][hidden]
    assert np.sqrt(np.mean(off**2)) < 0.6 * SIGNAL[:, :5].std()
    assert np.mean(np.abs(off) < 1.645 * std) > 0.9
    rows, columns = np.nonzero(~np.isnan(X[:, 5:]))
    names = np.array([f"u{i:02d}" for i in range(60)])
    listed = clone(model).fit((names[rows], 5 + columns, X[rows, 5 + columns]))
    more = (np.append(names[i], "nobody"), np.append(j, 0), np.append(new[i, j], 3.0))
    with pytest.warns(UserWarning, match="1 rows weren't in the training data"):
        listed = listed.with_new_columns(more)
    again = listed.predict_entries(names[hidden[0]], hidden[1], return_std=True)
    np.testing.assert_allclose([mean, std], again)
    with pytest.raises(
        ValueError, match=r"labels of new columns must differ from the known labels.*\[3\]"
    ):
        listed.with_new_columns((["u03"], [3], [1.0]))


@pytest.mark.kept("0.9")
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_of_new_rows_hold_what_they_say(coverage):
    """New observations of 100 rows that weren't there, from a third of their entries."""
    whole, signal = ratings(n=260, m=60, seed=3, seen=0.35)
    model = clone(MODEL).fit(whole[:160])
    new, hidden = whole[160:], np.isnan(whole[160:])
    i, j = np.nonzero(hidden)
    mean, std = model.with_new_rows(new).predict_entries(160 + i, j, return_std=True)
    observed = signal[160:][hidden] + 0.4 * np.random.default_rng(4).normal(size=hidden.sum())
    held = np.abs(observed - mean) < norm.ppf(0.5 + 0.5 * coverage) * std
    assert held.mean() == pytest.approx(coverage, abs=0.03)


@pytest.mark.long
def test_draws_of_new_rows_have_the_predicted_moments(fitted):
    model, asked = fitted.with_new_rows(X[:2]), ([60, 60, 61], [3, 4, 3])
    draws = predictive(model, asked).functions(20_000).T
    mean, std = model.predict_entries(*asked, return_std=True)
    assert (np.abs(draws.mean(0) - mean) < 5.0 * draws.std(0) / 20_000**0.5).all()
    np.testing.assert_allclose(draws.var(0) + fitted.noise_std_**2, std**2, rtol=0.05)
    # Entries that share a row or a column are dependent, as much as their factors say.
    model = clone(MODEL).set_params(offsets=False).fit(X).with_new_rows(X[:2])
    draws = predictive(model, asked).functions(20_000).T
    (u, v), (i, j) = model.posterior_, np.array(asked)
    of_rows, of_columns = (
        (at[:, None] == at)[..., None, None] * side.cov[at] for side, at in ((u, i), (v, j))
    )
    expected = np.einsum("ak,abkl,bl->ab", v.mean[j], of_rows, v.mean[j])
    expected += np.einsum("ak,abkl,bl->ab", u.mean[i], of_columns, u.mean[i])
    expected += np.einsum("abkl,abkl->ab", of_rows, of_columns)
    off = (draws - draws.mean(0)) / model.scale_
    products = off[:, :, None] * off[:, None]
    error = products.std(0) / 20_000**0.5
    assert (np.abs(products.mean(0) - expected / 2.0) < 5.0 * error).all()


@pytest.mark.long
def test_ordinal_entries():
    """Labels beat numbers where these are few, in the log density of the label."""
    latent = 1.3 * (X - 3.0)
    labels = np.array([1.0, 2.0, 3.0, 5.0])
    stars = labels[np.digitize(np.where(HOLES, 0.0, latent), [-1.5, 0.0, 2.0])]
    rng = np.random.default_rng(1)
    test = ~HOLES & (rng.random(X.shape) < 0.25)
    train = np.where(HOLES | test, np.nan, stars)
    ordinal = clone(MODEL).set_params(likelihood="ordinal").fit(train)
    normal = clone(MODEL).fit(train)
    where = np.nonzero(test)
    assert list(ordinal.classes_) == list(labels)
    assert (np.diff(ordinal.cut_points_) > 0).all()
    row_prior = predictive(ordinal, where)
    p = row_prior.proba()
    np.testing.assert_allclose(p.sum(1), 1.0)
    log_density = row_prior.log_prob(stars[test])
    chosen = np.searchsorted(labels, stars[test])
    np.testing.assert_allclose(log_density, np.log(p[np.arange(len(p)), chosen]), atol=1e-9)
    mean, std = ordinal.predict_entries(*where, return_std=True)
    np.testing.assert_allclose(mean, p @ labels)
    np.testing.assert_allclose(std**2, p @ labels**2 - mean**2, atol=1e-9)
    # The normal's density of a number, as the mass of all numbers nearer to it than to another.
    loc, scale = normal.predict_entries(*where, return_std=True)
    ends = np.array([-np.inf, 1.5, 2.5, 4.0, np.inf])
    mass = norm.cdf((ends[chosen + 1] - loc) / scale) - norm.cdf((ends[chosen] - loc) / scale)
    assert log_density.mean() > np.log(mass).mean() + 0.05
    off = np.stack([mean, loc]) - stars[test]
    assert np.sqrt(np.mean(off[0] ** 2)) < np.sqrt(np.mean(off[1] ** 2))
    assert np.isfinite(ordinal.score(train[:5]))
    assert predictive(ordinal, ([0], [0])).log_prob([2.5]) == -np.inf
    with pytest.raises(ValueError, match="NaN"):
        predictive(normal, ([0], [0])).log_prob([np.nan])
    with pytest.raises(TypeError, match="likelihood='ordinal' only"):
        predictive(normal, ([0], [0])).proba()


@pytest.mark.long
def test_outliers_pull_a_student_t_less():
    rng = np.random.default_rng(0)
    spoiled = np.where(rng.random(X.shape) < 0.05, X + 15.0 * rng.normal(size=X.shape), X)
    normal = clone(MODEL).fit(spoiled)
    for likelihood in ("student_t", StudentT(df=3.0)):
        assert error(clone(MODEL).set_params(likelihood=likelihood).fit(spoiled)) < 0.7 * error(
            normal
        )


def with_features(seed=0):
    """Column factors and offsets that features explain in part; the last ten columns are new."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(60, 5))
    v = features @ rng.normal(size=(5, 2)) + 0.3 * rng.normal(size=(60, 2))
    b = features @ rng.normal(size=5) + 0.3 * rng.normal(size=60)
    signal = b + rng.normal(size=(80, 2)) @ v.T
    noisy = signal + 0.3 * rng.normal(size=signal.shape)
    noisy[rng.random(noisy.shape) < 0.5] = np.nan
    noisy[:, 50:] = np.nan
    return noisy, signal, features


@pytest.mark.long
@pytest.mark.kept("csr_array", "DataFrame")
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, pd.DataFrame])
def test_cold_columns_are_predicted_from_their_features(kind):
    noisy, signal, features = with_features()
    model = clone(MODEL).fit(noisy, column_features=kind(features))
    cold = np.nonzero(np.arange(60) >= 50 + np.zeros((80, 1)))
    off = model.predict_entries(*cold) - signal[cold]
    plain = np.nanmean(noisy) - signal[cold]
    assert np.sqrt(np.mean(off**2)) < 0.5 * np.sqrt(np.mean(plain**2))
    _, std = model.predict_entries(*cold, return_std=True)
    covered = np.abs(off) < 1.645 * np.sqrt(std**2 - model.noise_std_**2)
    assert 0.75 < covered.mean() <= 1.0


@pytest.mark.long
def test_cold_new_rows_are_predicted_from_their_features():
    noisy, signal, features = with_features()
    model = clone(MODEL).fit(noisy.T, row_features=features)
    plain = clone(MODEL).fit(noisy.T[:50])
    assert model.score(noisy.T, row_features=features) > plain.score(noisy.T)
    nothing = np.full((10, 80), np.nan)
    i, j = np.nonzero(np.isnan(nothing))
    new = model.with_new_rows(nothing, row_features=features[50:])
    off = new.predict_entries(60 + i, j) - signal.T[50:][i, j]
    assert np.sqrt(np.mean(off**2)) < 0.5 * signal.T[50:].std()
    with pytest.raises(ValueError, match="row_features was passed to fit"):
        model.with_new_rows(nothing)
    with pytest.raises(ValueError, match="wasn't passed to fit"):
        clone(MODEL).fit(X).with_new_rows(X[:2], row_features=features[:2])


@pytest.mark.long
def test_what_was_rated_at_all_tells_of_rows_and_columns():
    """People rate what they like; new rows are known better by what they rated, too."""
    rng = np.random.default_rng(3)
    taste, appeal = rng.normal(size=(150, 2)), rng.normal(size=(2, 80))
    likes = taste @ appeal / 2**0.5
    seen = 1.5 * likes + rng.gumbel(size=likes.shape) > 2.6
    noisy = np.where(seen, likes + rng.normal(size=likes.shape), np.nan)
    hidden = ~seen & (rng.random(seen.shape) < 0.3)
    errors = {}
    for implicit in (False, "rows", True):
        model = clone(MODEL).set_params(implicit=implicit).fit(noisy[:120])
        newer = model.with_new_rows(noisy[120:])
        errors[implicit] = [
            np.sqrt(np.mean((newer.predict_entries(i, j) - likes[i, j]) ** 2))
            for i, j in (np.nonzero(hidden[:120]), np.add([[120], [0]], np.nonzero(hidden[120:])))
        ]
    assert errors["rows"] < errors[False]
    assert errors[True][0] < 0.9 * errors[False][0]
    assert errors[True][1] < 0.9 * errors[False][1]


def described(names, films):
    """Features of users by label, of films by a column; words, gaps, and films nobody rated."""
    rng = np.random.default_rng(2)
    users = pd.DataFrame({"age": rng.normal(size=len(names)), "job": rng.choice(["a", "b", "c"],
                         len(names))}, index=names)  # fmt: skip
    users.loc[names[::5], "age"] = np.nan
    return users, pd.DataFrame({"genre": rng.normal(size=len(films)), "movieId": films})


def test_features_are_found_by_label():
    """Whatever their order; "u10" sorts before "u2"; encoded, they say the same as numbers do."""
    names, films = [f"u{i}" for i in range(60)], np.arange(42)
    users, movies = described(names, films)
    told = {"user": np.array(names)[ROWS], "movie": COLUMNS, "stars": X[ROWS, COLUMNS]}
    table = pd.DataFrame(told)
    model = clone(MODEL).set_params(max_iter=5, tol=None)
    fits = [
        clone(model).fit(table, row_features=u, column_features=m)
        for u, m in ((users, movies), (users[::-1], movies.sample(frac=1.0, random_state=0)))
    ]
    assert fits[0].elbo_ == fits[1].elbo_
    assert list(fits[0].row_labels_) == sorted(names)
    assert list(fits[0].column_labels_) == list(films)  # those that nobody rated have features
    young = users.assign(age=users["age"].fillna(users["age"].median()))
    columns = [young["age"], users["age"].isna(), *(users["job"] == w for w in "abc")]
    by_hand = np.column_stack(columns).astype(float)[np.argsort(names)]
    again = clone(model).fit(table, row_features=by_hand, column_features=movies)
    assert again.elbo_ == pytest.approx(fits[0].elbo_, rel=1e-9)
    new = pd.DataFrame({"user": ["x9", "x10"], "movie": 3, "stars": 2.0})
    theirs = pd.DataFrame({"job": ["b", "c"], "age": [0.2, -0.3]}, index=["x10", "x9"])
    mean = [
        fits[0].with_new_rows(new, row_features=f).predict_entries(["x9", "x10"], [5, 5])
        for f in (theirs, theirs[::-1])
    ]
    np.testing.assert_array_equal(*mean)


def test_labels_without_features_and_bad_ones_are_named():
    names, films = [f"u{i}" for i in range(60)], np.arange(40)
    users, movies = described(names, films)
    table = (np.array(names)[ROWS], COLUMNS, X[ROWS, COLUMNS])
    for settings, message in (
        ({"row_features": users.drop(["u7", "u12"])}, "no row for 2 labels .* such as 'u12'"),
        (
            {"row_features": users.reset_index(drop=True)},
            "labels of row_features are int64",
        ),
        ({"row_features": pd.concat([users, users[:1]])}, "several rows of one label"),
        ({"column_features": movies.assign(movieId=films + 1)}, "no row for 1 labels .* such as 0"),
        ({"column_features": movies.assign(day=pd.Timedelta("1D"))}, "durations"),
        ({"row_features": np.ones((5, 2))}, "row_features has 5 rows"),
        ({"row_features": np.full((60, 2), np.inf)}, "infinity"),
        ({"row_features": np.ones((60, 5001))}, "more than 5000"),
    ):
        with pytest.raises(ValueError, match=message):
            clone(MODEL).fit(table, **settings)
    model = clone(MODEL).set_params(max_iter=1, tol=None).fit(X, row_features=users)
    with pytest.raises(ValueError, match=r"row_features must have the columns \['age', 'job'\]"):
        model.transform(X[:2], row_features=users[:2][["age"]])


@pytest.mark.long
@pytest.mark.parametrize("solver", ["gibbs", "map"])
def test_other_solvers_have_offsets_too(solver):
    settings = {"solver": solver, "max_iter": 60 if solver == "gibbs" else 150, "tol": 1e-4}
    model = clone(MODEL).set_params(**settings).fit(X)
    without = clone(MODEL).set_params(**settings, offsets=False, prior=1.0).fit(X)
    assert error(model) < 0.95 * error(without)
    assert np.corrcoef(model.row_offsets_, np.nanmean(X, axis=1))[0, 1] > 0.7


@pytest.mark.long
@pytest.mark.kept("0")
@pytest.mark.parametrize("seed", range(10))
def test_a_stream_of_entries_ends_where_the_batch_does(seed):
    """Four parts, rows and columns that come later: within 5 nats; unless sweeps begin anew once
    entries have grown by half, up to hundreds below."""
    rng = np.random.default_rng(seed)
    table, _ = ratings(int(rng.integers(30, 90)), int(rng.integers(25, 50)), seed)
    rows, columns = np.nonzero(~np.isnan(table))
    order = rng.permutation(len(rows))
    names, values = np.array([f"u{i:02d}" for i in range(90)])[rows], table[rows, columns]
    model = SymVIMatrixFactorization(4, random_state=0)
    batch, stream = clone(model).fit((names, columns, values)), clone(model)
    for part in np.array_split(order, 4):
        stream.partial_fit((names[part], columns[part], values[part]))
    assert list(stream.row_labels_) == list(batch.row_labels_)
    assert stream.elbo_ > batch.elbo_ - 5.0
    assert stream.n_observed_ / 1.5 <= stream._stream_start_[0]  # begun anew once grown by half
    with pytest.warns(UserWarning, match="partial_fit begins anew"):
        batch.partial_fit((names, columns, values))


def test_a_stream_replaces_what_it_is_given_again():
    where, values = (ROWS, COLUMNS), X[ROWS, COLUMNS]
    again = np.arange(len(ROWS)) < 30
    stream = clone(MODEL).set_params(solver=VI(symmetry=None), tol=1e-5)
    stream.partial_fit((*where, np.where(again, values - 1.0, values)))
    stream.partial_fit(tuple(part[again] for part in (*where, values)))
    batch = clone(stream).fit((*where, values))
    assert stream.n_observed_ == batch.n_observed_
    assert stream.elbo_ == pytest.approx(batch.elbo_, abs=0.5)


IMPOSSIBLE = {
    "n_components": (0, -2, 2.5, "many", 99), "offsets": (3, "both"), "likelihood": ("normal", 1),
    "solver": ("none", VI, 2), "noise_std": (0.0, -1.0, np.nan, "known"),
    "prior": (0.0, np.inf, "flat"), "implicit": ("all", 2), "columns": (5,), "context": (5,),
    "standardize": ("spread", 2), "max_iter": (0, 1.5), "tol": (-1.0, "small"),
    "device": ("abacus",), "random_state": ("x",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values]
)
def test_a_stream_refuses_impossible_settings_by_name(name, value):
    """At once, and after a change of what was fitted before, which stays."""
    entries, more = (ROWS[:50], COLUMNS[:50], X[ROWS, COLUMNS][:50]), ([0], [0], [3.0])
    stream = clone(MODEL).set_params(max_iter=1, tol=None).partial_fit(entries)
    before = stream.predict_entries([0], COLUMNS[:1])
    for model, given in ((clone(stream), entries), (stream, more)):
        with pytest.raises(ValueError, match=name):
            model.set_params(**{name: value}).partial_fit(given)
    assert stream.predict_entries([0], COLUMNS[:1]) == before


def test_a_stream_that_was_changed_begins_anew():
    where, values = (ROWS, COLUMNS), X[ROWS, COLUMNS]
    stream = clone(MODEL).partial_fit((*where, values))
    with pytest.raises(ValueError, match="rows of partial_fit are <U2 such as 'u0', but"):
        stream.partial_fit((["u0"], [0], [3.0]))
    stream.set_params(offsets="rows", likelihood="student_t", n_components=3, max_iter=3, tol=None)
    stream.partial_fit(([0], [0], [3.0]))
    assert (len(stream.components_), hasattr(stream, "column_offsets_")) == (3, False)


def test_a_few_more_entries_take_few_sweeps():
    few = np.arange(len(ROWS)) < 8
    stream = clone(MODEL).set_params(solver=VI(symmetry=None))
    stream.partial_fit((ROWS[~few], COLUMNS[~few], X[ROWS, COLUMNS][~few]))
    before = stream.n_iter_
    stream.partial_fit((ROWS[few], COLUMNS[few], X[ROWS, COLUMNS][few]))
    assert stream.n_iter_ <= 0.6 * before
    assert np.isfinite(stream.elbo_)


def clicks(seed=0):
    """Counts whose log rates are offsets and two factors, with holes."""
    rng = np.random.default_rng(seed)
    log_rate = 1.0 + 0.5 * rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40))
    log_rate += 0.5 * rng.normal(size=(60, 1)) + 0.5 * rng.normal(size=40)
    counts = rng.poisson(np.exp(log_rate)).astype(float)
    return np.where(rng.random(counts.shape) < 0.6, counts, np.nan), log_rate


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial", NegativeBinomial()])
def test_counts(likelihood):
    """Rates are found, and held-out counts have a higher density than under normal entries."""
    counts, log_rate = clicks()
    held = ~np.isnan(counts) & (np.random.default_rng(1).random(counts.shape) < 0.25)
    train, where = np.where(held, np.nan, counts), np.nonzero(held)
    model = clone(MODEL).set_params(likelihood=likelihood).fit(train)
    mean, std = model.predict_entries(*where, return_std=True)
    assert np.corrcoef(np.log(mean), log_rate[held])[0, 1] > 0.9
    assert (std**2 > mean).all()
    assert np.corrcoef(model.reconstruct()[held], log_rate[held])[0, 1] > 0.9
    row_prior, normal = predictive(model, where), predictive(clone(MODEL).fit(train), where)
    assert row_prior.log_prob(counts[held]).mean() > normal.log_prob(counts[held]).mean()
    total = sum(np.exp(row_prior.log_prob(np.full(held.sum(), float(y)))) for y in range(200))
    np.testing.assert_allclose(total, 1.0, atol=1e-3)
    draws = row_prior.functions(4000).T
    assert np.corrcoef(draws.mean(0), mean)[0, 1] > 0.9
    assert not hasattr(model, "noise_std_")
    assert np.isfinite(model.score(train[:5]))
    assert model.elbo_ > model.elbo_mean_field_


def test_two_values_have_log_odds():
    liked = np.where(HOLES, np.nan, 1.0 + (X > 3.0))  # any two values
    model = clone(MODEL).set_params(likelihood="bernoulli").fit(liked)
    p = predictive(model, np.nonzero(HOLES)).proba()
    assert list(model.classes_) == [1.0, 2.0]
    np.testing.assert_allclose(p.sum(1), 1.0)
    assert np.mean((p[:, 1] > 0.5) == (SIGNAL[HOLES] > 3.0)) > 0.8
    with pytest.raises(ValueError, match="two classes, y has"):
        clone(model).fit(np.where(X > 5.0, 3.0, liked))


@dataclass(frozen=True, eq=False)
class Asymmetric(TargetLikelihood):
    """Gumbel noise: nobody has heard of it here."""

    scale: torch.Tensor

    def distribution(self, outputs):
        return torch.distributions.Gumbel(outputs, self.scale, validate_args=False)


@pytest.mark.parametrize("name", ["gumbel", "laplace"])
def test_a_likelihood_of_ones_own(name):
    """Also one of straight flanks, whose curvature is at single points."""
    rng = np.random.default_rng(0)
    skewed = np.where(HOLES, np.nan, SIGNAL + 0.5 * getattr(rng, name)(size=X.shape))
    scale = torch.tensor(0.5 / np.nanstd(skewed))
    row_prior = Asymmetric(scale) if name == "gumbel" else LaplaceNoise(scale.log()[None])
    own = clone(MODEL).set_params(likelihood=row_prior, max_iter=100).fit(skewed)
    fresh = SIGNAL + 0.5 * getattr(rng, name)(size=X.shape)
    where = np.nonzero(HOLES)
    ours = clone(MODEL).fit(skewed)
    density = [predictive(m, where).log_prob(fresh[where]).mean() for m in (own, ours)]
    assert density[0] > density[1]
    assert own.score(skewed) > ours.score(skewed) - 0.05  # as rows that are new


def test_likelihoods_that_have_no_place_are_refused():
    with pytest.raises(ValueError, match="isn't supported by SymVIMatrixFactorization"):
        clone(MODEL).set_params(likelihood=Heteroscedastic()).fit(X)
    with pytest.raises(ValueError, match="requires counts, but X holds"):
        clone(MODEL).set_params(likelihood="poisson").fit(X)


def test_tails_are_learned_with_a_scale_or_without():
    for learn in (True, False):
        likelihood = StudentT(torch.tensor([-0.9]).double(), "learn", learn)
        model = clone(MODEL).set_params(likelihood=likelihood, max_iter=40, tol=None).fit(X)
        assert (model.noise_std_ == pytest.approx(np.exp(-0.9) * model.scale_)) == (not learn)
        assert error(model) < 0.5


def test_a_scale_that_is_given_stays():
    model = clone(MODEL).set_params(noise_std=0.4, likelihood="student_t").fit(X)
    assert model.noise_std_ == pytest.approx(0.4)
    _, std = model.predict_entries([0], [0], return_std=True)
    assert std[0] > 0.4 * 2**0.5  # four degrees of freedom


@pytest.mark.long
def test_the_context_of_entries_has_effects(tmp_path):
    """Known ones are found; words are encoded; predictions, scores, folds and files take it."""
    rng = np.random.default_rng(0)
    hour, device = rng.uniform(0.0, 24.0, len(CSV)), rng.choice(["tv", "web", "app"], len(CSV))
    effect = 0.1 * hour + (device == "tv")
    frame = CSV.assign(rating=CSV.rating + effect, hour=hour, device=device)
    model = clone(MODEL).set_params(context=("hour", "device")).fit(frame)
    assert model.context_coef_[0] == pytest.approx(0.1 * hour.std(), abs=0.05)
    later, tv = frame.assign(hour=hour + 2.0), frame.assign(device="tv")
    np.testing.assert_allclose(model.predict(later) - model.predict(frame), 0.2, atol=0.02)
    gain = model.predict(tv) - model.predict(frame.assign(device="web"))
    np.testing.assert_allclose(gain, 1.0, atol=0.15)
    plain = clone(MODEL).fit(frame)
    assert model.elbo_ > plain.elbo_ + 100.0
    folds = [cross_validate_entries(m, frame, cv=2)["test_rmse"].mean() for m in (model, plain)]
    assert folds[0] < 0.75 * folds[1]
    row_prior = predictive(model, some := frame[5:0:-1])
    assert model.score(some) == pytest.approx(row_prior.log_prob(some.rating).mean())
    draws = row_prior.functions(4000)
    np.testing.assert_allclose(draws.std(1), row_prior.uncertainty().epistemic ** 0.5, rtol=0.1)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(frame[::-1]), model.predict(frame)[::-1])
    average = model.predict_entries(frame.userId, frame.movieId)  # without context
    assert np.corrcoef(model.predict(frame) - average, effect)[0, 1] > 0.999
    new = frame[frame.userId == 1].assign(userId=99)
    found = model.with_new_rows(new).predict(new) - model.predict(new.assign(userId=1))
    assert np.abs(found).max() < 0.3
    with pytest.raises(ValueError, match=r"context must have the columns \['hour', 'device'\]"):
        model.predict(CSV)


def test_contexts_that_are_none():
    model = clone(MODEL).set_params(context="hour")
    for given in (CSV, (ROWS, COLUMNS, X[ROWS, COLUMNS])):
        with pytest.raises(ValueError, match=r"context='hour' lists \['hour'\], but X "):
            model.fit(given)
    for settings in ({"context": "rating"}, {"context": "movie_title", "solver": "gibbs"}):
        with pytest.raises(ValueError, match=r"lists \['rating'\]|doesn't support the context"):
            clone(model).set_params(**settings).fit(CSV)
    with pytest.raises(ValueError, match="context='hour' does not apply: a stream keeps"):
        model.partial_fit(CSV)
