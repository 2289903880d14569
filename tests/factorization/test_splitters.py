"""Splits of entries, and scores on held-out ones."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skbayes_sym import SymVIMatrixFactorization
from skbayes_sym.factorization.ratings import extract_entries
from skbayes_sym.model_selection import EntryKFold, RankingScorer, cross_validate_entries


def matrix(seed=0, noise=0.4, n=50, m=40, k=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, k)) @ rng.normal(size=(k, m)) + noise * rng.normal(size=(n, m))
    X[rng.random(X.shape) < 0.2] = np.nan
    return X


X = matrix()
N = int(np.sum(~np.isnan(X)))
MODEL = SymVIMatrixFactorization(2, tol=0.01, random_state=0)


@pytest.mark.parametrize("n_splits", [2, 3, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_folds_are_a_partition_of_the_entries(n_splits, shuffle):
    folds = list(EntryKFold(n_splits, shuffle=shuffle, random_state=0).split(X))
    assert len(folds) == n_splits == EntryKFold(n_splits).get_n_splits()
    assert np.array_equal(np.sort(np.concatenate([test for _, test in folds])), np.arange(N))
    sizes = [len(test) for _, test in folds]
    assert max(sizes) - min(sizes) <= 1
    for train, test in folds:
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(N))


def test_folds_follow_the_random_state():
    folds = [next(EntryKFold(3, random_state=seed).split(X))[1] for seed in (0, 0, 1)]
    assert np.array_equal(folds[0], folds[1])
    assert not np.array_equal(folds[0], folds[2])


@pytest.mark.long
def test_sparse_and_dense_split_alike():
    rows, columns, values, shape = extract_entries(X)[:4]
    sparse = sp.coo_array((values[::-1], (rows[::-1], columns[::-1])), shape=shape)
    splitter = EntryKFold(3, random_state=0)
    for (a, b), (c, d) in zip(splitter.split(X), splitter.split(sparse), strict=True):
        assert np.array_equal(a, c)
        assert np.array_equal(b, d)
    dense = cross_validate_entries(MODEL, X, cv=2)
    assert np.array_equal(
        dense["test_rmse"], cross_validate_entries(MODEL, sparse, cv=2)["test_rmse"]
    )


@pytest.mark.long
def test_held_out_entries_are_not_seen():
    """Values of the test fold, made absurd, change nothing in the fits."""
    splitter = EntryKFold(2, random_state=0)
    train, test = next(splitter.split(X))
    rows, columns, *_ = extract_entries(X)
    spoiled = X.copy()
    spoiled[rows[test], columns[test]] = 1e6

    class First:
        def split(self, X):
            yield train, test

    settings = {"cv": First(), "return_estimator": True}
    clean = cross_validate_entries(MODEL, X, **settings)
    dirty = cross_validate_entries(MODEL, spoiled, **settings)
    first, second = clean["estimator"][0], dirty["estimator"][0]
    assert np.array_equal(first.components_, second.components_)
    assert dirty["test_rmse"][0] > 1e5


@pytest.mark.long
def test_scores_say_what_they_say():
    scores = cross_validate_entries(MODEL, X, cv=3, return_estimator=True)
    rows, columns, values, *_ = extract_entries(X)
    for i, (_, test) in enumerate(EntryKFold(3, random_state=0).split(X)):
        mean, std = scores["estimator"][i].predict_entries(
            rows[test], columns[test], return_std=True
        )
        off = values[test] - mean
        assert scores["test_rmse"][i] == pytest.approx(np.sqrt(np.mean(off**2)))
        density = np.mean(-0.5 * (off / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi))
        assert scores["test_log_density"][i] == pytest.approx(density)
        assert 0.8 < scores["test_coverage"][i] < 1.0
    assert set(scores) == {
        "test_rmse", "test_log_density", "test_coverage", "fit_time", "score_time", "estimator",
    }  # fmt: skip


@pytest.mark.long
def test_a_grid_over_components_finds_the_right_number():
    density, small = {}, matrix(n=30, m=25)
    for k in (1, 2, 3):
        model = clone(MODEL).set_params(n_components=k)
        density[k] = cross_validate_entries(model, small, cv=2)["test_log_density"].mean()
    assert density[2] > density[1] + 0.1
    assert density[2] > density[3] - 0.02  # a third one hardly hurts a Bayesian


@pytest.mark.long
@pytest.mark.processes
def test_jobs_dont_change_the_scores():
    one, two = (cross_validate_entries(MODEL, X, cv=2, n_jobs=n) for n in (None, 2))
    assert np.array_equal(one["test_log_density"], two["test_log_density"])


ROWS, COLUMNS = np.nonzero(~np.isnan(X))
FRAME = pd.DataFrame({"userId": ROWS, "movieId": COLUMNS, "rating": X[ROWS, COLUMNS]})
QUICK = clone(MODEL).set_params(max_iter=5, tol=None)


def test_lists_are_scored_as_their_matrix_is():
    """A frame and a tuple, one value of which is missing; and through scikit-learn's search."""
    matrix, *lists = (
        cross_validate_entries(QUICK, table, cv=2)
        for table in (X, FRAME, (ROWS, COLUMNS, FRAME["rating"]))
    )
    for scores in lists:
        assert np.array_equal(scores["test_rmse"], matrix["test_rmse"])
        assert np.array_equal(scores["test_log_density"], matrix["test_log_density"])
    gaps = FRAME.assign(rating=FRAME["rating"].where(FRAME.index % 5 > 0))
    seen = np.flatnonzero(gaps["rating"].notna())
    for train, test in EntryKFold(3, random_state=0).split(gaps):
        assert np.array_equal(np.sort(np.concatenate([train, test])), seen)
    search = GridSearchCV(QUICK, {"n_components": [2]}, cv=EntryKFold(2, random_state=0))
    score = search.fit(FRAME).best_score_
    assert score == pytest.approx(matrix["test_log_density"].mean())
    squares = GridSearchCV(QUICK, {}, cv=2, scoring="neg_root_mean_squared_error")
    assert -2.0 < squares.fit(FRAME, FRAME["rating"]).best_score_ < 0.0


