"""Lists of entries and matrices as files and libraries give them: columns, ids, masks, times."""

import io

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from skbayes_sym import SymVIMatrixFactorization, load, save
from skbayes_sym.factorization.frames import parse_times
from skbayes_sym.model_selection import EntryKFold, RankingScorer, cross_validate_entries

RNG = np.random.default_rng(0)
PLACES = RNG.permutation(600)[:240]
USERS, ITEMS = 1 + PLACES // 20, 1 + PLACES % 20
STARS = RNG.integers(1, 6, 240).astype(float)
FRAME = pd.DataFrame({"user": USERS, "item": ITEMS, "rating": STARS})
MODEL = SymVIMatrixFactorization(2, max_iter=2, tol=None, random_state=0)
MATRIX = FRAME.pivot(index="user", columns="item", values="rating")


def fit(X, **settings):
    return clone(MODEL).set_params(**settings).fit(X)


@pytest.fixture(scope="module")
def fitted():
    return fit(FRAME)


@pytest.fixture(scope="module")
def expected(fitted):
    return fitted.predict(FRAME)


def test_entries_as_rows_of_an_array_are_warned_about():
    with pytest.warns(
        UserWarning, match="240 rows and 3 columns, but looks like a list of entries"
    ):
        model = fit(FRAME.to_numpy())
    with pytest.raises(AttributeError) as caught:
        model.predict(FRAME)
    assert "predict_entries" in str(caught.value.__cause__)


def test_labels_in_the_index_are_explained():
    with pytest.raises(
        ValueError, match=r"index 'user' belongs to the entries, give X.reset_index"
    ):
        fit(FRAME.set_index("user"))
    with pytest.raises(ValueError, match=r"Give X.reset_index\(\)"):
        fit(FRAME.set_index(["user", "item"])["rating"])


def test_values_that_are_text_are_shown():
    with pytest.raises(ValueError, match=r"such as \['five'\]. Use pandas.to_numeric"):
        fit(FRAME.assign(rating=["five" if i == 7 else 2.0 for i in range(len(FRAME))]))


def test_attributes_are_no_ids_values_or_weights(expected):
    """Only well-known names count; weights only where they are asked for."""
    attributes = {"item_price": STARS[::-1], "user_age": USERS, "weight": STARS * 30.0,
                  "weight_kg": STARS, "rating_count": ITEMS, "Unnamed: 0": range(240)}  # fmt: skip
    np.testing.assert_array_equal(fit(FRAME.assign(**attributes)).predict(FRAME), expected)
    amazon = FRAME.set_axis(["user_id", "asin", "overall"], axis=1).assign(item_price=STARS)
    np.testing.assert_array_equal(fit(amazon).predict(amazon), expected)
    weighted = fit(FRAME.assign(times=2.0), columns={"weight": "times"})
    twice = fit((USERS, ITEMS, STARS, np.full(240, 2.0)))
    np.testing.assert_array_equal(weighted.predict(FRAME), twice.predict(FRAME))
    assert np.abs(weighted.predict(FRAME) - expected).max() > 1e-3


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.rename(columns={"user": "user_id", "item": "book_id"})[["user_id", "book_id"]],
         "An entry needs a value"),
        (FRAME[["user", "item"]].set_axis(["u", "i"], axis=1), "An entry needs a value"),
        (FRAME[["user", "item"]].astype(str).set_axis(["u", "i"], axis=1), "needs a value"),
        (FRAME.rename(columns={"item": "thing"}).assign(item_price=STARS),
         r"columns=\('user', 'thing', 'rating'\)"),
        (FRAME.set_axis(["u", "i", "mark"], axis=1).reset_index(names="Unnamed: 0"),
         r"columns=\('u', 'i', 'mark'\)"),
        (FRAME.assign(movieId=ITEMS), r"\['item', 'movieId'\] of X may all be the columns"),
        (FRAME.assign(stars=STARS), r"\['rating', 'stars'\] of X may all be the values"),
        (MATRIX.rename(columns=str).reset_index(names="userId"), r"set_index\('userId'\)"),
        (MATRIX.rename(columns=str).reset_index(names="Unnamed: 0"), r"set_index\('Unnamed: 0'\)"),
    ],
)  # fmt: skip
def test_frames_that_could_be_something_else_are_refused(frame, message):
    with pytest.raises(ValueError, match=message):
        fit(frame)
    with pytest.raises(ValueError, match=message):
        next(EntryKFold(2).split(frame))


def test_tables_of_numbers_are_matrices(expected):
    table = pd.DataFrame(RNG.normal(size=(30, 4)), columns=["age", "score", "weight", "height"])
    assert fit(table).n_observed_ == 120
    words = pd.DataFrame(RNG.normal(size=(30, 10)), columns=[*"abcdefgh", "person", "paid"])
    assert fit(words).n_observed_ == 300
    for matrix in (MATRIX, pd.read_csv(io.StringIO(MATRIX.to_csv()), index_col=0)):
        np.testing.assert_array_equal(fit(matrix).predict_entries(USERS, ITEMS), expected)


@pytest.mark.parametrize("columns", ["user", ("a", "b"), {"rows": "user"}, {"row": "who"}])
def test_bad_columns_are_named(columns):
    with pytest.raises(ValueError, match="columns"):
        fit(FRAME, columns=columns)


def test_errors_show_values_in_short():
    with pytest.raises(ValueError, match=r"got object of shape .* such as") as raised:
        fit((USERS, ITEMS, FRAME["rating"].astype(str).astype(object)))
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("name", ["polars", "pyarrow"])
def test_frames_of_other_libraries(name, fitted, expected):
    library = pytest.importorskip(name)
    make = library.DataFrame if name == "polars" else library.table
    frame = make(dict(FRAME.items() if name == "pyarrow" else FRAME.to_dict("list").items()))
    model = fit(frame)
    np.testing.assert_array_equal(model.predict(frame), expected)
    assert model.score(frame) == fitted.score(FRAME)
    scores = [cross_validate_entries(MODEL, X, cv=2)["test_rmse"] for X in (FRAME, frame)]
    np.testing.assert_array_equal(*scores)
    matrix = make({f"c{j}": MATRIX.to_numpy()[:, j - 1] for j in MATRIX.columns})
    assert fit(matrix).column_labels_[:2].tolist() == ["c1", "c2"]


ID_FORMS = {
    "int": USERS,
    "float": USERS.astype(float),
    "word": USERS.astype(str),
    "padded": np.array([f"{i:02d}" for i in USERS]),
    "category": pd.Categorical(USERS, categories=range(50)),
    "nullable": pd.array(USERS, dtype="Int64"),
}
UNKNOWN = {"float": 99.0, "word": "99", "padded": "099"}


@pytest.mark.parametrize("given", ID_FORMS)
def test_ids_keep_their_meaning_in_another_dtype(given):
    """A csv file turns "07" into 7, and missing values turn 7 into 7.0."""
    model = fit(FRAME.assign(user=ID_FORMS[given]))
    assert len(model.row_labels_) == len(np.unique(USERS))  # categories without entries are none
    assert model.row_labels_.dtype.kind == ("U" if given in ("word", "padded") else "i")
    known = model.predict(FRAME[:40].assign(user=ID_FORMS[given][:40]))
    for asked, form in ID_FORMS.items():
        if {given, asked} == {"word", "padded"}:
            continue  # words are compared as they are
        found = model.predict(FRAME[:40].assign(user=form[:40]))
        np.testing.assert_array_equal(found, known)
        pair = [UNKNOWN.get(asked, 99), form[0]]
        _, std = model.predict_entries(pair, [1, 1], return_std=True)
        assert std[0] > std[1]


def test_ids_of_several_types():
    mixed = [int(i) if i % 2 else f"w{i}" for i in USERS]
    model = fit((mixed, ITEMS, STARS))
    words = fit(([str(i) for i in mixed], ITEMS, STARS))
    np.testing.assert_array_equal(model.predict_entries([3, "w2"], [1, 1]),
                                  words.predict_entries(["3", "w2"], [1, 1]))  # fmt: skip
    np.testing.assert_array_equal(
        model.predict_entries([3], [1]), words.predict_entries(["3"], [1])
    )
    pairs = [("shop", int(i)) for i in USERS]
    model = fit((pairs, ITEMS, STARS))
    assert model.row_labels_[0] == "('shop', 1)"
    as_column = fit(FRAME.assign(user=pd.Series(pairs)))
    np.testing.assert_array_equal(model.predict((pairs, ITEMS)), as_column.predict((pairs, ITEMS)))
    for bad, message in (
        ([[1], [1, 2]], "1D"),
        (["a", None], "missing"),
        ([1.0, np.nan], "missing"),
    ):
        with pytest.raises(ValueError, match=message):
            fit((bad, [1, 2], [1.0, 2.0]))
    with pytest.raises(
        ValueError, match="rows are <U3 such as 'bob', but labels in fit were int64"
    ):
        fit(FRAME).predict_entries(["bob"], [1])