def test_rows_and_times_are_held_out_as_a_whole():
    times = np.random.default_rng(0).permutation(N)
    frame = FRAME.assign(timestamp=times)
    for by, name in (("rows", "userId"), ("columns", "movieId")):
        folds = list(EntryKFold(3, by=by, random_state=0).split(frame))
        for train, test in folds:
            assert not set(frame[name].iloc[train]) & set(frame[name].iloc[test])
        tested = np.sort(np.concatenate([test for _, test in folds]))
        assert np.array_equal(tested, np.arange(N))
        again = EntryKFold(3, by=by, random_state=0).split(X)
        assert all(np.array_equal(a[1], b[1]) for a, b in zip(folds, again, strict=True))
    folds = list(EntryKFold(3, by="time").split(frame))
    for train, test in folds:
        assert times[train].max() < times[test].min()
        assert len(test) == pytest.approx(N / 4, abs=1)
    assert np.array_equal(folds[1][0], np.sort(np.concatenate(folds[0])))
    with pytest.raises(ValueError, match="X has no column of times"):
        next(EntryKFold(3, by="time").split(FRAME))
    with pytest.raises(ValueError, match="n_splits=60 is more than the 50 rows that have entries"):
        next(EntryKFold(60, by="rows").split(X))
    with pytest.raises(ValueError, match="by must be one of"):
        EntryKFold(by="luck")


class EntryPredictionMixin:
    """EntryPredictionMixin columns 0, 1, 2, ... to everybody."""

    def recommend(self, rows, n):
        columns = np.tile(np.arange(n), (len(rows), 1))
        return type("Recommendations", (), {"columns": columns})


def test_rankings_are_scored_by_what_is_relevant():
    """Two rows; the one has columns 1 and 9, the other 0 and one below the least value."""
    test, model = (
        ([5, 5, 7, 7, 8], [1, 9, 0, 2, 1], [4.0, 5.0, 4.0, 1.0, 2.0]),
        EntryPredictionMixin(),
    )
    score = {m: RankingScorer(m, n=4, relevant=4.0)(model, test) for m in ("precision", "recall")}
    assert score == {"precision": 0.25, "recall": 0.75}
    first = (1 / np.log2(3)) / (1 + 1 / np.log2(3))
    assert RankingScorer(n=4, relevant=4.0)(model, test) == pytest.approx((first + 1.0) / 2)
    assert RankingScorer("precision", n=3)(model, test) == pytest.approx((1 + 2 + 1) / 9)
    with pytest.raises(ValueError, match="metric must be one of"):
        RankingScorer("hits")
    with pytest.raises(ValueError, match="no entry of X is relevant: all are below 6"):
        RankingScorer(relevant=6)(model, test)