def test_dates_are_labels(tmp_path):
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(USERS, unit="D")
    model = fit(FRAME.assign(user=days))
    again = pd.read_csv(io.StringIO(FRAME.assign(user=days).to_csv()))
    np.testing.assert_array_equal(model.predict(again), model.predict(FRAME.assign(user=days)))
    words = fit(again)
    np.testing.assert_array_equal(words.predict(FRAME.assign(user=days)), words.predict(again))
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.row_labels_, model.row_labels_)
    np.testing.assert_array_equal(loaded.predict(again), model.predict(again))


def test_ids_of_features_are_those_of_entries():
    """They aren't mixed with those of another type, and ``columns`` names them too."""
    names = ("who", "what", "mark")
    renamed = FRAME.set_axis(names, axis=1)
    features = pd.DataFrame({"z": RNG.normal(size=30)}, index=range(1, 31))
    by_index = clone(MODEL).fit(FRAME, row_features=features)
    as_words = clone(MODEL).fit(
        FRAME, row_features=features.set_axis([f"{i}" for i in range(1, 31)])
    )
    by_name = clone(MODEL).set_params(columns=names)
    by_name.fit(renamed, row_features=features.reset_index(names="who")[::-1])
    for model in (as_words, by_name):
        assert model.row_labels_.dtype == np.int64
        np.testing.assert_array_equal(model.components_, by_index.components_)
    for index, message in (([f"u{i}" for i in range(30)], "labels of row_features are <U3"),):
        with pytest.raises(ValueError, match=message):
            clone(MODEL).fit(FRAME, row_features=features.set_axis(index))
    for more, message in ({"reader_id": range(1, 31)}, r"row_features.set_index\('reader_id'\)"), (
        {"user": range(1, 31), "userId": range(1, 31)}, "may all hold the labels"
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            clone(MODEL).fit(FRAME, row_features=features.reset_index(drop=True).assign(**more))
    with pytest.raises(ValueError, match="numbered from 0, but entries are labelled from 1"):
        clone(MODEL).fit(FRAME, row_features=features.reset_index(drop=True))
    # A matrix that is a frame keeps its labels in every fold.
    table = MATRIX.rename(index=lambda i: f"u{i:02d}")
    features = features.set_axis([f"u{i:02d}" for i in range(1, 31)])
    in_order, turned = (
        cross_validate_entries(MODEL, table, cv=2, params={"row_features": f})["test_rmse"]
        for f in (features.loc[table.index], features.loc[table.index][::-1])
    )
    np.testing.assert_array_equal(in_order, turned)


def test_columns_reach_splitters_and_scorers():
    names = ("who", "what", "mark")
    renamed = FRAME.set_axis(names, axis=1).assign(timestamp=np.arange(240), other=STARS)
    named = clone(MODEL).set_params(columns=names)
    usual = FRAME.assign(timestamp=np.arange(240))
    scoring = {"recall": RankingScorer("recall")}
    for cv in (2, EntryKFold(2, by="rows", random_state=0), EntryKFold(2, by="time")):
        before, after = (
            cross_validate_entries(model, frame, cv=cv, scoring=scoring)
            for model, frame in ((MODEL, usual), (named, renamed))
        )
        for score in ("test_rmse", "test_recall", "test_log_density"):
            np.testing.assert_array_equal(before[score], after[score])
    model = named.fit(renamed)
    assert RankingScorer()(model, renamed) >= 0.0


def test_rankings_find_ids_of_another_dtype(fitted):
    held_out = pd.DataFrame({"user": [1, 2], "item": [1, 2], "rating": 5.0})
    scores = [RankingScorer("recall", n=20)(fitted, held_out.astype({"item": kind}))
              for kind in (int, str, float)]  # fmt: skip
    assert scores[0] == scores[1] == scores[2]


def test_masked_entries_are_missing(expected):
    mask = MATRIX.isna().to_numpy()
    matrix = np.ma.masked_array(np.where(mask, 99.0, MATRIX.to_numpy()), mask=mask)
    with_nan = fit(MATRIX.to_numpy())
    for masked in (matrix, matrix.astype(int)):
        model = fit(masked)
        assert model.n_observed_ == 240
        np.testing.assert_array_equal(model.components_, with_nan.components_)
        np.testing.assert_array_equal(
            model.transform(masked), with_nan.transform(MATRIX.to_numpy())
        )
        assert model.score(masked) == with_nan.score(MATRIX.to_numpy())
    scores = [cross_validate_entries(MODEL, X, cv=2)["test_rmse"]
              for X in (matrix, MATRIX.to_numpy())]  # fmt: skip
    np.testing.assert_array_equal(*scores)
    masked = np.ma.masked_array(STARS, mask=STARS == 1.0)
    assert fit((USERS, ITEMS, masked)).n_observed_ == np.sum(STARS > 1.0)
    with pytest.raises(ValueError, match="missing in"):
        fit((np.ma.masked_array(USERS, mask=USERS == 1), ITEMS, STARS))
    features = np.ma.masked_array(np.ones((len(MATRIX), 1)), mask=np.arange(len(MATRIX)) % 7 == 0)
    filled = np.where(features.mask, np.nan, 1.0)
    models = [clone(MODEL).fit(MATRIX.to_numpy(), row_features=f) for f in (features, filled)]
    np.testing.assert_array_equal(models[0].components_, models[1].components_)
    values = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    with pytest.raises(ValueError, match="y has 1 masked entr"):
        fit(FRAME)._predictive((USERS[:2], ITEMS[:2])).log_prob(values)


def test_stored_zeros_and_entries_listed_twice_count():
    zero = sp.csr_array(([0.0, 1.0, 2.0], ([0, 0, 1], [0, 1, 1])), shape=(2, 2))
    assert fit(zero, n_components=1).n_observed_ == 3
    nullable = FRAME.assign(rating=pd.array(STARS, dtype="Float64"))
    nullable.loc[3, "rating"] = pd.NA
    assert fit(nullable).n_observed_ == 239
    twice = pd.concat([FRAME, FRAME[:50]])
    weights = np.where(np.arange(240) < 50, 2.0, 1.0)
    np.testing.assert_allclose(
        fit(twice).predict(FRAME), fit((USERS, ITEMS, STARS, weights)).predict(FRAME), atol=1e-6
    )


DAYS = pd.Series(pd.Timestamp("2019-03-01") + pd.to_timedelta(RNG.permutation(500), unit="D"))


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%m/%d/%Y", "%d.%m.%Y", "%m/%d/%y %H:%M", "%m %d, %Y", "%d %b %Y", "%s",
             "%Y-%m-%dT%H:%M:%SZ", "%I %p", "category", "zone", "object", "number"],
)  # fmt: skip
def test_times_are_read_in_their_order(form):
    forms = {
        "category": DAYS.dt.strftime("%m/%d/%Y").astype("category"), "object": DAYS.dt.date,
        "zone": DAYS.dt.tz_localize("Europe/Berlin"), "number": DAYS.astype("int64"),
        "%s": DAYS.astype("int64").astype(str),
    }  # fmt: skip
    times = forms.get(form, DAYS.dt.strftime(form))
    if form == "%I %p":
        with pytest.raises(ValueError, match="when holds words such as"):
            parse_times(times, "when")
    else:
        order = np.argsort(parse_times(times, "when"))
        assert DAYS.iloc[order].is_monotonic_increasing