def test_every_row_is_ranked_by_its_own_list():
    """Against the metrics by hand; row 0 has seen all columns but one, row 3 has none relevant."""
    table = np.full((4, 6), np.nan)
    table[0, :5] = [1.0, 2.0, 3.0, 4.0, 5.0]
    table[1, :2] = [5.0, 1.0]
    table[2, 3:5] = [2.0, 4.0]
    table[3, 5] = 3.0
    model = SymVIMatrixFactorization(1, max_iter=3, tol=None, random_state=0).fit(table)
    rows, columns, values = [0, 1, 1, 2, 2, 2, 3], [5, 2, 4, 0, 1, 5, 0], [5, 5, 4, 5, 4, 4, 1]
    held_out = (rows, columns, np.array(values, dtype=float))
    n, lists = 3, {}
    for row in (0, 1, 2):  # the best that the row hasn't seen
        score = model.predict_entries([row] * 6, range(6))
        left = [j for j in range(6) if np.isnan(table[row, j])]
        lists[row] = sorted(left, key=lambda j: (-score[j], j))[:n]
        alone = model.recommend([row], n)
        assert alone.columns[0, : alone.lengths[0]].tolist() == lists[row]
    assert lists[0] == [5]
    found = model.recommend(n=n)
    assert found.lengths.tolist() == [1, 3, 3, 3]
    assert found.columns[0].tolist() == [5, -1, -1]
    assert np.isnan(found.values).tolist()[0] == [False, True, True]
    wanted = {0: {5}, 1: {2, 4}, 2: {0, 1, 5}}
    by_hand = {metric: [] for metric in ("precision", "recall", "ndcg", "map", "hit_rate")}
    for row, listed in lists.items():
        hits = [column in wanted[row] for column in listed]
        n_relevant = len(wanted[row])
        places = [place for place, hit in enumerate(hits, 1) if hit]
        by_hand["precision"].append(len(places) / n)
        by_hand["recall"].append(len(places) / n_relevant)
        by_hand["hit_rate"].append(float(len(places) > 0))
        best = sum(1 / np.log2(place + 1) for place in range(1, min(n, n_relevant) + 1))
        by_hand["ndcg"].append(sum(1 / np.log2(place + 1) for place in places) / best)
        precisions = [sum(hits[:place]) / place for place in places]
        by_hand["map"].append(sum(precisions) / min(n, n_relevant))
    for metric, scores in by_hand.items():
        scorer = RankingScorer(metric, n=n, relevant=4.0)
        assert scorer(model, held_out) == pytest.approx(np.mean(scores), rel=1e-12)
    # A list longer than what is left or than all columns scores the same hits.
    assert model.recommend([0, 1], 50).columns.shape == (2, 6)
    assert RankingScorer("recall", n=50)(model, held_out) == 1.0


def test_padding_is_no_label():
    """A row that has seen everything gets an empty list, also where -1 is a label."""
    rows, columns = ["a", "a", "b"], [-1, 0, 0]
    model = SymVIMatrixFactorization(1, max_iter=2, tol=None, random_state=0)
    model.fit((rows, columns, [1.0, 2.0, 3.0]))
    for by in ("mean", "probability_best", "thompson"):
        found = model.recommend(n=2, by=by, random_state=0)
        assert found.lengths.tolist() == [0, 1]
        assert found.columns.tolist() == [[-1, -1], [-1, -1]]
        assert np.isnan(found.values).tolist() == [[True, True], [False, True]]
    held_out = (["a", "b"], [-1, -1], [2.0, 2.0])
    assert RankingScorer("hit_rate", n=2)(model, held_out) == 0.5
    words = model.fit((rows, ["x", "y", "y"], [1.0, 2.0, 3.0])).recommend(n=2)
    assert words.columns.tolist() == [["", ""], ["x", ""]]


def test_a_factorisation_ranks_better_than_chance():
    scoring = {"recall": RankingScorer("recall", relevant=1.5)}
    scores = cross_validate_entries(QUICK, FRAME, cv=2, scoring=scoring)
    assert (scores["test_recall"] > 2 * 10 / 40).all()


@pytest.mark.parametrize("n_splits", [1, 0, 2.5, "five"])
def test_bad_number_of_folds(n_splits):
    with pytest.raises(ValueError, match="n_splits"):
        EntryKFold(n_splits)


@pytest.mark.parametrize("given", [{"cv": "five"}, {"cv": None}, {"scoring": 3}])
def test_a_word_is_no_splitter_and_a_number_no_scorers(given):
    with pytest.raises(TypeError, match=r"^(cv must be a number|scoring must be a dict)"):
        cross_validate_entries(MODEL, X, **given)


def test_more_folds_than_entries():
    with pytest.raises(ValueError, match="n_splits=5 is more than the 3 observed"):
        next(EntryKFold(5).split([[1.0, np.nan], [2.0, 3.0]]))