def test_training_entries_are_earlier_than_test_entries():
    days = DAYS[:240]
    frame = FRAME.assign(date=days.dt.strftime("%m/%d/%Y"), other=days)
    for columns in ("auto", {"time": "other"}):
        for train, test in EntryKFold(3, by="time", columns=columns).split(frame):
            assert days.iloc[train].max() < days.iloc[test].min()
    weeks = days.dt.to_period("W").astype(str).str[:10]
    for train, test in EntryKFold(3, by="time").split(FRAME.assign(date=weeks)):
        assert weeks.iloc[train].max() < weeks.iloc[test].min()  # ties stay together
    short = days.dt.month.clip(upper=12).astype(str) + "/" + days.dt.day.clip(upper=12).astype(str)
    for more, message in (
        ({"date": short + "/2020"}, "different orders"),
        ({"date": days.dt.day_name()}, "one common format"),
        ({"date": days.where(days.index > 3)}, "missing in 4 entries"),
        ({"date": days.dt.year}, "different times"),
        ({"date": days, "timestamp": days}, r"columns=\{'time': 'date'\}"),
        ({}, "X has no column of times"),
    ):
        with pytest.raises(ValueError, match=message):
            next(EntryKFold(3, by="time").split(FRAME.assign(**more)))


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_context_of_missing_entries_is_left_out(name):
    library = pytest.importorskip(name)
    frame = FRAME.assign(hour=RNG.normal(size=240))
    gaps = frame.assign(rating=frame["rating"].where(frame.index > 9))
    models = [fit(library.DataFrame(X.to_dict("list")), context="hour") for X in (gaps, frame[10:])]
    np.testing.assert_array_equal(models[0].context_coef_, models[1].context_coef_)
    asked = library.DataFrame(frame[10:20].to_dict("list"))
    np.testing.assert_allclose(models[0].predict(asked), models[1].predict(frame[10:20]))
